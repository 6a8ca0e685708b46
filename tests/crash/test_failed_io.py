"""A failed write or sync is final: nothing it covers is answered, the process names the file and ends with exit code 3.

After a failed sync the kernel calls the pages clean, so a second sync would say "ok" and mean nothing. The preload library models
that: what a failed sync covered is gone at the next power cut, whatever is synced later.
"""
import random
import time

import crash_verify
import pytest
from crash_history import History
from crash_load import Load
from crash_verify import judge

EXIT_IO = 3

RULES = {
    "log sync": ("op=sync path=data/log/*.seg nth={n} errno=EIO", "data/log/", 40),
    "log sync, disk full": ("op=sync path=data/log/*.seg nth={n} errno=ENOSPC", "data/log/", 40),
    "log write": ("op=write path=data/log/*.seg nth={n} errno=EIO", "data/log/", 40),
    "log write, disk full": ("op=write path=data/log/*.seg nth={n} errno=ENOSPC", "data/log/", 40),
    "log write cut short": ("op=write path=data/log/*.seg nth={n} bytes=512 errno=EIO", "data/log/", 40),
    "log directory sync": ("op=dirsync path=data/log nth=1 errno=EIO", "data/log", 1),
    "new log file": ("op=open path=data/log/next.tmp times=0 errno=EIO", "data/log", 1),
    "new log file, disk full": ("op=allocate path=data/log/* times=0 errno=ENOSPC", "data/log", 1),
    "store sync": ("op=sync path=data/store/*.sst nth={n} errno=EIO", "data/store", 3),
    "store write": ("op=write path=data/store/*.sst nth={n} errno=EIO", "data/store", 3),
    "store write, disk full": ("op=write path=data/store/*.sst nth={n} errno=ENOSPC", "data/store", 3),
    "store manifest sync": ("op=sync path=data/store/MANIFEST* nth={n} errno=EIO", "data/store", 3),
    "archive sync": ("op=sync path=data/archive/*.seg nth=2 errno=EIO", "data/archive/", 1),
    "archive write": ("op=write path=data/archive/*.seg nth=2 errno=EIO", "data/archive/", 1),
    "store directory sync": ("op=dirsync path=data/store nth=1 errno=EIO", "data/store", 1),
}


# Copies to the archive come early.
COPIES = {"QUEEN_RECLAIM_LIVE_PCT": "90"}


@pytest.mark.parametrize("name", RULES)
def test_a_failed_call_stops_the_broker(brokers, seed, name):
    rng = random.Random(f"{seed}/{name}")
    rule, file_name, latest = RULES[name]
    broker = brokers(power=True, env=COPIES).start()
    history = History()
    load = Load(broker, history, rng.random()).start()
    time.sleep(rng.uniform(0.1, 0.5))
    assert broker.alive(), broker.log_tail()
    broker.faults.arm(rule.format(n=rng.randrange(1, latest + 1)))
    code = broker.wait_dead(20)
    load.stop()
    load.join()
    fired = broker.faults.fired()
    assert fired, f"the fault was never met (exit code {code})"
    assert code == EXIT_IO, f"exit code {code} after {fired}:\n{broker.log_tail()}"
    assert file_name in broker.log_text(), f"the log does not name the file of {fired}:\n{broker.log_tail()}"
    judge(history, broker)
    broker.faults.arm()
    report = broker.faults.power_cut(rng.randrange(1 << 32), rng.choice(("lose", "mixed", "keep")))
    broker.spawn()
    assert broker.wait_ready(), f"does not start after {fired} and {report}:\n{broker.log_tail()}"
    crash_verify.finish(broker, history, rng, None)
    judge(history, broker)


@pytest.mark.parametrize("name", ["log sync", "log write", "store sync"])
def test_a_failed_call_and_a_restart_without_power_cut(brokers, seed, name):
    rng = random.Random(f"{seed}/{name}")
    rule, _, latest = RULES[name]
    broker = brokers(power=False).start()
    history = History()
    load = Load(broker, history, rng.random()).start()
    time.sleep(rng.uniform(0.1, 0.5))
    broker.faults.arm(rule.format(n=rng.randrange(1, latest + 1)))
    code = broker.wait_dead(20)
    load.stop()
    assert code == EXIT_IO and broker.faults.fired(), f"exit code {code}:\n{broker.log_tail()}"
    broker.faults.arm()
    broker.start()
    crash_verify.finish(broker, history, rng, None)
    judge(history, broker)


