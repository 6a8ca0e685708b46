"""Payloads are bytes: numbers keep their digits, keys their order, strings their escapes."""

import pytest

from queen import raw_data

PAYLOADS = [
    b"9007199254740993", b"-9007199254740993", b"123456789012345678901234567890", b"1e400", b"-1E-400", b"0.1000", b"-0", b"-0.0", b"1E5", b"1e+05",
    b"0.1e-7", b"3.141592653589793238462643383279", b'{"z":1,"a":2,"m":{"y":0,"b":0}}', b'{"k":1,"k":2,"k":3}', b'{"":""}',
    b'"\\u00e9 \xc3\xa9"', b'"\\/ / \\u002f"', b'"\\ud83d\\udc30 \xf0\x9f\x90\xb0"', b'"\\u0000"', b'"\\b\\f\\n\\r\\t\\"\\\\"', b'""', b'"bare"', b"7",
    b"null", b"true", b"false", b"[]", b"{}", b"[null,true,false,[],{}]", b"[" * 100 + b"1" + b"]" * 100, b'{"a":' * 100 + b"0" + b"}" * 100,
    b'[1,' + b" " * 1048576 + b"2]", b"[ \n\t\r1 , 2 ]", b'{"data":{"data":[{"data":1}]},"messages":[{"data":"x"}]}', b'"\xef\xbb\xbf"', b'"\x7f"',
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_payload_keeps_its_bytes(broker, queue, payload):
    broker.configure(queue, retryLimit=0)
    broker.push_raw(queue, payload).expect(201)
    answer = broker.pop(queue, group="g", subscriptionMode="all").expect(200)
    assert raw_data(answer.body) == [payload]
    assert broker.ack(answer.json["messages"][0], "failed")["dlq"] is True
    dead = broker.get("/api/v1/dlq?queue=" + queue).expect(200)
    assert raw_data(dead.body) == [payload]
    assert b'"payload":' + payload in dead.body


def test_payloads_keep_their_bytes_across_a_kill(own_broker, queue):
    broker = own_broker()
    for payload in PAYLOADS:
        broker.push_raw(queue, payload).expect(201)
    broker.restart("kill")
    assert raw_data(broker.pop(queue, "p", batch=1000).expect(200).body) == PAYLOADS
    broker.restart("stop")
    assert raw_data(broker.pop(queue, "p", group="g", subscriptionMode="all", batch=1000).expect(200).body) == PAYLOADS
