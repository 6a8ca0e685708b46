"""Dead letters: put back, moved elsewhere, deleted."""

import http.client
import threading

import pytest

from queen import QUEUE_MODE, UUID7, ids, query, quote, raw_data, unique, wait_until
from test_groups import waiting

NIL = "00000000-0000-0000-0000-000000000000"


def dead(broker, queue, names, partition="p", group=None, error="broken"):
    """Pushes these and dead-letters all of them; the rows by transaction id."""
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, list(names), partition)
    return bury(broker, queue, partition, group, error)


def bury(broker, queue, partition="p", group=None, error="broken"):
    messages = broker.take(queue, partition, group=group, batch=1000, **({"subscriptionMode": "all"} if group else {}))["messages"]
    broker.ack_batch([(m, "failed", error) for m in messages])
    rows = broker.dlq(queue, group=group)["messages"]
    return {row["transactionId"]: row for row in rows}


def replay(broker, row_id, body=None, status=200):
    return broker.post("/api/v1/dlq/%s/replay" % quote(row_id), body).expect(status).json


def address(partition_id, transaction_id):
    return "/api/v1/messages/%s/%s" % (partition_id, quote(transaction_id))


def retry(broker, partition_id, transaction_id, body=None, status=200):
    return broker.post(address(partition_id, transaction_id) + "/retry", body).expect(status).json


# ---- move ----


def test_replay_puts_the_message_at_the_tail(broker, queue):
    rows = dead(broker, queue, "ab")
    broker.push_ids(queue, ["c"], "p")
    row = rows["a"]
    answer = replay(broker, row["id"])
    name = "dlq:" + row["id"]
    moved = answer["replayedAs"]
    assert UUID7.match(moved.pop("message_id"))
    assert answer == {"success": True, "result": "moved", "queue": queue, "partition": "p", "consumerGroup": QUEUE_MODE, "dlqId": row["id"],
                      "originalTransactionId": "a", "dlqRowRemoved": True,
                      "replayedAs": {"index": 0, "transaction_id": name, "queueName": queue, "status": "queued", "offset": 3}}
    assert [r["transactionId"] for r in broker.dlq(queue)["messages"]] == ["b"]
    messages = broker.take(queue, batch=10)["messages"]
    assert [(m["transactionId"], m["data"]) for m in messages] == [("c", {"id": "c"}), (name, {"id": "a"})]
    assert messages[1]["id"] != row["messageId"]


def test_replay_twice_is_gone(broker, queue):
    row = dead(broker, queue, "a")["a"]
    replay(broker, row["id"], {})
    assert replay(broker, row["id"], status=404) == {"success": False, "result": "gone", "error": "Message not found"}
    assert broker.queue_detail(queue)["totals"]["total"] == 2


@pytest.mark.parametrize("row_id", [NIL, "01234567-89ab-7cde-8f01-23456789abcd", "nonsense", "5"])
def test_replay_of_nothing(broker, row_id):
    assert replay(broker, row_id, status=404)["result"] == "gone"


def test_replay_elsewhere(broker, queue):
    row = dead(broker, queue, "a")["a"]
    target = unique("q")
    answer = replay(broker, row["id"], {"queue": "  %s " % target, "partition": "other"})
    assert (answer["queue"], answer["partition"], answer["replayedAs"]["queueName"], answer["replayedAs"]["offset"]) == (target, "other", target, 0)
    taken = broker.take(target)
    assert (taken["partition"], taken["messages"][0]["data"]) == ("other", {"id": "a"})
    assert broker.dlq(queue)["total"] == 0
    assert broker.depth(queue)["pending"] == 0


def test_only_the_queue_or_only_the_partition(broker, queue):
    rows = dead(broker, queue, "ab")
    target = unique("q")
    assert replay(broker, rows["a"]["id"], {"queue": target, "partition": None})["partition"] == "p"
    answer = replay(broker, rows["b"]["id"], {"partition": "r"})
    assert (answer["queue"], answer["partition"]) == (queue, "r")


