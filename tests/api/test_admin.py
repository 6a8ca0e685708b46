"""Health, metrics, and what is answered to a request that has no route."""

import re

import pytest

from queen import unique


def test_health(broker):
    answer = broker.get("/health").expect(200)
    assert answer.headers["content-type"].startswith("application/json")
    body = answer.json
    assert body["status"] == "healthy"
    assert body["engine"] == "raft"
    assert re.match(r"^2\.0\.\d+", body["version"])
    raft = body["raft"]
    assert {"role", "leader", "term", "applied", "commit", "lag", "storageReady", "clusterVersion", "kinds"} <= set(raft)
    assert (raft["role"], raft["leader"], raft["lag"], raft["storageReady"]) == ("leader", True, 0, True)
    for key in ("term", "applied", "commit", "clusterVersion", "kinds"):
        assert type(raft[key]) is int
    assert raft["term"] >= 1
    assert raft["applied"] <= raft["commit"]


def test_applied_moves_with_writes_and_stands_still_without(own_broker, queue):
    broker = own_broker()
    before = broker.get("/health").json["raft"]["applied"]
    broker.push_ids(queue, ["a"])
    after = broker.get("/health").json["raft"]["applied"]
    assert after > before
    for _ in range(20):
        broker.nothing(queue, "nowhere")
    assert broker.get("/health").json["raft"]["applied"] == after


def test_stats_refresh(broker):
    assert broker.post("/api/v1/stats/refresh").expect(200).json == {"success": True, "refreshed": False, "engine": "raft"}
    assert broker.post("/api/v1/stats/refresh", b"").status == 200
    assert broker.post("/api/v1/stats/refresh", {"x": 1}).status == 200


@pytest.mark.parametrize("method,path", [
    ("GET", "/api/v1/nothing"), ("POST", "/api/v1/nothing/here"), ("DELETE", "/api/v2/push"), ("GET", "/api/"), ("GET", "/api/v1"),
    ("GET", "/api/v1/resources/partitions"), ("PUT", "/api/v1/pushes"), ("GET", "/api/v1/pop/queue/a/b"), ("GET", "/streams/v1/x"),
])
def test_unknown_route_has_a_code(broker, method, path):
    answer = broker.request(method, path, b"{}" if method in ("POST", "PUT") else None)
    assert answer.status == 404
    body = answer.json
    assert set(body) == {"code", "error", "path"}
    assert body["code"] == "no_such_route"
    assert body["error"].lower() == "not found"
    assert body["path"] == path


def test_unknown_path_outside_the_api_is_404(broker):
    answer = broker.post("/nothing", b"{}")
    assert answer.status == 404


@pytest.mark.parametrize("method,path", [
    ("GET", "/api/v1/push"), ("DELETE", "/api/v1/push"), ("POST", "/api/v1/pop"), ("POST", "/api/v1/pop/queue/q"), ("GET", "/api/v1/ack"),
    ("PUT", "/api/v1/ack/batch"), ("GET", "/api/v1/configure"), ("POST", "/health"), ("DELETE", "/metrics/prometheus"),
    ("POST", "/api/v1/resources/queues/q"), ("GET", "/api/v1/stats/refresh"), ("GET", "/api/v1/lease/x/extend"), ("PATCH", "/api/v1/push"),
])
def test_wrong_method_is_405(broker, method, path):
    answer = broker.request(method, path, b"{}" if method in ("POST", "PUT", "PATCH") else None)
    assert answer.status == 405
    assert broker.get("/health").status == 200


def test_every_error_of_the_api_is_json(broker, queue):
    answers = [broker.post("/api/v1/push", b"{"), broker.get("/api/v1/none"), broker.get("/api/v1/resources/queues/" + queue),
               broker.pop(), broker.post("/api/v1/configure", b"[]"), broker.post("/api/v1/ack", b"x")]
    for answer in answers:
        assert answer.status in (400, 404)
        assert answer.headers["content-type"].startswith("application/json")
        assert isinstance(answer.json["error"], str)


def test_error_text_quotes_what_was_sent(broker):
    path = '/api/v1/%22quoted%22%0a%5c%00%ff'
    answer = broker.get(path)
    assert answer.status == 404
    assert answer.json["code"] == "no_such_route"


# ---- metrics ----

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: (-?\d+))?$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parse_metrics(text):
    """The text format by its rules: {family: (type, {(sample name, labels): value})}. Fails on anything else."""
    assert text.endswith("\n")
    families = {}
    helped = set()
    current = None
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped, name
            helped.add(name)
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram", "summary", "untyped")
            assert name not in families, "family %s twice" % name
            families[name] = (kind, {})
            current = name
            continue
        if line == "" or line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        assert match, "not a sample: %r" % line
        name, labels, value, _ = match.groups()
        kind = families[current][0]
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}.get(kind, ("",))
        assert name in [current + s for s in suffixes], "%s outside its family %s" % (name, current)
        pairs = []
        rest = labels or ""
        while rest:
            one = LABEL.match(rest)
            assert one, "bad labels: %r" % line
            pairs.append((one.group(1), re.sub(r'\\(.)', lambda m: {"n": "\n"}.get(m.group(1), m.group(1)), one.group(2))))
            rest = rest[one.end():]
        assert len({k for k, _ in pairs}) == len(pairs)
        key = (name, tuple(sorted(pairs)))
        assert key not in families[current][1], "sample twice: %r" % line
        families[current][1][key] = float(value)
    assert set(families) <= helped
    return families


