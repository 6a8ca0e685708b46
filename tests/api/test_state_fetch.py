"""A node that was away for longer than the log reaches back fetches the state, starts itself anew with it and is a voter like any other."""

import os

import kv
from cluster import Cluster
from queen import unique, wait_until

# Small segments, a state that is durable at once, little log kept for who comes back (but some: a node that is only slow must not need
# a state, whose source would keep its log for others too).
SHORT = {
    "QUEEN_RAFT_SEGMENT_BYTES": str(1 << 20),
    "QUEEN_RAFT_DURABLE_EVERY_MS": "50",
    "QUEEN_RAFT_DURABLE_EVERY_BYTES": str(1 << 20),
    "QUEEN_LOG_CACHE_BYTES": str(1 << 20),
    "QUEEN_RAFT_KEEP_BYTES": str(2 << 20),
}
PLACED = "is in place"
MESSAGES = 300


def payload(n):
    return {"n": n, "text": ("%d." % n) * 600}


def push(node, items):
    """Whether the node can take more just now does not matter here."""
    wait_until(lambda: node.push(items).expect((201, 429, 503)).status == 201, 30, "node %d takes messages" % node.number, every=0.1)


def fill(node, queue, first, count):
    items = [{"queue": queue, "partition": "p%d" % (n % 7), "transactionId": "t%d" % n, "payload": payload(n)}
             for n in range(first, first + count)]
    for at in range(0, count, 50):
        push(node, items[at:at + 50])


def churn(node, mib):
    """Messages of a queue that goes: log that nobody wants any more."""
    queue = unique("churn")
    for n in range(mib * 4):
        push(node, [{"queue": queue, "payload": {"n": n, "fill": "x" * 262144}}])
    node.delete_queue(queue)


def settle(node):
    """Its state is durable, and with it goes the log before it."""

    def durable():
        status = node.status()
        return status is not None and status["durableIndex"] >= status["lastLogIndex"]

    wait_until(durable, 20, "the state of node %d is durable" % node.number)


def everything(node, queue):
    """transactionId -> payload of all messages, read on this node from its own log."""
    found = {}
    for p in range(7):
        offset = 0
        while True:
            entries = [{"queue": queue, "partition": "p%d" % p, "offset": offset, "maxBytes": 1 << 20}]
            one = node.post("/api/v1/fetch", {"entries": entries}).expect(200).json["entries"][0]
            for r in one["records"]:
                found[r["transactionId"]] = r["payload"]
            if not one["records"] or one["records"][-1]["offset"] + 1 == one["highWatermark"]:
                break
            offset = one["records"][-1]["offset"] + 1
    return found


def complete(node, queue, count):
    """All messages are read on the node, which may just be starting itself anew."""
    found = {}

    def read():
        try:
            found.update(everything(node, queue))
        except OSError:
            return False
        except AssertionError as error:
            if "status 503" not in str(error):
                raise
            return False
        return len(found) >= count

    wait_until(read, 30, "all messages on node %d" % node.number)
    assert found == {"t%d" % n: payload(n) for n in range(count)}


def in_place(node):
    return node.output().count(PLACED)


def tidy(node):
    names = os.listdir(node.data_dir)
    return not any(n in ("incoming", "snapshot") or n.startswith("outgoing") for n in names)


def test_a_node_that_was_away_too_long_fetches_the_state():
    queue = unique("kept")
    with Cluster(3, env=SHORT) as cluster:
        leader = cluster.leader()
        away, other = cluster.followers()
        fill(leader, queue, 0, MESSAGES)
        kv.put(leader, "ns", "before", 1)
        churn(leader, 2)
        away.kill()
        kv.put(leader, "ns", "meanwhile", 2)
        churn(leader, 12)
        fill(leader, queue, MESSAGES, MESSAGES)
        settle(leader)

        away.launched()
        wait_until(lambda: in_place(away) == 1, 30, "the state is fetched and in place\n" + away.output())
        cluster.wait_ready(30)
        assert away.running  # the same process, which has started itself anew
        complete(away, queue, 2 * MESSAGES)
        assert kv.get(away, "ns", "before")["value"] == 1 and kv.get(away, "ns", "meanwhile")["value"] == 2

        # It counts as a voter: the leader and then the third node go.
        fill(away, queue, 2 * MESSAGES, 50)
        leader.kill()
        cluster.wait_leader(other_than=leader)
        cluster.wait_ready(30, [away, other])
        fill(other, queue, 2 * MESSAGES + 50, 50)
        complete(away, queue, 2 * MESSAGES + 100)
        leader.launched()
        cluster.wait_ready(30)
        other.kill()
        cluster.wait_leader(other_than=other)
        cluster.wait_ready(30, [away, leader])
        fill(away, queue, 2 * MESSAGES + 100, 50)
        complete(leader, queue, 2 * MESSAGES + 150)

        # What it took over lasts: the next start finds it, without another fetch.
        away.kill()
        away.launched()
        cluster.wait_ready(30, [away, leader])
        complete(away, queue, 2 * MESSAGES + 150)
        assert in_place(away) == 0
        wait_until(lambda: tidy(away), 10, "nothing is left of the fetch")


def test_it_is_killed_while_it_fetches_and_goes_on():
    queue = unique("kept")
    with Cluster(3, env=SHORT) as cluster:
        leader = cluster.leader()
        away = cluster.followers()[0]
        fill(leader, queue, 0, 50)
        away.kill()
        fill(leader, queue, 50, 2000)  # some 7 MB of live messages
        churn(leader, 10)
        settle(leader)
        for n in range(6):
            away.launched()
            incoming = os.path.join(away.data_dir, "incoming", "log")
            wait_until(lambda: (os.path.isdir(incoming) and len(os.listdir(incoming)) > n) or in_place(away), 30, "it fetches")
            away.kill()
            churn(leader, 1)
        away.launched()
        cluster.wait_ready(60)
        complete(away, queue, 2050)
        wait_until(lambda: tidy(away), 10, "nothing is left of the fetch")


def test_a_new_member_begins_with_the_state():
    queue = unique("kept")
    with Cluster(3, env=SHORT, spare=1) as cluster:
        leader = cluster.leader()
        fill(leader, queue, 0, MESSAGES)
        churn(leader, 6)
        settle(leader)
        new = cluster.join(cluster.nodes[3])
        assert in_place(new) == 1
        complete(new, queue, MESSAGES)
        cluster.followers()[0].kill()
        fill(new, queue, MESSAGES, 50)
        complete(new, queue, MESSAGES + 50)
