"""Power cuts under load: the preload library forgets what was not synced, tears writes and takes unsynced names back."""
import os
import random
import shutil
import threading
import time

import crash_broker
import crash_verify
import pytest
from crash_broker import ALL, Gone
from crash_history import History
from crash_load import Admin, Churn, Load, run_and_kill
from crash_verify import judge
from test_crash_points import POINTS, spawn_until_crash


def cut(broker, rng, cuts):
    """Cuts the power of a dead broker and remembers how, for the failure message."""
    report = broker.faults.power_cut(rng.randrange(1 << 32))
    cuts.append(report)
    return report


def judge_cuts(history, broker, cuts):
    if history.problems:
        history.problems.insert(0, f"power cuts so far: {cuts[-3:]}")
    judge(history, broker)


def start_after_cut(broker, cuts):
    broker.spawn()
    assert broker.wait_ready(), f"did not start (exit code {broker.process.poll()}) after {cuts[-1]}:\n{broker.log_tail()}"


def test_a_lying_disk_is_seen_by_these_tests(brokers, seed):
    """The proof of the proof: when syncs do nothing, answered calls are lost, and the checks of this file say so."""
    rng = random.Random(seed)
    broker = brokers(power=True).start()
    history = History()
    broker.faults.arm("op=sync path=data/log/*.seg times=0 lie=1")
    run_and_kill(broker, history, None, rng.random(), 0.7)
    assert not history.problems and history.counts["messages"] > 10
    broker.faults.power_cut(seed, "lose")
    broker.faults.arm()
    broker.spawn()
    if broker.wait_ready():
        crash_verify.after_restart(broker, history, rng, None, 0)
        assert history.problems, "answered pushes were taken away and nobody noticed"
    else:
        assert broker.process.poll() == 2, broker.log_tail()


@pytest.mark.seconds(12)
@pytest.mark.parametrize("part", range(20 if ALL else 2))
def test_power_cut_at_random_moments(brokers, seed, part):
    rng = random.Random(f"{seed}/{part}")
    broker = brokers(power=True).start()
    history = History()
    admin = Admin(history)
    cuts = []
    for number in range(15 if ALL else 5):
        before = broker.faults.stats()
        run_and_kill(broker, history, admin, rng.random(), rng.uniform(0.1, 1.5))
        seen = broker.faults.stats()
        assert seen["writes"] > before["writes"] and seen["syncs"] > before["syncs"], f"the library saw no work: {seen}"
        cut(broker, rng, cuts)
        start_after_cut(broker, cuts)
        crash_verify.after_restart(broker, history, rng, admin, number)
        judge_cuts(history, broker, cuts)
    crash_verify.finish(broker, history, rng, admin)
    judge_cuts(history, broker, cuts)
    assert history.counts["messages"] > 100, history.counts
    assert sum(c["bytes_lost"] for c in cuts) > 0, f"no cut took anything: the model proves nothing: {cuts}"


@pytest.mark.seconds(10)
def test_power_cut_after_a_crash_and_a_restart(brokers, seed):
    """kill -9 leaves unsynced bytes in the page cache. A broker that serves them after the restart must have synced them first."""
    rng = random.Random(seed)
    broker = brokers(power=True).start()
    history = History()
    cuts = []
    for number in range(12 if ALL else 4):
        run_and_kill(broker, history, None, rng.random(), rng.uniform(0.2, 0.8))
        broker.start()
        conn = broker.conn()
        crash_verify.carry_on(conn, history)
        # a repeat makes the broker promise that the message is stored
        crash_verify.send_again(conn, history, rng, lost_share=1.0)
        crash_verify.drain(conn, history, f"drain-{number}")
        conn.close()
        broker.kill()
        cut(broker, rng, cuts)
        start_after_cut(broker, cuts)
        crash_verify.after_restart(broker, history, rng, None, f"{number}-cut")
        judge_cuts(history, broker, cuts)
    crash_verify.finish(broker, history, rng, None)
    judge_cuts(history, broker, cuts)


def test_what_is_read_after_a_restart_survives_a_power_cut(brokers):
    """A push is written, its sync hangs, the process is killed. Whatever the next process tells of it must then be durable."""
    broker = brokers(power=True).start()
    conn = broker.conn()
    assert conn.call("POST", "/api/v1/push", {"items": [{"queue": "q", "transactionId": "a", "payload": 1}]})[0] == 201
    broker.faults.arm("op=sync path=data/log/*.seg times=0 stall_ms=60000")
    conn.socket.settimeout(0.5)
    with pytest.raises(crash_broker.Gone):
        conn.call("POST", "/api/v1/push", {"items": [{"queue": "q", "transactionId": "b", "payload": 2}]})
    assert broker.faults.fired()
    broker.kill()
    broker.faults.arm()
    counts = []
    for mode in (None, "lose"):
        if mode:
            broker.kill()
            broker.faults.power_cut(1, mode)
        broker.start()
        status, depth = broker.conn().json("GET", "/api/v1/resources/queues/q/depth")
        assert status == 200
        counts.append(depth["pending"])
    assert counts[1] == counts[0] and counts[0] >= 1, f"after kill -9 the queue held {counts[0]}, after the power cut {counts[1]}"


