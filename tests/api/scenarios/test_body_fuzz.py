"""Bodies that are nearly right, sent to every route that takes one: each is taken, or refused with a reason in JSON. None stops the broker,
hangs, makes it grow, or leaves in the log what a start could not read."""

import json
import os
import random
import threading
import time

import pytest
import timers
from backup_kit import queen
from cluster import Cluster
from queen import TEST_ALL, ids, wait_until

SECONDS = 600 if TEST_ALL else 5
THREADS = 3
GROWTH_MAX = 200 << 20
SLOW_S = 30.0  # nothing here waits, but the machine may be busy
FINE = (*range(200, 205), *range(400, 430), 503, 507)
LEASE = "00000000-0000-7000-8000-000000000000"

STRINGS = ("", "a", "p", "g", "k", "x" * 64, "x" * 65, "x" * 412, "x" * 513, "x" * 5000, "\u0000", "a\nb", "\ud800", "é\U0001f600", "..", "%2F", "\\", "\"",
           "completed", "failed", "retry", "dlq", "put", "putIfAbsent", "incr", "delete", "getPrefix", "schedule", "cancel", "acquire", "renew",
           "release", "ack", "push", "true", "0", LEASE, "2026-01-01T00:00:00Z", "not base64")  # fmt: skip
NUMBERS = (0, 1, -1, 2, 7, 60, 1000, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, 1e300)
TOKENS = (b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\u0000", b"\\ud800", b"1e999", b"-", b"nul", b"true", b"\x00", b"\xff", b"\xc3\x28", b" " * 100,
          b"[" * 600, b"/*", b"9" * 400)  # fmt: skip


def seeds(queue, message):
    """(method, path, a body that would do). `message` is leased."""
    lease, partition, transaction = message["leaseId"], message["partitionId"], message["transactionId"]
    item = {"queue": queue, "partition": "p", "transactionId": "t", "traceId": LEASE, "payload": {"n": 1}}
    ack = {"transactionId": transaction, "partitionId": partition, "leaseId": lease, "consumerGroup": "g", "status": "completed", "error": "no"}
    put = {"op": "put", "ns": "s", "key": "k", "value": {"v": 1}, "ttlSeconds": 60, "expect": 1}
    once = {"op": "putIfAbsent", "ns": "s", "key": "once", "value": 1, "forever": True, "required": True}
    timer = timers.op_schedule(queue, "k", 3600000, partition="p")
    group = "/api/v1/consumer-groups/"
    return [
        ("POST", "/api/v1/push", {"items": [item, dict(item, transactionId="u"), {"queue": queue, "payload": "x"}]}),
        ("POST", "/api/v1/ack", ack),
        ("POST", "/api/v1/ack/batch", {"consumerGroup": "g", "acknowledgments": [ack, dict(ack, status="retry")]}),
        ("POST", "/api/v1/lease/%s/extend" % lease, {"seconds": 30}),
        ("POST", "/api/v1/transaction", {
            "operations": [dict(ack, type="ack"), {"type": "push", "items": [item, dict(item, queue=queue + "-2")]}], "requiredLeases": [lease],
            "kv": [put, once, {"op": "incr", "ns": "s", "key": "n", "delta": 2, "min": 0, "max": 9, "forever": True}, {"op": "get", "ns": "s", "key": "k"}],
            "timers": [timer, timers.op_cancel(queue, "other")]}),
        ("POST", "/api/v1/transaction", {
            "operations": [{"type": "push", "items": [item]}],
            "next": {"queue": queue, "consumerGroup": "g", "batch": 3, "partitions": 2, "leaseSeconds": 5}}),
        ("POST", "/api/v1/kv", {"operations": [put, {"op": "delete", "ns": "s", "key": "d", "expect": 1}, {"op": "getMany", "ns": "s", "keys": ["k", "l"]},
                                               {"op": "getPrefix", "ns": "s", "prefix": "k", "limit": 10}]}),
        ("PUT", "/api/v1/kv/s/k", {"value": [1, 2], "ttlSeconds": 60}),
        ("POST", "/api/v1/resources/kv/list", {"namespace": "s", "prefix": "k", "after": "a", "limit": 5, "keysOnly": True}),
        ("POST", "/api/v1/locks", {"operations": [{"op": "acquire", "name": "l", "ttlSeconds": 5, "owner": "o", "permits": 2},
                                                  {"op": "renew", "name": "m", "ttlSeconds": 5, "owner": "o", "token": 1}, {"op": "get", "name": "n"}]}),
        ("POST", "/api/v1/configure", {"queue": queue, "mode": "merge", "options": {
            "leaseTime": 30, "retryLimit": 2, "dedupWindowSeconds": 60, "retentionSeconds": 3600, "retentionEnabled": True, "delayedProcessing": 0,
            "windowBuffer": 0, "deadLetterQueue": True, "namespace": "n", "task": "t", "maxWaitTimeSeconds": 0}}),
        ("POST", "/api/v1/timers", {"operations": [timer, timers.op_cancel(queue, "c"), dict(timer, timerKey="l", txn="l")]}),
        ("POST", "/api/v1/fetch", {"entries": [{"queue": queue, "partition": "p", "offset": 0, "maxBytes": 1000}]}),
        ("POST", "/api/v1/fetch/offsets", {"entries": [{"queue": queue, "partition": "p", "timestamp": 1}]}),
        ("POST", "/api/v1/partitions/changed", {"entries": [{"queue": queue, "since": "2026-01-01T00:00:00Z", "limit": 5}]}),
        ("POST", group + "g/queues/%s/seek" % queue, {"offset": 0, "timestamp": "2026-01-01T00:00:00Z", "toEnd": False}),
        ("POST", group + "g/queues/%s/partitions/p/seek" % queue, {"timestamp": "2026-01-01T00:00:00Z"}),
        ("POST", group + "g/subscription", {"subscriptionTimestamp": "2026-01-01T00:00:00Z"}),
        ("POST", group + "positions", {"consumerGroup": "g", "entries": [{"queue": queue, "partition": "p"}, {"queue": queue}]}),
        ("POST", "/api/v1/dlq/%s/replay" % LEASE, {"queue": queue, "consumerGroup": "g"}),
        ("POST", "/api/v1/stats/refresh", {}),
    ]  # fmt: skip


