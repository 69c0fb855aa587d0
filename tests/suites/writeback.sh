#!/usr/bin/env bash
# A mount with -o writeback: content, sizes and times as everywhere; no transactions over files.
# usage: tests/suites/writeback.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "writeback: a plain directory has no mount options"
work_dir writeback
make_store writeback --size 2G >/dev/null || die "mkfs failed"
options=$(mount_options),writeback
mount_store "$options" || die "mount failed"
usage=2

# Steps that unmount begin elsewhere: the observer has their working directory.
again() { cd / && umount_store && mount_store "$options"; }
fsx_passes() { PROFILES='plain mapped large' "$here/fsx.sh" "$mnt" 3000 7; }
attributes_stay() {
  # The kernel owns sizes and times while it knows a file; after a new mount they are what it showed.
  cd "$mnt" && python3 - <<'EOF2' && look >"$work/before" && again && cd "$mnt" && look | diff "$work/before" - &&
import os, time
os.mkdir("files")
slow = open("files/slow", "wb", buffering=0)
slow.write(b"first")
seen = os.stat("files/slow").st_mtime_ns
for i in range(50): open(f"files/{i}", "w").write("x" * i * 100)
os.utime("files/7", (1, 2.5))
with open("files/log", "ab", buffering=0) as log:
    for i in range(2000): log.write(b"%05d\n" % i)
    assert os.fstat(log.fileno()).st_size == 12000
other = os.open("files/log", os.O_WRONLY | os.O_APPEND); os.write(other, b"end\n"); os.close(other)
with open("files/cut", "r+b" if os.path.exists("files/cut") else "w+b") as cut:
    cut.write(b"a" * 100000); cut.flush(); cut.truncate(5000); cut.seek(8000); cut.write(b"b"); cut.flush()
    assert os.fstat(cut.fileno()).st_size == 8001
    cut.seek(0); content = cut.read()
    assert content == b"a" * 5000 + bytes(3000) + b"b"
with open("files/holes", "w+b") as holes:
    holes.truncate(1 << 20); holes.seek(500000); holes.write(b"dirty"); holes.flush()
    at = os.lseek(holes.fileno(), 0, os.SEEK_DATA)
    assert at <= 500000, f"a dirty page is no hole: {at}"
assert os.stat("files/slow").st_mtime_ns == seen
slow.close()
assert os.stat("files/slow").st_mtime_ns == seen, "closing is no change"
EOF2
    [ "$(tail -n 1 files/log)" = end ] && [ "$(wc -c <files/cut)" = 8001 ] && [ "$(stat -c %Y files/7)" = 2 ]
}
look() { stat -c '%n %s %y %a' files/*; }
closed_is_written() {
  # close(2) hands everything to the daemon, and fsync makes it durable.
  cd "$mnt" && echo closed >closed && python3 -c "
import os
file = os.open('synced', os.O_CREAT | os.O_WRONLY); os.write(file, b'x' * 100000); os.fsync(file)" &&
    cd / && kill_daemon && mount_store "$options" && cd "$mnt" && [ "$(wc -c <synced)" = 100000 ]
}
refused() { ends $usage "$@" && said 'writeback' && said 'mount without it'; }
no_transactions() {
  refused "$KVFS" txn run -- touch never && refused "$KVFS" txn begin && [ ! -e never ] &&
    "$KVFS" snapshot create before && echo more >more && refused "$KVFS" snapshot restore before && [ -e more ] &&
    refused "$KVFS" branch create twig &&
    ends 1 setfattr -n system.kvfs.txn.begin -v '' . && said 'not supported' && [ -z "$(ls .kvfs/txn)" ] &&
    "$KVFS" kv put words key value && [ "$("$KVFS" kv get words key)" = value ]
}
snapshot_sees_writes() {
  # Written, and still in the kernel: a snapshot has it all the same, of a new file and of one that was cut.
  echo "of before" >cut && sync cut || return
  # A program of its own has them open: a shell closes copies of its descriptors, which writes them out.
  coproc python3 -c '
files = [open(name, "wb", buffering=0) for name in ("open", "cut")]
for file in files: file.write(b"not closed")
print("written", flush=True)
input()'
  local status=0 line kept=.kvfs/snapshots/open
  read -r line <&"${COPROC[0]}" && [ "$line" = written ] && "$KVFS" snapshot create open &&
    [ "$(cat $kept/open)" = "not closed" ] && [ "$(cat $kept/cut)" = "not closed" ] || status=1
  echo >&"${COPROC[1]}"
  wait "$COPROC_PID" || status=1
  return $status
}

sync_tells() {
  # What the kernel can't hand over is the failure of a sync, as it is of fsync.
  local small="$work/small.store" mnt="$work/small.mnt" status=0
  mkdir "$mnt" && "$KVFS" mount --create --size 128M -o "$options" "$small" "$mnt" || return
  python3 - "$mnt/large" "$KVFS" <<'EOF2' || status=1
import errno, os, subprocess, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
written = 0
try:
    while written < 200 << 20: written += os.write(file, b"x" * (1 << 20))
except OSError as error:
    assert error.errno == errno.ENOSPC, error
assert written > 100 << 20, "the kernel takes what it can keep"
done = subprocess.run([sys.argv[2], "sync", os.path.dirname(sys.argv[1])], capture_output=True, text=True)
assert done.returncode == 6 and "fsync of a file says" in done.stderr, done
EOF2
  "$KVFS" umount "$mnt"
  return $status
}

echo "-o writeback"
step "fsx, plain, mapped and large" fsx_passes
step "sizes, times, appends, cuts and holes" attributes_stay
cd /
step "closed is handed over, fsynced is durable" closed_is_written
cd "$mnt" || die "no mount"
step "no transactions over files, and why" no_transactions
step "a snapshot has what was written" snapshot_sees_writes
step "kvfs sync fails where pages can't be stored" sync_tells
cd / || exit
step "unmounts" umount_store
step "is clean" check_store
summary writeback
