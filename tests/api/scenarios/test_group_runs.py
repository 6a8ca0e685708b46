"""New lanes and new groups: nothing is missed, nothing is replayed."""

import statistics
import threading
import time

from queen import TEST_ALL, ids, unique


class Reader(threading.Thread):
    """Long-polls a queue for one group, acks everything, notes when each message came."""

    def __init__(self, broker, queue, group, count, **params):
        super().__init__(daemon=True)
        self.args = (broker, queue, group, count, params)
        self.seen = {}
        self.error = None
        self.start()

    def run(self):
        broker, queue, group, count, params = self.args
        try:
            while len(self.seen) < count:
                answer = broker.pop(queue, group=group, wait=True, timeout=2000, partitions=8, **params)
                now = time.monotonic()
                if answer.status == 200:
                    for m in answer.json["messages"]:
                        assert m["transactionId"] not in self.seen
                        self.seen[m["transactionId"]] = now
                    broker.ack_batch(answer.json["messages"])
        except Exception as error:  # shown by the test
            self.error = error


def test_every_group_gets_the_first_message_of_every_new_lane(broker, queue):
    rounds = 10000 if TEST_ALL else 200
    groups = ("g1", "g2", "g3")
    broker.configure(queue)
    for group in groups:
        broker.nothing(queue, group=group)
    steady = {group: Reader(broker, queue, group, rounds) for group in ("g1", "g3")}
    late = {}
    pushed = {}
    lateness = []

    def pop_g2(expected):
        while expected not in late:
            answer = broker.pop(queue, group="g2", wait=True, timeout=2000)
            if answer.status == 200:
                for m in answer.json["messages"]:
                    late[m["transactionId"]] = time.monotonic()
                broker.ack_batch(answer.json["messages"])

    for n in range(rounds):
        name = "m%d" % n
        racing = threading.Thread(target=pop_g2, args=(name,))
        if n % 2:
            racing.start()
        broker.push_ids(queue, [name], "lane-" + name)
        pushed[name] = time.monotonic()
        if not n % 2:
            racing.start()
        racing.join(10)
        assert name in late, "group g2 missed the first message of a new lane"
    for reader in steady.values():
        reader.join(10)
        assert reader.error is None, reader.error
        assert not reader.is_alive(), "messages missed: %s" % (set(pushed) - set(reader.seen))
        lateness += [reader.seen[n] - pushed[n] for n in pushed]
    lateness += [late[n] - pushed[n] for n in pushed]
    assert statistics.median(lateness) < 0.1
    # A missed wake-up would cost the whole poll timeout of two seconds; a busy machine may cost a part of one.
    assert max(lateness) < 1.5


