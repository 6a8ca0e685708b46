"""Pop: what is delivered, in which shape, to whom."""

import calendar
import re
import time

import pytest

from queen import ISO_MS, QUEUE_MODE, UUID7, ids, offsets, unique, wait_until


def test_empty_queue_answers_204_at_once_without_body(broker, queue):
    # 20
    broker.configure(queue)
    answer = broker.nothing(queue)
    assert answer.elapsed < 3
    assert "content-length" not in answer.headers
    assert "transfer-encoding" not in answer.headers


def test_queue_pop_creates_the_queue_and_pinned_pop_creates_nothing(broker, queue):
    # 21
    broker.nothing(queue, "p")
    broker.nothing(queue, "p", group="g")
    assert broker.queue_detail(queue) is None
    broker.nothing(queue)
    detail = broker.queue_detail(queue)
    assert detail["options"]["leaseTime"] == 60
    assert detail["partitions"] == []
    broker.nothing(queue, "p")
    assert broker.queue_detail(queue)["partitions"] == []


def test_batch_is_leased_to_one_worker_of_a_group(broker, queue):
    # 28
    broker.push_ids(queue, ["m%d" % i for i in range(10)], "p")
    first = broker.take(queue, batch=4)
    assert offsets(first) == [0, 1, 2, 3]
    assert first["partitionsClaimed"] == 1
    assert UUID7.match(first["leaseId"])
    assert {m["leaseId"] for m in first["messages"]} == {first["leaseId"]}
    broker.nothing(queue, batch=4)
    broker.nothing(queue, "p", batch=4)
    other = broker.take(queue, group="g", subscriptionMode="all", batch=3)
    assert offsets(other) == [0, 1, 2]
    assert other["leaseId"] != first["leaseId"]


def test_answer_has_exactly_the_documented_fields(broker, queue):
    # 41
    pushed = broker.push_ids(queue, ["scan-551"], "depot-9")[0]
    before = time.time()
    answer = broker.take(queue, group="sorters", subscriptionMode="all")
    assert set(answer) == {"success", "queue", "partition", "partitionId", "leaseId", "consumerGroup", "messages", "partitionsClaimed"}
    assert answer["success"] is True
    assert answer["queue"] == queue
    assert answer["partition"] == "depot-9"
    assert answer["consumerGroup"] == "sorters"
    (message,) = answer["messages"]
    assert set(message) == {"id", "transactionId", "traceId", "data", "producerSub", "createdAt", "partitionId", "partition",
                            "leaseId", "consumerGroup", "deliveryAttempt", "offset"}
    assert isinstance(message["partitionId"], str) and re.match(r"^[0-9]+$", message["partitionId"])
    assert message["partitionId"] == answer["partitionId"]
    assert message["partition"] == "depot-9"
    assert ISO_MS.match(message["createdAt"])
    created = calendar.timegm(time.strptime(message["createdAt"][:19], "%Y-%m-%dT%H:%M:%S"))
    assert abs(created - before) < 10
    assert message == {"id": pushed["message_id"], "transactionId": "scan-551", "traceId": None, "data": {"id": "scan-551"},
                       "producerSub": None, "createdAt": message["createdAt"], "partitionId": answer["partitionId"],
                       "partition": "depot-9", "leaseId": answer["leaseId"], "consumerGroup": "sorters", "deliveryAttempt": 1,
                       "offset": 0}


def test_pop_without_group_is_queue_mode(broker, queue):
    broker.push_ids(queue, ["a"])
    answer = broker.take(queue)
    assert answer["consumerGroup"] == QUEUE_MODE
    assert answer["messages"][0]["consumerGroup"] == QUEUE_MODE
    broker.nothing(queue, group=QUEUE_MODE)


def test_multi_lane_pop_shares_batch_and_lease(broker, queue):
    # 29
    for lane in ("p1", "p2", "p3"):
        broker.push_ids(queue, ["%s-%d" % (lane, i) for i in range(5)], lane)
    answer = broker.take(queue, batch=8, partitions=3)
    assert ids(answer) == ["p1-0", "p1-1", "p1-2", "p1-3", "p1-4", "p2-0", "p2-1", "p2-2"]
    assert answer["partitionsClaimed"] == 2
    assert answer["partition"] == "p1"
    assert {m["leaseId"] for m in answer["messages"]} == {answer["leaseId"]}
    assert [m["partition"] for m in answer["messages"]] == ["p1"] * 5 + ["p2"] * 3
    rest = broker.take(queue, batch=100, partitions=3)
    assert ids(rest) == ["p3-%d" % i for i in range(5)]
    assert rest["leaseId"] != answer["leaseId"]


