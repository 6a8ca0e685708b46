"""Transactions: acks, pushes, keys and timers in one step, what rolls it back, the gate, the guard."""

import asyncio
import base64
import json
from datetime import datetime, timedelta, timezone

import pytest
from queen import LockNotHeldError

from kit import data, eventually, ids, take_all


async def popped(client, queue, **options):
    [message] = await client.queue(queue).batch(1).pop()
    return message


async def test_ack_and_push_are_one_step(client, queue):
    await client.queue(queue).push({"transactionId": "in", "data": 1})
    message = await popped(client, queue)
    result = await client.transaction().ack(message).queue(queue + "-out").partition("lane").push([{"transactionId": "out", "data": 2}]).commit()
    assert result and result["success"] and [r["type"] for r in result["results"]] == ["ack", "push"]
    assert await client.queue(queue).wait(False).pop() == []
    [out] = await client.queue(queue + "-out").partition("lane").pop()
    assert out["transactionId"] == "out" and out["data"] == 2 and out["id"] == result["results"][1]["messageId"]


async def test_all_four_kinds_in_one_step(client, queue):
    await client.queue(queue).push({"transactionId": "in", "data": 1})
    message = await popped(client, queue)
    result = await (
        client.transaction()
        .once("seen", queue, ttl_seconds=60)
        .ack(message)
        .queue(queue + "-out").push([{"data": "a"}, {"data": "b"}])
        .kv.put("state", queue, {"n": 1}, forever=True)
        .kv.incr("state", queue + "-count", delta=3, ttl_seconds=60)
        .timer(queue + "-later").key("k").payload({"remind": 1}).after_ms(200).schedule()
        .commit()
    )
    assert [r["type"] for r in result["results"]] == ["ack", "push", "push", "kv", "kv", "kv", "timer"]
    assert [r["index"] for r in result["results"]] == list(range(7))
    assert result["results"][3]["applied"] and result["results"][5]["value"] == 3
    assert result["results"][6]["status"] == "scheduled"
    assert (await client.kv.get("state", queue))["value"] == {"n": 1}
    assert data(await client.queue(queue + "-out").batch(9).pop()) == ["a", "b"]
    [reminder] = await client.queue(queue + "-later").pop()
    assert reminder["data"] == {"remind": 1} and reminder["id"] == result["results"][6]["messageId"]
    assert await client.queue(queue).wait(False).pop() == []


async def test_the_second_delivery_finds_the_gate_shut(client, queue):
    await client.queue(queue).push({"transactionId": "pay-1", "data": 1})

    async def work(message):
        return await client.transaction().once("paid", queue, forever=True).ack(message).queue(queue + "-receipts").push([{"data": 1}]).commit()

    first = await popped(client, queue)
    assert (await client.ack(first, "retry"))["success"]
    assert await client.kv.once("paid", queue, forever=True)  # the effect of a delivery that died before its ack
    again = await popped(client, queue)
    result = await work(again)
    assert not result and result["success"] is False and result["reason"] == "kv_precondition"
    assert result["kvReason"] == "exists" and result["failedIndex"] == 2 and result["value"] is True and result["version"] > 0
    assert await client.queue(queue + "-receipts").wait(False).pop() == []
    assert (await client.ack(again))["success"]


async def test_a_lost_lease_rolls_everything_back(client, queue):
    await client.queue(queue).config({"lease_time": 2}).create()
    await client.queue(queue).push({"transactionId": "in", "data": 1})
    stale = await popped(client, queue)
    [current] = await client.queue(queue).timeout_millis(10000).pop()
    with pytest.raises(Exception, match="QTXN"):
        await client.transaction().ack(stale).queue(queue + "-out").push([{"data": 1}]).kv.put("state", queue, 1, forever=True).commit()
    assert await client.queue(queue + "-out").wait(False).pop() == []
    assert not await client.kv.get("state", queue)
    assert (await client.transaction().ack(current).queue(queue + "-out").push([{"data": 1}]).commit())["success"]


