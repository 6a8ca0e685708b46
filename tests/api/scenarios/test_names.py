"""Names of every kind and of awkward lengths: each works to the end, or is refused before it is in the log. None stops the broker."""

import itertools

import kv
import pytest
import timers
from queen import ids, quote, unique

LENGTHS = (1, 64, 65, 411, 412, 511, 512, 513, 4096, 65536)
BUDGET = 447 - 36  # for queue and the longer of partition and group
REFUSED = (400, 413, 414, 431)  # the last two: it stood in the path


def name(length, text=None):
    """A name of so many bytes, none like another."""
    return (unique("n") + "-" + "x" * length)[:length] if text is None else text * length


def alive(broker):
    """It takes and gives, and its log is read back whole."""
    queue = unique("alive")
    broker.push_ids(queue, ["a"], "p")
    assert ids(broker.take(queue, "p")) == ["a"]


def lane_works(broker, queue, partition, group):
    """Push, pop, ack, file as dead, list, delete."""
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, ["a", "b"], partition)
    answer = broker.take(queue, group=group, subscriptionMode="all")
    assert ids(answer) == ["a", "b"] and answer["messages"][0]["partition"] == partition
    assert broker.ack(answer["messages"][0])["success"] is True
    assert broker.ack(answer["messages"][1], "failed", "no")["dlq"] is True
    (row,) = broker.dlq(queue)["messages"]
    assert (row["queue"], row["partition"], row["consumerGroup"]) == (queue, partition, group)
    assert queue in [q["name"] for q in broker.get("/api/v1/resources/queues?limit=1000").expect(200).json["queues"]]
    assert broker.delete_queue(queue)["deleted"] is True


def test_queues_partitions_and_groups(own_broker):
    broker = own_broker()
    for what, length in itertools.product(("queue", "partition", "group"), LENGTHS):
        names = {"queue": unique("q"), "partition": "p", "group": "g"}
        names[what] = name(length)
        fits = len(names["queue"]) + max(len(names["partition"]), len(names["group"])) <= BUDGET
        pushed = broker.push([{"queue": names["queue"], "partition": names["partition"], "transactionId": "probe", "payload": 1}])
        if fits:
            pushed.expect(201)
            assert broker.delete_queue(names["queue"])["deleted"] is True
            lane_works(broker, **names)
            continue
        if what == "group":
            pushed.expect(201)
        else:
            assert (pushed.status, pushed.json["code"]) == (413, "name_too_long"), (what, length)
        popped = broker.get("/api/v1/pop/queue/%s/partition/%s?consumerGroup=%s" % tuple(quote(names[k]) for k in ("queue", "partition", "group")))
        assert popped.status in REFUSED, (what, length, popped)
        acked = broker.ack_body({"transactionId": "x", "partitionId": "1", "leaseId": "00000000-0000-0000-0000-000000000000",
                                 "consumerGroup": names["group"], "status": "completed"})  # fmt: skip
        assert what != "group" or length <= BUDGET or acked.status in REFUSED, (what, length, acked)
    alive(broker)
    broker.restart("kill")
    alive(broker)


@pytest.mark.parametrize("length", [511, 512, 4096, 65535, 65536])
def test_transaction_ids(broker, queue, length):
    identity = name(length)
    answer = broker.push([{"queue": queue, "partition": "p", "transactionId": identity, "payload": 1}])
    if length > 65535:
        assert answer.status == 400, answer
        return
    answer.expect(201)
    assert broker.push([{"queue": queue, "partition": "p", "transactionId": identity, "payload": 1}]).expect(201).json[0]["status"] == "duplicate"
    taken = broker.take(queue, "p")
    assert ids(taken) == [identity] and broker.ack(taken["messages"][0])["success"] is True


def test_keys_of_kv_timers_and_locks(own_broker, queue):
    broker = own_broker()
    for length in LENGTHS:
        key, space = name(length), name(length)
        put = kv.call(broker, {"op": "put", "ns": "s", "key": key, "value": 1, "forever": True})
        if length <= 512:
            assert put.expect(200).json["results"][0]["applied"] is True
            assert kv.get(broker, "s", key)["value"] == 1
        else:
            assert put.status in REFUSED, put
        put = kv.call(broker, {"op": "put", "ns": space, "key": "k", "value": 1, "forever": True})
        if length <= 64:
            assert put.expect(200).json["results"][0]["applied"] is True
            assert kv.get(broker, space, "k")["value"] == 1
        else:
            assert put.status in REFUSED, put
        scheduled = broker.post("/api/v1/timers", {"operations": [timers.op_schedule(queue, key, 3600000)]})
        if length <= 512:
            scheduled.expect(200)
            assert timers.peek(broker, queue, key)["timerKey"] == key
            timers.cancel(broker, queue, key)
            assert timers.peek(broker, queue, key) is None
        else:
            assert scheduled.status in REFUSED or scheduled.json["results"][0]["reason"] == "name_too_long", scheduled
        lock = broker.post("/api/v1/locks", {"operations": [{"op": "acquire", "name": key, "ttlSeconds": 5, "owner": "h"}]})
        if length <= 256:
            assert lock.expect(200).json["results"][0]["acquired"] is True, lock
        else:
            assert lock.status in REFUSED, (length, lock)
    alive(broker)
    broker.restart("kill")
    alive(broker)
    assert kv.get(broker, "s", "absent")["found"] is False
