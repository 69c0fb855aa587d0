#!/usr/bin/env bash
# Engines other than kvdb: the contract of stores on each, pjdfstest and fsx on a mount of each, and kill -9 of a daemon.
# usage: scripts/engines.sh [engine...]      default: memory rocksdb leveldb slatedb
#
# KVFS          a binary with the engines (default: those of make build-engines and build-slatedb, built here)
# SLATE_URL     where a store of engine slatedb has its objects (default: a directory); SLATE_ENDPOINT: on which server
# VERSITYGW     that server of S3 is begun for it, and stopped for a while
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
suites=$here/../tests/suites
# What a store in memory holds is part of it.
KVFS_MEMORY=1024
failures=0
server=''

# A server of S3 over a directory.
serve_s3() {
  mkdir -p "$work/s3/bucket"
  export AWS_ACCESS_KEY_ID=kvfs AWS_SECRET_ACCESS_KEY=secret AWS_REGION=us-east-1
  SLATE_URL=s3://bucket/prefix SLATE_ENDPOINT=http://127.0.0.1:${S3_PORT:=7070}
  ROOT_ACCESS_KEY=kvfs ROOT_SECRET_KEY=secret "$VERSITYGW" --port "127.0.0.1:$S3_PORT" posix "$work/s3" >"$work/s3.log" 2>&1 &
  server=$!
  until (exec 3<>"/dev/tcp/127.0.0.1/$S3_PORT") 2>/dev/null; do
    kill -0 "$server" 2>/dev/null || die "the server of S3 has ended: $(tail -n 3 "$work/s3.log")"
    sleep 0.05
  done
}

# While the server is gone an fsync waits, and what is cached is read; then it goes on by itself.
outage() {
  mount_store || return 1
  echo before >"$mnt/before" && sync "$mnt/before" || return 1
  kill "$server"
  wait "$server" 2>/dev/null
  echo during >"$mnt/during" || return 1
  sync "$mnt/during" &
  local writer=$!
  [ "$(cat "$mnt/before")" = before ] || return 1
  sleep 3
  kill -0 "$writer" || { echo "an fsync has ended without a server"; return 1; }
  serve_s3
  wait "$writer" || return 1
  [ "$(cat "$mnt/during")" = during ] && umount_store && check_store
}

# note NAME STATUS: one line for the sum of the tests.
note() {
  if [ "$2" = 0 ]; then echo "$1: 1 passed, 0 failed, 0 skipped"; else
    failures=$((failures + 1))
    echo "$1: 0 passed, 1 failed, 0 skipped"
  fi
}

# Files whose fsync has returned are named in the list; each must be there, and whole, after the daemon was killed.
kill_after_fsync() {
  mount_store || return 1
  python3 - "$mnt" "$work/acknowledged" <<'P' &
import os, sys
for number in range(100000):
    fd = os.open(f"{sys.argv[1]}/file{number}", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"%08d" % number * 1024)
    os.fsync(fd)
    os.close(fd)
    with open(sys.argv[2], "a") as done:
        done.write(f"{number}\n")
P
  local writer=$! number
  until [ "$(wc -l 2>/dev/null <"$work/acknowledged")" -ge 200 ] 2>/dev/null; do sleep 0.05; done
  kill -9 "$daemon"
  wait "$daemon" "$writer" 2>/dev/null
  umount -l "$mnt" 2>/dev/null || fusermount3 -u -z "$mnt"
  daemon=''
  mount_store || return 1
  while read -r number; do
    [ "$(head -c 8 "$mnt/file$number")" = "$(printf %08d "$number")" ] &&
      [ "$(stat -c %s "$mnt/file$number")" = 8192 ] || { echo "file$number is lost"; return 1; }
  done <"$work/acknowledged"
  echo "$(wc -l <"$work/acknowledged") files were acknowledged before the kill, and are there"
  umount_store && check_store
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
trap 'status=$?; [ -z "$server" ] || kill "$server"; cleanup "$status"' EXIT
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
  fi
  if [ -n "$server" ]; then
    outage
    note "outage-$engine" $?
    kill "$server"
    wait "$server" 2>/dev/null
    server=''
  fi
done
[ "$failures" = 0 ]
