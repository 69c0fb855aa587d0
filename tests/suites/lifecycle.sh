#!/usr/bin/env bash
# The life of a store and its mount, as a user sees it: what works, and what each mistake says.
# usage: tests/suites/lifecycle.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "lifecycle: a plain directory has no life"
work_dir lifecycle
store=$work/store mnt=$work/mnt
mkdir "$mnt"

# Exit codes, as in `kvfs --help`.
not_found=1 usage=2 in_use=3 no_store=4 damaged=5 unfit=8 not_mounted=9

# fails CODE TEXT COMMAND...: the command must end with CODE, and say TEXT (a regular expression).
fails() {
  local code=$1 text=$2 output status=0
  shift 2
  output=$(timeout 60 "$@" 2>&1 </dev/null) || status=$?
  echo "exit $status, expected $code: $output"
  [ "$status" = "$code" ] && grep -qiE "$text" <<<"$output"
}
gone() { # the daemon of the background mount, by its store
  local i
  for ((i = 0; i < 200; i++)); do
    pgrep -f "kvfs mount .*$store" >/dev/null || return 0
    sleep 0.05
  done
  return 1
}

version() { "$KVFS" version | grep -E '[0-9]+\.[0-9]+\.[0-9]+' && "$KVFS" --help | grep -q mkfs && "$KVFS" mount --help | grep -q example -i; }
mkfs() { "$KVFS" mkfs "$store" --size 2G && [ -d "$store" ] && [ "$(du -sm "$store" | cut -f1)" -lt 400 ]; }
mkfs_again() { fails $in_use 'already holds a store' "$KVFS" mkfs "$store"; }
mount_background() { "$KVFS" mount "$store" "$mnt" && is_mounted "$mnt" && echo hello >"$mnt/file"; }
mount_twice() { mkdir -p "$work/other" && fails $in_use 'mounted|in use' "$KVFS" mount "$store" "$work/other"; }
check_mounted() { "$KVFS" check "$mnt"; }
stats() { "$KVFS" stats "$mnt" | grep -q . && "$KVFS" stats --json "$mnt" | python3 -m json.tool >/dev/null; }
umount_busy() {
  (cd "$mnt" && fails $in_use 'busy|in use' "$KVFS" umount "$mnt") && is_mounted "$mnt" && grep -qx hello "$mnt/file"
}
umount_once() { "$KVFS" umount "$mnt" && ! is_mounted "$mnt" && gone; }
# Descriptors of the daemon in the background.
descriptors() { ls /proc/"$(pgrep -f "^[^ ]*kvfs mount .*$store ")"/fd | wc -l; }
umount_beside() {
  local other=$work/beside before after
  [ "$(id -u)" = 0 ] || { echo "needs root, to mount"; return 77; }
  mkdir -p "$other" && mount --bind "$mnt" "$other" && before=$(descriptors) || return
  for _ in 1 2 3 4 5; do (cd "$mnt" && fails $in_use 'busy|in use' "$KVFS" umount "$mnt") || return; done
  after=$(descriptors)
  # One that was refused may be there still, until the next one comes.
  [ "$after" -le $((before + 1)) ] || { echo "the daemon had $before descriptors, and has $after"; return 1; }
  timeout 60 "$KVFS" umount "$mnt" 2>"$work/said" && grep "stays open: $other" "$work/said" && ! is_mounted "$mnt" || return 1
  echo more >"$other/beside" && umount "$other" && gone && "$KVFS" mount "$store" "$mnt" && grep -qx more "$mnt/beside"
}
umount_again() { fails $not_mounted 'mount' "$KVFS" umount "$mnt"; }
remount_there() { "$KVFS" mount "$store" "$mnt" && grep -qx hello "$mnt/file"; }
sigterm() {
  mount_store && echo more >"$mnt/more" && kill -TERM "$daemon" && wait "$daemon"
  local status=$?
  daemon=''
  [ $status = 0 ] && ! is_mounted "$mnt" && mount_store && grep -qx more "$mnt/more" && umount_store
}
# One that hangs, as on a device that does not answer: what looks at it can be ended, and tells.
silent_daemon() {
  local status=0
  mount_store && timeout 60 python3 - "$KVFS" "$mnt" "$daemon" <<'EOF2' || status=1
import fcntl, os, pty, signal, struct, sys, termios
kvfs, mount, daemon = sys.argv[1], sys.argv[2], int(sys.argv[3])
top, screen = pty.fork()
if top == 0:
    os.execv(kvfs, [kvfs, "top", "-d", "1ms", mount])
fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
shown = b""
while b"end" not in shown: shown += os.read(screen, 4096)
os.kill(daemon, signal.SIGSTOP)
os.write(screen, b"q")
try:
    while os.read(screen, 4096): pass
except OSError: pass
assert os.waitpid(top, 0)[1] == 0
EOF2
  timeout 60 "$KVFS" status >"$work/silent"
  [ $? = 1 ] && grep -q "^silent .*$mnt" "$work/silent" && grep -q 'does not answer' "$work/silent" || status=1
  kill -CONT "$daemon"
  until_ok state_is serving && umount_store && return $status
}
state_is() { [ "$(state_of "$mnt")" = "$1" ]; }
# Locks and pipes of the caller's are not the daemon's.
keeps_nothing() {
  (exec 9>"$work/lock" && flock 9 && "$KVFS" mount "$store" "$mnt") && flock -n "$work/lock" true && "$KVFS" umount "$mnt" && gone
}
# A name that is no UTF-8.
raw_name() {
  local raw=$work/$'raw\xff' id
  "$KVFS" mount --create --size 128M "$raw" "$mnt" && id=$("$KVFS" txn begin -s "$mnt" | head -n 1) &&
    fails $in_use 'transaction' "$KVFS" umount "$mnt" && is_mounted "$mnt" && "$KVFS" txn abort -s "$mnt" "$id" &&
    "$KVFS" umount "$mnt" && "$KVFS" check "$raw"
}
# While another mount shows the file system the unmount ends nothing.
third_signal() {
  local other=$work/beside status=0
  [ "$(id -u)" = 0 ] || { echo "needs root, to mount"; return 77; }
  mkdir -p "$other" && mount_store && echo last >"$mnt/last" && mount --bind "$mnt" "$other" || return
  kill -TERM "$daemon" && until_ok not_mounted "$mnt" && kill -TERM "$daemon" &&
    until_ok grep -q 'third *signal ends it by force' "$store.log" && kill -0 "$daemon" && grep -qx last "$other/last" || return
  kill -TERM "$daemon" && wait "$daemon" || status=$?
  daemon=''
  umount -l "$other" && [ $status = 0 ] && mount_store && grep -qx last "$mnt/last" && umount_store
}
not_mounted() { ! is_mounted "$1"; }
read_only() {
  mount_store ro && grep -qx hello "$mnt/file" && ! touch "$mnt/x" 2>/dev/null && umount_store
}
kv_mounted() {
  "$KVFS" mount "$store" "$mnt" &&
    "$KVFS" kv put -s "$mnt" tags a 1 && "$KVFS" kv put -s "$mnt" tags b 2 && "$KVFS" kv put -s "$mnt" tags c 3 &&
    [ "$("$KVFS" kv get -s "$mnt" tags b)" = 2 ] && "$KVFS" kv del -s "$mnt" tags b &&
    fails $not_found '' "$KVFS" kv get -s "$mnt" tags b &&
    [ "$("$KVFS" kv scan -s "$mnt" tags | wc -l)" = 2 ] && "$KVFS" kv keyspaces -s "$mnt" | grep -q tags &&
    [ "$(cd "$mnt" && "$KVFS" kv get tags a)" = 1 ] && "$KVFS" umount "$mnt" && gone
}
kv_unmounted() { [ "$("$KVFS" kv get -s "$store" tags c)" = 3 ] && "$KVFS" kv put -s "$store" tags d 4 && "$KVFS" check "$store"; }
missing_store() { fails $no_store 'no store' "$KVFS" mount "$work/nowhere" "$mnt" && ! is_mounted "$mnt"; }
missing_dir() { fails $unfit 'no-dir' "$KVFS" mount "$store" "$work/no-dir"; }
full_dir() { mkdir -p "$work/full" && touch "$work/full/x" && fails $unfit 'empty' "$KVFS" mount "$store" "$work/full" && [ -e "$work/full/x" ]; }
not_a_store() { mkdir -p "$work/junk" && echo junk >"$work/junk/x" && fails $no_store 'not a kvfs store' "$KVFS" mount "$work/junk" "$mnt" && [ -e "$work/junk/x" ]; }
unknown_option() { fails $usage 'no_such_option' "$KVFS" mount -o no_such_option "$store" "$mnt" && ! is_mounted "$mnt"; }
create() { "$KVFS" mount --create "$work/new" "$work/other" && echo x >"$work/other/x" && "$KVFS" umount "$work/other"; }
dead_daemon() { # killed, and its mount is left: every command says what happened, and works where it can
  "$KVFS" mount "$store" "$mnt" && "$KVFS" kv put -s "$mnt" tags dead 5 && "$KVFS" sync "$mnt" || return
  local why="daemon of the mount on $mnt has died.*kvfs mount $store $mnt"
  # A call that came in the moment of the end was still taken, and is cut off.
  kill -9 "$(pgrep -f "kvfs mount .*$store ")" && gone && fails 2 'not connected|connection abort' ls "$mnt" || return
  fails 0 "$why" "$KVFS" check "$mnt" && fails 0 "$why" "$KVFS" stats "$mnt" && fails 0 "$why" "$KVFS" kv get -s "$mnt" tags dead &&
    fails $not_mounted "$why" "$KVFS" txn list -s "$mnt" && fails $not_mounted "$why" "$KVFS" get "$mnt/file" &&
    "$KVFS" stats --json "$mnt" 2>/dev/null | python3 -m json.tool >/dev/null && "$KVFS" mount "$store" "$mnt" &&
    [ "$("$KVFS" kv get -s "$mnt" tags dead 2>&1)" = 5 ] && "$KVFS" umount "$mnt" && gone
}
damaged_store() {
  cp -r --sparse=always "$store" "$work/damaged" || return
  local device
  device=$(find "$work/damaged" -type f -size +1M | head -n 1)
  # Both superblocks, their signatures left as they are (docs/FORMAT.md).
  dd if=/dev/urandom of="$device" bs=64 seek=1 count=60 conv=notrunc status=none
  dd if=/dev/urandom of="$device" bs=64 seek=513 count=60 conv=notrunc status=none
  fails $damaged 'superblock' "$KVFS" mount "$work/damaged" "$mnt" && ! is_mounted "$mnt" &&
    fails $damaged 'superblock' "$KVFS" check "$work/damaged"
}
full_disk() {
  "$KVFS" mkfs "$work/small" --size 256M && mkdir -p "$work/small.mnt" && "$KVFS" mount "$work/small" "$work/small.mnt" || return
  local m=$work/small.mnt status=0
  echo kept >"$m/kept"
  head -c 1G /dev/zero | tr '\0' x >"$m/big" 2>"$work/full.log" && status=1
  grep -i 'no space' "$work/full.log" || status=1
  # On a full disk deleting works, and then, as soon as the space is given back, writing does.
  rm "$m/big" && sync -f "$m" || status=1
  local i
  for ((i = 0; ; i++)); do
    head -c 20M /dev/urandom 2>/dev/null >"$m/again" && sync -f "$m" && break
    [ $i -lt 30 ] || { status=1; break; }
    sleep 0.5
  done
  echo "# writing works again $((i / 2)) s after the delete"
  grep -qx kept "$m/kept" || status=1
  "$KVFS" umount "$m" && "$KVFS" check "$work/small" && return $status
}