def test_a_copy_that_is_there_already(broker, queue):
    row = dead(broker, queue, "a")["a"]
    broker.push_ids(queue, ["dlq:" + row["id"]], "p")
    answer = replay(broker, row["id"])
    assert (answer["result"], answer["dlqRowRemoved"]) == ("duplicate", False)
    assert answer["replayedAs"] == {"index": 0, "message_id": NIL, "transaction_id": "dlq:" + row["id"], "queueName": queue,
                                    "status": "duplicate", "offset": 1}
    assert broker.dlq(queue)["total"] == 1
    assert broker.queue_detail(queue)["totals"]["total"] == 2


def test_retry_by_address(broker, queue):
    rows = dead(broker, queue, ["a", "x/y", "z"])
    partition = rows["a"]["partitionId"]
    assert partition.isdigit()
    answer = retry(broker, partition, "a", {})
    assert (answer["result"], answer["dlqId"], answer["originalTransactionId"]) == ("moved", rows["a"]["id"], "a")
    uuid = broker.get("/api/v1/messages" + query({"queue": queue})).json["messages"][0]["partitionId"]
    assert retry(broker, uuid, "z")["dlqId"] == rows["z"]["id"]
    assert broker.post("/api/v1/messages/%s/x/y/retry" % partition).expect(200).json["dlqId"] == rows["x/y"]["id"]
    assert retry(broker, partition, "a", status=404)["result"] == "gone"
    assert broker.dlq(queue)["total"] == 0
    assert len(broker.take(queue, batch=10)["messages"]) == 3


