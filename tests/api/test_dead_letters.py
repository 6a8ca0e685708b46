"""Dead letters: which messages are filed, with what, and how they are read."""

import pytest

from queen import ISO_US, UUID7, ids, raw_data


def batch(broker, queue, names="abc", **options):
    """Configures, pushes one message a letter to lane p, pops them for group g; the messages in order."""
    broker.configure(queue, **options)
    broker.push_ids(queue, list(names), "p")
    answer = broker.take(queue, group="g", subscriptionMode="all")
    assert ids(answer) == list(names)
    return answer["messages"]


def dead(broker, queue):
    return sorted(row["transactionId"] for row in broker.dlq(queue)["messages"])


def left(broker, queue):
    answer = broker.pop(queue, group="g")
    return ids(answer.json) if answer.status == 200 else []


def test_all_failed_without_budget_files_all(broker, queue):
    # 56
    a, b, c = batch(broker, queue, retryLimit=0)
    results = broker.ack_batch([(a, "failed", "ea"), (b, "failed", "eb"), (c, "failed", "ec")])
    assert [(r["success"], r["dlq"], r["leaseReleased"]) for r in results] == [(True, True, True)] * 3
    assert {row["transactionId"]: row["errorMessage"] for row in broker.dlq(queue)["messages"]} == {"a": "ea", "b": "eb", "c": "ec"}
    broker.push_ids(queue, ["d"], "p")
    answer = broker.take(queue, group="g")
    assert (ids(answer), answer["messages"][0]["offset"]) == (["d"], 3)


def test_settling_stops_at_what_must_come_back(broker, queue):
    # 60
    a, b, c = batch(broker, queue, retryLimit=0)
    results = broker.ack_batch([(a, "failed"), (b, "retry"), (c, "failed")])
    assert [(r["success"], r["dlq"], r["leaseReleased"]) for r in results] == [(True, True, True), (True, False, True), (True, False, True)]
    assert dead(broker, queue) == ["a"]
    assert left(broker, queue) == ["b", "c"]


def test_settling_stops_at_a_message_nobody_named(broker, queue):
    # 60
    a, _, c = batch(broker, queue, retryLimit=0)
    results = broker.ack_batch([(a, "failed"), (c, "failed")])
    assert [(r["success"], r["dlq"], r["leaseReleased"]) for r in results] == [(True, True, True), (True, False, True)]
    assert dead(broker, queue) == ["a"]
    assert left(broker, queue) == ["b", "c"]


def test_completed_above_a_dead_letter_is_done(broker, queue):
    # 61
    a, b, c = batch(broker, queue, retryLimit=0)
    results = broker.ack_batch([(a, "failed"), (b, "completed"), (c, "completed")])
    assert [(r["success"], r["dlq"], r["leaseReleased"]) for r in results] == [(True, True, True), (True, False, True), (True, False, True)]
    assert dead(broker, queue) == ["a"]
    assert left(broker, queue) == []
    assert broker.depth(queue, "g")["pending"] == 0


def test_silent_message_below_a_completed_one_is_done(broker, queue):
    a, _, c = batch(broker, queue, retryLimit=0)
    broker.ack_batch([(a, "dlq"), (c, "completed")])
    assert dead(broker, queue) == ["a"]
    assert left(broker, queue) == []


def test_dlq_status_files_at_once_and_frees_the_lane(broker, queue):
    # 62
    a, _, _ = batch(broker, queue)
    result = broker.ack(a, "dlq", "poison")
    assert result == {"index": 0, "transactionId": "a", "success": True, "error": None, "leaseReleased": True, "dlq": True, "noop": False}
    assert dead(broker, queue) == ["a"]
    answer = broker.take(queue, group="g")
    assert (ids(answer), answer["messages"][0]["deliveryAttempt"]) == (["b", "c"], 1)


