"""Failed acks spend the retry budget; retries and expiries do not."""

import pytest

from queen import ids


def take(broker, queue, **params):
    return broker.take(queue, group="g", subscriptionMode="all", **params)


def fail(broker, queue, *names, status="failed"):
    """Pops, and nacks the named messages of the batch (all when none is named). Returns ids, attempts and results."""
    answer = take(broker, queue)
    chosen = [m for m in answer["messages"] if not names or m["transactionId"] in names]
    return ids(answer), [m["deliveryAttempt"] for m in answer["messages"]], broker.ack_batch([(m, status, "why") for m in chosen])


def test_budget_of_three_means_four_deliveries(broker, queue):
    # 55
    broker.push_ids(queue, ["a"], "p")
    for attempt in (1, 2, 3, 4):
        message = take(broker, queue)["messages"][0]
        assert (message["transactionId"], message["deliveryAttempt"]) == ("a", attempt)
        result = broker.ack(message, "failed", "boom %d" % attempt)
        assert result == {"index": 0, "transactionId": "a", "success": True, "error": None, "leaseReleased": True,
                          "dlq": attempt == 4, "noop": False}
        assert broker.dlq(queue)["total"] == (1 if attempt == 4 else 0)
    broker.nothing(queue, group="g")
    (row,) = broker.dlq(queue)["messages"]
    assert (row["transactionId"], row["errorMessage"], row["consumerGroup"], row["offset"]) == ("a", "boom 4", "g", 0)


def test_nack_of_the_whole_batch_is_delivered_limit_plus_one_times(broker, queue):
    # 57
    broker.configure(queue, retryLimit=2)
    broker.push_ids(queue, ["a", "b", "c"], "p")
    seen = [fail(broker, queue) for _ in range(3)]
    assert [names for names, _, _ in seen] == [["a", "b", "c"]] * 3
    assert [attempts for _, attempts, _ in seen] == [[1] * 3, [2] * 3, [3] * 3]
    assert [[r["dlq"] for r in results] for _, _, results in seen] == [[False] * 3, [False] * 3, [True] * 3]
    assert all(r["success"] and r["leaseReleased"] for _, _, results in seen for r in results)
    broker.nothing(queue, group="g")
    assert broker.dlq(queue)["total"] == 3
    assert broker.depth(queue, "g")["pending"] == 0


def test_completed_above_a_failed_head_is_not_kept(broker, queue):
    # 58
    broker.push_ids(queue, ["a", "b", "c"], "p")
    a, _, c = take(broker, queue)["messages"]
    results = broker.ack_batch([(a, "failed"), (c, "completed")])
    assert [(r["success"], r["leaseReleased"], r["dlq"]) for r in results] == [(True, True, False)] * 2
    again = take(broker, queue)
    assert ids(again) == ["a", "b", "c"]
    assert again["messages"][0]["deliveryAttempt"] == 2


def test_budget_is_charged_to_the_head_and_the_new_start_counts_from_one(broker, queue):
    # 59
    broker.push_ids(queue, ["a", "b", "c"], "p")
    a, b, _ = take(broker, queue)["messages"]
    results = broker.ack_batch([(a, "completed"), (b, "failed")])
    assert [(r["success"], r["leaseReleased"], r["dlq"]) for r in results] == [(True, True, False)] * 2
    attempts = []
    dead = []
    for _ in range(3):
        answer = take(broker, queue)
        assert ids(answer) == ["b", "c"]
        attempts.append(answer["messages"][0]["deliveryAttempt"])
        dead.append(broker.ack(answer["messages"][0], "failed")["dlq"])
    assert attempts == [1, 2, 3]
    assert dead == [False, False, True]
    assert ids(take(broker, queue)) == ["c"]


def test_partial_completion_does_not_reset_the_budget(broker, queue):
    broker.configure(queue, retryLimit=1)
    broker.push_ids(queue, ["a", "b", "c"], "p")
    assert [r["dlq"] for r in fail(broker, queue, "a")[2]] == [False]
    a, b, _ = take(broker, queue)["messages"]
    assert broker.ack(a)["leaseReleased"] is False
    result = broker.ack(b, "failed")
    assert (result["dlq"], result["leaseReleased"]) == (True, True)
    assert ids(take(broker, queue)) == ["c"]


