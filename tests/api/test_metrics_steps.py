"""Metrics of transactions, KV, locks, timers, waiting reads and retention: what each call moves, and nothing else of theirs."""

import concurrent.futures
import time
import uuid

from kv import call as kv_call, incr, put as kv_put
from queen import unique, wait_until
from step_kit import ack_op, cancel, commit, get, incr as incr_op, item, leased, once, push_op, put, refuse, timer, transact
from test_admin import metrics
from timers import call as timer_call, cancel as timer_cancel, op_cancel, op_schedule, schedule

STEP_FAMILIES = {
    "queen_transactions_total": "counter", "queen_kv_ops_total": "counter", "queen_kv_bytes_total": "counter",
    "queen_kv_read_rejected_total": "counter", "queen_kv_rows": "gauge", "queen_kv_stored_bytes": "gauge",
    "queen_locks_ops_total": "counter", "queen_locks_held": "gauge", "queen_timers_ops_total": "counter",
    "queen_timers_schedule_rejected_total": "counter", "queen_timers_pending": "gauge", "queen_timers_due": "gauge",
    "queen_timers_oldest_late_seconds": "gauge", "queen_timers_last_late_seconds": "gauge", "queen_timers_fired_total": "counter",
    "queen_timers_ticks_total": "counter", "queen_reads_waiting": "gauge", "queen_queue_pop_lag_milliseconds": "gauge",
    "queen_retention_partitions_total": "counter", "queen_retention_messages_total": "counter",
}
FATES = ("committed", "rejected_ack", "queue_not_found", "duplicate", "kv_precondition", "malformed", "error")


def values(broker, *families):
    """{"family value value": number} of these families: label values in the order of their label names."""
    found = metrics(broker)
    out = {}
    for family in families:
        for (name, labels), value in found[family][1].items():
            out[" ".join([name] + [v for _, v in labels])] = value
    return out


def counters(broker):
    return values(broker, *[name for name, kind in STEP_FAMILIES.items() if kind == "counter" and name != "queen_timers_ticks_total"])


def one(broker, family, label=""):
    return values(broker, family)[family + (" " + label if label else "")]


class Moves:
    """with Moves(broker) as m: calls; then m.only(...) says what the counters moved by, and that all others stood still."""

    def __init__(self, broker):
        self.broker = broker

    def __enter__(self):
        self.before = counters(self.broker)
        return self

    def __exit__(self, *failure):
        after = counters(self.broker)
        assert set(after) == set(self.before)
        self.moved = {k.removeprefix("queen_"): after[k] - v for k, v in self.before.items() if after[k] != v}

    def only(self, **expected):
        assert self.moved == {k.replace("__", " "): v for k, v in expected.items()}


def locks(broker, *ops):
    return broker.post("/api/v1/locks", list(ops)).expect(200).json["results"]


# ---- what is there ----

def test_families_are_there_from_the_start_and_zero(own_broker):
    families = metrics(own_broker())
    for name, kind in STEP_FAMILIES.items():
        assert families[name][0] == kind, name
        assert all(value == 0 for value in families[name][1].values()), name
    assert {labels[0][1] for _, labels in families["queen_transactions_total"][1]} == set(FATES)
    assert len(families["queen_kv_ops_total"][1]) == 7 * 3
    assert len(families["queen_locks_ops_total"][1]) == 4 * 3
    assert families["queen_queue_pop_lag_milliseconds"][1] == {}


def test_series_do_not_grow_with_keys_lanes_and_locks(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["x"], "p")
    broker.take(queue)

    def work(n):
        for i in range(n):
            kv_put(broker, "ns%d" % i, "k%d" % i, i)
            locks(broker, {"op": "acquire", "name": "l%d" % i, "ttlSeconds": 60})
            schedule(broker, queue, "t%d" % i, 600000, partition="p%d" % i)
            broker.push_ids(queue, ["m%d-%d" % (n, i)], "p%d" % i)

    work(1)
    metrics(broker)
    before = {key for _, samples in metrics(broker).values() for key in samples}
    work(20)
    after = {key for _, samples in metrics(broker).values() for key in samples}
    assert {key for key in after - before if not key[0].startswith("queen_http_")} == set()


