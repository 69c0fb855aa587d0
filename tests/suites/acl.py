"""Does the same things with access-control lists in two directories, and says where they come out differently.

usage: acl.py ONE OTHER SEED COUNT
The other directory is on a file system of the kernel's own, which is the reference.
"""
import errno, fcntl, os, random, stat, struct, sys

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, OWNING, GROUP, MASK, OTHERS = 1, 2, 4, 8, 16, 32
NOBODY = 0xFFFFFFFF
IS_ROOT = os.geteuid() == 0
USERS = [(2001, 3001, []), (2002, 3002, [3001]), (2003, 3003, [])]


def encode(entries, version=2):
    return struct.pack("<I", version) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def some_list(rng):
    named = [(USER, rng.randrange(8), uid) for uid, _, _ in USERS if rng.random() < 0.4]
    groups = [(GROUP, rng.randrange(8), gid) for _, gid, _ in USERS if rng.random() < 0.3]
    entries = [(OWNER, rng.randrange(8), NOBODY), *named, (OWNING, rng.randrange(8), NOBODY), *groups]
    if named or groups or rng.random() < 0.2:
        entries.append((MASK, rng.randrange(8), NOBODY))
    return entries + [(OTHERS, rng.randrange(8), NOBODY)]


def some_junk(rng):
    value = encode(some_list(rng), rng.choice([0, 1, 2, 2, 2, 3]))
    how = rng.randrange(5)
    if how == 0:
        return value[: rng.randrange(len(value) + 1)]
    if how == 1:
        at = rng.randrange(len(value))
        return value[:at] + bytes([rng.randrange(256)]) + value[at + 1 :]
    if how == 2:
        return encode(rng.sample(some_list(rng), 3))
    return value if how == 3 else b""


def tried(work, *args, **more):
    try:
        return work(*args, **more)
    except OSError as error:
        return errno.errorcode[error.errno]


def create(path, mode, mask):
    os.umask(mask)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def tmpfile(directory, path, mode, mask):
    os.umask(mask)
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, mode)
    os.link(f"/proc/self/fd/{fd}", path, follow_symlinks=True)
    os.close(fd)


def masked(work, mask, *args):
    os.umask(mask)
    work(*args)


def get(path, name):
    value = tried(os.getxattr, path, name, follow_symlinks=False)
    return value if isinstance(value, str) else value.hex()


def look(path):
    found = os.lstat(path)
    names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("system.posix")]
    return oct(found.st_mode), found.st_uid, found.st_gid, get(path, ACCESS), get(path, DEFAULT), names


def walk(root):
    yield "."
    for directory, dirs, files in os.walk(root):
        dirs.sort()
        for name in sorted(dirs + files):
            yield os.path.relpath(os.path.join(directory, name), root)


def as_user(user, work):
    """What `work` returns (text) as another user."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        uid, gid, groups = user
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        os.write(write, str(tried(work)).encode())
        os._exit(0)
    os.close(write)
    text = b""
    while part := os.read(read, 65536):
        text += part
    os.close(read)
    os.waitpid(child, 0)
    return text.decode()


def rights(root, paths):
    """What the caller may do with each path."""
    def may(path, flags):
        at = os.path.join(root, path)
        return tried(lambda: os.close(os.open(at, flags | os.O_NOFOLLOW | os.O_NONBLOCK)))
    def rights_of(path):
        at = os.path.join(root, path)
        return may(path, os.O_RDONLY), may(path, os.O_WRONLY), os.access(at, os.X_OK), locks(at)
    return [rights_of(path) for path in paths]


def locks(path):
    """What comes of each of the kernel's locks on a file: those need what the file must be open for."""
    if tried(lambda: stat.S_ISREG(os.lstat(path).st_mode)) is not True:
        return []
    def take(flags, lock, *how):
        fd = os.open(path, flags | os.O_NOFOLLOW)
        try:
            lock(fd, *how)
        finally:
            os.close(fd)
    lease = lambda fd: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    kinds = [(fcntl.flock, fcntl.LOCK_SH), (fcntl.flock, fcntl.LOCK_EX), (fcntl.lockf, fcntl.LOCK_SH), (fcntl.lockf, fcntl.LOCK_EX)]
    opened = [os.O_RDONLY, os.O_WRONLY, os.O_RDWR]
    found = [tried(take, flags, lock, how | fcntl.LOCK_NB) for flags in opened for lock, how in kinds]
    return found + [tried(take, os.O_RDONLY, lease)]


