"""What tests say about timers: ops, calls, and the times in answers."""

import base64
import datetime
import json

from queen import query, quote

_ABSENT = object()


def packed(payload):
    """The payload field: base64 of these bytes, or of the value's JSON text."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return base64.b64encode(data).decode()


def op_schedule(queue, key, delay_ms, txn=None, payload=_ABSENT, **more):
    payload = {"key": key} if payload is _ABSENT else payload
    return dict({"op": "schedule", "queue": queue, "timerKey": key, "delayMs": delay_ms, "txn": txn or "txn-" + key,
                 "payload": packed(payload)}, **more)


def op_cancel(queue, key, **more):
    return dict({"op": "cancel", "queue": queue, "timerKey": key}, **more)


def call(broker, *ops):
    """POST of these ops, which must be taken. Returns the results."""
    results = broker.post("/api/v1/timers", {"operations": list(ops)}).expect(200).json["results"]
    assert [(r["queue"], r["timerKey"]) for r in results] == [(o["queue"], o["timerKey"]) for o in ops], results
    return results


def schedule(broker, queue, key, delay_ms, txn=None, payload=_ABSENT, **more):
    return call(broker, op_schedule(queue, key, delay_ms, txn, payload, **more))[0]


def cancel(broker, queue, key, txn=None):
    """DELETE. Returns the element."""
    return broker.delete(path(queue, key) + query({"txn": txn})).expect(200).json


def path(queue, key=None):
    return "/api/v1/timers/" + quote(queue) + ("" if key is None else "/" + quote(key))


def peek(broker, queue, key):
    """The timer, or None."""
    answer = broker.get(path(queue, key)).expect(200).json
    assert (answer["queue"], answer["timerKey"]) == (queue, key)
    if answer["found"]:
        return answer
    assert answer == {"found": False, "queue": queue, "timerKey": key}
    return None


def rows(broker, queue, **params):
    return broker.get(path(queue) + query(params)).expect(200).json


def count(broker, queue, prefix):
    answer = broker.get(path(queue) + query({"mode": "count", "prefix": prefix})).expect(200).json
    assert set(answer) == {"count"}
    return answer["count"]


def transaction(broker, *ops, **parts):
    """A transaction of these timer ops (and other parts). Returns the parsed answer."""
    return broker.post("/api/v1/transaction", dict(parts, timers=list(ops))).expect(200).json


def micros(text):
    """Microseconds since 1970 of a time in an answer."""
    when = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return (when - epoch) // datetime.timedelta(microseconds=1)
