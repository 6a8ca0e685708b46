"""Bits flip in the files of a node, stopped or running, following or leading: it is repaired from the others, or stops with the file's
name when it cannot know any more who it is and whom it voted for. Nothing wrong ever shows."""
import os
import random
import re
import time

import pytest
from cluster import HTTP_PORT, Gone, NodeConn
from crash_broker import ALL
from workload import fetch_lanes
from workload_log import LANES, LogWorkload

ROUNDS = 40 if ALL else 3
# Of these files there is nothing like them at the peers.
OWN = ("identity", "meta-0", "meta-1", "disk", "peers", "groups")


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
    """Flips 1 to 100 bits, mostly in one file, mostly of those that hold what the peers hold too. Returns [(path, offset, bit)]."""
    files = files_of(data)
    shared = [f for f in files if os.path.basename(f[0]) not in OWN]
    one = rng.choice(shared if rng.random() < 0.85 else files)
    flips = []
    for _ in range(rng.choice((1, 1, 10, 100))):
        path, size = one if rng.random() < 0.8 else rng.choice(shared)
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


def wait(what, condition, timeout=30.0):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.05)


def repairs(node):
    return node.log_count("the damage is repaired")


@pytest.mark.seconds(12)
def test_flipped_bits_in_a_stopped_node(clusters, seed, place, tell):
    rng = random.Random(seed)
    cluster = clusters(3).start()
    client = cluster.client(seed)
    log = LogWorkload(cluster, seed)
    counts = {"refused": 0, "repaired": 0, "harmless": 0}
    for number in range(ROUNDS):
        for _ in range(15):
            log.push(client, log.new_items(rng))
        cluster.wait_equal()
        node = cluster.leader() if rng.random() < 0.3 else rng.choice(cluster.followers())
        before = repairs(node)
        # kill -9: the log is read back; SIGTERM: the store is
        node.kill() if rng.random() < 0.5 else node.terminate()
        flips = flip(rng, node.data)
        what = f"round {number}, node {node.number}: {[(os.path.relpath(p, node.data), o, b) for p, o, b in flips[:5]]} ({len(flips)} flips)"
        node.spawn()
        node.expected_down = True
        if node.wait_ready(30.0):
            counts["repaired" if repairs(node) > before else "harmless"] += 1
            lead(cluster, node)
            log.push(client, log.new_items(rng))
            check(log, node, what)
        else:
            code = node.wait_dead(10.0)
            text = node.log_text()
            assert code == 2, f"{what}: exit code {code}\n{text[-3000:]}"
            assert any(os.path.basename(path) in OWN for path, _, _ in flips), f"{what}: not repaired\n{text[-3000:]}"
            assert any(os.path.basename(path) in text for path, _, _ in flips), f"{what}: no file is named\n{text[-3000:]}"
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
    """What the node holds is what was answered, now or once it is repaired. It never tells anything else."""
    deadline = time.monotonic() + 30.0
    while True:
        items = list(log.items)  # others may be pushing
        try:
            held = fetch_lanes(node, "log", LANES)
            break
        except (AssertionError, Gone) as error:  # damage it just ran into
            if not node.alive():
                assert node.process.returncode in (2, 3), f"{what}: ended with {node.process.returncode} when read\n{node.log_tail()}"
                node.spawn()
            assert time.monotonic() < deadline, f"{what}: {error}\n{node.log_tail()}"
            time.sleep(0.2)
    where = {r[1]: (lane, r[0], r[2]) for lane, records in held.items() for r in records}
    for item in items:
        assert where.get(item.id) == (item.lane, item.offset, item.payload), f"{what}: {item.id} is {where.get(item.id)}"


def sealed(node):
    """Its log files that are written no more: [path], oldest first."""
    folder = os.path.join(node.data, "log")
    names = sorted(n for n in os.listdir(folder) if n.endswith(".seg"))
    return [os.path.join(folder, n) for n in names[:-3]]  # the last ones are being written, or wait to be


def fill(client, log, rng, node, files=2):
    """Until so many of the node's files are of the past, and out of its memory."""
    while len(sealed(node)) < files:
        for _ in range(20):
            log.push(client, log.new_items(rng))


def damage_of(node):
    status, answer = node.ask("GET", "/api/v1/raft/status")
    return answer.get("damage") if status == 200 else None


def hit(rng, path, count):
    size = os.path.getsize(path)
    apply_flips([(path, rng.randrange(4096, size), rng.randrange(8)) for _ in range(count)])


@pytest.mark.seconds(15)
@pytest.mark.parametrize("which", ["follower", "leader"])
def test_damage_in_a_running_node(clusters, seed, tell, which):
    """Cold log files are damaged under the node. Reading finds it (a follower's), or the scrub does (the leader's)."""
    rng = random.Random(seed)
    cluster = clusters(3, env={"QUEEN_SCRUB_BYTES_S": "0" if which == "follower" else str(1 << 20)})
    cluster.start()
    client = cluster.client(seed)
    log = LogWorkload(cluster, seed)
    leader = cluster.leader()
    node = leader if which == "leader" else rng.choice(cluster.followers())
    fill(client, log, rng, node)
    cluster.wait_equal()
    for path in sealed(node):
        hit(rng, path, 100)
    log.start()  # the others are asked all the while
    if which == "follower":
        check(log, node, "damage under a running follower")
    wait(f"node {node.number} is repaired\n{node.log_tail()}", lambda: repairs(node) == 1)
    wait(f"node {node.number} is ready\n{node.log_tail()}", node.ready)
    with open(node.log_path, encoding="utf-8") as f:
        assert re.search(r"copy is damaged: .*[0-9a-f]{16}\.seg", f.read()), node.log_tail()
    assert damage_of(node) is None
    log.stop()
    cluster.wait_equal()
    lead(cluster, node)
    check(log, node, "after the repair")
    log.finish(client)
    client.close()
    assert not log.problems, "\n".join(log.problems[:10])


@pytest.mark.seconds(15)
def test_no_repair_without_a_majority_besides(clusters, seed):
    """While the third node is away a damaged one stays: it answers what it can, and the two go on. When the third one is back it is repaired."""
    rng = random.Random(seed)
    cluster = clusters(3, env={"QUEEN_SCRUB_BYTES_S": "0"}).start()
    client = cluster.client(seed)
    log = LogWorkload(cluster, seed)
    node, away = cluster.followers()
    fill(client, log, rng, node)
    cluster.wait_equal()
    away.kill()
    for path in sealed(node):
        hit(rng, path, 100)
    with pytest.raises(AssertionError, match="fetch of log from node"):
        fetch_lanes(node, "log", LANES)
    wait("the node says that it waits", lambda: node.log_count("no majority would be left") > 0)
    assert node.ready() and ".seg" in damage_of(node)
    assert 'queen_damaged{group="0"} 1' in metrics(node)
    log.push(client, log.new_items(rng))
    assert repairs(node) == 0
    away.start()
    wait(f"node {node.number} is repaired\n{node.log_tail()}", lambda: repairs(node) == 1)
    cluster.mend()
    cluster.wait_equal()
    assert 'queen_damaged{group="0"} 0' in metrics(node)
    check(log, node, "after the repair")
    log.finish(client)
    client.close()
    assert not log.problems, "\n".join(log.problems[:10])


def metrics(node):
    conn = NodeConn((node.address, HTTP_PORT), 3.0)
    try:
        return conn.call("GET", "/metrics/prometheus")[1].decode()
    finally:
        conn.close()
