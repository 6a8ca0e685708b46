"""The broker at a glance: overview, labels, sizes, status, the view of the cluster."""

import threading
import time
from datetime import datetime, timezone

import pytest

from queen import ISO_MS, ISO_US, QUEUE_MODE, UUID7, query, quote, unique


def get(broker, path, **params):
    return broker.get(path + query(params)).expect(200).json


@pytest.fixture
def shop(own_broker):
    """A broker with three queues: five messages waiting in all, one leased, one done, one dead letter."""
    broker = own_broker()
    broker.configure("mail", namespace="shop", task="send", retryLimit=0)
    broker.configure("ship", namespace="shop", task="move")
    broker.configure("plain", namespace="")
    broker.push_ids("mail", ["a", "b", "c"], "p")
    broker.push_ids("mail", ["d"], "r")
    broker.push_ids("ship", ["e"], "p")
    broker.push_ids("plain", ["f", "g", "h"])
    batch = broker.take("mail", "p", batch=2)["messages"]
    broker.ack_batch([(batch[0], "completed"), (batch[1], "dlq")])
    broker.take("plain", batch=1)
    return broker


def test_overview(shop):
    answer = get(shop, "/api/v1/resources/overview")
    assert (answer["queues"], answer["partitions"], answer["namespaces"], answer["tasks"]) == (3, 4, 1, 2)
    assert answer["messages"] == {"total": 8, "pending": 5, "processing": 1, "completed": 1, "failed": 0, "deadLetter": 1}
    assert answer["lag"]["offset"] == {"avg": 2, "median": 0, "min": 0, "max": 3}
    assert set(answer["lag"]["time"]) == {"avg", "median", "min", "max"}
    assert answer["statsAge"] == 0
    assert ISO_MS.match(answer["timestamp"])
    assert "partial" not in answer


def test_lag_in_seconds(own_broker, queue):
    broker = own_broker()
    assert get(broker, "/api/v1/resources/overview")["lag"]["time"]["max"] == 0
    broker.push_ids(queue, ["a"], "p")
    time.sleep(1.1)
    broker.push_ids(queue, ["b"], "p")
    assert 1 <= get(broker, "/api/v1/resources/overview")["lag"]["time"]["max"] <= 20
    broker.take(queue, batch=2, autoAck=True)
    answer = get(broker, "/api/v1/resources/overview")
    assert answer["lag"] == {"time": {"avg": 0, "median": 0, "min": 0, "max": 0}, "offset": {"avg": 0, "median": 0, "min": 0, "max": 0}}
    assert answer["messages"]["completed"] == 2


def test_overview_of_nothing(own_broker):
    answer = get(own_broker(), "/api/v1/resources/overview")
    assert (answer["queues"], answer["partitions"], answer["messages"]["total"]) == (0, 0, 0)


def test_labels(shop):
    shop.configure("other", namespace="a-first", task="send")
    assert get(shop, "/api/v1/resources/namespaces") == {"namespaces": [
        {"namespace": "a-first", "queues": 1, "partitions": 0, "messages": {"total": 0, "pending": 0}},
        {"namespace": "shop", "queues": 2, "partitions": 3, "messages": {"total": 5, "pending": 3}}]}
    assert get(shop, "/api/v1/resources/tasks") == {"tasks": [
        {"task": "move", "queues": 1, "partitions": 1, "messages": {"total": 1, "pending": 1}},
        {"task": "send", "queues": 2, "partitions": 2, "messages": {"total": 4, "pending": 2}}]}


def test_no_labels(own_broker, queue):
    broker = own_broker()
    broker.configure(queue, namespace="", task="")
    assert get(broker, "/api/v1/resources/namespaces") == {"namespaces": []}
    assert get(broker, "/api/v1/resources/tasks") == {"tasks": []}


def test_sizes(broker, queue):
    path = "/api/v1/resources/queues/%s/sizes" % quote(queue)
    assert broker.get(path).expect(404).json == {"error": "Queue not found"}
    broker.configure(queue)
    assert get(broker, path) == {"queue": queue, "partitions": {}}
    broker.push_ids(queue, ["a"], "p")
    broker.push_raw(queue, b'"' + b"x" * 5000 + b'"', 'r "1"').expect(201)
    sizes = get(broker, path)["partitions"]
    assert set(sizes) == {"p", 'r "1"'}
    assert 5000 <= sizes['r "1"'] < 6000
    assert sizes == {row["name"]: row["retainedBytes"] for row in broker.queue_detail(queue)["partitions"]}