def one_step(rng, number, paths):
    """A change as a function of the directory it happens in, and the path that it makes."""
    path = rng.choice(paths)
    # Others are asked to do some of it.
    user = rng.choice(USERS) if IS_ROOT and rng.random() < 0.3 else None
    mode, mask, new = rng.randrange(0o10000), rng.choice([0, 0o22, 0o77, 0o777]), f"{path}/n{number}"
    value, which = some_list(rng), rng.choice([ACCESS, DEFAULT])
    uid, gid = rng.choice(USERS)[0], rng.choice(USERS)[1]
    at = lambda root, path=path: os.path.join(root, path)
    steps = [
        lambda root: os.chmod(at(root), mode),
        lambda root: os.setxattr(at(root), which, encode(value), follow_symlinks=False),
        lambda root: os.setxattr(at(root), ACCESS, encode(value)),
        lambda root: os.setxattr(at(root), DEFAULT, encode(value)),
        lambda root: os.setxattr(at(root), which, junk),
        lambda root: os.removexattr(at(root), which),
        lambda root: create(at(root, new), mode & 0o7777, mask),
        lambda root: create(at(root, new), mode & 0o777, mask),
        lambda root: masked(os.mkdir, mask, at(root, new), mode & 0o1777),
        lambda root: masked(os.mkdir, mask, at(root, new), mode & 0o777),
        lambda root: masked(os.mkfifo, mask, at(root, new), mode & 0o777),
        lambda root: tmpfile(at(root), at(root, new), mode & 0o777, mask),
        lambda root: os.symlink("elsewhere", at(root, new)),
        lambda root: os.link(at(root), at(root, f"h{number}"), follow_symlinks=False),
    ]
    if IS_ROOT:
        steps.append(lambda root: os.chown(at(root), uid, gid, follow_symlinks=False))
    junk, step = some_junk(rng), rng.choice(steps)
    return (lambda root: as_user(user, lambda: step(root))) if user else (lambda root: str(tried(step, root)))


def main():
    roots, seed, count = sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
    rng = random.Random(seed)
    errors, stepped = set(), 0
    for number in range(count):
        paths = list(walk(roots[1]))
        state = rng.getstate()
        if number % 7 == 0 and len(paths) > 3:
            paths = [path for path in paths if stat.S_ISDIR(os.lstat(os.path.join(roots[1], path)).st_mode)]
        step = one_step(rng, number, paths)
        said = [step(root) for root in roots]
        errors.add(said[1])
        stepped += said[1] == "None"
        seen = [[(path, look(os.path.join(root, path))) for path in walk(root)] for root in roots] if said[0] == said[1] else said
        if seen[0] != seen[1]:
            both = zip(*seen) if said[0] == said[1] else [said]
            differ = [pair for pair in both if pair[0] != pair[1]]
            sys.exit(f"seed {seed}, step {number}: {differ[:3]} (lists {seen if not differ else ''}; {said})")
        if IS_ROOT and number % 20 == 19:
            for user in [*USERS, (2004, 3004, [3001, 3002])]:
                paths = list(walk(roots[1]))
                one, other = (as_user(user, lambda root=root: rights(root, paths)) for root in roots)
                if one != other:
                    pairs = [pair for pair in zip(paths, eval(one), eval(other)) if pair[1] != pair[2]]
                    sys.exit(f"seed {seed}, step {number}: {user} may do other things: {pairs[:3]}")
    print(f"# {stepped} of {count} changes went through, the same ones; errors: {' '.join(sorted(errors - {'None'}))}")


if __name__ == "__main__":
    main()
