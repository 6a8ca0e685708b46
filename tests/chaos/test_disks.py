"""A node's disk is full, and then all of them are; they are restarted so, and go on when there is room."""
import os
import subprocess
import time

import pytest
from cluster import HTTP_PORT, NodeConn
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


def push_until(client, log, number, wanted, seconds=10.0, most=600):
    """Pushes until it is answered so, within `seconds` when there is room (201), within `most` of them when there is not (507)."""
    deadline = time.monotonic() + (seconds if wanted == 201 else 60.0)
    for _ in range(most):
        number += 1
        item = big(number)
        status, answer, _ = client.insist("POST", "/api/v1/push", log.body([item]))
        if status == 201:
            item.message, item.offset, item.sent, item.answered = answer[0]["message_id"], answer[0]["offset"], time.monotonic(), time.monotonic()
            log.items.append(item)
        else:
            assert status == 507 and answer["code"] == "storage_full", (status, answer)
        if status == wanted:
            return number
        assert time.monotonic() < deadline, f"still {status} after {seconds} s: {answer}"
        time.sleep(0.05)
    raise AssertionError(f"{most} pushes, and none was answered {wanted}")


def wait_room(node, seconds=10.0):
    """The node has noticed that its disk has room: it looks once a second."""
    deadline = time.monotonic() + seconds
    while not node.ask("GET", "/health")[1]["raft"]["storageReady"]:
        assert time.monotonic() < deadline, node.log_tail()
        time.sleep(0.1)


def what_goes_on(client, cluster):
    """Reads, acks and deletes, health and metrics: space can be won back, and one can see what is wrong."""
    status, answer, _ = client.insist("GET", "/api/v1/pop/queue/log?consumerGroup=g&subscriptionMode=all&batch=5&leaseSeconds=1&wait=true&timeout=5000")
    assert status == 200, answer
    acks = [{"transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": m["leaseId"], "status": "completed"} for m in answer["messages"]]
    status, answer, _ = client.insist("POST", "/api/v1/ack/batch", {"consumerGroup": "g", "acknowledgments": acks})
    assert status == 200 and all(r["success"] for r in answer), answer
    status, answer, _ = client.insist("POST", "/api/v1/kv", {"operations": [{"op": "get", "ns": "s", "key": "before"}]})
    assert status == 200 and answer["results"][0]["value"] == 1, answer
    status, answer, _ = client.insist("DELETE", "/api/v1/resources/queues/small")
    assert status == 200, answer
    for node in cluster.nodes:
        assert node.ask("GET", "/health")[0] == 200, node.log_tail()
        assert "queen_raft_storage_full" in metrics(node)


def metrics(node):
    conn = NodeConn((node.address, HTTP_PORT), 5.0)
    try:
        return conn.call("GET", "/metrics/prometheus")[1].decode()
    finally:
        conn.close()


@pytest.mark.seconds(12)
def test_full_disks(small_disks, seed):
    cluster = small_disks().start()
    client = cluster.client("full")
    log = LogWorkload(cluster, seed)
    client.insist("POST", "/api/v1/kv", {"operations": [{"op": "put", "ns": "s", "key": "before", "value": 1, "forever": True}]})
    client.insist("POST", "/api/v1/push", {"items": [{"queue": "small", "payload": 1}]})
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
    cluster.members = cluster.nodes
    cluster.wait_equal()
    wait_room(follower)
    # all of them: pushes are refused, reads and acks go on
    ballasts = [fill(node.faults.root, 0.865) for node in cluster.nodes]
    number = push_until(client, log, number, 507)
    what_goes_on(client, cluster)
    # full as they are, they start: one after the other, the leader among them
    for node in (cluster.leader(), cluster.followers()[0]):
        assert node.terminate() == 0, node.log_tail()
        node.start()
        cluster.leader()
    for node in cluster.nodes:
        node.kill()
    cluster.start()
    what_goes_on(client, cluster)
    number = push_until(client, log, number, 507)
    for ballast in ballasts:
        os.unlink(ballast)
    push_until(client, log, number, 201)
    cluster.wait_equal()
    log.finish(client)
    client.close()
    assert not log.problems, "\n".join(log.problems[:10])
