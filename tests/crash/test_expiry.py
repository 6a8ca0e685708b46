"""KV keys with an expiry that are at rest: gone when their time is up, also when the broker did not run then, or dies while it removes them."""
import re
import time

import pytest

KEYS = 3000
HOUR = 3600


def kv(conn, *ops):
    status, answer = conn.json("POST", "/api/v1/kv", {"operations": [dict(op, ns="once") for op in ops]})
    assert status == 200, answer
    return answer["results"]


def each(conn, first, end, step=200, **op):
    """The op's results for keys first..end-1."""
    answers = []
    for at in range(first, end, step):
        answers += kv(conn, *[dict(op, key=f"k{n:05}") for n in range(at, min(at + step, end))])
    return answers


def rows(conn):
    """Rows of the store, and those of them in memory."""
    status, body = conn.call("GET", "/metrics/prometheus")
    assert status == 200
    return int(re.search(r"^queen_kv_rows (\d+)", body.decode(), re.M).group(1))


def some_entry(conn):
    """Expiry goes by the time of the log's entries: another one."""
    kv(conn, {"op": "delete", "key": "none"})


def filled(brokers):
    """Keys for an hour and a bit, a second of them for two; all at rest, as after every start."""
    broker = brokers(power=False).start()
    conn = broker.conn()
    for n, ttl in ((0, HOUR), (KEYS, 2 * HOUR)):
        assert all(r["applied"] for r in each(conn, n, n + KEYS, op="putIfAbsent", value="x" * 40, ttlSeconds=ttl))
    return restarted(broker, conn)


def restarted(broker, conn, how="terminate"):
    conn.close()
    getattr(broker, how)()
    broker.start()
    return broker, broker.conn()


def expired(broker, conn, left):
    deadline = time.monotonic() + 30
    while True:
        some_entry(conn)
        now = rows(conn)
        if now == left:
            return
        assert now > left and time.monotonic() < deadline, f"{now} rows, not {left}"
        time.sleep(0.05)


def test_keys_at_rest_expire(brokers):
    broker, conn = filled(brokers)
    assert rows(conn) == 2 * KEYS
    assert not any(r["applied"] for r in each(conn, 0, 500, op="putIfAbsent", value=1, ttlSeconds=HOUR))
    assert all(r["applied"] for r in each(conn, 500, 700, op="put", value="renewed", ttlSeconds=2 * HOUR))
    assert all(r["applied"] for r in each(conn, 700, 800, op="put", value="for ever", forever=True))
    assert all(r["applied"] for r in each(conn, 800, 900, op="delete"))
    broker, conn = restarted(broker, conn, "kill")
    broker.faults.set_clock(wall_s=HOUR + 60)
    some_entry(conn)
    # Not one of them is there any more, whether it has been removed yet or not.
    assert not any(r["found"] for r in each(conn, 0, 500, op="get"))
    page = kv(conn, {"op": "getPrefix", "prefix": "k0", "limit": 1000})[0]
    assert [r["key"] for r in page["rows"]] == [f"k{n:05}" for n in [*range(500, 800), *range(KEYS, KEYS + 700)]]
    assert all(r["value"] == "renewed" for r in page["rows"][:200])
    expired(broker, conn, KEYS + 300)
    broker, conn = restarted(broker, conn)
    assert rows(conn) == KEYS + 300
    assert all(r["found"] for r in each(conn, 500, 800, op="get"))
    broker.faults.set_clock(wall_s=3 * HOUR)
    expired(broker, conn, 100)


@pytest.mark.parametrize("pause_s", [0.0, 0.05, 0.3])
def test_a_kill_while_keys_expire(brokers, pause_s):
    broker, conn = filled(brokers)
    broker.faults.set_clock(wall_s=HOUR + 60)
    some_entry(conn)
    time.sleep(pause_s)
    assert kv(conn, {"op": "putIfAbsent", "key": "k00007", "value": "again", "ttlSeconds": HOUR})[0]["applied"]
    broker, conn = restarted(broker, conn, "kill")
    assert not any(r["found"] for r in each(conn, 8, 1000, op="get"))
    assert kv(conn, {"op": "get", "key": "k00007"})[0]["value"] == "again"
    expired(broker, conn, KEYS + 1)
    broker, conn = restarted(broker, conn, "kill")
    assert rows(conn) <= 2 * KEYS
    assert kv(conn, {"op": "get", "key": "k00007"})[0]["value"] == "again"
    expired(broker, conn, KEYS + 1)


def test_permits_at_rest(brokers):
    broker = brokers(power=False).start()
    conn = broker.conn()

    def lock(**op):
        status, answer = conn.json("POST", "/api/v1/locks", {"operations": [dict(op, name="l")]})
        assert status == 200, answer
        return answer["results"][0]

    tokens = [lock(op="acquire", ttlSeconds=HOUR, owner=f"o{n}", limit=3) for n in range(3)]
    assert all(t["acquired"] for t in tokens)
    broker, conn = restarted(broker, conn)
    refused = lock(op="acquire", ttlSeconds=HOUR, owner="late", limit=3)
    assert not refused["acquired"] and [h["owner"] for h in refused["holders"]] == ["o0", "o1", "o2"]
    broker, conn = restarted(broker, conn)
    assert lock(op="acquire", ttlSeconds=HOUR, owner="o1", limit=3)["token"] == tokens[1]["token"]
    broker, conn = restarted(broker, conn)
    assert lock(op="renew", ttlSeconds=2 * HOUR, slot=0, token=tokens[0]["token"])["renewed"]
    broker, conn = restarted(broker, conn)
    broker.faults.set_clock(wall_s=HOUR + 60)
    assert lock(op="acquire", ttlSeconds=HOUR, owner="late", limit=3)["slot"] == 1
    assert [h["owner"] for h in lock(op="get")["holders"]] == ["o0", "late"]
