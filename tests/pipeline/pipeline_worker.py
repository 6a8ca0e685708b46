"""One worker of the pipeline, a process of its own: pop, then one transaction a message, with everything that goes wrong with workers.

    python3 pipeline_worker.py '<settings as JSON>'

Settings: port, stage, seed, lease_s, gate ("ids", "marker" or "none"), next, send_twice, log.
  gate ids     the output's transactionId is derived from the input, and the marker is required
  gate marker  the output gets an id of its own: the marker alone stands against doubles
  gate none    no marker and no derived id: the mutant that shows what the two are for

The log file holds one JSON line an event; the process may be killed at any moment, so what is in it is true and not complete:
  {"count": name}                    something that happened
  {"cancel": id, "status": ...}      what a cancellation was answered
  {"promise": queue, "id": ..., "message": ...}
  {"problem": text}                  an answer that must not be
SIGTERM ends it politely, between two calls.
"""
import base64
import json
import os
import random
import signal
import sys
import threading
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "crash"))

from crash_broker import Conn, Gone  # noqa: E402
from pipeline_verify import GROUP, SOURCE, TARGET  # noqa: E402

POP_TIMEOUT_MS = 400
ATTEMPTS_MAX = 40  # of one transaction whose outcome is unknown

# what a worker does with a message: name -> share
MISHAPS = (
    ("vanish", 0.008),  # it forgets everything, with the lease running
    ("half", 0.008),  # so it does, with half of its transaction sent
    ("blind", 0.008),  # or with all of it sent and the answer not awaited
    ("oversleep", 0.004),  # it sends when its lease is over
    ("retry", 0.01),
    ("failed", 0.01),
    ("twice", 0.04),  # it sends the transaction again after its answer
    ("abreast", 0.03),  # it sends it on two connections at once
    ("extend", 0.02),
    ("spoiled", 0.02),  # first it sends the step with a part that must be refused; then the step itself, or it forgets everything
)


class Stopped(Exception):
    pass


class Dropped(Exception):
    """The rest of the batch is given up."""


