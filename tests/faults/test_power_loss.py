"""The power loss model does what a disk does: it forgets what was not synced, keeps what was, and tears what was under way.

Each test runs a small writer under the library, kills it with SIGKILL, cuts the power and looks at what is left. A library
that does nothing fails all of them but the first of each pair.
"""
import os
import random
import threading
import time

import faultlib
import pytest

PRELUDE = """
import os, signal, mmap, threading
def die(): os.kill(os.getpid(), signal.SIGKILL)
def dirsync(p='.'):
    fd = os.open(p, os.O_RDONLY); os.fsync(fd); os.close(fd)
def make(name, flags=0): return os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o644)
"""


def write_and_die(faults, program):
    import sys

    result = faults.run([sys.executable, "-c", PRELUDE + program + "\ndie()\n"])
    assert faultlib.killed(result), result.stderr


def content(faults, name):
    with open(os.path.join(faults.root, name), "rb") as f:
        return f.read()


def names(faults):
    return sorted(os.listdir(faults.root))


def test_without_a_cut_everything_written_is_there(faults):
    write_and_die(faults, "fd = make('a'); os.write(fd, b'x' * 5000)")
    assert content(faults, "a") == b"x" * 5000
    assert faults.stats()["writes"] == 1 and faults.stats()["write_bytes"] == 5000


def test_unsynced_contents_are_lost(faults):
    write_and_die(faults, "fd = make('a'); dirsync(); os.write(fd, b'x' * 5000)")
    report = faults.power_cut(1, "lose")
    assert content(faults, "a") == b""
    assert report["bytes_lost"] == 5000


@pytest.mark.parametrize("sync", ["os.fsync(fd)", "os.fdatasync(fd)"])
def test_synced_contents_are_kept_and_later_ones_lost(faults, sync):
    write_and_die(faults, f"fd = make('a'); dirsync(); os.write(fd, b'x' * 5000); {sync}; os.write(fd, b'y' * 5000)")
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"x" * 5000


def test_overwritten_contents_come_back(faults):
    write_and_die(
        faults,
        "fd = make('a'); dirsync(); os.write(fd, b'0' * 4096); os.fsync(fd)\n"
        "os.pwrite(fd, b'1' * 100, 50); os.pwrite(fd, b'2' * 1000, 100); os.pwritev(fd, [b'3' * 10, b'4' * 10], 4090)",
    )
    assert content(faults, "a")[50:60] == b"1" * 10
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"0" * 4096


def test_direct_writes_are_followed(faults):
    write_and_die(
        faults,
        "fd = make('a', os.O_DIRECT); dirsync(); m = mmap.mmap(-1, 8192); m.write(b'a' * 8192)\n"
        "os.pwritev(fd, [m], 0); os.fdatasync(fd); m.seek(0); m.write(b'b' * 8192); os.pwritev(fd, [m], 0)",
    )
    assert content(faults, "a") == b"b" * 8192
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"a" * 8192


def test_a_dsync_write_is_durable_by_itself(faults):
    write_and_die(
        faults,
        "fd = make('a'); dirsync(); os.write(fd, b'0' * 4096); os.fsync(fd); os.pwrite(fd, b'1' * 1024, 0)\n"
        "d = os.open('a', os.O_WRONLY | os.O_DSYNC); os.pwrite(d, b'2' * 512, 0)",
    )
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"2" * 512 + b"0" * 3584


def test_truncation_is_taken_back(faults):
    write_and_die(
        faults,
        "fd = make('a'); g = make('b'); dirsync(); os.write(fd, b'x' * 3000); os.fsync(fd); os.write(g, b'y' * 3000); os.fsync(g)\n"
        "os.ftruncate(fd, 10); os.close(g); os.open('b', os.O_WRONLY | os.O_TRUNC)",
    )
    assert len(content(faults, "a")) == 10 and content(faults, "b") == b""
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"x" * 3000
    assert content(faults, "b") == b"y" * 3000


