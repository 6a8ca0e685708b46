"""A node's disk is full, and then all of them are."""
import os
import subprocess
import time

import pytest
from workload_log import Item, LogWorkload

SIZE_MB = 160


@pytest.fixture
def small_disks(clusters):
    """A cluster on small file systems, one a node."""
    mounted = []

    def make():
        if os.geteuid() != 0:
            pytest.skip("needs root for small file systems")
        cluster = clusters(3)
        for node in cluster.nodes:
            made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", node.faults.root], capture_output=True, check=False)
            if made.returncode != 0:
                pytest.skip(f"no tmpfs can be mounted: {made.stderr.decode()}")
            mounted.append(node.faults.root)
        return cluster

    yield make
    for place in mounted:
        subprocess.run(["umount", "-l", place], check=False)


def used_share(path):
    info = os.statvfs(path)
    return 1 - info.f_bavail / info.f_blocks


def fill(path, share):
    """A file of somebody else's that leaves this share used."""
    name = os.path.join(path, "ballast")
    with open(name, "wb") as f:
        while used_share(path) < share:
            f.write(bytes(1 << 20))
            f.flush()
    return name


def big(number):
    return Item(f"big-{number}", "lane-0", {"n": number, "pad": "x" * 50000})


@pytest.mark.seconds(9)
def test_full_disks(small_disks, seed):
    cluster = small_disks().start()
    client = cluster.client("full")
    log = LogWorkload(cluster, seed)
    for number in range(20):
        log.push(client, [big(number)])
    # a follower: the majority goes on
    follower = cluster.followers()[0]
    ballast = fill(follower.faults.root, 0.93)
    cluster.members = [node for node in cluster.nodes if node is not follower]  # what it is asked, it can not do
    deadline = time.monotonic() + 4.0
    number = 1000
    while time.monotonic() < deadline:
        number += 1
        began = time.monotonic()
        log.push(client, [big(number)])
        assert time.monotonic() - began < 3.0, "a full follower holds up the majority"
        time.sleep(0.02)  # 10 MB of them at most: the ballast is what fills the disks
    assert follower.alive(), follower.log_tail()
    os.unlink(ballast)
    # all of them: pushes are refused, reads and acks go on
    cluster.wait_equal()
    ballasts = [fill(node.faults.root, 0.865) for node in cluster.nodes]
    deadline = time.monotonic() + 15.0
    refused = None
    while time.monotonic() < deadline:
        number += 1
        item = big(number)
        status, answer, _ = client.insist("POST", "/api/v1/push", log.body([item]))
        if status == 507:
            refused = answer
            break
        item.message, item.offset, item.sent, item.answered = answer[0]["message_id"], answer[0]["offset"], time.monotonic(), time.monotonic()
        log.items.append(item)
        time.sleep(0.05)
    assert refused is not None and refused["code"] == "storage_full", refused
    status, answer, _ = client.insist("GET", "/api/v1/pop/queue/log?consumerGroup=g&subscriptionMode=all&batch=5&leaseSeconds=30")
    assert status == 200, answer
    acks = [{"transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": m["leaseId"], "status": "completed"} for m in answer["messages"]]
    status, answer, _ = client.insist("POST", "/api/v1/ack/batch", {"consumerGroup": "g", "acknowledgments": acks})
    assert status == 200 and all(r["success"] for r in answer), answer
    for ballast in ballasts:
        os.unlink(ballast)
    deadline = time.monotonic() + 10.0
    while True:
        number += 1
        item = big(number)
        status, answer, _ = client.insist("POST", "/api/v1/push", log.body([item]))
        if status == 201:
            item.message, item.offset, item.sent, item.answered = answer[0]["message_id"], answer[0]["offset"], time.monotonic(), time.monotonic()
            log.items.append(item)
            break
        assert status == 507 and time.monotonic() < deadline, f"still refused 10 s after there is room: {status} {answer}"
        time.sleep(0.1)
    cluster.wait_equal()
    log.finish(client)
    client.close()
    assert not log.problems, "\n".join(log.problems[:10])
