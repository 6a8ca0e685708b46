"""Tenants in several raft groups: a tenant lives in one, finds what it left there, and sees nothing of another's."""

import json
import subprocess
import threading
import uuid

import pytest

from cluster import Cluster
from queen import ids, quote, wait_until
from timers import op_schedule

ON = {"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"}
DEFAULT = "00000000-0000-0000-0000-000000000001"


class Tenant:
    """A broker as a tenant sees it."""

    def __init__(self, broker, name=None):
        self.broker = broker
        self.name = name or str(uuid.uuid4())
        self.headers = {"x-queen-tenant": self.name}

    def get(self, path, **kwargs):
        return self.broker.get(path, headers=self.headers, **kwargs)

    def post(self, path, body=None, **kwargs):
        return self.broker.post(path, body, headers=self.headers, **kwargs)

    def delete(self, path, **kwargs):
        return self.broker.delete(path, headers=self.headers, **kwargs)

    def push_ids(self, *args):
        return self.broker.push_ids(*args, headers=self.headers)

    def push_again(self, queue, name):
        """Pushes an id that may be there; the result."""
        return self.post("/api/v1/push", {"items": [{"queue": queue, "partition": "p", "transactionId": name, "payload": 1}]}).expect(201).json[0]

    def pop(self, *args, **params):
        return self.broker.pop(*args, headers=self.headers, **params)

    def ack(self, message, status="completed", **more):
        body = dict({"transactionId": message["transactionId"], "partitionId": message["partitionId"], "leaseId": message["leaseId"],
                     "status": status}, **more)
        return self.broker.ack_body(body, headers=self.headers).expect(200).json[0]


def spread(broker, groups, a_group=1):
    """So many tenants that every group has some: with 12 a group, one that has none is less likely than 1 in 10,000."""
    return [Tenant(broker) for _ in range(12 * groups * a_group)]


def groups_of(broker, count):
    """What each group has applied, by the metrics."""
    text = broker.get("/metrics/prometheus").expect(200).body.decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("queen_raft_proposals_total"))
    return [int(lines['queen_raft_proposals_total{group="%d"}' % n]) for n in range(count)]


@pytest.fixture(params=[1, 3], ids=["one-group", "three-groups"])
def broker_of_groups(request, own_broker):
    return own_broker(env=dict(ON, QUEEN_RAFT_GROUPS=str(request.param)))


# ---- nothing crosses ----


def test_messages_leases_and_ids_stay_with_their_tenant(broker_of_groups, queue):
    tenants = spread(broker_of_groups, 2)
    taken = []
    for n, tenant in enumerate(tenants):
        first = tenant.push_ids(queue, ["t"], "p")[0]
        assert (first["status"], first["offset"]) == ("queued", 0), n
        taken.append((tenant, first["message_id"]))
    assert len({message_id for _, message_id in taken}) == len(tenants)
    messages = []
    for tenant, message_id in taken:
        answer = tenant.pop(queue, "p").expect(200).json
        assert [m["id"] for m in answer["messages"]] == [message_id]
        assert tenant.pop(queue, "p").status == 204
        messages.append(answer["messages"][0])
    for n, (tenant, _) in enumerate(taken):
        stranger = taken[(n + 1) % len(taken)][0]
        assert stranger.ack(messages[n])["success"] is False
        lease = messages[n]["leaseId"]
        assert stranger.post("/api/v1/lease/%s/extend" % lease, {"seconds": 60}).expect(200).json["renewed"] == 0
    for n, (tenant, _) in enumerate(taken):
        assert tenant.ack(messages[n])["success"] is True, n
        assert tenant.get("/api/v1/resources/queues").expect(200).json["queues"][0]["name"] == queue
        assert len(tenant.get("/api/v1/resources/queues").json["queues"]) == 1


def test_partition_numbers_of_others_are_unknown(broker_of_groups, queue):
    one, two = Tenant(broker_of_groups), Tenant(broker_of_groups)
    one.push_ids(queue, ["t"], "p")
    message = one.pop(queue, "p").expect(200).json["messages"][0]
    path = "/api/v1/messages/%s/t" % message["partitionId"]
    one.get(path).expect(200)
    two.get(path).expect(404)
    two.delete(path).expect(404)
    one.get(path).expect(200)


