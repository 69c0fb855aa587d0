#!/usr/bin/env bash
# Every suite: most make stores of their own, the POSIX suites share a mount, which is checked after them.
# usage: tests/suites/all.sh
#
# They wait for disks and clocks more than they compute, so there are three lanes side by side. What a suite has to say
# comes when it ends.
#
# tests/suites/all.sh --lane DIR: one of the lanes.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
# bad NAME: what has no summary of its own, and went wrong.
bad() {
  echo "$1: 0 passed, 1 failed, 0 skipped"
  return 1
}

# The longest takes four to five minutes on two cores, and slow ones twice that.
limit=1100
# Of the suite that this lane runs: its process, its name, its begin.
running='' current='' begun=0
# What it said, which comes when it has ended.
tell() {
  echo "$current took $((SECONDS - begun)) s" >>"$logs/$current.log"
  flock "$logs" cat "$logs/$current.log"
}
# suite NAME DIR COMMAND...: runs one, and fails unless its last line, which it prints itself, and its exit code say that
# all is well.
suite() {
  local line='' status=0 log=$logs/$1.log
  current=$1 begun=$SECONDS
  "$here/../../scripts/within.sh" "$limit" "${@:2}" >"$log" 2>&1 </dev/null &
  running=$!
  wait "$running" || status=$?
  running=''
  [ "$status" = 124 ] || line=$(grep -E "^$1: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$" "$log" | tail -n 1)
  [ "$status" = 0 ] || [[ $line != *" 0 failed, "* ]] || line=''
  [ -n "$line" ] || bad "$1" >>"$log"
  tell
  [[ $line == *" 0 failed, "* ]]
}
break_off() {
  trap '' TERM HUP QUIT PIPE
  if [ -n "$running" ]; then
    kill "$running"
    wait "$running"
    bad "$current" >>"$logs/$current.log"
    tell
  fi
  exit 143
}

# The POSIX suites, on one mount: if one hangs, the daemon ends with it.
posix() {
  local status=0 work=$logs/posix
  mkdir -m 755 "$work" || bad mkdir || return
  make_store suites --size 8G || bad mkfs || return
  KVFS_TMP=$work mount_store || bad mount || return
  suite pjdfstest "$work" "$here/pjdfstest.sh" "$mnt" || status=1
  suite fsx "$work" "$here/fsx.sh" "$mnt" 8000 1 2 || status=1
  suite stress-ng "$work" "$here/stress-ng.sh" "$mnt" 1 || status=1
  umount_store || bad umount || status=1
  check_store || bad check || status=1
  echo "peak resident set of the daemon: $((rss_max_kib / 1024)) MiB"
  return "$status"
}

# Takes the first of those that wait out of the list and prints it.
next() { (cd "$logs" && flock lock sh -c 'head -n 1 waiting; sed -i 1d waiting'); }
# What went well is noted in $logs/sound: so what was not run, or could not be noted, did not go well.
run_lane() {
  local name
  while name=$(next) && [ -n "$name" ]; do
    case $name in
      posix) posix ;;
      realwork) suite realwork "$logs/realwork" "$here/../../scripts/realwork.sh" --short ;;
      # The tests' own binary has the engine slatedb; its tests have run.
      beyond) suite beyond "$logs/beyond" env SKIP_ENGINE_TESTS=1 KVFS="$repo/target/debug/kvfs" "$here/../../scripts/beyond.sh" short ;;
      torture) suite torture "$logs/torture" "$here/../../scripts/torture.sh" 50 ;;
      *) suite "$name" "$logs/$name" "$here/$name.sh" ;;
    esac && echo "$name" >>"$logs/sound"
  done
}
if [ "${1:-}" = --lane ]; then
  logs=$2
  # What the POSIX suites have left is in this lane's mount namespace.
  trap '[ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null; take_down "$logs/posix"' EXIT
  trap break_off TERM HUP QUIT
  run_lane
  exit
fi

work_dir suites
lanes=()
finish() {
  local status=$?
  [ ${#lanes[@]} = 0 ] || kill "${lanes[@]}" 2>/dev/null
  wait
  cleanup "$status"
}
trap finish EXIT
# A step that hangs is the better place to end it: it has a name, and the others follow.
export LIMIT=${LIMIT:-600}

# The lanes take the next one from here. The longest come first, so that all end at about the same time.
all=(beyond realwork posix load lifecycle privileges torture txn rpc install transfer repository snapshot differential kernel container branch acl hostile calls hidden
  quota fair formats writeback compress examples)
printf '%s\n' "${all[@]}" >"$work/waiting" || die "the list of the suites can't be written"
# What is unmounted in one lane may be mounted still in a mount namespace that another has made meanwhile: they don't see
# each other's mounts.
apart=()
for _ in 1 2 3; do
  "${apart[@]}" "$here/all.sh" --lane "$work" &
  lanes+=($!)
  [ "$(id -u)" != 0 ] || apart=(unshare --mount --propagation private)
done
wait "${lanes[@]}"
lanes=()
missing=()
for name in "${all[@]}"; do
  grep -qsxF "$name" "$work/sound" || missing+=("$name")
done
[ ${#missing[@]} = 0 ] || { echo "did not pass: ${missing[*]}"; exit 1; }