full_of_small_files() {
  "$KVFS" mkfs "$work/tiny" --size 256M && mkdir -p "$work/tiny.mnt" && "$KVFS" mount "$work/tiny" "$work/tiny.mnt" || return
  local status=0
  # The binary of the tests takes half a minute for it alone; another suite and a slow machine may be beside it.
  timeout 400 python3 - "$work/tiny.mnt" <<'EOF' || { status=1; [ $? != 124 ] || echo "not through in 400 s"; }
import errno, itertools, os, random, sys
def fill():
    made = []
    for number in itertools.count():
        name = f"{sys.argv[1]}/{random.random()}"
        try:
            with open(name, "xb", 0) as file:
                made.append(name)
                assert file.write(os.urandom(3000)) == 3000
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            return made
made = fill()
count = len(made)
assert count > 30_000, f"only {count} fitted"
random.shuffle(made)
# Any that can't be is an error.
for name in made: os.unlink(name)
again = len(fill())
assert again > count // 2, f"{count} files fitted, and after they were deleted {again}"
print(f"# {count} files, then {again}")
EOF
  "$KVFS" umount "$work/tiny.mnt" && "$KVFS" check "$work/tiny" && return $status
}

# Loop devices of this run, to be detached at the end, whatever happens.
loops=()
detach() {
  local loop
  for loop in "${loops[@]}"; do losetup -d "$loop" 2>/dev/null; done
}
trap 'status=$?; detach; cleanup "$status"' EXIT
loop_device() { # FILE: sets $loop
  loop=$(losetup -f --show "$1" 2>/dev/null) || { echo "no loop devices, or not root"; return 77; }
  loops+=("$loop")
}
state_of() { # MOUNT
  "$KVFS" status --json | python3 -c 'import json,sys; print(*[line["state"] for line in json.load(sys.stdin) if line["mounted"] == sys.argv[1]])' "$1"
}
until_said() { # FILE TEXT
  local i
  for ((i = 0; i < 600; i++)); do
    grep -q "$2" "$1" && return
    sleep 0.05
  done
  return 1
}
# A block device with another file system on it becomes a store only by force, and is one then.
block_device() {
  command -v mkfs.ext4 >/dev/null || { echo "no mkfs.ext4"; return 77; }
  truncate -s 512M "$work/block" && mkfs.ext4 -q -F "$work/block" || return
  loop_device "$work/block" || return
  local before after dir=$work/block.mnt
  mkdir -p "$dir"
  before=$(md5sum <"$work/block")
  fails $in_use "$loop holds an ext2, ext3 or ext4 file system.*--force" "$KVFS" mkfs "$work/on-block" --device "$loop" || return
  after=$(md5sum <"$work/block")
  [ "$before" = "$after" ] && [ ! -e "$work/on-block" ] || { echo "the refusal has left something"; return 1; }
  "$KVFS" mkfs "$work/on-block" --device "$loop" --force && [ "$(readlink "$work/on-block/device")" = "$loop" ] || return
  fails $in_use 'a kvfs store' "$KVFS" mkfs "$work/another" --device "$loop" || return
  "$KVFS" mount "$work/on-block" "$dir" && head -c 20M /dev/urandom >"$work/data" && cp "$work/data" "$dir/data" && "$KVFS" sync "$dir" &&
    fails $in_use 'in use' "$KVFS" mkfs "$work/another" --device "$loop" --force && "$KVFS" umount "$dir" &&
    "$KVFS" mount "$work/on-block" "$dir" && cmp "$work/data" "$dir/data" && "$KVFS" umount "$dir" && "$KVFS" check "$work/on-block"
}
# A block device that is gone under a live mount: a loop device on a file of another mount, whose daemon is killed, fails
# every read and write as a disk does whose cable was pulled.
vanished_device() {
  local dir=$work/vanished.mnt below=$work/below.mnt log=$work/vanished/kvfs.log why='no more writes are accepted.*input/output error' pid
  mkdir -p "$dir" "$below"
  "$KVFS" mkfs "$work/below" --size 2G && "$KVFS" mount "$work/below" "$below" && truncate -s 512M "$below/image" || return
  loop_device "$below/image" || return
  "$KVFS" mkfs "$work/vanished" --device "$loop" && "$KVFS" mount "$work/vanished" "$dir" && head -c 1M /dev/urandom >"$dir/file" && "$KVFS" sync "$dir" || return
  [ "$(state_of "$dir")" = serving ] || return
  pid=$(pgrep -f "kvfs mount .*$work/below ") && kill -9 "$pid" || return
  # Whatever is written next cannot be made durable; the first failure is told, and then it is known.
  echo x >"$dir/new" 2>/dev/null
  sync -f "$dir" 2>/dev/null
  "$KVFS" sync "$dir" 2>/dev/null
  until_said "$log" 'stops accepting writes' || { echo "the log says nothing"; return 1; }
  [ "$(state_of "$dir")" = failed ] && fails 1 "$why" "$KVFS" status && fails 0 "$why" "$KVFS" stats "$dir" && fails 1 'stopped accepting writes' "$KVFS" sync "$dir" || return
  [ "$("$KVFS" stats --json "$dir" 2>/dev/null | python3 -c 'import json,sys; s=json.load(sys.stdin); print(s["store.failed"], s["device.failures"] > 0)')" = "1 True" ] || return
  # The errors stay, and the log does not grow with them.
  local i
  for ((i = 0; i < 50; i++)); do
    if touch "$dir/new-$i" 2>/dev/null; then echo "a write succeeded"; return 1; fi
    if mkdir "$dir/dir-$i" 2>/dev/null; then echo "mkdir succeeded"; return 1; fi
  done
  [ "$(grep -c 'stops accepting writes' "$log")" = 1 ] && [ "$(grep -c ' ERROR ' "$log")" -le 4 ] || { cat "$log"; return 1; }
  fails 1 "unmounted $dir, but" "$KVFS" umount "$dir" && ! is_mounted "$dir" && umount -l "$below"
}

