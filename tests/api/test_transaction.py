"""Transactions: acks, pushes, KV, timers and positions in one call, all of it or nothing."""

import json
import threading
import time

import pytest

from queen import LEASE_ERROR, QUEUE_MODE, STALE_ERROR, UUID7, ids, unique, wait_until
from step_kit import (ack_op, cancel, commit, get, ids_of, incr, item, kv_read, leased, once, push_op, put, refuse, still_leased,
                      timer, timer_is_pending, transact)


def nothing_of(broker, queue, key, timer_key):
    """No trace of a refused transaction: no queue, no key, no timer."""
    assert broker.queue_detail(queue + "-out") is None
    assert kv_read(broker, key) is None
    assert not timer_is_pending(broker, queue + "-timers", timer_key)


# ---- what a commit does ----

def test_ack_push_put_and_timer_commit_together(broker, queue):
    # 77
    m = leased(broker, queue, "a")
    answer = commit(broker,
                    operations=[ack_op(m["a"]), push_op(item(queue + "-out", "r-1", {"w": 3}))],
                    kv=[put(queue, {"s": "in"})],
                    timers=[timer(queue + "-timers", "t", "n-1")])
    assert UUID7.match(answer["transactionId"])
    ack, push, kv, scheduled = answer["results"]
    assert ack == {"index": 0, "type": "ack", "success": True, "transactionId": "a", "error": None, "dlq": False}
    assert UUID7.match(push["messageId"])
    assert push == {"index": 1, "type": "push", "success": True, "transactionId": "r-1", "messageId": push["messageId"],
                    "queueName": queue + "-out"}
    assert kv["version"] > 0
    assert kv == {"index": 2, "op": "put", "applied": True, "key": queue, "value": {"s": "in"}, "version": kv["version"],
                  "opIndex": 0, "type": "kv"}
    assert scheduled == {"ok": True, "status": "scheduled", "queue": queue + "-timers", "timerKey": "t", "txn": "n-1",
                         "messageId": scheduled["messageId"], "deliverAt": scheduled["deliverAt"], "opIndex": 0, "index": 3,
                         "type": "timer"}
    broker.nothing(queue, group="g")
    assert broker.depth(queue, "g")["pending"] == 0
    out = broker.take(queue + "-out")["messages"][0]
    assert (out["transactionId"], out["data"], out["id"]) == ("r-1", {"w": 3}, push["messageId"])
    assert kv_read(broker, queue) == {"s": "in"}
    assert timer_is_pending(broker, queue + "-timers", "t")


def test_flat_indexes_over_many_parts(broker, queue):
    m = leased(broker, queue, "abcd")
    answer = commit(broker,
                    operations=[push_op(item(queue + "-1", "x"), item(queue + "-2", "y"), item(queue + "-1", "z")),
                                ack_op(m["a"]),
                                dict(item(queue + "-2", "w"), type="push"),
                                push_op(),
                                ack_op(m["b"])],
                    kv=[put(queue + "-k1"), get(queue + "-k1"), {"op": "getMany", "ns": "test", "keys": [queue + "-k1", "no"]}],
                    timers=[timer(queue + "-t", "t1", "n-1"), cancel(queue + "-t", "t2")],
                    positions=[{"queue": queue, "consumerGroup": "h", "partition": "p", "offset": 2},
                               {"queue": queue, "consumerGroup": "i", "partition": "p", "offset": 0}])
    kinds = [(r["type"], r.get("transactionId"), r.get("opIndex")) for r in answer["results"]]
    assert kinds == [("push", "x", None), ("push", "y", None), ("push", "z", None), ("ack", "a", None), ("push", "w", None),
                     ("ack", "b", None), ("kv", None, 0), ("kv", None, 1), ("kv", None, 2), ("timer", None, 0),
                     ("timer", None, 1), ("position", None, 0), ("position", None, 1)]
    assert [r.get("queueName") for r in answer["results"][:5]] == [queue + "-1", queue + "-2", queue + "-1", None, queue + "-2"]
    assert answer["results"][11] == {"index": 11, "opIndex": 0, "type": "position", "success": True}
    assert ids(broker.take(queue + "-1")) == ["x", "z"]
    assert ids(broker.take(queue + "-2")) == ["y", "w"]
    assert ids(broker.take(queue, group="h")) == ["c", "d"]
    assert ids(broker.take(queue, group="i")) == ["a", "b", "c", "d"]


def test_inline_push_equals_a_push_of_items(broker, queue):
    trace = "01a9c0de-0000-7abc-8def-00000000abcd"
    answer = commit(broker, operations=[{"type": "push", "queue": queue, "payload": None, "transactionId": "one", "traceId": trace},
                                        push_op({"queue": queue, "payload": {"a": 1}, "transactionId": "two", "traceId": "no uuid"},
                                                {"queue": queue, "partition": "", "payload": [1], "traceId": trace})])
    messages = broker.take(queue, "Default")["messages"]
    assert [(m["transactionId"], m["data"], m["traceId"]) for m in messages] == [
        ("one", None, trace), ("two", {"a": 1}, None), (answer["results"][2]["messageId"], [1], trace)]
    assert [r["transactionId"] for r in answer["results"]] == [m["transactionId"] for m in messages]


def test_push_without_id_is_never_a_duplicate(broker, queue):
    for _ in range(2):
        answer = commit(broker, operations=[push_op(item(queue), item(queue))])
        assert all(r["transactionId"] == r["messageId"] for r in answer["results"])
    assert len(broker.take(queue)["messages"]) == 4


def test_order_in_a_lane_is_the_order_of_the_operations(broker, queue):
    operations = []
    for i in range(60):
        lane = "lane-%d" % (i % 3)
        one = item(queue, "m%d" % i, i, lane)
        operations.append(dict(one, type="push") if i % 2 else push_op(one))
    commit(broker, operations=operations)
    for lane in range(3):
        messages = broker.take(queue, "lane-%d" % lane)["messages"]
        assert [m["data"] for m in messages] == list(range(lane, 60, 3))
        assert len({m["createdAt"] for m in messages}) == 1