async def test_a_duplicate_push_rolls_everything_back(client, queue):
    await client.queue(queue).push({"transactionId": "in", "data": 1})
    await client.queue(queue + "-out").push({"transactionId": "out", "data": 1})
    message = await popped(client, queue)
    with pytest.raises(Exception, match="QDUP"):
        await client.transaction().ack(message).queue(queue + "-out").push([{"transactionId": "out", "data": 2}]).commit()
    assert (await client.ack(message))["success"]


async def test_the_reason_is_in_the_answer(tapped, queue):
    await tapped.queue(queue).push({"transactionId": "in", "data": 1})
    message = await popped(tapped, queue)
    answer = await tapped._http_client.post("/api/v1/transaction", {"operations": [
        {"type": "ack", "transactionId": "nobody", "partitionId": message["partitionId"], "status": "completed"}], "requiredLeases": []})
    assert answer["success"] is False and answer["reason"] == "rejected_ack" and answer["results"] == []


async def test_acks_of_two_lanes_carry_their_own_lease(tapped, queue):
    for lane in ("a", "b"):
        await tapped.queue(queue).partition(lane).push({"data": lane})
    first = await popped(tapped, queue)
    second = await popped(tapped, queue)
    assert first["leaseId"] != second["leaseId"]
    result = await tapped.transaction().ack([first, second]).queue(queue + "-out").push([{"data": 1}]).commit()
    assert result["success"]
    [request] = tapped.tap.to("/api/v1/transaction")
    assert [op.get("leaseId") for op in request.json["operations"][:2]] == [first["leaseId"], second["leaseId"]]
    assert sorted(request.json["requiredLeases"]) == sorted([first["leaseId"], second["leaseId"]])


async def test_one_stale_lease_of_two_rolls_both_back(client, queue):
    await client.queue(queue).config({"lease_time": 2}).create()
    await client.queue(queue).partition("a").push({"data": "a"})
    stale = await popped(client, queue)
    [a_again] = await client.queue(queue).timeout_millis(10000).pop()
    await client.queue(queue).partition("b").push({"data": "b"})
    live = await popped(client, queue)
    with pytest.raises(Exception, match="QTXN"):
        await client.transaction().ack([live, stale]).commit()
    assert (await client.ack(live))["success"] and (await client.ack(a_again))["success"]


async def test_the_group_of_an_ack(client, queue):
    await client.queue(queue).push({"data": 1})
    [message] = await client.queue(queue).group("g").subscription_mode("all").pop()
    with pytest.raises(Exception, match="QTXN"):
        await client.transaction().ack(message).queue(queue + "-out").push([{"data": 1}]).commit()
    assert (await client.transaction().ack(message, "completed", {"consumer_group": "g"}).queue(queue + "-out").push([{"data": 1}]).commit())["success"]
    assert await client.queue(queue).group("g").wait(False).pop() == []


async def test_statuses_of_acks_in_a_step(client, queue):
    await client.queue(queue).push([{"transactionId": "t%d" % i, "data": i} for i in range(2)])
    message = await popped(client, queue)
    assert (await client.transaction().ack(message, "retry").queue(queue + "-out").push([{"data": 1}]).commit())["success"]
    message = await popped(client, queue)
    assert message["data"] == 0
    result = await client.transaction().ack(message, "dlq").queue(queue + "-out").push([{"data": 2}]).commit()
    assert result["results"][0]["dlq"] is True
    assert (await client.queue(queue).dlq().get())["total"] == 1
    message = await popped(client, queue)
    assert message["data"] == 1
    assert (await client.transaction().ack(message, "failed").commit())["success"]
    assert data(await client.queue(queue).pop()) == [1]


