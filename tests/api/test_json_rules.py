"""What is JSON here: strict documents, refused doubles, names and payloads."""

import json

import pytest

from queen import ids, raw_data


def push(broker, body):
    return broker.post("/api/v1/push", body)


@pytest.mark.parametrize("body", [
    b'{"items":[],"items":[]}',
    b'{"items":[{"queue":"QUEUE","queue":"QUEUE","payload":1}]}',
    b'{"items":[{"queue":"QUEUE","payload":1,"payload":1}]}',
    b'{"items":[{"queue":"QUEUE","payload":1,"transactionId":"a","transactionId":"b"}]}',
    b'{"items":[{"queue":"QUEUE","partition":"a","payload":1,"partition":"b"}]}',
    b'{"items":[{"queue":"QUEUE","payload":1,"p\\u0061yload":1}]}',
], ids=repr)
def test_doubled_known_fields_of_a_push_are_refused(broker, queue, body):
    assert push(broker, body.replace(b"QUEUE", queue.encode())).status == 400
    assert broker.queue_detail(queue) is None


def test_doubled_known_fields_elsewhere_are_refused(broker, queue):
    message_of = broker.push_ids(queue, ["a"], "p") and broker.take(queue)["messages"][0]
    pid, lease = message_of["partitionId"].encode(), message_of["leaseId"].encode()
    item = b'"transactionId":"a","partitionId":"%s","leaseId":"%s"' % (pid, lease)
    for body in (b'{%s,"status":"failed","status":"completed"}' % item, b'{%s,"transactionId":"a"}' % item,
                 b'{"acknowledgments":[{%s}],"acknowledgments":[{%s}]}' % (item, item),
                 b'{"acknowledgments":[{%s,"leaseId":"x"}]}' % item):
        assert broker.ack_body(body).status == 400
    assert broker.post("/api/v1/configure", b'{"queue":"%s","queue":"other"}' % queue.encode()).status == 400
    assert broker.post("/api/v1/configure", b'{"queue":"%s","options":{"leaseTime":1,"leaseTime":2}}' % queue.encode()).status == 400
    assert broker.queue_detail(queue)["options"]["leaseTime"] == 60
    assert broker.depth(queue)["processing"] == 1


def test_doubled_unknown_fields_and_payload_keys_are_left_alone(broker, queue):
    payload = b'{"a":1,"a":2,"b":{"c":1,"c":1}}'
    answer = push(broker, b'{"x":1,"x":2,"items":[{"queue":"%s","payload":%s,"y":1,"y":1}]}' % (queue.encode(), payload))
    assert answer.status == 201
    assert raw_data(broker.pop(queue).body) == [payload]


@pytest.mark.parametrize("field", ["queue", "partition"])
@pytest.mark.parametrize("character", ["\\u0000", "\\n", "\\t", "\\u001f", "\\u0001"])
def test_control_characters_in_names_are_refused_with_the_field_named(broker, queue, field, character):
    names = {"queue": queue, "partition": "p"}
    text = json.dumps(dict(names, payload=1, **{field: names[field] + "CONTROL"})).replace("CONTROL", character)
    answer = push(broker, b'{"items":[%s]}' % text.encode())
    assert answer.status == 400
    assert field in answer.json["error"]
    assert broker.queue_detail(queue) is None


def test_control_characters_in_a_group_are_refused_with_the_field_named(broker, queue):
    broker.push_ids(queue, ["a"])
    for escape in ("%00", "%0A", "%1F"):
        answer = broker.get("/api/v1/pop/queue/%s?consumerGroup=g%s" % (queue, escape))
        assert answer.status == 400
        assert b"consumerGroup" in answer.body
    answer = broker.ack_body(b'{"transactionId":"a","partitionId":"1","consumerGroup":"g\\u0000"}')
    assert answer.status == 400
    assert "consumerGroup" in answer.json["error"]
    answer = broker.post("/api/v1/configure", b'{"queue":"%s\\u0007"}' % queue.encode())
    assert answer.status == 400
    assert "queue" in answer.json["error"]


