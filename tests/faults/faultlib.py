"""Runs a program under libq_faults.so and arms faults in it while it runs. Standard library only."""
import os
import signal
import struct
import subprocess
import tempfile

import powercut

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def library_path():
    """QUEEN_FAULTS_LIB, or a build newer than the sources, or one made here by the compiler."""
    named = os.environ.get("QUEEN_FAULTS_LIB")
    if named:
        return named
    sources = sorted(os.path.join(HERE, n) for n in os.listdir(HERE) if n.endswith((".c", ".h")))
    newest = max(os.path.getmtime(s) for s in sources)
    built = os.path.join(ROOT, "build", "libq_faults.so")
    if os.path.exists(built) and os.path.getmtime(built) >= newest:
        return built
    made = os.path.join(tempfile.gettempdir(), f"libq_faults-{os.getuid()}-{int(newest)}.so")
    if not os.path.exists(made):
        partial = f"{made}.{os.getpid()}"
        c_files = [s for s in sources if s.endswith(".c")]
        subprocess.run(
            ["cc", "-std=gnu17", "-O2", "-g", "-fPIC", "-shared", *c_files, "-o", partial, "-ldl", "-lpthread"], check=True
        )
        os.rename(partial, made)
    return made


class Faults:
    """One watched directory with its state, control and clock files. `top` is a fresh directory."""

    def __init__(self, top, power=True):
        self.root = os.path.join(top, "disk")
        self.state = os.path.join(top, "fault-state")
        self.control = os.path.join(top, "fault-rules")
        self.clock = os.path.join(top, "fault-clock")
        self.power = power
        os.makedirs(self.root, exist_ok=True)
        os.makedirs(self.state, exist_ok=True)
        if not os.path.exists(self.clock):
            self.set_clock()

    def environment(self):
        env = {"LD_PRELOAD": library_path(), "QFAULT_DIR": self.root, "QFAULT_CONTROL": self.control, "QFAULT_CLOCK": self.clock}
        if self.power:
            env["QFAULT_STATE"] = self.state
        return env

    def arm(self, *rules):
        """Replaces the rules; counters begin anew. No rule: no faults."""
        partial = self.control + ".new"
        with open(partial, "w", encoding="utf-8") as f:
            f.write("".join(rule + "\n" for rule in rules))
        try:
            os.unlink(self.control + ".fired")
        except FileNotFoundError:
            pass
        os.rename(partial, self.control)

    def fired(self):
        """["op path", ...] of the faults that fired since the last arm()."""
        try:
            with open(self.control + ".fired", encoding="utf-8") as f:
                return f.read().splitlines()
        except FileNotFoundError:
            return []

    def set_clock(self, wall_s=0.0, monotonic_s=0.0, wall_ppm=0, monotonic_ppm=0):
        fd = os.open(self.clock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(fd, struct.pack("<4q", int(wall_s * 1e9), int(monotonic_s * 1e9), wall_ppm, monotonic_ppm), 0)
        finally:
            os.close(fd)

    def power_cut(self, seed, mode="mixed"):
        return powercut.power_cut(self.root, self.state, seed, mode)

    def stats(self):
        return powercut.stats(self.state)

    def run(self, argv, timeout=60, **keywords):
        env = dict(os.environ, **self.environment())
        return subprocess.run(argv, env=env, cwd=self.root, timeout=timeout, capture_output=True, text=True, check=False, **keywords)


def killed(result):
    return result.returncode == -signal.SIGKILL
