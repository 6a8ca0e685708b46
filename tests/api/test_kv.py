"""KV: ops, versions, conditions, lifetimes, counters, pages, paths, refusals."""

import calendar
import json
import threading
import time

import pytest

import kv
from queen import unique, wait_until


@pytest.fixture
def ns():
    return unique("ns")


def wall(text):
    assert kv.KV_TIME.match(text), text
    fraction = text[19:-6]
    return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) + (float("0" + fraction) if fraction else 0.0)


# ---- expiry ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("op", ["put", "putIfAbsent", "incr"])
def test_expiry_must_be_said_once(broker, ns, op):
    # 101
    base = {"op": op, "ns": ns, "key": "k", "value": 1, "delta": 1}
    for fields in ({}, {"ttlSeconds": 5, "forever": True}, {"forever": False}, {"ttlSeconds": None, "forever": None}):
        kv.refused(kv.call(broker, dict(base, **fields)), "kv_expiry_not_specified")
    for ttl in (0, 1.5, "9", -1, True, [], 10**30):
        kv.refused(kv.call(broker, dict(base, ttlSeconds=ttl)), "kv_bad_ttl")
    assert kv.get(broker, ns, "k")["found"] is False
    assert kv.one(broker, op, ns, "k", value=1, delta=1, ttlSeconds=9, forever=False)["applied"] is True


def test_expiry_is_counted_from_the_write(broker, ns):
    kv.put(broker, ns, "k", 1, ttlSeconds=3600)
    row = kv.get(broker, ns, "k")
    assert abs(wall(row["updatedAt"]) - time.time()) < 2
    assert abs(wall(row["expiresAt"]) - wall(row["updatedAt"]) - 3600) < 0.000002
    kv.put(broker, ns, "k", 1)  # replaces the lifetime too
    assert kv.get(broker, ns, "k")["expiresAt"] is None
    kv.put(broker, ns, "far", 1, ttlSeconds=250000000000)
    assert kv.get(broker, ns, "far")["expiresAt"].startswith("99")


def test_a_key_is_gone_when_its_time_is_up(broker, ns):
    # 105
    begin = time.monotonic()
    kv.results(broker, *[{"op": "put", "ns": ns, "key": k, "value": 41, "ttlSeconds": 1} for k in ("a", "b", "c", "d")])
    assert kv.get(broker, ns, "a")["found"] is True
    wait_until(lambda: not kv.get(broker, ns, "a")["found"], 10, "the key's time is up", every=0.005)
    assert 0.99 <= time.monotonic() - begin
    assert kv.get(broker, ns, "a") == {"index": 0, "op": "get", "found": False, "key": "a"}
    assert kv.absent(broker, ns, "b", "new")["applied"] is True
    assert kv.incr(broker, ns, "c", 1, ttlSeconds=60)["value"] == 1
    assert kv.get(broker, ns, "c")["expiresAt"] is not None
    many, page = kv.results(broker, {"op": "getMany", "ns": ns, "keys": ["a", "b", "c", "d"]}, {"op": "getPrefix", "ns": ns, "prefix": "d"})
    assert [r["key"] for r in many["rows"]] == ["b", "c"] and many["missing"] == ["a", "d"]
    assert page["rows"] == [] and page["truncated"] is False
    assert kv.one(broker, "delete", ns, "d")["reason"] == "absent"


# ---- versions and conditions ------------------------------------------------------------------------------------------

def test_versions_rise(broker, ns):
    # 102
    first = kv.put(broker, ns, "k", 1)
    second = kv.put(broker, ns, "k", 1)
    assert second["version"] > first["version"] > 0
    gone = kv.one(broker, "delete", ns, "k")
    assert (gone["applied"], gone["value"], gone["version"]) == (True, 1, second["version"])
    third = kv.put(broker, ns, "k", 2)
    assert third["version"] > second["version"]
    assert third == {"index": 0, "op": "put", "applied": True, "key": "k", "value": 2, "version": third["version"]}
    assert kv.get(broker, ns, "k")["version"] == third["version"]


def test_expected_versions(broker, ns):
    # 103
    kv.put(broker, ns, "k", 1)  # so that the version before is not 0, which means absent
    stored = kv.put(broker, ns, "k", {"s": "in"})
    lost = kv.put(broker, ns, "k", 2, expect=0)
    assert lost == {"index": 0, "op": "put", "applied": False, "reason": "exists", "key": "k", "value": {"s": "in"}, "version": stored["version"]}
    stale = kv.put(broker, ns, "k", 2, expect=stored["version"] - 1)
    assert (stale["applied"], stale["reason"], stale["value"], stale["version"]) == (False, "version", {"s": "in"}, stored["version"])
    nothing = kv.put(broker, ns, "none", 2, expect=stored["version"])
    assert nothing == {"index": 0, "op": "put", "applied": False, "reason": "absent", "key": "none", "value": None, "version": 0}
    assert kv.get(broker, ns, "none")["found"] is False
    fresh = kv.put(broker, ns, "k", 3, expect=stored["version"])
    assert fresh["applied"] is True and fresh["version"] > stored["version"]
    assert kv.absent(broker, ns, "k", 9)["reason"] == "exists"
    assert kv.absent(broker, ns, "k", 9, expect=0)["reason"] == "exists"
    assert kv.one(broker, "delete", ns, "k", expect=stored["version"])["reason"] == "version"
    assert kv.one(broker, "delete", ns, "k", expect=fresh["version"]) == {
        "index": 0, "op": "delete", "applied": True, "key": "k", "value": 3, "version": fresh["version"]}


