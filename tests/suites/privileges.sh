#!/usr/bin/env bash
# Set-id bits, file capabilities and times of reading: as on ext4, call by call, by several users; and right after a change
# the program runs without what it has lost. What of it needs root is skipped without.
# usage: tests/suites/privileges.sh [ROUNDS]
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rounds=${1:-300}
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "privileges: a plain directory is the reference, not what is tested"
work_dir privileges
make_store privileges --size 512M >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
usage=2
is_root() { [ "$(id -u)" = 0 ]; }

# An ext4 of its own to compare with.
mkdir "$work/reference"
if is_root && truncate -s 512M "$work/image" && mkfs.ext4 -q "$work/image"; then
  mount -o loop "$work/image" "$work/reference"
fi
has_reference() {
  is_mounted "$work/reference" && return
  echo "no ext4 to compare with: that needs root, mkfs.ext4 and a loop device"
  return 77
}
needs_root() {
  is_root && return
  echo "only root has users to try"
  return 77
}
member() { setpriv --reuid 2003 --regid 100 --groups 3001 -- "$@"; }

same_as_ext4() {
  has_reference || return
  local name=$1 seed
  shift
  mkdir -p "$mnt/$name" "$work/reference/$name" && chmod 755 "$mnt" "$work/reference" || return 1
  for seed in "$@"; do
    python3 "$here/privileges.py" "$mnt/$name" "$work/reference/$name" "$seed" "$rounds" || return 1
  done
}
same_in_a_transaction() {
  has_reference || return
  mkdir -p "$mnt/view" "$work/reference/view" &&
    "$KVFS" txn run -s "$mnt" -- python3 "$here/privileges.py" "$mnt/view" "$work/reference/view" 21 "$rounds" || return 1
}

same_in_a_branch() {
  has_reference || return
  local at=$work/twig status=0
  mkdir -p "$at" && "$KVFS" branch create -s "$mnt" twig && "$KVFS" branch mount -s "$mnt" twig "$at" &&
    mkdir -p "$at/twig" "$work/reference/twig" || return 1
  python3 "$here/privileges.py" "$at/twig" "$work/reference/twig" 22 "$rounds" || status=1
  "$KVFS" branch umount -s "$mnt" twig && "$KVFS" branch merge -s "$mnt" twig && [ -e "$mnt/twig/source" ] && return $status
}