def test_payload_is_kept_byte_for_byte(broker, queue):
    payload = b'{ "b" : 9007199254740993, "a":1e400 , "e":"\\u00e9\xc3\xa9", "a":0.1000}'
    body = b'{"operations":[{"type":"push","items":[{"queue":"%s","payload":%s}]},{"type":"push","queue":"%s","payload":%s}]}' % (
        queue.encode(), payload, queue.encode(), payload)
    assert broker.post("/api/v1/transaction", body).expect(200).json["success"] is True
    answer = broker.pop(queue).expect(200)
    assert answer.body.count(b'"data":' + payload) == 2


def test_same_id_twice_in_one_transaction_is_stored_once(broker, queue):
    # 79
    answer = commit(broker, operations=[push_op(item(queue, "x", 1), item(queue, "x", 2), item(queue, "y", 3), item(queue, "x", 4))])
    first, second, other, third = answer["results"]
    assert "duplicate" not in first and "duplicate" not in other
    for again in (second, third):
        assert (again["duplicate"], again["messageId"], again["success"]) == (True, first["messageId"], True)
    assert [(m["transactionId"], m["data"], m["offset"]) for m in broker.take(queue)["messages"]] == [("x", 1, 0), ("y", 3, 1)]


def test_same_id_in_two_lanes_is_two_messages(broker, queue):
    answer = commit(broker, operations=[push_op(item(queue, "x", 1, "p"), item(queue, "x", 2, "r"))])
    assert not any("duplicate" in r for r in answer["results"])
    assert answer["results"][0]["messageId"] != answer["results"][1]["messageId"]


def test_lost_kv_op_without_required_does_not_roll_back(broker, queue):
    # 85
    commit(broker, kv=[put(queue, "marker")])
    version = commit(broker, kv=[get(queue)])["results"][0]["version"]
    answer = commit(broker, operations=[push_op(item(queue, "x"))], kv=[once(queue, "other", required=False)])
    assert answer["results"][1] == {"index": 1, "op": "putIfAbsent", "applied": False, "reason": "exists", "key": queue,
                                    "value": "marker", "version": version, "opIndex": 0, "type": "kv"}
    assert ids(broker.take(queue)) == ["x"]


def test_read_in_a_transaction_sees_its_writes(broker, queue):
    # 96
    commit(broker, kv=[put(queue, "old")])
    answer = commit(broker, kv=[get(queue), put(queue, "new"), get(queue), {"op": "getMany", "ns": "test", "keys": [queue]}])
    before, _, after, many = answer["results"]
    assert (before["found"], before["value"]) == (True, "old")
    assert (after["found"], after["value"]) == (True, "new")
    assert [row["value"] for row in many["rows"]] == ["new"]


def test_cancel_that_finds_nothing_commits(broker, queue):
    # 97
    answer = commit(broker, timers=[cancel(queue, "none"), cancel(queue, "named", txn="n-7")])
    assert answer["results"][0] == {"ok": False, "status": "absent", "queue": queue, "timerKey": "none", "txn": None, "opIndex": 0,
                                    "index": 0, "type": "timer"}
    assert (answer["results"][1]["ok"], answer["results"][1]["txn"]) == (False, "n-7")


def test_timer_is_replaced_cancelled_and_fires_from_a_transaction(broker, queue):
    first = commit(broker, timers=[timer(queue, "t", "n-1")])["results"][0]
    again = commit(broker, timers=[timer(queue, "t", "n-2", op="reschedule")])["results"][0]
    assert (first["status"], again["status"]) == ("scheduled", "rescheduled")
    gone = commit(broker, timers=[cancel(queue, "t")])["results"][0]
    assert (gone["ok"], gone["status"], gone["txn"]) == (True, "cancelled", "n-2")
    due = commit(broker, timers=[timer(queue, "t", "n-3", 0, {"n": 3})])["results"][0]
    message = broker.take(queue, wait=True, timeout=5000)["messages"][0]
    assert (message["transactionId"], message["id"], message["data"]) == ("n-3", due["messageId"], {"n": 3})


def test_horizon_of_timers_is_not_applied_in_a_transaction(broker, queue):
    # 124, the transaction's part
    days = 400 * 86400 * 1000
    assert broker.post("/api/v1/timers", [timer(queue, "far", "n-1", days)]).status == 403
    assert commit(broker, timers=[timer(queue, "far", "n-1", days)])["results"][0]["status"] == "scheduled"
    assert timer_is_pending(broker, queue, "far")


# ---- what a rollback leaves ----

def test_duplicate_push_rolls_everything_back(broker, queue):
    # 78
    m = leased(broker, queue, "ab")
    broker.push_ids(queue + "-done", ["r-1"], "p")
    answer = refuse(broker, "duplicate",
                    operations=[ack_op(m["a"]), push_op(item(queue + "-out", "fresh"), item(queue + "-done", "r-1"))],
                    kv=[put(queue)], timers=[timer(queue + "-timers", "t", "n-1")])
    assert answer["error"].startswith("QDUP") and queue + "-done/p" in answer["error"] and "offset 0" in answer["error"]
    assert sorted(answer) == ["error", "reason", "results", "success", "transactionId"]
    assert still_leased(broker, queue, count=2)
    nothing_of(broker, queue, queue, "t")
    assert [x["transactionId"] for x in broker.drain(queue + "-done")] == ["r-1"]
    # The lease still stands: the same ack alone commits.
    commit(broker, operations=[ack_op(m["b"])])
    broker.nothing(queue, group="g")


