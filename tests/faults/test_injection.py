"""Faults fire where the rule says, as often as it says, and can be armed in a running process."""
import os
import signal
import subprocess
import sys
import time

import faultlib
import pytest

PRELUDE = """
import os, errno, time
def make(name): return os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
def attempt(f, *a):
    try: return f(*a)
    except OSError as e: return errno.errorcode[e.errno]
def dirsync(p='.'):
    fd = os.open(p, os.O_RDONLY)
    try: return attempt(os.fsync, fd)
    finally: os.close(fd)
"""


def run(faults, program):
    result = faults.run([sys.executable, "-c", PRELUDE + program])
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.parametrize("power", [True, False])
def test_the_nth_call_fails_once(tmp_path, power):
    faults = faultlib.Faults(str(tmp_path), power=power)
    faults.arm("op=fdatasync path=log/*.seg nth=3 errno=EIO")
    out = run(
        faults,
        "os.mkdir('log'); a = make('log/1.seg'); b = make('other')\n"
        "for i in range(5): os.write(a, b'x'); print(attempt(os.fdatasync, a)); assert attempt(os.fdatasync, b) is None",
    )
    assert out == ["None", "None", "EIO", "None", "None"]
    assert faults.fired() == ["fdatasync log/1.seg"]


def test_for_ever_and_by_number_of_times(faults):
    faults.arm("op=write path=a nth=2 times=0 errno=ENOSPC", "op=sync path=b times=2 errno=5")
    out = run(
        faults,
        "a = make('a'); b = make('b')\n"
        "for i in range(4): print(attempt(os.write, a, b'xx'), attempt(os.pwrite, b, b'y', 0), attempt(os.fsync, b))",
    )
    assert out == ["2", "1", "EIO", "ENOSPC", "1", "EIO", "ENOSPC", "1", "None", "ENOSPC", "1", "None"]


def test_a_failed_write_changes_nothing_and_a_short_one_only_its_part(faults):
    faults.arm("op=write path=a errno=EIO", "op=write path=b bytes=3", "op=write path=c bytes=2 errno=ENOSPC")
    out = run(
        faults,
        "for n in 'abc': print(attempt(os.write, make(n), b'hello'))\n"
        "print(*[os.stat(n).st_size for n in 'abc'])",
    )
    assert out == ["EIO", "3", "ENOSPC", "0", "3", "2"]


def test_names_and_opens_fail_and_change_nothing(faults):
    faults.arm(
        "op=open path=new errno=EMFILE", "op=rename path=b errno=EIO", "op=unlink path=a errno=EIO",
        "op=mkdir path=d errno=ENOSPC", "op=dirsync errno=EIO", "op=truncate path=a errno=EIO", "op=allocate path=a errno=ENOSPC",
    )  # fmt: skip
    out = run(
        faults,
        "a = make('a'); os.write(a, b'123')\n"
        "print(attempt(make, 'new'), attempt(os.rename, 'a', 'b'), attempt(os.unlink, 'a'), attempt(os.mkdir, 'd'), dirsync(),\n"
        "  attempt(os.ftruncate, a, 0), attempt(os.posix_fallocate, a, 0, 9999))\n"
        "print(*os.listdir('.'), os.stat('a').st_size)",
    )
    assert out == ["EMFILE", "EIO", "EIO", "ENOSPC", "EIO", "EIO", "ENOSPC", "a", "3"]
    assert len(faults.fired()) == 7


def test_reads_fail_or_come_short(faults):
    faults.arm("op=read path=a nth=2 errno=EIO", "op=read path=b bytes=2")
    out = run(
        faults,
        "a = make('a'); os.write(a, b'12345'); b = make('b'); os.write(b, b'12345')\n"
        "print(os.pread(a, 5, 0).decode(), attempt(os.pread, a, 5, 0), os.pread(b, 5, 0).decode())",
    )
    assert out == ["12345", "EIO", "12"]


def test_a_stalled_call_takes_its_time_and_works(faults):
    faults.arm("op=fsync path=a stall_ms=300")
    out = run(
        faults,
        "a = make('a')\nfor i in range(2):\n t = time.monotonic(); os.fsync(a); print(time.monotonic() - t > 0.29)",
    )
    assert out == ["True", "False"]


@pytest.mark.parametrize("when, size", [("before", 0), ("after", 5)])
def test_a_kill_around_a_call(faults, when, size):
    faults.arm(f"op=write path=a kill={when}")
    result = faults.run([sys.executable, "-c", PRELUDE + "a = make('a'); os.write(a, b'hello'); print('alive')"])
    assert faultlib.killed(result) and result.stdout == ""
    assert os.stat(os.path.join(faults.root, "a")).st_size == size


def test_rules_are_armed_in_a_running_process(faults):
    program = PRELUDE + "a = make('a')\nwhile True:\n print(attempt(os.fsync, a), flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", program], env=dict(os.environ, **faults.environment()), cwd=faults.root,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:

        def step():
            child.stdin.write("\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        assert child.stdout.readline().strip() == "None"
        assert step() == "None"
        faults.arm("op=fsync times=0 errno=EIO")
        assert [step(), step()] == ["EIO", "EIO"]
        faults.arm()
        assert step() == "None"
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()


def test_a_wrong_rule_stops_the_program(faults):
    faults.arm("op=fsink errno=EIO")
    result = faults.run([sys.executable, "-c", PRELUDE + "make('a')"])
    assert result.returncode == -signal.SIGABRT and "unknown op" in result.stderr


def test_clocks_step_apart_and_in_a_running_process(faults):
    program = PRELUDE + "while True:\n print(time.time(), time.monotonic(), flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", program], env=dict(os.environ, **faults.environment()), cwd=faults.root,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:

        def ahead():
            wall, monotonic = map(float, child.stdout.readline().split())
            result = wall - time.time(), monotonic - time.monotonic()
            child.stdin.write("\n")
            child.stdin.flush()
            return result

        def near(pair, wall, monotonic, slack=0.5):
            return abs(pair[0] - wall) < slack and abs(pair[1] - monotonic) < slack

        def settled(wall, monotonic, slack=0.5):
            ahead()  # this line was printed before the change
            return near(ahead(), wall, monotonic, slack)

        assert near(ahead(), 0, 0)
        faults.set_clock(wall_s=-3600)
        assert settled(-3600, 0)
        faults.set_clock(wall_s=10, monotonic_s=100)
        assert settled(10, 100)
        faults.set_clock(wall_ppm=3_000_000)
        ahead()
        first = ahead()[0]
        time.sleep(0.2)
        ahead()
        second = ahead()[0]
        assert 0.5 < second - first < 3, "the wall clock runs at four times its speed"
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
