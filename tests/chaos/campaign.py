"""Workloads at work while a nemesis is at work; then everything is mended, settled, read and judged."""
import json
import time

from nemesis import Nemesis
from workload_kv import KvWorkload
from workload_locks import LocksWorkload
from workload_log import LogWorkload
from workload_pipeline import PipelineWorkload
from workload_queue import QueueWorkload
from workload_timers import TimersWorkload


def all_workloads(cluster, seed, true_clocks=True):
    return [LogWorkload(cluster, seed), QueueWorkload(cluster, seed), PipelineWorkload(cluster, seed), KvWorkload(cluster, seed),
            TimersWorkload(cluster, seed, true_clocks=true_clocks), LocksWorkload(cluster, seed, true_clocks=true_clocks)]  # fmt: skip


class Campaign:
    """`count` takes one line a workload and one of the faults, for the summary of the test run."""

    def __init__(self, cluster, seed, faults, workloads=None, true_clocks=True):
        self.cluster, self.seed = cluster, seed
        self.workloads = workloads or all_workloads(cluster, seed, true_clocks)
        log = next((w for w in self.workloads if isinstance(w, LogWorkload)), None)
        self.nemesis = Nemesis(cluster, seed, faults, log)
        self.problems = []

    def run(self, seconds):
        for workload in self.workloads:
            client = self.cluster.client(f"{self.seed}/prepare", tenant=workload.tenant)
            workload.prepare(client)
            client.close()
        for workload in self.workloads:
            workload.start()
        try:
            time.sleep(0.5)
            self.nemesis.run(seconds)
            self.cluster.mend()
            for workload in self.workloads:
                if isinstance(workload, PipelineWorkload):
                    workload.settle()
        except AssertionError as error:
            self.problems.append(str(error))
        for workload in self.workloads:
            workload.stopping.set()
        for workload in self.workloads:
            workload.stop()
        if not self.problems:
            self.judge()
        self.problems += self.cluster.problems
        for workload in self.workloads:
            self.problems += workload.problems
        return self.problems

    def judge(self):
        """On a calm cluster, with nobody else at work."""
        try:
            for workload in self.workloads:
                if isinstance(workload, TimersWorkload):
                    workload.settle()
            self.cluster.wait_equal()
            for workload in self.workloads:
                mine = self.cluster.client(f"{self.seed}/finish", tenant=workload.tenant)
                workload.finish(mine)
                mine.close()
            for node, code in self.cluster.unexpected_ends():
                self.problems.append(f"node {node.number} ended by itself with {code}:\n{node.log_tail(40)}")
        except AssertionError as error:
            self.problems.append(str(error))

    def lines(self):
        """[(what, counts as JSON)]"""
        rows = [("faults", self.nemesis.report())] + [(w.name, dict(sorted(w.counts.items()))) for w in self.workloads]
        return [(name, json.dumps(counts)) for name, counts in rows]

    def failure(self, limit=20):
        story = "\n".join(f"{at:.3f} {name} {detail}" for at, name, detail in self.nemesis.story)
        return "\n".join(self.problems[:limit]) + f"\n({len(self.problems)} problems)\nfaults:\n{story}\n{self.cluster.log_tails()}"
