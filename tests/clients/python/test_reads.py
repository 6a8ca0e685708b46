"""Reads without a lease: fetch by offset, the lanes that changed."""

import asyncio
from datetime import datetime, timedelta, timezone

from kit import data, eventually


async def test_fetch_reads_every_record_and_moves_nothing(client, queue):
    await client.queue(queue).partition("a").push([{"transactionId": "t%d" % i, "data": i} for i in range(5)])
    await client.queue(queue).partition("b").push({"data": "b"})
    read = await client.queue(queue).fetch(["a", "b", "none"])
    assert [r["payload"] for r in read["a"]["records"]] == list(range(5))
    assert [r["offset"] for r in read["a"]["records"]] == list(range(5)) and read["a"]["records"][2]["transactionId"] == "t2"
    assert (read["a"]["highWatermark"], read["a"]["logStartOffset"], read["a"]["nextOffset"]) == (5, 0, 5)
    assert datetime.fromisoformat(read["a"]["records"][0]["ts"].replace("Z", "+00:00"))
    assert read["none"]["records"] == [] and read["none"]["nextOffset"] == 0
    assert len(await client.queue(queue).batch(99).partitions(4).pop()) == 6


async def test_fetch_goes_on_from_an_offset(client, queue):
    await client.queue(queue).partition("a").push([{"data": i} for i in range(5)])
    read = await client.queue(queue).fetch("a", offsets={"a": 3})
    assert [r["payload"] for r in read["a"]["records"]] == [3, 4]
    await client.queue(queue).partition("a").push({"data": 5})
    read = await client.queue(queue).fetch("a", offsets={"a": read["a"]["nextOffset"]})
    assert [r["payload"] for r in read["a"]["records"]] == [5]
    beyond = await client.queue(queue).fetch("a", offsets={"a": 100})
    assert beyond["a"]["records"] == [] and beyond["a"]["highWatermark"] == 6


async def test_fetch_goes_on_behind_what_retention_took(own_broker, connect, queue):
    client = connect(own_broker(env={"RETENTION_INTERVAL": "100"}))
    await client.queue(queue).config({"retention_enabled": True, "retention_seconds": 1}).create()
    await client.queue(queue).partition("a").push([{"data": i} for i in range(3)])

    async def gone():
        read = await client.queue(queue).fetch("a")
        return read["a"]["logStartOffset"] == 3

    await eventually(gone)
    await client.queue(queue).config({"retention_enabled": False}).create()
    await client.queue(queue).partition("a").push({"data": "kept"})
    read = await client.queue(queue).fetch("a", offsets={"a": 1})
    assert [(r["offset"], r["payload"]) for r in read["a"]["records"]] == [(3, "kept")] and read["a"]["nextOffset"] == 4
    assert data(await client.queue(queue).group("g").subscription_mode("all").pop()) == ["kept"]


async def test_fetch_of_many_lanes_with_little_room_reads_all(tapped, queue):
    for i in range(4):
        await tapped._http_client.post("/api/v1/push", {"items": [{"queue": queue, "partition": "p%d" % lane, "payload": "x" * 900 + str(i)} for lane in range(6)]})
    read = await tapped.queue(queue).fetch(["p%d" % lane for lane in range(6)], max_bytes=2000)
    for lane in read.values():
        assert [r["payload"][900:] for r in lane["records"]] == ["0", "1", "2", "3"]
    assert len(tapped.tap.to("/api/v1/fetch")) >= 8  # 24 records of 900 bytes, at most 3 a call


async def test_a_queue_that_does_not_exist_reads_empty(client, queue):
    assert (await client.queue(queue).fetch(["a"]))["a"]["records"] == []
    assert (await client.queue(queue).changed_since())["partitions"] == []


async def test_changed_since(client, queue):
    await client.queue(queue).partition("old").push({"data": 1})
    everything = await client.queue(queue).changed_since()
    [old] = everything["partitions"]
    assert old["name"] == "old" and old["lastOffset"] == 0 and old["logStart"] == 0 and old["id"]
    await asyncio.sleep(0.01)
    await client.queue(queue).partition("new").push([{"data": i} for i in range(2)])
    changed = await client.queue(queue).changed_since(everything["safeTime"])
    assert ("new", 1) in [(p["name"], p["lastOffset"]) for p in changed["partitions"]]
    again = await client.queue(queue).changed_since(changed["safeTime"])
    assert all(p["lastWriteAt"] >= changed["safeTime"] for p in again["partitions"])
    assert "old" not in [p["name"] for p in again["partitions"]]
    hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
    assert len((await client.queue(queue).changed_since(hour_ago))["partitions"]) == 2
    assert len((await client.queue(queue).changed_since(hour_ago.replace(tzinfo=None).isoformat()))["partitions"]) == 2


async def test_changed_since_follows_its_pages(tapped, queue):
    await asyncio.gather(*(
        tapped._http_client.post("/api/v1/push", {"items": [
            {"queue": queue, "partition": "p%04d" % i, "payload": i} for i in range(start, start + 300)]}) for start in range(0, 1200, 300)))
    changed = await tapped.queue(queue).changed_since()
    assert len(changed["partitions"]) == 1200 and len({p["name"] for p in changed["partitions"]}) == 1200
    assert len(tapped.tap.to("/api/v1/partitions/changed")) == 2
    read = await tapped.queue(queue).fetch([p["name"] for p in changed["partitions"]])
    assert sorted(lane["records"][0]["payload"] for lane in read.values()) == list(range(1200))
    assert data(await tapped.queue(queue).partition("p0000").pop()) == [0]
