"""Out of file descriptors: the log's and the store's files are never the ones that fail, and accepting does not spin."""
import os
import random
import socket
import time

import crash_verify
import pytest
from crash_broker import Gone
from crash_history import History
from crash_load import Load
from crash_verify import judge

LIMIT = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.seconds(15)
def test_connections_never_starve_the_log(brokers, seed):
    rng = random.Random(seed)
    broker = brokers().start(prefix=LIMIT)
    history = History()
    load = Load(broker, history, rng.random(), pushers=6, consumers=4).start()
    time.sleep(0.5)
    held = []
    for _ in range(400):
        sock = socket.socket()
        sock.settimeout(0.3)
        try:
            sock.connect(("127.0.0.1", broker.port))
            held.append(sock)
        except OSError:
            sock.close()
    time.sleep(2.0)
    assert broker.alive(), broker.log_tail()
    answers = load.answers
    time.sleep(1.0)
    assert load.answers > answers, "those who were connected before get no answers any more"
    load.stop()
    assert not load.lost_sent, f"cut off: {load.lost_sent[:5]}"
    before = cpu_seconds(broker.process.pid)
    time.sleep(2.0)
    spent = cpu_seconds(broker.process.pid) - before
    assert spent < 0.3, f"{spent:.2f} s of CPU in 2 s with nothing to do"
    for sock in held[:300]:
        sock.close()
    deadline = time.monotonic() + 5
    while True:
        try:
            conn = broker.conn(timeout=2)
            assert conn.call("GET", "/health")[0] == 200
            conn.close()
            break
        except Gone:
            assert time.monotonic() < deadline, "no new connection although 300 were closed"
            time.sleep(0.1)
    crash_verify.finish(broker, history, rng, None)
    for sock in held[300:]:
        sock.close()
    judge(history, broker)
    assert broker.log_text().count("\n") < 2000, "it fills its log with complaints"