def test_kv_locks_and_timers_stay_with_their_tenant(broker_of_groups, queue):
    one, two = Tenant(broker_of_groups), Tenant(broker_of_groups)
    for tenant, value in ((one, 1), (two, 2)):
        op = {"op": "put", "ns": "n", "key": "k", "value": value, "forever": True}
        assert tenant.post("/api/v1/kv", {"operations": [op]}).expect(200).json["results"][0]["applied"] is True
    assert [t.get("/api/v1/kv/n/k").expect(200).json["value"] for t in (one, two)] == [1, 2]
    one.delete("/api/v1/kv/n/k").expect(200)
    assert two.get("/api/v1/kv/n/k").expect(200).json["value"] == 2
    for tenant in (one, two):
        op = {"op": "acquire", "name": "l", "owner": "o", "ttlSeconds": 60}
        assert tenant.post("/api/v1/locks", {"operations": [op]}).expect(200).json["results"][0]["acquired"] is True
    one.post("/api/v1/timers", {"operations": [op_schedule(queue, "t", 200)]}).expect(200)
    answer = one.pop(queue, wait=True, timeout=5000).expect(200).json
    assert ids(answer) == ["txn-t"]
    assert two.pop(queue).status == 204
    one.post("/api/v1/timers", {"operations": [op_schedule(queue, "later", 60000)]}).expect(200)
    lists = [json.dumps(t.get("/api/v1/timers/" + quote(queue)).expect(200).json) for t in (one, two)]
    assert ["later" in text for text in lists] == [True, False]


def test_dead_letters_groups_and_fetch_stay_with_their_tenant(broker_of_groups, queue):
    one, two = Tenant(broker_of_groups), Tenant(broker_of_groups)
    for tenant in (one, two):
        tenant.post("/api/v1/configure", {"queue": queue, "options": {"retryLimit": 0, "deadLetterQueue": True}}).expect((200, 201))
        tenant.push_ids(queue, ["a", "b"], "p")
    message = one.pop(queue, "p", group="g", subscriptionMode="all").expect(200).json["messages"][0]
    assert one.ack(message, "dlq", consumerGroup="g", error="no")["success"] is True
    letters = one.get("/api/v1/dlq?queue=" + queue).expect(200).json["messages"]
    assert len(letters) == 1
    assert two.get("/api/v1/dlq?queue=" + queue).expect(200).json["messages"] == []
    assert two.post("/api/v1/dlq/%s/replay" % letters[0]["id"]).status == 404
    lists = [json.dumps(t.get("/api/v1/consumer-groups").expect(200).json) for t in (one, two)]
    assert ['"g"' in text for text in lists] == [True, False]
    two.delete("/api/v1/consumer-groups/g")
    assert '"g"' in json.dumps(one.get("/api/v1/consumer-groups").expect(200).json)
    entry = {"entries": [{"queue": queue, "partition": "p", "offset": 0}]}
    records = [t.post("/api/v1/fetch", entry).expect(200).json["entries"][0]["records"] for t in (one, two)]
    assert [len(r) for r in records] == [2, 2]
    two.delete("/api/v1/resources/queues/" + quote(queue)).expect(200)
    assert len(one.post("/api/v1/fetch", entry).expect(200).json["entries"][0]["records"]) == 2


def test_a_transaction_is_whole_in_the_tenants_group(broker_of_groups, queue):
    tenants = spread(broker_of_groups, 1)
    for tenant in tenants:
        tenant.push_ids(queue, ["in"], "p")
        message = tenant.pop(queue, "p").expect(200).json["messages"][0]
        body = {"operations": [{"type": "push", "items": [{"queue": queue + "-out", "partition": "p", "transactionId": "out", "payload": 1}]},
                               {"type": "ack", "transactionId": "in", "partitionId": message["partitionId"], "leaseId": message["leaseId"],
                                "status": "completed"}],
                "kv": [{"op": "putIfAbsent", "ns": "n", "key": "once", "value": 1, "forever": True}]}
        assert tenant.post("/api/v1/transaction", body).expect(200).json["success"] is True
        again = tenant.post("/api/v1/transaction", body).json
        assert again["success"] is False
    for tenant in tenants:
        assert ids(tenant.pop(queue + "-out", "p").expect(200).json) == ["out"]
        assert tenant.pop(queue, "p").status == 204