def test_one_of_many_wins(broker, ns):
    # 104
    for round_number in range(3):
        key = "k%d" % round_number
        gate = threading.Barrier(50)
        answers = []

        def race(number, key=key, gate=gate, answers=answers):
            gate.wait()
            op = {"op": "putIfAbsent", "ns": ns, "key": key, "value": {"by": number}, "ttlSeconds": 60}
            answers.append((number, broker.fresh_request("POST", "/api/v1/kv", [op]).expect(200).json["results"][0]))

        threads = [threading.Thread(target=race, args=(n,)) for n in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [(n, a) for n, a in answers if a["applied"]]
        assert len(answers) == 50 and len(winners) == 1, answers
        number, won = winners[0]
        for n, answer in answers:
            if n != number:
                assert (answer["reason"], answer["value"], answer["version"]) == ("exists", {"by": number}, won["version"])


def test_delete_of_nothing(broker, ns):
    # 107
    assert kv.one(broker, "delete", ns, "k") == {"index": 0, "op": "delete", "applied": False, "reason": "absent", "key": "k", "value": None, "version": 0}
    assert kv.one(broker, "delete", ns, "k", expect=0) == {"index": 0, "op": "delete", "applied": True, "key": "k", "value": None, "version": 0}
    assert kv.one(broker, "delete", ns, "k", expect=5)["reason"] == "absent"
    kv.put(broker, ns, "k", 1)
    assert kv.one(broker, "delete", ns, "k", expect=0)["reason"] == "exists"


def test_check_looks_and_writes_nothing(broker, ns):
    stored = kv.put(broker, ns, "k", [1])
    assert kv.one(broker, "check", ns, "k", expect=stored["version"]) == {"index": 0, "op": "check", "applied": True, "key": "k", "version": stored["version"]}
    assert kv.one(broker, "check", ns, "none", expect=0) == {"index": 0, "op": "check", "applied": True, "key": "none", "version": 0}
    lost = kv.one(broker, "check", ns, "k", expect=0)
    assert lost == {"index": 0, "op": "check", "applied": False, "reason": "exists", "key": "k", "value": [1], "version": stored["version"]}
    assert kv.one(broker, "check", ns, "none", expect=4)["reason"] == "absent"
    verdict = kv.call(broker, {"op": "check", "ns": ns, "key": "k", "expect": 1, "required": True}).expect(200).json
    assert verdict == {"ok": False, "reason": "kv_precondition", "failedIndex": 0, "kvReason": "version", "version": stored["version"], "value": [1]}
    assert kv.get(broker, ns, "k")["version"] == stored["version"]


def test_required_op_that_loses_undoes_the_call(broker, ns):
    # 109
    stored = kv.put(broker, ns, "b", "old")
    verdict = kv.call(broker, {"op": "put", "ns": ns, "key": "a", "value": 1, "forever": True},
                      {"op": "putIfAbsent", "ns": ns, "key": "b", "value": 1, "forever": True, "required": True},
                      {"op": "put", "ns": ns, "key": "c", "value": 1, "forever": True}).expect(200).json
    assert verdict == {"ok": False, "reason": "kv_precondition", "failedIndex": 1, "kvReason": "exists", "version": stored["version"], "value": "old"}
    many = kv.results(broker, {"op": "getMany", "ns": ns, "keys": ["a", "b", "c"]})[0]
    assert many["missing"] == ["a", "c"] and many["rows"][0]["value"] == "old"


def test_only_the_verdict_when_a_required_op_loses(broker, ns):
    # 110
    kv.put(broker, ns, "b", 1)
    verdict = kv.call(broker, {"op": "putIfAbsent", "ns": ns, "key": "b", "value": 2, "forever": True},
                      {"op": "delete", "ns": ns, "key": "none", "required": True},
                      {"op": "get", "ns": ns, "key": "b"}).expect(200).json
    assert verdict == {"ok": False, "reason": "kv_precondition", "failedIndex": 1, "kvReason": "absent", "version": 0, "value": None}
    # Several that would lose: the first in order of (ns, key), whatever their place in the call.
    kv.put(broker, ns, "a", 1)
    verdict = kv.call(broker, {"op": "putIfAbsent", "ns": ns, "key": "b", "value": 2, "forever": True, "required": True},
                      {"op": "putIfAbsent", "ns": ns, "key": "a", "value": 2, "forever": True, "required": True}).expect(200).json
    assert verdict["failedIndex"] == 1


def test_order_inside_a_call(broker, ns):
    # 108
    kv.put(broker, ns, "k", "old")
    before, written, after = kv.results(broker, {"op": "get", "ns": ns, "key": "k"},
                                        {"op": "put", "ns": ns, "key": "k", "value": "new", "forever": True}, {"op": "get", "ns": ns, "key": "k"})
    assert (before["value"], after["value"], after["version"]) == ("old", "new", written["version"])
    kv.put(broker, ns, "a", 1)
    written, many, page = kv.results(broker, {"op": "put", "ns": ns, "key": "b", "value": 2, "forever": True},
                                     {"op": "getMany", "ns": ns, "keys": ["b", "a"]}, {"op": "getPrefix", "ns": ns, "prefix": "b"})
    assert [(r["key"], r["value"]) for r in many["rows"]] == [("a", 1), ("b", 2)]
    assert [r["version"] for r in page["rows"]] == [written["version"]]
    many, written = kv.results(broker, {"op": "getMany", "ns": ns, "keys": ["z"]}, {"op": "put", "ns": ns, "key": "z", "value": 2, "forever": True})
    assert many["rows"][0]["version"] == written["version"]  # also when it stands before the write


def test_what_was_answered_is_seen(broker, ns):
    # 115 (one node: by every other connection)
    for n in range(100):
        kv.put(broker, ns, "k", n)
        assert broker.fresh_request("GET", kv.path(ns, "k")).expect(200).json["value"] == n


# ---- counters ----------------------------------------------------------------------------------------------------------

def test_counter_with_a_bound(broker, ns):
    # 106
    assert kv.incr(broker, ns, "k", 1, max=2)["value"] == 1
    second = kv.incr(broker, ns, "k", 1, max=2)
    assert second == {"index": 0, "op": "incr", "applied": True, "key": "k", "value": 2, "version": second["version"]}
    lost = kv.incr(broker, ns, "k", 1, max=2)
    assert lost == {"index": 0, "op": "incr", "applied": False, "reason": "limit", "key": "k", "value": 2, "version": second["version"]}
    assert kv.incr(broker, ns, "first", 10, max=5) == {"index": 0, "op": "incr", "applied": False, "reason": "limit", "key": "first", "value": 0, "version": 0}
    assert kv.get(broker, ns, "first")["found"] is False
    assert kv.incr(broker, ns, "k", -3, min=-1)["value"] == -1
    assert kv.incr(broker, ns, "k", -0.5, min=-1)["reason"] == "limit"
    word = kv.put(broker, ns, "word", "7")
    assert kv.incr(broker, ns, "word", 1) == {"index": 0, "op": "incr", "applied": False, "reason": "type", "key": "word", "value": 0, "version": word["version"]}
    for value in (None, True, [1], {}):
        kv.put(broker, ns, "word", value)
        assert kv.incr(broker, ns, "word", 1)["reason"] == "type"
    kv.put(broker, ns, "aged", 5, ttlSeconds=1000)
    until = kv.get(broker, ns, "aged")["expiresAt"]
    assert kv.incr(broker, ns, "aged", 1, ttlSeconds=9)["value"] == 6
    assert kv.get(broker, ns, "aged")["expiresAt"] == until
    assert kv.incr(broker, ns, "aged", 1)["value"] == 7
    assert kv.get(broker, ns, "aged")["expiresAt"] == until
    verdict = kv.call(broker, {"op": "incr", "ns": ns, "key": "aged", "delta": 1, "max": 7, "forever": True, "required": True}).expect(200).json
    assert (verdict["kvReason"], verdict["value"]) == ("limit", 7)


def raw_incr(broker, ns, key, delta, more=""):
    """The bytes of the number an incr answers with, and whether it was applied."""
    body = '[{"op":"incr","ns":"%s","key":"%s","delta":%s,"forever":true%s}]' % (ns, key, delta, more)
    answer = broker.post("/api/v1/kv", body.encode()).expect(200).body
    element = json.loads(answer)["results"][0]
    return answer.split(b'"value":')[1].split(b",")[0].decode(), element["applied"]


@pytest.mark.parametrize("deltas,wanted", [
    (["0.1", "0.2"], "0.3"),  # 116
    (["1E5"], "100000"),
    (["1e-3", "-0.001"], "0"),
    (["-0"], "0"),
    (["-7", "2.50"], "-4.5"),
    (["9007199254740992", "1"], "9007199254740993"),
    (["9223372036854775807", "1"], "9223372036854775808"),
    (["12345678901234567890123456789012345678", "-1"], "12345678901234567890123456789012345677"),
    (["0.1234567890123456789012345678901234567", "0.0000000000000000000000000000000000001"], "0.1234567890123456789012345678901234568"),
    (["99999999999999999999999999999999999999", "-99999999999999999999999999999999999999"], "0"),
])
def test_sums_are_exact(broker, ns, deltas, wanted):
    # 116
    for delta in deltas:
        value, applied = raw_incr(broker, ns, "k", delta)
        assert applied, (delta, value)
    assert value == wanted
    assert kv.raw_value(broker.get(kv.path(ns, "k")).expect(200).body) == wanted.encode()


def test_a_sum_that_does_not_fit_is_refused(broker, ns):
    nines = "9" * 38
    assert raw_incr(broker, ns, "k", nines) == (nines, True)
    assert raw_incr(broker, ns, "k", "2") == (nines, False)
    assert raw_incr(broker, ns, "k", "0.1") == (nines, False)
    assert raw_incr(broker, ns, "k", "1", ',"max":' + nines) == (nines, False)
    assert raw_incr(broker, ns, "k", "-1", ',"max":' + nines) == (nines[:-1] + "8", True)
    broker.request("PUT", kv.path(ns, "e"), b'{"value":1e400,"forever":true}').expect(200)
    assert raw_incr(broker, ns, "e", "1") == ("1e400", False)
    assert raw_incr(broker, ns, "e", "0")[1] is True


def test_a_counter_of_many_clients_loses_nothing(broker, ns):
    def count():
        for _ in range(50):
            op = {"op": "incr", "ns": ns, "key": "k", "delta": 0.5, "forever": True}
            broker.post("/api/v1/kv", [op]).expect(200)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kv.get(broker, ns, "k")["value"] == 200


# ---- many keys, pages --------------------------------------------------------------------------------------------------

def test_pages_of_a_prefix(broker, ns):
    # 111
    kv.results(broker, *[{"op": "put", "ns": ns, "key": k, "value": k, "forever": True} for k in ("a", "b/1", "b/2", "b/3", "b/4", "b/5", "c")])
    kv.put(broker, ns + "2", "b/6", 1)
    pages, after = [], None
    while True:
        op = {"op": "getPrefix", "ns": ns, "prefix": "b/", "limit": 2}
        if after is not None:
            op["after"] = after
        page = kv.results(broker, op)[0]
        assert set(page) == {"index", "op", "rows", "truncated", "nextAfter"}
        pages.append([r["key"] for r in page["rows"]])
        after = page["nextAfter"]
        assert page["truncated"] is (after is not None)
        if after is None:
            break
        assert after == pages[-1][-1]
    assert pages == [["b/1", "b/2"], ["b/3", "b/4"], ["b/5"]]
    exact = kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "b/", "limit": 5})[0]
    assert exact["truncated"] is False and exact["nextAfter"] is None and len(exact["rows"]) == 5
    keys = kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "b/", "keysOnly": True, "after": "b/4"})[0]["rows"]
    assert [set(r) for r in keys] == [{"key", "version", "expiresAt", "updatedAt"}]
    clamped = kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "b/", "limit": 0})[0]
    assert len(clamped["rows"]) == 1 and clamped["truncated"] is True
    assert kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "b/", "after": "z"})[0]["rows"] == []
    assert len(kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "b/", "after": "a"})[0]["rows"]) == 5


