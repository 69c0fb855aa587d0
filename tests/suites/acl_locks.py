"""Compares the locks that transactions of users get on files and directories with what the kernel lets these users do.

usage: acl_locks.py MOUNT DIR REFERENCE SEED, as root
In DIR of the mount and in REFERENCE, on a file system of the kernel's own, the same is made: files and directories with owners, modes
and lists at random. A shared lock needs what opening for reading needs there, an exclusive one what opening for writing or
making a name needs.
"""
import os
import random
import sys

import kvfs
from acl import ACCESS, USERS as OWNERS, encode, some_list

USERS = [*OWNERS, (2004, 3004, [3001, 3002])]


def may(path, is_directory, writes):
    if is_directory and writes:
        return os.access(path, os.W_OK, effective_ids=True)
    try:
        os.close(os.open(path, (os.O_WRONLY if writes else os.O_RDONLY) | os.O_NONBLOCK))
        return True
    except PermissionError:
        return False


def gets(store, path, is_exclusive):
    txn = store.transaction(timeout=60)
    try:
        txn.lock_file(path, exclusive=is_exclusive)
        return True
    except PermissionError:
        return False
    finally:
        txn.abort()


def compare(mount, directory, reference, places):
    store = kvfs.connect(mount, deadline=60)
    granted = 0
    for name, is_directory in places:
        for is_exclusive in (False, True):
            expected = may(os.path.join(reference, name), is_directory, is_exclusive)
            got = gets(store, os.path.join(directory, name), is_exclusive)
            if got != expected:
                kind = "exclusive" if is_exclusive else "shared"
                sys.exit(f"user {os.getuid()}, {name}: {kind} lock {got}, the kernel {expected}")
            granted += got
    print(f"# user {os.getuid()}: {granted} of {2 * len(places)} locks granted, as the kernel would")
    sys.stdout.flush()


def make(roots, rng):
    """The same tree in each of the roots; its places."""
    places = []
    for number in range(90):
        is_directory = number % 3 == 0
        inside = rng.choice([name for name, is_directory in places if is_directory and "/" not in name] or [""])
        name = os.path.join(inside if rng.random() < 0.3 else "", f"n{number}")
        uid, gid, mode = rng.choice(OWNERS)[0], rng.choice(OWNERS)[1], rng.randrange(0o1000)
        acl = encode(some_list(rng)) if rng.random() < 0.7 else None
        for root in roots:
            path = os.path.join(root, name)
            if is_directory:
                os.mkdir(path)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            os.chown(path, uid, gid)
            os.chmod(path, mode)
            if acl:
                os.setxattr(path, ACCESS, acl)
        places.append((name, is_directory))
    return places


def main():
    mount, directory, reference = sys.argv[1:4]
    places = make([os.path.join(mount, directory), reference], random.Random(int(sys.argv[4])))
    for uid, gid, groups in USERS:
        child = os.fork()
        if child == 0:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            compare(mount, directory, reference, places)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(1)


main()
