"""Runs the scenarios: every test is a coroutine, its clients are closed in the loop they lived in."""

import asyncio
import inspect
import os

import pytest
from queen import Queen

from kit import Broker, Tap, unique
from routes import MISSING_ROUTES

SCENARIO_SECONDS = 60

# No scenario speaks TLS: without this, every client would read a whole bundle of certificates (60 ms each).
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="session")
def broker():
    """The broker shared by the scenarios of one worker; at the end it must still answer and stop with exit code 0."""
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
    """A function that starts a broker for this scenario alone; what still runs at its end must stop with exit code 0."""
    made = []

    def make(**kwargs):
        made.append(Broker(**kwargs))
        return made[-1].start()

    yield make
    try:
        for one in made:
            if one.process is not None:
                assert one.running, "the broker died\n" + one.output()[-8000:]
                one.stop()
    finally:
        for one in made:
            one.close()


class Clients:
    """Makes clients: connect(broker, **options). With tap=True the client's requests are recorded in client.tap."""

    def __init__(self):
        self.made = []

    def __call__(self, *brokers, tap=False, **options):
        urls = ["http://127.0.0.1:%d" % one.port for one in brokers]
        recorder = Tap() if tap else None
        if recorder:
            options["transport"] = recorder
        client = Queen(urls if len(urls) > 1 else urls[0], **options)
        client.tap = recorder
        self.made.append(client)
        return client

    async def close(self):
        for client in self.made:
            await client.close()


@pytest.fixture
def connect():
    return Clients()


@pytest.fixture
def client(connect, broker):
    return connect(broker)


@pytest.fixture
def tapped(connect, broker):
    """A client whose requests are recorded in `tapped.tap`."""
    return connect(broker, tap=True)


@pytest.fixture
def queue():
    """A queue name that no other scenario uses."""
    return unique("q")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    clients = pyfuncitem.funcargs.get("connect")

    async def scenario():
        try:
            await asyncio.wait_for(pyfuncitem.obj(**arguments), SCENARIO_SECONDS)
        finally:
            if clients:
                await clients.close()

    asyncio.run(scenario())
    return True


def pytest_collection_modifyitems(items):
    """A scenario of a route that is not served yet is expected to fail; routes.py names those."""
    for item in items:
        for mark in item.iter_markers("route"):
            if mark.args[0] in MISSING_ROUTES:
                item.add_marker(pytest.mark.xfail(reason="not served: " + mark.args[0], strict=False))


def pytest_configure(config):
    config.addinivalue_line("markers", "route(name): the scenario needs this route")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line("missing routes: " + ("; ".join(sorted(MISSING_ROUTES)) or "none"))
    for report in terminalreporter.stats.get("xpassed", []):
        terminalreporter.write_line("served although listed as missing: " + report.nodeid)