def test_get_many(broker, ns):
    # 112
    kv.results(broker, {"op": "put", "ns": ns, "key": "z", "value": None, "forever": True}, {"op": "put", "ns": ns, "key": "a", "value": 0, "ttlSeconds": 99})
    many = kv.results(broker, {"op": "getMany", "ns": ns, "keys": ["z", "y", "a", "b", 7]})[0]
    assert set(many) == {"index", "op", "rows", "missing", "truncated"}
    assert [(r["key"], r["value"]) for r in many["rows"]] == [("a", 0), ("z", None)]
    assert all(set(r) == {"key", "value", "version", "expiresAt", "updatedAt"} and kv.KV_TIME.match(r["updatedAt"]) for r in many["rows"])
    assert many["missing"] == ["y", "b", "7"] and many["truncated"] is False
    assert kv.results(broker, {"op": "getMany", "ns": ns})[0]["rows"] == []
    null = kv.get(broker, ns, "z")
    assert null["found"] is True and null["value"] is None


def test_one_call_reads_four_mebibytes(broker, ns):
    value = "x" * 64998  # 65,000 bytes of JSON: the 65th row crosses the limit and is the last
    keys = ["k%02d" % n for n in range(70)]
    for start in range(0, 70, 10):
        kv.results(broker, *[{"op": "put", "ns": ns, "key": k, "value": value, "ttlSeconds": 600} for k in keys[start:start + 10]])
    many, page, alone = kv.results(broker, {"op": "getMany", "ns": ns, "keys": keys + ["zz"]}, {"op": "getPrefix", "ns": ns, "prefix": "k"},
                                   {"op": "get", "ns": ns, "key": "k69"})
    assert [r["key"] for r in many["rows"]] == keys[:65] and many["truncated"] is True
    assert not set(many["missing"]) & set(keys)
    assert page["rows"] == [] and page["truncated"] is True  # the limit is the call's
    assert alone["found"] is True
    page = kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "k", "limit": 1000})[0]
    assert len(page["rows"]) == 65 and page["nextAfter"] == "k64"
    rest = kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "k", "after": "k64"})[0]
    assert [r["key"] for r in rest["rows"]] == keys[65:] and rest["truncated"] is False
    only = kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "k", "keysOnly": True})[0]
    assert len(only["rows"]) == 70 and only["truncated"] is False


