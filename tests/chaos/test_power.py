"""Power loss of one node, of all of them, at the crash points of the write path; what was answered is there, on every node alike."""
import os
import random
import signal
import time

import crash_broker
import pytest
from campaign import Campaign
from crash_broker import ALL
from nemesis import POWER, Fault
from workload_kv import KvWorkload
from workload_log import LogWorkload
from workload_pipeline import PipelineWorkload

OFTEN = 80
POINTS = {"log-staged": OFTEN, "log-written": OFTEN, "log-synced": OFTEN, "apply-before": OFTEN, "apply-after": OFTEN, "log-roll": 2, "log-segment-created": 2,
          "cut-before": 3, "store-write-before": 4, "store-write-after": 4, "checkpoint-before": 4, "checkpoint-after": 4, "meta-written": 2,
          "trim-before": 2, "trim-after": 2}  # fmt: skip


def workloads(cluster, seed):
    return [LogWorkload(cluster, seed), PipelineWorkload(cluster, seed), KvWorkload(cluster, seed, clients=2)]


def judge(campaign, tell):
    for what, counts in campaign.lines():
        tell(what, counts)
    assert not campaign.problems, campaign.failure()


@pytest.mark.seconds(13)
def test_power_losses(clusters, seed, tell):
    cluster = clusters(3, power=True).start()
    campaign = Campaign(cluster, seed, POWER, workloads(cluster, seed))
    campaign.run(300 if ALL else 4)
    judge(campaign, tell)


def crash_at(point, passes, followed):
    """A node is started anew so that it dies at the n-th pass of the point, loses power there, and comes back."""

    def run(cluster, rng):
        node = rng.choice(cluster.members)
        if followed == "leader":
            node = cluster.leader()
        node.kill()
        at = f"{point}:{rng.randrange(1, passes + 1)}"
        node.env["QUEEN_CRASH_AT"] = at
        node.spawn()
        node.expected_down = True
        del node.env["QUEEN_CRASH_AT"]
        code = node.wait_dead(4.0)
        if code is None:
            node.kill()  # it never came by
        elif code != -signal.SIGKILL:
            cluster.problems.append(f"node {node.number} at {at} ended with {code}:\n{node.log_tail()}")
        else:
            cluster.crashes[point] = cluster.crashes.get(point, 0) + 1
        node.faults.power_cut(rng.randrange(1 << 32))
        yield f"node {node.number} at {at}: {code}"
        node.start()

    run.__name__ = f"crash {point}"
    return run


@pytest.mark.seconds(17)
@pytest.mark.skipif(not os.path.exists(crash_broker.CRASH_BINARY), reason=f"needs a build with crash points at {crash_broker.CRASH_BINARY}")
def test_crash_points(clusters, seed, tell):
    cluster = clusters(3, power=True, binary=crash_broker.CRASH_BINARY).start()
    cluster.crashes = {}
    rng = random.Random(seed)
    # the first one is passed by every entry, so there is at least one crash
    first = rng.choice([name for name, passes in POINTS.items() if passes == OFTEN])
    names = [first, *(name for name in (POINTS if ALL else rng.sample(list(POINTS), 2)) if name != first)]
    faults = [Fault(crash_at(name, POINTS[name], rng.choice(("anyone", "leader"))), majority=False, lasts=(0.0, 0.2)) for name in names]
    campaign = Campaign(cluster, seed, faults, workloads(cluster, seed))
    campaign.nemesis.pending = faults[::-1]
    began = time.monotonic()
    campaign.run(600 if ALL else 6)
    tell("crashes", str(cluster.crashes))
    judge(campaign, tell)
    assert cluster.crashes and time.monotonic() - began > 1, cluster.crashes
