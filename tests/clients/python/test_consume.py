"""Consume: handlers one by one and by batch, several workers, limits, renewal, what a throwing handler does."""

import asyncio
import time

import pytest

from kit import data, eventually, ids, take_all


async def test_each_message_goes_to_the_handler_and_is_acked(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(10)])
    got = []

    async def handler(message):
        got.append(message["data"])

    await client.queue(queue).each().limit(10).consume(handler)
    assert got == list(range(10))
    assert await client.queue(queue).wait(False).pop() == []


async def test_a_batch_goes_to_the_handler_as_a_list(tapped, queue):
    await tapped.queue(queue).push([{"data": i} for i in range(10)])
    got = []

    async def handler(messages):
        got.append(data(messages))

    await tapped.queue(queue).batch(5).limit(10).consume(handler)
    assert got == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert len(tapped.tap.to("/api/v1/ack/batch")) == 2
    for pop in tapped.tap.to("/api/v1/pop"):
        assert "autoAck" not in pop.query and pop.query["wait"] == "true"


async def test_batch_one_gives_the_message_itself(client, queue):
    await client.queue(queue).push({"data": 1})
    got = []

    async def handler(message):
        got.append(message["data"])

    await client.queue(queue).batch(1).limit(1).consume(handler)
    assert got == [1]


async def test_a_group_consumes_and_its_cursor_moves(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(4)])
    got = []

    async def handler(message):
        got.append(message["data"])

    await client.queue(queue).group("g").subscription_mode("all").each().limit(4).consume(handler)
    assert got == [0, 1, 2, 3]
    assert await client.queue(queue).group("g").wait(False).pop() == []
    assert len(await client.queue(queue).batch(9).pop()) == 4


async def test_workers_share_the_lanes(client, queue):
    for lane in range(12):
        await client.queue(queue).partition("p%d" % lane).push([{"data": (lane, i)} for i in range(5)])
    got, busy, most = [], 0, 0
    stop = asyncio.Event()

    async def handler(message):
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.01)
        busy -= 1
        got.append(tuple(message["data"]))
        if len(got) == 60:
            stop.set()

    await client.queue(queue).each().concurrency(4).batch(5).partitions(1).timeout_millis(500).consume(handler, signal=stop)
    assert len(got) == 60 and len(set(got)) == 60 and most > 1
    for lane in range(12):
        assert [i for one, i in got if one == lane] == list(range(5))


async def test_a_pinned_lane_and_a_namespace(client, queue):
    await client.queue(queue).namespace(queue + "-ns").create()
    await client.queue(queue).partition("in").push({"data": "in"})
    await client.queue(queue).partition("out").push({"data": "out"})
    got = []

    async def handler(message):
        got.append(message["data"])

    await client.queue(queue).partition("in").each().limit(1).consume(handler)
    assert got == ["in"]
    await client.queue().namespace(queue + "-ns").each().limit(1).consume(handler)
    assert got == ["in", "out"]


async def test_messages_that_come_while_it_waits(client, queue):
    got = []

    async def handler(message):
        got.append(message["data"])

    consuming = asyncio.ensure_future(client.queue(queue).each().limit(3).timeout_millis(5000).consume(handler))
    for i in range(3):
        await asyncio.sleep(0.1)
        await client.queue(queue).push({"data": i})
    await asyncio.wait_for(consuming, 20)
    assert got == [0, 1, 2]


async def test_without_waiting_it_polls(client, queue):
    got = []

    async def handler(message):
        got.append(message["data"])

    consuming = asyncio.ensure_future(client.queue(queue).wait(False).each().limit(1).consume(handler))
    await asyncio.sleep(0.3)
    await client.queue(queue).push({"data": 1})
    await asyncio.wait_for(consuming, 20)
    assert got == [1]


async def test_it_stops_when_idle_and_when_told(client, queue):
    async def handler(message):
        raise AssertionError("nothing was pushed")

    started = time.monotonic()
    await client.queue(queue).each().idle_millis(400).timeout_millis(300).consume(handler)
    assert 0.4 <= time.monotonic() - started < 10
    stop = asyncio.Event()
    consuming = asyncio.ensure_future(client.queue(queue).each().timeout_millis(300).consume(handler, signal=stop))
    await asyncio.sleep(0.1)
    stop.set()
    await asyncio.wait_for(consuming, 10)


async def test_a_throwing_handler_nacks_and_goes_on(client, queue):
    await client.queue(queue).push([{"transactionId": "t%d" % i, "data": i} for i in range(3)])
    got = []

    async def handler(message):
        got.append((message["data"], message["deliveryAttempt"]))
        if message["data"] == 1 and [d for d, _ in got].count(1) == 1:
            raise RuntimeError("not this time")

    await client.queue(queue).each().batch(3).limit(4).consume(handler)
    assert [d for d, _ in got] == [0, 1, 1, 2]
    assert await client.queue(queue).wait(False).pop() == []


async def test_a_poisoned_message_ends_in_the_dlq_with_the_handlers_words(client, queue):
    await client.queue(queue).config({"retry_limit": 1}).create()
    await client.queue(queue).push([{"transactionId": "t%d" % i, "data": i} for i in range(5)])
    got = []

    async def handler(message):
        got.append(message["data"])
        if message["data"] == 1:
            raise RuntimeError("unreadable")

    await client.queue(queue).group("g").subscription_mode("all").each().batch(5).limit(6).consume(handler)
    assert got == [0, 1, 1, 2, 3, 4]
    letters = await client.queue(queue).dlq("g").get()
    assert letters["total"] == 1 and letters["messages"][0]["errorMessage"] == "unreadable"
    assert letters["messages"][0]["transactionId"] == "t1"