# ---- refusals ----------------------------------------------------------------------------------------------------------

def test_sizes(broker, ns):
    # 113
    assert kv.put(broker, ns, "k", "x" * 65534)["applied"] is True
    kv.refused(kv.call(broker, {"op": "put", "ns": ns, "key": "k", "value": "x" * 65535, "forever": True}), "kv_value_too_large", 413)
    padded = b'[{"op":"put","ns":"%s","key":"p","forever":true,"value":[1,%s2]}]' % (ns.encode(), b" " * 100000)
    assert broker.post("/api/v1/kv", padded).expect(200).json["results"][0]["value"] == [1, 2]
    assert kv.put(broker, ns, "k" * 512, 1)["applied"] is True
    kv.refused(kv.call(broker, {"op": "get", "ns": ns, "key": "k" * 513}), "kv_key_too_large", 413)
    assert kv.put(broker, ns, "\U0001f430" * 128, 1)["applied"] is True
    kv.refused(kv.call(broker, {"op": "get", "ns": ns, "key": "\U0001f430" * 128 + "x"}), "kv_key_too_large", 413)
    for bad in ("Bad", "", "a" * 65, "-a", ".a", "a b", "a/b", "\u00e9", None, True, [], {}):
        kv.refused(kv.call(broker, {"op": "get", "ns": bad, "key": "k"}), "kv_bad_namespace")
    for good in ("a" * 64, "0", "a.b_c-d", 7):
        assert kv.one(broker, "get", good, "none-" + ns)["found"] is False


