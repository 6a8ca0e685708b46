"""A transaction with `next`: it commits, and its answer brings the next batch."""

import json
import random
import re
import threading
import time

import pytest

from queen import QUEUE_MODE, TEST_ALL, UUID7, ids, offsets, wait_until
from step_kit import ack_op, commit, incr, item, kv_read, leased, once, push_op, put, refuse, still_leased, timer, transact


def raw_step(connection, **members):
    body = json.dumps(members).encode()
    connection.send(b"POST /api/v1/transaction HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def metric(broker, name):
    text = broker.get("/metrics/prometheus").expect(200).body.decode()
    return float(re.search(r"^%s(?:\{[^}]*\})? (\S+)$" % name, text, re.M).group(1))


def waiting(broker):
    """Connections whose call waits."""
    return metric(broker, "queen_http_connections_suspended")


def start(target, *args):
    thread = threading.Thread(target=target, args=args)
    thread.start()
    return thread


def test_next_batch_comes_with_the_commit(broker, queue):
    broker.push_ids(queue, list("abcdef"), "p")
    first = broker.take(queue, group="g", subscriptionMode="all", batch=2)
    answer = commit(broker, operations=[ack_op(m) for m in first["messages"]] + [push_op(item(queue + "-out", "r"))],
                    next={"queue": queue, "consumerGroup": "g", "batch": 3})
    assert [r["type"] for r in answer["results"]] == ["ack", "ack", "push"]
    batch = answer["next"]
    assert ids(batch) == ["c", "d", "e"] and UUID7.match(batch["leaseId"]) and batch["leaseId"] != first["leaseId"]
    broker.nothing(queue, group="g")
    # It is a lease like any other.
    assert broker.extend(batch["leaseId"], 60)["renewed"] == 1
    last = commit(broker, operations=[ack_op(m) for m in batch["messages"]], next={"queue": queue, "consumerGroup": "g"})["next"]
    assert ids(last) == ["f"]
    assert broker.ack(last["messages"][0])["leaseReleased"] is True


def test_next_has_the_shape_of_a_pop(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    popped = broker.take(queue, group="one", subscriptionMode="all")
    taken = commit(broker, kv=[put(queue)], next={"queue": queue, "consumerGroup": "two", "subscriptionMode": "all"})["next"]
    assert list(taken) == list(popped) and list(taken["messages"][0]) == list(popped["messages"][0])
    for one, two in ((popped, taken), (popped["messages"][1], taken["messages"][1])):
        same = {k for k in one if one[k] == two[k]}
        assert set(one) - same <= {"leaseId", "consumerGroup", "messages"}
    assert taken["consumerGroup"] == "two" and taken["leaseId"] == taken["messages"][0]["leaseId"]


def test_nothing_to_take(broker, queue):
    m = leased(broker, queue, "a")
    answer = commit(broker, operations=[ack_op(m["a"])], next={"queue": queue, "consumerGroup": "g"})
    assert answer["next"] == {"success": True, "queue": queue, "partition": "", "partitionId": "", "leaseId": "",
                              "consumerGroup": "g", "messages": [], "partitionsClaimed": 0}


def test_transaction_without_next_has_none(broker, queue):
    assert "next" not in commit(broker, kv=[put(queue)])
    assert "next" not in commit(broker, kv=[put(queue)], next=None)


def test_rollback_takes_nothing(broker, queue):
    m = leased(broker, queue, "ab")
    broker.push_ids(queue + "-2", ["x"], "p")
    commit(broker, kv=[put(queue)])
    answer = refuse(broker, "kv_precondition", operations=[ack_op(m["a"])], kv=[once(queue)], next={"queue": queue + "-2", "wait": True, "timeout": 20000})
    assert "next" not in answer
    taken = broker.take(queue + "-2")["messages"][0]
    assert (taken["transactionId"], taken["deliveryAttempt"]) == ("x", 1)
    # The group of the pop is not registered by it either.
    refuse(broker, "kv_precondition", kv=[once(queue)], next={"queue": queue + "-2", "consumerGroup": "h", "subscriptionMode": "new"})
    assert ids(broker.take(queue + "-2", group="h", subscriptionMode="all")) == ["x"]
    assert still_leased(broker, queue, count=2)


def test_next_takes_what_the_transaction_pushed(broker, queue):
    answer = commit(broker, operations=[push_op(item(queue, "x", {"n": 1}))], next={"queue": queue})
    message, = answer["next"]["messages"]
    assert (message["transactionId"], message["data"], message["id"]) == ("x", {"n": 1}, answer["results"][0]["messageId"])
    assert answer["next"]["consumerGroup"] == QUEUE_MODE


def test_next_takes_the_lane_its_acks_released(broker, queue):
    m = leased(broker, queue, "abc")
    broker.push_ids(queue, ["d"], "p")
    assert commit(broker, operations=[ack_op(m["b"])], next={"queue": queue, "consumerGroup": "g"})["next"]["messages"] == []
    assert ids(commit(broker, operations=[ack_op(m["c"])], next={"queue": queue, "consumerGroup": "g"})["next"]) == ["d"]


def test_failed_ack_brings_the_message_back_as_next(broker, queue):
    m = leased(broker, queue, "ab")
    batch = commit(broker, operations=[ack_op(m["a"], "failed")], next={"queue": queue, "consumerGroup": "g"})["next"]
    assert ids(batch) == ["a", "b"] and batch["messages"][0]["deliveryAttempt"] == 2


def test_one_lane_only(broker, queue):
    for lane in ("p", "q"):
        broker.push_ids(queue, [lane + "1", lane + "2"], lane)
    batch = commit(broker, kv=[put(queue)], next={"queue": queue, "partition": "q", "partitions": 9})["next"]
    assert ids(batch) == ["q1", "q2"] and (batch["partition"], batch["partitionsClaimed"]) == ("q", 1)
    assert commit(broker, kv=[put(queue)], next={"queue": queue, "partition": "q"})["next"]["messages"] == []
    assert commit(broker, kv=[put(queue)], next={"queue": queue + "-none", "partition": "q"})["next"]["messages"] == []
    assert broker.queue_detail(queue + "-none") is None
    assert ids(broker.take(queue)) == ["p1", "p2"]


def test_parameters_mean_what_they_mean_in_a_pop(broker, queue):
    for lane in "pqr":
        broker.push_ids(queue, [lane + str(i) for i in range(4)], lane)
    batch = commit(broker, kv=[put(queue)], next={"queue": queue, "batch": 6, "partitions": 2, "leaseSeconds": 1})["next"]
    assert (len(batch["messages"]), batch["partitionsClaimed"]) == (6, 2)
    wait_until(lambda: broker.depth(queue, QUEUE_MODE)["processing"] == 0, 5, "the lease of a second ran out")
    batch = commit(broker, kv=[put(queue)], next={"queue": queue, "batch": 100, "partitions": 1000})["next"]
    assert (len(batch["messages"]), batch["partitionsClaimed"]) == (12, 3)
    assert {m["deliveryAttempt"] for m in batch["messages"]} == {1, 2}
    broker.push_ids(queue, ["more", "most"], "s")
    assert ids(commit(broker, kv=[put(queue)], next={"queue": queue, "batch": 0})["next"]) == ["more"]


def test_new_group_is_registered(broker, queue):
    broker.push_ids(queue, ["old"], "p")
    assert commit(broker, kv=[put(queue)], next={"queue": queue, "consumerGroup": "g"})["next"]["messages"] == []
    broker.push_ids(queue, ["fresh"], "p")
    assert ids(commit(broker, kv=[put(queue)], next={"queue": queue, "consumerGroup": "g", "subscriptionMode": "all"})["next"]) == ["fresh"]
    assert ids(commit(broker, kv=[put(queue)], next={"queue": queue, "consumerGroup": "h", "subscriptionMode": "all"})["next"]) == ["old", "fresh"]
    later = {"queue": queue, "consumerGroup": "i", "subscriptionFrom": "2000-01-01T00:00:00Z"}
    assert ids(commit(broker, kv=[put(queue)], next=later)["next"]) == ["old", "fresh"]


def test_next_creates_the_queue_as_a_pop_does(broker, queue):
    assert commit(broker, kv=[put(queue)], next={"queue": queue})["next"]["messages"] == []
    assert broker.queue_detail(queue) is not None


def test_conflating_group(broker, queue):
    wish = {"queue": queue, "consumerGroup": "g", "conflation": True, "subscriptionMode": "all"}
    empty = commit(broker, kv=[put(queue)], next=wish)["next"]
    assert (empty["messages"], empty["conflation"]) == ([], True)
    broker.push_ids(queue, list("abc"), "p")
    batch = commit(broker, kv=[put(queue)], next=wish)["next"]
    assert ids(batch) == ["c"] and batch["conflation"] is True
    commit(broker, operations=[ack_op(batch["messages"][0])])
    assert broker.depth(queue, "g")["pending"] == 0
    other = commit(broker, kv=[put(queue)], next=dict(wish, conflation=False))["next"]
    assert (other["messages"], other["conflation"], other["conflationConflict"]) == ([], True, True)


@pytest.mark.parametrize("bad", [{}, {"queue": ""}, {"queue": 1}, {"namespace": "a"}, {"queue": "q", "namespace": "a"}, {"queue": "q", "task": "a"},
                                 {"queue": "q", "autoAck": True}, {"queue": "q", "commitOnDelivery": True}, {"queue": "q", "consumerGroup": ""},
                                 {"queue": "q", "batch": "1"}, {"queue": "q", "wait": 1}, {"queue": "q", "timeout": -1},
                                 {"queue": "q", "conflation": True}, [], 1])
def test_refused_parameters(broker, queue, bad):
    answer = refuse(broker, "bad_request", 400, operations=[push_op(item(queue, "x"))], next=bad)
    assert "next" in answer["error"]
    assert broker.queue_detail(queue) is None


def test_long_name(broker, queue):
    answer = transact(broker, kv=[put(queue)], next={"queue": "q" * 412}).expect(413).json
    assert answer["code"] == "name_too_long"
    assert kv_read(broker, queue) is None


# ---- waiting ----

def test_waits_for_a_message(broker, queue):
    m = leased(broker, queue, "a")
    got = []
    thread = start(lambda: got.append(transact(broker, operations=[ack_op(m["a"])], kv=[put(queue)],
                                               next={"queue": queue, "consumerGroup": "g", "wait": True, "timeout": 20000})))
    # Committed long before it is answered.
    wait_until(lambda: kv_read(broker, queue) == 1, 5, "the commit")
    assert broker.depth(queue, "g")["pending"] == 0
    time.sleep(0.2)
    assert got == []
    begin = time.monotonic()
    broker.push_ids(queue, ["b"], "p")
    thread.join()
    assert time.monotonic() - begin < 10
    answer = got[0].expect(200).json
    assert answer["success"] is True and ids(answer["next"]) == ["b"] and answer["next"]["messages"][0]["deliveryAttempt"] == 1
    assert [r["type"] for r in answer["results"]] == ["ack", "kv"]
    assert broker.ack(answer["next"]["messages"][0])["success"] is True


def test_answers_at_once_when_there_is_something(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    answer = transact(broker, kv=[put(queue)], next={"queue": queue, "wait": True, "timeout": 20000})
    assert answer.elapsed < 10 and ids(answer.json["next"]) == ["a"]


@pytest.mark.parametrize("lane", [None, "p"])
def test_wait_ends_empty(broker, queue, lane):
    broker.push_ids(queue, ["a"], "p")
    broker.take(queue, "p", group="g", subscriptionMode="all")
    answer = transact(broker, kv=[put(queue, "done")], next={"queue": queue, "partition": lane, "consumerGroup": "g", "wait": True, "timeout": 1000})
    assert 0.7 <= answer.elapsed <= 5
    body = answer.expect(200).json
    assert (body["success"], body["next"]["messages"], body["next"]["leaseId"]) == (True, [], "")
    assert kv_read(broker, queue) == "done"


def test_waits_on_one_lane(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    broker.push_ids(queue, ["x"], "q")
    broker.take(queue, "p", group="g", subscriptionMode="all")
    got = []
    thread = start(lambda: got.append(transact(broker, kv=[put(queue)], next={"queue": queue, "partition": "r", "consumerGroup": "g", "wait": True,
                                                                              "subscriptionMode": "all", "timeout": 20000})))
    wait_until(lambda: kv_read(broker, queue) == 1, 5, "the commit")
    broker.push_ids(queue, ["y"], "q")
    time.sleep(0.2)
    assert got == []
    broker.push_ids(queue, ["z"], "r")
    thread.join()
    assert ids(got[0].json["next"]) == ["z"]


def test_woken_by_a_released_lease_and_by_a_timer(broker, queue):
    m = leased(broker, queue, "ab")
    got = []
    thread = start(lambda: got.append(transact(broker, kv=[put(queue)], next={"queue": queue, "consumerGroup": "g", "wait": True, "timeout": 20000})))
    wait_until(lambda: kv_read(broker, queue) == 1, 5, "the commit")
    commit(broker, operations=[ack_op(m["a"], "retry")])
    thread.join()
    assert ids(got[0].json["next"]) == ["a", "b"]
    commit(broker, operations=[ack_op(x) for x in got[0].json["next"]["messages"]])
    begin = time.monotonic()
    answer = commit(broker, timers=[timer(queue, "t", "fired", 300, {"n": 1}, partition="p")],
                    next={"queue": queue, "consumerGroup": "g", "wait": True, "timeout": 20000})
    assert ids(answer["next"]) == ["fired"] and 0.29 <= time.monotonic() - begin < 10


def test_many_wait_and_each_message_goes_to_one(broker, queue):
    count = 20
    answers = []

    def worker(n):
        answers.append(transact(broker, kv=[incr(queue)], next={"queue": queue, "wait": True, "timeout": 20000, "batch": 1}).expect(200).json)

    threads = [start(worker, n) for n in range(count)]
    wait_until(lambda: kv_read(broker, queue) == count, 10, "all have committed")
    for i in range(count):
        broker.push_ids(queue, ["m%d" % i], "lane-%d" % i)
    [t.join() for t in threads]
    assert sorted(ids(a["next"])[0] for a in answers) == sorted("m%d" % i for i in range(count))


# ---- clients that leave, brokers that stop ----

def test_client_that_leaves_while_it_waits(broker, queue):
    before = waiting(broker)
    with broker.raw() as connection:
        raw_step(connection, kv=[put(queue)], next={"queue": queue, "wait": True, "timeout": 30000})
        wait_until(lambda: kv_read(broker, queue) == 1, 5, "the commit")
        wait_until(lambda: waiting(broker) > before, 5, "it waits")
    wait_until(lambda: waiting(broker) == before, 5, "it is gone")
    broker.push_ids(queue, ["a"], "p")
    message = broker.take(queue, wait=True, timeout=2000)["messages"][0]
    assert (message["transactionId"], message["deliveryAttempt"]) == ("a", 1)


@pytest.mark.seconds(5)
def test_clients_that_leave_as_a_message_arrives_lose_nothing(own_broker, queue):
    # Each waits and cuts its connection about when the message comes. What was taken for it comes back uncounted, but for an answer
    # that was already on its way: that one has its lease, and runs out.
    rounds, lease = (200 if TEST_ALL else 20), 1
    broker = own_broker()
    broker.configure(queue, leaseTime=lease)
    came_back = 0
    for i in range(rounds):
        connection = broker.raw()
        raw_step(connection, kv=[incr(queue)], next={"queue": queue, "consumerGroup": "g", "subscriptionMode": "all", "wait": True, "timeout": 30000})
        wait_until(lambda: waiting(broker) == 1, 5, "it waits")
        pusher = start(broker.push_ids, queue, ["m%d" % i], "p")
        time.sleep(random.uniform(0, 0.002))
        connection.reset()
        pusher.join()
        begin = time.monotonic()
        message, = broker.take(queue, group="g", wait=True, timeout=10000)["messages"]
        waited = time.monotonic() - begin
        assert message["transactionId"] == "m%d" % i
        assert message["deliveryAttempt"] == 1 or (message["deliveryAttempt"] == 2 and waited > lease / 2), (i, waited)
        came_back += message["deliveryAttempt"] == 1
        assert broker.ack(message)["success"] is True
    assert kv_read(broker, queue) == rounds
    assert came_back > 0


def test_commit_is_durable_before_the_wait(own_broker, queue):
    broker = own_broker()
    m = leased(broker, queue, "a")
    connection = broker.raw()
    raw_step(connection, operations=[ack_op(m["a"]), push_op(item(queue + "-out", "r"))], kv=[put(queue, "kept")],
             timers=[timer(queue + "-t", "t", "n")], next={"queue": queue, "consumerGroup": "g", "wait": True, "timeout": 60000})
    wait_until(lambda: kv_read(broker, queue) == "kept", 5, "the commit")
    wait_until(lambda: waiting(broker) == 1, 5, "it waits")
    broker.kill()
    broker.start()
    assert kv_read(broker, queue) == "kept"
    assert broker.depth(queue, "g")["pending"] == 0
    assert ids(broker.take(queue + "-out")) == ["r"]
    assert broker.get("/api/v1/timers/%s-t/t" % queue).expect(200).json["found"] is True
    connection.close()


def test_batch_of_an_answered_next_is_leased_after_a_kill(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, list("ab"), "p")
    batch = commit(broker, kv=[put(queue)], next={"queue": queue, "consumerGroup": "g", "subscriptionMode": "all", "batch": 1})["next"]
    broker.restart("kill")
    broker.nothing(queue, group="g")
    second = commit(broker, operations=[ack_op(m) for m in batch["messages"]], next={"queue": queue, "consumerGroup": "g"})["next"]
    assert ids(second) == ["b"]


def test_stopping_broker_answers_the_commit(own_broker, queue):
    broker = own_broker()
    got = []
    thread = start(lambda: got.append(transact(broker, kv=[put(queue)], next={"queue": queue, "wait": True, "timeout": 60000})))
    wait_until(lambda: kv_read(broker, queue) == 1, 5, "the commit")
    wait_until(lambda: waiting(broker) == 1, 5, "it waits")
    broker.stop()
    thread.join()
    answer = got[0].expect(200).json
    assert (answer["success"], answer["next"]["messages"]) == (True, [])


# ---- a worker's loop ----

def test_loop_of_steps_takes_every_message_once_and_in_order(broker, queue):
    lanes, each, workers = 6, 40, 4
    for lane in range(lanes):
        broker.push([item(queue, "l%d-%d" % (lane, i), [lane, i], "lane-%d" % lane) for i in range(each)]).expect(201)

    def worker(number):
        want = {"queue": queue, "consumerGroup": "g", "subscriptionMode": "all", "batch": 3, "wait": True, "timeout": 1500}
        batch = commit(broker, kv=[incr(queue + "-started")], next=want)["next"]
        while batch["messages"]:
            operations = [ack_op(m) for m in batch["messages"]]
            operations.append(push_op(*[item(queue + "-out", "out-" + m["transactionId"], m["data"], m["partition"]) for m in batch["messages"]]))
            batch = commit(broker, operations=operations, kv=[incr(queue + "-steps"), incr(queue + "-done", len(batch["messages"]))], next=want)["next"]

    threads = [start(worker, n) for n in range(workers)]
    [t.join() for t in threads]
    assert kv_read(broker, queue + "-done") == lanes * each
    assert kv_read(broker, queue + "-started") == workers
    for lane in range(lanes):
        out = broker.take(queue + "-out", "lane-%d" % lane)
        assert [m["data"] for m in out["messages"]] == [[lane, i] for i in range(each)]
        assert offsets(out) == list(range(each))
    assert broker.depth(queue, "g")["pending"] == 0
