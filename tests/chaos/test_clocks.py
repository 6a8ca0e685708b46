"""Wall clocks that step, nodes that disagree, clocks that run at other speeds."""
import base64
import time

import pytest
from campaign import Campaign
from crash_broker import ALL
from nemesis import CLOCKS, Fault, kill_leader
from workload_locks import LocksWorkload
from workload_log import LogWorkload
from workload_queue import QueueWorkload


class Times:
    """What a client sees of time: ids and createdAt of a lane rise, leases, timers, TTLs and windows last as long as they say."""

    def __init__(self, cluster):
        self.cluster, self.client = cluster, cluster.client("times")
        self.began = {}
        self.ended = {}
        self.number = 0

    def ask(self, method, path, body=b""):
        status, answer, _ = self.client.insist(method, path, body, deadline_s=20.0)
        assert status in (200, 201, 204), (status, answer)
        return answer

    def push(self, identity=None):
        self.number += 1
        return self.ask("POST", "/api/v1/push", {"items": [{"queue": "t", "partition": "p", "transactionId": identity or f"n-{self.number}", "payload": 1}]})[0]

    def lease(self, seconds):
        self.ask("POST", "/api/v1/push", {"items": [{"queue": "leased", "partition": "p", "payload": 1}]})
        self.began["lease"] = time.monotonic(), seconds
        answer = self.ask("GET", f"/api/v1/pop/queue/leased?consumerGroup=g&subscriptionMode=all&leaseSeconds={seconds}")
        assert answer["messages"], answer

    def timer(self, seconds):
        self.began["timer"] = time.monotonic(), seconds
        self.ask("POST", "/api/v1/timers", [{"op": "schedule", "queue": "timed", "timerKey": "k", "delayMs": seconds * 1000, "txn": "k",
                                             "payload": base64.b64encode(b"1").decode()}])  # fmt: skip

    def ttl(self, seconds):
        self.began["ttl"] = time.monotonic(), seconds
        self.ask("POST", "/api/v1/kv", {"operations": [{"op": "put", "ns": "t", "key": "k", "value": 1, "ttlSeconds": seconds}]})

    def window(self, seconds):
        self.ask("POST", "/api/v1/configure", {"queue": "window", "options": {"dedupWindowSeconds": seconds}})
        self.began["window"] = time.monotonic(), seconds
        self.ask("POST", "/api/v1/push", {"items": [{"queue": "window", "partition": "p", "transactionId": "w", "payload": 1}]})

    def look(self):
        now = time.monotonic()
        if "lease" not in self.ended and self.ask("GET", "/api/v1/pop/queue/leased?consumerGroup=g&subscriptionMode=all"):
            self.ended["lease"] = now
        if "timer" not in self.ended and self.ask("GET", "/api/v1/pop/queue/timed?consumerGroup=g&subscriptionMode=all"):
            self.ended["timer"] = now
        if "ttl" not in self.ended:
            answer = self.ask("POST", "/api/v1/kv", {"operations": [{"op": "get", "ns": "t", "key": "k"}]})
            if not answer["results"][0]["found"]:
                self.ended["ttl"] = now
        if "window" not in self.ended:
            answer = self.ask("POST", "/api/v1/push", {"items": [{"queue": "window", "partition": "p", "transactionId": "w", "payload": 1}]})
            if answer[0]["status"] == "queued":
                self.ended["window"] = now

    def judge(self, slack_s):
        deadline = max(b + s for b, s in self.began.values()) + slack_s
        while len(self.ended) < len(self.began) and time.monotonic() < deadline:
            self.push()
            self.look()
            time.sleep(0.2)
        for name, (began, seconds) in self.began.items():
            assert name in self.ended, f"the {name} of {seconds} s has not ended after {time.monotonic() - began:.2f} s"
            took = self.ended[name] - began
            assert seconds <= took + 0.25 and took <= seconds + slack_s, f"the {name} of {seconds} s ended after {took:.2f} s"

    def rising(self):
        answer = self.ask("GET", "/api/v1/pop/queue/t/partition/p?consumerGroup=all&subscriptionMode=all&batch=10000&autoAck=true")
        messages = answer["messages"]
        assert messages == sorted(messages, key=lambda m: m["createdAt"]), "createdAt goes back"
        assert messages == sorted(messages, key=lambda m: m["id"]), "ids go back"
        assert [m["offset"] for m in messages] == list(range(len(messages)))


@pytest.mark.seconds(9)
def test_the_leaders_wall_clock_goes_back_and_the_next_one_is_behind(clusters):
    cluster = clusters(3)
    behind = cluster[2]
    behind.faults.set_clock(wall_s=-600)
    cluster.start()
    times = Times(cluster)
    # somebody with the right time leads first
    for _ in range(6):
        leader = cluster.leader()
        if leader is not behind:
            break
        assert leader.terminate() == 0
        leader.start()
    times.push()
    times.window(6)
    times.ttl(5)
    times.timer(4)
    times.lease(4)
    leader.faults.set_clock(wall_s=-3600)
    times.push()
    time.sleep(0.5)
    # and then whoever is next, at last the one that is behind
    for _ in range(4):
        leader = cluster.leader()
        if leader is behind:
            break
        leader.kill()
        cluster.leader()
        times.push()
        leader.start()
    times.judge(3.0)
    times.rising()


@pytest.mark.seconds(22)
def test_steps_of_all_clocks_under_load(clusters, seed, tell):
    """Leases and order do not notice. TTLs and timers go by the wall clock and may end with it; they are judged by it."""
    cluster = clusters(3).start()
    some = [LogWorkload(cluster, seed), QueueWorkload(cluster, seed), LocksWorkload(cluster, seed, true_clocks=False)]
    campaign = Campaign(cluster, seed, [*CLOCKS, Fault(kill_leader)], None if ALL else some, true_clocks=False)
    campaign.run(120 if ALL else 5)
    for what, counts in campaign.lines():
        tell(what, counts)
    assert not campaign.problems, campaign.failure()


@pytest.mark.seconds(16)
def test_leases_when_monotonic_clocks_drift(clusters, seed, tell):
    """A node's clock runs 3 % fast, another's 2 % slow: leases are exclusive for their time less the drift."""
    cluster = clusters(3)
    cluster[1].faults.set_clock(monotonic_ppm=30000)
    cluster[2].faults.set_clock(monotonic_ppm=-20000)
    cluster.start()
    load = QueueWorkload(cluster, seed)
    load.drift = 0.04
    campaign = Campaign(cluster, seed, [Fault(kill_leader)], [load])
    campaign.run(60 if ALL else 4)
    for what, counts in campaign.lines():
        tell(what, counts)
    assert not campaign.problems, campaign.failure()
