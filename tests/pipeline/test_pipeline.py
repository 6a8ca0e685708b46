"""Every input's effects exactly once and in order, whatever fails.

Two stages of workers step message by message; the broker is killed (kill -9, power loss, SIGTERM) and started again on its data
throughout. See pipeline_verify.py for what the pipeline is and pipeline_worker.py for what goes wrong in it.
"""
import json

import pytest
from crash_broker import ALL
from pipeline_run import Run

SECONDS = 600 if ALL else 40


def report(run, record_property):
    counts = dict(sorted(run.counts.items()))
    record_property("counts", json.dumps(counts))
    print(json.dumps(counts, indent=1))


@pytest.mark.seconds(50)
def test_every_input_takes_effect_exactly_once(brokers, seed, place, record_property):
    broker = brokers(power=True).start()
    run = Run(broker, place, seed)
    problems = run.work(SECONDS)
    report(run, record_property)
    assert not problems, "\n".join(problems[:20]) + f"\n({len(problems)} problems)\n" + broker.log_tail()
    # each kind of trouble came up
    counts = run.counts
    for name in ("kills -9", "power cuts", "worker kills", "redeliveries", "answers lost", "transactions sent again", "next with messages",
                 "rollback rejected_ack", "rollback duplicate", "rollback kv_precondition exists", "cancel cancelled", "cancel absent",
                 "spoiled duplicate", "spoiled kv_precondition", "spoiled rejected_ack", "oversleep", "requests cut", "answers cut", "timers watched"):  # fmt: skip
        assert counts[name] > 0, f"no {name}: {counts}"
    assert counts["inputs"] > 20 * SECONDS and counts["kills -9"] + counts["power cuts"] > SECONDS / 6, counts
    assert counts["committed"] > counts["inputs"], counts


@pytest.mark.seconds(17)
@pytest.mark.parametrize("gate", ["none"])
def test_workers_without_a_gate_are_found_out(brokers, seed, place, record_property, gate):
    """The proof of the proof: no marker, no ids derived from the input, transactions sent twice. Then things happen twice, and are seen."""
    broker = brokers(power=True).start()
    run = Run(broker, place, seed, gates=(gate, gate, gate), send_twice=0.3)
    problems = run.work(5, kill_every_s=(1.5, 2.5))
    report(run, record_property)
    text = "\n".join(problems)
    assert "doubled" in text and "counter" in text, f"steps without a gate were repeated and nobody noticed: {run.counts}\n{text[:2000]}"