def test_delete_character_and_the_first_printable_are_names(broker, queue):
    for name in (queue + "\x7f", queue + " ", queue + "\u0080"):
        broker.push_ids(name, ["a"])
        assert ids(broker.take(name)) == ["a"]


@pytest.mark.parametrize("escape", ["\\ud800", "\\udc00", "\\ud800x", "\\udc00\\ud800", "\\ud83dx\\udc30"])
def test_lone_surrogates_are_kept_in_payloads_and_refused_in_names(broker, queue, escape):
    payload = b'{"k":"%s","%s":1}' % (escape.encode(), escape.encode())
    assert broker.push_raw(queue, payload).status == 201
    assert raw_data(broker.pop(queue, "p").body) == [payload]
    for field in ("queue", "partition", "transactionId"):
        item = {"queue": queue + "-n", "partition": "p", "transactionId": "t", "payload": 1}
        text = json.dumps(item).replace(json.dumps(item[field]), '"%s"' % escape)
        assert push(broker, b'{"items":[%s]}' % text.encode()).status == 400, field
    assert broker.queue_detail(queue + "-n") is None


INVALID_UTF8 = [b"\xff", b"\x80", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf8\x88\x80\x80\x80"]


@pytest.mark.parametrize("bad", INVALID_UTF8, ids=lambda b: b.hex())
def test_invalid_utf8_is_refused_everywhere(broker, queue, bad):
    name = queue.encode()
    for body in (b'{"items":[{"queue":"%s","payload":"%s"}]}' % (name, bad), b'{"items":[{"queue":"%s%s","payload":1}]}' % (name, bad),
                 b'{"items":[{"queue":"%s","partition":"%s","payload":1}]}' % (name, bad),
                 b'{"items":[{"queue":"%s","transactionId":"%s","payload":1}]}' % (name, bad),
                 b'{"items":[{"queue":"%s","payload":{"%s":1}}]}' % (name, bad), b'{"items":[],"other":"%s"}' % bad, b'{"items":[]}' + bad):
        answer = push(broker, body)
        assert answer.status == 400
        assert answer.json["error"]
    assert broker.queue_detail(queue) is None
    escaped = "".join("%%%02X" % b for b in bad)
    assert broker.get("/api/v1/pop/queue/%s%s" % (queue, escaped)).status == 400
    assert broker.get("/api/v1/pop/queue/%s?consumerGroup=%s" % (queue, escaped)).status == 400


def test_outer_whitespace_of_a_payload_is_not_kept_and_inner_is(broker, queue):
    for payload in (b' \t\r\n{ "a" : [ 1 ,\n2 ] }\n ', b"  7  ", b' " x " '):
        broker.push_raw(queue, payload).expect(201)
    assert raw_data(broker.pop(queue, "p").body) == [b'{ "a" : [ 1 ,\n2 ] }', b"7", b'" x "']


def test_depth_limit_is_512(broker, queue):
    def nested(depth):
        return b"[" * depth + b"]" * depth

    assert broker.push_raw(queue, nested(505)).status == 201
    assert raw_data(broker.pop(queue, "p").body) == [nested(505)]
    for depth in (513, 600, 5000, 100000):
        answer = broker.push_raw(queue, nested(depth))
        assert answer.status == 400
        assert answer.elapsed < 2
    assert broker.post("/api/v1/push", b'{"items":[],"other":' + nested(600) + b"}").status == 400
    assert broker.depth(queue)["pending"] == 1


def test_escaped_field_names_are_the_field(broker, queue):
    body = b'{"it\\u0065ms":[{"qu\\u0065ue":"%s","p\\u0061yload":5,"transaction\\u0049d":"a"}]}' % queue.encode()
    assert push(broker, body).expect(201).json[0]["transaction_id"] == "a"
    assert broker.take(queue)["messages"][0]["data"] == 5


def test_byte_order_mark_is_refused(broker):
    assert push(broker, b'\xef\xbb\xbf{"items":[]}').status == 400
