"""QUEEN_MEMORY_MAX: the broker's memory stays below it whatever is asked of it, and what left memory is answered as ever.

QUEEN_TEST_MEMORY_MAX  another bound for the broker than the one that is checked: with a large one these tests must fail."""

import json
import os
import re
import socket
import threading
import time

import pytest

from kv import call
from queen import RawConnection, unique, wait_until

MIB = 1024 * 1024
BOUND = 128 * MIB


def bounded_broker(own_broker, **env):
    return own_broker(env=dict({"QUEEN_MEMORY_MAX": os.environ.get("QUEEN_TEST_MEMORY_MAX", str(BOUND))}, **env))


class Memory:
    """Samples what the process holds of its own (RssAnon)."""

    def __init__(self, broker):
        self.pid, self.peak, self.halt = broker.pid, 0, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def now(self):
        with open("/proc/%d/status" % self.pid, encoding="ascii") as file:
            return int(re.search(r"RssAnon:\s+(\d+)", file.read()).group(1)) * 1024

    def run(self):
        while not self.halt.wait(0.02):
            self.peak = max(self.peak, self.now())

    def end(self):
        self.halt.set()
        self.thread.join()
        return self.peak


def parallel(count, run):
    errors = []

    def guarded(n):
        try:
            run(n)
        except BaseException as error:  # shown by the test
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert errors == [], errors


def patient(ask, good=(200, 201), seconds=20):
    """Asks until the broker has room; a refusal must say when to come again."""
    end = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer.status in good:
            return answer
        assert answer.status in (429, 503) and int(answer.headers["retry-after"]) >= 1, answer
        assert time.monotonic() < end, answer
        time.sleep(0.05)


def kv_value(n):
    return "value-%06d-" % n + "%04d" % (n * 7919 % 10000) * 250


def kv_write(broker, first, last):
    for at in range(first, last, 100):
        ops = [{"op": "put", "ns": "m", "key": "k%06d" % n, "value": kv_value(n), "forever": True} for n in range(at, min(at + 100, last))]
        patient(lambda: call(broker, *ops))


def kv_check(broker, count):
    """Every value, half of them by key and half by prefix."""
    seen = {}
    for at in range(0, count // 2, 500):
        keys = ["k%06d" % n for n in range(at, min(at + 500, count // 2))]
        for row in patient(lambda: call(broker, {"op": "getMany", "ns": "m", "keys": keys})).json["results"][0]["rows"]:
            seen[row["key"]] = row["value"]
    after = "k%06d" % (count // 2 - 1)
    while after is not None:
        op = {"op": "getPrefix", "ns": "m", "prefix": "k", "limit": 1000, "after": after}
        result = patient(lambda: call(broker, op)).json["results"][0]
        for row in result["rows"]:
            seen[row["key"]] = row["value"]
        after = result["nextAfter"] if result["truncated"] else None
    assert len(seen) == count
    assert all(seen["k%06d" % n] == kv_value(n) for n in range(count))


def slow_reader(broker, path):
    """Asks for much and takes nothing."""
    raw = RawConnection.__new__(RawConnection)
    raw.sock, raw.pending = socket.socket(), b""
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.sock.settimeout(60)
    raw.sock.connect(("127.0.0.1", broker.port))
    raw.send(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
    return raw


def backlog(broker, queue, count):
    payload = ["%d" % (n % 10) * MIB for n in range(10)]

    def push(n):
        for at in range(n, count, 4):
            item = {"queue": queue, "partition": "p%d" % (at % 50), "transactionId": "b%d" % at, "payload": payload[at % 10]}
            patient(lambda: broker.push([item]))

    parallel(4, push)


def backlog_check(broker, queue, count):
    got = {}

    def drain(_):
        while True:
            answer = patient(lambda: broker.pop(queue, autoAck=True, batch=50, partitions=4), good=(200, 204))
            if answer.status == 204:
                return
            for m in answer.json["messages"]:
                got[m["transactionId"]] = got.get(m["transactionId"], 0) + (m["data"] == "%d" % (int(m["transactionId"][1:]) % 10) * MIB)

    parallel(2, drain)
    assert got == {"b%d" % n: 1 for n in range(count)}


def lanes(broker, queue, count):
    for at in range(0, count, 2000):
        items = [{"queue": queue, "partition": "lane-%d" % n, "payload": n} for n in range(at, min(at + 2000, count))]
        patient(lambda: broker.push(items))
    got = set()
    while len(got) < count:
        answer = patient(lambda: broker.pop(queue, autoAck=True, batch=200, partitions=64), good=(200, 204))
        if answer.status == 200:
            got |= {m["data"] for m in answer.json["messages"]}
    assert got == set(range(count))


@pytest.mark.seconds(25)
def test_memory_stays_below_its_bound_under_a_mixed_load(own_broker):
    broker = bounded_broker(own_broker)
    memory = Memory(broker)
    queue, lanes_queue, poll_queue = unique("big"), unique("lanes"), unique("poll")
    messages, values, lane_count, polls, readers = 120, 24000, 3000, 400, 60
    try:
        parked = [broker.raw(timeout=60) for _ in range(polls)]
        for n, raw in enumerate(parked):
            raw.send(b"GET /api/v1/pop/queue/%s/partition/p%d?wait=true&timeout=60000&autoAck=true HTTP/1.1\r\nHost: x\r\n\r\n"
                     % (poll_queue.encode(), n))
        backlog(broker, queue, messages)
        parallel(3, lambda n: kv_write(broker, values * n // 3, values * (n + 1) // 3))
        path = "/api/v1/pop/queue/%s?consumerGroup=slow-%%d&subscriptionMode=all&batch=100&partitions=64" % queue
        slow = [slow_reader(broker, path % n) for n in range(readers)]
        lanes(broker, lanes_queue, lane_count)
        assert broker.get("/health").status == 200
        kv_check(broker, values)
        [raw.close() for raw in slow]
        patient(lambda: broker.push([{"queue": poll_queue, "partition": "p%d" % n, "payload": n} for n in range(polls)]))
        assert [raw.read_response().json["messages"][0]["data"] for raw in parked] == list(range(polls))
        backlog_check(broker, queue, messages)
        peak = memory.end()
        assert peak < BOUND, "%.1f MiB" % (peak / MIB)
        broker.kill()
        broker.start()
        memory = Memory(broker)
        kv_check(broker, values)
        peak = memory.end()
        assert peak < BOUND, "%.1f MiB after the start" % (peak / MIB)
    finally:
        memory.end()
