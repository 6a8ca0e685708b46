"""Ack: what is done, what stays leased, what is refused."""

import threading

import pytest

from queen import LEASE_ERROR, QUEUE_MODE, STALE_ERROR, ids, wait_until


def leased(broker, queue, names="abc", lease_seconds=None, **options):
    """Configures, pushes one message a letter to lane p, and pops them all for group g. Returns the messages by name."""
    if options:
        broker.configure(queue, **options)
    broker.push_ids(queue, list(names), "p")
    answer = broker.take(queue, group="g", subscriptionMode="all", leaseSeconds=lease_seconds)
    assert ids(answer) == list(names)
    return {m["transactionId"]: m for m in answer["messages"]}


def next_pop(broker, queue, **params):
    """The ids of the next pop of group g, [] when there is nothing."""
    answer = broker.pop(queue, group="g", **params)
    return ids(answer.json) if answer.status == 200 else []


def test_ack_of_the_last_message_settles_the_whole_batch(broker, queue):
    # 42
    m = leased(broker, queue)
    result = broker.ack(m["c"])
    assert result == {"index": 0, "transactionId": "c", "success": True, "error": None, "leaseReleased": True, "dlq": False, "noop": False}
    assert next_pop(broker, queue) == []
    assert broker.depth(queue, "g")["pending"] == 0


def test_ack_in_the_middle_keeps_the_lease_and_redelivers_the_rest(broker, queue):
    # 43
    m = leased(broker, queue, lease_seconds=1)
    result = broker.ack(m["b"])
    assert (result["success"], result["leaseReleased"]) == (True, False)
    assert next_pop(broker, queue) == []
    assert broker.depth(queue, "g")["pending"] == 1
    answer = broker.take(queue, group="g", wait=True, timeout=5000)
    assert ids(answer) == ["c"]
    assert answer["messages"][0]["deliveryAttempt"] == 2


def test_batch_ack_of_all_releases_the_lease(broker, queue):
    # 44
    m = leased(broker, queue)
    results = broker.ack_batch([m["a"], m["b"], m["c"]])
    assert [(r["success"], r["error"], r["leaseReleased"], r["dlq"], r["noop"]) for r in results] == [(True, None, True, False, False)] * 3
    assert next_pop(broker, queue) == []


@pytest.mark.parametrize("order", ["cba", "bca", "acb"])
def test_order_inside_a_batch_ack_does_not_matter(broker, queue, order):
    m = leased(broker, queue)
    results = broker.ack_batch([m[name] for name in order])
    assert [r["transactionId"] for r in results] == list(order)
    assert all(r["success"] and r["leaseReleased"] for r in results)
    assert next_pop(broker, queue) == []


def test_acks_one_by_one_release_with_the_last(broker, queue):
    m = leased(broker, queue)
    assert [broker.ack(m[name])["leaseReleased"] for name in "abc"] == [False, False, True]
    assert next_pop(broker, queue) == []


def test_repeated_ack_answers_success_after_the_lease_was_released(broker, queue):
    # 45
    m = leased(broker, queue)
    assert broker.ack(m["c"])["leaseReleased"] is True
    for _ in range(3):
        results = broker.ack_batch([m["a"], m["b"], m["c"]])
        assert [(r["success"], r["error"], r["leaseReleased"], r["noop"]) for r in results] == [(True, None, True, False)] * 3
    broker.push_ids(queue, ["d"], "p")
    other = broker.take(queue, group="g")
    assert ids(other) == ["d"]
    results = broker.ack_batch([m["a"], m["b"], m["c"]])
    assert [(r["success"], r["leaseReleased"], r["noop"]) for r in results] == [(True, True, False)] * 3
    assert next_pop(broker, queue) == []
    assert broker.depth(queue, "g")["processing"] == 1
    assert broker.ack(other["messages"][0])["leaseReleased"] is True


def test_repeated_ack_answers_success_after_a_kill(own_broker, queue):
    # 45
    broker = own_broker()
    m = leased(broker, queue)
    assert broker.ack(m["c"])["leaseReleased"] is True
    broker.restart("kill")
    results = broker.ack_batch([m["a"], m["b"], m["c"]])
    assert [(r["success"], r["error"], r["leaseReleased"], r["noop"]) for r in results] == [(True, None, True, False)] * 3
    assert next_pop(broker, queue) == []


def test_repeat_rule_covers_only_the_released_range(broker, queue):
    m = leased(broker, queue)
    assert broker.ack(m["c"])["leaseReleased"] is True
    broker.push_ids(queue, ["d"], "p")
    results = broker.ack_batch([m["a"], dict(m["c"], transactionId="d"), dict(m["c"], transactionId="never")])
    assert [(r["success"], r["error"]) for r in results] == [(True, None), (False, LEASE_ERROR), (False, LEASE_ERROR)]
    assert next_pop(broker, queue) == ["d"]


