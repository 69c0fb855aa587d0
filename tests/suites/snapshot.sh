#!/usr/bin/env bash
# Named snapshots as a user sees them, on a real mount: what they hold, comparing, restoring with files open,
# space, sudden ends.
# usage: tests/suites/snapshot.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "snapshot: a plain directory has no snapshots"
work_dir snapshot
make_store snapshot --size 2G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
cd "$mnt" || die "no mount"

# Exit codes, as in `kvfs --help`.
failed_code=1 usage=2 conflict=75
TRIES=200

snap() { timeout 60 "$KVFS" snapshot "$@"; }
# What makes a tree: types, modes, owners, sizes, times of change, names, links, content, attributes.
picture() {
  (
    cd "$1" || exit 1
    find . -printf '%y %m %U %G %n %T@ %P %l\n' | sort
    find . -type f -printf '%P %s\n' | sort
    find . -type f -print0 | sort -z | xargs -0r sha256sum
    getfattr -R -d -m - . 2>/dev/null
  )
}
stat_of() { "$KVFS" stats --json "$mnt" | python3 -c 'import json,sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
no_orphans() { [ "$(stat_of fs.orphans_queued)" = 0 ]; }
is_small() { [ "$(used_bytes)" -lt 20000000 ]; }
used_bytes() { stat_of zones.live_bytes; }

make_tree() {
  rm -rf "$1" && mkdir -p "$1/dir/deep" "$1/gone/er" && echo one >"$1/one" && echo hidden >"$1/dir/two" &&
    head -c 3000000 /dev/urandom >"$1/large" && ln "$1/one" "$1/dir/link" && ln -s ../one "$1/dir/symlink" &&
    head -c 200000 /dev/urandom >"$1/gone/er/file" && mkfifo "$1/pipe" && chmod 4750 "$1/dir/two" &&
    setfattr -n user.note -v old "$1/one" && truncate -s 1M "$1/sparse" && echo tail >>"$1/sparse"
}
change_tree() {
  echo changed >"$1/one" && rm "$1/dir/link" && mv "$1/dir/two" "$1/moved" && chmod 600 "$1/moved" &&
    rm -r "$1/gone" && mkdir "$1/new" && echo new >"$1/new/file" && mv "$1/dir" "$1/new/dir" &&
    setfattr -n user.note -v new "$1/one" && dd if=/dev/urandom of="$1/large" bs=1000 seek=1000 count=3 conv=notrunc status=none &&
    truncate -s 2M "$1/sparse" && rm "$1/pipe" && ln "$1/large" "$1/new/hard"
}

named() {
  ends 0 snap create first && ends "$failed_code" snap create first && said 'already' &&
    ends "$usage" snap create a/b && said 'slash' && ends "$failed_code" snap delete none && said 'no snapshot' &&
    ends "$failed_code" snap restore none && ends 0 snap list && said 'first$' && ends 0 snap list --json &&
    said '"name":"first"' && ends 0 snap delete first && [ "$(snap list --json)" = '[]' ]
}
compared() {
  make_tree tree && "$KVFS" kv put tags song old && snap create then && change_tree tree && "$KVFS" kv put tags song new &&
    ends 0 snap diff then && said '^> /tree/dir/two → /tree/moved' && said '^- /tree/gone/er/file' && said '^\+ /tree/new/file' &&
    said '^~ /tree/large' && said '^~ key tags/song' && ends 0 snap diff then then && [ ! -s "$work/said" ] &&
    ends 0 snap diff --stat then && said 'renamed' && ends 0 snap diff --json then && said '"change":"removed"' &&
    ends 0 snap restore --dry-run then && said '^\+ /tree/gone/er/file' && said '^- /tree/new/file'
}
restored() {
  make_tree tree && picture tree >"$work/before" && snap create again && local inode && inode=$(stat -c %i tree/large) || return 1
  change_tree tree || return 1
  # With a file and a directory that will be removed open, one mapped, and all that the kernel may remember.
  ls -lR tree >/dev/null
  cat tree/large tree/new/file >/dev/null
  exec 8<tree/new/file 9<>tree/large
  ends 0 snap restore again && said 'transaction [0-9]+' || return 1
  picture tree >"$work/after"
  diff "$work/before" "$work/after" && [ "$(cat <&8)" = new ] && [ "$(stat -c %i tree/large)" = "$inode" ] &&
    [ "$(sha256sum <&9)" = "$(sha256sum <tree/large)" ] && [ ! -e tree/new ] || return 1
  exec 8<&- 9<&-
  ends 0 snap diff again && ends 0 snap restore again && snap delete again
}
# A program that goes on while everything under it is put back.
restored_in_part() {
  mkdir -p part/a/deep part/b && echo old >part/a/deep/file && echo old >part/b/file && echo old >part/gone && snap create parts || return 1
  echo new >part/a/deep/file && echo new >part/b/file && rm part/gone && echo x >part/a/added && exec 6<part/a/added || return 1
  ends 0 snap restore --dry-run parts /part/a && said '^~ /part/a/deep/file' && ! said '/part/b' || return 1
  ends 0 snap restore parts part/a /part/gone && [ "$(cat part/a/deep/file part/b/file part/gone)" = $'old\nnew\nold' ] &&
    [ ! -e part/a/added ] && [ "$(cat <&6)" = x ] && exec 6<&- || return 1
  mv part/a/deep part/b/ && ends "$failed_code" snap restore parts part/a && said 'restore both' && [ -e part/b/deep/file ] &&
    ends 0 snap restore parts part/a part/b && [ "$(cat part/a/deep/file part/b/file)" = $'old\nold' ] && [ ! -e part/b/deep ] || return 1
  ends "$failed_code" snap restore parts part/nothing && said 'not in the snapshot' && snap delete parts && rm -r part
}
restored_under_load() {
  rm -rf load && mkdir -p load/logs && snap create quiet || return 1
  (cd load && while [ ! -e "$work/stop" ]; do echo line >>"$work/../$(basename "$work")/outside.log"; ls >/dev/null || exit; done) &
  local looker=$! i
  for ((i = 0; i < 300; i++)); do echo "$i" >"load/logs/$i"; done
  ends 0 snap restore quiet
  local status=$?
  touch "$work/stop"
  wait "$looker" && [ "$status" = 0 ] && [ -z "$(ls load/logs)" ] && snap delete quiet
}
conflicts() {
  rm -rf load && mkdir load && echo old >load/file && snap create old && echo new >load/file || return 1
  local id
  id=$("$KVFS" txn begin | head -n 1) && "$KVFS" txn join "$id" -- sh -c 'echo mine > load/file' &&
    ends "$conflict" snap restore old
  local status=$?
  "$KVFS" txn abort "$id"
  [ "$status" = 0 ] && [ "$(cat load/file)" = new ] && ends 0 snap restore old && [ "$(cat load/file)" = old ] && snap delete old
}
mapped() {
  head -c 65536 /dev/zero >mapped && snap create before-mapping || return 1
  python3 - "$mnt/mapped" "$KVFS" <<'PY' || return 1
import mmap, subprocess, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 65536) as memory:
    memory[5000:5005] = b"dirty"
    subprocess.run([sys.argv[2], "snapshot", "create", "--flush", "with-mapping"], check=True)
PY
  ends 0 snap diff before-mapping with-mapping && said '^~ /mapped' && snap delete before-mapping && snap delete with-mapping
}
space_back() {
  rm -rf tree load mapped && mkdir space && snap delete then
  local before held i
  for ((i = 0; i < 40; i++)); do head -c 2000000 /dev/urandom >"space/$i" || return 1; done
  sync -f . && snap create fat && before=$(used_bytes) && rm -r space && until_ok no_orphans && held=$(used_bytes) &&
    [ "$held" -ge 70000000 ] && snap delete fat || { echo "$before $held"; return 1; }
  until_ok is_small && return 0
  echo "before $before, held $held, after $(used_bytes)"
  return 1
}
# While four processes write.
constant_time() {
  mkdir -p busy && local pids=() i
  for i in 1 2 3 4; do
    (while [ ! -e "$work/calm" ]; do head -c 100000 /dev/zero >"busy/$i-$RANDOM"; done) &
    pids+=($!)
  done
  sleep 1
  for i in $(seq 20); do snap create "busy-$i" || return 1; done
  touch "$work/calm"
  wait "${pids[@]}"
  [ "$(snap list | tail -n +2 | wc -l)" = 20 ] || return 1
  grep -o 'name="busy.*took_us=[0-9]*' "$store.log" | sed 's/.*=//' | sort -n |
    awk '{ t[NR] = $1 } END { printf "# creation in the daemon: median %d us, longest %d us\n", t[int((NR + 1) / 2)], t[NR] }'
  for i in $(seq 20); do snap delete "busy-$i" || return 1; done
  rm -rf busy
}
unmounted() {
  cd "$mnt" && make_tree tree && picture tree >"$work/before" && snap create cold && change_tree tree && cd / && umount_store || return 1
  ends 0 snap -s "$store" list && said 'cold$' && ends 0 snap -s "$store" diff cold && said '^- /tree/gone/er/file' &&
    ends 0 snap -s "$store" restore cold && ends 0 snap -s "$store" create colder && check_store && mount_store && cd "$mnt" || return 1
  picture tree >"$work/after"
  diff "$work/before" "$work/after" && ends 0 snap diff cold colder && [ "$(snap list | tail -n +2 | wc -l)" = 2 ]
}
killed() {
  cd "$mnt" && rm -rf tree && echo kept >survivor && snap create durable && echo lost >survivor && cd / && kill_daemon && mount_store && cd "$mnt" || return 1
  ends 0 snap list && said 'durable$' && ends 0 snap restore durable && [ "$(cat survivor)" = kept ] && "$KVFS" check "$mnt"
}

step "names, lists, errors" named
step "what differs, in paths and keys" compared
step "restored in place, with files open" restored
step "restored in part" restored_in_part
step "restored under a program that goes on" restored_under_load
step "a conflict: 75, and nothing happened" conflicts
step "dirty pages of mappings, when asked for" mapped
step "the space of a deleted snapshot comes back" space_back
step "created while four processes write" constant_time
# The shell that watches over a step stands where the step began.
cd / || exit 1
step "a store that is not mounted" unmounted
cd / || exit 1
step "kill -9 after a creation" killed
cd / || exit 1
umount_store || failed=$((failed + 1))
check_store >/dev/null || failed=$((failed + 1))
summary snapshot
