"""Consumer groups: seek, delete, re-date, positions, and how they are listed."""

import threading
import time

import pytest

from queen import ISO_MS, ISO_US, QUEUE_MODE, ids, quote, unique, wait_until

EPOCH = "1970-01-01T00:00:00Z"


def group_path(group, queue=None, partition=None, verb=None):
    path = "/api/v1/consumer-groups/" + quote(group)
    if queue is not None:
        path += "/queues/" + quote(queue)
    if partition is not None:
        path += "/partitions/" + quote(partition)
    return path + ("/" + verb if verb else "")


def seek(broker, group, queue, partition=None, body=None, status=200):
    return broker.post(group_path(group, queue, partition, "seek"), body).expect(status).json


def positions(broker, group, *entries, status=200):
    body = {"consumerGroup": group}
    if entries:
        body["entries"] = [{"queue": e} if isinstance(e, str) else {"queue": e[0], "partition": e[1]} for e in entries]
    return broker.post("/api/v1/consumer-groups/positions", body).expect(status).json


def offset(broker, group, queue, partition="p"):
    entries = positions(broker, group, (queue, partition))["entries"]
    assert len(entries) == 1
    return entries[0]["offset"]


def consume(broker, queue, group, **params):
    """Ids of one autoAck pop; [] when there is nothing."""
    answer = broker.pop(queue, group=group, autoAck=True, batch=1000, partitions=64, **params).expect((200, 204))
    return ids(answer.json) if answer.status == 200 else []


def waiting(broker, *args, **params):
    """A long poll on a thread of its own. Returns a function that waits for its Response."""
    found = []

    def run():
        found.append(broker.pop(*args, wait=True, timeout=20000, **params))

    before = broker.get("/metrics/prometheus").body.decode()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    count = parked_count(before)
    wait_until(lambda: parked_count(broker.get("/metrics/prometheus").body.decode()) > count, 10, "a parked poll")

    def result():
        thread.join(25)
        assert found, "the long poll did not end"
        return found[0]

    return result


def parked_count(text):
    lines = [line for line in text.splitlines() if line.startswith("queen_parked_long_polls ")]
    assert len(lines) == 1, lines
    return float(lines[0].split()[1])


# ---- seek ----


