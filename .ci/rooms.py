"""Checks that a file in src/<room>/ includes only files of its own room and of rooms below it.

usage: rooms.py SRC_DIR

The order of the rooms is the one of QUEEN_ROOMS in CMakeLists.txt, lowest first. The engine is
held to more: it includes only base, and nothing of the C library that reads a clock, does I/O,
starts a thread or draws a random number. Prints each breach as file:line and exits with 1.
"""

import os
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
PURE_ROOM = "engine"
PURE_ALLOWED = {"base", "engine"}
IMPURE_HEADERS = {"time.h", "sys/time.h", "pthread.h", "threads.h", "unistd.h", "fcntl.h", "stdio.h", "sys/socket.h",
                  "sys/random.h", "poll.h", "sys/epoll.h", "signal.h", "sys/mman.h", "sys/stat.h", "stdatomic.h"}
# base/ holds doors to the outside world too; the engine keeps them shut.
IMPURE_BASE = {"base/clock.h", "base/logger.h"}


def rooms_in_order(source_dir):
    with open(os.path.join(source_dir, "..", "CMakeLists.txt")) as file:
        found = re.search(r"set\(QUEEN_ROOMS ([^)]*)\)", file.read())
    return found.group(1).split()


def breaches_of(path, name, room, rooms):
    rank = {one: at for at, one in enumerate(rooms)}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, target = match.groups()
            target_room = target.split("/")[0] if "/" in target else None
            where = "%s:%d: " % (name, number)
            if quote == '"' and ".." in target.split("/"):
                yield where + "include by a path from src/, not %s" % target
            elif quote == '"' and target_room in rank and rank[target_room] > rank[room]:
                yield where + "room %s includes %s, a room above it" % (room, target)
            elif room == PURE_ROOM and (target in IMPURE_HEADERS or target in IMPURE_BASE):
                yield where + "the engine is pure, but includes %s" % target
            elif room == PURE_ROOM and quote == '"' and target_room in rank and target_room not in PURE_ALLOWED:
                yield where + "the engine includes only base, but here %s" % target


def main():
    source_dir = sys.argv[1]
    rooms = rooms_in_order(source_dir)
    breaches = []
    for room in sorted(os.listdir(source_dir)):
        folder = os.path.join(source_dir, room)
        if not os.path.isdir(folder):
            continue
        if room not in rooms:
            breaches.append("%s: not a room; QUEEN_ROOMS in CMakeLists.txt names them" % folder)
            continue
        for base, _, names in sorted(os.walk(folder)):
            for name in sorted(names):
                if name.endswith((".c", ".h", ".cc")):
                    path = os.path.join(base, name)
                    breaches.extend(breaches_of(path, path, room, rooms))
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
