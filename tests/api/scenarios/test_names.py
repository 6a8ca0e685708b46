"""Names of every kind and of awkward lengths: each works to the end, or is refused before it is in the log. None stops the broker, or
a node of a cluster: one that could not apply an entry would stop, and again at every start."""

import itertools

import kv
import pytest
import timers
from cluster import Cluster, Turns
from queen import ids, quote, unique, wait_until
from step_kit import transact

LENGTHS = (1, 64, 65, 411, 412, 447, 511, 512, 513, 4096, 65536)
BUDGET = 447 - 36  # for queue and the longer of partition and group
REFUSED = (400, 413, 414, 431)  # the last two: it stood in the path


def name(length, text=None):
    """A name of so many bytes, none like another."""
    return (unique("n") + "-" + "x" * length)[:length] if text is None else text * length


@pytest.fixture(params=["one node", "three nodes"])
def anywhere(request, own_broker):
    """A broker, or a cluster whose nodes are asked in turn. At the end all of it still runs, and nobody complains."""
    if request.param == "one node":
        yield own_broker()
        return
    with Cluster(3) as cluster:
        turns = Turns(cluster)
        yield turns
        applied = wait_until(lambda: settled(cluster), 10, "all nodes are at one entry\n" + cluster.tails())
        assert applied > 0
        for node in cluster.voters():
            assert " error " not in node.output().lower(), node.output()[-3000:]
        turns.close()


def settled(cluster):
    """The entry all nodes have applied, or None."""
    applied = {s and s["appliedIndex"] for s in (node.status() for node in cluster.voters())}
    return applied.pop() if len(applied) == 1 else None


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


@pytest.mark.seconds(4)
def test_queues_partitions_and_groups(anywhere):
    broker = anywhere
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
    transaction_id_works(broker, queue, length)


def test_transaction_ids_in_a_cluster(anywhere, queue):
    for length in (511, 512, 4096, 65535, 65536):
        transaction_id_works(anywhere, queue, length)
    alive(anywhere)


def transaction_id_works(broker, queue, length):
    identity = name(length)
    answer = broker.push([{"queue": queue, "partition": "p", "transactionId": identity, "payload": 1}])
    if length > 65535:
        assert answer.status == 400, answer
        return
    answer.expect(201)
    assert broker.push([{"queue": queue, "partition": "p", "transactionId": identity, "payload": 1}]).expect(201).json[0]["status"] == "duplicate"
    taken = broker.take(queue, "p")
    assert ids(taken) == [identity] and broker.ack(taken["messages"][0])["success"] is True


def test_keys_of_kv_timers_and_locks(anywhere, queue):
    broker = anywhere
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


def labelled(broker, queue, **labels):
    """What a queue with this namespace or task is good for, when it is taken at all: found by it, listed, deleted."""
    answer = broker.post("/api/v1/configure", {"queue": queue, "options": labels})
    if answer.status != 200:
        assert answer.status in REFUSED and answer.json["error"], answer
        assert broker.queue_detail(queue) is None
        return False
    broker.push_ids(queue, ["a"], "p")
    taken = broker.pop(group="g", subscriptionMode="all", **labels).expect(200).json
    assert ids(taken) == ["a"] and broker.ack(taken["messages"][0])["success"] is True
    (what, label), = labels.items()
    rows = broker.get("/api/v1/resources/%ss" % what).expect(200).json["%ss" % what]
    assert label in [row[what] for row in rows]
    assert broker.delete_queue(queue)["deleted"] is True
    return True


def test_namespaces_and_tasks(anywhere):
    for what, length in itertools.product(("namespace", "task"), LENGTHS):
        took = labelled(anywhere, unique("q"), **{what: name(length)})
        assert took or length > 64, (what, length)
    alive(anywhere)
    anywhere.restart("kill")
    alive(anywhere)


def test_trace_ids(anywhere, queue):
    """A trace id is a UUID; whatever else is sent there is refused or left out, and never stops anybody."""
    for length in LENGTHS:
        answer = anywhere.push([{"queue": queue, "partition": "p", "transactionId": "t%d" % length, "traceId": name(length), "payload": 1}])
        assert answer.status == 201 or answer.status in REFUSED, answer
        if answer.status == 201:
            (message,) = anywhere.take(queue, "p")["messages"]
            assert message["traceId"] is None and anywhere.ack(message)["success"] is True
    alive(anywhere)
    anywhere.restart("kill")
    alive(anywhere)


def test_names_in_timers(anywhere):
    """A timer that is taken fires, whatever its message's queue, lane and id are called."""
    for what, length in itertools.product(("queue", "partition", "txn", "timerKey"), LENGTHS):
        op = timers.op_schedule(unique("q"), "k", 0, partition="p", txn="t")
        op[what] = name(length)
        answer = anywhere.post("/api/v1/timers", {"operations": [op]})
        if answer.status == 200 and answer.json["results"][0].get("reason") != "name_too_long":
            taken = wait_until(lambda: anywhere.pop(op["queue"], op["partition"], group="g", subscriptionMode="all").status == 200, 10,
                               "a timer with a %s of %d bytes fires" % (what, length))
            assert taken
        else:
            assert length > 64 and (answer.status == 200 or answer.status in REFUSED), (what, length, answer)
    alive(anywhere)


def test_names_in_transactions(anywhere):
    for what, length in itertools.product(("queue", "partition", "transactionId", "ns", "key", "group", "tenant"), LENGTHS):
        if what == "tenant" and length == LENGTHS[-1]:
            continue  # as a header it is refused while it is sent
        names = {"queue": unique("q"), "partition": "p", "transactionId": "t", "ns": "s", "key": unique("k"), "group": "g"}
        names[what] = name(length)
        headers = {"x-queen-tenant": names["tenant"]} if "tenant" in names else None
        answer = transact(anywhere, headers, operations=[
            {"type": "push", "items": [{"queue": names["queue"], "partition": names["partition"], "transactionId": names["transactionId"],
                                        "payload": 1}]},
            {"type": "ack", "transactionId": "x", "partitionId": 1, "leaseId": "00000000-0000-0000-0000-000000000000",
             "consumerGroup": names["group"], "status": "completed"}][:2 if what == "group" else 1],
            kv=[{"op": "put", "ns": names["ns"], "key": names["key"], "value": 1, "forever": True}])  # fmt: skip
        assert answer.status == 200 or answer.status in REFUSED, (length, answer)
        success = answer.status == 200 and answer.json["success"]
        popped = anywhere.pop(names["queue"], names["partition"], group="g", subscriptionMode="all", headers=headers,
                              wait=True, timeout=2000 if success else 100)  # fmt: skip
        assert (popped.status == 200) == success, (what, length, answer, popped)
        if what not in ("group", "tenant"):
            assert success or length > 64, (what, length, answer)
    alive(anywhere)