def test_partitions_and_batch_are_clamped(broker, queue):
    # 30
    for lane in range(70):
        broker.push_ids(queue, ["%d-a" % lane, "%d-b" % lane], "lane-%02d" % lane)
    one = broker.take(queue, partitions=0, batch=50)
    assert (one["partitionsClaimed"], ids(one)) == (1, ["0-a", "0-b"])
    many = broker.take(queue, partitions=1000, batch=1000)
    assert many["partitionsClaimed"] == 64
    assert len(many["messages"]) == 128
    single = broker.take(queue, partitions=1000, batch=0)
    assert (single["partitionsClaimed"], len(single["messages"])) == (1, 1)
    negative = broker.take(queue, partitions=-3, batch=-5)
    assert (negative["partitionsClaimed"], len(negative["messages"])) == (1, 1)


def test_batch_defaults_to_200(broker, queue):
    broker.push([{"queue": queue, "partition": "p", "payload": i} for i in range(250)]).expect(201)
    assert offsets(broker.take(queue)) == list(range(200))


def test_discovery_pop_by_namespace_and_task(broker):
    # 33
    namespace = unique("billing")
    name = namespace + ".mail.extra"
    broker.push_ids(name, ["a"])
    detail = broker.queue_detail(name)
    assert (detail["namespace"], detail["task"]) == (namespace, "mail")
    broker.nothing(namespace=namespace, task="post")
    answer = broker.take(namespace=namespace, task="mail")
    assert answer["queue"] == ""
    assert ids(answer) == ["a"]
    assert broker.ack(answer["messages"][0])["success"] is True
    broker.push_ids(namespace, ["whole-name"])
    assert ids(broker.take(namespace=namespace)) == ["whole-name"]


def test_discovery_pop_answers_at_once_and_needs_a_label(broker):
    # 32
    namespace = unique("ns")
    broker.configure(namespace + ".t")
    broker.configure(unique("other"), namespace=namespace)
    answer = broker.nothing(namespace=namespace, wait=True, timeout=5000)
    assert answer.elapsed < 3
    for params in ({}, {"namespace": ""}, {"namespace": "", "task": ""}, {"wait": True}):
        refused = broker.pop(**params)
        assert refused.status == 400
        body = refused.json
        assert set(body) == {"success", "error", "messages"}
        assert (body["success"], body["messages"]) == (False, [])
        assert isinstance(body["error"], str) and body["error"]


@pytest.mark.parametrize("flag", ["autoAck", "commitOnDelivery"])
def test_commit_at_delivery_takes_no_lease(broker, queue, flag):
    # 34
    broker.push_ids(queue, ["a", "b", "c"], "p")
    first = broker.take(queue, batch=2, **{flag: True})
    assert first["leaseId"] == ""
    assert [m["leaseId"] for m in first["messages"]] == ["", ""]
    assert [m["deliveryAttempt"] for m in first["messages"]] == [1, 1]
    assert first["partitionsClaimed"] == 1
    second = broker.take(queue, batch=2, **{flag: True})
    assert (ids(second), second["messages"][0]["deliveryAttempt"]) == (["c"], 1)
    broker.nothing(queue, **{flag: True})
    assert broker.depth(queue)["pending"] == 0


@pytest.mark.parametrize("params", [
    "batch=abc", "wait=yes", "wait=TRUE", "wait=1", "autoAck=no", "partitions=x", "partitions=1.5", "leaseSeconds=s", "timeout=-1",
    "timeout=1e3", "conflation=maybe", "commitOnDelivery=2", "autopilot=on", "batch=99999999999999999999",
])
def test_parameter_of_the_wrong_type_is_refused(broker, queue, params):
    # 37
    broker.push_ids(queue, ["a"])
    assert broker.get("/api/v1/pop/queue/%s?%s" % (queue, params)).status == 400
    assert ids(broker.take(queue)) == ["a"]


def test_unknown_parameters_are_ignored(broker, queue):
    broker.push_ids(queue, ["a"])
    assert ids(broker.take(queue, colour="blue", Batch="many")) == ["a"]