# ---- transactions ----

def test_transactions_by_what_became_of_them(own_broker, queue):
    broker = own_broker()
    messages = leased(broker, queue, "ab")
    with Moves(broker) as m:
        commit(broker, operations=[ack_op(messages["a"]), push_op(item(queue, "c"))])
        commit(broker, operations=[push_op()])
    m.only(transactions_total__committed=2)
    with Moves(broker) as m:
        refuse(broker, "rejected_ack", operations=[ack_op(messages["b"], leaseId=str(uuid.uuid4()))])
    m.only(transactions_total__rejected_ack=1)
    with Moves(broker) as m:
        refuse(broker, "duplicate", operations=[push_op(item(queue, "c"))])
    m.only(transactions_total__duplicate=1)
    with Moves(broker) as m:
        refuse(broker, "queue_not_found", positions=[{"queue": unique(), "consumerGroup": "g", "partition": "p", "offset": 1}])
    m.only(transactions_total__queue_not_found=1)
    with Moves(broker) as m:
        transact(broker, operations="none").expect(400)
        broker.post("/api/v1/transaction", b"{").expect(400)
        refuse(broker, "bad_request", operations=[])
    m.only(transactions_total__malformed=3)


def test_the_parts_of_a_transaction_count_with_those_of_their_routes(own_broker, queue):
    broker = own_broker()
    commit(broker, kv=[put("old", 123)])
    with Moves(broker) as m:
        commit(broker, kv=[once("k", 1), put("l", "four"), get("old")], timers=[timer(queue, "t", "x"), cancel(queue, "none")])
    m.only(transactions_total__committed=1, kv_ops_total__put__applied=2, kv_ops_total__get__applied=1, kv_bytes_total__in=7,
           timers_ops_total__scheduled=1, timers_ops_total__absent=1, kv_bytes_total__out=3)


def test_a_rolled_back_transaction_rejects_all_its_kv_ops_and_no_timers(own_broker, queue):
    broker = own_broker()
    commit(broker, kv=[once("k")])
    with Moves(broker) as m:
        refuse(broker, "kv_precondition", kv=[once("k"), incr_op("n"), get("k")], timers=[timer(queue, "t", "x")])
    m.only(transactions_total__kv_precondition=1, kv_ops_total__put__rejected=1, kv_ops_total__incr__rejected=1,
           kv_ops_total__get__rejected=1)
    assert one(broker, "queen_timers_pending") == 0


# ---- KV ----

def test_kv_ops_by_kind_and_outcome(own_broker):
    broker = own_broker()
    where = {"ns": "n", "key": "k"}
    with Moves(broker) as m:
        version = kv_put(broker, "n", "k", [1, 2])["version"]
    m.only(kv_ops_total__put__applied=1, kv_bytes_total__in=5)
    with Moves(broker) as m:
        kv_call(broker, dict(where, op="get"), {"op": "getMany", "ns": "n", "keys": ["k", "none"]},
                {"op": "getPrefix", "ns": "n", "prefix": "k", "limit": 10},
                {"op": "getPrefix", "ns": "n", "prefix": "k", "limit": 10, "keysOnly": True}).expect(200)
    m.only(kv_ops_total__get__applied=1, kv_ops_total__getMany__applied=1, kv_ops_total__getPrefix__applied=2,
           kv_bytes_total__out=15)
    with Moves(broker) as m:
        incr(broker, "n", "i", 5)
        kv_call(broker, dict(where, op="check", expect=version), {"op": "delete", "ns": "n", "key": "i"}).expect(200)
    m.only(kv_ops_total__incr__applied=1, kv_ops_total__check__applied=1, kv_ops_total__delete__applied=1,
           kv_bytes_total__out=2)  # the sum, and the value deleted


