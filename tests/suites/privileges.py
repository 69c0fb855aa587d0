"""Set-id bits and file capabilities on two trees, by the same calls in the same order: what each call says and leaves.

usage: privileges.py TREE REFERENCE SEED COUNT [writeback]

Each of COUNT rounds makes one file on both, with a random mode and perhaps capabilities, and lets random users change its
content in random ways; after every call the error, the mode, the capabilities and the size must be equal. TREE may be the same
tree under several names, separated by commas: a round takes one of them.
"""

import ctypes
import errno
import json
import mmap
import os
import random
import stat
import struct
import sys

OWNER, OTHER, MEMBER = 2001, 2002, 2003
GROUP = 3001
# Name: user, group, supplementary groups, keeps capabilities but for CAP_FSETID.
USERS = {
    "owner": (OWNER, 100, [], None),
    "owner in the group": (OWNER, 100, [GROUP], None),
    "member": (MEMBER, 100, [GROUP], None),
    "member by its first group": (MEMBER, GROUP, [], None),
    "other": (OTHER, 100, [4, 24], None),
    "root": (0, 0, [], []),
    "root without CAP_FSETID": (0, 0, [], [4]),
    "root in the group without CAP_FSETID": (0, 0, [GROUP], [4]),
    "user with CAP_FSETID": (OTHER, 100, [], "fsetid"),
}
MODES = [0o4755, 0o2755, 0o2745, 0o6777, 0o2767, 0o6767, 0o4775, 0o6765, 0o4722, 0o2666, 0o777, 0o6755]
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)  # cap_net_bind_service=ep
CAP_FSETID, CAP_SETUID, CAP_SETGID = 4, 7, 6
# Owner, a user, group, mask, others; and a list that says no more than a mode does.
NONE = 0xFFFFFFFF
LIST = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry) for entry in [(1, 7, NONE), (2, 6, OTHER), (4, 5, NONE), (16, 7, NONE), (32, 4, NONE)]
)
MINIMAL = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in [(1, 6, NONE), (4, 6, NONE), (32, 6, NONE)])

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_KEEPCAPS, PR_CAPBSET_DROP = 8, 24
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def set_capabilities(bits):
    header = struct.pack("<Ii", 0x20080522, 0)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    data = struct.pack("<6I", low, low, 0, high, high, 0)
    check(libc.capset(header, data))


def become(user):
    uid, gid, groups, kept = USERS[user]
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    if kept == "fsetid":
        check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
        os.setresuid(uid, uid, uid)
        set_capabilities(1 << CAP_FSETID)
        return
    os.setresuid(uid, uid, uid)
    if kept:
        set_capabilities(((1 << 41) - 1) & ~(1 << CAP_FSETID))


def fallocate(fd, mode, offset, length):
    check(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def direct(path, offset):
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    page.write(b"d" * 4096)
    os.pwritev(fd, [page], offset)
    os.close(fd)


def opened(path, flags, act):
    fd = os.open(path, flags)
    try:
        act(fd)
    finally:
        os.close(fd)


def mapped(fd):
    with mmap.mmap(fd, 0) as pages:
        pages[0:1] = b"m"
        pages.flush()


def copied(fd, path, length):
    source = os.open(os.path.join(os.path.dirname(path), "source"), os.O_RDONLY)
    try:
        os.copy_file_range(source, fd, length)
    finally:
        os.close(source)


def sent(fd, path):
    source = os.open(os.path.join(os.path.dirname(path), "source"), os.O_RDONLY)
    try:
        os.sendfile(fd, source, 0, 100)
    finally:
        os.close(source)


# How content, size or owner change.
CALLS = {
    "write": lambda path: opened(path, os.O_WRONLY, lambda fd: os.write(fd, b"w" * 100)),
    "write of nothing": lambda path: opened(path, os.O_WRONLY, lambda fd: os.write(fd, b"")),
    "append": lambda path: opened(path, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b"a" * 5000)),
    "pwritev far out": lambda path: opened(path, os.O_WRONLY, lambda fd: os.pwritev(fd, [b"p", b"q"], 70000)),
    "direct write": lambda path: direct(path, 4096),
    "O_TRUNC": lambda path: opened(path, os.O_WRONLY | os.O_TRUNC, lambda fd: None),
    "truncate": lambda path: os.truncate(path, 3),
    "truncate to the same size": lambda path: os.truncate(path, os.stat(path).st_size),
    "ftruncate to more": lambda path: opened(path, os.O_WRONLY, lambda fd: os.ftruncate(fd, 9000)),
    "fallocate": lambda path: opened(path, os.O_WRONLY, lambda fd: fallocate(fd, 0, 1000, 9000)),
    "fallocate, size kept": lambda path: opened(path, os.O_WRONLY, lambda fd: fallocate(fd, FALLOC_KEEP_SIZE, 0, 9000)),
    "punch": lambda path: opened(path, os.O_WRONLY, lambda fd: fallocate(fd, FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, 1, 9)),
    "zero range": lambda path: opened(path, os.O_WRONLY, lambda fd: fallocate(fd, FALLOC_ZERO_RANGE, 0, 9000)),
    "zero range, size kept": lambda path: opened(
        path, os.O_WRONLY, lambda fd: fallocate(fd, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, 0, 9000)
    ),
    "copy_file_range": lambda path: opened(path, os.O_WRONLY, lambda fd: copied(fd, path, 5000)),
    "sendfile": lambda path: opened(path, os.O_WRONLY, lambda fd: sent(fd, path)),
    "mapping": lambda path: opened(path, os.O_RDWR, mapped),
    "chown to itself": lambda path: os.chown(path, OWNER, -1),
    "chown of the group": lambda path: os.chown(path, -1, 100),
    "access-control list": lambda path: os.setxattr(path, "system.posix_acl_access", LIST),
    "minimal access-control list": lambda path: os.setxattr(path, "system.posix_acl_access", MINIMAL),
    "no access-control list": lambda path: os.removexattr(path, "system.posix_acl_access"),
    "user attribute": lambda path: os.setxattr(path, "user.more", b"1"),
    "capability taken away": lambda path: os.removexattr(path, "security.capability"),
    "chmod to what it is": lambda path: os.chmod(path, stat.S_IMODE(os.stat(path).st_mode)),
}


