"""Puts a directory into a state that a power cut could have left.

A program ran under libq_faults.so with QFAULT_DIR=root and QFAULT_STATE=state and is dead now (SIGKILL). What it
wrote and did not make durable is still in the files, together with the records of how to take it back (undo.c,
names.c). power_cut() takes some or all of it back, by a seeded choice:

  contents  per file one of: every unsynced write is lost; the first few survive and the next one is torn; each 512-byte
            sector of each write survives or not on its own; all survive
  sizes     follow their write: a file grows only if a write that grew it survived, and lost sectors inside read as zeros
  names     per cut one of: none survive; the first few survive; all survive. In order, as on a journalling file system: an
            unsynced rename does not outlive an unsynced create that came before it

From the command line:  powercut.py ROOT STATE [SEED [MODE]]   MODE is lose, prefix, torn, keep or mixed (default)
"""
import os
import random
import shutil
import struct
import sys

SECTOR = 512
MAGIC = 0x31304F444E554651
KEEP, LOST, ZERO = 1, 2, 4
RECORD = struct.Struct("<IIQQQQ")
MODES = ("lose", "prefix", "torn", "keep")


class Record:
    __slots__ = ("kind", "flags", "offset", "len", "size", "data")


def read_records(path):
    """The live undo records of one file, oldest first."""
    with open(path, "rb") as f:
        blob = f.read()
    if len(blob) < 16:
        return []
    magic, at = struct.unpack_from("<QQ", blob)
    if (magic, at) == (0, 0):
        return []  # killed before the first header
    if magic != MAGIC:
        raise ValueError(f"{path}: not an undo file")
    records = []
    while at + RECORD.size <= len(blob):
        record = Record()
        record.kind, record.flags, record.offset, record.len, record.size, saved = RECORD.unpack_from(blob, at)
        at += RECORD.size
        if at + saved > len(blob):
            break
        if record.flags & ZERO:
            record.data = bytes(max(0, min(record.len, record.size - record.offset)))
        else:
            record.data = blob[at : at + saved]
        at += saved
        records.append(record)
    return records


