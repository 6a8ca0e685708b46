"""KV under restarts, kills and odd moments: reads are never old, versions never repeat, numbers and values stay exact."""

import http.client
import json
import threading
import time

import pytest

import kv
from queen import TEST_ALL, unique, wait_until


@pytest.fixture
def ns():
    return unique("ns")


# ---- K01: a read is never older than an answered write ------------------------------------------------------------------

class Writer(threading.Thread):
    """Puts rising numbers until told to stop; knows the last that was answered, and the last that was sent."""

    def __init__(self, broker, ns, start):
        super().__init__()
        self.broker, self.ns, self.sent, self.answered, self.version = broker, ns, start, start, 0
        self.failure, self.over = None, threading.Event()

    def run(self):
        try:
            while not self.over.is_set():
                self.sent += 1
                written = kv.put(self.broker, self.ns, "k", self.sent)
                assert written["version"] > self.version, written
                self.version, self.answered = written["version"], self.sent
        except (OSError, http.client.HTTPException):
            pass  # the broker was killed under it
        except BaseException as error:
            self.failure = error


class Reader(threading.Thread):
    """Gets all the time: never older than what was answered before the get, never older than what it saw before."""

    def __init__(self, broker, writer, by_path):
        super().__init__()
        self.broker, self.writer, self.by_path, self.reads, self.failure = broker, writer, by_path, 0, None

    def run(self):
        seen = 0
        try:
            while not self.writer.over.is_set():
                floor = self.writer.answered
                row = self.broker.get(kv.path(self.writer.ns, "k")).expect(200).json if self.by_path else kv.get(self.broker, self.writer.ns, "k")
                assert row["found"] is True and row["value"] >= max(floor, seen), (row, floor, seen)
                assert row["value"] <= self.writer.sent
                seen = row["value"]
                self.reads += 1
        except (OSError, http.client.HTTPException):
            pass
        except BaseException as error:
            self.failure = error


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_reads_are_never_old(own_broker, ns, how):
    broker = own_broker()
    kv.put(broker, ns, "k", 0)
    answered, version = 0, 0
    for _ in range(20 if TEST_ALL else 4):
        writer = Writer(broker, ns, answered)
        writer.version = version
        readers = [Reader(broker, writer, by_path) for by_path in (False, True)]
        for thread in [writer] + readers:
            thread.start()
        time.sleep(0.4)
        if how == "kill":
            broker.kill()
        writer.over.set()
        for thread in [writer] + readers:
            thread.join()
            assert thread.failure is None, thread.failure
        assert writer.answered > answered and all(r.reads > 10 for r in readers)
        broker.restart(how)
        row = kv.get(broker, ns, "k")
        assert writer.answered <= row["value"] <= writer.sent and row["version"] >= writer.version, (row, writer.answered, writer.sent)
        answered, version = row["value"], row["version"]


def test_compare_and_set_loops_lose_no_step_over_kills(own_broker, ns):
    broker = own_broker()
    kv.put(broker, ns, "k", 0)
    won, over, failures = [], threading.Event(), []

    def loop():
        while not over.is_set():
            try:
                row = kv.call(broker, {"op": "get", "ns": ns, "key": "k"}).expect((200, 503)).json.get("results", [None])[0]
                if row is None:  # the broker is starting
                    continue
                put = {"op": "put", "ns": ns, "key": "k", "value": row["value"] + 1, "expect": row["version"], "forever": True}
                written = kv.call(broker, put).expect((200, 503)).json
                if "results" in written and written["results"][0]["applied"]:
                    won.append(row["value"] + 1)
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10 if TEST_ALL else 3):
        time.sleep(0.3)
        broker.restart("kill")
    time.sleep(0.2)
    over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    # Each number was reached by one winner; a write whose answer was lost may have been made as well.
    assert len(won) == len(set(won)) and len(won) > 10
    final = kv.get(broker, ns, "k")["value"]
    assert max(won) <= final <= len(won) + 4 * (10 if TEST_ALL else 3)


# ---- K02 ---------------------------------------------------------------------------------------------------------------

