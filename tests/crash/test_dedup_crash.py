"""Ids are remembered exactly as long and exactly as well as the messages are stored."""
import os
import time

import crash_broker
import pytest


def push(conn, txid, queue="q"):
    status, answer = conn.json("POST", "/api/v1/push", {"items": [{"queue": queue, "transactionId": txid, "payload": {"id": txid}}]})
    assert status == 201, (status, answer)
    return answer[0]


def drain(conn, queue="q"):
    status, answer = conn.json("GET", f"/api/v1/pop/queue/{queue}?consumerGroup=d{time.monotonic_ns()}&subscriptionMode=all&autoAck=true&batch=1000")
    return answer["messages"] if status == 200 else []


def retry_until_answered(broker, txid):
    conn = broker.conn()
    answer = push(conn, txid)
    messages = [m for m in drain(conn) if m["transactionId"] == txid]
    assert len(messages) == 1, f"{txid} is there {len(messages)} times; the retry was answered {answer}"
    assert (messages[0]["id"], messages[0]["offset"]) == (answer["message_id"], answer["offset"])
    again = push(conn, txid)
    assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", answer["message_id"], answer["offset"])
    conn.close()
    return answer


CRASHES = ("log-staged", "log-written", "log-synced", "apply-before", "apply-after")


@pytest.mark.skipif(not os.path.exists(crash_broker.CRASH_BINARY), reason="needs a build with crash points")
@pytest.mark.parametrize("point", CRASHES)
def test_a_push_that_died_on_its_way_is_never_called_a_duplicate_of_nothing(brokers, point):
    """Whatever the first try came to, the retry's answer is true: queued now, or a duplicate of a message that can be read."""
    broker = brokers(binary=crash_broker.CRASH_BINARY).start()
    conn = broker.conn()
    push(conn, "before")
    for number in range(3):
        broker.kill()
        broker.spawn(env={"QUEEN_CRASH_AT": f"{point}:{number + 1}"})
        txid = f"x-{number}"
        if broker.wait_ready():
            conn = broker.conn()
            with pytest.raises(crash_broker.Gone):
                for _ in range(50):
                    push(conn, txid)
        broker.wait_dead(10)
        broker.start()
        retry_until_answered(broker, txid)


@pytest.mark.parametrize("rule", ["op=sync path=data/log/*.seg errno=EIO", "op=write path=data/log/*.seg errno=EIO"])
def test_a_push_whose_sync_failed_is_not_remembered_without_its_message(brokers, rule):
    broker = brokers(power=True).start()
    conn = broker.conn()
    push(conn, "before")
    broker.faults.arm(rule)
    conn.socket.settimeout(10)
    try:
        status, answer = conn.json("POST", "/api/v1/push", {"items": [{"queue": "q", "transactionId": "x", "payload": {"id": "x"}}]})
        assert status == 503, f"answered {status} {answer} although its sync failed"
    except crash_broker.Gone:
        pass
    assert broker.wait_dead(10) == 3, broker.log_tail()
    broker.faults.arm()
    broker.faults.power_cut(1, "lose")
    broker.start()
    answer = retry_until_answered(broker, "x")
    assert answer["status"] == "queued" and answer["offset"] == 1


def test_an_id_is_known_across_restarts(brokers):
    """Consumption, a clean restart and kill -9 do not end its window. That the window does end: tests/api/scenarios/test_dedup_runs.py."""
    window_s = 600
    broker = brokers().start()
    conn = broker.conn()
    status, _ = conn.call("POST", "/api/v1/configure", {"queue": "q", "options": {"dedupWindowSeconds": window_s}})
    assert status == 200
    first = push(conn, "X")
    assert (first["status"], first["offset"]) == ("queued", 0)

    def repeat():
        fresh = broker.conn()
        answer = push(fresh, "X")
        assert (answer["status"], answer["message_id"], answer["offset"]) == ("duplicate", first["message_id"], 0)
        fresh.close()

    repeat()
    status, popped = conn.json("GET", "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all")
    message = popped["messages"][0]
    ack = {"transactionId": "X", "partitionId": message["partitionId"], "leaseId": message["leaseId"], "consumerGroup": "g"}
    status, acked = conn.json("POST", "/api/v1/ack", ack)
    assert acked[0]["success"]
    repeat()
    conn.close()
    assert broker.terminate() == 0
    broker.start()
    repeat()
    broker.kill()
    broker.start()
    repeat()
