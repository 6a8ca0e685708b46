"""Bits flip in the files of a stopped follower: it stops with the file's name, or nothing of it ever shows."""
import os
import random

import pytest
from cluster import Gone
from crash_broker import ALL
from workload import fetch_lanes
from workload_log import LANES, LogWorkload

ROUNDS = 40 if ALL else 4


def files_of(data):
    found = []
    for folder, _, names in os.walk(data):
        for name in names:
            path = os.path.join(folder, name)
            size = os.path.getsize(path)
            if size and not name.startswith("LOG"):  # RocksDB's own diary is not data
                found.append((path, size))
    return sorted(found)


def flip(rng, data):
    """Flips 1 to 100 bits, mostly in one file. Returns [(path, offset, bit)]."""
    files = files_of(data)
    one = rng.choice(files)
    flips = []
    for _ in range(rng.choice((1, 1, 10, 100))):
        path, size = one if rng.random() < 0.8 else rng.choice(files)
        # the front of a file is where its contents are; the rest of a log file may be zeros
        flips.append((path, rng.randrange(min(size, 65536)) if rng.random() < 0.7 else rng.randrange(size), rng.randrange(8)))
    apply_flips(flips)
    return flips


def apply_flips(flips):
    for path, offset, bit in flips:
        if not os.path.exists(path) or os.path.getsize(path) <= offset:
            continue
        with open(path, "r+b") as f:
            f.seek(offset)
            byte = f.read(1)[0]
            f.seek(offset)
            f.write(bytes([byte ^ 1 << bit]))


@pytest.mark.seconds(8)
def test_flipped_bits_in_a_follower(clusters, seed, place, tell):
    rng = random.Random(seed)
    cluster = clusters(3).start()
    client = cluster.client(seed)
    log = LogWorkload(cluster, seed)
    counts = {"refused": 0, "harmless": 0}
    for number in range(ROUNDS):
        for _ in range(15):
            log.push(client, log.new_items(rng))
        cluster.wait_equal()
        node = rng.choice(cluster.followers())
        # kill -9: the log is read back; SIGTERM: the store is
        node.kill() if rng.random() < 0.5 else node.terminate()
        flips = flip(rng, node.data)
        what = f"round {number}, node {node.number}: {[(os.path.relpath(p, node.data), o, b) for p, o, b in flips[:5]]} ({len(flips)} flips)"
        node.spawn()
        node.expected_down = True
        if node.wait_ready(15.0):
            counts["harmless"] += 1
            lead(cluster, node)
            log.push(client, log.new_items(rng))
            check(log, node, what)
        else:
            code = node.wait_dead(10.0)
            text = node.log_text()
            assert code == 2, f"{what}: exit code {code}\n{text[-3000:]}"
            assert any(os.path.basename(path) in text or os.path.dirname(os.path.relpath(path, node.data)) in text for path, _, _ in flips), f"{what}: no file is named\n{text[-3000:]}"  # fmt: skip
            counts["refused"] += 1
            apply_flips(flips)
            node.start()
        node.expected_down = False
    cluster.mend()
    cluster.wait_equal()
    log.finish(client)
    client.close()
    tell("damage", str(counts))
    assert not log.problems, "\n".join(log.problems[:10])


def lead(cluster, node):
    """The damaged node becomes the leader, if it can: the others hand over."""
    for _ in range(4):
        leader = cluster.leader()
        if leader is node:
            return
        assert leader.terminate() == 0, leader.log_tail()
        leader.start()


def check(log, node, what):
    """What the node holds is what was answered, or it stops. It never tells anything else."""
    try:
        held = fetch_lanes(node, "log", LANES)
    except (AssertionError, Gone) as error:
        if not node.alive():
            pytest.fail(f"{what}: ended with {node.process.returncode} when read\n{node.log_tail()}") if node.process.returncode != 2 else None
            node.start()
            return
        raise AssertionError(f"{what}: {error}") from None
    where = {r[1]: (lane, r[0], r[2]) for lane, records in held.items() for r in records}
    for item in log.items:
        assert where.get(item.id) == (item.lane, item.offset, item.payload), f"{what}: {item.id} is {where.get(item.id)}"