def outcome(act):
    try:
        act()
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def by(user, call, path):
    """The outcome of the call in a process of the user's own."""
    back, out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become(user)
            os.write(out, outcome(lambda: CALLS[call](path)).encode())
        except BaseException as error:  # told, not shown
            os.write(out, repr(error).encode())
        os._exit(0)
    os.close(out)
    with os.fdopen(back) as told:
        text = told.read()
    os.waitpid(child, 0)
    return text


def state(path):
    found = os.stat(path)
    capable = "security.capability" in os.listxattr(path)
    return {"mode": oct(stat.S_IMODE(found.st_mode)), "capable": capable, "size": found.st_size, "uid": found.st_uid}


def make(tree, name, mode, size, capable, tagged):
    path = os.path.join(tree, name)
    with open(path, "wb") as file:
        file.write(b"x" * size)
    os.chown(path, OWNER, GROUP)
    if tagged:
        os.setxattr(path, "user.tag", b"1")
    os.chmod(path, mode)
    if capable:
        os.setxattr(path, "security.capability", CAPABILITY)
    return path


def main():
    trees, reference, seed, count = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(seed)
    for tree in [*trees, reference]:
        source = os.path.join(tree, "source")
        if not os.path.exists(source):
            with open(source, "wb") as file:
                file.write(b"s" * 6000)
    calls = compared = 0
    tally = {}
    for number in range(count):
        mode, size = chance.choice(MODES), chance.choice([0, 1, 100, 5000, 20000])
        capable, tagged = chance.random() < 0.5, chance.random() < 0.5
        tree = chance.choice(trees)
        name = f"file-{seed}-{number}"
        paths = [make(at, name, mode, size, capable, tagged) for at in (tree, reference)]
        history = [f"mode {mode:o}, {size} bytes, capable {capable}, in {tree}"]
        for _ in range(chance.randrange(1, 5)):
            user, call = chance.choice(list(USERS)), chance.choice(list(CALLS))
            results = [by(user, call, path) for path in paths]
            states = [state(path) for path in paths]
            history.append(f"{call} by {user}: {results[0]} {json.dumps(states[0])}")
            calls += 1
            tally[call] = tally.get(call, 0) + (results[0] == "ok")
            if results[0] != results[1] or states[0] != states[1]:
                print("\n".join(history))
                print(f"but the reference: {results[1]} {json.dumps(states[1])}")
                sys.exit(1)
            compared += 1
            if chance.random() < 0.5:  # lent again
                for path in paths:
                    os.chmod(path, mode)
                    if capable:
                        os.setxattr(path, "security.capability", CAPABILITY)
        for path in paths:
            os.unlink(path)
    # Few find any to take away.
    never = [call for call in CALLS if not tally.get(call) and call != "capability taken away"]
    if count >= 200 and never:
        sys.exit(f"never succeeded: {never}")
    print(f"# {compared} calls by {len(USERS)} users were answered alike and left the same (seed {seed})")


main()
