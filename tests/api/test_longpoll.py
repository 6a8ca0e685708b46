"""Long polls: how long they wait and what wakes them."""

import threading
import time

import pytest

from queen import ids, unique, wait_until


class Poll(threading.Thread):
    """A pop in a thread of its own. `result()` waits for it and gives (Response, when it came)."""

    def __init__(self, broker, *args, **kwargs):
        super().__init__(daemon=True)
        self.call = lambda: broker.pop(*args, wait=True, **kwargs)
        self.answer = None
        self.error = None
        self.at = None
        self.start()

    def run(self):
        try:
            self.answer = self.call()
        except Exception as error:  # handed to the test
            self.error = error
        self.at = time.monotonic()

    def result(self, seconds=30):
        self.join(seconds)
        assert not self.is_alive(), "the poll did not come back"
        if self.error is not None:
            raise self.error
        return self.answer, self.at


def settle():
    """Time for a poll to reach the broker and be parked."""
    time.sleep(0.15)


def test_empty_long_poll_ends_by_its_timeout(broker, queue):
    # 31
    answer = broker.nothing(queue, wait=True, timeout=1000)
    assert 0.7 <= answer.elapsed <= 5


@pytest.mark.parametrize("pinned", [False, True])
def test_push_wakes_a_long_poll(broker, queue, pinned):
    # 31
    broker.configure(queue)
    poll = Poll(broker, queue, "p" if pinned else None, timeout=10000)
    settle()
    pushed = time.monotonic()
    broker.push_ids(queue, ["a"], "p")
    answer, at = poll.result()
    assert answer.status == 200
    assert ids(answer.json) == ["a"]
    assert at - pushed < 0.5


def test_pinned_long_poll_sees_a_queue_created_later(broker, queue):
    poll = Poll(broker, queue, "p", timeout=10000)
    settle()
    assert broker.queue_detail(queue) is None
    broker.push_ids(queue, ["a"], "p")
    answer, _ = poll.result()
    assert (answer.status, ids(answer.json)) == (200, ["a"])


def test_push_to_another_lane_does_not_end_a_pinned_poll(broker, queue):
    poll = Poll(broker, queue, "p", timeout=1500)
    settle()
    broker.push_ids(queue, ["other"], "p2")
    answer, _ = poll.result()
    assert answer.status == 204


def test_every_group_of_a_queue_is_woken(broker, queue):
    broker.configure(queue)
    for group in ("g1", "g2", "g3"):
        broker.nothing(queue, group=group)
    polls = [Poll(broker, queue, group=group, timeout=10000) for group in ("g1", "g2", "g3", None)]
    settle()
    pushed = time.monotonic()
    broker.push_ids(queue, ["a"], "p")
    for poll in polls:
        answer, at = poll.result()
        assert (answer.status, ids(answer.json)) == (200, ["a"])
        assert at - pushed < 0.5


