"""A load of pushers, consumers and an administrator, one thread and one connection each. Everything goes into a History."""
import json
import random
import threading
import time

from crash_broker import Gone
from crash_history import AckPlan, Push

QUEUES = ("jobs", "mail", "events")
LANES = tuple(f"lane-{i}" for i in range(5))
GROUPS = ("workers", "audit")
LEASES_S = (2, 4)


def payload(rng, token):
    """Odd spacing: it must come back byte for byte. Mostly small, now and then large, so that segments roll."""
    roll = rng.random()
    size = rng.randrange(10, 300) if roll < 0.93 else rng.randrange(2000, 20000) if roll < 0.99 else rng.randrange(100000, 300000)
    pad = rng.choice("abcdef") * size
    return f'{{"tok": {token},  "n":[1, 2,3],"pad":"{pad}" }}'.encode()


def make_push(history, rng, size, queues=QUEUES, lanes=LANES, one_lane=False):
    items = []
    queue, lane = rng.choice(queues), rng.choice(lanes)
    for _ in range(size):
        if not one_lane:
            queue, lane = rng.choice(queues), rng.choice(lanes)
        token = history.token()
        txid = None if rng.random() < 0.1 else f"id-{token}"
        items.append((queue, lane, txid, payload(rng, token), token))
    return Push(items)


class Load:
    """start() spawns the threads, stop() ends them politely, join() waits for them after a crash."""

    def __init__(self, broker, history, seed, pushers=3, consumers=3, admin=None):
        self.broker, self.history, self.seed = broker, history, seed
        self.stopping = threading.Event()
        self.threads = []
        self.lost_sent = []  # (time sent, what) of calls without an answer
        self.answers = 0
        jobs = [self.push_loop] * pushers + [self.consume_loop] * consumers
        if admin is not None:
            jobs.append(lambda _number, rng: admin.loop(self, rng))
        for number, job in enumerate(jobs):
            rng = random.Random(f"{seed}/{number}")
            self.threads.append(threading.Thread(target=self.guard, args=(job, number, rng), daemon=True))

    def start(self):
        for thread in self.threads:
            thread.start()
        return self

    def stop(self):
        self.stopping.set()
        self.join()

    def join(self, timeout=60):
        self.stopping.set()
        for thread in self.threads:
            thread.join(timeout)
            if thread.is_alive():
                self.history.problem("a client hangs: its call was neither answered nor cut")

    def guard(self, job, number, rng):
        try:
            job(number, rng)
        except Gone:
            pass
        except Exception as error:  # a client must not fail in silence
            self.history.problem(f"client {number}: {type(error).__name__}: {error}")

    def call(self, conn, method, path, body=b""):
        sent = time.monotonic()
        try:
            answer = conn.call(method, path, body)
            self.answers += 1
            return answer
        except Gone:
            self.lost_sent.append((sent, f"{method} {path}"))
            raise

    def push_loop(self, number, rng):
        conn = self.broker.conn()
        history = self.history
        mine = []
        while not self.stopping.is_set():
            if mine and rng.random() < 0.1:
                push = rng.choice(mine)
                if all(item[2] for item in push.items):
                    status, body = self.call(conn, "POST", "/api/v1/push", push.body())
                    history.resend_checked(push, status, body)
                    continue
            push = make_push(history, rng, rng.choice((1, 1, 10)), one_lane=rng.random() < 0.3)
            history.push_sent(push)
            try:
                status, body = self.call(conn, "POST", "/api/v1/push", push.body())
            except Gone:
                history.push_ended(push, None, b"")
                raise
            history.push_ended(push, status, body)
            if push.state == "stored":
                mine.append(push)
            else:
                time.sleep(0.02)

    def consume_loop(self, number, rng):
        conn = self.broker.conn()
        while not self.stopping.is_set():
            group, queue = GROUPS[number % len(GROUPS)], rng.choice(QUEUES)
            claims = self.pop(conn, rng, group, queue)
            for claim in claims:
                self.settle(conn, rng, claim)

    def pop(self, conn, rng, group, queue):
        lease_s = rng.choice(LEASES_S)
        pinned = f"/partition/{rng.choice(LANES)}" if rng.random() < 0.2 else ""
        path = (
            f"/api/v1/pop/queue/{queue}{pinned}?consumerGroup={group}&batch={rng.choice((1, 3, 20))}"
            f"&partitions={rng.choice((1, 1, 4))}&leaseSeconds={lease_s}&subscriptionMode=all&wait=true&timeout=200"
        )
        sent = time.monotonic()
        try:
            status, raw = self.call(conn, "GET", path)
        except Gone:
            self.history.pop_lost(group, queue)
            raise
        if status == 200:
            return self.history.pop_answered(group, queue, sent, lease_s, raw)
        if status == 503:
            self.history.pop_lost(group, queue)
        elif status != 204:
            self.history.problem(f"pop answered {status} {raw!r}")
        return []

    def settle(self, conn, rng, claim):
        roll = rng.random()
        if roll < 0.06:
            return  # a consumer that died: the lease runs out
        if roll < 0.16:
            sent = time.monotonic()
            status, body = self.call(conn, "POST", f"/api/v1/lease/{claim.lease}/extend", b'{"seconds":4}')
            self.history.extend_answered(claim, sent, 4, status, body)
        last = len(claim.messages) - 1
        kind, index = "all", last
        if roll > 0.75:
            kind = rng.choice(("part", "failed", "failed", "retry", "dlq") if last else ("failed", "retry", "dlq"))
            index = rng.randrange(last if kind == "part" else last + 1)
        self.ack(conn, AckPlan(claim, kind, index))
        if kind == "part" and not claim.settled and rng.random() < 0.7:
            self.ack(conn, AckPlan(claim, "all", last))

    def ack(self, conn, plan):
        # the repeat rule and partial acks make a later ack of the same claim depend on the first one's fate
        certain = plan.claim.may_be_released == float("inf")
        self.history.ack_sent(plan)
        try:
            status, body = self.call(conn, "POST", "/api/v1/ack/batch", plan.body())
        except Gone:
            self.history.ack_answered(plan, None, b"", certain)
            raise
        self.history.ack_answered(plan, status, body, certain)


