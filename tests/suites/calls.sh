#!/usr/bin/env bash
# Transactions by calls on the mount itself: setxattr and ioctl.
# usage: tests/suites/calls.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "calls: a plain directory has no transactions"
needs_root calls "to become other users"
work_dir calls
make_store calls --size 1G >/dev/null || die "mkfs failed"
# One worker: whatever blocks it blocks everything.
mount_store "$(mount_options)" --workers 1 || die "mount failed"
cd "$mnt" || die "no mount"

cat >"$work/calls.py" <<'EOF2'
"""Calls on a kvfs mount, as docs/CALLS.md has them."""
import ctypes, errno, fcntl, mmap, os, struct, sys, threading, time
P = "system.kvfs.txn."
LABEL, TEXT = 72, 4080
BEGIN, CALL = f"IiQQ{LABEL}s", f"QII{TEXT}s"
iowr = lambda nr, form: 3 << 30 | struct.calcsize(form) << 16 | ord("k") << 8 | nr
mnt = os.environ["MNT"]
root = os.open(mnt, os.O_RDONLY)
def begin(label="t", flags=0, nice=0, timeout=0, fd=None):
    out = fcntl.ioctl(root if fd is None else fd, iowr(0x60, BEGIN), struct.pack(BEGIN, flags, nice, timeout, 0, label.encode()))
    return struct.unpack(BEGIN, out)[3]
libc = ctypes.CDLL(None, use_errno=True)
def call(nr, txn, flags=0):
    """Answer of an ioctl: errno, state, text. (fcntl.ioctl hides the argument when there is an error.)"""
    buffer = ctypes.create_string_buffer(struct.pack(CALL, txn, flags, 0, b""), struct.calcsize(CALL))
    done = libc.ioctl(root, ctypes.c_ulong(iowr(nr, CALL)), buffer)
    _, _, state, text = struct.unpack(CALL, buffer.raw)
    return (0 if done == 0 else ctypes.get_errno()), state, text.split(b"\0")[0].decode()
commit = lambda txn, flags=0: call(0x61, txn, flags)
abort = lambda txn: call(0x62, txn)
state = lambda txn: call(0x63, txn)
view = lambda txn: call(0x64, txn)[2]
def xset(name, value): os.setxattr(mnt, P + name, value.encode())
def xget(name): return os.getxattr(mnt, P + name).decode()
def fails(number, work, *args):
    try: work(*args)
    except OSError as error: assert error.errno == number, error
    else: raise AssertionError(f"{args} went through")
