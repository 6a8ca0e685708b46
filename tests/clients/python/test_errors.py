"""When things go wrong: the broker stops, restarts or dies under the client, answers are lost, it says 429 or 503,
one of two addresses is dead."""

import asyncio
import time

import httpx
import pytest
from queen import EphemeralError, Stream

from kit import answer, data, eventually, ids, refused, take_all

FAST = {"retry_delay_millis": 50}


async def test_a_lost_answer_of_a_push_is_sent_again_and_stored_once(connect, broker, queue):
    client = connect(broker, tap=True, **FAST)
    client.tap.lose.append("/api/v1/push")
    results = await client.queue(queue).push([{"transactionId": "t%d" % i, "data": i} for i in range(3)])
    assert [r["status"] for r in results] == ["duplicate"] * 3
    assert len(client.tap.to("/api/v1/push")) == 2
    assert data(await take_all(lambda: client.queue(queue).batch(9))) == [0, 1, 2]


async def test_a_lost_answer_of_an_ack_is_sent_again_and_accepted(connect, broker, queue):
    client = connect(broker, tap=True, **FAST)
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    messages = await client.queue(queue).batch(2).pop()
    client.tap.lose.append("/api/v1/ack/batch")
    assert (await client.ack(messages))["success"]
    assert len(client.tap.to("/api/v1/ack/batch")) == 2
    assert await client.queue(queue).wait(False).pop() == []


async def test_a_lost_answer_of_a_gated_step_shows_in_the_gate(connect, broker, queue):
    client = connect(broker, tap=True, **FAST)
    await client.queue(queue).push({"data": 1})
    [message] = await client.queue(queue).pop()
    client.tap.lose.append("/api/v1/transaction")
    with pytest.raises(Exception, match="QTXN"):  # its ack was done by the step that committed
        await client.transaction().once("gate", queue, forever=True).ack(message).queue(queue + "-out").push([{"data": 1}]).commit()
    assert len(client.tap.to("/api/v1/transaction")) == 2
    assert data(await take_all(lambda: client.queue(queue + "-out").batch(9))) == [1]
    assert (await client.kv.get("gate", queue))["value"] is True


async def test_a_lost_answer_of_a_pop_leaves_the_message_to_the_next(connect, broker, queue):
    client = connect(broker, tap=True, **FAST)
    await client.queue(queue).config({"lease_time": 2}).create()
    await client.queue(queue).push({"transactionId": "t", "data": 1})
    client.tap.lose.append("/api/v1/pop/queue/" + queue)
    [message] = await client.queue(queue).timeout_millis(10000).pop()
    assert message["transactionId"] == "t" and message["deliveryAttempt"] == 2
    assert (await client.ack(message))["success"]


async def test_429_is_waited_out(connect, broker, queue):
    client = connect(broker, tap=True, retry_429={"base_ms": 10, "cap_ms": 40})
    client.tap.script["/api/v1/push"] = [answer(429, {"error": "slow down", "code": "overloaded"}, **{"Retry-After": "0"})] * 3
    started = time.monotonic()
    await client.queue(queue).push({"data": 1})
    assert len(client.tap.to("/api/v1/push")) == 4 and time.monotonic() - started < 10
    client.tap.script["/api/v1/pop/queue/" + queue] = [answer(429, {"error": "slow down"})] * 12
    assert data(await client.queue(queue).pop()) == [1]


async def test_503_is_tried_three_times(connect, broker, queue):
    client = connect(broker, tap=True, **FAST)
    busy = answer(503, {"error": "no leader", "code": "no_leader"}, **{"Retry-After": "1"})
    client.tap.script["/api/v1/push"] = [busy, busy]
    await client.queue(queue).push({"data": 1})
    client.tap.script["/api/v1/push"] = [busy, busy, busy]
    await refused(client.queue(queue).push({"data": 2}), 503, "no_leader")


async def test_400_is_not_tried_again(connect, broker, queue):
    client = connect(broker, tap=True, **FAST)
    await refused(client._http_client.post("/api/v1/push", {"items": [{"queue": queue}]}), 400, "bad_body")
    assert len(client.tap.to("/api/v1/push")) == 1


async def test_an_unknown_route_says_so(client):
    error = await refused(client._http_client.get("/api/v1/nothing/here"), 404, "no_such_route")
    assert error.response.json()["path"] == "/api/v1/nothing/here"


async def test_pushes_survive_a_restart(own_broker, connect, queue):
    broker = own_broker()
    client = connect(broker, retry_attempts=8, retry_delay_millis=100)
    await client.queue(queue).push({"transactionId": "before", "data": 0})
    await asyncio.to_thread(broker.stop)
    pushing = asyncio.ensure_future(client.queue(queue).push({"transactionId": "during", "data": 1}))
    await asyncio.sleep(0.3)
    assert not pushing.done()
    await asyncio.to_thread(broker.start)
    assert [r["status"] for r in await pushing] == ["queued"]
    [again] = await client.queue(queue).push({"transactionId": "before", "data": 9})
    assert again["status"] == "duplicate"
    assert data(await take_all(lambda: client.queue(queue).batch(9))) == [0, 1]


