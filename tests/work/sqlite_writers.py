#!/usr/bin/env python3
"""SQLite in WAL mode under concurrent processes: transfers between accounts, readers that add them up.

usage: sqlite_writers.py DIR [SECONDS]

Writers move money between two accounts and note it in a ledger, in one transaction; readers check in each
snapshot that the sum is what it was. At the end: integrity_check, the sum, and a ledger that explains every
balance.
"""

import multiprocessing
import os
import random
import sqlite3
import sys
import time

ACCOUNTS = 200
BALANCE = 1000
WRITERS = 4
READERS = 2


def connect(path):
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("pragma synchronous = full")
    return db


def write(path, worker, until, done):
    db = connect(path)
    rng = random.Random(worker)
    count = 0
    while time.monotonic() < until:
        a, b = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randrange(50)
        db.execute("begin immediate")
        db.execute("update accounts set balance = balance - ? where id = ?", (amount, a))
        db.execute("update accounts set balance = balance + ? where id = ?", (amount, b))
        db.execute(
            "insert into ledger (worker, source, target, amount, note) values (?, ?, ?, ?, ?)",
            (worker, a, b, amount, "x" * rng.randrange(300)),
        )
        if rng.randrange(20) == 0:
            db.execute("rollback")
        else:
            db.execute("commit")
            count += 1
        if rng.randrange(200) == 0:
            db.execute("pragma wal_checkpoint(truncate)").fetchall()
    db.close()
    done.put(("writes", count))


def read(path, until, done):
    db = connect(path)
    count = 0
    while time.monotonic() < until:
        (total,) = db.execute("select sum(balance) from accounts").fetchone()
        if total != ACCOUNTS * BALANCE:
            done.put(("wrong", f"a reader saw {total}"))
            return
        count += 1
    db.close()
    done.put(("reads", count))


def main(top, seconds):
    path = os.path.join(top, "bank.db")
    db = connect(path)
    (mode,) = db.execute("pragma journal_mode = wal").fetchone()
    if mode != "wal":
        return f"the journal mode is {mode}: shared memory does not work here"
    db.execute("create table accounts (id integer primary key, balance integer not null)")
    db.execute(
        "create table ledger (id integer primary key, worker int, source int, target int, amount int, note text)"
    )
    db.executemany("insert into accounts values (?, ?)", [(i, BALANCE) for i in range(ACCOUNTS)])
    db.close()

    done = multiprocessing.Queue()
    until = time.monotonic() + seconds
    workers = [multiprocessing.Process(target=write, args=(path, w, until, done)) for w in range(WRITERS)]
    workers += [multiprocessing.Process(target=read, args=(path, until, done)) for _ in range(READERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sums = {"writes": 0, "reads": 0}
    for worker in workers:
        if worker.exitcode != 0:
            return f"a process ended with {worker.exitcode}"
        kind, value = done.get()
        if kind == "wrong":
            return value
        sums[kind] += value

    db = connect(path)
    (verdict,) = db.execute("pragma integrity_check").fetchone()
    if verdict != "ok":
        return f"integrity_check: {verdict}"
    (entries,) = db.execute("select count(*) from ledger").fetchone()
    if entries != sums["writes"]:
        return f"{sums['writes']} commits, but {entries} in the ledger"
    (unexplained,) = db.execute(
        """select count(*) from accounts a where balance != ? - (select coalesce(sum(amount), 0) from ledger
           where source = a.id) + (select coalesce(sum(amount), 0) from ledger where target = a.id)""",
        (BALANCE,),
    ).fetchone()
    if unexplained:
        return f"{unexplained} balances that the ledger does not explain"
    print(f"# {sums['writes']} transactions, {sums['reads']} consistent reads in {seconds} s")
    return None


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5.0))
