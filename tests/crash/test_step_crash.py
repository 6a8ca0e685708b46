"""Transactions across crashes: all or nothing, an answered one whole, its timers fired once."""
import base64
import json
import os
import random
import signal
import threading
import time

import crash_broker
import pytest
from crash_broker import ALL, Gone
from step_rounds import Reader, Rounds, stamp_ms

with_crash_points = pytest.mark.skipif(
    not os.path.exists(crash_broker.CRASH_BINARY), reason=f"needs a build with crash points at {crash_broker.CRASH_BINARY}"
)

# name -> passes to die at. The first entry of a start may be the first pass, the transaction is the next, then come fires of timers.
POINTS = {
    "log-staged": (1, 2, 3),
    "log-written": (1, 2, 3),
    "log-synced": (1, 2, 3),
    "apply-before": (1, 2, 3),
    "apply-after": (1, 2, 3),
    "log-roll": (1, 2),
    "log-segment-created": (1, 2),
    "cut-before": (1, 2),
    "store-write-before": (1, 2),
    "store-write-after": (1, 2),
    "checkpoint-before": (1, 2),
    "checkpoint-after": (1, 2),
}
PADS = (0, 100_000, 450_000)  # bytes of each of 15 payloads: below an entry, above a segment, above 4 MiB


def fall(broker, rng, power):
    """The process is dead or is killed; with `power` goes what was not synced."""
    if broker.alive():
        broker.kill()
    if power:
        broker.faults.power_cut(rng.randrange(1 << 32))


def churn(conn):
    """Enough bytes for the log to roll, in a lane of its own."""
    blob = {"items": [{"queue": "noise", "payload": "x" * 300_000}]}
    for _ in range(4):
        conn.call("POST", "/api/v1/push", blob)


def die_at(broker, point, nth, rounds):
    """Sends the round with a crash ordered at the nth pass of the point. (answered, died at the point)."""
    broker.spawn(env={"QUEEN_CRASH_AT": f"{point}:{nth}"})
    answered = None
    if broker.wait_ready():
        try:
            conn = broker.conn()
            answered = rounds.send(conn)
            if answered and point in ("log-roll", "log-segment-created"):
                churn(conn)
        except Gone:
            pass
        broker.wait_dead(2.0)
    died = broker.process.poll()
    assert died in (None, -signal.SIGKILL), f"{point}:{nth}: {died}\n{broker.log_tail()}"
    return answered, died is not None


@with_crash_points
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("point", POINTS)
def test_a_transaction_dies_at_a_crash_point(brokers, seed, point, power):
    rng = random.Random(f"{seed}/{point}/{power}")
    broker = brokers(binary=crash_broker.CRASH_BINARY, power=power or None)
    rounds = Rounds(broker.start()).prepare()
    reader = Reader(broker)
    reader.start()
    died = there = 0
    passes = POINTS[point] if not ALL else tuple(rng.choice(POINTS[point]) for _ in range(20))
    for nth in passes:
        rounds.claim()
        rounds.make(rng.choice(PADS), (rng.choice((0, 1, 40)), rng.choice((0, 120, 400))))
        broker.kill()
        answered, hit = die_at(broker, point, nth, rounds)
        died += hit
        fall(broker, rng, power)
        broker.start()
        there += rounds.settle(answered)
    rounds.finish()
    reader.stop()
    assert died, f"{point} was never passed: nothing is proved"
    assert reader.reads > 0


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_killed_right_after_the_answer(brokers, seed, power):  # 100
    """An answered transaction is there whole."""
    rng = random.Random(seed)
    broker = brokers(power=power or None)
    rounds = Rounds(broker.start()).prepare()
    for _ in range(40 if ALL else 6):
        rounds.claim()
        conn = broker.conn()
        assert rounds.make(rng.choice(PADS)).send(conn)
        fall(broker, rng, power)
        broker.start()
        assert rounds.settle(True)
    rounds.finish()


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_killed_while_it_is_on_its_way(brokers, seed, power):
    """At any moment around the transaction: all or nothing. Both must come up, or the moments were badly chosen."""
    rng = random.Random(seed)
    broker = brokers(power=power or None)
    rounds = Rounds(broker.start()).prepare()
    reader = Reader(broker)
    reader.start()
    outcomes = []
    longest = 0.02
    for _ in range(60 if ALL else 12):
        rounds.claim()
        rounds.make(rng.choice(PADS))
        answers = []
        sender = threading.Thread(target=lambda: answers.append((rounds.send(), time.monotonic())))
        began = time.monotonic()
        sender.start()
        time.sleep(rng.uniform(0, longest))
        fall(broker, rng, power)
        sender.join(30)
        assert answers, "the call was neither answered nor cut"
        answered, ended = answers[0]
        if answered:  # the moments follow how long it takes here
            longest = min(0.2, max(0.002, 1.5 * (ended - began)))
        broker.start()
        outcomes.append(rounds.settle(answered))
    rounds.finish()
    reader.stop()
    assert True in outcomes and False in outcomes, outcomes


