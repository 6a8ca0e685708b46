"""The admin class and the queue builder's create and delete: shapes the client and its users read."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from kit import data, eventually, ids, refused, take_all

DEFAULTS = {"leaseTime": 300, "retryLimit": 3, "priority": 0, "delayedProcessing": 0, "windowBuffer": 0, "maxSize": 0,
            "retentionSeconds": 0, "completedRetentionSeconds": 0, "encryptionEnabled": False}


async def dead_letter(client, queue, group=None, transaction_id="dead", payload=1):
    """One message of this queue in the DLQ; returns it as it was popped."""
    await client.queue(queue).push({"transactionId": transaction_id, "data": payload})
    builder = client.queue(queue).batch(1)
    [message] = await (builder.group(group).subscription_mode("all") if group else builder).pop()
    assert (await client.ack(message, "dlq", {"group": group, "error": "broken"}))["dlq"]
    return message


# ---- create, configure, delete ----


async def test_create_sends_every_default_and_reads_them_back(client, queue):
    created = await client.queue(queue).namespace("ns").task("tk").create()
    assert created["configured"] is True and created["queue"] == queue and created["namespace"] == "ns" and created["task"] == "tk"
    assert {k: created["options"][k] for k in DEFAULTS} == DEFAULTS
    detail = await client.admin.get_queue(queue)
    assert {k: detail["options"][k] for k in DEFAULTS} == DEFAULTS and detail["namespace"] == "ns"


async def test_config_changes_what_it_names(client, queue):
    await client.queue(queue).config({"lease_time": 7, "retry_limit": 9, "dedup_window_seconds": 60, "dead_letter_queue": False}).create()
    options = (await client.admin.get_queue(queue))["options"]
    assert (options["leaseTime"], options["retryLimit"], options["dedupWindowSeconds"], options["deadLetterQueue"]) == (7, 9, 60, False)


async def test_every_option_is_kept(client, queue):
    options = {"lease_time": 11, "retry_limit": 12, "priority": 13, "delayed_processing": 14, "window_buffer": 15, "max_size": 16,
               "retention_seconds": 17, "completed_retention_seconds": 18, "encryption_enabled": True, "retry_delay": 19, "ttl": 20,
               "dead_letter_queue": False, "dlq_after_max_retries": False, "retention_enabled": True, "max_wait_time_seconds": 21,
               "min_pop_wait_time": 22, "dedup_window_seconds": 23}
    await client.queue(queue).config(options).create()
    kept = (await client.admin.get_queue(queue))["options"]
    for name, value in options.items():
        head, *rest = name.split("_")
        assert kept[head + "".join(word.capitalize() for word in rest)] == value, name


async def test_create_after_a_push(client, queue):
    await client.queue(queue).push({"data": 1})
    assert (await client.queue(queue).create())["options"]["leaseTime"] == 300
    assert data(await client.queue(queue).pop()) == [1]


async def test_create_and_delete_with_callbacks(client, queue):
    seen = []

    async def note(answer):
        seen.append(answer)

    await client.queue(queue).create().on_success(note)
    await client.queue(queue).delete().on_success(note)
    again = await client.queue(queue).delete()
    assert seen[0]["configured"] and seen[1]["deleted"] is True and again["deleted"] is False
    assert await client.queue(queue).config({"lease_time": "soon"}).create().on_error(note) == {"success": False, "error": str(seen[2])}
    await refused(client.admin.get_queue(queue), 404)


async def test_a_deleted_queue_starts_again_from_nothing(client, queue):
    await client.queue(queue).push({"transactionId": "t", "data": 1})
    await client.queue(queue).delete()
    [result] = await client.queue(queue).push({"transactionId": "t", "data": 2})
    assert result["status"] == "queued" and result["offset"] == 0
    assert data(await take_all(lambda: client.queue(queue).batch(9))) == [2]


# ---- queues ----


async def test_a_queue_is_listed_and_described(client, queue):
    await client.queue(queue).namespace("ns-" + queue).create()
    await client.queue(queue).push([{"data": i} for i in range(3)])
    rows = {row["name"]: row for row in (await client.admin.list_queues(limit=1000))["queues"]}
    assert rows[queue]["namespace"] == "ns-" + queue and rows[queue]["messages"]["total"] == 3 and rows[queue]["partitions"] == 1
    detail = await client.admin.get_queue(queue)
    assert detail["totals"]["pending"] == 3 and [p["name"] for p in detail["partitions"]] == ["Default"]


async def test_the_depth_of_a_queue_and_of_a_group(client, queue):
    await client.queue(queue).partition("a").push([{"data": i} for i in range(4)])
    await client.queue(queue).partition("b").push([{"data": i} for i in range(2)])
    depth = await client.admin.get_queue_depth(queue)
    assert (depth["pending"], depth["partitionsPending"], depth["group"], depth["conflation"]) == (6, 2, None, False)
    messages = await client.queue(queue).partition("a").group("g").subscription_mode("all").batch(4).pop()
    await client.ack(messages[1], True, {"group": "g"})
    depth = await client.admin.get_queue_depth(queue, "g")
    assert depth["pending"] == 4 and {p["partition"]: p["pending"] for p in depth["partitions"]} == {"a": 2, "b": 2}
    await refused(client.admin.get_queue_depth(queue + "-none"), 404)


async def test_the_depth_of_a_conflating_group_counts_lanes(client, queue):
    for lane in ("a", "b"):
        await client.queue(queue).partition(lane).push([{"data": i} for i in range(5)])
    assert len(await client.queue(queue).group("g").subscription_mode("all").conflation().batch(1).pop()) == 1
    depth = await client.admin.get_queue_depth(queue, "g")
    assert depth["conflation"] is True and depth["pending"] == 10 and depth["effectivePending"] == 2


@pytest.mark.route("GET /api/v1/resources/overview")
async def test_overview(client, queue):
    await client.queue(queue).push({"data": 1})
    overview = await client.admin.get_overview()
    assert overview["queues"] >= 1 and overview["partitions"] >= 1 and overview["messages"]["total"] >= 1 and overview["timestamp"]


@pytest.mark.route("GET /api/v1/resources/namespaces")
async def test_namespaces(client, queue):
    await client.queue(queue).namespace("ns-" + queue).task("tk-" + queue).create()
    await client.queue(queue).push({"data": 1})
    rows = {row["namespace"]: row for row in (await client.admin.get_namespaces())["namespaces"]}
    assert rows["ns-" + queue]["queues"] == 1 and rows["ns-" + queue]["messages"]["total"] == 1


@pytest.mark.route("GET /api/v1/resources/tasks")
async def test_tasks(client, queue):
    await client.queue(queue).namespace("ns-" + queue).task("tk-" + queue).create()
    rows = {row["task"]: row for row in (await client.admin.get_tasks())["tasks"]}
    assert rows["tk-" + queue]["queues"] == 1


async def test_partitions_have_no_route_of_their_own(client):
    """As with the original 2.x broker: the client's get_partitions() has no route behind it."""
    await refused(client.admin.get_partitions(queue="q"), 404, "no_such_route")


