"""Queue configuration: merge, null, replace, and the echo of all options."""

import pytest

from queen import UUID7, unique

DEFAULTS = {
    "priority": 0, "leaseTime": 300, "retryLimit": 3, "retryDelay": 1000, "maxSize": 0, "maxQueueSize": 0, "ttl": 3600,
    "deadLetterQueue": True, "dlqAfterMaxRetries": True, "delayedProcessing": 0, "windowBuffer": 0, "retentionSeconds": 0,
    "completedRetentionSeconds": 0, "retentionEnabled": False, "encryptionEnabled": False, "maxWaitTimeSeconds": 0,
    "minPopWaitTime": 0, "dedupWindowSeconds": 3600, "retentionSinkHold": "", "retentionSinkHoldMaxSeconds": 604800,
}

CHANGED = {
    "priority": 7, "leaseTime": 11, "retryLimit": 12, "retryDelay": 13, "maxSize": 14, "ttl": 15, "deadLetterQueue": False,
    "dlqAfterMaxRetries": False, "delayedProcessing": 16, "windowBuffer": 17, "retentionSeconds": 18, "completedRetentionSeconds": 19,
    "retentionEnabled": True, "encryptionEnabled": True, "maxWaitTimeSeconds": 20, "minPopWaitTime": 21, "dedupWindowSeconds": 22,
    "retentionSinkHold": "cold.store_1-a", "retentionSinkHoldMaxSeconds": 3600,
}

INTEGERS = [k for k, v in CHANGED.items() if type(v) is int]
BOOLEANS = [k for k, v in CHANGED.items() if type(v) is bool]


def options(broker, queue):
    return broker.queue_detail(queue)["options"]


def refused(broker, body, name=None):
    answer = broker.post("/api/v1/configure", body)
    assert answer.status == 400, answer
    assert answer.json["code"] == "bad_request"
    if name is not None:
        assert name in answer.json["error"]
    return answer


def test_new_queue_gets_the_explicit_defaults(broker, queue):
    answer = broker.post("/api/v1/configure", {"queue": queue}).expect(200).json
    assert set(answer) == {"configured", "queueId", "partitionId", "queue", "namespace", "task", "storage", "options"}
    assert answer["configured"] is True
    assert UUID7.match(answer["queueId"])
    assert answer["partitionId"] is None
    assert answer["queue"] == queue
    assert (answer["namespace"], answer["task"], answer["storage"]) == ("", "", "segments")
    assert answer["options"] == DEFAULTS
    detail = broker.queue_detail(queue)
    assert detail["options"] == DEFAULTS
    assert detail["partitions"] == []
    assert detail["id"] == answer["queueId"]


def test_all_options_are_stored_and_echoed(broker, queue):
    expected = dict(CHANGED, maxQueueSize=14)
    assert broker.configure(queue, **CHANGED)["options"] == expected
    assert options(broker, queue) == expected


def test_absent_options_keep_their_value(broker, queue):
    first = broker.configure(queue, **CHANGED)
    second = broker.configure(queue, leaseTime=99)
    assert second["options"] == dict(CHANGED, maxQueueSize=14, leaseTime=99)
    assert second["queueId"] == first["queueId"]
    third = broker.configure(queue, mode="merge")
    assert third["options"] == second["options"]


def test_null_restores_one_default(broker, queue):
    broker.configure(queue, **CHANGED)
    for name in INTEGERS + BOOLEANS:
        answer = broker.configure(queue, **{name: None})
        assert answer["options"][name] == DEFAULTS[name], name
    expected = dict(DEFAULTS, retentionSinkHold="cold.store_1-a")
    assert options(broker, queue) == expected
    assert broker.configure(queue, retentionSinkHold=None)["options"] == DEFAULTS


def test_replace_resets_what_is_not_named_and_keeps_the_id(broker, queue):
    first = broker.configure(queue, namespace="ns", task="t", **CHANGED)
    created = broker.queue_detail(queue)["createdAt"]
    answer = broker.configure(queue, mode="replace", leaseTime=5)
    assert answer["options"] == dict(DEFAULTS, leaseTime=5)
    assert (answer["namespace"], answer["task"]) == ("", "")
    assert answer["queueId"] == first["queueId"]
    assert broker.queue_detail(queue)["createdAt"] == created


def test_options_may_stand_at_the_top_level(broker, queue):
    answer = broker.post("/api/v1/configure", {"queue": queue, "leaseTime": 42, "mode": None, "namespace": "n"}).expect(200).json
    assert answer["options"] == dict(DEFAULTS, leaseTime=42)
    assert answer["namespace"] == "n"
    ignored = broker.post("/api/v1/configure", {"queue": queue, "leaseTime": 43, "options": {"retryLimit": 1}}).expect(200).json
    assert ignored["options"] == dict(DEFAULTS, leaseTime=42, retryLimit=1)


