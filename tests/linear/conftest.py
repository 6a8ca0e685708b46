import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("faults", "crash", "linear"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), folder))

from crash_fixtures import brokers, place, pytest_runtest_makereport, seed  # noqa: E402, F401


def pytest_terminal_summary(terminalreporter):
    """One line of counts for each recorded history."""
    for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", []):
        for name, value in getattr(report, "user_properties", []):
            if name == "counts" and report.when == "call":
                terminalreporter.write_line(f"counts of {report.nodeid.rsplit('::', 1)[1]}: {value}")