async def test_what_the_client_refuses_itself(client):
    with pytest.raises(NotImplementedError):
        await client.admin.clear_queue("q")
    with pytest.raises(NotImplementedError):
        await client.admin.move_message_to_dlq("1", "t")


# ---- messages ----


@pytest.mark.route("GET /api/v1/messages")
async def test_messages_are_listed_newest_first_with_their_state(client, queue):
    await client.queue(queue).push([{"transactionId": "t%d" % i, "data": i} for i in range(4)])
    [first] = await client.queue(queue).batch(1).pop()
    await client.ack(first)
    [second] = await client.queue(queue).batch(1).pop()
    await client.ack(second, "dlq")
    listed = await client.admin.list_messages(queue=queue)
    assert [(m["transactionId"], m["status"]) for m in listed["messages"]] == [
        ("t3", "pending"), ("t2", "pending"), ("t1", "dead_letter"), ("t0", "completed")]
    assert listed["messages"][0]["data"] == 3 and listed["messages"][0]["payload"] == 3 and listed["messages"][0]["queue"] == queue
    assert listed["total"] == 4 and listed["mode"]["type"] == "queue"
    assert ids((await client.admin.list_messages(queue=queue, status="pending", limit=1))["messages"]) == ["t3"]
    assert ids((await client.admin.list_messages(queue=queue, limit=2, offset=1))["messages"]) == ["t2", "t1"]