def test_dlq_then_failed_with_budget_stops_there(broker, queue):
    # 63
    a, b, c = batch(broker, queue, retryLimit=3)
    results = broker.ack_batch([(a, "dlq"), (b, "failed"), (c, "dlq")])
    assert [(r["success"], r["dlq"], r["leaseReleased"]) for r in results] == [(True, True, True), (True, False, True), (True, False, True)]
    assert dead(broker, queue) == ["a"]
    assert left(broker, queue) == ["b", "c"]


@pytest.mark.parametrize("statuses,filed,redelivered", [
    (("completed", "dlq", "completed"), "b", ""),
    (("completed", "completed", "dlq"), "c", ""),
    (("dlq", "dlq", "dlq"), "abc", ""),
    (("dlq", "dlq", None), "ab", "c"),
    (("dlq", None, "dlq"), "a", "bc"),
    ((None, "dlq", None), "b", "c"),
    (("completed", "failed", "dlq"), "", "bc"),
    (("retry", "dlq", "completed"), "", "abc"),
], ids=str)
def test_settling_table(broker, queue, statuses, filed, redelivered):
    messages = batch(broker, queue, retryLimit=3)
    results = broker.ack_batch([(m, s) for m, s in zip(messages, statuses) if s is not None])
    assert all(r["success"] and r["leaseReleased"] for r in results)
    assert dead(broker, queue) == list(filed)
    assert left(broker, queue) == list(redelivered)


def test_without_dead_letters_the_exhausted_message_is_dropped(broker, queue):
    # 66
    a, _, _ = batch(broker, queue, retryLimit=0, deadLetterQueue=False, dlqAfterMaxRetries=False)
    result = broker.ack(a, "failed", "boom")
    assert (result["success"], result["dlq"], result["leaseReleased"]) == (True, False, True)
    assert broker.dlq(queue) == {"messages": [], "total": 0, "pagination": broker.dlq(queue)["pagination"]}
    assert left(broker, queue) == ["b", "c"]


@pytest.mark.parametrize("flags", [{"deadLetterQueue": False}, {"dlqAfterMaxRetries": False}], ids=str)
def test_one_of_the_two_flags_is_enough(broker, queue, flags):
    a, _, _ = batch(broker, queue, retryLimit=0, **flags)
    assert broker.ack(a, "failed")["dlq"] is True
    assert dead(broker, queue) == ["a"]


def test_failed_without_text_says_retries_exhausted(broker, queue):
    # 68
    a, _, _ = batch(broker, queue, retryLimit=0)
    broker.ack(a, "failed")
    assert broker.dlq(queue)["messages"][0]["errorMessage"] == "Retries exhausted"


def test_text_of_another_signal_stands_in(broker, queue):
    a, b, _ = batch(broker, queue, retryLimit=0)
    broker.ack_batch([(a, "failed"), (b, "retry", "from b")])
    (row,) = broker.dlq(queue)["messages"]
    assert (row["transactionId"], row["errorMessage"]) == ("a", "from b")


def test_row_tells_everything_about_the_message(broker, queue):
    broker.configure(queue, retryLimit=1)
    pushed = broker.push_raw(queue, b'{ "n":9007199254740993 }', "lane", "t-1").expect(201).json[0]
    for _ in range(2):
        message = broker.take(queue, group="g", subscriptionMode="all")["messages"][0]
        broker.ack(message, "failed", 'text with "quotes" \\ and \u00e9')
    answer = broker.get("/api/v1/dlq?queue=" + queue).expect(200)
    assert set(answer.json) == {"messages", "total", "pagination"}
    assert answer.json["total"] == 1
    (row,) = answer.json["messages"]
    assert {"id", "queue", "partition", "partitionId", "consumerGroup", "offset", "messageId", "transactionId", "data", "payload",
            "errorMessage", "retryCount", "createdAt", "failedAt"} <= set(row)
    assert (row["queue"], row["partition"], row["partitionId"]) == (queue, "lane", message["partitionId"])
    assert (row["consumerGroup"], row["offset"]) == ("g", 0)
    assert (row["messageId"], row["transactionId"]) == (pushed["message_id"], "t-1")
    assert row["data"] == row["payload"] == {"n": 9007199254740993}
    assert raw_data(answer.body) == [b'{ "n":9007199254740993 }']
    assert row["errorMessage"] == 'text with "quotes" \\ and \u00e9'
    assert row["retryCount"] == 1
    assert UUID7.match(row["id"])
    assert ISO_US.match(row["failedAt"]) and row["createdAt"] == row["failedAt"]