# ---- timers at their due time ----


class Timers:
    """Single timers around one moment, and what became of them."""

    def __init__(self, broker):
        self.broker = broker
        self.due_ms = {}  # key -> deliverAt as answered
        self.ids = {}
        self.looks = 0

    def schedule(self, number, due_in_ms, spread_ms, rng):
        ops = []
        for n in range(20):
            key = f"{number}.{n}"
            delay = max(0.0, due_in_ms + rng.uniform(-spread_ms, spread_ms))
            payload = base64.b64encode(json.dumps({"key": key}).encode()).decode()
            ops.append({"op": "schedule", "queue": "due", "partition": f"lane-{n % 3}", "timerKey": key, "txn": key, "delayMs": delay, "payload": payload})
        status, answer = self.broker.conn().json("POST", "/api/v1/timers", ops)
        assert status == 200, (status, answer)
        for result in answer["results"]:
            assert result["status"] == "scheduled", result
            self.due_ms[result["timerKey"]] = stamp_ms(result["deliverAt"])
            self.ids[result["timerKey"]] = result["messageId"]

    def check(self, longest=10.0):
        """All that are due have fired once, none early, with the promised ids, and none is left."""
        conn = self.broker.conn()
        deadline = time.monotonic() + longest
        while True:
            status, answer = conn.json("GET", "/api/v1/timers/due?limit=1000")
            assert status == 200, (status, answer)
            if not answer["rows"]:
                break
            assert time.monotonic() < deadline, f"timers that do not fire: {answer['rows'][:3]}"
            time.sleep(0.02)
        self.looks += 1
        path = f"/api/v1/pop/queue/due?consumerGroup=look-{self.looks}&batch=5000&partitions=64&autoAck=true&subscriptionMode=all"
        status, answer = conn.json("GET", path)
        assert status == 200, (status, answer)
        keys = [m["data"]["key"] for m in answer["messages"]]
        assert sorted(keys) == sorted(self.due_ms), f"fired {len(keys)} of {len(self.due_ms)}; twice: {[k for k in set(keys) if keys.count(k) > 1]}"
        for message in answer["messages"]:
            key = message["data"]["key"]
            assert stamp_ms(message["createdAt"]) + 1 > self.due_ms[key], f"{key} fired at {message['createdAt']}, due {self.due_ms[key]}"
            assert (message["id"], message["transactionId"]) == (self.ids[key], key), message
        conn.close()


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_killed_when_timers_are_due(brokers, seed, power):  # 127
    rng = random.Random(seed)
    broker = brokers(power=power or None).start()
    timers = Timers(broker)
    for number in range(40 if ALL else 6):
        timers.schedule(number, 150, 15, rng)
        time.sleep(0.15 + rng.uniform(-0.015, 0.015))
        fall(broker, rng, power)
        time.sleep(rng.choice((0.0, 0.1)))
        broker.start()
        timers.check()


@with_crash_points
@pytest.mark.parametrize("point", ["log-staged", "log-written", "log-synced", "apply-before", "apply-after"])
def test_the_entry_that_fires_timers_dies_at_a_crash_point(brokers, seed, point):  # 127
    """Scheduled by one process, due in the next one, which dies on the way of the fire."""
    rng = random.Random(f"{seed}/{point}")
    broker = brokers(binary=crash_broker.CRASH_BINARY, power=True).start()
    timers = Timers(broker)
    died = 0
    for number in range(20 if ALL else 4):
        timers.schedule(number, 400, 60, rng)
        broker.kill()
        broker.spawn(env={"QUEEN_CRASH_AT": f"{point}:{1 + number % 3}"})
        died += broker.wait_dead(1.5) == -signal.SIGKILL
        fall(broker, rng, rng.random() < 0.5)
        broker.start()
        timers.check()
    assert died, f"{point} was never passed: nothing is proved"
