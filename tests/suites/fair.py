"""How long a commit takes beside readers that never stop.
usage: fair.py MOUNT none|direct|list READERS COMMITS WORST: prints the median and the worst delay (ms), and fails above
WORST."""
import ctypes, fcntl, mmap, os, random, statistics, struct, sys, time
LABEL, TEXT = 72, 4080
BEGIN, CALL = f"IiQQ{LABEL}s", f"QII{TEXT}s"
iowr = lambda nr, form: 3 << 30 | struct.calcsize(form) << 16 | ord("k") << 8 | nr
mnt, what = sys.argv[1:3]
readers, commits, worst = map(int, sys.argv[3:6])
SIZE = 128 << 20
root = os.open(mnt, os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)

def begin():
    out = fcntl.ioctl(root, iowr(0x60, BEGIN), struct.pack(BEGIN, 0, 0, 60_000, 0, b"fair"))
    return struct.unpack(BEGIN, out)[3]

def call(nr, txn):
    buffer = ctypes.create_string_buffer(struct.pack(CALL, txn, 0, 0, b""), struct.calcsize(CALL))
    done = libc.ioctl(root, ctypes.c_ulong(iowr(nr, CALL)), buffer)
    text = struct.unpack(CALL, buffer.raw)[3].split(b"\0")[0].decode()
    if done != 0: raise OSError(ctypes.get_errno(), text)
    return text

def read_direct(path):
    fd, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
    while True:
        if os.preadv(fd, [buffer], random.randrange(SIZE >> 20) << 20) == 0: raise AssertionError("the file is empty")

def list_names(path):
    while True:
        try: os.listxattr(path)
        except OSError as error:
            if error.errno != 7: raise  # E2BIG: of a daemon without bounds

loop = {"none": None, "direct": read_direct, "list": list_names}[what]
path = f"{mnt}/{what}"
if loop and not os.path.exists(path):
    with open(path, "wb") as file:
        for _ in range(SIZE >> 20 if what == "direct" else 1): file.write(os.urandom(1 << 20))
    if what == "list":
        try:
            for index in range(int(os.environ.get("NAMES", 20_000))): os.setxattr(path, f"user.{index:05}", b"v" * 64)
        except OSError as error: print("names:", index, error.strerror)
children = []
for _ in range(readers):
    child = os.fork()
    if child == 0:
        libc.prctl(1, 9)
        sys.exit(loop(path))
    children.append(child)
try:
    time.sleep(0.5)
    took = []
    for index in range(commits):
        txn = begin()
        with open(f"{call(0x64, txn)}/changed", "w") as file: file.write(f"{index}\n")
        start = time.monotonic()
        call(0x61, txn)
        took.append((time.monotonic() - start) * 1000)
        assert open(f"{mnt}/changed").read() == f"{index}\n"
        if sum(took) > 120_000: break
    ended = [child for child in children if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)]
    if ended: sys.exit(f"{len(ended)} of {readers} readers have ended")
finally:
    for child in children: os.kill(child, 9)
    for child in children: os.waitpid(child, 0)
print(f"{what} {readers}: median {statistics.median(took):.0f} ms, worst {max(took):.0f} ms of {len(took)}")
if max(took) > worst: sys.exit(f"a commit took longer than {worst} ms")
