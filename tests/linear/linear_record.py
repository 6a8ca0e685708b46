"""Concurrent clients whose every call is written down, in the form the checker reads.

Keys live in groups of KEYS. A new set of groups begins every EPOCH_S seconds, so that no history gets long. Reads whose answer was lost
are left out: they can have changed nothing. Every string and object is written once (the checker relies on it)."""
import json
import random
import threading
import time
from collections import Counter

from crash_broker import Conn, Gone

KEYS = 3
GROUPS = 3
EPOCH_S = 1.5
NAME_SPACE = "linear"
CUT_SHARE = 0.004  # of the calls: the connection is closed before the answer
READS = ("get", "getMany")


class Client:
    def __init__(self, record, number):
        self.record, self.number = record, number
        self.rng = random.Random(f"{record.seed}/{number}")
        self.conn = None
        self.life = 0  # after a lost answer the client is another one
        self.seen = {}  # (group, key) -> version last told
        self.values = 0

    def run(self):
        try:
            while not self.record.over.is_set():
                self.call()
        except Exception as error:  # a client must not fail in silence
            self.record.problem(f"client {self.number}: {type(error).__name__}: {error}")

    # ---- what is asked ----

    def value(self, key):
        self.values += 1
        if key == 1 and self.rng.random() < 0.8:
            return self.number * 1000000 + self.values
        return self.rng.choice((f"c{self.number}-{self.values}", {"client": self.number, "n": [self.values]}))

    def expect(self, group, key):
        """Mostly what was seen last, now and then nothing or an older one."""
        version = self.seen.get((group, key), 0)
        return max(0, version - self.rng.choice((0, 0, 0, 1)))

    def write(self, group, key):
        roll = self.rng.random()
        expiry = {"forever": True} if self.rng.random() < 0.7 else {"ttlSeconds": 3600}
        if key == 1 and roll < 0.5:
            op = {"op": "incr", "key": key, "delta": self.rng.choice((1, 1, 7, -3)), **expiry}
            if self.rng.random() < 0.2:
                op[self.rng.choice(("min", "max"))] = self.rng.randrange(8000000)
            return op
        if roll < 0.55:
            return {"op": "put", "key": key, "value": self.value(key), **expiry}
        if roll < 0.75:
            return {"op": "put", "key": key, "value": self.value(key), "expect": self.expect(group, key), **expiry}
        if roll < 0.85:
            return {"op": "putIfAbsent", "key": key, "value": self.value(key), **expiry}
        if roll < 0.95:
            return {"op": "delete", "key": key, **({"expect": self.expect(group, key)} if self.rng.random() < 0.4 else {})}
        return {"op": "check", "key": key, "expect": self.expect(group, key)}

    def one(self, group):
        key = self.rng.randrange(KEYS)
        return {"op": "get", "key": key} if self.rng.random() < 0.4 else self.write(group, key)

    def several(self, group):
        """Writes of some keys, reads before and after them; now and then one of them is required."""
        ops = []
        for key in self.rng.sample(range(KEYS), self.rng.randrange(1, KEYS + 1)):
            ops.append(self.write(group, key))
            if self.rng.random() < 0.3:
                ops[-1]["required"] = True
        for _ in range(self.rng.randrange(0, 3)):
            ops.insert(self.rng.randrange(len(ops) + 1), {"op": "get", "key": self.rng.randrange(KEYS)})
        if self.rng.random() < 0.4:
            ops.insert(self.rng.randrange(len(ops) + 1), {"op": "getMany", "keys": list(range(KEYS))})
        return ops

    # ---- asking ----

    def call(self):
        time.sleep(self.rng.random() * 0.004)
        group = self.record.group(self.rng)
        roll = self.rng.random()
        if roll < 0.7:
            ops = [self.one(group)]
        elif roll < 0.8:
            ops = [{"op": "getMany", "keys": list(range(KEYS))}]
        else:
            ops = self.several(group)
        routes = ["kv", "transaction"]
        if len(ops) == 1 and ops[0]["op"] in ("get", "put", "delete"):
            routes.append("path")
        route = self.rng.choice(routes)
        method, path, body, slots = self.request(route, group, ops)
        if self.conn is None:
            try:
                self.conn = self.record.connect()
            except Gone:
                time.sleep(0.02)
                return
        sent = time.monotonic_ns()
        status, raw = self.exchange(method, path, body)
        ended = time.monotonic_ns()
        answer = None
        if status == 200:
            answer = self.told(route, group, ops, json.loads(raw), slots)
        elif status == 429:  # nothing was done
            self.record.counts["calls refused"] += 1
            return
        elif status not in (None, 503):
            self.record.problem(f"{method} {path} {body!r} answered {status} {raw!r}")
            return
        if answer is None:
            self.life += 1
            self.record.counts["answers lost"] += 1
            if all(op["op"] in READS for op in ops):
                return
        self.record.write(self, group, route, ops, sent, ended, answer)

    def exchange(self, method, path, body):
        try:
            if self.rng.random() < CUT_SHARE:
                head = f"{method} {path} HTTP/1.1\r\nHost: q\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                self.conn.socket.sendall(head + body)
                raise Gone("cut")
            return self.conn.call(method, path, body)
        except (Gone, OSError):
            self.conn.close()
            self.conn = None
            return None, b""

    def request(self, route, group, ops):
        """(method, path, body, slots before the KV elements)."""
        if route == "path":
            op = ops[0]
            path = f"/api/v1/kv/{NAME_SPACE}/{group}-{op['key']}"
            if op["op"] == "get":
                return "GET", path, b"", 0
            body = {k: v for k, v in op.items() if k not in ("op", "key")}
            return ("PUT" if op["op"] == "put" else "DELETE"), path, json.dumps(body).encode() if body else b"", 0
        wire = []
        for op in ops:
            wire.append(dict(op, ns=NAME_SPACE))
            if "keys" in op:
                wire[-1]["keys"] = [f"{group}-{key}" for key in op["keys"]]
            else:
                wire[-1]["key"] = f"{group}-{op['key']}"
        if route == "kv":
            return "POST", "/api/v1/kv", json.dumps(wire).encode(), 0
        body = {"kv": wire}
        slots = self.rng.choice((0, 0, 1, 2))
        if slots:
            body["operations"] = [{"type": "push", "items": [{"queue": "linear", "payload": n} for n in range(slots)]}]
        return "POST", "/api/v1/transaction", json.dumps(body).encode(), slots

    # ---- what is told ----

    def told(self, route, group, ops, answer, slots):
        if answer.get("success", True) is False and answer["reason"] != "kv_precondition":
            self.record.problem(f"transaction {ops} answered {answer}")
            return None
        if answer.get("reason") == "kv_precondition":
            self.record.counts["calls rolled back"] += 1
            verdict = {k: answer[k] for k in ("failedIndex", "kvReason", "version", "value")}
            verdict["failedIndex"] -= slots
            return {"rollback": verdict}
        elements = [answer] if route == "path" else answer["results"]
        if route == "transaction":
            elements = [e for e in elements if e["type"] == "kv"]
        if len(elements) != len(ops):
            self.record.problem(f"{len(ops)} ops answered with {answer}")
            return None
        return {"results": [self.element(group, op, element) for op, element in zip(ops, elements)]}

    def element(self, group, op, element):
        """The element as the checker reads it, keys by number; notes the version."""
        if element["op"] != op["op"]:
            self.record.problem(f"{op} answered {element}")
        number = lambda key: int(key.rsplit("-", 1)[1])  # noqa: E731
        self.record.counts[f"{op['op']} {element.get('reason', 'applied' if element.get('applied') else 'read')}"] += 1
        if op["op"] == "getMany":
            if element["truncated"]:
                self.record.problem(f"cut short: {element}")
            rows = [{"key": number(r["key"]), "value": r["value"], "version": r["version"]} for r in element["rows"]]
            return {"rows": rows, "missing": [number(key) for key in element["missing"]]}
        out = {k: element[k] for k in ("applied", "reason", "found", "value", "version") if k in element}
        out["key"] = number(element["key"])
        if out["key"] != op["key"]:
            self.record.problem(f"{op} answered {element}")
        if element.get("applied") and op["op"] in ("put", "putIfAbsent", "incr"):
            self.record.note_version(out["version"], op)
        if "version" in out:
            self.seen[(group, out["key"])] = out["version"]
        return out