class Worker:
    def __init__(self, settings):
        self.settings = settings
        self.stage = settings["stage"]
        self.rng = random.Random(settings["seed"])
        self.log = open(settings["log"], "a", encoding="utf-8", buffering=1)
        self.conn = None
        self.stopping = False
        self.following = None  # the answer of a `next`
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))

    # ---- log ----

    def write(self, **event):
        self.log.write(json.dumps(event) + "\n")

    def count(self, name):
        self.write(count=name)

    def problem(self, text):
        self.write(problem=f"stage {self.stage}: {text}")

    # ---- calls ----

    def connection(self):
        if self.conn is None:
            self.conn = Conn(self.settings["port"], timeout=20.0)
        return self.conn

    def drop_connection(self):
        if self.conn is not None:
            self.conn.close()
            self.conn = None

    def call(self, method, path, body=b""):
        """(status, parsed answer); (None, None) when the answer was lost or is "unknown"."""
        try:
            status, raw = self.connection().call(method, path, body)
        except Gone:
            self.drop_connection()
            self.count("answers lost")
            return None, None
        if status == 503:
            self.count("answers 503")
            return None, None
        return status, json.loads(raw) if raw else None

    # ---- the loop ----

    def run(self):
        while not self.stopping:
            if self.following is not None:
                batch, self.following = self.following, None
            else:
                batch = self.pop()
            try:
                self.work(batch)
            except Dropped:
                self.following = None

    def claim_parameters(self):
        return {
            "queue": SOURCE[self.stage], "consumerGroup": GROUP, "batch": self.rng.choice((1, 3, 8)),
            "partitions": self.rng.choice((1, 1, 3)), "wait": True, "timeout": POP_TIMEOUT_MS,
            "leaseSeconds": self.settings["lease_s"], "subscriptionMode": "all",
        }  # fmt: skip

    def pop(self):
        parameters = self.claim_parameters()
        queue = parameters.pop("queue")
        query = "&".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in parameters.items())
        status, answer = self.call("GET", f"/api/v1/pop/queue/{queue}?{query}")
        if status is None:
            time.sleep(0.03)
            return []
        if status == 204:
            return []
        if status != 200:
            self.problem(f"pop answered {status} {answer}")
            time.sleep(0.1)
            return []
        self.received = time.monotonic()
        return answer["messages"]

    def work(self, batch):
        self.lost_lanes = set()
        for position, message in enumerate(batch):
            if message["partition"] in self.lost_lanes:
                continue
            last = position == len(batch) - 1
            self.handle(message, batch, last)
            if self.stopping:
                return

    def mishap(self):
        roll = self.rng.random()
        for name, share in MISHAPS:
            roll -= share
            if roll < 0:
                return name
        return "abreast" if self.rng.random() < self.settings["send_twice"] else None

    def handle(self, message, batch, last):
        if message["deliveryAttempt"] > 1:
            self.count("redeliveries")
        mishap = self.mishap()
        if mishap is not None:
            self.count(mishap)
        if mishap == "vanish":
            self.drop_connection()
            raise Dropped
        if mishap in ("retry", "failed"):
            self.nack(message, mishap)
            return
        if mishap == "extend":
            self.extend(message)
        step = Step(self, message)
        if mishap == "spoiled":
            self.spoil(step)
        text = step.text(self.claim_parameters() if last and self.settings["next"] and mishap is None else None)
        if mishap in ("half", "blind"):
            self.send_and_leave(text, len(text) if mishap == "blind" else self.rng.randrange(len(text)))
            raise Dropped
        if mishap == "oversleep":
            time.sleep(max(0.0, self.received + self.settings["lease_s"] + 0.05 - time.monotonic()))
        rival = Rival(self, text).start() if mishap == "abreast" else None
        answer, attempts = self.send_until_answered(text)
        if rival is not None:
            rival.join()
            if rival.answer is not None and rival.answer["success"]:
                step.committed(rival.answer)
        self.judge(step, answer, attempts, mishap, rival)
        if mishap == "twice":
            again, _ = self.send_until_answered(text)
            if again["success"] and answer["success"] and self.settings["gate"] != "none":
                self.problem(f"the same transaction committed twice: {step.id}")
            self.count_rollback(again)

    def send_until_answered(self, text):
        for attempt in range(ATTEMPTS_MAX):
            status, answer = self.call("POST", "/api/v1/transaction", text)
            if status == 200:
                return answer, attempt
            if status is not None:
                self.problem(f"transaction answered {status} {answer}")
                raise Dropped
            self.count("transactions sent again")
            if self.stopping:
                raise Dropped
            time.sleep(0.03 + 0.02 * attempt)
        raise Dropped

    def spoil(self, step):
        """A transaction that is rolled back although its message is not done: nothing of it may stay, its ack included."""
        kind = self.rng.choice(("duplicate", "kv_precondition", "rejected_ack"))
        answer, _ = self.send_until_answered(step.spoiled_text(kind))
        if answer["success"] or answer["reason"] not in (kind, "rejected_ack"):
            self.problem(f"a step spoiled to be refused for {kind} answered {answer}")
        self.count_rollback(answer)
        if answer.get("reason") == kind:
            self.count(f"spoiled {kind}")
        if self.rng.random() < 0.6:
            raise Dropped

    def send_and_leave(self, text, length):
        head = f"POST /api/v1/transaction HTTP/1.1\r\nHost: q\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        try:
            self.connection().socket.sendall(head + text[:length])
        except (OSError, Gone):
            pass
        self.drop_connection()

    def count_rollback(self, answer):
        if not answer["success"]:
            kv = answer.get("kvReason")
            self.count(f"rollback {answer['reason']}" + (f" {kv}" if kv else ""))

    def judge(self, step, answer, attempts, mishap, rival):
        if answer["success"]:
            self.count("committed")
            if mishap == "oversleep":
                self.problem(f"{step.id} committed after its lease was over")
            step.committed(answer)
            if "next" in answer:
                self.received = time.monotonic()
                self.following = answer["next"]["messages"]
                self.count("next with messages" if self.following else "next without")
            return
        self.count_rollback(answer)
        reason = answer["reason"]
        if answer["results"] or "next" in answer:
            self.problem(f"a rollback with results or next: {answer}")
        if reason == "rejected_ack":
            self.lost_lanes.add(step.lane)
            return
        if reason not in ("duplicate", "kv_precondition") or (reason == "kv_precondition" and answer["kvReason"] != "exists"):
            self.problem(f"rollback nobody asked for: {answer}")
        if attempts == 0 and rival is None:
            # the message was delivered under a live lease, so it is unacked: then nothing of its step may be there
            self.problem(f"effects of {step.id} without its ack: {answer}")

    def nack(self, message, status):
        body = {
            "consumerGroup": GROUP, "transactionId": message["transactionId"], "partitionId": message["partitionId"],
            "leaseId": message["leaseId"], "status": status, "error": "again, please",
        }  # fmt: skip
        code, answer = self.call("POST", "/api/v1/ack", json.dumps(body).encode())
        self.lost_lanes.add(message["partition"])
        if code not in (200, None):
            self.problem(f"ack answered {code} {answer}")

    def extend(self, message):
        body = json.dumps({"seconds": self.settings["lease_s"]}).encode()
        status, answer = self.call("POST", f"/api/v1/lease/{message['leaseId']}/extend", body)
        if status not in (200, None):
            self.problem(f"extend answered {status} {answer}")


