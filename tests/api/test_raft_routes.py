"""The cluster over HTTP: views of every node, changes of the members, and what a node must refuse to be."""

import json
import os
import shutil
import subprocess
import threading
import time

import pytest

from cluster import BASE, TOKEN, Cluster
from queen import free_port, ids, unique, wait_until

NODE_KEYS = {"damage", "nodeId", "hostname", "raftAddr", "httpAddr", "role", "state", "local", "reachable", "leaderId", "term", "lastLogIndex", "committedIndex",
             "appliedIndex", "durableIndex", "inflight", "proposals", "log", "store", "version", "uptimeSeconds", "host", "error"}
MEMBER_KEYS = {"nodeId", "voter", "raft", "http", "matched", "lag", "lastAckMs", "live"}


def refused(answer, status, code):
    answer.expect(status)
    assert set(answer.json) == {"ok", "code", "error"}
    assert (answer.json["ok"], answer.json["code"]) == (False, code), answer.json
    assert answer.json["error"]
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1
    return answer.json["error"]


def membership(node):
    answer = node.get(BASE).expect(200).json
    assert set(answer) == {"engine", "membership"}
    return answer["membership"]


def new_member(number=9):
    return {"id": number, "raft": "127.0.0.1:%d" % free_port(), "http": "127.0.0.1:%d" % free_port()}


@pytest.fixture(scope="module")
def three():
    """A cluster of three that the tests of this module leave as they found it."""
    with Cluster(3) as cluster:
        yield cluster
        cluster.stop()


