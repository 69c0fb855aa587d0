#!/usr/bin/env bash
# The examples of the engine and of the file system as libraries: each does what its header says, twice on one store.
# usage: tests/suites/examples.sh
# EXAMPLES   where they are (default target/debug/examples)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
examples=${EXAMPLES:-$repo/target/debug/examples}
for name in embed files posix; do
  [ -x "$examples/$name" ] || die "$examples/$name is not there: cargo build -p kvfs-kvdb --example embed -p kvfs-fs --example files -p kvfs-posix --example posix"
done
work_dir examples

embed() {
  local once twice
  once=$("$examples/embed" "$work/words" tree leaf tree) && twice=$("$examples/embed" "$work/words" leaf) || return 1
  [ "$once" = $'leaf\t1\ntree\t2' ] && [ "$twice" = $'leaf\t2\ntree\t2' ]
}
files() {
  local round
  for round in 1 2; do
    [ "$("$examples/files" "$work/notes")" = "written without a mount" ] || { echo "round $round"; return 1; }
  done
}
by_path() {
  local round
  for round in 1 2; do
    [ "$("$examples/posix" "$work/notes")" = "1000 files of 19890 bytes together" ] || { echo "round $round"; return 1; }
  done
}
# What the library has written is a store for the commands, too.
command_line() {
  mkdir "$work/store" "$work/mnt" && mv "$work/notes" "$work/store/device" && chmod 600 "$work/store/device" &&
    "$KVFS" check "$work/store" >/dev/null && "$KVFS" mount "$work/store" "$work/mnt" &&
    [ "$(cat "$work/mnt/notes/today")" = "written without a mount" ]
  local status=$?
  "$KVFS" umount "$work/mnt" && return "$status"
}

step "words are counted in a transaction" embed
step "a file is written and renamed without a mount" files
step "a tree is made in a transaction, by paths and descriptors" by_path
step "the same store is mounted" command_line
summary examples
