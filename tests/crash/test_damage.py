"""Files at rest are damaged between a stop and the next start.

Right is: an unanswered tail is cut off and the broker starts; any other damage is found, named (file and offset) and refused with exit
code 2, or repaired without losing anything answered. Wrong is: a start that misses answered messages, or death by a signal.
"""
import glob
import os
import random
import re
import shutil
import time

import crash_verify
import pytest
from crash_broker import ALL, Gone
from crash_history import History
from crash_load import Load
from crash_verify import judge

EXIT_DAMAGED = 2
# No checkpoint while it runs: every record of the log is needed at the next start.
ONLY_LOG = {"QUEEN_RAFT_DURABLE_EVERY_MS": "600000", "QUEEN_RAFT_DURABLE_EVERY_BYTES": str(64 << 30)}


def segments(data):
    return sorted(glob.glob(os.path.join(data, "log", "*.seg")))


def data_end_of(data):
    """Position behind the last byte that is not zero."""
    return len(data.rstrip(b"\0"))


def data_end(path):
    with open(path, "rb") as f:
        return data_end_of(f.read())


def live_segments(data):
    """Those with records: the next one is made ahead of its use and holds only its file head."""
    return [s for s in segments(data) if data_end(s) > 4096]


def overwrite(path, offset, data):
    with open(path, "r+b") as f:
        f.seek(offset)
        f.write(data)


def flip(path, offset):
    with open(path, "r+b") as f:
        f.seek(offset)
        old = f.read(1)
        f.seek(offset)
        f.write(bytes([old[0] ^ 0x10]))


def place_of_data(path, rng):
    """A place well before the end that is no skipped space (zeros)."""
    with open(path, "rb") as f:
        data = f.read()
    end = int(len(data.rstrip(b"\0")) * 0.9)
    while True:
        offset = rng.randrange(end)
        if data[offset]:
            return offset


def filled(brokers, rng, env, graceful, seconds=1.5):
    """A broker that did some work and is dead, and what its clients know."""
    broker = brokers(env=env).start()
    history = History()
    load = Load(broker, history, rng.random(), pushers=2, consumers=2).start()
    time.sleep(seconds)
    load.stop()
    judge(history, broker)
    if graceful:
        assert broker.terminate() == 0
    else:
        broker.kill()
    return broker, history


def refused(broker, path):
    """Start ends with exit code 2 and a line that names the file and an offset."""
    broker.spawn()
    code = broker.wait_dead(20)
    text = broker.log_text()
    assert code == EXIT_DAMAGED, f"exit code {code} with damaged {path}:\n{broker.log_tail()}"
    lines = [line for line in text.splitlines() if os.path.basename(path) in line]
    assert lines, f"{path} is not named:\n{text[-2000:]}"
    return lines


def starts_whole(broker, history, rng, name):
    broker.start()
    conn = broker.conn()
    crash_verify.drain(conn, history, name)
    crash_verify.send_again(conn, history, rng, answered_max=20, lost_share=0)
    conn.close()
    judge(history, broker)


def test_a_flipped_bit_in_the_middle_of_the_log_is_refused(brokers, seed):
    rng = random.Random(seed)
    broker, history = filled(brokers, rng, ONLY_LOG, graceful=False)
    for _ in range(30 if ALL else 5):
        path = rng.choice(live_segments(broker.data)[:-1] or live_segments(broker.data))
        offset = place_of_data(path, rng)
        flip(path, offset)
        lines = refused(broker, path)
        assert any(re.search(r"offset|at \d|position|byte", line) for line in lines), lines
        flip(path, offset)
    starts_whole(broker, history, rng, "drain")


