"""The README's quick start is true: each of its commands is run, and must answer what the README shows.

A ```console block holds commands ("$ " begins one, it goes on while the shell needs more lines) and what they print.
Ids and times differ from run to run. Ids are compared by their order of first appearance, so that an answer that
repeats an earlier id must repeat it here too; times are compared as times.

    QUEEN_BIN=... python3 test_readme.py --update    writes what the commands print now into the README
"""

import os
import re
import subprocess
import sys

import pytest

from queen import ROOT, Broker

README = os.path.join(ROOT, "README.md")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.S | re.M)
KILL = "kill -9 $(pidof queen)"
ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
END = "--end-of-command--"


def goes_on(command):
    """Does the shell need more lines?"""
    if command.rstrip().endswith("&"):
        return True
    return subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode != 0


def steps_of(block):
    """[command, expected output] pairs of one block."""
    steps = []
    lines = block.splitlines()
    at = 0
    while at < len(lines):
        if not lines[at].startswith("$ "):
            assert steps, "output before the first command: " + lines[at]
            steps[-1][1] += lines[at] + "\n"
            at += 1
            continue
        command = lines[at][2:]
        at += 1
        while goes_on(command):
            assert at < len(lines), "unfinished: " + command
            command += "\n" + lines[at]
            at += 1
        steps.append([command, ""])
    return steps


class Session:
    """One shell, as a reader of the README has it."""

    def __init__(self, broker):
        self.broker = broker
        bin_dir = os.path.join(broker.home, "bin")
        os.makedirs(bin_dir, exist_ok=True)
        os.symlink(broker.binary, os.path.join(bin_dir, "queen"))
        env = dict(os.environ, PATH=bin_dir + ":" + os.environ["PATH"],
                   QUEEN_SERVER="http://127.0.0.1:%d" % broker.port)
        self.shell = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      cwd=broker.home, env=env)

    def run(self, command):
        if command.startswith(KILL):
            self.broker.restart("kill")
            return ""
        command = command.replace("localhost:6632", "127.0.0.1:%d" % self.broker.port)
        self.shell.stdin.write(("%s\nprintf '\\n%%s\\n' '%s'\n" % (command, END)).encode())
        self.shell.stdin.flush()
        output = b""
        while not output.endswith(("\n%s\n" % END).encode()):
            line = self.shell.stdout.readline()
            assert line, "the shell ended after: " + command
            output += line
        text = output.decode()[:-len(END) - 2]
        return text if text.endswith("\n") or not text else text + "\n"

    def close(self):
        self.shell.stdin.close()
        self.shell.wait(10)
        self.shell.stdout.close()


class Names:
    """Replaces ids by their order of appearance."""

    def __init__(self):
        self.seen = {}

    def plain(self, text):
        text = ID.sub(lambda m: "<id %d>" % self.seen.setdefault(m.group(), len(self.seen) + 1), text)
        return TIME.sub("<time>", text)


def read_readme():
    with open(README, encoding="utf-8") as file:
        return file.read()


@pytest.mark.seconds(5)
def test_quick_start_prints_what_the_readme_shows(own_broker):
    blocks = [steps_of(m.group(1)) for m in BLOCK.finditer(read_readme())]
    assert sum(len(steps) for steps in blocks) >= 20
    session = Session(own_broker())
    expected_names, names = Names(), Names()
    try:
        for command, expected in (step for steps in blocks for step in steps):
            output = session.run(command)
            assert names.plain(output) == expected_names.plain(expected), command
    finally:
        session.close()


def configuration_table():
    """{variable: default as the README has it}"""
    defaults = {}
    for line in read_readme().split("## Configuration")[1].split("## ")[0].splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`([A-Z_]+)`", cells[0])
        values = [value.strip(" `") for value in cells[1].split(",")] if names else []
        defaults.update(zip(names, values if len(values) == len(names) else [cells[1].strip("`")] * len(names)))
    return defaults


def test_the_configuration_table_names_every_variable_with_its_default(own_broker):
    table = configuration_table()
    printed = dict(re.findall(r"config: ([A-Z_]+)=(.*)", own_broker().output()))
    assert len(printed) >= 15
    assert set(printed) <= set(table)
    fixed = {name: value for name, value in table.items() if re.fullmatch(r"\d+|true|false|new|[\d.]+", value)}
    assert len(fixed) >= 12
    del fixed["PORT"]
    # What the broker does not print is not checked: names that are read for the same setting.
    assert {name: value for name, value in fixed.items() if name in printed} == {name: printed[name] for name in fixed if name in printed}


@pytest.mark.parametrize("shown, printed, same", [
    ("a 01900000-0000-7000-8000-000000000001 2026-01-01T00:00:00.000Z", "a 01900000-0000-7000-8000-0000000000ff 2027-01-01T00:00:00.123Z", True),
    ("01900000-0000-7000-8000-000000000001 01900000-0000-7000-8000-000000000001",
     "01900000-0000-7000-8000-000000000001 01900000-0000-7000-8000-000000000002", False),
    ("[1,2]", "[1,3]", False),
])
def test_the_comparison_tells_a_repeated_id_from_a_new_one(shown, printed, same):
    assert (Names().plain(shown) == Names().plain(printed)) is same


def update():
    broker = Broker().start()
    session = Session(broker)
    try:
        def rewritten(match):
            out = ""
            for command, _ in steps_of(match.group(1)):
                out += "$ " + command + "\n" + session.run(command)
            return "```console\n" + out + "```"
        text = BLOCK.sub(rewritten, read_readme())
    finally:
        session.close()
        broker.close()
    with open(README, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    assert sys.argv[1:] == ["--update"], __doc__
    update()
