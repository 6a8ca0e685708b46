"""queen push, pop and ack: JSON lines in and out."""

import json
import os
import select
import subprocess
import time

import pytest

from queen import BINARY, LEASE_ERROR, UUID7, free_port, ids, unique


def cli(broker, *args, stdin=b"", server=None, env=None):
    """Runs a verb to its end; returns (exit code, output lines as JSON, stderr)."""
    environment = {k: v for k, v in os.environ.items() if k != "QUEEN_SERVER"}
    environment["QUEEN_SERVER"] = server or "http://127.0.0.1:%d" % broker.port
    environment.update(env or {})
    done = subprocess.run([BINARY, *args], input=stdin, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


def lines(*values):
    return b"".join(json.dumps(v).encode() + b"\n" for v in values)


def test_push_pop_ack_round_trip(broker, queue):
    code, pushed, errors = cli(broker, "push", queue, stdin=lines({"n": 1}, [2], "three", 4, None))
    assert (code, errors) == (0, "")
    assert [r["status"] for r in pushed] == ["queued"] * 5
    assert [r["offset"] for r in pushed] == [0, 1, 2, 3, 4]
    assert all(UUID7.match(r["message_id"]) for r in pushed)
    code, popped, errors = cli(broker, "pop", queue, "--batch", "10")
    assert (code, errors) == (0, "")
    assert [m["data"] for m in popped] == [{"n": 1}, [2], "three", 4, None]
    assert [m["id"] for m in popped] == [r["message_id"] for r in pushed]
    assert [m["deliveryAttempt"] for m in popped] == [1] * 5
    code, acked, errors = cli(broker, "ack", stdin=lines(*popped))
    assert (code, errors) == (0, "")
    assert [(r["transactionId"], r["success"]) for r in acked] == [(m["transactionId"], True) for m in popped]
    assert acked[-1]["leaseReleased"] is True
    assert cli(broker, "pop", queue) == (0, [], "")
    assert broker.depth(queue)["pending"] == 0


def test_push_with_key_and_id_from_the_payload(broker, queue):
    orders = [{"order": 1, "customer": "ann"}, {"order": 2, "customer": "bob"}, {"order": 1, "customer": "ann"}, {"order": 1, "customer": "bob"}]
    code, pushed, _ = cli(broker, "push", queue, "--key", "customer", "--id", "order", stdin=lines(*orders))
    assert code == 0
    assert [(r["transaction_id"], r["status"], r["offset"]) for r in pushed] == [
        ("1", "queued", 0), ("2", "queued", 0), ("1", "duplicate", 0), ("1", "queued", 1)]
    assert pushed[2]["message_id"] == pushed[0]["message_id"]
    code, again, _ = cli(broker, "push", queue, "--key", "customer", "--id", "order", stdin=lines(*orders))
    assert (code, [r["status"] for r in again]) == (0, ["duplicate"] * 4)
    code, popped, _ = cli(broker, "pop", queue, "--partition", "bob", "--batch", "10")
    assert (code, [m["data"]["order"] for m in popped]) == (0, [2, 1])


def test_payload_bytes_are_kept(broker, queue):
    payload = b'{ "n":9007199254740993, "s":"\\u00e9 \xc3\xa9", "z":1,"a":0.10 }'
    code, _, _ = cli(broker, "push", queue, "--partition", "p", stdin=payload + b"\n")
    assert code == 0
    assert payload in broker.pop(queue, "p", group="g", subscriptionMode="all").body
    done = subprocess.run([BINARY, "pop", queue, "--server", "http://127.0.0.1:%d" % broker.port], stdout=subprocess.PIPE, timeout=30)
    assert b'"data":' + payload in done.stdout
    assert done.stdout.count(b"\n") == 1


def test_push_of_raw_items(broker, queue):
    items = [{"queue": queue, "partition": "p", "transactionId": "t-1", "payload": 1}, {"partition": "p", "transactionId": "t-1", "payload": 2},
             {"payload": 3}]
    code, pushed, _ = cli(broker, "push", "--raw", queue, stdin=lines(*items))
    assert code == 0
    assert [r["status"] for r in pushed] == ["queued", "duplicate", "queued"]
    assert ids(broker.take(queue, "p")) == ["t-1"]
    assert [m["data"] for m in broker.take(queue, "Default")["messages"]] == [3]


def test_large_input_goes_in_batches(broker, queue):
    code, pushed, _ = cli(broker, "push", queue, "--partition", "p", "--batch", "64", stdin=lines(*range(1000)))
    assert code == 0
    assert [r["offset"] for r in pushed] == list(range(1000))
    code, popped, _ = cli(broker, "pop", queue, "--batch", "1000")
    assert (code, [m["data"] for m in popped]) == (0, list(range(1000)))
    code, acked, _ = cli(broker, "ack", "--batch", "7", stdin=lines(*popped))
    assert (code, len(acked), all(r["success"] for r in acked)) == (0, 1000, True)


def test_line_that_is_not_json_is_told_and_the_others_go(broker, queue):
    code, pushed, errors = cli(broker, "push", queue, stdin=b'{"a":1}\n{"a":\n\n{"a":2}')
    assert code == 4
    assert [r["status"] for r in pushed] == ["queued", "queued"]
    assert "line 2" in errors


def test_pop_with_a_group_and_failed_acks(broker, queue):
    broker.configure(queue, retryLimit=1)
    broker.push_ids(queue, ["a"], "p")
    for last in (False, True):
        code, popped, _ = cli(broker, "pop", queue, "--group", "g", "--lease", "30")
        assert (code, ids({"messages": popped})) == (0, ["a"])
        assert popped[0]["consumerGroup"] == "g"
        code, acked, _ = cli(broker, "ack", "--status", "failed", "--error", "printer on fire", stdin=lines(*popped))
        assert (code, acked[0]["dlq"]) == (0, last)
    assert broker.dlq(queue)["messages"][0]["errorMessage"] == "printer on fire"


def test_line_decides_its_own_status(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    _, popped, _ = cli(broker, "pop", queue, "--batch", "2")
    popped[1].update(status="dlq", error="from the worker")
    code, acked, _ = cli(broker, "ack", stdin=lines(*popped))
    assert (code, [r["dlq"] for r in acked]) == (0, [False, True])
    assert broker.dlq(queue)["messages"][0]["errorMessage"] == "from the worker"


def test_refused_ack_has_its_own_exit_code(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    _, popped, _ = cli(broker, "pop", queue)
    popped[0]["leaseId"] = "01a9c0de-1111-7abc-8def-00000000000a"
    code, acked, _ = cli(broker, "ack", stdin=lines(*popped))
    assert code == 4
    assert (acked[0]["success"], acked[0]["error"]) == (False, LEASE_ERROR)


def test_auto_ack_and_from_new(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    code, popped, _ = cli(broker, "pop", queue, "--auto-ack", "--batch", "2")
    assert (code, [m["leaseId"] for m in popped]) == (0, ["", ""])
    assert broker.depth(queue)["pending"] == 0
    assert cli(broker, "pop", queue, "--group", "g", "--from", "new") == (0, [], "")
    broker.push_ids(queue, ["c"], "p")
    assert ids({"messages": cli(broker, "pop", queue, "--group", "g", "--batch", "9")[1]}) == ["c"]


def test_follow_prints_at_once(broker, queue):
    process = subprocess.Popen([BINARY, "pop", queue, "--follow", "--server", "http://127.0.0.1:%d" % broker.port], stdout=subprocess.PIPE)
    try:
        for name in ("a", "b", "c"):
            broker.push_ids(queue, [name], "lane-" + name)
            assert select.select([process.stdout], [], [], 5)[0], "nothing printed"
            assert json.loads(process.stdout.readline())["transactionId"] == name
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_push_streams_what_it_has(broker, queue):
    process = subprocess.Popen([BINARY, "push", queue, "--server", "http://127.0.0.1:%d" % broker.port], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        for number in range(3):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 5)[0], "nothing printed while the input stays open"
            assert json.loads(process.stdout.readline())["offset"] == number
        process.stdin.close()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_retries_over_a_restart_store_once(own_broker, queue):
    broker = own_broker()
    process = subprocess.Popen([BINARY, "push", queue, "--batch", "1", "--retries", "50", "--server", "http://127.0.0.1:%d" % broker.port],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"0\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["offset"] == 0
    process.stdin.write(lines(*range(1, 400)))
    process.stdin.flush()
    time.sleep(0.05)
    broker.restart("kill")
    process.stdin.close()
    results = [json.loads(line) for line in process.stdout.read().splitlines()]
    assert process.wait(60) == 0
    process.stdout.close()
    assert len(results) == 399
    assert [m["data"] for m in broker.drain(queue)] == list(range(400))


@pytest.mark.parametrize("args", [
    ["push"], ["push", "q", "extra"], ["push", "q", "--batch", "0"], ["push", "q", "--nonsense"], ["pop"], ["pop", "q", "--batch", "x"],
    ["pop", "q", "--from", "new"], ["pop", "q", "--timeout", "0"], ["ack", "--status", "complete"], ["ack", "stray"],
    ["push", "q", "--server", "ftp://x"],
], ids=" ".join)
def test_wrong_command_line(broker, args):
    code, output, errors = cli(broker, *args)
    assert (code, output) == (1, [])
    assert errors.strip()


@pytest.mark.parametrize("verb", ["push", "pop", "ack"])
def test_help(broker, verb):
    done = subprocess.run([BINARY, verb, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Usage: queen " + verb.encode())


def test_unreachable_server(broker):
    server = "http://127.0.0.1:%d" % free_port()
    for args, stdin in ((["push", "q"], b"1\n"), (["pop", "q"], b"")):
        code, output, errors = cli(broker, *args, "--retries", "0", stdin=stdin, server=server)
        assert (code, output) == (5, [])
        assert errors.strip()


def test_odd_queue_names(broker):
    name = unique("a b/c%?&\u00e9")
    code, pushed, _ = cli(broker, "push", name, "--partition", "x/y z", stdin=b"1\n")
    assert (code, pushed[0]["queueName"]) == (0, name)
    code, popped, _ = cli(broker, "pop", name, "--partition", "x/y z", "--group", "g &=")
    assert (code, popped[0]["partition"], popped[0]["consumerGroup"]) == (0, "x/y z", "g &=")
    code, acked, _ = cli(broker, "ack", stdin=lines(*popped))
    assert (code, acked[0]["leaseReleased"]) == (0, True)
