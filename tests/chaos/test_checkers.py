"""The proof of the proof: on a calm node the workloads find nothing wrong, and each planted mistake is named."""
import copy
import json
import time

import pytest
import workload
import workload_locks
import workload_log
import workload_pipeline
import workload_queue
import workload_timers

WORK_S = 2.5


@pytest.fixture
def calm(clusters, seed):
    return clusters(1).start()


def worked(cluster, made):
    """The workload after a while of undisturbed work, with what the node then held, judged as clean."""
    client = cluster.client("proof")
    made.prepare(client)
    made.start()
    time.sleep(WORK_S)
    if hasattr(made, "settle") and made.name == "pipeline":
        made.settle()
    made.stop()
    if made.name == "timers":
        made.settle()
    cluster.wait_equal()
    made.finish(client)
    assert made.problems == [], made.problems[:5]
    return client


def reported(module, made, client, monkeypatch, plant, want):
    """Judges an edited copy of what the node held. `plant(held by queue, workload)` edits."""
    before = copy.deepcopy({k: v for k, v in vars(made).items() if k in made.planted})
    planted = []

    def edited(work, queue, lanes):
        held = workload.same_everywhere(work, queue, lanes)
        planted.append(plant(held, queue, made))
        return held

    with monkeypatch.context() as patch:
        patch.setattr(module, "same_everywhere", edited)
        made.finish(client)
    problems, made.problems = made.problems, []
    vars(made).update(before)
    assert any(planted), "nothing was planted"
    assert any(want in p for p in problems), f"{want}: {problems[:5]}"


def filled(held, least=3):
    return next(lane for lane in held if len(held[lane]) >= least)


def on(wanted, edit):
    """An edit of one queue only."""
    return lambda held, queue, made: bool(queue == wanted and (edit(held, made) or True))


def lose(held, made):
    del held[filled(held)][1]


def double(held, made):
    records = held[filled(held)]
    records.append((len(records), *records[0][1:]))


def swap(held, made):
    records = held[filled(held)]
    records[0], records[1] = (0, *records[1][1:]), (1, *records[0][1:])


def foreign(held, made):
    records = held[filled(held)]
    records.append((len(records), "id-never.1", {"n": -1, "token": 1 << 60}, records[-1][3]))


def back_in_time(held, made):
    records = held[filled(held)]
    records[1] = (*records[1][:3], "2001-01-01T00:00:00.000000Z")


def other_payload(held, made):
    records = held[filled(held)]
    records[0] = (*records[0][:2], {"n": "planted"}, records[0][3])


def half_of_a_push(held, made):
    lane = filled(held)
    there, missing = workload_log.Item(held[lane][0][1], lane, None), workload_log.Item("id-lost", lane, None)
    made.items = [i for i in made.items if i.id != there.id]
    made.unanswered.append([there, missing])


def answered_too_early(held, made):
    late = max((i for i in made.items if i.offset), key=lambda i: i.offset)
    late.answered = 1.0


LOG = {
    "lost": (lose, "and is"), "doubled": (double, "is there twice"), "swapped": (swap, "was answered"), "foreign": (foreign, "was never pushed"),
    "a hole": (lose, "offsets are not"), "back in time": (back_in_time, "times go back"), "another payload": (other_payload, "was answered"),
    "half of a push": (half_of_a_push, "there by part"), "order": (answered_too_early, "answered before an earlier offset"),
}  # fmt: skip


def test_log(calm, seed, monkeypatch):
    made = workload_log.LogWorkload(calm, seed)
    made.planted = ("items", "unanswered")
    client = worked(calm, made)
    for edit, want in LOG.values():
        reported(workload_log, made, client, monkeypatch, on("log", edit), want)


def test_nodes_that_differ(calm, seed, monkeypatch):
    made = workload_log.LogWorkload(calm, seed)
    client = worked(calm, made)
    asked = []
    fetch = workload.fetch_lanes

    def other(node, queue, lanes, tenant):
        held = fetch(node, queue, lanes, tenant)
        asked.append(node)
        if len(asked) > 1:
            other_payload(held, made)
        return held

    calm.members = [calm[1], calm[1]]
    monkeypatch.setattr(workload, "fetch_lanes", other)
    monkeypatch.setattr(workload, "SAME_S", 0.1)
    made.finish(client)
    assert any("they differ" in p for p in made.problems), made.problems[:3]


@pytest.mark.seconds(7)
def test_pipeline(calm, seed, monkeypatch):
    made = workload_pipeline.PipelineWorkload(calm, seed)
    made.planted = ()
    client = worked(calm, made)
    for edit, want in ((lose, "lost ["), (double, "doubled ["), (foreign, "never set [")):
        reported(workload_pipeline, made, client, monkeypatch, on(workload_pipeline.TIMED, edit), "timers of lane")
        reported(workload_pipeline, made, client, monkeypatch, on(workload_pipeline.TIMED, edit), want)
    for queue in ("pipe-in", "pipe-mid", "pipe-out", "pipe-side-a-1"):
        for edit, want in ((lose, "lost ["), (double, "doubled ["), (swap, "out of order")):
            reported(workload_pipeline, made, client, monkeypatch, on(queue, edit), f"{queue}/")
            reported(workload_pipeline, made, client, monkeypatch, on(queue, edit), want)
    lane = next(lane for lane in workload_pipeline.LANES if made.fed[lane])
    client.json("POST", "/api/v1/kv", {"operations": [{"op": "incr", "ns": "count", "key": f"a.{lane}", "delta": 1, "forever": True}]})
    made.finish(client)
    assert any("counter" in p for p in made.problems), made.problems[:3]