@pytest.fixture
def cluster_of():
    made = []

    def make(*args, **kwargs):
        made.append(Cluster(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---- views ----


def test_status_of_each_node(three):
    leader = three.leader()
    for node in three.nodes:
        status = node.get("/api/v1/raft/status").expect(200).json
        assert set(status) == NODE_KEYS | {"engine", "clusterId", "self", "voters", "singleNode", "replication"}
        assert (status["engine"], status["self"], status["nodeId"], status["voters"], status["singleNode"]) == ("raft", node.number, node.number, 3, False)
        assert (status["raftAddr"], status["httpAddr"], status["hostname"]) == (node.raft, node.http, "node-%d" % node.number)
        assert (status["role"], status["state"]) == ("voter", "leader" if node is leader else "follower")
        assert status["leaderId"] == leader.number
        if node is leader:
            assert sorted(r["nodeId"] for r in status["replication"]) == sorted(n.number for n in three.nodes if n is not leader)
            assert all(r["matchIndex"] > 0 and 0 <= r["heartbeatAgeMs"] < 3000 for r in status["replication"])
        else:
            assert status["replication"] is None
    assert len({n.get("/api/v1/raft/status").json["clusterId"] for n in three.nodes}) == 1


def test_members_from_each_node(three):
    leader = three.leader()
    for node in three.nodes:
        answer = node.get("/api/v1/raft/members").expect(200).json
        assert (answer["self"], answer["leaderId"], answer["voters"]) == (node.number, leader.number, 3)
        assert [m["nodeId"] for m in answer["members"]] == [1, 2, 3]
        for member in answer["members"]:
            assert set(member) == NODE_KEYS | {"matchIndex", "heartbeatAgeMs", "lagEntries"}
            assert member["local"] is (member["nodeId"] == node.number)
            assert (member["reachable"], member["hostname"], member["error"]) == (True, "node-%d" % member["nodeId"], None)
            assert member["matchIndex"] > 0 and member["lagEntries"] < 1000


def test_liveness_from_each_node(three):
    leader = three.leader()
    for node in three.nodes:
        answer = node.get("/api/v1/raft/liveness").expect(200).json
        assert (answer["nodeId"], answer["leaderId"], answer["viewLeaderId"], answer["viewAgeMs"]) == (node.number, leader.number, leader.number, 0)
        assert [(m["nodeId"], m["role"], m["raft"], m["http"]) for m in answer["members"]] == [(n.number, "voter", n.raft, n.http) for n in three.nodes]
        assert [m["state"] for m in answer["members"]] == ["leader" if n is leader else "follower" for n in three.nodes]
        assert all(m["lastAckMs"] < 3000 and m["matchIndex"] > 0 for m in answer["members"])
        assert [m["local"] for m in answer["members"]] == [n is node for n in three.nodes]


def test_membership_from_each_node(three):
    leader = three.leader()
    for node in three.nodes:
        m = membership(node)
        assert (m["nodeId"], m["source"], m["leader"]) == (node.number, "leader" if node is leader else "follower", leader.number)
        assert (m["voters"], m["learners"], m["joint"]) == ([1, 2, 3], [], None)
        assert (m["membershipCommitted"], m["changeInFlight"], m["promoteMaxLag"], m["liveWithinMs"]) == (True, False, 1000, 900)
        assert all(set(one) == MEMBER_KEYS for one in m["members"])
        assert [(one["nodeId"], one["voter"], one["raft"], one["http"], one["live"]) for one in m["members"]] == [
            (n.number, True, n.raft, n.http, True) for n in three.nodes]


def test_a_node_that_is_away_is_unreachable(cluster_of):
    cluster = cluster_of(3)
    leader = cluster.leader()
    gone, stays = cluster.followers()
    gone.kill()
    for node in (leader, stays):
        begin = time.monotonic()
        answer = node.get("/api/v1/raft/members").expect(200).json
        assert time.monotonic() - begin < 5
        away = answer["members"][gone.number - 1]
        assert set(away) == {"nodeId", "role", "state", "local", "reachable", "raftAddr", "httpAddr", "hostname", "error", "matchIndex",
                             "heartbeatAgeMs", "lagEntries"}
        assert (away["nodeId"], away["role"], away["state"], away["local"], away["reachable"]) == (gone.number, "voter", "unreachable", False, False)
        assert (away["raftAddr"], away["httpAddr"], away["hostname"]) == (gone.raft, gone.http, None)
    wait_until(lambda: not membership(stays)["members"][gone.number - 1]["live"], 10, "it counts as away")
    liveness = stays.get("/api/v1/raft/liveness").json["members"][gone.number - 1]
    assert liveness["state"] == "unreachable" and liveness["lastAckMs"] >= 900


def test_health_and_metrics_of_a_cluster(three):
    leader = three.leader()
    for node in three.nodes:
        raft = node.get("/health").expect(200).json["raft"]
        assert raft["role"] == ("leader" if node is leader else "follower")
        assert (raft["leader"], raft["lag"], raft["storageReady"]) == (True, 0, True)
        assert 0 <= raft["quorumAckMs"] < 3000
        assert raft["apply"] == {"failure": None, "skipped": []}
        text = node.get("/metrics/prometheus").expect(200).body.decode()
        assert 'queen_raft_leader{group="0"} %d\n' % (node is leader) in text
        for other in three.nodes:
            if other is not node:
                assert 'queen_peer_connected{peer="%d"} 1\n' % other.number in text
        assert "queen_raft_index{kind=\"applied\"}" in text


# ---- quorum ----


def test_without_a_majority_nothing_is_ready_and_nothing_is_answered_wrongly(cluster_of, queue):
    cluster = cluster_of(3, env={"QUEEN_RAFT_READY_QUORUM_MS": "1000", "QUEEN_RAFT_LEADER_WAIT_MS": "1500"})
    leader = cluster.leader()
    leader.push_ids(queue, ["a"], "p")
    stays = cluster.followers()[0]
    for node in cluster.nodes:
        if node is not stays:
            node.kill()
    wait_until(lambda: stays.get("/health").status == 503, 10, "it says that it is not ready")
    health = stays.get("/health").json
    assert health["status"] == "settling" and health["raft"]["role"] != "leader"
    begin = time.monotonic()
    answer = stays.push([{"queue": queue, "partition": "p", "payload": 1}])
    assert answer.status == 503 and answer.json["code"] in ("no_leader", "retry", "outcome_unknown", "timeout"), answer
    assert int(answer.headers["retry-after"]) >= 1
    assert time.monotonic() - begin < 10
    assert stays.get("/api/v1/resources/queues").status == 503
    assert stays.get("/api/v1/raft/status").expect(200).json["leaderId"] is None
    refused(stays.post(BASE + "/promote?timeoutMs=1000", {"ids": [1]}), 503, "retry")
    for node in cluster.nodes:
        if node is not stays:
            node.launched()
    cluster.wait_ready()
    assert ids(stays.pop(queue, "p").expect(200).json) == ["a"]


def test_calls_are_held_while_the_leader_changes(three, queue):
    """A push at a follower right after the leader was killed is answered by the next one."""
    three.leader().push_ids(queue, ["a"], "p")
    leader = three.leader()
    node = three.followers()[0]
    leader.kill()
    begin = time.monotonic()
    answer = node.push([{"queue": queue, "partition": "p", "transactionId": "b", "payload": 1}]).expect(201)
    assert time.monotonic() - begin < 8, answer
    assert [r["offset"] for r in answer.json] == [1]
    leader.launched()
    three.wait_ready()


def test_graceful_stop_hands_over(three, queue):
    leader = three.leader()
    follower = three.followers()[0]
    answers = []
    going = threading.Event()

    def pusher():
        while not going.is_set():
            answers.append(follower.fresh_request("POST", "/api/v1/push", {"items": [{"queue": queue, "partition": "p", "payload": 1}]}))

    thread = threading.Thread(target=pusher)
    thread.start()
    wait_until(lambda: len(answers) > 10, 10, "pushes flow")
    leader.stop()
    before = len(answers)
    wait_until(lambda: len(answers) > before + 10, 10, "pushes flow again")
    going.set()
    thread.join()
    assert {a.status for a in answers} == {201}
    assert max(a.elapsed for a in answers) < 2.0
    assert "handed" in leader.output() or "leads" in three.leader().output()
    leader.launched()
    three.wait_ready()


# ---- members ----


def test_members_come_and_go(cluster_of, queue):
    cluster = cluster_of(3, spare=1)
    leader = cluster.leader()
    follower = cluster.followers()[0]
    cluster.leader().push_ids(queue, ["m%d" % n for n in range(50)], "p")
    new = cluster.nodes[3]
    new.launched()
    wait_until(lambda: "waits" in new.output(), 10, "it waits")
    assert new.get("/health").status == 503
    assert new.push([{"queue": queue, "payload": 1}]).status == 503
    assert new.get("/api/v1/raft/status").status == 503
    body = {"id": 4, "raft": new.raft, "http": new.http}
    answer = follower.post(BASE + "/learners", body).expect(200).json
    assert answer["ok"] is True and answer["membership"]["learners"] == [4] and answer["membership"]["voters"] == [1, 2, 3]
    pid = new.pid
    again = leader.post(BASE + "/learners", body).expect(200).json["membership"]
    assert again["learners"] == [4]
    refused(leader.post(BASE + "/learners", dict(body, http="127.0.0.1:1")), 409, "address_mismatch")
    refused(leader.post(BASE + "/learners", {"id": 1, "raft": cluster.nodes[0].raft, "http": cluster.nodes[0].http}), 409, "already_voter")
    wait_until(lambda: (new.status() or {}).get("state") == "learner", 15, "the learner follows")
    assert new.pid == pid
    cluster.wait_ready(15, [new])
    cluster.promote(new, follower)
    assert membership(new)["voters"] == [1, 2, 3, 4]
    assert leader.post(BASE + "/promote", {"ids": [4]}).expect(200).json["ok"] is True
    assert len(new.drain(queue)) == 50
    gone = cluster.nodes[0]
    answer = new.delete(BASE + "/members/1").expect(200).json
    assert answer["membership"]["voters"] == [2, 3, 4]
    assert new.delete(BASE + "/members/1").expect(200).json["membership"]["voters"] == [2, 3, 4]
    gone.kill()
    for node in cluster.running():
        assert 1 not in membership(node)["voters"]
        node.push([{"queue": queue, "partition": "p", "payload": 1}]).expect(201)
    assert len(new.drain(queue)) == 53


def test_a_removed_leader_is_followed_by_another(cluster_of, queue):
    cluster = cluster_of(3)
    leader = cluster.leader()
    leader.push_ids(queue, ["a"], "p")
    answer = leader.delete(BASE + "/members/%d" % leader.number).expect(200).json
    assert leader.number not in answer["membership"]["voters"]
    other = cluster.wait_leader(leader)
    assert ids(other.pop(queue, "p").expect(200).json) == ["a"]


def test_voters_are_named(cluster_of):
    cluster = cluster_of(3)
    leader = cluster.leader()
    keep = sorted(n.number for n in (leader, cluster.followers()[0]))
    answer = leader.put_json(BASE + "/voters", {"voters": keep})
    assert answer.expect(200).json["membership"]["voters"] == keep
    assert leader.put_json(BASE + "/voters", {"voters": keep}).expect(200).json["membership"]["voters"] == keep
    refused(leader.put_json(BASE + "/voters", {"voters": keep + [8]}), 409, "not_a_learner")
    refused(leader.put_json(BASE + "/voters", {"voters": []}), 400, "bad_request")


def test_no_quorum_and_last_voter(cluster_of):
    cluster = cluster_of(2)
    leader = cluster.leader()
    other = cluster.followers()[0]
    other.kill()
    wait_until(lambda: leader.get("/api/v1/raft/liveness").json["members"][other.number - 1]["state"] == "unreachable"
               or leader.get("/api/v1/raft/status").json["state"] != "leader", 10, "it is missed")
    answer = leader.delete(BASE + "/members/%d?timeoutMs=1000" % other.number)
    assert (answer.status, answer.json["code"]) in ((409, "no_quorum"), (503, "retry")), answer
    other.launched()
    cluster.wait_ready()
    leader = cluster.leader()
    other = cluster.followers()[0]
    assert leader.delete(BASE + "/members/%d" % other.number).expect(200).json["membership"]["voters"] == [leader.number]
    assert "last voter" in refused(leader.delete(BASE + "/members/%d" % leader.number), 409, "last_voter")
    leader.push([{"queue": unique(), "payload": 1}]).expect(201)


def test_a_learner_that_does_not_answer_is_not_added(three):
    leader = three.leader()
    begin = time.monotonic()
    refused(leader.post(BASE + "/learners?timeoutMs=1500", new_member()), 504, "timeout")
    assert 1 < time.monotonic() - begin < 6
    assert membership(leader)["learners"] == [] and membership(leader)["changeInFlight"] is False
    refused(three.followers()[0].post(BASE + "/learners?timeoutMs=1000", new_member()), 504, "timeout")


@pytest.mark.parametrize("method,path,body", [
    ("POST", "/learners", b"{"), ("POST", "/learners", b"7"), ("POST", "/learners", b""), ("POST", "/learners", {}),
    ("POST", "/learners", {"id": "4", "raft": "a:1", "http": "a:2"}), ("POST", "/learners", {"id": 0, "raft": "a:1", "http": "a:2"}),
    ("POST", "/learners", {"id": -1, "raft": "a:1", "http": "a:2"}), ("POST", "/learners", {"id": 4.5, "raft": "a:1", "http": "a:2"}),
    ("POST", "/learners", {"id": 10**9 + 1, "raft": "a:1", "http": "a:2"}), ("POST", "/learners", {"id": 4, "http": "a:2"}),
    ("POST", "/learners", {"id": 4, "raft": "a:1"}), ("POST", "/learners", {"id": 4, "raft": "a", "http": "a:2"}),
    ("POST", "/learners", {"id": 4, "raft": "a:1/b", "http": "a:2"}), ("POST", "/learners", {"id": 4, "raft": "a:70000", "http": "a:2"}),
    ("POST", "/learners", {"id": [4, 5], "raft": "a:1", "http": "a:2"}), ("POST", "/learners?timeoutMs=0", {"id": 4, "raft": "a:1", "http": "a:2"}),
    ("POST", "/learners?timeoutMs=120001", {"id": 4, "raft": "a:1", "http": "a:2"}),
    ("POST", "/promote", {}), ("POST", "/promote", {"ids": []}), ("POST", "/promote", {"ids": ["x"]}), ("POST", "/promote", {"ids": list(range(1, 12))}),
    ("POST", "/promote", {"ids": [1], "force": "yes"}), ("PUT", "/voters", {}), ("PUT", "/members/1", {"raft": "a:1"}),
    ("PUT", "/members/x", {"raft": "a:1", "http": "a:2"}), ("DELETE", "/members/x", None), ("DELETE", "/members/0", None),
    ("DELETE", "/members/99999999999", None),
])  # fmt: skip
def test_bad_changes_are_refused(three, method, path, body):
    refused(three.nodes[0].request(method, BASE + path, body), 400, "bad_request")
    assert membership(three.nodes[0])["voters"] == [1, 2, 3]


def test_refusals_by_state(three):
    leader = three.leader()
    refused(leader.post(BASE + "/promote", {"ids": [8]}), 409, "not_a_learner")
    refused(leader.put_json(BASE + "/members/8", {"raft": "a:1", "http": "a:2"}), 409, "not_a_member")
    assert leader.post(BASE + "/promote", {"id": 2}).expect(200).json["membership"]["voters"] == [1, 2, 3]


def test_only_the_default_tenant_changes_members(own_broker):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    other = {"x-queen-tenant": "00000000-0000-0000-0000-000000000002"}
    for method, path, body in (("GET", "", None), ("POST", "/learners", new_member()), ("POST", "/promote", {"ids": [1]}),
                               ("PUT", "/voters", {"voters": [1]}), ("DELETE", "/members/1", None)):
        refused(broker.request(method, BASE + path, body, headers=other), 403, "forbidden")
    broker.get(BASE).expect(200)


def test_membership_of_a_node_alone(broker):
    m = membership(broker)
    assert (m["nodeId"], m["source"], m["leader"], m["voters"], m["learners"]) == (1, "leader", 1, [1], [])
    refused(broker.post(BASE + "/learners", new_member()), 400, "bad_request")
    refused(broker.delete(BASE + "/members/1"), 409, "last_voter")
    assert broker.delete(BASE + "/members/2").expect(200).json["ok"] is True
    assert broker.post(BASE + "/promote", {"ids": [1]}).expect(200).json["ok"] is True


def test_a_learner_is_promoted_only_when_it_has_the_log(cluster_of, queue):
    cluster = cluster_of(3, spare=1, env={"QUEEN_RAFT_PROMOTE_MAX_LAG": "5"})
    new = cluster.nodes[3]
    cluster.join(new, promote=False)
    cluster.wait_ready(15, [new])
    new.kill()
    leader = cluster.leader()
    for n in range(20):
        leader.push_ids(queue, [str(n)], "p")
    refused(leader.post(BASE + "/promote", {"ids": [4]}), 409, "learner_behind")
    new.launched()
    cluster.promote(new, leader)
    assert membership(new)["voters"] == [1, 2, 3, 4]


def test_members_of_several_groups_change_in_all_of_them(cluster_of, queue):
    cluster = cluster_of(3, groups=3, spare=1)
    new = cluster.nodes[3]
    cluster.join(new, cluster.nodes[0])
    wait_until(lambda: [g["role"] for g in new.status()["groups"]] == ["voter"] * 3, 15, "it votes in every group")
    gone = cluster.nodes[1]
    gone.delete(BASE + "/members/2").expect(200)
    wait_until(lambda: all(cluster.leader(g) is not gone for g in range(3)), 15, "it leads nothing any more")
    gone.kill()
    for node in cluster.running():
        assert membership(node)["voters"] == [1, 3, 4]
        node.push([{"queue": queue, "partition": "p", "payload": 1}]).expect(201)
    for group in range(3):
        wait_until(lambda: [r["state"] for r in (n.status()["groups"][group] for n in cluster.running())].count("leader") == 1, 15, "a leader")


def test_a_waiting_node_stops_and_starts(cluster_of):
    cluster = cluster_of(2, spare=1)
    new = cluster.nodes[2]
    for _ in range(2):
        new.launched()
        wait_until(lambda: "waits for a member" in new.output(), 10, "it waits")
        new.stop()
    new.launched()
    body = {"id": 3, "raft": new.raft, "http": new.http}
    cluster.leader().post(BASE + "/learners", body).expect(200)
    new.kill()  # as a learner that has hardly begun
    new.launched()
    cluster.promote(new, cluster.leader())
    assert membership(new)["voters"] == [1, 2, 3]


# ---- addresses ----


def test_a_node_that_moved_tells_the_cluster(cluster_of, queue):
    cluster = cluster_of(3)
    moved = cluster.followers()[0]
    moved.stop()
    moved.raft_port, moved.port = free_port(), free_port()
    moved.env["QUEEN_RAFT_LISTEN"] = moved.raft
    moved.env["QUEEN_RAFT_ADVERTISE"] = "%s/%s" % (moved.raft, moved.http)
    moved.launched()
    cluster.wait_ready()
    leader = cluster.leader()
    wait_until(lambda: {(m["raft"], m["http"]) for m in membership(leader)["members"]} == {(n.raft, n.http) for n in cluster.nodes}, 20,
               "the new address is in the members' list")
    for node in cluster.nodes:
        node.push([{"queue": queue, "partition": "p", "payload": 1}]).expect(201)


def test_an_address_is_changed_by_hand(cluster_of):
    cluster = cluster_of(3)
    leader = cluster.leader()
    gone = cluster.followers()[0]
    gone.kill()
    body = {"raft": "127.0.0.1:%d" % free_port(), "http": "127.0.0.1:%d" % free_port()}
    answer = leader.put_json(BASE + "/members/%d" % gone.number, body).expect(200).json["membership"]
    assert [(m["raft"], m["http"]) for m in answer["members"] if m["nodeId"] == gone.number] == [(body["raft"], body["http"])]
    assert leader.put_json(BASE + "/members/%d" % gone.number, body).expect(200).json["ok"] is True


# ---- what a node must not be ----


def test_a_wiped_node_is_refused_and_added_anew(cluster_of, queue):
    cluster = cluster_of(3)
    cluster.leader().push_ids(queue, ["a"], "p")
    wiped = cluster.followers()[0]
    wiped.kill()
    shutil.rmtree(wiped.data_dir)
    wiped.launched()
    assert wiped.ended(20) == 2
    said = wiped.output()
    assert "not the data directory that the cluster knows" in said and "QUEEN_RAFT_JOIN" in said
    leader = cluster.leader()
    leader.delete(BASE + "/members/%d" % wiped.number).expect(200)
    shutil.rmtree(wiped.data_dir)
    wiped.env.update(QUEEN_RAFT_JOIN="true", QUEEN_RAFT_PEERS="", QUEEN_RAFT_ADVERTISE="%s/%s" % (wiped.raft, wiped.http))
    cluster.join(wiped, leader)
    assert membership(wiped)["voters"] == [1, 2, 3]
    assert ids(wiped.pop(queue, "p").expect(200).json) == ["a"]
    wiped.restart("kill")
    wiped.push_ids(queue, ["b"], "p")


def test_a_copied_directory_is_refused(cluster_of):
    cluster = cluster_of(3)
    copied = cluster.followers()[0]
    copied.stop()
    shutil.copytree(copied.data_dir, copied.data_dir + "-copy")
    shutil.rmtree(copied.data_dir)
    os.rename(copied.data_dir + "-copy", copied.data_dir)
    copied.launched()
    assert copied.ended(20) == 2
    assert "copied or restored" in copied.output()


def test_a_rolled_back_directory_is_refused(cluster_of):
    """The files of an earlier start in the same directory: the count of starts went back."""
    cluster = cluster_of(3)
    node = cluster.followers()[0]
    with open(node.data_dir + "/disk", "rb") as file:
        old = file.read()
    for _ in range(3):
        node.stop()
        node.launched()
        cluster.wait_ready()
    node.stop()
    with open(node.data_dir + "/disk", "wb") as file:
        file.write(old)
    node.launched()
    assert node.ended(20) == 2
    assert "not the data directory that the cluster knows" in node.output()


def test_settings_that_do_not_fit_the_directory(cluster_of):
    cluster = cluster_of(3)
    node = cluster.nodes[0]
    cluster.stop()

    def start(**env):
        values = {k: v for k, v in dict(node.environment(), **env).items() if v is not None}
        done = subprocess.run(node.command(), env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30)
        return done.returncode, done.stderr.decode()

    code, said = start(QUEEN_RAFT_NODE_ID="2", QUEEN_RAFT_LISTEN="127.0.0.1:%d" % free_port())
    assert code == 1 and "data directory of node 1" in said
    code, said = start(QUEEN_RAFT_PEERS=None, QUEEN_RAFT_NODE_ID=None)
    assert code == 1 and "QUEEN_RAFT_PEERS" in said
    code, said = start(QUEEN_RAFT_GROUPS="2")
    assert code == 1 and "made with 1" in said
    code, said = start(QUEEN_RAFT_TOKEN=None)
    assert code == 1 and "QUEEN_RAFT_TOKEN" in said and TOKEN not in said
    for one in cluster.nodes:
        one.launched()
    cluster.wait_ready()


def test_the_secret_is_never_printed(three):
    for node in three.nodes:
        assert TOKEN not in node.output()
        assert TOKEN not in node.get("/metrics/prometheus").body.decode()


def test_a_node_without_the_secret_stays_outside(cluster_of):
    cluster = cluster_of(2, spare=1)
    outside = cluster.nodes[2]
    outside.env["QUEEN_RAFT_TOKEN"] = "another secret of sixteen"
    outside.launched()
    refused(cluster.leader().post(BASE + "/learners?timeoutMs=2000", {"id": 3, "raft": outside.raft, "http": outside.http}), 504, "timeout")
    assert outside.get("/health").status == 503


def certificates(folder):
    """A CA and one certificate of it for 127.0.0.1; the three variables."""
    run = lambda *args: subprocess.run(["openssl", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(folder, "ext"), "w", encoding="utf-8") as file:
        file.write("subjectAltName=IP:127.0.0.1\n")
    run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key.pem", "-out", "csr.pem", "-subj", "/CN=node")
    run("x509", "-req", "-in", "csr.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "cert.pem", "-days", "2", "-extfile", "ext")
    return {"QUEEN_RAFT_TLS_CERT": folder + "/cert.pem", "QUEEN_RAFT_TLS_KEY": folder + "/key.pem", "QUEEN_RAFT_TLS_CA": folder + "/ca.pem"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_a_cluster_over_tls(cluster_of, queue, tmp_path):
    settings = certificates(str(tmp_path))
    cluster = cluster_of(2, spare=1, env=settings)
    cluster.leader().push_ids(queue, ["a"], "p")
    cluster.join(cluster.nodes[2])
    assert ids(cluster.nodes[2].pop(queue, "p").expect(200).json) == ["a"]
    follower = cluster.followers()[0]
    follower.stop()
    for name in settings:  # without TLS it is not understood
        del follower.env[name]
    follower.launched()
    time.sleep(1.0)
    assert not follower.healthy()
    follower.kill()
    follower.env["QUEEN_RAFT_TLS_CERT"] = "/nowhere"
    follower.env.update({k: v for k, v in settings.items() if k != "QUEEN_RAFT_TLS_CERT"})
    follower.launched()
    assert follower.ended(20) == 1
    assert "/nowhere" in follower.output()


# ---- one node becomes three ----


def test_a_node_alone_becomes_a_cluster(cluster_of, queue):
    cluster = cluster_of(1, spare=2, start=False).make()
    first = cluster.nodes[0]
    cluster_env = dict(first.env)
    first.env = {}
    first.launched()
    cluster.wait_ready()
    first.push_ids(queue, ["a"], "p")
    first.stop()
    first.env = cluster_env
    first.launched()
    cluster.wait_ready()
    assert membership(first)["voters"] == [1]
    for node in cluster.nodes[1:]:
        cluster.join(node, first)
    assert membership(first)["voters"] == [1, 2, 3]
    first.kill()
    other = cluster.wait_leader(first)
    assert ids(other.pop(queue, "p").expect(200).json) == ["a"]


# ---- a node that was away for long fetches the state and starts itself anew ----


def test_a_fetched_state_starts_the_process_anew(cluster_of, queue):
    settings = {"QUEEN_RAFT_KEEP_BYTES": "0", "QUEEN_RAFT_SEGMENT_BYTES": str(1 << 20), "QUEEN_RAFT_DURABLE_EVERY_MS": "50"}
    cluster = cluster_of(3, env=settings)
    leader = cluster.leader()
    away = cluster.followers()[0]
    leader.push_ids(queue, ["first"], "p")
    away.kill()
    payload = "x" * 200000
    for n in range(60):
        leader.push([{"queue": queue + "-gone", "partition": "p", "payload": payload}]).expect(201)
        leader.pop(queue + "-gone", "p", autoAck=True).expect(200)
    leader.push_ids(queue, ["last"], "p")
    leader.delete_queue(queue + "-gone")
    for node in (leader, *[n for n in cluster.running() if n is not leader]):
        wait_until(lambda: node.status()["log"]["bytes"] < 8 << 20, 30, "most of 12 MB of log is gone from node %d" % node.number)
    away.launched()
    pid = away.pid
    cluster.wait_ready()
    assert wait_until(lambda: away.healthy() and away.get("/api/v1/raft/status").json["appliedIndex"] >= leader.status()["appliedIndex"] - 5, 30, "it has caught up")
    assert away.pid == pid and away.running
    assert ids(away.pop(queue, "p").expect(200).json) == ["first", "last"]
    assert json.loads(away.get("/health").body)["status"] == "healthy"
    fetched = "starting anew" in away.output()
    away.stop()
    assert fetched, "the log was still there: nothing had to be fetched"

