"""The proof of the proof: the verifier says nothing about a clean run, and names each planted mistake."""
import copy
import datetime
from collections import Counter

import pytest
from pipeline_verify import Expected, Seen, verify

LANES, PER_LANE = 3, 10
BASE = datetime.datetime(2031, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)


def message(offset, data, transaction_id, ms=0):
    created = BASE + datetime.timedelta(milliseconds=ms)
    return {"id": f"m-{transaction_id}", "offset": offset, "data": data, "transactionId": transaction_id,
            "createdAt": created.strftime("%Y-%m-%dT%H:%M:%S.") + f"{created.microsecond // 1000:03d}Z"}  # fmt: skip


def clean_run():
    """Every fifth input is poisoned; every third `late` timer was cancelled in time."""
    expected, seen = Expected(), Seen()
    seen.queues = {queue: {} for queue in ("in", "mid", "out", "timed", "late")}
    for number in range(LANES):
        lane = f"lane-{number}"
        inputs = [(f"{number}-{i}", i % 5 == 4) for i in range(PER_LANE)]
        expected.lanes[lane] = inputs
        every, clean = [i for i, _ in inputs], [i for i, poisoned in inputs if not poisoned]
        for queue, wanted in (("in", every), ("mid", clean), ("out", clean)):
            seen.queues[queue][lane] = [message(n, {"id": i}, f"{queue}-{i}") for n, i in enumerate(wanted)]
        base_ms = BASE.timestamp() * 1000
        for queue in ("timed", "late"):
            seen.queues[queue][lane] = []
            for n, i in enumerate(clean):
                if queue == "late":
                    expected.cancels[i] = "cancelled" if n % 3 == 0 else "absent"
                    if n % 3 == 0:
                        continue
                place = len(seen.queues[queue][lane])
                seen.queues[queue][lane].append(message(place, {"id": i, "due_ms": base_ms + 100.25}, f"t-{i}", ms=100 + n))
                expected.promised[(queue, i)] = f"m-t-{i}"
        for stage, wanted in (("a", every), ("b", clean)):
            seen.markers.update(f"{stage}.{i}" for i in wanted)
            seen.counts[f"{stage}.{lane}"] = len(wanted)
            seen.last[f"{stage}.{lane}"] = wanted[-1]
        seen.dead += [{"data": {"id": i}} for i, poisoned in inputs if poisoned]
    seen.timers_left = {"timed": 0, "late": 0}
    return expected, seen


def test_a_clean_run_has_no_problems():
    expected, seen = clean_run()
    assert verify(expected, seen) == []
    assert expected.count() == LANES * PER_LANE and len(expected.cancels) == LANES * 8


def lane_of(seen, queue):
    return seen.queues[queue]["lane-1"]


def renumber(messages):
    for offset, m in enumerate(messages):
        m["offset"] = offset


def double(queue):
    def plant(_, seen):
        messages = lane_of(seen, queue)
        messages.insert(4, copy.deepcopy(messages[2]))
        renumber(messages)

    return plant


def lose(queue):
    def plant(_, seen):
        del lane_of(seen, queue)[3]
        renumber(lane_of(seen, queue))

    return plant


def swap(queue):
    def plant(_, seen):
        messages = lane_of(seen, queue)
        messages[2], messages[3] = messages[3], messages[2]
        renumber(messages)

    return plant


def early(queue):
    def plant(_, seen):
        lane_of(seen, queue)[0]["data"]["due_ms"] += 30

    return plant


def change(name, key, value):
    return lambda _, seen: getattr(seen, name).__setitem__(key, value)


def hole(_, seen):
    lane_of(seen, "out")[5]["offset"] += 1


def lost_marker(_, seen):
    del seen.markers["b.1-3"]


def foreign_marker(_, seen):
    seen.markers = seen.markers + Counter(["a.never"])


def lost_dead_letter(_, seen):
    seen.dead.pop()


def doubled_dead_letter(_, seen):
    seen.dead.append(seen.dead[0])


def foreign_dead_letter(_, seen):
    seen.dead.append({"data": {"id": "1-0"}})


def cancelled_and_fired(expected, seen):
    expected.cancels[lane_of(seen, "late")[0]["data"]["id"]] = "cancelled"


def wrong_lane(_, seen):
    seen.queues["out"]["lane-2"].append(message(8, {"id": "1-0"}, "x"))


def unused_lane(_, seen):
    seen.queues["out"]["lane-9"] = [message(0, {"id": "1-0"}, "x")]


def other_message_id(_, seen):
    lane_of(seen, "timed")[0]["id"] = "another"


MISTAKES = {
    "doubled output": (double("out"), "out/lane-1: doubled: 1-2"),
    "lost output": (lose("out"), "out/lane-1: lost: 1-3"),
    "reordered output": (swap("out"), "out/lane-1: out of order at 2: 1-3 where 1-2 belongs"),
    "doubled between the stages": (double("mid"), "mid/lane-1: doubled: 1-2"),
    "lost between the stages": (lose("mid"), "mid/lane-1: lost: 1-3"),
    "reordered between the stages": (swap("mid"), "mid/lane-1: out of order"),
    "doubled input": (double("in"), "in/lane-1: doubled"),
    "lost input": (lose("in"), "in/lane-1: lost"),
    "offset left out": (hole, "out/lane-1: offsets are not"),
    "output in a wrong lane": (wrong_lane, "out/lane-2: never asked for: 1-0"),
    "output in an unused lane": (unused_lane, "out: lane lane-9"),
    "timer fired twice": (double("timed"), "timed/lane-1: doubled: 1-2"),
    "timer lost": (lose("timed"), "timed/lane-1: lost: 1-3"),
    "timer early": (early("timed"), "29.250 ms early"),
    "timer with another message id": (other_message_id, "was promised"),
    "timer still there": (change("timers_left", "timed", 1), "1 timers into timed never fired"),
    "late timer fired twice": (double("late"), "late/lane-1: doubled"),
    "late timer lost": (lose("late"), "found nothing"),
    "late timer early": (early("late"), "early"),
    "cancelled timer fired": (cancelled_and_fired, "fired although"),
    "counter too high": (change("counts", "a.lane-1", PER_LANE + 1), "counter a.lane-1 is 11, not 10"),
    "counter too low": (change("counts", "b.lane-1", 7), "counter b.lane-1 is 7, not 8"),
    "last input is an older one": (change("last", "b.lane-1", "1-2"), "the last input of b.lane-1 is 1-2"),
    "marker lost": (lost_marker, "markers: lost: b.1-3"),
    "marker of nothing": (foreign_marker, "markers: never asked for: a.never"),
    "dead letter lost": (lost_dead_letter, "is there 0 times"),
    "dead letter twice": (doubled_dead_letter, "is there 2 times"),
    "dead letter of a good input": (foreign_dead_letter, "dead letter nobody asked for: 1-0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_reported(name):
    plant, want = MISTAKES[name]
    expected, seen = clean_run()
    plant(expected, seen)
    problems = verify(expected, seen)
    assert any(want in problem for problem in problems), problems
