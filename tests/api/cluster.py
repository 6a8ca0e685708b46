"""A cluster of real `queen serve` processes on 127.0.0.1, for black-box tests.

    with Cluster(3) as cluster:              three voters, ready
        leader = cluster.leader()            a Node (a Broker: push, pop, get, ...), by what the nodes say themselves
        leader.kill()
        cluster.wait_leader(other_than=leader)

    Cluster(3, groups=4, env={...}, spare=1)   `spare` nodes are made and not started: cluster.nodes[3] joins with cluster.join(node)

Each node has a data directory of its own, removed by close(). Ports are free ones; two tests that pick the same one at the same moment
make the start fail, and it is tried again with others."""

import os
import re
import time

from queen import Broker, BrokerError, free_port, wait_until

TOKEN = "0123456789abcdef-cluster-of-tests"
BASE = "/api/v1/system/raft/membership"


class Node(Broker):
    def __init__(self, cluster, number, env):
        super().__init__(env=env)
        self.cluster, self.number = cluster, number
        self.port, self.raft_port = free_port(), free_port()

    @property
    def raft(self):
        return "127.0.0.1:%d" % self.raft_port

    @property
    def http(self):
        return "127.0.0.1:%d" % self.port

    def status(self):
        """GET /api/v1/raft/status, or None when it does not answer with one."""
        try:
            answer = self.fresh_request("GET", "/api/v1/raft/status", timeout=3.0)
        except OSError:
            return None
        return answer.json if answer.status == 200 else None

    def put_json(self, path, body):
        return self.request("PUT", path, body)

    def healthy(self):
        try:
            return self.fresh_request("GET", "/health", timeout=3.0).status == 200
        except OSError:
            return False

    def launched(self):
        assert self.process is None, "already running"
        self.launch()
        return self

    def ended(self, seconds):
        """The exit code of a process that ends by itself."""
        return self.wait_exit(seconds)


class Cluster:
    def __init__(self, count=3, groups=1, env=None, spare=0, start=True, binary=None):
        self.env = dict(env or {})
        self.binary = binary
        self.count, self.groups, self.spare = count, groups, spare
        self.nodes = []
        if start:
            self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- processes ----

    def make(self):
        """The nodes, not started."""
        self.nodes = []
        for number in range(1, self.count + self.spare + 1):
            env = dict(self.env, QUEEN_RAFT_NODE_ID=str(number), QUEEN_RAFT_TOKEN=TOKEN, QUEEN_SERVER_ID="node-%d" % number)
            if self.groups > 1:
                env["QUEEN_RAFT_GROUPS"] = str(self.groups)
            self.nodes.append(Node(self, number, env))
        peers = self.peers()
        for node in self.voters():
            node.env["QUEEN_RAFT_PEERS"] = peers
        for node in self.nodes[self.count:]:
            node.env["QUEEN_RAFT_JOIN"] = "true"
            node.env["QUEEN_RAFT_ADVERTISE"] = "%s/%s" % (node.raft, node.http)
        for node in self.nodes:
            node.env["QUEEN_RAFT_LISTEN"] = node.raft
            if self.binary:
                node.binary = self.binary
        return self

    def peers(self):
        return ",".join("%d=%s/%s" % (n.number, n.raft, n.http) for n in self.voters())

    def voters(self):
        """The nodes of the first boot."""
        return self.nodes[:self.count]

    def start(self, seconds=30.0):
        for attempt in range(5):
            self.make()
            for node in self.voters():
                node.launched()
            try:
                self.wait_ready(seconds)
                return self
            except (BrokerError, AssertionError):
                in_use = any(re.search(r"in use|EADDRINUSE", n.output()) for n in self.voters())
                if not in_use or attempt == 4:
                    raise
                self.close()
        return self

    def close(self):
        for node in self.nodes:
            node.close()

    def stop(self):
        """All gracefully, exit code 0 demanded of each."""
        for node in self.nodes:
            if node.process is not None:
                node.stop()

    def tails(self):
        return "\n".join("--- node %d\n%s" % (n.number, n.output()[-3000:]) for n in self.nodes)

    def wait_ready(self, seconds=30.0, nodes=None):
        nodes = self.voters() if nodes is None else nodes
        end = time.monotonic() + seconds
        for node in nodes:
            while not node.healthy():
                if node.process is None or node.process.poll() is not None:
                    raise BrokerError("node %d ended\n%s" % (node.number, node.output()[-4000:]))
                if time.monotonic() > end:
                    raise BrokerError("node %d is not ready within %.0f s\n%s" % (node.number, seconds, self.tails()))
                time.sleep(0.02)

    # ---- leaders ----

    def running(self):
        return [n for n in self.nodes if n.process is not None and n.running]

    def find_leader(self, group=0):
        """The running node that says it leads the group, of the highest term; None when none says so."""
        best = None
        for node in self.running():
            status = node.status()
            if status is None:
                continue
            seen = status["groups"][group] if "groups" in status else status
            if seen["state"] == "leader" and (best is None or seen["term"] > best[0]):
                best = (seen["term"], node)
        return None if best is None else best[1]

    def leader(self, group=0, seconds=15.0):
        try:
            return wait_until(lambda: self.find_leader(group), seconds, "a leader of group %d" % group)
        except AssertionError as error:
            raise AssertionError("%s\n%s" % (error, self.tails())) from None

    def wait_leader(self, other_than, group=0, seconds=15.0):
        def other():
            found = self.find_leader(group)
            return found if found is not None and found is not other_than else None

        return wait_until(other, seconds, "another leader than node %d" % other_than.number)

    def followers(self, group=0):
        leader = self.leader(group)
        return [n for n in self.running() if n is not leader]

    # ---- members ----

    def join(self, node, asked=None, promote=True, seconds=30.0):
        """Starts a spare node, adds it and makes it a voter."""
        asked = asked or self.running()[0]
        node.launched()
        asked.post(BASE + "/learners", {"id": node.number, "raft": node.raft, "http": node.http}).expect(200)
        if promote:
            self.promote(node, asked, seconds)
        return node

    def promote(self, node, asked, seconds=30.0):
        def promoted():
            answer = asked.post(BASE + "/promote", {"ids": [node.number]})
            assert answer.status == 200 or answer.json["code"] in ("learner_behind", "in_flight", "retry"), answer
            return answer.status == 200

        wait_until(promoted, seconds, "node %d votes" % node.number, every=0.1)
        self.wait_ready(seconds, [node])


class Turns(Broker):
    """A cluster that looks like one broker: every request goes to another node than the one before."""

    def __init__(self, cluster):
        super().__init__()
        self.cluster, self.turn = cluster, 0

    def next(self):
        nodes = self.cluster.voters()
        self.turn += 1
        return nodes[self.turn % len(nodes)]

    def request(self, method, path, body=None, headers=None, timeout=75.0):
        return self.next().request(method, path, body, headers, timeout)

    def fresh_request(self, method, path, body=None, headers=None, timeout=75.0):
        return self.next().fresh_request(method, path, body, headers, timeout)

    def restart(self, how="stop", env=None):
        """All of them at once."""
        for node in self.cluster.voters():
            node.kill() if how == "kill" else node.stop()
        for node in self.cluster.voters():
            if env is not None:
                node.env.update(env)
            node.launched()
        self.cluster.wait_ready()
        return self


def leftovers(node):
    """What is in a node's data directory."""
    return sorted(os.listdir(node.data_dir))
