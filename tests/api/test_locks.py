"""Locks and semaphores: permits with a lifetime, a token that fences, and the guard for transactions."""

import threading
import time

import pytest

import kv
from queen import unique, wait_until

NS = "queen-locks"


@pytest.fixture
def name():
    return unique("bay")


def locks(broker, *ops, **kwargs):
    answer = broker.post("/api/v1/locks", {"operations": list(ops)}, **kwargs).expect(200).json["results"]
    assert [(r["index"], r["op"], r["name"]) for r in answer] == [(n, op["op"], op["name"]) for n, op in enumerate(ops)], answer
    return answer


def op(kind, name, **fields):
    return {"op": kind, "name": name, **fields}


def acquire(broker, name, owner=None, ttl=60, **fields):
    if owner is not None:
        fields["owner"] = owner
    return locks(broker, op("acquire", name, ttlSeconds=ttl, **fields))[0]


def renew(broker, name, token, ttl=60, **fields):
    return locks(broker, op("renew", name, token=token, ttlSeconds=ttl, **fields))[0]


def release(broker, name, token, **fields):
    return locks(broker, op("release", name, token=token, **fields))[0]


def holders(broker, name):
    answer = locks(broker, op("get", name))[0]
    assert set(answer) == {"index", "op", "name", "held", "holders"}
    assert answer["held"] is bool(answer["holders"])
    for holder in answer["holders"]:
        assert set(holder) == {"slot", "owner", "token", "since", "expiresAt", "renewedAt"}
        assert all(kv.KV_TIME.match(holder[key]) for key in ("since", "renewedAt")), holder
    return answer["holders"]


def guard(name, slot, token):
    return {"op": "check", "ns": NS, "key": "%s#%d" % (name, slot), "expect": token, "required": True}


def refused(response, reason):
    return kv.refused(response, reason, error="locks_bad_request")


# ---- one holder --------------------------------------------------------------------------------------------------------

def test_one_holds_and_the_other_is_told_who(broker, name):
    # 129
    first = acquire(broker, name, "w-7")
    assert first == {"index": 0, "op": "acquire", "name": name, "acquired": True, "slot": 0, "token": first["token"], "owner": "w-7",
                     "guard": guard(name, 0, first["token"])}
    assert first["token"] > 0
    assert acquire(broker, name, "w-8") == {"index": 0, "op": "acquire", "name": name, "acquired": False, "reason": "held",
                                            "holders": [{"slot": 0, "owner": "w-7"}]}
    until = holders(broker, name)[0]["expiresAt"]
    again = acquire(broker, name, "w-7", ttl=3600)
    assert again == dict(first, already=True)
    assert holders(broker, name)[0]["expiresAt"] == until  # a repeated acquire lends no time
    row = kv.get(broker, NS, name + "#0")
    assert (row["value"], row["version"], row["expiresAt"]) == ({"owner": "w-7"}, first["token"], until)


def test_without_an_owner_a_repeat_is_refused(broker, name):
    first = acquire(broker, name)
    assert first["acquired"] is True and first["owner"] is None
    assert acquire(broker, name) == {"index": 0, "op": "acquire", "name": name, "acquired": False, "reason": "held", "holders": [{"slot": 0, "owner": None}]}
    assert kv.get(broker, NS, name + "#0")["value"] == {"owner": None}
    assert release(broker, name, first["token"]) == {"index": 0, "op": "release", "name": name, "released": True, "slot": 0}
    assert acquire(broker, name)["token"] > first["token"]


def test_renewal_changes_the_token(broker, name):
    # 130
    first = acquire(broker, name, "w-1", ttl=60)
    before = holders(broker, name)[0]
    assert before["since"] == before["renewedAt"]
    time.sleep(0.01)
    second = renew(broker, name, first["token"], ttl=600)
    assert second == {"index": 0, "op": "renew", "name": name, "renewed": True, "slot": 0, "token": second["token"], "guard": guard(name, 0, second["token"])}
    assert second["token"] > first["token"]
    after = holders(broker, name)[0]
    assert (after["slot"], after["owner"], after["token"], after["since"]) == (0, "w-1", second["token"], before["since"])
    assert after["renewedAt"] > before["renewedAt"] and after["expiresAt"] > before["expiresAt"]
    assert kv.get(broker, NS, name + "#0")["value"] == {"owner": "w-1", "since": before["since"]}
    assert release(broker, name, first["token"]) == {"index": 0, "op": "release", "name": name, "released": False, "reason": "lost", "slot": 0,
                                                     "holders": [{"slot": 0, "owner": "w-1"}]}
    assert release(broker, name, second["token"])["released"] is True
    assert release(broker, name, second["token"]) == {"index": 0, "op": "release", "name": name, "released": False, "reason": "lost", "slot": 0, "holders": []}
    assert holders(broker, name) == []


