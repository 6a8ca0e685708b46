"""Real `queen serve` processes in the namespaces of a Net, what can be done to them, and clients that ask them all in turn."""
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("faults", "crash"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), folder))

import faultlib  # noqa: E402
from crash_broker import BINARY, SMALL, Conn, Gone  # noqa: E402
from netspace import CLIENTS  # noqa: E402

HTTP_PORT, RAFT_PORT = 6632, 7400
TOKEN = "the secret of a test cluster"
CONNECT_S = 0.5
# variables of the caller that would change a node
FOREIGN = ("QUEEN_", "JWT_", "DEFAULT_", "POP_", "RETENTION_", "METRICS_")


class NodeConn(Conn):
    """One kept-alive connection to one node. With `tenant`, all calls are of that tenant."""

    def __init__(self, address, timeout, tenant=None):
        self.extra = f"x-queen-tenant: {tenant}\r\n" if tenant else ""
        try:
            self.socket = socket.create_connection(address, timeout=min(CONNECT_S, timeout))
        except OSError as error:
            raise Gone(str(error)) from None
        self.socket.settimeout(timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def timeout(self, seconds):
        self.socket.settimeout(seconds)

    def call(self, method, path, body=b""):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: q\r\n{self.extra}Content-Length: {len(body)}\r\n\r\n"
        try:
            self.socket.sendall(head.encode() + body)
            return self.read_answer()
        except OSError as error:
            raise Gone(str(error)) from None


class Client:
    """Looks like a Conn, and sends every call to another node than the one before. call() raises Gone when the answer was lost;
    a node that takes no connection is passed over, since nothing was sent. One thread."""

    def __init__(self, cluster, seed, timeout=4.0, tenant=None):
        self.cluster, self.timeout, self.tenant = cluster, timeout, tenant
        self.rng = random.Random(f"{seed}")
        self.conns = {}
        self.asked = self.rng.randrange(64)  # the node asked last
        self.number = 0

    def close(self):
        for conn in self.conns.values():
            conn.close()
        self.conns = {}

    def connected(self, node):
        """A connection to this node, or None."""
        conn = self.conns.get(node.number)
        if conn is None:
            try:
                conn = self.conns[node.number] = NodeConn((node.address, HTTP_PORT), self.timeout, self.tenant)
            except Gone:
                return None
        return conn

    def next(self):
        nodes = self.cluster.asked_nodes()
        for _ in nodes:
            self.asked += 1
            node = nodes[self.asked % len(nodes)]
            conn = self.connected(node)
            if conn is not None:
                self.number = node.number
                return conn
        raise Gone("no node takes connections")

    @property
    def socket(self):
        return self.next().socket

    def drop(self):
        conn = self.conns.pop(self.number, None)
        if conn is not None:
            conn.close()

    def call(self, method, path, body=b"", timeout=None):
        conn = self.next()
        conn.timeout(timeout or self.timeout)
        try:
            return conn.call(method, path, body)
        except Gone:
            self.drop()
            raise
        except ValueError:
            self.drop()
            raise

    def send_and_leave(self, method, path, body):
        """The whole request, and the connection is closed before the answer comes."""
        conn = self.next()
        head = f"{method} {path} HTTP/1.1\r\nHost: q\r\n{conn.extra}Content-Length: {len(body)}\r\n\r\n"
        try:
            conn.socket.sendall(head.encode() + body)
        except OSError:
            pass
        self.drop()

    def json(self, method, path, body=b"", timeout=None):
        status, answer = self.call(method, path, body, timeout)
        return status, json.loads(answer) if answer else None

    def insist(self, method, path, body=b"", deadline_s=60.0, until=None):
        """Asks node after node until one answers for good. (status, parsed answer, calls without an answer)."""
        deadline = time.monotonic() + deadline_s
        lost = 0
        said = None
        while time.monotonic() < deadline and not (until and until()):
            try:
                status, answer = self.json(method, path, body)
                if status not in (503, 429):
                    return status, answer, lost
                said = (self.number, status, answer)
            except Gone as error:
                said = (self.number, str(error))
            lost += 1
            time.sleep(self.rng.uniform(0.002, 0.03))
        if until and until():
            raise Gone("the test is over")
        raise AssertionError(f"{method} {path}: no answer within {deadline_s} s, last {said}")


class Node:
    def __init__(self, cluster, number, power):
        self.cluster, self.number = cluster, number
        self.address = cluster.net.address(number)
        self.top = os.path.join(cluster.top, f"node-{number}")
        os.makedirs(self.top, exist_ok=True)
        self.faults = faultlib.Faults(self.top, power=power)
        self.data = os.path.join(self.faults.root, "data")
        self.log_path = os.path.join(self.top, "log")
        self.log_begin = 0
        self.env = {}
        self.process = None
        self.stopped = False  # SIGSTOP
        self.expected_down = True  # we ended it, or it was told to end
        self.preload = True

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) and k not in ("PORT", "HOST")}
        env.update(SMALL)
        env.update({"HOST": self.address, "QUEEN_SERVER_ID": f"node-{self.number}"})
        if self.cluster.clustered:
            env.update({
                "QUEEN_RAFT_PEERS": self.cluster.peers(), "QUEEN_RAFT_NODE_ID": str(self.number), "QUEEN_RAFT_TOKEN": TOKEN,
                "QUEEN_RAFT_LISTEN": f"{self.address}:{RAFT_PORT}",
            })  # fmt: skip
        if self.preload:
            env.update(self.faults.environment())
        env.update(self.cluster.env)
        env.update(self.env)
        return env

    def spawn(self, prefix=()):
        assert not self.alive(), f"node {self.number} still runs"
        argv, fds = self.cluster.net.command(
            self.number, [*prefix, self.cluster.binary, "serve", "--data", self.data, "--port", str(HTTP_PORT)])  # fmt: skip
        with open(self.log_path, "ab") as log:
            log.write(f"--- start at {time.monotonic():.3f}\n".encode())
            log.flush()
            self.log_begin = log.tell()
            self.process = subprocess.Popen(argv, env=self.environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, pass_fds=fds)
        self.stopped = False
        self.expected_down = False
        return self

    def start(self, timeout=30.0):
        self.spawn()
        assert self.wait_ready(timeout), f"node {self.number} is not ready (exit code {self.process.poll()}):\n{self.log_tail()}"
        return self

    def ask(self, method, path, body=b"", timeout=3.0, tenant=None):
        """This node's answer: (status, parsed), or (None, None)."""
        try:
            conn = NodeConn((self.address, HTTP_PORT), timeout, tenant)
            try:
                return conn.json(method, path, body)
            finally:
                conn.close()
        except Gone:
            return None, None

    def ready(self):
        return self.ask("GET", "/health", timeout=2.0)[0] == 200

    def wait_ready(self, timeout=30.0):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            if self.ready():
                return True
            time.sleep(0.02)
        return False

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.alive():
            self.process.send_signal(number)

    def kill(self):
        self.expected_down = True
        self.signal(signal.SIGKILL)
        self.stopped = False
        return self.process.wait() if self.process else None

    def terminate(self, timeout=40.0):
        """SIGTERM; the exit code."""
        self.expected_down = True
        self.signal(signal.SIGTERM)
        return self.wait_dead(timeout)

    def wait_dead(self, timeout=30.0):
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def pause(self):
        self.signal(signal.SIGSTOP)
        self.stopped = True

    def resume(self):
        self.signal(signal.SIGCONT)
        self.stopped = False

    def status(self, timeout=2.0):
        status, answer = self.ask("GET", "/api/v1/raft/status", timeout=timeout)
        return answer if status == 200 else None

    def log_text(self):
        """What the process wrote since its last start."""
        with open(self.log_path, "rb") as f:
            f.seek(self.log_begin)
            return f.read().decode(errors="replace")

    def log_count(self, words):
        """How many lines of all its starts have these words."""
        if not os.path.exists(self.log_path):
            return 0
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return sum(words in line for line in f)

    def log_tail(self, lines=25):
        with open(self.log_path, "rb") as f:
            return "\n".join(f.read().decode(errors="replace").splitlines()[-lines:])


