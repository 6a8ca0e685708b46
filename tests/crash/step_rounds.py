"""Transactions that touch much at once, and the whole of what each of them must leave: everything or nothing.

Round r, one transaction:
    acks        a message of src/a and one of src/b, each under a lease of its own
    pushes      5 queues x 3 lanes, one message each
    kv          8 keys: four puts of r, an incr, a required marker, a key of this round put and that of the last round deleted
    timers      one into fired/x and one into fired/y
Rounds come one after the other; a round whose fate is unknown is sent again, until it is known.
"""
import base64
import json
import threading
import time

from crash_broker import Conn, Gone

QUEUES = tuple(f"out-{n}" for n in range(5))
LANES = ("l0", "l1", "l2")
PUT_KEYS = ("k0", "k1", "k2", "k3")
SOURCES = ("a", "b")
INPUTS = 400
LEASE_S = 60
GROUP = "g"


def decoded(message):
    return message["data"]["r"]


class Rounds:
    def __init__(self, broker):
        self.broker = broker
        self.number = 0  # of the next round
        self.claims = None  # what its acks name: (message a, message b)
        self.body = None
        self.last_due_ms = {}  # (round, timer) -> promised earliest time
        self.promised = {}  # (round, timer) -> message id, where the answer arrived
        self.versions = {}  # key -> highest version seen
        self.looks = 0
        self.problems = []

    # ---- a round ----

    def prepare(self):
        """Inputs for all rounds."""
        conn = self.broker.conn()
        for lane in SOURCES:
            items = [{"queue": "src", "partition": lane, "transactionId": f"{lane}{n}", "payload": n} for n in range(INPUTS)]
            status, _ = conn.call("POST", "/api/v1/push", {"items": items})
            assert status == 201
        conn.close()
        return self

    def claim(self):
        """Pops the two inputs of the next round. Their leases outlive the crashes to come."""
        conn = self.broker.conn()
        claims = []
        for lane in SOURCES:
            path = f"/api/v1/pop/queue/src/partition/{lane}?consumerGroup={GROUP}&batch=1&leaseSeconds={LEASE_S}&subscriptionMode=all"
            status, answer = conn.json("GET", path)
            assert status == 200 and len(answer["messages"]) == 1, (status, answer)
            message = answer["messages"][0]
            assert message["data"] == self.number, f"round {self.number} gets input {message['data']} of {lane}"
            claims.append(message)
        conn.close()
        self.claims = claims

    def make(self, pad=0, delays_ms=(0, 150)):
        """The transaction of the next round; pad: bytes added to each pushed payload."""
        r = self.number
        acks = [
            {"type": "ack", "transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": m["leaseId"],
             "consumerGroup": GROUP, "status": "completed"}
            for m in self.claims
        ]  # fmt: skip
        items = [
            {"queue": queue, "partition": lane, "transactionId": f"r{r}", "payload": {"r": r, "pad": "x" * pad}}
            for queue in QUEUES for lane in LANES
        ]  # fmt: skip
        kv = [{"op": "put", "ns": "step", "key": key, "value": r, "forever": True} for key in PUT_KEYS]
        kv.append({"op": "incr", "ns": "step", "key": "count", "delta": 1, "forever": True})
        kv.append({"op": "putIfAbsent", "ns": "step", "key": f"once.{r}", "value": r, "ttlSeconds": 86400, "required": True})
        kv.append({"op": "put", "ns": "step", "key": f"round.{r}", "value": r, "forever": True})
        kv.append({"op": "delete", "ns": "step", "key": f"round.{r - 1}"})
        now_ms = time.time() * 1000
        timers = []
        for lane, delay in zip("xy", delays_ms):
            self.last_due_ms[(r, lane)] = now_ms + delay
            timers.append({
                "op": "schedule", "queue": "fired", "partition": lane, "timerKey": f"{lane}.{r}", "txn": f"{lane}.{r}", "delayMs": delay,
                "payload": base64.b64encode(json.dumps({"r": r}).encode()).decode(),
            })  # fmt: skip
        body = {"operations": [acks[0], {"type": "push", "items": items[:7]}, acks[1], {"type": "push", "items": items[7:]}],
                "kv": kv, "timers": timers}  # fmt: skip
        self.body = json.dumps(body).encode()
        return self

    def send(self, conn=None):
        """True: committed. None: not known. A rollback of a first try must not be."""
        status = 429
        deadline = time.monotonic() + 10
        while status == 429 and time.monotonic() < deadline:  # refused and not done: the store is behind, right after a start
            try:
                conn = conn or self.broker.conn()
                status, answer = conn.json("POST", "/api/v1/transaction", self.body)
            except Gone:
                return None
            if status == 503:
                return None
            if status == 429:
                time.sleep(0.02)
        assert status == 200 and answer["success"], f"round {self.number}: {status} {answer}"
        results = answer["results"]
        assert [r["type"] for r in results] == ["ack"] + ["push"] * 7 + ["ack"] + ["push"] * 8 + ["kv"] * 8 + ["timer"] * 2
        assert [r["index"] for r in results] == list(range(27))
        for result in results:
            if result["type"] == "kv" and result["op"] in ("put", "putIfAbsent", "incr"):
                self.note_version(result["key"], result["version"], fresh=True)
            if result["type"] == "timer":
                self.promised[(self.number, result["timerKey"][0])] = result["messageId"]
        return True

    def note_version(self, key, version, fresh=False):
        """Versions of a key never go back; a write's answer carries one above all before it."""
        before = self.versions.get(key, 0)
        if version < before or (fresh and version <= before):
            self.problems.append(f"{key} has version {version} after {before}")
        self.versions[key] = max(before, version)

    # ---- what is there ----

    def drain(self, conn, queue):
        lanes = {}
        path = f"/api/v1/pop/queue/{queue}?consumerGroup=look-{self.looks}&batch=2000&partitions=64&autoAck=true&subscriptionMode=all"
        while True:
            status, answer = conn.json("GET", path)
            if status == 204:
                return lanes
            assert status == 200, (status, answer)
            for message in answer["messages"]:
                lanes.setdefault(message["partition"], []).append(message)

    def rows(self, conn):
        keys = [*PUT_KEYS, "count"] + [f"{kind}.{n}" for n in range(max(0, self.number - 3), self.number + 1) for kind in ("once", "round")]
        status, answer = conn.json("POST", "/api/v1/kv", [{"op": "getMany", "ns": "step", "keys": keys}])
        assert status == 200, (status, answer)
        rows = {row["key"]: row for row in answer["results"][0]["rows"]}
        for key, row in rows.items():
            self.note_version(key, row["version"])
        return {key: row["value"] for key, row in rows.items()}

    def acked(self, conn):
        """How many messages of each source lane are done."""
        status, depth = conn.json("GET", f"/api/v1/resources/queues/src/depth?group={GROUP}")
        assert status == 200, (status, depth)
        return {row["partition"]: INPUTS - row["pending"] for row in depth["partitions"]}

    def timer_pending(self, conn, lane):
        status, answer = conn.json("GET", f"/api/v1/timers/fired/{lane}.{self.number}")
        assert status == 200, (status, answer)
        return answer["found"]

    def parts(self, conn):
        """name -> whether that part of the present round is there. Earlier rounds must be whole, later ones absent."""
        self.looks += 1
        r = self.number
        parts = {}
        for queue in QUEUES:
            lanes = self.drain(conn, queue)
            for lane in LANES:
                rounds = [decoded(m) for m in lanes.get(lane, [])]
                if rounds[:r] != list(range(r)) or rounds[r:] not in ([], [r]):
                    self.problems.append(f"before round {r} is settled {queue}/{lane} holds {rounds}")
                parts[f"{queue}/{lane}"] = rounds[r:] == [r]
        values = self.rows(conn)
        for key in PUT_KEYS:
            parts[key] = values.get(key) == r
            if values.get(key) not in (r, r - 1 if r else None):
                self.problems.append(f"{key} is {values.get(key)} in round {r}")
        parts["count"] = values.get("count") == r + 1
        parts["marker"] = values.get(f"once.{r}") == r
        parts["put of this round"] = values.get(f"round.{r}") == r
        if r:
            parts["delete of the last round"] = f"round.{r - 1}" not in values
        for lane, done in self.acked(conn).items():
            parts[f"ack of {lane}"] = done == r + 1
            if done not in (r, r + 1):
                self.problems.append(f"{done} of {lane} are done in round {r}")
        # pending first: a timer that fires between the two looks is then seen by both
        pending = {lane: self.timer_pending(conn, lane) for lane in "xy"}
        fired = self.fired(conn)
        for lane in "xy":
            parts[f"timer {lane}"] = pending[lane] or (r in fired[lane])
        return parts

    def fired(self, conn):
        """Rounds whose timers fired, by lane; none twice, none early, with the promised id."""
        self.looks += 1
        out = {"x": [], "y": []}
        for lane, messages in self.drain(conn, "fired").items():
            for message in messages:
                r = decoded(message)
                if r in out[lane]:
                    self.problems.append(f"timer {lane}.{r} fired twice")
                out[lane].append(r)
                # createdAt is cut to milliseconds
                if stamp_ms(message["createdAt"]) + 1 < self.last_due_ms[(r, lane)]:
                    self.problems.append(f"timer {lane}.{r} fired at {message['createdAt']}, due {self.last_due_ms[(r, lane)]:.3f}")
                if self.promised.get((r, lane), message["id"]) != message["id"]:
                    self.problems.append(f"timer {lane}.{r} came as {message['id']}")
        return out

    def settle(self, sent):
        """After a restart: is the present round there? All or nothing; all when it was answered. When nothing, it is sent again."""
        conn = self.broker.conn()
        parts = self.parts(conn)
        there = {name for name, present in parts.items() if present}
        if there and len(there) < len(parts):
            self.problems.append(f"round {self.number} is torn: {sorted(set(parts) - there)} are missing, {sorted(there)} are there")
        if sent and len(there) < len(parts):
            self.problems.append(f"round {self.number} was answered and is not there")
        committed = bool(there)
        if not committed:
            # the leases outlived the crash
            committed = self.send(conn)
            assert committed, "the broker died although no crash was ordered"
            again = self.parts(conn)
            if not all(again.values()):
                self.problems.append(f"round {self.number} was answered and misses {[n for n, there in again.items() if not there]}")
        self.judge()
        self.number += 1
        conn.close()
        return bool(there)

    def finish(self):
        """Every timer fires, once; nothing is left behind."""
        conn = self.broker.conn()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            status, answer = conn.json("GET", "/api/v1/timers/fired")
            assert status == 200, (status, answer)
            if not answer["rows"]:
                break
            time.sleep(0.05)
        else:
            self.problems.append(f"timers never fired: {answer['rows'][:3]}")
        fired = self.fired(conn)
        for lane in "xy":
            if sorted(fired[lane]) != list(range(self.number)):
                self.problems.append(f"timers {lane} fired for {sorted(fired[lane])}, not for 0..{self.number - 1}")
        conn.close()
        self.judge()

    def judge(self):
        assert not self.problems, "\n".join(self.problems[:10]) + "\n" + self.broker.log_tail()