def test_a_lost_precondition_is_rejected(own_broker):
    broker = own_broker()
    kv_put(broker, "n", "k", 1)
    with Moves(broker) as m:
        kv_call(broker, {"op": "putIfAbsent", "ns": "n", "key": "k", "value": 2, "forever": True},
                {"op": "put", "ns": "n", "key": "l", "value": 3, "forever": True}).expect(200)
    m.only(kv_ops_total__put__rejected=1, kv_ops_total__put__applied=1, kv_bytes_total__in=1,
           kv_bytes_total__out=1)  # the live value is told
    with Moves(broker) as m:  # the call as a whole: what was not carried out for another op's sake counts too
        kv_call(broker, {"op": "put", "ns": "n", "key": "m", "value": 3, "forever": True},
                {"op": "check", "ns": "n", "key": "k", "expect": 0, "required": True}).expect(200)
    m.only(kv_ops_total__put__rejected=1, kv_ops_total__check__rejected=1)


def test_path_routes_and_listings_count_as_their_ops(own_broker):
    broker = own_broker()
    with Moves(broker) as m:
        broker.request("PUT", "/api/v1/kv/n/k", {"value": 12, "forever": True}).expect(200)
        broker.get("/api/v1/kv/n/k").expect(200)
        broker.get("/api/v1/kv/n/none").expect(200)
        broker.post("/api/v1/resources/kv/list", {"namespace": "n", "keysOnly": True}).expect(200)
        broker.delete("/api/v1/kv/n/none").expect(200)
    m.only(kv_ops_total__put__applied=1, kv_ops_total__get__applied=2, kv_ops_total__getPrefix__applied=1,
           kv_ops_total__delete__rejected=1, kv_bytes_total__in=2, kv_bytes_total__out=2)


def test_calls_that_are_refused_before_they_run_are_no_ops(own_broker):
    broker = own_broker(env={"QUEEN_KV_READ_RATE": "1", "QUEEN_KV_READ_BURST": "1"})
    with Moves(broker) as m:
        kv_call(broker, {"op": "put", "ns": "UPPER", "key": "k", "value": 1, "forever": True}).expect(400)
    m.only()
    with Moves(broker) as m:
        answers = [kv_call(broker, {"op": "get", "ns": "n", "key": "k"}).status for _ in range(4)]
    served = answers.count(200)
    assert 1 <= served < 4 and answers.count(429) == 4 - served
    m.only(kv_ops_total__get__applied=served, kv_read_rejected_total__rate_limited=4 - served)


def test_rows_and_bytes_follow_the_store_also_over_a_restart(own_broker):
    broker = own_broker()

    def stored():
        return tuple(values(broker, "queen_kv_rows", "queen_kv_stored_bytes", "queen_locks_held", "queen_timers_pending").values())

    kv_put(broker, "n", "k", "x" * 1000)
    rows, size, held, pending = stored()
    assert (rows, held, pending) == (1, 0, 0)
    assert 1000 < size < 1100
    kv_put(broker, "n", "k", 1)
    assert stored()[1] == size - 1001
    token = locks(broker, {"op": "acquire", "name": "l", "ttlSeconds": 600, "limit": 3})[0]["token"]
    locks(broker, {"op": "acquire", "name": "l", "ttlSeconds": 600, "limit": 3})
    kv_put(broker, "queen-lock", "no-lock#0", 1)
    schedule(broker, "q", "t", 600000)
    rows, size, held, pending = stored()
    assert (rows, held, pending) == (4, 2, 1)
    broker.restart()
    assert stored() == (rows, size, held, pending)
    assert all(v == 0 for v in counters(broker).values())
    locks(broker, {"op": "release", "name": "l", "token": token})
    broker.delete("/api/v1/kv/n/k").expect(200)
    timer_cancel(broker, "q", "t")
    assert stored()[0] == 2 and stored()[2:] == (1, 0)


# ---- locks ----

