"""Inputs through two stages of workers; a step is one transaction: an ack, pushes to four queues, a counter, two twin keys, a timer, and a
mark that lets it happen once.

Judged: every input has gone through once and in order, in every queue; its timers fired once; counters and twins agree; nobody ever read one
twin without the other. A step whose answer was lost is sent again, the same, to another node, and the answer tells what became of it."""
import base64
import json
import time

from workload import Workload, same_everywhere

LANES = [f"lane-{i}" for i in range(6)]
GROUP = "steps"
SIDES = 3  # queues beside the next one
TIMED = "pipe-timed"
STAGES = {"a": ("pipe-in", "pipe-mid"), "b": ("pipe-mid", "pipe-out")}
BACKLOG_MAX = 200
LEASE_S = 3


def side_queues(stage):
    return [f"pipe-side-{stage}-{n}" for n in range(SIDES)]


class PipelineWorkload(Workload):
    name = "pipeline"

    def __init__(self, cluster, seed, workers=2, gate=True):
        super().__init__(cluster, seed)
        self.workers, self.gate = workers, gate
        self.fed = {lane: 0 for lane in LANES}
        self.passed = 0
        self.feeding = True

    def jobs(self):
        steps = [lambda c, r, s=stage: self.step_loop(s, c, r) for stage in STAGES for _ in range(self.workers)]
        return [self.feed_loop, self.watch_loop, *steps]

    def prepare(self, client):
        for queue in ("pipe-in", "pipe-mid"):
            status, answer, _ = client.insist("POST", "/api/v1/configure", {"queue": queue, "options": {"retryLimit": 1000000}})
            assert status == 200, answer

    # ---- inputs ----

    def look(self, client):
        """How many inputs have passed both stages."""
        ops = [{"op": "get", "ns": "count", "key": f"b.{lane}"} for lane in LANES]
        status, answer, _ = self.answered(client, "POST", "/api/v1/kv", {"operations": ops})
        assert status == 200, answer
        return sum(r.get("value", 0) for r in answer["results"])

    def feed_loop(self, client, rng):
        looked = 0.0
        while not self.over():
            if time.monotonic() - looked > 0.3:
                self.passed, looked = self.look(client), time.monotonic()
            if self.feeding and sum(self.fed.values()) - self.passed < BACKLOG_MAX:
                lane = rng.choice(LANES)
                numbers = range(self.fed[lane], self.fed[lane] + rng.randrange(1, 6))
                items = [{"queue": "pipe-in", "partition": lane, "transactionId": f"in-{lane}-{n}", "payload": {"lane": lane, "n": n}} for n in numbers]
                status, answer, _ = self.answered(client, "POST", "/api/v1/push", json.dumps({"items": items}).encode())
                if status != 201:
                    self.problem(f"push answered {status} {answer}")
                self.fed[lane] += len(items)
                self.count("inputs", len(items))
            time.sleep(rng.uniform(0, 0.04))

    # ---- steps ----

    def step_loop(self, stage, client, rng):
        source, _ = STAGES[stage]
        while not self.over():
            path = (f"/api/v1/pop/queue/{source}?consumerGroup={GROUP}&batch={rng.choice((1, 4))}&partitions={rng.choice((1, 2))}"
                    f"&leaseSeconds={LEASE_S}&subscriptionMode=all&wait=true&timeout=400")  # fmt: skip
            status, answer, _ = self.answered(client, "GET", path)
            if status == 204:
                continue
            if status != 200:
                self.problem(f"pop answered {status} {answer}")
                continue
            lost = set()
            for message in answer["messages"]:
                if message["partition"] not in lost and not self.step(stage, client, rng, message):
                    lost.add(message["partition"])

    def body(self, stage, rng, message):
        lane, n = message["data"]["lane"], message["data"]["n"]
        pushes = [{"queue": queue, "partition": lane, "payload": message["data"]} for queue in (STAGES[stage][1], *side_queues(stage))]
        kv = [{"op": "incr", "ns": "count", "key": f"{stage}.{lane}", "delta": 1, "forever": True},
              {"op": "put", "ns": "twin", "key": f"{stage}.{lane}.one", "value": n, "forever": True},
              {"op": "put", "ns": "twin", "key": f"{stage}.{lane}.two", "value": n, "forever": True}]  # fmt: skip
        if self.gate:
            for push in pushes:
                push["transactionId"] = f"{stage}-{lane}-{n}"
            kv.append({"op": "putIfAbsent", "ns": "once", "key": f"{stage}.{lane}.{n}", "value": 1, "forever": True, "required": True})
        ack = {"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"], "consumerGroup": GROUP,
               "leaseId": message["leaseId"], "status": "completed"}  # fmt: skip
        name = f"{stage}-{lane}-{n}"
        timer = {"op": "schedule", "queue": TIMED, "partition": lane, "timerKey": name, "txn": name, "delayMs": round(rng.uniform(0, 800), 3),
                 "payload": base64.b64encode(json.dumps(message["data"]).encode()).decode()}  # fmt: skip
        return json.dumps({"operations": [ack, {"type": "push", "items": pushes}], "kv": kv, "timers": [timer]}).encode()

    def step(self, stage, client, rng, message):
        """False: the lane is no longer ours."""
        if rng.random() < 0.01:
            self.count("workers gone")  # the lease runs out
            return False
        body = self.body(stage, rng, message)
        blind = rng.random() < 0.02
        if blind:
            client.send_and_leave("POST", "/api/v1/transaction", body)
            self.count("answers not awaited")
        status, answer, lost = self.answered(client, "POST", "/api/v1/transaction", body)
        lost += blind
        if status != 200:
            self.problem(f"transaction answered {status} {answer}")
            return False
        lane, n = message["data"]["lane"], message["data"]["n"]
        if answer["success"]:
            self.count("committed")
            value = next(r["value"] for r in answer["results"] if r.get("op") == "incr")
            if value != n + 1 and self.gate:
                self.problem(f"the step of {stage} {lane} {n} brought its counter to {value}")
        else:
            self.count(f"rollback {answer['reason']}")
            if answer["reason"] not in ("rejected_ack", "duplicate", "kv_precondition", "reserved"):
                self.problem(f"transaction rolled back: {answer}")
            if lost:
                self.count("steps found done or lost")
        if rng.random() < 0.03:
            status, again, _ = self.answered(client, "POST", "/api/v1/transaction", body)
            if status == 200 and again["success"] and answer["success"] and self.gate:
                self.problem(f"the step of {stage} {lane} {n} committed twice")
            self.count("sent again")
        return answer["success"]

    # ---- twins ----

    def watch_loop(self, client, rng):
        """One read of both keys never sees half of a transaction, on whatever node."""
        seen = {}
        while not self.over():
            stage, lane = rng.choice(list(STAGES)), rng.choice(LANES)
            keys = [f"{stage}.{lane}.one", f"{stage}.{lane}.two"]
            status, answer, _ = self.answered(client, "POST", "/api/v1/kv", {"operations": [{"op": "getMany", "ns": "twin", "keys": keys}]})
            if status != 200:
                self.problem(f"read answered {status} {answer}")
                continue
            values = [row["value"] for row in answer["results"][0]["rows"]]
            if len(values) not in (0, 2) or len(set(values)) > 1:
                self.problem(f"half of a transaction was read of {stage} {lane}: {answer['results'][0]}")
            if values and values[0] < seen.get((stage, lane), -1) and self.gate:
                self.problem(f"{stage} {lane} was at {seen[stage, lane]} and read back as {values[0]} on node {client.number}")
            if values:
                seen[stage, lane] = values[0]
            self.count("twins read")
            time.sleep(rng.uniform(0, 0.02))

    # ---- the end ----

    def settle(self, seconds=45.0):
        """No more inputs; the rest goes through."""
        self.feeding = False
        deadline = time.monotonic() + seconds
        while self.passed < sum(self.fed.values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        client = self.cluster.client("settle", tenant=self.tenant)
        while time.monotonic() < deadline:
            status, answer, _ = client.insist("GET", f"/api/v1/timers/{TIMED}?mode=count&prefix=a-")
            status, more, _ = client.insist("GET", f"/api/v1/timers/{TIMED}?mode=count&prefix=b-")
            if answer["count"] == more["count"] == 0:
                break
            time.sleep(0.1)
        client.close()

    def finish(self, client):
        self.check_timers()
        for queue in ("pipe-in", "pipe-mid", "pipe-out", *side_queues("a"), *side_queues("b")):
            held = same_everywhere(self, queue, LANES)
            for lane in LANES:
                numbers = [r[2]["n"] for r in held[lane]]
                if numbers != list(range(self.fed[lane])):
                    doubled = sorted({n for n in numbers if numbers.count(n) > 1})[:10]
                    missing = sorted(set(range(self.fed[lane])) - set(numbers))[:10]
                    self.problem(f"{queue}/{lane}: {len(numbers)} of {self.fed[lane]} inputs; doubled {doubled}, lost {missing}"
                                 + ("" if doubled or missing else f", out of order: {numbers[:60]}"))  # fmt: skip
        self.check_keys(client)

    def check_timers(self):
        held = same_everywhere(self, TIMED, LANES)
        for lane in LANES:
            fired = [r[1] for r in held[lane]]
            wanted = {f"{stage}-{lane}-{n}" for stage in STAGES for n in range(self.fed[lane])}
            if len(fired) != len(set(fired)) or set(fired) != wanted:
                doubled = sorted({name for name in fired if fired.count(name) > 1})[:10]
                self.problem(f"timers of {lane}: doubled {doubled}, lost {sorted(wanted - set(fired))[:10]}, never set {sorted(set(fired) - wanted)[:10]}")

    def check_keys(self, client):
        for stage in STAGES:
            for lane in LANES:
                if not self.fed[lane]:
                    continue
                keys = [f"{stage}.{lane}.one", f"{stage}.{lane}.two"]
                ops = [{"op": "get", "ns": "count", "key": f"{stage}.{lane}"}, {"op": "getMany", "ns": "twin", "keys": keys}]
                _, answer, _ = client.insist("POST", "/api/v1/kv", {"operations": ops})
                count, twins = answer["results"][0].get("value"), [row["value"] for row in answer["results"][1]["rows"]]
                if count != self.fed[lane] or twins != [self.fed[lane] - 1] * 2:
                    self.problem(f"{stage} {lane}: {self.fed[lane]} inputs, counter {count}, twins {twins}")