def test_expired_rows_are_absent_for_everybody(own_broker, ns):
    """(a) Nobody writes after the lifetimes end, so the rows are still there when they are asked for."""
    broker = own_broker()
    stored = kv.results(broker, *[{"op": "put", "ns": ns, "key": k, "value": k, "ttlSeconds": 1} for k in "abcdefg"])
    version = {r["key"]: r["version"] for r in stored}
    time.sleep(1.2)
    assert broker.get(kv.path(ns, "a")).expect(200).json["found"] is False
    assert kv.one(broker, "check", ns, "a", expect=version["a"])["reason"] == "absent"
    assert kv.one(broker, "check", ns, "a", expect=0)["applied"] is True
    assert kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "a"})[0]["rows"] == []
    answers = kv.results(broker, {"op": "get", "ns": ns, "key": "a"}, {"op": "putIfAbsent", "ns": ns, "key": "b", "value": 2, "forever": True},
                         {"op": "put", "ns": ns, "key": "c", "value": 2, "forever": True, "expect": version["c"]},
                         {"op": "delete", "ns": ns, "key": "d", "expect": version["d"]}, {"op": "delete", "ns": ns, "key": "e"},
                         {"op": "incr", "ns": ns, "key": "f", "delta": 3, "forever": True}, {"op": "delete", "ns": ns, "key": "g", "expect": 0})
    assert answers[0]["found"] is False
    assert answers[1]["applied"] is True and answers[1]["version"] > max(version.values())
    assert [(a["applied"], a["reason"], a["value"], a["version"]) for a in answers[2:5]] == [(False, "absent", None, 0)] * 3
    assert (answers[5]["applied"], answers[5]["value"]) == (True, 3)
    assert answers[6] == {"index": 6, "op": "delete", "applied": True, "key": "g", "value": None, "version": 0}
    assert kv.get(broker, ns, "c")["found"] is False


def test_versions_never_repeat(own_broker, ns):
    """(b)"""
    broker = own_broker()
    versions = []

    def note(answer):
        assert answer["applied"] is True
        versions.append(answer["version"])

    note(kv.put(broker, ns, "k", 1))
    assert kv.one(broker, "delete", ns, "k")["version"] == versions[-1]
    note(kv.put(broker, ns, "k", 2, ttlSeconds=1))
    wait_until(lambda: not kv.get(broker, ns, "k")["found"], 4, "its time is up")
    note(kv.put(broker, ns, "k", 3))
    note(kv.incr(broker, ns, "k", 1))
    for how in ("kill", "stop", "kill"):
        kv.one(broker, "delete", ns, "k")
        broker.restart(how)
        note(kv.absent(broker, ns, "k", 4))
    other = kv.put(broker, ns, "other", 1)["version"]
    note(kv.put(broker, ns, "k", 5))
    assert versions == sorted(set(versions)) and other not in versions


def number(broker, ns, key, delta, more=""):
    body = '{"operations":[{"op":"incr","ns":"%s","key":"%s","delta":%s,"forever":true%s}]}' % (ns, key, delta, more)
    answer = broker.post("/api/v1/kv", body.encode()).expect(200).body
    element = json.loads(answer, parse_float=str, parse_int=str)["results"][0]
    return element["value"], element.get("reason")


def test_counters_are_exact(own_broker, ns):
    """(c)"""
    broker = own_broker()
    assert number(broker, ns, "k", 2**53 + 1) == (str(2**53 + 1), None)
    assert number(broker, ns, "k", 2**63 - 1 - 2**53 - 1) == (str(2**63 - 1), None)
    assert number(broker, ns, "k", 1) == (str(2**63), None)
    assert number(broker, ns, "k", 2**64) == (str(2**63 + 2**64), None)
    now = str(2**63 + 2**64)
    assert number(broker, ns, "k", 1, ',"max":%s' % now) == (now, "limit")
    assert number(broker, ns, "k", -1, ',"min":%s' % now) == (now, "limit")
    assert number(broker, ns, "k", 0, ',"min":%s,"max":%s' % (now, now)) == (now, None)
    assert number(broker, ns, "k", 10**37) == (str(2**63 + 2**64 + 10**37), None)
    large = str(2**63 + 2**64 + 10**37)
    assert number(broker, ns, "k", "9" * 38) == (large, "limit")  # more than 38 digits
    assert kv.raw_value(broker.get(kv.path(ns, "k")).expect(200).body) == large.encode()
    kv.put(broker, ns, "s", "12")
    assert number(broker, ns, "s", 1) == ("0", "type")
    kv.put(broker, ns, "e", "text", ttlSeconds=1)
    wait_until(lambda: not kv.get(broker, ns, "e")["found"], 4, "its time is up")
    assert number(broker, ns, "e", 7) == ("7", None)
    broker.restart("kill")
    assert kv.raw_value(broker.get(kv.path(ns, "k")).expect(200).body) == large.encode()
    assert number(broker, ns, "k", -(2**63)) == (str(2**64 + 10**37), None)


