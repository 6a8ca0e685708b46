"""Pop: what comes, how long it waits, who gets it, from where a group starts."""

import asyncio
import time
from datetime import datetime, timedelta, timezone

import pytest
from queen import ConflationUnsupportedError

from kit import data, eventually, ids, refused, take_all


async def test_a_message_has_the_fields_the_client_reads(client, queue):
    await client.queue(queue).partition("lane").push({"transactionId": "t1", "data": {"n": 1}})
    [message] = await client.queue(queue).partition("lane").group("g").subscription_mode("all").pop()
    assert message["transactionId"] == "t1" and message["partitionId"].isdigit() and message["leaseId"]
    assert message["consumerGroup"] == "g" and message["deliveryAttempt"] == 1 and message["offset"] == 0
    assert message["traceId"] is None and message["producerSub"] is None
    assert datetime.fromisoformat(message["createdAt"].replace("Z", "+00:00")) > datetime.now(timezone.utc) - timedelta(minutes=5)


async def test_nothing_is_an_empty_list(client, queue):
    assert await client.queue(queue).wait(False).pop() == []
    result = await client.queue(queue).wait(False).pop_result()
    assert result.messages == [] and result.autopilot is None


async def test_an_empty_long_poll_ends_in_its_time(client, queue):
    started = time.monotonic()
    assert await client.queue(queue).timeout_millis(600).pop() == []
    assert 0.3 <= time.monotonic() - started < 5


async def test_a_waiting_pop_gets_the_message_that_comes(client, queue):
    waiting = asyncio.create_task(client.queue(queue).timeout_millis(20000).pop())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    pushed = time.monotonic()
    await client.queue(queue).push({"data": "late"})
    assert data(await waiting) == ["late"]
    assert time.monotonic() - pushed < 5


async def test_waiting_pops_of_many_lanes_each_get_one(client, queue):
    waiting = [asyncio.create_task(client.queue(queue).partition("p%d" % i).timeout_millis(20000).pop()) for i in range(8)]
    await asyncio.sleep(0.2)
    for i in range(8):
        await client.queue(queue).partition("p%d" % i).push({"data": i})
    assert [data(await one) for one in waiting] == [[i] for i in range(8)]


async def test_batch_and_partitions_bound_the_pop(client, queue):
    for lane in ("a", "b", "c"):
        await client.queue(queue).partition(lane).push([{"data": lane + str(i)} for i in range(4)])
    three = await client.queue(queue).batch(3).partitions(1).pop()
    assert len(three) == 3 and len({m["partition"] for m in three}) == 1
    rest = await client.queue(queue).batch(100).partitions(5).pop()
    assert len({m["partition"] for m in rest}) == 2 and len(rest) == 8
    assert len({m["leaseId"] for m in rest}) == 1


async def test_autopilot_sizes_the_pop_and_says_so(tapped, queue):
    await tapped.queue(queue).push([{"data": i} for i in range(5)])
    result = await tapped.queue(queue).group("g").subscription_mode("all").pop_result()
    assert len(result.messages) == 5
    assert result.autopilot.batch >= 1 and result.autopilot.partitions >= 1
    query = tapped.tap.to("/api/v1/pop")[0].query
    assert query["autopilot"] == "true" and "batch" not in query and "partitions" not in query


async def test_without_autopilot_one_message_comes(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(3)])
    result = await client.queue(queue).autopilot(False).pop_result()
    assert data(result.messages) == [0] and result.autopilot is None


async def test_a_pinned_width_travels_and_is_kept(tapped, queue):
    for lane in ("a", "b"):
        await tapped.queue(queue).partition(lane).push({"data": lane})
    result = await tapped.queue(queue).partitions(1).pop_result()
    assert len(result.messages) == 1 and result.autopilot.batch >= 1
    assert tapped.tap.to("/api/v1/pop")[0].query["partitions"] == "1"


async def test_a_leased_lane_is_nobody_elses_until_it_is_settled(client, queue):
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    [first] = await client.queue(queue).batch(1).pop()
    assert await client.queue(queue).wait(False).pop() == []
    assert (await client.ack(first))["success"]
    assert data(await client.queue(queue).batch(1).pop()) == [2]


async def test_groups_each_get_everything(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(3)])
    for group in ("one", "two", None):
        builder = client.queue(queue).subscription_mode("all").batch(10)
        messages = await (builder.group(group) if group else builder).pop()
        assert data(messages) == [0, 1, 2]


async def test_a_new_group_starts_where_it_asks(client, queue):
    await client.queue(queue).push({"data": "old"})
    await asyncio.sleep(0.05)
    between = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    await asyncio.sleep(0.05)
    assert await client.queue(queue).group("new").subscription_mode("new").wait(False).pop() == []
    assert await client.queue(queue).group("now").subscription_from("now").wait(False).pop() == []
    assert await client.queue(queue).group("default").wait(False).pop() == []
    await client.queue(queue).push({"data": "fresh"})
    assert data(await client.queue(queue).group("new").pop()) == ["fresh"]
    assert data(await client.queue(queue).group("now").pop()) == ["fresh"]
    assert data(await client.queue(queue).group("default").pop()) == ["fresh"]
    assert data(await client.queue(queue).group("all").subscription_mode("all").batch(9).pop()) == ["old", "fresh"]
    assert data(await client.queue(queue).group("time").subscription_from(between).batch(9).pop()) == ["fresh"]


async def test_the_default_start_is_the_brokers_to_choose(own_broker, connect, queue):
    client = connect(own_broker(env={"DEFAULT_SUBSCRIPTION_MODE": "all"}))
    await client.queue(queue).push({"data": "old"})
    assert data(await client.queue(queue).group("g").pop()) == ["old"]


