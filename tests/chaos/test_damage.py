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


def names_in(node, part, suffix):
    folder = os.path.join(node.data, part)
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(suffix)) if os.path.isdir(folder) else []


def sealed(node, part="log"):
    """Its files that are written no more: [path], oldest first. The last ones of the log and of the archive are being written, or wait to be."""
    if part == "store":
        return names_in(node, part, ".sst")
    return names_in(node, part, ".seg")[: -3 if part == "log" else -2]


def fill(client, log, rng, nodes, part="log"):
    """Until some of each node's files are of the past, and out of its memory. For the archive most of what is pushed is of a queue that lets it go at
    once, so that what is left of the log's files is copied."""
    files = 1 if part == "archive" else 2
    if part == "archive":
        options = {"retentionEnabled": True, "retentionSeconds": 1}
        assert client.insist("POST", "/api/v1/configure", {"queue": "waste", "options": options})[0] in (200, 201)
    deadline = time.monotonic() + 60.0
    while any(len(sealed(node, part)) < files for node in nodes):
        assert time.monotonic() < deadline, f"not enough files: {[names_in(node, part, '') for node in nodes]}"
        for _ in range(2):
            log.push(client, [item for _ in range(10) for item in log.new_items(rng)])
        if part == "archive":
            client.insist("POST", "/api/v1/push", {"items": [{"queue": "waste", "payload": "x" * 400000}]})


def damage_of(node):
    status, answer = node.ask("GET", "/api/v1/raft/status")
    return answer.get("damage") if status == 200 else None


def hit(rng, node, part):
    """Flips bits all over these files of the node. A table of the store is made older than it is: what was just written is not looked at."""
    paths = sealed(node, part)
    assert paths, f"nothing is at rest in {part}"
    for path in paths:
        size = os.path.getsize(path)
        first = 4096 if part != "store" else 0
        apply_flips([(path, rng.randrange(first, size), rng.randrange(8)) for _ in range(100)])
        old = time.time() - 3600
        os.utime(path, (old, old))


# No scrub; what is let go goes at once, and the log is not kept for nodes that were away.
RESTS = {"QUEEN_SCRUB_BYTES_S": "0", "RETENTION_INTERVAL": "200", "QUEEN_RAFT_KEEP_BYTES": str(1 << 20)}
PARTS = {"log": r"[0-9a-f]{16}\.seg", "archive": r"archive/[0-9a-f]{16}\.seg", "store": r"store/[0-9]+\.sst"}


def repaired(node):
    """Under damaged tables it may end: a row that an entry, or a read, cannot do without. The service manager starts it again."""
    if not node.alive():
        assert node.process.returncode == 3 and "a stored row cannot be read" in node.log_text(), node.log_tail()
        node.spawn()
    return repairs(node) == 1


@pytest.mark.seconds(15)
@pytest.mark.parametrize("which", ["follower", "leader"])
@pytest.mark.parametrize("part", PARTS)
def test_damage_in_a_running_node(clusters, seed, tell, part, which):
    """Files at rest are damaged under the node. Reading finds it (a follower's log and archive), or the scrub does."""
    rng = random.Random(f"{seed}/{part}/{which}")
    cluster = clusters(3, env=RESTS)
    cluster.start()
    client = cluster.client(seed)
    log = LogWorkload(cluster, seed)
    fill(client, log, rng, cluster.nodes, part)
    cluster.wait_equal()
    reading = which == "follower" and part != "store"
    if not reading:  # a scrub begins two seconds after the start
        for node in cluster.nodes:
            assert node.terminate() == 0, node.log_tail()
        cluster.env["QUEEN_SCRUB_BYTES_S"] = str(1 << 20 if part == "log" else 64 << 20)
        cluster.start()
    leader = cluster.leader()
    node = leader if which == "leader" else rng.choice(cluster.followers())
    hit(rng, node, part)
    if part == "store":  # not before: compactions would make new tables of what is in memory
        wait(f"a damaged table is found\n{node.log_tail()}", lambda: node.log_count("copy is damaged") > 0)
    log.start()  # the others are asked all the while
    if reading:
        check(log, node, f"damage in the {part} of a running follower")
    wait(f"node {node.number} is repaired\n{node.log_tail()}", lambda: repaired(node), 60.0)
    wait(f"node {node.number} is ready\n{node.log_tail()}", node.ready)
    with open(node.log_path, encoding="utf-8") as f:
        assert re.search(f"copy is damaged: .*{PARTS[part]}", f.read()), node.log_tail()
    assert damage_of(node) is None
    log.stop()
    cluster.wait_equal()
    lead(cluster, node)
    check(log, node, "after the repair")
    log.finish(client)
    client.close()
    assert not log.problems, "\n".join(log.problems[:10])


@pytest.mark.seconds(15)
@pytest.mark.parametrize("part", ["log", "archive"])
def test_no_repair_without_a_majority_besides(clusters, seed, part):
    """While the third node is away a damaged one stays: it answers what it can, and the two go on. When the third one is back it is repaired."""
    rng = random.Random(f"{seed}/{part}")
    cluster = clusters(3, env=RESTS).start()
    client = cluster.client(seed)
    log = LogWorkload(cluster, seed)
    node, away = cluster.followers()
    fill(client, log, rng, [node], part)
    cluster.wait_equal()
    away.kill()
    hit(rng, node, part)
    with pytest.raises(AssertionError, match="fetch of log from node"):
        fetch_lanes(node, "log", LANES)
    wait("the node says that it waits", lambda: node.log_count("no majority would be left") > 0)
    assert node.ready() and re.search(PARTS[part], damage_of(node))
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
