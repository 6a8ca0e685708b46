"""What all workloads have in common: threads with a client each, a list of problems, counts."""
import random
import threading
import time
from collections import Counter

from cluster import Gone


SAME_S = 5.0  # within so long a node that is up has applied what others have


class Workload:
    """`jobs` is a list of functions (client, rng) that run, each in a thread, until `stopping` is set. A subclass has finish(), called
    with everything mended and its threads ended: it reads the cluster and judges the history."""

    name = "?"
    tenant = None  # the default one

    def __init__(self, cluster, seed):
        self.cluster, self.seed = cluster, seed
        self.rng = random.Random(f"{seed}/{self.name}")
        self.lock = threading.Lock()
        self.problems = []
        self.counts = Counter()
        self.stopping = threading.Event()
        self.threads = []

    def prepare(self, client):
        """Before any thread runs, on a calm cluster."""

    def jobs(self):
        raise NotImplementedError

    def finish(self, client):
        raise NotImplementedError

    def problem(self, text):
        with self.lock:
            self.problems.append(f"{self.name}: {text}")

    def count(self, name, n=1):
        with self.lock:
            self.counts[name] += n

    def start(self):
        for number, job in enumerate(self.jobs()):
            client = self.cluster.client(f"{self.seed}/{self.name}/{number}/client", tenant=self.tenant)
            rng = random.Random(f"{self.seed}/{self.name}/{number}")
            self.threads.append(threading.Thread(target=self.guard, args=(job, client, rng), name=f"{self.name}-{number}", daemon=True))
        for thread in self.threads:
            thread.start()

    def guard(self, job, client, rng):
        try:
            job(client, rng)
        except Gone:
            if not self.stopping.is_set():
                self.problem("a client gave up")
        except Exception as error:  # a client must not fail in silence
            self.problem(f"a client failed: {type(error).__name__}: {error}")
        finally:
            client.close()

    def stop(self, timeout=60.0):
        self.stopping.set()
        for thread in self.threads:
            thread.join(timeout)
            if thread.is_alive():
                self.problem(f"{thread.name} hangs: its call was neither answered nor cut")

    def over(self):
        return self.stopping.is_set()

    def answered(self, client, method, path, body=b""):
        """The answer some node gives in the end, whatever is going on. (status, answer, calls without one)"""
        status, answer, lost = client.insist(method, path, body)
        if lost:
            self.count("calls lost", lost)
        return status, answer, lost


def fetch_lanes(node, queue, lanes, tenant=None):
    """Every record of these lanes as this node holds them: {lane: [(offset, transaction id, payload, ts)]}."""
    found = {lane: [] for lane in lanes}
    todo = dict.fromkeys(lanes, 0)
    while todo:
        entries = [{"queue": queue, "partition": lane, "offset": offset, "maxBytes": 4 << 20} for lane, offset in todo.items()]
        status, answer = node.ask("POST", "/api/v1/fetch", {"entries": entries}, timeout=20.0, tenant=tenant)
        assert status == 200, f"fetch of {queue} from node {node.number}: {status} {answer}"
        for entry in answer["entries"]:
            lane = entry["partition"]
            if entry.get("error") == "UNKNOWN_TOPIC_OR_PARTITION":
                del todo[lane]
                continue
            assert "error" not in entry, f"fetch of {queue}/{lane} from node {node.number}: {entry}"
            for record in entry["records"]:
                found[lane].append((record["offset"], record["transactionId"], record["payload"], record["ts"]))
            todo[lane] = found[lane][-1][0] + 1 if found[lane] else todo[lane]
            if todo[lane] >= entry["highWatermark"]:
                del todo[lane]
    return found


def same_everywhere(workload, queue, lanes):
    """What every member holds of these lanes; a problem for each difference that stays. Returns the first node's."""
    first = fetch_lanes(workload.cluster.members[0], queue, lanes, workload.tenant)
    for node in workload.cluster.members[1:]:
        deadline = time.monotonic() + SAME_S
        while (found := fetch_lanes(node, queue, lanes, workload.tenant)) != first and time.monotonic() < deadline:
            time.sleep(0.2)
        for lane in lanes:
            if found[lane] != first[lane]:
                at = next((i for i, (a, b) in enumerate(zip(found[lane], first[lane])) if a != b), min(len(found[lane]), len(first[lane])))
                workload.problem(f"{queue}/{lane}: node {node.number} holds {len(found[lane])} records and node {workload.cluster.members[0].number} "
                                 f"{len(first[lane])}; from place {at} on they differ: {found[lane][at:at+1]} and {first[lane][at:at+1]}")  # fmt: skip
    return first
