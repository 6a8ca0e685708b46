"""A small file system fills up: pushes are refused early with 507, everything that frees space goes on, nothing is lost."""
import os
import subprocess
import time

import crash_broker
import crash_verify
import pytest
from crash_history import History, Push

SIZE_MB = 200


def mount_small(top):
    """A loop-mounted ext4 when that is possible, else a tmpfs. Returns (path, unmount function)."""
    place = os.path.join(top, "small")
    os.makedirs(place, exist_ok=True)
    if os.geteuid() != 0:
        pytest.skip("needs root for a small file system")
    image = os.path.join(top, "image")
    with open(image, "wb") as f:
        f.truncate(SIZE_MB << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], capture_output=True, check=False).returncode == 0
    if made and subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False).returncode == 0:
        return place, lambda: subprocess.run(["umount", "-l", place], check=False)
    size = f"size={SIZE_MB}m"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], capture_output=True, check=False).returncode == 0:
        return place, lambda: subprocess.run(["umount", "-l", place], check=False)
    pytest.skip("neither a loop device nor a tmpfs can be mounted")


@pytest.fixture
def small_disk(place):
    path, unmount = mount_small(place)
    yield path
    unmount()


def big_push(history, queue, count=8):
    items = []
    for _ in range(count):
        token = history.token()
        items.append((queue, f"lane-{token % 4}", f"id-{token}", f'{{"tok": {token}, "pad":"{"x" * 60000}"}}'.encode(), token))
    push = Push(items)
    history.push_sent(push)
    return push


def push_once(conn, history, queue):
    push = big_push(history, queue)
    status, body = conn.call("POST", "/api/v1/push", push.body())
    history.push_ended(push, status, body)
    return status, body


def fill(conn, history, queue):
    for number in range(2000):
        status, body = push_once(conn, history, queue)
        if status == 507:
            assert b"storage_full" in body, body
            return number
        if status == 429:  # the disk is slower than the pushes
            time.sleep(0.1)
            continue
        assert status == 201, (status, body)
    raise AssertionError("never full")


def used_share(path):
    info = os.statvfs(path)
    return 1 - info.f_bavail / info.f_blocks


def wait_push_works(conn, history, queue, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        status, _ = push_once(conn, history, queue)
        if status == 201:
            return True
        assert status in (507, 429), status
        time.sleep(0.1)
    return False


@pytest.fixture
def full(small_disk, brokers):
    """A broker on a disk filled by its own pushes, with 40 MB of somebody else's that can be taken away."""
    ballast = os.path.join(small_disk, "ballast")
    with open(ballast, "wb") as f:
        f.write(bytes(40 << 20))
    broker = brokers(data=os.path.join(small_disk, "data")).start()
    history = History()
    conn = broker.conn()
    assert fill(conn, history, "keep") > 5
    assert used_share(small_disk) < 0.97, "the reserve was used up"
    return broker, history, conn, small_disk, ballast


def judge_all(broker, history, queues):
    conn = broker.conn()
    crash_verify.drain(conn, history, f"drain-{time.monotonic_ns()}", queues)
    conn.close()
    crash_verify.judge(history, broker)


@pytest.mark.seconds(9)
def test_what_frees_space_goes_on_and_a_restart_works(full):
    broker, history, conn, disk, ballast = full
    conn.call("POST", "/api/v1/configure", {"queue": "other", "options": {"retryLimit": 0}})
    sent = time.monotonic()
    path = "/api/v1/pop/queue/keep?consumerGroup=g&batch=10&partitions=4&leaseSeconds=60&subscriptionMode=all"
    status, raw = conn.call("GET", path)
    assert status == 200
    from crash_history import AckPlan

    for claim in history.pop_answered("g", "keep", sent, 60, raw):
        plan = AckPlan(claim, "all", len(claim.messages) - 1)
        history.ack_sent(plan)
        history.ack_answered(plan, *conn.call("POST", "/api/v1/ack/batch", plan.body()), True)
    assert history.counts["acks"] > 0
    for route in ("/health", "/metrics/prometheus", "/api/v1/resources/queues"):
        assert conn.call("GET", route)[0] == 200, route
    for stop in (broker.kill, broker.terminate):
        conn.close()
        stop()
        broker.start()
        conn = broker.conn()
        assert push_once(conn, history, "keep")[0] == 507
        judge_all(broker, history, ("keep",))
    os.unlink(ballast)
    assert wait_push_works(conn, history, "keep", 10), f"still refused; {used_share(disk):.2f} used\n{broker.log_tail()}"
    judge_all(broker, history, ("keep",))


def test_deleting_a_queue_wins_space_back(full):
    broker, history, conn, disk, ballast = full
    before = used_share(disk)
    status, answer = conn.json("DELETE", "/api/v1/resources/queues/keep")
    assert status == 200 and answer["deleted"]
    assert wait_push_works(conn, history, "fresh", 10), f"still refused; {before:.2f} -> {used_share(disk):.2f} used\n{broker.log_tail()}"
    broker.kill()
    broker.start()
    judge_all(broker, history, ("fresh",))
    assert broker.conn().call("GET", "/api/v1/resources/queues/keep")[0] == 404


def test_a_disk_filled_by_others_to_the_last_block(full):
    """The reserve is gone: no push may be half stored, nothing answered may be lost, and it comes back when there is room."""
    broker, history, conn, disk, ballast = full
    filler = os.path.join(disk, "filler")
    with open(filler, "wb") as f:
        try:
            while True:
                f.write(bytes(1 << 20))
                f.flush()
        except OSError:
            pass
    for _ in range(3):
        try:
            status, _ = push_once(conn, history, "keep")
            assert status == 507
        except crash_broker.Gone:
            break
    time.sleep(1.0)
    if broker.alive():
        broker.kill()
    else:
        assert broker.process.poll() == 3, broker.log_tail()
    broker.spawn()
    if not broker.wait_ready():
        assert broker.process.poll() in (2, 3), f"{broker.process.poll()}\n{broker.log_tail()}"
    else:
        broker.kill()
    os.unlink(filler)
    os.unlink(ballast)
    broker.start()
    conn = broker.conn()
    assert wait_push_works(conn, history, "keep", 10), broker.log_tail()
    judge_all(broker, history, ("keep",))
