"""Three nodes against one, on one machine: what replication costs, and how long a change of leader takes.

    cluster.py BINARY DIR [ROW...]     called by cluster.sh

Rows
    step       the step bench at full throttle: steps a second, commit latency, each node's CPU
    rate       the same at a fixed rate, where latency is not that of a queue
    push64k, push1m    pushes of one large message: MiB/s and latency
    failover   kill -9 of the leader, again and again: time until a push sent to another node after that is answered
    handover   SIGTERM of the leader: the longest time in which nobody was answered

The load is `queen bench`, on the same machine. A leader is asked directly (`leader`) and through a follower (`follower`)."""
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "tools"))

from local_cluster import HOST, LocalCluster  # noqa: E402

ROWS = ("step", "rate", "push64k", "push1m", "failover", "handover")
QUICK = os.environ.get("QUEEN_BENCH_QUICK") == "1"
SECONDS = 3 if QUICK else 10
KILLS = 10 if QUICK else 50
HANDOVERS = 5 if QUICK else 20
RATE = 500  # steps a second: well below what either can do
TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count()
QUIET = {"LOG_LEVEL": "warn"}


def say(text=""):
    print(text, flush=True)


def ask(node, method, path, body=None, timeout=15.0):
    """(status, parsed answer); (None, None) when there was none."""
    conn = http.client.HTTPConnection(HOST, node.port, timeout=timeout)
    try:
        conn.request(method, path, None if body is None else json.dumps(body))
        answer = conn.getresponse()
        raw = answer.read()
        return answer.status, json.loads(raw) if raw else None
    except (OSError, http.client.HTTPException):
        return None, None
    finally:
        conn.close()


def free_ports(count):
    """The first of `count` ports in a row that nobody listens on."""
    for first in range(21000, 30000, 16):
        probes = []
        try:
            for port in range(first, first + count):
                probes.append(socket.create_server((HOST, port)))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise RuntimeError("no free ports")


class Bench:
    def __init__(self, binary, base):
        self.binary = binary
        self.place = tempfile.mkdtemp(prefix="cluster.", dir=base)
        self.keep = os.environ.get("QUEEN_BENCH_KEEP")
        self.missed = []

    def cluster(self, count):
        """A fresh one, ready."""
        data = tempfile.mkdtemp(prefix=f"{count}-", dir=self.place)
        cluster = LocalCluster(count, data, self.binary, free_ports(count), free_ports(2 * count) + count, QUIET)
        log = open(os.path.join(data, "log"), "ab")
        cluster.output = log
        for node in cluster.nodes:
            node.start(log)
        for node in cluster.nodes:
            if not node.wait_ready():
                cluster.kill()
                raise RuntimeError(f"node {node.number} is not ready; the log's end:\n{tail(log.name)}")
        return cluster

    def drop(self, cluster):
        cluster.stop()
        cluster.output.close()
        shutil.rmtree(cluster.data, ignore_errors=True)

    def measure(self, cluster, node, workload, *options):
        """One run of `queen bench` against this node. The figures, with the CPU of every node in cores."""
        before = [cpu_s(n) for n in cluster.nodes]
        began = time.monotonic()
        argv = [self.binary, "bench", workload, "--json", "--host", HOST, "--port", str(node.port), "--pid", str(node.process.pid), *options]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        took = time.monotonic() - began
        after = [cpu_s(n) for n in cluster.nodes]
        if result.returncode != 0 or not result.stdout.strip():
            self.missed.append(f"{workload} on {cluster.count} nodes: exit code {result.returncode} {result.stderr.strip()[-300:]}")
            return None
        figures = json.loads(result.stdout.strip().splitlines()[-1])
        figures["cores"] = [(b - a) / took for a, b in zip(before, after)]
        figures["nodes"], figures["asked"] = cluster.count, node.number
        if self.keep:
            with open(self.keep, "a", encoding="utf-8") as f:
                f.write(json.dumps(figures) + "\n")
        return figures


def tail(path, lines=15):
    with open(path, "rb") as f:
        return "\n".join(f.read().decode(errors="replace").splitlines()[-lines:])