def test_released_lease_wakes_a_long_poll(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    first = broker.take(queue, batch=1)
    poll = Poll(broker, queue, timeout=10000)
    settle()
    acked = time.monotonic()
    assert broker.ack(first["messages"][0])["leaseReleased"] is True
    answer, at = poll.result()
    assert (answer.status, ids(answer.json)) == (200, ["b"])
    assert at - acked < 0.5


@pytest.mark.parametrize("status", ["retry", "failed"])
def test_nack_wakes_a_long_poll_at_once(broker, queue, status):
    broker.push_ids(queue, ["a"], "p")
    first = broker.take(queue)
    poll = Poll(broker, queue, timeout=10000)
    settle()
    nacked = time.monotonic()
    assert broker.ack(first["messages"][0], status)["leaseReleased"] is True
    answer, at = poll.result()
    assert (answer.status, ids(answer.json)) == (200, ["a"])
    assert answer.json["messages"][0]["deliveryAttempt"] == 2
    assert at - nacked < 0.5


def test_expired_lease_wakes_a_long_poll(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    begin = time.monotonic()
    broker.take(queue, leaseSeconds=1)
    answer, at = Poll(broker, queue, timeout=10000).result()
    assert (answer.status, ids(answer.json)) == (200, ["a"])
    assert 0.95 <= at - begin < 2.0


def test_end_of_a_delay_wakes_a_long_poll(broker, queue):
    broker.configure(queue, delayedProcessing=1)
    begin = time.monotonic()
    broker.push_ids(queue, ["a"], "p")
    answer, at = Poll(broker, queue, timeout=10000).result()
    assert (answer.status, ids(answer.json)) == (200, ["a"])
    assert 1.0 <= at - begin < 2.0


def test_as_many_polls_are_served_as_there_are_lanes(broker, queue):
    broker.configure(queue)
    polls = [Poll(broker, queue, timeout=4000) for _ in range(6)]
    settle()
    broker.push([{"queue": queue, "partition": "p%d" % i, "transactionId": "t%d" % i, "payload": i} for i in range(4)]).expect(201)
    answers = [poll.result()[0] for poll in polls]
    assert sorted(a.status for a in answers) == [200] * 4 + [204] * 2
    assert sorted(i for a in answers if a.status == 200 for i in ids(a.json)) == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_message_is_not_lost_to_a_client_that_left(broker, queue, how):
    # 40
    broker.configure(queue)
    gone = broker.raw()
    gone.send(b"GET /api/v1/pop/queue/%s?wait=true&timeout=30000 HTTP/1.1\r\nHost: x\r\n\r\n" % queue.encode())
    settle()
    gone.close() if how == "close" else gone.reset()
    broker.push_ids(queue, ["a"], "p")
    message = broker.take(queue, wait=True, timeout=5000)["messages"][0]
    assert (message["transactionId"], message["deliveryAttempt"]) == ("a", 1)


def test_messages_are_not_lost_to_many_clients_that_left(broker, queue):
    broker.configure(queue, leaseTime=2)
    clients = []
    for _ in range(40):
        client = broker.raw()
        client.send(b"GET /api/v1/pop/queue/%s?wait=true&timeout=30000 HTTP/1.1\r\nHost: x\r\n\r\n" % queue.encode())
        clients.append(client)
    settle()
    closer = threading.Thread(target=lambda: [c.reset() for c in clients])
    closer.start()
    broker.push([{"queue": queue, "partition": "p%d" % i, "transactionId": "t%d" % i, "payload": i} for i in range(20)]).expect(201)
    closer.join()
    got = {}
    end = time.monotonic() + 10
    while len(got) < 20 and time.monotonic() < end:
        answer = broker.pop(queue, wait=True, timeout=1000, partitions=64, leaseSeconds=60)
        for message in answer.json["messages"] if answer.status == 200 else ():
            assert message["transactionId"] not in got
            got[message["transactionId"]] = message["deliveryAttempt"]
    assert set(got) == {"t%d" % i for i in range(20)}
    # An answer that was already on its way when its socket closed costs one attempt and its lease.
    assert set(got.values()) <= {1, 2}


def test_wait_false_does_not_wait(broker, queue):
    broker.configure(queue)
    assert broker.nothing(queue, wait=False, timeout=20000).elapsed < 5
    assert broker.nothing(queue, timeout=20000).elapsed < 5


def test_stop_answers_parked_polls(own_broker):
    broker = own_broker()
    names = [unique("q") for _ in range(20)]
    polls = [Poll(broker, name, timeout=30000) for name in names]
    wait_until(lambda: all(broker.queue_detail(name) for name in names), 10, "all polls arrived")
    settle()
    begin = time.monotonic()
    broker.stop()
    for poll in polls:
        answer, at = poll.result()
        assert answer.status == 204
        assert at - begin < 5


def test_two_thousand_parked_polls(own_broker):
    broker = own_broker()
    name = unique("q")
    broker.configure(name)
    before = broker.resident_bytes()
    clients = []
    for i in range(2000):
        client = broker.raw(timeout=30)
        client.send(b"GET /api/v1/pop/queue/%s/partition/p%d?wait=true&timeout=60000 HTTP/1.1\r\nHost: x\r\n\r\n" % (name.encode(), i))
        clients.append(client)
    assert broker.get("/health").status == 200
    settle()
    cpu = broker.cpu_seconds()
    time.sleep(1)
    assert broker.cpu_seconds() - cpu < 0.2
    assert broker.resident_bytes() - before < 200 * 1024 * 1024
    broker.push([{"queue": name, "partition": "p%d" % i, "transactionId": "t%d" % i, "payload": i} for i in range(2000)]).expect(201)
    for i, client in enumerate(clients):
        answer = client.read_response()
        assert answer.status == 200
        assert ids(answer.json) == ["t%d" % i]
        client.close()


def test_a_poll_whose_client_left_as_the_message_came_gives_it_back(broker, queue):
    # The poll is not even parked yet; the message must not wait for the end of a dead client's lease.
    for n in range(20):
        with broker.raw() as raw:
            raw.send(("GET /api/v1/pop/queue/%s/partition/p?wait=true&timeout=20000 HTTP/1.1\r\nHost: q\r\n\r\n" % queue).encode())
            time.sleep(0.001)
        broker.push_ids(queue, ["m%d" % n], "p")
        answers = []
        wait_until(lambda: answers.append(broker.pop(queue, "p")) or answers[-1].status == 200, 3, "the message comes to who is there")
        message = answers[-1].json["messages"][0]
        assert message["transactionId"] == "m%d" % n
        broker.ack(message)
