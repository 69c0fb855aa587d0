#!/usr/bin/env bash
# A commit takes its turn beside readers that never stop.
# usage: tests/suites/fair.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "fair: a plain directory has no transactions"
work_dir fair
# Less than what is read: readers wait for the disk, too.
KVFS_MEMORY=64
make_store fair --size 1G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"

# beside WHAT READERS: 20 commits, none of which takes longer than two seconds.
beside() { timeout 120 python3 "$here/fair.py" "$mnt" "$1" "$2" 20 2000 && cat "$store.log" && ! grep -q panicked "$store.log"; }

step "a commit alone" beside none 0
step "a commit beside 12 readers without a cache" beside direct 12
step "a commit beside 3 readers of full lists of attributes" beside list 3
umount_store || failed=$((failed + 1))
summary fair
