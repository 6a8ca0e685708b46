"""Register, counter, claim: concurrent KV calls to all nodes, recorded and judged by the checker of tests/linear."""
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "linear"))

import linear_record  # noqa: E402
from linear_check import check  # noqa: E402
from workload import Workload  # noqa: E402

CHECK_S = 20


class ClusterRecord(linear_record.Record):
    """A group of keys in which an answer was lost is given up: what is unknown makes a history hard to judge."""

    def __init__(self, cluster, seed, path, clients):
        self.cluster = cluster
        self.groups = {}  # slot -> (name, begun)
        self.spent = set()
        self.serial = 0
        super().__init__(0, seed, path, clients)

    def group(self, rng):
        slot, now = rng.randrange(linear_record.GROUPS), time.monotonic()
        with self.lock:
            name, begun = self.groups.get(slot, ("", 0.0))
            if not name or name in self.spent or now - begun > linear_record.EPOCH_S:
                self.serial += 1
                self.groups[slot] = (f"g{self.serial}", now)
            return self.groups[slot][0]

    def write(self, client, group, route, ops, sent, ended, answer):
        super().write(client, group, route, ops, sent, ended, answer)
        if answer is None:
            with self.lock:
                self.spent.add(group)

    def connect(self):
        return self.cluster.client(random.random(), timeout=3.0)


class KvWorkload(Workload):
    name = "kv"

    def __init__(self, cluster, seed, clients=4):
        super().__init__(cluster, seed)
        self.path = os.path.join(cluster.top, f"history-{time.monotonic_ns()}.jsonl")
        self.record = ClusterRecord(cluster, f"{seed}/kv", self.path, clients)

    def start(self):
        self.record.start()

    def stop(self, timeout=60.0):
        self.stopping.set()
        self.record.stop()

    def finish(self, client):
        self.problems += [f"kv: {p}" for p in self.record.problems]
        for name in ("calls", "answers lost", "get read", "incr applied", "putIfAbsent applied", "put version"):
            self.counts[name] = self.record.counts[name]
        code, text = check(self.path, CHECK_S)
        if code == 3:
            self.counts["undecided"] = text.count("UNDECIDED")
        elif code != 0:
            self.problem(text[:6000])
