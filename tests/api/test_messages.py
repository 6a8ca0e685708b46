"""Looking at stored messages: the list, and one by its address."""

import time
from datetime import datetime, timedelta, timezone

import pytest

from queen import ISO_MS, ISO_US, QUEUE_MODE, UUID7, ids, query, quote, unique

ROW_KEYS = {"id", "transactionId", "txnHash", "data", "payload", "traceId", "producerSub", "createdAt", "offset", "queue", "partition",
            "partitionId", "status", "queueStatus", "busStatus", "queuePath", "namespace", "task", "queuePriority", "payloadAvailable",
            "isEncrypted", "segment", "leaseExpiresAt"}
DETAIL_KEYS = {"id", "transactionId", "data", "payload", "traceId", "producerSub", "createdAt", "offset", "partitionId", "partition", "queue",
               "queuePath", "namespace", "task", "status", "errorMessage", "retryCount", "isEncrypted", "queueConfig", "mode", "consumerGroups"}


def listing(broker, queue=None, **params):
    return broker.get("/api/v1/messages" + query(dict(params, queue=queue))).expect(200).json


def names(answer):
    return [m["transactionId"] for m in answer["messages"]]


def statuses(broker, queue, **params):
    return {m["transactionId"]: m["status"] for m in listing(broker, queue, **params)["messages"]}


def message(broker, partition_id, transaction_id, status=200):
    return broker.get("/api/v1/messages/%s/%s" % (partition_id, quote(transaction_id))).expect(status).json


def iso(moment):
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# ---- list ----


def test_newest_first_with_every_field(broker, queue):
    trace = "01234567-89ab-4cde-8f01-23456789abcd"
    broker.configure(queue, namespace="shop", task="mail", priority=7)
    broker.push([{"queue": queue, "partition": "p", "transactionId": "a", "payload": {"n": 1}, "traceId": trace}]).expect(201)
    broker.push_ids(queue, ["b"], "r")
    answer = listing(broker, queue)
    assert names(answer) == ["b", "a"]
    assert answer["total"] == 2
    assert answer["pagination"] == {"limit": 200, "offset": 0}
    assert answer["mode"] == {"hasQueueMode": False, "busGroupsCount": 0, "type": "none"}
    row = answer["messages"][1]
    assert set(row) == ROW_KEYS
    assert UUID7.match(row["id"]) and UUID7.match(row["partitionId"])
    assert ISO_MS.match(row["createdAt"])
    assert len(row["txnHash"]) == 32 and int(row["txnHash"], 16)
    assert (row["data"], row["payload"], row["traceId"], row["producerSub"]) == ({"n": 1}, {"n": 1}, trace, None)
    assert (row["offset"], row["queue"], row["partition"], row["queuePath"]) == (0, queue, "p", queue + "/p")
    assert (row["namespace"], row["task"], row["queuePriority"]) == ("shop", "mail", 7)
    assert (row["status"], row["queueStatus"], row["busStatus"]) == ("pending", "pending", {"consumedBy": 0, "totalGroups": 0})
    assert (row["payloadAvailable"], row["isEncrypted"], row["leaseExpiresAt"]) == (True, False, None)
    assert row["segment"] == {"seq": 0, "frameIdx": 0}


def test_order_over_lanes_and_pages(broker, queue):
    pushed = []
    for i in range(30):
        name = "m%02d" % i
        broker.push_ids(queue, [name], "p%d" % (i * 7 % 5))
        pushed.insert(0, name)
    assert names(listing(broker, queue)) == pushed
    got = []
    for offset in range(0, 35, 7):
        page = listing(broker, queue, limit=7, offset=offset)
        assert page["total"] == len(page["messages"]) == max(0, min(7, 30 - offset))
        assert page["pagination"] == {"limit": 7, "offset": offset}
        got += names(page)
    assert got == pushed
    assert names(listing(broker, queue, partition="p0")) == [n for n in pushed if int(n[1:]) * 7 % 5 == 0]
    assert names(listing(broker, queue, partition="none")) == []
    assert names(listing(broker, queue, limit=0)) == pushed[:1]


def test_one_append_is_one_segment(broker, queue):
    broker.push_ids(queue, ["x"], "p")
    broker.push_ids(queue, ["a", "b", "c"], "p")
    rows = listing(broker, queue)["messages"]
    assert [m["transactionId"] for m in rows] == ["c", "b", "a", "x"]
    assert [m["segment"] for m in rows] == [{"seq": 1, "frameIdx": 2}, {"seq": 1, "frameIdx": 1}, {"seq": 1, "frameIdx": 0}, {"seq": 0, "frameIdx": 0}]


def test_status_by_queue_mode(broker, queue):
    broker.push_ids(queue, ["a", "b", "c"], "p")
    broker.push_ids(queue, ["z"], "r")
    taken = broker.take(queue, "p", batch=1)["messages"]
    broker.ack(taken[0])
    answer = listing(broker, queue)
    assert answer["mode"] == {"hasQueueMode": True, "busGroupsCount": 0, "type": "queue"}
    assert statuses(broker, queue) == {"a": "completed", "b": "pending", "c": "pending", "z": "pending"}
    broker.take(queue, "p", batch=1)
    rows = {m["transactionId"]: m for m in listing(broker, queue)["messages"]}
    assert {n: m["status"] for n, m in rows.items()} == {"a": "completed", "b": "processing", "c": "processing", "z": "pending"}
    assert ISO_MS.match(rows["b"]["leaseExpiresAt"])
    assert rows["z"]["leaseExpiresAt"] is None


