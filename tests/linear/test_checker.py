"""The proof of the proof: the checker accepts what a correct broker may answer, and refuses every planted violation."""
import inspect
import json

import pytest
from linear_check import check


class Book:
    """Writes histories by hand. Every call takes one tick unless told when it begins and ends."""

    def __init__(self):
        self.lines = []
        self.now = 0

    def call(self, ops, answer, begin=None, end=None, group="g"):
        begin = self.now if begin is None else begin
        end = begin + 5 if end is None else end
        self.now = max(self.now, end) + 5
        self.lines.append({"client": len(self.lines), "group": group, "route": "kv", "call": begin, "return": end if answer else None,
                           "ops": ops, "answer": answer})  # fmt: skip

    def one(self, op, result, **when):
        self.call([op], {"results": [result]} if result else None, **when)


def put(value, key=0, **more):
    return {"op": "put", "key": key, "value": value, **more}


def incr(delta, key=0, **more):
    return {"op": "incr", "key": key, "delta": delta, **more}


def get(key=0):
    return {"op": "get", "key": key}


def applied(value, version, key=0):
    return {"applied": True, "key": key, "value": value, "version": version}


def refused(reason, value, version, key=0):
    return {"applied": False, "reason": reason, "key": key, "value": value, "version": version}


def found(value, version, key=0):
    return {"found": True, "key": key, "value": value, "version": version}


def row(value, version, key=0):
    return {"key": key, "value": value, "version": version}


MISSING = {"found": False, "key": 0}


def judge(tmp_path, book):
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in book.lines))
    return check(str(path))


def lawful():
    """Every op, every reason, calls of several keys, lost answers that happened and that did not."""
    b = Book()
    b.one(get(), MISSING)
    b.one(put("a"), applied("a", 3))
    b.one(get(), found("a", 3))
    b.one({"op": "putIfAbsent", "key": 0, "value": "b"}, refused("exists", "a", 3))
    b.one(put("b", expect=2), refused("version", "a", 3))
    b.one(put("b", expect=3), applied("b", 9))
    b.one(incr(1), refused("type", 0, 9))
    b.one({"op": "check", "key": 0, "expect": 9}, {"applied": True, "key": 0, "version": 9})
    b.one({"op": "delete", "key": 0}, applied("b", 9))
    b.one({"op": "delete", "key": 0}, refused("absent", None, 0))
    b.one({"op": "delete", "key": 0, "expect": 0}, applied(None, 0))
    b.one(put("c", expect=9), refused("absent", None, 0))
    b.one(incr(5, max=4), refused("limit", 0, 0))
    b.one(incr(2), applied(2, 10))
    b.one(incr(5, max=4), refused("limit", 2, 10))
    # the answer of an incr is lost; it happened, and somebody sees its version later
    b.one(incr(3), None)
    b.one(get(), found(5, 12))
    # lost, and never happened
    b.one(put("never"), None)
    b.one(get(), found(5, 12))
    # two puts at once
    b.one(put("x"), applied("x", 14), begin=1000, end=1100)
    b.one(put("y"), applied("y", 13), begin=1000, end=1100)
    b.one(get(), found("x", 14))
    # several keys; getMany sees the call's own writes, a get before the write does not
    b.call([get(), put("k1", 1), {"op": "getMany", "keys": [0, 1, 2]}, put("k0"), get()], {"results": [
        found("x", 14), applied("k1", 15, 1), {"rows": [row("k0", 16), row("k1", 15, 1)], "missing": [2]}, applied("k0", 16),
        found("k0", 16)]})  # fmt: skip
    # a required op lost: nothing of the call happened
    b.call([put("no", 1), {"op": "putIfAbsent", "key": 0, "value": 1, "required": True}],
           {"rollback": {"failedIndex": 1, "kvReason": "exists", "version": 16, "value": "k0"}})  # fmt: skip
    b.one(get(1), found("k1", 15, 1))
    # a lost call of several keys happened as one
    b.call([put("l0"), put("l1", 1)], None)
    b.one({"op": "getMany", "keys": [0, 1]}, {"rows": [row("l0", 20), row("l1", 21, 1)], "missing": []})
    return b


def test_a_lawful_history_is_accepted(tmp_path):
    code, text = judge(tmp_path, lawful())
    assert code == 0 and "OK: 27 calls in 1 groups, 3 without an answer" in text, text


def stale_read(b):
    b.one(put("a"), applied("a", 1))
    b.one(put("b"), applied("b", 2))
    b.one(get(), found("a", 1))


def lost_write(b):
    b.one(put("a"), applied("a", 1))
    b.one(get(), MISSING)


def read_of_the_future(b):
    b.one(get(), found("a", 1))
    b.one(put("a"), applied("a", 1))


def incr_counted_twice(b):
    b.one(incr(1), applied(1, 1))
    b.one(get(), found(2, 2))


def lost_incr_counted_twice(b):
    b.one(incr(1), None)
    b.one(get(), found(2, 2))


def two_incrs_to_one_value(b):
    b.one(incr(1), applied(1, 1), begin=0, end=100)
    b.one(incr(1), applied(1, 2), begin=0, end=100)


