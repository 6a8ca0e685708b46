"""Lanes at rest are read back by other threads before a call looks at them: the group's own thread waits for no file."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import timers
from queen import ids, query, quote, wait_until

LANES = 1500
EPOCH = "1970-01-01T00:00:00Z"
KEPT = {"retentionSeconds": 3600}


def read_by_the_group(broker, during="call"):
    text = broker.get("/metrics/prometheus").body.decode()
    return int(re.search(r'^queen_rows_read_group_thread_total\{during="%s"\} (\d+)' % during, text, re.M).group(1))


def name(n):
    return "lane-with-a-name-%05d" % n


@pytest.fixture
def rested(own_broker, queue):
    """A broker that has just started: each lane has two messages, which group `g` has consumed."""
    broker = own_broker(env={"QUEEN_SCRUB_BYTES_S": "0"})
    broker.configure(queue, **KEPT)
    for turn in range(2):
        for first in range(0, LANES, 500):
            broker.push([{"queue": queue, "partition": name(n), "transactionId": f"t{turn}-{n}", "payload": n}
                         for n in range(first, first + 500)]).expect(201)
        while broker.pop(queue, group="g", autoAck=True, batch=1000, partitions=64).expect((200, 204)).status == 200:
            pass
    broker.restart()
    return broker


def walk_changed(broker, queue):
    found, after = [], None
    while True:
        entry = {"queue": queue, "since": EPOCH, "limit": 1000}
        if after is not None:
            entry["after"] = after
        answer = broker.post("/api/v1/partitions/changed", {"entries": [entry]}).expect(200).json["entries"][0]
        found += answer["partitions"]
        after = answer["next"]
        if after is None:
            return found


def test_listings_of_lanes(rested, queue):
    changed = walk_changed(rested, queue)
    assert [row["name"] for row in changed] == [name(n) for n in range(LANES)]
    assert all(row["lastOffset"] == 1 and row["logStart"] == 0 for row in changed)
    detail = rested.queue_detail(queue)
    assert [row["name"] for row in detail["partitions"]] == [name(n) for n in range(LANES)]
    assert read_by_the_group(rested) == 0


def test_the_depth_of_a_queue(rested, queue):
    assert rested.depth(queue, "g")["pending"] == 0
    assert read_by_the_group(rested) == 0


def test_metrics_of_lanes(rested, queue):
    text = rested.get("/metrics/prometheus").body.decode()
    assert 'queen_queue_depth{queue="%s",kind="retained"} %d' % (queue, 2 * LANES) in text
    assert 'queen_queue_depth{queue="%s",kind="pending"} 0' % queue in text
    assert read_by_the_group(rested) == 0  # a scrape's numbers are those before it looked at lanes


@pytest.mark.parametrize("path", ["/api/v1/consumer-groups", "/api/v1/consumer-groups/g", "/api/v1/resources/overview",
                                  "/api/v1/resources/queues", "/api/v1/consumer-groups/lagging?minLagSeconds=0"])
def test_listings_of_groups_and_sums(rested, path):
    rested.get(path).expect(200)
    assert read_by_the_group(rested) == 0


def test_a_pop_of_one_lane_at_rest(rested, queue):
    assert rested.pop(queue, partition=name(700), group="g").expect(204).status == 204
    assert ids(rested.pop(queue, partition=name(901), group="other", subscriptionMode="all", batch=10).expect(200).json) == \
        ["t0-901", "t1-901"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(rested.fresh_request, "GET", "/api/v1/pop/queue/%s/partition/%s?consumerGroup=g&wait=true&timeout=20000"
                              % (quote(queue), quote(name(1111))))
        rested.push([{"queue": queue, "partition": name(1111), "transactionId": "new", "payload": 1}]).expect(201)
        assert ids(waiting.result().expect(200).json) == ["new"]
    assert read_by_the_group(rested) == 0


def test_messages_by_their_id_and_by_place_and_time(rested, queue):
    lane = rested.post("/api/v1/partitions/changed", {"entries": [{"queue": queue, "since": EPOCH, "limit": 1000}]}) \
        .expect(200).json["entries"][0]["partitions"][800]
    rested.restart()
    one = rested.get("/api/v1/messages/%s/t1-800" % lane["id"]).expect(200).json
    assert one["payload"] == 800
    rested.get("/api/v1/messages/%s/none" % lane["id"]).expect(404)
    found = rested.post("/api/v1/fetch/offsets", {"entries": [{"queue": queue, "partition": name(300), "timestamp": EPOCH}]})
    assert found.expect(200).json["entries"][0]["offset"] == 0
    fetched = rested.post("/api/v1/fetch", {"entries": [{"queue": queue, "partition": name(301), "offset": 1}]}).expect(200).json
    assert [r["offset"] for r in fetched["entries"][0]["records"]] == [1]
    rows = rested.get("/api/v1/messages" + query({"queue": queue, "partition": name(302)})).expect(200).json["messages"]
    assert [row["transactionId"] for row in rows] == ["t1-302", "t0-302"]
    assert read_by_the_group(rested) == 0


def test_messages_of_many_lanes_newest_first(rested, queue):
    seen = []
    for offset in (0, 1000):
        rows = rested.get("/api/v1/messages" + query({"queue": queue, "limit": 1000, "offset": offset})).expect(200).json["messages"]
        seen += [row["transactionId"] for row in rows]
    assert len(set(seen)) == 2000 and set(seen[:LANES]) == {"t1-%d" % n for n in range(LANES)}
    assert read_by_the_group(rested) == 0


def seek(broker, queue, body, partition=None):
    path = "/api/v1/consumer-groups/g/queues/%s/" % quote(queue)
    if partition is not None:
        path += "partitions/%s/" % quote(partition)
    return broker.post(path + "seek", body).expect(200).json["partitionsUpdated"]


def test_a_seek_of_all_lanes_to_a_time(rested, queue):
    half = rested.get("/api/v1/messages" + query({"queue": queue, "partition": name(0)})).expect(200).json["messages"][0]["createdAt"]
    rested.restart()
    assert seek(rested, queue, {"timestamp": half}) == LANES
    assert (read_by_the_group(rested, "entry"), read_by_the_group(rested)) == (0, 0)
    answer = rested.pop(queue, group="g", batch=10000, partitions=64).expect(200).json
    assert all(n.startswith("t1-") for n in ids(answer))
    rested.restart()
    assert seek(rested, queue, {"timestamp": half}, partition=name(1400)) == 1
    rested.restart()
    assert seek(rested, queue, {"toEnd": True}) == LANES
    assert (read_by_the_group(rested, "entry"), read_by_the_group(rested)) == (0, 0)


def test_dead_letters_of_lanes_at_rest(rested, queue):
    rested.configure(queue, retryLimit=0, **KEPT)
    while True:
        answer = rested.pop(queue, group="bad", subscriptionMode="all", batch=1000, partitions=64).expect((200, 204))
        if answer.status == 204:
            break
        rested.ack_batch([(m, "failed", "why") for m in answer.json["messages"]])
    rested.restart()
    page = rested.get("/api/v1/dlq" + query({"queue": queue, "limit": 1000, "offset": 500})).expect(200).json
    assert page["total"] == 2 * LANES and len(page["messages"]) == 1000
    letter = page["messages"][0]
    assert read_by_the_group(rested) == 0
    rested.restart()
    rested.post("/api/v1/dlq/%s/replay" % letter["id"], {"queue": queue + "-other"}).expect(200)
    assert read_by_the_group(rested) == 0


def test_timers_at_rest(own_broker, queue):
    broker = own_broker(env={"QUEEN_SCRUB_BYTES_S": "0"})
    keys = ["key-%04d" % ((n * 7919) % 3000) for n in range(3000)]
    for first in range(0, 3000, 250):
        timers.call(broker, *[timers.op_schedule(queue, key, 3600000 + n * 10, payload=n)
                              for n, key in enumerate(keys[first:first + 250])])
    broker.restart()
    counted = broker.get("/api/v1/timers/%s" % quote(queue) + query({"mode": "count", "prefix": "key-"})).expect(200).json
    assert counted["count"] == 3000
    assert read_by_the_group(broker) == 0
    broker.restart()
    page = broker.get("/api/v1/timers/%s" % quote(queue) + query({"limit": 1000, "after": "key-0999"})).expect(200).json
    assert [row["timerKey"] for row in page["rows"]] == ["key-%04d" % n for n in range(1000, 2000)]
    assert read_by_the_group(broker) == 0


def test_a_pop_of_one_lane_of_a_queue_that_delays(own_broker, queue):
    broker = own_broker(env={"QUEEN_SCRUB_BYTES_S": "0"})
    began = time.monotonic()
    for n in range(3000):
        broker.push_ids(queue, ["m%d" % n], "p")
    middle = (began + time.monotonic()) / 2
    broker.configure(queue, delayedProcessing=round(time.monotonic() - middle) + 1)
    broker.restart()
    answer = broker.pop(queue, partition="p", group="late", subscriptionMode="all", batch=1).expect(200).json
    assert ids(answer) == ["m0"]
    assert read_by_the_group(broker) == 0


def test_retention_of_lanes_at_rest(rested, queue):
    rested.restart(env={"QUEEN_SCRUB_BYTES_S": "0", "RETENTION_INTERVAL": "100"})
    rested.configure(queue, retentionEnabled=True, retentionSeconds=1)

    def retained():
        text = rested.get("/metrics/prometheus").body.decode()
        return int(re.search(r'^queen_queue_depth\{queue="%s",kind="retained"\} (\d+)' % queue, text, re.M).group(1))

    wait_until(lambda: retained() == 0, 20, "retention", every=0.5)
    assert (read_by_the_group(rested, "entry"), read_by_the_group(rested)) == (0, 0)


def engine_objects(broker, kind):
    text = broker.get("/metrics/prometheus").body.decode()
    return int(re.search(r'^queen_engine_objects\{kind="%s"\} (\d+)' % kind, text, re.M).group(1))


def test_what_deleted_groups_and_queues_held_is_given_back(rested, queue):
    rested.delete("/api/v1/consumer-groups/g/queues/%s" % quote(queue)).expect(200)
    wait_until(lambda: engine_objects(rested, "cursors") == 0, 20, "no cursors")
    rested.restart()
    rested.delete_queue(queue)
    wait_until(lambda: engine_objects(rested, "partitions") == 0, 20, "no lanes")
    assert (read_by_the_group(rested, "entry"), read_by_the_group(rested)) == (0, 0)
