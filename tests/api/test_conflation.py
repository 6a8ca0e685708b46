"""Conflation: a group that only wants the last value of each lane."""

import pytest

from queen import ids, offsets


def register(broker, queue, group="c"):
    answer = broker.pop(queue, group=group, conflation=True, subscriptionMode="all").expect(200).json
    return answer


@pytest.mark.parametrize("params", [
    {"conflation": True}, {"conflation": True, "group": "c", "autoAck": True}, {"conflation": True, "group": "c", "commitOnDelivery": True},
], ids=str)
def test_conflation_needs_a_group_and_a_lease(broker, queue, params):
    # 35
    broker.push_ids(queue, ["a"], "p")
    refused = broker.pop(queue, **params)
    assert refused.status == 400
    body = refused.json
    assert (body["success"], body["messages"]) == (False, [])
    assert isinstance(body["error"], str) and body["error"]


def test_conflating_group_gets_the_newest_and_ack_passes_all(broker, queue):
    # 35
    broker.push_ids(queue, ["a", "b", "c", "d", "e"], "p")
    answer = broker.take(queue, group="c", conflation=True, subscriptionMode="all")
    assert (ids(answer), offsets(answer)) == (["e"], [4])
    assert answer["conflation"] is True
    assert "conflationConflict" not in answer
    result = broker.ack(answer["messages"][0])
    assert (result["success"], result["leaseReleased"]) == (True, True)
    assert broker.depth(queue, "c")["pending"] == 0
    empty = broker.pop(queue, group="c", conflation=True).expect(200).json
    assert (empty["messages"], empty["conflation"], empty["leaseId"], empty["partition"], empty["partitionId"]) == ([], True, "", "", "")
    assert empty["partitionsClaimed"] == 0
    broker.push_ids(queue, ["f", "g"], "p")
    assert ids(broker.take(queue, group="c", conflation=True)) == ["g"]


def test_stored_policy_wins_and_a_differing_pop_is_told(broker, queue):
    # 36
    broker.push_ids(queue, ["a", "b"], "p")
    register(broker, queue, "c")
    broker.push_ids(queue, ["x", "y"], "p2")
    answer = broker.take(queue, group="c", conflation=False)
    assert ids(answer) == ["y"]
    assert answer["conflation"] is True
    assert answer["conflationConflict"] is True
    silent = broker.pop(queue, group="c").expect(200).json
    assert silent["conflation"] is True
    assert "conflationConflict" not in silent


def test_plain_group_asked_to_conflate_keeps_everything_and_is_told(broker, queue):
    broker.push_ids(queue, ["a", "b", "c"], "p")
    first = broker.take(queue, group="g", subscriptionMode="all", batch=1)
    assert "conflation" not in first
    assert broker.ack(first["messages"][0])["leaseReleased"] is True
    answer = broker.take(queue, group="g", conflation=True)
    assert ids(answer) == ["b", "c"]
    assert answer["conflationConflict"] is True
    assert "conflation" not in answer


def test_one_message_a_lane_and_many_lanes_by_default(broker, queue):
    for lane in range(5):
        broker.push_ids(queue, ["%d-%d" % (lane, i) for i in range(3)], "p%d" % lane)
    answer = broker.take(queue, group="c", conflation=True, subscriptionMode="all")
    assert sorted(ids(answer)) == ["%d-2" % lane for lane in range(5)]
    assert answer["partitionsClaimed"] == 5
    depth = broker.depth(queue, "c")
    assert depth["conflation"] is True
    assert (depth["pending"], depth["effectivePending"], depth["effectiveReady"]) == (15, 5, 0)


def test_newer_value_during_a_lease_comes_after_the_ack(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    first = broker.take(queue, group="c", conflation=True, subscriptionMode="all")
    broker.push_ids(queue, ["x", "y"], "p")
    assert broker.pop(queue, group="c").expect(200).json["messages"] == []
    assert broker.ack(first["messages"][0])["leaseReleased"] is True
    second = broker.take(queue, group="c")
    assert (ids(second), offsets(second)) == (["y"], [3])


def test_failed_conflating_claim_comes_back_as_the_then_newest(broker, queue):
    broker.push_ids(queue, ["a", "b"], "p")
    first = broker.take(queue, group="c", conflation=True, subscriptionMode="all")
    broker.push_ids(queue, ["z"], "p")
    assert broker.ack(first["messages"][0], "failed")["leaseReleased"] is True
    assert ids(broker.take(queue, group="c")) == ["z"]
