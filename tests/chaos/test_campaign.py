"""Everything at once: all workloads on a cluster, and one fault after the other."""
import pytest
from campaign import Campaign
from crash_broker import ALL
from nemesis import DISKS, FIVE, LINKS, ONE, PROCESSES
from workload_locks import LocksWorkload
from workload_log import LogWorkload

SECONDS = 12
LONG_SECONDS = 600
KEEP_LITTLE = {"QUEEN_RAFT_KEEP_BYTES": "1048576"}  # nodes that were away have the state to fetch, now and then


def run(campaign, seconds, tell):
    campaign.run(seconds)
    for what, counts in campaign.lines():
        tell(what, counts)
        print(what, counts)
    assert not campaign.problems, campaign.failure()


@pytest.mark.seconds(12)
def test_one_node(clusters, seed, tell):
    cluster = clusters(1, power=True).start()
    run(Campaign(cluster, seed, ONE, None if ALL else [LogWorkload(cluster, seed), LocksWorkload(cluster, seed)]), LONG_SECONDS if ALL else 3, tell)


@pytest.mark.seconds(32)
def test_three_nodes(clusters, seed, tell):
    cluster = clusters(3, env=KEEP_LITTLE).start()
    run(Campaign(cluster, seed, PROCESSES + LINKS + DISKS), LONG_SECONDS if ALL else SECONDS, tell)


@pytest.mark.skipif(not ALL, reason="five nodes on one machine take their time: QUEEN_TEST_ALL=1")
def test_five_nodes(clusters, seed, tell):
    cluster = clusters(5, env=KEEP_LITTLE).start()
    run(Campaign(cluster, seed, PROCESSES + LINKS + FIVE + DISKS), LONG_SECONDS, tell)