async def test_commit_on_delivery_takes_without_a_lease(tapped, queue):
    await tapped.queue(queue).push([{"data": 1}, {"data": 2}])
    [message] = await tapped.queue(queue).batch(1).commit_on_delivery().pop()
    assert message["data"] == 1 and not message["leaseId"]
    assert tapped.tap.to("/api/v1/pop")[0].query["autoAck"] == "true"
    assert data(await tapped.queue(queue).batch(5).pop()) == [2]


async def test_pop_by_namespace_and_task(client, queue):
    await client.queue(queue).namespace(queue + "-ns").task("resize").create()
    await client.queue(queue).push({"data": 1})
    assert data(await client.queue().namespace(queue + "-ns").pop()) == [1]
    assert await client.queue().namespace(queue + "-other").wait(False).pop() == []
    assert data(await client.queue().task("resize").namespace(queue + "-ns").group("g").subscription_mode("all").pop()) == [1]


async def test_a_queue_made_by_push_is_found_by_the_names_in_its_name(client, queue):
    await client.queue(queue + ".mail.x").push({"data": 1})
    assert data(await client.queue().namespace(queue).task("mail").pop()) == [1]


async def test_conflation_delivers_the_newest_and_is_echoed_on_an_empty_pop(client, queue):
    def builder():
        return client.queue(queue).group("last").subscription_mode("all").conflation().wait(False)

    assert await builder().pop() == []  # without the echo the client raises
    for lane in ("a", "b"):
        await client.queue(queue).partition(lane).push([{"data": lane + str(i)} for i in range(4)])
    messages = await builder().batch(10).pop()
    assert sorted(data(messages)) == ["a3", "b3"]
    assert (await client.ack(messages, True, {"group": "last"}))["success"]
    assert await builder().pop() == []


async def test_a_conflation_that_contradicts_the_group_goes_on(client, queue, capsys):
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    assert len(await client.queue(queue).group("g").subscription_mode("all").batch(1).pop()) == 1
    messages = await client.queue(queue).group("g").conflation().wait(False).pop()  # leased: empty, and no error
    assert messages == []
    assert "conflation conflict" in capsys.readouterr().err


async def test_conflation_without_a_group_or_with_commit_is_refused(client, queue):
    await refused(client.queue(queue).conflation().wait(False).pop(), 400)
    await refused(client.queue(queue).group("g").conflation().commit_on_delivery().wait(False).pop(), 400)


async def test_the_client_tells_a_broker_without_conflation(tapped, queue):
    from kit import answer

    tapped.tap.script["/api/v1/pop/queue/" + queue] = [answer(200, {"success": True, "messages": []})]
    with pytest.raises(ConflationUnsupportedError):
        await tapped.queue(queue).group("g").conflation().pop()


async def test_delayed_processing_hides_a_message(client, queue):
    await client.queue(queue).config({"delayed_processing": 1}).create()
    pushed = time.monotonic()
    await client.queue(queue).push({"data": 1})
    assert await client.queue(queue).wait(False).pop() == []
    assert data(await client.queue(queue).timeout_millis(10000).pop()) == [1]
    assert time.monotonic() - pushed >= 0.95


async def test_a_window_buffer_collects(client, queue):
    await client.queue(queue).config({"window_buffer": 1}).create()
    for i in range(3):
        await client.queue(queue).push({"data": i})
    assert await client.queue(queue).wait(False).pop() == []
    assert data(await client.queue(queue).timeout_millis(10000).batch(10).pop()) == [0, 1, 2]


async def test_an_expired_lease_is_delivered_again(client, queue):
    await client.queue(queue).config({"lease_time": 2}).create()
    await client.queue(queue).push({"transactionId": "t", "data": 1})
    [first] = await client.queue(queue).pop()
    [second] = await client.queue(queue).timeout_millis(10000).pop()
    assert ids([first]) == ids([second]) and second["deliveryAttempt"] == 2 and second["leaseId"] != first["leaseId"]
    late = await client.ack(first)
    assert late["success"] is False and late["error"] == "invalid or expired lease"
    assert (await client.ack(second))["success"]


async def test_names_with_blanks_and_accents_in_a_pop(client, queue):
    name, lane = queue + " ü.x", "läne 1"
    await client.queue(name).partition(lane).push({"data": 1})
    assert data(await client.queue(name).partition(lane).pop()) == [1]
    assert data(await client.queue(name).partition(lane).group("grüppe & co").subscription_mode("all").pop()) == [1]


async def test_a_cancelled_long_poll_takes_nothing(client, queue):
    waiting = asyncio.create_task(client.queue(queue).timeout_millis(20000).pop())
    await asyncio.sleep(0.3)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0.1)
    await client.queue(queue).push({"data": 1})

    async def there():
        return await client.queue(queue).wait(False).pop()

    [message] = await eventually(there)
    assert message["data"] == 1 and message["deliveryAttempt"] == 1


async def test_a_pop_of_bad_names_is_an_empty_list(client):
    assert await client.queue("n" * 600).wait(False).pop() == []  # the client swallows a refused pop


async def test_thousands_of_messages_in_order(client, queue):
    for start in range(0, 3000, 1000):
        await client.queue(queue).push([{"data": i} for i in range(start, start + 1000)])
    got = []
    while len(got) < 3000:
        messages = await client.queue(queue).batch(700).pop()
        assert messages and (await client.ack(messages))["success"]
        got += data(messages)
    assert got == list(range(3000))
    assert await take_all(lambda: client.queue(queue)) == []
