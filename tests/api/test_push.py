"""Push: what is stored, where, and what is answered."""

import pytest

from queen import UUID7, ids, offsets, raw_data


def test_first_push_creates_the_queue_with_implicit_defaults(broker, queue):
    # 1
    answer = broker.push([{"queue": queue, "partition": "p", "transactionId": "t-1", "payload": {"w": 3}}])
    assert answer.status == 201
    (result,) = answer.json
    assert set(result) == {"index", "message_id", "transaction_id", "queueName", "status", "offset"}
    assert result["index"] == 0
    assert result["transaction_id"] == "t-1"
    assert result["queueName"] == queue
    assert result["status"] == "queued"
    assert result["offset"] == 0
    assert UUID7.match(result["message_id"])
    options = broker.queue_detail(queue)["options"]
    assert options["leaseTime"] == 60
    assert options["retryLimit"] == 3
    assert options["dedupWindowSeconds"] == 3600
    assert options["deadLetterQueue"] is True
    assert options["retentionEnabled"] is False
    assert options["delayedProcessing"] == 0
    assert options["windowBuffer"] == 0


def test_items_of_one_request_get_consecutive_offsets_and_one_time(broker, queue):
    # 2
    broker.push_ids(queue, ["a", "b"], "p")
    results = broker.push_ids(queue, ["c", "d", "e"], "p")
    assert [r["offset"] for r in results] == [2, 3, 4]
    assert [r["index"] for r in results] == [0, 1, 2]
    answer = broker.take(queue, "p", batch=10)
    assert ids(answer) == ["a", "b", "c", "d", "e"]
    assert offsets(answer) == [0, 1, 2, 3, 4]
    assert len({m["createdAt"] for m in answer["messages"][:2]}) == 1
    assert len({m["createdAt"] for m in answer["messages"][2:]}) == 1
    assert answer["messages"][1]["createdAt"] <= answer["messages"][2]["createdAt"]
    message_ids = [m["id"] for m in answer["messages"]]
    assert message_ids[2:] == [r["message_id"] for r in results]
    assert len(set(message_ids)) == 5


def test_message_ids_sort_like_the_offsets_of_a_lane(broker, queue):
    results = []
    for start in range(0, 200, 40):
        results += broker.push([{"queue": queue, "partition": "p", "payload": i} for i in range(start, start + 40)]).expect(201).json
    assert [r["offset"] for r in results] == list(range(200))
    message_ids = [r["message_id"] for r in results]
    assert all(UUID7.match(i) for i in message_ids)
    assert len(set(message_ids)) == 200
    assert message_ids == sorted(message_ids)


def test_items_for_several_lanes_are_answered_in_request_order(broker, queue):
    items = [{"queue": queue, "partition": p, "transactionId": t, "payload": 1}
             for p, t in (("x", "x0"), ("y", "y0"), ("x", "x1"), ("z", "z0"), ("y", "y1"), ("x", "x2"))]
    results = broker.push(items).expect(201).json
    assert [r["transaction_id"] for r in results] == ["x0", "y0", "x1", "z0", "y1", "x2"]
    assert [r["offset"] for r in results] == [0, 0, 1, 0, 1, 2]
    assert [r["index"] for r in results] == [0, 1, 2, 3, 4, 5]
    assert ids(broker.take(queue, "x")) == ["x0", "x1", "x2"]
    assert ids(broker.take(queue, "y")) == ["y0", "y1"]
    assert ids(broker.take(queue, "z")) == ["z0"]


def test_transaction_id_defaults_to_the_message_id_and_is_never_a_duplicate(broker, queue):
    # 3
    item = {"queue": queue, "partition": "p", "payload": {"same": True}}
    first = broker.push([item]).expect(201).json[0]
    second = broker.push([item]).expect(201).json[0]
    third = broker.push([dict(item, transactionId=None)]).expect(201).json[0]
    for offset, result in enumerate((first, second, third)):
        assert result["status"] == "queued"
        assert result["transaction_id"] == result["message_id"]
        assert result["offset"] == offset


def test_absent_null_and_empty_partition_are_the_default_lane(broker, queue):
    # 4
    absent = {"queue": queue, "transactionId": "a", "payload": 1}
    results = [broker.push([item]).expect(201).json[0] for item in (
        absent, dict(absent, transactionId="b", partition=None), dict(absent, transactionId="c", partition=""))]
    assert [r["offset"] for r in results] == [0, 1, 2]
    answer = broker.take(queue, "Default")
    assert ids(answer) == ["a", "b", "c"]
    assert {m["partition"] for m in answer["messages"]} == {"Default"}
    assert [p["name"] for p in broker.queue_detail(queue)["partitions"]] == ["Default"]


def test_push_of_nothing_answers_an_empty_list(broker):
    # 12
    answer = broker.push([])
    assert (answer.status, answer.json) == (201, [])


@pytest.mark.parametrize("body", [
    b"", b"{", b"not json", b"[]", b"null", b"17", b'"items"', b"{}", b'{"item":[]}', b'{"items":null}', b'{"items":{}}',
    b'{"items":"x"}', b'{"items":[1]}', b'{"items":[null]}', b'{"items":[[]]}', b'{"items":[]} {}', b'{"items":[],}',
], ids=repr)
def test_body_without_the_shape_of_a_push_is_bad_body(broker, body):
    # 12
    answer = broker.post("/api/v1/push", body)
    assert answer.status == 400
    assert answer.json["code"] == "bad_body"
    assert isinstance(answer.json["error"], str) and answer.json["error"]


