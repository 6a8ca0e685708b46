"""Timers that fire, are cancelled and are scheduled anew around the moment they are due, by two clients at once, some inside transactions.

Every schedule makes one timer, and a timer ends in one of three ways: it fires, it is cancelled, another schedule takes its place. So,
for every key all whose calls were answered at once: schedules = fired + cancelled + replaced. No message twice, none that was
cancelled or replaced for certain, none before its time."""
import base64
import json
import threading
import time
from datetime import datetime, timezone

from workload import Workload, same_everywhere

QUEUE = "fired"
LANES = [f"lane-{i}" for i in range(3)]
LONGEST_MS = 1500


def micros(text):
    when = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    return round(when.timestamp() * 1000000)


class Key:
    def __init__(self, name, lane):
        self.name, self.lane = name, lane
        self.lock = threading.Lock()
        self.versions = {}  # txn -> {"due", "message", "sent", "delay_ms"}
        self.cancelled = []  # txn told by each cancel that found one
        self.replaced = 0
        self.lost = 0  # calls that were sent again


class TimersWorkload(Workload):
    name = "timers"

    def __init__(self, cluster, seed, clients=2, true_clocks=True):
        super().__init__(cluster, seed)
        self.clients, self.true_clocks = clients, true_clocks
        self.keys = {}
        self.latest_ms = 0.0

    def jobs(self):
        return [self.key_loop] * self.clients

    def key_loop(self, client, rng):
        rival = self.cluster.client(f"{self.seed}/timers/rival/{rng.random()}")
        while not self.over():
            with self.lock:
                key = Key(f"key-{len(self.keys)}", rng.choice(LANES))
                self.keys[key.name] = key
            self.schedule(client, rng, key)
            delay_s = key.versions[f"{key.name}.1"]["delay_ms"] / 1000
            first, second = (rng.choice((self.schedule, self.cancel, None)) for _ in range(2))
            other = None
            if second is not None:
                pause = max(0.0, delay_s + rng.uniform(-0.05, 0.05))
                other = threading.Thread(target=self.later, args=(pause, second, rival, rng, key), daemon=True)
                other.start()
            if first is not None:
                self.later(max(0.0, delay_s + rng.uniform(-0.05, 0.05)), first, client, rng, key)
            if other is not None:
                other.join(90)
                if other.is_alive():
                    self.problem(f"a call on {key.name} hangs")
        rival.close()

    def later(self, pause, job, client, rng, key):
        time.sleep(pause)
        try:
            job(client, rng, key)
        except Exception as error:  # must not fail in silence
            self.problem(f"{key.name}: {type(error).__name__}: {error}")

    def send(self, client, rng, op):
        """One op, by its route or inside a transaction. (its element, calls lost)"""
        if rng.random() < 0.5:
            status, answer, lost = self.answered(client, "POST", "/api/v1/timers", json.dumps([op]).encode())
        else:
            status, answer, lost = self.answered(client, "POST", "/api/v1/transaction", json.dumps({"timers": [op]}).encode())
        if status != 200 or answer.get("success", True) is False:
            self.problem(f"{op} answered {status} {answer}")
            return None, lost
        return answer["results"][0], lost

    def schedule(self, client, rng, key):
        with key.lock:
            txn = f"{key.name}.{len(key.versions) + 1}"
            delay_ms = round(rng.choice((0.0, rng.uniform(1, LONGEST_MS), rng.uniform(1, LONGEST_MS))), 3)
            version = key.versions[txn] = {"delay_ms": delay_ms, "message": None, "due": None, "lost": 0}
        payload = base64.b64encode(json.dumps({"txn": txn}).encode()).decode()
        op = {"op": "schedule", "queue": QUEUE, "partition": key.lane, "timerKey": key.name, "txn": txn, "delayMs": delay_ms, "payload": payload}
        element, lost = self.send(client, rng, op)
        with key.lock:
            key.lost += lost
            version["lost"] = lost
            if element is not None:
                version["message"], version["due"] = element["messageId"], micros(element["deliverAt"])
                if element["status"] == "rescheduled":
                    key.replaced += 1
                elif element["status"] != "scheduled":
                    self.problem(f"schedule answered {element}")
        self.count("scheduled" if element is None else element["status"])

    def cancel(self, client, rng, key):
        element, lost = self.send(client, rng, {"op": "cancel", "queue": QUEUE, "timerKey": key.name})
        with key.lock:
            key.lost += lost
            if element is not None and element["status"] == "cancelled":
                key.cancelled.append(element["txn"])
        self.count("cancel " + ("?" if element is None else element["status"]))

    def settle(self, seconds=20.0):
        """Until nothing is pending."""
        client = self.cluster.client("settle")
        deadline = time.monotonic() + seconds
        left = None
        while time.monotonic() < deadline:
            status, answer, _ = client.insist("GET", f"/api/v1/timers/{QUEUE}?mode=count&prefix=key-")
            left = answer.get("count")
            if left == 0:
                break
            time.sleep(0.1)
        else:
            self.problem(f"{left} timers never fire")
        client.close()

    def finish(self, client):
        held = same_everywhere(self, QUEUE, LANES)
        fired = {}
        for lane, records in held.items():
            for offset, txn, _, ts in records:
                if txn in fired:
                    self.problem(f"{txn} fired twice: {fired[txn]} and {lane}@{offset}")
                fired[txn] = (lane, offset, ts)
        self.count("fired", len(fired))
        for key in self.keys.values():
            self.judge(key, fired)
        for txn in fired:
            if txn not in self.keys.get(txn.rsplit(".", 1)[0], Key("", "")).versions:
                self.problem(f"{txn} was never scheduled")
        self.counts["latest ms"] = round(self.latest_ms)

    def judge(self, key, fired):
        what = f"{key.name} {key.versions} cancelled {key.cancelled} replaced {key.replaced} lost {key.lost}, fired {[t for t in key.versions if t in fired]}"
        for txn, version in key.versions.items():
            if txn in fired and txn in key.cancelled and version["lost"] == 0:
                self.problem(f"cancelled and fired: {txn} of {what}")
            if txn in fired and version["due"] is not None:
                late_ms = (micros(fired[txn][2]) - version["due"]) / 1000
                if late_ms < 0 and version["lost"] == 0:
                    self.problem(f"{txn} fired {-late_ms} ms before its time: {what}")
                self.latest_ms = max(self.latest_ms, late_ms)
        if len(set(key.cancelled)) != len(key.cancelled) and key.lost == 0:
            self.problem(f"cancelled twice: {what}")
        if key.lost:
            # each lost call may have done its part; the sum is bounded by them
            done = sum(t in fired for t in key.versions) + len(key.cancelled) + key.replaced
            if not len(key.versions) - key.lost <= done <= len(key.versions) + key.lost:
                self.problem(f"the sum is wrong by more than the lost calls: {what}")
            return
        if sum(t in fired for t in key.versions) + len(key.cancelled) + key.replaced != len(key.versions):
            self.problem(f"schedules are not fired + cancelled + replaced: {what}")


