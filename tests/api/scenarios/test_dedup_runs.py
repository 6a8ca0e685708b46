"""Repeated ids in batches, over restarts and at the edges of the window."""

import time

import pytest

from cluster import Cluster, Turns
from queen import ids, wait_until


def one(broker, queue, transaction_id, partition="p"):
    answer = broker.push([{"queue": queue, "partition": partition, "transactionId": transaction_id, "payload": {"id": transaction_id}}])
    return answer.expect(201).json[0]


def test_old_id_inside_a_batch_does_not_cost_the_new_ones(broker, queue):
    for window in (3600, 0):
        name = "%s-%d" % (queue, window)
        broker.configure(name, dedupWindowSeconds=window)
        stored = one(broker, name, "4")
        batch = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "7", "10"]
        answer = broker.push([{"queue": name, "partition": "p", "transactionId": i, "payload": i} for i in batch]).expect(201)
        assert answer.elapsed < 1
        results = answer.json
        assert [r["index"] for r in results] == list(range(11))
        assert [r["transaction_id"] for r in results] == batch
        if window:
            assert (results[3]["status"], results[3]["offset"], results[3]["message_id"]) == ("duplicate", 0, stored["message_id"])
        else:
            assert (results[3]["status"], results[3]["offset"]) == ("queued", 4)
        assert (results[9]["status"], results[9]["offset"], results[9]["message_id"]) == (
            "duplicate", results[6]["offset"], results[6]["message_id"])
        queued = [r["offset"] for r in results if r["status"] == "queued"]
        assert queued == list(range(1, len(queued) + 1))
        assert len(queued) == (9 if window else 10)
        assert one(broker, name, "4", "other-lane")["status"] == "queued"
        assert one(broker, name + "-other", "4")["status"] == "queued"
        drained = [m["transactionId"] for m in broker.drain(name) if m["partition"] == "p"]
        assert drained == ["4"] + [i for n, i in enumerate(batch) if n != 9 and not (window and i == "4")]


def test_window_counts_from_the_first_copy_and_repeats_do_not_move_it(broker, queue):
    window = 3
    broker.configure(queue, dedupWindowSeconds=window)
    begin = time.monotonic()
    first = one(broker, queue, "x")
    stored = time.monotonic()
    repeats = 0
    while True:
        sent = time.monotonic()
        again = one(broker, queue, "x")
        if again["status"] == "queued":
            break
        assert (again["message_id"], again["offset"]) == (first["message_id"], 0)
        assert sent < stored + window + 0.1, "still a duplicate after the window"
        repeats += 1
        time.sleep(0.05)
    assert time.monotonic() - begin >= window
    assert again["offset"] == 1
    assert repeats >= 10


@pytest.mark.seconds(6)
def test_verdict_is_the_same_after_consumption_restart_and_crash(own_broker, queue):
    window = 6
    broker = own_broker(env={"RETENTION_INTERVAL": "200"})
    broker.configure(queue, dedupWindowSeconds=window, retentionEnabled=True, completedRetentionSeconds=1)
    begin = time.monotonic()
    first = one(broker, queue, "x")
    broker.ack(broker.take(queue, "p")["messages"][0])

    def same():
        if time.monotonic() - begin < window:
            again = one(broker, queue, "x")
            assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", first["message_id"], 0)

    same()
    time.sleep(1.5)
    same()
    broker.restart("stop")
    same()
    broker.restart("kill")
    same()
    results = []
    wait_until(lambda: results.append(one(broker, queue, "x")) or results[-1]["status"] == "queued", window + 6, "the window ended", every=0.1)
    assert time.monotonic() - begin >= window
    assert all((r["message_id"], r["offset"]) == (first["message_id"], 0) for r in results[:-1])
    assert results[-1]["offset"] == 1
    broker.restart("kill")
    again = one(broker, queue, "x")
    assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", results[-1]["message_id"], 1)
    assert ids(broker.take(queue, "p")) == ["x"]


@pytest.mark.seconds(6)
def test_verdict_is_the_same_at_every_node_of_a_cluster(queue):
    """Its message was read, and went by retention; the nodes stopped in good order, and were killed: the id is known at each of them."""
    with Cluster(3, env={"RETENTION_INTERVAL": "200"}) as cluster:
        turns = Turns(cluster)
        turns.configure(queue, dedupWindowSeconds=600, retentionEnabled=True, completedRetentionSeconds=1)
        first = one(turns, queue, "x")
        message = turns.take(queue, "p", group="g", subscriptionMode="all")["messages"][0]
        assert turns.ack(message)["success"] is True

        def first_kept():
            answer = turns.post("/api/v1/fetch", {"entries": [{"queue": queue, "partition": "p", "offset": 0}]}).expect(200).json
            return answer["entries"][0]["logStartOffset"]

        wait_until(lambda: first_kept() == 1, 15, "the message went by retention")
        for how in (None, "stop", "kill"):
            if how is not None:
                turns.restart(how)
            for _ in cluster.voters():
                again = one(turns, queue, "x")
                assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", first["message_id"], 0), how
        assert one(turns, queue, "y")["offset"] == 1
        turns.close()