def test_status_by_named_groups(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    broker.take(queue, group="g", subscriptionMode="all", batch=2, autoAck=True)
    assert statuses(broker, queue) == {"a": "completed", "b": "completed"}
    broker.ack(broker.take(queue, group="h", subscriptionMode="all", batch=1)["messages"][0])
    rows = {m["transactionId"]: m for m in listing(broker, queue)["messages"]}
    assert {n: m["status"] for n, m in rows.items()} == {"a": "completed", "b": "pending"}
    assert rows["a"]["busStatus"] == {"consumedBy": 2, "totalGroups": 2}
    assert rows["b"]["busStatus"] == {"consumedBy": 1, "totalGroups": 2}
    assert listing(broker, queue)["mode"] == {"hasQueueMode": False, "busGroupsCount": 2, "type": "bus"}
    broker.take(queue)
    assert listing(broker, queue)["mode"]["type"] == "hybrid"


def test_status_filter_pages_over_what_fits(broker, queue):
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, ["m%d" % i for i in range(10)], "p")
    batch = broker.take(queue, batch=5)["messages"]
    broker.ack_batch([(m, "dlq" if i % 2 else "completed") for i, m in enumerate(batch)])
    assert names(listing(broker, queue, status="dead_letter")) == ["m3", "m1"]
    assert names(listing(broker, queue, status="completed")) == ["m4", "m2", "m0"]
    assert names(listing(broker, queue, status="pending")) == ["m9", "m8", "m7", "m6", "m5"]
    assert names(listing(broker, queue, status="pending", limit=2, offset=1)) == ["m8", "m7"]
    assert names(listing(broker, queue, status="processing")) == []
    assert names(listing(broker, queue, status="failed")) == []


