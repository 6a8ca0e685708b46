"""Pushers and consumers of leased messages: acks of all kinds, lease extensions, long polls. The history and the judgement are those of
tests/crash; here a call's answer may be lost at any time and the next one goes to another node."""
import random
import time

import crash_verify
from cluster import Gone
from crash_history import History, Push
from crash_load import LANES, LEASES_S, QUEUES, Load
from workload import Workload

RETRY_LIMIT = 1000000  # `failed` comes up at random and some are lost on the way: none may end in a dead letter


class LossyHistory(History):
    """Calls are under way while others are judged."""

    def check_budget(self, plan, cursor, dead, what):
        """Retry budgets are judged where no answer is lost (tests/api)."""

    def ack_answered(self, plan, status, body, lease_was_certain, repeated=False):
        super().ack_answered(plan, 503 if status == 429 else status, body, lease_was_certain, repeated)

    def pop_known(self, group, queue):
        with self.lock:
            self.unknown_pops[group, queue] -= 1


class LossyLoad(Load):
    """Clients that go on after a lost answer."""

    def __init__(self, workload, history, seed, pushers, consumers):
        super().__init__(workload.cluster, history, seed, pushers, consumers)
        self.workload = workload

    def guard(self, job, number, rng):
        while not self.stopping.is_set():
            try:
                job(number, rng)
            except Gone:
                self.workload.count("calls lost")
                time.sleep(rng.uniform(0.0, 0.05))
            except Exception as error:  # a client must not fail in silence
                self.history.problem(f"client {number}: {type(error).__name__}: {error}")
                return

    def push_loop(self, number, rng):
        time.sleep(rng.uniform(0, 0.05))
        super().push_loop(number, rng)

    def consume_loop(self, number, rng):
        time.sleep(rng.uniform(0, 0.05))
        super().consume_loop(number, rng)

    def pop(self, conn, rng, group, queue):
        time.sleep(rng.uniform(0, 0.03))
        lease_s, timeout_ms = rng.choice(LEASES_S), rng.choice((100, 400, 1500))
        pinned = f"/partition/{rng.choice(LANES)}" if rng.random() < 0.2 else ""
        path = (
            f"/api/v1/pop/queue/{queue}{pinned}?consumerGroup={group}&batch={rng.choice((1, 3, 20))}&partitions={rng.choice((1, 1, 4))}"
            f"&leaseSeconds={lease_s}&subscriptionMode=all&wait=true&timeout={timeout_ms}"
        )
        # until it is answered it may have claimed something
        self.history.pop_lost(group, queue)
        sent = time.monotonic()
        status, raw = self.call(conn, "GET", path)
        self.workload.note_poll(time.monotonic() - sent - timeout_ms / 1000)
        if status in (200, 204):
            self.history.pop_known(group, queue)
        elif status not in (503, 429):
            self.history.problem(f"pop answered {status} {raw!r}")
        return self.history.pop_answered(group, queue, sent, lease_s * (1 - self.workload.drift), raw) if status == 200 else []

    def ack(self, conn, plan):
        """An ack of a whole batch is sent again until it is answered: done before or done now, it is a success either way while the
        lease would hold."""
        try:
            super().ack(conn, plan)
            return
        except Gone:
            self.workload.count("acks lost")
            if plan.kind != "all":
                self.history.claim_over(plan.claim)
                raise
        for _ in range(200):
            if self.stopping.is_set() or time.monotonic() > plan.claim.until - 0.5:
                break
            try:
                status, body = conn.call("POST", "/api/v1/ack/batch", plan.body())
            except Gone:
                continue
            if status == 200:
                self.workload.count("acks sent again")
                self.history.ack_answered(plan, status, body, not plan.claim.parted, repeated=True)
                break
            time.sleep(0.03)
        self.history.claim_over(plan.claim)


class QueueWorkload(Workload):
    name = "queue"

    def __init__(self, cluster, seed, pushers=2, consumers=4):
        super().__init__(cluster, seed)
        self.history = LossyHistory()
        self.load = LossyLoad(self, self.history, f"{seed}/queue", pushers, consumers)
        self.longest_poll_s = 0.0
        self.drift = 0.0  # how much faster than ours a node's clock may run

    def note_poll(self, took):
        with self.lock:
            self.longest_poll_s = max(self.longest_poll_s, took)

    def prepare(self, client):
        for queue in QUEUES:
            status, answer, _ = client.insist("POST", "/api/v1/configure", {"queue": queue, "options": {"retryLimit": RETRY_LIMIT}})
            assert status == 200, answer

    def start(self):
        self.load.start()

    def stop(self, timeout=60.0):
        self.stopping.set()
        self.load.stop()

    def finish(self, client):
        rng = random.Random(f"{self.seed}/end")
        conn = self.cluster.conn()
        crash_verify.send_again(conn, self.history, rng)
        crash_verify.drain(conn, self.history, "drain")
        crash_verify.finish_groups(conn, self.history)
        crash_verify.check_dead_letters(conn, self.history)
        conn.close()
        self.problems += [f"queue: {p}" for p in self.history.problems]
        for name in ("pushes", "pops", "acks", "unknown"):
            self.counts[name] = self.history.counts[name]
        self.counts["latest empty poll ms"] = round(self.longest_poll_s * 1000)


__all__ = ["LossyHistory", "Push", "QueueWorkload"]
