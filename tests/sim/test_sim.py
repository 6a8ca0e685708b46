"""The simulator of whole clusters: seeds without a violation, the same run twice, and bugs that it must find.

What is simulated and checked: docs/simulator.md. The programs stand beside the broker's (QUEEN_BIN)."""
import os
import re
import subprocess

import pytest

BUILD = os.path.dirname(os.path.abspath(os.environ.get("QUEEN_BIN", "build/queen")))
ALL = os.environ.get("QUEEN_TEST_ALL") == "1"
SEEDS_A_PART = 250 if ALL else 8

# Planted bug -> what the simulator says of it. Not just any failure will do.
PLANTED = {
    "answer-before-quorum": r"durable on \d of \d voters only",
    "apply-before-durable": r"not durable in the node's own log",
    "lease-by-wall-clock": r"while another one's lease .* holds",
    "dedup-not-kept": r"differs from another node's|is in lane \d+ at \d+ and in lane|was queued twice",
    "answer-by-index": r"broken invariant at .*(work_|answer|batch)|stored .* and is not there|is not there|held .* before|signal 11",
    "ack-lost-on-step-down": r"again, after it was acked",
    "snapshot-missing-row": r"differs from another node's|states of n\d and n\d differ",
    "wiped-voter-votes": r"two leaders in term|is not the one that another node applied|durable on \d of \d voters",
    "torn-transaction": r"step \d+ (is|was) .*(marker|result|timer)",
    "timer-twice": r"is in lane \d+ at \d+ and in lane",
    "move-not-stored": r"could not be read back|s->bytes\[.* >= (less->)?bytes",
}
FIRST_SEED = {"answer-by-index": 61}  # one seed in sixty finds it: 66 does


def run(program, *args, limit=600):
    done = subprocess.run([os.path.join(BUILD, program), *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=limit * (10 if ALL else 1), check=False)
    for line in done.stdout.splitlines():
        if line.startswith("counts of sim") or " seeds, " in line:
            print(line)
    return done


@pytest.mark.parametrize("part", range(8))
def test_no_seed_violates_anything(part):
    done = run("queen_sim", "--seed", str(part * SEEDS_A_PART + 1), "--seeds", str(SEEDS_A_PART))
    assert done.returncode == 0, done.stdout[-8000:]


def test_one_node_alone():
    done = run("queen_sim", "--alone", "--seed", "1", "--seeds", "20")
    assert done.returncode == 0, done.stdout[-8000:]


def test_the_same_seed_is_the_same_run():
    done = run("queen_sim", "--twice", "--seed", "5001", "--seeds", "4")
    assert done.returncode == 0, done.stdout[-8000:]


def test_a_schedule_is_read_as_it_was_printed(tmp_path):
    """What a failure prints can be run again: the planted bug is found with the printed, smaller schedule, too."""
    done = run("queen_sim_planted", "--plant", "timer-twice", "--seed", "1", "--seeds", "1")
    assert done.returncode == 1
    lines = done.stdout.split("with these lines in FILE:\n", 1)[1]
    schedule = tmp_path / "schedule"
    schedule.write_text("".join(line + "\n" for line in lines.splitlines() if re.match(r"nodes|minutes|\d+\.\d+ ", line)))
    again = run("queen_sim_planted", "--plant", "timer-twice", "--seed", "1", "--schedule", str(schedule), "--no-shrink")
    assert again.returncode == 1 and re.search(PLANTED["timer-twice"], again.stdout)


@pytest.mark.parametrize("plant", sorted(PLANTED))
def test_a_planted_bug_is_found(plant):
    seeds, step, begin = 120, 10, FIRST_SEED.get(plant, 1)
    for first in range(begin, begin + seeds, step):
        done = run("queen_sim_planted", "--plant", plant, "--seed", str(first), "--seeds", str(step), "--no-shrink", "--keep-going")
        if re.search(PLANTED[plant], done.stdout):
            return
    pytest.fail("not found in %d seeds" % seeds)