# ---- where tenants live ----


def test_every_group_gets_tenants_and_keeps_them(own_broker, queue):
    broker = own_broker(env=dict(ON, QUEEN_RAFT_GROUPS="4"))
    before = groups_of(broker, 4)
    tenants = spread(broker, 4)
    for tenant in tenants:
        tenant.push_ids(queue, ["t"], "p")
    assert all(b > a for a, b in zip(before, groups_of(broker, 4)))
    for how in ("kill", "stop"):
        broker.restart(how)
        for tenant in tenants:
            assert tenant.push_again(queue, "t")["status"] == "duplicate"
    for tenant in tenants:
        assert ids(tenant.pop(queue, "p").expect(200).json) == ["t"]


def test_the_map_places_a_tenant(own_broker, queue):
    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    broker = own_broker(env=dict(ON, QUEEN_RAFT_GROUPS="3", QUEEN_TENANT_GROUPS="%s=2,%s=1,%s=2" % (one, two, DEFAULT)))
    before = groups_of(broker, 3)
    for n in range(5):
        Tenant(broker, one).push_ids(queue, ["t%d" % n], "p")
        broker.push_ids(queue, ["t%d" % n], "p")
    middle = groups_of(broker, 3)
    assert (middle[0] - before[0], middle[1] - before[1]) == (0, 0) and middle[2] - before[2] >= 10
    Tenant(broker, two).push_ids(queue, ["t"], "p")
    assert groups_of(broker, 3)[1] > middle[1]


