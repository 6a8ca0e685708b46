"""queen cluster against nodes: a fourth one joins, votes and leaves; what is refused; nodes that are away."""

import json
import subprocess

import pytest

from cluster import BASE, Cluster
from queen import BINARY, wait_until

OK, NO, REFUSED = 0, 3, 4


def cluster(node, *args):
    """Runs `queen cluster ...` against a node; returns (exit code, output, stderr)."""
    done = subprocess.run([BINARY, "cluster", *args, "--server", "http://127.0.0.1:%d" % node.port], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=90)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def states(output):
    """{node id: (role, state)} of a members table."""
    lines = [line.split() for line in output.splitlines()]
    at = next(i for i, cells in enumerate(lines) if cells[:1] == ["NODE"])
    return {int(cells[0]): (cells[1], cells[2]) for cells in lines[at + 1:]}


@pytest.fixture(scope="module")
def nodes():
    with Cluster(3, spare=1) as made:
        yield made


@pytest.mark.seconds(8)
def test_a_node_is_added_by_a_follower_and_votes_and_leaves(nodes):
    leader, asked, new = nodes.leader(), nodes.followers()[0], nodes.nodes[3]
    leader.push_ids("orders", ["id-%d" % n for n in range(500)])
    new.launched()
    where = ["--id", "4", "--raft", new.raft, "--http", new.http]
    code, output, errors = cluster(asked, "add", *where)
    assert code == OK, (output, errors)
    assert output.splitlines() == ["node 4 is a learner", "voters: 1, 2, 3", "learners: 4",
                                   "node 4 has caught up; it becomes a voter with: queen cluster promote 4"]
    code, output, _ = cluster(asked, "members")
    assert code == OK and states(output)[4] == ("learner", "learner")
    assert cluster(asked, "add", *where)[0] == OK
    code, output, errors = cluster(asked, "promote", "4")
    assert (code, errors, output.splitlines()) == (OK, "", ["node 4 is a voter", "voters: 1, 2, 3, 4"])
    wait_until(lambda: states(cluster(new, "members")[1]).get(4) == ("voter", "follower"), 10, "node 4 votes", every=0.1)
    assert cluster(new, "status")[1].splitlines()[0] == "node 4: node %d leads" % leader.number
    code, output, errors = cluster(asked, "remove", "4")
    assert (code, errors, output.splitlines()) == (OK, "", ["node 4 is no member any more", "voters: 1, 2, 3"])
    assert sorted(states(cluster(leader, "members")[1])) == [1, 2, 3]
    new.kill()


def test_refusals_name_their_code(nodes):
    asked = nodes.followers()[0]
    wrong = ["--raft", "127.0.0.1:1", "--http", "127.0.0.1:2"]
    for code, args in [("not_a_learner", ["promote", "9"]), ("already_voter", ["add", "--id", "1", *wrong]),
                       ("not_a_member", ["address", "--id", "9", *wrong])]:
        status, output, errors = cluster(asked, *args)
        assert (status, output) == (REFUSED, "") and " %s: " % code in errors, (args, errors)
    assert cluster(asked, "remove", "9")[0] == OK  # it is so already


def test_addresses_of_a_member_change(nodes):
    asked, moved = nodes.leader(), nodes.followers()[0]
    code, output, errors = cluster(asked, "address", "--id", str(moved.number), "--raft", moved.raft, "--http", "localhost:%d" % moved.port)
    assert (code, errors) == (OK, ""), output
    wait_until(lambda: [m["http"] for m in asked.get(BASE).expect(200).json["membership"]["members"] if m["nodeId"] == moved.number]
               == ["localhost:%d" % moved.port], 15)


@pytest.mark.seconds(6)
def test_nodes_that_are_away(nodes):
    leader = nodes.leader()
    dead, left = nodes.followers()
    dead.kill()
    code, output, _ = cluster(left, "members")
    assert (code, states(output)[dead.number]) == (OK, ("voter", "unreachable"))
    code, output, _ = cluster(leader, "status")
    assert code == OK and "FOLLOWER" in output
    leader.kill()
    wait_until(lambda: cluster(left, "status")[0] == NO, 20, "the last node knows no leader", every=0.2)
    code, output, _ = cluster(left, "members", "--json")
    assert code == NO and json.loads(output)["leaderId"] is None
    leader.start()
    dead.start()
    wait_until(lambda: cluster(left, "status")[0] == OK, 20, "a leader again", every=0.2)
