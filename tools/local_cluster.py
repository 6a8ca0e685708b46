#!/usr/bin/env python3
"""A cluster of nodes on this machine: on the loopback address, ports in a row, data and secret in one folder.

    tools/local_cluster.py [N] [--binary FILE] [--data DIR] [--port 6632] [--raft-port 7400]

Runs in the foreground until Ctrl-C (or SIGTERM), then stops the nodes one after the other; a second Ctrl-C kills them. Node i has
its HTTP port at --port + i - 1, its raft port at --raft-port + i - 1 and its data in DIR/node-i; the secret is made once, in DIR/token.
Variables of the environment reach every node. Exit code 0 when all nodes stopped as asked. Standard library only; bench/cluster.py uses it too."""
import argparse
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = "127.0.0.1"
STOP_S = 60  # of one node, before it is killed
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


def follow_parent():
    """A node ends when its parent does, however that ends."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Node:
    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.port, self.raft_port = cluster.port + number - 1, cluster.raft_port + number - 1
        self.data = os.path.join(cluster.data, f"node-{number}")
        self.process = None

    @property
    def url(self):
        return f"http://{HOST}:{self.port}"

    def start(self, output=None):
        """`output` is a file or subprocess.PIPE."""
        env = dict(os.environ, **self.cluster.env)
        if self.cluster.count > 1:
            env.update({
                "QUEEN_RAFT_PEERS": self.cluster.peers(), "QUEEN_RAFT_NODE_ID": str(self.number),
                "QUEEN_RAFT_TOKEN_FILE": self.cluster.token(), "QUEEN_RAFT_LISTEN": f"{HOST}:{self.raft_port}",
            })  # fmt: skip
        env.setdefault("QUEEN_SERVER_ID", f"node-{self.number}")
        argv = [self.cluster.binary, "serve", "--data", self.data, "--port", str(self.port)]
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output and subprocess.STDOUT,
                                        start_new_session=True, preexec_fn=follow_parent)  # fmt: skip
        return self

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def ready(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def wait_ready(self, seconds=60.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.alive():
            if self.ready():
                return True
            time.sleep(0.01)
        return False

    def stop(self, seconds=STOP_S):
        """SIGTERM; the exit code. After `seconds` it is killed."""
        if not self.alive():
            return self.process.returncode if self.process else 0
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def kill(self):
        if self.alive():
            self.process.kill()
            self.process.wait()


class LocalCluster:
    def __init__(self, count, data, binary, port=6632, raft_port=7400, env=None):
        self.count, self.data, self.binary, self.port, self.raft_port = count, os.path.abspath(data), binary, port, raft_port
        self.env = dict(env or {})
        os.makedirs(self.data, exist_ok=True)
        self.nodes = [Node(self, number) for number in range(1, count + 1)]

    def peers(self):
        return ",".join(f"{n.number}={HOST}:{n.raft_port}/{HOST}:{n.port}" for n in self.nodes)

    def token(self):
        """The file with the cluster's secret; made when it is not there. Only its owner may read it."""
        path = os.path.join(self.data, "token")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return path
        with os.fdopen(fd, "w") as f:
            f.write(secrets.token_hex(32) + "\n")
        return path

    def stop(self):
        """One after the other, so that leadership is handed over while there is somebody to take it. The exit codes."""
        return [node.stop() for node in self.nodes]

    def kill(self):
        for node in self.nodes:
            node.kill()


def carry(node, lock):
    """The node's log, a line at a time, with its number before each."""
    for line in iter(node.process.stdout.readline, b""):
        with lock:
            sys.stdout.buffer.write(b"node %d | " % node.number + line)
            sys.stdout.buffer.flush()


def say(lock, text):
    with lock:
        print(text, flush=True)


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


def serve(cluster):
    """Starts all nodes, waits for an interrupt or for all of them to end. The exit code."""
    lock = threading.Lock()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    codes = []
    carriers = []
    try:
        for node in cluster.nodes:
            node.start(subprocess.PIPE)
            carriers.append(threading.Thread(target=carry, args=(node, lock), daemon=True))
            carriers[-1].start()
        if all([node.wait_ready() for node in cluster.nodes]):
            say(lock, f"cluster | {cluster.count} nodes are ready; any of them takes any call:")
            for node in cluster.nodes:
                say(lock, f"cluster |   {node.url}  (raft {HOST}:{node.raft_port}, data {os.path.relpath(node.data)})")
            say(lock, "cluster | Ctrl-C stops them")
        else:
            say(lock, "cluster | not all nodes are ready; see above")
        told = set()
        while len(told) < cluster.count:
            for node in cluster.nodes:
                if node.number not in told and not node.alive():
                    told.add(node.number)
                    say(lock, f"cluster | node {node.number} ended with exit code {node.process.returncode}")
            time.sleep(0.2)
    except Interrupted:
        say(lock, "cluster | stopping the nodes, one after the other; Ctrl-C again kills them")
    try:
        codes = cluster.stop()
    except Interrupted:
        cluster.kill()
        codes = [node.process.returncode for node in cluster.nodes if node.process]
    for thread in carriers:
        thread.join(5)
    say(lock, "cluster | exit codes: " + ", ".join(f"node {n.number}: {c}" for n, c in zip(cluster.nodes, codes)))
    return 0 if all(code == 0 for code in codes) else 1


def main():
    root = os.path.dirname(HERE)
    parser = argparse.ArgumentParser(description="a cluster of nodes on this machine")
    parser.add_argument("count", nargs="?", type=int, default=3, help="nodes: 1, 3 or 5 (default 3)")
    parser.add_argument("--binary", default=os.path.join(root, "build", "queen"))
    parser.add_argument("--data", default=os.path.join(root, "data", "cluster"))
    parser.add_argument("--port", type=int, default=6632, help="HTTP port of the first node")
    parser.add_argument("--raft-port", type=int, default=7400, help="raft port of the first node")
    arguments = parser.parse_args()
    if not 1 <= arguments.count <= 9:
        parser.error("between 1 and 9 nodes")
    return serve(LocalCluster(arguments.count, arguments.data, arguments.binary, arguments.port, arguments.raft_port))


if __name__ == "__main__":
    sys.exit(main())