# A program of root that any member of a group may write, and that root's effective id comes with: twice run, so that the
# kernel knows it.
lends() {
  rm -f "$1" && cp "$(command -v id)" "$1" && chown 0:3001 "$1" && chmod 4775 "$1" &&
    [ "$(member "$1" -u)" = 0 ] && [ "$(member "$1" -u)" = 0 ] && stat "$1" >/dev/null
}
change() {
  # As a member, but begun by root: an interpreter may lie where only root gets to.
  python3 - "$@" <<'EOF2'
import ctypes, mmap, os, sys
how, path = sys.argv[1:]
os.setgroups([3001]); os.setgid(100); os.setuid(2003)
file = os.open(path, os.O_RDWR | (os.O_DIRECT if how == "direct" else 0))
end = os.fstat(file).st_size
if how == "direct":
    page = mmap.mmap(-1, 4096)
    os.pwritev(file, [page], (end + 4095) // 4096 * 4096)
elif how == "write":
    os.pwrite(file, b"evil", end)
elif how == "copy":
    assert os.copy_file_range(file, file, 100, 0, end) == 100
elif how == "truncate":
    os.ftruncate(file, end + 1)
else:
    mode = {"allocate": 0, "keep": 1, "zero": 16, "punch": 3}[how]
    start = 0 if how == "keep" else end
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(file, mode, ctypes.c_long(start), ctypes.c_long(4096)) == 0, os.strerror(ctypes.get_errno())
EOF2
}
runs_without() {
  needs_root || return
  local how path=$mnt/program
  for how in direct write copy truncate allocate keep zero punch; do
    lends "$path" || { echo "$how: the program does not lend its owner's id in the first place"; return 1; }
    change "$how" "$path" || return 1
    # The very next call: nothing has asked for its attributes since.
    [ "$(member "$path" -u)" = 2003 ] || { echo "$how: it runs as $(member "$path" -u)"; return 1; }
    [ "$(stat -c %a "$path")" = 775 ] || { echo "$how: mode $(stat -c %a "$path")"; return 1; }
  done
}

# The kernel knows an open file without capabilities, and does not ask again by itself.
capability_of_a_transaction() {
  needs_root || return
  KVFS=$KVFS python3 - "$mnt/capable" <<'EOF2'
import os, subprocess, sys
path = sys.argv[1]
with open(path, "w") as file: file.write("text")
os.setxattr(path, "user.tag", b"1")
file = os.open(path, os.O_RDWR)
os.write(file, b"1"); os.write(file, b"2")
give = ["setfattr", "-n", "security.capability", "-v", "0x0100000200040000000000000000000000000000", path]
subprocess.run([os.environ["KVFS"], "txn", "run", "-s", os.path.dirname(path), "--", *give], check=True)
os.write(file, b"3")
assert os.listxattr(path) == ["user.tag"], os.listxattr(path)
EOF2
}

# A member overwrites a program in a transaction, has it lent root's id, and takes the transaction back.
undo_lends_nothing() {
  needs_root || return
  local at=$mnt/undone
  cp "$(command -v id)" "$at" && chown 0:3001 "$at" && chmod 775 "$at" && member sh -c "echo evil >>'$at'" &&
    "$KVFS" txn run -s "$mnt" -- setpriv --reuid 2003 --regid 100 --groups 3001 -- cp "$(command -v id)" "$at" &&
    chmod 4775 "$at" && [ "$(member "$at" -u)" = 0 ] || return 1
  local id
  id=$("$KVFS" txn list -s "$mnt" --committed --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[-1]["id"])')
  "$KVFS" txn undo -s "$mnt" "$id" && [ "$(tail -c 5 "$at")" = evil ] && [ "$(stat -c %a "$at")" = 775 ]
}

# Files that were read while no access time could be written give their space back when they are removed.
full_gives_back() {
  local dir=$mnt/full round n
  mkdir -p "$dir" || return 1
  for round in 1 2; do
    for n in $(seq 1000); do dd if=/dev/zero of="$dir/$n" bs=1M count=16 status=none 2>"$work/full" || break; done
    grep -q 'No space' "$work/full" || { echo "it did not become full"; return 1; }
    # From the daemon, not from the kernel's cache; and time for housekeeping to try.
    for n in "$dir"/*; do dd if="$n" iflag=nocache count=0 status=none && cat "$n" >/dev/null || return 1; done
    sleep 1.5
    rm "$dir"/* || return 1
    for n in 1 2 3; do
      dd if=/dev/zero of="$dir/again-$n" bs=1M count=64 status=none || { echo "round $round: no space after rm"; return 1; }
    done
    rm "$dir"/*
  done
}

# What the mount is told not to allow, no transaction that begins later allows.
remounted() {
  member "$KVFS" version >/dev/null 2>&1 || { echo "the binary is not for every user"; return 77; }
  member unshare --user --mount true 2>/dev/null || { echo "no user namespaces here"; return 77; }
  cp "$(command -v id)" "$mnt/prog" && chmod 755 "$mnt/prog" || return 1
  local status=0
  "$KVFS" mount -o remount,noexec "$store" "$mnt" && ! member "$mnt/prog" -u &&
    ! member "$KVFS" txn run -s "$mnt" -- "$mnt/prog" -u || status=1
  "$KVFS" mount -o remount,exec "$store" "$mnt" && [ "$(member "$KVFS" txn run -s "$mnt" -- "$mnt/prog" -u)" = "$(member id -u)" ] || status=1
  rm "$mnt/prog"
  return $status
}

times_of_reading() {
  umount_store || return 1
  ends $usage "$KVFS" mount -o strictatime "$store" "$mnt" && said 'strictatime' && said 'relatime' || return 1
  mount_store "$(mount_options),nodiratime" || return 1
  mkdir -p "$mnt/dir" && echo text >"$mnt/dir/quiet" && touch -a -d 2020-01-01 "$mnt/dir/quiet" "$mnt/dir" || return 1
  again || return 1
  # With cold caches, so that the kernel has to ask.
  python3 - "$mnt/dir/quiet" <<'EOF2' && [ "$(stat -c %x "$mnt/dir/quiet" | cut -c 1-4)" = 2020 ] || return 1
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY | os.O_NOATIME)
assert os.read(file, 10) == b"text\n"
EOF2
  ls "$mnt/dir" >/dev/null && [ "$(stat -c %x "$mnt/dir" | cut -c 1-4)" = 2020 ] && again &&
    cat "$mnt/dir/quiet" && [ "$(stat -c %x "$mnt/dir/quiet" | cut -c 1-4)" != 2020 ]
}
again() { umount_store && mount_store "$(mount_options),nodiratime"; }

step "every call takes what ext4 takes" same_as_ext4 main 1 2
step "the same in a transaction" same_in_a_transaction
step "the same in a branch" same_in_a_branch
step "a changed program runs without its owner's id at once" runs_without
step "capabilities that a transaction gave an open file go with the next write" capability_of_a_transaction
step "taking a transaction back lends nothing to another content" undo_lends_nothing
step "programs on a mount that is noexec by now run in no transaction" remounted
step "a full store whose files are read has its space back after rm" full_gives_back
step "O_NOATIME and nodiratime do what they say, strictatime is refused" times_of_reading
umount_store && mount_store "$(mount_options),writeback" || die "mount with writeback failed"
step "every call takes what ext4 takes, with -o writeback" same_as_ext4 writeback 31 32
step "a changed program runs without its owner's id, with -o writeback" runs_without
step "unmounts" umount_store
step "is clean" check_store
summary privileges
