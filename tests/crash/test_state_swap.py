"""A node that fetches the state kills itself at every point where the fetched state is finished and put in place; and a source while it takes
one. The next start goes on, and the node has all messages: those it had, and those it was away for."""

import os
import signal
import sys

import crash_broker
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))

from cluster import Cluster  # noqa: E402
from queen import BrokerError, unique, wait_until  # noqa: E402
from test_state_fetch import SHORT, churn, complete, fill, settle, tidy  # noqa: E402

POINTS = ["incoming-complete", "incoming-ready", "incoming-old-out:1", "incoming-new-in:1", "incoming-old-out:2", "incoming-new-in:2",
          "incoming-configuration", "incoming-ready-gone", "incoming-removed"]

pytestmark = pytest.mark.skipif(
    not os.path.exists(crash_broker.CRASH_BINARY), reason=f"needs a build with crash points at {crash_broker.CRASH_BINARY}"
)


def dies(node, point):
    """Starts it with this point; it must kill itself there."""
    node.env["QUEEN_CRASH_AT"] = point
    try:
        node.launched()
        code = node.ended(30)
    finally:
        del node.env["QUEEN_CRASH_AT"]
    assert code == -signal.SIGKILL, f"{point}: {code}\n{node.output()[-3000:]}"


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_point_of_the_swap(point):
    queue = unique("kept")
    with Cluster(3, env=SHORT, binary=crash_broker.CRASH_BINARY) as cluster:
        leader = cluster.leader()
        away = cluster.followers()[0]
        fill(leader, queue, 0, 40)
        away.kill()
        churn(leader, 5)
        fill(leader, queue, 40, 40)
        settle(leader)
        dies(away, point)
        if "incoming/ready" in left(away):
            dies(away, POINTS[-1])  # and once more, where it is all but done
        away.launched()
        cluster.wait_ready(30)
        complete(away, queue, 80)
        wait_until(lambda: tidy(away), 10, "nothing is left of the fetch")


def left(node):
    top = os.path.join(node.data_dir, "incoming")
    return ["incoming/" + name for name in os.listdir(top)] if os.path.isdir(top) else []


def test_sources_that_die_while_they_take_a_state():
    queue = unique("kept")
    env = dict(SHORT, QUEEN_CRASH_AT="snapshot-taken")
    with Cluster(3, env=env, binary=crash_broker.CRASH_BINARY) as cluster:
        leader = cluster.leader()
        away, other = cluster.followers()
        fill(leader, queue, 0, 100)
        away.kill()
        churn(leader, 6)
        settle(leader)
        away.launched()
        assert leader.ended(30) == -signal.SIGKILL
        assert other.ended(30) == -signal.SIGKILL  # who took its place is asked too
        for node in (leader, other):
            node.env.pop("QUEEN_CRASH_AT")
            node.launched()
        try:
            cluster.wait_ready(30)
        except BrokerError:  # away is told to take one itself, should it lead
            pass
        if not away.running:
            away.process = None
            away.launched()
        cluster.wait_ready(30)
        for node in cluster.nodes:
            complete(node, queue, 100)
