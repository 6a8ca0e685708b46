"""Who leads, and who does not: cut and healed followers, leaders that lost their majority, the last node that is left."""
import signal
import time

import pytest
from workload_log import LogWorkload

WAIT = {"QUEEN_RAFT_LEADER_WAIT_MS": "1500"}


def push(node, identity, timeout=12.0):
    return node.ask("POST", "/api/v1/push", {"items": [{"queue": "q", "partition": "p", "transactionId": identity, "payload": 1}]}, timeout)


def others(cluster, node):
    return [n for n in cluster.nodes if n is not node]


def numbers(nodes):
    return [n.number for n in nodes]


@pytest.mark.seconds(9)
def test_a_follower_that_was_away_deposes_nobody(clusters, seed):
    """Its elections are asked for before they are held, so its return changes neither term nor leader, and writes go on."""
    cluster = clusters(3).start()
    leader = cluster.leader()
    term = leader.status()["term"]
    log = LogWorkload(cluster, seed, clients=2)
    cluster.members = others(cluster, cluster.followers()[0])
    away = next(n for n in cluster.nodes if n not in cluster.members)
    log.start()
    began = time.monotonic()
    for _ in range(3):
        cluster.net.cut([away.number], numbers(others(cluster, away)))
        time.sleep(1.5)
        cluster.net.heal()
        time.sleep(0.7)
    log.stop()
    status = leader.status()
    assert (status["term"], status["state"]) == (term, "leader"), f"term {term} became {status['term']}, {status['state']}\n{cluster.log_tails()}"
    assert log.longest_silence(began, time.monotonic()) < 1.5
    cluster.members = cluster.nodes
    cluster.wait_equal()
    log.finish(cluster.client("end"))
    assert not log.problems, log.problems[:5]


@pytest.mark.seconds(11)
def test_a_leader_without_a_majority_steps_down(clusters):
    """Cut off both ways, and with only one direction lost: somebody else leads soon, the old one says that it does not know."""
    cluster = clusters(3, env=WAIT).start()
    for kind in ("both", "deaf", "dumb"):
        leader = cluster.leader()
        rest = numbers(others(cluster, leader))
        if kind == "both":
            cluster.net.cut([leader.number], rest)
        elif kind == "deaf":
            cluster.net.cut(rest, [leader.number], one_way=True)
        else:
            cluster.net.cut([leader.number], rest, one_way=True)
        cut = time.monotonic()
        while push(cluster[rest[0]], f"{kind}-{time.monotonic()}", timeout=2.0)[0] != 201:
            assert time.monotonic() - cut < 6, f"{kind}: nobody took over within 6 s\n{cluster.log_tails()}"
        while leader.status()["state"] == "leader":
            assert time.monotonic() - cut < 6, f"{kind}: still leads without a majority\n{leader.log_tail()}"
            time.sleep(0.05)
        sent = time.monotonic()
        status, answer = push(leader, f"{kind}-lost")
        assert status == 503 and answer["code"] in ("no_leader", "retry", "timeout", "outcome_unknown"), (kind, status, answer)
        assert time.monotonic() - sent < 5
        while leader.ready():
            assert time.monotonic() - cut < 12, f"{kind}: ready without a majority"
            time.sleep(0.1)
        cluster.net.heal()
        for node in cluster.nodes:
            assert node.wait_ready(20), node.log_tail()


@pytest.mark.seconds(6)
def test_the_last_node_stops_in_good_order(clusters):
    """Two of three are gone: a call cannot be done and says so, SIGTERM ends the process, and nothing is lost when the others are back."""
    cluster = clusters(3, env=WAIT).start()
    client = cluster.client("last")
    for n in range(20):
        assert client.insist("POST", "/api/v1/push", {"items": [{"queue": "q", "partition": "p", "transactionId": f"m-{n}", "payload": n}]})[0] == 201
    cluster.wait_equal()
    leader = cluster.leader()
    for node in others(cluster, leader):
        node.kill()
    sent = time.monotonic()
    status, answer = push(leader, "nobody-takes-it")
    assert status == 503, (status, answer)
    assert time.monotonic() - sent < 10
    leader.signal(signal.SIGTERM)
    leader.expected_down = True
    assert leader.wait_dead(20) == 0, leader.log_tail()
    cluster.start()
    for n in range(20):
        status, answer, _ = client.insist("POST", "/api/v1/push", {"items": [{"queue": "q", "partition": "p", "transactionId": f"m-{n}", "payload": n}]})
        assert (status, answer[0]["status"], answer[0]["offset"]) == (201, "duplicate", n), answer
    client.close()


def test_a_planned_stop_is_hardly_noticed(clusters, seed, tell):
    """SIGTERM of the leader while others push: leadership is handed over, exit code 0."""
    cluster = clusters(3).start()
    gaps = []
    for number in range(3):
        leader = cluster.leader()
        cluster.members = others(cluster, leader)
        log = LogWorkload(cluster, f"{seed}/{number}", clients=2, pause_s=0.002, queue=f"log-{number}")
        log.start()
        time.sleep(0.7)
        began = time.monotonic()
        assert leader.terminate() == 0, leader.log_tail()
        time.sleep(0.3)
        gaps.append(log.longest_silence(began, time.monotonic()))
        log.stop()
        leader.start()
        cluster.members = cluster.nodes
        cluster.wait_equal()
        log.finish(cluster.client("end"))
        assert not log.problems, log.problems[:5]
    tell("hand-over", f"longest silences ms {[round(g * 1000) for g in gaps]}")
    assert min(gaps) < 0.5 and max(gaps) < 2.0, gaps
