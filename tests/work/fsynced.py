#!/usr/bin/env python3
"""Writes files whose loss can be detected, and checks what is left of them after a crash.

usage: fsynced.py write DIR LOG     until killed or the file system dies; LOG is outside of DIR
       fsynced.py verify DIR LOG    prints what is wrong; exit 1 if anything is

Several threads work in DIR, each in a directory of its own:

  synced/     create, write, fsync the file, fsync the directory; then one line in LOG.
              After a crash every file in LOG is there with exactly its content.
  replaced/   the same by writing NAME.new and renaming it over NAME; LOG gets the generation.
              After a crash NAME has a whole generation, at least the one in LOG.
  appended/   fixed-size records appended with fsync; LOG gets their number.
              After a crash that many records are there, none of them torn or foreign.
  ordered/    files 0, 1, 2, … created and written without any fsync; LOG gets each number too.
              After a crash the ones that are left are 0..n without a gap, and only the last may be
              incomplete (its creation and its write are two operations). And because what is left is a prefix
              of the whole history, every one that was in LOG before a synced file was begun is there.
"""

import hashlib
import os
import random
import sys
import threading

RECORD = 64


def content(name, size):
    """Bytes that only `name` can have."""
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def size_of(name):
    """From empty to more than a block, around the size where inline content ends."""
    return random.Random(name).choice([0, 1, 100, 4000, 4095, 4096, 4097, 5000, 9000, 70000])


def write_file(path, data, sync=True):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        while data:
            data = data[os.write(fd, data) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Log:
    """Lines appended to a file outside of the file system under test."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, *words):
        os.write(self.fd, (" ".join(map(str, words)) + "\n").encode())


def synced(top, log, worker):
    n = 0
    while True:
        name = f"{worker}.{n}"
        log.add("begin", name)
        write_file(f"{top}/synced/{name}", content(name, size_of(name)))
        sync_dir(f"{top}/synced")
        log.add("synced", name)
        n += 1


def replaced(top, log, worker):
    n = 0
    while True:
        path = f"{top}/replaced/{worker}"
        write_file(path + ".new", content(f"{worker}.{n}", size_of(f"{worker}.{n}")) + b" %d\n" % n)
        os.rename(path + ".new", path)
        sync_dir(f"{top}/replaced")
        log.add("replaced", worker, n)
        n += 1


def appended(top, log, worker):
    fd = os.open(f"{top}/appended/{worker}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sync_dir(f"{top}/appended")
    n = 0
    while True:
        os.write(fd, content(f"{worker}.{n}", RECORD))
        os.fdatasync(fd)
        n += 1
        log.add("appended", worker, n)


def ordered(top, log, worker):
    os.mkdir(f"{top}/ordered/{worker}")
    n = 0
    while True:
        write_file(f"{top}/ordered/{worker}/{n}", content(f"{worker}.{n}", 700), sync=False)
        log.add("ordered", worker, n)
        n += 1


def write(top, log_path):
    log = Log(log_path)
    for name in ("synced", "replaced", "appended", "ordered"):
        os.mkdir(f"{top}/{name}")
    sync_dir(top)
    threads = []

    def run(work, worker):
        try:
            work(top, log, worker)
        except OSError as e:
            # The file system went away: that is what we are here for.
            print(f"{work.__name__} {worker} ends: {e}", file=sys.stderr)

    for work in (synced, replaced, appended, ordered):
        for worker in ("a", "b"):
            threads.append(threading.Thread(target=run, args=(work, worker)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def verify(top, log_path):
    wrong = []
    counts = {"synced": 0, "replaced": {}, "appended": {}, "ordered": {}}
    before = {}  # synced file -> unsynced files that were complete when it was begun
    least = {}  # worker of ordered/ -> the last file that must be there
    with open(log_path, encoding="ascii") as f:
        for line in f:
            words = line.split()
            if words[0] == "begin":
                before[words[1]] = dict(counts["ordered"])
            elif words[0] == "synced":
                counts["synced"] += 1
                name = words[1]
                for worker, n in before.pop(name).items():
                    least[worker] = max(n, least.get(worker, n))
                try:
                    with open(f"{top}/synced/{name}", "rb") as g:
                        if g.read() != content(name, size_of(name)):
                            wrong.append(f"synced/{name}: other content")
                except OSError as e:
                    wrong.append(f"synced/{name}: {e.strerror}")
            else:
                counts[words[0]][words[1]] = int(words[2])

    for worker, generation in counts["replaced"].items():
        try:
            with open(f"{top}/replaced/{worker}", "rb") as f:
                data = f.read()
            got = int(data.rsplit(b" ", 1)[1])
            name = f"{worker}.{got}"
            if got < generation:
                wrong.append(f"replaced/{worker}: generation {got}, but {generation} was synced")
            if data != content(name, size_of(name)) + b" %d\n" % got:
                wrong.append(f"replaced/{worker}: generation {got} is not whole")
        except (OSError, IndexError, ValueError) as e:
            wrong.append(f"replaced/{worker}: {e}")

    for worker, records in counts["appended"].items():
        try:
            with open(f"{top}/appended/{worker}", "rb") as f:
                data = f.read()
        except OSError as e:
            wrong.append(f"appended/{worker}: {e}")
            continue
        if len(data) < records * RECORD:
            wrong.append(f"appended/{worker}: {len(data) // RECORD} records, but {records} were synced")
        for n in range(len(data) // RECORD):
            if data[n * RECORD : (n + 1) * RECORD] != content(f"{worker}.{n}", RECORD):
                wrong.append(f"appended/{worker}: record {n} is not the one that was written")
                break

    left = {}
    if not os.path.isdir(f"{top}/ordered"):
        wrong.append("ordered: missing, but it was synced before the work began")
    for worker in sorted(os.listdir(f"{top}/ordered")) if os.path.isdir(f"{top}/ordered") else []:
        names = sorted(map(int, os.listdir(f"{top}/ordered/{worker}")))
        left[worker] = len(names)
        if names != list(range(len(names))):
            gaps = sorted(set(range(names[-1])) - set(names))
            wrong.append(f"ordered/{worker}: {names[-1]} is there, {gaps[:5]} are not: no prefix")
        if worker in least and len(names) <= least[worker]:
            wrong.append(f"ordered/{worker}: {len(names)} files, but file {least[worker]} came before a synced one")
        for n in names:
            with open(f"{top}/ordered/{worker}/{n}", "rb") as f:
                data = f.read()
            if data != content(f"{worker}.{n}", 700) and not (data == b"" and n == names[-1]):
                wrong.append(f"ordered/{worker}/{n}: {len(data)} bytes, not what was written")

    print(
        f"# {counts['synced']} synced files, {sum(counts['replaced'].values())} replacements, "
        f"{sum(counts['appended'].values())} synced appends, {sum(left.values())} unsynced files left"
    )
    if counts["synced"] < 10:
        wrong.append("fewer than 10 synced files: the work did not get going")
    for line in wrong[:30]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("write", "verify"):
        sys.exit(__doc__)
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3])
    else:
        sys.exit(verify(sys.argv[2], sys.argv[3]))