def test_locks_by_kind_and_outcome(own_broker):
    broker = own_broker()
    with Moves(broker) as m:
        token = locks(broker, {"op": "acquire", "name": "a", "ttlSeconds": 60})[0]["token"]
    m.only(locks_ops_total__acquire__applied=1)
    assert one(broker, "queen_locks_held") == 1
    with Moves(broker) as m:
        assert not locks(broker, {"op": "acquire", "name": "a", "ttlSeconds": 60}, {"op": "get", "name": "b"})[0]["acquired"]
        token = locks(broker, {"op": "renew", "name": "a", "token": token, "ttlSeconds": 60})[0]["token"]
        locks(broker, {"op": "get", "name": "a"})
    m.only(locks_ops_total__acquire__rejected=1, locks_ops_total__get__applied=2, locks_ops_total__renew__applied=1)
    with Moves(broker) as m:
        for _ in range(2):
            locks(broker, {"op": "release", "name": "a", "token": token})
        locks(broker, {"op": "renew", "name": "a", "token": token, "ttlSeconds": 60})
    m.only(locks_ops_total__release__applied=1, locks_ops_total__release__rejected=1, locks_ops_total__renew__rejected=1)
    assert one(broker, "queen_locks_held") == 0
    with Moves(broker) as m:
        broker.post("/api/v1/locks", [{"op": "acquire", "name": "a"}]).expect(400)
        locks(broker)
    m.only()


def test_permits_whose_time_is_over_are_no_longer_held_once_swept(own_broker):
    broker = own_broker()
    locks(broker, {"op": "acquire", "name": "a", "ttlSeconds": 1})

    def held():
        kv_put(broker, "n", "k", 1)  # what sweeps is work
        return one(broker, "queen_locks_held")

    assert held() == 1
    wait_until(lambda: held() == 0, 5, "the permit is swept")


# ---- timers ----

def test_timers_scheduled_moved_cancelled_and_fired(own_broker, queue):
    broker = own_broker()
    with Moves(broker) as m:
        timer_call(broker, op_schedule(queue, "a", 600000), op_schedule(queue, "b", 600000))
        schedule(broker, queue, "a", 500000)
    m.only(timers_ops_total__scheduled=2, timers_ops_total__rescheduled=1)
    assert one(broker, "queen_timers_pending") == 2
    with Moves(broker) as m:
        timer_cancel(broker, queue, "a")
        timer_cancel(broker, queue, "a")
        timer_call(broker, op_cancel(queue, "b"))
    m.only(timers_ops_total__cancelled=2, timers_ops_total__absent=1)
    assert one(broker, "queen_timers_pending") == 0
    ticks = one(broker, "queen_timers_ticks_total")
    with Moves(broker) as m:
        schedule(broker, queue, "c", 50, txn="once")
        assert [message["transactionId"] for message in broker.take(queue, wait=True, timeout=5000)["messages"]] == ["once"]
    m.only(timers_ops_total__scheduled=1, timers_fired_total__fired=1)
    assert one(broker, "queen_timers_ticks_total") > ticks
    late = one(broker, "queen_timers_last_late_seconds")
    assert 0 <= late < 2
    with Moves(broker) as m:
        schedule(broker, queue, "d", 1, txn="once")
        wait_until(lambda: one(broker, "queen_timers_fired_total", "duplicate") == 1, 5, "the second one's time has come")
    m.only(timers_ops_total__scheduled=1, timers_fired_total__duplicate=1)
    assert values(broker, "queen_timers_pending", "queen_timers_due", "queen_timers_oldest_late_seconds") == {
        "queen_timers_pending": 0, "queen_timers_due": 0, "queen_timers_oldest_late_seconds": 0}


def test_timers_that_came_due_while_the_broker_was_down_fired_late(own_broker, queue):
    broker = own_broker()
    schedule(broker, queue, "a", 300)
    broker.kill()
    time.sleep(1.5)
    broker.start()
    wait_until(lambda: one(broker, "queen_timers_fired_total", "fired") == 1, 10, "it fires")
    assert 1 < one(broker, "queen_timers_last_late_seconds") < 60


