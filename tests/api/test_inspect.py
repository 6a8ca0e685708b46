"""`queen inspect`: what is in a directory that nobody has open, and whether it is whole."""

import hashlib
import json
import os
import random
import re
import shutil

import pytest

from backup_kit import SMALL, Load, backup, files, flip, queen
from queen import ISO_US, unique, wait_until
from step_kit import commit, incr, item, put, push_op, timer


def inspect(folder, *args, code=0):
    done = queen("inspect", folder, *args)
    assert done.returncode == code, (done.returncode, done.stdout[-3000:], done.stderr)
    return done.stdout


def lines(folder, *args, code=0):
    return [json.loads(line) for line in inspect(folder, *args, "--json", code=code).splitlines()]


def damages(folder):
    """(file, offset or None) of each finding of a check that must find something."""
    found = lines(folder, "check", code=2)
    assert found[-1]["ok"] is False and found[-1]["damaged"] == len(found) - 1
    return [(f["damaged"], f.get("offset"), f["why"]) for f in found[:-1]]


def photograph(folder):
    """Every name, byte and time of a directory."""
    seen = {}
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            path = os.path.join(parent, name)
            st = os.stat(path)
            text = b"" if os.path.isdir(path) else open(path, "rb").read()
            seen[path] = (st.st_size, st.st_mtime_ns, hashlib.sha256(text).hexdigest())
    return seen


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The directory of a broker that was used and stopped. Tests that damage it take a copy."""
    from queen import Broker
    broker = Broker(env=SMALL).start()
    try:
        for i in range(5):
            broker.push([{"queue": "orders", "partition": "p%d" % (k % 3), "transactionId": "m-%d-%d" % (i, k), "payload": {"pad": "x" * 50000}}
                         for k in range(20)]).expect(201)
        commit(broker, operations=[push_op(item("orders", "in a step", 1, "p0"))], kv=[put("a key"), incr("n")],
               timers=[timer("later", "one", "one")])
        broker.take("orders", group="workers", subscriptionMode="all")
        for i in range(300):
            broker.push_ids("many", ["i-%d" % i], "lane-%d" % (i % 50))
        broker.stop()
        folder = str(tmp_path_factory.mktemp("inspect") / "data")
        shutil.copytree(broker.data_dir, folder)
        yield folder
    finally:
        broker.close()


@pytest.fixture
def copy(stopped, tmp_path):
    folder = str(tmp_path / "data")
    shutil.copytree(stopped, folder)
    return folder


def test_looking_changes_nothing(copy):
    before = photograph(copy)
    for args in ((), ("segments",), ("entries",), ("rows",), ("rows", "--kind", "kv"), ("identity",), ("raft",), ("check",)):
        assert inspect(copy, *args)
        lines(copy, *args)
        assert photograph(copy) == before, args


def test_a_directory_in_use_is_left_alone(own_broker):
    broker = own_broker()
    for part in ("segments", "check"):
        done = queen("inspect", broker.data_dir, part)
        assert done.returncode == 1 and "in use" in done.stderr and done.stdout == ""
    broker.push_ids("q", ["a"])


def test_wrong_command_lines(tmp_path):
    for args in ((), (tmp_path,), (tmp_path / "none",), (tmp_path, "entries", "more"), (tmp_path, "everything"), (tmp_path, "--group", "x"),
                 (tmp_path, "entries", "--from", "-1")):
        done = queen("inspect", *args)
        assert done.returncode == 1 and done.stderr, args
    assert "Usage: queen inspect" in queen("inspect", "--help").stdout


def test_a_new_node(own_broker):
    broker = own_broker()
    broker.stop()
    found = lines(broker.data_dir, "entries")
    assert (found[0]["index"], found[0]["type"], found[0]["members"]) == (1, "members", "1 voter node-1")
    assert [c["text"] for e in found for c in e.get("commands", ())] == ["init"]


def test_segments(stopped):
    found = lines(stopped, "segments")
    assert [os.path.basename(s["file"]) for s in found] == sorted(n for n in os.listdir(os.path.join(stopped, "log")) if n.endswith(".seg"))
    used = [s for s in found if s["state"] != "not in use"]
    assert len(used) >= 5
    assert [s["state"] for s in used] == ["whole"] * (len(used) - 1) + ["the log ends in it"]
    for left, right in zip(used, used[1:]):
        assert left["endPosition"] == right["firstPosition"]
        assert left["lastIndex"] + 1 == right["firstIndex"]
    for s in used:
        assert s["entries"] == s["lastIndex"] - s["firstIndex"] + 1
        assert s["bytes"] == os.path.getsize(s["file"])
    text = inspect(stopped, "segments")
    assert text.splitlines()[0].split()[:2] == ["FILE", "BYTES"] and len(text.splitlines()) == len(found) + 1


def test_entries(stopped):
    found = lines(stopped, "entries")
    assert [e["index"] for e in found] == list(range(found[0]["index"], found[-1]["index"] + 1))
    commands = [c for e in found for c in e.get("commands", ())]
    texts = [c["text"] for c in commands]
    assert sum(t.startswith("push orders/p") for t in texts) == 5
    assert [t for t in texts if t.startswith("step")] == ["step {push orders/p0 x1; kv put test/a key, incr test/n; timers schedule later/one}"]
    assert any(t == "pop orders group workers" for t in texts)
    assert sum(t.count("many/lane-") for t in texts) == 300
    for e in found:
        if e["type"] == "command":
            assert ISO_US.match(e["time"]) and e["bytes"] >= 48
    # by index, and so many
    middle = found[len(found) // 2]["index"]
    assert [e["index"] for e in lines(stopped, "entries", "--from", middle, "--to", middle + 2)] == [middle, middle + 1, middle + 2]
    assert [e["index"] for e in lines(stopped, "entries", "--from", middle, "--limit", 2)] == [middle, middle + 1]
    assert lines(stopped, "entries", "--from", found[-1]["index"] + 1) == []
    assert re.search(r"push orders/p0 x7, orders/p1 x7, orders/p2 x6", inspect(stopped, "entries"))


def test_rows(stopped):
    counts = {r["kind"]: r for r in lines(stopped, "rows")}
    assert counts["meta"]["rows"] == 1
    assert counts["queue"]["rows"] == 2
    assert counts["partition"]["rows"] == 53
    assert counts["kv"]["rows"] == 2
    assert counts["timer"]["rows"] == 1
    assert counts["cursor"]["rows"] >= 1
    keys = [r["key"] for r in lines(stopped, "rows", "--kind", "kv")]
    assert [k.split(" ", 1)[1] for k in keys] == ["test a key", "test n"]
    assert len(lines(stopped, "rows", "--kind", "partition", "--limit", 7)) == 7
    assert queen("inspect", stopped, "rows", "--kind", "nothing").returncode == 1


def test_identity_and_raft(stopped):
    text = inspect(stopped, "identity")
    assert "queen identity 1" in text and re.search(r"cluster [0-9a-f-]{36}", text)
    raft = lines(stopped, "raft")[0]
    last = lines(stopped, "entries")[-1]
    assert raft["term"] >= last["term"] and raft["vote"] == 1
    assert raft["members"] == [{"id": 1, "role": "voter", "address": "node-1"}]
    assert raft["storedIndex"] <= last["index"]


def test_a_whole_directory(stopped):
    told = lines(stopped, "check")
    assert len(told) == 1 and told[0]["ok"] is True and told[0]["records"] > 100 and told[0]["rows"] > 50


def test_what_a_crash_leaves_is_no_damage(own_broker):
    broker = own_broker(env=SMALL)
    load = Load(broker).start()
    for least in (30, 60, 90):
        wait_until(lambda: max(load.counts()) >= least, 60, "some load")
        load.stopping.set()
        broker.kill()
        for thread in load.threads:
            thread.join(30)
        told = lines(broker.data_dir, "check")
        assert told[-1]["ok"] is True, told
        broker.start()
        answered = load.answered
        load = Load(broker)
        load.answered = answered
        load.queue = unique("load")
        load.out = load.queue + "-out"
        load.start()
    load.stop()


def test_a_node_that_ended_before_its_first_rows_were_durable(own_broker):
    broker = own_broker(env={"QUEEN_RAFT_DURABLE_EVERY_MS": "600000"})
    broker.push_ids("q", ["a"])
    broker.kill()
    assert lines(broker.data_dir, "check")[-1]["ok"] is True
    assert lines(broker.data_dir, "raft")[0]["storedIndex"] == 0


# ---- damage ---------------------------------------------------------------------------------------------------------

def segment_files(folder):
    return [s for s in lines(folder, "segments") if s["state"] != "not in use"]


def test_a_wrong_byte_in_a_record_is_found_where_it_is(copy):
    where = [(e["file"], e["offset"], e["bytes"]) for e in lines(copy, "entries")]
    last_file = where[-1][0]
    chosen = random.Random(5).sample([w for w in where if w[0] != last_file], 4)
    for file, offset, size in chosen:
        for at in (offset, offset + 8, offset + 44, offset + 48, offset + 48 + size - 1):
            flip(file, at)
            found = damages(copy)
            assert [(f, o) for f, o, _ in found][0] == (file, offset), (at, found)
            flip(file, at)
    assert lines(copy, "check")[-1]["ok"] is True


def test_a_wrong_byte_in_the_middle_of_the_last_segment(copy):
    last = segment_files(copy)[-1]["file"]
    inside = [e for e in lines(copy, "entries") if e["file"] == last]
    e = inside[len(inside) // 2]
    flip(e["file"], e["offset"] + 60)
    assert (e["file"], e["offset"]) in [(f, o) for f, o, _ in damages(copy)]


def test_segments_that_are_cut_short_or_missing_or_have_a_wrong_head(copy, tmp_path):
    used = segment_files(copy)
    flip(used[2]["file"], 10)
    assert (used[2]["file"], 0) in [(f, o) for f, o, _ in damages(copy)]
    flip(used[2]["file"], 10)
    size = os.path.getsize(used[2]["file"])
    os.rename(used[2]["file"], tmp_path / "kept")
    assert any("missing" in why and os.path.basename(used[2]["file"]) in why + f for f, _, why in damages(copy))
    shutil.copy(tmp_path / "kept", used[2]["file"])
    os.truncate(used[2]["file"], size // 2)
    assert used[2]["file"] in [f for f, _, _ in damages(copy)]


def test_a_wrong_byte_in_the_store(copy):
    tables = [p for n, p in files(os.path.join(copy, "store")).items() if n.endswith(".sst")]
    assert tables
    for path in tables:
        size = os.path.getsize(path)
        for at in (10, size // 3, size // 2, size - 3):
            flip(path, at)
            assert path in [f for f, _, _ in damages(copy)], (path, at)
            flip(path, at)
    os.unlink(tables[-1])
    assert any("store" in f for f, _, _ in damages(copy))


def test_wrong_bytes_in_the_small_files(copy):
    for name in ("identity", "configuration"):
        path = os.path.join(copy, name)
        for at in (5, os.path.getsize(path) - 2):
            flip(path, at)
            assert any(name in f + why for f, _, why in damages(copy)), name
            flip(path, at)
    for name in ("meta-0", "meta-1"):
        flip(os.path.join(copy, name), 30)
    assert any("meta" in why for _, _, why in damages(copy))


@pytest.mark.parametrize("retained", [True, False])
def test_the_store_and_the_log_of_two_brokers(own_broker, tmp_path, retained):
    """Two that did the same: index, term and positions are the same, too. Only the stamps tell."""
    homes = []
    for _ in range(2):
        broker = own_broker()
        broker.push_ids("q", ["a"])
        if not retained:
            assert broker.delete_queue("q")["deleted"] is True
        broker.stop()
        homes.append(str(tmp_path / str(len(homes))))
        shutil.copytree(broker.data_dir, homes[-1])
    assert [lines(home, "check")[-1]["ok"] for home in homes] == [True, True]
    shutil.rmtree(os.path.join(homes[0], "store"))
    shutil.copytree(os.path.join(homes[1], "store"), os.path.join(homes[0], "store"))
    assert any("do not belong together" in why for _, _, why in damages(homes[0]))


# ---- backups --------------------------------------------------------------------------------------------------------

def test_a_backup(own_broker, tmp_path):
    broker = own_broker(env=dict(SMALL, QUEEN_RAFT_GROUPS="2"))
    for i in range(3):
        broker.push([{"queue": "q", "partition": "p", "payload": "x" * 50000} for _ in range(20)]).expect(201)
    backup(broker, tmp_path / "one")
    assert [g["group"] for g in lines(tmp_path / "one")] == [0, 1]
    assert [g["group"] for g in lines(tmp_path / "one", "--group", 1)] == [1]
    assert "\"format\":1" in inspect(tmp_path / "one", "identity")
    assert sum("push q/p" in c["text"] for e in lines(tmp_path / "one", "entries") for c in e.get("commands", ())) == 3
    assert lines(tmp_path / "one", "check")[-1]["ok"] is True
    assert lines(tmp_path / "one" / "group-0", "check")[-1]["ok"] is True
    pushed = [e for e in lines(tmp_path / "one", "entries") if e["bytes"] > 500000]
    path = pushed[0]["file"]
    shutil.copy(path, path + ".new")
    os.replace(path + ".new", path)  # not the broker's own any more
    flip(path, 400000)
    found = damages(tmp_path / "one")
    assert any(path in why for _, _, why in found)  # its checksum in BACKUP
    assert any((f, o) == (path, pushed[0]["offset"]) for f, o, _ in found)  # and the record in it


def test_several_groups_of_a_stopped_node(own_broker):
    broker = own_broker(env={"QUEEN_RAFT_GROUPS": "3"})
    broker.push_ids("q", ["a"])
    broker.stop()
    assert [g["group"] for g in lines(broker.data_dir)] == [0, 1, 2]
    assert "group 2" in inspect(broker.data_dir, "raft")
    assert lines(broker.data_dir, "check")[-1]["ok"] is True
    flip(os.path.join(broker.data_dir, "group-2", "identity"), 3)
    assert any("group-2" in f for f, _, _ in damages(broker.data_dir))
