"""queen txn, kv, timers and lock, and the benches of the step: JSON lines in and out, exit codes."""

import base64
import json
import os
import socket
import subprocess
import threading

import pytest

from queen import BINARY, UUID7, free_port, ids, unique

OK, USAGE, NO, REFUSED, UNREACHABLE = 0, 1, 3, 4, 5


def cli(broker, *args, stdin=b"", server=None):
    """Runs a verb to its end; returns (exit code, output lines as JSON, stderr)."""
    environment = {k: v for k, v in os.environ.items() if k != "QUEEN_SERVER"}
    environment["QUEEN_SERVER"] = server or "http://127.0.0.1:%d" % broker.port
    done = subprocess.run([BINARY, *args], input=stdin, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def one(broker, *args, code=OK, **kwargs):
    """Runs a verb that must print one line and end with `code`; returns the line's value."""
    got, lines, errors = cli(broker, *args, **kwargs)
    assert (got, len(lines)) == (code, 1), (got, lines, errors)
    return lines[0]


@pytest.fixture
def ns():
    return unique("n")


# ---- kv

def test_kv_put_get_delete(broker, ns):
    put = one(broker, "kv", "put", ns, "a", '{"n": 1}', "--ttl", "100")
    assert (put["applied"], put["value"]) == (True, {"n": 1})
    got = one(broker, "kv", "get", ns, "a")
    assert (got["found"], got["value"], got["version"]) == (True, {"n": 1}, put["version"])
    assert got["expiresAt"] is not None
    gone = one(broker, "kv", "delete", ns, "a")
    assert (gone["applied"], gone["value"], gone["version"]) == (True, {"n": 1}, put["version"])
    missing = one(broker, "kv", "get", ns, "a", code=NO)
    assert missing["found"] is False
    assert one(broker, "kv", "delete", ns, "a", code=NO)["reason"] == "absent"


def test_kv_value_from_standard_input(broker, ns):
    assert one(broker, "kv", "put", ns, "a", "--forever", stdin=b'{"long":\n [1,\n2]}\n')["value"] == {"long": [1, 2]}
    assert one(broker, "kv", "get", ns, "a")["expiresAt"] is None
    code, lines, errors = cli(broker, "kv", "put", ns, "a", "--forever", stdin=b"{")
    assert (code, lines) == (REFUSED, []) and "JSON" in errors


def test_kv_get_of_several_keys_keeps_their_order(broker, ns):
    for key in ("x", "y"):
        one(broker, "kv", "put", ns, key, '"%s"' % key, "--forever")
    code, lines, _ = cli(broker, "kv", "get", ns, "y", "gone", "x")
    assert code == NO
    assert [(r["key"], r["found"], r.get("value")) for r in lines] == [("y", True, "y"), ("gone", False, None), ("x", True, "x")]


def test_kv_put_if_absent_has_one_winner(broker, ns):
    codes = []

    def run(number):
        codes.append(cli(broker, "kv", "put-if-absent", ns, "once", str(number), "--ttl", "60")[0])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [OK] + [NO] * 5
    assert one(broker, "kv", "put-if-absent", ns, "once", "9", "--ttl", "60", code=NO)["reason"] == "exists"


def test_kv_expect(broker, ns):
    version = one(broker, "kv", "put", ns, "a", "1", "--forever", "--expect", "0")["version"]
    assert one(broker, "kv", "put", ns, "a", "2", "--forever", "--expect", "0", code=NO)["reason"] == "exists"
    second = one(broker, "kv", "put", ns, "a", "2", "--forever", "--expect", str(version))["version"]
    assert one(broker, "kv", "put", ns, "a", "3", "--forever", "--expect", str(version), code=NO)["value"] == 2
    assert one(broker, "kv", "delete", ns, "a", "--expect", str(version), code=NO)["reason"] == "version"
    assert one(broker, "kv", "delete", ns, "a", "--expect", str(second))["applied"] is True


def test_kv_incr(broker, ns):
    assert one(broker, "kv", "incr", ns, "c", "--forever")["value"] == 1
    assert one(broker, "kv", "incr", ns, "c", "-2.5", "--forever")["value"] == -1.5
    assert one(broker, "kv", "incr", ns, "c", "10", "--max=3", "--forever", code=NO)["reason"] == "limit"
    assert one(broker, "kv", "incr", ns, "c", "--min", "-9", "--forever", "--", "-7")["value"] == -8.5


def test_kv_list_pages_and_name_spaces(broker, ns):
    for start in range(0, 1200, 200):
        ops = [{"op": "put", "ns": ns, "key": "k-%04d" % n, "value": n, "forever": True} for n in range(start, start + 200)]
        broker.post("/api/v1/kv", ops).expect(200)
    one(broker, "kv", "put", ns, "other \u00e9\"\\", "true", "--forever")
    code, rows, errors = cli(broker, "kv", "list", ns)
    assert (code, errors) == (OK, "")
    assert [r["key"] for r in rows] == ["k-%04d" % n for n in range(1200)] + ["other \u00e9\"\\"]
    assert rows[7]["value"] == 7
    code, rows, _ = cli(broker, "kv", "list", ns, "--prefix", "k-", "--keys-only")
    assert (code, len(rows), "value" in rows[0]) == (OK, 1200, False)
    code, rows, _ = cli(broker, "kv", "list", ns, "--prefix", "k-", "--after", "k-1100", "--limit", "30")
    assert [r["key"] for r in rows] == ["k-%04d" % n for n in range(1101, 1131)]
    assert cli(broker, "kv", "list", unique("n")) == (OK, [], "")
    code, spaces, _ = cli(broker, "kv", "namespaces")
    assert code == OK and {"namespace": ns, "keys": 1201} in spaces


def test_kv_refusals_name_their_reason(broker, ns):
    code, lines, errors = cli(broker, "kv", "put", "Bad", "a", "1", "--forever")
    assert (code, lines) == (REFUSED, []) and "kv_bad_namespace" in errors
    code, lines, errors = cli(broker, "kv", "put", ns, "a", "--forever", stdin=json.dumps("x" * 70000).encode())
    assert (code, lines) == (REFUSED, []) and "kv_value_too_large" in errors


# ---- timers

def test_timer_round_trip(broker, queue):
    timer = one(broker, "timers", "schedule", queue, "t/1", "--delay-ms", "60000", "--partition", "p", "--txn", "x-1", stdin=b'{"a":1}')
    assert (timer["ok"], timer["status"], timer["txn"]) == (True, "scheduled", "x-1")
    assert UUID7.match(timer["messageId"])
    shown = one(broker, "timers", "get", queue, "t/1")
    assert (shown["found"], shown["partition"], shown["messageId"]) == (True, "p", timer["messageId"])
    assert base64.b64decode(shown["payload"]) == b'{"a":1}'
    again = one(broker, "timers", "schedule", queue, "t/1", "--delay-ms", "60000", "--txn", "x-2", "--payload", "2")
    assert again["status"] == "rescheduled"
    gone = one(broker, "timers", "cancel", queue, "t/1")
    assert (gone["status"], gone["txn"]) == ("cancelled", "x-2")
    assert one(broker, "timers", "cancel", queue, "t/1", "--txn", "x-2", code=NO)["status"] == "absent"
    assert one(broker, "timers", "get", queue, "t/1", code=NO)["found"] is False


def test_timer_fires_into_its_queue(broker, queue):
    for payload in ('"x"', '"xy"', '"xyz"', "[1]"):
        timer = one(broker, "timers", "schedule", queue, "t", "--delay-ms", "0.5", "--payload", payload)
        popped = one(broker, "pop", queue, "--wait", "--timeout", "5000", "--auto-ack")
        assert (popped["id"], popped["transactionId"], popped["data"]) == (timer["messageId"], timer["txn"], json.loads(payload))


def test_timer_list_pages_and_count(broker, queue):
    names = sorted("t-%04d \u00e9/%%" % n for n in range(1100))
    for start in range(0, len(names), 220):
        ops = [{"op": "schedule", "queue": queue, "timerKey": n, "delayMs": 3600000, "txn": n, "payload": "MQ=="} for n in names[start:start + 220]]
        broker.post("/api/v1/timers", ops).expect(200)
    code, rows, errors = cli(broker, "timers", "list", queue)
    assert (code, errors) == (OK, "")
    assert [r["timerKey"] for r in rows] == names
    assert "payload" not in rows[0]
    code, rows, _ = cli(broker, "timers", "list", queue, "--after", names[9], "--limit", "3")
    assert [r["timerKey"] for r in rows] == names[10:13]
    assert one(broker, "timers", "count", queue, "--prefix", "t-00") == {"count": 100}
    assert one(broker, "timers", "count", queue, "--prefix", "none") == {"count": 0}


def test_timer_refusals(broker, queue):
    code, lines, errors = cli(broker, "timers", "schedule", queue, "t", "--delay-ms", str(91 * 86400000), "--payload", "1")
    assert (code, lines) == (REFUSED, []) and "timer_horizon_exceeded" in errors
    code, lines, errors = cli(broker, "timers", "schedule", queue, "t", "--delay-ms", "5", stdin=b"not json")
    assert (code, lines) == (REFUSED, []) and "JSON" in errors


# ---- locks

def test_lock_life(broker):
    name = unique("l")
    held = one(broker, "lock", "acquire", name, "--ttl", "30", "--owner", "ann")
    assert (held["acquired"], held["slot"]) == (True, 0)
    assert one(broker, "lock", "acquire", name, "--ttl", "30", "--owner", "ann")["token"] == held["token"]
    other = one(broker, "lock", "acquire", name, "--ttl", "30", "--owner", "bob", code=NO)
    assert (other["reason"], other["holders"][0]["owner"]) == ("held", "ann")
    renewed = one(broker, "lock", "renew", name, "--token", str(held["token"]), "--ttl", "60")
    assert renewed["renewed"] is True and renewed["token"] > held["token"]
    assert one(broker, "lock", "release", name, "--token", str(held["token"]), code=NO)["reason"] == "lost"
    assert one(broker, "lock", "get", name)["holders"][0]["token"] == renewed["token"]
    assert one(broker, "lock", "release", name, "--token", str(renewed["token"]))["released"] is True
    assert one(broker, "lock", "get", name, code=NO)["held"] is False


def test_semaphore(broker):
    name = unique("l")
    slots = [one(broker, "lock", "acquire", name, "--ttl", "30", "--owner", o, "--limit", "2") for o in ("a", "b")]
    assert sorted(s["slot"] for s in slots) == [0, 1]
    assert one(broker, "lock", "acquire", name, "--ttl", "30", "--owner", "c", "--limit", "2", code=NO)["reason"] == "held"
    second = next(s for s in slots if s["slot"] == 1)
    assert one(broker, "lock", "release", name, "--token", str(second["token"]), "--slot", "1")["released"] is True
    code, lines, errors = cli(broker, "lock", "acquire", name + "#", "--ttl", "5")
    assert (code, lines) == (REFUSED, []) and "locks_bad_name" in errors


# ---- transactions

def test_txn_of_a_popped_message(broker, queue, ns):
    broker.push_ids(queue, ["a"], "p")
    message = one(broker, "pop", queue)
    body = {"operations": [{"type": "ack", "transactionId": "a", "partitionId": message["partitionId"], "leaseId": message["leaseId"]},
                           {"type": "push", "queue": queue + "-out", "transactionId": "o-1", "payload": {"n": 1}}],
            "kv": [{"op": "putIfAbsent", "ns": ns, "key": "a", "value": 1, "ttlSeconds": 60, "required": True}],
            "timers": [{"op": "schedule", "queue": queue + "-out", "timerKey": "t", "delayMs": 60000, "txn": "t-1", "payload": "MQ=="}]}
    done = one(broker, "txn", stdin=json.dumps(body, indent=1).encode())
    assert (done["success"], [r["type"] for r in done["results"]]) == (True, ["ack", "push", "kv", "timer"])
    assert one(broker, "kv", "get", ns, "a")["value"] == 1
    assert one(broker, "pop", queue + "-out")["data"] == {"n": 1}
    code, lines, errors = cli(broker, "txn", stdin=json.dumps(body).encode())
    assert (code, lines[0]["success"], lines[0]["reason"]) == (NO, False, "rejected_ack")
    assert "rolled back" in errors and "rejected_ack" in errors


def test_txn_from_a_file(broker, queue, ns, tmp_path):
    path = tmp_path / "body.json"
    path.write_text(json.dumps({"operations": [{"type": "push", "queue": queue, "payload": 7}],
                                "kv": [{"op": "putIfAbsent", "ns": ns, "key": "k", "value": 1, "forever": True, "required": True}]}))
    assert one(broker, "txn", str(path))["success"] is True
    code, lines, errors = cli(broker, "txn", str(path))
    assert (code, lines[0]["reason"], lines[0]["kvReason"]) == (NO, "kv_precondition", "exists")
    assert broker.depth(queue)["pending"] == 1
    code, lines, errors = cli(broker, "txn", str(tmp_path / "none.json"))
    assert (code, lines) == (USAGE, []) and "none.json" in errors


def test_txn_takes_the_next_batch(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    message = one(broker, "pop", queue)
    body = {"operations": [{"type": "ack", "transactionId": "a", "partitionId": message["partitionId"], "leaseId": message["leaseId"]}],
            "next": {"queue": queue, "batch": 5}}
    assert ids(one(broker, "txn", stdin=json.dumps(body).encode())["next"]) == ["b"]


@pytest.mark.parametrize("body, word", [(b"{}", "bad_request"), (b'{"kv":{}}', "bad_request"), (b'{"kv":[{"op":"put","ns":"n","key":"k","value":1}]}', "kv_"),
                                        (b"[]", "object"), (b"{", "JSON"), (b"", "JSON")], ids=["empty", "shape", "expiry", "array", "cut", "nothing"])
def test_txn_refused(broker, body, word):
    code, lines, errors = cli(broker, "txn", stdin=body)
    assert code in (NO, REFUSED) and (code == REFUSED or body == b"{}")
    assert word in errors


# ---- what the verbs share

WRONG = [
    ["kv"], ["kv", "gett", "n", "k"], ["kv", "get", "n"], ["kv", "put", "n", "k", "1"], ["kv", "put", "n", "k", "1", "--ttl", "5", "--forever"],
    ["kv", "put", "n", "k", "text", "--forever"], ["kv", "put", "n", "k", "1", "--ttl", "0"], ["kv", "put", "n", "k", "1", "--ttl"],
    ["kv", "get", "n", "k", "--ttl", "5"], ["kv", "incr", "n", "k", "x", "--forever"], ["kv", "put", "n", "k", "1", "2", "--forever"],
    ["kv", "list", "n", "--limit", "0"], ["kv", "list", "n", "--keys-only=yes"], ["kv", "get", "n", "-x"], ["kv", "delete", "n", "k", "--expect", "-1"],
    ["timers", "schedule", "q", "k", "--payload", "1"], ["timers", "schedule", "q", "k", "--delay-ms", "soon", "--payload", "1"],
    ["timers", "schedule", "q", "k", "--delay-ms", "1", "--payload", "text"], ["timers", "count", "q"], ["timers", "list"],
    ["lock", "acquire", "l"], ["lock", "renew", "l", "--ttl", "5"], ["lock", "release", "l"], ["lock", "get", "l", "--ttl", "5"],
    ["lock", "acquire", "l", "--ttl", "5", "--limit", "2000"], ["txn", "a", "b"], ["txn", "--nonsense"], ["kv", "get", "n", "k", "--retries", "x"],
    ["kv", "get", "n", "k", "--server", "ftp://x"],
]


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_wrong_command_line(broker, args):
    code, output, errors = cli(broker, *args, stdin=b"1")
    assert (code, output) == (USAGE, [])
    assert errors.startswith("queen " + args[0] + ": ") or "unrecognized option" in errors


@pytest.mark.parametrize("args", [["kv"], ["kv", "put"], ["timers"], ["timers", "list"], ["lock"], ["txn"]], ids=" ".join)
def test_help(broker, args):
    done = subprocess.run([BINARY, *args, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Usage: queen " + args[0].encode())
    done = subprocess.run([BINARY, "help", args[0]], stdout=subprocess.PIPE, timeout=20)
    assert done.stdout.startswith(b"Usage: queen " + args[0].encode())


CALLS = [["kv", "get", "n", "k"], ["kv", "incr", "n", "k", "--forever"], ["timers", "get", "q", "k"], ["lock", "get", "l"], ["txn"]]


@pytest.mark.parametrize("args", CALLS, ids=" ".join)
def test_unreachable_server(broker, args):
    code, output, errors = cli(broker, *args, "--retries", "1", stdin=b'{"kv":[]}', server="http://127.0.0.1:%d" % free_port())
    assert (code, output) == (UNREACHABLE, [])
    assert "cannot reach the server" in errors


class Fake:
    """A server that answers every request with the next of `answers`; None: it closes the connection instead. Counts requests."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.requests = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                self.requests += 1
                answer = self.answers.pop(0)
                if answer is None:
                    continue
                status, extra, body = answer
                connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s" % (status, len(body), extra, body))

    def close(self):
        self.socket.close()


BUSY = (429, b"Retry-After: 1\r\n", b'{"error":"rate_limited"}')
UNKNOWN = (503, b"Retry-After: 1\r\n", b'{"error":"deadline passed","code":"timeout"}')
COUNTED = (200, b"", b'{"results":[{"index":0,"op":"incr","applied":true,"key":"k","value":1,"version":5}]}')
FOUND = (200, b"", b'{"results":[{"index":0,"op":"get","found":true,"key":"k","value":1,"version":5}]}')


@pytest.mark.parametrize("answers, args, code, requests", [
    ([BUSY, COUNTED], ["kv", "incr", "n", "k", "--forever"], OK, 2),  # certainly not done: again
    ([UNKNOWN, COUNTED], ["kv", "incr", "n", "k", "--forever"], UNREACHABLE, 1),  # perhaps done: not again
    ([None, COUNTED], ["kv", "incr", "n", "k", "--forever"], UNREACHABLE, 1),
    ([BUSY, None, COUNTED], ["kv", "incr", "n", "k", "--forever"], UNREACHABLE, 2),
    ([UNKNOWN, FOUND], ["kv", "get", "n", "k"], OK, 2),  # harmless: again
    ([BUSY, None, FOUND], ["kv", "get", "n", "k"], OK, 3),
    ([UNKNOWN, COUNTED], ["txn"], UNREACHABLE, 1),
    ([None, COUNTED], ["lock", "acquire", "l", "--ttl", "5"], UNREACHABLE, 1),
], ids=["busy", "unknown", "cut", "busy-cut", "read", "read-cut", "txn", "lock"])
def test_what_is_made_again(broker, answers, args, code, requests):
    fake = Fake(answers)
    try:
        got, _, errors = cli(broker, *args, stdin=b'{"kv":[]}', server=fake.url)
        assert (got, fake.requests) == (code, requests), errors
        assert ("may have taken effect" in errors) == (code == UNREACHABLE)
    finally:
        fake.close()


# ---- the benches

def bench(broker, *args):
    done = subprocess.run([BINARY, "bench", *args, "--json", "--port", str(broker.port), "--duration", "0.5", "--warmup", "0.1"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("args", [["--count", "20000"], ["--count", "20000", "--next"], ["--batch", "1", "--count", "3000"], ["--rate", "100"],
                                  ["--rate", "100", "--next"]], ids=" ".join)
def test_bench_step_checks_what_it_did(broker, args):
    line = bench(broker, "step", "--lanes", "20", "--workers", "8", "--pushers", "4", "--consumers", "4", *args)
    assert line["errors"] == 0 and line["steps"] > 0
    assert line["outputs_found"] == line["steps_in_all"] * line["batch"] > 0
    assert 0 < line["outputs_compared"] <= line["outputs_found"]


@pytest.mark.parametrize("args", [[], ["--get"], ["--batch", "16"], ["--get", "--batch", "16"]], ids=" ".join)
def test_bench_kv(broker, args):
    line = bench(broker, "kv", "--keys", "500", "--conns", "4", *args)
    assert line["errors"] == 0 and line["ops_per_s"] > 0 and line["answers_checked"] > 0
