"""Retention: which messages go, when, and what they leave behind."""

import os
import time

from queen import ids, wait_until

ROUND = {"RETENTION_INTERVAL": "200"}


def retained(broker, queue, partition="p"):
    """(first retained offset, next offset) of a lane."""
    answer = broker.post("/api/v1/fetch", {"entries": [{"queue": queue, "partition": partition, "offset": 0}]})
    entry = answer.json["entries"][0]
    return entry["logStartOffset"], entry["highWatermark"]


def test_messages_older_than_retention_seconds_go_read_or_not(own_broker, queue):
    broker = own_broker(env=ROUND)
    broker.configure(queue, retentionEnabled=True, retentionSeconds=2)
    broker.push_ids(queue, ["a", "b"], "p")
    time.sleep(1.2)
    broker.push_ids(queue, ["c"], "p")
    assert retained(broker, queue) == (0, 3)
    wait_until(lambda: retained(broker, queue) == (2, 3), 5, "a and b are gone, c is not")
    assert ids(broker.take(queue, group="g", subscriptionMode="all")) == ["c"]
    wait_until(lambda: retained(broker, queue) == (3, 3), 5, "c is gone, although it is leased")
    totals = broker.queue_detail(queue)["totals"]
    assert (totals["total"], totals["pending"]) == (0, 0)
    broker.push_ids(queue, ["d"], "p")
    assert broker.pop(queue, group="g2", subscriptionMode="all").json["messages"][0]["offset"] == 3


def test_without_the_switch_retention_seconds_do_nothing(own_broker, queue):
    broker = own_broker(env=ROUND)
    broker.configure(queue, retentionEnabled=False, retentionSeconds=1, completedRetentionSeconds=1)
    broker.push_ids(queue, ["a"], "p")
    time.sleep(2.5)
    assert retained(broker, queue) == (0, 1)


def test_completed_messages_go_when_the_slowest_group_has_passed_them(own_broker, queue):
    broker = own_broker(env=ROUND)
    broker.configure(queue, retentionEnabled=True, completedRetentionSeconds=1)
    for name in "abc":
        broker.push_ids(queue, [name], "p")
    fast = broker.take(queue, group="fast", subscriptionMode="all", batch=3)
    slow = broker.take(queue, group="slow", subscriptionMode="all", batch=1)
    broker.ack_batch(fast["messages"], group="fast")
    time.sleep(2.5)
    assert retained(broker, queue) == (0, 3)
    broker.ack_batch(slow["messages"], group="slow")
    wait_until(lambda: retained(broker, queue) == (1, 3), 5, "a is gone")
    time.sleep(1)
    assert retained(broker, queue) == (1, 3)
    assert ids(broker.take(queue, group="slow")) == ["b", "c"]


def test_a_lane_that_no_group_has_read_keeps_everything(own_broker, queue):
    broker = own_broker(env=ROUND)
    broker.configure(queue, retentionEnabled=True, completedRetentionSeconds=1)
    broker.push_ids(queue, ["a"], "p")
    time.sleep(2.5)
    assert retained(broker, queue) == (0, 1)


def test_max_wait_time_evicts_whatever_retention_enabled_says(own_broker, queue):
    broker = own_broker(env=ROUND)
    broker.configure(queue, maxWaitTimeSeconds=1)
    broker.push_ids(queue, ["a"], "p")
    message = broker.take(queue, group="g", subscriptionMode="all")["messages"][0]
    wait_until(lambda: retained(broker, queue) == (1, 1), 5, "evicted under its lease")
    assert broker.dlq(queue)["total"] == 0
    broker.push_ids(queue, ["b"], "p")
    # The lane is the caller's until the lease ends; the ack of what is gone does no harm.
    broker.ack(message, group="g")
    assert broker.running


def test_what_went_is_gone_after_a_kill_and_offsets_go_on(own_broker, queue):
    broker = own_broker(env=ROUND)
    broker.configure(queue, retentionEnabled=True, retentionSeconds=1)
    first = broker.push_ids(queue, ["a"], "p")[0]
    wait_until(lambda: retained(broker, queue) == (1, 1), 5, "gone")
    broker.restart("kill")
    assert retained(broker, queue) == (1, 1)
    again = broker.push([{"queue": queue, "partition": "p", "transactionId": "a", "payload": 1}]).json[0]
    # The window of dedup is its own: the original's id and offset are known without its payload.
    assert (again["status"], again["offset"], again["message_id"]) == ("duplicate", 0, first["message_id"])
    assert broker.push_ids(queue, ["b"], "p")[0]["offset"] == 1


def test_what_is_due_at_a_start_goes_without_any_call(own_broker, queue):
    broker = own_broker(env=ROUND)
    broker.configure(queue, retentionEnabled=True, retentionSeconds=2)
    broker.push_ids(queue, ["a"], "p")
    time.sleep(1.3)  # it is stored by then
    broker.stop()
    time.sleep(1.5)
    broker.start()
    wait_until(lambda: retained(broker, queue) == (1, 1), 5, "gone")


def test_dead_letters_keep_their_payload(own_broker, queue):
    broker = own_broker(env=dict(ROUND, QUEEN_RAFT_SEGMENT_BYTES="1048576"))
    broker.configure(queue, retentionEnabled=True, retentionSeconds=1, retryLimit=0)
    broker.push([{"queue": queue, "partition": "p", "transactionId": "a", "payload": {"kept": "x" * 100}}])
    message = broker.take(queue, group="g", subscriptionMode="all")["messages"][0]
    broker.ack_batch([(message, "failed", "no")], group="g")
    wait_until(lambda: retained(broker, queue) == (1, 1), 5, "gone from its lane")
    for n in range(30):  # the log moves on by many segments
        broker.push([{"queue": "other", "payload": "y" * 400000}])
    broker.delete("/api/v1/resources/queues/other")
    time.sleep(3)
    broker.restart("stop")
    assert broker.dlq(queue)["messages"][0]["data"] == {"kept": "x" * 100}


def log_bytes(broker):
    """Files may go while one looks."""
    with os.scandir(os.path.join(broker.data_dir, "log")) as files:
        total = 0
        for file in files:
            try:
                total += file.stat().st_size
            except FileNotFoundError:
                pass
        return total


def test_the_disk_is_given_back(own_broker, queue):
    broker = own_broker(env=dict(ROUND, QUEEN_RAFT_SEGMENT_BYTES="1048576", QUEEN_RAFT_DURABLE_EVERY_MS="200"))
    broker.configure(queue, retentionEnabled=True, retentionSeconds=2)
    for n in range(40):
        broker.push([{"queue": queue, "partition": "p%d" % (n % 5), "payload": "z" * 500000}])
    assert log_bytes(broker) > 20000000
    wait_until(lambda: log_bytes(broker) < 8000000, 15, "segments nobody wants are removed", every=0.2)