def test_namespace_and_task(broker, queue):
    answer = broker.configure(queue, namespace="billing", task="mail")
    assert (answer["namespace"], answer["task"]) == ("billing", "mail")
    kept = broker.configure(queue, leaseTime=1)
    assert (kept["namespace"], kept["task"]) == ("billing", "mail")
    top = broker.post("/api/v1/configure", {"queue": queue, "task": "post", "options": {}}).expect(200).json
    assert (top["namespace"], top["task"]) == ("billing", "post")
    assert "namespace" not in top["options"] and "task" not in top["options"]
    nothing = broker.configure(queue, namespace=None, task=7)
    assert (nothing["namespace"], nothing["task"]) == ("", "")


def test_unknown_keys_are_ignored(broker, queue):
    answer = broker.configure(queue, leaseTimes=5, colour="blue", leaseTime=6)
    assert answer["options"] == dict(DEFAULTS, leaseTime=6)


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_options_take_integers_of_32_bits_only(broker, queue, name):
    broker.configure(queue)
    for value in ("5", 1.5, True, [], {}, 2147483648, -2147483649, 10 ** 30):
        refused(broker, {"queue": queue, "options": {name: value, "ttl" if name != "ttl" else "priority": 77}}, name)
    assert options(broker, queue) == DEFAULTS


@pytest.mark.parametrize("name", BOOLEANS)
def test_boolean_options_take_booleans_only(broker, queue, name):
    broker.configure(queue)
    for value in ("true", 1, 0, [], {}):
        refused(broker, {"queue": queue, "options": {"priority": 77, name: value}}, name)
    assert options(broker, queue) == DEFAULTS


def test_refused_configuration_of_a_missing_queue_creates_nothing(broker, queue):
    refused(broker, {"queue": queue, "options": {"leaseTime": "60"}}, "leaseTime")
    assert broker.queue_detail(queue) is None


def test_clamped_options(broker, queue):
    answer = broker.configure(queue, dedupWindowSeconds=-5, minPopWaitTime=70000)
    assert answer["options"]["dedupWindowSeconds"] == 0
    assert answer["options"]["minPopWaitTime"] == 60000
    assert broker.configure(queue, minPopWaitTime=-1)["options"]["minPopWaitTime"] == 0


@pytest.mark.parametrize("value", ["a b", "a/b", "x" * 65, "caf\u00e9"])
def test_sink_name_has_a_small_alphabet(broker, queue, value):
    refused(broker, {"queue": queue, "options": {"retentionSinkHold": value}}, "retentionSinkHold")
    assert broker.queue_detail(queue) is None


@pytest.mark.parametrize("value", [0, 59, 31536001, -1])
def test_sink_hold_time_has_a_range(broker, queue, value):
    refused(broker, {"queue": queue, "options": {"retentionSinkHoldMaxSeconds": value}}, "retentionSinkHoldMaxSeconds")
    for edge in (60, 31536000):
        assert broker.configure(queue, retentionSinkHoldMaxSeconds=edge)["options"]["retentionSinkHoldMaxSeconds"] == edge


def test_merge_into_a_pushed_queue_does_not_trip_the_sink_hold_range(broker, queue):
    broker.push_ids(queue, ["a"])
    answer = broker.configure(queue, leaseTime=7)
    assert answer["options"]["leaseTime"] == 7
    assert answer["options"]["retentionSinkHoldMaxSeconds"] == 604800
    assert answer["namespace"] == queue


@pytest.mark.parametrize("body", [
    {}, {"queue": None}, {"queue": 5}, {"queue": ["q"]}, {"options": {"leaseTime": 5}}, {"queue": ""},
], ids=str)
def test_queue_name_is_required(broker, body):
    answer = broker.post("/api/v1/configure", body)
    assert answer.status == 400
    assert answer.json["code"] in ("bad_request", "bad_body")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'{"queue":"q"} x'], ids=repr)
def test_body_that_is_not_an_object_is_refused(broker, body):
    answer = broker.post("/api/v1/configure", body)
    assert answer.status == 400
    assert answer.json["code"] in ("bad_request", "bad_body")


@pytest.mark.parametrize("mode", ["merged", "", 5, "REPLACE"])
def test_unknown_mode_writes_nothing(broker, queue, mode):
    answer = broker.post("/api/v1/configure", {"queue": queue, "mode": mode, "options": {"leaseTime": 5}})
    assert answer.status == 400
    assert answer.json["error"]
    assert broker.queue_detail(queue) is None


def test_too_long_queue_name(broker):
    answer = broker.post("/api/v1/configure", {"queue": "q" * 500})
    assert answer.status == 413
    assert answer.json["code"] == "name_too_long"


def test_lease_time_of_the_queue_is_used(broker, queue):
    broker.configure(queue, leaseTime=1)
    broker.push_ids(queue, ["a"], "p")
    broker.take(queue)
    assert broker.take(queue, wait=True, timeout=4000)["messages"][0]["deliveryAttempt"] == 2


def test_configuration_survives_a_kill(own_broker):
    broker = own_broker()
    queue = unique()
    before = broker.configure(queue, namespace="ns", **CHANGED)
    broker.restart("kill")
    after = broker.configure(queue)
    assert after == before
