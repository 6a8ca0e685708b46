"""Helpers for tests of transactions: operations built from popped messages, the call, and what to look at afterwards."""

import base64
import json

from queen import QUEUE_MODE, quote


def transact(broker, headers=None, timeout=75.0, **members):
    """POST /api/v1/transaction with these members. Returns the Response."""
    return broker.post("/api/v1/transaction", members, headers=headers, timeout=timeout)


def commit(broker, **members):
    """A transaction that must commit. Returns the answer; its results carry indexes 0, 1, 2, ..."""
    answer = transact(broker, **members).expect(200).json
    assert answer["success"] is True, answer
    assert [r["index"] for r in answer["results"]] == list(range(len(answer["results"]))), answer
    return answer


def refuse(broker, reason, status=200, **members):
    """A transaction that must be refused with this reason. Returns the answer."""
    answer = transact(broker, **members).expect(status).json
    assert (answer["success"], answer["reason"], answer["results"]) == (False, reason, []), answer
    assert answer["error"], answer
    return answer


def ack_op(message, status="completed", error=None, **changes):
    """The ack of a popped message. A change to None leaves the field out."""
    op = {"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"],
          "leaseId": message["leaseId"], "status": status, "error": error}
    if message["consumerGroup"] != QUEUE_MODE:
        op["consumerGroup"] = message["consumerGroup"]
    op.update(changes)
    return {k: v for k, v in op.items() if v is not None}


def item(queue, transaction_id=None, payload=1, partition="p"):
    one = {"queue": queue, "partition": partition, "payload": payload}
    if transaction_id is not None:
        one["transactionId"] = transaction_id
    return one


def push_op(*items):
    return {"type": "push", "items": list(items)}


def put(key, value=1, ns="test", **more):
    return dict({"op": "put", "ns": ns, "key": key, "value": value, "forever": True}, **more)


def once(key, value=1, ns="test", ttl=600, **more):
    """A marker that gates the transaction: lost when it is there already."""
    return dict({"op": "putIfAbsent", "ns": ns, "key": key, "value": value, "ttlSeconds": ttl, "required": True}, **more)


def incr(key, delta=1, ns="test", **more):
    return dict({"op": "incr", "ns": ns, "key": key, "delta": delta, "forever": True}, **more)


def get(key, ns="test"):
    return {"op": "get", "ns": ns, "key": key}


def timer(queue, key, txn, delay_ms=600000, payload=None, **more):
    data = base64.b64encode(json.dumps({"timer": key} if payload is None else payload).encode()).decode()
    return dict({"op": "schedule", "queue": queue, "timerKey": key, "delayMs": delay_ms, "txn": txn, "payload": data}, **more)


def cancel(queue, key, **more):
    return dict({"op": "cancel", "queue": queue, "timerKey": key}, **more)


def kv_read(broker, key, ns="test"):
    """The value of a key, or None when it is absent."""
    element = broker.post("/api/v1/kv", [get(key, ns)]).expect(200).json["results"][0]
    return element["value"] if element["found"] else None


def timer_is_pending(broker, queue, key):
    return broker.get("/api/v1/timers/%s/%s" % (quote(queue), quote(key))).expect(200).json["found"]


def leased(broker, queue, names="abc", group="g", lease_seconds=None, **options):
    """Configures, pushes one message a letter to lane p, and pops them all. Returns the messages by name."""
    if options:
        broker.configure(queue, **options)
    broker.push_ids(queue, list(names), "p")
    answer = broker.take(queue, group=group, subscriptionMode="all", leaseSeconds=lease_seconds)
    assert [m["transactionId"] for m in answer["messages"]] == list(names)
    return {m["transactionId"]: m for m in answer["messages"]}


def ids_of(response):
    return [m["transactionId"] for m in response.json["messages"]] if response.status == 200 else []


def still_leased(broker, queue, group="g", count=None):
    """Is the whole batch as it was: leased, nothing of it acked?"""
    depth = broker.depth(queue, group)
    return depth["processing"] == depth["pending"] and (count is None or depth["pending"] == count)