def test_allocated_length_is_taken_back(faults):
    write_and_die(faults, "fd = make('a'); dirsync(); os.write(fd, b'x' * 100); os.fsync(fd); os.posix_fallocate(fd, 0, 100000)")
    assert len(content(faults, "a")) == 100000
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"x" * 100


def test_a_sync_covers_only_its_own_file(faults):
    write_and_die(faults, "a = make('a'); b = make('b'); dirsync(); os.write(a, b'x' * 600); os.write(b, b'y' * 600); os.fsync(a)")
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"x" * 600
    assert content(faults, "b") == b""


def test_a_new_name_without_directory_sync_is_lost(faults):
    write_and_die(faults, "a = make('a'); os.write(a, b'x'); os.fsync(a); dirsync(); b = make('b'); os.write(b, b'y'); os.fsync(b)")
    assert names(faults) == ["a", "b"]
    report = faults.power_cut(1, "lose")
    assert names(faults) == ["a"]
    assert report["names_lost"] == 1


def test_a_rename_without_directory_sync_is_taken_back(faults):
    program = (
        "a = make('a'); os.write(a, b'old'); os.fsync(a); dirsync(); t = make('t'); os.write(t, b'new'); os.fsync(t); dirsync()\n"
        "os.rename('t', 'a')"
    )
    write_and_die(faults, program)
    assert names(faults) == ["a"] and content(faults, "a") == b"new"
    faults.power_cut(1, "lose")
    assert names(faults) == ["a", "t"]
    assert content(faults, "a") == b"old" and content(faults, "t") == b"new"


def test_a_rename_with_directory_sync_stays(faults):
    write_and_die(
        faults,
        "a = make('a'); os.write(a, b'old'); os.fsync(a); t = make('t'); os.write(t, b'new'); os.fsync(t); os.rename('t', 'a'); dirsync()",
    )
    faults.power_cut(1, "lose")
    assert names(faults) == ["a"] and content(faults, "a") == b"new"


def test_a_rename_of_unsynced_contents_leaves_an_empty_file(faults):
    write_and_die(faults, "t = make('t'); os.write(t, b'new'); os.rename('t', 'a'); dirsync()")
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b""


def test_an_unlinked_file_comes_back_with_its_durable_contents(faults):
    write_and_die(
        faults, "a = make('a'); os.write(a, b'x' * 9); os.fsync(a); dirsync(); os.write(a, b'y'); os.close(a); os.unlink('a')"
    )
    assert names(faults) == []
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"x" * 9


def test_directories_and_links_are_taken_back(faults):
    write_and_die(
        faults,
        "a = make('a'); os.write(a, b'x'); os.fsync(a); os.mkdir('keep'); dirsync(); os.rmdir('keep'); os.mkdir('d')\n"
        "f = make('d/f'); os.fsync(f); dirsync('d'); os.link('a', 'l')",
    )
    assert names(faults) == ["a", "d", "l"]
    faults.power_cut(1, "lose")
    assert names(faults) == ["a", "keep"]


def test_a_failed_sync_is_never_made_good_by_a_later_one(faults):
    faults.arm("op=fdatasync path=a nth=1 errno=EIO")
    write_and_die(
        faults,
        """
a = make('a'); dirsync(); os.write(a, b'x' * 512)
try: os.fdatasync(a)
except OSError as e: assert e.errno == 5
else: raise SystemExit('no error')
os.write(a, b'y' * 512)
os.fdatasync(a)
""",
    )
    assert content(faults, "a") == b"x" * 512 + b"y" * 512
    faults.power_cut(1, "keep")
    assert content(faults, "a") == bytes(512) + b"y" * 512


def test_a_lying_disk_keeps_nothing(faults):
    faults.arm("op=sync path=a times=0 lie=1", "op=dirsync times=0 lie=1")
    write_and_die(faults, "a = make('a'); b = make('b'); os.write(a, b'x' * 9); os.fsync(a); os.write(b, b'y'); os.fsync(b); dirsync()")
    assert len(faults.fired()) == 2
    report = faults.power_cut(1, "lose")
    assert names(faults) == [] and report["bytes_lost"] == 9


