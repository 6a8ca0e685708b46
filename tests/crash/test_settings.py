"""Settings that change between two starts do not make an existing directory unusable."""
import os
import random

import crash_verify
import pytest
from crash_history import History
from crash_load import Churn
from crash_verify import judge


@pytest.mark.seconds(9)
@pytest.mark.parametrize("first, second", [(1 << 20, 64 << 20), (1 << 20, 1 << 21), (4 << 20, 1 << 20)])
def test_another_segment_size_over_a_trimmed_log(brokers, seed, first, second):
    """The log keeps the size it was made with; files that were trimmed are not missed, and none that is wanted is trimmed."""
    rng = random.Random(seed)
    history = History()
    broker = brokers(env={"QUEEN_RAFT_SEGMENT_BYTES": str(first)})
    for number, size in enumerate((first, second, first, second)):
        broker.start(env={"QUEEN_RAFT_SEGMENT_BYTES": str(size)})
        churn = Churn(broker, history, rng)
        churn.run(1.5)
        conn = broker.conn()
        churn.check(conn)
        conn.close()
        crash_verify.after_restart(broker, history, rng, None, number)
        judge(history, broker)
        (broker.kill if number % 2 else broker.terminate)()
    names = [n for n in os.listdir(os.path.join(broker.data, "log")) if n.endswith(".seg")]
    gaps = max(int(n[:16], 16) for n in names) // first + 1 - len(names)
    assert gaps > 2, f"hardly anything was trimmed: {sorted(names)}"
    broker.start()
    crash_verify.finish(broker, history, rng, None)
    judge(history, broker)
