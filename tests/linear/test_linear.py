"""KV answers of concurrent clients are linearizable, also across kills, and calls of several keys are atomic."""
import json
import os
import random
import time
from collections import Counter

import pytest
from crash_broker import ALL
from linear_check import check
from linear_record import Record

SECONDS = 300 if ALL else 22


def run(broker, seed, seconds, path):
    """Clients at work while the broker is killed and started again. Returns the Record."""
    rng = random.Random(seed)
    record = Record(broker.port, seed, path).start()
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(0.6, 2.6))
            assert broker.alive(), broker.log_tail()
            if rng.random() < 0.15:
                assert broker.terminate() == 0, broker.log_tail()
                record.counts["graceful stops"] += 1
            else:
                broker.kill()
                record.counts["kills -9"] += 1
                if rng.random() < 0.5:
                    broker.faults.power_cut(rng.randrange(1 << 32))
                    record.counts["power cuts"] += 1
            broker.start()
        time.sleep(0.5)
    finally:
        record.stop()
    return record


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def plainest(lines):
    """The lines of the group with the fewest lost answers: a violation among many of them takes long to be certain of."""
    lost, size = Counter(), Counter()
    for line in lines:
        size[line["group"]] += 1
        lost[line["group"]] += line["answer"] is None
    best = min((group for group in size if size[group] >= 150), key=lambda group: lost[group])
    return [line for line in lines if line["group"] == best]


def judged_after(path, edit, rng):
    """The checker's word on one group of the history once `edit` has changed its lines."""
    lines = plainest(lines_of(path))
    edit(lines, rng)
    edited = path + ".edited"
    with open(edited, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)
    return check(edited)


def answered_gets(lines):
    for line in lines:
        if line["answer"] and len(line["ops"]) == 1 and line["ops"][0]["op"] == "get" and line["answer"]["results"][0]["found"]:
            yield line, line["answer"]["results"][0]


def foreign_value(lines, rng):
    _, element = rng.choice(list(answered_gets(lines)))
    element["value"] = "planted"


def forgotten_write(lines, rng):
    """A write is taken out whose version somebody reads later."""
    read = {(line["group"], element["key"], element["version"]) for line, element in answered_gets(lines)}
    writes = []
    for line in lines:
        if line["answer"] and len(line["ops"]) == 1 and line["ops"][0]["op"] == "put" and "results" in line["answer"]:
            element = line["answer"]["results"][0]
            if element["applied"] and (line["group"], element["key"], element["version"]) in read:
                writes.append(line)
    lines.remove(rng.choice(writes))


def stale_answer(lines, rng):
    """A get answers what the same key held before, although a later version had been read before it was sent."""
    by_key = {}
    stale = []
    for line, element in answered_gets(lines):
        earlier = by_key.setdefault((line["group"], element["key"]), [])
        newest = [e for e in earlier if e[0]["return"] < line["call"] and e[1]["version"] == element["version"]]
        older = [e for e in earlier if newest and e[1]["version"] < element["version"]]
        if older:
            stale.append((element, older[0][1]))
        earlier.append((line, element))
    element, old = rng.choice(stale)
    element["value"], element["version"] = old["value"], old["version"]


@pytest.mark.seconds(32)
def test_histories_are_linearizable_across_kills(brokers, seed, place, record_property):
    broker = brokers(power=True).start()
    path = os.path.join(place, "history.jsonl")
    record = run(broker, seed, SECONDS, path)
    counts = dict(sorted(record.counts.items()))
    record_property("counts", json.dumps(counts))
    print(json.dumps(counts, indent=1))
    assert not record.problems, "\n".join(record.problems[:20]) + f"\n({len(record.problems)} problems)\n" + broker.log_tail()
    code, text = check(path)
    assert code == 0, text
    # the load was worth it
    assert counts["calls"] > 200 * SECONDS and counts["answers lost"] > 10 and counts["kills -9"] > SECONDS / 6, counts
    for kind in ("put applied", "put version", "put exists", "put absent", "putIfAbsent applied", "putIfAbsent exists", "delete applied",
                 "delete absent", "delete version", "incr applied", "incr type", "incr limit", "check applied", "check version", "get read",
                 "getMany read", "calls rolled back", "calls of several ops"):  # fmt: skip
        assert counts.get(kind, 0) > 0, f"no {kind}: {counts}"
    # and the checker would have seen a fault in it
    rng = random.Random(seed)
    for edit in (foreign_value, forgotten_write, stale_answer):
        code, text = judged_after(path, edit, rng)
        assert code == 1 and "NOT LINEARIZABLE" in text, f"{edit.__name__}: {text[:2000]}"
