"""Transactions whose client dies, whose answer is lost, or that are as large as they may be."""

import base64
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

from queen import TEST_ALL, ids, quote, raw_data, unique, wait_until
from step_kit import ack_op, cancel, commit, get, incr, item, kv_read, leased, once, push_op, put, refuse, timer, timer_is_pending, transact
from test_json_numbers import PAYLOADS

MIB = 1024 * 1024


# ---- a cut connection ----

class Cutter:
    """A proxy for one request a connection. `mode` says when it cuts:
        before    half of the request is passed on
        between   the whole request is passed on, and both sides are closed at once
        after     the broker's answer has come, and is thrown away"""

    def __init__(self, broker):
        self.broker = broker
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.mode = "after"
        self.cuts = 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client:
                self.serve(client)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.cuts += 1

    def serve(self, client):
        head, length = b"", None
        while length is None or len(head) < length:
            head += client.recv(65536)
            if length is None and b"\r\n\r\n" in head:
                end = head.index(b"\r\n\r\n") + 4
                length = end + int(head[:end].lower().split(b"content-length:")[1].split(b"\r\n")[0])
        with socket.create_connection(("127.0.0.1", self.broker.port)) as server:
            server.sendall(head[:len(head) // 2] if self.mode == "before" else head)
            if self.mode == "after":
                server.settimeout(10)
                assert server.recv(12) == b"HTTP/1.1 200"

    def send(self, body):
        """Sends the transaction through the proxy: there is never an answer."""
        with socket.create_connection(("127.0.0.1", self.port)) as raw:
            raw.sendall(b"POST /api/v1/transaction HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            raw.settimeout(10)
            try:
                assert raw.recv(100) == b""
            except ConnectionResetError:
                pass

    def close(self):
        self.listener.close()


def test_lost_answer_is_told_from_a_refusal(own_broker, queue):
    # The same step is sent until it is answered. Whatever was cut, its effects are there once, and the repeat says which it was.
    rounds = 1000 if TEST_ALL else 200
    broker = own_broker()
    cutter = Cutter(broker)
    told = {}
    broker.push_ids(queue, ["m%d" % i for i in range(rounds)] + ["end"], "p")
    for i in range(rounds):
        # Two are taken and one is done, so that the lease outlives the step; or one, and the lease ends with it.
        pair = i % 2 == 0
        batch = broker.take(queue, group="g", subscriptionMode="all", batch=2 if pair else 1)["messages"]
        message = batch[0]
        assert message["transactionId"] == "m%d" % i
        pushed = item(queue + "-out", "out-%d" % i if i % 4 < 2 else None, i)
        step = {"operations": [ack_op(message), push_op(pushed)], "kv": [once("%s-%d" % (queue, i)), incr(queue)],
                "timers": [timer(queue + "-timers", "t%d" % i, "n%d" % i)]}
        cutter.mode = ("before", "after", "between")[random.randrange(3)] if i % 3 else "after"
        cutter.send(json.dumps(step).encode())
        if i % 50 == 49:
            broker.restart("kill")
        answer = transact(broker, **step).expect(200).json
        done = kv_read(broker, "%s-%d" % (queue, i))
        assert done == 1
        outcome = "success" if answer["success"] else answer["reason"]
        told.setdefault((cutter.mode, outcome), 0)
        told[cutter.mode, outcome] += 1
        if cutter.mode == "before":
            assert answer["success"] is True, answer
        elif cutter.mode == "after" or not answer["success"]:
            # Acks are judged first, then pushes, then KV.
            assert outcome == ("rejected_ack" if not pair else "duplicate" if "transactionId" in pushed else "kv_precondition"), (i, answer)
            if outcome == "kv_precondition":
                assert (answer["kvReason"], answer["value"]) == ("exists", 1)
        if pair:
            commit(broker, operations=[ack_op(batch[1], "retry")])
    cutter.close()
    assert kv_read(broker, queue) == rounds
    assert [m["data"] for m in broker.drain(queue + "-out")] == list(range(rounds))
    count = broker.get("/api/v1/timers/%s?mode=count&prefix=t" % quote(queue + "-timers")).expect(200).json["count"]
    assert count == rounds
    assert broker.depth(queue, "g")["pending"] == 1
    assert {outcome for mode, outcome in told if mode == "after"} == {"rejected_ack", "duplicate", "kv_precondition"}


# ---- clients that die while they send ----

HALF_SENDER = """
import socket, sys, time
port, count, size = map(int, sys.argv[1:4])
body = b'{"operations":[{"type":"push","items":[{"queue":"%s","payload":"' % sys.argv[4].encode()
held = []
for _ in range(count):
    raw = socket.create_connection(("127.0.0.1", port))
    raw.sendall(b"POST /api/v1/transaction HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n" % size)
    try:
        raw.sendall(body + b"x" * (size * 9 // 10 - len(body)))
    except (BrokenPipeError, ConnectionResetError):
        pass
    held.append(raw)
print("sent", flush=True)
time.sleep(600)
"""


@pytest.mark.seconds(23)
def test_half_sent_transactions_hold_up_nobody(own_broker, queue, tmp_path):
    size, each, cut_after_s = 10 * MIB, 17, 25
    broker = own_broker()
    script = tmp_path / "half.py"
    script.write_text(HALF_SENDER)
    m = leased(broker, queue, [str(i) for i in range(10)])

    def traffic(seconds):
        """Steps on the lanes that the half requests are about to push to. Gives the time that 19 of 20 kept."""
        trace, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            begin = time.monotonic()
            answer = commit(broker, operations=[push_op(item(queue + "-half", None, len(trace))), ack_op(m["0"])], kv=[put(queue, 1)],
                            next={"queue": queue + "-half", "consumerGroup": "g", "subscriptionMode": "all"})
            assert [x["data"] for x in answer["next"]["messages"]] == [len(trace)]
            assert broker.ack(answer["next"]["messages"][0])["success"] is True
            trace.append(time.monotonic() - begin)
        return sorted(trace)[len(trace) * 95 // 100]

    senders = []
    alone = traffic(2)
    pushed = len(broker.drain(queue + "-half"))
    before = broker.resident_bytes()
    try:
        for _ in range(3):
            senders.append(subprocess.Popen([sys.executable, str(script), str(broker.port), str(each), str(size), queue + "-half"],
                                            stdout=subprocess.PIPE))
        for sender in senders:
            assert sender.stdout.readline() == b"sent\n"
        stops, closes, sleeps = senders
        sleeps.send_signal(signal.SIGSTOP)
        closes.kill()
        began = time.monotonic()
        assert len(broker.drain(queue + "-half")) == pushed
        assert traffic(3) < 5 * alone + 0.1
        assert broker.resident_bytes() < before + 160 * MIB

        def connections():
            text = broker.get("/metrics/prometheus").expect(200).body.decode()
            return [float(x.split()[1]) for x in text.splitlines() if x.startswith("queen_http_connections ")][0]

        # Who stopped is cut by the time a body may take. There is nothing of theirs to clean up.
        wait_until(lambda: connections() <= 2, cut_after_s, "the half requests are cut", every=0.2)
        assert time.monotonic() - began < cut_after_s + 2
    finally:
        for sender in senders:
            sender.kill()
            sender.wait()
            sender.stdout.close()
    commit(broker, operations=[ack_op(m["9"])])
    assert broker.depth(queue, "g")["pending"] == 0


# ---- rules and limits ----

def test_stale_lease_duplicate_and_lost_marker_together(broker, queue):
    m = leased(broker, queue, "ab", lease_seconds=1)
    broker.push_ids(queue + "-out", ["r"], "p")
    commit(broker, kv=[put(queue)])
    wait_until(lambda: broker.depth(queue, "g")["processing"] == 0, 5, "the lease ran out")
    step = {"operations": [push_op(item(queue + "-out", "r")), ack_op(m["a"])], "kv": [once(queue)], "timers": [timer(queue + "-t", "t", "n")]}
    refuse(broker, "rejected_ack", **step)
    live = broker.take(queue, group="g")["messages"]
    step["operations"][1] = ack_op(live[0])
    refuse(broker, "duplicate", **step)
    step["operations"][0] = push_op(item(queue + "-out", "s"), item(queue + "-out", "s"), item(queue + "-out"))
    refuse(broker, "kv_precondition", **step)
    step["operations"][1] = ack_op(live[0], consumerGroup=None)
    refuse(broker, "rejected_ack", **step)
    assert not timer_is_pending(broker, queue + "-t", "t")
    step["operations"][1] = ack_op(live[0])
    step["kv"] = [get(queue), put(queue, 2), get(queue)]
    results = commit(broker, **step)["results"]
    assert (results[1]["duplicate"], results[1]["messageId"]) == (True, results[0]["messageId"])
    assert results[2]["transactionId"] == results[2]["messageId"]
    assert (results[4]["value"], results[6]["value"]) == (1, 2)
    assert ids(broker.take(queue + "-out"))[1:] == ["s", results[2]["messageId"]]


def test_too_many_and_twice(broker, queue):
    push = [push_op(item(queue, "x"))]
    for status, kv in ((400, [put("k%d" % i) for i in range(65)]), (400, [{"op": "getMany", "ns": "test", "keys": [str(i) for i in range(257)]}]),
                       (400, [put("k"), put("k")]), (400, [{"op": "getPrefix", "ns": "test", "prefix": "k"}])):
        assert transact(broker, operations=push, kv=kv).expect(status).json["reason"].startswith("kv_")
    refuse(broker, "bad_request", 400, operations=push, timers=[timer(queue, "t", "1"), timer(queue, "t", "2")])
    assert broker.queue_detail(queue) is None and not timer_is_pending(broker, queue, "t")


def body_of(queue, size):
    head = b'{"operations":[{"type":"push","items":[{"queue":"%s","payload":"' % queue.encode()
    tail = b'"}]}],"kv":[{"op":"put","ns":"test","key":"%s","value":1,"forever":true}]}' % queue.encode()
    return head + b"x" * (size - len(head) - len(tail)) + tail


def test_largest_body(own_broker, queue):
    broker = own_broker()
    with broker.raw() as raw:
        raw.send(b"POST /api/v1/transaction HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (64 * MIB + 1))
        assert raw.read_response().status == 413
    assert broker.queue_detail(queue) is None
    answer = broker.post("/api/v1/transaction", body_of(queue, 64 * MIB)).expect(200).json
    assert answer["success"] is True and kv_read(broker, queue) == 1
    stored = broker.take(queue)["messages"][0]["data"]
    assert 64 * MIB - 300 < len(stored) < 64 * MIB
    broker.restart("kill")
    assert broker.take(queue, group="g", subscriptionMode="all")["messages"][0]["data"] == stored


def zstd_of_spaces(size):
    """A Zstandard frame of blanks and a 1: JSON that is large only when it is unpacked."""
    blocks, left = b"", size - 1
    while left:
        run = min(left, 128 * 1024)
        blocks += struct.pack("<I", (run << 3) | 2)[:3] + b" "
        left -= run
    blocks += struct.pack("<I", (1 << 3) | 1)[:3] + b"1"
    return struct.pack("<IBBI", 0xFD2FB528, 0x80, 0x38, size) + blocks


def unpacked_timer(queue, key, size):
    return dict(timer(queue, key, key), payload=base64.b64encode(zstd_of_spaces(size)).decode(), payloadZstd=True)


def test_transaction_that_unpacks_to_more_than_one_may_be(own_broker, queue):
    broker = own_broker()
    assert commit(broker, timers=[unpacked_timer(queue, "small", 1000)])["results"][0]["ok"] is True
    for timers, payload in (([48, 49], 0), ([40, 30], 30)):
        operations = [push_op(item(queue + "-out", "x", "x" * (payload * MIB)))]
        refuse(broker, "too_large", operations=operations, kv=[put(queue)], timers=[unpacked_timer(queue, "t%d" % n, n * MIB) for n in timers])
    assert kv_read(broker, queue) is None and broker.queue_detail(queue + "-out") is None
    large = [unpacked_timer(queue, "t1", 40 * MIB), unpacked_timer(queue, "t2", 50 * MIB)]
    assert [r["status"] for r in commit(broker, kv=[put(queue)], timers=large)["results"][1:]] == ["scheduled", "scheduled"]
    broker.restart("kill")
    assert timer_is_pending(broker, queue, "small") and kv_read(broker, queue) == 1
    assert [r["status"] for r in commit(broker, timers=[cancel(queue, "t1"), cancel(queue, "t2")])["results"]] == ["cancelled", "cancelled"]


# ---- payloads ----

def test_payloads_keep_their_bytes_through_a_transaction(own_broker, queue):
    broker = own_broker()
    for i, payload in enumerate(PAYLOADS):
        name = queue.encode()
        body = (b'{"operations":[{"type":"push","items":[{"queue":"%s","partition":"p","payload":%s}]},'
                b'{"type":"push","payload": %s ,"partition":"q","queue":"%s"}],'
                b'"timers":[{"op":"schedule","queue":"%s","partition":"t","timerKey":"t%d","delayMs":0,"txn":"t%d","payload":"%s"}]}') % (
                    name, payload, payload, name, name, i, i, base64.b64encode(payload))
        assert broker.post("/api/v1/transaction", body).expect(200).json["success"] is True
    count = "/api/v1/timers/%s?mode=count&prefix=t" % quote(queue)
    wait_until(lambda: broker.get(count).expect(200).json["count"] == 0, 10, "the timers fired")
    for how in (None, "kill"):
        if how is not None:
            broker.restart(how)
        group = unique("g")
        for lane in "pqt":
            answer = broker.pop(queue, lane, group=group, subscriptionMode="all", batch=1000).expect(200)
            assert raw_data(answer.body) == PAYLOADS


KV_VALUES = [p for p in PAYLOADS if len(p) < 65536]


@pytest.mark.parametrize("payload", KV_VALUES, ids=range(len(KV_VALUES)))
def test_value_of_a_key_keeps_its_digits_in_a_transaction(broker, queue, payload):
    key = queue.encode()
    body = b'{"kv":[{"op":"put","ns":"test","key":"%s","value":%s,"forever":true},{"op":"get","ns":"test","key":"%s"}]}' % (key, payload, key)
    answer = broker.post("/api/v1/transaction", body).expect(200)
    compact = compacted(payload)
    assert answer.body.count(b'"value":' + compact + b",") == 2, answer.body
    assert answer.json["success"] is True


def compacted(text):
    """Without white space outside of strings."""
    out, inside, escaped = bytearray(), False, False
    for c in text:
        if inside:
            escaped = c == 0x5C and not escaped
            if c == 0x22 and not (len(out) and out[-1] == 0x5C and odd_backslashes(out)):
                inside = False
            out.append(c)
        elif c not in b" \t\r\n":
            inside = c == 0x22
            out.append(c)
    return bytes(out)


def odd_backslashes(out):
    count = 0
    for c in reversed(out):
        if c != 0x5C:
            break
        count += 1
    return count % 2 == 1
