"""A message that always fails: it is filed after its budget, and the text of the failure breaks nothing."""

import json

from queen import ids

HARD_TEXT = 'quotes " and \\ and \u0000 and \n and caf\u00e9 \U0001f430 and </script> ' + "x" * 10240


def take(broker, queue):
    return broker.take(queue, group="g", subscriptionMode="all")


def check_reason(text):
    """The reason as sent, or a shortened one that begins like it (a NUL may have been taken out)."""
    wanted = HARD_TEXT.replace("\u0000", "")
    got = text.replace("\u0000", "").replace("\ufffd", "")
    assert got == wanted or (len(got) >= 100 and wanted.startswith(got.rstrip(".\u2026"))), text[:200]


def test_poison_is_filed_after_its_budget_even_across_a_crash(own_broker, queue):
    broker = own_broker()
    broker.configure(queue, retryLimit=3, deadLetterQueue=True)
    broker.push_ids(queue, ["P", "B", "C"], "lane")
    pushed = broker.drain(queue)[0]
    deliveries = 0
    while True:
        answer = take(broker, queue)
        if answer["messages"][0]["transactionId"] != "P":
            break
        deliveries += 1
        assert ids(answer) == ["P", "B", "C"]
        result = broker.ack(answer["messages"][0], "failed", HARD_TEXT)
        assert (result["success"], result["error"], result["dlq"]) == (True, None, deliveries == 4)
        if deliveries == 2:
            broker.restart("kill")
    assert deliveries == 4
    assert ids(answer) == ["B", "C"]
    assert all(r["success"] for r in broker.ack_batch(answer["messages"]))
    raw = broker.get("/api/v1/dlq?queue=" + queue).expect(200)
    (row,) = json.loads(raw.body.decode("utf-8"))["messages"]
    check_reason(row["errorMessage"])
    assert (row["transactionId"], row["messageId"], row["partition"], row["consumerGroup"]) == ("P", pushed["id"], "lane", "g")
    assert row["payload"] == {"id": "P"}
    assert row["offset"] == 0


def test_error_text_that_is_not_utf8_is_refused_and_charges_nothing(broker, queue):
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, ["P"], "lane")
    message = take(broker, queue)["messages"][0]
    body = b'{"transactionId":"P","partitionId":"%s","leaseId":"%s","consumerGroup":"g","status":"failed","error":"bad \xff\xfe"}' % (
        message["partitionId"].encode(), message["leaseId"].encode())
    assert broker.ack_body(body).status == 400
    assert broker.dlq(queue)["total"] == 0
    assert broker.depth(queue, "g")["processing"] == 1
    assert broker.ack(message, "failed", HARD_TEXT)["dlq"] is True


def test_poison_can_be_filed_at_once(broker, queue):
    broker.configure(queue, retryLimit=3)
    broker.push_ids(queue, ["P", "B"], "lane")
    result = broker.ack(take(broker, queue)["messages"][0], "dlq", HARD_TEXT)
    assert (result["dlq"], result["leaseReleased"]) == (True, True)
    check_reason(broker.dlq(queue)["messages"][0]["errorMessage"])
    assert ids(take(broker, queue)) == ["B"]


def test_a_hundred_retries_charge_nothing(broker, queue):
    broker.configure(queue, retryLimit=3)
    broker.push_ids(queue, ["P", "B"], "lane")
    for attempt in range(1, 101):
        message = take(broker, queue)["messages"][0]
        assert (message["transactionId"], message["deliveryAttempt"]) == ("P", attempt)
        assert broker.ack(message, "retry", HARD_TEXT)["leaseReleased"] is True
    assert broker.dlq(queue)["total"] == 0
    assert broker.queue_detail(queue)["totals"]["deadLetter"] == 0
