#!/usr/bin/env bash
# kill -9 of the daemon at random moments, while four processes commit transactions over files and keys.
# usage: scripts/torture.sh [ROUNDS [SEED]]     default: 1000 rounds
# After each round every transaction is there wholly or not at all, every acknowledged one is there, and
# `kvfs check` finds nothing.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
rounds=${1:-1000} seed=${2:-$(date +%N | sed 's/^0*//')}
[ "$KVFS" != plain ] || die "torture: a plain directory has no transactions"
work_dir torture
make_store torture --size 2G >/dev/null || die "mkfs failed"
RANDOM=$((seed % 32768))
echo "# seed $seed"

# Commits transactions one after the other until the daemon is gone: each makes a directory with two files, adds
# a line to a log, and sets a key, all with the same number.
committer() {
  local me=$1 round=$2 number
  for ((number = 0; ; number++)); do
    local id=$round-$me-$number
    # shellcheck disable=SC2016 # The inner shell reads its own arguments.
    timeout 30 "$KVFS" txn run -s "$mnt" -- sh -ec '
      mkdir "$1/$2"; echo "$2" >"$1/$2/small"; head -c 20000 /dev/zero | tr "\0" "$3" >"$1/$2/large"
      echo "$2" >>"$1/log-$3"; "$4" kv put -s "$1" ids "$2" "$2"' sh "$mnt" "$id" "$me" "$KVFS" >/dev/null 2>&1 || return
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
    me = name.split("-")[1]
    small = open(os.path.join(mnt, name, "small")).read()
    large = open(os.path.join(mnt, name, "large"), "rb").read()
    if small != name + "\n" or large != me.encode() * 20000:
        sys.exit(f"{name} has other content")
known = set(open(acknowledged).read().split()) if os.path.exists(acknowledged) else set()
if known - dirs:
    sys.exit(f"acknowledged and lost: {sorted(known - dirs)[:5]}")
print(len(dirs))
PY
}

one_round() {
  local round=$1 me workers=()
  mount_store || return
  for me in 1 2 3 4; do
    committer $me "$round" &
    workers+=($!)
  done
  sleep "0.$((RANDOM % 900 + 100))"
  kill_daemon
  wait "${workers[@]}"
  mount_store || return
  # Values, one a line.
  "$KVFS" kv scan -s "$mnt" ids 2>/dev/null | awk '{ print $NF }' >"$mnt.keys"
  there=$(verify) || { echo "round $round, seed $seed: $there"; verify; return 1; }
  umount_store && check_store >/dev/null
}

bad=0 there=0
for ((round = 1; round <= rounds; round++)); do
  one_round "$round" || { bad=$((bad + 1)); break; }
  [ $((round % 25)) != 0 ] || echo "# $round rounds, $there transactions there"
done
echo "# $((round - 1)) rounds, $there transactions committed"
echo "torture: $((round - 1)) passed, $bad failed, 0 skipped"
[ $bad = 0 ]
