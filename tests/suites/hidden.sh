#!/usr/bin/env bash
# The hidden directory .kvfs as a user sees it, on a real mount: what is in it, which user sees what, what it disturbs.
# usage: tests/suites/hidden.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "hidden: a plain directory has no .kvfs"
needs_root hidden "to become other users"
work_dir hidden
make_store hidden --size 4G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
cd "$mnt" || die "no mount"

# fails_with TEXT COMMAND...: the command fails, and says TEXT.
fails_with() {
  local text=$1 said
  shift
  said=$("$@" 2>&1) && { echo "succeeded: $*"; return 1; }
  grep -qF "$text" <<<"$said" || { echo "\"$*\" said: $said"; return 1; }
}
read_only="Read-only file system"
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
begin() { "$KVFS" txn begin "$@" | head -n 1; }

not_listed() {
  mkdir -p dir/sub && echo text >dir/file && cat .kvfs/version >/dev/null && ls .kvfs/stats >/dev/null &&
    [ "$(ls -A)" = dir ] && [ "$(find . | sort | tr '\n' ' ')" = ". ./dir ./dir/file ./dir/sub " ] &&
    ! du -a | grep -q kvfs && ! tar cf - . | tar t | grep -q kvfs &&
    ! rsync -an --out-format=%n ./ "$work/nowhere/" | grep -q kvfs &&
    [ "$(find . -xdev | wc -l)" = 4 ] && [ "$(stat -f -c %T .kvfs)" = "$(stat -f -c %T .)" ] &&
    [ "$(stat -c %d .kvfs/stats)" = "$(stat -c %d .)" ] && rm -rf "$mnt"/* && [ -d .kvfs ]
}
unchangeable() {
  echo x >file
  fails_with "File exists" mkdir .kvfs && fails_with "not permitted" rmdir .kvfs &&
    fails_with "not permitted" mv .kvfs other &&
    fails_with "$read_only" touch .kvfs/new && fails_with "$read_only" mkdir .kvfs/txn/new &&
    fails_with "$read_only" rm -rf .kvfs && fails_with "$read_only" mv file .kvfs/ &&
    fails_with "$read_only" mv .kvfs/version . && fails_with "cross-device" ln .kvfs/version hard &&
    fails_with "$read_only" chmod 777 .kvfs/locks && fails_with "$read_only" setfattr -n user.x -v y .kvfs &&
    fails_with "$read_only" bash -c 'echo x >.kvfs/version' && fails_with "$read_only" dd if=file of=.kvfs/version conv=notrunc &&
    fails_with "$read_only" ln -s file .kvfs/link && [ "$(cat .kvfs/version)" = "$("$KVFS" version)" ]
}
contents() {
  local names
  names=$(ls .kvfs | tr '\n' ' ')
  [ "$names" = "kv.sock locks snapshots stats txn version " ] || { echo "in .kvfs: $names"; return 1; }
  [ "$(stat -c %a:%U .kvfs)" = 755:root ] && [ "$(stat -c %a .kvfs/version)" = 444 ] &&
    [ "$(sed '/^$/,$d' .kvfs/stats/stats.txt | cut -d' ' -f1)" = \
      "$("$KVFS" stats "$mnt" | sed '1,/^All counters:/d' | cut -d' ' -f1)" ] &&
    python3 - <<'PY' && cp .kvfs/stats/stats.prom "$work/prom" && cmp -n 10 .kvfs/stats/stats.prom "$work/prom"
import json, mmap, os
text = open(".kvfs/stats/stats.json").read()
counters = json.loads(text)
assert counters["fs.nodes"] > 0
lines = open(".kvfs/stats/stats.prom").read().splitlines()
names = {line.split()[0] for line in lines if line[0] != "#"}
# Of keyspaces, devices, operations and charges the name is a label.
labelled = ("keyspace.", "device.", "operations.", "charges.")
plain = [name for name in counters if not name.startswith(labelled)]
plain = {"kvfs_" + "".join(c if c.isalnum() else "_" for c in name) for name in plain}
assert plain <= names, plain - names
assert all("{" in name or name.startswith("kvfs_device_") for name in names - plain), names - plain
assert any(name.startswith("kvfs_operation_") and "_bucket{" in name for name in names)
typed = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
assert plain <= typed, plain - typed
# What is open stays as it was; what is opened is of now.
held = open(".kvfs/stats/stats.json", "rb")
mapped = mmap.mmap(held.fileno(), 0, prot=mmap.PROT_READ)
nodes = json.loads(mapped[:])["fs.nodes"]
for number in range(50):
    open(f"node{number}", "w").close()
assert json.load(open(".kvfs/stats/stats.json"))["fs.nodes"] >= nodes + 50
assert mapped[:] == held.read() and json.loads(mapped[:])["fs.nodes"] == nodes
assert os.stat(".kvfs/stats/stats.json").st_ino == os.fstat(held.fileno()).st_ino
for number in range(50):
    os.unlink(f"node{number}")
PY
}
locks() {
  mkdir -p project && echo x >project/file && [ -z "$(cat .kvfs/locks)" ] || return 1
  local id waiter status=0
  "$KVFS" kv put tags song artist
  id=$(begin)
  echo y >".kvfs/txn/$id/project/file"
  grep -Eq "^exclusive .* transaction $id \(.* the content of /project/file$" .kvfs/locks || { cat .kvfs/locks; status=1; }
  KVFS_TXN=$id "$KVFS" kv put tags song title
  grep -Eq 'key "song" of keyspace tags$' .kvfs/locks || { cat .kvfs/locks; status=1; }
  [ "$("$KVFS" locks -n | cut -c1-9,20-)" = "$(cut -c1-9,20- .kvfs/locks)" ] || { echo "the command says another thing"; status=1; }
  (echo z >project/file) 2>/dev/null &
  waiter=$!
  until_ok grep -Eq 'waits: main line \([^ ,]+, pid [0-9]+\) .*/project/file$' .kvfs/locks || status=1
  "$KVFS" locks --json | python3 -c '
import json, sys
locks = [json.loads(line) for line in sys.stdin]
waited = [lock for lock in locks if lock["waiters_count"]]
assert waited and waited[0]["waiters"][0]["waiter"]["party"] == "main line", locks
assert waited[0]["holder"]["txn"] == int(sys.argv[1]) and not waited[0]["holder"]["doomed"]' "$id" || status=1
  wait $waiter
  # It waited for too long.
  until_ok grep -Eq "^transaction $id .*doomed\) can't be committed: " .kvfs/locks || status=1
  "$KVFS" txn abort "$id" && [ -z "$(cat .kvfs/locks)" ] && [ -z "$("$KVFS" locks)" ] && [ "$(cat project/file)" = z ] && return $status
}
many_locks() {
  mkdir -p many && local id status=0
  id=$(begin)
  (cd ".kvfs/txn/$id/many" && seq 6000 | xargs touch)
  [ "$("$KVFS" locks | grep -c '/many/')" -ge 6000 ] || { echo "the command shows less"; status=1; }
  [ "$("$KVFS" locks | sort | uniq -d | wc -l)" = 0 ] || { echo "something is listed twice"; status=1; }
  grep -q "there are more" .kvfs/locks && [ "$(stat -c %s .kvfs/locks)" -lt 400000 ] || { echo "the file is not cut"; status=1; }
  "$KVFS" txn abort "$id"
  return $status
}
links() {
  local id other
  id=$(begin) other=$(begin)
  [ "$(ls .kvfs/txn | sort -n | tr '\n' ' ')" = "$id $other " ] && [ "$(readlink ".kvfs/txn/$id")" = "$store/views/$id" ] &&
    echo inside >".kvfs/txn/$id/inside" && [ ! -e inside ] && "$KVFS" txn commit "$id" && [ "$(cat inside)" = inside ] &&
    [ "$(ls .kvfs/txn)" = "$other" ] && [ ! -L ".kvfs/txn/$id" ] && "$KVFS" txn abort "$other" && [ -z "$(ls .kvfs/txn)" ]
}
others() {
  local id status=0
  id=$(begin)
  echo x >".kvfs/txn/$id/secret"
  [ -z "$(as_nobody ls .kvfs/txn)" ] && ! as_nobody test -L ".kvfs/txn/$id" && [ -z "$(as_nobody cat .kvfs/locks)" ] &&
    as_nobody cat .kvfs/version >/dev/null && grep -q secret .kvfs/locks && [ "$(ls .kvfs/txn)" = "$id" ] || status=1
  "$KVFS" txn abort "$id"
  return $status
}
in_a_transaction() {
  # The same directory, and its name is as little to be had.
  [ "$("$KVFS" txn run -- cat .kvfs/version)" = "$("$KVFS" version)" ] &&
    "$KVFS" txn run -- bash -c 'echo x >mine && grep -q "/mine$" .kvfs/locks && [ "$(ls -A | grep -c kvfs)" = 0 ] && ! mkdir .kvfs 2>/dev/null' &&
    [ -f mine ] && rm mine
}
after_large_commits() {
  # By a new epoch the kernel asks anew for every name that it knows.
  "$KVFS" txn run -- bash -c 'mkdir batch && cd batch && seq 2000 | xargs touch' && [ "$(ls batch | wc -l)" = 2000 ] &&
    [ "$(cat .kvfs/version)" = "$("$KVFS" version)" ] && ls .kvfs/txn >/dev/null && rm -r batch
}

