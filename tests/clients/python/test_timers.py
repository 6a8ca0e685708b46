"""Timers: schedule, move, cancel, look, pages, firing."""

import base64
import json
import time
from datetime import datetime, timedelta, timezone

import pytest
from queen import TimerError

from kit import data, eventually, take_all


async def test_a_timer_fires_with_the_ids_it_promised(client, queue):
    scheduled = await client.timers.schedule(queue, "order:1", {"n": 1}, delay_ms=300, txn="fire-1")
    assert scheduled and scheduled["status"] == "scheduled" and scheduled["txn"] == "fire-1"
    assert datetime.fromisoformat(scheduled["deliverAt"].replace("Z", "+00:00")) > datetime.now(timezone.utc) - timedelta(seconds=5)
    started = time.monotonic()
    [message] = await client.queue(queue).timeout_millis(10000).pop()
    assert message["data"] == {"n": 1} and message["transactionId"] == "fire-1" and message["id"] == scheduled["messageId"]
    assert time.monotonic() - started < 5
    assert not await client.timers.peek(queue, "order:1")


async def test_the_builder(client, queue):
    timer = client.timer(queue).key("k").partition("lane").payload([1, None, "ü"]).after(timedelta(milliseconds=100)).txn("mine")
    assert (await timer.schedule())["status"] == "scheduled"
    [message] = await client.queue(queue).partition("lane").timeout_millis(10000).pop()
    assert message["data"] == [1, None, "ü"] and message["transactionId"] == "mine"


@pytest.mark.parametrize("delay_ms", [0, -5000])
async def test_a_past_delay_fires_at_once(client, queue, delay_ms):
    await client.timers.schedule(queue, "k", 1, delay_ms=delay_ms)
    assert data(await client.queue(queue).timeout_millis(10000).pop()) == [1]


async def test_it_never_fires_early(client, queue):
    started = time.monotonic()
    await client.timers.schedule(queue, "k", 1, delay_ms=700)
    assert await client.queue(queue).wait(False).pop() == []
    assert data(await client.queue(queue).timeout_millis(10000).pop()) == [1]
    assert time.monotonic() - started >= 0.7


async def test_cancel_before_the_fire(client, queue):
    await client.timers.schedule(queue, "a/b c:ü", 1, delay_ms=60000, txn="t")
    assert await client.timers.peek(queue, "a/b c:ü")
    cancelled = await client.timers.cancel(queue, "a/b c:ü")
    assert cancelled and cancelled["status"] == "cancelled" and cancelled["txn"] == "t" and cancelled["timerKey"] == "a/b c:ü"
    assert not await client.timers.peek(queue, "a/b c:ü")


async def test_cancelling_what_is_not_there_says_absent_and_echoes_the_txn(client, queue):
    absent = await client.timers.cancel(queue, "k", txn="looked-for")
    assert not absent and absent["status"] == "absent" and absent["txn"] == "looked-for"
    assert (await client.timer(queue).key("k").cancel())["txn"] is None


async def test_rescheduling_replaces_everything(client, queue):
    first = await client.timers.schedule(queue, "k", {"v": 1}, delay_ms=60000, txn="one")
    second = await client.timers.reschedule(queue, "k", {"v": 2}, delay_ms=120000, txn="two", partition="p2")
    assert second["status"] == "rescheduled" and second["messageId"] != first["messageId"]
    peek = await client.timers.peek(queue, "k")
    assert peek["txn"] == "two" and peek["partition"] == "p2" and peek["messageId"] == second["messageId"]
    assert json.loads(base64.b64decode(peek["payload"])) == {"v": 2}
    assert peek["attempts"] == 0 and peek["lastError"] is None and peek["claimed"] is False and peek["payloadZstd"] is False
    assert peek["deliverAt"] == second["deliverAt"]


async def test_scheduling_again_is_the_same_upsert(client, queue):
    for status in ("scheduled", "rescheduled"):
        assert (await client.timers.schedule(queue, "k", 1, delay_ms=60000))["status"] == status
    assert len((await client.timers.list(queue))["rows"]) == 1