def test_seek_to_the_end_skips_what_is_there(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    broker.push_ids(queue, ["c"], "r")
    assert ids(broker.take(queue, "p", group="g", subscriptionMode="all", batch=1)) == ["a"]
    answer = seek(broker, "g", queue, body={"toEnd": True})
    assert answer == {"success": True, "consumerGroup": "g", "queueName": queue, "partitionName": None, "seekToEnd": True,
                      "targetTimestamp": None, "partitionsUpdated": 2, "updated": True}
    assert consume(broker, queue, "g") == []
    assert broker.depth(queue, "g")["pending"] == 0
    broker.push_ids(queue, ["d"], "p")
    assert consume(broker, queue, "g") == ["d"]


def test_seek_releases_the_lease_of_the_cursor(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    held = broker.take(queue, group="g", subscriptionMode="all")["messages"][0]
    seek(broker, "g", queue, body={"timestamp": EPOCH})
    again = broker.take(queue, group="g")["messages"][0]
    assert (again["transactionId"], again["deliveryAttempt"]) == ("a", 1)
    assert broker.ack(held)["success"] is False
    assert broker.ack(again)["success"] is True


def test_seek_to_a_time(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    time.sleep(0.02)
    broker.push_ids(queue, ["c"], "p")
    broker.push_ids(queue, ["d"], "r")
    messages = broker.take(queue, group="g", subscriptionMode="all", autoAck=True, batch=10, partitions=10)["messages"]
    times = {m["transactionId"]: m["createdAt"] for m in messages}
    assert sorted(times) == ["a", "b", "c", "d"]
    answer = seek(broker, "g", queue, body={"timestamp": times["c"]})
    assert (answer["seekToEnd"], answer["partitionsUpdated"]) == (False, 2)
    assert answer["targetTimestamp"] == times["c"][:-1] + "000Z"
    assert sorted(consume(broker, queue, "g")) == ["c", "d"]
    seek(broker, "g", queue, body={"timestamp": EPOCH})
    assert sorted(consume(broker, queue, "g")) == ["a", "b", "c", "d"]
    seek(broker, "g", queue, body={"timestamp": "2100-01-01T00:00:00Z"})
    assert consume(broker, queue, "g") == []


def test_seek_of_one_partition(broker, queue):
    broker.push_ids(queue, ["a"], "p/1")
    broker.push_ids(queue, ["b"], "r")
    assert sorted(consume(broker, queue, "g", subscriptionMode="all")) == ["a", "b"]
    answer = seek(broker, "g", queue, "p/1", {"timestamp": EPOCH})
    assert (answer["partitionName"], answer["partitionsUpdated"]) == ("p/1", 1)
    assert consume(broker, queue, "g") == ["a"]


def test_empty_body_means_to_the_end(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    assert seek(broker, "g", queue)["seekToEnd"] is True
    assert seek(broker, "g", queue, "p", b"  \n")["seekToEnd"] is True
    assert seek(broker, "g", queue, body={"toEnd": True, "timestamp": None})["seekToEnd"] is True


@pytest.mark.parametrize("body", [{}, {"toEnd": False}, {"timestamp": 1700000000000}, {"timestamp": "yesterday"}, {"timestamp": ""},
                                  {"toEnd": "yes"}, [], {"toEnd": None, "timestamp": None}])
def test_a_seek_that_says_nothing_is_refused(broker, queue, body):
    broker.push_ids(queue, ["a"], "p")
    for partition in (None, "p"):
        answer = seek(broker, "g", queue, partition, body, 400)
        assert answer["success"] is False
        assert answer["error"]
    answer = broker.post(group_path("g", queue, None, "seek"), b"{").expect(400).json
    assert answer["success"] is False
    assert offset(broker, "g", queue) is None


def test_seek_where_there_is_nothing(broker, queue):
    answer = seek(broker, "g", queue, body={"toEnd": True}, status=404)
    assert (answer["success"], answer["consumerGroup"], answer["queueName"], answer["partitionsUpdated"]) == (False, "g", queue, 0)
    assert answer["error"]
    broker.configure(queue)
    seek(broker, "g", queue, body={"toEnd": True}, status=404)
    broker.push_ids(queue, ["a"], "p")
    seek(broker, "g", queue, "other", {"toEnd": True}, 404)


def test_seek_of_a_group_nobody_knows(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    assert seek(broker, "g", queue, body={"timestamp": EPOCH})["partitionsUpdated"] == 1
    assert offset(broker, "g", queue) == 0
    assert consume(broker, queue, "g", subscriptionMode="new") == ["a", "b"]
    broker.push_ids(queue, ["c"], "p")
    seek(broker, "h", queue, body={"toEnd": True})
    broker.push_ids(queue, ["d"], "p")
    assert consume(broker, queue, "h", subscriptionMode="all") == ["d"]


def test_seek_of_queue_mode(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    seek(broker, QUEUE_MODE, queue, body={"toEnd": True})
    broker.nothing(queue)
    broker.push_ids(queue, ["b"], "p")
    assert ids(broker.take(queue)) == ["b"]


def test_seek_wakes_a_long_poll(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    assert consume(broker, queue, "g", subscriptionMode="all") == ["a", "b"]
    result = waiting(broker, queue, group="g", batch=10)
    seek(broker, "g", queue, body={"timestamp": EPOCH})
    assert ids(result().expect(200).json) == ["a", "b"]


def test_seek_wakes_a_pinned_long_poll_of_a_new_group(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    result = waiting(broker, queue, "p", group="g", subscriptionMode="new")
    seek(broker, "g", queue, "p", {"timestamp": EPOCH})
    assert ids(result().expect(200).json) == ["a"]


def test_seek_survives(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a", "b"], "p")
    broker.push_ids(queue, ["c"], "r")
    assert sorted(consume(broker, queue, "g", subscriptionMode="all")) == ["a", "b", "c"]
    seek(broker, "g", queue, "p", {"timestamp": EPOCH})
    seek(broker, "h", queue, body={"toEnd": True})
    for how in ("kill", "stop"):
        broker.restart(how)
        assert [offset(broker, "g", queue, p) for p in "pr"] == [0, 1]
        assert [offset(broker, "h", queue, p) for p in "pr"] == [2, 1]
    assert consume(broker, queue, "g") == ["a", "b"]
    assert consume(broker, queue, "h") == []


# ---- delete ----


def test_delete_forgets_cursors_and_how_the_group_began(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    broker.push_ids(queue, ["b"], "r")
    assert len(consume(broker, queue, "g", subscriptionMode="all")) == 2
    assert broker.delete(group_path("g", queue)).expect(200).json == {
        "success": True, "consumerGroup": "g", "queueName": queue, "deletedPartitions": 2, "metadataDeleted": True, "queues": [queue]}
    assert offset(broker, "g", queue) is None
    # What it was is gone: it begins anew, as the next pop says.
    assert consume(broker, queue, "g", subscriptionMode="new") == []
    broker.push_ids(queue, ["c"], "p")
    assert consume(broker, queue, "g") == ["c"]


def test_delete_that_keeps_how_the_group_began(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    assert consume(broker, queue, "g", subscriptionMode="all") == ["a"]
    answer = broker.delete(group_path("g", queue) + "?deleteMetadata=false").expect(200).json
    assert (answer["deletedPartitions"], answer["metadataDeleted"]) == (1, False)
    assert consume(broker, queue, "g", subscriptionMode="new") == ["a"]


def test_delete_on_all_queues(own_broker):
    broker = own_broker()
    names = [unique("q") for _ in range(3)]
    for name in names:
        broker.push_ids(name, ["a"], "p")
    for name in names[:2]:
        assert consume(broker, name, "g", subscriptionMode="all") == ["a"]
    assert consume(broker, names[0], "h", subscriptionMode="all") == ["a"]
    answer = broker.delete(group_path("g")).expect(200).json
    assert (answer["queueName"], answer["deletedPartitions"], sorted(answer["queues"])) == (None, 2, sorted(names[:2]))
    assert offset(broker, "h", names[0]) == 1
    assert broker.delete(group_path("g")).expect(200).json["queues"] == []
    broker.restart("kill")
    assert offset(broker, "g", names[0]) is None
    assert offset(broker, "h", names[0]) == 1
    broker.restart("stop")
    assert offset(broker, "g", names[0]) is None
    assert consume(broker, names[0], "g", subscriptionMode="all") == ["a"]


def test_delete_of_nothing_is_fine(broker, queue):
    answer = broker.delete(group_path(unique("g"), queue)).expect(200).json
    assert (answer["success"], answer["deletedPartitions"], answer["queues"]) == (True, 0, [])
    assert broker.delete(group_path(unique("g"))).expect(200).json["queueName"] is None
    broker.delete(group_path("g", queue) + "?deleteMetadata=maybe").expect(400)


def test_delete_ends_leases(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    held = broker.take(queue, group="g", subscriptionMode="all")["messages"][0]
    broker.delete(group_path("g", queue)).expect(200)
    assert broker.ack(held)["success"] is False
    assert ids(broker.take(queue, group="g", subscriptionMode="all")) == ["a"]


def test_a_long_poll_of_a_deleted_group_is_as_a_newcomer(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    assert consume(broker, queue, "g", subscriptionMode="all") == ["a"]
    result = waiting(broker, queue, group="g", subscriptionMode="new", batch=10)
    broker.delete(group_path("g", queue)).expect(200)
    broker.push_ids(queue, ["b"], "p")
    assert ids(result().expect(200).json) == ["b"]


def test_a_long_poll_of_a_deleted_group_that_wants_all(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    assert consume(broker, queue, "g", subscriptionMode="all") == ["a"]
    result = waiting(broker, queue, group="g", subscriptionMode="all", batch=10)
    broker.delete(group_path("g", queue)).expect(200)
    assert ids(result().expect(200).json) == ["a"]


# ---- subscription ----


def test_subscription_moves_where_untouched_lanes_begin(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    assert consume(broker, queue, "g", subscriptionMode="new") == []
    answer = broker.post(group_path("g", verb="subscription"), {"subscriptionTimestamp": EPOCH}).expect(200).json
    assert answer["success"] is True
    assert (answer["consumerGroup"], answer["newTimestamp"]) == ("g", "1970-01-01T00:00:00.000000Z")
    assert answer["rowsUpdated"] >= 1
    assert consume(broker, queue, "g") == ["a"]


def test_subscription_wakes_a_long_poll(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a"], "p")
    assert consume(broker, queue, "g", subscriptionMode="new") == []
    result = waiting(broker, queue, group="g")
    assert broker.post(group_path("g", verb="subscription"), {"subscriptionTimestamp": EPOCH}).json["rowsUpdated"] == 1
    assert ids(result().expect(200).json) == ["a"]


@pytest.mark.parametrize("body", [None, {}, {"subscriptionTimestamp": None}, {"subscriptionTimestamp": 5},
                                  {"subscriptionTimestamp": "soon"}, [], b"{"])
def test_subscription_needs_a_time(broker, body):
    assert broker.post(group_path("g", verb="subscription"), body).expect(400).json["code"] == "bad_request"


def test_subscription_of_nobody(broker):
    answer = broker.post(group_path(unique("g"), verb="subscription"), {"subscriptionTimestamp": EPOCH}).expect(200).json
    assert answer["rowsUpdated"] == 0


# ---- positions ----


def test_positions_in_the_asked_order(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    broker.push_ids(queue, ["c"])
    assert len(consume(broker, queue, "g", subscriptionMode="all")) == 3
    other = unique("q")
    answer = positions(broker, "g", (queue, "p"), other, queue, (queue, "none"))
    assert answer == {"consumerGroup": "g", "entries": [
        {"queue": queue, "partition": "p", "offset": 2, "metadata": None},
        {"queue": other, "partition": "Default", "offset": None},
        {"queue": queue, "partition": "Default", "offset": 1, "metadata": None},
        {"queue": queue, "partition": "none", "offset": None}]}


def test_positions_of_all_that_a_group_has(own_broker):
    broker = own_broker()
    first, second, third = [unique("q") for _ in range(3)]
    for name in (first, second, third):
        broker.push_ids(name, ["a"], "p")
        broker.push_ids(name, ["b"], "r")
    consume(broker, first, "g", subscriptionMode="all")
    consume(broker, second, "g", subscriptionMode="all")
    consume(broker, third, "h", subscriptionMode="all")
    found = {(e["queue"], e["partition"]): e["offset"] for e in positions(broker, "g")["entries"]}
    assert found == {(first, "p"): 1, (first, "r"): 1, (second, "p"): 1, (second, "r"): 1}
    assert positions(broker, unique("g"))["entries"] == []


def test_positions_of_many_entries(broker, queue):
    broker.push([{"queue": queue, "partition": "p%04d" % i, "payload": i} for i in range(2500)]).expect(201)
    while consume(broker, queue, "g", subscriptionMode="all"):
        pass
    entries = [(queue, "p%04d" % i) for i in range(2500)]
    answer = positions(broker, "g", *entries)
    assert [e["partition"] for e in answer["entries"]] == [p for _, p in entries]
    assert {e["offset"] for e in answer["entries"]} == {1}


@pytest.mark.parametrize("body", [None, {}, {"entries": []}, {"consumerGroup": ""}, {"consumerGroup": 5}, {"consumerGroup": "g", "entries": {}},
                                  {"consumerGroup": "g", "entries": [{}]}, {"consumerGroup": "g", "entries": ["q"]},
                                  {"consumerGroup": "g", "entries": [{"queue": 5}]}, b"{"])
def test_positions_refused(broker, body):
    assert broker.post("/api/v1/consumer-groups/positions", body).expect(400).json["code"] == "bad_request"


def test_long_names_are_refused(broker):
    name = "n" * 300
    assert broker.post(group_path(name, name, verb="seek"), {"toEnd": True}).expect(413).json["code"] == "name_too_long"
    assert broker.delete(group_path(name, name)).expect(413).json["code"] == "name_too_long"


# ---- looking at them ----

ROW_KEYS = {"name", "topics", "queueName", "members", "partitionCursors", "partitionsWithLag", "totalLag", "maxTimeLag", "state", "storage", "kind",
            "subscriptionMode", "subscriptionTimestamp", "subscriptionCreatedAt", "conflation"}


def listed(broker):
    return {(row["name"], row["queueName"]): row for row in broker.get("/api/v1/consumer-groups").expect(200).json}


def test_list_of_groups(own_broker):
    broker = own_broker()
    assert broker.get("/api/v1/consumer-groups").expect(200).json == []
    for name in ("q1", "q2"):
        broker.push_ids(name, ["a", "b"], "p")
        broker.push_ids(name, ["c"], "r")
    consume(broker, "q2", "g", subscriptionMode="all")
    broker.take("q1", "p", group="g", subscriptionMode="all", batch=1, autoAck=True)
    broker.take("q1", "r", group="a-first", subscriptionMode="all")
    broker.take("q1", "p", batch=1)
    rows = broker.get("/api/v1/consumer-groups").expect(200).json
    assert [(r["name"], r["queueName"]) for r in rows] == [(QUEUE_MODE, "q1"), ("a-first", "q1"), ("g", "q1"), ("g", "q2")]
    assert all(set(row) == ROW_KEYS for row in rows)
    rows = listed(broker)
    row = rows["g", "q1"]
    assert (row["topics"], row["members"], row["partitionCursors"]) == (["q1"], 1, 1)
    assert (row["partitionsWithLag"], row["totalLag"], row["state"], row["storage"], row["kind"]) == (1, 1, "Stable", "segments", "queen")
    assert row["conflation"] is False
    assert (rows["g", "q2"]["totalLag"], rows["g", "q2"]["partitionsWithLag"], rows["g", "q2"]["members"]) == (0, 0, 2)
    assert rows["a-first", "q1"]["state"] == "Dead"
    mode = rows[QUEUE_MODE, "q1"]
    assert (mode["subscriptionMode"], mode["subscriptionTimestamp"], mode["totalLag"]) == (None, None, 2)


def test_how_a_group_began(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a"], "p")
    consume(broker, queue, "all", subscriptionMode="all")
    consume(broker, queue, "new", subscriptionMode="new")
    consume(broker, queue, "from", subscriptionFrom="2020-01-02T03:04:05Z")
    broker.push_ids(queue, ["b"], "p")
    for group in ("all", "new", "from"):
        consume(broker, queue, group)

    def began():
        return {name: (row["subscriptionMode"], row["subscriptionTimestamp"], row["subscriptionCreatedAt"]) for (name, _), row in listed(broker).items()}

    rows = began()
    assert rows["all"] == ("all", "1970-01-01T00:00:00.000000Z", None)
    assert rows["from"] == ("timestamp", "2020-01-02T03:04:05.000000Z", None)
    assert rows["new"][0] == "new"
    assert ISO_US.match(rows["new"][1]) and rows["new"][1] == rows["new"][2]
    broker.restart("kill")
    assert began() == rows
    broker.restart("stop")
    assert began() == rows
    assert broker.post(group_path("new", verb="subscription"), {"subscriptionTimestamp": "2021-01-01T00:00:00Z"}).json["rowsUpdated"] == 1
    assert began()["new"] == ("timestamp", "2021-01-01T00:00:00.000000Z", None)


def test_one_group(broker, queue):
    group, other = unique("g"), unique("q")
    assert broker.get(group_path(group)).expect(404).json == {"error": "Consumer group not found"}
    broker.push_ids(queue, ["a", "b", "c"], "p")
    broker.push_ids(queue, ["d"], "a-first")
    broker.push_ids(other, ["e"], "p")
    held = broker.take(queue, "p", group=group, subscriptionMode="all", batch=2)
    broker.take(queue, "a-first", group=group, autoAck=True, subscriptionMode="all")
    broker.take(other, group=group, autoAck=True, subscriptionMode="all")
    answer = broker.get(group_path(group)).expect(200).json
    assert set(answer) == {queue, other}
    assert (answer[queue]["conflation"], answer[queue]["kind"]) == (False, "queen")
    first, second = answer[queue]["partitions"]
    assert first == {"partition": "a-first", "workerId": None, "lastConsumedAt": None, "totalConsumed": 1, "offsetLag": 0, "timeLagSeconds": 0,
                     "leaseActive": False}
    assert (second["partition"], second["workerId"], second["leaseActive"]) == ("p", held["leaseId"], True)
    assert (second["totalConsumed"], second["offsetLag"]) == (0, 3)
    assert [p["totalConsumed"] for p in answer[other]["partitions"]] == [1]
    broker.delete(group_path(group)).expect(200)
    broker.get(group_path(group)).expect(404)


def test_conflation_is_shown(broker, queue):
    group = unique("g")
    broker.push_ids(queue, ["a", "b"], "p")
    assert ids(broker.take(queue, group=group, subscriptionMode="all", conflation=True, batch=10)) == ["b"]
    assert listed(broker)[group, queue]["conflation"] is True
    assert broker.get(group_path(group)).json[queue]["conflation"] is True


def test_lagging(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a", "b"], "p")
    broker.push_ids(queue, ["c"], "r")
    held = broker.take(queue, "p", group="g", subscriptionMode="all", batch=1)
    broker.take(queue, "r", group="h", subscriptionMode="all")
    broker.take(queue, "p", group="done", subscriptionMode="all", batch=10, autoAck=True)
    assert broker.get("/api/v1/consumer-groups/lagging").expect(200).json == []
    assert broker.get("/api/v1/consumer-groups/lagging?minLagSeconds=60").expect(200).json == []
    time.sleep(1.1)
    rows = broker.get("/api/v1/consumer-groups/lagging?minLagSeconds=1").expect(200).json
    assert [(r["consumer_group"], r["partition_name"], r["offset_lag"]) for r in rows] == [("g", "p", 2), ("h", "r", 1)]
    row = rows[0]
    assert set(row) == {"consumer_group", "queue_name", "partition_name", "partition_id", "worker_id", "kind", "offset_lag", "time_lag_seconds",
                        "lag_hours", "oldest_unconsumed_at", "last_consumed_at"}
    assert (row["queue_name"], row["worker_id"], row["kind"], row["last_consumed_at"]) == (queue, held["leaseId"], "queen", None)
    assert row["partition_id"] == {p["name"]: p["id"] for p in broker.queue_detail(queue)["partitions"]}["p"]
    assert 1 <= row["time_lag_seconds"] < 60
    assert row["lag_hours"] == 0
    assert ISO_MS.match(row["oldest_unconsumed_at"])
    assert broker.get("/api/v1/consumer-groups/lagging?minLagSeconds=soon").status == 400


def test_many_cursors(own_broker, queue):
    broker = own_broker()
    broker.push([{"queue": queue, "partition": "p%05d" % i, "payload": i} for i in range(3000)]).expect(201)
    for group in ("g", "h"):
        while broker.pop(queue, group=group, subscriptionMode="all", batch=1000, partitions=64, autoAck=group == "g").status == 200:
            pass
    rows = listed(broker)
    assert [(rows[g, queue]["members"], rows[g, queue]["totalLag"]) for g in "gh"] == [(3000, 0), (3000, 3000)]
    assert [p["partition"] for p in broker.get(group_path("h")).json[queue]["partitions"]] == ["p%05d" % i for i in range(3000)]
    assert len(broker.get("/api/v1/consumer-groups/lagging?minLagSeconds=0").json) == 3000


def test_other_tenants_groups(own_broker, queue):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    other = {"x-queen-tenant": "00000000-0000-0000-0000-000000000002"}
    broker.push_ids(queue, ["a"], "p")
    consume(broker, queue, "g", subscriptionMode="all")
    assert broker.get("/api/v1/consumer-groups", headers=other).json == []
    broker.get(group_path("g"), headers=other).expect(404)
    broker.post(group_path("g", queue, verb="seek"), {"toEnd": True}, headers=other).expect(404)
    assert broker.delete(group_path("g"), headers=other).expect(200).json["deletedPartitions"] == 0
    assert broker.post("/api/v1/consumer-groups/positions", {"consumerGroup": "g"}, headers=other).json["entries"] == []
    assert offset(broker, "g", queue) == 1