def test_repeat_of_a_done_message_under_a_live_lease_is_a_noop(broker, queue):
    # 46
    m = leased(broker, queue)
    assert broker.ack(m["a"])["noop"] is False
    again = broker.ack(m["a"])
    assert (again["success"], again["noop"], again["leaseReleased"], again["error"]) == (True, True, False, None)
    for status in ("failed", "retry", "dlq"):
        refused = broker.ack(m["a"], status)
        assert (refused["success"], refused["error"], refused["dlq"], refused["leaseReleased"]) == (False, STALE_ERROR, False, False)
    assert broker.depth(queue, "g")["processing"] == 2
    assert broker.ack(m["c"])["leaseReleased"] is True


def test_ack_after_expiry_is_refused_and_the_message_comes_back(broker, queue):
    # 47
    m = leased(broker, queue, lease_seconds=1)
    wait_until(lambda: broker.depth(queue, "g")["processing"] == 0, 4, "the lease ran out")
    result = broker.ack(m["a"])
    assert (result["success"], result["error"], result["leaseReleased"], result["noop"]) == (False, LEASE_ERROR, False, False)
    results = broker.ack_batch([m["a"], m["b"], m["c"]])
    assert [(r["success"], r["error"]) for r in results] == [(False, LEASE_ERROR)] * 3
    assert broker.depth(queue, "g")["pending"] == 3
    answer = broker.take(queue, group="g")
    assert ids(answer) == ["a", "b", "c"]
    assert answer["messages"][0]["deliveryAttempt"] == 2


def test_late_ack_does_not_touch_the_next_worker(broker, queue):
    # 48
    m = leased(broker, queue, lease_seconds=1)
    other = broker.take(queue, group="g", wait=True, timeout=5000, leaseSeconds=60)
    assert ids(other) == ["a", "b", "c"]
    for status in ("completed", "failed", "retry", "dlq"):
        result = broker.ack(m["a"], status)
        assert (result["success"], result["error"], result["leaseReleased"], result["dlq"]) == (False, LEASE_ERROR, False, False)
    depth = broker.depth(queue, "g")
    assert (depth["pending"], depth["processing"]) == (3, 3)
    results = broker.ack_batch(other["messages"])
    assert [(r["success"], r["leaseReleased"], r["noop"]) for r in results] == [(True, True, False)] * 3


def test_ack_without_lease_id_acts_on_whatever_lease_is_there(broker, queue):
    # 49
    m = leased(broker, queue, "ab")
    first = broker.ack(m["a"], lease=None)
    assert (first["success"], first["leaseReleased"], first["noop"]) == (True, False, False)
    assert broker.depth(queue, "g")["pending"] == 1
    last = broker.ack(m["b"], lease="")
    assert (last["success"], last["leaseReleased"], last["noop"]) == (True, True, False)
    broker.push_ids(queue, ["c"], "p")
    assert next_pop(broker, queue) == ["c"]


def test_ack_without_lease_moves_the_cursor_when_nothing_is_leased(broker, queue):
    # 50
    m = leased(broker, queue, "a")
    assert broker.ack(m["a"])["leaseReleased"] is True
    broker.push_ids(queue, ["b", "c", "d"], "p")
    result = broker.ack(dict(m["a"], transactionId="c"), lease=None)
    assert (result["success"], result["leaseReleased"], result["noop"]) == (True, False, False)
    assert broker.depth(queue, "g")["pending"] == 1
    assert next_pop(broker, queue) == ["d"]


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
def test_signal_without_any_lease_changes_nothing(broker, queue, status):
    # 50
    broker.configure(queue, retryLimit=0)
    m = leased(broker, queue, "a")
    assert broker.ack(m["a"])["leaseReleased"] is True
    broker.push_ids(queue, ["b"], "p")
    result = broker.ack(dict(m["a"], transactionId="b"), status, lease=None)
    assert (result["success"], result["dlq"], result["leaseReleased"]) == (True, False, False)
    assert broker.dlq(queue)["total"] == 0
    answer = broker.take(queue, group="g")
    assert (ids(answer), answer["messages"][0]["deliveryAttempt"]) == (["b"], 1)


def test_lease_less_repeat_is_a_noop_and_unknown_id_is_refused(broker, queue):
    # 51
    m = leased(broker, queue, "a")
    assert broker.ack(m["a"])["leaseReleased"] is True
    again = broker.ack(m["a"], lease=None)
    assert (again["success"], again["noop"], again["leaseReleased"], again["error"]) == (True, True, False, None)
    never = broker.ack(dict(m["a"], transactionId="never"), lease=None)
    assert (never["success"], never["error"], never["noop"]) == (False, STALE_ERROR, False)
    signal = broker.ack(m["a"], "failed", lease=None)
    assert (signal["success"], signal["error"]) == (False, STALE_ERROR)