# The tree of which a snapshot is made: hard links, links, attributes, holes, sizes in the row and in blocks.
make_tree() {
  mkdir -p "$1/deep/er" && echo small >"$1/small" && head -c 3000000 /dev/urandom >"$1/large" && ln "$1/large" "$1/deep/twin" &&
    ln -s deep/er "$1/link" && truncate -s 5M "$1/holes" && printf end | dd of="$1/holes" bs=1 seek=4000000 conv=notrunc status=none &&
    mkfifo "$1/pipe" && setfattr -n user.tag -v value "$1/small" && chmod 640 "$1/small" && touch -d '2001-02-03 04:05:06.789' "$1/large" &&
    for i in $(seq 300); do echo "$i" >"$1/deep/er/file$i" || return 1; done
}
# To diff, a pipe is never like another one.
same() { diff -r --no-dereference -x pipe "$@" && [ -p "$1/pipe" ] && [ -p "$2/pipe" ]; }
snapshot_is_like_a_copy() {
  make_tree tree && cp -a tree "$work/copy" && touch -r tree "$work/copy" && "$KVFS" snapshot create first || return 1
  # Much happens afterwards.
  rm -r tree/deep && echo other >tree/small && : >tree/large && mv tree/link tree/moved && echo new >tree/new
  local at=.kvfs/snapshots/first/tree
  [ "$(ls .kvfs/snapshots)" = first ] && same "$work/copy" $at &&
    [ -z "$(rsync -aHXn --itemize-changes --checksum --delete $at/ "$work/copy/")" ] &&
    [ "$(stat -c %h:%i $at/large)" = "2:$(stat -c %i $at/deep/twin)" ] && [ "$(stat -c %i $at/large)" != "$(stat -c %i tree/large)" ] &&
    [ "$(getfattr --only-values -n user.tag $at/small)" = value ] && [ ! -e $at/new ] && [ ! -e .kvfs/snapshots/first/.kvfs ]
}
snapshot_is_taken_away() {
  local at=.kvfs/snapshots/first/tree
  mkdir "$work/untarred" && tar -C $at -cf - . | tar -C "$work/untarred" -xpf - && same "$work/copy" "$work/untarred" &&
    [ "$(stat -c %h "$work/untarred/large")" = 2 ] && rsync -aHX $at/ restored/ && same "$work/copy" restored &&
    [ "$(stat -c %h restored/large)" = 2 ] && cp -a $at/large copied && cmp copied "$work/copy/large" && cp --reflink=auto $at/holes copied2 &&
    cmp copied2 "$work/copy/holes" && grep -rq 300 $at/deep && rm -r restored copied copied2
}
snapshot_is_read_only() {
  local at=.kvfs/snapshots/first/tree
  fails_with "$read_only" touch $at/new && fails_with "$read_only" rm $at/small && fails_with "$read_only" mv $at/small tree/ &&
    fails_with "$read_only" chmod 777 $at/small && fails_with "$read_only" bash -c "echo x >>$at/small" &&
    fails_with "$read_only" setfattr -n user.x -v y $at/small && fails_with "$read_only" truncate -s 0 $at/large &&
    fails_with "cross-device" ln $at/large tree/hard && fails_with "$read_only" ln tree/new $at/hard &&
    fails_with "$read_only" rm -rf .kvfs/snapshots/first && fails_with "$read_only" rmdir .kvfs/snapshots/first && [ "$(cat $at/small)" = small ]
}
snapshot_is_mapped() {
  python3 - <<'PY'
import mmap, os
at = ".kvfs/snapshots/first/tree/"
file = open(at + "large", "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
assert mapped[:] == file.read() and len(mapped) == 3000000
assert os.statvfs(at).f_blocks == os.statvfs(".").f_blocks
holes = os.open(at + "holes", os.O_RDONLY)
assert os.lseek(holes, 0, os.SEEK_DATA) > 3_900_000
PY
}
many_snapshots() {
  local i
  for i in $(seq 30); do echo "$i" >number && "$KVFS" snapshot create "s$i" || return 1; done
  [ "$(cat .kvfs/snapshots/s*/number | sort -n | tr '\n' ' ')" = "$(seq 30 | tr '\n' ' ')" ] && find .kvfs/snapshots >/dev/null &&
    [ "$(find .kvfs/snapshots -maxdepth 1 | wc -l)" = 32 ] || return 1
  for i in $(seq 30); do "$KVFS" snapshot delete "s$i" || return 1; done
  [ "$(ls .kvfs/snapshots)" = first ] && [ ! -e .kvfs/snapshots/s7 ]
}
deleted_snapshot() {
  exec 8<.kvfs/snapshots/first/tree/deep && "$KVFS" snapshot delete first && [ ! -e .kvfs/snapshots/first ] || return 1
  until_ok fails_with "Stale file handle" ls -l /proc/self/fd/8/er/
  local status=$?
  exec 8<&-
  "$KVFS" snapshot create first && [ ! -e .kvfs/snapshots/first/tree/deep ] && "$KVFS" snapshot delete first && return $status
}
unmounts() {
  cat "$mnt"/.kvfs/version "$mnt"/.kvfs/stats/* >/dev/null && umount_store && check_store && mount_store && [ -f "$mnt/.kvfs/version" ]
}

step "no listing shows it" not_listed
step "nothing in it can be changed" unchangeable
step "version and counters" contents
step "locks and who waits for them" locks
step "thousands of locks" many_locks
step "links to views of transactions" links
step "others see nothing of a transaction" others
step "inside a transaction" in_a_transaction
step "after commits of many names" after_large_commits
step "a snapshot is like a copy" snapshot_is_like_a_copy
step "tar, rsync, cp from a snapshot" snapshot_is_taken_away
step "a snapshot is read-only" snapshot_is_read_only
step "a snapshot is mapped" snapshot_is_mapped
step "many snapshots" many_snapshots
step "a deleted snapshot" deleted_snapshot
cd /
step "unmounts, is clean, and is there again" unmounts
summary hidden
