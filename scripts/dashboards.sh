#!/usr/bin/env bash
# Pictures of a store at work: two devices in files, a small workload, and what `kvfs top`, `heat` and `stats` and the endpoint for
# Prometheus show of it, in target/dashboards.
# usage: scripts/dashboards.sh
# Works as root and as an ordinary user. Nothing stays mounted, however it ends.
#
# KVFS_DASHBOARDS   where the pictures go (default target/dashboards)
# KVFS, KVFS_TMP    as in lib.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
out=${KVFS_DASHBOARDS:-$repo/target/dashboards}
command -v curl >/dev/null || die "curl is not there: apt-get install curl"

# What is moved is moved after the background's first look, half a minute after the mount.
seconds_max=90

worker=''
end_worker() {
  [ -n "$worker" ] || return 0
  kill "$worker" 2>/dev/null || true
  wait "$worker" 2>/dev/null || true
  worker=''
}

# Some of each file is read over and over, past the page cache; small files come and go.
work_on() {
  local file part number=0
  while :; do
    for file in 0 1 2 3; do
      for part in 0 1 2 3; do
        dd if="$1/data/$file" of=/dev/null bs=128K count=8 skip=$((part * 32 + file * 8)) iflag=direct status=none
      done
    done
    number=$((number + 1))
    printf '%s\n' "$number" >"$1/notes/$((number % 64))"
    sync "$1/notes/$((number % 64))"
  done
}

# figure NAME: of what moves between the tiers.
figure() { "$KVFS" tier placement --json "$mnt" | grep -o "\"$1\":[0-9]*" | cut -d: -f2; }

is_moved() { [ "$(figure moved_bytes)" -gt 0 ] && [ "$(figure left_bytes)" = 0 ]; }

# shot NAME COMMAND...: its output is the picture.
shot() {
  local name=$1
  shift
  "$@" >"$out/$name"
  say "$out/$name"
}

work_dir dashboards
trap 'status=$?; end_worker; cleanup "$status"' EXIT
mkdir -p "$out"
: >"$work/fast"
: >"$work/slow"
make_store dashboards --device "fast:$work/fast,size=256M" --device "slow:$work/slow,size=512M" --placement hot-cold >/dev/null
mount_store "$(mount_options),metrics=unix:$work/metrics"
mkdir "$mnt/data" "$mnt/notes"
for file in 0 1 2 3; do
  head -c 32M /dev/urandom >"$mnt/data/$file"
done
"$KVFS" sync "$mnt"

say "a workload of up to $seconds_max s, until what is hot has moved to the fast device"
work_on "$mnt" &
worker=$!
begin=$SECONDS
until is_moved || [ $((SECONDS - begin)) -ge "$seconds_max" ]; do
  kill -0 "$worker" 2>/dev/null || die "the workload has failed"
  sleep 1
done

shot top.txt "$KVFS" top --once --delay 2s "$mnt"
shot heat.txt "$KVFS" heat --width 96 "$mnt"
"$KVFS" heat --png "$out/heat.png" "$mnt"
shot placement.txt "$KVFS" tier status "$mnt"
shot stats.txt "$KVFS" stats "$mnt"
shot metrics.prom curl --silent --show-error --fail --unix-socket "$work/metrics" http://localhost/metrics

end_worker
umount_store
