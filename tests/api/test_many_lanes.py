"""What concerns a whole queue is done in pieces: answers are as for a few lanes, what goes on meanwhile is neither lost nor seen twice,
and one that was cut short may simply be sent again."""

import threading
import time

import pytest

from queen import BrokerError, ids, quote, wait_until

EPOCH = "1970-01-01T00:00:00Z"
LANES = 6000


def group_path(group, queue=None, verb=None):
    path = "/api/v1/consumer-groups/" + quote(group)
    if queue is not None:
        path += "/queues/" + quote(queue)
    return path + ("/" + verb if verb else "")


def fill(broker, queue, mark, lanes=LANES):
    for first in range(0, lanes, 1000):
        items = [{"queue": queue, "partition": f"p{n}", "transactionId": f"{mark}{n}", "payload": n}
                 for n in range(first, min(first + 1000, lanes))]
        broker.push(items).expect(201)


def consume(broker, queue, group, **params):
    found = []
    while True:
        answer = broker.pop(queue, group=group, autoAck=True, batch=1000, partitions=64, **params).expect((200, 204))
        if answer.status == 204:
            return found
        found += ids(answer.json)


def seek(broker, group, queue, body):
    return broker.post(group_path(group, queue, "seek"), body).expect(200).json


def counter(broker, name):
    for line in broker.get("/metrics/prometheus").body.decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise AssertionError(name)


def test_a_seek_of_many_lanes_answers_as_one_of_few(broker, queue):
    fill(broker, queue, "a")
    before = counter(broker, "queen_raft_commands_total")
    answer = seek(broker, "g", queue, {"toEnd": True})
    assert answer == {"success": True, "consumerGroup": "g", "queueName": queue, "partitionName": None, "seekToEnd": True,
                      "targetTimestamp": None, "partitionsUpdated": LANES, "updated": True}
    assert counter(broker, "queen_raft_commands_total") >= before + LANES / 1000
    assert consume(broker, queue, "g") == []
    answer = seek(broker, "g", queue, {"timestamp": EPOCH})
    assert (answer["seekToEnd"], answer["partitionsUpdated"]) == (False, LANES)
    found = consume(broker, queue, "g")
    assert len(found) == LANES and set(found) == {f"a{n}" for n in range(LANES)}


def test_a_seek_is_of_one_moment_for_all_lanes(broker, queue):
    """However many pieces it takes, and whatever is pushed meanwhile: what it skips is older than what it does not."""
    lanes = 4 * LANES
    fill(broker, queue, "a", lanes)
    stop = threading.Event()
    pushed = []

    def push(number):
        n = number
        while not stop.is_set():
            items = [{"queue": queue, "partition": f"p{n * 7919 % lanes}", "transactionId": f"m{n}", "payload": n}]
            began = time.monotonic()
            broker.push(items).expect(201)
            pushed.append((f"m{n}", began, time.monotonic()))
            n += 4

    threads = [threading.Thread(target=push, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(pushed) > 20, 10, "pushes")
        for _ in range(3):
            asked = time.monotonic()
            assert seek(broker, "g", queue, {"toEnd": True})["partitionsUpdated"] == lanes
            done = time.monotonic()
            time.sleep(0.1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    found = set(consume(broker, queue, "g"))
    created = {}
    while True:
        answer = broker.pop(queue, group="all", autoAck=True, batch=1000, partitions=64, subscriptionMode="all")
        if answer.expect((200, 204)).status == 204:
            break
        created.update({m["transactionId"]: m["createdAt"] for m in answer.json["messages"]})
    assert len(created) == lanes + len(pushed)
    skipped = set(created) - found
    assert max(created[name] for name in skipped) <= min(created[name] for name in found)
    for name, began, ended in pushed:
        assert name in skipped if ended < asked else name in found if began > done else True


def test_a_group_that_is_deleted_while_it_consumes_begins_anew(broker, queue):
    """Never a mixture: what is delivered after the delete is all there is, once."""
    fill(broker, queue, "a", 3000)
    half = ids(broker.take(queue, group="g", subscriptionMode="all", autoAck=True, batch=64, partitions=64))
    answer = broker.delete(group_path("g", queue)).expect(200).json
    assert answer["deletedPartitions"] >= len(half) > 0
    found = consume(broker, queue, "g", subscriptionMode="all")
    assert len(found) == 3000 and set(found) == {f"a{n}" for n in range(3000)}
    assert broker.delete(group_path("g", queue)).expect(200).json["deletedPartitions"] == 3000
    assert broker.delete(group_path("g", queue)).expect(200).json["deletedPartitions"] == 0


def test_dead_letters_of_many_lanes_are_deleted_in_pieces(broker, queue):
    broker.configure(queue, retryLimit=0)
    fill(broker, queue, "a", 1300)
    filed = 0
    while filed < 1300:
        messages = broker.take(queue, group="g" if filed < 700 else "h", subscriptionMode="all", batch=64, partitions=64)["messages"]
        results = broker.ack_batch([(m, "dlq") for m in messages])
        assert all(r["success"] for r in results)
        filed += len(messages)
    total = broker.dlq(queue)["total"]
    of_g = broker.dlq(queue, "g")["total"]
    path = f"/api/v1/dlq?queue={quote(queue)}"
    answer = broker.delete(path + "&consumerGroup=g").expect(200).json
    assert answer == {"success": True, "queue": queue, "consumerGroup": "g", "deleted": of_g}
    assert broker.delete(path).expect(200).json["deleted"] == total - of_g
    assert broker.dlq(queue)["total"] == 0


@pytest.mark.parametrize("work", ["seek", "group"])
def test_work_that_a_crash_cuts_short_may_be_sent_again(own_broker, queue, work):
    broker = own_broker()
    fill(broker, queue, "a")
    fill(broker, queue, "b")
    assert len(consume(broker, queue, "g", subscriptionMode="all")) == 2 * LANES
    failed = []

    def send():
        try:
            if work == "seek":
                broker.fresh_request("POST", group_path("g", queue, "seek"), {"timestamp": EPOCH}).expect(200)
            else:
                broker.fresh_request("DELETE", group_path("g", queue)).expect(200)
        except (BrokerError, OSError, AssertionError, EOFError):
            failed.append(True)

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.02)
    broker.kill()
    thread.join(30)
    broker.start()
    if work == "seek":
        assert seek(broker, "g", queue, {"timestamp": EPOCH})["partitionsUpdated"] == LANES
    else:
        broker.delete(group_path("g", queue)).expect(200)
    found = consume(broker, queue, "g", subscriptionMode="all")
    assert len(found) == 2 * LANES and set(found) == {f"{m}{n}" for m in "ab" for n in range(LANES)}
    broker.restart("kill")
    assert consume(broker, queue, "g") == []