@pytest.mark.parametrize("bad", [
    {"queue": None, "payload": 1}, {"payload": 1}, {"queue": 5, "payload": 1}, {"queue": "QUEUE", "transactionId": 7, "payload": 1},
    {"queue": "QUEUE", "transactionId": {}, "payload": 1}, {"queue": "QUEUE", "partition": 3, "payload": 1},
    {"queue": "QUEUE", "partition": ["p"], "payload": 1},
], ids=str)
def test_one_item_of_the_wrong_shape_refuses_the_whole_push(broker, queue, bad):
    bad = {k: (queue if v == "QUEUE" else v) for k, v in bad.items()}
    answer = broker.push([{"queue": queue, "payload": 1}, bad, {"queue": queue, "payload": 2}])
    assert answer.status == 400
    assert answer.json["code"] == "bad_body"
    assert broker.queue_detail(queue) is None


def test_item_without_payload_refuses_the_whole_push(broker, queue):
    # 13
    answer = broker.push([{"queue": queue, "payload": 1}, {"queue": queue}])
    assert answer.status == 400
    assert answer.json["code"] == "bad_body"
    assert broker.queue_detail(queue) is None


def test_null_is_a_payload(broker, queue):
    # 13
    broker.push([{"queue": queue, "payload": None}]).expect(201)
    answer = broker.pop(queue).expect(200)
    assert answer.json["messages"][0]["data"] is None
    assert raw_data(answer.body) == [b"null"]


def test_transaction_id_of_65535_bytes_is_stored_and_65536_refused(broker, queue):
    # 14
    too_long = broker.push([{"queue": queue, "transactionId": "ok", "payload": 1},
                            {"queue": queue, "transactionId": "x" * 65536, "payload": 1}])
    assert too_long.status == 400
    assert too_long.json["code"] == "bad_body"
    assert broker.queue_detail(queue) is None
    # Bytes count, not characters: 32,767 times two bytes and one more.
    longest = "\u00e9" * 32767 + "a"
    assert broker.push([{"queue": queue, "transactionId": longest + "a", "payload": 1}]).status == 400
    assert broker.queue_detail(queue) is None
    result = broker.push([{"queue": queue, "transactionId": longest, "payload": 1}]).expect(201).json[0]
    assert (result["status"], result["offset"], result["transaction_id"]) == ("queued", 0, longest)
    again = broker.push([{"queue": queue, "transactionId": longest, "payload": 2}]).expect(201).json[0]
    assert (again["status"], again["offset"], again["message_id"]) == ("duplicate", 0, result["message_id"])
    message = broker.take(queue)["messages"][0]
    assert message["transactionId"] == longest
    assert broker.ack(message)["success"] is True


def test_names_together_over_411_bytes_are_refused(broker, queue):
    # 15
    name = queue + "n" * (200 - len(queue))
    fits = "\u00e9" * 105 + "a"
    assert len(fits.encode()) == 211
    for partition in (fits + "a", "p" * 212, "p" * 5000):
        answer = broker.push([{"queue": name, "partition": "ok", "payload": 1}, {"queue": name, "partition": partition, "payload": 1}])
        assert answer.status == 413
        assert answer.json["code"] == "name_too_long"
    assert broker.queue_detail(name) is None
    result = broker.push([{"queue": name, "partition": fits, "payload": 1}]).expect(201).json[0]
    assert (result["status"], result["offset"]) == ("queued", 0)
    message = broker.take(name, fits)["messages"][0]
    assert message["partition"] == fits
    assert broker.ack(message)["success"] is True
    too_long_group = broker.pop(name, group="g" * 212)
    assert too_long_group.status == 413
    assert too_long_group.json["code"] == "name_too_long"


def test_payload_comes_back_byte_for_byte(broker, queue):
    # 16
    payloads = [b'{ "b":1, "a":2 }', b'{"a":1,"a":2}', b'[ 1 ,\t2,\n3 ]', b'"\\u00e9 \xc3\xa9 \\/ /"', b"12345678901234567890.10", b"-0"]
    for payload in payloads:
        broker.push_raw(queue, payload).expect(201)
    answer = broker.pop(queue, "p", batch=100).expect(200)
    assert raw_data(answer.body) == payloads


def test_producer_subject_of_a_body_is_ignored(broker, queue):
    # 19
    broker.push([{"queue": queue, "payload": 1, "producerSub": "mallory", "traceId": "t", "unknown": {"x": []}}]).expect(201)
    message = broker.take(queue)["messages"][0]
    assert message["producerSub"] is None
    assert message["traceId"] is None


def test_empty_queue_name_is_refused(broker):
    answer = broker.push([{"queue": "", "payload": 1}])
    assert answer.status == 400
    assert answer.json["code"] in ("bad_body", "bad_request")


def test_empty_transaction_id_is_a_real_id(broker, queue):
    first = broker.push([{"queue": queue, "transactionId": "", "payload": 1}]).expect(201).json[0]
    second = broker.push([{"queue": queue, "transactionId": "", "payload": 2}]).expect(201).json[0]
    assert (first["status"], first["transaction_id"], first["offset"]) == ("queued", "", 0)
    assert (second["status"], second["message_id"], second["offset"]) == ("duplicate", first["message_id"], 0)


def test_ten_thousand_items_in_one_push(broker, queue):
    results = broker.push([{"queue": queue, "partition": "p%d" % (i % 7), "payload": i} for i in range(10000)]).expect(201).json
    assert len(results) == 10000
    assert [r["offset"] for r in results] == [i // 7 for i in range(10000)]
    assert {r["status"] for r in results} == {"queued"}
    seen = []
    for lane in range(7):
        seen += [m["data"] for m in broker.take(queue, "p%d" % lane, batch=2000)["messages"]]
    assert sorted(seen) == list(range(10000))