def test_bad_fields(broker, ns):
    # 117
    base = {"op": "get", "ns": ns, "key": "k"}
    for field in ("tenant", "tenantId", "_tenant"):
        kv.refused(kv.call(broker, dict(base, **{field: "t"})), "kv_tenant_not_an_input")
    for name in ("nope", "PUT", "", None, 1):
        kv.refused(kv.call(broker, dict(base, op=name)), "kv_unknown_op")
    for name in ("put", "delete", "check", "putIfAbsent"):
        for expect in (None, -1, 1.5, "1", True):
            kv.refused(kv.call(broker, dict(base, op=name, value=1, forever=True, expect=expect)), "kv_bad_expect")
    kv.refused(kv.call(broker, dict(base, op="check")), "kv_bad_expect")
    kv.refused(kv.call(broker, dict(base, op="putIfAbsent", value=1, forever=True, expect=2)), "kv_bad_expect")
    kv.refused(kv.call(broker, dict(base, op="incr", delta=1, forever=True, expect=0)), "kv_bad_request")
    for key in ("", "a\0b", None, True, {}):
        kv.refused(kv.call(broker, dict(base, key=key)), "kv_bad_key")
    kv.refused(kv.call(broker, {"op": "getPrefix", "ns": ns, "prefix": ""}), "kv_prefix_required")
    kv.refused(kv.call(broker, {"op": "getPrefix", "ns": ns}), "kv_prefix_required")
    kv.refused(kv.call(broker, {"op": "getMany", "ns": ns, "keys": "k"}), "kv_bad_request")
    kv.refused(kv.call(broker, dict(base, op="put", forever=True)), "kv_bad_request")
    kv.refused(kv.call(broker, dict(base, op="put", forever=True, value=1, required="yes")), "kv_bad_request")
    kv.refused(kv.call(broker, dict(base, op="incr", forever=True, delta="1")), "kv_bad_request")
    kv.refused(kv.call(broker, 7), "kv_bad_request")
    put = dict(base, op="put", value=1, forever=True)
    kv.refused(kv.call(broker, put, dict(base, op="check", expect=0)), "kv_duplicate_key_in_call")
    for body in (b"", b"{", b"7", b"{}", b'{"operations":{}}', b'{"operations":[]}x', b'[{"op":"get","ns":"n","key":"\xff"}]'):
        kv.refused(broker.post("/api/v1/kv", body), "kv_bad_body")


def test_refused_whole_before_anything_is_written(broker, ns):
    good = {"op": "put", "ns": ns, "key": "k", "value": 1, "forever": True}
    kv.refused(kv.call(broker, good, {"op": "put", "ns": ns, "key": "l", "value": 1}), "kv_expiry_not_specified")
    assert kv.get(broker, ns, "k")["found"] is False