def places(value):
    """Every (container, key) in a tree."""
    found = []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        found.append((value, key))
        found += places(part)
    return found


def strange(rng):
    roll = rng.random()
    if roll < 0.4:
        return rng.choice(STRINGS)
    if roll < 0.75:
        return rng.choice(NUMBERS)
    return rng.choice((None, True, False, [], {}, [[]], {"a": 1}, [None], ["a"] * 300, {"k%d" % n: n for n in range(100)}))


def change(rng, body):
    """Changes the tree in one place."""
    where = places(body)
    if not where:
        body[rng.choice(STRINGS)] = strange(rng)
        return
    container, key = rng.choice(where)
    roll = rng.random()
    if roll < 0.55:
        container[key] = strange(rng)
    elif roll < 0.7:
        del container[key]
    elif roll < 0.8 and isinstance(container, list):
        container.extend([container[key]] * rng.choice((1, 2, 70, 300)))
    elif isinstance(container, dict):
        container[rng.choice(STRINGS) if roll < 0.9 else rng.choice([k for _, k in where if isinstance(k, str)] or ["a"])] = strange(rng)


def spoil(rng, text):
    """Changes the text in one place."""
    at, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    roll = rng.random()
    if roll < 0.3:
        return text[:at] + rng.choice(TOKENS) + text[at:]
    if roll < 0.5:
        return text[:at] + text[min(end, at + 20):]
    if roll < 0.7:
        return text[:at] + text[at:end] + text[at:end] + text[end:]
    if roll < 0.85:
        return text[:at]
    return text[:at] + bytes([rng.randrange(256)]) + text[at + 1:]