async def test_a_failed_batch_comes_back_whole(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(4)])
    got = []

    async def handler(messages):
        got.append(data(messages))
        if len(got) == 1:
            raise RuntimeError("again")

    await client.queue(queue).batch(4).limit(8).consume(handler)
    assert got == [[0, 1, 2, 3], [0, 1, 2, 3]]


async def test_a_nack_of_one_lane_does_not_stop_the_others(client, queue):
    for lane in ("a", "b"):
        await client.queue(queue).partition(lane).push([{"data": lane + str(i)} for i in range(2)])
    got = []
    stop = asyncio.Event()

    async def handler(message):
        got.append(message["data"])
        if message["data"] == "a0" and got.count("a0") == 1:
            raise RuntimeError("later")
        if len(got) == 5:
            stop.set()

    await client.queue(queue).each().batch(10).partitions(2).timeout_millis(500).consume(handler, signal=stop)
    assert sorted(got) == ["a0", "a0", "a1", "b0", "b1"]
    assert await take_all(lambda: client.queue(queue)) == []


async def test_callbacks_take_over_the_acks(client, queue):
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    done, failed = [], []

    async def handler(message):
        if message["data"] == 2:
            raise RuntimeError("two")

    async def success(message, result):
        done.append(message["data"])
        assert (await client.ack(message))["success"]

    async def error(message, reason):
        failed.append((message["data"], str(reason)))
        assert (await client.ack(message, "dlq"))["success"]

    await client.queue(queue).each().batch(2).limit(2).consume(handler).on_success(success).on_error(error)
    assert done == [1] and failed == [(2, "two")]
    assert (await client.queue(queue).dlq().get())["total"] == 1


async def test_without_auto_ack_the_handlers_error_ends_the_loop(client, queue):
    await client.queue(queue).config({"lease_time": 2}).create()
    await client.queue(queue).push({"transactionId": "t", "data": 1})

    async def handler(message):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        await client.queue(queue).auto_ack(False).each().consume(handler)
    [again] = await client.queue(queue).timeout_millis(10000).pop()
    assert ids([again]) == ["t"] and again["deliveryAttempt"] == 2


async def test_leases_are_renewed_while_a_handler_works(tapped, queue):
    await tapped.queue(queue).config({"lease_time": 2}).create()
    await tapped.queue(queue).push({"data": 1})
    stolen = []

    async def handler(message):
        for _ in range(4):
            await asyncio.sleep(0.7)
            stolen.extend(await tapped.queue(queue).wait(False).pop())

    await tapped.queue(queue).renew_lease(True, 200).each().limit(1).consume(handler)
    assert stolen == [] and len(tapped.tap.to("/api/v1/lease/")) >= 4
    assert await tapped.queue(queue).wait(False).pop() == []


async def test_a_conflating_consumer_runs_once_a_lane(client, queue):
    for lane in ("a", "b", "c"):
        await client.queue(queue).partition(lane).push([{"data": lane + str(i)} for i in range(5)])
    got = []

    async def handler(message):
        got.append(message["data"])

    await client.queue(queue).group("g").subscription_mode("all").conflation().each().limit(3).consume(handler)
    assert sorted(got) == ["a4", "b4", "c4"]


async def test_supervision_writes_its_state_to_kv(client, queue):
    await client.queue(queue).push({"data": 1})
    app = "app-" + queue

    async def handler(message):
        pass

    await client.queue(queue).supervision({"group": app}).each().limit(1).consume(handler)

    async def rows():
        return await client.kv.list_all("queen-supervisor", app + "/")

    found = await eventually(rows)
    assert len(found) == 2 and {row["key"].rsplit("/", 1)[1] for row in found} == {"head", "0000"}


@pytest.mark.route("POST /api/v1/traces")
async def test_a_handler_leaves_a_trace(client, queue):
    await client.queue(queue).push({"transactionId": "t", "data": 1})
    answers = []

    async def handler(message):
        answers.append(await message["trace"]({"traceName": "job-" + queue, "eventType": "step", "data": {"n": 1}}))

    await client.queue(queue).each().limit(1).consume(handler)
    assert answers[0]["success"] and answers[0]["traceId"]
    found = await client.admin.get_traces_by_name("job-" + queue)
    assert found["total"] == 1 and found["traces"][0]["data"] == {"n": 1}


async def test_a_pool_of_consumers_on_one_group(connect, broker, client, queue):
    for lane in range(6):
        await client.queue(queue).partition("p%d" % lane).push([{"data": (lane, i)} for i in range(20)])
    got = []
    stop = asyncio.Event()

    async def handler(messages):
        got.extend(tuple(one) for one in data(messages))
        if len(got) >= 120:
            stop.set()

    others = [connect(broker) for _ in range(3)]
    await asyncio.gather(*(
        one.queue(queue).group("g").subscription_mode("all").batch(7).partitions(2).timeout_millis(500).consume(handler, signal=stop) for one in others))
    assert len(got) == 120 and len(set(got)) == 120
    for lane in range(6):
        assert [i for one, i in got if one == lane] == list(range(20))
