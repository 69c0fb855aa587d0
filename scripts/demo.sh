#!/usr/bin/env bash
# The demonstration of `make run`: a store, a mount, a real tree in it, key-value data beside it, a transaction.
# usage: scripts/demo.sh [--stop]
# Works as root and as an ordinary user. The mount stays, to be played with, except where CI is set.
#
# KVFS_DEMO     where store and mount point go (default ~/kvfs-demo)
set -euo pipefail
cd "$(dirname "$0")/.."
kvfs=$PWD/target/release/kvfs
demo=${KVFS_DEMO:-$HOME/kvfs-demo}
store=$demo/store mnt=$demo/mnt

is_mounted() { awk -v d="$mnt" '$2 == d { found = 1 } END { exit !found }' /proc/self/mounts; }
show() {
  local word line=''
  for word in "$@"; do
    [[ $word != *' '* ]] || word="\"$word\""
    line+=" $word"
  done
  printf '\n$%s\n' "$line"
  "$@"
}

stop() {
  if is_mounted; then
    { [ -x "$kvfs" ] && "$kvfs" umount "$mnt"; } || fusermount3 -u "$mnt" || {
      echo "demo: $mnt is in use; leave it and try again" >&2
      exit 1
    }
  fi
  # Only what this script made: never a directory that it does not know.
  [ ! -e "$demo/made-by-kvfs-demo" ] || rm -rf --one-file-system "$demo"
}

if [ "${1:-}" = --stop ]; then
  stop
  exit 0
fi

if [ -e "$demo" ] && [ ! -e "$demo/made-by-kvfs-demo" ]; then
  echo "demo: $demo exists and is not a demonstration; set KVFS_DEMO to another path" >&2
  exit 1
fi
stop
mkdir -p "$mnt"
touch "$demo/made-by-kvfs-demo"
[ -z "${CI:-}" ] || trap stop EXIT

# A tree that is on every machine that can build this: the C headers, or else these sources.
tree=/usr/include
[ -e $tree/stdio.h ] || tree=$PWD/crates
files=$(find "$tree" -type f 2>/dev/null | wc -l)

show "$kvfs" version
show "$kvfs" mkfs "$store"
show "$kvfs" mount "$store" "$mnt"

printf '\n# %s files of %s go in\n' "$files" "$tree"
show cp -a "$tree" "$mnt/tree"
show sync -f "$mnt"
printf '\n# every byte and every link is the same\n'
show diff -r --no-dereference "$tree" "$mnt/tree"
show du -sh --apparent-size "$mnt/tree"
printf '\n$ grep -rl mount %s | wc -l\n' "$mnt/tree"
grep -rl mount "$mnt/tree" | wc -l
show df -h "$mnt"

printf '\n# key-value data in the same store\n'
show "$kvfs" kv put -s "$mnt" tags tree "origin=$tree"
show "$kvfs" kv put -s "$mnt" tags tree.files "$files"
show "$kvfs" kv scan -s "$mnt" tags
printf '\n$ %s stats %s | head\n' "$kvfs" "$mnt"
"$kvfs" stats "$mnt" 2>/dev/null | sed -n '1,10p'

# A plain user needs user namespaces and an open /dev/fuse for it.
if (cd "$mnt" && "$kvfs" txn run -- true) 2>/dev/null; then
  printf '\n# a transaction: a command that fails half-way leaves nothing behind, in files and in keys\n'
  cd "$mnt"
  half="rm -rf tree && $kvfs kv put tags tree gone && echo half >done && false"
  printf '\n$ %s txn run -- sh -c "%s"\n' "$kvfs" "$half"
  "$kvfs" txn run -- sh -c "$half" || printf '(exit code %s)\n' $?
  show ls
  show "$kvfs" kv get tags tree
  printf '\n# and one that succeeds is there as a whole\n'
  show "$kvfs" txn run -- sh -c "mkdir results && wc -l tree/*.h >results/lines && $kvfs kv put tags results ready"
  show tail -n 1 results/lines
  show "$kvfs" kv get tags results
  cd - >/dev/null
fi

printf '\n# unmounted, checked, mounted again: nothing is lost\n'
show "$kvfs" umount "$mnt"
show "$kvfs" check "$store"
show "$kvfs" mount "$store" "$mnt"
show diff -r --no-dereference "$tree" "$mnt/tree"

[ -z "${CI:-}" ] || exit 0
cat <<T

The store is mounted. Go on:
  cd $mnt                          work in it as in any directory
  $kvfs stats $mnt
  $kvfs kv scan -s $mnt tags
  $kvfs --help
  make stop                        unmount and remove the demonstration
  make test                        run the tests
  make install                     copy kvfs to /usr/local/bin (PREFIX=...)
T