class Record:
    def __init__(self, port, seed, path, clients=8):
        self.port, self.seed = port, seed
        self.file = open(path, "w", encoding="utf-8")
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.problems = []
        self.counts = Counter()
        self.versions = {}
        self.began = time.monotonic()
        self.threads = [threading.Thread(target=Client(self, n).run, daemon=True) for n in range(clients)]

    def start(self):
        for thread in self.threads:
            thread.start()
        return self

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join(60)
            if thread.is_alive():
                self.problem("a client hangs: its call was neither answered nor cut")
        self.file.close()

    def connect(self):
        return Conn(self.port, timeout=20.0)

    def group(self, rng):
        epoch = int((time.monotonic() - self.began) / EPOCH_S)
        return f"e{epoch}g{rng.randrange(GROUPS)}"

    def problem(self, text):
        with self.lock:
            self.problems.append(text)

    def note_version(self, version, op):
        """A version is never given twice, whatever the key."""
        with self.lock:
            if version in self.versions:
                self.problems.append(f"version {version} was given to {self.versions[version]} and to {op}")
            self.versions[version] = op

    def write(self, client, group, route, ops, sent, ended, answer):
        known = ("op", "key", "keys", "value", "expect", "delta", "min", "max", "required")
        line = {
            "client": client.number * 10000 + client.life, "group": group, "route": route, "call": sent, "return": ended if answer else None,
            "ops": [{k: v for k, v in op.items() if k in known} for op in ops], "answer": answer,
        }  # fmt: skip
        with self.lock:
            self.counts["calls"] += 1
            self.counts["calls of several ops"] += len(ops) > 1
            self.file.write(json.dumps(line) + "\n")
