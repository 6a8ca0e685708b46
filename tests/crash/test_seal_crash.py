"""The process dies while ids go from memory into a generation, and while a generation goes: what was answered stays exactly true.

The least memory a broker takes makes generations of some tens of thousands of ids.
"""
import os
import signal

import crash_broker
import pytest

BATCH = 1000
SMALL_MEMORY = {"QUEEN_MEMORY_MAX": "128M"}
LATER_S = 3600

pytestmark = pytest.mark.skipif(
    not os.path.exists(crash_broker.CRASH_BINARY), reason=f"needs a build with crash points at {crash_broker.CRASH_BINARY}"
)


class Ids:
    """All that was answered: id -> (message id, offset); ids of a push that was not answered may be either."""

    def __init__(self):
        self.answered = {}
        self.unsure = set()
        self.next = 0

    def push(self, conn, ids):
        items = [{"queue": "q", "partition": "p", "transactionId": i, "payload": 1} for i in ids]
        try:
            status, answer = conn.json("POST", "/api/v1/push", {"items": items})
        except crash_broker.Gone:
            self.unsure.update(i for i in ids if i not in self.answered)
            raise
        assert status == 201, (status, answer)
        return [(i, a["status"], (a["message_id"], a["offset"])) for i, a in zip(ids, answer, strict=True)]

    def push_new(self, conn):
        ids = [f"id-{n}" for n in range(self.next, self.next + BATCH)]
        self.next += BATCH
        for i, status, place in self.push(conn, ids):
            assert status == "queued", f"{i} is new and was called {status}"
            self.answered[i] = place

    def check(self, conn):
        """Every id is asked for again: the same place for each, and no place twice."""
        ids = [*self.answered, *self.unsure]
        for at in range(0, len(ids), BATCH):
            for i, status, place in self.push(conn, ids[at : at + BATCH]):
                if i in self.answered:
                    assert (status, place) == ("duplicate", self.answered[i]), f"{i}: {status} {place}, was {self.answered[i]}"
                self.answered[i] = place
        self.unsure.clear()
        places = [offset for _, offset in self.answered.values()]
        assert len(set(places)) == len(places)


def push_until_dead(broker, ids, batches=200):
    """False: it lives after so many batches."""
    conn = broker.conn()
    try:
        for _ in range(batches):
            ids.push_new(conn)
    except crash_broker.Gone:
        assert broker.wait_dead(10) == -signal.SIGKILL, broker.log_tail()
        return True
    finally:
        conn.close()
    return False


SEALING = [(point, nth) for point in ("dedup-seal-begin", "dedup-seal-end", "dedup-sealed") for nth in (1, 2)]
SEALING += [("dedup-seal-shard", nth) for nth in (1, 150, 300)]


@pytest.mark.seconds(25)
@pytest.mark.parametrize(("point", "nth"), SEALING)
def test_death_while_ids_are_sealed(brokers, point, nth):
    broker = brokers(binary=crash_broker.CRASH_BINARY, power=True, env=SMALL_MEMORY)
    ids = Ids()
    broker.spawn(env={"QUEEN_CRASH_AT": f"{point}:{nth}"})
    assert broker.wait_ready(), broker.log_tail()
    assert push_until_dead(broker, ids), f"{point}:{nth} was not reached"
    broker.faults.power_cut(nth, "lose" if nth == 1 else "mixed")
    broker.start()
    ids.check(broker.conn())
    assert not push_until_dead(broker, ids, 30)
    broker.kill()
    broker.start()
    ids.check(broker.conn())


@pytest.mark.seconds(10)
@pytest.mark.parametrize(("point", "nth"), [("dedup-drop", 1), ("store-gone", 1), ("store-gone", 2)])
def test_death_while_a_generation_goes(brokers, point, nth):
    broker = brokers(binary=crash_broker.CRASH_BINARY, power=True, env=SMALL_MEMORY).start()
    old, ids = Ids(), Ids()
    options = {"dedupWindowSeconds": 600, "completedRetentionSeconds": 0}
    assert broker.conn().call("POST", "/api/v1/configure", {"queue": "q", "options": options})[0] == 200
    assert not push_until_dead(broker, old, 60)
    broker.kill()
    broker.faults.set_clock(wall_s=LATER_S)
    ids.next = old.next
    broker.spawn(env={"QUEEN_CRASH_AT": f"{point}:{nth}"})
    if broker.wait_ready():
        assert push_until_dead(broker, ids), f"{point}:{nth} was not reached"
    else:
        assert broker.wait_dead(10) == -signal.SIGKILL, broker.log_tail()
    broker.faults.power_cut(nth, "lose")
    broker.start()
    conn = broker.conn()
    ids.check(conn)
    # Their window is over: they are new, once.
    for at in range(0, old.next, BATCH):
        for i, status, place in ids.push(conn, [f"id-{n}" for n in range(at, at + BATCH)]):
            assert status == "queued", f"{i} was pushed an hour ago and is called {status}"
            ids.answered[i] = place
    broker.kill()
    broker.start()
    ids.check(broker.conn())
