"""Queue resources: list, detail, depth, delete."""

import pytest

from queen import ISO_US, UUID7, ids, quote, unique, wait_until


def row_of(broker, queue):
    rows = [r for r in broker.get("/api/v1/resources/queues").expect(200).json["queues"] if r["name"] == queue]
    assert len(rows) == 1
    return rows[0]


def test_list_row(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p1")
    broker.push_ids(queue, ["c"], "p2")
    answer = broker.get("/api/v1/resources/queues").expect(200).json
    assert set(answer) == {"queues", "kvRows", "kvBytes", "timerRows", "timerBytes"}
    assert answer["timerBytes"] == 0
    row = row_of(broker, queue)
    assert {"id", "name", "queue", "namespace", "task", "storage", "partitions", "segments", "messages", "retainedBytes", "options",
            "createdAt"} <= set(row)
    assert UUID7.match(row["id"])
    assert row["name"] == row["queue"] == queue
    assert row["storage"] == "segments"
    assert row["partitions"] == 2
    assert row["segments"]["messages"] == 3
    assert row["messages"] == {"total": 3, "pending": 3, "processing": 0, "completed": 0, "deadLetter": 0}
    assert row["retainedBytes"] > 0
    assert len(row["options"]) == 20
    assert ISO_US.match(row["createdAt"])


def test_list_is_newest_first(broker):
    names = [unique() for _ in range(3)]
    for name in names:
        broker.configure(name)
    listed = [r["name"] for r in broker.get("/api/v1/resources/queues").expect(200).json["queues"]]
    assert [n for n in listed if n in names] == names[::-1]


def test_counting_rules(broker, queue):
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, ["m%d" % i for i in range(10)], "p")
    batch = broker.take(queue, group="g", subscriptionMode="all", batch=4)["messages"]
    assert row_of(broker, queue)["messages"] == {"total": 10, "pending": 6, "processing": 4, "completed": 0, "deadLetter": 0}
    broker.ack(batch[1])
    assert row_of(broker, queue)["messages"] == {"total": 10, "pending": 6, "processing": 2, "completed": 2, "deadLetter": 0}
    broker.ack(batch[2], "dlq")
    assert row_of(broker, queue)["messages"] == {"total": 10, "pending": 7, "processing": 0, "completed": 2, "deadLetter": 1}
    detail = broker.queue_detail(queue)
    assert detail["totals"] == {"total": 10, "pending": 7, "processing": 0, "completed": 2, "failed": None, "deadLetter": 1}
    broker.take(queue, group="g", batch=3)
    detail = broker.queue_detail(queue)
    # The detail counts what is leased as pending too; the list does not.
    assert (detail["totals"]["pending"], detail["totals"]["processing"]) == (7, 3)
    assert (row_of(broker, queue)["messages"]["pending"], row_of(broker, queue)["messages"]["processing"]) == (4, 3)


def test_slowest_named_group_decides(broker, queue):
    broker.push_ids(queue, ["a", "b", "c"], "p")
    fast = broker.take(queue, group="fast", subscriptionMode="all")["messages"]
    slow = broker.take(queue, group="slow", subscriptionMode="all", batch=1)["messages"]
    broker.ack(fast[-1])
    broker.ack(slow[0])
    assert row_of(broker, queue)["messages"]["pending"] == 2
    queue_mode = broker.take(queue)["messages"]
    assert broker.ack(queue_mode[-1])["leaseReleased"] is True
    assert row_of(broker, queue)["messages"]["pending"] == 2
    assert broker.depth(queue, "fast")["pending"] == 0
    assert broker.depth(queue, "slow")["pending"] == 2
    assert broker.depth(queue)["pending"] == 2


def test_detail(broker, queue):
    broker.push_ids(queue, ["a", "b"], "z")
    broker.push_ids(queue, ["c"], "a")
    detail = broker.queue_detail(queue)
    assert {"id", "name", "namespace", "task", "createdAt", "options", "partitions", "segments", "totals", "retainedBytes"} <= set(detail)
    assert detail["name"] == queue
    assert [p["name"] for p in detail["partitions"]] == ["a", "z"]
    row = detail["partitions"][1]
    assert {"id", "name", "createdAt", "messages", "stats", "cursor", "lastActivity", "oldestMessage", "newestMessage",
            "retainedBytes"} <= set(row)
    assert row["messages"] == row["stats"] == {"total": 2, "pending": 2, "processing": 0, "completed": 0, "failed": None, "deadLetter": 0}
    assert row["cursor"] == {"totalConsumed": 0, "batchesConsumed": 0}
    assert row["lastActivity"] is None
    assert ISO_US.match(row["oldestMessage"]) and ISO_US.match(row["newestMessage"])
    message = broker.take(queue, "z")["messages"][1]
    broker.ack(message)
    row = broker.queue_detail(queue)["partitions"][1]
    assert row["cursor"] == {"totalConsumed": 2, "batchesConsumed": 0}
    assert ISO_US.match(row["lastActivity"])
    assert row["stats"]["completed"] == 2


def test_missing_queue_is_404(broker, queue):
    for path in ("", "/depth", "/depth?group=g"):
        answer = broker.get("/api/v1/resources/queues/%s%s" % (queue, path))
        assert answer.status == 404
        assert answer.json == {"error": "Queue not found"}


