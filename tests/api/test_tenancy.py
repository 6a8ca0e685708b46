"""Tenants behind a trusted proxy: the same names are different things."""

import uuid

import pytest

from queen import STALE_ERROR, ids

ON = {"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"}


def tenant():
    return {"x-queen-tenant": str(uuid.uuid4())}


def test_two_tenants_push_the_same_names_and_ids(own_broker, queue):
    # 18
    broker = own_broker(env=ON)
    one, two = tenant(), tenant()
    results = [broker.push_ids(queue, ["t-1"], "p", headers=h)[0] for h in (one, two, None)]
    assert [(r["status"], r["offset"]) for r in results] == [("queued", 0)] * 3
    assert len({r["message_id"] for r in results}) == 3
    for headers, result in zip((one, two, None), results):
        answer = broker.pop(queue, "p", headers=headers).expect(200).json
        assert ids(answer) == ["t-1"]
        assert answer["messages"][0]["id"] == result["message_id"]
        again = broker.push([{"queue": queue, "partition": "p", "transactionId": "t-1", "payload": 1}], headers=headers).expect(201).json[0]
        assert (again["status"], again["message_id"]) == ("duplicate", result["message_id"])
    assert broker.pop(queue, "p", headers=tenant()).status == 204


def test_default_tenant_is_the_named_one(own_broker, queue):
    broker = own_broker(env=ON)
    broker.push_ids(queue, ["t-1"], "p")
    answer = broker.pop(queue, "p", headers={"x-queen-tenant": "00000000-0000-0000-0000-000000000001"}).expect(200).json
    assert ids(answer) == ["t-1"]


def test_another_tenants_partition_cannot_be_acked(own_broker, queue):
    # 53
    broker = own_broker(env=ON)
    one, two = tenant(), tenant()
    broker.push_ids(queue, ["t-1"], "p", headers=one)
    message = broker.pop(queue, "p", headers=one).expect(200).json["messages"][0]
    body = {"transactionId": "t-1", "partitionId": message["partitionId"], "leaseId": message["leaseId"]}
    refused = broker.ack_body(body, headers=two).expect(200).json[0]
    assert refused["success"] is False
    number = message["partitionId"]
    assert refused["error"] in ("partition %s not owned by this tenant" % number, "no partition %s" % number)
    extended = broker.post("/api/v1/lease/%s/extend" % message["leaseId"], {"seconds": 60}, headers=two).expect(200).json
    assert (extended["success"], extended["renewed"], extended["newExpiresAt"]) == (False, 0, None)
    accepted = broker.ack_body(body, headers=one).expect(200).json[0]
    assert (accepted["success"], accepted["leaseReleased"]) == (True, True)
    assert STALE_ERROR != accepted["error"]


@pytest.mark.parametrize("value", ["x", "00000000-0000-0000-0000-00000000000", "{00000000-0000-0000-0000-000000000001}x"])
def test_malformed_tenant_is_refused(own_broker, queue, value):
    broker = own_broker(env=ON)
    answer = broker.push([{"queue": queue, "payload": 1}], headers={"x-queen-tenant": value})
    assert answer.status == 400
    assert answer.json == {"error": "invalid x-queen-tenant header (must be a UUID)"}


def test_tenant_header_means_nothing_when_tenancy_is_off(broker, queue):
    broker.push_ids(queue, ["t-1"], "p", headers=tenant())
    assert ids(broker.take(queue, "p")) == ["t-1"]
    broker.push([{"queue": queue, "payload": 1}], headers={"x-queen-tenant": "not a uuid"}).expect(201)
