#!/usr/bin/env bash
# The same random operations on kvfs and on ext4, as root and as two users: each answer, each errno, each tree the same.
# usage: tests/suites/differential.sh [OPERATIONS [SEED]]        default: 200000 operations of each kind of mount, seed 1
# DIFFERENTIAL   the program (default target/debug/examples/differential)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "differential: a plain directory is the reference, not what is tested"
operations=${1:-200000} seed=${2:-1}
program=${DIFFERENTIAL:-$repo/target/debug/examples/differential}
[ -x "$program" ] || die "$program is not there: cargo build -p kvfs-cli --example differential"
work_dir differential
make_store differential --size 2G >/dev/null || die "mkfs failed"

make_reference() {
  [ "$(id -u)" = 0 ] || { echo "needs root: a loop device, and other users"; return 77; }
  truncate -s 2G "$work/ext4.img" && mkfs.ext4 -q "$work/ext4.img" && mkdir "$work/ext4" &&
    mount -o loop "$work/ext4.img" "$work/ext4" && rm -r "$work/ext4/lost+found"
}
same() {
  [ -d "$work/ext4" ] || { echo "there is no reference"; return 77; }
  "$program" "$1" "$work/ext4" --operations "$2" --seed "$seed" >"$work/said" || { cat "$work/said"; return 1; }
  sed 's/^/# /; s/:.*//' "$work/said"
}
main_line() { mount_store && same "$mnt" "$operations"; }
branch() {
  mkdir "$work/branch" && "$KVFS" branch create -s "$mnt" other && "$KVFS" branch mount -s "$mnt" other "$work/branch" &&
    same "$work/branch" $((operations / 4))
  local status=$?
  "$KVFS" umount "$work/branch" && return "$status"
}
writeback() {
  "$KVFS" branch delete -s "$mnt" other && umount_store && mount_store "$(mount_options),writeback" &&
    same "$mnt" $((operations / 4))
}
sound() { umount_store && check_store; }

step "a reference" make_reference
step "the main line answers as ext4" main_line
step "a branch answers as ext4" branch
step "a mount with writeback answers as ext4" writeback
step "the store is sound" sound
umount "$work/ext4" 2>/dev/null
summary differential
