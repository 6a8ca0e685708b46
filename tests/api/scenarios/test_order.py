"""Order inside a lane while messages are in flight, extended, failed or redelivered."""

import threading
import time

from queen import TEST_ALL, ids


def test_leased_lane_stays_closed(broker, queue):
    broker.configure(queue, leaseTime=1)
    broker.push_ids(queue, ["a", "b"], "p")
    begin = time.monotonic()
    one = broker.take(queue, group="g", subscriptionMode="all")
    assert ids(one) == ["a", "b"]
    extension = 4
    assert broker.extend(one["leaseId"], extension)["renewed"] == 1
    got = []

    def second():
        while not got:
            answer = broker.pop(queue, group="g", wait=True, timeout=1000)
            if answer.status == 200:
                got.append((time.monotonic(), ids(answer.json), answer.json["messages"][0]["deliveryAttempt"]))

    worker = threading.Thread(target=second)
    worker.start()
    broker.push_ids(queue, ["c"], "p")
    assert ids(broker.take(queue, group="other", subscriptionMode="all")) == ["a", "b", "c"]
    for _ in range(3):
        time.sleep(0.5)
        assert not got
        broker.extend(one["leaseId"], 1)
    worker.join(15)
    at, names, attempt = got[0]
    assert extension - 0.1 <= at - begin < extension + 1.5
    assert (names, attempt) == (["a", "b", "c"], 2)


def test_leased_lane_stays_closed_across_a_crash(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a", "b"], "p")
    one = broker.take(queue, group="g", subscriptionMode="all", leaseSeconds=60)
    broker.restart("kill")
    broker.push_ids(queue, ["c"], "p")
    broker.nothing(queue, group="g")
    broker.nothing(queue, "p", group="g", wait=True, timeout=400)
    assert broker.ack(one["messages"][1])["leaseReleased"] is True
    assert ids(broker.take(queue, group="g")) == ["c"]


def test_failed_head_comes_before_its_successors(broker, queue):
    lanes = 100 if TEST_ALL else 40
    bad = {"lane-%d" % i for i in range(10)}
    broker.configure(queue, retryLimit=2, retryDelay=1000)
    broker.push([{"queue": queue, "partition": "lane-%d" % i, "transactionId": "%d%s" % (i, c), "payload": 1}
                 for i in range(lanes) for c in "abc"]).expect(201)
    log = {}
    good_done = []
    begin = time.monotonic()
    settled = 0
    while settled < lanes * 3:
        answer = broker.take(queue, group="g", subscriptionMode="all", batch=1, partitions=1)
        message = answer["messages"][0]
        log.setdefault(message["partition"], []).append(message["transactionId"][-1])
        head = message["partition"] in bad and message["transactionId"].endswith("a")
        result = broker.ack(message, "failed" if head else "completed")
        settled += (result["dlq"] if head else result["success"])
        if message["partition"] not in bad:
            good_done.append(time.monotonic())
    assert {lane: names for lane, names in log.items() if lane in bad} == {lane: ["a", "a", "a", "b", "c"] for lane in bad}
    assert all(names == ["a", "b", "c"] for lane, names in log.items() if lane not in bad)
    assert len(log) == lanes
    assert good_done[-1] - begin < 30
    assert broker.dlq(queue)["total"] == 10
    broker.nothing(queue, group="g")


def test_parallel_workers_see_every_lane_in_order(broker, queue):
    lanes, each = 20, 40
    expected = {"lane-%d" % i: ["%d-%d" % (i, k) for k in range(each)] for i in range(lanes)}
    for k in range(0, each, 10):
        broker.push([{"queue": queue, "partition": "lane-%d" % i, "transactionId": "%d-%d" % (i, n), "payload": n}
                     for i in range(lanes) for n in range(k, k + 10)]).expect(201)
    log = {}
    errors = []

    def worker(seed):
        try:
            while True:
                answer = broker.pop(queue, group="g", subscriptionMode="all", batch=7, partitions=2, wait=True, timeout=500)
                if answer.status != 200:
                    return
                for m in answer.json["messages"]:
                    log.setdefault(m["partition"], []).append(m["transactionId"])
                results = broker.ack_batch(answer.json["messages"])
                assert all(r["success"] and r["leaseReleased"] for r in results)
        except Exception as error:  # shown by the test
            errors.append(error)

    workers = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    assert errors == []
    assert log == expected
