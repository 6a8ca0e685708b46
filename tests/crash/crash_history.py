"""What clients asked and were told, and what must therefore be true.

A History lives in the test's memory and outlives every crash of the broker. Problems found while the load runs are collected in
`problems`; a test asserts that the list is empty.

Times are of the client's monotonic clock. Only what is certain is judged: a lease counts as held from the moment its pop was
answered until pop sent + lease time, or until an ack that might end it was sent.
"""
import json
import threading
import time

NEVER = float("inf")
RETRY_LIMIT = 3  # of a queue that a push created


class Push:
    """One push request: one log entry, so all of it is stored or nothing."""

    __slots__ = ("items", "state", "results", "sent", "answered")

    def __init__(self, items):
        self.items = items  # [(queue, lane, transaction id or None, payload bytes, token)]
        self.state = "sent"  # sent, stored, refused, unknown
        self.results = None
        self.sent = self.answered = 0.0

    def body(self):
        parts = []
        for queue, lane, txid, payload, _ in self.items:
            txid_text = f'"transactionId":"{txid}",' if txid else ""
            parts.append(f'{{"queue":"{queue}","partition":"{lane}",{txid_text}"payload":'.encode() + payload + b"}")
        return b'{"items":[' + b",".join(parts) + b"]}"


class Claim:
    """What one pop got of one lane."""

    __slots__ = ("group", "queue", "lane", "partition_id", "lease", "sent", "received", "until", "messages", "attempt",
                 "may_be_released", "settled", "plan", "parted")  # fmt: skip

    @property
    def first(self):
        return self.messages[0]["offset"]

    @property
    def last(self):
        return self.messages[-1]["offset"]


class Cursor:
    """What is known of one group on one lane."""

    def __init__(self):
        self.done = []  # [(time answered, offset)], offsets rising: up to here it is acked for certain
        self.done_maybe = -1  # and up to here it may be
        self.claims = []
        self.delivered = set()  # offsets that reached a client
        self.budget_low = self.budget_high = 0  # failed acks charged so far

    def done_by(self, when):
        for answered, offset in reversed(self.done):
            if answered < when:
                return offset
        return -1

    def mark_done(self, when, offset):
        if not self.done or offset > self.done[-1][1]:
            self.done.append((when, offset))
        self.done_maybe = max(self.done_maybe, offset)

    @property
    def done_now(self):
        return self.done[-1][1] if self.done else -1


class AckPlan:
    """One ack call on a claim and what it does when it is honoured.

    kind: all (everything completed), part (completed up to index), and failed, retry, dlq (completed below index, this at it)."""

    def __init__(self, claim, kind, index):
        self.claim, self.kind, self.index = claim, kind, index
        offsets = [m["offset"] for m in claim.messages]
        below = offsets[index - 1] if index > 0 else None
        self.releases = kind != "part"
        if kind in ("all", "part"):
            self.done = self.done_maybe = offsets[-1] if kind == "all" else offsets[index]
        elif kind == "dlq":
            self.done = self.done_maybe = offsets[index]
        else:
            self.done = below
            self.done_maybe = offsets[index] if kind == "failed" else below

    def items(self):
        messages = self.claim.messages
        if self.kind == "all":
            return [(m, "completed") for m in messages]
        if self.kind == "part":
            return [(m, "completed") for m in messages[: self.index + 1]]
        return [(m, "completed") for m in messages[: self.index]] + [(messages[self.index], self.kind)]

    def body(self):
        claim = self.claim
        acks = [
            {"transactionId": m["transactionId"], "partitionId": claim.partition_id, "leaseId": claim.lease, "status": status,
             "error": "cannot" if status in ("failed", "dlq") else None}
            for m, status in self.items()
        ]  # fmt: skip
        return json.dumps({"consumerGroup": claim.group, "acknowledgments": acks}).encode()