async def test_keys_alone_and_timers_alone_are_a_step(client, queue):
    result = await client.transaction().kv.put("state", queue, 1, forever=True).kv.get("state", queue).kv.get_many("state", [queue, "no-" + queue]).commit()
    assert result["results"][1]["found"] and result["results"][1]["value"] == 1
    assert result["results"][2]["missing"] == ["no-" + queue]
    result = await client.transaction().timer(queue).key("k").payload(1).after_ms(60000).schedule().commit()
    assert result["results"][0]["status"] == "scheduled"
    result = await client.transaction().timer(queue).key("k").cancel().commit()
    assert result["results"][0]["status"] == "cancelled"
    result = await client.transaction().timer(queue).key("k").cancel().commit()
    assert result["success"] and result["results"][0]["status"] == "absent" and result["results"][0]["ok"] is False


async def test_a_timer_is_moved_in_a_step(client, queue):
    await client.timer(queue).key("k").payload(1).after_ms(60000).schedule()
    result = await client.transaction().timer(queue).key("k").payload(2).after(timedelta(milliseconds=100)).partition("p").txn("second").reschedule().commit()
    assert result["results"][0]["status"] == "rescheduled"
    [message] = await client.queue(queue).partition("p").pop()
    assert message["data"] == 2 and message["transactionId"] == "second"


async def test_keys_that_lose_without_being_required_do_not_roll_back(client, queue):
    await client.kv.put("state", queue, "mine", forever=True)
    result = await client.transaction().kv.put_if_absent("state", queue, "theirs", forever=True).queue(queue).push([{"data": 1}]).commit()
    assert result["success"] and result["results"][1]["applied"] is False and result["results"][1]["value"] == "mine"
    assert data(await client.queue(queue).pop()) == [1]


@pytest.mark.parametrize("reason", ["exists", "absent", "version", "limit", "type"])
async def test_every_way_a_required_key_loses(client, queue, reason):
    key = queue
    tx = client.transaction().queue(queue).push([{"data": 1}])
    if reason == "exists":
        await client.kv.put("state", key, "held", forever=True)
        tx = tx.kv.put_if_absent("state", key, 1, forever=True, required=True)
    elif reason == "absent":
        tx = tx.kv.put("state", key, 1, forever=True, expect=7, required=True)
    elif reason == "version":
        version = (await client.kv.put("state", key, 1, forever=True))["version"]
        await client.kv.put("state", key, 2, forever=True)
        tx = tx.kv.delete("state", key, expect=version, required=True)
    elif reason == "limit":
        tx = tx.kv.incr("state", key, delta=5, max=4, forever=True, required=True)
    else:
        await client.kv.put("state", key, "text", forever=True)
        tx = tx.kv.incr("state", key, forever=True, required=True)
    result = await tx.commit()
    assert not result and result["reason"] == "kv_precondition" and result["kvReason"] == reason and result["failedIndex"] == 1
    assert await client.queue(queue).wait(False).pop() == []


async def test_a_check_gates_a_key_the_step_does_not_write(client, queue):
    version = (await client.kv.put("conf", queue, 1, forever=True))["version"]
    assert await client.transaction().kv.check("conf", queue, expect=version, required=True).queue(queue).push([{"data": 1}]).commit()
    await client.kv.put("conf", queue, 2, forever=True)
    result = await client.transaction().kv.check("conf", queue, expect=version, required=True).queue(queue).push([{"data": 2}]).commit()
    assert not result and result["kvReason"] == "version"
    assert data(await take_all(lambda: client.queue(queue).batch(9))) == [1]


async def test_an_instant_is_turned_into_a_lifetime_when_it_is_sent(client, queue):
    until = datetime.now(timezone.utc) + timedelta(seconds=90)
    await client.transaction().kv.put("state", queue, 1, until=until).commit()
    expires = datetime.fromisoformat((await client.kv.get("state", queue))["expiresAt"])
    assert abs((expires - until).total_seconds()) < 5


async def test_the_client_refuses_an_empty_step_and_a_prefix_read(client):
    with pytest.raises(Exception, match="no operations"):
        await client.transaction().commit()
    with pytest.raises(ValueError):
        client.transaction().kv.get_prefix("ns", "p")


