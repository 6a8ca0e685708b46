"""Members come and go under load; nothing is lost and calls are answered all the while."""
import time

import pytest
from campaign import Campaign
from cluster import HTTP_PORT, RAFT_PORT, wipe
from crash_broker import ALL
from nemesis import Fault
from workload_log import LogWorkload
from workload_pipeline import PipelineWorkload
from workload_queue import QueueWorkload

BASE = "/api/v1/system/raft/membership"


def change(cluster, method, path, body=None, seconds=30.0):
    """Asks until it is done: a change under way, or a learner that is still behind, is asked for again."""
    client = cluster.client("members", timeout=35.0)
    deadline = time.monotonic() + seconds
    said = None
    while time.monotonic() < deadline:
        status, answer, _ = client.insist(method, BASE + path, body or b"", deadline_s=seconds)
        if status == 200 and answer.get("ok"):
            client.close()
            return answer["membership"]
        said = (status, answer)
        assert status in (409, 503, 504) and answer["code"] not in ("bad_request", "address_mismatch"), said
        time.sleep(0.1)
    raise AssertionError(f"{method} {path} {body}: {said}\n{cluster.log_tails()}")


def add(cluster, node):
    """As a learner, then as a voter."""
    node.env["QUEEN_RAFT_JOIN"] = "true"
    node.env["QUEEN_RAFT_PEERS"] = ""
    node.env["QUEEN_RAFT_ADVERTISE"] = f"{node.address}:{RAFT_PORT}/{node.address}:{HTTP_PORT}"
    node.spawn()
    body = {"id": node.number, "raft": f"{node.address}:{RAFT_PORT}", "http": f"{node.address}:{HTTP_PORT}"}
    change(cluster, "POST", "/learners", body)
    change(cluster, "POST", "/promote", {"ids": [node.number]})
    assert node.wait_ready(20.0), node.log_tail()


def remove(cluster, node):
    cluster.members = [n for n in cluster.members if n is not node]
    return change(cluster, "DELETE", f"/members/{node.number}")


def replace_one(which):
    """A node goes out of the cluster, a new one comes in."""

    def replace(cluster, rng):
        new = next(n for n in cluster.nodes if not n.alive())
        leader = cluster.leader()
        old = leader if which == "leader" else rng.choice([n for n in cluster.members if n is not leader])
        add(cluster, new)
        cluster.members = [*cluster.members, new]
        membership = remove(cluster, old)
        assert old.number not in membership["voters"] and new.number in membership["voters"], membership
        old.kill()
        yield f"{old.number} out, {new.number} in"

    replace.__name__ = f"replace_{which}"
    return replace


@pytest.mark.seconds(10)
def test_members_change_under_load(clusters, seed, tell):
    cluster = clusters(3, spare=2).start()
    workloads = [LogWorkload(cluster, seed), PipelineWorkload(cluster, seed)] + [QueueWorkload(cluster, seed)] * ALL
    campaign = Campaign(cluster, seed, [], workloads)
    faults = [Fault(replace_one("follower")), Fault(replace_one("leader"))]

    def both(_):
        for fault in faults:
            campaign.nemesis.one(fault)

    campaign.nemesis.run = both
    campaign.run(0)
    for what, counts in campaign.lines():
        tell(what, counts)
    assert not campaign.problems, campaign.failure()
    assert sorted(n.number for n in cluster.members) != [1, 2, 3]


def test_a_lost_disk_is_replaced(clusters, seed):
    """Removed and added anew under a new number, with nothing left of its disk."""
    cluster = clusters(3, spare=1).start()
    client = cluster.client("replace")
    log = LogWorkload(cluster, seed)
    rng = log.rng
    for _ in range(100):
        log.push(client, log.new_items(rng))
    dead = cluster.followers()[0]
    dead.kill()
    wipe(dead.data)
    remove(cluster, dead)
    add(cluster, cluster[4])
    cluster.members = [*cluster.members, cluster[4]]
    for _ in range(20):
        log.push(client, log.new_items(rng))
    # one of the old ones may go now
    victim = next(n for n in cluster.members if n is not cluster[4])
    victim.kill()
    cluster.members = [n for n in cluster.members if n is not victim]
    for _ in range(20):
        log.push(client, log.new_items(rng))
    cluster.wait_equal()
    log.finish(client)
    client.close()
    assert not log.problems, "\n".join(log.problems[:10])