class Pusher(threading.Thread):
    """Pushes numbered messages without end; knows for each when it was sent and when it was answered."""

    def __init__(self, broker, queue):
        super().__init__(daemon=True)
        self.broker, self.queue = broker, queue
        self.sent, self.answered = {}, {}
        self.halt = threading.Event()
        self.error = None
        self.start()

    def run(self):
        n = 0
        try:
            while not self.halt.is_set():
                names = ["%07d" % i for i in range(n, n + 10)]
                n += 10
                now = time.monotonic()
                self.sent.update((name, now) for name in names)
                self.broker.push_ids(self.queue, names, "p%d" % (n // 10 % 4))
                now = time.monotonic()
                self.answered.update((name, now) for name in names)
        except Exception as error:  # shown by the test
            self.error = error

    def end(self):
        self.halt.set()
        self.join(10)
        assert self.error is None, self.error


def read_all(broker, queue, group):
    """Everything the group still gets, once."""
    names = []
    while True:
        answer = broker.pop(queue, group=group, batch=1000, partitions=64)
        if answer.status == 204:
            return names
        names += ids(answer.json)
        assert all(r["success"] for r in broker.ack_batch(answer.json["messages"]))


def check_start(pusher, names, before, after):
    """Answered before the first pop was sent: not delivered. Sent after its answer: delivered. In between: either."""
    assert len(names) == len(set(names))
    got = set(names)
    for name, at in pusher.answered.items():
        if at < before:
            assert name not in got, "%s was answered %.4f s before the first pop" % (name, before - at)
        elif pusher.sent[name] > after:
            assert name in got, "%s was sent %.4f s after the first pop's answer" % (name, pusher.sent[name] - after)


def test_start_of_a_group_is_fixed_by_its_first_pop(broker, queue):
    broker.push_ids(queue, ["first-%d" % i for i in range(4)], "p0")
    pusher = Pusher(broker, queue)
    spans = {}
    got = {}
    for mode in (None, "new", "new-only"):
        time.sleep(0.3)
        group = unique("g")
        before = time.monotonic()
        answer = broker.pop(queue, group=group, subscriptionMode=mode, batch=1)
        spans[group] = (before, time.monotonic())
        got[group] = ids(answer.json) if answer.status == 200 else []
        if answer.status == 200:
            broker.ack_batch(answer.json["messages"])
        # A second consumer of the group asks for everything: the start does not move.
        answer = broker.pop(queue, group=group, subscriptionMode="all", batch=1)
        if answer.status == 200:
            got[group] += ids(answer.json)
            broker.ack_batch(answer.json["messages"])
    time.sleep(0.3)
    pusher.end()
    for group, (before, after) in spans.items():
        check_start(pusher, got[group] + read_all(broker, queue, group), before, after)
    everything = set(pusher.answered) | {"first-%d" % i for i in range(4)}
    assert {m["transactionId"] for m in broker.drain(queue)} == everything
    assert sorted(read_all_without_group(broker, queue)) == sorted(everything)


def read_all_without_group(broker, queue):
    names = []
    while True:
        answer = broker.pop(queue, batch=1000, partitions=64)
        if answer.status == 204:
            return names
        names += ids(answer.json)
        broker.ack_batch(answer.json["messages"])


def test_two_first_consumers_share_one_start(broker, queue):
    broker.push_ids(queue, ["old"], "p0")
    for _ in range(20):
        group = unique("g")
        pusher = Pusher(broker, queue)
        barrier = threading.Barrier(2)
        spans, got = [], []

        def first():
            barrier.wait()
            before = time.monotonic()
            answer = broker.pop(queue, group=group, batch=5)
            spans.append((before, time.monotonic()))
            if answer.status == 200:
                got.extend(ids(answer.json))
                broker.ack_batch(answer.json["messages"])

        threads = [threading.Thread(target=first) for _ in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        pusher.end()
        names = got + read_all(broker, queue, group)
        check_start(pusher, names, min(s[0] for s in spans), min(s[1] for s in spans))
        assert "old" not in names
        queue += "x"
        broker.push_ids(queue, ["old"], "p0")


def test_start_survives_a_crash_right_after_the_first_pop(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["old-%d" % i for i in range(10)], "p")
    broker.nothing(queue, group="g")
    broker.kill()
    broker.start()
    broker.push_ids(queue, ["new"], "p")
    broker.push_ids(queue, ["new-lane"], "p2")
    assert sorted(read_all(broker, queue, "g")) == ["new", "new-lane"]


def test_subscription_from_a_time_during_traffic(broker, queue):
    pusher = Pusher(broker, queue)
    time.sleep(0.3)
    now = time.time()
    instant = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03dZ" % (now % 1 * 1000)
    at = time.monotonic()
    time.sleep(0.3)
    pusher.end()
    broker.pop(queue, group="g", subscriptionFrom=instant, batch=1).expect(200)
    group = unique("g")
    answer = broker.pop(queue, group=group, subscriptionFrom=instant, subscriptionMode="all", batch=1).expect(200)
    broker.ack_batch(answer.json["messages"])
    check_start(pusher, ids(answer.json) + read_all(broker, queue, group), at - 0.005, at + 0.005)