def test_names_in_the_text_of_a_duplicate_are_escaped(broker, queue):
    lane = 'a"b\\c'
    broker.push([item(queue, "x", 1, lane)]).expect(201)
    assert '%s/%s is' % (queue, lane) in refuse(broker, "duplicate", operations=[push_op(item(queue, "x", 1, lane))])["error"]


def test_expired_lease_rolls_everything_back(broker, queue):
    # 80
    m = leased(broker, queue, "a", lease_seconds=1)
    wait_until(lambda: broker.depth(queue, "g")["processing"] == 0, 5, "the lease ran out")
    answer = refuse(broker, "rejected_ack", operations=[ack_op(m["a"]), push_op(item(queue + "-out", "r"))], kv=[put(queue)],
                    timers=[timer(queue + "-timers", "t", "n")])
    assert answer["error"].startswith("QTXN") and LEASE_ERROR in answer["error"]
    nothing_of(broker, queue, queue, "t")
    assert ids(broker.take(queue, group="g")) == ["a"]


def test_identical_request_after_the_commit_is_rejected(broker, queue):
    # 81
    m = leased(broker, queue, "a")
    body = {"operations": [ack_op(m["a"]), push_op(item(queue + "-out", "r-1"))], "kv": [incr(queue)],
            "timers": [timer(queue + "-timers", "t", "n-1")]}
    commit(broker, **body)
    for _ in range(2):
        assert LEASE_ERROR in refuse(broker, "rejected_ack", **body)["error"]
    assert kv_read(broker, queue) == 1
    assert ids(broker.take(queue + "-out")) == ["r-1"]


def test_step_without_a_gate_counts_twice_under_a_live_lease(broker, queue):
    # 82
    m = leased(broker, queue, "ab")
    body = {"operations": [ack_op(m["a"])], "kv": [incr(queue)]}
    commit(broker, **body)
    again = commit(broker, **body)
    assert (again["results"][0]["success"], again["results"][1]["value"]) == (True, 2)
    # The remedy: an id for the step, kept as long as the call may be repeated.
    gated = {"operations": [ack_op(m["a"])], "kv": [once(queue + "-step-1"), incr(queue)]}
    commit(broker, **gated)
    assert refuse(broker, "kv_precondition", **gated)["kvReason"] == "exists"
    assert kv_read(broker, queue) == 3


def test_first_refusal_wins_acks_pushes_kv(broker, queue):
    # 83
    m = leased(broker, queue, "a", lease_seconds=1)
    broker.push_ids(queue + "-out", ["done"], "p")
    commit(broker, kv=[put(queue)])
    wait_until(lambda: broker.depth(queue, "g")["processing"] == 0, 5, "the lease ran out")
    body = {"kv": [once(queue)]}
    refuse(broker, "rejected_ack", operations=[push_op(item(queue + "-out", "done")), ack_op(m["a"])], **body)
    live = broker.take(queue, group="g")["messages"][0]
    refuse(broker, "duplicate", operations=[push_op(item(queue + "-out", "done")), ack_op(live)], **body)
    refuse(broker, "kv_precondition", operations=[push_op(item(queue + "-out", "fresh")), ack_op(live)], **body)
    commit(broker, operations=[push_op(item(queue + "-out", "fresh")), ack_op(live)])


def test_lost_required_op_names_its_flat_index(broker, queue):
    # 84
    m = leased(broker, queue, "a")
    written = commit(broker, kv=[put(queue + "-marker", {"by": "w-1"})])["results"][0]
    answer = refuse(broker, "kv_precondition", operations=[ack_op(m["a"]), push_op(item(queue + "-out", "r"))],
                    kv=[put(queue), once(queue + "-marker")], timers=[timer(queue + "-timers", "t", "n")])
    assert answer["error"].startswith("QKV")
    assert (answer["ok"], answer["failedIndex"], answer["kvReason"]) == (False, 3, "exists")
    assert (answer["version"], answer["value"]) == (written["version"], {"by": "w-1"})
    assert still_leased(broker, queue, count=1)
    nothing_of(broker, queue, queue, "t")


@pytest.mark.parametrize("op,reason,version,value", [
    (lambda k: put(k, expect=7, required=True), "absent", 0, None),
    (lambda k: {"op": "delete", "ns": "test", "key": k, "required": True}, "absent", 0, None),
    (lambda k: {"op": "check", "ns": "test", "key": k, "expect": 3, "required": True}, "absent", 0, None),
    (lambda k: incr(k, 5, max=4, required=True), "limit", 0, 0),
])
def test_other_lost_preconditions_say_why(broker, queue, op, reason, version, value):
    answer = refuse(broker, "kv_precondition", operations=[push_op(item(queue, "x"))], kv=[op(queue)])
    assert (answer["failedIndex"], answer["kvReason"], answer["version"]) == (1, reason, version)
    assert answer["value"] in (value, None)
    assert broker.queue_detail(queue) is None


def test_lost_precondition_on_a_text_says_type(broker, queue):
    commit(broker, kv=[put(queue, "text")])
    answer = refuse(broker, "kv_precondition", kv=[incr(queue, required=True)])
    assert (answer["kvReason"], answer["value"], answer["failedIndex"]) == ("type", 0, 0)


def test_large_value_of_a_lost_precondition_is_left_out(broker, queue):
    # Counted in characters, not in bytes.
    for key, value in (("-small", "x" * 3900), ("-large", "x" * 4096), ("-wide", "\u00e9" * 3900)):
        body = json.dumps({"kv": [put(queue + key, value)]}, ensure_ascii=False).encode()
        assert broker.post("/api/v1/transaction", body).expect(200).json["success"] is True
    for key, shown in (("-small", True), ("-large", False), ("-wide", True)):
        answer = refuse(broker, "kv_precondition", kv=[once(queue + key)])
        assert answer["ok"] is False
        present = [k for k in ("failedIndex", "kvReason", "version", "value") if k in answer]
        assert present == (["failedIndex", "kvReason", "version", "value"] if shown else [])


