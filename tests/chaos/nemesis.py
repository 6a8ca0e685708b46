"""What is done to a running cluster, one fault after the other, by a seeded choice.

A fault is a generator: it begins, yields while it is to last, and ends it when it is resumed. `majority` says whether a majority of
the nodes keeps its legs, its disk and its connections, so that calls must be answered meanwhile."""
import random
import time
from collections import Counter

from cluster import CLIENTS


SILENCE_S = 10.0  # nobody answered for so long although a majority is there: a problem


class Fault:
    def __init__(self, run, majority=True, lasts=(0.5, 3.0), needs=1):
        self.run, self.name = run, run.__name__
        self.majority, self.lasts, self.needs = majority, lasts, needs


def others(cluster, node):
    return [n for n in cluster.members if n is not node]


def numbers(nodes):
    return [n.number for n in nodes]


def pick(cluster, rng, which):
    """The leader, a follower or anyone."""
    leader = cluster.leader()
    return leader if which == "leader" else rng.choice(others(cluster, leader)) if len(cluster.members) > 1 else leader


# ---- processes ----


def kill_leader(cluster, rng):
    node = pick(cluster, rng, "leader")
    node.kill()
    yield f"node {node.number}"
    node.start()


def kill_follower(cluster, rng):
    node = pick(cluster, rng, "follower")
    node.kill()
    yield f"node {node.number}"
    node.start()


def kill_all(cluster, rng):
    for node in cluster.members:
        node.kill()
    yield ""
    cluster.start()


def kill_only(cluster, rng):
    """For one node alone."""
    yield from kill_all(cluster, rng)


def pause_leader(cluster, rng):
    node = pick(cluster, rng, "leader")
    node.pause()
    yield f"node {node.number}"
    node.resume()


def pause_follower(cluster, rng):
    node = pick(cluster, rng, "follower")
    node.pause()
    yield f"node {node.number}"
    node.resume()


def stop_leader(cluster, rng):
    node = pick(cluster, rng, "leader")
    code = node.terminate()
    if code != 0:
        cluster.problems.append(f"SIGTERM of the leader (node {node.number}) ended with {code}:\n{node.log_tail()}")
        node.kill()
    yield f"node {node.number}"
    node.start()


def rolling_restart(cluster, rng):
    for node in cluster.members:
        code = node.terminate()
        if code != 0:
            cluster.problems.append(f"SIGTERM of node {node.number} ended with {code}:\n{node.log_tail()}")
            node.kill()
        node.start()
        cluster.leader()
    yield ""


# ---- links ----


def cut_leader(cluster, rng):
    """Its clients still reach it."""
    node = pick(cluster, rng, "leader")
    cluster.net.cut([node.number], numbers(others(cluster, node)))
    yield f"node {node.number}"
    cluster.net.heal()


def cut_follower(cluster, rng):
    node = pick(cluster, rng, "follower")
    cluster.net.cut([node.number], numbers(others(cluster, node)))
    yield f"node {node.number}"
    cluster.net.heal()


def cut_off(cluster, rng):
    """From the clients too."""
    node = pick(cluster, rng, rng.choice(("leader", "follower")))
    cluster.net.cut([node.number], [*numbers(others(cluster, node)), CLIENTS])
    yield f"node {node.number}"
    cluster.net.heal()


def deaf_leader(cluster, rng):
    """It can send and not receive."""
    node = pick(cluster, rng, "leader")
    cluster.net.cut(numbers(others(cluster, node)), [node.number], one_way=True)
    yield f"node {node.number}"
    cluster.net.heal()


def dumb_leader(cluster, rng):
    """It can receive and not send."""
    node = pick(cluster, rng, "leader")
    cluster.net.cut([node.number], numbers(others(cluster, node)), one_way=True)
    yield f"node {node.number}"
    cluster.net.heal()


def dumb_follower(cluster, rng):
    node = pick(cluster, rng, "follower")
    cluster.net.cut([node.number], numbers(others(cluster, node)), one_way=True)
    yield f"node {node.number}"
    cluster.net.heal()