def test_empty_group_is_refused(broker, queue):
    broker.push_ids(queue, ["a"])
    for path in ("/api/v1/pop/queue/%s?consumerGroup=" % queue, "/api/v1/pop/queue/%s/partition/Default?consumerGroup=" % queue):
        assert broker.get(path).status == 400
    assert ids(broker.take(queue)) == ["a"]


def test_lease_seconds_shorten_the_lease(broker, queue):
    # 38
    broker.push_ids(queue, ["a", "b"], "p")
    begin = time.monotonic()
    first = broker.take(queue, leaseSeconds=1)
    second = broker.take(queue, leaseSeconds=1, wait=True, timeout=5000)
    waited = time.monotonic() - begin
    assert 0.95 <= waited < 2.5
    assert ids(second) == ids(first) == ["a", "b"]
    assert [m["deliveryAttempt"] for m in first["messages"]] == [1, 1]
    assert [m["deliveryAttempt"] for m in second["messages"]] == [2, 2]
    assert second["leaseId"] != first["leaseId"]


def test_delayed_queue_hides_messages_until_they_are_due(broker, queue):
    # 39
    broker.configure(queue, delayedProcessing=1)
    begin = time.monotonic()
    broker.push_ids(queue, ["a"], "p")
    broker.nothing(queue)
    broker.nothing(queue, "p")
    answers = []
    wait_until(lambda: answers.append(broker.pop(queue)) or answers[-1].status == 200, 10, "the message is due")
    assert ids(answers[-1].json) == ["a"]
    assert 1.0 <= time.monotonic() - begin


def test_delay_counts_for_messages_that_are_already_there(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    broker.configure(queue, delayedProcessing=3600)
    broker.nothing(queue)
    broker.configure(queue, delayedProcessing=0)
    assert ids(broker.take(queue)) == ["a"]


def test_window_buffer_holds_a_lane_until_it_is_quiet(broker, queue):
    broker.configure(queue, windowBuffer=1)
    broker.push_ids(queue, ["a"], "p")
    broker.nothing(queue)
    begin = time.monotonic()
    broker.push_ids(queue, ["b"], "p")
    broker.nothing(queue)
    answer = broker.take(queue, wait=True, timeout=6000)
    assert ids(answer) == ["a", "b"]
    assert time.monotonic() - begin < 5


def test_pop_never_goes_past_the_tail_or_below_the_cursor(broker, queue):
    broker.push_ids(queue, ["a", "b", "c"], "p")
    first = broker.take(queue, batch=2)
    assert broker.ack(first["messages"][1])["leaseReleased"] is True
    broker.push_ids(queue, ["d"], "p")
    assert offsets(broker.take(queue, batch=100)) == [2, 3]


def test_lanes_are_served_oldest_ready_first(broker, queue):
    for lane in ("z", "m", "a"):
        broker.push_ids(queue, [lane], lane)
    assert [broker.take(queue)["partition"] for _ in range(3)] == ["z", "m", "a"]


def test_autopilot_says_what_it_chose(broker, queue):
    for lane in range(3):
        broker.push_ids(queue, ["%d-%d" % (lane, i) for i in range(4)], "p%d" % lane)
    answer = broker.take(queue, autopilot=True)
    chosen = answer["autopilot"]
    assert set(chosen) == {"partitions", "batch"}
    assert 1 <= chosen["partitions"] <= 64
    assert 100 <= chosen["batch"] <= 1000
    assert 1 <= answer["partitionsClaimed"] <= chosen["partitions"]
    explicit = broker.pop(queue, autopilot=True, batch=2, partitions=1)
    assert explicit.status in (200, 204)
    if explicit.status == 200:
        assert len(explicit.json["messages"]) <= 2
        assert "autopilot" not in explicit.json


def test_groups_do_not_disturb_each_other(broker, queue):
    broker.push_ids(queue, ["a", "b", "c"], "p")
    one = broker.take(queue, group="one", subscriptionMode="all", batch=1)
    two = broker.take(queue, group="two", subscriptionMode="all", batch=2)
    none = broker.take(queue, batch=3)
    assert (ids(one), ids(two), ids(none)) == (["a"], ["a", "b"], ["a", "b", "c"])
    assert broker.ack(one["messages"][0])["leaseReleased"] is True
    assert ids(broker.take(queue, group="one", batch=9)) == ["b", "c"]
    broker.nothing(queue, group="two", batch=9)
    assert broker.depth(queue, "one")["pending"] == 2
    assert broker.depth(queue, "two")["pending"] == 3