@pytest.mark.route("GET /api/v1/messages/:/:")
async def test_one_message_in_full(client, queue):
    await client.queue(queue).partition("lane").push({"transactionId": "t/1 ü", "data": {"n": 1}})
    await client.queue(queue).partition("lane").push({"transactionId": "t1", "data": {"n": 1}})
    messages = await client.queue(queue).partition("lane").group("g").subscription_mode("all").batch(2).pop()
    detail = await client.admin.get_message(messages[1]["partitionId"], "t1")
    for key in ("id", "transactionId", "partitionId", "partition", "queue", "queuePath", "namespace", "task", "status", "payload", "createdAt", "retryCount"):
        assert key in detail, key
    assert detail["id"] == messages[1]["id"] and detail["data"] == {"n": 1} and detail["queueConfig"]["leaseTime"] == 60
    assert [g["name"] for g in detail["consumerGroups"]] == ["g"]
    assert (await client.admin.get_message(messages[0]["partitionId"], "t/1 ü"))["id"] == messages[0]["id"]
    await refused(client.admin.get_message(messages[1]["partitionId"], "none"), 404)


@pytest.mark.route("POST /api/v1/messages/:/:/retry")
async def test_a_dead_letter_is_replayed_by_its_address_with_no_body(tapped, queue):
    message = await dead_letter(tapped, queue)
    moved = await tapped.admin.retry_message(message["partitionId"], message["transactionId"])
    assert moved["success"] and moved["result"] == "moved" and moved["dlqRowRemoved"] is True and moved["originalTransactionId"] == "dead"
    assert tapped.tap.to("/api/v1/messages")[0].body == b""
    [again] = await tapped.queue(queue).pop()
    assert again["data"] == 1 and again["transactionId"] == moved["replayedAs"]["transaction_id"] and again["transactionId"].startswith("dlq:")
    assert (await tapped.queue(queue).dlq().get())["total"] == 0
    await refused(tapped.admin.retry_message(message["partitionId"], message["transactionId"]), 404)


@pytest.mark.route("DELETE /api/v1/messages/:/:")
async def test_a_dead_letter_is_deleted_by_its_address(client, queue):
    message = await dead_letter(client, queue)
    deleted = await client.admin.delete_message(message["partitionId"], message["transactionId"])
    assert deleted["success"] and deleted["deleted"] == 1
    assert (await client.queue(queue).dlq().get())["total"] == 0
    await refused(client.admin.delete_message(message["partitionId"], message["transactionId"]), 404)


# ---- consumer groups ----


@pytest.mark.route("GET /api/v1/consumer-groups")
async def test_groups_are_listed(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(3)])
    await client.queue(queue).group("g").subscription_mode("all").batch(1).pop()
    rows = [row for row in await client.admin.list_consumer_groups() if row["queueName"] == queue]
    assert [(r["name"], r["topics"], r["members"], r["totalLag"], r["subscriptionMode"], r["conflation"]) for r in rows] == [("g", [queue], 1, 3, "all", False)]


@pytest.mark.route("GET /api/v1/consumer-groups/:")
async def test_one_group(client, queue):
    await client.queue(queue).partition("lane").push([{"data": i} for i in range(3)])
    messages = await client.queue(queue).group("g-" + queue).subscription_mode("all").batch(2).pop()
    group = await client.admin.get_consumer_group("g-" + queue)
    [lane] = group[queue]["partitions"]
    assert lane["partition"] == "lane" and lane["offsetLag"] == 3 and lane["leaseActive"] is True and lane["workerId"] == messages[0]["leaseId"]
    await refused(client.admin.get_consumer_group("nobody-" + queue), 404)