async def test_the_same_id_twice_in_one_step_is_one_message(client, queue):
    result = await client.transaction().queue(queue).push([{"transactionId": "same", "data": 1}, {"transactionId": "same", "data": 2}]).commit()
    first, second = result["results"]
    assert second["duplicate"] is True and first["messageId"] == second["messageId"]
    assert data(await take_all(lambda: client.queue(queue).batch(9))) == [1]


async def test_a_trace_id_pushed_in_a_step_is_kept(client, queue):
    trace = "7f0c8a52-9a3b-4c1d-8e2f-001122334455"
    await client.transaction().queue(queue).push([{"data": 1, "traceId": trace}]).commit()
    [message] = await client.queue(queue).pop()
    assert message["traceId"] == trace


async def test_a_step_is_seen_by_waiting_pops(client, queue):
    waiting = asyncio.create_task(client.queue(queue).timeout_millis(20000).pop())
    await asyncio.sleep(0.2)
    await client.transaction().queue(queue).push([{"data": 1}]).commit()
    assert data(await asyncio.wait_for(waiting, 5)) == [1]


async def test_a_chain_of_workers_loses_and_doubles_nothing(client, queue):
    """Three stages, each an ack and a push in one step, with repeated deliveries in between."""
    await client.queue(queue).push([{"transactionId": "job-%d" % i, "data": i} for i in range(30)])

    async def stage(source, target):
        moved = 0
        while moved < 30:
            messages = await client.queue(source).batch(7).timeout_millis(3000).pop()
            if messages and moved % 2:
                assert (await client.ack(messages, "retry"))["success"]
                messages = await client.queue(source).batch(7).pop()
            assert messages
            tx = client.transaction().ack(messages)
            tx.queue(target).push([{"transactionId": m["transactionId"], "data": m["data"]} for m in messages])
            assert (await tx.commit())["success"]
            moved += len(messages)

    await asyncio.gather(stage(queue, queue + "-2"), stage(queue + "-2", queue + "-3"))
    assert data(await take_all(lambda: client.queue(queue + "-3").batch(100))) == list(range(30))


# ---- guards ----


async def test_a_guarded_step_commits_while_the_lock_is_held(client, queue):
    lock = client.lock(queue, ttl_seconds=30)
    with pytest.raises(LockNotHeldError):
        await client.transaction().guard(lock).queue(queue).push([{"data": 0}]).commit()
    assert await lock.acquire()
    assert await client.transaction().guard(lock).queue(queue).push([{"data": 1}]).commit()
    await lock.release()
    assert data(await take_all(lambda: client.queue(queue).batch(9))) == [1]


async def test_a_replaced_holder_commits_nothing(client, queue):
    lock = client.lock(queue, ttl_seconds=30, auto_renew=False)
    assert await lock.acquire()
    await client.kv.delete("queen-locks", queue + "#0")
    other = client.lock(queue, ttl_seconds=30)
    assert await other.acquire() and other.token > lock.token
    result = await client.transaction().guard(lock).queue(queue).push([{"data": "old"}]).commit()
    assert not result and result["reason"] == "kv_precondition" and result["kvReason"] == "version" and result["failedIndex"] == 1
    assert lock.lost.is_set() and not lock.held
    assert await client.transaction().guard(other).queue(queue).push([{"data": "new"}]).commit()
    assert data(await take_all(lambda: client.queue(queue).batch(9))) == ["new"]


async def test_guarded_steps_survive_their_own_renewals(client, queue):
    lock = client.lock(queue, ttl_seconds=5, renew_every=0.03)
    assert await lock.acquire()
    for i in range(20):
        assert await client.transaction().guard(lock).queue(queue).push([{"data": i}]).commit(), i
        await asyncio.sleep(0.01)
    assert await lock.release()
    assert data(await take_all(lambda: client.queue(queue).batch(100))) == list(range(20))
