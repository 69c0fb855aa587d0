#!/usr/bin/env bash
# Engines other than kvdb: the contract of stores on each, pjdfstest and fsx on a mount of each, kill -9 of a daemon, transactions.
# usage: scripts/engines.sh [engine...]      default: memory rocksdb leveldb slatedb
#
# KVFS          a binary with the engines (default: those of make build-engines and build-slatedb, built here)
# SLATE_URL, SLATE_ENDPOINT, VERSITYGW: see scripts/objects.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
engines=("$@")
[ ${#engines[@]} -gt 0 ] || engines=(memory rocksdb leveldb slatedb)
built=''
# program ENGINE: the binary with it.
program() {
  case $1 in
  slatedb) echo "$here/../target/slatedb/release/kvfs" ;;
  *) echo "$here/../target/engines/release/kvfs" ;;
  esac
}
if [ -z "${KVFS:-}" ]; then
  built=1
  for engine in "${engines[@]}"; do
    case $engine in
    slatedb) make -C "$here/.." --no-print-directory build-slatedb || exit 2 ;;
    *) make -C "$here/.." --no-print-directory build-engines || exit 2 ;;
    esac
  done
  KVFS=$(program "${engines[0]}")
  export KVFS
fi
# shellcheck source-path=SCRIPTDIR
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR
. "$here/objects.sh"
suites=$here/../tests/suites
# What a store in memory holds is part of it.
KVFS_MEMORY=1024
failures=0

# note NAME STATUS: one line for the sum of the tests.
note() {
  if [ "$2" = 0 ]; then echo "$1: 1 passed, 0 failed, 0 skipped"; else
    failures=$((failures + 1))
    echo "$1: 0 passed, 1 failed, 0 skipped"
  fi
}

if [ -n "$built" ]; then
  for engine in "${engines[@]}"; do
    features=''
    case $engine in
    rocksdb) features=kvfs-engine-rocksdb/librocksdb,kvfs-open/rocksdb ;;
    leveldb) features=kvfs-engine-leveldb/libleveldb,kvfs-open/leveldb ;;
    slatedb) features=kvfs-engine-slatedb/client,kvfs-open/slatedb ;;
    esac
    (cd "$here/.." && cargo test --locked -p kvfs-store -p kvfs-open -p kvfs-engine-common -p "kvfs-engine-$engine" ${features:+--features "$features"})
    note "contract-$engine" $?
    [ -n "$features" ] || continue
    (cd "$here/.." && cargo test --locked -p kvfs-cli --features "$engine" --test it -- engines:: copy:: followers::)
    note "commands-$engine" $?
  done
fi
work_dir engines
trap 'status=$?; stop_s3; cleanup "$status"' EXIT
for engine in "${engines[@]}"; do
  echo "== $engine"
  [ -z "$built" ] || KVFS=$(program "$engine")
  of_engine=(--engine "$engine")
  if [ "$engine" = slatedb ]; then
    [ -z "${VERSITYGW:-}" ] || serve_s3
    of_engine+=(--url "${SLATE_URL:-$work/objects}" ${SLATE_ENDPOINT:+--endpoint "$SLATE_ENDPOINT"})
  fi
  make_store "$engine" "${of_engine[@]}" || die "mkfs failed"
  mount_store || die "the mount failed"
  "$suites/pjdfstest.sh" "$mnt" || failures=$((failures + 1))
  "$suites/fsx.sh" "$mnt" 8000 1 2 || failures=$((failures + 1))
  "$KVFS" check "$mnt"
  note "check-$engine" $?
  umount_store
  note "umount-$engine" $?
  if [ "$engine" != memory ]; then
    kill_after_fsync
    note "kill-$engine" $?
    transactions
    note "transactions-$engine" $?
  fi
  if [ -n "$server" ]; then
    outage
    note "outage-$engine" $?
    stop_s3
  fi
done
[ "$failures" = 0 ]