def test_stale_token_of_the_same_owner_is_carried_through(broker, name):
    first = acquire(broker, name, "w-1")
    second = renew(broker, name, first["token"])
    third = renew(broker, name, first["token"], owner="w-1")  # a repeat whose first answer was lost
    assert third["renewed"] is True and third["token"] > second["token"]
    assert holders(broker, name)[0]["owner"] == "w-1"
    for stranger in ({"owner": "w-2"}, {}):
        lost = renew(broker, name, first["token"], **stranger)
        assert lost == {"index": 0, "op": "renew", "name": name, "renewed": False, "reason": "lost", "slot": 0, "holders": [{"slot": 0, "owner": "w-1"}]}
    assert holders(broker, name)[0]["token"] == third["token"]


def test_renewals_keep_the_time_of_the_first_acquire(broker, name):
    held = acquire(broker, name, "w")
    since = holders(broker, name)[0]["since"]
    token = held["token"]
    for _ in range(3):
        token = renew(broker, name, token)["token"]
    assert holders(broker, name)[0]["since"] == since
    release(broker, name, token)
    time.sleep(0.002)
    acquire(broker, name, "w")
    assert holders(broker, name)[0]["since"] > since


def test_lock_falls_free_when_its_time_is_up(broker, name):
    first = acquire(broker, name, "w-1", ttl=1)
    begin = time.monotonic()
    second = wait_until(lambda: (lambda r: r if r["acquired"] else None)(acquire(broker, name, "w-2")), 10, "the lock is free")
    assert 0.9 < time.monotonic() - begin
    assert second["token"] > first["token"] and "already" not in second
    assert renew(broker, name, first["token"], owner="w-1")["reason"] == "lost"
    assert release(broker, name, first["token"])["holders"] == [{"slot": 0, "owner": "w-2"}]


def test_an_expired_lock_of_mine_is_not_mine_any_more(broker, name):
    first = acquire(broker, name, "w", ttl=1)
    wait_until(lambda: holders(broker, name) == [], 4, "its time is up")
    assert renew(broker, name, first["token"], owner="w") == {"index": 0, "op": "renew", "name": name, "renewed": False, "reason": "lost", "slot": 0, "holders": []}
    again = acquire(broker, name, "w")
    assert "already" not in again and again["token"] > first["token"]


# ---- semaphores --------------------------------------------------------------------------------------------------------

def test_semaphore(broker, name):
    # 131
    first, second = acquire(broker, name, "a", limit=2), acquire(broker, name, "b", limit=2)
    assert first["acquired"] and second["acquired"] and {first["slot"], second["slot"]} == {0, 1}
    third = acquire(broker, name, "c", limit=2)
    assert third == {"index": 0, "op": "acquire", "name": name, "acquired": False, "reason": "held", "holders": [{"slot": 0, "owner": "a"}, {"slot": 1, "owner": "b"}]}
    assert acquire(broker, name, "b", limit=2) == dict(second, already=True)
    assert [(h["slot"], h["token"]) for h in holders(broker, name)] == [(0, first["token"]), (1, second["token"])]
    assert release(broker, name, first["token"])["released"] is True
    assert release(broker, name, second["token"])["reason"] == "lost"  # slot 0 by default
    taken = acquire(broker, name, "c", limit=2)
    assert taken["slot"] == 0
    assert acquire(broker, name, "b", limit=2)["already"] is True
    assert renew(broker, name, second["token"], slot=1)["slot"] == 1


def test_semaphore_never_grants_more_than_its_limit(broker, name):
    running, peak, slots, guard_lock = set(), [0], [], threading.Lock()

    def work(number):
        for _ in range(5):
            held = wait_until(lambda: (lambda r: r if r["acquired"] else None)(acquire(broker, name, "w%d" % number, limit=3)), 30, "a permit", every=0.002)
            with guard_lock:
                assert held["slot"] not in running
                running.add(held["slot"])
                peak[0] = max(peak[0], len(running))
                slots.append(held["slot"])
            time.sleep(0.002)
            with guard_lock:
                running.remove(held["slot"])
            assert release(broker, name, held["token"], slot=held["slot"])["released"] is True

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(slots) == 40 and set(slots) <= {0, 1, 2} and peak[0] <= 3
    assert holders(broker, name) == []


