"""Feeders, workers, a watcher of timers and a killer around one broker; at the end everything is read and judged."""
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pipeline_verify
from crash_broker import Conn, Gone
from cut_proxy import CutProxy
from pipeline_verify import GROUP, SOURCE, STAGES, Expected

HERE = os.path.dirname(os.path.abspath(__file__))
LANES = 32
BACKLOG_MAX = 300  # inputs a feeder lets wait
POISONED_SHARE = 0.01
SETTLE_S = 90  # for the rest, once the feeders have stopped and the broker stays up
RETRY_LIMIT = 1000000  # `failed` comes up at random: it must never end in a dead letter


class Feeder(threading.Thread):
    """Pushes the inputs of its lanes, a push at a time, each until it is answered, always with the same ids."""

    def __init__(self, run, number, lanes, port):
        super().__init__(daemon=True)
        self.run_, self.number, self.lanes, self.port = run, number, lanes, port
        self.rng = random.Random(f"{run.seed}/feeder/{number}")
        self.sent = dict.fromkeys(lanes, 0)
        self.clean = dict.fromkeys(lanes, 0)
        self.conn = None

    def run(self):
        try:
            while not self.run_.feeding_over.is_set():
                if self.run_.backlog() > BACKLOG_MAX:
                    time.sleep(0.05)
                    continue
                self.push(self.rng.randrange(1, 12))
                time.sleep(self.rng.uniform(0, 0.04))
        except Exception as error:
            self.run_.problem(f"feeder {self.number}: {type(error).__name__}: {error}")

    def push(self, size):
        items = []
        for _ in range(size):
            lane = self.rng.choice(self.lanes)
            self.sent[lane] += 1
            data = {"id": f"{lane}.{self.sent[lane]}", "number": self.sent[lane]}
            if self.rng.random() < POISONED_SHARE:
                data["poisoned"] = True
            else:
                self.clean[lane] += 1
                data["clean_number"] = self.clean[lane]
            items.append({"queue": "in", "partition": lane, "transactionId": f"in-{data['id']}", "payload": data})
        text = json.dumps({"items": items}).encode()
        attempt = 0
        while True:
            status, raw = self.call(text)
            if status == 201:
                break
            if status not in (None, 503):
                raise RuntimeError(f"push answered {status} {raw!r}")
            attempt += 1
            self.run_.counts["pushes sent again"] += 1
            time.sleep(0.03)
        self.check(json.loads(raw), items, attempt)
        with self.run_.lock:
            for item in items:
                data = item["payload"]
                self.run_.expected.lanes[item["partition"]].append((data["id"], data.get("poisoned", False)))
            self.run_.counts["inputs"] += size

    def call(self, text):
        try:
            if self.conn is None:
                self.conn = Conn(self.port, timeout=20.0)
            return self.conn.call("POST", "/api/v1/push", text)
        except Gone:
            if self.conn is not None:
                self.conn.close()
            self.conn = None
            return None, b""

    def check(self, results, items, attempt):
        states = {r["status"] for r in results}
        if len(results) != len(items) or states not in ({"queued"}, {"duplicate"}):
            self.run_.problem(f"push of {len(items)} items answered {results}")
        elif states == {"duplicate"}:
            self.run_.counts["pushes found done"] += 1
            if attempt == 0:
                self.run_.problem(f"a push sent once is a duplicate: {results[0]}")