def test_retry_of_nothing(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    uuid = broker.get("/api/v1/messages" + query({"queue": queue})).json["messages"][0]["partitionId"]
    for partition in (uuid, "0", "999999999", "nonsense"):
        assert retry(broker, partition, "a", status=404) == {"success": False, "result": "gone", "error": "Message not found"}
    assert broker.post("/api/v1/messages/%s/a" % uuid).status == 405


def test_retry_takes_the_newest_and_leaves_other_groups_rows(broker, queue):
    first = dead(broker, queue, "a", group="g")["a"]
    second = bury(broker, queue, group="h")["a"]
    assert retry(broker, first["partitionId"], "a")["dlqId"] == second["id"]
    rows = broker.dlq(queue)["messages"]
    assert [(r["id"], r["consumerGroup"]) for r in rows] == [(first["id"], "g")]
    answer = retry(broker, first["partitionId"], "a")
    assert (answer["dlqId"], answer["consumerGroup"]) == (first["id"], "g")


def test_a_message_without_a_transaction_id(broker, queue):
    broker.configure(queue, retryLimit=0)
    broker.push([{"queue": queue, "partition": "p", "payload": 5}]).expect(201)
    rows = bury(broker, queue)
    row = list(rows.values())[0]
    assert row["transactionId"] == row["messageId"]
    answer = retry(broker, row["partitionId"], row["transactionId"])
    assert answer["originalTransactionId"] == row["messageId"]
    assert broker.take(queue)["messages"][0]["data"] == 5


def test_payload_and_trace_go_along(broker, queue):
    trace = "01234567-89ab-4cde-8f01-23456789abcd"
    payload = b'{"a": 1.50, "b":"\\u00e9\\/", "big":12345678901234567890}'
    broker.configure(queue, retryLimit=0)
    text = b'{"items":[{"queue":"%s","partition":"p","traceId":"%s","payload":%s}]}' % (queue.encode(), trace.encode(), payload)
    broker.post("/api/v1/push", text).expect(201)
    row = list(bury(broker, queue).values())[0]
    replay(broker, row["id"])
    answer = broker.pop(queue).expect(200)
    assert raw_data(answer.body) == [payload]
    assert answer.json["messages"][0]["traceId"] == trace


@pytest.mark.parametrize("body", [{"queue": ""}, {"partition": "  "}, {"queue": 5}, [], b"{", {"queue": "a\u0001"}, b'{"queue":"a","queue":"b"}'])
def test_bad_targets(broker, queue, body):
    row = dead(broker, queue, "a")["a"]
    for answer in (replay(broker, row["id"], body, 400), retry(broker, row["partitionId"], "a", body, 400)):
        assert answer["success"] is False
        assert answer["error"]
    assert broker.dlq(queue)["total"] == 1


def test_a_target_that_is_too_long(broker, queue):
    row = dead(broker, queue, "a")["a"]
    assert replay(broker, row["id"], {"queue": "n" * 500}, 413)["code"] == "name_too_long"
    assert broker.dlq(queue)["total"] == 1


def test_a_move_wakes_long_polls(broker, queue):
    rows = dead(broker, queue, "abc")
    result = waiting(broker, queue, "p")
    replay(broker, rows["a"]["id"])
    assert ids(result().expect(200).json) == ["dlq:" + rows["a"]["id"]]
    target = unique("q")
    result = waiting(broker, target)
    replay(broker, rows["b"]["id"], {"queue": target})
    assert ids(result().expect(200).json) == ["dlq:" + rows["b"]["id"]]
    target = unique("q")
    result = waiting(broker, target, "x", group="g", subscriptionMode="new")
    replay(broker, rows["c"]["id"], {"queue": target, "partition": "x"})
    assert ids(result().expect(200).json) == ["dlq:" + rows["c"]["id"]]


def test_replays_at_once_move_it_once(broker, queue):
    row = dead(broker, queue, "a")["a"]
    results = []

    def run():
        results.append(broker.post("/api/v1/dlq/%s/replay" % row["id"]))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.status for r in results) == [200] + [404] * 7
    assert len(broker.take(queue, batch=10)["messages"]) == 1


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_move_survives_as_one(own_broker, queue, how):
    broker = own_broker()
    rows = dead(broker, queue, ["a%d" % i for i in range(20)])
    moved = []
    for name in sorted(rows)[:10]:
        answer = replay(broker, rows[name]["id"])
        moved.append((answer["replayedAs"]["transaction_id"], answer["replayedAs"]["offset"]))
    broker.restart(how)
    assert sorted(r["transactionId"] for r in broker.dlq(queue)["messages"]) == sorted(rows)[10:]
    messages = broker.take(queue, batch=100)["messages"]
    assert [(m["transactionId"], m["offset"]) for m in messages] == moved
    assert [m["data"]["id"] for m in messages] == sorted(rows)[:10]
    for name in sorted(rows)[:10]:
        replay(broker, rows[name]["id"], status=404)
    broker.restart("stop")
    assert broker.queue_detail(queue)["totals"]["deadLetter"] == 10