def test_lost_write_beside_a_read_is_answered_at_once(broker, ns):
    """(d)"""
    stored = kv.put(broker, ns, "k", "first")
    for ops in ([{"op": "putIfAbsent", "ns": ns, "key": "k", "value": 2, "forever": True}, {"op": "get", "ns": ns, "key": "k"}],
                [{"op": "delete", "ns": ns, "key": "none"}, {"op": "getMany", "ns": ns, "keys": ["k"]}],
                [{"op": "put", "ns": ns, "key": "k", "value": 2, "forever": True, "expect": stored["version"] + 1}, {"op": "getPrefix", "ns": ns, "prefix": "k"}]):
        answer = kv.call(broker, *ops).expect(200)
        assert answer.elapsed < 2
        lost, read = answer.json["results"]
        assert lost["applied"] is False
        row = read["rows"][0] if "rows" in read else read
        assert (row["value"], row["version"]) == ("first", stored["version"])


def test_null_is_a_value(broker, ns):
    """(e)"""
    kv.put(broker, ns, "k", None)
    found = kv.get(broker, ns, "k")
    assert found["found"] is True and found["value"] is None
    missing = kv.get(broker, ns, "none")
    assert missing["found"] is False and "value" not in missing
    assert kv.absent(broker, ns, "k", 1)["reason"] == "exists"


def test_expiry_not_said_or_said_twice(broker, ns):
    """(f)"""
    for fields in ({}, {"ttlSeconds": 1, "forever": True}):
        kv.refused(kv.call(broker, dict({"op": "put", "ns": ns, "key": "k", "value": 1}, **fields)), "kv_expiry_not_specified")


# ---- J02: values keep their bytes --------------------------------------------------------------------------------------

VALUES = [
    b"9007199254740993", b"-9007199254740993", b"123456789012345678901234567890", b"1e400", b"-1E-400", b"0.1000", b"-0", b"-0.0", b"1E5", b"1e+05",
    b"3.141592653589793238462643383279", b'{"z":1,"a":2,"m":{"y":0,"b":0}}', b'{"k":1,"k":2,"k":3}', b'{"":""}', b'"\\u00e9 \xc3\xa9"', b'"\\/ / \\u002f"',
    b'"\\ud83d\\udc30 \xf0\x9f\x90\xb0"', b'"\\ud800"', b'"\\u0000"', b'"\\b\\f\\n\\r\\t\\"\\\\"', b'""', b'"bare"', b"7", b"null", b"true", b"false", b"[]", b"{}",
    b"[" * 100 + b"1" + b"]" * 100, b'{"a":' * 100 + b"0" + b"}" * 100, b'{"value":[{"version":1}],"version":","}', b'"\x7f \xe2\x80\xa8"', b'" a  b "',
]


def put_raw(broker, ns, key, value):
    return broker.request("PUT", kv.path(ns, key), b'{"value":' + value + b',"forever":true}').expect(200).body


def test_values_keep_their_bytes(own_broker, ns):
    broker = own_broker()
    for n, value in enumerate(VALUES):
        assert kv.raw_value(put_raw(broker, ns, "k%02d" % n, value)) == value
    for how in (None, "kill", "stop"):
        if how is not None:
            broker.restart(how)
        for n, value in enumerate(VALUES):
            assert kv.raw_value(broker.get(kv.path(ns, "k%02d" % n)).expect(200).body) == value
    rows = broker.post("/api/v1/kv", [{"op": "getPrefix", "ns": ns, "prefix": "k"}]).expect(200).body
    for n, value in enumerate(VALUES):
        assert b'{"key":"k%02d","value":%s,"version":' % (n, value) in rows
    for n, value in enumerate(VALUES):
        if n % 2 == 0:
            assert kv.raw_value(broker.delete(kv.path(ns, "k%02d" % n)).expect(200).body) == value


@pytest.mark.parametrize("sent,kept", [
    (b'[1,' + b" " * 1048576 + b"2]", b"[1,2]"), (b"[ \n\t\r1 , 2 ]", b"[1,2]"), (b'{ "a b" : [ 1.0 , "c  d\\" " ] , "" : { } }', b'{"a b":[1.0,"c  d\\" "],"":{}}'),
    (b'  "x"  ', b'"x"'), (b"\n7\n", b"7"),
], ids=range(5))
def test_white_space_outside_strings_is_left_out(broker, ns, sent, kept):
    assert kv.raw_value(put_raw(broker, ns, "k", sent)) == kept
    assert kv.raw_value(broker.get(kv.path(ns, "k")).expect(200).body) == kept
