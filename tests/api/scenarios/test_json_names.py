"""Names with every odd character: what was sent comes back, on every route, raw or escaped."""

import json

import pytest

from queen import ids, unique

NAMES = [
    "Bed&Breakfast", "2026/07", "caff\u00e8", "\U0001f430 rabbit", 'quo"ted', "back\\slash", " spaces  in side ", "100%", "what?", "#1", "..x", ".",
    "a..b", "<tag>", "'single'", "\u2028line", "\u00a0", "caffe\u0300", "\u202eright-to-left", "null", "true", "0", "-1", "a,b;c", "a+b", "a=b&c=d",
    "\u007f", "\ufeffmark", "\uffff", "\U0010ffff", "__proto__", "%2F", "%", "~!@$^*()[]{}|`",
]


def escaped(text):
    """The JSON string of a text with every character as \\u escapes (surrogate pairs above the basic plane)."""
    units = text.encode("utf-16-be")
    return '"' + "".join("\\u%02x%02x" % (units[i], units[i + 1]) for i in range(0, len(units), 2)) + '"'


SPELLINGS = {
    "raw": lambda text: json.dumps(text, ensure_ascii=False),
    "ascii": json.dumps,
    "escaped": escaped,
    "php": lambda text: json.dumps(text).replace("/", "\\/"),
    "go": lambda text: json.dumps(text, ensure_ascii=False).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_name_comes_back_on_every_route(broker, name):
    prefix = unique("")
    queue, lane, group, txn = prefix + name, name, name, name
    results = []
    for spell in SPELLINGS.values():
        body = '{"items":[{"queue":%s,"partition":%s,"transactionId":%s,"payload":{"k":%s}}]}' % tuple(map(spell, (queue, lane, txn, name)))
        results.append(broker.post("/api/v1/push", body.encode("utf-8")).expect(201).json[0])
    assert [r["status"] for r in results] == ["queued"] + ["duplicate"] * 4
    assert {r["transaction_id"] for r in results} == {txn}
    assert {r["queueName"] for r in results} == {queue}
    assert len({(r["message_id"], r["offset"]) for r in results}) == 1
    answer = broker.take(queue, lane, group=group, subscriptionMode="all")
    (message,) = answer["messages"]
    assert (answer["queue"], answer["partition"], answer["consumerGroup"]) == (queue, lane, group)
    assert (message["transactionId"], message["partition"], message["consumerGroup"], message["data"]) == (txn, lane, group, {"k": name})
    assert broker.depth(queue, group)["processing"] == 1
    wildcard = broker.take(queue)
    assert (wildcard["partition"], wildcard["messages"][0]["transactionId"]) == (lane, txn)
    body = '{"transactionId":%s,"partitionId":%s,"leaseId":%s,"consumerGroup":%s,"status":"dlq","error":%s}' % (
        escaped(txn), json.dumps(message["partitionId"]), json.dumps(message["leaseId"]), escaped(group), escaped(name))
    (acked,) = broker.ack_body(body.encode()).expect(200).json
    assert (acked["success"], acked["dlq"], acked["transactionId"]) == (True, True, txn)
    (row,) = broker.dlq(queue, group)["messages"]
    assert (row["queue"], row["partition"], row["consumerGroup"], row["transactionId"]) == (queue, lane, group, txn)
    assert (row["errorMessage"], row["payload"]) == (name, {"k": name})
    listed = [r for r in broker.get("/api/v1/resources/queues").expect(200).json["queues"] if r["name"] == queue]
    assert len(listed) == 1
    assert [p["name"] for p in broker.queue_detail(queue)["partitions"]] == [lane]
    configured = broker.post("/api/v1/configure", ('{"queue":%s,"options":{"leaseTime":9}}' % escaped(queue)).encode()).expect(200).json
    assert (configured["queue"], configured["queueId"]) == (queue, listed[0]["id"])
    assert broker.delete_queue(queue) == {"deleted": True, "existed": True, "queue": queue}


def test_names_survive_a_restart(own_broker):
    broker = own_broker()
    for name in NAMES:
        broker.push_ids("q" + name, [name], name)
        broker.take("q" + name, name, group=name, subscriptionMode="all")
    broker.restart("kill")
    for name in NAMES:
        again = broker.push([{"queue": "q" + name, "partition": name, "transactionId": name, "payload": 1}]).expect(201).json[0]
        assert (again["status"], again["offset"]) == ("duplicate", 0)
        assert broker.depth("q" + name, name)["processing"] == 1
        assert ids(broker.take("q" + name, name)) == [name]


def test_longest_transaction_id_works_everywhere(broker, queue):
    txn = "\u00e8" * 30000 + "x" * 5535
    assert len(txn.encode()) == 65535
    broker.push_ids(queue, [txn], "p")
    message = broker.take(queue, "p")["messages"][0]
    assert message["transactionId"] == txn
    assert broker.ack(message, "dlq")["dlq"] is True
    assert broker.dlq(queue)["messages"][0]["transactionId"] == txn
    again = broker.push([{"queue": queue, "partition": "p", "transactionId": txn, "payload": 1}]).expect(201).json[0]
    assert (again["status"], again["offset"]) == ("duplicate", 0)


WRONG = [
    b'{"items":[{"queue":"q","payload":1}]', b'{"items":[{"queue":"q","payload":1}}', b'{"items":[{"queue":"q" "payload":1}]}',
    b'{"items":[{"queue":"q","payload":}]}', b'{"items":[{"queue":"q","payload":1,}]}', b'{"items":[{"queue":"q,"payload":1}]}',
    b'{"items":[{"queue":"q\\x","payload":1}]}', b'{"items":[{"queue":"q\\u12","payload":1}]}', b'{"items":[{"queue":"q\\u12g4","payload":1}]}',
    b'{"items":[{"queue":"q\n","payload":1}]}', b'{"items":[{"queue":"q","payload":"a\tb"}]}', b'{"items":[{"queue":"q","payload":01}]}',
    b'{"items":[{"queue":"q","payload":1.}]}', b'{"items":[{"queue":"q","payload":.5}]}', b'{"items":[{"queue":"q","payload":+1}]}',
    b'{"items":[{"queue":"q","payload":1e}]}', b'{"items":[{"queue":"q","payload":NaN}]}', b'{"items":[{"queue":"q","payload":Infinity}]}',
    b'{"items":[{"queue":"q","payload":tru}]}', b'{"items":[{"queue":"q","payload":True}]}', b'{"items":[{"queue":"q","payload":nul}]}',
    b"{'items':[]}", b'{items:[]}', b'{"items":[]}}', b'{"items":[]} 1', b'{"items":[]}\x00', b'\x00{"items":[]}', b'{"items":[] /* c */}',
    b'{"items":[{"queue":"q","payload":1}],}', b'[{"queue":"q","payload":1}]', b'{"items":[{"queue":"q","payload":{1:2}}]}',
    b'{"items":[{"queue":"q","payload":{"a"}}]}', b'{"items":[{"queue":"q","payload":{"a":1 "b":2}}]}', b'{"items":[{"queue":"q","payload":[1 2]}]}',
    b'{"items":[{"queue":"q","payload":[1,]}]}', b'{"items":[{"queue":"q","payload":[,1]}]}', b'{"items":[{"queue":"q","payload":{,}}]}',
    b'{"items":[{"queue":"q","payload":"\\uD8"}]}', b'{"items":[{"queue":"q","payload":"\\a"}]}', b'{"items":[{"queue":"q","payload":"\x00"}]}',
    b'{"items":{"queue":"q","payload":1}}', b'{"items":[[{"queue":"q","payload":1}]]}', b'{"items":["q"]}', b'{"items":[{"queue":["q"],"payload":1}]}',
    b'{"items":[{"queue":"q","partition":{},"payload":1}]}', b'{"items":[{"queue":"q","transactionId":1,"payload":1}]}',
    b'{"items":[{"queue":"q","transactionId":true,"payload":1}]}', b'{"items":[{"queue":null,"payload":1}]}', b'{"items":true}', b'{"Items":[]}',
    b'{"items":[{"Queue":"q","payload":1}]}', b'{"items":[{"queue":"q","Payload":1}]}', b'{"items":[{"queue":"q","payload":1}', b'"',
]


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
def test_wrong_body_is_answered_with_json(broker, queue, body):
    body = body.replace(b'"queue":"q', b'"queue":"' + queue.encode())
    answer = broker.post("/api/v1/push", body)
    assert answer.status == 400
    assert answer.json["code"] == "bad_body"
    assert isinstance(answer.json["error"], str)
    assert broker.queue_detail(queue) is None
