"""Pushes sent again to another node at once, while leaders are killed, stopped and cut off."""
import time

import pytest
from campaign import Campaign
from crash_broker import ALL
from nemesis import Fault, cut_leader, kill_leader, pause_leader
from workload_log import LogWorkload


class Hasty(LogWorkload):
    """Clients that wait one second for an answer and then ask another node."""

    def jobs(self):
        return [self.hasty_loop] * self.clients

    def hasty_loop(self, client, rng):
        client.timeout = 1.0
        self.push_loop(client, rng)


@pytest.mark.seconds(12)
def test_no_retry_waits_for_the_window(clusters, seed, tell):
    """An id in flight at a leader change is not kept: its repeat is answered as soon as there is a leader."""
    cluster = clusters(3).start()
    log = Hasty(cluster, seed, clients=30 if ALL else 10)
    lasts = (2.0, 2.0)
    campaign = Campaign(cluster, seed, [Fault(kill_leader, lasts=lasts), Fault(pause_leader, lasts=lasts), Fault(cut_leader, lasts=lasts)], [log])
    began = time.monotonic()
    campaign.run(60 if ALL else 7)
    for what, counts in campaign.lines():
        tell(what, counts)
    assert not campaign.problems, campaign.failure()
    assert log.counts["calls lost"] > 5 and log.counts["messages"] > 10 * (time.monotonic() - began), log.counts
    # one wait for an answer that does not come, one election, one second; and this machine's share of the processors
    assert log.slowest_s < 6, f"a push took {log.slowest_s:.2f} s with all its repeats"
