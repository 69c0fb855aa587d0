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

# Runs one, and fails unless its last line, which it prints itself, says that all is well.
suite() {
  local name=$1 t0=$SECONDS log=$work/$1.log line
  shift
  # Started in the background it would ignore them, and so would what it starts.
  env --default-signal=INT,QUIT "$@" >"$log" 2>&1 </dev/null
  line=$(grep -E "^$name: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$" "$log" | tail -n 1)
  [ -n "$line" ] || bad "$name" >>"$log"
  echo "$name took $((SECONDS - t0)) s" >>"$log"
  flock "$work" cat "$log"
  [[ $line == *" 0 failed, "* ]]
}

# The POSIX suites, on one mount.
posix() {
  local status=0
  make_store suites --size 8G || bad mkfs || return
  mount_store || bad mount || return
  suite pjdfstest "$here/pjdfstest.sh" "$mnt" || status=1
  suite fsx "$here/fsx.sh" "$mnt" 8000 1 2 || status=1
  suite stress-ng "$here/stress-ng.sh" "$mnt" 1 || status=1
  umount_store || bad umount || status=1
  check_store || bad check || status=1
  echo "peak resident set of the daemon: $((rss_max_kib / 1024)) MiB"
  return "$status"
}

# Takes the first of those that wait out of the list and prints it.
next() { (cd "$work" && flock lock sh -c 'head -n 1 waiting; sed -i 1d waiting'); }
# What went well is noted in $work/sound: so what was not run, or could not be noted, did not go well.
run_lane() {
  local name
  while name=$(next) && [ -n "$name" ]; do
    case $name in
      posix) posix ;;
      realwork) suite realwork "$here/../../scripts/realwork.sh" --short ;;
      # The tests' own binary has the engine slatedb; its tests have run.
      beyond) suite beyond env SKIP_ENGINE_TESTS=1 KVFS="$repo/target/debug/kvfs" "$here/../../scripts/beyond.sh" short ;;
      torture) suite torture "$here/../../scripts/torture.sh" 50 ;;
      *) suite "$name" "$here/$name.sh" ;;
    esac && echo "$name" >>"$work/sound"
  done
}
if [ "${1:-}" = --lane ]; then
  work=$2
  run_lane
  exit
fi

work_dir suites
lanes=()

# With all that it has started, which takes down its own mounts.
end() {
  local pid
  for pid in $(pgrep -P "$1"); do end "$pid"; done
  kill "$1" 2>/dev/null
}
finish() {
  local status=$?
  local lane
  for lane in "${lanes[@]}"; do end "$lane"; done
  wait "${lanes[@]}"
  (exit "$status")
  cleanup
}
trap finish EXIT

# The lanes take the next one from here. The longest come first, so that all end at about the same time.
all=(beyond realwork posix load lifecycle privileges torture txn rpc install transfer repository snapshot differential kernel container branch acl hostile calls hidden
  quota fair formats writeback compress examples)
printf '%s\n' "${all[@]}" >"$work/waiting" || die "the list of the suites can't be written"
# What is unmounted in one lane may be mounted still in a mount namespace that another has made meanwhile: they don't see
# each other's mounts.
apart=()
[ "$(id -u)" != 0 ] || apart=(unshare --mount --propagation private)
for _ in 2 3; do
  "${apart[@]}" "$here/all.sh" --lane "$work" &
  lanes+=($!)
done
run_lane
wait "${lanes[@]}"
lanes=()
missing=()
for name in "${all[@]}"; do
  grep -qsxF "$name" "$work/sound" || missing+=("$name")
done
[ ${#missing[@]} = 0 ] || { echo "did not pass: ${missing[*]}"; exit 1; }