async def test_a_lease_survives_a_kill(own_broker, connect, queue):
    broker = own_broker()
    client = connect(broker, retry_attempts=8, retry_delay_millis=100)
    await client.queue(queue).push([{"data": i} for i in range(3)])
    messages = await client.queue(queue).batch(2).pop()
    await asyncio.to_thread(broker.restart, "kill")
    assert await client.queue(queue).wait(False).pop() == []
    assert (await client.renew(messages))[0]["success"]
    assert (await client.ack(messages))["success"]
    assert data(await client.queue(queue).batch(9).pop()) == [2]


async def test_everything_of_a_step_survives_a_kill(own_broker, connect, queue):
    broker = own_broker()
    client = connect(broker, retry_attempts=8, retry_delay_millis=100)
    lock = client.lock(queue, ttl_seconds=60)
    assert await lock.acquire()
    assert await (
        client.transaction().guard(lock).queue(queue).push([{"data": 1}]).kv.put("s", "k", {"n": 1}, ttl_seconds=600)
        .timer(queue).key("soon").payload("fired").after_ms(1500).schedule().timer(queue).key("never").payload(0).after_ms(600000).schedule().commit())
    await asyncio.to_thread(broker.restart, "kill")
    assert (await client.kv.get("s", "k"))["value"] == {"n": 1}
    assert [r["timerKey"] for r in (await client.timers.list(queue))["rows"] if r["timerKey"] == "never"] == ["never"]
    assert await lock.renew() and not await client.lock(queue, ttl_seconds=60).acquire()
    [message] = await client.queue(queue).batch(1).pop()
    assert message["data"] == 1 and (await client.ack(message))["success"]
    assert data(await client.queue(queue).timeout_millis(10000).pop()) == ["fired"]


async def test_a_consumer_goes_on_after_restarts(own_broker, connect, queue):
    broker = own_broker()
    await connect(broker).queue(queue).config({"lease_time": 2}).create()  # a kill takes a lease with it
    producer, consumer = (connect(broker, retry_attempts=20, retry_delay_millis=50) for _ in range(2))
    stop = asyncio.Event()
    got = []

    async def handler(message):
        got.append(message["data"])
        if len(set(got)) == 60:
            stop.set()

    consuming = asyncio.ensure_future(
        consumer.queue(queue).group("g").subscription_mode("all").each().batch(5).concurrency(2).timeout_millis(500).consume(handler, signal=stop))
    for round_ in range(3):
        for i in range(round_ * 20, round_ * 20 + 20):
            await producer.queue(queue).partition("p%d" % (i % 4)).push({"transactionId": "t%d" % i, "data": i})
        if round_ < 2:
            await asyncio.to_thread(broker.restart, ("stop", "kill")[round_])
    await asyncio.wait_for(consuming, 40)
    assert sorted(set(got)) == list(range(60))
    for lane in range(4):
        firsts = [i for n, i in enumerate(got) if i % 4 == lane and i not in got[:n]]
        assert firsts == sorted(firsts)


async def test_a_waiting_pop_outlives_a_kill(own_broker, connect, queue):
    broker = own_broker()
    client = connect(broker, retry_attempts=20, retry_delay_millis=50)
    waiting = asyncio.ensure_future(client.queue(queue).timeout_millis(30000).pop())
    await asyncio.sleep(0.3)
    await asyncio.to_thread(broker.restart, "kill")
    await client.queue(queue).push({"data": 1})
    assert data(await asyncio.wait_for(waiting, 20)) == [1]


async def test_a_broker_that_stops_sends_waiting_pops_home(own_broker, connect, queue):
    broker = own_broker()
    client = connect(broker)
    waiting = asyncio.ensure_future(client.queue(queue).timeout_millis(30000).pop())
    await asyncio.sleep(0.3)
    await asyncio.to_thread(broker.stop)
    assert await asyncio.wait_for(waiting, 5) == []


async def test_a_buffer_waits_for_the_broker(own_broker, connect, queue):
    broker = own_broker()
    client = connect(broker, retry_attempts=1)
    await asyncio.to_thread(broker.stop)
    await client.queue(queue).buffer({"message_count": 10, "time_millis": 20, "retry_delay_millis": 50}).push(
        [{"transactionId": "t%d" % i, "data": i} for i in range(25)])
    await asyncio.sleep(0.3)
    assert client.get_buffer_stats()["totalBufferedMessages"] >= 15  # one batch of ten may be on its way
    await asyncio.to_thread(broker.start)
    await client.flush_all_buffers()
    assert data(await take_all(lambda: client.queue(queue).batch(99))) == list(range(25))


async def test_a_broker_that_is_not_there(own_broker, connect, queue):
    broker = own_broker()
    client = connect(broker, retry_attempts=2, retry_delay_millis=10)
    await asyncio.to_thread(broker.stop)
    with pytest.raises(httpx.ConnectError):
        await client.queue(queue).push({"data": 1})
    assert await client.queue(queue).wait(False).pop() == []
    assert (await client.ack({"transactionId": "t", "partitionId": "1"}))["success"] is False