def test_rolled_back_push_creates_no_queue(broker, queue):
    # 98
    commit(broker, kv=[put(queue)])
    refuse(broker, "kv_precondition", operations=[push_op(item(queue, "x"), item(queue + "-2", "y"))], kv=[once(queue)])
    assert broker.queue_detail(queue) is None and broker.queue_detail(queue + "-2") is None
    assert queue not in broker.get("/api/v1/resources/queues").expect(200).body.decode()
    # The id was not remembered either.
    answer = commit(broker, operations=[push_op(item(queue, "x"))])
    assert "duplicate" not in answer["results"][0]


def test_rolled_back_incr_and_delete_change_nothing(broker, queue):
    commit(broker, kv=[put(queue + "-n", 5), put(queue + "-d", "there")])
    before = commit(broker, kv=[get(queue + "-n"), get(queue + "-d")])["results"]
    refuse(broker, "kv_precondition", kv=[incr(queue + "-n"), {"op": "delete", "ns": "test", "key": queue + "-d"}, once(queue + "-d2"),
                                          put(queue + "-z", expect=4, required=True)])
    assert commit(broker, kv=[get(queue + "-n"), get(queue + "-d")])["results"] == before
    assert kv_read(broker, queue + "-d2") is None


# ---- acks ----

def test_unfenced_ack_and_lending(broker, queue):
    # 89
    m = leased(broker, queue, "a", lease_seconds=1)
    wait_until(lambda: broker.depth(queue, "g")["processing"] == 0, 5, "the lease ran out")
    loose = ack_op(m["a"], leaseId=None)
    refuse(broker, "rejected_ack", operations=[loose], requiredLeases=[m["a"]["leaseId"]])
    refuse(broker, "rejected_ack", operations=[dict(loose, leaseId="")], requiredLeases=[m["a"]["leaseId"], m["a"]["leaseId"]])
    other = "01a9c0de-1111-7abc-8def-00000000000b"
    commit(broker, operations=[loose], requiredLeases=[m["a"]["leaseId"], other])
    broker.nothing(queue, group="g")


def test_lease_of_one_ack_is_lent_to_the_others(broker, queue):
    m = leased(broker, queue, "abc")
    commit(broker, operations=[ack_op(m["a"]), ack_op(m["b"], leaseId=None), ack_op(m["c"], leaseId=None)])
    assert broker.depth(queue, "g")["pending"] == 0
    # After the release the lent lease is as dead as the named one.
    refuse(broker, "rejected_ack", operations=[ack_op(m["b"], leaseId=None), ack_op(m["a"])])


def test_required_lease_without_an_ack_is_not_checked(broker, queue):
    # 90
    m = leased(broker, queue, "a", lease_seconds=1)
    wait_until(lambda: broker.depth(queue, "g")["processing"] == 0, 5, "the lease ran out")
    commit(broker, kv=[put(queue)], requiredLeases=[m["a"]["leaseId"], "not a lease"])
    assert kv_read(broker, queue) == 1


def test_ack_without_the_group_is_rejected(broker, queue):
    # 91
    m = leased(broker, queue, "a")
    refuse(broker, "rejected_ack", operations=[ack_op(m["a"], consumerGroup=None)])
    refuse(broker, "rejected_ack", operations=[ack_op(m["a"], consumerGroup="")])
    refuse(broker, "rejected_ack", operations=[ack_op(m["a"], consumerGroup="other")])
    commit(broker, operations=[ack_op(m["a"])])