def test_counts(broker, ns):
    def gets(count):
        return [{"op": "get", "ns": ns, "key": n} for n in range(count)]

    assert len(kv.results(broker, *gets(256))) == 256
    kv.refused(kv.call(broker, *gets(257)), "kv_too_many_ops")
    keys = ["k%d" % n for n in range(1024)]
    assert len(kv.results(broker, {"op": "getMany", "ns": ns, "keys": keys})[0]["missing"]) == 1024
    kv.refused(kv.call(broker, {"op": "getMany", "ns": ns, "keys": keys}, *gets(1)), "kv_too_many_keys")
    kv.refused(kv.call(broker, {"op": "getPrefix", "ns": ns, "prefix": "k", "limit": 1000}, *gets(25)), "kv_too_many_keys")
    assert broker.post("/api/v1/kv", []).expect(200).json == {"results": []}
    assert broker.post("/api/v1/kv", {"operations": []}).expect(200).json == {"results": []}


def test_body_may_be_the_array(broker, ns):
    body = [{"op": "put", "ns": ns, "key": "k", "value": 1, "forever": True, "unknown": {"op": 1}}, {"op": "get", "ns": ns, "key": "k"}]
    answer = broker.post("/api/v1/kv", body).expect(200)
    assert answer.headers["content-type"] == "application/json"
    assert [r["op"] for r in answer.json["results"]] == ["put", "get"]


# ---- paths -------------------------------------------------------------------------------------------------------------

ODD_KEYS = ["a", "a/b", "/", "a//b/", "..", ".", "a b", "a+b", "100%", "%2F", "a?b", "a#b", 'q"q', "b\\s", "caf\u00e9", "\U0001f430/\U0001f955", "\n\t\x01", "\x7f",
            "a&b=c", "\u2028", "{}", "null"]


@pytest.mark.parametrize("key", ODD_KEYS, ids=range(len(ODD_KEYS)))
def test_odd_keys(broker, ns, key):
    written = broker.request("PUT", kv.path(ns, key), {"value": {"k": key}, "ttlSeconds": 60}).expect(200).json
    assert written == {"index": 0, "op": "put", "applied": True, "key": key, "value": {"k": key}, "version": written["version"]}
    by_call = kv.get(broker, ns, key)
    by_path = broker.get(kv.path(ns, key)).expect(200).json
    assert by_call == by_path and by_path["value"] == {"k": key}
    if "/" in key and key.strip("/") and "%" not in key and ord(max(key)) < 128:
        assert broker.get("/api/v1/kv/%s/%s" % (ns, key)).expect(200).json == by_path
    page = kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": key})[0]
    assert [r["key"] for r in page["rows"]] == [key]
    assert broker.delete(kv.path(ns, key)).expect(200).json["applied"] is True
    assert broker.get(kv.path(ns, key)).expect(200).json == {"index": 0, "op": "get", "found": False, "key": key}


def test_etag(broker, ns):
    # 114
    stored = kv.put(broker, ns, "k", [1])
    answer = broker.get(kv.path(ns, "k")).expect(200)
    assert answer.headers["etag"] == '"%d"' % stored["version"]
    assert set(answer.json) == {"index", "op", "found", "key", "value", "version", "expiresAt", "updatedAt"}
    head = broker.request("HEAD", kv.path(ns, "k")).expect(200)
    assert head.headers["etag"] == answer.headers["etag"] and head.body == b""
    miss = broker.get(kv.path(ns, "none")).expect(200)
    assert miss.json == {"index": 0, "op": "get", "found": False, "key": "none"} and "etag" not in miss.headers
    assert "etag" not in broker.request("PUT", kv.path(ns, "k"), {"value": 1, "forever": True}).expect(200).headers
    for method, body in (("GET", None), ("PUT", {"value": 1, "forever": True}), ("DELETE", None)):
        for suffix in ("?", "?a=b", "?expect=1"):
            kv.refused(broker.request(method, kv.path(ns, "k") + suffix, body), "kv_no_query_string")
    assert kv.get(broker, ns, "k")["found"] is True


