"""queen cluster: the nodes of a cluster, for people and as JSON; changes of them, their refusals and exit codes.

The views are asked of a broker; changes, and nodes that are away, of a scripted server that keeps a membership as
the routes describe it."""

import http.server
import json
import os
import subprocess
import threading

import pytest

from queen import BINARY, free_port

OK, USAGE, NO, REFUSED, UNREACHABLE = 0, 1, 3, 4, 5
MEMBERSHIP = "/api/v1/system/raft/membership"
NEW = ["--id", "4", "--raft", "10.0.0.4:7400", "--http", "10.0.0.4:6632"]


def cluster(port, *args):
    """Runs `queen cluster ...` to its end; returns (exit code, output, stderr)."""
    env = {k: v for k, v in os.environ.items() if k != "QUEEN_SERVER"}
    env["QUEEN_SERVER"] = "http://127.0.0.1:%d" % port
    done = subprocess.run([BINARY, "cluster", *args], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def rows(output, first):
    """The lines of a table whose heading begins with `first`, as lists of cells (at least two blanks apart)."""
    lines = output.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(first))
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[at:]]


class Script:
    """A node with three voters behind it. `calls` are those made; `answers` are taken first, one a call; `lags` are the new
    learner's, one a look at the membership (the last one stays): a number, None (not known) or "silent"."""

    def __init__(self):
        self.calls = []
        self.answers = []
        self.lags = [0]
        self.voters = [1, 2, 3]
        self.learners = []
        self.leader = 2
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                call = (self.command, self.path, json.loads(body) if body else None)
                script.calls.append(call)
                status, value = script.answers.pop(0) if script.answers else script.serve(*call)
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                if status == 503:
                    self.send_header("Retry-After", "1")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def membership(self):
        lag = (self.lags.pop(0) if len(self.lags) > 1 else self.lags[0]) if self.learners else 0
        members = []
        for node in sorted(self.voters + self.learners):
            mine = lag if node in self.learners else 0
            members.append({"nodeId": node, "voter": node in self.voters, "raft": "10.0.0.%d:7400" % node, "http": "10.0.0.%d:6632" % node,
                            "matched": None if mine in (None, "silent") else 5000 - mine, "lag": None if mine in (None, "silent") else mine,
                            "lastAckMs": None if mine == "silent" else 3, "live": mine != "silent"})
        return {"nodeId": 1, "source": "follower", "viewAgeMs": 7, "leader": self.leader, "term": 3, "voters": self.voters,
                "learners": self.learners, "joint": None, "membershipIndex": 4, "membershipCommitted": True, "changeInFlight": False,
                "lastLogIndex": 5000, "committedIndex": 5000, "liveWithinMs": 900, "promoteMaxLag": 1000, "members": members}

    def serve(self, method, path, body):
        path = path.split("?")[0]
        if (method, path) == ("GET", MEMBERSHIP):
            return 200, {"engine": "raft", "membership": self.membership()}
        if (method, path) == ("POST", MEMBERSHIP + "/learners"):
            if body["id"] not in self.voters + self.learners:
                self.learners.append(body["id"])
        elif (method, path) == ("POST", MEMBERSHIP + "/promote"):
            self.voters = sorted(self.voters + body["ids"])
            self.learners = [n for n in self.learners if n not in body["ids"]]
        elif method == "DELETE":
            gone = int(path.rsplit("/", 1)[1])
            self.voters = [n for n in self.voters if n != gone]
            self.learners = [n for n in self.learners if n != gone]
        elif method != "PUT":
            return 404, {"error": "not found", "code": "no_such_route", "path": path}
        return 200, {"ok": True, "membership": self.membership()}


@pytest.fixture
def script():
    one = Script()
    yield one
    one.close()


def block(node, **other):
    """A node block of the views."""
    return dict({"nodeId": node, "hostname": "host-%d" % node, "raftAddr": "10.0.0.%d:7400" % node, "httpAddr": "10.0.0.%d:6632" % node,
                 "role": "voter", "state": "follower", "local": node == 1, "reachable": True, "leaderId": 2, "term": 3, "lastLogIndex": 5000,
                 "committedIndex": 4999, "appliedIndex": 4998, "durableIndex": 4000, "version": "2.0.0+queen.0.1.0", "uptimeSeconds": 300,
                 "host": {"disk": {"usedPct": 41, "writesRefused": False}}, "error": None}, **other)