def test_ack_of_a_message_popped_without_group(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    a, b = broker.take(queue)["messages"]
    assert a["consumerGroup"] == QUEUE_MODE
    commit(broker, operations=[ack_op(a), ack_op(b, consumerGroup=QUEUE_MODE)])
    broker.nothing(queue)


def test_two_pops_one_expired(broker, queue):
    # 92
    broker.push_ids(queue + "-1", ["a"], "p")
    broker.push_ids(queue + "-2", ["b"], "p")
    a = broker.take(queue + "-1", group="g", subscriptionMode="all", leaseSeconds=1)["messages"][0]
    b = broker.take(queue + "-2", group="h", subscriptionMode="all", leaseSeconds=60)["messages"][0]
    wait_until(lambda: broker.depth(queue + "-1", "g")["processing"] == 0, 5, "the lease ran out")
    for operations in ([ack_op(a), ack_op(b)], [ack_op(b), ack_op(a)]):
        refuse(broker, "rejected_ack", operations=operations)
    assert still_leased(broker, queue + "-2", "h", 1)
    again = broker.take(queue + "-1", group="g")["messages"][0]
    commit(broker, operations=[ack_op(again), ack_op(b)])
    assert broker.depth(queue + "-1", "g")["pending"] == broker.depth(queue + "-2", "h")["pending"] == 0


def test_failed_ack_charges_the_budget_only_when_it_commits(broker, queue):
    # 93
    m = leased(broker, queue, "a", retryLimit=1)
    commit(broker, kv=[put(queue)])
    for _ in range(3):
        refuse(broker, "kv_precondition", operations=[ack_op(m["a"], "failed", "boom")], kv=[once(queue)])
    assert still_leased(broker, queue, count=1)
    answer = commit(broker, operations=[ack_op(m["a"], "failed", "boom"), push_op(item(queue + "-out", "r"))])
    assert answer["results"][0] == {"index": 0, "type": "ack", "success": True, "transactionId": "a", "error": None, "dlq": False}
    again = broker.take(queue, group="g")["messages"][0]
    assert (again["transactionId"], again["deliveryAttempt"]) == ("a", 2)
    # The budget of one is spent now: the next one files it, though the answer says dlq only of a `dlq`.
    assert commit(broker, operations=[ack_op(again, "failed", "the last")])["results"][0]["dlq"] is False
    assert [(d["transactionId"], d["errorMessage"]) for d in broker.dlq(queue)["messages"]] == [("a", "the last")]


def test_dlq_ack_files_the_message(broker, queue):
    # 94
    m = leased(broker, queue, "ab")
    answer = commit(broker, operations=[ack_op(m["a"], "DLQ", "torn"), push_op(item(queue + "-out", "r"))])
    assert (answer["results"][0]["success"], answer["results"][0]["dlq"], answer["results"][1]["type"]) == (True, True, "push")
    letter, = broker.dlq(queue)["messages"]
    assert (letter["transactionId"], letter["errorMessage"], letter["data"]) == ("a", "torn", {"id": "a"})
    assert ids(broker.take(queue, group="g")) == ["b"]


def test_retry_ack_gives_the_message_back(broker, queue):
    m = leased(broker, queue, "ab")
    commit(broker, operations=[ack_op(m["a"]), ack_op(m["b"], "retry")])
    assert ids(broker.take(queue, group="g")) == ["b"]


def test_ack_of_what_does_not_exist(broker, queue):
    # 95
    m = leased(broker, queue, "a")
    for change, text in (({"partitionId": "999999"}, "partition"), ({"partitionId": "99999999999999999999999999"}, "partition"),
                         ({"transactionId": "never"}, STALE_ERROR), ({"transactionId": "x" * 65536}, ""),
                         ({"leaseId": "no lease"}, LEASE_ERROR)):
        answer = refuse(broker, "rejected_ack", operations=[push_op(item(queue + "-out", "r")), ack_op(m["a"], **change)])
        assert answer["error"].startswith("QTXN") and text in answer["error"], answer
    assert broker.queue_detail(queue + "-out") is None


def test_partition_id_that_is_no_number(broker, queue):
    m = leased(broker, queue, "a")
    for partition in ("abc", "", "-1", "1x"):
        assert "partitionId" in refuse(broker, "bad_request", operations=[ack_op(m["a"], partitionId=partition)])["error"]
    # 53: a number is not of the shape at all.
    refuse(broker, "bad_request", 400, operations=[ack_op(m["a"], partitionId=17)])


def test_signal_for_an_acked_message_rolls_back(broker, queue):
    m = leased(broker, queue, "ab")
    commit(broker, operations=[ack_op(m["a"])])
    for status in ("failed", "retry", "dlq"):
        refuse(broker, "rejected_ack", operations=[ack_op(m["a"], status)])
    commit(broker, operations=[ack_op(m["a"]), ack_op(m["b"])])


def test_ack_is_cumulative_as_everywhere(broker, queue):
    m = leased(broker, queue, "abc")
    commit(broker, operations=[ack_op(m["b"])])
    assert broker.depth(queue, "g")["pending"] == 1
    commit(broker, operations=[ack_op(m["c"])])
    broker.nothing(queue, group="g")


def test_acks_of_several_groups_and_lanes(broker, queue):
    for lane in "pq":
        broker.push([item(queue, "m1", 1, lane), item(queue, "m2", 2, lane)]).expect(201)
    popped = {}
    for group in ("g", "G", "a"):
        for m in broker.take(queue, group=group, subscriptionMode="all", partitions=2)["messages"]:
            popped[group, m["partition"], m["transactionId"]] = m
    assert len(popped) == 12
    answer = commit(broker, operations=[ack_op(m) for _, m in sorted(popped.items(), reverse=True)])
    assert [r["transactionId"] for r in answer["results"]] == [key[2] for key in sorted(popped, reverse=True)]
    for group in ("g", "G", "a"):
        assert broker.depth(queue, group)["pending"] == 0


def test_ack_of_another_tenant_is_rejected(own_broker, queue):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    mine = {"x-queen-tenant": "00000000-0000-0000-0000-0000000000aa"}
    broker.push_ids(queue, ["a"], "p", headers=mine)
    message = broker.pop(queue, group="g", subscriptionMode="all", headers=mine).expect(200).json["messages"][0]
    assert "tenant" in refuse(broker, "rejected_ack", operations=[ack_op(message)])["error"]
    commit(broker, headers=mine, operations=[ack_op(message)], kv=[put(queue)])
    assert kv_read(broker, queue) is None
    element = broker.post("/api/v1/kv", [get(queue)], headers=mine).expect(200).json["results"][0]
    assert element["value"] == 1


# ---- the shape of the body ----

def test_kv_and_timers_inside_operations(broker, queue):
    # 86
    for op in ({"type": "kv", "op": "put"}, {"type": "timer"}, {"type": "timers"}, {"type": "steal"}, {}, {"queue": queue, "payload": 1}):
        refuse(broker, "bad_request", 400, operations=[push_op(item(queue, "x")), op])
    for rider in ("kv", "timers", "positions", "operations", "requiredLeases"):
        refuse(broker, "bad_request", 400, **{"operations": [push_op(item(queue, "x"))], rider: {}})
    assert broker.queue_detail(queue) is None


def test_empty_body(broker):
    # 87
    refuse(broker, "bad_request")
    refuse(broker, "bad_request", operations=None, kv=None, timers=None, positions=None)
    refuse(broker, "bad_request", operations=[], kv=[], timers=[], positions=[])
    refuse(broker, "bad_request", requiredLeases=["01a9c0de-1111-7abc-8def-00000000000b"])
    for body in (b"", b"[]", b"{", b'"x"', b'{"operations":[]} {}'):
        answer = broker.post("/api/v1/transaction", body).expect(400).json
        assert (answer["success"], answer["reason"], answer["results"]) == (False, "bad_request", [])


def test_push_without_queue_or_payload(broker, queue):
    refuse(broker, "bad_request", operations=[{"type": "push"}])
    refuse(broker, "bad_request", operations=[{"type": "push", "queue": queue}])
    refuse(broker, "bad_request", operations=[{"type": "push", "payload": 1}])
    refuse(broker, "bad_request", 400, operations=[push_op(item(queue, "x"), {"queue": queue})])
    refuse(broker, "bad_request", 400, operations=[push_op({"payload": 1})])
    assert broker.queue_detail(queue) is None


def test_kv_limits(broker, queue):
    # 88
    operations = [push_op(item(queue, "x"))]
    many = [get("k%d" % i) for i in range(65)]
    refuse(broker, "kv_too_many_ops", 400, operations=operations, kv=many)
    refuse(broker, "kv_too_many_keys", 400, operations=operations, kv=[{"op": "getMany", "ns": "test", "keys": ["k%d" % i for i in range(257)]}])
    refuse(broker, "kv_get_prefix_not_allowed_in_transaction", 400, operations=operations, kv=[{"op": "getPrefix", "ns": "test", "prefix": "a"}])
    refuse(broker, "kv_duplicate_key_in_call", 400, operations=operations, kv=[put(queue), incr(queue)])
    refuse(broker, "kv_value_too_large", 413, operations=operations, kv=[put(queue, "x" * 65535)])
    refuse(broker, "kv_key_too_large", 413, operations=operations, kv=[put("k" * 513)])
    assert refuse(broker, "kv_unknown_op", 400, operations=operations, kv=[{"op": "steal", "ns": "test", "key": "k"}])["error"].startswith("QKV")
    assert broker.queue_detail(queue) is None and kv_read(broker, queue) is None
    assert len(commit(broker, kv=many[:64])["results"]) == 64


def test_timer_refusals(broker, queue):
    for bad in (timer(queue, "t", None), timer(queue, "", "n"), timer("", "t", "n"), dict(timer(queue, "t", "n"), payload="???"),
                dict(timer(queue, "t", "n"), payload="bm90IGpzb24="), dict(timer(queue, "t", "n"), delayMs="5"),
                dict(timer(queue, "t", "n"), deliverAt="2031-01-01T00:00:00Z"), {"op": "steal", "queue": queue, "timerKey": "t"}):
        answer = refuse(broker, "bad_request", 400, operations=[push_op(item(queue, "x"))], timers=[bad])
        assert answer["error"].startswith("QTIMER"), answer
    for owned in ("producerSub", "_messageId"):
        refuse(broker, "timers_server_owned_field", 400, timers=[dict(timer(queue, "t", "n"), **{owned: "x"})])
    refuse(broker, "bad_request", 400, timers=[timer(queue, "t", "n"), cancel(queue, "t")])
    assert broker.queue_detail(queue) is None and not timer_is_pending(broker, queue, "t")


def test_order_of_checks_of_the_request(broker, queue):
    bad = {"timers": [{"op": "steal"}], "kv": [{"op": "steal"}], "positions": [{}], "operations": [{"type": "steal"}]}
    assert refuse(broker, "bad_request", 400, **bad)["error"].startswith("QTIMER")
    del bad["timers"]
    refuse(broker, "kv_unknown_op", 400, **bad)
    del bad["kv"]
    assert "positions[0]" in refuse(broker, "bad_request", 200, **bad)["error"]
    del bad["positions"]
    assert "operations[0]" in refuse(broker, "bad_request", 400, **bad)["error"]


def test_long_ids_and_names_have_the_engine_envelope(broker, queue):
    for operations in ([push_op(item(queue, "x" * 65536))], [dict(item(queue, "x" * 65536), type="push")]):
        answer = transact(broker, operations=operations).expect(400).json
        assert answer["code"] == "bad_request" and "reason" not in answer
    answer = transact(broker, operations=[push_op(item("q" * 411, "x"))]).expect(413).json
    assert answer["code"] == "name_too_long" and "reason" not in answer
    refuse(broker, "name_too_long", operations=[{"type": "ack", "partitionId": "1", "transactionId": "x", "consumerGroup": "g" * 412}])
    commit(broker, operations=[push_op(item(queue, "x" * 65535))])


def test_unknown_members_are_ignored(broker, queue):
    answer = transact(broker, operations=[dict(push_op(dict(item(queue, "x"), producerSub="me", more=[])), other={"a": 1})],
                      more={"kv": 1}).expect(200).json
    assert answer["success"] is True
    assert broker.take(queue)["messages"][0]["producerSub"] is None


# ---- positions ----

def test_position_moves_the_group_and_releases_its_lease(broker, queue):
    # 99
    m = leased(broker, queue, "abcde")
    answer = commit(broker, positions=[{"queue": queue, "partition": "p", "consumerGroup": "g", "offset": 3, "metadata": "m" * 4096}])
    assert answer["results"] == [{"index": 0, "opIndex": 0, "type": "position", "success": True}]
    after = broker.take(queue, group="g")
    assert ids(after) == ["d", "e"] and after["messages"][0]["deliveryAttempt"] == 1
    refuse(broker, "rejected_ack", operations=[ack_op(m["a"])])
    commit(broker, positions=[{"queue": queue, "partition": "p", "consumerGroup": "g", "offset": 1}])
    assert ids(broker.take(queue, group="g")) == ["b", "c", "d", "e"]
    # Not clamped to the log: the group waits there.
    commit(broker, positions=[{"queue": queue, "partition": "p", "consumerGroup": "g", "offset": 7}])
    broker.push_ids(queue, list("fgh"), "p")
    assert ids(broker.take(queue, group="g")) == ["h"]


def test_forgotten_position_begins_as_a_new_group(broker, queue):
    leased(broker, queue, "ab")
    commit(broker, positions=[{"queue": queue, "partition": "p", "consumerGroup": "g", "offset": None}])
    assert ids(broker.take(queue, group="g")) == ["a", "b"]


def test_position_of_a_new_group_and_a_new_lane(broker, queue):
    broker.push_ids(queue, ["a", "b", "c"], "p")
    commit(broker, positions=[{"queue": queue, "partition": "p", "consumerGroup": "fresh", "offset": 2},
                              {"queue": queue, "consumerGroup": "fresh", "offset": 1}])
    assert ids(broker.take(queue, group="fresh")) == ["c"]
    broker.push_ids(queue, ["x", "y"], "Default")
    assert ids(broker.take(queue, "Default", group="fresh")) == ["y"]


def test_position_on_a_missing_queue(broker, queue):
    # 99
    answer = refuse(broker, "queue_not_found", operations=[push_op(item(queue + "-out", "x"))], kv=[put(queue)],
                    positions=[{"queue": queue, "consumerGroup": "g", "offset": 0}])
    assert queue in answer["error"]
    assert broker.queue_detail(queue + "-out") is None and kv_read(broker, queue) is None


def test_position_on_the_queue_of_its_own_push(broker, queue):
    # 137
    refuse(broker, "queue_not_found", operations=[push_op(item(queue, "x"))], positions=[{"queue": queue, "consumerGroup": "g", "offset": 0}])
    assert broker.queue_detail(queue) is None
    # It is found before a duplicate is, and after a bad ack.
    broker.push_ids(queue + "-out", ["done"], "p")
    missing = [{"queue": queue, "consumerGroup": "g", "offset": 0}]
    refuse(broker, "queue_not_found", operations=[push_op(item(queue + "-out", "done"))], positions=missing)
    ack = {"type": "ack", "transactionId": "x", "partitionId": "999999", "consumerGroup": "g"}
    refuse(broker, "rejected_ack", operations=[ack], positions=missing)


def test_invalid_positions(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    good = {"queue": queue, "partition": "p", "consumerGroup": "g", "offset": 1}
    for change in ({"queue": None}, {"queue": ""}, {"consumerGroup": None}, {"consumerGroup": ""}, {"offset": -1}, {"offset": 1.5},
                   {"offset": "1"}, {"offset": 2 ** 63}, {"metadata": 7}):
        assert "positions[1]" in refuse(broker, "bad_request", positions=[good, dict(good, **change)])["error"]
    without = {k: v for k, v in good.items() if k != "offset"}
    refuse(broker, "bad_request", positions=[without])
    refuse(broker, "too_large", positions=[dict(good, metadata="m" * 4097)])
    refuse(broker, "bad_request", 400, positions=[dict(good, partition="p%d" % i) for i in range(16385)])
    assert ids(broker.take(queue, group="g", subscriptionMode="all")) == ["a"]


# ---- together ----

def test_transactions_on_one_lane_are_ordered(broker, queue):
    # 138: no cursor is ever reserved, so nobody is sent away; the calls take their turns.
    workers, rounds = 8, 25
    m = leased(broker, queue, "abc")
    problems = []

    def worker(number):
        for i in range(rounds):
            answer = transact(broker, operations=[ack_op(m["a"]), push_op(item(queue + "-out", "w%d-%d" % (number, i)))],
                              kv=[incr(queue)]).expect(200).json
            if answer["success"] is not True:
                problems.append(answer)
            result = broker.ack(m["a"])
            if not (result["success"] and result["noop"]):
                problems.append(result)

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(workers)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert problems == []
    assert kv_read(broker, queue) == workers * rounds
    out = broker.take(queue + "-out")["messages"]
    assert len(out) == 200 and len({o["transactionId"] for o in out}) == workers * rounds
    assert still_leased(broker, queue, count=2)


def test_one_of_many_identical_transactions_commits(broker, queue):
    m = leased(broker, queue, "a")
    answers = []

    def worker():
        answers.append(transact(broker, operations=[ack_op(m["a"])], kv=[incr(queue)]).expect(200).json)

    threads = [threading.Thread(target=worker) for _ in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert sorted(a.get("reason", "") for a in answers) == [""] + ["rejected_ack"] * 15
    assert kv_read(broker, queue) == 1


def test_released_lane_goes_on_to_a_waiting_consumer(broker, queue):
    m = leased(broker, queue, "a")
    broker.push_ids(queue, ["b"], "p")
    got = []
    waiter = threading.Thread(target=lambda: got.append(broker.pop(queue, group="g", wait=True, timeout=10000)))
    waiter.start()
    time.sleep(0.2)
    begin = time.monotonic()
    commit(broker, operations=[ack_op(m["a"])])
    waiter.join()
    assert ids_of(got[0]) == ["b"] and time.monotonic() - begin < 2


def test_pushed_message_wakes_a_waiting_consumer(broker, queue):
    broker.push_ids(queue, ["first"], "p")
    broker.take(queue, group="g", subscriptionMode="all", autoAck=True)
    got = []
    waiter = threading.Thread(target=lambda: got.append(broker.pop(queue, group="g", wait=True, timeout=10000)))
    waiter.start()
    time.sleep(0.2)
    commit(broker, operations=[push_op(item(queue, "second"))])
    waiter.join()
    assert ids_of(got[0]) == ["second"]


def test_answered_transaction_survives_a_kill(own_broker, queue):
    # 100
    broker = own_broker()
    m = leased(broker, queue, "abc")
    commit(broker, operations=[ack_op(m["a"]), push_op(item(queue + "-out", "r-1", {"n": 1}))], kv=[put(queue, "kept"), incr(queue + "-n")],
           timers=[timer(queue + "-timers", "t", "n-1")], positions=[{"queue": queue, "partition": "p", "consumerGroup": "h", "offset": 2}])
    refuse(broker, "duplicate", operations=[ack_op(m["b"]), push_op(item(queue + "-out", "r-1"))], kv=[incr(queue + "-n")])
    for how in ("kill", "stop"):
        broker.restart(how)
        assert broker.depth(queue, "g")["pending"] == 2
        assert kv_read(broker, queue) == "kept" and kv_read(broker, queue + "-n") == 1
        assert timer_is_pending(broker, queue + "-timers", "t")
        assert broker.depth(queue, "h")["pending"] == 1
    assert ids(broker.take(queue + "-out")) == ["r-1"]
    refuse(broker, "duplicate", operations=[push_op(item(queue + "-out", "r-1"))])
    commit(broker, operations=[ack_op(m["c"])])


@pytest.mark.parametrize("crash_after", [0.0, 0.002, 0.01])
def test_kill_leaves_all_of_a_transaction_or_nothing(own_broker, queue, crash_after):
    # 100: each transaction writes its number to a lane, a key and a counter; the kill comes in the middle of them.
    broker = own_broker()
    answered = []

    def writer():
        n = 0
        try:
            while True:
                n += 1
                commit(broker, operations=[push_op(item(queue, "m%d" % n, n))], kv=[put(queue + "-last", n), incr(queue + "-count")],
                       timers=[timer(queue + "-timers", "t%d" % n, "n%d" % n)])
                answered.append(n)
        except Exception:  # the broker was killed
            return

    thread = threading.Thread(target=writer)
    thread.start()
    wait_until(lambda: len(answered) >= 30, 10, "some transactions")
    time.sleep(crash_after)
    broker.kill()
    thread.join()
    broker.start()
    stored = [m["data"] for m in broker.drain(queue)]
    assert stored == list(range(1, len(stored) + 1))
    assert len(stored) in (answered[-1], answered[-1] + 1)
    assert kv_read(broker, queue + "-last") == kv_read(broker, queue + "-count") == len(stored)
    pending = broker.get("/api/v1/timers/%s-timers?limit=1000" % queue).expect(200).json
    assert len(pending["rows"]) == min(len(stored), 1000)


# ---- limits of the whole ----

def test_full_disk_refuses_what_grows(own_broker, queue):
    broker = own_broker()
    m = leased(broker, queue, "abc")
    broker.restart(env={"QUEEN_RAFT_DISK_HIGH_PCT": "1", "QUEEN_RAFT_DISK_LOW_PCT": "1"})

    def full():
        return transact(broker, kv=[put(queue)]).status == 507

    wait_until(full, 10, "the disk is seen to be full")
    for body in ({"operations": [push_op(item(queue, "x"))]}, {"kv": [incr(queue)]}, {"timers": [timer(queue, "t", "n")]},
                 {"operations": [ack_op(m["a"]), push_op(item(queue, "x"))]}):
        answer = transact(broker, **body).expect(507).json
        assert answer["code"] == "storage_full" and "reason" not in answer
    commit(broker, operations=[ack_op(m["a"])], kv=[{"op": "delete", "ns": "test", "key": queue}], timers=[cancel(queue, "t")])
    assert broker.depth(queue, "g")["pending"] == 2


def test_large_transaction_commits(broker, queue):
    payload = "x" * (6 << 20)
    answer = commit(broker, operations=[push_op(item(queue, "a", payload), item(queue, "b", payload)), dict(item(queue, "c", payload), type="push")],
                    kv=[put(queue)])
    assert len(answer["results"]) == 4
    got = [m["data"] == payload for m in broker.drain(queue, batch=1)]
    assert got == [True, True, True]
    assert kv_read(broker, queue) == 1


def test_transactions_are_counted(own_broker, queue):
    broker = own_broker()
    m = leased(broker, queue, "ab")
    before = broker.get("/metrics/prometheus").expect(200).body.decode()
    commit(broker, operations=[ack_op(m["a"]), ack_op(m["b"]), push_op(item(queue, "x"))])
    after = broker.get("/metrics/prometheus").expect(200).body.decode()
    line = [x for x in after.splitlines() if 'route="transaction"' in x and 'status="200"' in x]
    assert line and line[0].endswith(" 1"), line
    assert not any('route="transaction"' in x and 'status="200"' in x and not x.endswith(" 0") for x in before.splitlines())


# ---- the example of the documentation ----

def test_step_of_a_worker_from_end_to_end(broker):
    orders, shipping, reminders = unique("orders"), unique("shipping"), unique("reminders")
    broker.push([{"queue": orders, "partition": "customer-7", "transactionId": "order-1", "payload": {"item": "tea", "n": 2}}]).expect(201)
    order = broker.take(orders, group="workers", subscriptionMode="all")["messages"][0]
    step = {"operations": [{"type": "ack", "transactionId": order["transactionId"], "partitionId": order["partitionId"],
                            "consumerGroup": "workers", "leaseId": order["leaseId"]},
                           {"type": "push", "items": [{"queue": shipping, "partition": "customer-7", "transactionId": "ship-1",
                                                       "payload": {"parcel": 1}}]}],
            "kv": [{"op": "putIfAbsent", "ns": "done", "key": orders + "/order-1", "value": True, "ttlSeconds": 86400, "required": True},
                   {"op": "incr", "ns": "stock", "key": orders + "/tea", "delta": -2, "forever": True}],
            "timers": [timer(reminders, "order-1", "remind-1", 300, {"ask": "arrived?"})]}
    answer = commit(broker, **step)
    assert [r["type"] for r in answer["results"]] == ["ack", "push", "kv", "kv", "timer"]
    assert refuse(broker, "rejected_ack", **step)["results"] == []
    assert kv_read(broker, orders + "/tea", "stock") == -2
    assert ids(broker.take(shipping)) == ["ship-1"]
    reminder = broker.take(reminders, wait=True, timeout=5000)["messages"][0]
    assert (reminder["transactionId"], reminder["data"]) == ("remind-1", {"ask": "arrived?"})
