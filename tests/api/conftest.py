"""Fixtures: one broker a worker process, and brokers of their own for tests that restart or need settings."""

import pytest

from queen import Broker, unique


@pytest.fixture(scope="session")
def broker():
    """The broker shared by the tests of one worker. At the end it must still answer and exit with code 0:
    in a sanitizer build a leak or a report changes the exit code."""
    shared = Broker().start()
    yield shared
    try:
        assert shared.running, "the shared broker died\n" + shared.output()[-8000:]
        assert shared.fresh_request("GET", "/health").status == 200
        shared.stop()
    finally:
        shared.close()


@pytest.fixture
def own_broker():
    """A function that starts a broker for this test alone: own_broker(env=..., args=..., wrap=...).
    Whatever still runs at the end of the test must stop with exit code 0."""
    made = []

    def make(start=True, **kwargs):
        one = Broker(**kwargs)
        made.append(one)
        return one.start() if start else one

    yield make
    try:
        for one in made:
            if one.process is not None:
                assert one.running, "the broker died\n" + one.output()[-8000:]
                one.stop()
    finally:
        for one in made:
            one.close()


@pytest.fixture
def queue():
    """A queue name that no other test uses."""
    return unique("q")