def test_writes_of_a_killed_process_are_still_not_durable_in_the_next(faults):
    write_and_die(faults, "a = make('a'); dirsync(); os.write(a, b'x' * 1000)")
    write_and_die(faults, "a = make('b'); assert os.stat('a').st_size == 1000")
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b""


def test_a_sync_in_the_next_process_makes_them_durable(faults):
    write_and_die(faults, "a = make('a'); os.write(a, b'x' * 1000)")
    write_and_die(faults, "a = os.open('a', os.O_RDWR); os.fsync(a); dirsync()")
    faults.power_cut(1, "lose")
    assert content(faults, "a") == b"x" * 1000


def test_torn_and_reordered_writes_happen(faults):
    """Over many seeds: whole, gone, a torn first part, a hole before later data, and every seed gives the same again."""
    old, new = b"o" * 8192, b"n" * 8192
    program = (
        "a = make('a'); dirsync(); os.write(a, b'o' * 8192); os.fsync(a)\n"
        "for i in range(0, 8192, 2048): os.pwrite(a, b'n' * 2048, i)"
    )
    seen = set()
    for seed in range(40):
        outcome = []
        for attempt in range(2 if seed < 3 else 1):
            top = os.path.join(os.path.dirname(faults.root), f"run-{seed}-{attempt}")
            one = faultlib.Faults(top)
            write_and_die(one, program)
            one.power_cut(seed)
            got = content(one, "a")
            outcome.append(got)
            assert len(got) == 8192
            sectors = [got[i : i + 512] for i in range(0, 8192, 512)]
            assert all(s in (b"o" * 512, b"n" * 512) for s in sectors), "a sector is old or new, never mixed"
            if got == old:
                seen.add("gone")
            elif got == new:
                seen.add("whole")
            else:
                marks = "".join(s[:1].decode() for s in sectors)
                seen.add("reordered" if "on" in marks else "prefix")
                if any(len(set(marks[i : i + 4])) > 1 for i in range(0, 16, 4)):
                    seen.add("torn")
        assert len(set(outcome)) == 1, f"seed {seed} is not repeatable"
    assert seen == {"gone", "whole", "prefix", "reordered", "torn"}


def test_sizes_follow_their_writes(faults):
    lengths = set()
    for seed in range(16):
        one = faultlib.Faults(os.path.join(os.path.dirname(faults.root), f"run-{seed}"))
        write_and_die(one, "a = make('a'); dirsync(); os.write(a, b'x' * 512); os.fsync(a)\nfor i in range(4): os.write(a, b'y' * 512)")
        one.power_cut(seed)
        got = content(one, "a")
        assert got[:512] == b"x" * 512 and len(got) % 512 == 0 and set(got) <= {0, ord("x"), ord("y")}
        assert len(got) == 512 or got[-512:] == b"y" * 512
        lengths.add(len(got))
    assert len(lengths) >= 4


def test_names_survive_in_order(faults):
    """Over many seeds every beginning of the unsynced steps is seen, and nothing else."""
    seen = set()
    for seed in range(24):
        one = faultlib.Faults(os.path.join(os.path.dirname(faults.root), f"run-{seed}"))
        write_and_die(one, "a = make('a'); dirsync(); b = make('b'); os.rename('b', 'c'); os.unlink('a')")
        one.power_cut(seed)
        seen.add(" ".join(names(one)))
    assert seen == {"a", "a b", "a c", "c"}


def test_threads_are_followed_without_a_mistake(faults):
    """Eight threads append to their own files and sync now and then: each synced length survives, the rest is gone."""
    write_and_die(
        faults,
        """
fds = [make(str(i)) for i in range(8)]; dirsync()
def work(i):
    for n in range(200):
        os.write(fds[i], bytes([65 + i]) * 100)
        if n == 149: os.fdatasync(fds[i])
ts = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]
""",
    )
    assert faults.stats()["writes"] == 1600
    faults.power_cut(1, "lose")
    for i in range(8):
        assert content(faults, str(i)) == bytes([65 + i]) * 15000