class Admin:
    """Configures one queue again and again; makes and deletes others. Lives across crashes like the History."""

    def __init__(self, history):
        self.history = history
        self.value = 0
        self.sure = 0  # last answered value
        self.deleted = {}  # queue -> "certain" | "maybe"
        self.number = 0

    def loop(self, load, rng):
        conn = load.broker.conn()
        while not load.stopping.is_set():
            self.configure(load, conn)
            self.make_and_delete(load, conn)
            time.sleep(rng.random() * 0.05)

    def configure(self, load, conn):
        self.value += 1
        body = {"queue": "settings", "options": {"maxSize": self.value, "retryLimit": 5}}
        status, answer = load.call(conn, "POST", "/api/v1/configure", json.dumps(body).encode())
        if status == 200:
            self.sure = self.value
        elif status != 503:
            self.history.problem(f"configure answered {status} {answer!r}")

    def make_and_delete(self, load, conn):
        self.number += 1
        queue = f"short-lived-{self.number}"
        self.deleted[queue] = "maybe"
        status, _ = load.call(conn, "POST", "/api/v1/push", json.dumps({"items": [{"queue": queue, "payload": 1}]}).encode())
        status, answer = load.call(conn, "DELETE", f"/api/v1/resources/queues/{queue}")
        if status == 200:
            self.deleted[queue] = "certain"
        elif status != 503:
            self.history.problem(f"delete answered {status} {answer!r}")

    def check(self, conn):
        status, detail = conn.json("GET", "/api/v1/resources/queues/settings")
        if self.sure and (status != 200 or not self.sure <= detail["options"]["maxSize"] <= self.value):
            self.history.problem(f"configured {self.sure}..{self.value}, found {status} {detail and detail.get('options')}")
        elif status == 200:
            self.sure = self.value = detail["options"]["maxSize"]
        for queue, fate in list(self.deleted.items())[-40:]:
            status, _ = conn.json("GET", f"/api/v1/resources/queues/{queue}")
            if fate == "certain" and status != 404:
                self.history.problem(f"queue {queue} was deleted and is there again ({status})")


def run_and_kill(broker, history, admin, seed, seconds):
    """Load for so long, then SIGKILL."""
    load = Load(broker, history, seed, admin=admin).start()
    time.sleep(seconds)
    assert broker.alive(), f"ended by itself with {broker.process.poll()}:\n{broker.log_tail()}"
    broker.kill()
    load.join()
    return load


class Churn:
    """Queues that are filled and deleted, so that log files become free and are trimmed; now and then something that stays.

    One thread; call run() until it raises Gone or `seconds` are over."""

    def __init__(self, broker, history, rng):
        self.broker, self.history, self.rng = broker, history, rng
        self.number = 0
        self.deleted = []

    def run(self, seconds):
        conn = self.broker.conn()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.broker.alive():
            self.number += 1
            queue = f"churn-{self.number}-{self.rng.randrange(1 << 30)}"
            blob = json.dumps({"items": [{"queue": queue, "payload": "x" * 100000} for _ in range(4)]}).encode()
            for _ in range(6):
                conn.call("POST", "/api/v1/push", blob)
            status, _ = conn.call("DELETE", f"/api/v1/resources/queues/{queue}")
            if status == 200:
                self.deleted.append(queue)
            if self.number % 4:
                continue
            push = make_push(self.history, self.rng, 1)
            self.history.push_sent(push)
            try:
                answer = conn.call("POST", "/api/v1/push", push.body())
            except Gone:
                self.history.push_ended(push, None, b"")
                raise
            self.history.push_ended(push, *answer)

    def check(self, conn):
        for queue in self.deleted[-20:]:
            status, _ = conn.call("GET", f"/api/v1/resources/queues/{queue}")
            if status != 404:
                self.history.problem(f"queue {queue} was deleted and is there again ({status})")
