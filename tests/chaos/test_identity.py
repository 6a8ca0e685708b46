"""A disk that was emptied, put back to an older state, copied or swapped does not vote under its old name."""
import os
import shutil
import time

import pytest
from cluster import wipe


def push(client, identity):
    body = {"items": [{"queue": "kept", "partition": "p", "transactionId": identity, "payload": identity}]}
    status, answer, _ = client.insist("POST", "/api/v1/push", body, deadline_s=20.0)
    assert status == 201, answer
    return answer[0]["offset"]


def refused(node, codes, *words):
    """It stops by itself, with the exit code of a wrong directory or of wrong settings, and says why."""
    node.expected_down = True
    code = node.wait_dead(15.0)
    text = node.log_text()
    assert code in codes, f"exit code {code} of a disk that must not vote:\n{text[-1500:]}"
    assert all(word in text for word in words), f"{words} are not in:\n{text[-2000:]}"


def overwrite(source, target):
    """The old files' contents come back in place: same inodes, as a snapshot of the file system gives them back."""
    for folder, _, names in os.walk(target):
        there = os.path.join(source, os.path.relpath(folder, target))
        for name in names:
            if not os.path.exists(os.path.join(there, name)):
                os.unlink(os.path.join(folder, name))
    for folder, _, names in os.walk(source):
        here = os.path.join(target, os.path.relpath(folder, source))
        os.makedirs(here, exist_ok=True)
        for name in names:
            with open(os.path.join(folder, name), "rb") as old, open(os.path.join(here, name), "r+b" if os.path.exists(os.path.join(here, name)) else "wb") as new:
                new.truncate(0)
                shutil.copyfileobj(old, new)


@pytest.mark.seconds(6)
@pytest.mark.parametrize("fate", ["wiped", "copied back", "rolled back", "swapped"])
def test_a_disk_that_is_not_the_one_it_was(clusters, fate):
    cluster = clusters(3).start()
    a = cluster.leader()
    b, c = [n for n in cluster.nodes if n is not a]
    client = cluster.client("identity")
    first = [push(client, f"early-{n}") for n in range(20)]
    if fate in ("copied back", "rolled back"):
        assert b.terminate() == 0
        shutil.copytree(b.data, b.data + ".old")
        b.start()
    cluster.wait_equal()
    assert c.terminate() == 0
    cluster.members = [a, b]
    late = [push(client, f"late-{n}") for n in range(20)]
    assert b.terminate() == 0
    if fate == "wiped":
        wipe(b.data)
    elif fate == "copied back":
        wipe(b.data)
        shutil.copytree(b.data + ".old", b.data)
    elif fate == "rolled back":
        overwrite(b.data + ".old", b.data)
    else:
        os.rename(b.data, b.data + ".mine")
        os.rename(c.data, b.data)
        os.rename(b.data + ".mine", c.data)
    a.kill()
    b.spawn()
    c.spawn()
    if fate == "swapped":
        refused(b, (1, 2), "the data directory of node")
        refused(c, (1, 2), "the data directory of node")
    else:
        refused(b, (2,), "emove the node from the cluster", "QUEEN_RAFT_JOIN=true")
    # what is left is no majority: nothing is answered, least of all with the late messages missing
    if fate != "swapped":
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            status, answer = c.ask("POST", "/api/v1/push", {"items": [{"queue": "kept", "partition": "p", "payload": 0}]}, timeout=1.0)
            assert status in (None, 503), f"answered by a minority: {status} {answer}"
    else:
        for node in (b, c):
            os.rename(node.data, node.data + ".theirs")
        os.rename(b.data + ".theirs", c.data)
        os.rename(c.data + ".theirs", b.data)
        b.spawn()
        c.spawn()
    a.spawn()
    cluster.members = [a, c]
    for node in cluster.members:
        assert node.wait_ready(20.0), node.log_tail()
    for number, (offset, name) in enumerate([*zip(first, [f"early-{n}" for n in range(20)]), *zip(late, [f"late-{n}" for n in range(20)])]):
        status, answer, _ = client.insist("POST", "/api/v1/push", {"items": [{"queue": "kept", "partition": "p", "transactionId": name, "payload": name}]})
        assert (answer[0]["status"], answer[0]["offset"]) == ("duplicate", offset), (number, name, answer)
    assert push(client, "after") >= 40  # what a minority left unanswered may have happened since
    client.close()
