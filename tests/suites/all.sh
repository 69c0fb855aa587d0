#!/usr/bin/env bash
# A store, a mount, and every suite on it; then check, and the life of a mount.
# usage: tests/suites/all.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
work_dir suites

# Adds up the last line of a suite, which it prints itself.
suite() {
  local name=$1 t0=$SECONDS log=$work/$1.log line
  shift
  "$@" 2>&1 </dev/null | tee "$log"
  line=$(grep -E "^$name: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$" "$log" | tail -n 1)
  if [ -z "$line" ]; then
    echo "$name: 0 passed, 1 failed, 0 skipped"
    failed=$((failed + 1))
  else
    case $line in *" 0 failed, "*) ;; *) failed=$((failed + 1)) ;; esac
  fi
  echo "$name took $((SECONDS - t0)) s"
}

suite lifecycle "$here/lifecycle.sh"
suite install "$here/install.sh"
suite txn "$here/txn.sh"
suite snapshot "$here/snapshot.sh"
suite branch "$here/branch.sh"
suite transfer "$here/transfer.sh"
suite rpc "$here/rpc.sh"
suite calls "$here/calls.sh"
suite acl "$here/acl.sh"
suite quota "$here/quota.sh"
suite writeback "$here/writeback.sh"
suite compress "$here/compress.sh"
suite hidden "$here/hidden.sh"
suite formats "$here/formats.sh"
suite load "$here/load.sh"
suite torture "$here/../../scripts/torture.sh" 50
make_store suites --size 8G || die "mkfs failed"
if mount_store; then
  suite pjdfstest "$here/pjdfstest.sh" "$mnt"
  suite fsx "$here/fsx.sh" "$mnt" 8000 1 2
  suite stress-ng "$here/stress-ng.sh" "$mnt" 1
  umount_store || { echo "umount: 0 passed, 1 failed, 0 skipped"; failed=$((failed + 1)); }
  check_store || { echo "check: 0 passed, 1 failed, 0 skipped"; failed=$((failed + 1)); }
else
  echo "mount: 0 passed, 1 failed, 0 skipped"
  failed=$((failed + 1))
fi
echo "peak resident set of the daemon: $((rss_max_kib / 1024)) MiB"
[ "$failed" = 0 ]