# ---- views

def test_status_of_a_broker_alone(broker):
    code, output, errors = cluster(broker.port, "status")
    assert (code, errors) == (OK, "")
    assert output.splitlines()[0] == "node 1: node 1 leads"
    shown = dict(line.split(None, 1) for line in output.splitlines() if not line.startswith(("last entry", "raft address", "http address")))
    assert (shown["role"], shown["state"], shown["voters"]) == ("voter", "leader", "1")
    assert "http address  127.0.0.1:%d\n" % broker.port in output
    code, output, _ = cluster(broker.port, "status", "--json")
    assert code == OK and len(output.splitlines()) == 1
    assert json.loads(output)["singleNode"] is True


def test_members_of_a_broker_alone(broker):
    code, output, errors = cluster(broker.port, "members")
    assert (code, errors) == (OK, "")
    head, node = rows(output, "NODE")
    assert head[:3] == ["NODE", "ROLE", "STATE"]
    assert node[:3] == ["1", "voter", "leader"]
    code, output, _ = cluster(broker.port, "members", "--json")
    assert code == OK and [m["nodeId"] for m in json.loads(output)["members"]] == [1]


def test_status_of_a_leader_shows_its_followers(script):
    followers = [{"nodeId": 2, "matchIndex": 4990, "heartbeatAgeMs": 12}, {"nodeId": 3, "matchIndex": 17, "heartbeatAgeMs": 130000}]
    value = dict(block(1, state="leader", leaderId=1), engine="raft", clusterId="c0ffee", self=1, voters=3, singleNode=False, replication=followers)
    script.answers = [(200, value)]
    code, output, errors = cluster(script.port, "status")
    assert (code, errors) == (OK, "")
    assert output.splitlines()[0] == "node 1: node 1 leads"
    assert rows(output, "FOLLOWER")[1:] == [["2", "4990", "12 ms"], ["3", "17", "2 min"]]
    assert "disk          41 % used\n" in output
    assert script.calls == [("GET", "/api/v1/raft/status", None)]


def test_status_without_a_leader_says_so(script):
    value = dict(block(1, state="candidate", leaderId=None), clusterId="c0ffee", self=1, voters=3, replication=None)
    script.answers = [(200, value)] * 2
    code, output, _ = cluster(script.port, "status")
    assert code == NO and output.splitlines()[0] == "node 1: no leader is known"
    code, output, _ = cluster(script.port, "status", "--json")
    assert code == NO and json.loads(output) == value


def test_a_full_disk_is_seen(script):
    script.answers = [(200, dict(block(1, host={"disk": {"usedPct": 91, "writesRefused": True}}), voters=3, replication=None))]
    assert "91 % used; writes are refused until there is room" in cluster(script.port, "status")[1]


def test_members_with_one_that_is_away(script):
    away = {"nodeId": 3, "role": "voter", "state": "unreachable", "local": False, "reachable": False, "raftAddr": "10.0.0.3:7400",
            "httpAddr": "10.0.0.3:6632", "hostname": None, "error": "no answer in 1500 ms"}
    members = [block(1, lagEntries=2, heartbeatAgeMs=11), block(2, state="leader", lagEntries=0, heartbeatAgeMs=0), away]
    script.answers = [(200, {"engine": "raft", "clusterId": "c0ffee", "leaderId": 2, "term": 3, "self": 1, "voters": 3, "members": members})]
    code, output, errors = cluster(script.port, "members")
    assert (code, errors) == (OK, "")
    assert output.splitlines()[0] == "cluster c0ffee: node 2 leads, term 3, voters: 3"
    table = rows(output, "NODE")
    assert table[1] == ["1", "voter", "follower", "4998", "2", "11 ms", "10.0.0.1:7400", "10.0.0.1:6632", "5 min", "2.0.0+queen.0.1.0"]
    assert table[3] == ["3", "voter", "unreachable", "-", "-", "-", "10.0.0.3:7400", "10.0.0.3:6632", "-", "no answer in 1500 ms"]


