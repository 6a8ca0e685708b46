"""What must hold after a restart. Every function adds to history.problems; finish() is the last word."""
import json
import time

from crash_history import AckPlan
from crash_load import GROUPS, QUEUES


def carry_on(conn, history):
    """Leases and acks that were under way when the broker died: what was answered holds, what was lost may be sent again."""
    for claim in history.claims_still_open():
        repeated = claim.plan is not None
        if not repeated:
            plan, certain = AckPlan(claim, "all", len(claim.messages) - 1), claim.may_be_released == float("inf")
        else:
            plan = claim.plan
            # done before or done now: the repeat rule answers success either way, for what the lease still held
            certain = plan.kind == "all" and not claim.parted
        if claim.until - time.monotonic() < 1.0:
            history.claim_over(claim)
            continue
        history.ack_sent(plan)
        status, body = conn.call("POST", "/api/v1/ack/batch", plan.body())
        history.ack_answered(plan, status, body, certain, repeated)
        history.claim_over(claim)


def send_again(conn, history, rng, answered_max=60, lost_share=0.5):
    """Answered pushes are duplicates of themselves; a lost push may be sent again and is stored then."""
    repeatable = [p for p in history.pushes if all(item[2] for item in p.items)]
    stored = [p for p in repeatable if p.state == "stored"]
    newest = stored[-answered_max // 2 :]
    for push in newest + rng.sample(stored, min(len(stored), answered_max // 2)):
        history.resend_checked(push, *conn.call("POST", "/api/v1/push", push.body()))
    for push in repeatable:
        if push.state == "unknown" and rng.random() < lost_share:
            history.resend_checked(push, *conn.call("POST", "/api/v1/push", push.body()))


def drain(conn, history, group, queues=QUEUES):
    """Reads everything with a fresh group and compares with what was answered."""
    found = {}
    for queue in queues:
        path = f"/api/v1/pop/queue/{queue}?consumerGroup={group}&batch=5000&partitions=64&autoAck=true&subscriptionMode=all"
        while True:
            status, raw = conn.call("GET", path)
            if status == 204:
                break
            if status != 200:
                history.problem(f"drain of {queue} answered {status} {raw!r}")
                return
            position = 0
            for message in json.loads(raw)["messages"]:
                position = history.check_message(queue, message, raw, position)
                found.setdefault((queue, message["partition"]), []).append(message)
    compare(history, found, queues)


def compare(history, found, queues):
    where = {}
    for (queue, lane), messages in found.items():
        offsets = [m["offset"] for m in messages]
        if offsets != list(range(len(offsets))):
            history.problem(f"{queue}/{lane}: offsets are not 0..{len(offsets) - 1}: {offsets[:50]}")
        stamps = [m["createdAt"] for m in messages]
        if stamps != sorted(stamps):
            history.problem(f"{queue}/{lane}: createdAt goes back")
        for message in messages:
            token = message["data"]["tok"]
            if token in where:
                history.problem(f"token {token} is there twice: {where[token]} and {queue}/{lane}@{message['offset']}")
            where[token] = (queue, lane, message["offset"])
    for push in history.pushes:
        if not all(item[0] in queues for item in push.items):
            continue
        present = [item[4] in where for item in push.items]
        if push.state == "stored" and not all(present):
            missing = [item[4] for item, there in zip(push.items, present) if not there]
            history.problem(f"answered push lost tokens {missing} (sent {push.sent:.3f}, results {push.results})")
        if push.state == "refused" and any(present):
            history.problem(f"refused push is there: {[item[4] for item in push.items]}")
        if any(present) and not all(present):
            history.problem(f"push is there by half: {[(item[4], there) for item, there in zip(push.items, present)]}")
    check_order(history, where)
    history.lane_counts = {key: len(messages) for key, messages in found.items()}


def check_order(history, where):
    """A push answered before another one was sent is before it in every lane they share."""
    lanes = {}
    for push in history.pushes:
        if push.state != "stored" or not push.answered:
            continue
        for item in push.items:
            if item[4] in where:
                lanes.setdefault(where[item[4]][:2], []).append((where[item[4]][2], push.sent, push.answered))
    for (queue, lane), entries in lanes.items():
        entries.sort()
        latest_sent = 0.0
        for offset, sent, answered in entries:
            if answered < latest_sent:
                history.problem(f"{queue}/{lane}@{offset} was answered before an earlier offset was sent")
            latest_sent = max(latest_sent, sent)


def check_depth(conn, history):
    """Depth figures against the cursors; nobody else is at work."""
    for group in GROUPS:
        for queue in QUEUES:
            status, depth = conn.json("GET", f"/api/v1/resources/queues/{queue}/depth?group={group}")
            if status != 200:
                if any(key[0] == queue for key in history.lane_counts):
                    history.problem(f"depth of {queue} answered {status} {depth}")
                continue
            total = 0
            for row in depth["partitions"]:
                check_lane_depth(history, group, queue, row)
                total += row["pending"]
            if total != depth["pending"] or depth["ready"] != depth["pending"] - depth["processing"]:
                history.problem(f"depth of {queue} for {group} does not add up: {depth}")


def check_lane_depth(history, group, queue, row):
    count = history.lane_counts.get((queue, row["partition"]), 0)
    cursor = history.cursor(group, queue, row["partition"])
    committed = count - 1 - row["pending"]
    if not cursor.done_now <= committed <= cursor.done_maybe:
        history.problem(
            f"depth {row} of {queue} for {group}: {count} messages, acked {cursor.done_now}..{cursor.done_maybe}, so committed {committed} is wrong"
        )
    now = time.monotonic()
    for claim in cursor.claims[-3:]:
        if not claim.settled and claim.may_be_released == float("inf") and claim.until > now + 0.3:
            if row["processing"] != claim.last - committed:
                history.problem(f"depth {row} of {queue} for {group}: a lease on {claim.first}..{claim.last} is live")


def finish_groups(conn, history):
    """Consumes the rest. Afterwards every group has seen every message, and depth is nothing."""
    depth = None
    for group in GROUPS:
        for queue in QUEUES:
            deadline = time.monotonic() + 10  # longer than any lease of the load
            while time.monotonic() < deadline:
                sent = time.monotonic()
                path = (
                    f"/api/v1/pop/queue/{queue}?consumerGroup={group}&batch=5000&partitions=64&leaseSeconds=20"
                    "&subscriptionMode=all&wait=true&timeout=300"
                )
                status, raw = conn.call("GET", path)
                if status == 200:
                    for claim in history.pop_answered(group, queue, sent, 20, raw):
                        plan = AckPlan(claim, "all", len(claim.messages) - 1)
                        history.ack_sent(plan)
                        history.ack_answered(plan, *conn.call("POST", "/api/v1/ack/batch", plan.body()), True)
                    deadline = time.monotonic() + 10
                    continue
                status, depth = conn.json("GET", f"/api/v1/resources/queues/{queue}/depth?group={group}")
                if status == 404 or depth["pending"] == 0:
                    break
            else:
                history.problem(f"{group} cannot get the rest of {queue}: {depth}")
    for (queue, lane), count in history.lane_counts.items():
        for group in GROUPS:
            skipped = set(range(count)) - history.cursor(group, queue, lane).delivered
            if skipped:
                history.problem(f"{group} never got {sorted(skipped)[:20]} of {queue}/{lane}")


def check_dead_letters(conn, history):
    for group in GROUPS:
        rows = {}
        for queue in QUEUES:
            offset = 0
            while True:
                path = f"/api/v1/dlq?queue={queue}&consumerGroup={group}&limit=1000&offset={offset}"
                status, raw = conn.call("GET", path)
                if status != 200:
                    history.problem(f"dead letters answered {status} {raw!r}")
                    return
                answer = json.loads(raw)
                for row in answer["messages"]:
                    check_dead_letter(history, queue, row, raw)
                    token = row["data"]["tok"]
                    if token in rows:
                        history.problem(f"dead letter twice: {row}")
                    rows[token] = row
                offset += len(answer["messages"])
                if not answer["messages"] or offset >= answer["total"]:
                    break
        for (dead_group, token), fate in history.dead.items():
            if dead_group == group and fate == "certain" and token not in rows:
                history.problem(f"dead letter of token {token} for {group} was answered and is not there")
        for token in rows:
            if (group, token) not in history.dead:
                history.problem(f"dead letter nobody asked for: {rows[token]}")


def check_dead_letter(history, queue, row, raw):
    push, index = history.by_token[row["data"]["tok"]]
    item = push.items[index]
    if (row["queue"], row["partition"]) != (item[0], item[1]) or row["queue"] != queue or item[3] not in raw:
        history.problem(f"dead letter {row} is not what was pushed")
    if push.results and push.results[index] != (row["messageId"], row["offset"]):
        history.problem(f"dead letter {row} does not match the push's answer {push.results[index]}")
    if row["errorMessage"] != "cannot":
        history.problem(f"dead letter with error text {row['errorMessage']!r}")


def after_restart(broker, history, rng, admin, number):
    """Everything that can be judged after one crash."""
    conn = broker.conn()
    carry_on(conn, history)
    send_again(conn, history, rng)
    drain(conn, history, f"drain-{number}")
    check_depth(conn, history)
    if admin:
        admin.check(conn)
    conn.close()


def finish(broker, history, rng, admin, number="end"):
    after_restart(broker, history, rng, admin, number)
    conn = broker.conn()
    finish_groups(conn, history)
    check_depth(conn, history)
    check_dead_letters(conn, history)
    conn.close()


def judge(history, broker):
    assert not history.problems, "\n".join(history.problems[:20]) + f"\n({len(history.problems)} problems)\n" + broker.log_tail()