def test_full_semaphore(broker, name):
    for n in range(0, 1024, 64):
        for k in range(64):
            assert acquire(broker, name, "o%d" % (n + k), limit=1024)["slot"] == n + k
    refused_answer = acquire(broker, name, "late", limit=1024)
    assert [h["slot"] for h in refused_answer["holders"]] == list(range(1024))
    assert len(holders(broker, name)) == 1024
    assert acquire(broker, name, "o1023", limit=1024)["already"] is True


# ---- the guard ---------------------------------------------------------------------------------------------------------

def transaction(broker, kv_ops):
    return broker.post("/api/v1/transaction", {"operations": [], "kv": kv_ops}).expect(200).json


def test_guard_holds_a_transaction_to_the_permit(broker, name):
    # 132
    key = {"op": "incr", "ns": "guarded", "key": name, "delta": 1, "forever": True}
    first = acquire(broker, name, "w-1", ttl=1)
    assert transaction(broker, [first["guard"], key])["success"] is True
    second = wait_until(lambda: (lambda r: r if r["acquired"] else None)(acquire(broker, name, "w-2")), 10, "the lock is free")
    verdict = transaction(broker, [first["guard"], key])
    assert (verdict["success"], verdict["reason"], verdict["kvReason"], verdict["failedIndex"]) == (False, "kv_precondition", "version", 0)
    assert verdict["version"] == second["token"]
    assert kv.get(broker, "guarded", name)["value"] == 1
    assert transaction(broker, [second["guard"], key])["success"] is True
    release(broker, name, second["token"])
    assert transaction(broker, [second["guard"], key])["kvReason"] == "absent"
    assert kv.get(broker, "guarded", name)["value"] == 2


def test_guard_as_a_kv_op(broker, name):
    held = acquire(broker, name, "w")
    assert kv.results(broker, held["guard"])[0] == {"index": 0, "op": "check", "applied": True, "key": name + "#0", "version": held["token"]}
    renew(broker, name, held["token"])
    assert kv.call(broker, held["guard"]).expect(200).json["kvReason"] == "version"


# ---- rows --------------------------------------------------------------------------------------------------------------

def test_permits_are_rows(broker, name):
    held = acquire(broker, name, "w \"1\" \u00e9", ttl=60)
    page = kv.results(broker, {"op": "getPrefix", "ns": NS, "prefix": name + "#"})[0]
    assert [(r["key"], r["value"], r["version"]) for r in page["rows"]] == [(name + "#0", {"owner": "w \"1\" \u00e9"}, held["token"])]
    assert acquire(broker, name, "w \"1\" \u00e9")["already"] is True
    assert kv.one(broker, "delete", NS, name + "#0")["applied"] is True
    assert acquire(broker, name, "other")["acquired"] is True


@pytest.mark.parametrize("value", [1, None, "w", [], {"x": {"y": 1, "since": 2}}, {"owner": 5}, {"owner": {"a": 1, "since": "s"}}, {"owner": "w", "since": 7},
                                   {"since": "x", "owner": "w"}, {"owner": "w\",\"since\":\"x"}, {"owner": "w", "since": "t", "more": 1}],
                         ids=range(11))
def test_a_row_written_by_hand_holds_its_slot(broker, name, value):
    stored = kv.put(broker, NS, name + "#0", value)
    lost = acquire(broker, name, "other")
    assert lost["reason"] == "held" and [h["slot"] for h in lost["holders"]] == [0]
    renewed = renew(broker, name, stored["version"])
    assert renewed["renewed"] is True
    row = kv.get(broker, NS, name + "#0")  # still JSON
    assert set(row["value"]) == {"owner", "since"} and row["expiresAt"] is not None
    assert holders(broker, name)[0]["token"] == renewed["token"] == row["version"]
    assert release(broker, name, renewed["token"])["released"] is True


def test_rows_that_are_no_permits(broker, name):
    kv.put(broker, NS, name, 1)
    kv.put(broker, NS, name + "#x", 1)
    kv.put(broker, NS, name + "#01", 1)
    kv.put(broker, NS, name + "#1024", 1)
    assert holders(broker, name) == []
    kv.put(broker, NS, name + "#3", {"owner": "by hand"})
    assert [(h["slot"], h["owner"], h["expiresAt"]) for h in holders(broker, name)] == [(3, "by hand", None)]
    assert acquire(broker, name, "w", limit=2)["slot"] == 0


# ---- calls -------------------------------------------------------------------------------------------------------------