def test_control_characters_of_an_answer_do_not_reach_the_terminal(script):
    members = [block(1, version="\u009b2J\u007f caf\u00e9", lagEntries=0)]
    script.answers = [(200, json.dumps({"leaderId": 1, "members": members}, ensure_ascii=False).encode())]
    code, output, _ = cluster(script.port, "members")
    assert code == OK and rows(output, "NODE")[1][-1] == "?2J? caf\u00e9"


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b"{}", b'{"members":3}', b'{"members":[{"role":"voter"}]}', b'"text"'], ids=repr)
def test_an_answer_of_something_else_is_told(script, answer):
    script.answers = [(200, answer)]
    code, output, errors = cluster(script.port, "members")
    assert (code, output) == (REFUSED, "")
    assert "is that address a Queen server?" in errors


# ---- add

def test_add_waits_until_the_learner_has_caught_up(script):
    script.lags = ["silent", None, 4000, 1001, 1000]
    code, output, errors = cluster(script.port, "add", *NEW)
    assert (code, errors) == (OK, "")
    assert output.splitlines() == ["node 4 is a learner", "voters: 1, 2, 3", "learners: 4",
                                   "node 4 has caught up; it becomes a voter with: queen cluster promote 4"]
    assert script.calls[0] == ("POST", MEMBERSHIP + "/learners", {"id": 4, "raft": "10.0.0.4:7400", "http": "10.0.0.4:6632"})
    assert script.calls[1:] == [("GET", MEMBERSHIP, None)] * 4


def test_add_without_a_wait(script):
    script.lags = ["silent"]
    code, output, errors = cluster(script.port, "add", *NEW, "--wait", "0")
    assert (code, errors, output.splitlines()[-1]) == (OK, "", "learners: 4")
    assert len(script.calls) == 1


@pytest.mark.parametrize("lag, told", [("silent", "does not answer the leader yet"), (None, "is not known yet"), (4000, "4000 entries behind")])
def test_add_that_does_not_catch_up_says_why(script, lag, told):
    script.lags = [lag]
    code, output, errors = cluster(script.port, "add", *NEW, "--wait", "1")
    assert code == NO
    assert output.splitlines()[0] == "node 4 is a learner"
    assert told in errors and "not caught up within 1 s" in errors


def test_add_of_a_voter_changes_nothing(script):
    code, output, errors = cluster(script.port, "add", "--id", "3", "--raft", "10.0.0.3:7400", "--http", "10.0.0.3:6632")
    assert (code, errors) == (OK, "")
    assert output.splitlines() == ["node 3 is a voter already", "voters: 1, 2, 3"]


def test_add_notices_that_it_was_removed(script):
    empty = script.membership()
    script.lags = ["silent"]
    script.answers = [(200, {"ok": True, "membership": dict(empty, learners=[4], members=empty["members"] + [{"nodeId": 4, "voter": False}])})]
    code, _, errors = cluster(script.port, "add", *NEW, "--wait", "5")
    assert code == NO and "node 4 was removed meanwhile" in errors


def test_add_as_json_prints_one_answer(script):
    script.lags = [4000, 0]
    code, output, errors = cluster(script.port, "add", *NEW, "--json")
    assert (code, errors) == (OK, "")
    answer = json.loads(output)
    assert answer["membership"]["learners"] == [4] and answer["membership"]["members"][3]["lag"] == 0


def test_a_moment_without_a_leader_does_not_end_a_wait(script):
    script.lags = [4000, 0]
    script.answers = [script.serve("POST", MEMBERSHIP + "/learners", {"id": 4}), (503, {"ok": False, "code": "retry", "error": "no leader"})]
    script.lags = [0]
    code, output, errors = cluster(script.port, "add", *NEW)
    assert (code, errors) == (OK, "") and "has caught up" in output


# ---- promote, remove, address

def test_promote(script):
    script.learners = [4]
    code, output, errors = cluster(script.port, "promote", "4")
    assert (code, errors) == (OK, "")
    assert output.splitlines() == ["node 4 is a voter", "voters: 1, 2, 3, 4"]
    assert script.calls == [("POST", MEMBERSHIP + "/promote", {"ids": [4], "force": False})]


