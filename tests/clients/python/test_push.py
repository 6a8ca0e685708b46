"""Push: one message, many, duplicates, callbacks, the client's buffer."""

import asyncio
import uuid

import pytest

from kit import answer, data, eventually, ids, refused, take_all


async def test_one_message_is_queued_under_the_clients_id(client, queue):
    results = await client.queue(queue).push({"data": {"n": 1}})
    assert [r["status"] for r in results] == ["queued"]
    [message] = await client.queue(queue).pop()
    assert message["data"] == {"n": 1}
    assert message["transactionId"] == results[0]["transaction_id"]
    assert message["id"] == results[0]["message_id"]
    assert uuid.UUID(message["transactionId"]).version == 4  # no extension for version 7 is installed
    assert message["partition"] == "Default"


async def test_a_batch_keeps_its_order_and_its_lane(client, queue):
    items = [{"transactionId": "t%d" % i, "data": i} for i in range(50)]
    results = await client.queue(queue).partition("lane-7").push(items)
    assert [r["transaction_id"] for r in results] == [i["transactionId"] for i in items]
    assert [r["index"] for r in results] == list(range(50))
    messages = await client.queue(queue).partition("lane-7").batch(100).pop()
    assert data(messages) == list(range(50))
    assert {m["partition"] for m in messages} == {"lane-7"}


@pytest.mark.parametrize("payload", [None, False, 0, "", "text", 3.25, [1, [2]], {}, {"a": {"b": [None, "ü", "\u2028", "🐝"]}}])
async def test_any_json_value_comes_back_as_it_was(client, queue, payload):
    await client.queue(queue).push({"data": payload})
    [message] = await client.queue(queue).pop()
    assert message["data"] == payload and type(message["data"]) is type(payload)


async def test_data_wins_over_payload_and_a_bare_object_is_its_own_payload(client, queue):
    await client.queue(queue).push([{"data": 1, "payload": 2}, {"payload": 3}, {"order": 4}])
    assert data(await client.queue(queue).batch(10).pop()) == [1, 3, {"order": 4}]


async def test_pushing_twice_answers_duplicate_with_the_first_ids(client, queue):
    [first] = await client.queue(queue).push({"transactionId": "order-1", "data": 1})
    [second] = await client.queue(queue).push({"transactionId": "order-1", "data": 2})
    assert second["status"] == "duplicate"
    assert (second["message_id"], second["offset"]) == (first["message_id"], first["offset"])
    assert data(await take_all(lambda: client.queue(queue).batch(10))) == [1]


async def test_a_repeat_inside_one_push_is_a_duplicate_of_the_first(client, queue):
    results = await client.queue(queue).push([{"transactionId": "a", "data": 1}, {"transactionId": "b", "data": 2}, {"transactionId": "a", "data": 3}])
    assert [r["status"] for r in results] == ["queued", "queued", "duplicate"]
    assert results[2]["message_id"] == results[0]["message_id"]


async def test_dedup_is_by_lane(client, queue):
    for lane in ("one", "two"):
        [result] = await client.queue(queue).partition(lane).push({"transactionId": "same", "data": lane})
        assert result["status"] == "queued"


async def test_no_dedup_without_a_window(client, queue):
    created = await client.queue(queue).config({"dedup_window_seconds": 0}).create()
    assert created["options"]["dedupWindowSeconds"] == 0
    for _ in range(2):
        [result] = await client.queue(queue).push({"transactionId": "same", "data": 1})
        assert result["status"] == "queued"


async def test_callbacks_get_what_was_queued_and_what_was_not(client, queue):
    seen = {"success": [], "duplicate": []}

    async def success(items):
        seen["success"] += [i["transactionId"] for i in items]

    async def duplicate(items, error):
        seen["duplicate"] += [i["transactionId"] for i in items]
        assert "uplicate" in str(error)

    await client.queue(queue).push({"transactionId": "old", "data": 1})
    await client.queue(queue).push([{"transactionId": "old", "data": 2}, {"transactionId": "new", "data": 3}]).on_success(success).on_duplicate(duplicate)
    assert seen == {"success": ["new"], "duplicate": ["old"]}


async def test_what_the_broker_refuses_is_raised_or_given_to_the_callback(client, queue):
    name = "n" * 600
    await refused(client.queue(name).push({"data": 1}), 413, "name_too_long")
    got = []

    async def error(items, reason):
        got.append((len(items), reason.response.status_code))

    assert await client.queue(name).push({"data": 1}).on_error(error) is None
    assert got == [(1, 413)]


async def test_a_payload_of_some_megabytes(client, queue):
    text = "x" * (5 << 20)
    await client.queue(queue).push({"data": {"text": text}})
    [message] = await client.queue(queue).pop()
    assert message["data"] == {"text": text}


async def test_many_pushes_at_once(client, queue):
    await asyncio.gather(*(client.queue(queue).partition("p%d" % (i % 8)).push({"transactionId": "t%d" % i, "data": i}) for i in range(60)))
    messages = await take_all(lambda: client.queue(queue).batch(100).partitions(8))
    assert sorted(data(messages)) == list(range(60))


async def test_a_trace_id_is_kept(client, queue):
    trace = str(uuid.uuid4())
    await client.queue(queue).push([{"data": 1, "traceId": trace}, {"data": 2, "traceId": "not one"}])
    assert [m["traceId"] for m in await client.queue(queue).batch(9).pop()] == [trace, None]


# ---- the client's buffer ----


async def test_the_buffer_sends_full_batches_and_the_rest_at_the_end(tapped, queue):
    buffered = await tapped.queue(queue).buffer({"message_count": 10, "time_millis": 60000}).push([{"data": i} for i in range(25)])
    assert buffered == {"buffered": True, "count": 25}
    await tapped.queue(queue).flush_buffer()
    assert tapped.get_buffer_stats()["totalBufferedMessages"] == 0
    sizes = [len(sent.json["items"]) for sent in tapped.tap.to("/api/v1/push")]
    assert sum(sizes) == 25 and max(sizes) == 10
    assert data(await take_all(lambda: tapped.queue(queue).batch(100))) == list(range(25))


async def test_the_buffer_sends_by_time(client, queue):
    await client.queue(queue).buffer({"message_count": 1000, "time_millis": 50}).push({"data": 1})

    async def there():
        return await client.queue(queue).wait(False).pop()

    assert data(await eventually(there)) == [1]


async def test_the_buffer_sends_again_what_was_refused(tapped, queue):
    tapped.tap.script["/api/v1/push"] = [answer(400, {"error": "not now"}), answer(400, {"error": "not now"})]
    await tapped.queue(queue).buffer({"message_count": 5, "retry_delay_millis": 20}).push([{"transactionId": "t%d" % i, "data": i} for i in range(5)])
    await tapped.flush_all_buffers()
    assert [ids(sent.json["items"]) for sent in tapped.tap.to("/api/v1/push")] == [["t0", "t1", "t2", "t3", "t4"]] * 3
    assert data(await take_all(lambda: tapped.queue(queue).batch(100))) == list(range(5))


async def test_closing_sends_the_buffer(connect, broker, client, queue):
    other = connect(broker)
    await other.queue(queue).buffer({"message_count": 1000, "time_millis": 60000}).push([{"data": i} for i in range(3)])
    await other.close()
    connect.made.remove(other)
    assert data(await client.queue(queue).batch(10).pop()) == [0, 1, 2]