def test_many_lanes_and_queues(own_broker, queue):
    broker = own_broker()
    broker.configure(queue, namespace="")
    for part in range(5):
        broker.push([{"queue": queue, "partition": "p%05d" % i, "payload": i} for i in range(part * 1000, part * 1000 + 1000)]).expect(201)
    for i in range(20):
        broker.configure("other-%d" % i, namespace="n%d" % (i % 3))
    answer = get(broker, "/api/v1/resources/overview")
    assert (answer["queues"], answer["partitions"], answer["messages"]["pending"], answer["namespaces"]) == (21, 5000, 5000, 3)
    assert len(get(broker, "/api/v1/resources/queues/%s/sizes" % queue)["partitions"]) == 5000
    assert [(r["namespace"], r["queues"]) for r in get(broker, "/api/v1/resources/namespaces")["namespaces"]] == [("n0", 7), ("n1", 7), ("n2", 6)]


def test_a_queue_deleted_while_it_is_looked_at(own_broker, queue):
    """Visits go on behind a queue that is gone by then."""
    broker = own_broker()
    for part in range(4):
        broker.push([{"queue": queue, "partition": "p%05d" % i, "payload": i} for i in range(part * 1000, part * 1000 + 1000)]).expect(201)
    broker.push_ids("stays", ["a"], "p")
    answers = []

    def look():
        for _ in range(30):
            answers.append(broker.fresh_request("GET", "/api/v1/resources/overview").expect(200).json)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(5):
        broker.delete_queue(queue)
        broker.push([{"queue": queue, "partition": "p%05d" % i, "payload": i} for i in range(1500)]).expect(201)
    thread.join()
    assert len(answers) == 30
    assert all(answer["queues"] in (1, 2) and answer["messages"]["total"] >= 1 for answer in answers)
    assert get(broker, "/api/v1/resources/overview")["messages"]["total"] == 1501


# ---- status ----


def test_status(shop):
    answer = get(shop, "/api/v1/status")
    assert {"timeRange", "bucketMinutes", "pointCount", "throughput", "queues", "messages", "leases", "deadLetterQueue", "workers", "errors",
            "statsAge", "engine"} == set(answer)
    assert answer["engine"] == "raft"
    assert (answer["bucketMinutes"], answer["pointCount"], answer["throughput"], answer["statsAge"]) == (1, 0, [], 0)
    assert (answer["queues"]["total"], answer["queues"]["active"]) == (3, 3)
    assert answer["messages"] == get(shop, "/api/v1/resources/overview")["messages"]
    assert answer["leases"] == {"active": 1, "partitionsWithLeases": 1}
    assert answer["deadLetterQueue"]["totalMessages"] == 1
    assert ISO_MS.match(answer["timeRange"]["from"]) and ISO_MS.match(answer["timeRange"]["to"])
    assert get(shop, "/api/v1/status", queue="ship")["messages"]["total"] == 1
    assert get(shop, "/api/v1/status", namespace="shop")["queues"]["total"] == 2
    assert get(shop, "/api/v1/status", task="send", namespace="shop")["messages"]["deadLetter"] == 1
    assert get(shop, "/api/v1/status", queue="none")["queues"]["total"] == 0


