"""Timers: scheduled, listed, cancelled, fired; and what is refused."""

import base64
import json
import re
import subprocess
import threading
import time

import pytest

from queen import ISO_US, UUID7, ids, raw_data, unique, wait_until
from timers import call, cancel, count, micros, op_cancel, op_schedule, packed, path, peek, rows, schedule, transaction

HINT = "x-queen-timers-hint"


def waited(broker, queue, **params):
    """One message by long poll, acknowledged."""
    answer = broker.take(queue, wait=True, timeout=10000, **params)
    message = answer["messages"][0]
    assert broker.ack(message)["success"]
    return message


def refused(broker, body, reason, status=400, error="timers_bad_request"):
    answer = broker.post("/api/v1/timers", body).expect(status)
    assert (answer.json["error"], answer.json["reason"]) == (error, reason), answer
    assert set(answer.json) <= {"error", "reason", "detail"}
    if "detail" in answer.json:
        assert answer.json["detail"].startswith("QTIMER ")
    return answer


# ---- firing ----


def test_a_timer_fires_when_it_is_due_with_the_promised_id(broker, queue):
    # 118
    begin = time.monotonic()
    result = schedule(broker, queue, "p-9", 500, "nudge-9", {"a": 1})
    assert set(result) == {"ok", "status", "queue", "timerKey", "txn", "messageId", "deliverAt"}
    assert (result["ok"], result["status"], result["txn"]) == (True, "scheduled", "nudge-9")
    assert UUID7.match(result["messageId"]) and ISO_US.match(result["deliverAt"])
    assert abs(micros(result["deliverAt"]) / 1e6 - time.time() - 0.5) < 0.4
    broker.nothing(queue)
    message = waited(broker, queue)
    assert time.monotonic() - begin >= 0.5
    assert time.monotonic() - begin < 5
    assert (message["id"], message["transactionId"], message["data"]) == (result["messageId"], "nudge-9", {"a": 1})
    assert (message["partition"], message["offset"], message["deliveryAttempt"]) == ("Default", 0, 1)
    assert (message["traceId"], message["producerSub"]) == (None, None)
    assert message["createdAt"] >= result["deliverAt"][:23] + "Z"
    assert peek(broker, queue, "p-9") is None
    assert rows(broker, queue) == {"rows": [], "truncated": False, "nextAfter": None}


def test_scheduling_again_replaces_everything_but_the_creation_time(broker, queue):
    # 119
    first = schedule(broker, queue, "k", 400, "one", {"n": 1}, partition="a")
    before = peek(broker, queue, "k")
    second = schedule(broker, queue, "k", 700, "two", {"n": 2}, partition="b")
    assert (second["status"], second["txn"]) == ("rescheduled", "two")
    assert second["messageId"] != first["messageId"] and second["deliverAt"] > first["deliverAt"]
    after = peek(broker, queue, "k")
    assert (after["txn"], after["partition"], after["messageId"], after["deliverAt"]) == ("two", "b", second["messageId"], second["deliverAt"])
    assert (after["createdAt"], after["payload"]) == (before["createdAt"], packed({"n": 2}))
    assert after["updatedAt"] > before["updatedAt"] == before["createdAt"]
    third = call(broker, dict(op_schedule(queue, "k", 300, "three", {"n": 3}, partition="c"), op="reschedule"))[0]
    assert third["status"] == "rescheduled"
    message = waited(broker, queue)
    assert (message["id"], message["data"], message["partition"]) == (third["messageId"], {"n": 3}, "c")
    time.sleep(0.7)
    assert ids({"messages": broker.drain(queue)}) == ["three"]


def test_reschedule_of_nothing_schedules(broker, queue):
    assert call(broker, dict(op_schedule(queue, "k", 60000), op="reschedule"))[0]["status"] == "scheduled"


def test_cancel_says_what_it_took_and_nothing_fires(broker, queue):
    # 120
    schedule(broker, queue, "a", 300, "take-a")
    schedule(broker, queue, "b", 300, "take-b")
    assert call(broker, op_cancel(queue, "a")) == [{"ok": True, "status": "cancelled", "queue": queue, "timerKey": "a", "txn": "take-a"}]
    assert cancel(broker, queue, "b", "mine") == {"ok": True, "status": "cancelled", "queue": queue, "timerKey": "b", "txn": "take-b"}
    assert call(broker, op_cancel(queue, "a", txn="x"), op_cancel(queue, "b")) == [
        {"ok": False, "status": "absent", "queue": queue, "timerKey": "a", "txn": "x"},
        {"ok": False, "status": "absent", "queue": queue, "timerKey": "b", "txn": None}]
    assert cancel(broker, queue, "b", "x") == {"ok": False, "status": "absent", "queue": queue, "timerKey": "b", "txn": "x"}
    assert cancel(broker, unique("no"), "b")["status"] == "absent"
    time.sleep(0.6)
    assert broker.queue_detail(queue) is None