def sector_pieces(record):
    """(sector number, begin, end) of the record's range, cut at sector borders."""
    begin, end = record.offset, record.offset + record.len
    while begin < end:
        stop = min(end, (begin // SECTOR + 1) * SECTOR)
        yield begin // SECTOR, begin, stop
        begin = stop


def survives(mode, index, cut_index, rng):
    """Whether a sector of record `index` is on the disk although nobody synced it."""
    if mode == "lose":
        return False
    if mode == "keep" or (mode == "prefix" and index < cut_index):
        return True
    if mode == "prefix" and index > cut_index:
        return False
    return rng.random() < 0.5


def undo_file(path, records, mode, rng):
    """Takes back what is not durable. Returns (bytes taken back, bytes of undurable writes that survive)."""
    cut_index = rng.randrange(len(records) + 1)
    decided = set()
    lost = kept = 0
    size_decided = False
    with open(path, "r+b", buffering=0) as f:
        size = os.fstat(f.fileno()).st_size
        for index in range(len(records) - 1, -1, -1):
            record = records[index]
            grew = record.offset + record.len > record.size
            resized = record.kind == 2 or grew
            if record.flags & KEEP:
                decided.update(range(record.offset // SECTOR, (record.offset + record.len - 1) // SECTOR + 1))
                size_decided |= resized
                continue
            any_kept = False
            sector_mode = "lose" if record.flags & LOST else mode
            if record.kind == 2:
                # a truncation happens whole or not at all
                if not size_decided:
                    if survives(sector_mode, index, cut_index, rng):
                        size_decided = True
                    else:
                        size = record.size
                        if record.data:
                            os.pwrite(f.fileno(), record.data, record.offset)
                            lost += len(record.data)
                continue
            run_begin = run_end = None
            for sector, begin, end in sector_pieces(record):
                if sector in decided:
                    take_back = False
                elif survives(sector_mode, index, cut_index, rng):
                    decided.add(sector)
                    kept += end - begin
                    any_kept = True
                    take_back = False
                else:
                    take_back = True
                if take_back:
                    lost += end - begin
                    if run_end == begin:
                        run_end = end
                    else:
                        restore(f.fileno(), record, run_begin, run_end)
                        run_begin, run_end = begin, end
            restore(f.fileno(), record, run_begin, run_end)
            if resized and not size_decided:
                if any_kept:
                    size_decided = True
                else:
                    size = record.size
        os.ftruncate(f.fileno(), size)
    return lost, kept


def restore(fd, record, begin, end):
    if begin is None:
        return
    old = record.data[begin - record.offset : end - record.offset]
    os.pwrite(fd, old + bytes(end - begin - len(old)), begin)


class Step:
    pass


def read_steps(path):
    """The live name changes, oldest first."""
    steps = {}
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:
            lines = f.read().split("\n")
    except FileNotFoundError:
        return []
    for line in lines[:-1]:
        field = line.split("\t")
        if field[0] == "I":
            step = Step()
            step.seq, step.kind, step.inode, step.grave = int(field[1]), field[2], int(field[5]), field[6] == "1"
            step.directories = (int(field[3]), int(field[4]))
            step.path1, step.path2 = field[7], field[8]
            step.done = False
            steps[step.seq] = step
        elif field[0] == "D":
            steps[int(field[1])].done = True
            if int(field[2]):
                steps[int(field[1])].inode = int(field[2])
        elif field[0] == "S":
            mark, directory = int(field[1]), int(field[2])
            steps = {n: s for n, s in steps.items() if n > mark or (directory and directory not in s.directories)}
        else:
            steps.pop(int(field[1]), None)
    return [steps[seq] for seq in sorted(steps)]


def inode_of(path):
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


def step_happened(step):
    """A kill between intent and result leaves it open; the disk tells."""
    if step.done:
        return True
    if step.kind in ("create", "mkdir", "link"):
        step.inode = inode_of(step.path1)
        return step.inode is not None
    if step.kind == "rename":
        return inode_of(step.path2) == step.inode
    return inode_of(step.path1) != step.inode


def undo_step(step, grave):
    """Takes one name change back. One whose name has moved on durably since is left alone."""
    buried = os.path.join(grave, str(step.seq))
    if step.kind in ("create", "link", "mkdir"):
        if inode_of(step.path1) != step.inode:
            return
        if step.kind == "mkdir":
            shutil.rmtree(step.path1)
        else:
            os.unlink(step.path1)
    elif step.kind == "rename":
        if inode_of(step.path2) != step.inode:
            return
        os.rename(step.path2, step.path1)
        if step.grave:
            os.link(buried, step.path2)
    elif step.kind == "unlink":
        os.link(buried, step.path1)
    elif step.kind == "rmdir":
        os.mkdir(step.path1)
    else:
        raise ValueError(step.kind)


def undo_names(state, mode, rng):
    """Returns (steps taken back, undurable steps that survive)."""
    steps = [s for s in read_steps(os.path.join(state, "names")) if step_happened(s)]
    kept = {"lose": 0, "keep": len(steps)}.get(mode, rng.randrange(len(steps) + 1))
    for step in reversed(steps[kept:]):
        undo_step(step, os.path.join(state, "grave"))
    return len(steps) - kept, kept


def files_by_inode(*tops):
    found = {}
    for top in tops:
        for directory, _, names in os.walk(top):
            for name in names:
                path = os.path.join(directory, name)
                if not os.path.islink(path):
                    found[os.lstat(path).st_ino] = path
    return found


def clear(state):
    """Everything is durable now."""
    for name in ("undo", "grave"):
        shutil.rmtree(os.path.join(state, name), ignore_errors=True)
    for name in ("names",):
        try:
            os.unlink(os.path.join(state, name))
        except FileNotFoundError:
            pass


def power_cut(root, state, seed, mode="mixed"):
    """Applies one power cut. The program must be dead. Returns what was lost and what survived."""
    rng = random.Random(seed)
    report = {"seed": seed, "files": [], "names_lost": 0, "names_kept": 0, "bytes_lost": 0, "bytes_kept": 0}
    undo = os.path.join(state, "undo")
    paths = files_by_inode(root, os.path.join(state, "grave"))
    for name in sorted(os.listdir(undo)) if os.path.isdir(undo) else []:
        path = paths.get(int(name, 16))
        records = read_records(os.path.join(undo, name))
        if path is None or not records:
            continue
        file_mode = rng.choice(MODES) if mode == "mixed" else mode
        lost, kept = undo_file(path, records, file_mode, rng)
        report["bytes_lost"] += lost
        report["bytes_kept"] += kept
        report["files"].append((os.path.relpath(path, root), file_mode, lost, kept))
    name_mode = rng.choice(("lose", "prefix", "keep")) if mode == "mixed" else mode
    report["names_mode"] = name_mode
    report["names_lost"], report["names_kept"] = undo_names(state, name_mode, rng)
    clear(state)
    return report


def stats(state):
    """Counters of the library: proof that it saw the program's work."""
    keys = ("writes", "write_bytes", "syncs", "dir_syncs", "name_ops", "faults")
    try:
        with open(os.path.join(state, "stats"), "rb") as f:
            return dict(zip(keys, struct.unpack("<6Q", f.read(48))))
    except FileNotFoundError:
        return dict.fromkeys(keys, 0)


def main(argv):
    if len(argv) < 3:
        sys.exit(__doc__)
    seed = int(argv[3]) if len(argv) > 3 else random.randrange(1 << 32)
    print(power_cut(argv[1], argv[2], seed, argv[4] if len(argv) > 4 else "mixed"))


if __name__ == "__main__":
    main(sys.argv)
