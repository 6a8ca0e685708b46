#!/usr/bin/python3
"""Bytes written to disk per byte pushed, of one broker on a folder of its own.

  write_amplification.py [--binary build/queen] [--data DIR] [--seconds 20] [--size 1024] [--batch 100] [--rate 0] [kept] [consumed]

kept       messages are pushed as fast as answers come and stay for ever
consumed   the same, while consumers take them; retention lets them go a second later (completedRetentionSeconds)

Written: write_bytes of /proc/PID/io, from the first push until the state is durable behind the last one. Pushed: the payloads' bytes. DIR must
be on a real disk. BENCH_QUEEN_NAME=value sets QUEEN_NAME of the broker. Prints a line for each workload: messages, bytes, written, the ratio, and what of it the log wrote; then the ratio by thread: log-disk writes records, log-keeper zeros and new files, the store's threads rows.
"""
import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time


class Broker:
    def __init__(self, binary, folder):
        env = {k: v for k, v in os.environ.items() if not k.startswith("QUEEN_") or k == "QUEEN_EDGE_THREADS"}
        env.update({k[len("BENCH_"):]: v for k, v in os.environ.items() if k.startswith("BENCH_QUEEN_")})
        self.process = subprocess.Popen([binary, "serve", "--data", folder, "--port", "0"], env=env, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.port = None
        for line in self.process.stdout:
            if "listening on http://" in line:
                self.port = int(line.split("listening on http://")[1].split()[0].rstrip("/").rsplit(":", 1)[1])
                break
        threading.Thread(target=self._drain, daemon=True).start()
        while self.call("GET", "/health")[0] != 200:
            time.sleep(0.05)

    def _drain(self):
        for _ in self.process.stdout:
            pass

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        answer = r.read()
        c.close()
        return r.status, answer

    def io(self):
        with open("/proc/%d/io" % self.process.pid, encoding="ascii") as f:
            return int(dict(line.split(": ") for line in f)["write_bytes"])

    def io_by_thread(self):
        found = {}
        for task in os.listdir("/proc/%d/task" % self.process.pid):
            try:
                with open("/proc/%d/task/%s/comm" % (self.process.pid, task), encoding="ascii") as f:
                    name = f.read().strip()
                with open("/proc/%d/task/%s/io" % (self.process.pid, task), encoding="ascii") as f:
                    found[name] = found.get(name, 0) + int(dict(line.split(": ") for line in f)["write_bytes"])
            except OSError:
                pass  # it has ended
        return found

    def number(self, name):
        found = 0.0
        for line in self.call("GET", "/metrics/prometheus")[1].decode().splitlines():
            if line.startswith(name + " ") or line.startswith(name + "{"):
                found += float(line.rsplit(" ", 1)[1])
        return found

    def settle(self):
        """Until nothing more is written for three seconds."""
        last, since = self.io(), time.monotonic()
        while time.monotonic() - since < 3:
            time.sleep(0.2)
            if self.io() != last:
                last, since = self.io(), time.monotonic()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def consume(broker, queue, over):
    c = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=60)
    while True:
        c.request("GET", "/api/v1/pop/queue/%s?consumerGroup=g&subscriptionMode=all&autoAck=true&batch=5000&partitions=64" % queue)
        r = c.getresponse()
        body = r.read()
        if r.status == 204 or not body:
            if over.is_set():
                return
            time.sleep(0.02)


def measure(args, kind):
    folder = tempfile.mkdtemp(prefix="queen-written-", dir=args.data)
    broker = Broker(args.binary, folder)
    queue = "written"
    options = {"retentionEnabled": True, "completedRetentionSeconds": 1} if kind == "consumed" else {}
    status, body = broker.call("POST", "/api/v1/configure", {"queue": queue, "options": options})
    if status not in (200, 201):
        sys.exit("configure: %d %s" % (status, body))
    over, consumers = threading.Event(), []
    before, log_before, threads_before = broker.io(), broker.number("queen_log_written_bytes_total"), broker.io_by_thread()
    if kind == "consumed":
        consumers = [threading.Thread(target=consume, args=(broker, queue, over)) for _ in range(2)]
        for t in consumers:
            t.start()
    load = subprocess.run([args.binary, "bench", "push", "--port", str(broker.port), "--pid", str(broker.process.pid), "--json", "--warmup", "0",
                           "--duration", str(args.seconds), "--size", str(args.size), "--batch", str(args.batch), "--rate", str(args.rate),
                           "--queue", queue], stdout=subprocess.PIPE, text=True, check=True)
    over.set()
    for t in consumers:
        t.join()
    broker.settle()
    written, log_written = broker.io() - before, broker.number("queen_log_written_bytes_total") - log_before
    threads = {name: n - threads_before.get(name, 0) for name, n in broker.io_by_thread().items()}
    messages = json.loads(load.stdout.strip().splitlines()[-1])["messages"]
    pushed = messages * args.size
    print("%-9s %10d messages  %8.1f MB pushed  %8.1f MB written  %.2f a byte  (log %.2f)" %
          (kind, messages, pushed / 1e6, written / 1e6, written / max(1, pushed), log_written / max(1, pushed)))
    print("          by thread: " + ", ".join("%s %.2f" % (name, n / max(1, pushed)) for name, n in sorted(threads.items()) if n > 0))
    broker.stop()
    shutil.rmtree(folder)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("workloads", nargs="*", default=["kept", "consumed"])
    p.add_argument("--binary", default="build/queen")
    p.add_argument("--data", default=None)
    p.add_argument("--seconds", type=int, default=20)
    p.add_argument("--size", type=int, default=1024)
    p.add_argument("--batch", type=int, default=100)
    p.add_argument("--rate", type=int, default=0)
    args = p.parse_args()
    for kind in args.workloads:
        measure(args, kind)


if __name__ == "__main__":
    main()