async def test_a_moved_timer_fires_once_with_the_new_payload(client, queue):
    await client.timers.schedule(queue, "k", "old", delay_ms=60000)
    await client.timers.reschedule(queue, "k", "new", delay_ms=100)
    assert data(await client.queue(queue).timeout_millis(10000).pop()) == ["new"]
    assert (await client.timers.list(queue))["rows"] == []


async def test_pages_of_one_queue_in_the_order_of_keys(client, queue):
    for key in ("c", "a", "b"):
        await client.timers.schedule(queue, key, key, delay_ms=60000)
    page = await client.timers.list(queue, limit=2)
    assert [r["timerKey"] for r in page["rows"]] == ["a", "b"] and page["truncated"] is True and page["nextAfter"] == "b"
    page = await client.timers.list(queue, limit=2, after="b")
    assert [r["timerKey"] for r in page["rows"]] == ["c"] and page["truncated"] is False
    rows = await client.timers.list_all(queue, limit=1)
    assert [r["timerKey"] for r in rows] == ["a", "b", "c"] and "payload" not in rows[0]
    assert (await client.timers.list(queue + "-none"))["rows"] == []


async def test_a_batch_of_timers_is_aligned(client, queue):
    op = client.timers.op
    results = await client.timers.batch([
        op.schedule(queue, "a", 1, delay_ms=60000), op.cancel(queue, "b", txn="t"), op.schedule(queue, "c", 3, delay=timedelta(minutes=1), reschedule=True)])
    assert [r["status"] for r in results] == ["scheduled", "absent", "scheduled"]
    assert await client.timers.batch([]) == []


async def test_dedup_of_a_fire(client, queue):
    await client.queue(queue).push({"transactionId": "same", "data": "pushed"})
    await client.timers.schedule(queue, "k", "timer", delay_ms=0, txn="same")

    async def fired():
        return not await client.timers.peek(queue, "k")

    await eventually(fired)
    assert data(await take_all(lambda: client.queue(queue).batch(9))) == ["pushed"]


async def test_many_timers_all_fire(client, queue):
    op = client.timers.op
    await client.timers.batch([op.schedule(queue, "k%03d" % i, i, delay_ms=100 + i, partition="p%d" % (i % 5)) for i in range(200)])
    got = []
    while len(got) < 200:
        messages = await client.queue(queue).batch(100).partitions(5).timeout_millis(10000).pop()
        assert messages and (await client.ack(messages))["success"]
        got += data(messages)
    assert sorted(got) == list(range(200))


async def test_a_compressed_payload_is_delivered_as_json(client, queue):
    import zstandard

    packed = zstandard.ZstdCompressor().compress(json.dumps({"big": "x" * 1000}).encode())
    await client.timers.schedule(queue, "k", packed, delay_ms=0, payload_zstd=True)
    assert data(await client.queue(queue).timeout_millis(10000).pop()) == [{"big": "x" * 1000}]


async def test_refusals_carry_their_code(client, queue):
    op = client.timers.op
    good = op.schedule(queue, "k", 1, delay_ms=1000)
    cases = [
        (client.timers.schedule(queue, "k", 1, delay_ms=91 * 86400000), 403, "timer_horizon_exceeded"),
        (client.timers.schedule(queue, "k", "x" * (1100 << 10), delay_ms=1000), 413, "payload_too_large"),
        (client.timers.batch([good, op.schedule(queue, "k", 2, delay_ms=1000)]), 400, "timers_bad_request"),
        (client.timers.batch([dict(good, op="shift")]), 400, "timers_bad_request"),
        (client.timers.batch([{k: v for k, v in good.items() if k != "payload"}]), 400, "timers_bad_request"),
        (client.timers.batch([dict(good, payload="***")]), 400, "timers_bad_request"),
    ]
    for call, status, code in cases:
        with pytest.raises(TimerError) as refused:
            await call
        assert (refused.value.status, refused.value.code) == (status, code), refused.value
    with pytest.raises(ValueError):  # the client's own refusal of what the server owns
        await client.timers.batch([dict(good, deliverAt="2031-01-01")])


async def test_a_payload_that_is_not_json(client, queue):
    with pytest.raises(TimerError) as refused:
        await client.timers.schedule(queue, "k", b"\x00\x01", delay_ms=1000)
    assert refused.value.status == 400 and refused.value.reason == "timers_payload_not_json"