def bridge(cluster, rng):
    """The leader sees one node only, and that one sees all."""
    leader = pick(cluster, rng, "leader")
    rest = others(cluster, leader)
    middle = rng.choice(rest)
    cluster.net.cut([leader.number], numbers(n for n in rest if n is not middle))
    yield f"leader {leader.number}, bridge {middle.number}"
    cluster.net.heal()


def majority_ring(cluster, rng):
    """Every node sees a majority, no two the same one: of five, each sees its two neighbours."""
    around = numbers(cluster.members)
    rng.shuffle(around)
    for i, a in enumerate(around):
        for step in range(2, len(around) - 1):
            cluster.net.cut([a], [around[(i + step) % len(around)]])
    yield str(around)
    cluster.net.heal()


def all_apart(cluster, rng):
    for node in cluster.members:
        cluster.net.cut([node.number], numbers(others(cluster, node)))
    yield ""
    cluster.net.heal()


def slow_links(cluster, rng):
    delay, jitter, loss = rng.choice(((5, 5, 0.0), (20, 10, 0.01), (2, 40, 0.03)))
    for a in cluster.members:
        for b in others(cluster, a):
            cluster.net.slow(a.number, b.number, delay, jitter, loss)
    yield f"{delay} ms, jitter {jitter} ms, loss {loss}"
    cluster.net.heal()


# ---- disks and clocks ----


def slow_disk(cluster, rng):
    node = pick(cluster, rng, rng.choice(("leader", "follower")))
    stall_ms = rng.choice((20, 100, 250))
    node.faults.arm(f"op=sync path=* nth=1 times=0 stall_ms={stall_ms}")
    yield f"node {node.number}, {stall_ms} ms a sync"
    node.faults.arm()


def failed_sync(cluster, rng):
    """It stops itself with exit code 3, and comes back. A sync of a log file made ahead of time may fail without an end, since nothing
    is in the file yet and it is made anew: then the next one fails too."""
    node = pick(cluster, rng, rng.choice(("leader", "follower")))
    node.expected_down = True
    code = None
    for _ in range(3):
        node.faults.arm("op=sync path=* nth=1 times=1 errno=EIO")
        code = node.wait_dead(5.0)
        if code is not None:
            break
    node.faults.arm()
    if code != 3:
        cluster.problems.append(f"node {node.number} ended with {code} after a failed sync:\n{node.log_tail()}")
        node.kill()
    yield f"node {node.number}"
    node.start()


def power_cut(cluster, rng):
    node = pick(cluster, rng, rng.choice(("leader", "follower")))
    node.kill()
    node.faults.power_cut(rng.randrange(1 << 32))
    yield f"node {node.number}"
    node.start()


def power_cut_all(cluster, rng):
    """Within 50 ms."""
    for node in cluster.members:
        node.kill()
        time.sleep(rng.uniform(0, 0.05 / len(cluster.members)))
    for node in cluster.members:
        node.faults.power_cut(rng.randrange(1 << 32))
    yield ""
    cluster.start()


def power_cut_beside_a_cut(cluster, rng):
    """One node sees nobody; of the two that go on one loses what it had not synced. Whatever the two answered is on both of them."""
    away = pick(cluster, rng, "follower")
    cluster.net.cut([away.number], numbers(others(cluster, away)))
    time.sleep(rng.uniform(0.1, 0.5))
    node = rng.choice(others(cluster, away))
    node.kill()
    node.faults.power_cut(rng.randrange(1 << 32))
    yield f"node {away.number} cut off, node {node.number} without power"
    cluster.net.heal()
    node.start()


def clock_step(cluster, rng):
    node = pick(cluster, rng, rng.choice(("leader", "leader", "follower")))
    step_s = rng.choice((-3600, -5, -0.3, 0.3, 5, 3600))
    node.faults.set_clock(wall_s=step_s)
    yield f"node {node.number}, {step_s} s"
    if rng.random() < 0.5:
        node.faults.set_clock()


def clock_runs(cluster, rng):
    """The wall clock of one node runs at another speed, and jumps to where that takes it."""
    node = pick(cluster, rng, rng.choice(("leader", "follower")))
    ppm = rng.choice((-200000, -500, 500, 200000))
    node.faults.set_clock(wall_ppm=ppm)
    yield f"node {node.number}, {ppm} ppm"
    node.faults.set_clock()