def test_retry_is_never_charged(broker, queue):
    # 64
    broker.configure(queue, retryLimit=1)
    broker.push_ids(queue, ["a", "b"], "p")
    for attempt in range(1, 31):
        answer = take(broker, queue)
        assert ids(answer) == ["a", "b"]
        assert [m["deliveryAttempt"] for m in answer["messages"]] == [attempt] * 2
        result = broker.ack(answer["messages"][0], "retry", "later")
        assert (result["success"], result["leaseReleased"], result["dlq"]) == (True, True, False)
    assert broker.dlq(queue)["total"] == 0
    message = take(broker, queue)["messages"][0]
    assert broker.ack(message, "failed")["dlq"] is False
    assert broker.ack(take(broker, queue)["messages"][0], "failed")["dlq"] is True


def test_retry_keeps_what_was_completed_below_it(broker, queue):
    broker.push_ids(queue, ["a", "b", "c"], "p")
    a, b, _ = take(broker, queue)["messages"]
    results = broker.ack_batch([(a, "completed"), (b, "retry")])
    assert [(r["success"], r["leaseReleased"]) for r in results] == [(True, True)] * 2
    assert ids(take(broker, queue)) == ["b", "c"]


@pytest.mark.seconds(20)
def test_expiry_is_never_charged(broker, queue):
    # 65
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, ["a"], "p")
    for attempt in range(1, 21):
        message = take(broker, queue, leaseSeconds=1, wait=True, timeout=5000)["messages"][0]
        assert (message["transactionId"], message["deliveryAttempt"]) == ("a", attempt)
    assert broker.dlq(queue)["total"] == 0
    message = take(broker, queue, wait=True, timeout=5000)["messages"][0]
    assert message["deliveryAttempt"] == 21
    assert broker.ack(message)["leaseReleased"] is True


def test_completed_batch_gives_the_budget_back(broker, queue):
    # 67
    broker.configure(queue, retryLimit=1)
    broker.push_ids(queue, ["a"], "p")
    assert fail(broker, queue)[2][0]["dlq"] is False
    assert broker.ack(take(broker, queue)["messages"][0])["leaseReleased"] is True
    broker.push_ids(queue, ["b"], "p")
    assert [fail(broker, queue)[2][0]["dlq"] for _ in range(2)] == [False, True]
    assert [row["transactionId"] for row in broker.dlq(queue)["messages"]] == ["b"]


def test_dead_lettered_head_gives_the_budget_back(broker, queue):
    broker.configure(queue, retryLimit=1)
    broker.push_ids(queue, ["a", "b"], "p")
    outcome = [fail(broker, queue, name)[2][0]["dlq"] for name in ("a", "a", "b", "b")]
    assert outcome == [False, True, False, True]
    broker.nothing(queue, group="g")


def test_budget_is_one_counter_a_group(broker, queue):
    broker.configure(queue, retryLimit=1)
    broker.push_ids(queue, ["a"], "p")
    for group in ("g1", "g2"):
        message = broker.take(queue, group=group, subscriptionMode="all")["messages"][0]
        assert broker.ack(message, "failed")["dlq"] is False
    message = broker.take(queue, group="g1")["messages"][0]
    assert broker.ack(message, "failed")["dlq"] is True
    assert ids(broker.take(queue, group="g2")) == ["a"]
    assert [row["consumerGroup"] for row in broker.dlq(queue)["messages"]] == ["g1"]


def test_budget_survives_a_kill(own_broker, queue):
    broker = own_broker()
    broker.configure(queue, retryLimit=2)
    broker.push_ids(queue, ["a"], "p")
    outcome = []
    for how in ("kill", "stop", "kill"):
        outcome.append(fail(broker, queue)[2][0]["dlq"])
        broker.restart(how)
    assert outcome == [False, False, True]
    assert broker.dlq(queue)["total"] == 1
    broker.nothing(queue, group="g")


def test_failed_retry_has_no_hidden_delay(broker, queue):
    broker.configure(queue, retryDelay=60000, retryLimit=3)
    broker.push_ids(queue, ["a"], "p")
    assert fail(broker, queue)[2][0]["leaseReleased"] is True
    assert ids(take(broker, queue)) == ["a"]
