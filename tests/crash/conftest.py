import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "faults"))

from crash_fixtures import brokers, place, pytest_runtest_makereport, seed  # noqa: E402, F401
