"""Leases that run out, race with acks, outlive crashed workers, or span several lanes."""

import random
import threading
import time

import pytest

from queen import LEASE_ERROR, TEST_ALL, ids, wait_until


def test_late_worker_changes_nothing(broker, queue):
    broker.configure(queue, leaseTime=1, retryLimit=1)
    broker.push_ids(queue, ["job"], "p")
    slow = broker.take(queue, group="g", subscriptionMode="all")["messages"][0]
    quick = broker.take(queue, group="g", wait=True, timeout=5000, leaseSeconds=60)["messages"][0]
    assert quick["transactionId"] == "job"
    done = broker.ack(slow)
    assert (done["success"], done["error"]) == (False, LEASE_ERROR)
    failed = broker.ack(slow, "failed", "text of the late worker")
    assert (failed["success"], failed["error"], failed["dlq"]) == (False, LEASE_ERROR, False)
    extended = broker.extend(slow["leaseId"], 60)
    assert (extended["success"], extended["renewed"]) == (False, 0)
    # The late `failed` charged nothing: with a budget of one, the first real one still leads to redelivery.
    assert broker.ack(quick, "failed", "text of the quick worker")["dlq"] is False
    last = broker.take(queue, group="g")["messages"][0]
    assert broker.ack(last, "failed", "the last")["dlq"] is True
    assert [r["errorMessage"] for r in broker.dlq(queue)["messages"]] == ["the last"]


@pytest.mark.seconds(13)
def test_ack_and_expiry_are_decided_at_one_place(broker, queue):
    lanes = 30
    waves = 150 if TEST_ALL else 10
    for wave in range(waves):
        race_wave(broker, queue, wave, lanes)


def race_wave(broker, queue, wave, lanes):
    """Every lane: one message, popped with a lease of a second, acked as that second ends, while others poll."""
    names = ["w%d-%d" % (wave, i) for i in range(lanes)]
    broker.push([{"queue": queue, "partition": "lane-%d" % i, "transactionId": n, "payload": 1} for i, n in enumerate(names)]).expect(201)
    acked, delivered = {}, {}
    lock = threading.Lock()
    stop = threading.Event()

    def owner(lane, name):
        message = broker.take(queue, "lane-%d" % lane, group="g", subscriptionMode="all", leaseSeconds=1)["messages"][0]
        assert message["transactionId"] == name
        time.sleep(max(0, 1 + random.uniform(-0.012, 0.010)))
        acked[name] = broker.ack(message)["success"]

    def rival():
        while not stop.is_set():
            answer = broker.pop(queue, group="g", subscriptionMode="all", wait=True, timeout=300, partitions=4, leaseSeconds=30)
            if answer.status != 200:
                continue
            messages = answer.json["messages"]
            with lock:
                for m in messages:
                    delivered[m["transactionId"]] = delivered.get(m["transactionId"], 0) + 1
            assert all(r["success"] for r in broker.ack_batch(messages))

    owners = [threading.Thread(target=owner, args=(i, n)) for i, n in enumerate(names)]
    [t.start() for t in owners]
    wait_until(lambda: broker.depth(queue, "g")["processing"] >= lanes or len(acked) > 0, 5, "all lanes leased")
    rivals = [threading.Thread(target=rival) for _ in range(8)]
    [t.start() for t in rivals]
    [t.join() for t in owners]
    wait_until(lambda: broker.depth(queue, "g")["pending"] == 0, 5, "everything settled")
    stop.set()
    [t.join() for t in rivals]
    assert set(acked) == set(names)
    for name in names:
        assert delivered.get(name, 0) == (0 if acked[name] else 1), (name, acked[name], delivered.get(name, 0))