@pytest.mark.parametrize("delay_ms", [-5, 0, -0.0, 0.001, -1e300, -(2 ** 63)])
def test_what_is_past_fires_at_once(broker, queue, delay_ms):
    # 121
    begin = time.monotonic()
    result = schedule(broker, queue, "k", delay_ms)
    assert result["status"] == "scheduled"
    message = waited(broker, queue)
    assert message["id"] == result["messageId"]
    assert time.monotonic() - begin < 5
    assert cancel(broker, queue, "k")["status"] == "absent"


def test_a_txn_in_the_dedup_window_is_not_appended_again(broker, queue):
    # 122
    broker.push_ids(queue, ["seen"], "p")
    schedule(broker, queue, "k", 200, "seen", partition="p")
    schedule(broker, queue, "l", 250, "new", partition="p")
    assert peek(broker, queue, "k") is not None
    wait_until(lambda: peek(broker, queue, "l") is None, 5, "both fired")
    assert peek(broker, queue, "k") is None
    assert ids({"messages": broker.drain(queue)}) == ["seen", "new"]


def test_a_push_with_the_txn_of_a_fired_timer_is_a_duplicate_of_it(broker, queue):
    result = schedule(broker, queue, "k", 0, "nudge", partition="p")
    message = waited(broker, queue)
    again = broker.push([{"queue": queue, "partition": "p", "transactionId": "nudge", "payload": 1}]).expect(201).json[0]
    assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", result["messageId"], message["offset"])


def test_a_waiting_pop_is_woken(broker, queue):
    """The first timer of an idle broker, and one scheduled before an existing later one, through the route and in a transaction."""
    schedule(broker, queue, "late", 3600000)
    for n, through in enumerate(("route", "transaction", "route", "transaction")):
        got = []
        waiter = threading.Thread(target=lambda: got.append((broker.take(queue, wait=True, timeout=20000, autoAck=True), time.time())))
        waiter.start()
        time.sleep(0.1)
        op = op_schedule(queue, "k%d" % n, 300)
        result = call(broker, op)[0] if through == "route" else transaction(broker, op)["results"][0]
        waiter.join(10)
        answer, at = got[0]
        assert ids(answer) == ["txn-k%d" % n]
        late = at - micros(result["deliverAt"]) / 1e6
        assert -0.001 <= late < 0.4, late
    assert cancel(broker, queue, "late")["ok"]


def test_timers_fire_in_the_order_they_are_due(broker, queue):
    delays = [900, 300, 600, 450, 750, 301, 300]
    call(broker, *[op_schedule(queue, "k%d" % n, delay, partition="p") for n, delay in enumerate(delays)])
    wait_until(lambda: rows(broker, queue)["rows"] == [], 5, "all fired")
    fired = broker.drain(queue)
    assert [m["offset"] for m in fired] == list(range(len(delays)))
    due = [delays[int(m["data"]["key"][1:])] for m in fired]
    assert due == sorted(delays)


def test_many_timers_of_one_moment_all_fire(broker, queue):
    total = 2000
    for start in range(0, total, 250):
        call(broker, *[op_schedule(queue, "k%04d" % n, 1000 - start, partition="p%d" % (n % 7)) for n in range(start, start + 250)])
    wait_until(lambda: count(broker, queue, "k") == 0, 10, "all fired")
    assert sorted(ids({"messages": broker.drain(queue)})) == ["txn-k%04d" % n for n in range(total)]


def test_a_fired_message_is_like_any_other(broker, queue):
    """Redelivery, dead letter and reading by offset carry the promised id."""
    broker.configure(queue, retryLimit=1, leaseTime=30)
    result = schedule(broker, queue, "k", 0, "nudge", {"n": [1]}, partition="p")
    for attempt in (1, 2):
        message = broker.take(queue, wait=True, timeout=5000)["messages"][0]
        assert (message["id"], message["transactionId"], message["deliveryAttempt"]) == (result["messageId"], "nudge", attempt)
        assert broker.ack(message, "failed", "boom")["dlq"] == (attempt == 2)
    letter = broker.dlq(queue)["messages"][0]
    assert (letter["messageId"], letter["transactionId"], letter["data"], letter["errorMessage"]) == (result["messageId"], "nudge", {"n": [1]}, "boom")
    fetched = broker.post("/api/v1/fetch", {"entries": [{"queue": queue, "partition": "p", "offset": 0}]}).expect(200).json
    assert [r["transactionId"] for r in fetched["entries"][0]["records"]] == ["nudge"]