def two_winners(b):
    for version in (1, 2):
        b.one({"op": "putIfAbsent", "key": 0, "value": "w"}, applied("w", version), begin=0, end=100)


def version_goes_back(b):
    b.one(put("a"), applied("a", 5))
    b.one(put("b"), applied("b", 4))


def version_used_again_after_delete(b):
    b.one(put("a"), applied("a", 5))
    b.one({"op": "delete", "key": 0}, applied("a", 5))
    b.one(put("b"), applied("b", 5))


def version_of_a_lost_write_is_an_old_one(b):
    b.one(put("a"), applied("a", 5))
    b.one(put("b"), None)
    b.one(get(), found("b", 5))


def version_changes_between_reads(b):
    b.one(put("a"), None)
    b.one(get(), found("a", 5))
    b.one(get(), found("a", 6))


def stale_compare_and_set(b):
    b.one(put("a"), applied("a", 1))
    b.one(put("b"), applied("b", 2))
    b.one(put("c", expect=1), applied("c", 3))


def wrong_reason(b):
    b.one(put("a"), applied("a", 1))
    b.one(put("c", expect=7), refused("absent", None, 0))


def loser_shows_another_value(b):
    b.one(put("a"), applied("a", 1))
    b.one({"op": "putIfAbsent", "key": 0, "value": "c"}, refused("exists", "b", 1))


def delete_twice(b):
    b.one(put("a"), applied("a", 1))
    for _ in range(2):
        b.one({"op": "delete", "key": 0}, applied("a", 1), begin=100, end=200)


def lost_write_seen_before_it_was_sent(b):
    b.one(get(), found("b", 2))
    b.one(put("b"), None)


def lost_write_seen_as_another_value(b):
    b.one(put("b"), None)
    b.one(get(), found("c", 2))


def lost_write_undone(b):
    """Seen once, it stays: an unanswered write may happen late, not be taken back."""
    b.one(put("a"), applied("a", 1))
    b.one(put("b"), None)
    b.one(get(), found("b", 2))
    b.one(get(), found("a", 1))


def torn_call(b):
    b.call([put("a"), put("b", 1)], {"results": [applied("a", 1), applied("b", 2, 1)]}, begin=0, end=500)
    b.one({"op": "getMany", "keys": [0, 1]}, {"rows": [row("a", 1)], "missing": [1]}, begin=100, end=200)


def torn_call_without_an_answer(b):
    b.call([put("a"), put("b", 1)], None)
    b.one(get(), found("a", 1))
    b.one(get(1), {"found": False, "key": 1})


def rolled_back_call_left_a_write(b):
    b.one(put("a"), applied("a", 1))
    b.call([{"op": "putIfAbsent", "key": 0, "value": 1, "required": True}, put("no", 1)],
           {"rollback": {"failedIndex": 0, "kvReason": "exists", "version": 1, "value": "a"}})  # fmt: skip
    b.one(get(1), found("no", 2, 1))


def rolled_back_without_cause(b):
    b.call([{"op": "putIfAbsent", "key": 0, "value": 1, "required": True}],
           {"rollback": {"failedIndex": 0, "kvReason": "exists", "version": 1, "value": "a"}})  # fmt: skip


def limit_overrun(b):
    b.one(incr(3), applied(3, 1))
    b.one(incr(3, max=5), applied(6, 2))


def get_before_the_write_sees_the_new_value(b):
    b.one(put("a"), applied("a", 1))
    b.call([get(), put("b")], {"results": [found("b", 2), applied("b", 2)]})


def violations():
    """The functions above that take a book."""
    functions = [v for v in list(globals().values()) if inspect.isfunction(v)]
    return [v for v in functions if list(inspect.signature(v).parameters) == ["b"]]


VIOLATIONS = violations()


@pytest.mark.parametrize("violation", VIOLATIONS, ids=lambda v: v.__name__)
def test_a_planted_violation_is_refused(tmp_path, violation):
    """Alone, and at the end of a long lawful history, with the offending group printed."""
    book = Book()
    violation(book)
    code, text = judge(tmp_path, book)
    assert code == 1 and "NOT LINEARIZABLE: group g," in text, text
    assert all(json.dumps(line) in text for line in book.lines)
    long = lawful()
    for line in long.lines:
        line["group"] = "fine"
    violation(long)
    code, text = judge(tmp_path, long)
    assert code == 1 and "NOT LINEARIZABLE: group g," in text, text


def test_there_are_violations():
    assert len(VIOLATIONS) >= 20


@pytest.mark.parametrize("line", ["{", '{"ops":[]}', '{"client":0,"group":"g","call":1,"return":0,"ops":[{"op":"get","key":0}],"answer":{"results":[]}}',
                                  '{"client":0,"group":"g","call":1,"return":2,"ops":[{"op":"mend","key":0}],"answer":null}'])  # fmt: skip
def test_what_is_no_history_is_refused(tmp_path, line):
    path = tmp_path / "history.jsonl"
    path.write_text(line + "\n")
    code, text = check(str(path))
    assert code == 2 and "line 1" in text, text