def test_promote_several_by_force(script):
    script.learners = [4, 5, 6]
    code, output, _ = cluster(script.port, "promote", "4", "5", "--force", "--id=4")
    assert (code, output.splitlines()) == (OK, ["nodes 4, 5 are voters", "voters: 1, 2, 3, 4, 5", "learners: 6"])
    assert script.calls == [("POST", MEMBERSHIP + "/promote", {"ids": [4, 5], "force": True})]


def test_remove(script):
    code, output, errors = cluster(script.port, "remove", "3")
    assert (code, errors, output.splitlines()) == (OK, "", ["node 3 is no member any more", "voters: 1, 2"])
    assert cluster(script.port, "remove", "--id", "1", "--force", "--json")[0] == OK
    assert script.calls == [("DELETE", MEMBERSHIP + "/members/3", None), ("DELETE", MEMBERSHIP + "/members/1?force=true", None)]


def test_address(script):
    code, output, errors = cluster(script.port, "address", "--id", "3", "--raft", "[fd00::3]:7400", "--http", "db-3:6632")
    assert (code, errors) == (OK, "")
    assert output.splitlines()[0] == "node 3 is now reached at [fd00::3]:7400 by nodes, at db-3:6632 by clients"
    assert script.calls == [("PUT", MEMBERSHIP + "/members/3", {"raft": "[fd00::3]:7400", "http": "db-3:6632", "id": 3})]


@pytest.mark.parametrize("status, answer_code, told", [
    (409, "in_flight", "another change is under way"), (409, "no_quorum", "bring back those that are down"),
    (409, "last_voter", "add and promote another node first"), (409, "learner_behind", "--force"), (409, "not_a_learner", "queen cluster add"),
    (404, "not_a_member", "queen cluster members"), (409, "address_mismatch", "queen cluster address"), (403, "forbidden", "default tenant"),
    (504, "timeout", "may still come about"), (404, "no_such_route", "alone"),
])
def test_refusals_say_what_to_do(script, status, answer_code, told):
    script.answers = [(status, {"ok": False, "code": answer_code, "error": "the reason"})]
    code, output, errors = cluster(script.port, "promote", "4")
    assert (code, output) == (REFUSED, "")
    assert errors.startswith("queen cluster: refused with %d %s: the reason" % (status, answer_code)) and told in errors
    assert len(script.calls) == 1


def test_no_leader_is_tried_again_and_then_told(script):
    script.answers = [(503, {"ok": False, "code": "leader_unreachable", "error": "the leader did not answer"})] * 2
    code, output, errors = cluster(script.port, "remove", "3", "--retries", "1")
    assert (code, output) == (REFUSED, "")
    assert "ask another node" in errors
    assert [c[0] for c in script.calls] == ["DELETE", "DELETE"]


def test_nobody_there():
    code, output, errors = cluster(free_port(), "members")
    assert (code, output) == (UNREACHABLE, "")
    assert "cannot reach the server" in errors


# ---- the command line

@pytest.mark.parametrize("args", [
    [], ["nonsense"], ["status", "extra"], ["status", "--force"], ["add"], ["add", "--id", "4"], ["add", "--id", "4", "--raft", "10.0.0.4:7400"],
    ["add", "--id", "0", *NEW[2:]], ["add", "--id", "x", *NEW[2:]], ["add", "--id", "4", "--raft", "10.0.0.4", "--http", "h:1"],
    ["add", "--id", "4", "--raft", "h:70000", "--http", "h:1"], ["add", "--id", "4", "--raft", "http://h:7400", "--http", "h:1"],
    ["add", "--id", "4", "--raft", "fd00::4:7400", "--http", "h:1"], ["add", *NEW, "--wait", "-1"], ["promote"], ["promote", "four"],
    ["promote", "--force"], ["remove"], ["remove", "1", "2"], ["remove", "1", "--id", "2"], ["address", "--id", "4", "--raft", "h:1"],
], ids=" ".join)
def test_wrong_command_line(script, args):
    code, output, errors = cluster(script.port, *args)
    assert (code, output) == (USAGE, "")
    assert errors.startswith("queen cluster: ")
    assert script.calls == []


def test_help():
    done = subprocess.run([BINARY, "cluster", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    assert (done.returncode, done.stderr) == (OK, b"")
    assert done.stdout.startswith(b"Usage: queen cluster status")
