#!/usr/bin/env bash
# Runs a command and bounds its time: what hangs is named and ended, with all that it has started.
# usage: scripts/within.sh SECONDS DIR COMMAND...
#
# The command has KVFS_TMP=DIR in its environment: that tells its processes, daemons too, from others, and what it
# mounts is below DIR. After SECONDS, or on a signal: prints where the processes wait and what the step under way has said,
# terminates them, kills what stays, and takes the mounts down.
#
# Exit code: that of the command, 124 after SECONDS, 130 or 143 on a signal.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
limit=$1 dir=$2
shift 2
unset KVFS_TMP

# A process whose memory is locked for a page of a mount that hangs may keep its reader waiting.
processes() { timeout -s KILL 10 grep -lzsP "^KVFS_TMP=\Q$dir\E(/|\z)" /proc/[0-9]*/environ | cut -d / -f 3 | grep -vx $$; }
none_left() { [ -z "$(processes)" ]; }
# send SIGNAL TRIES: until no process is left, or TRIES tenths of a second have passed.
send() {
  local i pid
  for pid in $(processes); do kill "-$1" "$pid" 2>/dev/null; done
  for ((i = 0; i < $2; i++)); do
    none_left && return
    sleep 0.1
  done
}
show() {
  local pids file
  pids=$(processes | paste -sd ,)
  if [ -n "$pids" ]; then
    timeout -s KILL 10 ps -ww -o pid,ppid,etime,args -p "$pids" | cut -c 1-200
    timeout -s KILL 10 ps -L -o pid,tid,stat,comm,wchan:32 -p "$pids"
  fi
  # Of the directories of lib.sh alone: what is mounted beside them may hang.
  for file in "$dir"/kvfs-*/step.*; do
    [ ! -f "$file" ] || tail -n 40 "$file" | cut -c 1-300
  done
}
# stop WHY TRIES STATUS
stop() {
  trap '' INT TERM
  printf '\n%s; its processes and where they wait:\n' "$1"
  show
  send TERM "$2"
  send KILL 50
  # By force: a daemon that waits for its own mount does not end before that is gone.
  take_down "$dir" --force
  none_left || { echo "left:" && show; }
  exit "$3"
}

[ -d "$dir" ] || mkdir -m 755 "$dir" || exit 2
trap 'stop "ended by a signal" 20 130' INT
trap 'stop "ended by a signal" 20 143' TERM
# In the background it would ignore the two, and so would what it starts.
setsid env --default-signal=INT,QUIT KVFS_TMP="$dir" "$@" &
command=$!
timeout "$limit" tail --pid="$command" --sleep-interval=0.1 --follow /dev/null >/dev/null 2>&1 &
wait $!
[ $? != 124 ] || stop "no end after $limit s" 100 124
wait "$command"
