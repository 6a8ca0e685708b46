"""Lease extension."""

import calendar
import time

import pytest

from queen import ISO_MS, ids, wait_until

TIMES = ("newExpiresAt", "expiresAt", "lease_expires_at")


def seconds_ahead(text):
    assert ISO_MS.match(text), text
    whole = calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))
    return whole + int(text[20:23]) / 1000 - time.time()


def test_extension_moves_the_expiry_and_never_shortens(broker, queue):
    # 73
    broker.push_ids(queue, ["a"], "p")
    lease = broker.take(queue, leaseSeconds=5)["leaseId"]
    answer = broker.extend(lease, 60)
    assert set(answer) == {"leaseId", "success", "renewed"} | set(TIMES)
    assert (answer["leaseId"], answer["success"], answer["renewed"]) == (lease, True, 1)
    assert len({answer[key] for key in TIMES}) == 1
    assert 58 < seconds_ahead(answer["expiresAt"]) < 61
    again = broker.extend(lease, 1)
    assert (again["success"], again["renewed"]) == (True, 1)
    # The same expiry, shown on the wall clock: a millisecond of difference between the two clocks is allowed for.
    assert abs(seconds_ahead(again["expiresAt"]) - seconds_ahead(answer["expiresAt"])) < 0.05


def test_extended_lease_holds_the_lane(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    begin = time.monotonic()
    first = broker.take(queue, leaseSeconds=1)
    broker.extend(first["leaseId"], 2)
    again = broker.take(queue, wait=True, timeout=8000)
    assert 1.9 <= time.monotonic() - begin < 4
    assert ids(again) == ["a"]
    assert again["messages"][0]["deliveryAttempt"] == 2


def test_message_can_be_acked_in_the_extension(broker, queue):
    broker.push_ids(queue, ["a"], "p")
    message = broker.take(queue, leaseSeconds=1)["messages"][0]
    broker.extend(message["leaseId"], 30)
    time.sleep(1.2)
    result = broker.ack(message)
    assert (result["success"], result["leaseReleased"]) == (True, True)


def gone(broker, lease):
    return broker.extend(lease, 60) == {"leaseId": lease, "success": False, "renewed": 0, "newExpiresAt": None, "expiresAt": None,
                                        "lease_expires_at": None}


def test_nothing_to_extend(broker, queue):
    # 74
    assert gone(broker, "01a9c0de-1111-7abc-8def-00000000000a")
    assert gone(broker, "no-such-lease")
    broker.push_ids(queue, ["a"], "p")
    released = broker.take(queue)
    broker.ack(released["messages"][0])
    assert gone(broker, released["leaseId"])
    broker.push_ids(queue, ["b"], "p")
    expired = broker.take(queue, leaseSeconds=1)
    wait_until(lambda: broker.depth(queue)["processing"] == 0, 4, "the lease ran out")
    assert gone(broker, expired["leaseId"])
    assert ids(broker.take(queue)) == ["b"]


def test_extension_counts_the_lanes_still_held(broker, queue):
    # 75
    for lane in ("p1", "p2"):
        broker.push_ids(queue, [lane], lane)
    answer = broker.take(queue, partitions=2)
    assert broker.extend(answer["leaseId"], 30)["renewed"] == 2
    broker.ack(answer["messages"][0])
    extended = broker.extend(answer["leaseId"], 60)
    assert (extended["success"], extended["renewed"]) == (True, 1)
    broker.ack(answer["messages"][1])
    assert gone(broker, answer["leaseId"])


@pytest.mark.parametrize("body", [None, b"", b"{}", b"not json", b"[]", b'{"seconds":null}', b'{"seconds":"x"}'], ids=repr)
def test_extension_without_a_number_is_sixty_seconds(broker, queue, body):
    # 76
    broker.push_ids(queue, ["a"], "p")
    lease = broker.take(queue, leaseSeconds=5)["leaseId"]
    answer = broker.extend(lease, body=body)
    assert (answer["success"], answer["renewed"]) == (True, 1)
    assert 58 < seconds_ahead(answer["expiresAt"]) < 61


@pytest.mark.parametrize("seconds", [0, -5])
def test_extension_below_one_second_is_one(broker, queue, seconds):
    broker.push_ids(queue, ["a"], "p")
    lease = broker.take(queue, leaseSeconds=1)["leaseId"]
    answer = broker.extend(lease, seconds)
    assert (answer["success"], answer["renewed"]) == (True, 1)
    assert 0.3 < seconds_ahead(answer["expiresAt"]) < 1.5


def test_lease_holds_across_a_kill(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a", "b"], "p")
    answer = broker.take(queue, leaseSeconds=30)
    extended = broker.extend(answer["leaseId"], 60)
    broker.restart("kill")
    broker.nothing(queue)
    again = broker.extend(answer["leaseId"], 1)
    assert (again["success"], again["renewed"]) == (True, 1)
    assert seconds_ahead(again["expiresAt"]) > seconds_ahead(extended["expiresAt"]) - 1
    results = broker.ack_batch(answer["messages"])
    assert [(r["success"], r["leaseReleased"]) for r in results] == [(True, True)] * 2


def test_one_second_lease_ends_after_a_kill(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a"], "p")
    broker.take(queue, leaseSeconds=1)
    broker.restart("kill")
    message = broker.take(queue, wait=True, timeout=5000)["messages"][0]
    assert (message["transactionId"], message["deliveryAttempt"]) == ("a", 2)