class Watcher(threading.Thread):
    """Takes timers' messages as they come, at most once, and sees that none comes before its time."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_ = run
        self.stopping = False

    def run(self):
        conn = None
        while not self.stopping:
            try:
                conn = conn or Conn(self.run_.broker.port, timeout=20.0)
                path = "/api/v1/pop/queue/timed?consumerGroup=watch&batch=100&partitions=64&autoAck=true&subscriptionMode=all&wait=true&timeout=400"
                status, answer = conn.json("GET", path)
            except Gone:
                conn = None
                time.sleep(0.05)
                continue
            now_ms = time.time() * 1000
            for message in answer["messages"] if status == 200 else []:
                if message["data"]["due_ms"] > now_ms:
                    self.run_.problem(f"timer {message['data']} arrived {message['data']['due_ms'] - now_ms:.3f} ms early")
                self.run_.counts["timers watched"] += 1


class Workers:
    """The worker processes: started, now and then killed, started again."""

    def __init__(self, run, plan):
        self.run_, self.plan = run, plan  # plan: settings of each worker
        self.processes = [None] * len(plan)
        self.logs = []
        self.rng = random.Random(f"{run.seed}/workers")
        self.lives = 0

    def spawn(self, slot):
        self.lives += 1
        log = os.path.join(self.run_.place, f"worker-{self.lives}.log")
        self.logs.append(log)
        settings = dict(self.plan[slot], seed=f"{self.run_.seed}/{slot}/{self.lives}", log=log)
        output = open(os.path.join(self.run_.place, f"worker-{self.lives}.out"), "wb")
        with output:
            self.processes[slot] = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "pipeline_worker.py"), json.dumps(settings)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # fmt: skip

    def start(self):
        for slot in range(len(self.plan)):
            self.spawn(slot)

    def check_alive(self):
        for slot, process in enumerate(self.processes):
            if process.poll() is not None:
                raise AssertionError(f"worker {slot} ended with {process.returncode}: {self.output()}")

    def output(self):
        text = ""
        for name in sorted(os.listdir(self.run_.place)):
            if name.startswith("worker-") and name.endswith(".out"):
                with open(os.path.join(self.run_.place, name), encoding="utf-8", errors="replace") as f:
                    text += f.read()
        return text[-3000:]

    def kill_one(self):
        slot = self.rng.randrange(len(self.plan))
        self.processes[slot].send_signal(signal.SIGKILL)
        self.processes[slot].wait()
        self.run_.counts["worker kills"] += 1
        self.spawn(slot)

    def stop(self):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                code = process.wait(30)
            except subprocess.TimeoutExpired:
                self.run_.problem("a worker does not end")
                process.kill()
                process.wait()
                continue
            if code != 0:
                self.run_.problem(f"a worker ended with {code}: {self.output()}")

    def kill(self):
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def read_logs(self):
        for path in self.logs:
            if not os.path.exists(path):
                continue  # killed before it could open it
            with open(path, encoding="utf-8") as f:
                for line in f:
                    if line.endswith("\n"):  # a killed process may leave half a line
                        self.read_event(json.loads(line))

    def read_event(self, event):
        expected, run = self.run_.expected, self.run_
        if "count" in event:
            run.counts[event["count"]] += 1
        elif "cancel" in event:
            expected.cancels[event["cancel"]] = event["status"]
        elif "promise" in event:
            expected.promised[(event["promise"], event["id"])] = event["message"]
        else:
            run.problem(event["problem"])


class Run:
    """One run. `broker` runs already; `gates` names the gate of each worker of a stage."""

    def __init__(self, broker, place, seed, gates=("ids", "ids", "marker"), send_twice=0.0, cut=0.015):
        self.broker, self.place, self.seed = broker, place, seed
        self.rng = random.Random(f"{seed}/run")
        self.expected = Expected()
        self.counts = Counter()
        self.problems = []
        self.lock = threading.Lock()
        self.feeding_over = threading.Event()
        self.backlog_value, self.backlog_asked = 0, 0.0
        self.proxy = CutProxy(broker.port, f"{seed}/proxy", cut)
        lanes = [f"lane-{i:02d}" for i in range(LANES)]
        self.feeders = [Feeder(self, 0, lanes[::2], broker.port), Feeder(self, 1, lanes[1::2], self.proxy.port)]
        plan = []
        for stage in STAGES:
            for number, gate in enumerate(gates):
                plan.append({"stage": stage, "gate": gate, "send_twice": send_twice, "lease_s": (2, 3, 1)[number % 3],
                             "next": number % 2 == 0, "port": broker.port if number else self.proxy.port})  # fmt: skip
        self.workers = Workers(self, plan)
        self.watcher = Watcher(self)

    def problem(self, text):
        with self.lock:
            self.problems.append(text)

    def backlog(self):
        """How many messages wait, asked for at most every 200 ms."""
        now = time.monotonic()
        if now - self.backlog_asked > 0.2:
            self.backlog_asked = now
            try:
                conn = Conn(self.broker.port, timeout=5.0)
                self.backlog_value = sum(self.pending(conn, queue) for queue in SOURCE.values())
                conn.close()
            except Gone:
                pass
        return self.backlog_value

    def pending(self, conn, queue):
        status, depth = conn.json("GET", f"/api/v1/resources/queues/{queue}/depth?group={GROUP}")
        return depth["pending"] if status == 200 else 0

    def prepare(self):
        conn = Conn(self.broker.port)
        for queue in SOURCE.values():
            status, answer = conn.json("POST", "/api/v1/configure", {"queue": queue, "options": {"retryLimit": RETRY_LIMIT}})
            assert status == 200, answer
        # what spoiled steps run into: an id that is taken, a key that is there
        status, answer = conn.json("POST", "/api/v1/push", {"items": [
            {"queue": "gate", "partition": "gate", "transactionId": "closed", "payload": 0}]})  # fmt: skip
        assert status == 201, answer
        status, answer = conn.json("POST", "/api/v1/kv", [{"op": "put", "ns": "zgate", "key": "closed", "value": 1, "forever": True}])
        assert status == 200, answer
        conn.close()

    def work(self, seconds, kill_every_s=(0.5, 4.0), graceful=0.15):
        """The whole run: feed and kill for so long, let the rest settle, read everything. Returns the problems."""
        try:
            self.prepare()
            self.workers.start()
            self.watcher.start()
            for feeder in self.feeders:
                feeder.start()
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                self.live(min(self.rng.uniform(*kill_every_s), max(0.0, deadline - time.monotonic())))
                self.restart(graceful)
            self.feeding_over.set()
            for feeder in self.feeders:
                feeder.join(60)
            self.settle()
            self.workers.stop()
            self.watcher.stopping = True
            self.watcher.join(10)
            # what is judged is what a power cut leaves
            self.fell("power")
            self.broker.start()
            self.judge()
        finally:
            self.feeding_over.set()
            self.watcher.stopping = True
            self.workers.kill()
            self.proxy.close()
        return self.problems

    def live(self, seconds):
        """Lets things run; some workers die meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))
            assert self.broker.alive(), f"the broker ended by itself with {self.broker.process.poll()}:\n{self.broker.log_tail()}"
            self.workers.check_alive()
            if self.rng.random() < 0.2:
                self.workers.kill_one()

    def restart(self, graceful):
        roll = self.rng.random()
        if roll < graceful:
            code = self.broker.terminate()
            assert code == 0, f"exit code {code} after SIGTERM:\n{self.broker.log_tail()}"
            self.counts["graceful stops"] += 1
        else:
            self.fell("power" if roll < graceful + (1 - graceful) / 2 else "kill")
        time.sleep(self.rng.choice((0.0, 0.0, 0.3)))
        self.broker.start()

    def fell(self, how):
        self.broker.kill()
        if how == "power" and self.broker.faults is not None:
            report = self.broker.faults.power_cut(self.rng.randrange(1 << 32))
            self.counts["power cuts"] += 1
            self.counts["bytes a power cut took"] += report["bytes_lost"]
        else:
            self.counts["kills -9"] += 1

    def settle(self):
        """Waits until every input is through and every timer has fired."""
        conn = Conn(self.broker.port)
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            self.workers.check_alive()
            pending = {queue: self.pending(conn, queue) for queue in SOURCE.values()}
            timers = {queue: pipeline_verify.timers_left(conn, queue) for queue in ("timed", "late")}
            if not any(pending.values()) and not any(timers.values()):
                conn.close()
                return
            time.sleep(0.1)
        self.problem(f"not settled after {SETTLE_S} s: messages {pending}, timers {timers}")

    def judge(self):
        self.workers.read_logs()
        conn = Conn(self.broker.port)
        seen = pipeline_verify.look(conn, "verifier")
        conn.close()
        self.problems += pipeline_verify.verify(self.expected, seen)
        self.counts["requests cut"] = self.proxy.requests_cut
        self.counts["answers cut"] = self.proxy.answers_cut
        if self.problems:
            pipeline_verify.dump(self.expected, seen, os.path.join(self.place, "seen.json"))