class Cluster:
    """`count` nodes of which the first `voters` (all by default) begin the cluster. One node: no cluster at all."""

    def __init__(self, net, top, count, voters=None, power=False, env=None, binary=None):
        self.net, self.top, self.clustered = net, top, count > 1
        self.binary = binary or BINARY
        self.env = dict(env or {})
        self.voters = voters or count
        self.nodes = [Node(self, number, power) for number in range(1, count + 1)]
        self.members = self.nodes[: self.voters]  # those that clients ask
        self.problems = []
        self.lock = threading.Lock()

    def peers(self):
        return ",".join(f"{n.number}={n.address}:{RAFT_PORT}/{n.address}:{HTTP_PORT}" for n in self.nodes[: self.voters])

    def asked_nodes(self):
        return self.members

    def __getitem__(self, number):
        return self.nodes[number - 1]

    def start(self, timeout=40.0):
        for node in self.nodes[: self.voters]:
            node.spawn()
        for node in self.nodes[: self.voters]:
            assert node.wait_ready(timeout), f"node {node.number} is not ready (exit code {node.process.poll()}):\n{node.log_tail()}"
        return self

    def close(self):
        for node in self.nodes:
            if node.process is not None:
                node.resume()
                node.kill()

    def conn(self, timeout=12.0):
        """What the load of tests/crash takes for a broker's connection."""
        return Client(self, random.random(), timeout)

    def client(self, seed, timeout=4.0, tenant=None):
        return Client(self, seed, timeout, tenant)

    def leader(self, timeout=15.0):
        """The node that says it leads, of the highest term."""
        deadline = time.monotonic() + timeout
        said = []
        while time.monotonic() < deadline:
            said = []
            for node in self.nodes:
                if node.alive() and not node.stopped:
                    status = node.status(timeout=1.0)
                    if status is not None:
                        said.append((status["term"], status["state"] == "leader", node, status))
            leaders = [row for row in said if row[1]]
            if leaders:
                return max(leaders, key=lambda row: row[0])[2]
            time.sleep(0.03)
        raise AssertionError(f"no leader within {timeout} s: {[(row[2].number, row[3]) for row in said]}\n{self.log_tails()}")

    def followers(self):
        leader = self.leader()
        return [node for node in self.members if node is not leader]

    def log_tails(self, lines=15):
        return "\n".join(f"--- node {n.number}\n{n.log_tail(lines)}" for n in self.nodes if os.path.exists(n.log_path))

    def unexpected_ends(self):
        """Nodes that ended by themselves: [(node, exit code)]."""
        return [(n, n.process.returncode) for n in self.nodes if n.process is not None and not n.expected_down and n.process.poll() is not None]

    def mend(self, timeout=40.0):
        """Everything undone: links, stopped and dead processes, faults of disks and clocks. Returns when all are ready."""
        self.net.heal()
        for node in self.members:
            node.faults.arm()
            if node.stopped:
                node.resume()
            if not node.alive() and node.expected_down:
                node.spawn()
        for node in self.members:
            if not node.wait_ready(timeout):
                raise AssertionError(f"node {node.number} is not ready {timeout} s after everything was mended (exit code "
                                     f"{node.process.poll()}): {node.ask('GET', '/health')}\n{self.log_tails()}")  # fmt: skip

    def wait_equal(self, timeout=30.0):
        """All members have applied the same index and nothing moves. Returns it."""
        deadline = time.monotonic() + timeout
        before = None
        said = []
        while time.monotonic() < deadline:
            said = [node.status() for node in self.members]
            if all(said):
                applied = {s["appliedIndex"] for s in said}
                if len(applied) == 1 and applied == before:
                    return applied.pop()
                before = applied
            time.sleep(0.1)
        raise AssertionError(f"the nodes do not come to the same index: {said}\n{self.log_tails()}")


def wipe(path):
    shutil.rmtree(path, ignore_errors=True)


__all__ = ["CLIENTS", "Client", "Cluster", "Gone", "Node", "NodeConn", "wipe"]