def metrics(broker):
    answer = broker.get("/metrics/prometheus").expect(200)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parse_metrics(answer.body.decode("utf-8"))


FAMILIES = {
    "queen_uptime_seconds": "gauge", "queen_process_resident_memory_bytes": "gauge",
    "queen_process_push_requests_total": "counter", "queen_process_pop_requests_total": "counter", "queen_process_ack_requests_total": "counter",
    "queen_process_push_messages_total": "counter", "queen_process_pop_messages_total": "counter", "queen_process_ack_messages_total": "counter",
    "queen_raft_index": "gauge", "queen_raft_inflight": "gauge", "queen_raft_storage_full": "gauge", "queen_raft_admit_total": "counter",
    "queen_dlq_depth_by_queue": "gauge", "queen_raft_slow_commands_total": "counter", "queen_parked_long_polls": "gauge",
}


def test_metrics_hold_the_families_that_scrapers_use(broker):
    families = metrics(broker)
    for name, kind in FAMILIES.items():
        assert name in families, name
        assert families[name][0] == kind, name
    assert families["queen_raft_storage_full"][1] == {("queen_raft_storage_full", ()): 0.0}
    index = {dict(labels)["kind"]: value for (_, labels), value in families["queen_raft_index"][1].items()}
    assert set(index) == {"log", "committed", "applied", "durable"}
    assert index["applied"] <= index["committed"] <= index["log"]
    memory = families["queen_process_resident_memory_bytes"][1][("queen_process_resident_memory_bytes", ())]
    assert abs(memory - broker.resident_bytes()) < 64 * 1024 * 1024
    assert memory > 1024 * 1024


def test_counters_count(own_broker, queue):
    broker = own_broker()

    def totals():
        families = metrics(broker)
        return {name: sum(families["queen_process_%s_total" % name][1].values()) for name in (
            "push_requests", "push_messages", "pop_requests", "pop_messages", "ack_requests", "ack_messages")}

    before = totals()
    broker.push_ids(queue, ["a", "b", "c"], "p")
    batch = broker.take(queue, batch=2)["messages"]
    broker.ack_batch(batch)
    after = totals()
    assert {k: after[k] - before[k] for k in after} == {
        "push_requests": 1, "push_messages": 3, "pop_requests": 1, "pop_messages": 2, "ack_requests": 1, "ack_messages": 2}


def test_histograms_are_cumulative(broker, queue):
    broker.push_ids(queue, ["a"])
    families = metrics(broker)
    histograms = {name: samples for name, (kind, samples) in families.items() if kind == "histogram"}
    assert histograms
    for name, samples in histograms.items():
        series = {}
        for (sample, labels), value in samples.items():
            others = tuple(kv for kv in labels if kv[0] != "le")
            entry = series.setdefault(others, {"buckets": []})
            if sample.endswith("_bucket"):
                entry["buckets"].append((float(dict(labels)["le"].replace("+Inf", "inf")), value))
            else:
                entry[sample[len(name):]] = value
        for others, entry in series.items():
            values = [v for _, v in sorted(entry["buckets"])]
            assert values == sorted(values), (name, others)
            assert sorted(entry["buckets"])[-1] == (float("inf"), entry["_count"]), (name, others)
            assert entry["_sum"] >= 0


def test_queue_labels_are_escaped(broker):
    name = unique('we"ird\\name')
    broker.push_ids(name, ["a"], "p")
    broker.ack(broker.take(name)["messages"][0], "dlq")
    samples = metrics(broker)["queen_dlq_depth_by_queue"][1]
    assert samples[("queen_dlq_depth_by_queue", (("queue", name),))] == 1.0
    broker.delete_queue(name)
    assert ("queen_dlq_depth_by_queue", (("queue", name),)) not in metrics(broker)["queen_dlq_depth_by_queue"][1]


def test_requests_are_counted_by_route_and_status(broker, queue):
    def by_route():
        return {key: value for name, (kind, samples) in metrics(broker).items() if kind == "counter" for key, value in samples.items()
                if {"route", "status"} <= {k for k, _ in key[1]}}

    before = by_route()
    broker.push_ids(queue, ["a"])
    broker.post("/api/v1/push", b"{").expect(400)
    after = by_route()
    grown = {tuple(v for k, v in key[1] if k == "status")[0] for key, value in after.items() if value > before.get(key, 0) and any(
        "push" in v for _, v in key[1])}
    assert grown == {"201", "400"}