@pytest.mark.parametrize("hours,minutes", [(1, 1), (5, 5), (20, 15), (100, 60), (1000, 360)])
def test_status_buckets(broker, hours, minutes):
    end = datetime.now(timezone.utc).timestamp()
    begin = datetime.fromtimestamp(end - hours * 3600, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    close = datetime.fromtimestamp(end, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    answer = get(broker, "/api/v1/status", **{"from": begin, "to": close})
    assert answer["bucketMinutes"] == minutes
    assert answer["timeRange"] == {"from": begin[:23] + "Z", "to": close[:23] + "Z"}


def test_a_bad_bound_is_500(broker):
    assert broker.get("/api/v1/status?from=then").expect(500).json["error"]
    assert broker.get("/api/v1/status?to=then").expect(500).json["error"]


def test_status_of_queues(shop):
    rows = get(shop, "/api/v1/status/queues")["queues"]
    assert rows == get(shop, "/api/v1/resources/queues")["queues"]
    assert [row["name"] for row in rows] == ["plain", "ship", "mail"]


def test_status_of_one_queue(shop):
    answer = get(shop, "/api/v1/status/queues/mail")
    detail = shop.queue_detail("mail")
    assert set(answer) == {"queue", "partitions", "totals"}
    assert answer["queue"]["config"] == detail["options"]
    assert {k: answer["queue"][k] for k in ("id", "name", "namespace", "task", "createdAt")} == {
        k: detail[k] for k in ("id", "name", "namespace", "task", "createdAt")}
    assert answer["queue"]["priority"] == 0
    assert answer["partitions"] == detail["partitions"]
    assert answer["totals"] == {"messages": detail["totals"]}
    assert UUID7.match(answer["queue"]["id"]) and ISO_US.match(answer["queue"]["createdAt"])
    assert shop.get("/api/v1/status/queues/none").expect(404).json == {"error": "Queue not found"}


def test_analytics(shop):
    answer = get(shop, "/api/v1/status/analytics", interval="day")
    assert (answer["interval"], [p["messages"] for p in answer["dataPoints"]]) == ("hour", [8])
    assert ISO_MS.match(answer["dataPoints"][0]["timestamp"])
    assert answer["to"][:10] != answer["from"][:10]
    assert QUEUE_MODE not in str(answer)


def test_other_tenants_count_nothing(own_broker, queue):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    other = {"x-queen-tenant": "00000000-0000-0000-0000-000000000002"}
    broker.configure(queue, namespace="n")
    broker.push_ids(queue, ["a"], "p")
    assert broker.get("/api/v1/resources/overview", headers=other).json["queues"] == 0
    assert broker.get("/api/v1/resources/namespaces", headers=other).json == {"namespaces": []}
    assert broker.get("/api/v1/status", headers=other).json["messages"]["total"] == 0
    assert broker.get("/api/v1/status/analytics", headers=other).json["dataPoints"][0]["messages"] == 0
    broker.get("/api/v1/resources/queues/%s/sizes" % unique("q"), headers=other).expect(404)
    broker.get("/api/v1/resources/queues/%s/sizes" % queue, headers=other).expect(404)


# ---- the cluster of one node ----

NODE_KEYS = {"nodeId", "hostname", "raftAddr", "httpAddr", "role", "state", "local", "reachable", "leaderId", "term", "lastLogIndex", "committedIndex",
             "appliedIndex", "durableIndex", "inflight", "proposals", "log", "store", "version", "uptimeSeconds", "host", "damage", "error"}


def test_raft_status(own_broker, queue):
    broker = own_broker(env={"QUEEN_SERVER_ID": "node-a"})
    before = get(broker, "/api/v1/raft/status")
    assert set(before) == NODE_KEYS | {"engine", "clusterId", "self", "voters", "singleNode", "replication"}
    assert (before["engine"], before["self"], before["voters"], before["singleNode"], before["replication"]) == ("raft", 1, 1, True, [])
    assert (before["nodeId"], before["hostname"], before["raftAddr"], before["role"], before["state"]) == (1, "node-a", None, "voter", "leader")
    assert before["httpAddr"] == "127.0.0.1:%d" % broker.port
    assert (before["local"], before["reachable"], before["leaderId"], before["error"]) == (True, True, 1, None)
    health = get(broker, "/health")
    assert (before["term"], before["version"]) == (health["raft"]["term"], health["version"])
    assert before["durableIndex"] <= before["appliedIndex"] <= before["committedIndex"] <= before["lastLogIndex"]
    assert before["log"]["files"] >= 1 and before["log"]["bytes"] > 0
    host = before["host"]
    assert host["cpus"] >= 1
    assert abs(host["rssBytes"] - broker.resident_bytes()) < 64 << 20
    disk = host["disk"]
    assert (disk["gate"], disk["highPct"], disk["lowPct"], disk["writesRefused"]) == ("open", 85, 80, False)
    assert 0 < disk["usedBytes"] < disk["totalBytes"]
    broker.push_ids(queue, ["a"], "p")
    after = get(broker, "/api/v1/raft/status")
    assert after["appliedIndex"] > before["appliedIndex"]
    assert after["proposals"] > before["proposals"]
    assert after["clusterId"] == before["clusterId"]
    broker.restart("kill")
    assert get(broker, "/api/v1/raft/status")["clusterId"] == before["clusterId"]
    assert get(broker, "/api/v1/raft/status")["term"] > before["term"]


def test_raft_members(broker):
    answer = get(broker, "/api/v1/raft/members")
    assert (answer["engine"], answer["leaderId"], answer["self"], answer["voters"]) == ("raft", 1, 1, 1)
    assert len(answer["members"]) == 1
    member = answer["members"][0]
    assert set(member) == NODE_KEYS | {"matchIndex", "heartbeatAgeMs", "lagEntries"}
    assert (member["nodeId"], member["state"], member["lagEntries"]) == (1, "leader", 0)
    assert answer["clusterId"] == get(broker, "/api/v1/raft/status")["clusterId"]


def test_raft_liveness(broker):
    answer = get(broker, "/api/v1/raft/liveness")
    assert (answer["engine"], answer["nodeId"], answer["leaderId"], answer["viewAgeMs"], answer["viewLeaderId"]) == ("raft", 1, 1, 0, 1)
    assert [set(m) for m in answer["members"]] == [{"nodeId", "role", "state", "http", "raft", "lastAckMs", "matchIndex", "local"}]


def test_system_views(broker, queue):
    assert get(broker, "/api/v1/system/kv-timers") == {"kvEnabled": True, "timersScheduleEnabled": True, "timersFireEnabled": True,
                                                      "quotaTenants": 0, "quotaAgeMs": None, "quotaHot": 0}
    broker.push_ids(queue, ["a"], "p")
    answer = get(broker, "/api/v1/system/shared-state")
    assert set(answer) == {"enabled", "reason", "appliedIndex", "durableIndex", "queues"}
    assert (answer["enabled"], answer["reason"]) == (True, "raft_state_machine")
    assert answer["queues"] >= 1