CLOSE_RULES = {
    "log": "op=close path=data/log/*.seg nth={n} errno=EIO",
    "tables": "op=close path=data/store/*.sst nth={n} errno=EIO",
    "manifest": "op=close path=data/store/MANIFEST* errno=EIO",
    "term file": "op=close path=data/meta-* errno=EIO",
}


@pytest.mark.parametrize("name", CLOSE_RULES)
def test_a_failed_close_loses_nothing(brokers, seed, name):
    """Nothing is answered for what only a close would have told: either it stops and names the file, or all that it told is there after a power cut."""
    rng = random.Random(f"{seed}/{name}")
    broker = brokers(power=True).start()
    history = History()
    rule = CLOSE_RULES[name].format(n=rng.randrange(1, 3))
    load = Load(broker, history, rng.random()).start()
    time.sleep(rng.uniform(0.1, 0.5))
    if name in ("manifest", "term file"):  # closed at a stop and a start
        load.stop()
        broker.faults.arm(rule)
        broker.terminate()
        broker.spawn()
        broker.wait_ready()
        load = Load(broker, history, rng.random()).start()
    else:
        broker.faults.arm(rule)
    deadline = time.monotonic() + 20
    while not broker.faults.fired() and broker.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert broker.faults.fired(), f"the fault was never met:\n{broker.log_tail()}"
    code = broker.wait_dead(1)
    if code is not None:
        assert code == EXIT_IO and "/data" in broker.log_text().splitlines()[-1], f"exit code {code}:\n{broker.log_tail()}"
    load.stop()
    broker.kill()
    broker.faults.arm()
    judge(history, broker)
    report = broker.faults.power_cut(rng.randrange(1 << 32), rng.choice(("lose", "mixed", "keep")))
    broker.spawn()
    assert broker.wait_ready(), f"does not start after {report}:\n{broker.log_tail()}"
    crash_verify.finish(broker, history, rng, None)
    judge(history, broker)


def counter(broker, name):
    text = broker.conn().call("GET", "/metrics/prometheus")[1].decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))


def test_an_archive_that_cannot_be_made_is_made_anew(brokers, seed):
    """The first call on its first file fails: nothing is in it yet, so it goes on, with another file; the next sync of the same one would mean nothing."""
    rng = random.Random(seed)
    op = rng.choice(("sync", "write"))
    broker = brokers(power=True, env=COPIES).start()
    history = History()
    broker.faults.arm(f"op={op} path=data/archive/*.seg nth=1 errno=EIO")
    load = Load(broker, history, rng.random()).start()
    deadline = time.monotonic() + 40
    while counter(broker, "queen_reclaim_files_total") == 0:
        assert broker.alive(), broker.log_tail()
        assert time.monotonic() < deadline, "nothing was copied to the archive"
        time.sleep(0.1)
    assert broker.faults.fired() and "data/archive/" in broker.log_text()
    load.stop()
    broker.kill()
    broker.faults.arm()
    report = broker.faults.power_cut(rng.randrange(1 << 32), "lose")
    broker.spawn()
    assert broker.wait_ready(), f"does not start after {report}:\n{broker.log_tail()}"
    crash_verify.finish(broker, history, rng, None)
    judge(history, broker)


