# Shared by the scripts: mounts that are always taken down again, steps that are timed and counted.
# Source it; then: needs_root, work_dir, mount_store, umount_store, kill_daemon, check_store, step, ends, said, until_ok,
# summary.
# shellcheck shell=bash
#
# KVFS          the binary (default target/release/kvfs); "plain" = a plain directory instead of a mount,
#               to try the scripts themselves
# KVFS_MEMORY   --memory of the daemons in MiB (default 256)
# KVFS_TMP      where the work goes (default /var/tmp)

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
KVFS=${KVFS:-$repo/target/release/kvfs}
KVFS_MEMORY=${KVFS_MEMORY:-256}
export PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin

passed=0 failed=0 skipped=0
failures=()
work='' store='' mnt='' daemon='' rss_max_kib=0

say() { printf '%s\n' "$*"; }
die() {
  printf '%s\n' "$*" >&2
  exit 2
}

# needs_root NAME WHY: an ordinary user has the suite skipped.
needs_root() {
  [ "$(id -u)" != 0 ] || return 0
  say "needs root, $2"
  say "$1: 0 passed, 0 failed, 1 skipped"
  exit 0
}

# A fresh directory for this run; everything in it goes when the script ends, mounts first.
work_dir() {
  [ "$KVFS" = plain ] || [ -x "$KVFS" ] || die "$KVFS is not there: make build"
  work=$(mktemp -d "${KVFS_TMP:-/var/tmp}/kvfs-$1.XXXXXX") || die "$1: no directory to work in"
  chmod 755 "$work"
  # What a test makes has the modes that it expects.
  umask 022
  trap cleanup EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 131' QUIT
  trap 'exit 143' TERM
}

# take_down DIR [OPTION]: what is mounted below it, deepest first; lazily, because a dead daemon leaves a mount that answers
# nothing.
take_down() {
  local dir
  awk -v w="$1/" 'index($2, w) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r dir; do
    umount --lazy "${@:2}" "$dir" 2>/dev/null || fusermount3 -u -z "$dir" 2>/dev/null
  done
}

# cleanup [STATUS]: that of the last command, if it is not given.
cleanup() {
  local status=${1:-$?}
  # A child that is told to end right behind its beginning has the traps of this shell still.
  [ "$BASHPID" = $$ ] || exit "$status"
  # What is gone already is no reason to leave the rest.
  set +e
  trap - EXIT
  cd /
  if [ -n "$daemon" ]; then kill -9 "$daemon" 2>/dev/null; fi
  if [ -n "$work" ]; then
    take_down "$work"
    if [ "$status" != 0 ] && [ -n "${KEEP:-}" ]; then say "kept: $work"; else rm -rf --one-file-system "$work"; fi
  fi
  exit "$status"
}

is_mounted() { awk -v d="$1" '$2 == d { found = 1 } END { exit !found }' /proc/self/mounts; }

# make_store NAME [mkfs arguments...]: sets $store and $mnt.
make_store() {
  store=$work/$1.store mnt=$work/$1.mnt
  shift
  mkdir -p "$mnt"
  if [ "$KVFS" = plain ]; then
    mkdir -p "$store"
    return
  fi
  "$KVFS" mkfs "$store" "$@"
}

# Options that let every user in, as a disk's file system does; allow_other is root's to give.
mount_options() {
  if [ "$(id -u)" = 0 ]; then echo allow_other,default_permissions,suid,dev; else echo default_permissions; fi
}

