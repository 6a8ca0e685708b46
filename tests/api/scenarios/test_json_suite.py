"""The JSON grammar, case by case: accepted documents as payload and inside a body, all others refused; and sizes.

The cases are made here from the grammar of RFC 8259."""

import time

import pytest

from queen import raw_data

WS = [b" ", b"\t", b"\n", b"\r", b" \t\r\n "]
SCALARS = [b"null", b"true", b"false", b"0", b'"s"']


def accepted():
    yield from (b"{}", b"[]", b'{"a":[]}', b"[{}]", b'{"a":{"b":{"c":[1,[2,[3]]]}}}', b'[[],[[]],[[[]]]]', b'{"a":1,"b":2}', b'{"":0}', b'{"a\\u0000b":1}')
    yield from SCALARS
    for sign in (b"", b"-"):
        for whole in (b"0", b"1", b"10", b"123456789012345678901"):
            for fraction in (b"", b".0", b".5", b".00000000000000000001"):
                for exponent in (b"", b"e0", b"E1", b"e+1", b"E-1", b"e00", b"e-123456"):
                    yield sign + whole + fraction + exponent
    for escape in b'"\\/bfnrt':
        yield b'"\\%c"' % escape
    for code in (b"0000", b"0022", b"005C", b"007f", b"00E9", b"20ac", b"FFFF", b"fffe", b"d834\\udd1e", b"DBFF\\uDFFF"):
        yield b'"\\u%s"' % code
    for text in ("\u0080", "\u07ff", "\u0800", "\u20ac", "\uffff", "\ufffe", "\U00010000", "\U0010ffff", "\x7f", "\u2028\u2029", "\ufeff", "'"):
        yield b'"%s"' % text.encode()
    for space in WS:
        yield space.join((b"[", b"1", b",", b"2", b"]"))
        yield space.join((b"{", b'"a"', b":", b"1", b",", b'"b"', b":", b"2", b"}"))
    yield b"[" + b",".join([b"0"] * 10000) + b"]"
    yield b"{" + b",".join(b'"k%d":%d' % (i, i) for i in range(5000)) + b"}"
    yield b'"' + b"x" * 300000 + b'"'
    yield b"1" * 5000
    yield b"[" * 400 + b"]" * 400


