"""How the process is configured: variables, refusals with a reason, what it says at start."""

import os
import re
import subprocess

import pytest

from queen import BINARY, free_port, unique


def run(env, tmp_path, *args):
    """Starts a broker that must not stay up; returns (exit code, output)."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("QUEEN_", "JWT_")) and k not in ("PORT", "HOST")}
    clean.update(env)
    done = subprocess.run([BINARY, "serve", "--data", str(tmp_path / "data"), "--port", str(free_port()), *args], env=clean,
                          cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
    return done.returncode, done.stdout.decode("utf-8", "replace")


@pytest.mark.parametrize("name,value", [
    ("QUEEN_LOG_JSON", "ture"), ("QUEEN_TENANCY_HEADER", "maybe"), ("JWT_ENABLED", "flase"), ("JWT_ENABLED", "true"), ("QUEEN_ENCRYPTION_KEY", "00" * 32), ("QUEEN_RAFT_PEERS", "1=a:1/a:2"), ("QUEEN_RAFT_JOIN", "yes"), ("QUEEN_RAFT_GROUPS", "65"), ("QUEEN_RAFT_REPLICATOR", "raft"), ("QUEEN_KAFKA_EMBEDDED", "on"), ("QUEEN_TENANCY_HEADER", "true"), ("QUEEN_MAX_BODY_BYTES", "64MB"),
    ("QUEEN_MAX_BODY_BYTES", "-5"), ("DEFAULT_TIMEOUT", "30s"), ("QUEEN_RAFT_DISK_HIGH_PCT", "eighty"), ("QUEEN_RAFT_DISK_HIGH_PCT", "101"),
    ("QUEEN_STMT_TIMEOUT_MS", "soon"), ("QUEEN_BIND_ADDR", "127.0.0.1:6632"),
])
def test_misspelt_value_refuses_to_start_and_names_the_variable(tmp_path, name, value):
    code, output = run({name: value}, tmp_path)
    assert code == 1
    assert name in output
    assert not (tmp_path / "data").exists() or os.listdir(tmp_path / "data") == []


def test_misspelt_port_refuses_to_start(tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUEEN_") and k != "HOST"}
    for value in ("66x2", "0x10", "65536", "-1"):
        done = subprocess.run([BINARY, "serve", "--data", str(tmp_path / "data")], env=dict(clean, PORT=value), cwd=tmp_path,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
        assert done.returncode == 1
        assert b"PORT" in done.stdout


@pytest.mark.parametrize("args", [["--no-such-flag"], ["--port", "x"], ["--port"], ["stray"]], ids=str)
def test_wrong_arguments_are_refused(tmp_path, args):
    code, output = run({}, tmp_path, *args)
    assert code == 1
    assert output.strip()


def test_unknown_verb_is_refused(tmp_path):
    done = subprocess.run([BINARY, "sevre"], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    assert done.returncode == 1
    assert done.stderr.strip()


@pytest.mark.parametrize("value", ["true", "TRUE", " yes ", "1", "on", "false", "No", "0", "OFF", ""])
def test_spellings_of_a_boolean(own_broker, value):
    broker = own_broker(env={"QUEEN_LOG_JSON": value})
    assert broker.get("/health").status == 200


def test_effective_configuration_is_printed(own_broker):
    broker = own_broker(env={"QUEEN_MAX_BODY_BYTES": "1234567", "DEFAULT_SUBSCRIPTION_MODE": "all"})
    output = broker.output()
    assert "QUEEN_MAX_BODY_BYTES" in output and "1234567" in output
    assert "DEFAULT_SUBSCRIPTION_MODE" in output
    assert str(broker.port) in output
    assert broker.data_dir in output


def test_says_that_it_listens_on_localhost_only(own_broker):
    broker = own_broker()
    assert "127.0.0.1" in broker.output()
    with open("/proc/net/tcp") as file:
        listening = [line.split()[1] for line in file if " 0A " in line]
    assert "0100007F:%04X" % broker.port in listening
    assert "00000000:%04X" % broker.port not in listening


def test_host_opens_all_addresses(own_broker):
    broker = own_broker(env={"HOST": "0.0.0.0"})
    with open("/proc/net/tcp") as file:
        listening = [line.split()[1] for line in file if " 0A " in line]
    assert "00000000:%04X" % broker.port in listening


def test_port_and_directory_from_the_environment(tmp_path, own_broker):
    broker = own_broker(start=False)
    broker.port = free_port()
    broker.env = {"PORT": str(broker.port), "QUEEN_RAFT_DIR": str(tmp_path / "elsewhere")}
    broker.command = lambda: [broker.binary, "serve"]
    broker.start()
    broker.push_ids(unique(), ["a"])
    assert os.listdir(tmp_path / "elsewhere")


def test_taken_port_is_reported(own_broker, tmp_path):
    broker = own_broker()
    second = subprocess.run([BINARY, "serve", "--data", str(tmp_path / "data"), "--port", str(broker.port)], cwd=tmp_path,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
    assert second.returncode == 1
    assert str(broker.port).encode() in second.stdout
    assert broker.get("/health").status == 200


def test_data_directory_in_use_is_refused(own_broker, tmp_path):
    broker = own_broker()
    broker.push_ids("q", ["a"])
    second = subprocess.run([BINARY, "serve", "--data", broker.data_dir, "--port", str(free_port())], cwd=tmp_path,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
    assert second.returncode in (1, 2)
    assert broker.data_dir.encode() in second.stdout
    assert broker.push_ids("q", ["b"])[0]["offset"] == 1


def test_version(tmp_path):
    for verb in ("version", "--version"):
        done = subprocess.run([BINARY, verb], cwd=tmp_path, stdout=subprocess.PIPE, timeout=20)
        assert done.returncode == 0
        assert re.match(rb"^queen \d+\.\d+\.\d+", done.stdout)
