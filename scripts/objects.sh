# Shared by the scripts that test stores in object storage: a server of S3, files whose fsync counts, named snapshots, outages, journals, take-over.
# Source it behind lib.sh.
# shellcheck shell=bash disable=SC2154
#
# SLATE_URL     where a store of engine slatedb has its objects (default: a directory); SLATE_ENDPOINT: on which server
# VERSITYGW     a server of S3 that is begun for it, and stopped for a while

server=''

# A server of S3 over a directory; it is begun again over the same one after stop_s3.
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

stop_s3() {
  [ -n "$server" ] || return 0
  kill "$server"
  wait "$server" 2>/dev/null
  server=''
}

# While the server is gone an fsync waits, and what is cached is read; then it goes on by itself.
outage() {
  mount_store || return 1
  echo before >"$mnt/before" && sync "$mnt/before" || return 1
  stop_s3
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

# An outage that is longer than the mount's timeout: fsync fails with EIO, the log says why, and the same mount goes on when the
# server is back, with everything that was written.
long_outage() {
  mount_store "$(mount_options),timeout=5s" || return 1
  echo before >"$mnt/before" && sync "$mnt/before" || return 1
  stop_s3
  echo during >"$mnt/during" || return 1
  sync "$mnt/during" 2>"$work/said" && { echo "an fsync has succeeded without a server"; return 1; }
  said 'Input/output error' || { cat "$work/said"; return 1; }
  [ "$(cat "$mnt/before" "$mnt/during")" = "before
during" ] || return 1
  until_ok grep -q 'has taken no write for' "$store.log" || return 1
  serve_s3
  until_ok sync "$mnt/during" || return 1
  until_ok grep -q 'takes writes again' "$store.log" || return 1
  [ "$("$KVFS" stats "$mnt" | awk '$1 == "slatedb.outages" { print $2 }')" -ge 1 ] || return 1
  kill_daemon
  mount_store || return 1
  [ "$(cat "$mnt/before" "$mnt/during")" = "before
during" ] && umount_store && check_store
}

# An unmount in an outage ends, and what was acknowledged is there at the next mount.
umount_in_outage() {
  mount_store "$(mount_options),timeout=5s" || return 1
  echo kept >"$mnt/kept" && sync "$mnt/kept" || return 1
  stop_s3
  timeout 60 "$KVFS" umount "$mnt"
  wait "$daemon" 2>/dev/null
  daemon=''
  is_mounted "$mnt" && { echo "it is still mounted"; return 1; }
  serve_s3
  mount_store || return 1
  [ "$(cat "$mnt/kept")" = kept ] && umount_store && check_store
}

# With a journal on the local disk an fsync and a commit are acknowledged while the server is gone, and are there after kill -9. A mount of
# another machine is refused until this one has brought them there.
local_journal() {
  local elsewhere=$work/elsewhere.$RANDOM
  mount_store "$(mount_options),durability=local,timeout=5s" || return 1
  echo before >"$mnt/before" && sync "$mnt/before" || return 1
  stop_s3
  head -c 3000000 /dev/urandom >"$work/large"
  cp "$work/large" "$mnt/large" && timeout 4 sync "$mnt/large" || { echo "an fsync waits for the server"; return 1; }
  timeout 4 "$KVFS" txn run -s "$mnt" -- sh -c "rm '$mnt/before' && echo committed >'$mnt/after'" || return 1
  kill_daemon
  serve_s3
  another_machine "$elsewhere" || return 1
  "$KVFS" mount "$elsewhere.store" "$elsewhere.mnt" 2>"$work/said" && { echo "another machine goes on without the journal"; return 1; }
  said "mount it there, or give them up with -o take_over" || { cat "$work/said"; return 1; }
  mount_store || return 1
  cmp "$work/large" "$mnt/large" && [ "$(cat "$mnt/after")" = committed ] && [ ! -e "$mnt/before" ] && umount_store && check_store || return 1
  [ -z "$(ls "$store/slatedb/journal")" ] || return 1
  "$KVFS" mount "$elsewhere.store" "$elsewhere.mnt" && cmp "$work/large" "$elsewhere.mnt/large" && "$KVFS" umount "$elsewhere.mnt"
}

# Files whose fsync has returned are named in the list; each must be there, and whole, after the daemon was killed.
kill_after_fsync() {
  rm -f "$work/acknowledged"
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
  local writer=$!
  until [ "$(wc -l 2>/dev/null <"$work/acknowledged")" -ge 200 ] 2>/dev/null; do
    kill -0 "$writer" 2>/dev/null || return 1
    sleep 0.05
  done
  kill_daemon
  wait "$writer" 2>/dev/null
  mount_store || return 1
  acknowledged_files || return 1
  umount_store && check_store
}

acknowledged_files() {
  local number
  while read -r number; do
    [ "$(head -c 8 "$mnt/file$number")" = "$(printf %08d "$number")" ] &&
      [ "$(stat -c %s "$mnt/file$number")" = 8192 ] || { echo "file$number is lost"; return 1; }
  done <"$work/acknowledged"
  echo "# $(wc -l <"$work/acknowledged") files were acknowledged before the kill, and are there"
}

# What a transaction does is there wholly or not at all: after a commit, a command that fails, and a kill before and behind the commit.
transactions() {
  local tree=$mnt/transactions from=$repo/docs runner
  mount_store || return 1
  "$KVFS" txn run -s "$mnt" -- cp -r "$from" "$tree" && diff -r "$from" "$tree" || return 1
  ! "$KVFS" txn run -s "$mnt" -- sh -c "rm -r '$tree' && exit 3" && diff -r "$from" "$tree" || return 1
  "$KVFS" txn run -s "$mnt" -- sh -c "rm -r '$tree' && echo >'$work/removed' && exec sleep 1000" 2>/dev/null &
  runner=$!
  until_ok test -e "$work/removed" || return 1
  sync "$tree/FORMAT.md" || return 1
  kill_daemon
  wait "$runner" 2>/dev/null
  rm "$work/removed"
  mount_store && diff -r "$from" "$tree" && "$KVFS" txn run -s "$mnt" -- rm -r "$tree" && sync "$mnt" || return 1
  kill_daemon
  mount_store && [ ! -e "$tree" ] && umount_store && check_store
}

# A named snapshot is what it was made of after changes, a kill and a copy to another engine, until it is deleted.
named_snapshots() {
  local tree=$mnt/snapshots then=$mnt/.kvfs/snapshots/then copy=$work/copy.$RANDOM before
  mount_store || return 1
  mkdir -p "$tree" && head -c 3000000 /dev/urandom >"$tree/large" && echo soon >"$tree/gone" && before=$(sha256sum <"$tree/large") &&
    "$KVFS" snapshot -s "$mnt" create then || return 1
  head -c 3000000 /dev/zero >"$tree/large" && rm "$tree/gone" && echo new >"$tree/new" && "$KVFS" snapshot -s "$mnt" create now || return 1
  "$KVFS" snapshot -s "$mnt" diff then now >"$work/said" && said '^- /snapshots/gone' && said '^~ /snapshots/large' &&
    said '^\+ /snapshots/new' || { cat "$work/said"; return 1; }
  kill_daemon
  mount_store || return 1
  [ "$(sha256sum <"$then/snapshots/large")" = "$before" ] && [ "$(cat "$then/snapshots/gone")" = soon ] && [ ! -e "$then/snapshots/new" ] || return 1
  umount_store && check_store && "$KVFS" copy "$store" "$copy" --engine kvdb || return 1
  "$KVFS" snapshot -s "$copy" diff then now | diff - "$work/said" && rm -r "$copy" && mount_store || return 1
  "$KVFS" snapshot -s "$mnt" delete then && [ ! -e "$then" ] && [ "$("$KVFS" snapshot -s "$mnt" list | awk 'NR > 1 { print $NF }')" = now ] && umount_store && check_store
}

# Makes NAME.store, a directory of the same store as another machine has it, and NAME.mnt.
another_machine() {
  mkdir -p "$1.store/slatedb" "$1.mnt"
  cp "$store/engine" "$1.store/" && cp "$store/slatedb/place" "$1.store/slatedb/" && chmod 700 "$1.store" "$1.store/slatedb"
}

# Another store directory, as one of another machine, takes the store over from a mount that is alive and writes.
take_over() {
  local first_mnt=$mnt first_store=$store second=$work/second.$RANDOM first
  mount_store || return 1
  first=$daemon
  echo before >"$mnt/before" && sync "$mnt/before" || return 1
  another_machine "$second" || return 1
  store=$second.store mnt=$second.mnt
  mount_store "$(mount_options),take_over" || return 1
  [ "$(cat "$mnt/before")" = before ] && echo after >"$mnt/after" && sync "$mnt/after" || return 1
  # The first one acknowledges nothing any more.
  if echo late >"$first_mnt/late" && sync "$first_mnt/late"; then
    echo "the mount that was taken over acknowledges a write"
    return 1
  fi 2>/dev/null
  umount -l "$first_mnt" 2>/dev/null || fusermount3 -u -z "$first_mnt"
  wait "$first" 2>/dev/null
  [ "$(cat "$mnt/after")" = after ] && [ ! -e "$mnt/late" ] && umount_store && check_store
  local status=$?
  store=$first_store mnt=$first_mnt
  return "$status"
}
