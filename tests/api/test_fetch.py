"""Reads by offset: fetch, fetch/offsets, partitions/changed. No lease, no cursor."""

import json
import threading
import time

import pytest

from queen import ISO_US, UUID7, RawConnection, offsets, unique, wait_until
from timers import micros, op_schedule

UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"
RANGE = "OFFSET_OUT_OF_RANGE"


def fetch(broker, *entries, **more):
    answer = broker.post("/api/v1/fetch", dict(more, entries=list(entries))).expect(200).json
    assert set(answer) == {"entries"} and len(answer["entries"]) == len(entries)
    return answer["entries"]


def entry(queue, offset=0, partition="p", **more):
    return dict(more, queue=queue, partition=partition, offset=offset)


def offset_at(broker, queue, timestamp, partition="p"):
    body = {"entries": [{"queue": queue, "partition": partition, "timestamp": timestamp}]}
    return broker.post("/api/v1/fetch/offsets", body).expect(200).json["entries"][0]


def changed(broker, *entries):
    return broker.post("/api/v1/partitions/changed", {"entries": list(entries)}).expect(200).json


def filled(broker, queue, ids="abcde", partition="p"):
    for i in ids:
        broker.push_ids(queue, [i], partition)


# ---- fetch ----


def test_records_in_order_with_bounds(broker, queue):
    filled(broker, queue, "abc")
    one = fetch(broker, entry(queue, 1))[0]
    assert set(one) == {"queue", "partition", "records", "highWatermark", "logStartOffset"}
    assert (one["queue"], one["partition"], one["highWatermark"], one["logStartOffset"]) == (queue, "p", 3, 0)
    assert [(r["offset"], r["transactionId"], r["payload"]) for r in one["records"]] == [(1, "b", {"id": "b"}), (2, "c", {"id": "c"})]
    assert all(set(r) == {"offset", "transactionId", "payload", "ts"} and ISO_US.match(r["ts"]) for r in one["records"])
    assert one["records"][0]["ts"] < one["records"][1]["ts"]


def test_ts_and_default_ids_are_those_of_a_pop(broker, queue):
    broker.push([{"queue": queue, "partition": "p", "payload": n} for n in range(3)]).expect(201)
    popped = broker.take(queue)["messages"]
    records = fetch(broker, entry(queue))[0]["records"]
    assert [(r["transactionId"], r["ts"][:23] + "Z") for r in records] == [(m["id"], m["createdAt"]) for m in popped]
    assert all(UUID7.match(r["transactionId"]) for r in records)
    assert len({r["ts"] for r in records}) == 1


def test_the_end_and_beyond(broker, queue):
    # 133
    filled(broker, queue, "abc")
    at, above, missing = fetch(broker, entry(queue, 3), entry(queue, 4), entry(unique("no"), 0))
    assert (at["records"], at["highWatermark"], "error" in at) == ([], 3, False)
    assert (above["records"], above["error"], above["highWatermark"], above["logStartOffset"]) == ([], RANGE, 3, 0)
    assert (missing["records"], missing["error"], missing["highWatermark"], missing["logStartOffset"]) == ([], UNKNOWN, 0, 0)
    answer = broker.post("/api/v1/fetch", {"entries": [entry(queue, -1)]}).expect(400).json
    assert set(answer) == {"error"}


def test_a_lane_never_written_is_empty(broker, queue):
    filled(broker, queue, "a")
    one = fetch(broker, entry(queue, 0, "other"))[0]
    assert (one["records"], one["highWatermark"], one["logStartOffset"], "error" in one) == ([], 0, 0, False)
    assert fetch(broker, entry(queue, 1, "other"))[0]["error"] == RANGE


