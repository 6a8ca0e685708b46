"""Too few file descriptors: connections wait or are refused, the log and the store go on."""

import threading
import time

from queen import RawConnection, unique, wait_until


def test_connections_run_out_but_the_log_does_not(own_broker):
    broker = own_broker(wrap=["prlimit", "--nofile=256:256"], env={"QUEEN_RAFT_SEGMENT_BYTES": "4194304"})
    queue = unique()
    halt = threading.Event()
    pushed, errors = [], []

    def worker(lane):
        n = 0
        try:
            while not halt.is_set():
                name = "%d-%d" % (lane, n)
                n += 1
                result = broker.push([{"queue": queue, "partition": "lane-%d" % lane, "transactionId": name, "payload": "x" * 100000}])
                result.expect(201)
                pushed.append(name)
                time.sleep(0.02)
        except Exception as error:  # shown by the test
            errors.append(error)

    workers = [threading.Thread(target=worker, args=(i,)) for i in range(10)]
    [w.start() for w in workers]
    wait_until(lambda: len(pushed) >= 20, 10, "workers run")
    held = []
    for _ in range(400):
        try:
            held.append(RawConnection(broker.port, timeout=2))
        except OSError:
            pass
    cpu = broker.cpu_seconds()
    before = len(pushed)
    begin = time.monotonic()
    time.sleep(3)
    elapsed = time.monotonic() - begin
    assert broker.running
    # The workers use their share; a spinning accept would use a whole core on top.
    assert broker.cpu_seconds() - cpu < 0.8 * elapsed
    assert len(pushed) - before > 100
    output_before = len(broker.output().splitlines())
    assert output_before < 200
    for raw in held[:300]:
        raw.close()
    wait_until(lambda: answers_health(broker), 5, "new connections are served again")
    halt.set()
    [w.join() for w in workers]
    assert errors == []
    for raw in held[300:]:
        raw.close()
    broker.restart("kill")
    stored = [m["transactionId"] for m in broker.drain(queue, batch=100)]
    assert sorted(stored) == sorted(pushed)


def answers_health(broker):
    try:
        return broker.fresh_request("GET", "/health", timeout=2).status == 200
    except OSError:
        return False


def test_soft_limit_is_raised_at_start(own_broker):
    broker = own_broker(wrap=["prlimit", "--nofile=128:4096"])
    held = [broker.raw() for _ in range(500)]
    assert broker.fresh_request("GET", "/health", timeout=5).status == 200
    for raw in held:
        raw.close()


def test_a_limit_that_is_far_too_low_is_reported(own_broker):
    broker = own_broker(start=False, wrap=["prlimit", "--nofile=24:24"])
    try:
        broker.start(deadline=5)
    except AssertionError:
        assert broker.exit_code == 1
    assert "file" in broker.output().lower()