def test_a_group_gets_what_a_timer_brings(broker, queue):
    broker.nothing(queue, group="g", subscriptionMode="new")
    schedule(broker, queue, "k", 100)
    assert ids(broker.take(queue, group="g", wait=True, timeout=5000)) == ["txn-k"]


# ---- reads ----


def test_peek_tells_all_of_a_timer(broker, queue):
    # 125
    result = schedule(broker, queue, "k", 60000, "t", b' {"a" : 1.0} ', partition="p")
    seen = broker.get(path(queue, "k")).expect(200).json
    assert seen == {"found": True, "queue": queue, "timerKey": "k", "partition": "p", "deliverAt": result["deliverAt"], "txn": "t",
                    "messageId": result["messageId"], "payloadZstd": False, "encrypted": False, "producerSub": None, "attempts": 0,
                    "lastError": None, "claimed": False, "createdAt": seen["createdAt"], "updatedAt": seen["updatedAt"],
                    "payload": base64.b64encode(b' {"a" : 1.0} ').decode()}
    assert micros(seen["deliverAt"]) - micros(seen["updatedAt"]) == 60000000
    assert broker.request("HEAD", path(queue, "k")).expect(200).body == b""
    assert peek(broker, queue, "other") is None
    assert peek(broker, unique("no"), "k") is None
    assert call(broker, op_schedule(queue, "e", 60000, encrypted=True))[0]["ok"]
    assert peek(broker, queue, "e")["encrypted"] is True


def test_list_is_ordered_by_key_and_pages(broker, queue):
    # 125
    keys = ["b", "a", "c"]
    call(broker, *[op_schedule(queue, k, 60000 - n) for n, k in enumerate(keys)])
    page = rows(broker, queue, limit=2)
    assert [r["timerKey"] for r in page["rows"]] == ["a", "b"]
    assert (page["truncated"], page["nextAfter"]) == (True, "b")
    single = peek(broker, queue, "a")
    assert page["rows"][0] == {k: v for k, v in single.items() if k not in ("found", "payload")}
    rest = rows(broker, queue, limit=2, after="b")
    assert ([r["timerKey"] for r in rest["rows"]], rest["truncated"], rest["nextAfter"]) == (["c"], False, None)
    assert rows(broker, queue, after="c", mode="list") == {"rows": [], "truncated": False, "nextAfter": None}
    assert len(rows(broker, queue, limit=3)["rows"]) == 3 and rows(broker, queue, limit=3)["truncated"] is False
    assert len(rows(broker, queue, limit=0)["rows"]) == 1
    assert rows(broker, unique("no"))["rows"] == []
    assert rows(broker, queue, after="a" * 4000) == rows(broker, queue, after="a") and len(rows(broker, queue, after="a")["rows"]) == 2
    assert rows(broker, queue, after="\x01")["rows"][0]["timerKey"] == "a"


def test_list_order_is_byte_order(broker, queue):
    keys = ["Z", "a", "a/b", "a b", "aa", "é", "~", "ä", "\U0001f600", "10", "9"]
    call(broker, *[op_schedule(queue, k, 60000) for k in keys])
    seen, after = [], None
    while True:
        page = rows(broker, queue, limit=2, after=after)
        seen += [r["timerKey"] for r in page["rows"]]
        after = page["nextAfter"]
        if not page["truncated"]:
            break
    assert seen == sorted(keys, key=lambda k: k.encode())


def test_list_limit_is_clamped(broker, queue):
    for start in range(0, 1100, 220):
        call(broker, *[op_schedule(queue, "k%04d" % n, 60000) for n in range(start, start + 220)])
    assert len(rows(broker, queue)["rows"]) == 100
    page = rows(broker, queue, limit=5000)
    assert (len(page["rows"]), page["truncated"], page["nextAfter"]) == (1000, True, "k0999")
    broker.get(path(queue) + "?limit=ten").expect(400)


def test_count_takes_a_prefix(broker, queue):
    # 126
    call(broker, *[op_schedule(queue, k, 60000) for k in ("a", "a/1", "ab", "b", "A", "a%")])
    assert [count(broker, queue, p) for p in ("a", "a/", "b", "c", "a%", "ab")] == [4, 1, 1, 0, 1, 1]
    assert count(broker, queue, "x" * 128) == 0
    for question, reason in (("mode=count", "timers_count_prefix_required"), ("mode=count&prefix=", "timers_count_prefix_required"),
                             ("mode=count&prefix=" + "x" * 129, "timers_count_prefix_too_long"),
                             ("mode=count&prefix=a%00", "timers_count_prefix_invalid"),
                             ("mode=count&prefix=a&after=b", "timers_count_page_parameters"),
                             ("mode=count&prefix=a&limit=3", "timers_count_page_parameters"), ("mode=all", "timers_read_mode_unknown")):
        answer = broker.get(path(queue) + "?" + question).expect(400).json
        assert (answer["error"], answer["reason"]) == ("timers_bad_request", reason)