def test_reading_leaves_leases_and_cursors_alone(broker, queue):
    # 134
    filled(broker, queue, "abcd")
    leased = broker.take(queue, "p", group="g", subscriptionMode="all", batch=2)
    before = broker.depth(queue, "g")
    for _ in range(3):
        assert [r["offset"] for r in fetch(broker, entry(queue))[0]["records"]] == [0, 1, 2, 3]
    assert broker.depth(queue, "g") == before
    broker.nothing(queue, group="g")
    assert all(r["success"] for r in broker.ack_batch(leased["messages"]))
    assert offsets(broker.take(queue, group="g")) == [2, 3]
    assert offsets(broker.take(queue, group="other", subscriptionMode="all")) == [0, 1, 2, 3]


def test_partitions_by_number_null_and_default(broker, queue):
    broker.push_ids(queue, ["three"], "3")
    broker.push_ids(queue, ["default"])
    by_number, by_text, absent, null, empty = fetch(
        broker, entry(queue, 0, 3), entry(queue, 0, "3"), {"queue": queue, "offset": 0}, entry(queue, 0, None), entry(queue, 0, ""))
    assert [e["partition"] for e in (by_number, by_text, absent, null, empty)] == ["3", "3", "Default", "Default", "Default"]
    assert [e["records"][0]["transactionId"] for e in (by_number, by_text, absent, null, empty)] == ["three"] * 2 + ["default"] * 3


def test_whole_appends_up_to_max_bytes(broker, queue):
    for n in range(6):
        broker.push([{"queue": queue, "partition": "p", "payload": "x" * 998} for _ in range(4)]).expect(201)
    assert len(fetch(broker, entry(queue, 0, maxBytes=1))[0]["records"]) == 4
    assert len(fetch(broker, entry(queue, 0, maxBytes=-5))[0]["records"]) == 4
    assert len(fetch(broker, entry(queue, 2, maxBytes=1))[0]["records"]) == 2
    some = len(fetch(broker, entry(queue, 0, maxBytes=9000))[0]["records"])
    assert 8 <= some <= 12 and some % 4 == 0
    assert len(fetch(broker, entry(queue))[0]["records"]) == 24


def test_max_bytes_defaults_to_one_mebibyte_and_ends_at_eight(broker, queue):
    payload = "x" * 500000
    for _ in range(20):
        broker.push([{"queue": queue, "partition": "p", "payload": payload}]).expect(201)
    assert len(fetch(broker, entry(queue))[0]["records"]) in (2, 3)
    assert len(fetch(broker, entry(queue, maxBytes=1 << 40))[0]["records"]) in (16, 17)


def test_one_answer_is_bounded(broker):
    """More than fits: the first entries have their records, the rest their bounds."""
    queue = unique("q")
    payload = "x" * (1 << 20)
    for lane in range(10):
        for _ in range(8):
            broker.push([{"queue": queue, "partition": "p%d" % lane, "payload": payload}]).expect(201)
    answer = broker.post("/api/v1/fetch", {"entries": [entry(queue, 0, "p%d" % n, maxBytes=8 << 20) for n in range(10)]}).expect(200)
    assert (32 << 20) <= len(answer.body) < (42 << 20)
    entries = answer.json["entries"]
    assert entries[0]["records"] and not entries[9]["records"]
    assert all(e["highWatermark"] == 8 and "error" not in e for e in entries)
    assert len(fetch(broker, entry(queue, 0, "p9", maxBytes=8 << 20))[0]["records"]) in (7, 8)


def test_the_wait_ends_when_something_is_appended(broker, queue):
    filled(broker, queue, "a")
    begin = time.monotonic()
    threading.Timer(0.3, broker.push_ids, (queue, ["b"], "p")).start()
    one = fetch(broker, entry(queue, 1), entry(queue, 0, "never"), maxWaitMs=20000)[0]
    assert 0.25 < time.monotonic() - begin < 10
    assert [r["transactionId"] for r in one["records"]] == ["b"]


