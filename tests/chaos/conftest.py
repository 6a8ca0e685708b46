import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
for folder in ("faults", "crash", "linear"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), folder))

from cluster import Cluster  # noqa: E402
from crash_fixtures import place, pytest_runtest_makereport, seed  # noqa: E402, F401
from netspace import Net, NotPermitted  # noqa: E402


@pytest.fixture
def clusters(place):
    """Makes clusters, each in a network of its own that the test is inside of until its end. One at a time."""
    made = []

    def make(count, spare=0, **keywords):
        try:
            net = Net(count + spare).__enter__()
        except NotPermitted as why:
            pytest.skip(f"chaos needs network namespaces: {why}. As a normal user: unshare -Ur, where that is allowed; in a container: --privileged")
        made.append((net, None))
        cluster = Cluster(net, place, count + spare, voters=count, **keywords)
        made[-1] = (net, cluster)
        return cluster

    yield make
    for net, cluster in reversed(made):
        if cluster is not None:
            cluster.close()
        net.__exit__()


@pytest.fixture
def tell(record_property):
    """tell(what, text): a line of the run's summary."""
    return lambda what, text: record_property(f"counts {what}", text)


def pytest_terminal_summary(terminalreporter):
    """One line of counts for each workload of each campaign."""
    for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", []):
        for name, value in getattr(report, "user_properties", []):
            if name.startswith("counts ") and report.when == "call":
                terminalreporter.write_line(f"counts of {report.nodeid.rsplit('::', 1)[1]} {name.split(' ', 1)[1]}: {value}")
