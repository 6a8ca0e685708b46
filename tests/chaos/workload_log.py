"""Pushes with ids of their own, sent again to another node until they are answered; old ids are sent again at random.

Judged at the end, on what every node holds: each answered id once, at the offset and under the message id that were answered; no
holes; a push answered before another was sent lies before it; an id sent again is answered as it was the first time."""
import json
import time

from workload import Workload, same_everywhere

LANES = [f"lane-{i}" for i in range(8)]


class Item:
    __slots__ = ("id", "lane", "payload", "message", "offset", "sent", "answered")

    def __init__(self, identity, lane, payload):
        self.id, self.lane, self.payload = identity, lane, payload
        self.message = self.offset = None
        self.sent = self.answered = 0.0


class LogWorkload(Workload):
    name = "log"

    def __init__(self, cluster, seed, clients=3, pause_s=0.02, queue="log"):
        super().__init__(cluster, seed)
        self.queue, self.clients, self.pause_s = queue, clients, pause_s
        self.items = []  # answered
        self.unanswered = []
        self.slowest_s = 0.0
        self.answers = []  # (time, seconds it took with all its repeats)
        self.number = 0

    def jobs(self):
        return [self.push_loop] * self.clients

    def push_loop(self, client, rng):
        while not self.over():
            with self.lock:
                old = rng.choice(self.items) if self.items and rng.random() < 0.15 else None
            if old is not None:
                self.send_again(client, old)
            else:
                self.push(client, self.new_items(rng))
            time.sleep(rng.uniform(0, 2 * self.pause_s))

    def new_items(self, rng):
        items = []
        one = rng.choice(LANES) if rng.random() < 0.5 else None
        for _ in range(rng.choice((1, 1, 3, 12))):
            with self.lock:
                self.number += 1
                number = self.number
            roll = rng.random()
            size = rng.randrange(4, 200) if roll < 0.96 else rng.randrange(20000, 90000) if roll < 0.999 else rng.randrange(1 << 20, 3 << 20)
            items.append(Item(f"id-{number}", one or rng.choice(LANES), {"n": number, "pad": "x" * size}))
        return items

    def body(self, items):
        return json.dumps({"items": [{"queue": self.queue, "partition": i.lane, "transactionId": i.id, "payload": i.payload} for i in items]}).encode()

    def push(self, client, items):
        sent = time.monotonic()
        with self.lock:
            self.unanswered.append(items)
        status, results, lost = self.answered(client, "POST", "/api/v1/push", self.body(items))
        answered = time.monotonic()
        if status != 201:
            self.problem(f"push answered {status} {results}")
            return
        states = {r["status"] for r in results}
        if len(results) != len(items) or len(states) != 1 or not states <= ({"queued", "duplicate"} if lost else {"queued"}):
            self.problem(f"push of {[i.id for i in items]} after {lost} lost calls answered {results}")
            return
        if "duplicate" in states:
            self.count("pushes found done")
        for item, result in zip(items, results):
            item.message, item.offset, item.sent, item.answered = result["message_id"], result["offset"], sent, answered
        with self.lock:
            self.unanswered.remove(items)
            self.items += items
            self.answers.append((answered, answered - sent))
            self.counts["messages"] += len(items)
            self.slowest_s = max(self.slowest_s, answered - sent)

    def send_again(self, client, item):
        status, results, _ = self.answered(client, "POST", "/api/v1/push", self.body([item]))
        want = ("duplicate", item.message, item.offset)
        if status != 201 or (results[0]["status"], results[0]["message_id"], results[0].get("offset")) != want:
            self.problem(f"{item.id} was stored as {item.message} at {item.offset}; sent again: {status} {results}")
        self.count("sent again")

    def longest_silence(self, since, until):
        """The longest time within [since, until] without an answered push."""
        with self.lock:
            times = sorted([since, until, *(t for t, _ in self.answers if since < t < until)])
        return max(b - a for a, b in zip(times, times[1:]))

    def first_answer(self, since):
        """Seconds until the first push that was sent after `since` was answered; None so far."""
        with self.lock:
            times = [t for t, took in self.answers if t - took >= since]
        return min(times) - since if times else None

    def finish(self, client):
        held = same_everywhere(self, self.queue, LANES)
        where = {}
        for lane, records in held.items():
            if [r[0] for r in records] != list(range(len(records))):
                self.problem(f"{lane}: offsets are not 0..{len(records) - 1}: {[r[0] for r in records][:40]}")
            stamps = [r[3] for r in records]
            if stamps != sorted(stamps):
                self.problem(f"{lane}: times go back")
            for offset, identity, payload, _ in records:
                if identity in where:
                    self.problem(f"{identity} is there twice: {where[identity]} and {lane}@{offset}")
                where[identity] = (lane, offset, payload)
        for item in self.items:
            if where.get(item.id) != (item.lane, item.offset, item.payload):
                self.problem(f"{item.id} was answered {item.lane}@{item.offset} and is {str(where.get(item.id))[:200]}")
        known = {i.id for i in self.items} | {i.id for items in self.unanswered for i in items}
        for identity in where.keys() - known:
            self.problem(f"{identity} was never pushed")
        for items in self.unanswered:
            there = sum(i.id in where for i in items)
            if there not in (0, len(items)):
                self.problem(f"a push without an answer is there by part: {there} of {len(items)}")
        self.check_order()
        self.counts["slowest answer ms"] = round(self.slowest_s * 1000)

    def check_order(self):
        lanes = {}
        for item in self.items:
            lanes.setdefault(item.lane, []).append((item.offset, item.sent, item.answered))
        for lane, entries in lanes.items():
            latest_sent = 0.0
            for offset, sent, answered in sorted(entries):
                if answered < latest_sent:
                    self.problem(f"{lane}@{offset} was answered before an earlier offset was sent")
                latest_sent = max(latest_sent, sent)
