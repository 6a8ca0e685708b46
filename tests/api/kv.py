"""What the tests of KV and locks share. Works with any object that has the request methods of queen.Broker."""

import re

from queen import quote

KV_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,5}[1-9])?\+00:00$")


def call(broker, *ops, **kwargs):
    """POST /api/v1/kv with these ops; the Response."""
    return broker.post("/api/v1/kv", {"operations": list(ops)}, **kwargs)


def results(broker, *ops, **kwargs):
    """The result elements of a call that must be answered with results."""
    answer = call(broker, *ops, **kwargs).expect(200).json
    assert [r["index"] for r in answer["results"]] == list(range(len(ops))), answer
    assert [r["op"] for r in answer["results"]] == [op["op"] for op in ops], answer
    return answer["results"]


def one(broker, name, ns, key, **fields):
    """The result element of a single op."""
    return results(broker, dict(fields, op=name, ns=ns, key=key))[0]


def get(broker, ns, key):
    return one(broker, "get", ns, key)


def put(broker, ns, key, value, **fields):
    if "ttlSeconds" not in fields:
        fields["forever"] = True
    return one(broker, "put", ns, key, value=value, **fields)


def incr(broker, ns, key, delta, **fields):
    if "ttlSeconds" not in fields:
        fields["forever"] = True
    return one(broker, "incr", ns, key, delta=delta, **fields)


def absent(broker, ns, key, value, **fields):
    if "ttlSeconds" not in fields:
        fields["forever"] = True
    return one(broker, "putIfAbsent", ns, key, value=value, **fields)


def refused(response, reason, status=400, error=None):
    """The envelope of a refusal, its reason given."""
    body = response.expect(status).json
    assert body["reason"] == reason, body
    assert body["error"] == (error or ("payload_too_large" if status == 413 else "kv_bad_request")), body
    assert isinstance(body["detail"], str) and body["detail"], body
    return body


def path(ns, key):
    return "/api/v1/kv/%s/%s" % (quote(ns), quote(key))


def raw_value(body):
    """The bytes of the only element's value, as sent."""
    match = re.match(rb'^\{"index":0,"op":"\w+",(?:"found"|"applied"):true,"key":"(?:[^"\\]|\\.)*","value":(.*),"version":\d+', body, re.S)
    assert match, body[:300]
    return match.group(1)