def test_random_work_against_a_model(faults):
    """Random writes, syncs and truncations of one file; after the cut with `lose` it equals the contents at its last sync."""
    for seed in range(12):
        rng = random.Random(seed)
        one = faultlib.Faults(os.path.join(os.path.dirname(faults.root), f"run-{seed}"))
        model = bytearray()
        durable = b""
        lines = ["a = make('a'); dirsync()"]
        for _ in range(60):
            what = rng.random()
            if what < 0.7:
                at, length, byte = rng.randrange(6000), rng.randrange(1, 1500), rng.randrange(1, 256)
                lines.append(f"os.pwrite(a, bytes([{byte}]) * {length}, {at})")
                model.extend(bytes(max(0, at + length - len(model))))
                model[at : at + length] = bytes([byte]) * length
            elif what < 0.8:
                size = rng.randrange(7000)
                lines.append(f"os.ftruncate(a, {size})")
                model.extend(bytes(max(0, size - len(model))))
                del model[size:]
            elif what < 0.9:
                lines.append("os.fdatasync(a)")
                durable = bytes(model)
            else:
                lines.append("os.close(a); a = os.open('a', os.O_RDWR)")
        write_and_die(one, "\n".join(lines))
        assert content(one, "a") == bytes(model), f"seed {seed}"
        one.power_cut(seed, "lose")
        assert content(one, "a") == durable, f"seed {seed}"


def test_a_kill_in_the_middle_of_work_leaves_a_readable_state(faults):
    """SIGKILL from outside at any moment: the record file is whole enough to take everything unsynced back."""
    import signal
    import subprocess
    import sys

    for round_number in range(5):
        one = faultlib.Faults(os.path.join(os.path.dirname(faults.root), f"run-{round_number}"))
        env = dict(os.environ, **one.environment())
        program = PRELUDE + (
            "a = make('a'); dirsync(); os.write(a, b'x' * 4096); os.fsync(a); print('go', flush=True)\n"
            "import random\nwhile True: os.pwrite(a, b'y' * 3000, random.randrange(100000))"
        )
        child = subprocess.Popen([sys.executable, "-c", program], env=env, cwd=one.root, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"go\n"
        deadline = time.monotonic() + 20
        while one.stats()["writes"] < 4 and time.monotonic() < deadline:
            time.sleep(0.002)
        timer = threading.Timer(0.02 + 0.013 * round_number, child.send_signal, [signal.SIGKILL])
        timer.start()
        child.wait()
        timer.join()
        child.stdout.close()
        assert one.stats()["writes"] > 2
        one.power_cut(round_number, "lose")
        assert content(one, "a") == b"x" * 4096


def test_what_is_not_modelled_stops_the_program(faults):
    import sys

    result = faults.run([sys.executable, "-c", PRELUDE + "a = make('a'); os.ftruncate(a, 4096); mmap.mmap(a, 4096)"])
    assert result.returncode == -6 and "not modelled" in result.stderr


def test_a_kept_file_that_a_killed_process_left_over_is_no_hindrance(faults):
    """A kill between keeping an unlinked file and noting it leaves the kept file under the number that the next step takes."""
    os.makedirs(os.path.join(faults.state, "grave"))
    with open(os.path.join(faults.state, "grave", "2"), "wb") as f:
        f.write(b"left over")
    write_and_die(faults, "a = make('a'); os.write(a, b'x'); os.fsync(a); os.unlink('a')")
    faults.power_cut(1, "prefix")
    assert names(faults) in ([], ["a"])
    one = faultlib.Faults(os.path.join(os.path.dirname(faults.root), "again"))
    os.makedirs(os.path.join(one.state, "grave"))
    with open(os.path.join(one.state, "grave", "2"), "wb") as f:
        f.write(b"left over")
    write_and_die(one, "a = make('a'); os.write(a, b'x'); os.fsync(a); dirsync(); os.unlink('a')")
    one.power_cut(1, "lose")
    assert content(one, "a") == b"x"
