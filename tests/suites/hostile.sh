#!/usr/bin/env bash
# What a local user without any right can take of a mount of root's: all at once, and what others notice of it.
# usage: tests/suites/hostile.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "hostile: a plain directory has no daemon"
needs_root hostile "to be attacked by another user"
work_dir hostile
user=65531
# The daemon's own program lies where every user finds it.
cp "$KVFS" "$work/kvfs"
chmod 755 "$work/kvfs"
KVFS_MEMORY=128
make_store hostile --size 2G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
mkdir -m 755 "$mnt/root" && mkdir -m 1777 "$mnt/shared"

attackers=()
# attack MODE: in the background until it is told to end.
attack() {
  setpriv --reuid=$user --regid=$user --clear-groups env python3 "$here/hostile.py" "$1" "$mnt" "$work/kvfs" \
    >"$work/attack-$1" 2>&1 </dev/null &
  attackers+=($!)
}
peace() {
  kill "${attackers[@]}" 2>/dev/null
  wait "${attackers[@]}" 2>/dev/null
  attackers=()
}
threads() { awk '/^Threads/ { print $2 }' "/proc/$daemon/status"; }
rss_mib() { awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$daemon/status"; }
# What root notices: 40 files with fsync and 10 transactions, the worst of each in milliseconds.
others() { python3 "$here/hostile.py" measure "$mnt" "$KVFS"; }

alone() { others; }
# beside MODE...: whatever is attacked at a time, others go on, and the daemon stays within its bounds.
beside() {
  local mode status=0
  for mode in "$@"; do
    attack "$mode"
    until_ok grep -q '^begun' "$work/attack-$mode" || { cut -c 1-300 "$work/attack-$mode"; peace; return 1; }
  done
  others || status=1
  echo "# $(threads) threads, $(rss_mib) MiB"
  # 64 MiB beside the ceiling are for the program itself; views of a user have three threads each at most.
  [ "$(rss_mib)" -le $((KVFS_MEMORY + 64)) ] || { echo "more memory than the ceiling"; status=1; }
  [ "$(threads)" -le 300 ] || { echo "too many threads"; status=1; }
  peace
  for mode in "$@"; do sed "s/^/# $mode: /" "$work/attack-$mode"; done
  grep -q panicked "$store.log" && status=1
  return $status
}
goes_back() { [ "$(threads)" -le "$threads_before" ]; }
nothing_stays() { until_ok goes_back || { echo "$(threads) threads, before $threads_before"; return 1; }; }
sound() { umount_store && check_store; }

threads_before=$(($(threads) + 20))
step "others alone" alone
step "attributes without end" beside attributes
step "transactions and views without end" beside transactions
step "connections without end, and answers not read" beside answers connections
step "hidden files held open" beside hidden
step "all of it at once" beside attributes transactions answers connections hidden
step "nothing of it stays" nothing_stays
step "the store is sound" sound
summary hostile
