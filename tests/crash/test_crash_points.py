"""The process kills itself at every named point of the write path: at the 1st pass, the 2nd and a later one.

The build with -DQUEEN_CRASH_POINTS=ON honours QUEEN_CRASH_AT=name:n. A point that the load never passes fails its test: nothing would
be proved by it.
"""
import os
import random
import signal
import time

import crash_broker
import crash_verify
import pytest
from crash_broker import ALL, Gone
from crash_history import History
from crash_load import Admin, Churn, Load
from crash_verify import judge

# name -> (latest pass to try, seconds of load after which it is given up)
POINTS = {
    "log-staged": (200, 60),
    "log-written": (150, 60),
    "log-synced": (150, 60),
    "log-roll": (4, 60),
    "log-segment-created": (4, 60),
    "apply-before": (200, 60),
    "apply-after": (200, 60),
    "cut-before": (6, 60),
    "store-write-before": (6, 60),
    "store-write-after": (6, 60),
    "checkpoint-before": (6, 60),
    "checkpoint-after": (6, 60),
    "meta-written": (3, 0.5),
    "meta-renamed": (3, 0.5),
}
TRIM_POINTS = {
    "trim-before": (3, 60),
    "trim-after": (3, 60),
    "reclaim-copied": (3, 60),
    "reclaim-moved": (3, 60),
}

pytestmark = pytest.mark.skipif(
    not os.path.exists(crash_broker.CRASH_BINARY), reason=f"needs a build with crash points at {crash_broker.CRASH_BINARY}"
)


def died_at_point(broker):
    return broker.process.wait(20) == -signal.SIGKILL


def spawn_until_crash(broker, point, nth, work, seconds):
    """Runs `work` until the point kills the process. It may do so while it starts. False: not reached in time."""
    broker.spawn(env={"QUEEN_CRASH_AT": f"{point}:{nth}"})
    if not broker.wait_ready():
        assert broker.process.poll() == -signal.SIGKILL, f"{point}:{nth} at start: {broker.process.poll()}\n{broker.log_tail()}"
        return True
    work(seconds)
    if broker.alive():
        return False
    assert died_at_point(broker), f"{point}:{nth}: {broker.process.poll()}\n{broker.log_tail()}"
    return True


def passes(rng, latest):
    return [1, 2] + [rng.randrange(3, max(4, latest + 1)) for _ in range(17 if ALL else 1)]


@pytest.mark.parametrize("point", POINTS)
def test_crash_at_point(brokers, seed, point):
    rng = random.Random(f"{seed}/{point}")
    latest, seconds = POINTS[point]
    broker = brokers(binary=crash_broker.CRASH_BINARY)
    history = History()
    admin = Admin(history)

    def work(longest):
        load = Load(broker, history, rng.random(), admin=admin).start()
        broker.wait_dead(longest)
        if broker.alive():
            load.stop()
        load.join()

    reached = []
    for number, nth in enumerate(passes(rng, latest)):
        reached.append((nth, spawn_until_crash(broker, point, nth, work, seconds)))
        if broker.alive():
            broker.kill()
        broker.start()
        crash_verify.after_restart(broker, history, rng, admin, number)
        judge(history, broker)
        broker.kill()
    broker.start()
    crash_verify.finish(broker, history, rng, admin)
    judge(history, broker)
    check_reached(point, reached)


def check_reached(point, reached):
    if point.startswith("meta-"):
        # term and vote are written while it starts, and rarely after that
        assert any(hit for _, hit in reached), f"{point} was never passed"
    else:
        assert all(hit for _, hit in reached), f"{point} was not passed: {reached}"


@pytest.mark.parametrize("point", TRIM_POINTS)
def test_crash_while_the_log_is_trimmed(brokers, seed, point):
    rng = random.Random(f"{seed}/{point}")
    latest, seconds = TRIM_POINTS[point]
    broker = brokers(binary=crash_broker.CRASH_BINARY)
    history = History()
    churn = Churn(broker, history, rng)

    def work(longest):
        deadline = time.monotonic() + longest
        try:
            while time.monotonic() < deadline:
                churn.run(1.0)
        except Gone:
            broker.wait_dead(10)

    reached = []
    for number, nth in enumerate(passes(rng, latest)):
        reached.append((nth, spawn_until_crash(broker, point, nth, work, seconds)))
        if broker.alive():
            broker.kill()
        broker.start()
        conn = broker.conn()
        churn.check(conn)
        conn.close()
        crash_verify.after_restart(broker, history, rng, None, number)
        judge(history, broker)
        broker.kill()
    check_reached(point, reached)
