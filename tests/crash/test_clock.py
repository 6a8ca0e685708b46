"""The wall clock steps and the machine restarts with a wrong one: leases and ids do not notice."""
import time


def push(conn, txid):
    status, answer = conn.json("POST", "/api/v1/push", {"items": [{"queue": "q", "transactionId": txid, "payload": 1}]})
    assert status == 201
    return answer[0]


def pop(conn, group, extra=""):
    status, answer = conn.json("GET", f"/api/v1/pop/queue/q?consumerGroup={group}&subscriptionMode=all&batch=100{extra}")
    return answer["messages"] if status == 200 else []


def test_a_wall_clock_step_does_not_end_a_lease(brokers):
    broker = brokers(power=False).start()
    conn = broker.conn()
    push(conn, "a")
    began = time.monotonic()
    assert len(pop(conn, "g", "&leaseSeconds=4")) == 1
    for step_s in (3600, -3600, 86400 * 30):
        broker.faults.set_clock(wall_s=step_s)
        assert pop(conn, "g") == [], f"the lease ended with a wall clock step of {step_s} s"
    assert time.monotonic() - began < 4, "this machine is too slow for the test"
    time.sleep(max(0.0, began + 4.3 - time.monotonic()))
    again = pop(conn, "g")
    assert [m["transactionId"] for m in again] == ["a"] and again[0]["deliveryAttempt"] == 2


def test_a_wall_clock_behind_does_not_freeze_a_lease_or_send_time_back(brokers):
    """The clock goes back while it runs and again between two starts; the lease still ends, ids and times still rise."""
    broker = brokers(power=False).start()
    conn = broker.conn()
    push(conn, "a")
    assert len(pop(conn, "g", "&leaseSeconds=2")) == 1
    broker.faults.set_clock(wall_s=-3600)
    push(conn, "b")
    conn.close()
    broker.kill()
    broker.faults.set_clock(wall_s=-7200)
    broker.start()
    conn = broker.conn()
    push(conn, "c")
    messages = pop(conn, "all")
    assert [m["transactionId"] for m in messages] == ["a", "b", "c"]
    assert messages == sorted(messages, key=lambda m: m["createdAt"])
    assert messages == sorted(messages, key=lambda m: m["id"])
    deadline = time.monotonic() + 15
    while not (again := pop(conn, "g")):
        assert time.monotonic() < deadline, "the lease does not end while the wall clock is behind"
        time.sleep(0.1)
    assert again[0]["transactionId"] == "a" and again[0]["deliveryAttempt"] == 2


def test_a_lease_outlives_a_restart_and_is_not_ended_early_by_it(brokers):
    broker = brokers(power=False).start()
    conn = broker.conn()
    push(conn, "a")
    began = time.monotonic()
    assert len(pop(conn, "g", "&leaseSeconds=4")) == 1
    for stop in (broker.kill, broker.terminate):
        stop()
        broker.faults.set_clock(wall_s=3600 if stop == broker.kill else -3600)
        broker.start()
        got = pop(broker.conn(), "g")
        if time.monotonic() - began < 4:
            assert got == [], "a restart ended the lease"
