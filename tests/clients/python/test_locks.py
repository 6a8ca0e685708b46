"""Locks and semaphores: the four calls, the handle with its renewal, loss, waiting, close."""

import asyncio
from datetime import timedelta

import pytest
from queen import LockNotHeldError


async def test_the_four_calls(client, queue):
    taken = await client.locks.acquire(queue, ttl_seconds=30, owner="w1")
    assert taken and taken["slot"] == 0 and taken["owner"] == "w1" and taken["token"] > 0
    assert taken["guard"] == {"op": "check", "ns": "queen-locks", "key": queue + "#0", "expect": taken["token"], "required": True}
    other = await client.locks.acquire(queue, ttl_seconds=30, owner="w2")
    assert not other and other["reason"] == "held" and other["holders"][0]["owner"] == "w1"
    row = await client.kv.get("queen-locks", queue + "#0")
    assert row["version"] == taken["token"] and row["value"]["owner"] == "w1"
    seen = await client.locks.get(queue)
    assert seen and seen["holders"][0]["token"] == taken["token"] and seen["holders"][0]["expiresAt"]
    renewed = await client.locks.renew(queue, token=taken["token"], ttl=timedelta(seconds=60), owner="w1")
    assert renewed and renewed["token"] > taken["token"] and renewed["guard"]["expect"] == renewed["token"]
    assert (await client.locks.release(queue, token=taken["token"]))["released"] is False
    assert await client.locks.release(queue, token=renewed["token"])
    assert not await client.locks.get(queue)


async def test_the_same_owner_gets_the_same_permit(client, queue):
    first = await client.locks.acquire(queue, ttl_seconds=30, owner="w1")
    again = await client.locks.acquire(queue, ttl_seconds=30, owner="w1")
    assert again and again["token"] == first["token"] and again["already"] is True
    renewed = await client.locks.renew(queue, token=first["token"], ttl_seconds=30, owner="w1")
    repeated = await client.locks.renew(queue, token=first["token"], ttl_seconds=30, owner="w1")
    assert repeated and repeated["token"] > renewed["token"]
    stranger = await client.locks.renew(queue, token=first["token"], ttl_seconds=30, owner="w2")
    assert not stranger and stranger["reason"] == "lost" and stranger["holders"][0]["owner"] == "w1"


async def test_a_batch_of_locks_is_independent(client, queue):
    results = await client.locks.batch([
        {"op": "acquire", "name": queue + "-a", "ttlSeconds": 30}, {"op": "get", "name": queue + "-b"},
        {"op": "release", "name": queue + "-c", "token": 1}])
    assert [bool(r) for r in results] == [True, False, False]
    assert results[1]["holders"] == [] and results[2]["reason"] == "lost"


async def test_a_handle_acquires_waits_and_releases(client, queue):
    one, two = client.lock(queue, ttl_seconds=30), client.lock(queue, ttl_seconds=30)
    assert await one.acquire() and one.held and one.slot == 0 and await one.acquire()
    assert not await two.acquire()
    waiting = asyncio.create_task(two.acquire(wait=10))
    await asyncio.sleep(0.2)
    assert not waiting.done() and await one.release() and not one.held
    assert await waiting and two.token > 0
    assert await one.release() is False
    with pytest.raises(LockNotHeldError):
        one.guard()


async def test_a_block_holds_the_lock(client, queue):
    async with client.lock(queue, ttl_seconds=30):
        with pytest.raises(LockNotHeldError):
            async with client.lock(queue, ttl_seconds=30):
                raise AssertionError("two holders")
        assert await client.locks.get(queue)
    assert not await client.locks.get(queue)


async def test_two_runs_never_overlap(client, queue):
    inside = 0

    async def work(lock):
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.1)
        inside -= 1
        return lock.owner

    locks = [client.lock(queue, ttl_seconds=30) for _ in range(3)]
    results = await asyncio.gather(*(lock.run(work, wait=20) for lock in locks))
    assert [r["value"] for r in results] == [lock.owner for lock in locks]
    assert (await client.lock(queue, ttl_seconds=30).run(work))["acquired"]


async def test_renewal_keeps_it_past_its_lifetime(client, queue):
    lock = client.lock(queue, ttl_seconds=2, renew_every=0.2)
    assert await lock.acquire()
    first = lock.token
    await asyncio.sleep(2.6)
    assert lock.held and lock.token > first and not lock.lost.is_set()
    assert not await client.lock(queue, ttl_seconds=30).acquire()


async def test_without_renewal_it_runs_out_and_the_next_token_is_higher(client, queue):
    lost = []
    lock = client.lock(queue, ttl_seconds=1, auto_renew=False).on_lost(lost.append)
    assert await lock.acquire()
    token = lock.token
    await asyncio.wait_for(lock.lost.wait(), 5)
    assert lost == ["expired"] and not lock.held
    other = client.lock(queue, ttl_seconds=30)
    assert await other.acquire(wait=5) and other.token > token


async def test_a_lock_taken_away_is_noticed_by_the_renewal(client, queue):
    lost = []
    lock = client.lock(queue, ttl_seconds=30, renew_every=0.1).on_lost(lost.append)
    assert await lock.acquire()
    await client.kv.delete("queen-locks", queue + "#0")
    await asyncio.wait_for(lock.lost.wait(), 5)
    assert lost == ["renew"]


async def test_a_semaphore_never_grants_more_than_its_limit(client, queue):
    inside, most, slots = 0, 0, set()

    async def work(permit):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        slots.add(permit.slot)
        await asyncio.sleep(0.05)
        inside -= 1

    permits = [client.semaphore(queue, 3, ttl_seconds=30, retry_min=0.02, retry_max=0.1) for _ in range(9)]
    results = await asyncio.gather(*(permit.run(work, wait=30) for permit in permits))
    assert all(r["acquired"] for r in results) and most <= 3 and slots <= {0, 1, 2}
    holding = [client.semaphore(queue, 3, ttl_seconds=30) for _ in range(4)]
    assert [await one.acquire() for one in holding] == [True, True, True, False]
    assert len((await client.locks.get(queue))["holders"]) == 3
    assert sorted(one.slot for one in holding[:3]) == [0, 1, 2]


async def test_closing_the_client_gives_its_locks_back(connect, broker, client, queue):
    other = connect(broker)
    assert await other.lock(queue, ttl_seconds=300).acquire()
    assert not await client.lock(queue, ttl_seconds=30).acquire()
    await other.close()
    connect.made.remove(other)
    assert await client.lock(queue, ttl_seconds=30).acquire()


async def test_a_lost_answer_of_an_acquire_is_asked_again_under_the_same_owner(tapped, queue):
    tapped._http_client._retry_delay_millis = 10
    tapped.tap.lose.append("/api/v1/locks")
    lock = tapped.lock(queue, ttl_seconds=30)
    assert await lock.acquire()
    assert len(tapped.tap.to("/api/v1/locks")) == 2
    assert (await tapped.kv.get("queen-locks", queue + "#0"))["version"] == lock.token
    assert await lock.release()