@pytest.mark.parametrize("key", ["a/b", "/", "a//b/", "..", "a b+c", "%2F", "?#&=", "\"\\", "caffè", "\U0001f680", "k" * 512])
def test_any_key_works_on_every_route(broker, queue, key):
    result = schedule(broker, queue, key, 60000)
    assert peek(broker, queue, key)["messageId"] == result["messageId"]
    assert [r["timerKey"] for r in rows(broker, queue)["rows"]] == [key]
    assert cancel(broker, queue, key)["status"] == "cancelled"


def test_a_key_in_the_path_may_have_plain_slashes(broker, queue):
    schedule(broker, queue, "a/b/c", 60000)
    assert broker.get(path(queue) + "/a/b/c").expect(200).json["found"]
    assert broker.get(path(queue) + "/a%2Fb%2Fc").expect(200).json["found"]
    assert broker.delete(path(queue) + "/a/b/c").expect(200).json["ok"]


def test_names_in_the_path_are_judged(broker, queue):
    for method in ("GET", "DELETE"):
        assert broker.request(method, path(queue) + "/").expect(400).json["error"] == "timers_bad_request"
        assert broker.request(method, path(queue) + "/a%0Ab").expect(400).json["error"] == "timers_bad_request"
        assert broker.request(method, path(queue) + "/" + "k" * 513).expect(413).json["reason"] == "name_too_long"
        assert broker.request(method, path("q" * 412) + "/k").expect(413).json["reason"] == "name_too_long"
    broker.request("PUT", path(queue, "k")).expect(405)
    broker.get("/api/v1/timers").expect(405)


def test_the_longest_names_work_to_the_end(broker):
    queue, key, lane = unique("q").ljust(397, "q"), "k" * 512, "p" * 14
    result = schedule(broker, queue, key, 300, partition=lane)
    assert peek(broker, queue, key)["messageId"] == result["messageId"]
    assert waited(broker, queue)["id"] == result["messageId"]
    refused(broker, [op_schedule(queue + "q", key, 300, partition=lane)], "name_too_long", 413, "payload_too_large")
    refused(broker, [op_schedule(queue, key, 300, partition=lane + "p")], "name_too_long", 413, "payload_too_large")
    refused(broker, [op_schedule("q", key + "k", 300)], "timers_bad_op")


# ---- bodies ----


def test_a_body_may_be_the_array_itself(broker, queue):
    assert broker.post("/api/v1/timers", [op_schedule(queue, "k", 60000)]).expect(200).json["results"][0]["ok"]
    assert broker.post("/api/v1/timers", []).expect(200).json == {"results": []}
    assert broker.post("/api/v1/timers", {"x": 1, "operations": [], "y": {}}).expect(200).json == {"results": []}
    for body in (b"", b"{", b"7", b"null", b'{"operations":{}}', b'{"ops":[]}', b'{"operations":[],"operations":[]}', b"[] []"):
        refused(broker, body, "timers_bad_body")


def test_results_are_in_the_order_of_the_ops(broker, queue):
    other = unique("q")
    schedule(broker, queue, "b", 60000, "old")
    results = call(broker, op_schedule(queue, "a", 60000), op_cancel(queue, "b"), op_schedule(other, "a", 60000), op_cancel(other, "b", txn="t"),
                   op_schedule(queue, "c", 60000))
    assert [(r["status"], r["txn"]) for r in results] == [("scheduled", "txn-a"), ("cancelled", "old"), ("scheduled", "txn-a"), ("absent", "t"),
                                                          ("scheduled", "txn-c")]
    assert len({r["deliverAt"] for r in results if "deliverAt" in r}) == 1


def test_bad_schedules_are_refused_and_nothing_is_stored(broker, queue):
    # 123
    good = op_schedule(queue, "good", 60000)
    op = op_schedule(queue, "k", 60000)

    def without(name):
        return {k: v for k, v in op.items() if k != name}

    cases = [(without("txn"), "timers_bad_op"), (dict(op, txn=""), "timers_bad_op"), (without("payload"), "timers_payload_required"),
             (dict(op, payload="%%%"), "timers_payload_not_base64"), (dict(op, payload="MQ"), "timers_payload_not_base64"),
             (dict(op, payload=packed(b"not json")), "timers_payload_not_json"), (dict(op, deliverAt="2031-01-01T00:00:00Z"), "timers_server_owned_field"),
             (dict(op, _messageId="x"), "timers_server_owned_field"), (dict(op, producerSub="me"), "timers_server_owned_field"),
             (without("delayMs"), "timers_delay_required"), (dict(op, delayMs="5"), "timers_delay_required"), (without("queue"), "timers_queue_required"),
             (without("timerKey"), "timers_bad_op"), (without("op"), "timers_bad_op"), (dict(op, op="fire"), "timers_bad_op"),
             (dict(op, partition=""), "timers_bad_op"), (dict(op, txn="x" * 65536), "timers_bad_op"), ("text", "timers_bad_op")]
    for bad, reason in cases:
        for body in ([bad], {"operations": [good, bad]}):
            answer = refused(broker, body, reason)
            assert HINT not in answer.headers
        answer = broker.post("/api/v1/transaction", {"timers": [bad], "kv": [{"op": "put", "ns": "x", "key": queue, "value": 1, "forever": True}]})
        assert answer.expect(400).json["success"] is False, answer
        assert answer.json["error"].startswith("QTIMER ")
        owned = reason == "timers_server_owned_field" and "deliverAt" not in bad
        assert answer.json["reason"] == (reason if owned else "bad_request")
    assert rows(broker, queue)["rows"] == []
    assert broker.queue_detail(queue) is None
    assert broker.get("/api/v1/kv/x/" + queue).expect(200).json["found"] is False