def cpu_s(node):
    """User and system time of a node's process so far."""
    try:
        with open(f"/proc/{node.process.pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def leader_of(cluster, seconds=30.0):
    """The node that says it leads, of the highest term, once the others know it."""
    if cluster.count == 1:
        return cluster.nodes[0]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        said = []
        for node in cluster.nodes:
            status, answer = ask(node, "GET", "/api/v1/raft/status", timeout=2.0) if node.alive() else (None, None)
            if status == 200:
                said.append((answer["term"], answer["state"] == "leader", answer.get("leaderId"), node))
        leaders = [row for row in said if row[1]]
        if leaders:
            best = max(leaders, key=lambda row: row[0])
            if all(row[2] == best[3].number for row in said) and len(said) > cluster.count // 2:
                return best[3]
        time.sleep(0.02)
    raise RuntimeError("no leader")


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(text, figures, *names):
    """One line: a label and some figures."""
    if figures is None:
        say(f"  {text:<34} not measured")
        return
    say(f"  {text:<34} " + "  ".join(f"{label} {value}" for label, value in names))


def bound(figures, cluster, leader):
    """What the run was bound by, as far as the processors tell."""
    used = sum(figures["cores"]) + figures.get("client_cores", 0.0)
    others = figures.get("other_cores", 0.0) - sum(c for n, c in zip(cluster.nodes, figures["cores"]) if n.number != figures["asked"])
    text = f"nodes {' + '.join(f'{c:.2f}' for c in figures['cores'])}, client {figures.get('client_cores', 0.0):.2f} of {CORES} cores"
    if others > 0.15:
        text += f" ({others:.2f} by others: noisy)"
    return text + (": the processors" if used + max(0.0, others) > 0.93 * CORES else ": waiting (disk syncs, in turn or for each other)")


def share_text(figures, cluster, leader):
    """Followers' CPU as a share of the leader's; the one that was asked has the clients to serve besides."""
    lead = figures["cores"][leader.number - 1]
    rest = [(n, c) for n, c in zip(cluster.nodes, figures["cores"]) if n is not leader]
    shares = [f"{c / lead:.2f}" + (" (asked by the clients)" if n.number == figures["asked"] else "") for n, c in rest if lead > 0]
    return " and ".join(shares) or "?"


def sync_ms(place, writers):
    """The median time of a write and fdatasync of 4 KiB, with so many files written at once, each by a thread."""
    times = []

    def write(number):
        fd = os.open(os.path.join(place, f"sync-{number}"), os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(fd, bytes(1 << 20), 0)
        os.fsync(fd)
        for at in range(100):
            began = time.monotonic()
            os.pwrite(fd, b"x" * 4096, at * 4096)
            os.fdatasync(fd)
            times.append((time.monotonic() - began) * 1000)
        os.close(fd)
        os.unlink(os.path.join(place, f"sync-{number}"))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return percentile(times, 0.5)


def compare(bench, title, workload, options, figures_of):
    """One node, three by the leader, three by a follower."""
    say(title)
    base = None
    for count in (1, 3):
        cluster = bench.cluster(count)
        try:
            leader = leader_of(cluster)
            asked = [("one node", leader)] if count == 1 else [
                ("three, by the leader", leader), ("three, by a follower", next(n for n in cluster.nodes if n is not leader))]  # fmt: skip
            for text, node in asked:
                figures = bench.measure(cluster, node, workload, *options)
                if figures is None:
                    row(text, None)
                    continue
                value, names = figures_of(figures)
                base = base or value
                row(text, figures, *names, ("of one node", f"{value / base:.2f}"))
                say(f"  {'':<34} bound by: {bound(figures, cluster, leader)}")
                if count == 3 and leader_of(cluster) is leader:
                    say(f"  {'':<34} followers' CPU / leader's: {share_text(figures, cluster, leader)}")
        finally:
            bench.drop(cluster)
    say()


def step_figures(f):
    return f["steps_per_s"], [("steps/s", f["steps_per_s"]), ("commit p50 ms", f["second_p50_ms"]), ("p99", f["second_p99_ms"])]


def push_figures(f):
    rate = f["messages_per_s"] * f["size"] / (1 << 20)
    return rate, [("MiB/s", f"{rate:.1f}"), ("p50 ms", f["p50_ms"]), ("p99", f["p99_ms"])]


def push_once(node, identity, timeout):
    """True when the push was answered as stored."""
    status, _ = ask(node, "POST", "/api/v1/push", {"items": [{"queue": "failover", "transactionId": identity, "payload": 1}]}, timeout)
    return status == 201


def first_answer(nodes, began, tag):
    """Each node is asked at once and again until it answers. Seconds from `began` to the first answer of all."""
    found = threading.Event()
    times = []

    def keep_asking(node):
        attempt = 0
        while not found.is_set() and time.monotonic() - began < 30:
            attempt += 1
            if push_once(node, f"{tag}-{node.number}-{attempt}", 20.0):
                times.append(time.monotonic() - began)
                found.set()
            else:
                time.sleep(0.005)

    threads = [threading.Thread(target=keep_asking, args=(node,), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    found.wait(31)
    return min(times) if times else None


def failover(bench):
    say(f"failover: {KILLS} times kill -9 of the leader; from the kill to the first answer to a push sent to another node after it")
    cluster = bench.cluster(3)
    times = []
    try:
        for number in range(KILLS):
            leader = leader_of(cluster)
            rest = [n for n in cluster.nodes if n is not leader]
            if not push_once(leader, f"before-{number}", 10.0):
                raise RuntimeError("a cluster at rest does not answer")
            began = time.monotonic()
            leader.kill()
            took = first_answer(rest, began, f"kill-{number}")
            if took is None:
                bench.missed.append(f"failover {number}: no answer within 30 s\n{tail(cluster.output.name)}")
                break
            times.append(took * 1000)
            leader.start(cluster.output)
            if not leader.wait_ready():
                bench.missed.append(f"failover {number}: the killed node does not come back\n{tail(cluster.output.name)}")
                break
    finally:
        bench.drop(cluster)
    if times:
        row("kill -9 to the first answer", times, ("p50 ms", f"{percentile(times, 0.5):.0f}"), ("p99", f"{percentile(times, 0.99):.0f}"),
            ("max", f"{max(times):.0f}"), ("kills", len(times)))  # fmt: skip
        say(f"  {'':<34} bound by: the election timeout (QUEEN_RAFT_PROFILE lan: 300 ms, randomised up to twice that) and one sync on each side")
    say()


class Pulse:
    """Pushes one after the other to one node, on one connection, and the times of the answers."""

    def __init__(self, node, tag):
        self.node, self.tag = node, tag
        self.times = []
        self.over = False
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        conn = http.client.HTTPConnection(HOST, self.node.port, timeout=15.0)
        number = 0
        while not self.over:
            number += 1
            body = json.dumps({"items": [{"queue": "failover", "transactionId": f"{self.tag}-{number}", "payload": 1}]})
            try:
                conn.request("POST", "/api/v1/push", body)
                answer = conn.getresponse()
                answer.read()
                if answer.status == 201:
                    self.times.append(time.monotonic())
            except (OSError, http.client.HTTPException):
                conn.close()
                time.sleep(0.002)
        conn.close()


def handover(bench):
    say(f"hand-over: {HANDOVERS} times SIGTERM of the leader, pushes to the two others meanwhile; the longest time without an answer")
    cluster = bench.cluster(3)
    gaps, calm = [], []
    try:
        for number in range(HANDOVERS):
            leader = leader_of(cluster)
            pulses = [Pulse(n, f"hand-{number}-{n.number}") for n in cluster.nodes if n is not leader]
            for pulse in pulses:
                pulse.thread.start()
            time.sleep(0.5)
            began = time.monotonic()
            code = leader.stop()
            ended = time.monotonic()
            time.sleep(0.3)
            for pulse in pulses:
                pulse.over = True
            for pulse in pulses:
                pulse.thread.join(20)
            times = sorted(t for pulse in pulses for t in pulse.times)
            gaps.append(longest_gap(times, began, ended + 0.3) * 1000)
            calm.append(longest_gap(times, began - 0.4, began) * 1000)
            if code != 0:
                bench.missed.append(f"hand-over {number}: exit code {code}")
            leader.start(cluster.output)
            if not leader.wait_ready():
                bench.missed.append(f"hand-over {number}: the node does not come back\n{tail(cluster.output.name)}")
                break
    finally:
        bench.drop(cluster)
    if gaps:
        row("SIGTERM of the leader", gaps, ("p50 ms", f"{percentile(gaps, 0.5):.1f}"), ("max", f"{max(gaps):.1f}"),
            ("without one p50", f"{percentile(calm, 0.5):.1f}"), ("max", f"{max(calm):.1f}"))  # fmt: skip
    say()


def longest_gap(times, since, until):
    within = [since, *(t for t in times if since < t < until), until]
    return max(b - a for a, b in zip(within, within[1:]))


def main():
    bench = Bench(sys.argv[1], sys.argv[2])
    rows = sys.argv[3:] or list(ROWS)
    for name in rows:
        if name not in ROWS:
            sys.exit(f"bench: there is no row {name}; there are: {' '.join(ROWS)}")
    seconds = ["--duration", str(SECONDS)]
    say(f"the disk: a sync of 4 KiB takes {sync_ms(bench.place, 1):.2f} ms alone, {sync_ms(bench.place, 3):.2f} ms when three write at once")
    say()
    try:
        if "step" in rows:
            compare(bench, "step: 64 workers, 200 lanes, batches of 10, full throttle", "step",
                    ["--workers", "64", "--lanes", "200", "--size", "256", *seconds], step_figures)  # fmt: skip
        if "rate" in rows:
            compare(bench, f"step at {RATE} a second, fed and consumed meanwhile", "step",
                    ["--rate", str(RATE), "--lanes", "200", "--size", "256", *seconds], step_figures)  # fmt: skip
        if "push64k" in rows:
            compare(bench, "push: 64 KiB, 16 connections", "push", ["--size", "65536", "--conns", "16", "--lanes", "64", *seconds], push_figures)
        if "push1m" in rows:
            compare(bench, "push: 1 MiB, 8 connections", "push", ["--size", "1048576", "--conns", "8", "--lanes", "64", *seconds], push_figures)
        if "failover" in rows:
            failover(bench)
        if "handover" in rows:
            handover(bench)
    except RuntimeError as error:
        bench.missed.append(str(error))
    finally:
        shutil.rmtree(bench.place, ignore_errors=True)
    for text in bench.missed:
        print(f"bench: {text}", file=sys.stderr)
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
