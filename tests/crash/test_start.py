"""A start that takes a moment, since the disk is slow: /health and /metrics tell how far it is, calls are refused kindly, SIGTERM ends it."""

import http.client
import os
import signal
import sys
import time

import faultlib
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "api"))
from queen import Broker, free_port, unique, wait_until  # noqa: E402

LANES = 20000
SLOW = "op=read path=data/store/*.sst times=0 stall_ms=60"


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A stopped broker whose directory takes a second to load: lanes with long names that do not compress, each read of them stalled."""
    faults = faultlib.Faults(str(tmp_path_factory.mktemp("start")), power=False)
    made = Broker(env=faults.environment(), data_dir=os.path.join(faults.root, "data"))
    made.queue = unique("q")
    try:
        made.start()
        for first in range(0, LANES, 1000):
            numbers = range(first, first + 1000)
            items = [{"queue": made.queue, "partition": os.urandom(100).hex(), "transactionId": "t%d" % n, "payload": n} for n in numbers]
            made.post("/api/v1/push", {"items": items}).expect(201)
        made.stop()
        made.faults = faults
        yield made
    finally:
        made.close()


def answers(broker, path, until, method="GET", seconds=60):
    """Every answer to that request from the exec on, up to the first one for which until(answer) holds."""
    seen = []
    end = time.monotonic() + seconds
    broker.faults.arm(SLOW)
    broker.port = free_port()
    broker.launch()
    while time.monotonic() < end:
        assert broker.running, broker.output()[-4000:]
        try:
            seen.append(broker.fresh_request(method, path, b"{}" if method == "POST" else None, timeout=10))
        except (OSError, http.client.HTTPException):
            continue
        if until(seen[-1]):
            broker.faults.arm()
            return seen
        time.sleep(0.01)
    raise AssertionError("not in %d s: %r" % (seconds, seen[-1:]))


def test_health_tells_how_far_the_start_is(filled):
    seen = answers(filled, "/health", lambda one: one.status == 200)
    loading = [one for one in seen if "loading" in one.json]
    rows = [one.json["loading"]["rows"] for one in loading]
    percents = [one.json["loading"]["percent"] for one in loading]
    assert len(loading) >= 5
    assert rows == sorted(rows) and rows[-1] > rows[0]
    assert percents == sorted(percents) and 0 <= percents[0] < percents[-1] <= 100
    for one in loading:
        assert one.status == 503
        assert one.headers["retry-after"] == "1"
        assert one.json["status"] == "settling"
        assert one.json["raft"]["role"] == "starting"
        assert one.json["raft"]["leader"] is False
    assert "loading" not in seen[-1].json
    assert filled.depth(filled.queue)["pending"] == LANES
    metrics = filled.get("/metrics/prometheus").expect(200).body.decode()
    assert "\nqueen_loaded_ratio 1.000\n" in metrics
    assert int(metrics.split("\nqueen_loaded_rows ")[1].split("\n")[0]) > LANES
    filled.stop()


def test_metrics_answer_while_it_loads(filled):
    seen = []
    answers(filled, "/metrics/prometheus", lambda one: seen.append(one.body.decode()) or len(seen) == 5)
    for one in seen:
        assert "\nqueen_loaded_ratio 0." in one and "\nqueen_process_resident_memory_bytes " in one
    wait_until(lambda: filled.fresh_request("GET", "/health").status == 200, 20)
    assert "\nqueen_loaded_ratio 1.000\n" in filled.get("/metrics/prometheus").expect(200).body.decode()
    filled.stop()


@pytest.mark.parametrize("method,path", [
    ("POST", "/api/v1/push"), ("GET", "/api/v1/pop/queue/x?batch=1"), ("GET", "/api/v1/raft/status"), ("GET", "/api/v1/system/raft/membership"),
    ("GET", "/api/v1/system/backup"), ("POST", "/api/v1/system/backup"), ("GET", "/api/v1/system/shared-state"), ("POST", "/api/v1/ack"),
])
def test_calls_are_refused_until_it_is_there(filled, method, path):
    seen = answers(filled, path, lambda one: one.status != 503, method)
    assert len(seen) >= 5
    for one in seen[:-1]:
        assert one.json["code"] == "no_leader" and one.headers["retry-after"] == "1"
    filled.stop()


def test_sigterm_while_it_loads(filled):
    answers(filled, "/health", lambda one: "loading" in one.json)
    filled.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert filled.wait_exit(20) == 0
    assert time.monotonic() - began < 5 and "stopped while the state was loaded" in filled.output()
    filled.start()
    assert filled.depth(filled.queue)["pending"] == LANES
    filled.stop()