def test_a_refused_mix_points_to_delete(broker, queue):
    schedule(broker, queue, "k", 60000)
    bad = dict(op_schedule(queue, "n", 60000), txn="")
    for body in ([op_cancel(queue, "k"), bad], [bad, op_cancel(queue, "k")]):
        answer = refused(broker, body, "timers_bad_op")
        assert answer.headers[HINT].startswith("DELETE /api/v1/timers/")
    assert peek(broker, queue, "k") is not None
    assert HINT not in refused(broker, [op_cancel(queue, "k"), op_cancel(queue, "")], "timers_bad_op").headers


def test_one_op_a_timer_a_call(broker, queue):
    # 128
    op = op_schedule(queue, "k", 60000)
    for pair in ([op, op], [op, op_cancel(queue, "k")], [op_cancel(queue, "k"), op_cancel(queue, "k")]):
        refused(broker, pair, "timers_bad_op")
        assert broker.post("/api/v1/transaction", {"timers": pair}).expect(400).json["reason"] == "bad_request"
    assert rows(broker, queue)["rows"] == []
    other = unique("q")
    assert [r["ok"] for r in call(broker, op, op_schedule(queue, "l", 60000), op_schedule(other, "k", 60000))] == [True] * 3


def test_at_most_256_ops_a_call(broker, queue):
    ops = [op_cancel(queue, "k%d" % n) for n in range(257)]
    assert len(call(broker, *ops[:256])) == 256
    refused(broker, ops, "timers_too_many_ops")
    assert len(transaction(broker, *ops)["results"]) == 257


def test_the_horizon_is_ninety_days_on_the_route_and_none_in_a_transaction(broker, queue):
    # 124
    days = 86400000
    assert schedule(broker, queue, "at", 90 * days)["ok"]
    answer = refused(broker, [op_schedule(queue, "over", 90 * days + 1)], "timers_horizon", 403, "timer_horizon_exceeded")
    assert HINT not in answer.headers
    answer = refused(broker, [op_schedule(queue, "over", 1e300), op_cancel(queue, "at")], "timers_horizon", 403, "timer_horizon_exceeded")
    assert HINT in answer.headers
    result = transaction(broker, op_schedule(queue, "over", 50 * 365.25 * days))["results"][0]
    assert micros(result["deliverAt"]) - micros(peek(broker, queue, "over")["updatedAt"]) == 50 * 36525 * 864 * 1000000
    for far in ("9007199254740993", "10000000000000000000", "1e400"):
        text = json.dumps({"timers": [op_schedule(queue, "far", "@")]}).replace('"@"', far)
        answer = broker.post("/api/v1/transaction", text.encode()).expect(400).json
        assert "delayMs" in answer["error"]
    assert cancel(broker, queue, "far")["status"] == "absent"


def test_settings_of_size_and_horizon(own_broker, queue):
    broker = own_broker(env={"QUEEN_TIMERS_MAX_PAYLOAD_BYTES": "10", "QUEEN_TIMERS_MAX_HORIZON_S": "60"})
    assert schedule(broker, queue, "k", 60000, payload=b'"12345678"')["ok"]
    refused(broker, [op_schedule(queue, "k", 60000, payload=b'"123456789"')], "timers_payload_too_large", 413, "payload_too_large")
    refused(broker, [op_schedule(queue, "k", 60001)], "timers_horizon", 403, "timer_horizon_exceeded")
    assert transaction(broker, op_schedule(queue, "l", 60001, payload=b'"123456789"'))["success"]


