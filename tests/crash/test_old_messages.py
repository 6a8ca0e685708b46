"""A message is found by its id also when that id is in no index any more: the wall clock goes on for hours."""

import json
import time


def push(conn, queue, names, partition="p"):
    items = [{"queue": queue, "partition": partition, "transactionId": n, "payload": {"id": n}} for n in names]
    status, answer = conn.json("POST", "/api/v1/push", {"items": items})
    assert status == 201, answer


def lane(conn, queue):
    status, answer = conn.json("GET", "/api/v1/resources/queues/" + queue)
    assert status == 200
    return answer["partitions"][0]["id"]


def find(conn, partition, name):
    status, answer = conn.json("GET", "/api/v1/messages/%s/%s" % (partition, name))
    return answer["data"]["id"] if status == 200 else status


def test_old_messages_are_found(brokers):
    broker = brokers(power=False).start()
    conn = broker.conn()
    status, _ = conn.json("POST", "/api/v1/configure", {"queue": "q", "options": {"dedupWindowSeconds": 60}})
    assert status == 200
    for block in range(200):
        push(conn, "q", ["a%d-%d" % (block, i) for i in range(20)])
    partition = lane(conn, "q")
    broker.faults.set_clock(wall_s=4 * 3600)
    deadline = time.monotonic() + 5
    while True:  # until the broker has seen the new time
        push(conn, "q", ["now-%d" % time.monotonic_ns()])
        status, answer = conn.json("GET", "/api/v1/messages?queue=q")
        assert status == 200
        if all(m["transactionId"].startswith("now-") for m in answer["messages"]):
            break
        assert time.monotonic() < deadline
    # The same id again is a new message: the window is past. The first one is meant.
    push(conn, "q", ["new"])
    for restart in (False, True):
        if restart:
            conn.close()
            broker.kill()
            broker.start()
            conn = broker.conn()
        for name in ("a0-0", "a0-19", "a63-0", "a64-7", "a150-3", "a199-19", "new"):
            assert find(conn, partition, name) == name
        assert find(conn, partition, "never") == 404
        status, answer = conn.json("GET", "/api/v1/messages/%s/a150-3" % partition)
        assert (status, answer["offset"], json.dumps(answer["payload"])) == (200, 3003, '{"id": "a150-3"}')
