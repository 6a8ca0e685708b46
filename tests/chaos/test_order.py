"""Many clients, calls of all kinds, clocks that step every second: what the leader planned is in the log in the order it was planned, and the
stamps made at planning never go back, on any node, over changes of the leader."""
import json
import subprocess
import threading
import time

import pytest
from campaign import Campaign
from crash_broker import ALL, BINARY
from nemesis import Fault, kill_leader
from workload_kv import KvWorkload
from workload_locks import LocksWorkload
from workload_log import LogWorkload
from workload_pipeline import PipelineWorkload
from workload_queue import QueueWorkload
from workload_timers import TimersWorkload

STEP_S = 5.0
ERRORS = (" error ", "cannot be applied", "assertion")


class Steps(threading.Thread):
    """Every second the wall clock of each node is somewhere else within STEP_S of the right time."""

    def __init__(self, cluster, rng):
        super().__init__(daemon=True)
        self.cluster, self.rng = cluster, rng
        self.stopping = threading.Event()
        self.count = 0
        self.began = time.monotonic()

    def run(self):
        while not self.stopping.wait(1.0):
            for node in self.cluster.nodes:
                node.faults.set_clock(wall_s=self.rng.uniform(-STEP_S, STEP_S))
                self.count += 1


def entries(node):
    """{index: (time, what is in it)} of a stopped node's log. Of an entry that a later leader replaced its record is there too, before."""
    done = subprocess.run([BINARY, "inspect", node.data, "entries", "--json"], capture_output=True, text=True, check=True, timeout=300)
    found = {}
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        found[entry["index"]] = (entry.get("time"), entry["type"], tuple(c["text"] for c in entry.get("commands", ())))
    return found


def calm(node):
    text = open(node.log_path, encoding="utf-8", errors="replace").read().lower()
    for word in ERRORS:
        assert word not in text, node.log_tail()


@pytest.mark.seconds(20)
def test_the_log_keeps_the_order_of_planning(clusters, seed, tell):
    # one segment of the log and no trimming: at the end all of it is read back
    cluster = clusters(3, env={"QUEEN_RAFT_SEGMENT_BYTES": str(64 << 20), "QUEEN_RAFT_KEEP_BYTES": str(1 << 30), "QUEEN_RECLAIM_AFTER_MS": "86400000"})
    cluster.start()
    # 64 clients
    some = [LogWorkload(cluster, seed, clients=24, pause_s=0.1), QueueWorkload(cluster, seed, pushers=3, consumers=13),
            PipelineWorkload(cluster, seed), KvWorkload(cluster, seed, clients=6), TimersWorkload(cluster, seed, clients=6, true_clocks=False),
            LocksWorkload(cluster, seed, clients=6, true_clocks=False)]  # fmt: skip
    campaign = Campaign(cluster, seed, [Fault(kill_leader)], some, true_clocks=False)
    steps = Steps(cluster, campaign.nemesis.rng)
    steps.start()
    campaign.run(600 if ALL else 4)
    steps.stopping.set()
    steps.join()
    for what, counts in campaign.lines():
        tell(what, counts)
    assert not campaign.problems, campaign.failure()
    assert steps.count >= 3 * 4
    for node in cluster.nodes:
        node.kill()
        calm(node)
    logs = [entries(node) for node in cluster.nodes]
    last = min(max(log) for log in logs)
    for log in logs:
        indexes = sorted(i for i, e in log.items() if e[0] is not None)
        stamps = [log[i][0] for i in indexes]
        back = [(i, a, b) for i, a, b in zip(indexes[1:], stamps, stamps[1:]) if b <= a]
        assert len(indexes) > 500 and not back, f"stamps of {len(indexes)} entries go back at {back[:5]}"
        assert {i: e for i, e in log.items() if i <= last} == {i: e for i, e in logs[0].items() if i <= last}, "the nodes' logs differ"
    tell("order", json.dumps({"entries": last, "steps": steps.count, "seconds": round(time.monotonic() - steps.began)}))