step "version and help" version
step "mkfs makes a sparse store" mkfs
step "mkfs on a store is refused" mkfs_again
step "mount returns when it is ready" mount_background
step "a second mount is refused" mount_twice
step "check of a mounted store" check_mounted
step "stats, also as JSON" stats
step "umount while in use is refused, nothing lost" umount_busy
step "umount of one of two mounts does not wait for the other" umount_beside
step "umount" umount_once
step "umount of what is not mounted is refused" umount_again
step "the file is there after the next mount" remount_there
step "umount again" umount_once
step "SIGTERM unmounts cleanly" sigterm
step "the third SIGTERM ends what another mount shows" third_signal
step "a daemon that does not answer" silent_daemon
step "the daemon keeps nothing that its caller has open" keeps_nothing
step "a store whose path is no UTF-8" raw_name
step "-o ro" read_only
step "kv through the mount" kv_mounted
step "kv on the store itself" kv_unmounted
step "a missing store" missing_store
step "a missing directory" missing_dir
step "a directory that is not empty" full_dir
step "something that is not a store" not_a_store
step "an unknown option" unknown_option
step "mount --create" create
step "a mount whose daemon was killed" dead_daemon
step "a damaged superblock" damaged_store
step "a full store: ENOSPC, then delete, then write" full_disk
step "a store full of small files: all of them can be deleted" full_of_small_files
step "a block device that holds another file system" block_device
step "a block device that is gone under a mount" vanished_device
summary lifecycle
