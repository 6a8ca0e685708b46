"""Refusals under pressure: a full disk, a full admission budget."""

from queen import ids


def test_full_disk_refuses_pushes_and_serves_everything_else(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a", "b"], "p")
    other = queue + "-other"
    broker.push_ids(other, ["x"], "p")
    # Any file system is fuller than a high-water mark of one percent.
    broker.restart(env={"QUEEN_RAFT_DISK_HIGH_PCT": "1", "QUEEN_RAFT_DISK_LOW_PCT": "1"})
    refused = broker.push([{"queue": queue, "partition": "p", "transactionId": "c", "payload": 1}])
    assert refused.status == 507
    assert refused.json["code"] == "storage_full"
    duplicate = broker.push([{"queue": queue, "partition": "p", "transactionId": "a", "payload": 1}])
    assert duplicate.status in (201, 507)
    answer = broker.take(queue, "p")
    assert ids(answer) == ["a", "b"]
    assert broker.ack(answer["messages"][0])["success"] is True
    assert broker.extend(answer["leaseId"], 30)["renewed"] == 1
    assert broker.ack(answer["messages"][1])["leaseReleased"] is True
    assert broker.delete_queue(other)["deleted"] is True
    assert broker.get("/health").status in (200, 503)
    assert b"queen_raft_storage_full 1" in broker.get("/metrics/prometheus").expect(200).body
    broker.restart(env={})
    result = broker.push_ids(queue, ["c"], "p")[0]
    assert result["offset"] == 2
