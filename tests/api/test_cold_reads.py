"""Old messages, whose bytes are on disk only: looked at, fetched, moved and popped like new ones."""

import base64
import json
import re

import pytest

from queen import ids, query, quote, unique
from timers import peek, rows, schedule

SMALL = {"QUEEN_LOG_CACHE_BYTES": str(1 << 20), "QUEEN_RAFT_SEGMENT_BYTES": str(1 << 20), "QUEEN_SCRUB_BYTES_S": "0"}
MESSAGES = 300
ROOM = "x" * 4000


def cold_reads(broker):
    return int(re.search(r"^queen_log_cold_reads_total(?:{[^}]*})? (\d+)", broker.get("/metrics/prometheus").body.decode(), re.M).group(1))


@pytest.fixture
def cold(own_broker, queue):
    """A broker, and a queue whose messages m000.. have left memory."""
    broker = own_broker(env=SMALL)
    broker.configure(queue, leaseTime=60)
    for at in range(0, MESSAGES, 50):
        broker.push([{"queue": queue, "partition": "p%d" % (n % 3), "transactionId": "m%03d" % n, "payload": {"n": n, "room": ROOM}}
                     for n in range(at, at + 50)]).expect(201)
    return broker


def push_out(broker):
    other = unique("fresh")
    for _ in range(10):
        broker.push([{"queue": other, "payload": {"room": ROOM}} for _ in range(100)]).expect(201)


def test_a_list_of_cold_messages(cold, queue):
    push_out(cold)
    before = cold_reads(cold)
    whole = cold.get("/api/v1/messages" + query({"queue": queue, "limit": 1000})).expect(200).json
    assert sorted(m["transactionId"] for m in whole["messages"]) == ["m%03d" % n for n in range(MESSAGES)]
    assert all(m["payload"] == {"n": int(m["transactionId"][1:]), "room": ROOM} for m in whole["messages"])
    assert whole["total"] == MESSAGES
    assert cold_reads(cold) > before
    pages = []
    for offset in range(0, MESSAGES, 70):
        page = cold.get("/api/v1/messages" + query({"queue": queue, "limit": 70, "offset": offset})).expect(200).json
        pages += page["messages"]
    assert pages == whole["messages"]


def test_one_cold_message(cold, queue):
    push_out(cold)
    row = cold.get("/api/v1/messages" + query({"queue": queue, "limit": 1, "partition": "p1"})).expect(200).json["messages"][0]
    for name in ("m001", "m151", "m298"):
        one = cold.get("/api/v1/messages/%s/%s" % (row["partitionId"], quote(name))).expect(200).json
        assert one["payload"] == {"n": int(name[1:]), "room": ROOM}
    cold.get("/api/v1/messages/%s/none" % row["partitionId"]).expect(404)


def test_a_fetch_of_cold_messages(cold, queue):
    push_out(cold)
    got = cold.post("/api/v1/fetch", {"entries": [{"queue": queue, "partition": "p%d" % p, "offset": 0, "maxBytes": 8 << 20}
                                                  for p in range(3)]}).expect(200).json
    for p, entry in enumerate(got["entries"]):
        assert [r["offset"] for r in entry["records"]] == list(range(MESSAGES // 3))
        assert [r["payload"]["n"] for r in entry["records"]] == list(range(p, MESSAGES, 3))


def test_a_fetch_that_waits_for_cold_messages_to_be_enough(cold, queue):
    push_out(cold)
    entries = [{"queue": queue, "partition": "p0", "offset": 90, "maxBytes": 8 << 20}]
    got = cold.post("/api/v1/fetch", {"entries": entries, "maxWaitMs": 300, "minBytes": 8 << 20}).expect(200).json
    assert [r["payload"]["n"] for r in got["entries"][0]["records"]] == list(range(270, 300, 3))


def test_cold_dead_letters(cold, queue):
    taken = []
    for _ in range(12):
        batch = cold.take(queue, group="g", subscriptionMode="all", batch=1)
        for m in batch["messages"]:
            cold.ack(m, "dlq", "no", group="g")
        taken += ids(batch)
    push_out(cold)
    letters = cold.dlq(queue, limit=1000)
    assert sorted(m["transactionId"] for m in letters["messages"]) == sorted(taken)
    assert all(m["data"] == {"n": int(m["transactionId"][1:]), "room": ROOM} for m in letters["messages"])
    assert cold_reads(cold) > 0
    one = letters["messages"][7]
    moved = cold.post("/api/v1/dlq/%s/replay" % one["id"], {"queue": queue + "-again"}).expect(200).json
    assert (moved["result"], moved["originalTransactionId"]) == ("moved", one["transactionId"])
    again = cold.take(queue + "-again", group="g", subscriptionMode="all")
    assert again["messages"][0]["data"] == one["data"]
    push_out(cold)
    two = letters["messages"][9]
    deleted = cold.delete("/api/v1/messages/%s/%s" % (two["partitionId"], quote(two["transactionId"]))).expect(200).json
    assert deleted["deleted"] == 1


def test_cold_timers(cold, queue):
    schedule(cold, queue, "later", 3600000, payload={"room": ROOM})
    push_out(cold)
    listed = rows(cold, queue)["rows"]
    assert [row["timerKey"] for row in listed] == ["later"] and "damaged" not in listed[0]
    push_out(cold)
    assert base64.b64decode(peek(cold, queue, "later")["payload"]) == json.dumps({"room": ROOM}).encode()