@pytest.mark.seconds(9)
def test_power_cuts_while_it_recovers(brokers, seed):
    rng = random.Random(seed)
    broker = brokers(power=True).start()
    history = History()
    admin = Admin(history)
    cuts = []
    for number in range(12 if ALL else 3):
        run_and_kill(broker, history, admin, rng.random(), rng.uniform(0.3, 1.0))
        for _ in range(3):
            cut(broker, rng, cuts)
            broker.spawn()
            time.sleep(rng.uniform(0.02, 0.25))
            broker.kill()
        cut(broker, rng, cuts)
        start_after_cut(broker, cuts)
        crash_verify.after_restart(broker, history, rng, admin, number)
        judge_cuts(history, broker, cuts)
    crash_verify.finish(broker, history, rng, admin)
    judge_cuts(history, broker, cuts)


@pytest.mark.skipif(not os.path.exists(crash_broker.CRASH_BINARY), reason="needs a build with crash points")
@pytest.mark.parametrize("group", range(7))
def test_power_cut_at_crash_points(brokers, seed, group):
    """Two crash points a test; the power goes with the process."""
    rng = random.Random(f"{seed}/{group}")
    broker = brokers(power=True, binary=crash_broker.CRASH_BINARY)
    history = History()
    admin = Admin(history)
    cuts = []

    def work(longest):
        load = Load(broker, history, rng.random(), admin=admin).start()
        broker.wait_dead(longest)
        if broker.alive():
            load.stop()
        load.join()

    number = 0
    for point in list(POINTS)[group * 2 : group * 2 + 2]:
        for nth in [1] + [rng.randrange(2, max(3, POINTS[point][0] // 2)) for _ in range(10 if ALL else 1)]:
            number += 1
            hit = spawn_until_crash(broker, point, nth, work, POINTS[point][1])
            assert hit or point.startswith("meta-"), f"{point}:{nth} was not passed"
            broker.kill()
            cut(broker, rng, cuts)
            start_after_cut(broker, cuts)
            crash_verify.after_restart(broker, history, rng, admin, number)
            judge_cuts(history, broker, cuts)
            broker.kill()
    broker.start()
    crash_verify.finish(broker, history, rng, admin)
    judge_cuts(history, broker, cuts)


@pytest.mark.seconds(10)
def test_power_cut_while_the_log_is_trimmed(brokers, seed):
    """Files are removed and used again; a cut may bring old names back, never old contents under a new name."""
    rng = random.Random(seed)
    broker = brokers(power=True).start()
    history = History()
    churn = Churn(broker, history, rng)
    cuts = []
    for number in range(20 if ALL else 5):
        killer = threading.Timer(rng.uniform(0.5, 2.0), broker.kill)
        killer.start()
        try:
            churn.run(30)
        except Gone:
            pass
        killer.join()
        cut(broker, rng, cuts)
        start_after_cut(broker, cuts)
        conn = broker.conn()
        churn.check(conn)
        conn.close()
        crash_verify.after_restart(broker, history, rng, None, number)
        judge_cuts(history, broker, cuts)
    assert broker.faults.stats()["name_ops"] > 10, "no file was ever removed or made"
    assert churn.number > 5


def test_power_cut_around_the_first_start(brokers, seed, place):
    """A cut at any moment of the very first start leaves a directory that a next start can use."""
    rng = random.Random(seed)
    broker = brokers(power=True)
    for number in range(60 if ALL else 10):
        shutil.rmtree(broker.data, ignore_errors=True)
        shutil.rmtree(broker.faults.state)
        os.makedirs(broker.faults.state)
        broker.spawn()
        time.sleep(rng.uniform(0.0, 0.25))
        broker.kill()
        report = broker.faults.power_cut(rng.randrange(1 << 32))
        broker.spawn()
        assert broker.wait_ready(), f"round {number}: does not start after {report}:\n{broker.log_tail()}"
        conn = broker.conn()
        status, _ = conn.call("POST", "/api/v1/push", {"items": [{"queue": "q", "transactionId": "a", "payload": 1}]})
        assert status == 201
        conn.close()
        broker.kill()
        broker.faults.power_cut(rng.randrange(1 << 32))
        broker.start()
        conn = broker.conn()
        status, answer = conn.json("POST", "/api/v1/push", {"items": [{"queue": "q", "transactionId": "a", "payload": 1}]})
        assert (status, answer[0]["status"], answer[0]["offset"]) == (201, "duplicate", 0)
        conn.close()
        broker.kill()
