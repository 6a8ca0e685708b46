"""Starts, kills and asks a real broker process. Standard library only."""
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "faults"))

BINARY = os.environ.get("QUEEN_BIN", os.path.join(ROOT, "build", "queen"))
CRASH_BINARY = os.environ.get("QUEEN_CRASH_BIN", os.path.join(ROOT, "build", "queen-crash"))
ALL = os.environ.get("QUEEN_TEST_ALL") == "1"

# Small files, a small cache and frequent checkpoints: rolls, cuts, trims, copies out of mostly dead files and reads from disk happen every
# few hundred milliseconds.
SMALL = {
    "QUEEN_RAFT_SEGMENT_BYTES": str(1 << 20),
    "QUEEN_RAFT_DURABLE_EVERY_MS": "200",
    "QUEEN_RAFT_DURABLE_EVERY_BYTES": str(1 << 20),
    "QUEEN_LOG_CACHE_BYTES": str(1 << 20),
    "QUEEN_RECLAIM_AFTER_MS": "0",
}


class Gone(Exception):
    """The connection ended before the answer: what was asked may or may not have happened."""


class Conn:
    """One keep-alive connection. call() -> (status, body bytes); raises Gone."""

    def __init__(self, port, timeout=40.0):
        try:
            self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        except OSError as error:
            raise Gone(str(error)) from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def close(self):
        self.socket.close()

    def call(self, method, path, body=b""):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: q\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            self.socket.sendall(head.encode() + body)
            return self.read_answer()
        except OSError as error:
            raise Gone(str(error)) from None

    def json(self, method, path, body=b""):
        status, answer = self.call(method, path, body)
        return status, json.loads(answer) if answer else None

    def more(self):
        part = self.socket.recv(1 << 18)
        if not part:
            raise Gone("closed by the broker")
        return part

    def read_answer(self):
        buffer = self.buffer
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            buffer += self.more()
        head = buffer[:end].split(b"\r\n")
        status = int(head[0].split()[1])
        length = None
        for line in head[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if length is None:
            if status != 204:
                raise ValueError(f"answer without Content-Length: {head}")
            length = 0
        parts = [buffer[end + 4 :]]
        have = len(parts[0])
        while have < length:
            parts.append(self.more())
            have += len(parts[-1])
        whole = b"".join(parts)
        self.buffer = whole[length:]
        return status, whole[:length]


def free_port():
    """Below the range the kernel gives to clients, so that it stays ours between two starts."""
    for _ in range(200):
        port = random.SystemRandom().randrange(15000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port")


class Broker:
    """A broker on one data directory; restarts keep directory and port."""

    def __init__(self, top, binary=None, env=None, faults=None, data=None):
        self.binary = binary or BINARY
        self.faults = faults
        self.data = data or os.path.join(faults.root if faults else top, "data")
        self.log_path = os.path.join(top, "broker.log")
        self.port = free_port()
        self.env = dict(SMALL, **(env or {}))
        self.process = None

    def spawn(self, env=None, prefix=()):
        """Starts the process and does not wait for it to be ready."""
        assert self.process is None or self.process.poll() is not None, "still running"
        full = {k: v for k, v in os.environ.items() if not k.startswith("QUEEN_") and k not in ("PORT", "HOST")}
        full.update(self.env)
        if self.faults:
            full.update(self.faults.environment())
        full.update(env or {})
        argv = [*prefix, self.binary, "serve", "--data", self.data, "--port", str(self.port)]
        with open(self.log_path, "ab") as log:
            log.write(f"--- start {env or ''}\n".encode())
            log.flush()
            self.log_begin = log.tell()
            self.process = subprocess.Popen(argv, env=full, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self

    def start(self, env=None, timeout=30.0, prefix=()):
        self.spawn(env, prefix)
        assert self.wait_ready(timeout), f"did not get ready (exit code {self.process.poll()}):\n{self.log_tail()}"
        return self

    def wait_ready(self, timeout=30.0):
        """True when /health answers 200, False when the process ended or time is over."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            try:
                conn = Conn(self.port, timeout=2)
                status, _ = conn.call("GET", "/health")
                conn.close()
                if status == 200:
                    return True
            except Gone:
                pass
            time.sleep(0.01)
        return False

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def wait_dead(self, timeout=30.0):
        """Exit code; None when it is still running after the timeout."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        if self.alive():
            self.process.send_signal(signal.SIGKILL)
        return self.process.wait()

    def terminate(self, timeout=30.0):
        self.process.send_signal(signal.SIGTERM)
        return self.wait_dead(timeout)

    def conn(self, timeout=40.0):
        return Conn(self.port, timeout)

    def log_text(self):
        """What the process wrote since its last start."""
        with open(self.log_path, "rb") as f:
            f.seek(self.log_begin)
            return f.read().decode(errors="replace")

    def log_tail(self, lines=25):
        with open(self.log_path, "rb") as f:
            return "\n".join(f.read().decode(errors="replace").splitlines()[-lines:])