def refused():
    yield from (b"[", b"]", b"{", b"}", b"[}", b"{]", b"[[]", b"[]]", b"{{}}", b"{}}", b"[1", b"[1,", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,')
    yield from (b"[,]", b"[1,,2]", b"[1,]", b"[,1]", b"[1 2]", b"[1;2]", b"[1:2]", b'["a":1]', b'{"a",1}', b'{"a":1:2}', b'{"a":1,}', b'{,"a":1}',
                b'{"a":1,,"b":2}', b'{"a" 1}', b'{"a"::1}', b'{"a":}', b"{:1}", b"{1:1}", b"{a:1}", b"{null:1}", b"{[]:1}", b"{'a':1}", b'{"a":1 "b":2}')
    yield from (b"nul", b"nulll", b"NULL", b"Null", b"tru", b"truee", b"True", b"TRUE", b"fals", b"falsy", b"undefined", b"NaN", b"-NaN", b"nan", b"Infinity",
                b"-Infinity", b"inf", b"None")
    yield from (b"+1", b"-", b"--1", b"+-1", b"- 1", b"01", b"-01", b"00", b"-00", b"1.", b"-1.", b".1", b"-.1", b"1..2", b"1.2.3", b"1.e1", b".e1", b"e1",
                b"1e", b"1e+", b"1e-", b"1E", b"1ee1", b"1e1e1", b"1e1.5", b"1e++1", b"0x1", b"0b1", b"0o7", b"1_000", b"1,000.", b"1f", b"1d", b"1L", b"1a", b"1-1",
                b"1+1", b"1 000", b"0 1", b"-a", b"\xef\xbc\x91", b"\xc2\xb2", b"1\x00", b"1e\x00")
    yield from (b'"', b'"a', b'a"', b"'a'", b"`a`", b'"a"b"', b'"\\', b'"\\"', b'"\\a"', b'"\\x41"', b'"\\\'"', b'"\\0"', b'"\\ "', b'"\\U0041"', b'"\\u"', b'"\\u1"',
                b'"\\u12"', b'"\\u123"', b'"\\u123g"', b'"\\uzzzz"', b'"\\u 123"', b'"\\u+123"', b'"\\u-123"', b'"\\\xc3\xa9"', b'"\\\n"')
    for control in range(32):
        yield b'"a%cb"' % control
        yield b'{"a%cb":1}' % control
    for control in (b"\x00", b"\x01", b"\x08", b"\x0b", b"\x0c", b"\x1f", b"\x7f", b"\xc2\x85", b"\xc2\xa0", b"\xe2\x80\xa8", b"\xe2\x81\xa0", b"\xef\xbb\xbf"):
        yield b"[%s1]" % control
        yield b"[1%s]" % control
        yield b"[1,%s2]" % control
        yield b'{%s"a":1}' % control
        yield b'{"a"%s:1}' % control
    for bad in (b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80",
                b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xfe", b"\xff", b"\xe2\x82", b"\xf0\x9f\x90", b"\xc3("):
        yield b'"%s"' % bad
        yield b'{"%s":1}' % bad
        yield b"[%s]" % bad
    yield from (b"/* c */1", b"1/* c */", b"1//c\n", b"# c\n1", b"[1/**/]", b"[1]#", b"<null>", b"$", b"@", b"?", b"\\", b"\\u0031", b"[\\n]", b"(1)", b"[...]", b"*")
    yield from (b"1 2", b"null null", b"[] []", b"{} {}", b'"a" "b"', b"[]1", b"{}x", b"1]", b"1}", b"null,", b",null", b":", b",")


ACCEPTED = list(accepted())
REFUSED = list(refused())
GROUP = 40


def groups(cases):
    return [cases[i:i + GROUP] for i in range(0, len(cases), GROUP)]


@pytest.mark.parametrize("cases", groups(ACCEPTED), ids=range(len(groups(ACCEPTED))))
def test_accepted_documents(broker, queue, cases):
    for case in cases:
        answer = broker.push_raw(queue, case)
        assert answer.status == 201, (case[:200], answer)
        ignored = broker.post("/api/v1/push", b'{"ignored":%s,"items":[]}' % case)
        assert ignored.status == 201, (case[:200], ignored)
    assert raw_data(broker.pop(queue, "p", batch=1000).expect(200).body) == cases


@pytest.mark.parametrize("cases", groups(REFUSED), ids=range(len(groups(REFUSED))))
def test_refused_documents(broker, queue, cases):
    for case in cases:
        bodies = {
            "payload": b'{"items":[{"queue":"%s","partition":"p","payload":%s}]}' % (queue.encode(), case),
            "payload before": b'{"items":[{"payload":%s,"queue":"%s","partition":"p"}]}' % (case, queue.encode()),
            "ignored field": b'{"items":[],"ignored":%s}' % case,
            "ignored field before": b'{"ignored":%s,"items":[]}' % case,
            "ignored field of an item": b'{"items":[{"queue":"%s","payload":1,"ignored":%s}]}' % (queue.encode(), case),
            "whole body": case,
        }
        for name, body in bodies.items():
            answer = broker.post("/api/v1/push", body)
            assert answer.status == 400, (name, case[:200], answer)
    assert broker.queue_detail(queue) is None


@pytest.mark.parametrize("route", ["/api/v1/ack", "/api/v1/ack/batch", "/api/v1/configure"])
def test_refused_documents_on_other_routes(broker, route):
    for case in REFUSED[::7]:
        assert broker.post(route, b'{"queue":"none","transactionId":"a","partitionId":"1","ignored":%s}' % case).status == 400, case


@pytest.mark.parametrize("depth", [513, 10 ** 4, 10 ** 5, 10 ** 6])
@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'[{"a":'])
def test_deep_nesting_is_refused_quickly(broker, queue, depth, unit):
    begin = time.monotonic()
    memory = broker.resident_bytes()
    for body in (unit * depth, b'{"items":[{"queue":"%s","payload":' % queue.encode() + unit * depth,
                 b'{"items":[{"queue":"%s","payload":' % queue.encode() + b"[" * depth + b"]" * depth + b"}]}"):
        assert broker.post("/api/v1/push", body).status == 400
    assert time.monotonic() - begin < 5
    assert broker.resident_bytes() - memory < 256 * 1024 * 1024
    assert broker.queue_detail(queue) is None


def test_items_of_every_wrong_kind(broker):
    for value in (b"null", b"{}", b"1", b'"[]"', b"true", b"[null]", b"[[]]", b"[1]", b'["x"]', b"[{}]", b"[{}," + b"{}," * 1000 + b"{}]"):
        answer = broker.post("/api/v1/push", b'{"items":%s}' % value)
        assert (answer.status, answer.json["code"]) == (400, "bad_body")


def test_a_hundred_thousand_items(broker, queue):
    item = b'{"queue":"%s","payload":1}' % queue.encode()
    answer = broker.post("/api/v1/push", b'{"items":[' + b",".join([item] * 100000) + b"]}").expect(201)
    results = answer.json
    assert len(results) == 100000
    assert results[99999]["offset"] == 99999
    assert {r["status"] for r in results} == {"queued"}
    assert broker.depth(queue)["pending"] == 100000


def test_string_of_32_mib(broker, queue):
    payload = b'"' + b"\\n" * (16 * 1024 * 1024) + b'"'
    assert broker.push_raw(queue, payload).expect(201).json[0]["status"] == "queued"
    answer = broker.pop(queue, "p").expect(200)
    assert payload in answer.body
    bad = payload[:-2] + b'"'
    assert broker.push_raw(queue, bad[:-1] + b"\\").status == 400


def test_time_is_linear_in_the_size(broker, queue):
    def seconds(count):
        body = b'{"items":[{"queue":"%s","payload":[' % queue.encode() + b",".join([b'{"k":[1,"\\u00e9"]}'] * count) + b"]}]}"
        best = 9.0
        for _ in range(3):
            best = min(best, broker.post("/api/v1/push", body).expect(201).elapsed)
        return best

    small, large = seconds(20000), seconds(200000)
    assert large < 40 * max(small, 0.002)
