"""Leases end by themselves, and at one place in the log; waiting consumers are served whoever leads."""
import json
import random
import threading
import time

import pytest
from cluster import HTTP_PORT, Gone, NodeConn
from crash_broker import ALL

LANES = 1000 if ALL else 120
POLLS = 300 if ALL else 60


def push_lanes(client, queue, lanes, tag):
    for at in range(0, len(lanes), 100):
        items = [{"queue": queue, "partition": lane, "transactionId": f"{tag}-{lane}", "payload": lane} for lane in lanes[at : at + 100]]
        status, answer, _ = client.insist("POST", "/api/v1/push", {"items": items})
        assert status == 201 and all(r["status"] == "queued" for r in answer), answer


@pytest.mark.seconds(11)
def test_lanes_of_dead_consumers_come_back_on_the_next_leader(clusters):
    """The leader is killed one second before the leases end. Nobody touches the lanes; polls that wait get them."""
    cluster = clusters(3).start()
    client = cluster.client("dead")
    lanes = [f"lane-{n}" for n in range(LANES)]
    client.insist("POST", "/api/v1/configure", {"queue": "work", "options": {"retryLimit": 1}})
    push_lanes(client, "work", lanes, "m")
    leased, last = 0, 0.0
    while leased < LANES:
        last = time.monotonic()
        status, answer, _ = client.insist("GET", "/api/v1/pop/queue/work?consumerGroup=g&batch=64&partitions=64&leaseSeconds=3&subscriptionMode=all")
        assert status == 200, answer
        assert all(m["deliveryAttempt"] == 1 for m in answer["messages"])
        leased += len(answer["messages"])
    answered = time.monotonic()
    time.sleep(max(0.0, last + 2.0 - time.monotonic()))
    leader = cluster.leader()
    cluster.members = [n for n in cluster.nodes if n is not leader]
    leader.kill()
    seen, lock = {}, threading.Lock()

    def consume(node):
        conn = None
        while time.monotonic() < answered + 12 and len(seen) < LANES:
            try:
                conn = conn or NodeConn((node.address, HTTP_PORT), 15.0)
                status, answer = conn.json("GET", "/api/v1/pop/queue/work?consumerGroup=g&batch=20&partitions=20&leaseSeconds=60&wait=true&timeout=8000")
            except Gone:
                conn = None
                continue
            now = time.monotonic()
            with lock:
                for m in answer["messages"] if status == 200 else []:
                    seen[m["partition"]] = (m["deliveryAttempt"], now)

    threads = [threading.Thread(target=consume, args=(node,)) for node in cluster.members for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(seen) == LANES, f"{LANES - len(seen)} lanes never came back"
    assert {attempt for attempt, _ in seen.values()} == {2}
    late = max(now for _, now in seen.values()) - (answered + 3)
    assert late < 5, f"the last lane came {late:.2f} s after its lease must have ended"
    leader.start()
    cluster.members = cluster.nodes
    status, depth, _ = client.insist("GET", "/api/v1/resources/queues/work/depth?group=g")
    assert depth["pending"] == LANES and depth["processing"] == LANES, {k: depth[k] for k in ("pending", "processing")}
    status, letters, _ = client.insist("GET", "/api/v1/dlq?queue=work&consumerGroup=g")
    assert letters["total"] == 0, letters


@pytest.mark.seconds(12)
def test_an_ack_at_the_end_of_its_lease_counts_or_does_not(clusters, seed, tell):
    """Acks 10 ms around the lease's end while others poll, with a change of leader in the middle: success and never again, or refused and again."""
    cluster = clusters(3).start()
    rounds = 100 if ALL else 3
    lanes = [f"lane-{n}" for n in range(40)]
    client = cluster.client("edge")
    client.insist("POST", "/api/v1/configure", {"queue": "edge", "options": {"retryLimit": 1000000}})
    fates = {}  # message -> "acked" | "refused" | "unknown"
    deliveries = {}  # message -> [(sent, received)]
    lock = threading.Lock()
    over = threading.Event()
    for number in range(rounds):
        push_lanes(client, "edge", lanes, f"r{number}")

    def consume(number):
        mine = cluster.client(f"{seed}/{number}")
        rng = random.Random(f"{seed}/{number}")
        while not over.is_set():
            sent = time.monotonic()
            try:
                status, answer = mine.json("GET", "/api/v1/pop/queue/edge?consumerGroup=g&batch=1&leaseSeconds=1&subscriptionMode=all&wait=true&timeout=500")
            except Gone:
                continue
            if status != 200:
                continue
            received = time.monotonic()
            m = answer["messages"][0]
            with lock:
                deliveries.setdefault(m["transactionId"], []).append((sent, received))
            if rng.random() < 0.3:
                time.sleep(max(0.0, sent + 1 + rng.uniform(-0.01, 0.01) - time.monotonic()))
            ack_sent = time.monotonic()
            body = {"transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": m["leaseId"], "consumerGroup": "g", "status": "completed"}
            try:
                status, answer = mine.json("POST", "/api/v1/ack", body)
            except Gone:
                status = None
            fate = ("acked" if answer[0]["success"] else "refused") if status == 200 else "unknown"
            with lock:
                fates.setdefault(m["transactionId"], []).append((fate, ack_sent, time.monotonic()))

    threads = [threading.Thread(target=consume, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    cluster.leader().kill()
    cluster.leader()
    cluster.mend()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status, depth, _ = client.insist("GET", "/api/v1/resources/queues/edge/depth?group=g")
        if depth["pending"] == 0:
            break
        time.sleep(0.2)
    over.set()
    for thread in threads:
        thread.join(20)
    counts = {"acked": 0, "refused": 0, "unknown": 0}
    for message, said in fates.items():
        for fate, sent, answered in said:
            counts[fate] += 1
            if fate == "acked":
                again = [d for d in deliveries[message] if d[0] > answered]
                assert not again, f"{message} was acked and delivered again"
        if not any(fate in ("acked", "unknown") for fate, _, _ in said):
            raise AssertionError(f"{message}: every ack was refused and nothing is left: {said}")
    assert depth["pending"] == 0, depth
    assert len(fates) == rounds * len(lanes)
    tell("edge", json.dumps(counts))


def test_waiting_polls_survive_a_change_of_leader(clusters):
    """Polls parked on the followers, the leader is killed, messages come: each is handed to one of those polls, without a new request."""
    cluster = clusters(3).start()
    client = cluster.client("polls")
    push_lanes(client, "parked", ["first"], "m")
    client.insist("GET", "/api/v1/pop/queue/parked?consumerGroup=g&subscriptionMode=all&autoAck=true")
    leader = cluster.leader()
    rest = [n for n in cluster.nodes if n is not leader]
    conns = []
    for number in range(POLLS):
        conn = NodeConn((rest[number % 2].address, HTTP_PORT), 30.0)
        head = "GET /api/v1/pop/queue/parked?consumerGroup=g&batch=1&leaseSeconds=60&wait=true&timeout=20000 HTTP/1.1\r\nHost: q\r\n\r\n"
        conn.socket.sendall(head.encode())
        conns.append(conn)
    time.sleep(0.5)
    cluster.members = rest
    leader.kill()
    cluster.leader()
    began = time.monotonic()
    push_lanes(client, "parked", [f"lane-{n}" for n in range(POLLS)], "late")
    pushed = time.monotonic()
    got = []
    for conn in conns:
        conn.timeout(max(0.1, began + 12 - time.monotonic()))
        try:
            status, raw = conn.read_answer()
        except (Gone, OSError) as error:
            raise AssertionError(f"a waiting poll was cut or forgotten ({error}); {len(got)} of {POLLS} were served") from None
        assert status == 200, (status, raw, len(got))
        got.append(json.loads(raw)["messages"][0]["partition"])
    took = time.monotonic() - pushed
    assert len(set(got)) == POLLS
    assert took < 5, f"the last poll was served {took:.2f} s after the push"
    for conn in conns:
        conn.close()


def test_waiting_polls_end_by_their_own_time(clusters):
    """Also on a node that has lost the leader and finds no other."""
    cluster = clusters(3).start()
    leader = cluster.leader()
    rest = [n for n in cluster.nodes if n is not leader]
    results = []

    def poll(node):
        began = time.monotonic()
        status, answer = node.ask("GET", "/api/v1/pop/queue/empty?consumerGroup=g&wait=true&timeout=3000", timeout=20.0)
        results.append((node.number, status, answer, time.monotonic() - began))

    threads = [threading.Thread(target=poll, args=(node,)) for node in rest for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    leader.kill()
    cluster.net.cut([rest[0].number], [rest[1].number])
    for thread in threads:
        thread.join(30)
    assert len(results) == len(threads)
    for number, status, answer, took in results:
        assert status in (204, 503), (number, status, answer)
        assert took < 4.5, f"a poll of 3 s on node {number} came back after {took:.2f} s with {status} {answer}"
