"""A local user's attacks on a mount, one of them for as long as this runs; and what others notice.

usage: hostile.py attributes|transactions|connections|answers|hidden|measure MOUNT KVFS
An attack says "begun" once it has taken what it could.
"""
import os, signal, socket, statistics, subprocess, sys, time

mode, mount, kvfs = sys.argv[1:]
# The worst that another user may notice (milliseconds), on a machine with other work.
FSYNC_MS_MAX, COMMIT_MS_MAX = 3000, 6000


# Told to end. An exception out of the handler may come while an object is destroyed, where it is ignored.
is_ending = False


def end(*_):
    global is_ending
    is_ending = True


def begun(what):
    print("begun:", what, flush=True)


def attributes():
    path = f"{mount}/shared/attributes"
    open(path, "w").close()
    count = 0
    try:
        while True:
            os.setxattr(path, f"user.{count:05}", b"v" * 200)
            count += 1
    except OSError as error:
        begun(f"{count} attributes, then {error.strerror}")
    while not is_ending:
        os.listxattr(path)


def transactions():
    count = 0
    try:
        while count < 5000:
            os.setxattr(mount, "system.kvfs.txn.begin", f"label=t{count}".encode())
            count += 1
    except OSError as error:
        print(f"{count} transactions, then {error.strerror}")
    views = 0
    ids = [name for name in os.listdir(f"{mount}/.kvfs/txn")]
    for id in ids:
        try:
            os.stat(f"{mount}/.kvfs/txn/{id}/.")
            views += 1
        except OSError as error:
            print(f"{views} views, then {error.strerror}")
            break
    begun(f"{count} transactions, {views} views")
    try:
        while not is_ending:
            for id in ids[:views]:
                os.listdir(f"{mount}/.kvfs/txn/{id}/.")
    finally:
        for id in ids:
            os.setxattr(mount, "system.kvfs.txn.abort", id.encode())


def sockets():
    source = next(line.split()[0] for line in open("/proc/self/mounts") if line.split()[1] == mount)
    for directory in os.listdir("/run/kvfs") if os.access("/run/kvfs", os.R_OK) else []:
        for name in ("control.sock", "kv.sock"):
            yield f"/run/kvfs/{directory}/{name}"
    for name in ("control.sock", "kv.sock"):
        yield f"{source}/{name}"


def connections():
    held = []
    for path in sockets():
        try:
            while len(held) < 2000:
                line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                line.settimeout(1)
                line.connect(path)
                line.send(b"\x00" * 100)
                held.append(line)
        except OSError as error:
            print(path, error)
    begun(f"{len(held)} connections")
    while not is_ending:
        # Those that the daemon ends are made again.
        time.sleep(0.05)
        for at, line in enumerate(held):
            try:
                line.send(b"\x00")
            except OSError:
                try:
                    held[at] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    held[at].connect(line.getpeername() if line.fileno() >= 0 else path)
                except OSError:
                    pass


def answers():
    for number in range(20):
        subprocess.run([kvfs, "kv", "put", "-s", mount, "hostile", f"k{number}", "v" * 60000], check=True)
    readers = [
        subprocess.Popen([kvfs, "kv", "scan", "-s", mount, "hostile"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(40)
    ]
    begun(f"{len(readers)} scans of 1.2 MB that are not read")
    try:
        while not is_ending:
            time.sleep(0.1)
    finally:
        for reader in readers:
            reader.kill()


def hidden():
    held = []
    places = [f"{mount}/.kvfs", f"{mount}/.kvfs/stats"]
    paths = [entry.path for place in places for entry in os.scandir(place) if entry.is_file()]
    try:
        while len(held) < 900:
            for path in paths:
                held.append(os.open(path, os.O_RDONLY))
    except OSError as error:
        print(len(held), "files, then", error.strerror)
    begun(f"{len(held)} hidden files")
    while not is_ending:
        for fd in held[:50]:
            os.pread(fd, 65536, 0)


def measure():
    fsyncs, commits = [], []
    for number in range(40):
        start = time.monotonic()
        with open(f"{mount}/root/file{number}", "w") as file:
            file.write("x" * 5000)
            file.flush()
            os.fsync(file.fileno())
        fsyncs.append(1000 * (time.monotonic() - start))
    for number in range(10):
        start = time.monotonic()
        command = [kvfs, "txn", "run", "-q", "-s", mount, "--", "touch", f"{mount}/root/txn{number}"]
        subprocess.run(command, check=True)
        commits.append(1000 * (time.monotonic() - start))
    of = lambda times: f"median {statistics.median(times):.1f}, worst {max(times):.1f} ms"
    print(f"# fsync of a new file: {of(fsyncs)}; txn run: {of(commits)}")
    if max(fsyncs) > FSYNC_MS_MAX or max(commits) > COMMIT_MS_MAX:
        sys.exit("others wait for too long")


signal.signal(signal.SIGTERM, end)
globals()[mode]()