def test_a_missing_log_file_is_refused(brokers, seed):
    rng = random.Random(seed)
    broker, history = filled(brokers, rng, ONLY_LOG, graceful=False, seconds=3)
    live = live_segments(broker.data)
    assert len(live) >= 3, f"only {len(live)} log files: the load was too small"
    for path in (live[len(live) // 2], live[0]):
        os.rename(path, path + ".away")
        broker.spawn()
        code = broker.wait_dead(20)
        assert code == EXIT_DAMAGED, f"exit code {code} without {path}:\n{broker.log_tail()}"
        assert "log" in broker.log_text()
        os.rename(path + ".away", path)
    starts_whole(broker, history, rng, "drain")


def test_zeros_and_garbage_after_the_end_are_cut_off(brokers, seed):
    rng = random.Random(seed)
    broker, history = filled(brokers, rng, ONLY_LOG, graceful=False)
    for number in range(12 if ALL else 4):
        path = live_segments(broker.data)[-1]
        end = data_end(path)
        begin = (end + 7) // 8 * 8 + 8 * rng.randrange(3)
        room = max(0, os.path.getsize(path) - begin)
        kind = rng.choice(("garbage", "zeros", "old record"))
        if kind == "garbage":
            overwrite(path, begin, rng.randbytes(min(room, rng.randrange(1, 9000))))
        elif kind == "old record":
            with open(path, "rb") as f:
                overwrite(path, begin, f.read()[: min(room, end)])
        else:
            overwrite(path, begin, bytes(room))
        starts_whole(broker, history, rng, f"drain-{number}")
        broker.kill()


@pytest.mark.parametrize("how", ["truncate", "zero", "garbage"])
def test_a_torn_unanswered_tail_is_cut_off(brokers, seed, how):
    """The last push is written but its sync hangs, so it is never answered; then its record is torn at every place."""
    rng = random.Random(f"{seed}/{how}")
    broker = brokers(power=False, env=ONLY_LOG).start()
    conn = broker.conn()
    for number in range(20):
        body = {"items": [{"queue": "q", "transactionId": f"id-{number}", "payload": "x" * rng.randrange(1, 600)}]}
        assert conn.call("POST", "/api/v1/push", body)[0] == 201
    with open(live_segments(broker.data)[-1], "rb") as f:
        before = f.read()
    broker.faults.arm("op=sync path=data/log/*.seg times=0 stall_ms=60000")
    conn.socket.settimeout(1.0)
    with pytest.raises(Exception):
        conn.call("POST", "/api/v1/push", {"items": [{"queue": "q", "transactionId": "torn", "payload": "y" * 700}]})
    broker.kill()
    broker.faults.arm()
    path = live_segments(broker.data)[-1]
    torn_end = data_end(path)
    with open(path, "rb") as f:
        after = f.read()
    assert torn_end > data_end_of(before), "the record was not written before its sync"
    end = next(i for i, byte in enumerate(after) if byte != before[i])
    clean = broker.data + ".clean"
    shutil.copytree(broker.data, clean)
    places = range(end, torn_end + 1) if ALL else sorted(rng.sample(range(end, torn_end), 8)) + [torn_end]
    for place in places:
        shutil.rmtree(broker.data)
        shutil.copytree(clean, broker.data)
        if how == "truncate":
            os.truncate(path, place)
        else:
            overwrite(path, place, bytes(torn_end - place) if how == "zero" else rng.randbytes(torn_end - place))
        broker.spawn()
        assert broker.wait_ready(), f"tail torn at {place} of {end}..{torn_end}: does not start:\n{broker.log_tail()}"
        conn = broker.conn()
        for number in range(20):
            body = {"items": [{"queue": "q", "transactionId": f"id-{number}", "payload": "z"}]}
            answer = conn.json("POST", "/api/v1/push", body)[1][0]
            assert (answer["status"], answer["offset"]) == ("duplicate", number), f"torn at {place}: {answer}"
        answer = conn.json("POST", "/api/v1/push", {"items": [{"queue": "q", "transactionId": "torn", "payload": "z"}]})[1][0]
        assert answer["offset"] == 20 and (answer["status"] == "queued" or place >= torn_end - 8), f"torn at {place}: {answer}"
        conn.close()
        broker.kill()


def test_a_read_error_is_not_the_end_of_the_log(brokers, seed):
    """The n-th read of the log fails. The broker says so and ends, or (a probe that failed) starts with everything."""
    rng = random.Random(seed)
    broker = brokers(power=False, env=ONLY_LOG).start()
    history = History()
    load = Load(broker, history, rng.random(), pushers=2, consumers=0).start()
    time.sleep(1.0)
    load.stop()
    broker.kill()
    refusals = 0
    for nth in range(1, 7):
        broker.faults.arm(f"op=read path=data/log/*.seg nth={nth} errno=EIO")
        broker.spawn()
        if broker.wait_ready():
            conn = broker.conn()
            crash_verify.drain(conn, history, f"drain-{nth}")
            conn.close()
            judge(history, broker)
            broker.kill()
        else:
            refusals += 1
            assert broker.faults.fired() and broker.wait_dead(20) in (2, 3), broker.log_tail()
            assert ".seg" in broker.log_text(), broker.log_tail()
    assert refusals >= 2, "no read error was noticed: is the log not read at start?"
    broker.faults.arm()
    starts_whole(broker, history, rng, "drain")


def store_files(data):
    files = glob.glob(os.path.join(data, "store", "*"))
    return [f for f in sorted(files) if re.search(r"/(CURRENT|MANIFEST-\d+|\d+\.sst)$", f)]


@pytest.mark.parametrize("how", ["empty", "cut", "flip", "missing"])
def test_a_damaged_store_is_refused_or_rebuilt(brokers, seed, how):
    rng = random.Random(f"{seed}/{how}")
    broker, history = filled(brokers, rng, {}, graceful=True)
    clean = broker.data + ".clean"
    shutil.copytree(broker.data, clean)
    files = store_files(broker.data)
    assert any(f.endswith(".sst") for f in files) and len(files) >= 3, files
    outcomes = []
    for number, path in enumerate(files if ALL else files[:2] + rng.sample(files[2:], min(4, len(files) - 2))):
        shutil.rmtree(broker.data)
        shutil.copytree(clean, broker.data)
        size = os.path.getsize(path)
        if how == "empty":
            os.truncate(path, 0)
        elif how == "cut":
            os.truncate(path, rng.randrange(1, size))
        elif how == "flip":
            flip(path, rng.randrange(size))
        else:
            os.unlink(path)
        broker.spawn()
        if broker.wait_ready():
            outcomes.append((os.path.basename(path), "started"))
            conn = broker.conn()
            try:
                crash_verify.drain(conn, history, f"drain-{number}")
                broker.kill()
            except Gone:
                # rows that are only read when they are needed: found by their checksum then, and named
                assert broker.wait_dead(20) in (2, 3), f"{how} {path}: exit code {broker.process.poll()}\n{broker.log_tail()}"
                assert os.path.basename(path) in broker.log_text(), broker.log_tail()
            conn.close()
            judge(history, broker)
        else:
            code = broker.wait_dead(20)
            outcomes.append((os.path.basename(path), code))
            assert code == EXIT_DAMAGED, f"{how} {path}: exit code {code}\n{broker.log_tail()}"
            assert "store" in broker.log_text(), broker.log_tail()
    if how in ("empty", "missing"):
        assert any(code == EXIT_DAMAGED for _, code in outcomes), outcomes
    shutil.rmtree(broker.data)
    shutil.copytree(clean, broker.data)
    starts_whole(broker, history, rng, "drain-clean")


@pytest.mark.parametrize("names", [("meta-0",), ("meta-1",), ("meta-0", "meta-1"), ("identity",)])
@pytest.mark.parametrize("how", ["empty", "flip", "missing"])
def test_damaged_small_files(brokers, seed, names, how):
    """One of the two term files is enough; without any, or without a readable identity, the node doesn't invent one over old data."""
    rng = random.Random(f"{seed}/{names}/{how}")
    broker, history = filled(brokers, rng, {}, graceful=False, seconds=0.5)
    paths = [os.path.join(broker.data, name) for name in names]
    if not all(os.path.exists(p) for p in paths):
        assert names != ("identity",) and any(os.path.exists(os.path.join(broker.data, f"meta-{i}")) for i in (0, 1))
        pytest.skip("only one of the two files was written so far")
    for path in paths:
        if how == "empty":
            os.truncate(path, 0)
        elif how == "flip":
            flip(path, rng.randrange(min(os.path.getsize(path), 24)))
        else:
            os.unlink(path)
    broker.spawn()
    if broker.wait_ready():
        conn = broker.conn()
        crash_verify.drain(conn, history, "drain")
        conn.close()
        judge(history, broker)
        assert names != ("meta-0", "meta-1") or how != "flip", "both term files are damaged and it starts as if nothing were wrong"
    else:
        assert broker.wait_dead(20) == EXIT_DAMAGED, broker.log_tail()
        assert any(name in broker.log_text() for name in names), broker.log_tail()