def test_path_routes_take_their_key_from_the_path(broker, ns):
    for field in ("op", "ns", "namespace", "key"):
        kv.refused(broker.request("PUT", kv.path(ns, "k"), {"value": 1, "forever": True, field: "x"}), "kv_field_in_path")
        kv.refused(broker.delete(kv.path(ns, "k"), body={field: "x"}), "kv_field_in_path")
    kv.refused(broker.request("PUT", kv.path(ns, "k"), {"value": 1}), "kv_expiry_not_specified")
    kv.refused(broker.request("PUT", kv.path(ns, "k"), {"forever": True}), "kv_bad_request")
    kv.refused(broker.request("PUT", kv.path(ns, "k"), b""), "kv_bad_body")
    kv.refused(broker.request("PUT", kv.path("Bad", "k"), {"value": 1, "forever": True}), "kv_bad_namespace")
    kv.refused(broker.get("/api/v1/kv/%s/" % ns), "kv_bad_key")
    kv.refused(broker.get("/api/v1/kv/%s/%%00" % ns), "kv_bad_key")
    kv.refused(broker.get("/api/v1/kv//k"), "kv_bad_namespace")
    kv.refused(broker.get(kv.path(ns, "k" * 513)), "kv_key_too_large", 413)
    broker.get("/api/v1/kv/%s/%%zz" % ns).expect(400)
    broker.get("/api/v1/kv/" + ns).expect(404)
    assert broker.post(kv.path(ns, "k"), {}).expect(405).headers["allow"] == "GET, HEAD, PUT, DELETE"


def test_conditions_by_path(broker, ns):
    first = broker.request("PUT", kv.path(ns, "k"), {"value": 1, "ttlSeconds": 60, "expect": 0}).expect(200).json
    assert first["applied"] is True
    lost = broker.request("PUT", kv.path(ns, "k"), {"value": 2, "ttlSeconds": 60, "expect": 0}).expect(200).json
    assert (lost["applied"], lost["reason"], lost["value"]) == (False, "exists", 1)
    verdict = broker.request("PUT", kv.path(ns, "k"), {"value": 2, "ttlSeconds": 60, "expect": 0, "required": True}).expect(200).json
    assert verdict == {"ok": False, "reason": "kv_precondition", "failedIndex": 0, "kvReason": "exists", "version": first["version"], "value": 1}
    assert broker.delete(kv.path(ns, "k"), body={"expect": first["version"] + 1}).expect(200).json["reason"] == "version"
    assert broker.delete(kv.path(ns, "k"), body={"expect": first["version"]}).expect(200).json == {
        "index": 0, "op": "delete", "applied": True, "key": "k", "value": 1, "version": first["version"]}


# ---- console -----------------------------------------------------------------------------------------------------------

def test_browsing(broker, ns):
    kv.results(broker, *[{"op": "put", "ns": ns, "key": k, "value": [k], "forever": True} for k in ("b", "a", "c")])
    spaces = broker.get("/api/v1/resources/kv/namespaces").expect(200).json["namespaces"]
    names = [s["namespace"] for s in spaces]
    assert names == sorted(names) and {"namespace": ns, "keys": 3} in spaces
    page = broker.post("/api/v1/resources/kv/list", {"namespace": ns, "limit": 2}).expect(200).json
    assert page["namespace"] == ns and page["truncated"] is True and page["nextAfter"] == "b"
    assert [(r["key"], r["value"]) for r in page["rows"]] == [("a", ["a"]), ("b", ["b"])]
    rest = broker.post("/api/v1/resources/kv/list", {"namespace": ns, "prefix": "", "after": "b", "keysOnly": True}).expect(200).json
    assert [r["key"] for r in rest["rows"]] == ["c"] and "value" not in rest["rows"][0] and rest["nextAfter"] is None
    assert [r["key"] for r in broker.post("/api/v1/resources/kv/list", {"namespace": ns, "prefix": "a"}).expect(200).json["rows"]] == ["a"]
    assert broker.post("/api/v1/resources/kv/list", {"namespace": unique("none")}).expect(200).json["rows"] == []
    kv.refused(broker.post("/api/v1/resources/kv/list", {}), "kv_bad_namespace")
    kv.refused(broker.post("/api/v1/resources/kv/list", b"["), "kv_bad_body")


def test_many_edges_one_order(own_broker, ns):
    """Requests of several threads of the broker: what one was answered, every other sees."""
    broker = own_broker(env={"QUEEN_EDGE_THREADS": "3"})
    failures, total = [], 6 * 40

    def work(number):
        try:
            for n in range(40):
                key = "k%d" % number
                written = kv.results(broker, {"op": "put", "ns": ns, "key": key, "value": n, "forever": True},
                                     {"op": "incr", "ns": ns, "key": "sum", "delta": 1, "forever": True})
                row = broker.fresh_request("GET", kv.path(ns, key)).expect(200).json
                assert (row["value"], row["version"]) == (n, written[0]["version"])
                page = kv.results(broker, {"op": "getPrefix", "ns": ns, "prefix": "k"})[0]
                assert [r["value"] for r in page["rows"] if r["key"] == key] == [n]
                held = broker.post("/api/v1/locks", [{"op": "acquire", "name": ns, "ttlSeconds": 60, "owner": key}]).expect(200).json["results"][0]
                if held["acquired"]:
                    answer = broker.post("/api/v1/locks", [{"op": "release", "name": ns, "token": held["token"]}]).expect(200).json["results"][0]
                    assert answer["released"] is True
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert kv.get(broker, ns, "sum")["value"] == total


