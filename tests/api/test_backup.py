"""Backups of a broker that goes on serving, and directories restored from them."""

import os
import signal
import subprocess
import threading
import time

import pytest

from backup_kit import (SMALL, Load, backup, elsewhere, files, flip, mark, queen, remove, restore, status, verify)
from cluster import Cluster
from queen import BINARY, free_port, ids, unique, wait_until
from step_kit import kv_read
from timers import count


@pytest.fixture
def other_place():
    """A directory on another file system than the data directories."""
    folder = elsewhere()
    if folder is None:
        pytest.skip("there is no second file system to write to")
    yield folder
    remove(folder)


def filled(own_broker, megabytes=6, **kwargs):
    """A broker with several segments of messages. Returns it and the queue."""
    broker = own_broker(env=dict(SMALL, **kwargs.pop("env", {})), **kwargs)
    queue = unique("filled")
    for i in range(megabytes):
        broker.push([{"queue": queue, "partition": "p", "transactionId": "m-%d-%d" % (i, k), "payload": {"i": i, "k": k, "pad": "x" * 50000}}
                     for k in range(20)]).expect(201)
    return broker, queue


def segments(folder):
    return sorted(name for name in files(folder) if name.endswith(".seg"))


def judge(broker, load, before):
    """The restored state is that of one index of the log, at or after the moment in which `before` had been answered."""
    got = {}
    for message in broker.drain(load.queue):
        got.setdefault(message["partition"], []).append(message)
    total = 0
    for lane in range(load.LANES):
        messages = got["p%d" % lane]
        there = len(messages)
        total += there
        assert [m["transactionId"] for m in messages] == ["%d-%d" % (lane, n) for n in range(there)]
        assert [m["offset"] for m in messages] == list(range(there))
        assert [m["data"]["n"] for m in messages] == list(range(there))
        assert [(m["transactionId"], m["id"]) for m in messages[:before[lane]]] == load.answered[lane][:before[lane]]
        assert there >= before[lane]
        assert kv_read(broker, "%s-%d" % (load.queue, lane)) == there
    done = kv_read(broker, load.queue + "-done") or 0
    assert len(broker.drain(load.out)) == done
    assert broker.depth(load.queue, "g")["pending"] == total - done
    scheduled = sum((len(got["p%d" % lane]) + 9) // 10 for lane in range(load.LANES))
    assert sum(count(broker, load.queue + "-later", "%d-" % lane) for lane in range(load.LANES)) == scheduled
    return total


# ---- what is in it --------------------------------------------------------------------------------------------------

def test_a_backup_under_load_is_the_state_at_one_entry(own_broker, tmp_path):
    broker = own_broker(env=SMALL)
    load = Load(broker).start()
    wait_until(lambda: min(load.counts()) >= 150, 60, "some load")
    broker.push_ids("held", ["h-1", "h-2"], "p")
    held = broker.take("held", group="g", subscriptionMode="all", leaseSeconds=300)
    before = load.counts()
    backup(broker, tmp_path / "one")
    middle = load.counts()
    backup(broker, tmp_path / "two", "--from", tmp_path / "one")
    load.stop()
    verify(tmp_path / "one")
    verify(tmp_path / "two")
    totals = []
    for name, least in (("one", before), ("two", middle)):
        restore(tmp_path / name, tmp_path / ("data-" + name))
        again = own_broker(data_dir=str(tmp_path / ("data-" + name)), env=SMALL)
        # what was leased is leased, by whom it was
        again.nothing("held", group="g")
        result = again.ack(held["messages"][0])
        assert result["success"] is True, result
        # ids are known: a repeat answers the first copy's
        first, message_id = load.answered[0][0]
        repeat = again.push([{"queue": load.queue, "partition": "p0", "transactionId": first, "payload": 1}]).expect(201).json[0]
        assert (repeat["status"], repeat["message_id"]) == ("duplicate", message_id)
        totals.append(judge(again, load, least))
        again.stop()
    assert totals[0] <= totals[1]


def test_a_restored_broker_goes_on_and_can_be_backed_up(own_broker, tmp_path):
    broker, queue = filled(own_broker, 3)
    backup(broker, tmp_path / "one")
    restore(tmp_path / "one", tmp_path / "data")
    again = own_broker(data_dir=str(tmp_path / "data"), env=SMALL)
    again.push_ids(queue, ["new"], "p")
    again.restart("kill")
    assert [m["transactionId"] for m in again.drain(queue)] == ["m-%d-%d" % (i, k) for i in range(3) for k in range(20)] + ["new"]
    backup(again, tmp_path / "two")
    again.stop()
    restore(tmp_path / "two", tmp_path / "data-two")
    third = own_broker(data_dir=str(tmp_path / "data-two"), env=SMALL)
    assert len(third.drain(queue)) == 61
    # neither is the cluster of the other
    assert mark(tmp_path / "one")["cluster"] != mark(tmp_path / "two")["cluster"]


def test_an_idle_broker_is_backed_up_at_once(own_broker, tmp_path):
    broker = own_broker()
    began = time.monotonic()
    backup(broker, tmp_path / "one")
    assert time.monotonic() - began < 5
    restore(tmp_path / "one", tmp_path / "data")
    own_broker(data_dir=str(tmp_path / "data")).push_ids("q", ["a"])


def test_groups_and_their_tenants(own_broker, tmp_path):
    env = {"QUEEN_RAFT_GROUPS": "3", "QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"}
    tenants = ["00000000-0000-0000-0000-0000000000%02x" % n for n in range(1, 12)]
    broker = own_broker(env=env)
    for tenant in tenants:
        broker.push_ids("q", [tenant + "-a", tenant + "-b"], "p", headers={"x-queen-tenant": tenant})
    backup(broker, tmp_path / "one")
    assert [g["group"] for g in mark(tmp_path / "one")["groups"]] == [0, 1, 2]
    restore(tmp_path / "one", tmp_path / "data")
    again = own_broker(env=env, data_dir=str(tmp_path / "data"))
    for tenant in tenants:
        answer = again.pop("q", "p", batch=10, headers={"x-queen-tenant": tenant}).expect(200).json
        assert ids(answer) == [tenant + "-a", tenant + "-b"]
    again.stop()
    refused = own_broker(start=False, env={"QUEEN_RAFT_GROUPS": "2"}, data_dir=str(tmp_path / "data"))
    refused.port = free_port()
    refused.launch()
    assert refused.wait_exit(20) == 1
    assert "was made with 3" in refused.output()


# ---- files that are shared ------------------------------------------------------------------------------------------

def test_on_the_same_file_system_files_are_links(own_broker, tmp_path):
    broker, queue = filled(own_broker)
    if os.stat(tmp_path).st_dev != os.stat(broker.data_dir).st_dev:
        pytest.skip("the test's directories are on two file systems")
    backup(broker, tmp_path / "one")
    here = set(os.listdir(os.path.join(broker.data_dir, "log")))
    sealed = [n for n in segments(tmp_path / "one")[:-1] if os.path.basename(n) in here]  # the first one holds nothing wanted
    assert len(sealed) >= 4
    for name in sealed:
        live = os.path.join(broker.data_dir, "log", os.path.basename(name))
        assert os.stat(live).st_ino == os.stat(tmp_path / "one" / name).st_ino
    # the broker drops and reuses its own files: those of the backup stay as they are
    broker.delete_queue(queue)
    for i in range(8):
        broker.push([{"queue": queue + "-new", "payload": "y" * 200000} for _ in range(5)]).expect(201)
        broker.delete_queue(queue + "-new")
    wait_until(lambda: not os.path.exists(os.path.join(broker.data_dir, "log", os.path.basename(sealed[1]))), 30,
               "the broker has dropped a segment of the backup")
    verify(tmp_path / "one")
    restore(tmp_path / "one", tmp_path / "data")
    assert len(own_broker(data_dir=str(tmp_path / "data"), env=SMALL).drain(queue)) == 120


def test_elsewhere_unchanged_files_come_from_the_previous_backup(own_broker, other_place, tmp_path):
    broker, queue = filled(own_broker)
    one, two = (os.path.join(other_place, n) for n in ("one", "two"))
    backup(broker, one)
    assert status(broker)["bytesLinked"] == 0
    broker.push([{"queue": queue, "partition": "p", "payload": "z" * 50000} for _ in range(20)]).expect(201)
    backup(broker, two, "--from", one)
    both = [n for n in segments(one)[:-1] if n in segments(two)]
    shared = [n for n in both if os.stat(os.path.join(one, n)).st_ino == os.stat(os.path.join(two, n)).st_ino]
    assert len(shared) >= 4 and shared == both
    told = status(broker)
    assert told["bytesLinked"] >= len(shared) << 20 and told["bytesCopied"] < told["bytesLinked"]
    # each is complete by itself
    remove(one)
    restore(two, tmp_path / "data")
    assert len(own_broker(data_dir=str(tmp_path / "data"), env=SMALL).drain(queue)) == 140


def test_a_restore_shares_nothing_with_its_backup(own_broker, tmp_path):
    broker, queue = filled(own_broker, 3)
    backup(broker, tmp_path / "one")
    restore(tmp_path / "one", tmp_path / "data")
    inodes = {os.stat(p).st_ino for p in files(tmp_path / "one").values()}
    assert not inodes & {os.stat(p).st_ino for p in files(tmp_path / "data").values()}
    own_broker(data_dir=str(tmp_path / "data"), env=SMALL).push_ids(queue, ["x"], "p")
    verify(tmp_path / "one")


# ---- a backup that does not come to its end -------------------------------------------------------------------------

def slow_backup(broker, folder):
    """One that takes half a minute."""
    answer = broker.post("/api/v1/system/backup", {"dir": str(folder), "bytesPerSecond": 200000}).expect(202).json
    assert (answer["ok"], answer["backup"]["state"]) == (True, "running")
    wait_until(lambda: status(broker)["phase"] == "copy" and segments(folder), 20, "it copies")


def test_killed_in_the_middle_there_is_no_backup_and_the_broker_is_fine(own_broker, tmp_path):
    broker, queue = filled(own_broker)
    slow_backup(broker, tmp_path / "one")
    assert os.path.isdir(os.path.join(broker.data_dir, "backup"))
    broker.kill()
    assert not os.path.exists(tmp_path / "one" / "BACKUP")
    said = verify(tmp_path / "one", code=1)
    assert "no file BACKUP" in said.stderr
    restore(tmp_path / "one", tmp_path / "data", code=1)
    assert not os.path.exists(tmp_path / "data")
    broker.start()
    assert not os.path.exists(os.path.join(broker.data_dir, "backup"))
    assert len(broker.drain(queue)) == 120
    assert status(broker) is None
    backup(broker, tmp_path / "two")


def test_stopped_in_the_middle(own_broker, tmp_path):
    broker, queue = filled(own_broker)
    slow_backup(broker, tmp_path / "one")
    broker.stop(deadline=10)
    assert not os.path.exists(tmp_path / "one")
    assert not os.path.exists(os.path.join(broker.data_dir, "backup"))
    broker.start()
    assert len(broker.drain(queue)) == 120


def test_cancelled(own_broker, tmp_path):
    broker, _ = filled(own_broker)
    assert broker.delete("/api/v1/system/backup").expect(404).json["code"] == "none_running"
    os.mkdir(tmp_path / "one")
    slow_backup(broker, tmp_path / "one")
    # one at a time
    busy = broker.post("/api/v1/system/backup", {"dir": str(tmp_path / "two")}).expect(409).json
    assert (busy["ok"], busy["code"]) == (False, "busy")
    assert queen("backup", "--cancel", server=broker).returncode == 0
    ended = wait_until(lambda: status(broker)["state"] == "failed" and status(broker), 10, "it has ended")
    assert ended["error"] == "cancelled"
    assert os.listdir(tmp_path / "one") == []  # it was there before
    assert not os.path.exists(os.path.join(broker.data_dir, "backup"))
    backup(broker, tmp_path / "one")


def test_interrupted_at_the_command_line(own_broker, tmp_path):
    broker, _ = filled(own_broker)
    process = subprocess.Popen([BINARY, "backup", "one", "--rate", "200K", "--url", "http://127.0.0.1:%d" % broker.port], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: status(broker) and status(broker)["phase"] == "copy", 20, "it copies")
    assert status(broker)["dir"] == str(tmp_path / "one")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 4 and "cancelled" in said, said
    assert not os.path.exists(tmp_path / "one")


# ---- what is refused ------------------------------------------------------------------------------------------------

def test_directories_that_will_not_do(own_broker, tmp_path):
    broker = own_broker()
    os.makedirs(tmp_path / "used" / "x")
    with open(tmp_path / "file", "w"):
        pass
    os.symlink(broker.data_dir, tmp_path / "link")
    for folder, why in ((tmp_path / "used", "not empty"), ("relative", "whole path"), (broker.data_dir, "data directory"),
                        (os.path.join(broker.data_dir, "x"), "data directory"), (tmp_path / "link" / "x", "data directory"),
                        (os.path.dirname(broker.data_dir), "holds the data directory"), (tmp_path / "no" / "x", "make it first"),
                        (tmp_path / "file", "File exists|Not a directory"), ("/", "whole path")):
        answer = broker.post("/api/v1/system/backup", {"dir": str(folder)}).expect(400).json
        assert (answer["ok"], answer["code"]) == (False, "bad_request")
        assert any(w in answer["error"] for w in why.split("|")), (folder, answer)
    for body in ({}, {"dir": 5}, [], {"dir": "/" + "x" * 5000}, {"dir": "/tmp/x\0y"}, {"dir": str(tmp_path / "y"), "bytesPerSecond": -1},
                 {"dir": str(tmp_path / "y"), "previous": str(tmp_path / "used")}, {"dir": str(tmp_path / "y"), "previous": "used"}):
        assert broker.post("/api/v1/system/backup", body).expect(400).json["code"] == "bad_request"
    assert not os.path.exists(tmp_path / "y")
    assert status(broker) is None


def test_restores_that_are_refused(own_broker, tmp_path):
    broker = own_broker()
    backup(broker, tmp_path / "one")
    os.makedirs(tmp_path / "used")
    with open(tmp_path / "used" / "something", "w"):
        pass
    peers = "1=127.0.0.1:7001/127.0.0.1:7101,2=127.0.0.1:7002/127.0.0.1:7102"
    assert "not empty" in restore(tmp_path / "one", tmp_path / "used", code=1).stderr
    assert os.listdir(tmp_path / "used") == ["something"]
    assert "not among" in restore(tmp_path / "one", tmp_path / "data", "--node", 3, "--peers", peers, code=1).stderr
    for wrong in ("1", "1=a", "1=a:1", "1=a:1/b", "x=a:1/b:2", "0=a:1/b:2", "1=a:1/b:2,1=c:3/d:4"):
        assert "--peers" in restore(tmp_path / "one", tmp_path / "data", "--peers", wrong, code=1).stderr
    assert "no backup" in restore(broker.data_dir, tmp_path / "data", code=1).stderr
    assert "no backup" in restore(tmp_path / "nowhere", tmp_path / "data", code=1).stderr
    assert queen("restore", tmp_path / "one").returncode == 1
    assert queen("restore", tmp_path / "one", "--verify", "--data", tmp_path / "data").returncode == 1
    assert not os.path.exists(tmp_path / "data")


# ---- damage ---------------------------------------------------------------------------------------------------------

def test_one_wrong_byte_in_any_file_is_found(own_broker, tmp_path):
    broker, _ = filled(own_broker, 2)
    backup(broker, tmp_path / "one")
    everything = files(tmp_path / "one")
    assert len(everything) >= 8
    for name, path in everything.items():
        size = os.path.getsize(path)
        for offset in {0, size // 2, size - 1}:
            if os.stat(path).st_nlink > 1:  # the broker's own
                with open(path, "rb") as file:
                    text = file.read()
                os.unlink(path)
                with open(path, "wb") as file:
                    file.write(text)
            flip(path, offset)
            said = verify(tmp_path / "one", code=2)
            assert str(path) in said.stderr, (name, said.stderr)
            flip(path, offset)
    verify(tmp_path / "one")
    # longer, shorter, gone: all are told at once, and nothing is written
    names = segments(tmp_path / "one")[:2] + ["group-0/store/CURRENT"]
    with open(everything[names[0]], "ab") as file:
        file.write(b"\0")
    os.truncate(everything[names[1]], 5000)
    os.unlink(everything[names[2]])
    said = restore(tmp_path / "one", tmp_path / "data", code=2)
    for name, why in zip(names, ("longer", "cut off", "missing")):
        assert any(name in line and why in line for line in said.stderr.split("\n")), said.stderr
    assert not os.path.exists(tmp_path / "data")


def test_a_damaged_file_of_the_broker_does_not_get_into_a_backup(own_broker, tmp_path):
    broker, queue = filled(own_broker)
    first = sorted(os.listdir(os.path.join(broker.data_dir, "log")))[1]
    path = os.path.join(broker.data_dir, "log", first)
    flip(path, 500000)
    failed = backup(broker, tmp_path / "one", code=4)
    assert path in failed.stderr and "damaged at offset" in failed.stderr
    assert not os.path.exists(tmp_path / "one")
    told = status(broker)
    assert told["state"] == "failed" and path in told["error"]
    # the broker goes on, and once the file is right so do backups
    broker.push_ids(queue, ["on"], "p")
    flip(path, 500000)
    backup(broker, tmp_path / "one")


def test_what_was_not_restored_to_its_end_does_not_start(own_broker, tmp_path):
    broker, _ = filled(own_broker, 2)
    backup(broker, tmp_path / "one")
    restore(tmp_path / "one", tmp_path / "data")
    os.unlink(tmp_path / "data" / "identity")  # the last file that is made
    again = own_broker(start=False, data_dir=str(tmp_path / "data"), env=SMALL)
    again.port = free_port()
    again.launch()
    assert again.wait_exit(20) == 2
    assert "identity" in again.output()


# ---- several nodes --------------------------------------------------------------------------------------------------

def restored_cluster(folder, cluster):
    """Puts the backup into the directories of a cluster that was made and not started."""
    cluster.make()
    for node in cluster.voters():
        restore(folder, node.data_dir, "--node", node.number, "--peers", cluster.peers())
    for node in cluster.voters():
        node.launched()
    cluster.wait_ready(30)


def test_a_cluster_restored_from_one_node(own_broker, tmp_path):
    broker = own_broker(env=SMALL)
    load = Load(broker).start()
    wait_until(lambda: min(load.counts()) >= 60, 60, "some load")
    before = load.counts()
    backup(broker, tmp_path / "one")
    load.stop()
    cluster = Cluster(3, start=False, env=SMALL)
    try:
        restored_cluster(tmp_path / "one", cluster)
        leader = cluster.leader()
        members = leader.get("/api/v1/raft/members").expect(200).json["members"]
        assert sorted(m["nodeId"] for m in members) == [1, 2, 3]
        for node in cluster.voters():
            node.push_ids(load.queue, ["after-%d" % node.number], "after")
        # a node that is emptied of nothing: each takes over, and has everything
        leader.kill()
        other = cluster.wait_leader(other_than=leader)
        assert len(other.drain(load.queue)) >= sum(before) + 3
        leader.launched()
        cluster.wait_ready(30)
        for node in cluster.voters():
            assert node.kill() is None
        for node in cluster.voters():
            node.launched()
        cluster.wait_ready(30)
        got = [m for m in cluster.leader().drain(load.queue) if m["partition"] == "after"]
        assert sorted(m["transactionId"] for m in got) == ["after-1", "after-2", "after-3"]
    finally:
        cluster.close()


def test_a_backup_of_any_node_of_a_cluster(own_broker, tmp_path):
    with Cluster(3, env=SMALL) as cluster:
        leader = cluster.leader()
        follower = next(n for n in cluster.voters() if n is not leader)
        done = threading.Event()
        answered = []

        def push():
            while not done.is_set():
                name = "m-%d" % len(answered)
                leader.push_ids("q", [name], "p")
                answered.append(name)

        thread = threading.Thread(target=push)
        thread.start()
        wait_until(lambda: len(answered) > 200, 30, "some messages")
        before = len(answered)
        backup(follower, tmp_path / "one")
        done.set()
        thread.join()
        restore(tmp_path / "one", tmp_path / "data")
        again = own_broker(data_dir=str(tmp_path / "data"), env=SMALL)
        got = [m["transactionId"] for m in again.drain("q")]
        assert len(got) >= before and got == ["m-%d" % n for n in range(len(got))]
        # nodes of the old cluster and the restored one never talk
        assert again.get("/api/v1/raft/status").json["clusterId"] != leader.get("/api/v1/raft/status").json["clusterId"]


# ---- looking through sealed files -----------------------------------------------------------------------------------

def counter(broker, name):
    for line in broker.get("/metrics/prometheus").expect(200).body.decode().splitlines():
        if line.startswith(name + " "):
            return int(line.split()[1])
    raise AssertionError("there is no " + name)


def test_damage_of_a_store_file_is_found_while_nobody_reads_it(own_broker):
    broker, queue = filled(own_broker, env={"QUEEN_SCRUB_BYTES_S": str(1 << 20)})
    broker.restart()
    store = os.path.join(broker.data_dir, "store")
    wait_until(lambda: counter(broker, "queen_scrub_bytes_total") > 0, 20, "the log's files are read first")
    tables = sorted(n for n in os.listdir(store) if n.endswith(".sst"))
    path = max((os.path.join(store, n) for n in tables), key=os.path.getsize)
    flip(path, 100)
    os.utime(path, (1, 1))  # files of the last minute may be unfinished
    wait_until(lambda: counter(broker, "queen_scrub_damaged_total") == 1, 60, "it is found")
    said = [line for line in broker.output().splitlines() if "the store file" in line and "is damaged" in line]
    assert len(said) == 1 and path in said[0]


def test_damage_of_a_sealed_file_is_found_while_nobody_reads_it(own_broker):
    broker, queue = filled(own_broker, env={"QUEEN_SCRUB_BYTES_S": str(100 << 20)})
    broker.restart()
    wait_until(lambda: counter(broker, "queen_scrub_bytes_total") >= 4 << 20, 20, "sealed files are read")
    assert counter(broker, "queen_scrub_damaged_total") == 0
    broker.stop()
    log = os.path.join(broker.data_dir, "log")
    names = sorted(n for n in os.listdir(log) if n.endswith(".seg"))
    path = os.path.join(log, names[1])
    flip(path, 700000)
    broker.start()
    wait_until(lambda: counter(broker, "queen_scrub_damaged_total") == 1, 20, "it is found")
    said = [line for line in broker.output().splitlines() if "is damaged at offset" in line]
    assert len(said) == 1 and path in said[0]
    # it is told, not acted on
    broker.push_ids(queue, ["more"], "p")


def test_looking_through_can_be_slow_or_off(own_broker):
    slow, _ = filled(own_broker, env={"QUEEN_SCRUB_BYTES_S": "1000"})
    off, _ = filled(own_broker, 2, env={"QUEEN_SCRUB_BYTES_S": "0"})
    slow.restart()
    wait_until(lambda: counter(slow, "queen_scrub_bytes_total") > 0, 20, "it began")
    time.sleep(1)
    assert counter(slow, "queen_scrub_bytes_total") <= 2 << 20
    assert counter(off, "queen_scrub_bytes_total") == 0
    slow.stop(deadline=10)  # at once, although the next megabyte is far away
