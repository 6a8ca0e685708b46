"""A broker that kills itself at every point of a backup: there is no BACKUP then, nothing of the broker's is lost, and the next start tidies up."""

import os
import signal
import sys

import crash_broker
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "api"))

from backup_kit import SMALL, backup, queen, restore  # noqa: E402
from queen import Broker, unique  # noqa: E402

POINTS = ["backup-linked", "store-checkpoint-before", "store-checkpoint-after", "backup-copied", "backup-before-mark"]

pytestmark = pytest.mark.skipif(
    not os.path.exists(crash_broker.CRASH_BINARY), reason=f"needs a build with crash points at {crash_broker.CRASH_BINARY}"
)


@pytest.fixture
def filled():
    broker = Broker(env=SMALL, binary=crash_broker.CRASH_BINARY).start()
    queue = unique("kept")
    for i in range(3):
        broker.push([{"queue": queue, "partition": "p", "transactionId": "m-%d-%d" % (i, k), "payload": "x" * 50000} for k in range(20)]).expect(201)
    yield broker, queue
    broker.close()


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_point_of_a_backup(filled, tmp_path, point):
    broker, queue = filled
    wanted = ["m-%d-%d" % (i, k) for i in range(3) for k in range(20)]
    broker.stop()
    broker.env["QUEEN_CRASH_AT"] = point
    broker.start()
    try:
        broker.post("/api/v1/system/backup", {"dir": str(tmp_path / "one")}, timeout=30)
    except OSError:
        pass  # it may be gone before it has answered
    except Exception as error:
        assert "Remote" in type(error).__name__, error
    assert broker.wait_exit(30) == -signal.SIGKILL, f"{point}\n{broker.output()[-3000:]}"
    assert not os.path.exists(tmp_path / "one" / "BACKUP")
    del broker.env["QUEEN_CRASH_AT"]
    checked = queen("inspect", broker.data_dir, "check")
    assert checked.returncode == 0, checked.stdout
    broker.start()
    assert not os.path.exists(os.path.join(broker.data_dir, "backup"))
    backup(broker, tmp_path / "two")
    assert [m["transactionId"] for m in broker.drain(queue)] == wanted
    broker.stop()
    restore(tmp_path / "two", tmp_path / "data")
    again = Broker(env=SMALL, data_dir=str(tmp_path / "data")).start()
    try:
        assert [m["transactionId"] for m in again.drain(queue)] == wanted
        again.stop()
    finally:
        again.close()
