"""What the scenarios of the published Python client share.

The client's package is called `queen`, as is the harness of the black-box tests (tests/api/queen.py):
the harness is loaded here under another name.

    Broker, unique   of that harness
    Tap              a proxy in front of a broker that records what the client sends and can answer in its place
    eventually       polls an async condition with a deadline
    refused          the HTTP error an awaited call must end with
"""

import asyncio
import importlib.util
import json
import os
import sys

import httpx

_API = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "api", "queen.py")


def _harness():
    name = "broker_harness"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _API)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


Broker = _harness().Broker
unique = _harness().unique


class Tap(httpx.AsyncBaseTransport):
    """A transport for `Queen(..., transport=tap)`: real requests to a real broker, each recorded.

    A scripted answer takes the place of the broker's: `script` maps a path to a list of functions
    request -> httpx.Response, or to an exception, used up in order; None in the list lets one through.
    `lose` names paths whose next answer is read from the broker and then dropped: the request was done,
    the client sees a broken connection."""

    def __init__(self):
        self.inner = httpx.AsyncHTTPTransport()
        self.sent = []
        self.script = {}
        self.lose = []

    async def handle_async_request(self, request):
        body = await request.aread()
        self.sent.append(Sent(request, body))
        path = request.url.path
        if self.script.get(path):
            step = self.script[path].pop(0)
            if isinstance(step, Exception):
                raise step
            if step is not None:
                return step(request)
        answer = await self.inner.handle_async_request(request)
        if path in self.lose:
            self.lose.remove(path)
            await answer.aread()
            await answer.aclose()
            raise httpx.ReadError("the answer was lost", request=request)
        return answer

    async def aclose(self):
        await self.inner.aclose()

    def to(self, path):
        """The recorded requests whose path starts with this."""
        return [one for one in self.sent if one.path.startswith(path)]


class Sent:
    def __init__(self, request, body):
        self.method = request.method
        self.path = request.url.path
        self.query = dict(request.url.params)
        self.headers = dict(request.headers)
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)


def answer(status, body=None, **headers):
    """A scripted answer for Tap.script."""
    return lambda request: httpx.Response(status, json=body, headers=headers, request=request)


async def eventually(condition, seconds=10.0, pause=0.05):
    """Awaits condition() until it is truthy; returns that value."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        value = await condition()
        if value:
            return value
        assert asyncio.get_running_loop().time() < end, "not within %.0f s" % seconds
        await asyncio.sleep(pause)


async def refused(call, status, code=None):
    """Awaits a call that must end in an HTTP error of this status; returns the error."""
    try:
        value = await call
    except httpx.HTTPStatusError as error:
        assert error.response.status_code == status, error.response.text
        if code is not None:
            assert code in (getattr(error, "code", None), error.response.json().get("error")), error.response.text
        return error
    raise AssertionError("not refused: %r" % (value,))


async def take_all(builder, seconds=5.0):
    """Pops with this builder (no wait) until nothing comes; returns the messages."""
    messages = []
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        batch = await builder().wait(False).pop()
        if not batch:
            return messages
        messages += batch
    raise AssertionError("still messages after %.0f s" % seconds)


def ids(messages):
    return [m["transactionId"] for m in messages]


def data(messages):
    return [m["data"] for m in messages]
