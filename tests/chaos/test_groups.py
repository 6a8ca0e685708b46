"""Several raft groups on three nodes: tenants live in groups of their own, leaders are spread, each group goes its own way through the faults."""
import time

import pytest
from campaign import Campaign
from crash_broker import ALL
from nemesis import Fault, cut_follower, cut_leader, kill_all, kill_follower, kill_leader, rolling_restart
from workload_locks import LocksWorkload
from workload_log import LogWorkload
from workload_pipeline import PipelineWorkload

TENANTS = [f"00000000-0000-0000-0000-0000000000{n}0" for n in (1, 2, 3)]
ENV = {
    "QUEEN_RAFT_GROUPS": "3", "QUEEN_TENANT_GROUPS": ",".join(f"{t}={g}" for g, t in enumerate(TENANTS)),
    "QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true",
}  # fmt: skip


def of_tenant(workload, tenant):
    workload.tenant = tenant
    workload.name = f"{workload.name} of group {TENANTS.index(tenant)}"
    return workload


@pytest.mark.seconds(16)
def test_tenants_in_groups(clusters, seed, tell):
    """The same queues, lanes, ids and keys in all of them: nothing of one shows in another."""
    cluster = clusters(3, env=ENV).start()
    workloads = [of_tenant(LogWorkload(cluster, f"{seed}/{t}", clients=2), t) for t in TENANTS]
    workloads += [of_tenant(PipelineWorkload(cluster, seed, workers=1), TENANTS[1]), of_tenant(LocksWorkload(cluster, seed, clients=2), TENANTS[2])]
    faults = [Fault(kill_leader), Fault(kill_follower), Fault(cut_leader), Fault(cut_follower), Fault(kill_all, False, (0.0, 0.3)), Fault(rolling_restart, lasts=(0.1, 0.2))]
    campaign = Campaign(cluster, seed, faults, workloads)
    campaign.run(200 if ALL else 6)
    for what, counts in campaign.lines():
        tell(what, counts)
    assert not campaign.problems, campaign.failure()


@pytest.mark.seconds(8)
def test_leaders_are_spread(clusters):
    """Each node leads one of three groups, soon after they are all there, and again after a restart of one."""
    cluster = clusters(3, env=ENV).start()
    for node in (None, cluster[2]):
        if node is not None:
            assert node.terminate() == 0
            node.start()
        deadline = time.monotonic() + 25
        while (led := [leads(n) for n in cluster.nodes]) != [1, 1, 1]:
            assert time.monotonic() < deadline, f"groups led by each node: {led}\n{cluster.log_tails()}"
            time.sleep(0.2)


def leads(node):
    """How many groups this node leads, by its metrics."""
    try:
        conn = node.cluster.client("metrics").connected(node)
        status, text = conn.call("GET", "/metrics/prometheus")
        conn.close()
    except AttributeError:
        return None
    lines = [line for line in text.decode().splitlines() if line.startswith("queen_raft_leader{")]
    assert status == 200 and len(lines) == 3, lines
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines)
