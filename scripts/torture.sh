#!/usr/bin/env bash
# kill -9 of the daemon at random moments, while four processes commit transactions over files and keys.
# usage: scripts/torture.sh [ROUNDS [SEED]]     default: 1000 rounds
# After each round every transaction is there wholly or not at all, every acknowledged one is there, and
# `kvfs check` finds nothing. What is there is looked at again after each round of its store; 25 rounds have one store,
# so that a round takes as long in the end as in the beginning.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
rounds=${1:-1000} seed=${2:-$(date +%N | sed 's/^0*//')}
[ "$KVFS" != plain ] || die "torture: a plain directory has no transactions"
work_dir torture
per_store=25
RANDOM=$((seed % 32768))
echo "# seed $seed"

# Commits transactions one after the other until the daemon is gone: each makes a directory with two files, adds
# a line to a log, and sets a key, all with the same number. Of every fourth one the larger file is so large that it goes
# to its final place at once. One that ends before says so in $work/early.
committer() {
  local me=$1 round=$2 number status
  for ((number = 0; ; number++)); do
    local id=$round-$me-$number size=$((number % 4 ? 20000 : 300000))
    # shellcheck disable=SC2016 # The inner shell reads its own arguments.
    timeout 30 "$KVFS" txn run -s "$mnt" -- sh -ec '
      mkdir "$1/$2"; echo "$2" >"$1/$2/small"; head -c "$5" /dev/zero | tr "\0" "$3" >"$1/$2/large"
      echo "$2" >>"$1/log-$3"; "$4" kv put -s "$1" ids "$2" "$2"' sh "$mnt" "$id" "$me" "$KVFS" "$size" >"$work/said-$me" 2>&1 || {
      status=$?
      [ -e "$work/ending" ] || echo "transaction $id ended with $status: $(tail -n 2 "$work/said-$me" | cut -c 1-300)" >>"$work/early"
      return
    }
    echo "$id" >>"$work/acknowledged"
  done
}

# What is there: one line for each transaction of which anything is, with how much.
verify() {
  python3 - "$mnt" "$work/acknowledged" <<'PY'
import os, sys
mnt, acknowledged = sys.argv[1:]
keys = set(open(mnt + ".keys").read().split())
dirs = {name for name in os.listdir(mnt) if name.count("-") == 2}
logged = set()
for name in os.listdir(mnt):
    if name.startswith("log-"):
        lines = open(os.path.join(mnt, name)).read().split()
        if len(lines) != len(set(lines)):
            sys.exit(f"{name} has lines twice")
        logged |= set(lines)
if not dirs == keys == logged:
    odd = (dirs | keys | logged) - (dirs & keys & logged)
    sys.exit(f"in part only: {sorted(odd)[:5]}")
for name in dirs:
    _, me, number = name.split("-")
    size = 20000 if int(number) % 4 else 300000
    small = open(os.path.join(mnt, name, "small")).read()
    large = open(os.path.join(mnt, name, "large"), "rb").read()
    if small != name + "\n" or large != me.encode() * size:
        sys.exit(f"{name} has other content")
known = set(open(acknowledged).read().split()) if os.path.exists(acknowledged) else set()
if known - dirs:
    sys.exit(f"acknowledged and lost: {sorted(known - dirs)[:5]}")
print(len(dirs), len(dirs - known))
PY
}

one_round() {
  local round=$1 me workers=()
  rm -f "$work/ending" "$work/early"
  mount_store || return
  for me in 1 2 3 4; do
    committer $me "$round" &
    workers+=($!)
  done
  # Up to some ten times the time that one transaction takes.
  sleep "0.$(printf '%03d' $((RANDOM % 330 + 20)))"
  touch "$work/ending"
  kill_daemon
  wait "${workers[@]}"
  [ ! -e "$work/early" ] || { echo "round $round, seed $seed, before the daemon was killed:"; cat "$work/early"; return 1; }
  mount_store || return
  # Values, one a line.
  "$KVFS" kv scan -s "$mnt" ids 2>/dev/null | awk '{ print $NF }' >"$mnt.keys"
  found=$(verify 2>&1) || { echo "round $round, seed $seed: $found"; return 1; }
  # A process that looks at all mounts of the machine (df, a new namespace) is in the way for a moment.
  TRIES=20 until_ok umount_store && check_store >/dev/null
}

# Counts what a store holds that is given up: transactions, and those that were committed and never acknowledged.
bad=0 there=0 untold=0 found=''
count_store() {
  there=$((there + ${found% *})) untold=$((untold + ${found#* })) found=''
}

for ((round = 1; round <= rounds; round++)); do
  if [ $((round % per_store)) = 1 ]; then
    [ -z "$found" ] || count_store
    [ -z "$store" ] || rm -rf "$store" "$work/acknowledged"
    make_store "torture$round" --size 512M >/dev/null || die "mkfs failed"
  fi
  one_round "$round" || { bad=$((bad + 1)); break; }
  [ $((round % 100)) != 0 ] || echo "# $round rounds in $SECONDS s"
done
[ $bad != 0 ] || count_store
echo "# $((round - 1)) rounds in $SECONDS s, $there transactions committed, $untold of them not acknowledged"
# Usually there are two a round.
if [ $bad = 0 ] && [ $((there * 10)) -lt "$rounds" ]; then
  echo "too few for a test"
  bad=1
fi
echo "torture: $((round - 1)) passed, $bad failed, 0 skipped"
[ $bad = 0 ]