@pytest.mark.seconds(5)
def test_crashed_workers_free_their_lanes_at_lease_end(own_broker, queue):
    lanes = 1000 if TEST_ALL else 150
    lease = 12 if TEST_ALL else 4
    broker = own_broker()
    broker.configure(queue, leaseTime=lease, retryLimit=1)
    for start in range(0, lanes, 50):
        broker.push([{"queue": queue, "partition": "lane-%d" % i, "transactionId": "m%d-%d" % (i, k), "payload": 1}
                     for i in range(start, start + 50) for k in range(2)]).expect(201)
    owned = {}
    begin = time.monotonic()
    while len(owned) < lanes:
        answer = broker.take(queue, group="g", subscriptionMode="all", partitions=10, batch=100)
        for m in answer["messages"]:
            owned.setdefault(m["partition"], []).append(m)
    taken = time.monotonic()
    # Some workers acked their first message, some were extending, most did nothing: then all are gone.
    partial = ["lane-%d" % i for i in range(0, lanes, 5)]
    results = broker.ack_batch([owned[lane][0] for lane in partial])
    assert [(r["success"], r["leaseReleased"]) for r in results] == [(True, False)] * len(partial)
    for lane in ["lane-%d" % i for i in range(1, lanes, 5)][:20]:
        broker.extend(owned[lane][0]["leaseId"], 1)
    broker.restart("kill")
    back = time.monotonic()
    assert back - begin < lease, "the machine is too slow for this lease time"
    # Nobody asks for the lanes: the figures fall by themselves.
    wait_until(lambda: broker.depth(queue, "g")["processing"] == 0, lease + 3, "all leases ran out")
    free = time.monotonic()
    assert free - taken >= lease - 0.3
    assert free - back <= lease + 1.0
    seen = {}
    while len(seen) < lanes:
        answer = broker.take(queue, group="g", partitions=64, batch=1000, leaseSeconds=60)
        for m in answer["messages"]:
            seen.setdefault(m["partition"], []).append(m)
    for lane, messages in seen.items():
        expected = owned[lane][1:] if lane in partial else owned[lane]
        assert [m["transactionId"] for m in messages] == [m["transactionId"] for m in expected]
        assert {m["deliveryAttempt"] for m in messages} == {2}
    assert broker.dlq(queue)["total"] == 0


def test_lane_is_free_at_once_after_the_last_single_ack(broker, queue):
    names = ["m%02d" % i for i in range(30)]
    broker.push_ids(queue, names, "p")
    for start in (0, 10, 20):
        begin = time.monotonic()
        batch = broker.take(queue, group="g", subscriptionMode="all", batch=10)
        assert time.monotonic() - begin < 5
        assert ids(batch) == names[start:start + 10]
        released = [broker.ack(m)["leaseReleased"] for m in batch["messages"]]
        assert released == [False] * 9 + [True]
    broker.nothing(queue, group="g")


def test_settling_one_lane_of_a_shared_lease_leaves_the_others(broker, queue):
    broker.configure(queue, retryLimit=1)
    for lane in range(1, 6):
        broker.push_ids(queue, ["%d%s" % (lane, c) for c in "abcdefghij"], "lane-%d" % lane)
    answer = broker.take(queue, group="g", subscriptionMode="all", partitions=5, batch=50)
    assert answer["partitionsClaimed"] == 5
    of = {lane: [m for m in answer["messages"] if m["partition"] == "lane-%d" % lane] for lane in range(1, 6)}
    for lane in (1, 2):
        assert all(r["leaseReleased"] for r in broker.ack_batch(of[lane]))
    results = broker.ack_batch([of[3][0], of[3][1], (of[3][2], "failed", "no")])
    assert [(r["success"], r["leaseReleased"], r["dlq"]) for r in results] == [(True, True, False)] * 3
    retried = broker.ack(of[4][0], "retry")
    assert (retried["success"], retried["leaseReleased"]) == (True, True)
    extended = broker.extend(answer["leaseId"], 60)
    assert (extended["success"], extended["renewed"]) == (True, 1)
    # Lanes 1 and 2 are free for what comes next, lane 3 starts at its third message, lane 4 at its first, lane 5 is held.
    for lane in (1, 2, 5):
        broker.push_ids(queue, ["%d-next" % lane], "lane-%d" % lane)
    begin = time.monotonic()
    after = broker.take(queue, group="g", partitions=10, batch=100)
    assert time.monotonic() - begin < 5
    got = {}
    for m in after["messages"]:
        got.setdefault(m["partition"], []).append(m["transactionId"])
    assert got == {"lane-1": ["1-next"], "lane-2": ["2-next"], "lane-3": ["3" + c for c in "cdefghij"], "lane-4": ["4" + c for c in "abcdefghij"]}
    # The retry of lane 4 was not charged: with a budget of one, one failure is still redelivered.
    lane4 = [m for m in after["messages"] if m["partition"] == "lane-4"]
    assert broker.ack(lane4[0], "failed")["dlq"] is False
    lane3 = [m for m in after["messages"] if m["partition"] == "lane-3"]
    assert broker.ack(lane3[0], "failed")["dlq"] is True
    assert [r["transactionId"] for r in broker.dlq(queue)["messages"]] == ["3c"]


