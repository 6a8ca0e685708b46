"""Acknowledgements: completed, failed, retry, dlq, single and in lists, renewal of leases."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from kit import data, eventually, ids, take_all

LEASE_GONE = "invalid or expired lease"


async def test_ack_by_value_of_its_status(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(2)])
    for i in range(2):
        [message] = await client.queue(queue).batch(1).pop()
        result = await client.ack(message, True)
        assert result["success"] and result["leaseReleased"] and result["dlq"] is False and result["noop"] is False
        assert result["transactionId"] == message["transactionId"]
    assert await client.queue(queue).wait(False).pop() == []


async def test_a_list_is_one_call(tapped, queue):
    await tapped.queue(queue).push([{"data": i} for i in range(5)])
    messages = await tapped.queue(queue).batch(5).pop()
    result = await tapped.ack(messages)
    assert result["success"] and [r["index"] for r in result["results"]] == list(range(5))
    assert len(tapped.tap.to("/api/v1/ack/batch")) == 1


async def test_each_message_of_a_list_has_its_own_status(client, queue):
    await client.queue(queue).push([{"transactionId": "t%d" % i, "data": i} for i in range(4)])
    messages = await client.queue(queue).batch(4).pop()
    messages[0]["_status"] = True
    messages[1]["_status"] = "dlq"
    messages[1]["_error"] = "broken"
    messages[2]["_status"] = "completed"
    messages[3]["_status"] = "retry"
    result = await client.ack(messages)
    assert result["success"] and [r["dlq"] for r in result["results"]] == [False, True, False, False]
    letters = await client.queue(queue).dlq().get()
    assert letters["total"] == 1 and letters["messages"][0]["errorMessage"] == "broken"
    assert data(await client.queue(queue).pop()) == [3]


async def test_an_ack_of_the_last_completes_the_ones_before(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(5)])
    messages = await client.queue(queue).batch(5).pop()
    assert (await client.ack(messages[4]))["leaseReleased"]
    assert await client.queue(queue).wait(False).pop() == []


async def test_an_ack_in_the_middle_keeps_the_lease_and_the_rest(client, queue):
    await client.queue(queue).config({"lease_time": 2}).create()
    await client.queue(queue).push([{"data": i} for i in range(3)])
    messages = await client.queue(queue).batch(3).pop()
    result = await client.ack(messages[1])
    assert result["success"] and not result["leaseReleased"]
    assert data(await client.queue(queue).timeout_millis(10000).batch(3).pop()) == [2]


async def test_failed_comes_back_until_the_budget_is_spent(client, queue):
    await client.queue(queue).config({"retry_limit": 2}).create()
    await client.queue(queue).push({"transactionId": "poison", "data": 1})
    for attempt in (1, 2, 3):
        [message] = await client.queue(queue).pop()
        assert message["deliveryAttempt"] == attempt
        result = await client.ack(message, False, {"error": "no %d" % attempt})
        assert result["success"] and result["dlq"] is (attempt == 3)
    assert await client.queue(queue).wait(False).pop() == []
    letters = await client.queue(queue).dlq().get()
    assert letters["total"] == 1
    [letter] = letters["messages"]
    assert letter["transactionId"] == "poison" and letter["data"] == 1 and letter["errorMessage"] == "no 3"
    assert letter["consumerGroup"] == "__QUEUE_MODE__" and letter["queue"] == queue


async def test_retry_costs_nothing(client, queue):
    await client.queue(queue).config({"retry_limit": 1}).create()
    await client.queue(queue).push({"data": 1})
    for _ in range(6):
        [message] = await client.queue(queue).pop()
        assert (await client.ack(message, "retry"))["success"]
    assert (await client.queue(queue).dlq().get())["total"] == 0
    assert len(await client.queue(queue).pop()) == 1


async def test_dlq_at_the_first_delivery(client, queue):
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    [first] = await client.queue(queue).batch(1).pop()
    assert (await client.ack(first, "dlq", {"error": "unreadable"}))["dlq"]
    assert data(await client.queue(queue).pop()) == [2]


async def test_no_dlq_drops_the_exhausted(client, queue):
    await client.queue(queue).config({"retry_limit": 0, "dead_letter_queue": False, "dlq_after_max_retries": False}).create()
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    [first] = await client.queue(queue).batch(1).pop()
    assert (await client.ack(first, False))["success"]
    assert data(await client.queue(queue).pop()) == [2]
    assert (await client.queue(queue).dlq().get())["total"] == 0


async def test_the_dlq_is_read_by_group_and_in_pages(client, queue):
    await client.queue(queue).push([{"transactionId": "t%d" % i, "data": i} for i in range(5)])
    messages = await client.queue(queue).group("g").subscription_mode("all").batch(5).pop()
    assert (await client.ack(messages, "dlq", {"group": "g"}))["success"]
    assert (await client.queue(queue).dlq("other").get())["total"] == 0
    page = await client.queue(queue).dlq("g").limit(2).offset(2).get()
    assert page["total"] == 5 and len(page["messages"]) == 2
    everything = (await client.queue(queue).dlq("g").get())["messages"]
    assert sorted(ids(everything)) == ["t%d" % i for i in range(5)]
    assert ids(page["messages"]) == ids(everything)[2:4]


async def test_an_ack_needs_its_group(client, queue):
    await client.queue(queue).push({"data": 1})
    [message] = await client.queue(queue).group("g").subscription_mode("all").pop()
    wrong = await client.ack(message)
    assert wrong["success"] is False and wrong["error"]
    assert (await client.ack(message, True, {"group": "g"}))["success"]


async def test_the_second_ack_is_answered_like_the_first(client, queue):
    await client.queue(queue).push({"data": 1})
    [message] = await client.queue(queue).pop()
    for _ in range(2):
        assert (await client.ack(message))["success"]


async def test_an_ack_without_a_lease_works_and_repeats_as_noop(client, queue):
    await client.queue(queue).push({"data": 1})
    [message] = await client.queue(queue).pop()
    del message["leaseId"]
    assert (await client.ack(message))["noop"] is False
    assert (await client.ack(message))["noop"] is True
    nack = await client.ack(message, False)
    assert nack["success"] is False and "committed" in nack["error"]


async def test_unknown_ids_are_refused_one_by_one(client, queue):
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    messages = await client.queue(queue).batch(2).pop()
    stranger = dict(messages[0], transactionId="never")
    result = await client.ack([messages[0], stranger])
    assert result["success"] is False and "unresolvable" in result["error"]
    assert [r["success"] for r in result["results"]] == [True, False]
    nobody = await client.ack(dict(messages[0], partitionId="999999"))
    assert nobody["success"] is False and "no partition" in nobody["error"]


async def test_two_refused_of_three_are_counted(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(3)])
    messages = await client.queue(queue).batch(3).pop()
    result = await client.ack([messages[0], dict(messages[1], leaseId="gone"), dict(messages[2], leaseId="gone")])
    assert result["error"] == "2 of 3 acknowledgments rejected: " + LEASE_GONE


async def test_the_client_itself_refuses_what_has_no_lane(client):
    assert (await client.ack({"transactionId": "t"}))["success"] is False
    assert await client.ack([]) == {"processed": 0, "results": []}
    with pytest.raises(ValueError):
        await client.ack([{"transactionId": "t"}])


# ---- renewal ----


async def test_renew_extends_every_lane_of_the_lease_with_an_empty_request(tapped, queue):
    for lane in ("a", "b"):
        await tapped.queue(queue).partition(lane).push({"data": lane})
    messages = await tapped.queue(queue).batch(10).partitions(4).pop()
    [renewed] = await tapped.renew(messages)
    assert renewed["success"] and renewed["renewed"] == 2 and renewed["leaseId"] == messages[0]["leaseId"]
    until = datetime.fromisoformat(renewed["newExpiresAt"].replace("Z", "+00:00"))
    assert until > datetime.now(timezone.utc) + timedelta(seconds=30)
    [request] = tapped.tap.to("/api/v1/lease/")
    assert request.body == b"" and "content-type" not in request.headers


async def test_a_renewed_lease_outlives_its_first_end(client, queue):
    await client.queue(queue).config({"lease_time": 2}).create()
    await client.queue(queue).push({"data": 1})
    [message] = await client.queue(queue).pop()
    assert (await client.renew(message))["success"]
    await asyncio.sleep(2.3)
    assert await client.queue(queue).wait(False).pop() == []
    assert (await client.ack(message))["success"]


async def test_a_lease_that_is_gone_is_not_renewed(client, queue):
    await client.queue(queue).push({"data": 1})
    [message] = await client.queue(queue).pop()
    await client.ack(message)
    gone = await client.renew(message["leaseId"])
    assert gone["success"] is False and gone["renewed"] == 0 and gone["newExpiresAt"] is None and gone["error"]
    assert (await client.renew([]))["success"] is False


async def test_acks_of_many_lanes_at_once(client, queue):
    for lane in range(10):
        await client.queue(queue).partition("p%d" % lane).push([{"data": i} for i in range(3)])
    messages = await client.queue(queue).batch(100).partitions(10).pop()
    results = await asyncio.gather(*(client.ack([m for m in messages if m["partition"] == "p%d" % lane]) for lane in range(10)))
    assert all(r["success"] and r["results"][0]["leaseReleased"] for r in results)

    async def drained():
        return not await take_all(lambda: client.queue(queue))

    assert await eventually(drained)
