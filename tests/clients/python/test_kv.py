"""KV: every operation, what it answers when it loses, lifetimes, pages, numbers, refusals."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from queen import KvError

from kit import eventually, unique


@pytest.fixture
def ns():
    return unique("ns")


async def test_put_get_delete(client, ns):
    put = await client.kv.put(ns, "k", {"a": [1, None]}, ttl_seconds=60)
    assert put and put["version"] > 0 and put["value"] == {"a": [1, None]}
    got = await client.kv.get(ns, "k")
    assert got and got["value"] == {"a": [1, None]} and got["version"] == put["version"]
    expires = datetime.fromisoformat(got["expiresAt"]) - datetime.now(timezone.utc)
    assert timedelta(seconds=50) < expires <= timedelta(seconds=61)
    assert datetime.fromisoformat(got["updatedAt"])
    gone = await client.kv.delete(ns, "k")
    assert gone and gone["value"] == {"a": [1, None]}
    assert not await client.kv.get(ns, "k")
    again = await client.kv.delete(ns, "k")
    assert not again and again["reason"] == "absent" and again["version"] == 0


@pytest.mark.parametrize("value", [None, True, 0, -1.5, 12345678901234567890, "", "täxt 🐝", [], {}, {"x": [1, {"y": None}]}])
async def test_any_value_comes_back(client, ns, value):
    await client.kv.put(ns, "k", value, forever=True)
    got = await client.kv.get(ns, "k")
    assert got["found"] is True and got["value"] == value and type(got["value"]) is type(value)
    assert got["expiresAt"] is None


async def test_put_if_absent_has_one_winner(client, ns):
    results = await asyncio.gather(*(client.kv.put_if_absent(ns, "k", i, ttl_seconds=60) for i in range(10)))
    winners = [r for r in results if r]
    assert len(winners) == 1
    for loser in (r for r in results if not r):
        assert loser["reason"] == "exists" and loser["value"] == winners[0]["value"] and loser["version"] == winners[0]["version"]


async def test_once(client, ns):
    assert await client.kv.once(ns, "k", ttl=timedelta(days=30)) is True
    assert await client.kv.once(ns, "k", ttl=timedelta(days=30)) is False
    assert (await client.kv.get(ns, "k"))["value"] is True


async def test_expect_fences(client, ns):
    absent = await client.kv.put(ns, "k", 1, forever=True, expect=9)
    assert not absent and absent["reason"] == "absent" and absent["value"] is None and absent["version"] == 0
    assert not await client.kv.get(ns, "k")
    first = await client.kv.put(ns, "k", 1, forever=True, expect=0)
    second = await client.kv.put(ns, "k", 2, forever=True, expect=first["version"])
    assert second and second["version"] > first["version"]
    stale = await client.kv.put(ns, "k", 3, forever=True, expect=first["version"])
    assert not stale and stale["reason"] == "version" and stale["value"] == 2 and stale["version"] == second["version"]
    held = await client.kv.put(ns, "k", 4, forever=True, expect=0)
    assert not held and held["reason"] == "exists"
    assert not await client.kv.delete(ns, "k", expect=first["version"])
    assert await client.kv.delete(ns, "k", expect=second["version"])


async def test_check_looks_and_writes_nothing(client, ns):
    version = (await client.kv.put(ns, "k", "v", forever=True))["version"]
    held = await client.kv.check(ns, "k", expect=version)
    assert held and held["version"] == version and "value" not in held
    lost = await client.kv.check(ns, "k", expect=version + 1)
    assert not lost and lost["reason"] == "version" and lost["value"] == "v" and lost["version"] == version
    assert await client.kv.check(ns, "none", expect=0)
    assert (await client.kv.check(ns, "none", expect=3))["reason"] == "absent"
    assert (await client.kv.get(ns, "k"))["version"] == version


async def test_incr_counts_and_admits(client, ns):
    assert (await client.kv.incr(ns, "n", ttl_seconds=60))["value"] == 1
    assert (await client.kv.incr(ns, "n", max=2, ttl_seconds=60))["value"] == 2
    full = await client.kv.incr(ns, "n", max=2, ttl_seconds=60)
    assert not full and full["reason"] == "limit" and full["value"] == 2
    assert (await client.kv.incr(ns, "n", delta=-2, min=0, ttl_seconds=60))["value"] == 0
    assert not await client.kv.incr(ns, "n", delta=-1, min=0, ttl_seconds=60)
    assert not await client.kv.incr(ns, "other", delta=10, max=5, ttl_seconds=60)
    assert (await client.kv.incr(ns, "f", delta=0.1, forever=True))["value"] == 0.1
    assert (await client.kv.incr(ns, "f", delta=0.2, forever=True))["value"] == 0.3
    await client.kv.put(ns, "text", "x", forever=True)
    wrong = await client.kv.incr(ns, "text", forever=True)
    assert not wrong and wrong["reason"] == "type" and wrong["value"] == 0


async def test_incr_from_many_sides_loses_no_count(client, ns):
    await asyncio.gather(*(client.kv.incr(ns, "n", forever=True) for _ in range(40)))
    assert (await client.kv.get(ns, "n"))["value"] == 40


async def test_a_live_counter_keeps_its_end_and_an_expired_one_starts_again(client, ns):
    await client.kv.incr(ns, "n", delta=5, ttl_seconds=1)
    await client.kv.incr(ns, "n", ttl_seconds=3600)

    async def gone():
        return not await client.kv.get(ns, "n")

    await eventually(gone)
    assert (await client.kv.incr(ns, "n", ttl_seconds=60))["value"] == 1


async def test_an_expired_key_is_gone(client, ns):
    await client.kv.put(ns, "k", 1, ttl_seconds=1)
    assert not await client.kv.put_if_absent(ns, "k", 2, ttl_seconds=60)

    async def won():
        return await client.kv.put_if_absent(ns, "k", 2, ttl_seconds=60)

    assert await eventually(won)


async def test_a_put_does_not_inherit_a_lifetime(client, ns):
    await client.kv.put(ns, "k", 1, ttl_seconds=60)
    await client.kv.put(ns, "k", 2, forever=True)
    assert (await client.kv.get(ns, "k"))["expiresAt"] is None


async def test_get_many(client, ns):
    for key in ("b", "a"):
        await client.kv.put(ns, key, key.upper(), forever=True)
    found = await client.kv.get_many(ns, ["b", "nope", "a"])
    assert [(r["key"], r["value"]) for r in found["rows"]] == [("a", "A"), ("b", "B")]
    assert found["missing"] == ["nope"] and found["truncated"] is False


async def test_prefix_pages(client, ns):
    for i in range(5):
        await client.kv.put(ns, "p:%d" % i, i, forever=True)
    await client.kv.put(ns, "q:0", "neighbour", forever=True)
    page = await client.kv.get_prefix(ns, "p:", limit=2)
    assert [r["value"] for r in page["rows"]] == [0, 1] and page["truncated"] and page["nextAfter"] == "p:1"
    page = await client.kv.get_prefix(ns, "p:", limit=2, after=page["nextAfter"], keys_only=True)
    assert [r["key"] for r in page["rows"]] == ["p:2", "p:3"] and "value" not in page["rows"][0]
    assert [r["value"] for r in await client.kv.list_all(ns, "p:", limit=2)] == list(range(5))
    assert len(await client.kv.list_all(ns, "p:", limit=2, max_rows=3)) == 3


async def test_a_batch_is_one_step(client, ns):
    op = client.kv.op
    results = await client.kv.batch([
        op.put(ns, "a", 1, forever=True), op.incr(ns, "n", forever=True), op.get(ns, "a"), op.delete(ns, "none"), op.get_many(ns, ["a", "n"])])
    assert [r["index"] for r in results] == list(range(5))
    assert results[0] and results[1]["value"] == 1 and results[2]["value"] == 1 and not results[3]
    assert [r["value"] for r in results[4]["rows"]] == [1, 1]
    assert await client.kv.batch([]) == []


async def test_a_required_loss_undoes_the_batch(tapped, ns):
    op = tapped.kv.op
    await tapped.kv.put(ns, "held", 1, forever=True)
    operations = [op.put(ns, "a", 1, forever=True), op.put_if_absent(ns, "held", 2, forever=True, required=True)]
    answer = await tapped._http_client.post("/api/v1/kv", {"operations": operations})
    assert answer["ok"] is False and answer["reason"] == "kv_precondition" and answer["failedIndex"] == 1 and answer["kvReason"] == "exists"
    assert not await tapped.kv.get(ns, "a")


async def test_keys_with_slashes_and_accents(client, ns):
    for key in ("a/b/c", "ü ö", "a%2Fb", "#?&"):
        await client.kv.put(ns, key, key, forever=True)
        assert (await client.kv.get(ns, key))["value"] == key


async def test_refusals_carry_their_code(client, ns):
    cases = [
        (client.kv.put(ns, "k", "x" * 70000, forever=True), 413, "payload_too_large", "kv_value_too_large"),
        (client.kv.put("Bad Name", "k", 1, forever=True), 400, "kv_bad_request", "kv_bad_namespace"),
        (client.kv.get(ns, "k\x00"), 400, "kv_bad_request", "kv_bad_key"),
        (client.kv.batch([client.kv.op.put(ns, "k", 1, forever=True)] * 2), 400, "kv_bad_request", "kv_duplicate_key_in_call"),
        (client.kv.batch([{"op": "merge", "ns": ns, "key": "k"}]), 400, "kv_bad_request", "kv_unknown_op"),
        (client.kv.batch([{"op": "put", "ns": ns, "key": "k", "value": 1}]), 400, "kv_bad_request", "kv_expiry_not_specified"),
        (client.kv.batch([client.kv.op.get(ns, "k")] * 300), 400, "kv_bad_request", "kv_too_many_ops"),
    ]
    for call, status, code, reason in cases:
        with pytest.raises(KvError) as refused:
            await call
        assert (refused.value.status, refused.value.code, refused.value.reason) == (status, code, reason)


async def test_the_client_asks_for_a_lifetime(client, ns):
    for wrong in ({}, {"ttl_seconds": 5, "forever": True}, {"ttl_seconds": 0}):
        with pytest.raises((ValueError, TypeError)):
            await client.kv.put(ns, "k", 1, **wrong)


async def test_a_compare_and_swap_loop(client, ns):
    await client.kv.put(ns, "sum", 0, forever=True)

    async def add(n):
        while True:
            row = await client.kv.get(ns, "sum")
            if await client.kv.put(ns, "sum", row["value"] + n, forever=True, expect=row["version"]):
                return

    await asyncio.gather(*(add(n) for n in range(1, 9)))
    assert (await client.kv.get(ns, "sum"))["value"] == 36
