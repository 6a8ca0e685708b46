"""Holders of locks who write under their token: mutual exclusion, by fencing and by the clock.

A holder's transaction carries the guard of its permit, adds one to a counter and appends to a lane. Judged: tokens in the lane never go
back, the counter is the number of records, nothing is written under a token after a newer one was given out, and while one holder's
time certainly runs nobody else is let in."""
import json
import time

from workload import Workload, same_everywhere

QUEUE = "held"
NAMES = ["bay-1", "bay-2"]
TTL_S = 2


class LocksWorkload(Workload):
    name = "locks"

    def __init__(self, cluster, seed, clients=3, true_clocks=True):
        super().__init__(cluster, seed)
        self.clients, self.true_clocks = clients, true_clocks
        self.holds = {name: [] for name in NAMES}  # [owner, token, received, certain until]
        self.writes = {name: [] for name in NAMES}  # (record id, token, sent, "committed" | "refused")
        self.lives = 0

    def jobs(self):
        return [self.hold_loop] * self.clients

    def hold_loop(self, client, rng):
        while not self.over():
            name = rng.choice(NAMES)
            with self.lock:
                self.lives += 1
                owner = f"owner-{self.lives}"
            permit = self.acquire(client, name, owner)
            if permit is None:
                time.sleep(rng.uniform(0.01, 0.05))
                continue
            guard, hold = permit
            for number in range(rng.randrange(1, 5)):
                self.write(client, name, owner, number, guard, hold)
                time.sleep(rng.choice((0.0, 0.0, 0.02, TTL_S * 0.6)) if rng.random() < 0.3 else 0.0)
                if rng.random() < 0.3:
                    guard = self.renew(client, name, owner, guard, hold)
                    if guard is None:
                        break
            if guard is not None and rng.random() < 0.9:
                self.release(client, name, guard, hold)
            else:
                self.count("left to expire")

    def ask(self, client, op):
        status, answer, lost = self.answered(client, "POST", "/api/v1/locks", json.dumps([op]).encode())
        if status != 200:
            self.problem(f"{op} answered {status} {answer}")
            return None, lost
        return answer["results"][0], lost

    def acquire(self, client, name, owner):
        sent = time.monotonic()
        result, lost = self.ask(client, {"op": "acquire", "name": name, "owner": owner, "ttlSeconds": TTL_S})
        received = time.monotonic()
        if result is None or not result["acquired"]:
            self.count("held by another")
            return None
        self.count("acquired")
        hold = {"owner": owner, "token": result["token"], "sent": sent, "received": received, "until": sent + TTL_S, "over": False}
        with self.lock:
            for other in self.holds[name]:
                if self.true_clocks and other["received"] < sent and received < other["until"] and not other["over"]:
                    self.problems.append(f"locks: {name} was given to {owner} (token {hold['token']}) {other['until'] - received:.3f} s "
                                         f"before the time of {other['owner']} (token {other['token']}) is over")  # fmt: skip
                if other["received"] < sent and other["token"] >= hold["token"]:
                    self.problems.append(f"locks: {name} gave token {hold['token']} after {other['token']}")
            self.holds[name].append(hold)
        return result["guard"], hold

    def renew(self, client, name, owner, guard, hold):
        sent = time.monotonic()
        result, lost = self.ask(client, {"op": "renew", "name": name, "owner": owner, "token": guard["expect"], "ttlSeconds": TTL_S})
        received = time.monotonic()
        if result is None or not result["renewed"]:
            if self.true_clocks and received < hold["until"]:
                self.problem(f"renewal of {name} by {owner} was refused {hold['until'] - received:.3f} s before its time is over: {result}")
            self.count("renewals lost")
            return None
        with self.lock:
            hold["token"], hold["until"] = result["token"], sent + TTL_S
        self.count("renewed")
        return result["guard"]

    def release(self, client, name, guard, hold):
        with self.lock:
            hold["over"] = True
        result, _ = self.ask(client, {"op": "release", "name": name, "token": guard["expect"]})
        self.count("released" if result and result["released"] else "releases lost")

    def write(self, client, name, owner, number, guard, hold):
        """A write under the token; sent again until it is answered, with an id of its own and so at most once."""
        identity = f"{owner}.{number}"
        body = {
            "operations": [{"type": "push", "items": [{"queue": QUEUE, "partition": name, "transactionId": identity, "payload": {"token": guard["expect"]}}]}],
            "kv": [guard, {"op": "incr", "ns": "held", "key": name, "delta": 1, "forever": True}],
        }  # fmt: skip
        sent = time.monotonic()
        status, answer, lost = self.answered(client, "POST", "/api/v1/transaction", json.dumps(body).encode())
        received = time.monotonic()
        if status != 200:
            self.problem(f"transaction answered {status} {answer}")
            return
        if answer["success"] or (lost and answer["reason"] == "duplicate"):
            self.count("writes")
            with self.lock:
                self.writes[name].append((identity, guard["expect"], "committed"))
            return
        self.count("writes refused")
        if answer["reason"] != "kv_precondition":
            self.problem(f"write under a lock answered {answer}")
        elif self.true_clocks and received < hold["until"] and not hold["over"]:
            self.problem(f"write of {owner} under {name} was refused {hold['until'] - received:.3f} s before its time is over: {answer}")
        with self.lock:
            self.writes[name].append((identity, guard["expect"], "maybe" if lost else "refused"))

    def finish(self, client):
        held = same_everywhere(self, QUEUE, NAMES)
        for name in NAMES:
            tokens = [r[2]["token"] for r in held[name]]
            if tokens != sorted(tokens):
                at = next(i for i in range(1, len(tokens)) if tokens[i] < tokens[i - 1])
                self.problem(f"{name}: written under token {tokens[at]} after {tokens[at - 1]}")
            there = [r[1] for r in held[name]]
            if len(set(there)) != len(there):
                self.problem(f"{name}: a write is there twice")
            for identity, _, fate in self.writes[name]:
                if (fate == "committed") != (identity in there) and fate != "maybe":
                    self.problem(f"{name}: write {identity} was answered {fate} and is {'there' if identity in there else 'not there'}")
            _, answer, _ = client.insist("POST", "/api/v1/kv", {"operations": [{"op": "get", "ns": "held", "key": name}]})
            if answer["results"][0].get("value", 0) != len(there):
                self.problem(f"{name}: {len(there)} writes and the counter is {answer['results'][0]}")