def test_ack_without_the_group_of_the_pop_is_refused(broker, queue):
    # 52
    m = leased(broker, queue)
    result = broker.ack(m["a"], group=None)
    assert (result["success"], result["error"], result["leaseReleased"]) == (False, LEASE_ERROR, False)
    other = broker.ack(m["a"], group="other")
    assert (other["success"], other["error"]) == (False, LEASE_ERROR)
    assert broker.depth(queue, "g")["processing"] == 3


def test_group_of_an_item_is_ignored(broker, queue):
    m = leased(broker, queue)
    item = {"transactionId": "c", "partitionId": m["c"]["partitionId"], "leaseId": m["c"]["leaseId"], "consumerGroup": "other"}
    (result,) = broker.ack_body({"consumerGroup": "g", "acknowledgments": [item]}, "/api/v1/ack/batch").expect(200).json
    assert (result["success"], result["leaseReleased"]) == (True, True)


def test_partition_ids_that_are_none(broker, queue):
    # 53
    m = leased(broker, queue)
    text = broker.ack(dict(m["a"], partitionId="abc"))
    assert (text["success"], text["error"]) == (False, "partitionId is not a partition id")
    empty = broker.ack(dict(m["a"], partitionId=""))
    assert (empty["success"], empty["error"]) == (False, "partitionId is not a partition id")
    unknown = broker.ack(dict(m["a"], partitionId="999999999"))
    assert (unknown["success"], unknown["error"]) == (False, "no partition 999999999")
    number = broker.ack_body({"transactionId": "a", "partitionId": 17, "consumerGroup": "g"})
    assert number.status == 400
    assert number.json["code"] == "bad_body"
    assert broker.depth(queue, "g")["processing"] == 3


def test_one_bad_item_does_not_spoil_the_others(broker, queue):
    m = leased(broker, queue)
    results = broker.ack_batch([dict(m["a"], partitionId="abc"), m["a"], dict(m["a"], transactionId="never"), m["c"], dict(m["b"], leaseId="x")])
    assert [r["success"] for r in results] == [False, True, False, True, False]
    assert [r["error"] for r in results] == ["partitionId is not a partition id", None, STALE_ERROR, None, LEASE_ERROR]
    assert results[3]["leaseReleased"] is True
    assert next_pop(broker, queue) == []


@pytest.mark.parametrize("status", ["done", "COMPLETED", None, "", "success"])
def test_every_other_status_means_completed(broker, queue, status):
    # 54
    m = leased(broker, queue, "a")
    result = broker.ack(m["a"], status)
    assert (result["success"], result["leaseReleased"], result["dlq"]) == (True, True, False)
    assert next_pop(broker, queue) == []


@pytest.mark.parametrize("status,again,dead", [("FAILED", True, False), ("Failed", True, False), ("RETRY", True, False), ("Dlq", False, True)])
def test_signals_are_case_insensitive(broker, queue, status, again, dead):
    # 54
    m = leased(broker, queue, "a")
    result = broker.ack(m["a"], status)
    assert (result["success"], result["leaseReleased"], result["dlq"]) == (True, True, dead)
    assert next_pop(broker, queue) == (["a"] if again else [])
    assert broker.dlq(queue)["total"] == (1 if dead else 0)


def test_ack_of_one_lane_of_a_shared_lease_releases_that_lane_only(broker, queue):
    # 69
    for lane in ("p1", "p2"):
        broker.push_ids(queue, [lane + "-a", lane + "-b"], lane)
    answer = broker.take(queue, group="g", subscriptionMode="all", partitions=2)
    assert ids(answer) == ["p1-a", "p1-b", "p2-a", "p2-b"]
    results = broker.ack_batch(answer["messages"][:2])
    assert [(r["success"], r["leaseReleased"]) for r in results] == [(True, True)] * 2
    broker.push_ids(queue, ["p1-c"], "p1")
    broker.push_ids(queue, ["p2-c"], "p2")
    assert next_pop(broker, queue, partitions=2) == ["p1-c"]
    rows = {row["partition"]: row for row in broker.depth(queue, "g")["partitions"]}
    assert (rows["p2"]["pending"], rows["p2"]["processing"]) == (3, 2)