def test_replaying_the_log_counts_nothing(own_broker, queue):
    broker = own_broker(env={"QUEEN_RAFT_DURABLE_EVERY_MS": "60000"})
    schedule(broker, queue, "a", 1)
    kv_put(broker, "n", "k", 1)
    wait_until(lambda: one(broker, "queen_timers_fired_total", "fired") == 1, 5, "it fires")
    broker.kill()
    broker.start()
    assert one(broker, "queen_kv_rows") == 1
    assert all(v == 0 for v in counters(broker).values())


def test_refused_calls_of_timers_by_reason(own_broker, queue):
    broker = own_broker(env={"QUEEN_KV_WRITE_RATE": "1", "QUEEN_KV_WRITE_BURST": "1"})
    with Moves(broker) as m:
        broker.post("/api/v1/timers", [op_schedule("", "a", 1)]).expect(400)
        broker.post("/api/v1/timers", b"[").expect(400)
        broker.post("/api/v1/timers", [op_schedule(queue, "a", 91 * 86400000)]).expect(403)
        broker.post("/api/v1/timers", [op_schedule(queue, "a", 1, payload="x" * (1 << 20))]).expect(413)
        statuses = [broker.post("/api/v1/timers", [op_schedule(queue, "a", 600000)]).status for _ in range(4)]
        broker.post("/api/v1/timers", [op_cancel(queue, "none")]).expect(200)
    limited = statuses.count(429)
    assert limited > 0 and statuses.count(200) == 4 - limited
    m.moved.pop("timers_ops_total scheduled", None)
    m.moved.pop("timers_ops_total rescheduled", None)
    m.only(timers_schedule_rejected_total__shape=2, timers_schedule_rejected_total__horizon=1,
           timers_schedule_rejected_total__payload_too_large=1, timers_schedule_rejected_total__rate_limited=limited,
           timers_ops_total__absent=1)


# ---- waiting reads, retention ----

def test_reads_that_wait(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a"], "p")
    body = {"entries": [{"queue": queue, "partition": "p", "offset": 1}], "maxWaitMs": 20000}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(broker.post, "/api/v1/fetch", body) for _ in range(3)]
        wait_until(lambda: one(broker, "queen_reads_waiting") == 3, 5, "all three wait")
        assert one(broker, "queen_parked_long_polls") == 0
        broker.push_ids(queue, ["b"], "p")
        assert all(c.result().status == 200 for c in calls)
    assert one(broker, "queen_reads_waiting") == 0


def test_what_retention_takes(own_broker, queue):
    broker = own_broker(env={"RETENTION_INTERVAL": "100"})
    broker.configure(queue, retentionEnabled=True, retentionSeconds=1)
    broker.push_ids(queue, ["a", "b", "c"], "p")
    broker.push_ids(queue, ["d"], "q")
    wait_until(lambda: one(broker, "queen_retention_messages_total") == 4, 10, "all are gone")
    assert one(broker, "queen_retention_partitions_total") == 2


# ---- by queue ----

def lag(broker, name):
    samples = metrics(broker)["queen_queue_pop_lag_milliseconds"][1]
    found = {dict(labels)["stat"]: value for (_, labels), value in samples.items() if dict(labels)["queue"] == name}
    assert set(found) in (set(), {"avg", "max"})
    return found


def test_pop_lag_is_the_age_of_what_was_delivered(own_broker):
    broker = own_broker()
    name = unique('la"g\\name')
    broker.push_ids(name, ["a"], "p")
    time.sleep(0.6)
    broker.push_ids(name, ["b", "c", "d"], "p")
    assert lag(broker, name) == {}
    began = time.monotonic()
    assert len(broker.take(name)["messages"]) == 4
    took = (time.monotonic() - began) * 1000
    told = lag(broker, name)
    assert 600 <= told["max"] < 1600 + took
    assert 150 <= told["avg"] < told["max"]
    broker.push_ids(name, ["e"], "p2")
    message = broker.take(name)["messages"][0]
    broker.ack(message)
    after = lag(broker, name)
    assert after["max"] == told["max"] and after["avg"] < told["avg"]
    broker.delete_queue(name)
    assert lag(broker, name) == {}