class History:
    def __init__(self):
        self.lock = threading.Lock()
        self.problems = []
        self.pushes = []
        self.by_token = {}  # token -> (push, index)
        self.cursors = {}
        self.partition_ids = {}
        self.seen = {}  # (queue, lane, offset) -> (message id, transaction id, token)
        self.unknown_pops = {}  # (group, queue) -> pops whose answer was lost
        self.open_claims = []
        self.dead = {}  # (group, token) -> "certain" | "maybe"
        self.counts = {"pushes": 0, "messages": 0, "duplicates": 0, "pops": 0, "acks": 0, "unknown": 0}
        self.next_token = 0

    def problem(self, text):
        with self.lock:
            self.problems.append(text)

    # ---- pushes ----

    def token(self):
        with self.lock:
            self.next_token += 1
            return self.next_token

    def push_sent(self, push):
        push.sent = time.monotonic()
        with self.lock:
            self.pushes.append(push)
            for index, item in enumerate(push.items):
                self.by_token[item[4]] = (push, index)

    def push_ended(self, push, status, body):
        """The first answer of a push; status None when it was lost."""
        push.answered = time.monotonic()
        if status == 201:
            results = json.loads(body)
            self.check_results(push, results)
            push.results = [(r["message_id"], r["offset"]) for r in results]
            push.state = "stored"
            with self.lock:
                self.counts["pushes"] += 1
                self.counts["messages"] += len(results)
        elif status in (429, 507, 413, 400):
            push.state = "refused"
        else:
            push.state = "unknown"
            with self.lock:
                self.counts["unknown"] += 1
            if status not in (None, 503):
                self.problem(f"push answered {status} {body!r}")

    def check_results(self, push, results):
        if len(results) != len(push.items):
            self.problem(f"{len(push.items)} items pushed, {len(results)} results")
        for index, (item, result) in enumerate(zip(push.items, results)):
            want = item[2] or result["message_id"]
            if result["index"] != index or result["status"] != "queued" or result["transaction_id"] != want:
                self.problem(f"new item {item[4]} of a push answered {result}")

    def resend_checked(self, push, status, body):
        """A push that may or must be stored was sent again."""
        if status != 201:
            if status not in (None, 503, 429, 507):
                self.problem(f"repeated push answered {status} {body!r}")
            return
        results = json.loads(body)
        statuses = {r["status"] for r in results}
        if push.state == "stored":
            for item, (message_id, offset), result in zip(push.items, push.results, results):
                if (result["status"], result["message_id"], result.get("offset")) != ("duplicate", message_id, offset):
                    self.problem(f"repeat of answered item {item[4]} (id {message_id}, offset {offset}) got {result}")
            with self.lock:
                self.counts["duplicates"] += len(results)
        elif len(statuses) != 1 or not statuses <= {"queued", "duplicate"}:
            self.problem(f"a lost push is there by half: {results}")
        else:
            push.results = [(r["message_id"], r["offset"]) for r in results]
            push.state = "stored"
            push.answered = time.monotonic()

    # ---- pops ----

    def cursor(self, group, queue, lane):
        with self.lock:
            return self.cursors.setdefault((group, queue, lane), Cursor())

    def pop_lost(self, group, queue):
        with self.lock:
            self.unknown_pops[group, queue] = self.unknown_pops.get((group, queue), 0) + 1

    def pop_answered(self, group, queue, sent, lease_s, raw):
        """Checks an answer and returns its claims."""
        received = time.monotonic()
        answer = json.loads(raw)
        lanes = {}
        position = 0
        for message in answer["messages"]:
            position = self.check_message(queue, message, raw, position)
            lanes.setdefault(message["partition"], []).append(message)
        claims = []
        for lane, messages in lanes.items():
            claim = Claim()
            claim.group, claim.queue, claim.lane = group, queue, lane
            claim.partition_id, claim.lease = messages[0]["partitionId"], answer["leaseId"]
            claim.sent, claim.received, claim.until = sent, received, sent + lease_s
            claim.messages, claim.attempt = messages, messages[0]["deliveryAttempt"]
            claim.may_be_released, claim.settled, claim.plan, claim.parted = NEVER, False, None, False
            self.check_claim(claim)
            claims.append(claim)
        with self.lock:
            self.counts["pops"] += 1
            self.open_claims.extend(claims)
        return claims

    def check_message(self, queue, message, raw, position):
        where = f"{queue}/{message['partition']}@{message['offset']}"
        token = message["data"]["tok"] if isinstance(message["data"], dict) else None
        push, index = self.by_token.get(token, (None, 0))
        if push is None:
            self.problem(f"{where}: nobody pushed {message}")
            return position
        item_queue, lane, txid, payload, _ = push.items[index]
        found = raw.find(payload, position)
        if found < 0:
            self.problem(f"{where}: payload is not the bytes that were pushed")
            found = position
        if (item_queue, lane) != (queue, message["partition"]) or message["transactionId"] != (txid or message["id"]):
            self.problem(f"{where}: pushed to {item_queue}/{lane} as {txid}, came as {message['transactionId']}")
        if push.state == "stored" and push.results[index] != (message["id"], message["offset"]):
            self.problem(f"{where}: push was answered {push.results[index]}, pop says id {message['id']}")
        if push.state == "refused":
            self.problem(f"{where}: a refused push is there")
        with self.lock:
            known = self.seen.setdefault((queue, lane, message["offset"]), (message["id"], message["transactionId"], token))
            pid = self.partition_ids.setdefault((queue, lane), message["partitionId"])
        if known != (message["id"], message["transactionId"], token):
            self.problem(f"{where}: was {known}, is {message['id']} token {token}")
        if pid != message["partitionId"]:
            self.problem(f"{where}: partitionId was {pid}, is {message['partitionId']}")
        return found

    def check_claim(self, claim):
        cursor = self.cursor(claim.group, claim.queue, claim.lane)
        what = f"group {claim.group} {claim.queue}/{claim.lane} {claim.first}..{claim.last} attempt {claim.attempt}"
        offsets = [m["offset"] for m in claim.messages]
        if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            self.problem(f"{what}: offsets with holes {offsets}")
        done = cursor.done_by(claim.sent)
        if claim.first <= done:
            self.problem(f"{what}: delivered although acked up to {done}")
        if claim.first > cursor.done_maybe + 1:
            self.problem(f"{what}: skips {cursor.done_maybe + 1}.. which nobody acked")
        with self.lock:
            for other in cursor.claims:
                if other.received <= claim.sent and claim.received < other.until and other.may_be_released == NEVER:
                    self.problems.append(
                        f"{what}: lease {other.lease} on {other.first}..{other.last} still holds for {other.until - claim.received:.3f} s"
                    )
            previous = cursor.claims[-1] if cursor.claims else None
            if previous and previous.received <= claim.sent and previous.first == claim.first:
                lost = self.unknown_pops.get((claim.group, claim.queue), 0)
                if not previous.attempt + 1 <= claim.attempt <= previous.attempt + 1 + lost:
                    self.problems.append(f"{what}: attempt {previous.attempt} came before, {lost} pops were lost")
            cursor.claims.append(claim)
            cursor.delivered.update(offsets)

    # ---- acks ----

    def ack_sent(self, plan):
        claim = plan.claim
        cursor = self.cursor(claim.group, claim.queue, claim.lane)
        with self.lock:
            if plan.done_maybe is not None:
                cursor.done_maybe = max(cursor.done_maybe, plan.done_maybe)
            if plan.releases:
                claim.may_be_released = min(claim.may_be_released, time.monotonic())
            if plan.kind in ("failed", "dlq"):
                self.dead.setdefault((claim.group, claim.messages[plan.index]["data"]["tok"]), "maybe")
            claim.plan = plan

    def ack_answered(self, plan, status, body, lease_was_certain, repeated=False):
        """`repeated`: the same ack was sent before and its answer was lost. If that one settled the batch, the repeat rule answers
        success without saying again what became of the message."""
        claim = plan.claim
        what = f"ack {plan.kind}[{plan.index}] of {claim.group} {claim.queue}/{claim.lane} {claim.first}..{claim.last}"
        cursor = self.cursor(claim.group, claim.queue, claim.lane)
        if status != 200:
            if status not in (None, 503):
                self.problem(f"{what} answered {status} {body!r}")
            if plan.kind in ("all", "failed", "dlq"):
                cursor.budget_low = 0
                cursor.budget_high += plan.kind == "failed"
            return
        now = time.monotonic()
        results = json.loads(body)
        refused = [r for r in results if not r["success"]]
        if refused:
            if lease_was_certain and now < claim.until:
                self.problem(f"{what}: refused although the lease has {claim.until - now:.3f} s left: {refused[0]}")
            self.claim_over(claim)
            return
        if any(r["leaseReleased"] != plan.releases for r in results):
            self.problem(f"{what}: leaseReleased is not {plan.releases}: {results}")
        dead = bool(results[-1]["dlq"])
        if repeated and not dead and plan.kind in ("failed", "dlq"):
            with self.lock:
                if plan.done is not None:
                    cursor.mark_done(now, plan.done)
            cursor.budget_low, cursor.budget_high = 0, min(cursor.budget_high + 1, RETRY_LIMIT)
            self.claim_over(claim)
            return
        if (plan.kind == "dlq" and not dead) or (dead and plan.kind not in ("failed", "dlq")):
            self.problem(f"{what}: dlq is {dead}")
        self.check_budget(plan, cursor, dead, what)
        with self.lock:
            self.counts["acks"] += 1
            done = plan.done_maybe if dead else plan.done
            if done is not None:
                cursor.mark_done(now, done)
            if dead:
                self.dead[claim.group, claim.messages[plan.index]["data"]["tok"]] = "certain"
        if plan.releases:
            self.claim_over(claim)
        else:
            claim.plan, claim.parted = None, True

    def check_budget(self, plan, cursor, dead, what):
        """retryLimit failed acks lead to redelivery, the next one to the dead letters."""
        if plan.kind == "failed" and not dead:
            if cursor.budget_low >= RETRY_LIMIT:
                self.problem(f"{what}: failed more than {RETRY_LIMIT} times and not dead-lettered")
            cursor.budget_low += 1
            cursor.budget_high = min(cursor.budget_high + 1, RETRY_LIMIT)
            return
        if plan.kind == "failed" and cursor.budget_high < RETRY_LIMIT:
            self.problem(f"{what}: dead-lettered after at most {cursor.budget_high} failures")
        if plan.kind in ("all", "failed", "dlq"):
            cursor.budget_low = cursor.budget_high = 0

    def claim_over(self, claim):
        claim.settled = True
        with self.lock:
            if claim in self.open_claims:
                self.open_claims.remove(claim)

    def extend_answered(self, claim, sent, seconds, status, body):
        if status != 200:
            return
        now = time.monotonic()
        answer = json.loads(body)
        if answer["success"]:
            claim.until = max(claim.until, sent + seconds)
        elif now < claim.until and claim.may_be_released == NEVER:
            self.problem(f"extend of lease {claim.lease} refused with {claim.until - now:.3f} s left: {answer}")

    def claims_still_open(self):
        with self.lock:
            return [c for c in self.open_claims if not c.settled]