# ---- settings ----------------------------------------------------------------------------------------------------------

def test_limits_can_be_set_lower(own_broker, ns):
    broker = own_broker(env={"QUEEN_KV_MAX_VALUE_BYTES": "10", "QUEEN_KV_MAX_OPS_PER_CALL": "2", "QUEEN_KV_MAX_KEYS_PER_CALL": "3"})
    assert kv.put(broker, ns, "k", "12345678")["applied"] is True
    kv.refused(kv.call(broker, {"op": "put", "ns": ns, "key": "k", "value": "123456789", "forever": True}), "kv_value_too_large", 413)
    kv.refused(kv.call(broker, *[{"op": "get", "ns": ns, "key": n} for n in range(3)]), "kv_too_many_ops")
    kv.refused(kv.call(broker, {"op": "getMany", "ns": ns, "keys": [1, 2, 3]}, {"op": "get", "ns": ns, "key": 1}), "kv_too_many_keys")


def test_full_disk_refuses_what_grows(own_broker, ns):
    broker = own_broker()
    kv.put(broker, ns, "k", 1)
    kv.put(broker, ns, "l", 1)
    held = broker.post("/api/v1/locks", [{"op": "acquire", "name": ns, "ttlSeconds": 600}]).expect(200).json["results"][0]
    broker.restart(env={"QUEEN_RAFT_DISK_HIGH_PCT": "1", "QUEEN_RAFT_DISK_LOW_PCT": "1"})
    put = {"op": "put", "ns": ns, "key": "k", "value": 2, "forever": True}
    wait_until(lambda: kv.call(broker, put).status == 507, 5, "the disk counts as full")
    delete = {"op": "delete", "ns": ns, "key": "l"}
    for response in (kv.call(broker, put), kv.call(broker, delete, put), broker.request("PUT", kv.path(ns, "n"), {"value": 1, "forever": True}),
                     kv.call(broker, {"op": "incr", "ns": ns, "key": "n", "delta": 1, "forever": True}),
                     broker.post("/api/v1/locks", [{"op": "acquire", "name": ns + "2", "ttlSeconds": 600}])):
        body = response.expect(507).json
        assert body["error"] == "storage_full" and body["detail"]
    many = kv.results(broker, {"op": "getMany", "ns": ns, "keys": ["k", "l", "n"]})[0]
    assert [r["key"] for r in many["rows"]] == ["k", "l"]
    assert kv.results(broker, delete, {"op": "check", "ns": ns, "key": "n", "expect": 0})[0]["applied"] is True
    assert broker.delete(kv.path(ns, "k")).expect(200).json["applied"] is True
    assert broker.post("/api/v1/locks", [{"op": "release", "name": ns, "token": held["token"]}]).expect(200).json["results"][0]["released"] is True


def test_rates(own_broker, ns):
    tenant = {"x-queen-tenant": "00000000-0000-0000-0000-0000000000aa"}
    broker = own_broker(env={"QUEEN_KV_WRITE_RATE": "1", "QUEEN_KV_WRITE_BURST": "3", "QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    op = {"op": "put", "ns": ns, "key": "k", "value": 1, "forever": True}
    statuses = [kv.call(broker, op).status for _ in range(5)]
    assert statuses[:3] == [200] * 3 and statuses[-1] == 429
    answer = kv.call(broker, op, {"op": "get", "ns": ns, "key": "l"})
    if answer.status == 429:  # unless a second has passed
        assert answer.json["error"] == "rate_limited" and int(answer.headers["retry-after"]) >= 1
    assert kv.get(broker, ns, "k")["found"] is True  # reads have their own
    assert kv.call(broker, op, headers=tenant).status == 200  # and so have other tenants
    wait_until(lambda: kv.call(broker, op).status == 200, 5, "a token is back", every=0.2)


def test_tenants_have_their_own_keys(own_broker, ns):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    other = {"x-queen-tenant": "00000000-0000-0000-0000-0000000000aa"}
    kv.put(broker, ns, "k", "mine")
    op = {"op": "get", "ns": ns, "key": "k"}
    assert kv.results(broker, op, headers=other)[0]["found"] is False
    assert kv.results(broker, {"op": "putIfAbsent", "ns": ns, "key": "k", "value": "theirs", "forever": True}, headers=other)[0]["applied"] is True
    assert kv.get(broker, ns, "k")["value"] == "mine"
    assert broker.get(kv.path(ns, "k"), headers=other).expect(200).json["value"] == "theirs"
    spaces = broker.get("/api/v1/resources/kv/namespaces", headers=other).expect(200).json["namespaces"]
    assert spaces == [{"namespace": ns, "keys": 1}]
    lock = [{"op": "acquire", "name": "l", "ttlSeconds": 60}]
    for headers in (None, other):
        assert broker.post("/api/v1/locks", lock, headers=headers).expect(200).json["results"][0]["acquired"] is True