def test_killed_while_moving(own_broker, queue):
    """Whatever was answered or not: of each message there is the dead letter or the copy, never both or none."""
    broker = own_broker()
    rows = dead(broker, queue, ["a%02d" % i for i in range(60)])
    answered = set()

    def run(part):
        for name in part:
            try:
                if broker.fresh_request("POST", "/api/v1/dlq/%s/replay" % rows[name]["id"]).status == 200:
                    answered.add(name)
            except (OSError, http.client.HTTPException):
                return

    names = sorted(rows)
    threads = [threading.Thread(target=run, args=(names[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answered) >= 10, 10, "moves", every=0.001)
    broker.kill()
    for thread in threads:
        thread.join()
    broker.start()
    left = {r["transactionId"] for r in broker.dlq(queue)["messages"]}
    copies = [m["data"]["id"] for m in broker.pop(queue, batch=100).expect(200).json["messages"]]
    assert len(copies) == len(set(copies))
    assert left | set(copies) == set(rows)
    assert not left & set(copies)
    assert answered <= set(copies)


# ---- delete ----


def test_delete_by_address_takes_every_groups_row(broker, queue):
    rows = dead(broker, queue, "ab", group="g")
    bury(broker, queue, group="h")
    partition = rows["a"]["partitionId"]
    assert broker.delete(address(partition, "a")).expect(200).json == {"success": True, "partitionId": partition, "transactionId": "a", "deleted": 2}
    assert sorted((r["transactionId"], r["consumerGroup"]) for r in broker.dlq(queue)["messages"]) == [("b", "g"), ("b", "h")]
    answer = broker.delete(address(partition, "a")).expect(404).json
    assert (answer["success"], answer["error"], answer["partitionId"], answer["transactionId"]) == (False, "Message not found", partition, "a")
    assert answer["message"]


def test_live_messages_cannot_be_deleted(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    uuid = broker.get("/api/v1/messages" + query({"queue": queue})).json["messages"][0]["partitionId"]
    broker.delete(address(uuid, "a")).expect(404)
    assert ids(broker.take(queue)) == ["a"]


def test_delete_of_a_queue_or_group(own_broker, queue):
    broker = own_broker()
    other = unique("q")
    dead(broker, queue, "ab", group="g")
    bury(broker, queue, group="h")
    dead(broker, other, "a")
    assert broker.delete("/api/v1/dlq" + query({"queue": queue, "consumerGroup": "g"})).expect(200).json == {
        "success": True, "queue": queue, "consumerGroup": "g", "deleted": 2}
    assert {r["consumerGroup"] for r in broker.dlq(queue)["messages"]} == {"h"}
    broker.restart("kill")
    assert broker.dlq(queue)["total"] == 2
    assert broker.delete("/api/v1/dlq" + query({"queue": queue})).expect(200).json == {
        "success": True, "queue": queue, "consumerGroup": None, "deleted": 2}
    broker.restart("stop")
    assert broker.dlq(queue)["total"] == 0
    assert broker.dlq(other)["total"] == 1
    assert broker.queue_detail(queue)["totals"]["deadLetter"] == 0
    assert broker.delete("/api/v1/dlq" + query({"queue": queue})).expect(200).json["deleted"] == 0


def test_delete_needs_a_queue(broker):
    for path in ("/api/v1/dlq", "/api/v1/dlq?queue=", "/api/v1/dlq?consumerGroup=g"):
        answer = broker.delete(path).expect(400).json
        assert answer["success"] is False
        assert answer["error"] and answer["message"]


def test_many_rows_in_one_lane(broker, queue):
    dead(broker, queue, ["m%04d" % i for i in range(700)])
    oldest = broker.get("/api/v1/dlq" + query({"queue": queue, "limit": 1, "offset": 699})).json["messages"][0]
    assert oldest["transactionId"] == "m0000"
    assert retry(broker, oldest["partitionId"], "m0000")["dlqId"] == oldest["id"]
    broker.delete(address(oldest["partitionId"], "m0001")).expect(200)
    assert broker.dlq(queue)["total"] == 698
    assert not {"m0000", "m0001"} & {r["transactionId"] for r in broker.dlq(queue, limit=1000)["messages"]}


def test_a_letter_outlives_its_message(own_broker, queue):
    broker = own_broker(env={"RETENTION_INTERVAL": "100"})
    rows = dead(broker, queue, "ab")
    broker.configure(queue, retentionEnabled=True, retentionSeconds=1)
    wait_until(lambda: broker.queue_detail(queue)["totals"]["total"] == 0, 10, "retention")
    assert broker.get("/api/v1/messages" + query({"queue": queue})).expect(200).json["messages"] == []
    broker.get(address(rows["a"]["partitionId"], "a")).expect(404)
    broker.configure(queue, retentionEnabled=False)
    broker.restart("kill")
    assert retry(broker, rows["a"]["partitionId"], "a")["result"] == "moved"
    target = unique("q")
    assert replay(broker, rows["b"]["id"], {"queue": target})["result"] == "moved"
    assert [m["data"] for m in broker.take(queue)["messages"]] == [{"id": "a"}]
    assert [m["data"] for m in broker.take(target)["messages"]] == [{"id": "b"}]