ONE = [Fault(kill_only, False, (0.0, 0.5)), Fault(slow_disk)]
PROCESSES = [Fault(kill_leader), Fault(kill_follower), Fault(kill_all, False, (0.0, 0.5)), Fault(pause_leader), Fault(pause_follower),
             Fault(stop_leader, lasts=(0.2, 1.0)), Fault(rolling_restart, lasts=(0.1, 0.2))]  # fmt: skip
LINKS = [Fault(cut_leader), Fault(cut_follower), Fault(cut_off), Fault(deaf_leader), Fault(dumb_leader), Fault(dumb_follower),
         Fault(bridge), Fault(all_apart, False, (0.5, 2.0)), Fault(slow_links)]  # fmt: skip
FIVE = [Fault(majority_ring)]
DISKS = [Fault(slow_disk), Fault(failed_sync)]
POWER = [Fault(power_cut), Fault(power_cut_all, False, (0.0, 0.3)), Fault(power_cut_beside_a_cut, False, (0.5, 1.0))]
CLOCKS = [Fault(clock_step), Fault(clock_runs)]


class Nemesis:
    """Each fault of the list comes up once, in a random order, before any comes up again."""

    def __init__(self, cluster, seed, faults, log=None):
        self.cluster, self.faults = cluster, faults
        self.rng = random.Random(f"{seed}/nemesis")
        self.log = log  # the log workload: tells how long nobody was answered
        self.counts = Counter()
        self.silences = []  # (seconds, fault) with a majority
        self.recoveries = []  # seconds from the end of a fault until all were ready
        self.pending = []
        self.story = []

    def next(self):
        if not self.pending:
            self.pending = list(self.faults)
            self.rng.shuffle(self.pending)
        return self.pending.pop()

    def run(self, seconds):
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            self.one(self.next())
            time.sleep(self.rng.uniform(0.2, 1.2))

    def one(self, fault):
        since = time.monotonic()
        steps = fault.run(self.cluster, self.rng)
        detail = next(steps)
        self.counts[fault.name] += 1
        self.story.append((time.monotonic(), fault.name, detail))
        lasts = self.rng.uniform(*fault.lasts)
        while time.monotonic() - since < lasts or (fault.majority and self.unanswered(since)):
            time.sleep(0.02)
        next(steps, None)
        if fault.majority and self.log is not None:
            first = self.log.first_answer(since)
            took = first if first is not None else time.monotonic() - since
            self.silences.append((took, fault.name))
            if took > SILENCE_S:
                self.cluster.problems.append(f"nobody was answered for {took:.1f} s at {fault.name} ({detail}) with a majority there")
        self.recover(fault)

    def unanswered(self, since):
        """With a majority there, the fault goes on until a push was answered, for little more than SILENCE_S."""
        return self.log is not None and time.monotonic() - since < SILENCE_S + 1 and self.log.first_answer(since) is None

    def recover(self, fault):
        ended = time.monotonic()
        while time.monotonic() - ended < 30.0:
            for node, code in self.cluster.unexpected_ends():
                raise AssertionError(f"node {node.number} ended by itself with {code} after {fault.name}:\n{node.log_tail(40)}")
            if all(node.ready() for node in self.cluster.members):
                self.recoveries.append(time.monotonic() - ended)
                return
            time.sleep(0.05)
        raise AssertionError(f"not all nodes are ready 30 s after {fault.name} ended: "
                             f"{[(n.number, n.ask('GET', '/health')) for n in self.cluster.members]}\n{self.cluster.log_tails()}")  # fmt: skip

    def report(self):
        worst = max(self.silences, default=(0, "none"))
        ordered = sorted(s for s, _ in self.silences)
        return {
            **self.counts,
            "first answer ms p50": round(ordered[len(ordered) // 2] * 1000) if ordered else None,
            "first answer ms worst": f"{round(worst[0] * 1000)} ({worst[1]})",
            "all ready ms worst": round(max(self.recoveries, default=0) * 1000),
            "states fetched": sum(node.log_count("is in place") for node in self.cluster.nodes),
        }