def within(seconds, works):
    """Runs all of them at once; a deadlock is an error."""
    errors = []
    def guarded(work):
        try: work()
        except BaseException as error: errors.append(error)
    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads: thread.start()
    end = time.monotonic() + seconds
    for thread in threads: thread.join(max(0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread still waits"
    if errors: raise errors[0]
EOF2
export MNT=$mnt PYTHONPATH=$work
py() { timeout 60 python3 -c "from calls import *
$1"; }

by_ioctl() {
  echo old >file && cat file >/dev/null && py '
txn = begin("by ioctl", timeout=60_000)
assert state(txn) == (0, 0, ""), state(txn)
where = view(txn)
assert os.path.realpath(f"{mnt}/.kvfs/txn/{txn}") == where
open(f"{where}/file", "w").write("new\n"); open(f"{where}/made", "w").write("made\n")
assert open("file").read() == "old\n" and not os.path.exists("made")
assert commit(txn)[0] == 0
assert open("file").read() == "new\n" and open("made").read() == "made\n"
assert commit(txn)[0] == errno.ENOENT
fails(errno.ENOTTY, fcntl.ioctl, root, 3 << 30 | 96 << 16 | ord("k") << 8 | 0x7f, bytes(96))
fails(errno.EINVAL, begin, "", 4)
file = os.open("file", os.O_RDONLY)
txn = begin("aborted", flags=1, fd=file)
open(f"{view(txn)}/file", "w").write("never\n")
assert abort(txn)[0] == 0 and abort(txn)[0] == errno.ENOENT and open("file").read() == "new\n"
'
}
by_setxattr() {
  py '
xset("begin", "label=one isolation=serializable timeout=1m")
txn = xget("id.one")
assert xget(f"state.{txn}") == "open" and f"{txn} serializable 0 one\n" in xget("list")
open(f"{mnt}/.kvfs/txn/{txn}/in_root", "w").write("there\n")
assert not os.path.exists("in_root")
xset("commit", txn)
assert open("in_root").read() == "there\n"
fails(errno.ENODATA, xget, "nothing"); fails(errno.ENOENT, xget, "id.one"); fails(errno.EINVAL, xset, "begin", "x")
fails(errno.EINVAL, xset, "nothing", ""); fails(errno.ENOENT, xset, "commit", "99999")
xset("begin", "label=two"); xset("abort", "label=two")
assert os.listxattr(mnt) == []
os.setxattr(mnt, "user.ordinary", b"1"); os.removexattr(mnt, "user.ordinary")
' && setfattr -n user.kvfs.txn.begin -v "label=shell" "$mnt" &&
    id=$(getfattr --only-values -n user.kvfs.txn.id.shell "$mnt" 2>/dev/null) && "$KVFS" txn list | grep -q "^ *$id " &&
    echo x >".kvfs/txn/$id/by_shell" && setfattr -n user.kvfs.txn.commit -v "$id async" "$mnt" && [ -e by_shell ]
}
conflicts() {
  echo 0 >contended && py '
first, second = begin("first"), begin("second")
open(f"{view(first)}/contended", "w").write("1"); 
assert commit(first)[0] == 0
try: open(f"{view(second)}/contended", "w").write("2")
except OSError as error: assert error.errno == errno.ECANCELED
number, how, why = state(second)
assert number == 0 and how == 2 and "contended" in why, (number, how, why)
number, _, why = commit(second)
assert number == errno.ECANCELED and "contended" in why, (number, why)
assert open("contended").read() == "1"
'
}
as_another_user() {
  # An ordinary user, on a root of another user's, without the right to write to it.
  local py=(setpriv --reuid 65534 --regid 65534 --clear-groups timeout 60 python3 -c)
  py 'print(begin("of root"))' >"$work/id" && chmod 755 "$work/calls.py" &&
    "${py[@]}" "from calls import *
xset('begin', 'label=mine'); mine = int(xget('id.mine'))
theirs = $(cat "$work/id")
assert xget('list').split()[0] == str(mine) and len(xget('list').splitlines()) == 1
for call in commit, abort, state: assert call(theirs)[0] == errno.EPERM
fails(errno.EPERM, xset, 'abort', str(theirs)); fails(errno.EPERM, begin, 'x', 0, -1)
fails(errno.EACCES, os.setxattr, mnt, 'user.kvfs.txn.begin', b'')
xset('commit', 'label=mine')
other = begin('by ioctl'); assert commit(other, 1)[0] == 0" &&
    py "assert abort($(cat "$work/id"))[0] == 0"
}
side_by_side() {
  # The kernel holds the root's lock for a setxattr, and an invalidation of a name in the root wants it: here many
  # commits change names in the root, by all ways, with one worker.
  py '
def by_ioctl(n):
    for i in range(40):
        txn = begin()
        open(f"{view(txn)}/i{n}-{i % 3}", "w").write(str(i))
        assert commit(txn, 1)[0] == 0
def by_setxattr(n):
    for i in range(40):
        xset("begin", f"label=x{n}")
        txn = xget(f"id.x{n}")
        open(f"{mnt}/.kvfs/txn/{txn}/x{n}-{i % 3}", "w").write(str(i))
        while True:
            try: xset("commit", txn + " async")
            except OSError as error:
                if error.errno == errno.EBUSY: continue
                raise
            break
        assert open(f"x{n}-{i % 3}").read() == str(i)
def on_the_main_line():
    for i in range(300):
        open(f"m{i % 5}", "w").write("x"); os.rename(f"m{i % 5}", "renamed"); os.listdir("."); os.stat("file")
within(50, [lambda n=n, work=work: work(n) for n in range(2) for work in (by_ioctl, by_setxattr)] + [on_the_main_line])
'
}
empty_ones() {
  # What has changed nothing is ended by the worker itself, beside commits that wait for it. No other thread is woken
  # for it: its caller would find its CPU taken.
  DAEMON=$(cat "$work/daemon.pid") py '
import glob
def switches_of_clock():
    for thread in glob.glob("/proc/{DAEMON}/task/*".format(**os.environ)):
        if open(f"{thread}/comm").read() == "txn-clock\n":
            return sum(int(line.split()[1]) for line in open(f"{thread}/status") if "ctxt_switches" in line)
def empty(n):
    for i in range(2000):
        txn = begin(flags=n % 2)
        assert commit(txn, 1)[0] == 0 and (i % 50 or commit(txn, 1)[0] == errno.ENOENT)
def held(n):
    for i in range(20):
        txn = begin()
        open(f"{view(txn)}/held{n}", "a").write("x")
        empty_one = begin()
        threading.Thread(target=lambda: open(f"{mnt}/held{n}", "a").write("y"), daemon=True).start()
        assert commit(empty_one, 1)[0] == 0 and commit(txn, i % 2)[0] in (0, errno.ECANCELED)
        abort(txn)
start, before = time.monotonic(), switches_of_clock()
empty(0)
print(f"# begin and commit of an empty one: {(time.monotonic() - start) / 2000 * 1e6:.0f} us")
woken = switches_of_clock() - before
assert woken < 500, f"the clock was woken {woken} times"
within(50, [lambda n=n, work=work: work(n) for n in range(2) for work in (empty, held)])
assert xget("list") == ""
'
}
pages_that_wait() {
  # A page of the view waits for another transaction's lock. A commit by a setxattr meanwhile gives the root's lock back.
  head -c 4096 /dev/zero >paged && py '
holder = begin("holder")
open(f"{view(holder)}/paged", "r+").write("h")
xset("begin", "label=paged"); txn = xget("id.paged")
page = mmap.mmap(os.open(f"{mnt}/.kvfs/txn/{txn}/paged", os.O_RDWR), 4096)
page[:5] = b"paged"
def look():
    for i in range(20): assert not os.path.exists(f"unseen{i}")
try:
    within(20, [lambda: fails(errno.EBUSY, xset, "commit", txn), look])
    assert xget(f"state.{txn}") == "open"
finally:
    # Only then can this process end: it closes a file whose page waits.
    abort(holder)
xset("commit", txn)
assert open("paged").read(5) == "paged"
'
}
in_a_view() {
  "$KVFS" txn run -- python3 -c "from calls import *
fails(errno.EINVAL, xset, 'begin', ''); fails(errno.ENODATA, xget, 'list'); fails(errno.ENOTTY, begin)"
}

trees() {
  # As an operation: 1 removes, 2 clones.
  cat >>"$work/calls.py" <<'EOF2'
TREE, PATH = "=IIQ4088s4088s", 4088
def tree(path, operation=1, flags=0, other=b"", fd=None):
    """Answer of KVFS_IOC_TREE: errno, transaction, text."""
    buffer = ctypes.create_string_buffer(struct.pack(TREE, operation, flags, 0, path, other), struct.calcsize(TREE))
    os.setxattr(root if fd is None else fd, "system.kvfs.tree", b"")
    done = libc.ioctl(root if fd is None else fd, ctypes.c_ulong(iowr(0x65, TREE)), buffer)
    _, _, txn, text, _ = struct.unpack(TREE, buffer.raw)
    return (0 if done == 0 else ctypes.get_errno()), txn, text.split(b"\0")[0].decode()
EOF2
  mkdir -p t/a/b && echo text >t/a/b/c && ln -s a t/link &&
    py "number, txn, _ = tree(b't/a'); assert number == 0 and txn and os.listdir('t') == ['link']
assert tree(b't/a')[0] == errno.ENOENT and 't/a: no such file' in tree(b't/a')[2]
assert tree(b'/')[0] == tree(b'/t')[0] == errno.EINVAL and tree(b'')[0] == errno.ENOENT and tree(b'..')[0] == errno.EINVAL and tree(b't/link/b')[0] == errno.ENOTDIR
assert [tree(b't', **wrong)[0] for wrong in ({'operation': 3}, {'flags': 1}, {'other': b'x'})] == [errno.EINVAL] * 3
assert os.system('$KVFS txn undo %d' % txn) == 0
assert tree(b't/a', operation=2, other=b't/copy')[0] == 0 and open('t/copy/b/c').read() == 'text\\n' and tree(b't/copy')[0] == 0
assert [tree(b't/a', operation=2, other=other)[0] for other in (b't/link', b't/a/in', b'/x', b'')] == [errno.EEXIST, errno.EINVAL, errno.EINVAL, errno.ENOENT]
below = os.open('t/a', os.O_RDONLY); assert tree(b'b', fd=below)[0] == 0 and os.listdir('t/a') == []
fails(errno.EBADF, fcntl.ioctl, root, iowr(0x65, TREE), bytearray(8192))
assert tree(b't')[0] == 0 and not os.path.exists('t')" &&
    mkdir -p t/a && "$KVFS" txn run -- python3 -c "from calls import *
assert tree(b't')[:2] == (0, 0) and not os.path.exists('t') and tree(b't')[0] == errno.ENOENT" && [ ! -e t ]
}

echo "transactions by calls on the mount"
step "begin, view, commit and abort by ioctl" by_ioctl
step "begin, commit and abort by setxattr" by_setxattr
step "a conflict says why" conflicts
step "as another user" as_another_user
step "commits by all ways at once, one worker" side_by_side
step "empty ones, at once, one worker" empty_ones
step "a commit whose pages wait, one worker" pages_that_wait
step "not in a view" in_a_view
step "trees, in a view too, one worker" trees
cd / || exit
step "unmounts" umount_store
step "is clean" check_store
summary calls
