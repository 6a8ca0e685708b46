"""Harness for black-box tests: a real `queen serve` process and a small HTTP client.

Standard library only. Other test directories may import this file by putting tests/api on sys.path:

    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "api"))
    from queen import Broker, wait_until

What is here
    Broker          one broker process on a data directory of its own
                      start, stop (SIGTERM, exit code 0 demanded), kill (SIGKILL), restart,
                      request/get/post/delete, and the verbs push, push_ids, pop, take, nothing,
                      ack, ack_batch, ack_body, extend, configure, queue_detail, depth, dlq, drain
    Response        status, headers (lower-case names), body (bytes), json, elapsed (seconds)
    RawConnection   a plain socket for requests that no well-behaved client would send
    wait_until      polls a condition with a deadline
    unique          a name no other test uses
    raw_data        the exact bytes of the `data` values of a pop answer

Environment
    QUEEN_BIN       the broker; default build/queen of this checkout
    QUEEN_TEST_DIR  where data directories are made; default the system's temporary directory
    QUEEN_TEST_ALL  set to 1: scenario tests run at full size

Threads: a Broker may be used from many threads; each thread has its own kept-alive connection.
A request is never sent twice: a broken connection raises.
"""

import atexit
import http.client
import itertools
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.path.abspath(os.environ.get("QUEEN_BIN") or os.path.join(ROOT, "build", "queen"))
TEST_ALL = os.environ.get("QUEEN_TEST_ALL", "") == "1"

QUEUE_MODE = "__QUEUE_MODE__"
LEASE_ERROR = "invalid or expired lease"
STALE_ERROR = "transaction is unresolvable, already committed, or acknowledgment is stale"
UUID7 = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
ISO_MS = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
ISO_US = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")

START_DEADLINE_S = 20
STOP_DEADLINE_S = 20
IDLE_REUSE_S = 2  # a connection idle for longer is not used again: the broker may be closing it

# Variables that would change a broker under test when they leak in from the caller's shell.
_OWN_VARIABLES = ("QUEEN_", "JWT_", "PORT", "HOST", "DEFAULT_", "POP_", "LOG_LEVEL", "RUST_LOG", "RETENTION_", "METRICS_")

_ABSENT = object()
_counter = itertools.count(1)
_live = set()


class BrokerError(AssertionError):
    """The broker did not start, stop or exit as it must. Carries the end of its output."""


def unique(prefix="q"):
    """A name that no other test, worker or run uses. Holds no dot, so the namespace is the name."""
    return "%s-%s-%d" % (prefix, uuid.uuid4().hex[:10], next(_counter))