def test_a_batch_taken_by_a_transaction_has_its_lag_too(own_broker, queue):
    broker = own_broker()
    broker.push_ids(queue, ["a"], "p")
    time.sleep(0.2)
    answer = commit(broker, kv=[put("k")], next={"queue": queue, "subscriptionMode": "all"})
    assert len(answer["next"]["messages"]) == 1
    assert lag(broker, queue)["max"] >= 200


# ---- the queue listing ----

def listing(broker, tenant=None):
    headers = {"x-queen-tenant": tenant} if tenant else None
    answer = broker.get("/api/v1/resources/queues", headers=headers).expect(200).json
    return tuple(answer[k] for k in ("kvRows", "kvBytes", "timerRows", "timerBytes"))


def test_the_listing_tells_the_tenants_rows(own_broker, queue):
    broker = own_broker(env={"QUEEN_TENANCY_HEADER": "true", "QUEEN_KV_TRUSTED_PROXY": "true"})
    assert listing(broker) == (0, 0, 0, 0)
    kv_put(broker, "ns", "key", "abc")
    kv_put(broker, "ns", "key2", 1)
    schedule(broker, queue, "t", 600000)
    assert listing(broker) == (2, 2 + 3 + 5 + 2 + 4 + 1, 1, 0)
    kv_put(broker, "ns", "key", "abcdef")
    broker.restart()
    assert listing(broker) == (2, 2 + 3 + 8 + 2 + 4 + 1, 1, 0)
    for other in ("00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-0000000000ff", "ff" * 4 + "-ffff" * 3 + "-" + "f" * 12):
        assert listing(broker, other) == (0, 0, 0, 0)
        kv_call(broker, {"op": "put", "ns": "ns", "key": "k", "value": 1, "forever": True}, headers={"x-queen-tenant": other}).expect(200)
        broker.post("/api/v1/timers", [op_schedule(queue, "u", 600000)], headers={"x-queen-tenant": other}).expect(200)
        assert listing(broker, other) == (1, 0, 1, 0)
        assert listing(broker) == (2, 0, 1, 0)
    assert values(broker, "queen_kv_rows", "queen_timers_pending") == {"queen_kv_rows": 5, "queen_timers_pending": 4}
    assert set(broker.get("/api/v1/resources/queues?stats=lanes").expect(200).json) == {"queues", "stats"}


# ---- no result ----

def test_calls_that_a_full_disk_refuses_are_errors(own_broker, queue):
    broker = own_broker()
    kv_put(broker, "n", "k", 1)
    broker.restart(env={"QUEEN_RAFT_DISK_HIGH_PCT": "1", "QUEEN_RAFT_DISK_LOW_PCT": "1"})
    wait_until(lambda: one(broker, "queen_raft_storage_full") == 1, 5, "the disk counts as full")
    with Moves(broker) as m:
        transact(broker, operations=[push_op(item(queue))], kv=[get("k")]).expect(507)
        kv_call(broker, {"op": "put", "ns": "n", "key": "k", "value": 2, "forever": True},
                {"op": "get", "ns": "n", "key": "l"}).expect(507)
        broker.post("/api/v1/locks", [{"op": "acquire", "name": "a", "ttlSeconds": 60}]).expect(507)
        broker.post("/api/v1/timers", [op_schedule(queue, "a", 600000)]).expect(507)
        kv_call(broker, {"op": "delete", "ns": "n", "key": "k"}).expect(200)
    m.only(transactions_total__error=1, kv_ops_total__put__error=1, kv_ops_total__get__error=2, locks_ops_total__acquire__error=1,
           timers_schedule_rejected_total__unavailable=1, kv_ops_total__delete__applied=1, kv_bytes_total__out=1)
