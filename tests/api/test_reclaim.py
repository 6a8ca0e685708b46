"""Disk use follows what is retained, not the oldest message that somebody still wants: what is left of mostly dead files is copied, and they go."""

import json
import os
import time

from backup_kit import backup, flip, queen, restore, verify
from cluster import Cluster
from queen import wait_until

SEGMENT = 1 << 20
SMALL = {
    "QUEEN_RAFT_SEGMENT_BYTES": str(SEGMENT),
    "QUEEN_RAFT_DURABLE_EVERY_MS": "50",
    "QUEEN_LOG_CACHE_BYTES": str(SEGMENT),
    "QUEEN_RECLAIM_AFTER_MS": "0",
    "RETENTION_INTERVAL": "200",
}
# The file written to and the one made ahead of it, of the log and of the archive; two spares of the log; one just left.
FILES_AT_LEAST = 8


def files(broker, part):
    folder = os.path.join(broker.data_dir, part)
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def disk_files(broker):
    return len(files(broker, "log")) + len(files(broker, "archive"))


def text(n):
    return ("%d." % n) * 200


def traffic(broker, queue, kept, first, count, every):
    """Messages that retention lets go, and among them, one of `every`, one of a queue that keeps its own."""
    for at in range(first, first + count, 50):
        broker.push([{"queue": kept if n % every == 0 else queue, "partition": "p%d" % (n % 3), "transactionId": "t%d" % n,
                      "payload": {"n": n, "text": text(n)}} for n in range(at, at + 50)]).expect(201)


def assert_kept(broker, kept, count, every, group):
    found = {}
    while True:
        answer = broker.pop(kept, group=group, batch=500, partitions=10, subscriptionMode="all")
        if answer.status == 204 or not answer.json["messages"]:
            break
        for m in answer.json["messages"]:
            found[m["transactionId"]] = m["data"]
    assert found == {"t%d" % n: {"n": n, "text": text(n)} for n in range(0, count, every)}


def read_there(node, kept):
    """By number, all messages, from the node's own files."""
    found = {}
    for lane in ("p0", "p1", "p2"):
        offset = 0
        while True:
            answer = node.post("/api/v1/fetch", {"entries": [{"queue": kept, "partition": lane, "offset": offset, "maxBytes": 1 << 20}]})
            if answer.status != 200:
                return None
            one = answer.json["entries"][0]
            found.update((r["payload"]["n"], r["payload"]["text"]) for r in one["records"])
            if not one["records"]:
                break
            offset = one["records"][-1]["offset"] + 1
    return found


def small(broker, most):
    wait_until(lambda: disk_files(broker) <= most, 30, "files nobody needs are gone: %s" % (files(broker, "log") + files(broker, "archive")),
               every=0.1)


def test_one_message_that_nobody_acks_holds_no_files(own_broker, queue):
    broker = own_broker(env=SMALL)
    broker.push([{"queue": "stuck", "partition": "p", "transactionId": "one", "payload": {"kept": "x" * 1000}}]).expect(201)
    held = broker.take("stuck", group="g", subscriptionMode="all", leaseSeconds=600)
    broker.configure(queue, retentionEnabled=True, retentionSeconds=1)
    sizes = []
    for _ in range(3):
        for _ in range(8):
            broker.push([{"queue": queue, "partition": "p", "payload": "z" * 200000} for _ in range(5)]).expect(201)
            broker.drain(queue)
        time.sleep(1.2)
        small(broker, FILES_AT_LEAST)
        sizes.append(disk_files(broker))
    assert max(sizes) <= FILES_AT_LEAST
    assert broker.ack(held["messages"][0])["success"] is True
    again = broker.take("stuck", group="h", subscriptionMode="all")["messages"][0]
    assert again["data"] == {"kept": "x" * 1000}