class Rival:
    """The same transaction on a second connection at the same time, once."""

    def __init__(self, worker, text):
        self.worker, self.text = worker, text
        self.answer = None
        self.thread = threading.Thread(target=self.send)

    def start(self):
        self.thread.start()
        return self

    def join(self):
        self.thread.join()
        if self.answer is not None:
            self.worker.count_rollback(self.answer)

    def send(self):
        try:
            conn = Conn(self.worker.settings["port"], timeout=20.0)
            status, answer = conn.json("POST", "/api/v1/transaction", self.text)
            conn.close()
        except Gone:
            return
        if status == 200:
            self.answer = answer
        elif status != 503:
            self.worker.problem(f"transaction answered {status} {answer}")


class Step:
    """One message's transaction and what its answer must say."""

    def __init__(self, worker, message):
        self.worker, self.message = worker, message
        self.lane = message["partition"]
        self.id = message["data"]["id"]
        self.number = message["data"]["number"]
        self.poisoned = message["data"].get("poisoned", False)
        self.lent = worker.rng.random() < 0.3  # the lease comes from requiredLeases

    def ack(self):
        m = self.message
        op = {"type": "ack", "transactionId": m["transactionId"], "partitionId": m["partitionId"], "consumerGroup": GROUP,
              "status": "dlq" if self.poisoned else "completed"}  # fmt: skip
        if self.poisoned:
            op["error"] = "poisoned"
        if not self.lent:
            op["leaseId"] = m["leaseId"]
        return op

    def push(self):
        stage = self.worker.stage
        # the place in its lane as the next stage must see it: poisoned inputs are left out
        item = {"queue": TARGET[stage], "partition": self.lane,
                "payload": {"id": self.id, "number": self.message["data"].get("clean_number", self.number), "by": stage}}  # fmt: skip
        if self.worker.settings["gate"] == "ids":
            item["transactionId"] = f"{stage}-{self.id}"
        if self.worker.rng.random() < 0.5:
            return {"type": "push", "items": [item]}
        return {"type": "push", **item}

    def kv(self):
        stage = self.worker.stage
        ops = [
            {"op": "incr", "ns": "count", "key": f"{stage}.{self.lane}", "delta": 1, "forever": True},
            {"op": "put", "ns": "last", "key": f"{stage}.{self.lane}", "value": self.id, "forever": True},
        ]
        if self.worker.settings["gate"] != "none":
            ops.append({"op": "putIfAbsent", "ns": "once", "key": f"{stage}.{self.id}", "value": 1, "ttlSeconds": 7200, "required": True})
        self.worker.rng.shuffle(ops)
        return ops

    def timers(self):
        if self.worker.stage == "b":
            return [{"op": "cancel", "queue": "late", "timerKey": f"t-{self.id}"}]
        ops = []
        for queue, longest in (("timed", 1500.0), ("late", 1200.0)):
            delay = round(self.worker.rng.choice((0.0, self.worker.rng.uniform(1, longest), self.worker.rng.uniform(1, longest))), 3)
            payload = json.dumps({"id": self.id, "due_ms": time.time() * 1000 + delay}).encode()
            ops.append({
                "op": "schedule", "queue": queue, "partition": self.lane, "timerKey": f"t-{self.id}", "txn": f"t-{self.id}",
                "delayMs": delay, "payload": base64.b64encode(payload).decode(),
            })  # fmt: skip
        return ops

    def text(self, following):
        body = {"operations": [self.ack()] + ([] if self.poisoned else [self.push()]), "kv": self.kv()}
        if self.lent:
            body["requiredLeases"] = [self.message["leaseId"]]
        if not self.poisoned:
            body["timers"] = self.timers()
        if following is not None:
            body["next"] = following
        self.body = body
        return json.dumps(body).encode()

    def spoiled_text(self, kind):
        """The step with a push, a KV op or a lease that makes it fail for this reason."""
        self.text(None)
        body = dict(self.body, operations=list(self.body["operations"]), kv=list(self.body["kv"]))
        if kind == "duplicate":
            item = {"queue": "gate", "partition": "gate", "transactionId": "closed", "payload": 0}
            body["operations"].append({"type": "push", "items": [item]})
        elif kind == "kv_precondition":
            # the namespace comes last in the order of judging
            body["kv"].append({"op": "putIfAbsent", "ns": "zgate", "key": "closed", "value": 0, "forever": True, "required": True})
        else:
            body["operations"][0] = dict(body["operations"][0], leaseId=str(uuid.UUID(int=self.worker.rng.getrandbits(128))))
        return json.dumps(body).encode()

    def committed(self, answer):
        """The answer's elements: their order, their indexes, and the value the counter came to."""
        problem = self.worker.problem
        results = answer["results"]
        want = ["ack"] + ([] if self.poisoned else ["push"]) + ["kv"] * len(self.body["kv"]) + ["timer"] * len(self.body.get("timers", []))
        if [r["type"] for r in results] != want or [r["index"] for r in results] != list(range(len(want))):
            problem(f"results of {self.id} are not {want}: {results}")
            return
        for op, result in zip(self.body["kv"], [r for r in results if r["type"] == "kv"]):
            if not result["applied"] or result["key"] != op["key"]:
                problem(f"kv of {self.id} answered {result}")
            elif op["op"] == "incr" and result["value"] != self.number and self.worker.settings["gate"] != "none":
                problem(f"{self.id} is input {self.number} of its lane and its counter came to {result['value']}")
        for op, result in zip(self.body.get("timers", []), [r for r in results if r["type"] == "timer"]):
            if op["op"] == "cancel":
                self.worker.write(cancel=self.id, status=result["status"])
                self.worker.count(f"cancel {result['status']}")
            elif result["status"] != "scheduled":
                problem(f"timer of {self.id} answered {result}")
            else:
                self.worker.write(promise=op["queue"], id=self.id, message=result["messageId"])


if __name__ == "__main__":
    Worker(json.loads(sys.argv[1])).run()
