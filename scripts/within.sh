#!/usr/bin/env bash
# Runs a command and bounds its time: what hangs is named and ended, with all that it has started.
# usage: scripts/within.sh SECONDS DIR COMMAND...
#
# The command has KVFS_TMP=DIR in its environment: that tells its processes, daemons too, from others, and what it
# mounts is below DIR. After SECONDS, or on a signal: prints where the processes wait and what the step under way has said,
# terminates them, kills what stays, and takes the mounts down.
#
# Exit code: that of the command, 124 after SECONDS, 128 and the signal's number on one.
set -uo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
limit=$1 dir=$2
shift 2
unset KVFS_TMP

command=''
# Runs a command for each argument, with a bound of its own; TERM is ignored here while a signal is handled.
one_by_one=(xargs -0 -n 1 -P 32 env --default-signal=TERM timeout 3)
# The processes of the command's session, and those whose environment names $dir. Reading the environment or the arguments
# of a process waits while its memory is locked, as for a page of a mount that hangs. Then each is read alone, so that
# this one does not hide the others. The session is read without that lock.
processes() {
  local find=(grep -lzsP "^KVFS_TMP=\Q$dir\E(/|\z)") found
  found=$(timeout -s KILL 2 "${find[@]}" /proc/[0-9]*/environ)
  [ $? != 137 ] || found=$(printf '%s\0' /proc/[0-9]*/environ | "${one_by_one[@]}" "${find[@]}")
  {
    cut -d / -f 3 <<<"$found"
    [ -z "$command" ] || timeout -s KILL 5 ps -o pid=,stat= -s "$command" | awk '$2 !~ /^Z[^l]*$/ { print $1 }'
  } | grep -vx -e $$ -e '' | sort -nu
} 2>/dev/null
# at_most SECONDS COMMAND...: does not wait for its end any longer.
at_most() {
  "${@:2}" &
  timeout "$1" tail --pid=$! --sleep-interval=0.1 --follow /dev/null >/dev/null 2>&1
}
# send SIGNAL SECONDS: once to each process, until none is left or the time is over.
send() {
  local pid pids sent=' ' end=$((SECONDS + $2))
  while pids=$(processes); [ -n "$pids" ]; do
    for pid in $pids; do
      [[ $sent == *" $pid "* ]] || kill "-$1" "$pid" 2>/dev/null
      sent+="$pid "
    done
    [ "$SECONDS" -lt "$end" ] || return
    sleep 0.1
  done
}
show() {
  local pids file
  pids=$(processes)
  if [ -n "$pids" ]; then
    tr '\n' '\0' <<<"$pids" | "${one_by_one[@]}" ps -ww -o pid=,ppid=,etime=,args= -p | sort -n | cut -c 1-200
    timeout -s KILL 10 ps -L -o pid,tid,stat,comm,wchan:32 -p "$(paste -sd , <<<"$pids")"
  fi
  # Of the directories of lib.sh alone: what is mounted beside them may hang.
  for file in "$dir"/kvfs-*/step.*; do
    [ ! -f "$file" ] || tail -n 40 "$file" | cut -c 1-300
  done
}
# stop WHY SECONDS STATUS
stop() {
  trap '' INT TERM HUP QUIT PIPE
  printf '\n%s; its processes and where they wait:\n' "$1"
  at_most 20 show
  send TERM "$2"
  send KILL 5
  # By force: a daemon that waits for its own mount does not end before that is gone.
  at_most 20 take_down "$dir" --force
  # What could not be read before.
  send KILL 5
  [ -z "$(processes)" ] || { echo "left:" && at_most 20 show; }
  exit "$3"
}

[ -d "$dir" ] || mkdir -m 755 "$dir" || exit 2
trap 'stop "ended by a signal" 2 129' HUP
trap 'stop "ended by a signal" 2 130' INT
trap 'stop "ended by a signal" 2 131' QUIT
trap 'stop "ended by a signal" 2 143' TERM
# In the background it would ignore the two, and so would what it starts.
setsid env --default-signal=INT,QUIT KVFS_TMP="$dir" "$@" &
command=$!
timeout "$limit" tail --pid="$command" --sleep-interval=0.1 --follow /dev/null >/dev/null 2>&1 &
wait $!
[ $? != 124 ] || stop "no end after $limit s" 10 124
wait "$command"