def test_batch_ack_over_lanes_answers_each_lanes_release(broker, queue):
    for lane in ("p1", "p2"):
        broker.push_ids(queue, [lane + "-a", lane + "-b"], lane)
    answer = broker.take(queue, group="g", subscriptionMode="all", partitions=2)
    m = {x["transactionId"]: x for x in answer["messages"]}
    results = broker.ack_batch([m["p2-a"], m["p1-b"], m["p1-a"]])
    assert [(r["success"], r["leaseReleased"]) for r in results] == [(True, False), (True, True), (True, True)]


def test_one_ack_of_a_repeated_id_settles_all_its_copies(broker, queue):
    # 70
    broker.configure(queue, dedupWindowSeconds=0)
    for _ in range(2):
        broker.push_ids(queue, ["x"], "p")
    answer = broker.take(queue, group="g", subscriptionMode="all")
    assert ids(answer) == ["x", "x"]
    result = broker.ack(answer["messages"][0])
    assert (result["success"], result["leaseReleased"]) == (True, True)
    assert next_pop(broker, queue) == []


def test_single_ack_answers_a_list_of_one(broker, queue):
    # 71
    m = leased(broker, queue, "a")
    answer = broker.ack_body({"transactionId": "a", "partitionId": m["a"]["partitionId"], "leaseId": m["a"]["leaseId"],
                              "consumerGroup": "g", "status": "completed", "error": None}).expect(200).json
    assert answer == [{"index": 0, "transactionId": "a", "success": True, "error": None, "leaseReleased": True, "dlq": False, "noop": False}]


def test_both_routes_take_both_bodies(broker, queue):
    m = leased(broker, queue)
    item = {"transactionId": "a", "partitionId": m["a"]["partitionId"], "leaseId": m["a"]["leaseId"]}
    single = broker.ack_body(dict(item, consumerGroup="g"), "/api/v1/ack/batch").expect(200).json
    assert [(r["transactionId"], r["success"], r["leaseReleased"]) for r in single] == [("a", True, False)]
    rest = [dict(item, transactionId=name) for name in "bc"]
    batch = broker.ack_body({"consumerGroup": "g", "acknowledgments": rest}, "/api/v1/ack").expect(200).json
    assert [(r["transactionId"], r["success"], r["leaseReleased"]) for r in batch] == [("b", True, True), ("c", True, True)]


def test_group_that_never_popped_the_lane_cannot_ack(broker, queue):
    # 72
    m = leased(broker, queue)
    result = broker.ack(m["a"], lease=None, group="g2")
    assert (result["success"], result["error"]) == (False, STALE_ERROR)
    assert ids(broker.take(queue, group="g2", subscriptionMode="all")) == ["a", "b", "c"]


def test_queue_mode_acks_need_no_group(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    m = broker.take(queue)["messages"]
    assert broker.ack(m[0], group=None)["success"] is True
    body = {"transactionId": "b", "partitionId": m[1]["partitionId"], "leaseId": m[1]["leaseId"], "consumerGroup": QUEUE_MODE}
    assert broker.ack_body(body).expect(200).json[0]["leaseReleased"] is True


@pytest.mark.parametrize("body", [{}, {"acknowledgments": []}], ids=str)
def test_empty_ack_answers_one_refused_element(broker, body):
    (result,) = broker.ack_body(body).expect(200).json
    assert result["index"] == 0
    assert result["success"] is False
    assert isinstance(result["error"], str) and result["error"]


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b'{"acknowledgments":{}}', b'{"acknowledgments":[1]}', b'{"transactionId":5,"partitionId":"1"}',
    b'{"transactionId":"a","partitionId":"1","consumerGroup":7}', b'{"transactionId":"a","partitionId":"1","leaseId":7}',
    b'{"acknowledgments":[{"transactionId":"a","partitionId":1}]}', b'{"transactionId":"a","partitionId":"1","consumerGroup":""}',
    b'{"consumerGroup":"","acknowledgments":[{"transactionId":"a","partitionId":"1"}]}',
], ids=repr)
def test_body_without_the_shape_of_an_ack_is_refused(broker, body):
    for route in ("/api/v1/ack", "/api/v1/ack/batch"):
        answer = broker.ack_body(body, route)
        assert answer.status == 400
        assert answer.json["code"] in ("bad_body", "bad_request")


def test_too_long_group_is_refused(broker, queue):
    m = leased(broker, queue, "a")
    answer = broker.ack_body({"transactionId": "a", "partitionId": m["a"]["partitionId"], "consumerGroup": "g" * 600})
    assert answer.status == 413
    assert answer.json["code"] == "name_too_long"


def test_concurrent_identical_acks_all_succeed(broker, queue):
    m = leased(broker, queue)
    results = []
    threads = [threading.Thread(target=lambda: results.append(broker.ack(m["c"]))) for _ in range(12)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [(r["success"], r["leaseReleased"], r["error"]) for r in results] == [(True, True, None)] * 12
    assert next_pop(broker, queue) == []