async def test_two_addresses_one_of_them_dead(own_broker, connect, queue):
    alive, dead = own_broker(), own_broker()
    client = connect(dead, alive, load_balancing_strategy="round-robin")
    await asyncio.to_thread(dead.stop)
    for i in range(6):
        await client.queue(queue).push({"transactionId": "t%d" % i, "data": i})
    assert ids(await client.queue(queue).batch(9).pop()) == ["t%d" % i for i in range(6)]


async def test_an_idle_connection_is_used_again_or_replaced(client, queue):
    """The client keeps idle connections for five seconds; a request after a pause must not fail."""
    await client.queue(queue).push({"data": 1})
    await asyncio.sleep(4.7)
    client._http_client._retry_attempts = 1
    await client.queue(queue).push({"data": 2})
    assert data(await client.queue(queue).batch(9).pop()) == [1, 2]


async def test_a_body_over_the_limit_is_told_so(own_broker, connect, queue):
    """The client sends a whole body before it reads an answer: the refusal must still arrive."""
    client = connect(own_broker(env={"QUEEN_MAX_BODY_BYTES": str(1 << 20)}), tap=True, **FAST)
    for size in (2 << 20, 30 << 20):
        await refused(client.queue(queue).push({"data": "x" * size}), 413)
    assert len(client.tap.to("/api/v1/push")) == 2
    assert [r["status"] for r in await client.queue(queue).push({"data": 1})] == ["queued"]


@pytest.mark.parametrize("strategy", ["affinity", "session", "round-robin"])
async def test_two_addresses_of_one_broker(broker, connect, queue, strategy):
    client = connect(broker, broker, load_balancing_strategy=strategy)
    await client.queue(queue).push([{"data": i} for i in range(4)])
    messages = await client.queue(queue).group("g").subscription_mode("all").batch(9).pop()
    assert data(messages) == [0, 1, 2, 3] and (await client.ack(messages, True, {"group": "g"}))["success"]


async def test_headers_choose_the_tenant(own_broker, connect, queue):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    tenants = [connect(broker, headers={"x-queen-tenant": "6f2d1c3b-0000-4000-8000-00000000000%d" % i}) for i in range(2)]
    for n, client in enumerate(tenants):
        [result] = await client.queue(queue).push({"transactionId": "same", "data": n})
        assert result["status"] == "queued"
        assert await client.kv.once("gate", "k", forever=True) and await client.lock(queue, ttl_seconds=60).acquire()
    for n, client in enumerate(tenants):
        assert data(await client.queue(queue).pop()) == [n]
    await refused(connect(broker, headers={"x-queen-tenant": "x"}).admin.list_queues(), 400)


async def test_a_token_is_sent_and_not_minded(connect, broker, queue):
    client = connect(broker, bearer_token="anything", tap=True)
    await client.queue(queue).push({"data": 1})
    assert client.tap.sent[0].headers["authorization"] == "Bearer anything"


async def test_without_autopilot_by_the_environment(monkeypatch, connect, broker, queue):
    monkeypatch.setenv("QUEEN_SDK_POP_AUTOPILOT", "off")
    client = connect(broker, tap=True)
    await client.queue(queue).push([{"data": i} for i in range(2)])
    assert data(await client.queue(queue).pop()) == [0]
    query = client.tap.to("/api/v1/pop")[0].query
    assert query["batch"] == "1" and "autopilot" not in query and "partitions" not in query


# ---- what this broker does not serve ----


async def test_streams_are_not_served(client, broker, queue):
    stream = Stream.from_(client.queue(queue)).map(lambda value: value).to(client.queue(queue + "-out"))
    with pytest.raises(Exception, match="not found"):
        await asyncio.wait_for(stream.run(query_id=queue, url="http://127.0.0.1:%d" % broker.port), 20)


async def test_memory_queues_are_answered_as_unsupported(client):
    with pytest.raises(EphemeralError) as unsupported:
        await client.ephemeral.push("presence", {"user": 1})
    assert unsupported.value.code == "ephemeral_unsupported"


async def test_the_binary_push_is_refused_and_nothing_is_stored(connect, broker, client, queue):
    for options in ({"binary_push": True}, {"binary_push": True, "push_compression": True}):
        binary = connect(broker, **options)
        await refused(binary.queue(queue).push({"data": 1}), 400)
    assert await client.queue(queue).wait(False).pop() == []


async def test_a_pop_that_asks_for_frames_gets_json(connect, broker, queue):
    framed = connect(broker, framed_pop=True, tap=True)
    await framed.queue(queue).push([{"data": i} for i in range(3)])
    messages = await framed.queue(queue).batch(9).pop()
    assert data(messages) == [0, 1, 2] and framed.tap.to("/api/v1/pop")[0].query["frames"] == "true"
    assert (await framed.ack(messages))["success"]
    assert await framed.queue(queue).wait(False).pop() == []