def test_no_descriptor_for_a_moment_is_survived(brokers, seed):
    """The log keeps descriptors in reserve: when the process has no more, its next file is opened all the same."""
    broker = brokers(power=True).start()
    history = History()
    load = Load(broker, history, seed).start()
    broker.faults.arm("op=open path=data/log/* nth=1 times=3 errno=EMFILE")
    deadline = time.monotonic() + 20
    while len(broker.faults.fired()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    assert len(broker.faults.fired()) == 3, "the load opened no new log file"
    assert broker.alive(), broker.log_tail()
    load.stop()
    assert not load.lost_sent
    crash_verify.finish(broker, history, random.Random(seed), None)
    judge(history, broker)


def test_a_stalled_sync_delays_answers_and_nothing_else(brokers, seed):
    """While a sync hangs nobody is told that his push is stored; health answers; afterwards everything goes on."""
    broker = brokers(power=False).start()
    conn, other = broker.conn(), broker.conn()
    body = {"items": [{"queue": "q", "transactionId": "a", "payload": 1}]}
    assert conn.call("POST", "/api/v1/push", body)[0] == 201
    broker.faults.arm("op=sync path=data/log/*.seg stall_ms=4000")
    began = time.monotonic()
    conn.socket.settimeout(0.7)
    body["items"][0]["transactionId"] = "b"
    with pytest.raises(Exception):
        conn.call("POST", "/api/v1/push", body)
    assert other.call("GET", "/health")[0] == 200
    assert time.monotonic() - began < 3.9
    status, answer = other.json("POST", "/api/v1/push", body)
    assert time.monotonic() - began > 3.9, "answered while the sync of the first copy hung"
    assert (status, answer[0]["status"], answer[0]["offset"]) == (201, "duplicate", 1)
    assert broker.faults.fired()


START_RULES = {
    "identity sync": "op=sync path=data/identity* errno=EIO",
    "identity rename": "op=rename path=data/identity errno=EIO",
    "identity write, disk full": "op=write path=data/identity* errno=ENOSPC",
    "configuration sync": "op=sync path=data/configuration* errno=EIO",
    "term file write": "op=write path=data/meta-* errno=EIO",
    "term file sync": "op=sync path=data/meta-* errno=EIO",
    "second term file sync": "op=sync path=data/meta-* nth=2 errno=EIO",
    "data directory sync": "op=dirsync path=data errno=EIO",
    "third data directory sync": "op=dirsync path=data nth=3 errno=EIO",
    "first log file write": "op=write path=data/log/next.tmp errno=EIO",
    "first log file space": "op=allocate path=data/log/next.tmp errno=ENOSPC",
    "first log file rename": "op=rename path=data/log/*.seg errno=EIO",
    "log directory": "op=mkdir path=data/log errno=ENOSPC",
    "data directory": "op=mkdir path=data errno=ENOSPC",
}


@pytest.mark.parametrize("name", START_RULES)
def test_a_failed_call_at_the_first_start(brokers, name):
    """The start ends with a reason that names the place. The next start finds nothing half made, also after a power cut."""
    broker = brokers(power=True)
    broker.faults.arm(START_RULES[name])
    broker.spawn()
    ready = broker.wait_ready()
    assert broker.faults.fired(), "the fault was never met"
    assert not ready or broker.wait_dead(5) is not None, f"it goes on after {broker.faults.fired()}:\n{broker.log_tail()}"
    assert broker.process.poll() in (2, EXIT_IO), f"exit code {broker.process.poll()}:\n{broker.log_tail()}"
    assert "/data" in broker.log_text().splitlines()[-1], broker.log_tail()
    broker.faults.arm()
    broker.faults.power_cut(1)
    broker.start()
    status, answer = broker.conn().json("POST", "/api/v1/push", {"items": [{"queue": "q", "payload": 1}]})
    assert (status, answer[0]["offset"]) == (201, 0)


RECOVERY_RULES = {
    "log sync": "op=sync path=data/log/*.seg nth={n} errno=EIO",
    "log write": "op=write path=data/log/*.seg nth={n} errno=EIO",
    "log directory sync": "op=dirsync path=data/log errno=EIO",
    "log open": "op=open path=data/log/*.seg nth={n} errno=EIO",
    "store open": "op=open path=data/store/* nth={n} errno=EIO",
    "store read": "op=read path=data/store/* nth={n} errno=EIO",
    # not LOG: RocksDB ends the process by an assertion when it cannot write its notes
    "store write": "op=write path=data/store/[!L]* nth={n} errno=EIO",
    "store sync": "op=sync path=data/store/[!L]* nth={n} errno=EIO",
    "store rename": "op=rename path=data/store/* nth={n} errno=EIO",
    "term file": "op=sync path=data/meta-* errno=EIO",
}


@pytest.mark.parametrize("name", RECOVERY_RULES)
def test_a_failed_call_while_it_recovers(brokers, seed, name):
    """A start over used data meets a failure: it ends with a reason or copes, and what was answered survives either way."""
    rng = random.Random(f"{seed}/{name}")
    broker = brokers(power=True).start()
    history = History()
    load = Load(broker, history, rng.random(), pushers=2, consumers=2).start()
    time.sleep(0.7)
    broker.kill()
    load.join()
    cuts = []
    for number in range(3):
        broker.faults.arm(RECOVERY_RULES[name].format(n=rng.randrange(1, 4)))
        broker.spawn()
        if broker.wait_ready():
            time.sleep(0.3)
        if not broker.alive():
            assert broker.faults.fired() and broker.process.poll() in (2, EXIT_IO), f"{broker.process.poll()}\n{broker.log_tail()}"
            assert "/data" in broker.log_text().splitlines()[-1], broker.log_tail()
        broker.kill()
        broker.faults.arm()
        cuts.append(broker.faults.power_cut(rng.randrange(1 << 32)))
    broker.spawn()
    assert broker.wait_ready(), f"does not start after {cuts}:\n{broker.log_tail()}"
    crash_verify.finish(broker, history, rng, None)
    judge(history, broker)