def test_what_is_kept_is_copied_out_of_files_that_are_mostly_dead(own_broker, queue, tmp_path):
    broker = own_broker(env=SMALL)
    count, every = 20000, 200  # 20 files, 100 messages are kept
    broker.configure(queue, retentionEnabled=True, retentionSeconds=1)
    traffic(broker, queue, "kept", 0, count, every)
    small(broker, FILES_AT_LEAST)
    wait_until(lambda: files(broker, "archive"), 20, "something is copied")
    assert_kept(broker, "kept", count, every, "one")
    broker.restart("kill")
    assert_kept(broker, "kept", count, every, "two")

    # a backup has them, and what is restored from it
    backup(broker, tmp_path / "b")
    verify(tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "data")
    restored = own_broker(data_dir=str(tmp_path / "data"), env=SMALL)
    assert_kept(restored, "kept", count, every, "three")
    restored.restart("stop")
    assert_kept(restored, "kept", count, every, "four")
    # and it goes on copying behind what was restored
    traffic(restored, queue, "kept", count, count, every)
    small(restored, FILES_AT_LEAST + 1)
    assert_kept(restored, "kept", 2 * count, every, "five")
    backup(restored, tmp_path / "c")
    backup(broker, tmp_path / "d", "--from", tmp_path / "b")
    verify(tmp_path / "c")
    verify(tmp_path / "d")


def test_a_fetched_state_has_its_archive(queue):
    env = dict(SMALL, QUEEN_RAFT_KEEP_BYTES=str(2 << 20), QUEEN_RAFT_DURABLE_EVERY_BYTES=str(1 << 20))
    count, every = 12000, 200
    with Cluster(3, env=env) as cluster:
        leader = cluster.leader()
        away = cluster.followers()[0]
        away.kill()
        leader.configure(queue, retentionEnabled=True, retentionSeconds=1)
        traffic(leader, queue, "kept", 0, count, every)
        wait_until(lambda: files(leader, "archive") and len(files(leader, "log")) <= 9, 30, "the leader copied what is kept", every=0.1)
        away.launched()
        wait_until(lambda: "is in place" in away.output(), 30, "the state is fetched and in place\n" + away.output())
        cluster.wait_ready(30)
        assert files(away, "archive")
        wait_until(lambda: read_there(away, "kept") == {n: text(n) for n in range(0, count, every)}, 20, "read from its own files")


def inspect(data, *what, code=0):
    done = queen("inspect", data, *what, "--json")
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def metric(broker, name):
    text = broker.get("/metrics/prometheus").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def copied(own_broker, queue):
    """A broker that has copied what is kept, and nothing is left to copy."""
    broker = own_broker(env=SMALL)
    broker.configure(queue, retentionEnabled=True, retentionSeconds=1)
    traffic(broker, queue, "kept", 0, 6000, 200)
    wait_until(lambda: files(broker, "archive"), 20, "something is copied")
    small(broker, FILES_AT_LEAST)
    return broker


def test_what_it_does_is_seen(own_broker, queue):
    broker = copied(own_broker, queue)
    wait_until(lambda: metric(broker, 'queen_payload_storage_bytes{home="archive",kind="live"}') > 10000, 20, "live bytes of the archive")
    assert metric(broker, "queen_reclaim_files_total") >= 1
    assert metric(broker, "queen_reclaim_freed_bytes_total") >= SEGMENT
    assert 10000 < metric(broker, "queen_reclaim_copied_bytes_total") < metric(broker, "queen_reclaim_freed_bytes_total")
    broker.stop()
    archived = [s for s in inspect(broker.data_dir, "segments") if s["home"] == "archive"]
    assert archived and sum(s["liveBytes"] for s in archived) > 10000
    assert all(s["state"] != "damaged" for s in archived)
    assert inspect(broker.data_dir, "check")[-1]["ok"] is True
    flip(archived[0]["file"], 4096 + 48 + 200)
    damaged = inspect(broker.data_dir, "check", code=2)
    assert any("archive/" in json.dumps(line) for line in damaged)


def test_a_missing_archive_file_is_named(own_broker, queue):
    broker = copied(own_broker, queue)
    broker.stop()
    os.remove(os.path.join(broker.data_dir, "archive", files(broker, "archive")[0]))
    broker.launch()
    assert broker.wait_exit(20) == 2
    assert "archive/0000000000000000.seg" in broker.output()
