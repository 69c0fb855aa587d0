#!/usr/bin/env bash
# Transactions beside other work and beyond memory: programs that do not touch the same are not in each other's way.
# usage: tests/suites/load.sh [--long]      long: minutes instead of seconds, and a transaction of 5 GiB
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "load: a plain directory has no transactions"
rounds=3 large_mib=640 large_memory=64
if [ "${1:-}" = --long ]; then
  rounds=15 large_mib=5120 large_memory=512
  export LIMIT=${LIMIT:-3000}
fi
work_dir load

stat_of() { "$KVFS" stats --json "$mnt" | python3 -c 'import json,sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# A project in C: a library of 12 modules, a program, headers, a manual; `make` builds, `make install` copies.
make_project() {
  mkdir -p "$1/src" "$1/include" "$1/doc" && local i
  for i in $(seq 12); do
    echo "int part$i(int x);" >"$1/include/part$i.h"
    printf '#include <stdio.h>\n#include <string.h>\n#include "part%d.h"\nint part%d(int x) { char b[64]; snprintf(b, sizeof b, "%%d", x); return (int)strlen(b) + %d; }\n' "$i" "$i" "$i" >"$1/src/part$i.c"
    for _ in $(seq 40); do echo "needle: page $i of the manual"; done >"$1/doc/part$i.txt"
  done
  { seq -f '#include "part%g.h"' 12; echo 'int main(void) { return part1(1) + part12(2) != 15; }'; } >"$1/src/main.c"
  cat >"$1/Makefile" <<'MAKE'
OBJECTS := $(patsubst src/%.c,build/%.o,$(wildcard src/part*.c))
all: build/program
build/%.o: src/%.c $(wildcard include/*.h)
	@mkdir -p build
	cc -Iinclude -O1 -c -o $@ $<
build/libparts.a: $(OBJECTS)
	ar rc $@ $^
build/program: src/main.c build/libparts.a
	cc -Iinclude -o $@ src/main.c build/libparts.a
	./$@
install: all
	mkdir -p $(DEST)/bin $(DEST)/lib $(DEST)/include $(DEST)/share/doc
	install -m 755 build/program $(DEST)/bin
	install -m 644 build/libparts.a $(DEST)/lib
	install -m 644 include/*.h $(DEST)/include
	install -m 644 doc/* $(DEST)/share/doc
clean:
	rm -rf build
MAKE
}

# without_short FILE: what rsync said, but for wrong checksums of files that ended too early.
without_short() {
  awk -v quote='"' '
    NR == FNR { if (/read errors mapping .*No data available/) { split($0, part, quote); short[part[2]] = 1 } next }
    /^ERROR: .* failed verification/ { for (path in short) if (index(path quote, "/" $2 quote)) next }
    { print }' "$1" "$1"
}

# again NAME COMMAND: until there is $work/stop; a line in $work/NAME.rounds for each time. What vanishes while it is
# read, and what grows, is no failure of programs that read everything: a file that is being written can end before the size
# that fstat says (docs/SEMANTICS.md, what is not promised). Then rsync gives it a wrong checksum; a checksum that is wrong
# without that is a failure.
again() {
  local name=$1
  shift
  until [ -e "$work/stop" ]; do
    bash -o pipefail -c "$*" >/dev/null 2>"$work/$name.err"
    local status=$?
    grep -vE 'No such file or directory|file changed as we read it|File removed before we read it|File shrank by|vanished|^(tar|rsync|grep|find): *(Exiting|warning)|rsync error: some files|read errors mapping .*No data available' \
      <(without_short "$work/$name.err") >>"$work/$name.bad"
    case $name:$status in *:0 | grep:[12] | find:1 | tar:1 | tar:2 | rsync:2[34]) ;; *) echo "exit $status" >>"$work/$name.bad" ;; esac
    echo >>"$work/$name.rounds"
  done
}

# install_beside LEVEL: a build and `make install` in transactions, one after the other, beside unrelated builds and
# programs that read everything. None may be doomed, refused or come to grief.
install_beside() {
  local level=$1 i pids=() status=0 name dooms conflicts
  rm -rf "$work"/stop "$work"/*.rounds "$work"/*.bad "$mnt"/* && mkdir "$mnt/project" "$mnt/other" "$mnt/third" "$work/backup" &&
    make_project "$mnt/project" && make_project "$mnt/other" && make_project "$mnt/third" || return 1
  # Whatever is read next gets a new time of access.
  find "$mnt" -exec touch -a -d 2001-02-03 {} +
  dooms=$(stat_of txn.dooms) conflicts=$(stat_of txn.conflicts)
  again build1 "make -s -C '$mnt/other' clean all" & pids+=($!)
  again build2 "make -s -C '$mnt/third' clean install DEST='$mnt/third/installed'" & pids+=($!)
  again find "find '$mnt' -ls" & pids+=($!)
  again grep "grep -rc needle '$mnt'" & pids+=($!)
  again tar "tar -C '$mnt' -cf - . | cat" & pids+=($!)
  again rsync "rsync -a --delete '$mnt/' '$work/backup/'" & pids+=($!)
  i=0
  # As often as asked for, and until each of the others has done its work at least once.
  until [ $i -ge "$rounds" ] && [ "$(cat "$work"/*.rounds 2>/dev/null | wc -l)" -ge $((6 * rounds / 2)) ] && [ "$(ls "$work"/*.rounds | wc -l)" = 6 ]; do
    timeout 300 "$KVFS" txn run -s "$mnt" --isolation "$level" -- \
      make -s -C "$mnt/project" clean install DEST="$mnt/installed/$i" || { echo "round $i: exit $?"; status=1; break; }
    [ "$(find "$mnt/installed/$i" -type f | wc -l)" = 26 ] && "$mnt/installed/$i/bin/program" || { echo "round $i is not whole"; status=1; break; }
    i=$((i + 1))
  done
  touch "$work/stop"
  wait "${pids[@]}"
  for name in build1 build2 find grep tar rsync; do
    [ ! -s "$work/$name.bad" ] || { echo "$name:"; sort "$work/$name.bad" | uniq -c | head -n 5; status=1; }
  done
  dooms=$(($(stat_of txn.dooms) - dooms)) conflicts=$(($(stat_of txn.conflicts) - conflicts))
  echo "# $i installs; rounds of others: $(cd "$work" && wc -l ./*.rounds | awk '$2 != "total" { sub("./", "", $2); sub(".rounds", "", $2); printf "%s %d, ", $2, $1 }')$dooms dooms, $conflicts conflicts"
  rm -rf "$work/backup"
  [ "$dooms" = 0 ] && [ "$conflicts" = 0 ] && return $status
}

# Writers of the main line wait for what a transaction holds, by write and by mapping, while it commits; the mount has
# one worker. No thread waits for itself: the commit ends, with 0 or 75, and every writer gets its turn.
parked_writers() {
  local store mnt daemon='' status=0 round
  make_store parked --size 1G >/dev/null && mount_store "$(mount_options)" --workers 1 || return 1
  python3 - "$KVFS" "$mnt" "$((rounds * 4))" <<'PY' || status=1
import mmap, os, subprocess, sys, threading, time
kvfs, mnt, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
FILES, PAGE = 4, 4096
def run(*words):
    return subprocess.run([kvfs, *words], capture_output=True, text=True, timeout=60)
def path(number):
    return os.path.join(mnt, f"file{number}")
for number in range(FILES):
    with open(path(number), "wb") as file:
        file.write(b"-" * 4 * PAGE)
committed = refused = parked = 0
for round in range(rounds):
    mark = b"%04d" % round
    readers = [open(path(number), "rb") for number in range(FILES)]
    maps = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in readers]
    before = [bytes(pages[:4]) for pages in maps]
    txn, view = run("txn", "begin", "-s", mnt).stdout.split("\n")[:2]
    for number in range(FILES):
        with open(os.path.join(view, f"file{number}"), "r+b") as file:
            file.write(b"txn-" + mark)
    def write(number, ended):
        # The same page as the transaction's, elsewhere in it.
        file = os.open(path(number), os.O_RDWR)
        os.pwrite(file, b"main" + mark, 100)
        ended.append(number)
        os.close(file)
    def touch(number, ended):
        with open(path(number), "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
            pages[200:208] = b"mmap" + mark
            pages.flush()
        ended.append(number)
    ended = []
    threads = [threading.Thread(target=(write if number % 2 == 0 or round % 2 else touch), args=(number, ended)) for number in range(FILES)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + (0.6 if round % 3 else 0)
    while time.monotonic() < until and "main line" not in run("locks", "-s", mnt).stdout:
        pass
    parked += len(ended) < FILES
    done = run("txn", "commit", "-s", mnt, txn)
    assert done.returncode in (0, 75), done
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a writer hangs"
    assert len(ended) == FILES, ended
    committed, refused = committed + (done.returncode == 0), refused + (done.returncode == 75)
    if done.returncode:
        run("txn", "abort", "-s", mnt, txn)
    for number in range(FILES):
        pages = open(path(number), "rb").read(PAGE)
        expected = b"txn-" + mark if done.returncode == 0 else before[number]
        assert pages[:4] == expected[:4] and (done.returncode or pages[:8] == expected), (round, number, pages[:8], expected)
        by_write = pages[100:108] == b"main" + mark
        by_mapping = pages[200:208] == b"mmap" + mark
        assert by_write or by_mapping, (round, number, "a write of the main line is lost")
        assert maps[number][:208] == pages[:208], (round, number, "a mapping shows another state")
print(f"# {rounds} rounds: {committed} committed, {refused} gave way; in {parked} a writer was waiting at the commit")
assert committed and parked
PY
  umount_store && check_store >/dev/null && return $status
}

# A program on the main line changes a mapped page at about the moment in which a transaction that has written the same page
# commits. Its page is written whole: it is a conflict, or it has what was committed.
racing_mapping() {
  local store mnt daemon='' status=0
  make_store racing --size 1G >/dev/null && mount_store || return 1
  python3 - "$KVFS" "$mnt" "$((rounds * 50))" <<'PY' || status=1
import mmap, os, random, subprocess, sys, threading, time
kvfs, mnt, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
def run(*words):
    return subprocess.run([kvfs, *words], capture_output=True, text=True, timeout=60)
seed = int.from_bytes(os.urandom(4), "little")
random.seed(seed)
path = os.path.join(mnt, "file")
open(path, "wb").write(b"-" * 16384)
file = open(path, "r+b")
committed = refused = 0
# The change comes within this time (s): about as long as a commit takes here, or all of them would come before.
width = 0.01
for round in range(rounds):
    mark = b"%06d" % round
    before = open(path, "rb").read(8)
    txn, view = run("txn", "begin", "-s", mnt).stdout.split("\n")[:2]
    with open(os.path.join(view, "file"), "r+b") as inside:
        inside.write(b"T:" + mark)
    go, delay = threading.Event(), random.random() * width
    def touch():
        pages = mmap.mmap(file.fileno(), 0)
        if round % 2:
            pages[0]
        go.wait()
        time.sleep(delay)
        pages[200:208] = b"M:" + mark
        pages.flush()
    def read():
        go.wait()
        for _ in range(50):
            os.pread(reader, 1, 0)
    reader = os.open(path, os.O_RDONLY)
    threads = [threading.Thread(target=touch)] + [threading.Thread(target=read)] * (round % 4 == 3)
    for thread in threads:
        thread.start()
    go.set()
    done = run("txn", "commit", "-s", mnt, txn)
    assert done.returncode in (0, 75), done
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread hangs"
    os.close(reader)
    if done.returncode:
        run("txn", "abort", "-s", mnt, txn)
    page = open(path, "rb").read(4096)
    expected = before if done.returncode else b"T:" + mark
    assert page[:8] == expected, (seed, round, delay, done.returncode, page[:8], expected)
    assert page[200:208] == b"M:" + mark, (seed, round, "a write of the main line is lost")
    committed, refused = committed + (done.returncode == 0), refused + (done.returncode == 75)
    width = min(1.25 * width, 2) if done.returncode else max(width / 1.25, 0.01)
print(f"# {rounds} rounds: {committed} committed, {refused} gave way; seed {seed}")
assert committed
PY
  umount_store && check_store >/dev/null && return $status
}

# A commit of many files takes a while. A program that opens one of them for the first time meanwhile, and changes a page of it by mapping,
# takes nothing back; one that has the kernel itself look into a mapping, and gets signals, is not told that it is a bad address.
# And a transaction that has only read a file commits beside a page of it that waits.
opened_during_commits() {
  local store mnt daemon='' status=0
  make_store opened --size 2G >/dev/null && mount_store || return 1
  python3 - "$mnt" "$((rounds * 4))" <<'PY' && umount_store && mount_store || status=1
import os, sys
for number in range(400 + int(sys.argv[2])):
    with open(os.path.join(sys.argv[1], f"file{number}"), "wb") as file:
        file.write(b"-" * 16384)
PY
  python3 - "$KVFS" "$mnt" "$((rounds * 4))" "$work" <<'PY' || status=1
import mmap, os, random, signal, subprocess, sys, time
kvfs, mnt, rounds, work = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
def run(*words):
    return subprocess.run([kvfs, *words], capture_output=True, text=True, timeout=120)
def path(number, directory=mnt):
    return os.path.join(directory, f"file{number}")
def begin(*options):
    return run("txn", "begin", "-s", mnt, *options).stdout.split("\n")[:2]
signals = 0
def count(*_):
    global signals
    signals += 1
signal.signal(signal.SIGALRM, count)
signal.siginterrupt(signal.SIGALRM, False)
out = os.open(os.path.join(work, "opened.out"), os.O_RDWR | os.O_CREAT)
known = os.open(path(0), os.O_RDONLY)
shown = mmap.mmap(known, 0, prot=mmap.PROT_READ)
shown.madvise(mmap.MADV_RANDOM)
committed = refused = looks = 0
# How long a commit takes to its point depends on the machine: behind a round that gave way the next one
# comes later.
head_start = 0.01
for round in range(rounds):
    mark, fresh = b"T:%06d" % round, 400 + round
    for number in range(400):
        os.stat(path(number))
    txn, view = begin()
    for number in [fresh, *range(400)]:
        with open(path(number, view), "r+b") as file:
            file.write(mark)
    commit = subprocess.Popen([kvfs, "txn", "commit", "-s", mnt, txn], stderr=subprocess.PIPE)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    first = time.monotonic() + head_start * (1 + random.random())
    while time.monotonic() < first:
        looks += os.pwrite(out, memoryview(shown)[:8], 0) // 8
    with open(path(fresh), "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        pages[200:208] = b"M:%06d" % round
        while commit.poll() is None:
            looks += os.pwrite(out, memoryview(shown)[:8], 0) // 8
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert commit.returncode in (0, 75), commit.stderr.read()
        pages.flush()
    if commit.returncode:
        run("txn", "abort", "-s", mnt, txn)
    page = open(path(fresh), "rb").read(4096)
    assert page[:8] == (b"-" * 8 if commit.returncode else mark), (round, commit.returncode, page[:8])
    assert page[200:208] == b"M:%06d" % round, (round, "a write of the main line is lost")
    committed, refused = committed + (commit.returncode == 0), refused + (commit.returncode == 75)
    head_start *= 1.5 if commit.returncode else 0.7
print(f"# {rounds} rounds: {committed} committed, {refused} gave way; {looks} looks into a mapping beside {signals} signals")
assert committed and signals
txn, view = begin("--isolation", "serializable")
open(path(1, view), "rb").read()
change = subprocess.Popen([sys.executable, "-c", "import mmap, sys; file = open(sys.argv[1], 'r+b'); pages = mmap.mmap(file.fileno(), 0); pages[9] = 9; pages.flush()", path(1)])
until = time.monotonic() + 20
while "main line" not in run("locks", "-s", mnt).stdout and change.poll() is None and time.monotonic() < until:
    pass
done = run("txn", "commit", "-s", mnt, txn)
assert done.returncode in (0, 75) and (done.returncode == 0 or "too long" in done.stderr), done
assert change.wait(30) == 0
PY
  umount_store && check_store >/dev/null && return $status
}

# Ten times the ceiling: aborted, it gives its space back; committed, it was written once.
larger_than_memory() {
  local KVFS_MEMORY=$large_memory rss_max_kib=0 used before status=0 bytes=$((large_mib << 20))
  local daemon='' store mnt
  make_store huge --size $((large_mib * 4 + 2048))M >/dev/null && mount_store || return 1
  written() { awk '/^write_bytes/ { print int($2 / 1048576) }' "/proc/$daemon/io"; }
  used() { stat_of zones.live_bytes; }
  (
    cd "$mnt" && used=$(used) && before=$(written) || exit 1
    "$KVFS" txn run -- sh -c "head -c $bytes /dev/urandom >big; false" && exit 1
    [ ! -e big ] && [ "$(used)" -le $((used + 1048576)) ] || { echo "used $used, after the abort $(used)"; exit 1; }
    echo "# aborted: $(($(written) - before)) MiB written, $((($(used) - used) >> 10)) KiB more in use"
    before=$(written)
    "$KVFS" txn run -- sh -ec "head -c $bytes /dev/urandom | tee big | sha256sum | sed s/-/big/ >sum; mkdir d; for i in \$(seq 3000); do echo \$i >d/\$i; done" || exit 1
    echo "# committed: $(($(written) - before)) MiB written of $large_mib"
    [ $(($(written) - before)) -le $((large_mib + large_mib / 10)) ] || exit 1
    sha256sum -c sum && [ "$(ls d | wc -l)" = 3000 ] && [ "$(cat d/1789)" = 1789 ]
  ) || status=1
  umount_store && check_store || status=1
  rm -rf "$store"
  echo "# peak $((rss_max_kib / 1024)) MiB, ceiling $KVFS_MEMORY + 64 MiB"
  [ "$rss_max_kib" -le $(((KVFS_MEMORY + 64) * 1024)) ] && return $status
}

make_store load --size 4G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
step "make install beside builds, find, grep, backups: no conflict" install_beside si
step "the same, serializable" install_beside serializable
umount_store || failed=$((failed + 1))
check_store >/dev/null || failed=$((failed + 1))
step "writers wait for a transaction that commits, one worker" parked_writers
step "a mapping of the main line that changes while a transaction commits" racing_mapping
step "files that are opened and read while a transaction commits them" opened_during_commits
step "a transaction of ten times the memory" larger_than_memory
summary load