def test_a_lane_that_does_not_exist_yet_can_be_waited_for(broker, queue):
    filled(broker, queue, "a")
    threading.Timer(0.2, broker.push_ids, (queue, ["n"], "new")).start()
    begin = time.monotonic()
    assert [r["offset"] for r in fetch(broker, entry(queue, 0, "new"), maxWaitMs=20000)[0]["records"]] == [0]
    assert time.monotonic() - begin < 10
    threading.Timer(0.2, broker.post, ("/api/v1/timers", [op_schedule(queue, "k", 0, partition="fired")])).start()
    assert [r["transactionId"] for r in fetch(broker, entry(queue, 0, "fired"), maxWaitMs=20000)[0]["records"]] == ["txn-k"]
    assert time.monotonic() - begin < 15


def test_the_wait_ends_in_time_or_with_enough_bytes(broker, queue):
    broker.push([{"queue": queue, "partition": "p", "payload": "x" * 98}]).expect(201)
    begin = time.monotonic()
    assert len(fetch(broker, entry(queue), maxWaitMs=600, minBytes=200)[0]["records"]) == 1
    assert 0.55 < time.monotonic() - begin < 5
    begin = time.monotonic()
    for more in ({"maxWaitMs": 20000, "minBytes": 100}, {"maxWaitMs": 20000, "minBytes": 0}, {"maxWaitMs": 0, "minBytes": 1000}, {"minBytes": 1000},
                 {"maxWaitMs": -5, "minBytes": 1000}, {"maxWaitMs": None, "minBytes": None}):
        fetch(broker, entry(queue), **more)
    fetch(broker, entry(queue, 1), maxWaitMs=20000, minBytes=0)
    fetch(broker, maxWaitMs=20000)
    assert time.monotonic() - begin < 10
    fetched = []
    waiter = threading.Thread(target=lambda: fetched.extend(fetch(broker, entry(queue, 1), entry(queue, 0, "r"), maxWaitMs=20000, minBytes=150)))
    waiter.start()
    time.sleep(0.2)
    broker.push([{"queue": queue, "partition": "p", "payload": "x" * 78}]).expect(201)
    time.sleep(0.2)
    assert waiter.is_alive()
    broker.push([{"queue": queue, "partition": "r", "payload": "x" * 78}]).expect(201)
    waiter.join(15)
    assert [len(e["records"]) for e in fetched] == [1, 1]


def test_an_error_ends_the_wait(broker, queue):
    filled(broker, queue, "a")
    begin = time.monotonic()
    good, bad = fetch(broker, entry(queue, 1), entry(queue, 9), maxWaitMs=20000)
    assert "error" not in good and bad["error"] == RANGE
    assert fetch(broker, entry(unique("no"), 0), maxWaitMs=20000)[0]["error"] == UNKNOWN
    assert time.monotonic() - begin < 10


