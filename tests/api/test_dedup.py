"""Dedup: the same id in the window answers the original's id and offset."""

import threading
import time

from queen import ids, offsets


def push_one(broker, queue, transaction_id, partition="p", payload=1):
    return broker.push([{"queue": queue, "partition": partition, "transactionId": transaction_id, "payload": payload}]).expect(201).json[0]


def test_same_id_in_window_answers_original_id_and_offset(broker, queue):
    # 5
    stored = broker.push_ids(queue, ["t-%d" % i for i in range(6, 0, -1)], "p")
    assert stored[5]["transaction_id"] == "t-1"
    again = push_one(broker, queue, "t-1", payload={"other": 1})
    assert again == {"index": 0, "message_id": stored[5]["message_id"], "transaction_id": "t-1", "queueName": queue,
                     "status": "duplicate", "offset": 5}
    assert push_one(broker, queue, "next")["offset"] == 6
    answer = broker.take(queue, "p", batch=20)
    assert ids(answer) == ["t-6", "t-5", "t-4", "t-3", "t-2", "t-1", "next"]
    assert answer["messages"][5]["data"] == {"id": "t-1"}
    assert answer["messages"][5]["id"] == stored[5]["message_id"]


def test_duplicate_answers_the_original_after_it_was_consumed(broker, queue):
    original = broker.push_ids(queue, ["t-1"], "p")[0]
    assert broker.ack(broker.take(queue, "p")["messages"][0])["success"] is True
    again = push_one(broker, queue, "t-1")
    assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", original["message_id"], 0)
    broker.nothing(queue, "p")


def test_same_id_in_another_lane_or_queue_is_new(broker, queue):
    # 6
    first = push_one(broker, queue, "t-1", "p")
    lane = push_one(broker, queue, "t-1", "p2")
    other = push_one(broker, queue + "-other", "t-1", "p")
    assert [r["status"] for r in (first, lane, other)] == ["queued"] * 3
    assert [r["offset"] for r in (first, lane, other)] == [0, 0, 0]
    assert len({r["message_id"] for r in (first, lane, other)}) == 3


def test_past_the_window_the_id_is_new_and_then_duplicate_of_the_new_one(broker, queue):
    # 7
    broker.configure(queue, dedupWindowSeconds=1)
    begin = time.monotonic()
    first = push_one(broker, queue, "t-1")
    assert (first["status"], first["offset"]) == ("queued", 0)
    deadline = begin + 4
    repeats = 0
    while True:
        second = push_one(broker, queue, "t-1")
        if second["status"] == "queued":
            break
        repeats += 1
        assert (second["status"], second["message_id"], second["offset"]) == ("duplicate", first["message_id"], 0)
        assert time.monotonic() < deadline, "the window of one second never ended"
        time.sleep(0.02)
    assert time.monotonic() - begin >= 1.0
    assert repeats > 0
    assert second["offset"] == 1
    assert second["message_id"] != first["message_id"]
    third = push_one(broker, queue, "t-1")
    assert (third["status"], third["message_id"], third["offset"]) == ("duplicate", second["message_id"], 1)


def test_window_zero_stores_the_same_id_twice(broker, queue):
    # 8
    broker.configure(queue, dedupWindowSeconds=0)
    first, second = push_one(broker, queue, "t-1"), push_one(broker, queue, "t-1")
    assert [(r["status"], r["offset"]) for r in (first, second)] == [("queued", 0), ("queued", 1)]
    assert first["message_id"] != second["message_id"]


def test_window_zero_still_folds_repeats_inside_one_request(broker, queue):
    # 9
    broker.configure(queue, dedupWindowSeconds=0)
    item = {"queue": queue, "partition": "p", "transactionId": "t-1", "payload": 1}
    first, second = broker.push([item, dict(item, payload=2)]).expect(201).json
    assert (first["status"], first["offset"]) == ("queued", 0)
    assert (second["status"], second["offset"], second["message_id"]) == ("duplicate", 0, first["message_id"])
    answer = broker.take(queue, "p")
    assert [m["data"] for m in answer["messages"]] == [1]