def test_depth(broker, queue):
    broker.push_ids(queue, ["a", "b", "c"], "p1")
    broker.push_ids(queue, ["d"], "p2")
    fresh = broker.depth(queue)
    assert fresh == {"queue": queue, "group": None, "pending": 4, "processing": 0, "ready": 4, "partitionsPending": 2, "partitionsReady": 2,
                     "conflation": False, "effectivePending": 4, "effectiveReady": 4,
                     "partitions": [{"partition": "p1", "pending": 3, "processing": 0, "ready": 3},
                                    {"partition": "p2", "pending": 1, "processing": 0, "ready": 1}]}
    assert broker.depth(queue, "stranger")["pending"] == 4
    batch = broker.take(queue, "p1", group="g", subscriptionMode="all", batch=2)["messages"]
    depth = broker.depth(queue, "g")
    assert (depth["group"], depth["pending"], depth["processing"], depth["ready"]) == ("g", 4, 2, 2)
    assert (depth["partitionsPending"], depth["partitionsReady"]) == (2, 2)
    broker.ack(batch[1])
    depth = broker.depth(queue, "g")
    assert (depth["pending"], depth["processing"], depth["ready"]) == (2, 0, 2)
    last = broker.take(queue, "p1", group="g")["messages"]
    depth = broker.depth(queue, "g")
    assert (depth["pending"], depth["processing"], depth["ready"], depth["partitionsPending"], depth["partitionsReady"]) == (2, 1, 1, 2, 1)
    broker.ack(last[0])
    assert [r for r in broker.depth(queue, "g")["partitions"] if r["partition"] == "p2"] == [
        {"partition": "p2", "pending": 1, "processing": 0, "ready": 1}]


def test_processing_falls_by_itself_when_leases_end(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    broker.take(queue, leaseSeconds=1)
    assert broker.depth(queue)["processing"] == 2
    depth = wait_until(lambda: (lambda d: d["processing"] == 0 and d)(broker.depth(queue)), 4, "the lease ran out")
    assert (depth["pending"], depth["ready"]) == (2, 2)
    assert row_of(broker, queue)["messages"]["processing"] == 0


def test_delete_is_idempotent(broker, queue):
    broker.push_ids(queue, ["a"])
    assert broker.delete_queue(queue) == {"deleted": True, "existed": True, "queue": queue}
    missing = broker.delete_queue(queue)
    assert (missing["deleted"], missing["existed"], missing["queue"]) == (False, False, queue)
    assert isinstance(missing["message"], str) and missing["message"]
    assert broker.queue_detail(queue) is None
    assert broker.pop(queue, "Default").status == 204


def test_recreated_queue_starts_from_nothing(broker, queue):
    old_id = broker.configure(queue, leaseTime=77)["queueId"]
    broker.push_ids(queue, ["a", "b", "c"], "p")
    old = broker.take(queue, group="g", subscriptionMode="all")
    broker.delete_queue(queue)
    result = broker.push_ids(queue, ["a"], "p")[0]
    assert result["offset"] == 0
    detail = broker.queue_detail(queue)
    assert detail["id"] != old_id
    assert detail["options"]["leaseTime"] == 60
    assert detail["totals"]["total"] == 1
    answer = broker.take(queue, group="g", subscriptionMode="all")
    assert ids(answer) == ["a"]
    assert answer["messages"][0]["deliveryAttempt"] == 1
    assert answer["partitionId"] != old["partitionId"]
    late = broker.ack(old["messages"][0])
    assert (late["success"], late["error"]) == (False, "no partition " + old["partitionId"])
    assert broker.extend(old["leaseId"], 60)["renewed"] == 0


def test_delete_with_thousands_of_lanes(broker, queue):
    for start in range(0, 3000, 1000):
        broker.push([{"queue": queue, "partition": "p%d" % i, "payload": i} for i in range(start, start + 1000)]).expect(201)
    assert broker.depth(queue)["partitionsPending"] == 3000
    assert broker.delete_queue(queue)["deleted"] is True
    assert broker.queue_detail(queue) is None
    assert broker.push_ids(queue, ["new"], "p7")[0]["offset"] == 0
    assert [p["name"] for p in broker.queue_detail(queue)["partitions"]] == ["p7"]


def test_delete_survives_a_kill(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a", "b"], "p")
    broker.push_ids(queue + "-kept", ["a"], "p")
    broker.delete_queue(queue)
    broker.restart("kill")
    assert broker.queue_detail(queue) is None
    assert broker.queue_detail(queue + "-kept")["totals"]["total"] == 1
    assert broker.push_ids(queue, ["a"], "p")[0]["offset"] == 0


@pytest.mark.parametrize("name", ["with space", "sl/ash", "per%cent", "que?ry", "ha#sh", "pl+us", "..", "caf\u00e9", "a&b=c", '"quoted"', "\U0001f430"])
def test_names_in_paths_are_decoded_once(broker, name):
    name = name if name == ".." else unique(name)
    partition, group = name + "-lane", name + "-group"
    broker.delete_queue(name)
    broker.push_ids(name, ["a"], partition)
    answer = broker.take(name, partition, group=group, subscriptionMode="all")
    assert (answer["queue"], answer["partition"], answer["consumerGroup"]) == (name, partition, group)
    assert broker.queue_detail(name)["name"] == name
    depth = broker.depth(name, group)
    assert (depth["queue"], depth["group"], depth["partitions"][0]["partition"]) == (name, group, partition)
    assert broker.ack(answer["messages"][0], "dlq")["dlq"] is True
    assert broker.dlq(name, group)["messages"][0]["partition"] == partition
    assert broker.delete_queue(name) == {"deleted": True, "existed": True, "queue": name}


def test_lower_case_percent_escapes_are_the_same_name(broker):
    name = unique("sl/ash")
    broker.push_ids(name, ["a"])
    path = quote(name).replace("%2F", "%2f")
    assert broker.get("/api/v1/resources/queues/" + path).expect(200).json["name"] == name