def test_half_of_a_transaction_is_seen(calm, seed):
    """A step without its second twin: the watcher names it."""
    made = workload_pipeline.PipelineWorkload(calm, seed)
    client = calm.client("proof")
    ops = [{"op": "put", "ns": "twin", "key": f"{s}.{lane}.one", "value": 1, "forever": True} for s in "ab" for lane in workload_pipeline.LANES]
    client.json("POST", "/api/v1/kv", {"operations": ops})
    made.start()
    time.sleep(0.5)
    made.stop()
    assert any("half of a transaction" in p for p in made.problems), made.problems[:3]


def fired_twice(held, made):
    double(held, made)


def early(held, made):
    lane = filled(held)
    made.keys[held[lane][0][1].rsplit(".", 1)[0]].versions[held[lane][0][1]]["due"] += 1 << 40


def cancelled_and_fired(held, made):
    txn = held[filled(held)][0][1]
    made.keys[txn.rsplit(".", 1)[0]].cancelled.append(txn)


TIMERS = {
    "lost": (lose, "not fired + cancelled + replaced"), "twice": (fired_twice, "fired twice"), "early": (early, "before its time"),
    "cancelled": (cancelled_and_fired, "cancelled and fired"), "foreign": (foreign, "never scheduled"),
}  # fmt: skip


def test_timers(calm, seed, monkeypatch):
    made = workload_timers.TimersWorkload(calm, seed)
    made.planted = ()
    client = worked(calm, made)
    locks = {name: key.lock for name, key in made.keys.items()}
    for edit, want in TIMERS.values():
        state = {name: (copy.deepcopy(key.versions), list(key.cancelled)) for name, key in made.keys.items()}
        reported(workload_timers, made, client, monkeypatch, on(workload_timers.QUEUE, edit), want)
        for name, (versions, cancelled) in state.items():
            made.keys[name].versions, made.keys[name].cancelled = versions, cancelled
    assert len(locks) > 3


def older_token(held, made):
    records = held[filled(held)]
    records.append((len(records), "owner-x.1", {"token": 0}, records[-1][3]))


def refused_and_there(held, made):
    lane = filled(held)
    made.writes[lane].append((held[lane][0][1], 0, "refused"))


LOCKS = {"lost": (lose, "not there"), "older token": (older_token, "written under token"), "counter": (older_token, "the counter is"),
         "twice": (double, "is there twice"), "refused": (refused_and_there, "was answered refused")}  # fmt: skip


def test_locks(calm, seed, monkeypatch):
    made = workload_locks.LocksWorkload(calm, seed)
    made.planted = ("writes",)
    client = worked(calm, made)
    for edit, want in LOCKS.values():
        reported(workload_locks, made, client, monkeypatch, on(workload_locks.QUEUE, edit), want)


def test_two_holders_of_one_lock(calm, seed):
    made = workload_locks.LocksWorkload(calm, seed)
    now = time.monotonic()
    hold = {"owner": "other", "token": 1, "sent": now - 1, "received": now - 1, "until": now + 60, "over": False}
    made.holds["bay-1"].append(hold)
    client = calm.client("proof")
    assert made.acquire(client, "bay-1", "me") is not None
    assert any("before the time of other" in p for p in made.problems), made.problems


def pop_answer(history, first, attempt, lease):
    push = next(iter(history.by_token.values()))[0]
    queue, lane, txid, _, token = push.items[0]
    message = {"partition": lane, "partitionId": "1", "offset": first, "transactionId": txid, "id": f"m{first}", "data": {"tok": token},
               "deliveryAttempt": attempt}  # fmt: skip
    return json.dumps({"leaseId": lease, "messages": [message]}).replace('{"tok": 1}', push.items[0][3].decode()).encode()


def leased_twice(history):
    history.pop_answered("g", "q", time.monotonic(), 60, pop_answer(history, 0, 1, "a"))
    history.pop_answered("g", "q", time.monotonic(), 60, pop_answer(history, 0, 2, "b"))


def attempt_forgotten(history):
    history.pop_answered("g", "q", time.monotonic() - 0, 0, pop_answer(history, 0, 1, "a"))
    history.pop_answered("g", "q", time.monotonic(), 60, pop_answer(history, 0, 1, "b"))


def skipped(history):
    history.pop_answered("g", "q", time.monotonic(), 60, pop_answer(history, 3, 1, "a"))


def acked_and_delivered(history):
    history.cursor("g", "q", "lane").mark_done(time.monotonic(), 0)
    history.pop_answered("g", "q", time.monotonic(), 60, pop_answer(history, 0, 1, "a"))


@pytest.mark.parametrize("plant, want", [(leased_twice, "still holds"), (attempt_forgotten, "attempt 1 came before"), (skipped, "nobody acked"),
                                         (acked_and_delivered, "delivered although acked")])  # fmt: skip
def test_queue(plant, want):
    history = workload_queue.LossyHistory()
    push = workload_queue.Push([("q", "lane", "id-1", b'{"tok": 1}', history.token())])
    history.push_sent(push)
    plant(history)
    assert any(want in p for p in history.problems), history.problems