def body_of(rng, seed):
    body = json.loads(json.dumps(seed))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        change(rng, body)
    text = json.dumps(body, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        text = spoil(rng, text)
    return text


class Fuzz:
    """Threads that send bodies to a broker until the time is over."""

    def __init__(self, asked, queue, seed):
        self.asked, self.queue, self.seed = asked, queue, seed
        self.counts = {}
        self.problems = []
        self.end = time.monotonic() + SECONDS
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(THREADS)]

    def problem(self, text):
        self.problems.append(text)
        self.end = 0

    def run(self, number):
        rng = random.Random("%s/%d" % (self.seed, number))
        try:
            while time.monotonic() < self.end or (self.end > 0 and self.few() and time.monotonic() < self.end + 60):
                self.one_round(rng, self.asked[rng.randrange(len(self.asked))], "%s-%d" % (self.queue, number))
        except Exception as error:  # told by the test
            self.problem(repr(error))

    def few(self):
        """Too few were taken or refused to say anything: the machine is slow."""
        return self.counts.get(400, 0) <= 100 or self.counts.get(200, 0) + self.counts.get(201, 0) <= 100

    def one_round(self, rng, broker, queue):
        """With a message that is leased, so that acks can be right."""
        broker.push([{"queue": queue, "partition": "p", "transactionId": "m-%d" % rng.randrange(1 << 60), "payload": 1}])
        taken = broker.pop(queue, group="g", subscriptionMode="all", leaseSeconds=5, wait=True, timeout=50)
        messages = taken.json["messages"] if taken.status == 200 else []
        found = seeds(queue, messages[0] if messages else {"leaseId": LEASE, "partitionId": "1", "transactionId": "m"})
        for method, path, seed in rng.choices(found, k=30):
            text = body_of(rng, seed)
            answer = broker.request(method, path, text, {"Content-Type": "application/json"})
            self.judge(method, path, text, answer)

    def judge(self, method, path, text, answer):
        self.counts[answer.status] = self.counts.get(answer.status, 0) + 1
        what = "%s %s %r: %r after %.1f s" % (method, path, text[:3000], answer, answer.elapsed)
        if answer.status not in FINE or answer.elapsed > SLOW_S:
            return self.problem(what)
        if answer.status == 204:
            return None
        try:
            body = json.loads(answer.body)
        except ValueError:
            return self.problem("not JSON: " + what)
        if answer.status >= 400 and not (isinstance(body, dict) and isinstance(body.get("error"), str) and body["error"]):
            self.problem("no reason: " + what)
        return None

    def go(self):
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        assert not self.problems, "seed %s\n%s" % (self.seed, "\n".join(self.problems[:5]))
        assert not self.few(), self.counts


@pytest.fixture
def seed():
    value = int(os.environ.get("QUEEN_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print("QUEEN_TEST_SEED=%d" % value)
    return value


def whole(folder):
    """Every record and row of a stopped node's directory is one that a start can read."""
    done = queen("inspect", folder, "check")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.seconds(7)
def test_bodies_that_are_nearly_right(own_broker, queue, seed):
    broker = own_broker()
    kept = queue + "-kept"
    broker.push_ids(kept, ["a", "b"], "p")
    Fuzz([broker], queue + "-warm", seed + 1).one_round(random.Random(seed), broker, queue + "-warm")
    before = broker.resident_bytes()
    Fuzz([broker], queue, seed).go()
    assert broker.running and broker.resident_bytes() - before < GROWTH_MAX
    for how in ("kill", "stop"):
        broker.restart(how)
        assert ids(broker.take(kept, "p", group=how, subscriptionMode="all")) == ["a", "b"]
    broker.stop()
    whole(broker.data_dir)


@pytest.mark.seconds(8)
def test_bodies_that_are_nearly_right_in_a_cluster(queue, seed):
    """What is planned on one node is applied on three, which end up with equal state."""
    with Cluster(3, env={"QUEEN_RAFT_SEGMENT_BYTES": str(1 << 20)}) as cluster:
        nodes = cluster.voters()
        kept = queue + "-kept"
        nodes[0].push_ids(kept, ["a", "b"], "p")
        Fuzz(nodes, queue, seed).go()

        def equal():
            found = {(s["appliedIndex"], s["lastLogIndex"]) for s in (node.status() for node in nodes) if s is not None}
            return len(found) == 1 and len(set(found.pop())) == 1

        wait_until(equal, 15, "the nodes come to the same entry\n" + cluster.tails())
        for node in nodes:
            assert node.running, node.output()[-3000:]
            node.kill()
            node.launched()
        cluster.wait_ready()
        for node in nodes:
            taken = node.take(kept, "p", group="after-%d" % node.number, subscriptionMode="all", wait=True, timeout=5000)
            assert ids(taken) == ["a", "b"]
        for node in nodes:
            node.kill()
            whole(node.data_dir)
