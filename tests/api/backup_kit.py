"""Helpers for tests of backup, restore and inspect: the verbs, directories on two file systems, and a load whose state can be judged."""

import json
import os
import shutil
import subprocess
import tempfile
import threading

from queen import BINARY, unique
from step_kit import ack_op, incr, item, push_op, timer, transact

SMALL = {"QUEEN_RAFT_SEGMENT_BYTES": str(1 << 20)}


def queen(*args, server=None, cwd=None, timeout=120):
    """Runs the binary; the finished process with text output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("QUEEN_")}
    if server is not None:
        env["QUEEN_SERVER"] = "http://127.0.0.1:%d" % server.port
    return subprocess.run([BINARY] + [str(a) for a in args], env=env, cwd=cwd, timeout=timeout, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def backup(broker, folder, *args, code=0):
    done = queen("backup", folder, *args, server=broker)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def restore(folder, data, *args, code=0):
    done = queen("restore", folder, "--data", data, *args)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def verify(folder, code=0):
    done = queen("restore", folder, "--verify")
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def status(broker):
    return broker.get("/api/v1/system/backup").expect(200).json["backup"]


def mark(folder):
    """What BACKUP says."""
    with open(os.path.join(folder, "BACKUP"), encoding="utf-8") as file:
        return json.load(file)


def files(folder):
    """Every file below, by its path from there."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            found[os.path.relpath(path, folder)] = path
    return found


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def elsewhere():
    """A new directory on another file system than the one of data directories, or None."""
    home = os.environ.get("QUEEN_TEST_DIR") or tempfile.gettempdir()
    for place in ("/dev/shm", "/run", os.path.expanduser("~")):
        if os.path.isdir(place) and os.access(place, os.W_OK) and os.stat(place).st_dev != os.stat(home).st_dev:
            return tempfile.mkdtemp(prefix="queen-test-", dir=place)
    return None


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)


class Load:
    """Producers, each with a lane, a counter and timers of its own, and a consumer, all in transactions, so that in every state at one
    index of the log
        a lane holds ids <lane>-0 .. <lane>-(n-1) in order, and the lane's counter says n
        there is a timer for every tenth of them
        the messages of the queue out are as many as the group's counter says, and as the group has acknowledged
    answered[lane] is what was acknowledged to the producers so far."""

    LANES = 3

    def __init__(self, broker, ports=None):
        self.broker = broker
        self.queue = unique("load")
        self.out = self.queue + "-out"
        self.answered = [[] for _ in range(self.LANES)]
        self.stopping = threading.Event()
        self.failures = []
        self.threads = [threading.Thread(target=self._guard, args=(self._produce, lane)) for lane in range(self.LANES)]
        self.threads.append(threading.Thread(target=self._guard, args=(self._consume,)))

    def start(self):
        for thread in self.threads:
            thread.start()
        return self

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.failures, self.failures

    def counts(self):
        return [len(lane) for lane in self.answered]

    def _guard(self, work, *args):
        try:
            work(*args)
        except Exception as error:  # told by stop()
            if not self.stopping.is_set():
                self.failures.append(repr(error))

    def _produce(self, lane):
        sent = 0
        while not self.stopping.is_set():
            name = "%d-%d" % (lane, sent)
            timers = [timer(self.queue + "-later", name, name, delay_ms=3600000)] if sent % 10 == 0 else []
            answer = transact(self.broker, operations=[push_op(item(self.queue, name, {"n": sent, "pad": "x" * 3000}, "p%d" % lane))],
                              kv=[incr("%s-%d" % (self.queue, lane))], timers=timers).expect(200).json
            assert answer["success"], answer
            self.answered[lane].append((name, answer["results"][0]["messageId"]))
            sent += 1

    def _consume(self):
        taken = 0
        while not self.stopping.is_set():
            answer = self.broker.pop(self.queue, group="g", subscriptionMode="all", batch=3, leaseSeconds=600, wait=True, timeout=500)
            if answer.status != 200:
                continue
            messages = answer.json["messages"]
            result = transact(self.broker, operations=[ack_op(messages[-1]), push_op(*[item(self.out, "o-%d" % (taken + i), 1)
                                                                                      for i in range(len(messages))])],
                              kv=[incr(self.queue + "-done", len(messages))]).expect(200).json
            assert result["success"], result
            taken += len(messages)