def wait_until(condition, seconds, what="the condition", every=0.02):
    """Calls condition() until it answers something true, and returns that. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError("not within %.1f s: %s" % (seconds, what))
        time.sleep(every)


def threads_of(pid):
    """What each thread of a process is doing in the kernel, as far as this machine lets one see: for the report of one that hangs."""
    lines = []
    folder = "/proc/%d/task" % pid
    for thread in sorted(os.listdir(folder) if os.path.isdir(folder) else []):
        seen = []
        for name in ("comm", "wchan", "syscall", "stack"):
            try:
                with open(os.path.join(folder, thread, name), encoding="utf-8", errors="replace") as file:
                    seen.append(" <- ".join(file.read().split("\n")[:8]))
            except OSError:
                pass
        lines.append("thread %s: %s" % (thread, " | ".join(seen)))
    return "\n".join(lines)


def quote(name):
    """Percent-encodes one path segment."""
    segment = urllib.parse.quote(name, safe="")
    return segment.replace(".", "%2E") if segment.strip(".") == "" else segment


def query(params):
    """A query string of the given values: None is left out, booleans become true and false."""
    pairs = []
    for key, value in params.items():
        if value is None:
            continue
        if value is True or value is False:
            value = "true" if value else "false"
        pairs.append((key, str(value)))
    return "?" + urllib.parse.urlencode(pairs) if pairs else ""


def raw_data(body):
    """The bytes of every `"data":` value of a pop answer, as sent. Payload strings cannot fake a key:
    the walk keeps track of strings and nesting."""
    found = []
    at = 0
    depth = 0
    while at < len(body):
        c = body[at]
        if c == 0x22:
            end = _string_end(body, at)
            key = body[at:end]
            at = end
            if key == b'"data"' and depth == 3 and body[at:at + 1] == b":":
                end = _value_end(body, at + 1)
                found.append(body[at + 1:end])
                at = end
            continue
        if c in b"{[":
            depth += 1
        elif c in b"}]":
            depth -= 1
        at += 1
    return found


def _string_end(body, at):
    at += 1
    while body[at] != 0x22:
        at += 2 if body[at] == 0x5C else 1
    return at + 1


def _value_end(body, at):
    depth = 0
    while at < len(body):
        c = body[at]
        if c == 0x22:
            at = _string_end(body, at)
            continue
        if c in b"{[":
            depth += 1
        elif c in b"}]":
            if depth == 0:
                return at
            depth -= 1
        elif c == 0x2C and depth == 0:
            return at
        at += 1
    return at


class Response:
    """One answer. `json` parses the body and fails when it is not JSON."""

    __slots__ = ("status", "headers", "body", "elapsed")

    def __init__(self, status, headers, body, elapsed=0.0):
        self.status = status
        self.headers = headers
        self.body = body
        self.elapsed = elapsed

    @property
    def json(self):
        return json.loads(self.body)

    def expect(self, status):
        """Fails unless the status is this one (or one of these); returns self."""
        wanted = status if isinstance(status, tuple) else (status,)
        assert self.status in wanted, "status %d, wanted %s: %r" % (self.status, wanted, self.body[:600])
        return self

    def __repr__(self):
        return "<%d %r>" % (self.status, self.body[:300])


class RawConnection:
    """A socket to the broker for bytes written by hand. Reads answers one by one."""

    def __init__(self, port, timeout=10.0):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        """Sends; answers False when the peer has already closed (which may be what a test expects)."""
        try:
            self.sock.sendall(data)
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False

    def _more(self):
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            return False
        self.pending += data
        return True

    def _take(self, size):
        while len(self.pending) < size:
            if not self._more():
                raise EOFError("connection closed inside an answer")
        data, self.pending = self.pending[:size], self.pending[size:]
        return data

    def _line(self):
        while b"\r\n" not in self.pending:
            if not self._more():
                raise EOFError("connection closed, %r left" % self.pending[:200])
        line, self.pending = self.pending.split(b"\r\n", 1)
        return line

    def read_head(self):
        """Status and headers of the next answer; the body is left in place."""
        line = self._line()
        assert re.match(rb"^HTTP/1\.1 \d{3}", line), "not a status line: %r" % line[:200]
        headers = {}
        while True:
            header = self._line()
            if header == b"":
                return int(line[9:12]), headers
            name, value = header.split(b":", 1)
            headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")

    def read_response(self, skip_interim=True):
        """The next answer as a Response. EOFError when the broker closes instead."""
        begin = time.monotonic()
        while True:
            status, headers = self.read_head()
            if status >= 200 or not skip_interim:
                break
        if status < 200 or status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks()
        elif "content-length" in headers:
            body = self._take(int(headers["content-length"]))
        else:
            while self._more():
                pass
            body, self.pending = self.pending, b""
        return Response(status, headers, body, time.monotonic() - begin)

    def _chunks(self):
        parts = []
        while True:
            size = int(self._line().split(b";")[0], 16)
            if size == 0:
                while self._line():
                    pass
                return b"".join(parts)
            parts.append(self._take(size))
            assert self._take(2) == b"\r\n"

    def read_until_closed(self, seconds=10.0):
        """Everything the broker still sends; fails when it does not close in time."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            assert left > 0, "still open after %.1f s, got %r" % (seconds, self.pending[:300])
            readable, _, _ = select.select([self.sock], [], [], left)
            if readable and not self._more():
                data, self.pending = self.pending, b""
                return data

    def reset(self):
        """Closes with RST, as a killed client does on some networks."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.close()

    def close(self):
        self.sock.close()


def free_port():
    """A port that nobody listens on now. Taken below the range of outgoing connections, so that no client
    socket can sit on it while a broker is down between two starts."""
    for _ in range(200):
        port = random.randint(12000, 31000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise BrokerError("no free port")


class Broker:
    """One `queen serve` process.

    env         extra variables for the process
    args        extra command-line arguments
    wrap        command put in front, for example ["prlimit", "--nofile=256"]
    data_dir    use this directory and leave it in place; default: a new one, removed by close()
    """

    def __init__(self, env=None, args=(), wrap=(), data_dir=None, binary=None):
        self.binary = binary or BINARY
        self.env = dict(env or {})
        self.args = list(args)
        self.wrap = list(wrap)
        parent = os.environ.get("QUEEN_TEST_DIR") or None
        self.home = tempfile.mkdtemp(prefix="queen-test-", dir=parent)
        self.data_dir = data_dir or os.path.join(self.home, "data")
        self.port = None
        self.process = None
        self.exit_code = None
        self._starts = 0
        self._local = threading.local()
        _live.add(self)

    # ---- process ----

    def environment(self):
        """What the process gets: the caller's environment without broker settings, plus self.env."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_VARIABLES)}
        env.update(self.env)
        return env

    def command(self):
        return self.wrap + [self.binary, "serve", "--data", self.data_dir, "--port", str(self.port)] + self.args

    def start(self, deadline=START_DEADLINE_S):
        """Starts the process and waits until /health answers 200. Returns self."""
        assert self.process is None, "already running"
        fixed = self.port is not None
        for attempt in range(20):
            if not fixed:
                self.port = free_port()
            self.launch()
            try:
                self._wait_healthy(deadline)
                return self
            except BrokerError:
                in_use = re.search(r"in use|EADDRINUSE", self.output())
                if self.process is not None or not in_use or attempt == 19:
                    self._abandon()
                    raise
                time.sleep(0.1)
        raise BrokerError("no free port")

    def launch(self):
        """Starts the process without waiting for it. Output goes to files in self.home."""
        self._starts += 1
        out = open(self._file("out"), "wb")
        err = open(self._file("err"), "wb")
        with out, err:
            self.process = subprocess.Popen(self.command(), env=self.environment(), cwd=self.home,
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self.exit_code = None

    def _file(self, kind):
        return os.path.join(self.home, "%s-%d.txt" % (kind, self._starts))

    def _wait_healthy(self, deadline):
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self._reaped()
                raise BrokerError("exit code %s at start\n%s" % (self.exit_code, self.output()[-4000:]))
            try:
                if self.fresh_request("GET", "/health", timeout=2).status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.01)
        raise BrokerError("not healthy within %.0f s\n%s\n%s" % (deadline, self.output()[-4000:], threads_of(self.process.pid)))

    def _reaped(self):
        self.exit_code = self.process.returncode
        self.process = None
        self._local = threading.local()

    def _abandon(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._reaped()

    def wait_exit(self, seconds):
        """Waits for the process to end by itself; returns its exit code (negative: the signal)."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise BrokerError("still running after %.0f s\n%s\n%s" % (seconds, self.output()[-4000:], threads_of(self.process.pid))) from None
        self._reaped()
        return self.exit_code

    def stop(self, deadline=STOP_DEADLINE_S):
        """SIGTERM, and demands exit code 0. A leak or a sanitizer report makes the code another one."""
        self.process.send_signal(signal.SIGTERM)
        code = self.wait_exit(deadline)
        if code != 0:
            raise BrokerError("exit code %d after SIGTERM\n%s" % (code, self.output()[-8000:]))

    def kill(self):
        """SIGKILL."""
        self.process.kill()
        self.wait_exit(STOP_DEADLINE_S)

    def restart(self, how="stop", env=None):
        """Stops ("stop") or kills ("kill") the process and starts it on the same directory and port."""
        if self.process is not None:
            self.kill() if how == "kill" else self.stop()
        if env is not None:
            self.env = dict(env)
        return self.start()

    def close(self):
        """Ends the process hard if it still runs, and removes the directory that was made for it."""
        self._abandon()
        shutil.rmtree(self.home, ignore_errors=True)
        _live.discard(self)

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self):
        return self.process.pid

    def output(self):
        """What the present (or last) process wrote to stdout and stderr."""
        text = b""
        for kind in ("out", "err"):
            try:
                with open(self._file(kind), "rb") as file:
                    text += file.read()
            except FileNotFoundError:
                pass
        return text.decode("utf-8", "replace")

    def resident_bytes(self):
        with open("/proc/%d/statm" % self.pid) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self):
        """User and system time the process has used."""
        with open("/proc/%d/stat" % self.pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # ---- HTTP ----

    def raw(self, timeout=10.0):
        return RawConnection(self.port, timeout)

    def _connection(self, timeout):
        held = getattr(self._local, "held", None)
        if held is not None:
            conn, port, used = held
            fresh = time.monotonic() - used < IDLE_REUSE_S and port == self.port and conn.sock is not None
            if fresh and not select.select([conn.sock], [], [], 0)[0]:
                conn.sock.settimeout(timeout)
                return conn
            conn.close()
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=75.0):
        """One request on this thread's kept-alive connection. A body that is not bytes is sent as JSON."""
        conn = self._connection(timeout)
        self._local.held = None
        response = _exchange(conn, method, path, body, headers)
        if conn.sock is not None:
            self._local.held = (conn, self.port, time.monotonic())
        return response

    def fresh_request(self, method, path, body=None, headers=None, timeout=75.0):
        """One request on a connection of its own."""
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            return _exchange(conn, method, path, body, headers)
        finally:
            conn.close()

    def get(self, path, **kwargs):
        return self.request("GET", path, **kwargs)

    def post(self, path, body=None, **kwargs):
        return self.request("POST", path, body, **kwargs)

    def delete(self, path, **kwargs):
        return self.request("DELETE", path, **kwargs)

    # ---- verbs ----

    def push(self, items, headers=None):
        """POST /api/v1/push with these items (a list of dictionaries). Returns the Response."""
        return self.post("/api/v1/push", {"items": items}, headers=headers)

    def push_ids(self, queue, ids, partition=None, headers=None):
        """Pushes one message an id, payload {"id": id}, in one request. All must be new. Returns the result list."""
        items = [{"queue": queue, "transactionId": i, "payload": {"id": i}} for i in ids]
        if partition is not None:
            for item in items:
                item["partition"] = partition
        results = self.push(items, headers=headers).expect(201).json
        assert [r["status"] for r in results] == ["queued"] * len(ids), results
        return results

    def push_raw(self, queue, payload, partition="p", transaction_id=None):
        """Pushes one message whose payload is exactly these bytes of JSON text. Returns the Response."""
        head = {"queue": queue, "partition": partition}
        if transaction_id is not None:
            head["transactionId"] = transaction_id
        text = json.dumps(head).encode()[:-1]
        return self.post("/api/v1/push", b'{"items":[' + text + b',"payload":' + payload + b"}]}")

    def pop(self, queue=None, partition=None, group=None, headers=None, **params):
        """A pop: pinned with a partition, discovery without a queue. Other parameters are sent as they are named
        (batch, partitions, wait, timeout, leaseSeconds, autoAck, subscriptionMode, ...). Returns the Response."""
        path = "/api/v1/pop"
        if queue is not None:
            path += "/queue/" + quote(queue)
        if partition is not None:
            path += "/partition/" + quote(partition)
        return self.get(path + query(dict(params, consumerGroup=group)), headers=headers)

    def take(self, queue=None, partition=None, group=None, **params):
        """A pop that must find something. Returns the parsed answer."""
        answer = self.pop(queue, partition, group, **params).expect(200).json
        assert answer["messages"], answer
        return answer

    def nothing(self, queue=None, partition=None, group=None, **params):
        """A pop that must find nothing: 204 without a body."""
        answer = self.pop(queue, partition, group, **params).expect(204)
        assert answer.body == b""
        return answer

    def ack_body(self, body, route="/api/v1/ack", headers=None):
        """Sends this acknowledgement body as it is. Returns the Response."""
        return self.post(route, body, headers=headers)

    def ack(self, message, status="completed", error=None, lease=_ABSENT, group=_ABSENT):
        """Acknowledges one popped message. lease=None leaves the lease out, a string replaces it; group alike.
        Returns the one result element."""
        body = _ack_item(message, status, error, lease)
        group = message["consumerGroup"] if group is _ABSENT else group
        if group not in (None, QUEUE_MODE):
            body["consumerGroup"] = group
        results = self.ack_body(body).expect(200).json
        assert len(results) == 1 and results[0]["index"] == 0, results
        return results[0]

    def ack_batch(self, entries, lease=_ABSENT, group=_ABSENT):
        """entries: (message, status) or (message, status, error), or a message alone for completed.
        Returns the result list."""
        items = []
        first = None
        for entry in entries:
            message, status, error = (entry, "completed", None) if isinstance(entry, dict) else (tuple(entry) + (None,))[:3]
            first = first or message
            items.append(_ack_item(message, status, error, lease))
        body = {"acknowledgments": items}
        group = first["consumerGroup"] if group is _ABSENT else group
        if group not in (None, QUEUE_MODE):
            body["consumerGroup"] = group
        results = self.ack_body(body, "/api/v1/ack/batch").expect(200).json
        assert [r["index"] for r in results] == list(range(len(items))), results
        assert [r["transactionId"] for r in results] == [i["transactionId"] for i in items], results
        return results

    def extend(self, lease_id, seconds=None, body=_ABSENT):
        """POST lease extend. Returns the parsed answer of a 200."""
        if body is _ABSENT:
            body = None if seconds is None else {"seconds": seconds}
        return self.post("/api/v1/lease/%s/extend" % quote(lease_id), body).expect(200).json

    def configure(self, queue, mode=None, **options):
        """POST configure. Returns the parsed answer of a 200."""
        body = {"queue": queue, "options": options}
        if mode is not None:
            body["mode"] = mode
        return self.post("/api/v1/configure", body).expect(200).json

    def queue_detail(self, queue):
        """The queue's detail, or None when it does not exist."""
        answer = self.get("/api/v1/resources/queues/" + quote(queue)).expect((200, 404))
        return answer.json if answer.status == 200 else None

    def delete_queue(self, queue):
        return self.delete("/api/v1/resources/queues/" + quote(queue)).expect(200).json

    def depth(self, queue, group=None):
        """The depth answer of an existing queue."""
        return self.get("/api/v1/resources/queues/%s/depth%s" % (quote(queue), query({"group": group}))).expect(200).json

    def dlq(self, queue, group=None, **params):
        """Dead letters of a queue, newest first. Returns the parsed answer."""
        return self.get("/api/v1/dlq" + query(dict(params, queue=queue, consumerGroup=group))).expect(200).json


    def drain(self, queue, batch=1000):
        """Every retained message of a queue, read by a fresh group from the oldest on. Messages of a lane in order."""
        group = unique("drain")
        messages = []
        while True:
            answer = self.pop(queue, group=group, subscriptionMode="all", autoAck=True, batch=batch, partitions=64).expect((200, 204))
            if answer.status == 204:
                return messages
            messages += answer.json["messages"]


def _ack_item(message, status, error, lease):
    item = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    lease = message["leaseId"] if lease is _ABSENT else lease
    if lease is not None:
        item["leaseId"] = lease
    if status is not None:
        item["status"] = status
    if error is not None:
        item["error"] = error
    return item


def _exchange(conn, method, path, body, headers):
    headers = dict(headers or {})
    if body is not None and not isinstance(body, (bytes, bytearray)):
        body = json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
    begin = time.monotonic()
    try:
        conn.request(method, path, body, headers)
        answer = conn.getresponse()
        data = answer.read()
    except BaseException:
        conn.close()
        raise
    if answer.will_close:
        conn.close()
    return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, data, time.monotonic() - begin)


def ids(answer):
    """The transactionIds of a pop answer, in order."""
    return [m["transactionId"] for m in answer["messages"]]


def offsets(answer):
    return [m["offset"] for m in answer["messages"]]


@atexit.register
def _end_all():
    for broker in list(_live):
        broker.close()