def test_a_payload_of_one_mebibyte(broker, queue):
    text = b'"' + b"x" * ((1 << 20) - 2) + b'"'
    schedule(broker, queue, "k", 100, payload=text)
    answer = broker.pop(queue, wait=True, timeout=5000).expect(200)
    assert raw_data(answer.body) == [text]
    refused(broker, [op_schedule(queue, "k", 100, payload=text[:-1] + b'x"')], "timers_payload_too_large", 413, "payload_too_large")
    whole = [op_schedule(queue, "k%d" % n, 60000, payload=b'"' + b"y" * 800000 + b'"') for n in range(60)]
    body = json.dumps(whole).encode()
    assert len(body) < 67108864
    broker.post("/api/v1/timers", body).expect(200)
    page = rows(broker, queue, limit=1000)
    assert 1 <= len(page["rows"]) < 60 and page["truncated"]
    assert count(broker, queue, "k") == 60


def test_payloads_arrive_byte_for_byte(broker, queue):
    """J02, the part of timers."""
    texts = [b"9007199254740993", b"1e400", b"0.1000", b"-0", b"1E5", b"[" * 100 + b"]" * 100, b'{"z":1,"a":2}', b'{"a":1,"a":2}',
             '"\\u00e9é"'.encode(), b" " * 100000 + b"1" + b"\n" * 5, b'"bare"', b"7", b"null", b"true", b'{"deep":[1.10,{"x":"\\/"}]}', b'"\\ud83d"']
    call(broker, *[op_schedule(queue, "k%02d" % n, 0, payload=t, partition="p%02d" % n) for n, t in enumerate(texts)])
    transaction(broker, *[op_schedule(queue, "t%02d" % n, 0, payload=t, partition="t%02d" % n) for n, t in enumerate(texts)])
    wait_until(lambda: rows(broker, queue)["rows"] == [], 5, "all fired")
    for n, text in enumerate(texts):
        for lane in ("p%02d", "t%02d"):
            answer = broker.pop(queue, lane % n, autoAck=True).expect(200)
            assert raw_data(answer.body) == [text]
            fetched = broker.post("/api/v1/fetch", {"entries": [{"queue": queue, "partition": lane % n, "offset": 0}]}).expect(200)
            assert b'"payload":' + text + b',"ts":' in fetched.body


def test_a_zstd_payload_is_unpacked_when_it_is_scheduled(broker, queue):
    text = b'{"a":[' + b"1," * 5000 + b"2]}"
    squeezed = subprocess.run(["zstd", "-c", "-19"], input=text, stdout=subprocess.PIPE, check=True).stdout
    schedule(broker, queue, "k", 60000, payload=squeezed, payloadZstd=True)
    seen = peek(broker, queue, "k")
    assert (seen["payloadZstd"], base64.b64decode(seen["payload"])) == (False, text)
    schedule(broker, queue, "k", 0, payload=squeezed, payloadZstd=True)
    assert raw_data(broker.pop(queue, wait=True, timeout=5000).expect(200).body) == [text]
    refused(broker, [op_schedule(queue, "k", 0, payloadZstd=True)], "timers_payload_not_zstd")
    bomb = subprocess.run(["zstd", "-c", "-19"], input=b" " * (200 << 20) + b"1", stdout=subprocess.PIPE, check=True).stdout
    assert len(bomb) < 100000
    before = broker.resident_bytes()
    refused(broker, [op_schedule(queue, "k%d" % n, 0, payload=bomb, payloadZstd=True) for n in range(50)], "timers_payload_too_large", 413,
            "payload_too_large")
    assert broker.resident_bytes() - before < 64 << 20


# ---- around them ----


def test_timers_of_tenants_are_apart(own_broker, queue):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    one, two = {"x-queen-tenant": "00000000-0000-0000-0000-00000000000a"}, {"x-queen-tenant": "00000000-0000-0000-0000-00000000000b"}
    broker.post("/api/v1/timers", [op_schedule(queue, "k", 60000, "one")], headers=one).expect(200)
    assert broker.get(path(queue, "k"), headers=two).json["found"] is False
    assert broker.post("/api/v1/timers", [op_schedule(queue, "k", 300, "two")], headers=two).json["results"][0]["status"] == "scheduled"
    assert broker.delete(path(queue, "k"), headers=one).json["txn"] == "one"
    assert broker.get(path(queue) + "?mode=count&prefix=k", headers=one).json == {"count": 0}
    answer = broker.pop(queue, wait=True, timeout=5000, headers=two).expect(200).json
    assert ids(answer) == ["two"]
    assert broker.pop(queue, headers=one).status == 204


def test_a_timer_outlives_its_queue_and_makes_a_new_one(broker, queue):
    broker.configure(queue, leaseTime=77)
    broker.push_ids(queue, ["m"], "p")
    schedule(broker, queue, "k", 700, "nudge", partition="p")
    assert broker.delete_queue(queue)["existed"]
    assert broker.queue_detail(queue) is None
    assert peek(broker, queue, "k") is not None
    message = waited(broker, queue)
    assert (message["transactionId"], message["offset"]) == ("nudge", 0)
    assert broker.queue_detail(queue)["options"]["leaseTime"] == 60


