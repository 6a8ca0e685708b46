"""The wall clock steps while timers are pending: they still come after their length, never before, in real time."""
import base64
import time

import pytest


def schedule(conn, key, delay_ms):
    op = {"op": "schedule", "queue": "q", "timerKey": key, "delayMs": delay_ms, "txn": key, "payload": base64.b64encode(b'"x"').decode()}
    status, answer = conn.json("POST", "/api/v1/timers", [op])
    assert status == 200 and answer["results"][0]["ok"]


def fired(conn):
    status, answer = conn.json("GET", "/api/v1/pop/queue/q?consumerGroup=all&subscriptionMode=all&batch=100&autoAck=true")
    return [m["transactionId"] for m in answer["messages"]] if status == 200 else []


@pytest.mark.parametrize("restart", [False, True])
def test_a_wall_clock_behind_does_not_hold_timers_up(brokers, restart):
    broker = brokers(power=False).start()
    conn = broker.conn()
    began = time.monotonic()
    schedule(conn, "a", 2000)
    broker.faults.set_clock(wall_s=-3600)
    schedule(conn, "b", 2500)
    if restart:
        conn.close()
        broker.kill()
        broker.start()
        conn = broker.conn()
    seen = {}
    while len(seen) < 2:
        for txn in fired(conn):
            assert txn not in seen
            seen[txn] = time.monotonic() - began
        assert time.monotonic() - began < 8, f"fired so far: {seen}"
        time.sleep(0.02)
    assert 1.99 <= seen["a"] < 4 and 2.49 <= seen["b"] < 4.5, seen


def test_a_wall_clock_ahead_makes_timers_due(brokers):
    """Due times are wall times: a machine whose clock was put right an hour on has the timers of that hour to fire."""
    broker = brokers(power=False).start()
    conn = broker.conn()
    schedule(conn, "within", 3000000)
    schedule(conn, "beyond", 7200000)
    broker.faults.set_clock(wall_s=3600)
    deadline = time.monotonic() + 15  # the broker looks at the clock every second
    while not (seen := fired(conn)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert seen == ["within"]
    status, answer = conn.json("GET", "/api/v1/timers/q/beyond")
    assert status == 200 and answer["found"]