def test_time_window(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    now = datetime.now(timezone.utc)
    assert names(listing(broker, queue)) == ["a"]
    assert names(listing(broker, queue, to=iso(now - timedelta(minutes=2)))) == []
    assert names(listing(broker, queue, **{"from": iso(now + timedelta(minutes=1))})) == []
    assert names(listing(broker, queue, **{"from": iso(now - timedelta(minutes=1)), "to": iso(now + timedelta(minutes=1))})) == ["a"]
    assert names(listing(broker, queue, **{"from": iso(now - timedelta(hours=3)), "to": iso(now - timedelta(hours=2))})) == []
    created = listing(broker, queue)["messages"][0]["createdAt"]
    # The minute of `to` counts whole.
    assert names(listing(broker, queue, to=created[:17] + "00.000Z")) == ["a"]
    assert broker.get("/api/v1/messages?from=yesterday").expect(400).json["code"] == "bad_request"
    assert broker.get("/api/v1/messages?limit=many").status == 400


def test_window_that_ends_inside_a_lane(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    time.sleep(0.02)
    broker.push_ids(queue, ["b"], "p")
    rows = {m["transactionId"]: m["createdAt"] for m in listing(broker, queue)["messages"]}
    assert names(listing(broker, queue, **{"from": rows["b"]})) == ["b"]
    assert names(listing(broker, queue, **{"from": rows["a"]})) == ["b", "a"]


def test_filters_by_labels(own_broker):
    broker = own_broker()
    one, two = unique("q"), unique("q")
    broker.configure(one, namespace="n1", task="t1")
    broker.configure(two, namespace="n1", task="t2")
    broker.push_ids(one, ["a"], "p")
    broker.push_ids(two, ["b"], "p")
    assert names(listing(broker)) == ["b", "a"]
    assert names(listing(broker, namespace="n1")) == ["b", "a"]
    assert names(listing(broker, namespace="n1", task="t1")) == ["a"]
    assert names(listing(broker, namespace="n2")) == []
    assert names(listing(broker, two, task="t1")) == []
    assert names(listing(broker, one, partition="p", task="t1")) == ["a"]
    assert names(listing(broker, one, partition="p", task="t2")) == []


def test_a_queue_that_is_not_there(broker):
    answer = listing(broker, unique("q"))
    assert (answer["messages"], answer["total"]) == ([], 0)


def test_many_lanes(broker, queue):
    broker.push([{"queue": queue, "partition": "p%04d" % i, "payload": i} for i in range(3000)]).expect(201)
    broker.push_ids(queue, ["last"], "p1500")
    page = listing(broker, queue, limit=1000)
    assert page["total"] == 1000
    assert page["messages"][0]["transactionId"] == "last"
    assert len({m["id"] for m in page["messages"]}) == 1000
    rest = listing(broker, queue, limit=1000, offset=3000)
    assert rest["total"] == 1


def test_payloads_verbatim(broker, queue):
    payload = b'{"a": 1.50, "b":"\\u00e9\\/", "n": 12345678901234567890 }'
    broker.push_raw(queue, payload).expect(201)
    body = broker.get("/api/v1/messages" + query({"queue": queue})).body
    assert body.count(payload) == 2


# ---- one ----


def test_detail(broker, queue):
    broker.configure(queue, namespace="shop", leaseTime=44)
    broker.push_ids(queue, ["a", "b"], "p")
    taken = broker.take(queue, "p", group="g", subscriptionMode="all", batch=1)["messages"][0]
    broker.ack(taken)
    held = broker.take(queue, "p", group="g", batch=1)["messages"][0]
    found = message(broker, taken["partitionId"], "a")
    assert set(found) == DETAIL_KEYS
    assert (found["id"], found["transactionId"], found["data"], found["payload"]) == (taken["id"], "a", {"id": "a"}, {"id": "a"})
    assert ISO_US.match(found["createdAt"])
    assert (found["queue"], found["partition"], found["queuePath"], found["namespace"]) == (queue, "p", queue + "/p", "shop")
    assert (found["status"], found["errorMessage"], found["retryCount"], found["isEncrypted"]) == ("completed", None, 0, False)
    assert found["queueConfig"]["leaseTime"] == 44
    assert len(found["queueConfig"]) == 20
    assert found["mode"] == {"hasQueueMode": False, "busGroupsCount": 1, "type": "bus"}
    group = found["consumerGroups"][0]
    assert (group["name"], group["committed"], group["consumed"]) == ("g", 0, True)
    assert ISO_MS.match(group["leaseExpiresAt"])
    second = message(broker, found["partitionId"], "b")
    assert (second["status"], second["id"], second["consumerGroups"][0]["consumed"]) == ("processing", held["id"], False)
    assert UUID7.match(second["partitionId"])


def test_transaction_id_with_slashes_and_escapes(broker, queue):
    for name in ("a/b/c", "order 7/ü?x#y", "x/retry", "100%", "/lead", "trail/"):
        broker.push_ids(queue, [name], "p")
        partition = listing(broker, queue, limit=1)["messages"][0]["partitionId"]
        assert message(broker, partition, name)["transactionId"] == name
    assert broker.get("/api/v1/messages/%s/a/b/c" % partition).expect(200).json["transactionId"] == "a/b/c"


def test_message_without_a_transaction_id(broker, queue):
    broker.push([{"queue": queue, "partition": "p", "payload": 5}]).expect(201)
    row = listing(broker, queue)["messages"][0]
    assert row["transactionId"] == row["id"]
    assert message(broker, row["partitionId"], row["id"])["data"] == 5


def test_first_of_several_with_one_id(broker, queue):
    broker.configure(queue, dedupWindowSeconds=0)
    for i in range(3):
        broker.push([{"queue": queue, "partition": "p", "transactionId": "a", "payload": i}]).expect(201)
    row = listing(broker, queue)["messages"][0]
    assert row["data"] == 2
    assert message(broker, row["partitionId"], "a")["data"] == 0


def test_detail_of_a_dead_letter(broker, queue):
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, ["a"], "p")
    broker.ack(broker.take(queue)["messages"][0], "failed", "no stock")
    row = listing(broker, queue)["messages"][0]
    found = message(broker, row["partitionId"], "a")
    assert (row["status"], found["status"], found["errorMessage"]) == ("dead_letter", "dead_letter", "no stock")
    assert found["retryCount"] == broker.dlq(queue)["messages"][0]["retryCount"]
    assert [g["name"] for g in found["consumerGroups"]] == [QUEUE_MODE]


@pytest.mark.parametrize("partition", ["0", "999999999", "18446744073709551617", "nonsense", "01234567-89ab-7cde-8f01-23456789abcd"])
def test_nothing_there(broker, queue, partition):
    assert message(broker, partition, "a", 404) == {"error": "Message not found"}


def test_nothing_in_that_lane(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    partition = listing(broker, queue)["messages"][0]["partitionId"]
    assert message(broker, partition, "b", 404) == {"error": "Message not found"}
    broker.delete_queue(queue)
    assert message(broker, partition, "a", 404) == {"error": "Message not found"}


def test_survives_and_is_found_again(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["m%d" % i for i in range(50)], "p")
    broker.take(queue, batch=20, autoAck=True)
    before = listing(broker, queue)
    partition = before["messages"][0]["partitionId"]
    one = message(broker, partition, "m3")
    for how in ("kill", "stop"):
        broker.restart(how)
        assert listing(broker, queue) == before
        assert message(broker, partition, "m3") == one


def test_other_tenants_see_nothing(own_broker, queue):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    other = {"x-queen-tenant": "00000000-0000-0000-0000-000000000002"}
    broker.push_ids(queue, ["a"], "p")
    row = listing(broker, queue)["messages"][0]
    assert ids(broker.take(queue)) == ["a"]
    assert broker.get("/api/v1/messages", headers=other).expect(200).json["messages"] == []
    for partition in (row["partitionId"], "1"):
        broker.get("/api/v1/messages/%s/a" % partition, headers=other).expect(404)
        broker.get("/api/v1/messages/%s/a" % partition).expect(200)