@pytest.mark.parametrize("first,second,says", [
    ({"QUEEN_RAFT_GROUPS": "2"}, {"QUEEN_RAFT_GROUPS": "3"}, "made with 2"),
    ({"QUEEN_RAFT_GROUPS": "2"}, {}, "made with 2"),
    ({}, {"QUEEN_RAFT_GROUPS": "2"}, "made with 1"),
    ({"QUEEN_RAFT_GROUPS": "2", "QUEEN_TENANT_GROUPS": DEFAULT + "=1"}, {"QUEEN_RAFT_GROUPS": "2"}, "another map"),
    ({"QUEEN_RAFT_GROUPS": "2", "QUEEN_TENANT_GROUPS": DEFAULT + "=1"}, {"QUEEN_RAFT_GROUPS": "2", "QUEEN_TENANT_GROUPS": DEFAULT + "=0"}, "another map"),
    ({"QUEEN_RAFT_GROUPS": "2"}, {"QUEEN_RAFT_GROUPS": "2", "QUEEN_TENANT_GROUPS": DEFAULT + "=1"}, "another map"),
])
def test_number_and_map_are_fixed_when_the_directory_is_made(own_broker, queue, first, second, says):
    broker = own_broker(env=first)
    broker.push_ids(queue, ["t"], "p")
    broker.stop()
    broker.env = dict(second)
    done = subprocess.run(broker.command(), env=broker.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert says in said and ("QUEEN_RAFT_GROUPS" in said or "QUEEN_TENANT_GROUPS" in said)
    broker.env = dict(first)
    broker.start()
    assert ids(broker.pop(queue, "p").expect(200).json) == ["t"]


def test_a_damaged_groups_file_is_refused(own_broker):
    broker = own_broker(env={"QUEEN_RAFT_GROUPS": "2"})
    broker.stop()
    with open(broker.data_dir + "/groups", "r+b") as file:
        file.seek(20)
        file.write(b"7")
    done = subprocess.run(broker.command(), env=broker.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
    assert done.returncode == 2 and "groups: damaged" in done.stderr.decode()


def test_views_show_every_group(own_broker, queue):
    broker = own_broker(env={"QUEEN_RAFT_GROUPS": "3"})
    status = broker.get("/api/v1/raft/status").expect(200).json
    assert [g["group"] for g in status["groups"]] == [0, 1, 2]
    assert all(g["state"] == "leader" and g["appliedIndex"] > 0 for g in status["groups"])
    text = broker.get("/metrics/prometheus").expect(200).body.decode()
    for family in ("queen_raft_index", "queen_raft_inflight", "queen_raft_log_storage", "queen_raft_proposals_total", "queen_raft_store_operations_total"):
        samples = [line for line in text.splitlines() if line.startswith(family + "{")]
        assert samples and all('group="' in line for line in samples), family
        assert {line.split('group="')[1][0] for line in samples} == {"0", "1", "2"}
    health = broker.get("/health").expect(200).json
    assert health["raft"]["role"] == "leader"


def test_long_polls_of_many_groups_are_woken_and_ended(own_broker, queue):
    broker = own_broker(env=dict(ON, QUEEN_RAFT_GROUPS="3"))
    tenants = spread(broker, 1)
    got = {}

    def poll(tenant):
        got[tenant.name] = broker.fresh_request("GET", "/api/v1/pop/queue/%s?wait=true&timeout=20000" % queue, headers=tenant.headers)

    threads = [threading.Thread(target=poll, args=(t,)) for t in tenants]
    for thread in threads:
        thread.start()
    wait_until(lambda: b"queen_parked_long_polls %d\n" % len(tenants) in broker.get("/metrics/prometheus").body, 10, "all polls are parked")
    for tenant in tenants[: len(tenants) // 2]:
        tenant.push_ids(queue, [tenant.name], "p")
    wait_until(lambda: len(got) == len(tenants) // 2, 10, "half of them are answered")
    broker.stop()  # the others get their empty answer
    for thread in threads:
        thread.join(20)
    for n, tenant in enumerate(tenants):
        if n < len(tenants) // 2:
            assert ids(got[tenant.name].expect(200).json) == [tenant.name]
        else:
            assert got[tenant.name].status == 204


# ---- in a cluster ----


def test_groups_of_a_cluster(queue):
    """Leaders spread over the nodes; every tenant's calls work at every node, before and after a node is gone."""
    with Cluster(3, groups=3, env=ON) as cluster:
        wait_until(lambda: [cluster.leader(g).number for g in range(3)] == [1, 2, 3], 30, "each group is led where it belongs")
        tenants = [Tenant(node) for node in cluster.nodes for _ in range(6)]
        for tenant in tenants:
            assert tenant.push_ids(queue, ["t"], "p")[0]["status"] == "queued"
        victim = cluster.nodes[1]
        victim.kill()
        for n, tenant in enumerate(tenants):
            tenant.broker = cluster.nodes[0 if n % 2 else 2]
            assert tenant.push_again(queue, "t")["status"] == "duplicate"
            assert ids(tenant.pop(queue, "p").expect(200).json) == ["t"]
            assert tenant.pop(queue, "p").status == 204
        victim.launched()
        cluster.wait_ready()
        wait_until(lambda: [cluster.leader(g).number for g in range(3)] == [1, 2, 3], 30, "its leadership comes back to it")
        for tenant in tenants:
            tenant.broker = victim
            assert tenant.push_ids(queue, ["u"], "p")[0]["offset"] == 1
        cluster.stop()


def test_nodes_with_other_groups_do_not_meet():
    cluster = Cluster(2, groups=2, start=False).make()
    try:
        cluster.nodes[1].env["QUEEN_RAFT_GROUPS"] = "3"
        for node in cluster.voters():
            node.launched()
        wait_until(lambda: "two different clusters" in cluster.nodes[0].output() or "two different clusters" in cluster.nodes[1].output(), 15, "one refuses the other")
        assert not any(node.healthy() for node in cluster.nodes)
    finally:
        cluster.close()


