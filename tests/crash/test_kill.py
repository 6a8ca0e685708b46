"""kill -9 under load: what was answered is there, once, in its place; what was not is there whole or not at all."""
import random
import time

import crash_verify
import pytest
from crash_broker import ALL
from crash_history import History
from crash_load import Admin, Load, run_and_kill
from crash_verify import judge


@pytest.mark.seconds(18)
@pytest.mark.parametrize("part", range(20 if ALL else 2))
def test_kill_at_random_moments(brokers, seed, part):
    rng = random.Random(f"{seed}/{part}")
    broker = brokers().start()
    history = History()
    admin = Admin(history)
    for number in range(12 if ALL else 6):
        run_and_kill(broker, history, admin, rng.random(), rng.uniform(0.05, 1.2))
        judge(history, broker)
        broker.start()
        crash_verify.after_restart(broker, history, rng, admin, number)
        judge(history, broker)
    crash_verify.finish(broker, history, rng, admin)
    judge(history, broker)
    assert history.counts["messages"] > 200 and history.counts["acks"] > 20 and history.counts["duplicates"] > 50, history.counts


@pytest.mark.seconds(9)
def test_kill_again_while_it_recovers(brokers, seed):
    """The second, third and fourth crash come at some moment of the start, before or just after it is ready."""
    rng = random.Random(seed)
    broker = brokers().start()
    history = History()
    admin = Admin(history)
    died_early = 0
    for number in range(10 if ALL else 3):
        run_and_kill(broker, history, admin, rng.random(), rng.uniform(0.3, 1.0))
        for _ in range(4):
            broker.spawn()
            time.sleep(rng.uniform(0.0, 0.12))
            died_early += "listen" not in broker.log_text()
            broker.kill()
        broker.start()
        crash_verify.after_restart(broker, history, rng, admin, number)
        judge(history, broker)
    crash_verify.finish(broker, history, rng, admin)
    judge(history, broker)


def test_stop_under_load_answers_what_is_in_flight(brokers, seed):
    """SIGTERM: calls sent before it are answered, the exit code is 0, nothing answered is lost, and no replay is left over."""
    rng = random.Random(seed)
    broker = brokers().start()
    history = History()
    admin = Admin(history)
    for number in range(10 if ALL else 3):
        load = Load(broker, history, rng.random(), pushers=4, consumers=4, admin=admin).start()
        time.sleep(rng.uniform(0.2, 1.0))
        told = time.monotonic()
        code = broker.terminate()
        assert code == 0, f"exit code {code}:\n{broker.log_tail()}"
        assert time.monotonic() - told < 10
        load.join()
        lost = [(round(told - sent, 4), what) for sent, what in load.lost_sent if sent < told - 0.02]
        assert not lost, f"calls in flight at SIGTERM without an answer: {lost}"
        judge(history, broker)
        broker.start()
        crash_verify.after_restart(broker, history, rng, admin, number)
        judge(history, broker)
    crash_verify.finish(broker, history, rng, admin)
    judge(history, broker)