def test_ops_of_a_call_are_independent(broker, name):
    held = acquire(broker, name + "1", "w")
    answers = locks(broker, op("acquire", name + "1", ttlSeconds=9, owner="x"), op("acquire", name + "2", ttlSeconds=9, owner="x"),
                    op("release", name + "3", token=5), op("renew", name + "4", token=5, ttlSeconds=9), op("get", name + "5"),
                    op("get", name + "6"))
    assert [a.get("acquired", a.get("released", a.get("renewed", a.get("held")))) for a in answers] == [False, True, False, False, False, False]
    assert release(broker, name + "1", held["token"])["released"] is True
    body = [op("acquire", name + "7", ttlSeconds=9)]
    assert broker.post("/api/v1/locks", body).expect(200).json["results"][0]["acquired"] is True
    assert broker.post("/api/v1/locks", []).expect(200).json == {"results": []}
    assert broker.post("/api/v1/locks", {"operations": []}).expect(200).json == {"results": []}


@pytest.mark.parametrize("fields,reason", [
    ({"op": "grab"}, "locks_unknown_op"), ({"op": None}, "locks_unknown_op"),
    ({"name": ""}, "locks_bad_name"), ({"name": "a#b"}, "locks_bad_name"), ({"name": "n" * 257}, "locks_bad_name"), ({"name": "a\nb"}, "locks_bad_name"),
    ({"name": 5}, "locks_bad_name"), ({"name": None}, "locks_bad_name"),
    ({"ttlSeconds": None}, "locks_ttl_required"), ({"forever": True}, "locks_ttl_required"), ({"ttlSeconds": 0}, "locks_bad_ttl"),
    ({"ttlSeconds": 1.5}, "locks_bad_ttl"), ({"ttlSeconds": "9"}, "locks_bad_ttl"),
    ({"owner": ""}, "locks_bad_owner"), ({"owner": 5}, "locks_bad_owner"), ({"owner": "w" * 257}, "locks_bad_owner"), ({"owner": "\t"}, "locks_bad_owner"),
    ({"limit": 0}, "locks_bad_limit"), ({"limit": 1025}, "locks_bad_limit"), ({"limit": "2"}, "locks_bad_limit"),
    ({"op": "renew"}, "locks_token_required"), ({"op": "renew", "token": 0}, "locks_bad_token"), ({"op": "release", "token": "7"}, "locks_bad_token"),
    ({"op": "release", "token": 1.5}, "locks_bad_token"), ({"op": "renew", "token": 1, "slot": 1024}, "locks_bad_slot"),
    ({"op": "release", "token": 1, "slot": -1}, "locks_bad_slot"), ({"op": "renew", "token": 1, "forever": True}, "locks_ttl_required"),
    ({"tenant": "t"}, "locks_tenant_not_an_input"), ({"tenantId": "t"}, "locks_tenant_not_an_input"), ({"_tenant": "t"}, "locks_tenant_not_an_input"),
])
def test_refused_ops(broker, name, fields, reason):
    refused(broker.post("/api/v1/locks", [dict(op("acquire", name, ttlSeconds=9), **fields)]), reason)
    assert holders(broker, name) == []


def test_refused_calls(broker, name):
    for body in (b"", b"{", b"7", b"{}", b'{"operations":1}', b"[]x"):
        refused(broker.post("/api/v1/locks", body), "locks_bad_body")
    refused(broker.post("/api/v1/locks", [7]), "locks_bad_request")
    refused(broker.post("/api/v1/locks", [op("release", "%s-%d" % (name, n), token=1) for n in range(65)]), "locks_too_many_ops")
    refused(broker.post("/api/v1/locks", [op("get", "%s-%d" % (name, n)) for n in range(5)]), "locks_too_many_keys")
    refused(broker.post("/api/v1/locks", [op("acquire", name, ttlSeconds=1), op("get", name)]), "locks_duplicate_in_call")
    refused(broker.post("/api/v1/locks", [op("acquire", name, ttlSeconds=1), op("nope", "x")]), "locks_unknown_op")
    assert holders(broker, name) == []


def test_locks_outlive_the_broker(own_broker, name):
    broker = own_broker()
    held = acquire(broker, name, "w", ttl=600)
    before = holders(broker, name)
    for how in ("kill", "stop"):
        broker.restart(how)
        assert holders(broker, name) == before
        assert acquire(broker, name, "other")["reason"] == "held"
        assert acquire(broker, name, "w", ttl=600)["token"] == held["token"]
    assert renew(broker, name, held["token"])["token"] > held["token"]