@pytest.mark.route("GET /api/v1/consumer-groups/lagging")
async def test_lagging_groups(client, queue):
    await client.queue(queue).push({"data": 1})
    await client.queue(queue).group("g").subscription_mode("all").pop()
    await asyncio.sleep(1.1)
    rows = [row for row in await client.admin.get_lagging_consumers(0) if row["queue_name"] == queue]
    assert [(r["consumer_group"], r["offset_lag"]) for r in rows] == [("g", 1)]
    assert not [row for row in await client.admin.get_lagging_consumers(3600) if row["queue_name"] == queue]


@pytest.mark.route("POST /api/v1/consumer-groups/:/queues/:/seek")
async def test_seek_back_reads_again_although_leased(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(3)])
    first = await client.queue(queue).group("g").subscription_mode("all").batch(9).pop()
    hour_ago = (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    sought = await client.admin.seek_consumer_group("g", queue, {"timestamp": hour_ago})
    assert sought["success"] and sought["partitionsUpdated"] == 1 and sought["seekToEnd"] is False
    again = await client.queue(queue).group("g").batch(9).pop()
    assert ids(again) == ids(first) and again[0]["leaseId"] != first[0]["leaseId"]


@pytest.mark.route("POST /api/v1/consumer-groups/:/queues/:/seek")
async def test_seek_to_the_end_skips(tapped, queue):
    await tapped.queue(queue).push([{"data": i} for i in range(3)])
    assert len(await tapped.queue(queue).group("g").subscription_mode("all").batch(1).pop()) == 1
    sought = await tapped.admin.seek_consumer_group("g", queue, {"toEnd": True})
    assert sought["success"] and sought["seekToEnd"] is True
    assert await tapped.queue(queue).group("g").wait(False).pop() == []
    await tapped.queue(queue).push({"data": "next"})
    assert data(await tapped.queue(queue).group("g").pop()) == ["next"]
    assert (await tapped.admin.seek_consumer_group("g", queue))["seekToEnd"] is True  # an empty body is not sent
    assert tapped.tap.to("/api/v1/consumer-groups")[-1].body == b""


@pytest.mark.route("POST /api/v1/consumer-groups/:/queues/:/seek")
async def test_seek_wakes_a_waiting_pop(client, queue):
    await client.queue(queue).push({"data": 1})
    [message] = await client.queue(queue).group("g").subscription_mode("all").pop()
    await client.ack(message, True, {"group": "g"})
    waiting = asyncio.create_task(client.queue(queue).group("g").timeout_millis(20000).pop())
    await asyncio.sleep(0.2)
    await client.admin.seek_consumer_group("g", queue, {"timestamp": "1970-01-01T00:00:00Z"})
    assert data(await asyncio.wait_for(waiting, 5)) == [1]


@pytest.mark.route("DELETE /api/v1/consumer-groups/:")
async def test_a_deleted_group_starts_again(client, queue):
    await client.queue(queue).push([{"data": i} for i in range(3)])
    messages = await client.queue(queue).group(queue).subscription_mode("all").batch(9).pop()
    await client.ack(messages, True, {"group": queue})
    deleted = await client.delete_consumer_group(queue)
    assert deleted["success"] and deleted["deletedPartitions"] == 1
    assert len(await client.queue(queue).group(queue).subscription_mode("all").batch(9).pop()) == 3


@pytest.mark.route("DELETE /api/v1/consumer-groups/:/queues/:")
async def test_a_group_deleted_on_one_queue_only(client, queue):
    for name in (queue, queue + "-2"):
        await client.queue(name).push({"data": name})
        messages = await client.queue(name).group("g").subscription_mode("all").pop()
        await client.ack(messages, True, {"group": "g"})
    assert (await client.admin.delete_consumer_group_for_queue("g", queue))["success"]
    assert data(await client.queue(queue).group("g").subscription_mode("all").wait(False).pop()) == [queue]
    assert await client.queue(queue + "-2").group("g").wait(False).pop() == []


@pytest.mark.route("POST /api/v1/consumer-groups/:/subscription")
async def test_the_start_of_a_group_is_moved(client, queue):
    assert await client.queue(queue).group(queue).subscription_mode("new").wait(False).pop() == []
    updated = await client.update_consumer_group_timestamp(queue, "2020-01-01T00:00:00Z")
    assert updated["success"] and updated["rowsUpdated"] == 1


# ---- status, health, metrics ----


async def test_health(client):
    health = await client.admin.health()
    assert health["status"] == "healthy" and health["engine"] == "raft" and health["version"].startswith("2.0.")
    assert health["raft"]["role"] == "leader" and health["raft"]["leader"] is True


async def test_metrics(client, queue):
    before = (await client.admin.metrics())["messages"]["total"]
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    metrics = await client.admin.metrics()
    assert metrics["messages"]["total"] >= before + 2 and metrics["uptime"] >= 0 and metrics["memory"]["rss"] > 0


async def test_refresh_of_statistics_has_no_body(tapped):
    assert (await tapped.admin.refresh_consumer_stats())["success"] is True
    assert tapped.tap.to("/api/v1/stats/refresh")[0].body == b""


@pytest.mark.route("GET /api/v1/status")
async def test_status(client, queue):
    await client.queue(queue).push({"data": 1})
    status = await client.admin.get_status()
    assert status["engine"] == "raft" and isinstance(status["throughput"], list) and status["timeRange"]


@pytest.mark.route("GET /api/v1/status/queues")
async def test_queue_statistics(client, queue):
    await client.queue(queue).push([{"data": 1}, {"data": 2}])
    rows = {row["name"]: row for row in (await client.admin.get_queue_stats(limit=1000))["queues"]}
    assert rows[queue]["messages"]["total"] == 2 and rows[queue]["messages"]["pending"] == 2


@pytest.mark.route("GET /api/v1/status/queues/:")
async def test_queue_detail(client, queue):
    await client.queue(queue).partition("lane").push([{"data": 1}, {"data": 2}])
    detail = await client.admin.get_queue_detail(queue)
    assert detail["queue"]["name"] == queue and detail["queue"]["config"]["leaseTime"] == 60
    assert detail["totals"]["messages"]["total"] == 2 and detail["partitions"][0]["name"] == "lane"
    await refused(client.admin.get_queue_detail(queue + "-none"), 404)


@pytest.mark.route("GET /api/v1/status/analytics")
async def test_analytics(client):
    assert isinstance(await client.admin.get_analytics(interval="hour"), dict)


@pytest.mark.route("GET /api/v1/analytics/system-metrics")
async def test_system_metrics(client):
    assert isinstance(await client.admin.get_system_metrics(), dict)


@pytest.mark.route("GET /api/v1/analytics/worker-metrics")
async def test_worker_metrics(client):
    assert isinstance(await client.admin.get_worker_metrics(), dict)


# ---- traces ----


@pytest.mark.route("GET /api/v1/traces/names")
async def test_names_of_traces(client, queue):
    await client._http_client.post("/api/v1/traces", {"transactionId": "t", "traceNames": ["n-" + queue], "data": {"a": 1}})
    names = {row["trace_name"]: row for row in (await client.admin.get_trace_names(limit=1000))["trace_names"]}
    assert names["n-" + queue]["trace_count"] == 1


@pytest.mark.route("GET /api/v1/traces/:/:")
async def test_traces_of_a_message(client, queue):
    await client.queue(queue).push({"transactionId": "t", "data": 1})
    [message] = await client.queue(queue).pop()
    await client._http_client.post("/api/v1/traces", {"transactionId": "t", "partitionId": message["partitionId"], "data": {"a": 1}})
    found = await client.admin.get_traces_for_message(message["partitionId"], "t")
    assert found["total"] == 1 and found["traces"][0]["data"] == {"a": 1}
