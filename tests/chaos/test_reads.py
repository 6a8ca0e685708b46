"""A get is never older than the last answered put, on any node, whatever happens to the leader."""
import json
import time

import pytest
from cluster import HTTP_PORT, Gone, NodeConn

OPS = {"op": "get", "ns": "reads", "key": "k"}


def put(client, n):
    body = {"operations": [{"op": "put", "ns": "reads", "key": "k", "value": n, "forever": True}]}
    status, answer, _ = client.insist("POST", "/api/v1/kv", body, deadline_s=20.0)
    assert status == 200 and answer["results"][0]["applied"], answer


def get(node, timeout=12.0):
    """The value as this node tells it; None when it tells none (503, or not there)."""
    status, answer = node.ask("POST", "/api/v1/kv", {"operations": [OPS]}, timeout=timeout)
    if status is None:
        return None
    if status == 503:
        assert answer.get("code") in ("no_leader", "timeout", "retry", "outcome_unknown") or answer.get("reason", "").startswith("kv_"), answer
        return None
    assert status == 200, answer
    return answer["results"][0].get("value")


def test_every_node_reads_the_newest(clusters):
    cluster = clusters(3).start()
    client = cluster.client("reads")
    for n in range(60):
        put(client, n)
        for node in cluster.nodes:
            assert get(node) == n
    client.close()


def test_a_restarted_node_does_not_answer_from_old_state(clusters):
    cluster = clusters(3).start()
    client = cluster.client("reads")
    n = 0
    for node in (cluster.followers()[0], cluster.leader()):
        node.kill()
        for _ in range(50):
            n += 1
            put(client, n)
        node.spawn()
        asked = 0
        deadline = time.monotonic() + 20
        while asked < 20 and time.monotonic() < deadline:
            value = get(node, timeout=2.0)
            if value is None:
                continue
            asked += 1
            assert value == n, f"node {node.number} answers {value} after its restart; {n} was put"
        assert asked == 20, node.log_tail()
    client.close()


def test_a_stopped_leader_does_not_answer_from_old_state(clusters):
    cluster = clusters(3).start()
    client = cluster.client("reads")
    n = 0
    for _ in range(3):
        n += 1
        put(client, n)
        leader = cluster.leader()
        conn = NodeConn((leader.address, HTTP_PORT), 15.0)
        conn.json("POST", "/api/v1/kv", {"operations": [OPS]})
        leader.pause()
        cluster.members = [x for x in cluster.nodes if x is not leader]
        body = json.dumps({"operations": [OPS]}).encode()
        conn.socket.sendall(b"POST /api/v1/kv HTTP/1.1\r\nHost: q\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        n += 1
        put(client, n)  # by the next leader
        leader.resume()
        try:
            status, raw = conn.read_answer()
            if status == 200:
                assert json.loads(raw)["results"][0]["value"] == n, "the old leader answered what was true before"
            else:
                assert status == 503, (status, raw)
        except (Gone, OSError):
            pass
        conn.close()
        cluster.members = cluster.nodes
        assert leader.wait_ready(20.0)
    client.close()


@pytest.mark.seconds(8)
def test_a_leader_that_is_cut_off_answers_nothing_old(clusters):
    cluster = clusters(3).start()
    client = cluster.client("reads")
    n = 0
    for one_way in (False, True):
        n += 1
        put(client, n)
        leader = cluster.leader()
        others = [x.number for x in cluster.nodes if x is not leader]
        cluster.members = [cluster[x] for x in others]
        if one_way:
            cluster.net.cut(others, [leader.number], one_way=True)  # it still sends its heartbeats
        else:
            cluster.net.cut([leader.number], others)
        began = time.monotonic()
        while time.monotonic() - began < 3.0:
            n += 1
            put(client, n)
            value = get(leader, timeout=0.3)
            assert value in (None, n), f"a leader without a majority answers {value}; {n} was put"
        cluster.net.heal()
        cluster.members = cluster.nodes
        for node in cluster.nodes:
            assert node.wait_ready(20.0), node.log_tail()
            assert get(node) == n
    client.close()


def test_a_pop_that_does_not_wait_finds_what_was_pushed_elsewhere(clusters):
    """The leader's own disk is the slowest: a push is in force, and answered by a follower, before the leader has stored it."""
    cluster = clusters(3).start()
    leader, (pushed, asked) = cluster.leader(), cluster.followers()
    status, _ = pushed.ask("POST", "/api/v1/push", {"items": [{"queue": "q", "partition": "p", "payload": 0}]})
    assert status == 201
    leader.faults.arm("op=sync path=* nth=1 times=0 stall_ms=150")
    for n in range(1, 8):
        status, answer = pushed.ask("POST", "/api/v1/push", {"items": [{"queue": "q", "partition": "p", "transactionId": f"t{n}", "payload": n}]})
        assert status == 201, answer
        status, answer = asked.ask("GET", "/api/v1/pop/queue/q?autoAck=true&batch=10")
        assert status == 200, f"message {n} was not there yet"
        assert answer["messages"][-1]["transactionId"] == f"t{n}"
    leader.faults.arm()