def test_a_rolled_back_transaction_schedules_and_cancels_nothing(broker, queue):
    broker.push_ids(queue, ["taken"], "p")
    schedule(broker, queue, "kept", 60000)
    answer = transaction(broker, op_schedule(queue, "k", 0), op_cancel(queue, "kept"),
                         operations=[{"type": "push", "queue": queue, "partition": "p", "transactionId": "taken", "payload": 1}])
    assert (answer["success"], answer["reason"]) == (False, "duplicate")
    time.sleep(0.2)
    assert peek(broker, queue, "k") is None and peek(broker, queue, "kept") is not None
    assert ids({"messages": broker.drain(queue)}) == ["taken"]


def test_timers_in_a_transaction_answer_like_the_route(broker, queue):
    schedule(broker, queue, "old", 60000, "o")
    answer = transaction(broker, op_schedule(queue, "k", 60000, "t"), op_cancel(queue, "old"), op_cancel(queue, "none", txn="x"))
    results = answer["results"]
    assert answer["success"] is True
    assert [(r["index"], r["opIndex"], r["type"], r["ok"], r["status"], r["txn"]) for r in results] == [
        (0, 0, "timer", True, "scheduled", "t"), (1, 1, "timer", True, "cancelled", "o"), (2, 2, "timer", False, "absent", "x")]
    assert peek(broker, queue, "k")["messageId"] == results[0]["messageId"]
    assert peek(broker, queue, "k")["deliverAt"] == results[0]["deliverAt"]


def test_a_full_disk_refuses_schedules_but_not_cancels(own_broker, queue):
    broker = own_broker()
    for key in ("a", "b", "c"):
        schedule(broker, queue, key, 60000)
    broker.restart("stop", env={"QUEEN_RAFT_DISK_HIGH_PCT": "1", "QUEEN_RAFT_DISK_LOW_PCT": "1"})
    wait_until(lambda: broker.push([{"queue": queue, "payload": 1}]).status == 507, 10, "the disk counts as full")
    answer = broker.post("/api/v1/timers", [op_schedule(queue, "d", 60000)]).expect(507)
    assert answer.json["error"] == "storage_full" and HINT not in answer.headers
    answer = broker.post("/api/v1/timers", [op_schedule(queue, "d", 60000), op_cancel(queue, "a")]).expect(507)
    assert HINT in answer.headers
    assert call(broker, op_cancel(queue, "a"))[0]["status"] == "cancelled"
    assert cancel(broker, queue, "b")["status"] == "cancelled"
    assert [r["timerKey"] for r in rows(broker, queue)["rows"]] == ["c"]


def test_schedules_count_as_kv_writes_where_these_are_limited(own_broker, queue):
    broker = own_broker(env={"QUEEN_KV_WRITE_RATE": "1", "QUEEN_KV_WRITE_BURST": "2"})
    for key in ("a", "b"):
        assert schedule(broker, queue, key, 60000)["ok"]
    answer = broker.post("/api/v1/timers", [op_schedule(queue, "c", 60000), op_cancel(queue, "a")]).expect(429)
    assert answer.json["error"] == "rate_limited" and int(answer.headers["retry-after"]) >= 1 and HINT in answer.headers
    for key in ("a", "b", "c"):
        cancel(broker, queue, key)
    assert call(broker, *[op_cancel(queue, k) for k in "abc"])[0]["status"] == "absent"


def test_concurrent_cancels_take_a_timer_once(broker, queue):
    total, clients = 60, 6
    call(broker, *[op_schedule(queue, "k%d" % n, 60000, "t%d" % n) for n in range(total)])
    taken = []

    def client(number):
        for n in range(total):
            key = "k%d" % ((n + number * 7) % total)
            way = (n + number) % 3
            result = cancel(broker, queue, key) if way == 0 else call(broker, op_cancel(queue, key))[0] if way == 1 else \
                transaction(broker, op_cancel(queue, key))["results"][0]
            if result["ok"]:
                taken.append(result["txn"])

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert sorted(taken) == sorted("t%d" % n for n in range(total))