def test_list_is_newest_first_with_limit_offset_and_filters(broker, queue):
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, ["m%d" % i for i in range(6)], "p")
    for i in range(6):
        group = "even" if i % 2 == 0 else "odd"
        message = [m for m in broker.take(queue, "p", group=group, subscriptionMode="all", leaseSeconds=1)["messages"]][0]
        broker.ack(message, "dlq", "e%d" % i)
    rows = broker.dlq(queue)
    assert rows["total"] == 6
    assert [r["errorMessage"] for r in rows["messages"]] == ["e5", "e4", "e3", "e2", "e1", "e0"]
    page = broker.dlq(queue, limit=2, offset=1)
    assert (page["total"], [r["errorMessage"] for r in page["messages"]]) == (6, ["e4", "e3"])
    odd = broker.dlq(queue, group="odd")
    assert (odd["total"], [r["errorMessage"] for r in odd["messages"]]) == (3, ["e5", "e3", "e1"])
    assert len(broker.dlq(queue, limit=0)["messages"]) == 1
    assert broker.dlq(queue, offset=99)["messages"] == []
    assert broker.dlq(queue + "-none")["total"] == 0


def test_dead_letters_survive_a_kill_and_go_with_the_queue(own_broker, queue):
    broker = own_broker()
    a, _, _ = batch(broker, queue)
    broker.ack(a, "dlq", "poison")
    before = broker.dlq(queue)
    broker.restart("kill")
    assert broker.dlq(queue) == before
    assert broker.queue_detail(queue)["totals"]["deadLetter"] == 1
    broker.delete_queue(queue)
    assert broker.dlq(queue)["total"] == 0


def test_dead_letter_of_one_group_is_nothing_to_another(broker, queue):
    a, _, _ = batch(broker, queue)
    broker.ack(a, "dlq")
    assert ids(broker.take(queue, group="h", subscriptionMode="all")) == ["a", "b", "c"]


def test_pages_far_back_and_filters_that_leave_out_many(broker, queue):
    """One read looks at some thousand letters; a page behind them takes several, and shows what it would have shown at once."""
    count, few = 4500, 3
    broker.configure(queue, retryLimit=0)
    broker.push_ids(queue, [str(i) for i in range(count)], "p")
    for group, wanted in (("old", few), ("g", count)):
        done = 0
        while done < wanted:
            answer = broker.take(queue, group=group, batch=min(1000, wanted - done), subscriptionMode="all")
            broker.ack_batch([(m, "failed", group) for m in answer["messages"]], group=group)
            done += len(answer["messages"])
    newest_first = [str(i) for i in reversed(range(count))] + [str(i) for i in reversed(range(few))]
    for offset in (0, 4090, 4096, count - 1, count, count + few - 1, count + few, 2**40):
        page = broker.dlq(queue, limit=10, offset=offset)
        assert [row["transactionId"] for row in page["messages"]] == newest_first[offset:offset + 10], offset
        assert page["total"] == page["pagination"]["total"] == count + few
        assert page["pagination"]["hasMore"] == (offset + 10 < count + few)
    page = broker.dlq(queue, "old", limit=10)  # behind all of the other group's
    assert [row["transactionId"] for row in page["messages"]] == ["2", "1", "0"]
    assert (page["total"], page["pagination"]["hasMore"]) == (few, False)
    page = broker.dlq(queue, "g", limit=1000, offset=4000)  # begins in one read and ends in the next
    assert [row["transactionId"] for row in page["messages"]] == newest_first[4000:count]