class Reader(threading.Thread):
    """Reads the keys of the rounds in one call, again and again: never a proper subset of a round."""

    def __init__(self, broker):
        super().__init__(daemon=True)
        self.broker = broker
        self.stopping = False
        self.reads = 0
        self.problems = []

    def run(self):
        conn = None
        op = {"op": "getMany", "ns": "step", "keys": [*PUT_KEYS, "count"]}
        while not self.stopping:
            try:
                conn = conn or Conn(self.broker.port, timeout=10.0)
                status, answer = conn.json("POST", "/api/v1/kv", [op])
            except Gone:
                conn = None
                time.sleep(0.01)
                continue
            if status != 200:
                continue
            self.reads += 1
            rows = {row["key"]: row["value"] for row in answer["results"][0]["rows"]}
            if rows and (len(rows) != 5 or len({rows[k] for k in PUT_KEYS}) != 1 or rows["count"] != rows["k0"] + 1):
                self.problems.append(f"half of a round is visible: {rows}")

    def stop(self):
        self.stopping = True
        self.join(20)
        assert not self.problems, self.problems[:5]


def stamp_ms(text):
    """Milliseconds of a time as the wire spells it."""
    whole, _, rest = text.rstrip("Z").partition(".")
    seconds = time.mktime(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) - time.timezone
    return seconds * 1000 + int((rest or "0").ljust(6, "0")[:6]) / 1000