# ---- restarts ----


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_pending_timers_survive_a_restart(own_broker, queue, how):
    broker = own_broker()
    scheduled = {r["timerKey"]: r for r in call(broker, *[op_schedule(queue, "k%d" % n, 3000, payload=b' {"n":%d} ' % n) for n in range(50)],
                                                op_schedule(queue, "late", 3600000))}
    assert cancel(broker, queue, "k7")["ok"]
    before = rows(broker, queue)
    broker.restart(how)
    assert rows(broker, queue) == before
    assert peek(broker, queue, "late")["payload"] == packed({"key": "late"})
    assert cancel(broker, queue, "k8")["status"] == "cancelled"
    wait_until(lambda: count(broker, queue, "k") == 0, 10, "fired")
    fired = broker.drain(queue)
    assert {m["transactionId"]: m["id"] for m in fired} == {"txn-" + k: r["messageId"] for k, r in scheduled.items() if k not in ("late", "k7", "k8")}
    assert len(fired) == 48
    assert all(m["createdAt"] >= scheduled[m["transactionId"][4:]]["deliverAt"][:23] + "Z" for m in fired)
    assert cancel(broker, queue, "late")["ok"]


def test_timers_due_while_the_broker_was_down_fire_at_its_start(own_broker, queue):
    broker = own_broker()
    call(broker, *[op_schedule(queue, "k%d" % n, 300, partition="p") for n in range(20)])
    broker.kill()
    time.sleep(0.5)
    broker.start()
    got = []
    while len(got) < 20:
        got += broker.take(queue, wait=True, timeout=5000, autoAck=True)["messages"]
    assert sorted(ids({"messages": got})) == sorted("txn-k%d" % n for n in range(20))
    assert rows(broker, queue)["rows"] == []


def test_killed_at_the_due_time_a_timer_fires_exactly_once(own_broker, queue):
    # 127
    broker = own_broker()
    expected = {}
    for n in range(6):
        call(broker, *[op_schedule(queue, "r%d-%d" % (n, i), 200 + 3 * i, "r%d-%d" % (n, i), partition="p%d" % (i % 3)) for i in range(40)])
        expected.update({"r%d-%d" % (n, i): True for i in range(40)})
        time.sleep(0.2 + 0.02 * n)
        broker.restart("kill")
    wait_until(lambda: count(broker, queue, "r") == 0, 10, "all fired")
    broker.restart("kill")
    assert sorted(ids({"messages": broker.drain(queue)})) == sorted(expected)


def test_timers_at_rest_are_found_changed_and_fire(own_broker, queue):
    """After a start all of them are in the store only."""
    broker = own_broker()
    keys = ["at-rest-%03d" % n for n in range(300)]
    began = time.time()
    for low in range(0, len(keys), 100):
        call(broker, *[op_schedule(queue, k, 6000, partition="p%d" % (n % 7)) for n, k in enumerate(keys[low:low + 100])])
    call(broker, op_schedule(queue, "far", 3600000))
    broker.restart("stop")
    metrics = broker.get("/metrics/prometheus").expect(200).body.decode()
    assert re.search(r"^queen_timers_pending(?:{[^}]*})? 301$", metrics, re.M)
    assert re.search(r'^queen_engine_objects{kind="timers_in_memory"[^}]*} 0$', metrics, re.M)
    assert count(broker, queue, "at-rest-") == 300
    assert count(broker, queue, "at-rest-01") == 10
    listed, after = [], None
    while True:
        page = rows(broker, queue, limit=70, **({} if after is None else {"after": after}))
        listed += [r["timerKey"] for r in page["rows"]]
        if not page["truncated"]:
            break
        after = page["nextAfter"]
    assert listed == keys + ["far"]
    assert peek(broker, queue, keys[5])["txn"] == "txn-" + keys[5]
    assert cancel(broker, queue, keys[5])["status"] == "cancelled"
    assert schedule(broker, queue, keys[6], 3600000)["status"] == "rescheduled"
    assert time.time() < began + 6, "too slow for this test"
    got = set()
    wait_until(lambda: got.update(m["transactionId"] for m in broker.drain(queue)) or len(got) >= 298, 20)
    assert got == {"txn-" + k for n, k in enumerate(keys) if n not in (5, 6)}
    assert [r["timerKey"] for r in rows(broker, queue)["rows"]] == [keys[6], "far"]
    broker.restart("kill")
    assert [r["timerKey"] for r in rows(broker, queue)["rows"]] == [keys[6], "far"]
    assert len(broker.drain(queue)) == 298


def test_an_idle_broker_with_pending_timers_does_nothing(own_broker, queue):
    broker = own_broker()
    call(broker, *[op_schedule(queue, "k%d" % n, 3600000 + n) for n in range(200)])
    time.sleep(2)
    before = broker.cpu_seconds()
    time.sleep(2)
    assert broker.cpu_seconds() - before <= 0.06


def test_details_never_repeat_what_the_client_sent(broker, queue):
    secret = "se'cret\"<x>"
    for bad in (dict(op_schedule(queue, secret, 1), op=secret), dict(op_schedule(queue, secret, 1), _secret=secret), dict(op_schedule(queue, secret, 1), payload=secret)):
        answer = broker.post("/api/v1/timers", [bad]).expect(400)
        assert not re.search(rb"se'cret|_secret", answer.body)
