"""What an idle or busy broker leaves on its disk levels off, whatever keeps it busy: polls that find nothing, timers that are
cancelled, leases that end, one message that is never acknowledged."""

import os
import threading
import time

import pytest
import timers
from cluster import Cluster
from queen import TEST_ALL, ids, wait_until

MIB = 1 << 20
SMALL = {"QUEEN_RAFT_SEGMENT_BYTES": str(MIB), "QUEEN_RAFT_DURABLE_EVERY_MS": "100", "QUEEN_RAFT_DURABLE_EVERY_BYTES": str(MIB)}


def log_index(broker):
    return broker.get("/api/v1/raft/status").expect(200).json["lastLogIndex"]


def log_bytes(broker):
    folder = os.path.join(broker.data_dir, "log")
    total = 0
    for name in os.listdir(folder):
        try:
            total += os.stat(os.path.join(folder, name)).st_blocks * 512
        except FileNotFoundError:
            pass  # it went
    return total


def settled(broker, limit, seconds=15.0):
    """Comes below the limit."""
    deadline = time.monotonic() + seconds
    while log_bytes(broker) > limit:
        assert time.monotonic() < deadline, "%d bytes of log are left, %d were expected at most" % (log_bytes(broker), limit)
        time.sleep(0.1)


@pytest.mark.seconds(8)
def test_polls_that_find_nothing_write_nothing(own_broker, queue):
    """Many consumers poll an empty queue and reconnect all the time."""
    pollers = 500 if TEST_ALL else 100
    broker = own_broker()
    broker.push_ids(queue, ["a"], "p")
    taken = broker.take(queue, group="g", subscriptionMode="all")
    assert broker.ack(taken["messages"][0])["success"] is True
    broker.get("/api/v1/pop/queue/%s?consumerGroup=g" % queue).expect(204)
    before = log_index(broker)
    until = time.monotonic() + (60 if TEST_ALL else 5)
    problems = []

    def poll(number):
        while time.monotonic() < until:
            wait = "wait=true&timeout=500" if number % 2 else "wait=false"
            answer = broker.fresh_request("GET", "/api/v1/pop/queue/%s?consumerGroup=g&%s" % (queue, wait))
            if answer.status not in (204, 429):
                problems.append(answer)
            time.sleep(0.05)

    threads = [threading.Thread(target=poll, args=(n,)) for n in range(pollers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]
    assert log_index(broker) - before <= 2, "empty polls are in the log"


@pytest.mark.seconds(5)
def test_an_idle_broker_writes_nothing(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a"], "p")
    time.sleep(1.5)
    before = log_index(broker)
    time.sleep(60 if TEST_ALL else 2)
    assert log_index(broker) == before


@pytest.mark.seconds(6)
def test_an_idle_cluster_writes_nothing(queue):
    """Nor do polls that find nothing, at whatever node."""
    with Cluster(3) as cluster:
        nodes = cluster.voters()
        nodes[0].push_ids(queue, ["a"], "p")
        taken = nodes[1].take(queue, group="g", subscriptionMode="all", wait=True, timeout=5000)
        assert nodes[2].ack(taken["messages"][0])["success"] is True

        def last():
            return {node.status()["lastLogIndex"] for node in nodes}

        begun = time.monotonic()
        before, since = last(), begun
        while time.monotonic() - since < 1.5:  # it has come to rest
            assert time.monotonic() - begun < 30, "it does not come to rest"
            time.sleep(0.1)
            if last() != before or len(before) > 1:
                before, since = last(), time.monotonic()
        written = [log_bytes(node) for node in nodes]
        until = time.monotonic() + (600 if TEST_ALL else 2)
        while time.monotonic() < until:
            for node in nodes:
                assert node.pop(queue, group="g", wait=True, timeout=100).status == 204
        assert last() == before
        assert [log_bytes(node) for node in nodes] == written


@pytest.mark.seconds(12)
def test_a_node_that_is_away_does_not_hold_the_log_for_ever(queue):
    """Beyond what is kept for it, it will fetch the state."""
    with Cluster(3, env=dict(SMALL, QUEEN_RAFT_KEEP_BYTES=str(2 * MIB), RETENTION_INTERVAL="200", QUEEN_LOG_CACHE_BYTES=str(MIB))) as cluster:
        leader = cluster.leader()
        leader.configure(queue, retentionEnabled=True, completedRetentionSeconds=1)
        away = cluster.followers()[0]
        away.kill()
        for number in range(2000 if TEST_ALL else 30):
            names = ["t-%d-%d" % (number, k) for k in range(4)]
            items = [{"queue": queue, "partition": "p%d" % (number % 5), "transactionId": name, "payload": {"fill": "x" * (MIB // 4)}} for name in names]
            wait_until(lambda: leader.push(items).expect((201, 429, 503)).status == 201, 30, "there is room", every=0.05)
            taken = leader.take(queue, group="g", subscriptionMode="all")
            assert ids(taken) == names and all(r["success"] for r in leader.ack_batch(taken["messages"]))
        for node in cluster.running():
            settled(node, 12 * MIB)
        away.launched()
        cluster.wait_ready()
        leader.push_ids(queue, ["last"], "p")
        assert ids(away.take(queue, group="g", wait=True, timeout=10000)) == ["last"]


@pytest.mark.seconds(8)
def test_timers_scheduled_and_cancelled_leave_nothing(own_broker, queue):
    broker = own_broker(env=SMALL)
    rounds = 1000 if TEST_ALL else 40
    for number in range(rounds):
        keys = ["k-%d-%d" % (number, k) for k in range(50)]
        timers.call(broker, *[timers.op_schedule(queue, key, 3600000, payload={"fill": "x" * 8000}) for key in keys])
        timers.call(broker, *[timers.op_cancel(queue, key) for key in keys])
    settled(broker, 8 * MIB)
    broker.restart("kill")
    assert timers.rows(broker, queue)["rows"] == []


@pytest.mark.seconds(12)
def test_one_message_never_acknowledged_keeps_its_own_bytes_only(own_broker, queue):
    """One is leased and extended for ever, others move by the end of their leases only, and much goes through other lanes."""
    broker = own_broker(env=dict(SMALL, RETENTION_INTERVAL="200"))
    broker.configure(queue, retentionEnabled=True, completedRetentionSeconds=1)
    stuck = queue + "-stuck"
    broker.push_ids(stuck, ["stuck"], "p")
    held = broker.take(stuck, "p", group="g", subscriptionMode="all", leaseSeconds=2)
    broker.configure(queue + "-expires", leaseTime=1)
    broker.push_ids(queue + "-expires", ["e"], "p")
    expired = 0
    megabytes = 2000 if TEST_ALL else 40
    last_extended = time.monotonic()
    for number in range(megabytes):
        names = ["t-%d-%d" % (number, k) for k in range(4)]
        items = [{"queue": queue, "partition": "p%d" % (number % 5), "transactionId": name, "payload": {"fill": "x" * (MIB // 4)}} for name in names]
        while broker.push(items).expect((201, 429)).status == 429:  # the disk is slow
            time.sleep(0.05)
        taken = broker.take(queue, group="g", subscriptionMode="all")
        assert ids(taken) == names and all(r["success"] for r in broker.ack_batch(taken["messages"]))
        if time.monotonic() - last_extended > 0.5:
            assert broker.extend(held["leaseId"], 2)["renewed"] == 1
            last_extended = time.monotonic()
            expired += broker.pop(queue + "-expires", "p", group="g", subscriptionMode="all").status == 200
    assert expired > 1
    settled(broker, 12 * MIB)
    assert broker.extend(held["leaseId"], 2)["renewed"] == 1
    assert broker.ack(held["messages"][0])["success"] is True


@pytest.mark.seconds(8)
def test_an_id_is_remembered_when_its_message_went_by_retention(own_broker, queue):
    """The body is gone, the answer is the first one's until the window ends, over a stop and a crash."""
    broker = own_broker(env={"RETENTION_INTERVAL": "200"})
    broker.configure(queue, dedupWindowSeconds=30, retentionSeconds=1, retentionEnabled=True)
    first = broker.push_ids(queue, ["X"], "p")[0]
    deadline = time.monotonic() + 10
    while broker.drain(queue):
        assert time.monotonic() < deadline, "retention does not take it"
        time.sleep(0.2)
    for how in (None, "stop", "kill"):
        if how is not None:
            broker.restart(how)
        again = broker.push([{"queue": queue, "partition": "p", "transactionId": "X", "payload": 2}]).expect(201).json[0]
        assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", first["message_id"], 0)
    assert broker.push_ids(queue, ["Y"], "p")[0]["offset"] == 1