def test_a_waiting_reader_that_leaves_is_noticed(own_broker, queue):
    broker = own_broker()
    filled(broker, queue, "a")
    body = json.dumps({"entries": [entry(queue, 1)], "maxWaitMs": 30000}).encode()

    def parked():
        text = broker.get("/metrics/prometheus").body.decode()
        return sum(int(float(line.split()[1])) for line in text.splitlines() if line.startswith("queen_http_connections_suspended "))

    before = parked()
    held = []
    for _ in range(20):
        raw = RawConnection(broker.port)
        raw.send(b"POST /api/v1/fetch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        held.append(raw)
    wait_until(lambda: parked() - before == 20, 5, "all wait")
    [raw.close() for raw in held]
    wait_until(lambda: parked() == before, 5, "all have left")


def test_stopping_answers_waiting_readers(own_broker, queue):
    broker = own_broker()
    filled(broker, queue, "a")
    got = []
    waiter = threading.Thread(target=lambda: got.append(broker.post("/api/v1/fetch", {"entries": [entry(queue, 1)], "maxWaitMs": 30000})))
    waiter.start()
    time.sleep(0.3)
    broker.stop()
    waiter.join(5)
    assert got[0].status == 200 and got[0].json["entries"][0]["records"] == []
    broker.start()


def test_old_records_come_from_disk(own_broker, queue):
    broker = own_broker(env={"QUEEN_LOG_CACHE_BYTES": "1048576", "QUEEN_RAFT_SEGMENT_BYTES": "1048576"})
    payload = "x" * 100000
    for n in range(60):
        broker.push([{"queue": queue, "partition": "p", "transactionId": "t%d" % n, "payload": payload}]).expect(201)
    for _ in range(2):
        seen, at = [], 0
        while at < 60:
            one = fetch(broker, entry(queue, at))[0]
            assert one["records"] and "error" not in one
            assert all(r["payload"] == payload for r in one["records"])
            seen += [r["transactionId"] for r in one["records"]]
            at = one["records"][-1]["offset"] + 1
        assert seen == ["t%d" % n for n in range(60)]
        broker.restart("kill")


def test_bodies_of_another_shape_are_refused(broker, queue):
    good = entry(queue)
    for body in (b"", b"[]", b"7", b"{}", b'{"entries":{}}', b'{"entries":[1]}', b'{"entries":[[]]}', b'{"entries":[],"entries":[]}', b'{"entries":[]} x',
                 {"entries": [{"offset": 0}]}, {"entries": [{"queue": "", "offset": 0}]}, {"entries": [{"queue": 5, "offset": 0}]},
                 {"entries": [{"queue": "a\nb", "offset": 0}]}, {"entries": [{"queue": queue}]}, {"entries": [dict(good, offset="0")]},
                 {"entries": [dict(good, offset=1.5)]}, {"entries": [dict(good, partition=1.5)]}, {"entries": [dict(good, partition=True)]},
                 {"entries": [dict(good, maxBytes="1")]}, {"entries": [good], "maxWaitMs": "1"}, {"entries": [good], "minBytes": 0.5},
                 {"entries": [dict(good, offset=None)]}, b'{"entries":[{"queue":"a","offset":0,"offset":1}]}',
                 b'{"entries":[{"queue":"a","offset":99999999999999999999}]}'):
        answer = broker.post("/api/v1/fetch", body).expect(400).json
        assert answer["code"] == "bad_body" and answer["error"], body
    assert broker.post("/api/v1/fetch", {"entries": [good] * 1025}).expect(400).json == {"error": "too many entries"}
    assert len(fetch(broker, *[good] * 1024)) == 1024
    assert fetch(broker, dict(good, since="x", timestamp=[], color="red"), other={})[0]["error"] == UNKNOWN


# ---- fetch/offsets ----


def test_the_first_offset_at_or_after_a_time(broker, queue):
    # 135
    filled(broker, queue, "abcd")
    times = [r["ts"] for r in fetch(broker, entry(queue))[0]["records"]]
    for n, ts in enumerate(times):
        at = offset_at(broker, queue, ts)
        assert (at["offset"], at["ts"]) == (n, ts)
        assert offset_at(broker, queue, ts[:-1] + "+00:00")["offset"] == n
        assert offset_at(broker, queue, micros(ts) / 1000)["offset"] == n
    just_after = micros(times[1]) + 1
    assert offset_at(broker, queue, just_after / 1000)["offset"] == 2
    first = offset_at(broker, queue, 0)
    assert first == {"queue": queue, "partition": "p", "offset": 0, "ts": times[0], "highWatermark": 4, "logStartOffset": 0}
    for late in ("2200-01-01", 1e18, micros(times[3]) // 1000 + 1):
        end = offset_at(broker, queue, late)
        assert end == {"queue": queue, "partition": "p", "offset": None, "ts": None, "highWatermark": 4, "logStartOffset": 0}


def test_offsets_of_what_is_not_there(broker, queue):
    filled(broker, queue, "a")
    missing = offset_at(broker, unique("no"), 0)
    assert (missing["offset"], missing["ts"], missing["error"], missing["highWatermark"], missing["logStartOffset"]) == (None, None, UNKNOWN, 0, 0)
    never = offset_at(broker, queue, 0, "never")
    assert (never["offset"], never["highWatermark"], never["logStartOffset"], "error" in never) == (None, 0, 0, False)
    for bad in (-1, "yesterday", None, True, {}, "", "2031-02-30"):
        answer = broker.post("/api/v1/fetch/offsets", {"entries": [{"queue": queue, "timestamp": bad}]}).expect(400).json
        assert "timestamp" in answer["error"]
    assert broker.post("/api/v1/fetch/offsets", {"entries": []}).expect(200).json == {"entries": []}
    assert broker.post("/api/v1/fetch/offsets", {}).expect(400).json["code"] == "bad_body"
    assert broker.post("/api/v1/fetch/offsets", {"entries": [{"queue": queue, "timestamp": 0}] * 1025}).expect(400).json == {"error": "too many entries"}


# ---- partitions/changed ----


def test_partitions_in_creation_order_by_pages(broker, queue):
    # 136
    for lane in ("z", "a", "m"):
        broker.push_ids(queue, ["1", "2"], lane)
    answer = changed(broker, {"queue": queue, "limit": 2}, {"queue": unique("no")})
    assert set(answer) == {"entries", "safeTime", "safeTimeDegraded"} and answer["safeTimeDegraded"] is False
    page, missing = answer["entries"]
    assert missing["error"] == UNKNOWN and set(missing) == {"queue", "error"}
    assert [p["name"] for p in page["partitions"]] == ["z", "a"]
    assert all((p["lastOffset"], p["logStart"]) == (1, 0) for p in page["partitions"])
    assert all(ISO_US.match(p["lastWriteAt"]) and p["lastWriteAt"] <= answer["safeTime"] for p in page["partitions"])
    ids_of = {p["name"]: p["id"] for p in broker.queue_detail(queue)["partitions"]}
    assert all(p["id"] == ids_of[p["name"]] for p in page["partitions"])
    rest = changed(broker, {"queue": queue, "limit": 2, "after": page["next"]})["entries"][0]
    assert ([p["name"] for p in rest["partitions"]], rest["next"]) == (["m"], None)
    whole = changed(broker, {"queue": queue, "limit": 3})["entries"][0]
    assert (len(whole["partitions"]), whole["next"]) == (3, None)
    safe = answer["safeTime"]
    broker.push_ids(queue, ["3"], "a")
    later = changed(broker, {"queue": queue, "since": safe})
    # `since` takes in its own moment, which is that of the last write before: lane m's.
    assert [(p["name"], p["lastOffset"]) for p in later["entries"][0]["partitions"]] == [("a", 2), ("m", 1)]
    last = later["entries"][0]["partitions"][0]["lastWriteAt"]
    assert len(changed(broker, {"queue": queue, "since": last})["entries"][0]["partitions"]) == 1
    after = "%s%06dZ" % (last[:20], int(last[20:26]) + 1)
    assert changed(broker, {"queue": queue, "since": after})["entries"][0]["partitions"] == []
    assert later["safeTime"] >= last


def test_lanes_never_written_are_listed_as_such(broker, queue):
    broker.post("/api/v1/transaction", {"operations": [{"type": "push", "queue": queue, "partition": "written", "payload": 1}]}).expect(200)
    position = {"queue": queue, "partition": "only-a-position", "consumerGroup": "g", "offset": 0}
    assert broker.post("/api/v1/transaction", {"positions": [position]}).expect(200).json["success"]
    lanes = {p["name"]: p for p in changed(broker, {"queue": queue})["entries"][0]["partitions"]}
    assert (lanes["only-a-position"]["lastOffset"], lanes["only-a-position"]["lastWriteAt"]) == (-1, None)
    assert [p["name"] for p in changed(broker, {"queue": queue, "since": "1971-01-01"})["entries"][0]["partitions"]] == ["written"]


def test_foreign_cursors_are_told(broker, queue):
    other = unique("q")
    for name in (queue, other):
        for lane in "abc":
            broker.push_ids(name, ["x"], lane)
    mine, theirs = [e["next"] for e in changed(broker, {"queue": queue, "limit": 1}, {"queue": other, "limit": 1})["entries"]]
    forged = ("0" if mine[7] != "0" else "1").join((mine[:7], mine[8:]))
    for cursor in (theirs, forged, "x", mine + "0", mine[:-1], mine.upper() + "!", "0" * len(mine)):
        assert changed(broker, {"queue": queue, "after": cursor})["entries"] == [{"queue": queue, "error": "BAD_CURSOR"}], cursor
    assert [p["name"] for p in changed(broker, {"queue": queue, "after": mine})["entries"][0]["partitions"]] == ["b", "c"]
    assert len(changed(broker, {"queue": queue, "after": None}, {"queue": queue, "after": ""})["entries"][1]["partitions"]) == 3
    broker.delete_queue(queue)
    broker.push_ids(queue, ["x"], "a")
    assert changed(broker, {"queue": queue, "after": mine})["entries"][0]["error"] == "BAD_CURSOR"


def test_cursors_survive_a_restart(own_broker, queue):
    broker = own_broker()
    for lane in "abc":
        broker.push_ids(queue, ["x"], lane)
    cursor = changed(broker, {"queue": queue, "limit": 2})["entries"][0]["next"]
    safe = changed(broker)["safeTime"]
    broker.restart("kill")
    assert [p["name"] for p in changed(broker, {"queue": queue, "after": cursor})["entries"][0]["partitions"]] == ["c"]
    assert changed(broker)["safeTime"] >= safe


def test_changed_refuses_what_it_cannot_read(broker, queue):
    broker.push_ids(queue, ["x"], "a")
    for bad in ("yesterday", 5, "", True):
        answer = broker.post("/api/v1/partitions/changed", {"entries": [{"queue": queue}, {"queue": queue, "since": bad}]}).expect(400).json
        assert "since" in answer["error"]
    for bad in (b"", b"[]", {"entries": [{}]}, {"entries": [{"queue": queue, "limit": "2"}]}, {"entries": [{"queue": queue, "after": 5}]}):
        assert broker.post("/api/v1/partitions/changed", bad).expect(400).json["code"] == "bad_body"
    empty = changed(broker)
    assert empty["entries"] == [] and ISO_US.match(empty["safeTime"])
    assert len(changed(broker, {"queue": queue, "limit": 0})["entries"][0]["partitions"]) == 1
    assert broker.post("/api/v1/partitions/changed", {"entries": [{"queue": queue}] * 1025}).expect(400).json == {"error": "too many entries"}


def test_a_call_looks_at_a_bounded_number_of_lanes(broker):
    """60,000 lanes that `since` leaves out: one call stops early and says where to go on."""
    queue = unique("q")
    for start in range(0, 60000, 5000):
        broker.push([{"queue": queue, "partition": "l%d" % n, "payload": 1} for n in range(start, start + 5000)]).expect(201)
    broker.push_ids(queue, ["x"], "last")
    since = changed(broker)["safeTime"]
    seen, after, calls = [], None, 0
    while calls == 0 or after is not None:
        answer = changed(broker, {"queue": queue, "since": since, "after": after})["entries"][0]
        seen += [p["name"] for p in answer["partitions"]]
        after = answer["next"]
        calls += 1
        assert calls < 10
    assert (seen, calls) == (["last"], 2)


@pytest.mark.parametrize("route", ["fetch", "fetch/offsets", "partitions/changed"])
def test_only_post(broker, route):
    broker.get("/api/v1/" + route).expect(405)
