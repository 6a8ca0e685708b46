"""What must be there when every input went through the pipeline, and what is.

    in --stage a--> mid --stage b--> out          each step is one transaction:
         |                  |                       a: ack, push to mid, marker, two counters, a timer into `timed`, one into `late`
         +--> timed         +--> cancels            b: ack, push to out, marker, two counters, cancels the timer into `late`
         +--> late                                  a poisoned input: a dead letter, a marker and a counter, nothing else

look() reads a broker, verify() compares and is a pure function: test_verifier.py feeds it mistakes.
"""
import datetime
import json
from collections import Counter, defaultdict

STAGES = ("a", "b")
SOURCE = {"a": "in", "b": "mid"}
TARGET = {"a": "mid", "b": "out"}
QUEUES = ("in", "mid", "out", "timed", "late")
GROUP = "steps"


class Expected:
    """What the feeders pushed and what the workers were told."""

    def __init__(self):
        self.lanes = defaultdict(list)  # lane -> [(id, poisoned)] in the order of its pushes
        self.cancels = {}  # id -> "cancelled" | "absent", where the answer arrived
        self.promised = {}  # (queue, id) -> message id, where the answer arrived

    def clean(self, lane):
        return [i for i, poisoned in self.lanes[lane] if not poisoned]

    def poisoned(self, lane):
        return [i for i, poisoned in self.lanes[lane] if poisoned]

    def count(self):
        return sum(len(inputs) for inputs in self.lanes.values())


class Seen:
    def __init__(self):
        self.queues = {}  # name -> {lane: [message]}
        self.counts = {}
        self.last = {}
        self.markers = Counter()
        self.dead = []
        self.timers_left = {}


# ---- reading a broker ----


def read_queue(conn, queue, group):
    lanes = defaultdict(list)
    path = f"/api/v1/pop/queue/{queue}?consumerGroup={group}&batch=5000&partitions=64&autoAck=true&subscriptionMode=all"
    while True:
        status, answer = conn.json("GET", path)
        if status == 204:
            return dict(lanes)
        assert status == 200, (status, answer)
        for message in answer["messages"]:
            lanes[message["partition"]].append(message)


def read_prefix(conn, name_space, prefix):
    rows, after = [], None
    while True:
        op = {"op": "getPrefix", "ns": name_space, "prefix": prefix, "limit": 1000}
        if after is not None:
            op["after"] = after
        status, answer = conn.json("POST", "/api/v1/kv", [op])
        assert status == 200, (status, answer)
        page = answer["results"][0]
        rows += page["rows"]
        after = page["nextAfter"]
        if after is None:
            assert not page["truncated"], page
            return rows


def read_dead(conn):
    rows = []
    while True:
        status, answer = conn.json("GET", f"/api/v1/dlq?limit=1000&offset={len(rows)}")
        assert status == 200, (status, answer)
        rows += answer["messages"]
        if not answer["messages"] or len(rows) >= answer["total"]:
            return rows


def timers_left(conn, queue):
    status, answer = conn.json("GET", f"/api/v1/timers/{queue}?mode=count&prefix=t")
    assert status == 200, (status, answer)
    return answer["count"]


def look(conn, group):
    seen = Seen()
    for queue in QUEUES:
        seen.queues[queue] = read_queue(conn, queue, group)
    for stage in STAGES:
        seen.markers.update(row["key"] for row in read_prefix(conn, "once", stage + "."))
        seen.counts.update((row["key"], row["value"]) for row in read_prefix(conn, "count", stage + "."))
        seen.last.update((row["key"], row["value"]) for row in read_prefix(conn, "last", stage + "."))
    seen.dead = read_dead(conn)
    seen.timers_left = {queue: timers_left(conn, queue) for queue in ("timed", "late")}
    return seen


# ---- comparing ----


