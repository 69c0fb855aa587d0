"""What the suite `kernel` asks the kernel for, and the shell has no words for.

usage: kernel.py NAME PATH...; ends with 0 if it went as it should, else with a message.
"""
import ctypes
import errno
import fcntl
import mmap
import os
import random
import struct
import subprocess
import sys
import threading

libc = ctypes.CDLL("libc.so.6", use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.c_void_p
libc.readdir.argtypes = libc.closedir.argtypes = libc.rewinddir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.telldir.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
libc.seekdir.restype = libc.rewinddir.restype = None

AT_FDCWD = -100


def check(truth, what):
    if not truth:
        sys.exit(what)


def fails(call, *arguments):
    """The name of the errno with which it fails."""
    ctypes.set_errno(0)
    if call(*arguments) >= 0:
        return "nothing"
    return errno.errorcode[ctypes.get_errno()]


def entry(stream):
    """The name of the next entry, and its type as getdents tells it."""
    ctypes.set_errno(0)
    found = libc.readdir(stream)
    if not found:
        check(ctypes.get_errno() == 0, f"readdir: {os.strerror(ctypes.get_errno())}")
        return None
    return ctypes.string_at(found + 19).decode(), ctypes.string_at(found + 18, 1)[0]


def telldir(path):
    """Thousands of seeks in one open directory that changes all the time; then from the start."""
    count = 6000
    os.mkdir(path)
    names = [f"file-{number:05}-{'x' * (number % 40)}" for number in range(count)]
    for name in names:
        os.close(os.open(f"{path}/{name}", os.O_CREAT | os.O_WRONLY, 0o644))
    stream = libc.opendir(path.encode())
    listed = []
    while True:
        place = libc.telldir(stream)
        found = entry(stream)
        if found is None:
            break
        if found[0] not in (".", ".."):
            listed.append((place, found[0]))
    check(sorted(name for _, name in listed) == names, "the first listing is not whole")
    rng, gone = random.Random(7), set()
    for turn in range(12000):
        place, name = listed[rng.randrange(count)]
        libc.seekdir(stream, place)
        found = entry(stream)
        # What was made since, in between, is told where the kernel has not kept the listing.
        while found is not None and "-new" in found[0]:
            found = entry(stream)
        # One that has gone since may still be told, from what the kernel has of the listing.
        if name not in gone:
            check(found is not None and found[0] == name, f"{turn}: {found} instead of {name}")
        if turn % 4 == 0 and name not in gone:
            os.unlink(f"{path}/{name}")
            gone.add(name)
        if turn % 5 == 0:
            os.close(os.open(f"{path}/file-{rng.randrange(count):05}-new{turn}", os.O_CREAT | os.O_WRONLY, 0o644))
    libc.rewinddir(stream)
    again = set()
    while (found := entry(stream)) is not None:
        check(found[0] not in again, f"{found[0]} is listed twice")
        again.add(found[0])
    check(again == set(os.listdir(path)) | {".", ".."}, "the listing after rewinddir is not what is there")
    libc.closedir(stream)
    print(f"# {len(gone)} of {count} entries gone, 12000 seeks")


def types(path):
    """getdents tells the type of each entry."""
    os.mkdir(path)
    os.mkdir(f"{path}/dir")
    os.mkfifo(f"{path}/fifo")
    os.symlink("x", f"{path}/link")
    os.close(os.open(f"{path}/file", os.O_CREAT | os.O_WRONLY))
    os.mknod(f"{path}/whiteout", 0o020000, 0)
    stream, found = libc.opendir(path.encode()), {}
    while (next_entry := entry(stream)) is not None:
        found[next_entry[0]] = next_entry[1]
    expected = {".": 4, "..": 4, "dir": 4, "fifo": 1, "link": 10, "file": 8, "whiteout": 2}
    check(found == expected, f"{found}")


def handles(path):
    """No handle is given out that could not be opened later."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    handle, mount = ctypes.create_string_buffer(struct.pack("II", 128, 0) + b"\0" * 128), ctypes.c_int()
    said = fails(libc.name_to_handle_at, AT_FDCWD, path.encode(), handle, ctypes.byref(mount), 0)
    check(said == "ENOTSUP", f"name_to_handle_at fails with {said}")
    # A number to tell files apart by (fanotify, and file managers) is another matter.
    said = fails(libc.name_to_handle_at, AT_FDCWD, path.encode(), handle, ctypes.byref(mount), 0x200)
    check(said == "nothing", f"AT_HANDLE_FID fails with {said}")


def whiteout(path):
    """RENAME_WHITEOUT leaves a device 0:0, with and without RENAME_NOREPLACE."""
    os.mkdir(path)
    rename = lambda old, new, flags: fails(libc.renameat2, AT_FDCWD, f"{path}/{old}".encode(), AT_FDCWD, f"{path}/{new}".encode(), flags)
    for name in "abc":
        with open(f"{path}/{name}", "w") as file:
            file.write(name)
    check(rename("a", "moved", 4) == "nothing", "not renamed")
    check(rename("b", "moved", 4) == "nothing", "not renamed over another file")
    check(rename("c", "moved", 5) == "EEXIST", "RENAME_NOREPLACE is ignored")
    check(rename("c", "new", 5) == "nothing", "not renamed where nothing is")
    for name in "abc":
        status = os.lstat(f"{path}/{name}")
        check((status.st_mode, status.st_rdev) == (0o020000, 0), f"{name} is no whiteout: {status}")
    check(open(f"{path}/moved").read() == "b" and open(f"{path}/new").read() == "c", "wrong content")
    check(sorted(os.listdir(path)) == ["a", "b", "c", "moved", "new"], "wrong names")


class Iocb(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_uint32), ("opcode", ctypes.c_uint16),
                ("reqprio", ctypes.c_int16), ("fd", ctypes.c_uint32), ("buf", ctypes.c_uint64), ("nbytes", ctypes.c_uint64),
                ("offset", ctypes.c_int64), ("reserved2", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("resfd", ctypes.c_uint32)]


def aio(path):
    """Asynchronous direct writes beside buffered reads: what has been written is what is read from then on."""
    page, pages, rounds = 4096, 16, 400
    setup, destroy, submit, events = 206, 207, 209, 208
    with open(path, "wb") as file:
        file.write(b"\0" * page * pages)
    direct, buffered = os.open(path, os.O_RDWR | os.O_DIRECT), os.open(path, os.O_RDONLY)
    ended = threading.Event()

    def read_on():
        while not ended.is_set():
            os.pread(buffered, page * pages, 0)

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    context = ctypes.c_ulong(0)
    check(libc.syscall(setup, pages, ctypes.byref(context)) == 0, "no asynchronous I/O")
    space = mmap.mmap(-1, page * pages)
    address = ctypes.addressof(ctypes.c_char.from_buffer(space))
    stale = 0
    for turn in range(rounds):
        letter = bytes([1 + turn % 250])
        space[:] = letter * (page * pages)
        blocks = [Iocb(opcode=1, fd=direct, buf=address + n * page, nbytes=page, offset=n * page) for n in range(pages)]
        pointers = (ctypes.POINTER(Iocb) * pages)(*[ctypes.pointer(block) for block in blocks])
        check(libc.syscall(submit, context, pages, pointers) == pages, "not submitted")
        done = ctypes.create_string_buffer(32 * pages)
        check(libc.syscall(events, context, pages, pages, done, None) == pages, "not written")
        stale += os.pread(buffered, page * pages, 0) != letter * (page * pages)
    ended.set()
    for reader in readers:
        reader.join()
    libc.syscall(destroy, context)
    check(stale == 0, f"{stale} of {rounds} reads after the write were old")
    print(f"# {rounds} rounds of {pages} writes")


def dirty_holes(path):
    """What was written into a hole by a shared mapping is data, before anything syncs it."""
    os.mkdir(path)
    name, copy = f"{path}/holes", f"{path}/copy"
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 1 << 20)
    space = mmap.mmap(descriptor, 1 << 20)
    reader = os.open(name, os.O_RDONLY)
    try:
        os.lseek(reader, 0, os.SEEK_DATA)
        check(False, "data in a hole")
    except OSError as error:
        check(error.errno == errno.ENXIO, "another error")
    space[500_000:500_005] = b"HELLO"
    check(os.lseek(reader, 0, os.SEEK_DATA) == 499_712, "no data at the first page")
    check(os.lseek(reader, 499_712, os.SEEK_HOLE) == 503_808, "no hole behind it")
    space[900_000:900_001] = b"x"
    check(os.lseek(reader, 503_808, os.SEEK_DATA) == 897_024, "no data at the second page")
    space[700_000:700_001] = b"x"
    subprocess.run(["cp", name, copy], check=True)
    check(open(copy, "rb").read() == space[:], "a copy differs")


def unnamed(path):
    """O_TMPFILE, and a name for it afterwards."""
    fd = os.open(path, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(fd, b"unnamed")
    said = fails(libc.linkat, AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, f"{path}/named".encode(), 0x400)
    check(said == "nothing", f"linkat fails with {said}")
    check(open(f"{path}/named").read() == "unnamed", "wrong content")


def no_reflink(path):
    """FICLONE is refused; copy_file_range copies inside of the daemon."""
    with open(f"{path}-from", "wb") as file:
        file.write(os.urandom(300_000))
    source, target = os.open(f"{path}-from", os.O_RDONLY), os.open(f"{path}-to", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.ioctl(target, 0x40049409, source)
        sys.exit("FICLONE is not refused")
    except OSError as error:
        check(error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV), f"FICLONE: {error}")
    done = 0
    while done < 300_000:
        done += os.copy_file_range(source, target, 300_000 - done)
    check(open(f"{path}-from", "rb").read() == open(f"{path}-to", "rb").read(), "copied wrongly")


def watch(path, command):
    """inotify: what is done through the mount is told; `command` has something committed, which is not."""
    fd = libc.inotify_init1(os.O_NONBLOCK)
    check(libc.inotify_add_watch(fd, path.encode(), 0x100 | 0x8) >= 0, "no watch")
    with open(f"{path}/by-hand", "w"):
        pass
    told = os.read(fd, 4096)
    check(b"by-hand" in told, "a file made through the mount is not told")
    check(os.system(command) == 0, "not committed")
    check(os.path.exists(f"{path}/committed"), "nothing committed")
    try:
        told = os.read(fd, 4096)
    except BlockingIOError:
        told = b""
    check(b"committed" not in told, "a commit is told: say so in the table of the README")


def watch_mount(path, command):
    """fanotify on the mount: as inotify."""
    fd = libc.fanotify_init(0x2, os.O_RDONLY)
    check(fd >= 0, "no fanotify")
    close_write, add, mount = 0x8, 0x1, 0x10
    mark = libc.fanotify_mark
    mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
    check(mark(fd, add | mount, close_write, AT_FDCWD, path.encode()) == 0, "no mark")
    with open(f"{path}/by-hand-too", "w"):
        pass
    check(len(os.read(fd, 4096)) >= 24, "a file written through the mount is not told")
    check(os.system(command) == 0, "not committed")
    try:
        told = len(os.read(fd, 4096))
    except BlockingIOError:
        told = 0
    check(told == 0, "a commit is told: say so in the table of the README")


def locks(path):
    """flock, fcntl and open file description locks work between processes."""
    with open(path, "w"):
        pass
    for lock in (lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)):
        fd = os.open(path, os.O_RDWR)
        lock(fd)
        child = os.fork()
        if child == 0:
            try:
                lock(os.open(path, os.O_RDWR))
                os._exit(1)
            except BlockingIOError:
                os._exit(0)
        check(os.waitpid(child, 0)[1] == 0, "locked twice")
        os.close(fd)


def sync_calls(path):
    """Which requests the kernel makes of a FUSE server for syncfs(2) and sync(2): a server that notes them."""
    init, lookup, getattr_, statfs, forget = 26, 1, 3, 17, 2
    os.mkdir(path)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    check(libc.mount(b"noted", path.encode(), b"fuse.noted", 0, options.encode()) == 0, "not mounted")
    noted = []

    def serve():
        while True:
            try:
                request = os.read(device, 1 << 20)
            except OSError:
                return
            _, opcode, unique, _ = struct.unpack("<IIQQ", request[:24])
            noted.append(opcode)
            error, answer = 0, b""
            if opcode == init:
                answer = struct.pack("<IIIIHHIIHHI", 7, 31, 4096, 0, 16, 12, 65536, 1, 16, 0, 0) + b"\0" * 28
            elif opcode == getattr_:
                attributes = struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
                answer = struct.pack("<QII", 3600, 0, 0) + attributes
            else:
                error = -errno.ENOSYS
            if opcode != forget:
                os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)

    threading.Thread(target=serve, daemon=True).start()
    os.stat(path)
    fd = os.open(path, os.O_RDONLY)
    before = len(noted)
    check(libc.syncfs(fd) == 0, "syncfs fails")
    os.sync()
    asked = noted[before:]
    os.close(fd)
    libc.umount2(path.encode(), 2)
    check(asked == [], f"requests {asked}: sync(2) can be made to mean something; see docs/decisions/sync.md")


globals()[sys.argv[1]](*sys.argv[2:])