def test_repeats_inside_a_request_of_a_stored_id_answer_the_stored_one(broker, queue):
    # 10
    stored = broker.push_ids(queue, ["t-0", "t-1"], "p")[1]
    item = {"queue": queue, "partition": "p", "transactionId": "t-1", "payload": 9}
    results = broker.push([item, item]).expect(201).json
    assert [(r["status"], r["offset"], r["message_id"]) for r in results] == [("duplicate", 1, stored["message_id"])] * 2
    assert push_one(broker, queue, "t-2")["offset"] == 2


def test_duplicates_leave_no_gap_between_the_new_ones(broker, queue):
    # 11
    stored = broker.push_ids(queue, ["old"], "p")[0]
    x, old, y = broker.push([{"queue": queue, "partition": "p", "transactionId": t, "payload": 1} for t in ("x", "old", "y")]).expect(201).json
    assert [(r["status"], r["offset"]) for r in (x, old, y)] == [("queued", 1), ("duplicate", 0), ("queued", 2)]
    assert old["message_id"] == stored["message_id"]
    answer = broker.take(queue, "p")
    assert (ids(answer), offsets(answer)) == (["old", "x", "y"], [0, 1, 2])


def test_push_of_duplicates_alone_creates_nothing(broker, queue):
    push_one(broker, queue, "t-1")
    before = broker.queue_detail(queue)
    item = {"queue": queue, "partition": "p", "transactionId": "t-1", "payload": 1}
    assert [r["status"] for r in broker.push([item] * 5).expect(201).json] == ["duplicate"] * 5
    after = broker.queue_detail(queue)
    assert after["totals"] == before["totals"]
    assert after["segments"]["messages"] == before["segments"]["messages"] == 1


def test_changed_window_takes_effect_on_the_next_push(broker, queue):
    push_one(broker, queue, "t-1")
    broker.configure(queue, dedupWindowSeconds=0)
    assert push_one(broker, queue, "t-1")["offset"] == 1
    broker.configure(queue, dedupWindowSeconds=600)
    lowest = push_one(broker, queue, "t-1")
    assert (lowest["status"], lowest["offset"]) == ("duplicate", 0)


def test_ids_compare_as_whole_strings(broker, queue):
    names = ["a", "A", "a ", " a", "a\u0301", "\u00e1", "a\\u0301", "", "0", "00"]
    results = [push_one(broker, queue, name) for name in names]
    assert [(r["status"], r["offset"]) for r in results] == [("queued", i) for i in range(len(names))]
    results = [push_one(broker, queue, name) for name in names]
    assert [(r["status"], r["offset"]) for r in results] == [("duplicate", i) for i in range(len(names))]


def test_duplicate_after_kill_answers_the_original(own_broker, queue):
    # 17
    broker = own_broker()
    stored = broker.push_ids(queue, ["a", "b", "c"], "p")
    broker.restart("kill")
    results = broker.push([{"queue": queue, "partition": "p", "transactionId": t, "payload": 2} for t in ("c", "a", "d", "b")]).expect(201).json
    assert [(r["status"], r["offset"]) for r in results] == [("duplicate", 2), ("duplicate", 0), ("queued", 3), ("duplicate", 1)]
    assert [results[i]["message_id"] for i in (1, 3, 0)] == [r["message_id"] for r in stored]
    broker.restart("stop")
    again = push_one(broker, queue, "d")
    assert (again["status"], again["offset"], again["message_id"]) == ("duplicate", 3, results[2]["message_id"])
    answer = broker.take(queue, "p")
    assert (ids(answer), offsets(answer)) == (["a", "b", "c", "d"], [0, 1, 2, 3])
    assert [m["data"] for m in answer["messages"]] == [{"id": "a"}, {"id": "b"}, {"id": "c"}, 2]


def test_concurrent_pushes_of_one_id_store_one_message(broker, queue):
    results = []

    def work():
        for i in range(25):
            results.append((i, push_one(broker, queue, "t-%d" % i)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(results) == 200
    for i in range(25):
        of_id = [r for k, r in results if k == i]
        assert sorted(r["status"] for r in of_id) == ["duplicate"] * 7 + ["queued"]
        assert len({(r["message_id"], r["offset"]) for r in of_id}) == 1
    answer = broker.take(queue, "p", batch=100)
    assert sorted(ids(answer)) == sorted("t-%d" % i for i in range(25))
    assert offsets(answer) == list(range(25))