def stamp_ms(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000


def some(items, most=6):
    items = [str(i) for i in items]
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def compare_lane(where, want, got, ordered=True):
    """want, got: lists of ids."""
    problems = []
    counted = Counter(got)
    doubled = sorted(i for i, n in counted.items() if n > 1)
    lost = [i for i in want if i not in counted]
    foreign = sorted(set(got) - set(want))
    if doubled:
        problems.append(f"{where}: doubled: {some(doubled)}")
    if lost:
        problems.append(f"{where}: lost: {some(lost)}")
    if foreign:
        problems.append(f"{where}: never asked for: {some(foreign)}")
    if ordered and not problems and got != want:
        at = next(n for n, (w, g) in enumerate(zip(want, got)) if w != g)
        problems.append(f"{where}: out of order at {at}: {got[at]} where {want[at]} belongs")
    return problems


def compare_offsets(where, messages):
    offsets = [m["offset"] for m in messages]
    return [] if offsets == list(range(len(offsets))) else [f"{where}: offsets are not 0..{len(offsets) - 1}: {some(offsets)}"]


def ids_of(messages):
    return [m["data"]["id"] for m in messages]


def verify(expected, seen):
    problems = []
    for queue in QUEUES:
        for lane in sorted(set(seen.queues[queue]) - set(expected.lanes)):
            problems.append(f"{queue}: lane {lane} was never used")
    dead = Counter(row["data"]["id"] for row in seen.dead)
    markers_wanted = set()
    for lane, inputs in sorted(expected.lanes.items()):
        every, clean, poisoned = [i for i, _ in inputs], expected.clean(lane), expected.poisoned(lane)
        wants = {"in": every, "mid": clean, "out": clean, "timed": clean}
        for queue, want in wants.items():
            messages = seen.queues[queue].get(lane, [])
            where = f"{queue}/{lane}"
            problems += compare_offsets(where, messages)
            problems += compare_lane(where, want, ids_of(messages), ordered=queue != "timed")
        for stage, want in (("a", every), ("b", clean)):
            markers_wanted.update(f"{stage}.{i}" for i in want)
            key = f"{stage}.{lane}"
            if want and seen.counts.get(key) != len(want):
                problems.append(f"counter {key} is {seen.counts.get(key)}, not {len(want)}")
            if want and seen.last.get(key) != want[-1]:
                problems.append(f"the last input of {key} is {seen.last.get(key)}, not {want[-1]}")
        problems += [f"dead letter of {i} is there {dead[i]} times" for i in poisoned if dead[i] != 1]
        problems += verify_late(expected, seen, lane, clean)
    all_poisoned = {i for lane in expected.lanes for i in expected.poisoned(lane)}
    problems += [f"dead letter nobody asked for: {i}" for i in sorted(set(dead) - all_poisoned)]
    problems += compare_lane("markers", sorted(markers_wanted), sorted(seen.markers.elements()))
    problems += verify_timers(expected, seen)
    return problems


def verify_late(expected, seen, lane, clean):
    """A timer whose cancellation was answered `cancelled` never fires, one answered `absent` has fired."""
    problems = []
    fired = Counter(ids_of(seen.queues["late"].get(lane, [])))
    for i, n in sorted(fired.items()):
        if n > 1:
            problems.append(f"late/{lane}: doubled: {i}")
        if i not in clean:
            problems.append(f"late/{lane}: never asked for: {i}")
    for i in clean:
        answer = expected.cancels.get(i)
        if answer == "cancelled" and fired[i]:
            problems.append(f"late/{lane}: {i} fired although its cancellation was answered")
        if answer == "absent" and not fired[i]:
            problems.append(f"late/{lane}: lost: {i} (its cancellation found nothing)")
    return problems


def verify_timers(expected, seen):
    problems = [f"{n} timers into {queue} never fired" for queue, n in seen.timers_left.items() if n]
    for queue in ("timed", "late"):
        for lane, messages in seen.queues[queue].items():
            for message in messages:
                data = message["data"]
                # createdAt is cut to milliseconds
                early = data["due_ms"] - (stamp_ms(message["createdAt"]) + 1)
                if early > 0:
                    problems.append(f"{queue}/{lane}: {data['id']} fired {early:.3f} ms early")
                if message["transactionId"] != f"t-{data['id']}":
                    problems.append(f"{queue}/{lane}: {data['id']} came as {message['transactionId']}")
                promised = expected.promised.get((queue, data["id"]))
                if promised is not None and promised != message["id"]:
                    problems.append(f"{queue}/{lane}: {data['id']} came with message id {message['id']}, {promised} was promised")
    return problems


def dump(expected, seen, path):
    """Everything, for a look after a failure."""
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"lanes": expected.lanes, "cancels": expected.cancels, "queues": seen.queues, "counts": seen.counts, "last": seen.last,
                   "markers": seen.markers, "dead": seen.dead}, f)  # fmt: skip
