"""The fixtures of every test that kills brokers: a conftest.py imports them all."""
import os
import random
import shutil

import pytest

import crash_broker
import faultlib


@pytest.fixture
def seed():
    """Printed with a failure; QUEEN_TEST_SEED gives it again."""
    value = int(os.environ.get("QUEEN_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"QUEEN_TEST_SEED={value}")
    return value


@pytest.fixture
def place(tmp_path, request):
    """A directory for one test. It is kept when the test fails."""
    yield str(tmp_path)
    report = getattr(request.node, "call_report", None)
    if report is not None and report.passed:
        shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.call_report = outcome.get_result()


@pytest.fixture
def brokers(place):
    """Makes brokers that are killed at the end of the test, whatever happens."""
    made = []

    def make(**keywords):
        power = keywords.pop("power", None)
        faults = faultlib.Faults(place, power=power) if power is not None else None
        broker = crash_broker.Broker(place, faults=faults, **keywords)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        if broker.process is not None:
            broker.kill()