# mount_store [options [arguments...]]: $store on $mnt in the foreground, so that $daemon is known; returns when it
# answers.
mount_store() {
  local options=${1:-$(mount_options)}
  shift $(($# > 0))
  if [ "$KVFS" = plain ]; then
    rmdir "$mnt" && ln -s "$store" "$mnt"
    return
  fi
  "$KVFS" mount --foreground --memory "${KVFS_MEMORY}M" -o "$options" "$@" "$store" "$mnt" \
    >>"$store.log" 2>&1 </dev/null &
  daemon=$!
  echo "$daemon" >"$work/daemon.pid"
  local i
  for ((i = 0; i < 6000; i++)); do
    is_mounted "$mnt" && stat "$mnt" >/dev/null 2>&1 && return 0
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.01
  done
  say "the mount of $store did not come up:"
  tail -n 20 "$store.log"
  return 1
}

# The daemon's peak resident set, kept over its restarts.
note_rss() {
  local kib
  kib=$(awk '/^VmHWM/ { print $2 }' "/proc/$daemon/status" 2>/dev/null)
  if [ "${kib:-0}" -gt "$rss_max_kib" ]; then rss_max_kib=$kib; fi
}

# For the report of a step: where the peak was reached.
show_rss() {
  [ -n "$daemon" ] || return 0
  local before=$rss_max_kib
  note_rss
  [ "$rss_max_kib" -le $((before + 16384)) ] || printf ' (peak so far %d MiB)' $((rss_max_kib / 1024))
}

umount_store() {
  if [ "$KVFS" = plain ]; then
    rm "$mnt" && mkdir "$mnt"
    return
  fi
  note_rss
  "$KVFS" umount "$mnt" || return 1
  local status=0
  wait "$daemon" || status=$?
  daemon=''
  if [ "$status" != 0 ]; then
    say "the daemon ended with $status:"
    tail -n 20 "$store.log"
  fi
  return "$status"
}

# kill -9; then the dead mount goes.
kill_daemon() {
  if [ "$KVFS" = plain ]; then
    rm "$mnt" && mkdir "$mnt"
    return
  fi
  note_rss
  kill -9 "$daemon"
  wait "$daemon" 2>/dev/null
  daemon=''
  umount -l "$mnt" 2>/dev/null || fusermount3 -u -z "$mnt"
}

check_store() {
  [ "$KVFS" = plain ] && return
  "$KVFS" check "$store"
}

# A Python that has grpcio: the system's, or one in target/.
python=''
find_python() {
  local own=$repo/target/python-venv
  for python in python3 "$own/bin/python"; do
    "$python" -c 'import grpc, google.protobuf' 2>/dev/null && return 0
  done
  python=''
  echo "making $own"
  # Not twice at a time, and not for long where there is no network.
  (flock 9 && timeout 100 sh -c "python3 -m venv '$own' && '$own/bin/pip' -q install 'grpcio>=1.51' 'protobuf>=3.20.2'") \
    9>"$repo/target/python-venv.lock" >"$work/pip" 2>&1
  python=$own/bin/python
  "$python" -c 'import grpc, google.protobuf' 2>/dev/null || { python=''; tail -n 2 "$work/pip"; return 1; }
}

# A file system that hangs would hang its tests: after LIMIT seconds the daemon is killed, and a process that waits for
# it gets an error. Says first where its threads are.
watch_step() {
  local pid
  exec 2>/dev/null # or the shell tells there how its sleep ended
  sleep "${LIMIT:-600}" || exit 0
  pid=$(cat "$work/daemon.pid")
  printf '\nno end after %s s; where the daemon waits:\n' "${LIMIT:-600}"
  grep -H . "/proc/$pid/task/"*/{comm,wchan,stack}
  kill -9 "$pid"
}

# step NAME COMMAND...: runs it, prints its output only when it fails, counts it.
step() {
  local name=$1 t0 status=0 log watcher
  shift
  if [ -n "$daemon" ] && ! kill -0 "$daemon" 2>/dev/null; then
    say "  the daemon is gone; the last lines of its log:"
    tail -n 20 "$store.log" | sed 's/^/          | /'
    failed=$((failed + 1))
    failures+=("$name, and what would follow it")
    summary "$(basename "$0" .sh)"
    exit 1
  fi
  # Where within.sh finds it.
  log=$(mktemp "$work/step.XXXXXX")
  echo "step: $name" >"$log"
  t0=$(date +%s.%N)
  watch_step >>"$log" 2>&1 </dev/null &
  watcher=$!
  "$@" >>"$log" 2>&1 </dev/null || status=$?
  pkill -P "$watcher" 2>/dev/null # its sleep
  kill -9 "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null
  local took
  took=$(echo "$(date +%s.%N) - $t0" | bc)
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    printf '  ok      %7.1f s  %s%s\n' "$took" "$name" "$(show_rss)"
    # What a step has to say (figures, versions) it says in lines that begin with "#".
    grep '^# ' "$log" | sed 's/^# /                      /'
  elif [ "$status" = 77 ]; then
    skipped=$((skipped + 1))
    printf '  skipped            %s: %s\n' "$name" "$(tail -n +2 "$log" | tail -n 1)"
  else
    failed=$((failed + 1))
    failures+=("$name")
    printf '  FAILED  %7.1f s  %s (exit %s)\n' "$took" "$name" "$status"
    tail -n +2 "$log" | tail -n 30 | cut -c 1-300 | sed 's/^/          | /'
  fi
  rm -f "$log"
  return "$status"
}

# ends CODE COMMAND...: what the command says goes to $work/said.
ends() {
  local code=$1 status=0
  shift
  "$@" >"$work/said" 2>&1 || status=$?
  cat "$work/said"
  [ "$status" = "$code" ] || { echo "exit $status, expected $code"; return 1; }
}
said() { grep -qE "$1" "$work/said"; }
# until_ok COMMAND...: waits until it succeeds, for $TRIES looks.
until_ok() {
  local i
  for ((i = 0; i < ${TRIES:-400}; i++)); do
    "$@" && return 0
    sleep 0.05
  done
  echo "never: $*"
  return 1
}

# The last line of every script of tests: "N passed, N failed, N skipped".
summary() {
  local f
  for f in "${failures[@]:+${failures[@]}}"; do say "failed: $f"; done
  say "$1: $passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ]
}
