#!/usr/bin/env bash
# Quotas of users, groups and projects on a mount.
# usage: tests/suites/quota.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "quota: a plain directory has none"
work_dir quota
make_store quota --size 1G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
cd "$mnt" || die "no mount"
no_space=6 denied=7 in_use=3 me=$(id -u) group=$(id -g)
is_root() { [ "$me" = 0 ]; }
quota() { timeout 60 "$KVFS" quota "$@" -s "${on:-$mnt}"; }
# A user that is limited: root is not.
if is_root; then who=2001; else who=$me; fi
as() { if is_root; then setpriv --reuid "$who" --regid "$who" --clear-groups -- "$@"; else "$@"; fi; }
# has KIND ID FIELD
has() { quota get "--$1" "$2" --json | python3 -c "import json,sys; print(json.load(sys.stdin)[0]['$3'])"; }
# What find sees of a user: least bytes, most bytes, inodes. Files beyond 4 KiB take whole blocks, what is in a row its length.
seen() {
  find . -xdev -uid "$1" -printf '%b %y %s\n' |
    awk '{ n++; if ($2 == "f") { most += $1 * 512; least += $3 > 4096 ? $1 * 512 : $3 } } END { print least + 0, most + 0, n + 0 }'
}
counts_what_is_there() {
  local id bytes least most inodes
  for id in "$me" "$who"; do
    bytes=$(has user "$id" bytes)
    read -r least most inodes <<<"$(seen "$id")"
    [ "$least" -le "$bytes" ] && [ "$bytes" -le "$most" ] && [ "$(has user "$id" inodes)" = "$inodes" ] ||
      { seen "$id"; quota report; return 1; }
  done
}

turned_on() {
  mkdir -m 777 tree && for i in {1..300}; do head -c $((i % 7 * 4096 + 4097)) /dev/zero >"tree/$i" || return 1; done
  ends 1 quota report && said 'quota on' || return 1
  local id
  id=$("$KVFS" txn begin | head -n 1) && ends "$in_use" quota on && "$KVFS" txn abort "$id" || return 1
  quota on && quota report && counts_what_is_there && ends 0 quota on
}

follows() {
  mkdir -m 777 theirs && as sh -ec 'for i in 1 2 3; do head -c 100000 /dev/zero >theirs/$i; mkdir theirs/d$i; done; truncate -s 50000 theirs/1; rm theirs/2' || return 1
  if is_root; then chown "$who" tree/1 tree/2 && chgrp 3001 tree/3 && [ "$(has group 3001 inodes)" = 1 ] || return 1; fi
  rm tree/4 && until_ok counts_what_is_there && "$KVFS" check "$mnt"
}

# A user other than root sees what is said of that user and its groups.
seen_by_others() {
  is_root || return 0
  chmod 711 "$store" "$work" && chmod 666 "$store/control.sock"
  local all
  all=$(as "$KVFS" quota report -s "$mnt") && grep -q "^user *$who " <<<"$all" && ! grep -E '^user *(root|0) |^project' <<<"$all" || return 1
  as "$KVFS" quota get -s "$mnt" && as "$KVFS" quota get --group "$who" -s "$mnt" || return 1
  for of in --user=0 --group=3001 --project=42; do ends "$denied" as "$KVFS" quota get "$of" -s "$mnt" || return 1; done
  ends "$denied" as "$KVFS" quota project list -s "$mnt"
}

limited() {
  is_root || { echo "needs root, to limit a user who has nothing else"; return 77; }
  quota set --user "$who" --bytes-hard 1M --inodes-hard 12 && quota get --user "$who" || return 1
  ! as sh -c 'head -c 2000000 /dev/zero >theirs/large' 2>"$work/said" && said 'quota exceeded' || return 1
  ! as sh -c 'for i in 1 2 3 4 5 6 7 8 9; do mkdir theirs/more$i || exit 1; done' 2>"$work/said" && said 'quota exceeded' || return 1
  counts_what_is_there && [ "$(has user "$who" bytes)" -le 1048576 ] && [ "$(has user "$who" inodes)" = 12 ] || return 1
  if is_root; then head -c 5000 /dev/zero >tree/root && chown "$who" tree/root || return 1; fi
  # A removed file counts until the kernel has forgotten it.
  as rm -r theirs/large theirs/more1 && until_ok as mkdir theirs/again 2>/dev/null
}

graced() {
  quota set --user "$who" --bytes-hard 0 --inodes-hard 0 --bytes-soft 4K --grace 1s || return 1
  as sh -c 'head -c 20000 /dev/zero >theirs/soft' && quota report | grep -E ' [01] s|over' || return 1
  over() { ! as sh -c 'head -c 20000 /dev/zero >>theirs/soft' 2>/dev/null; }
  until_ok over && quota set --user "$who" --bytes-soft 0 && as sh -c 'head -c 20000 /dev/zero >>theirs/soft'
}

in_transactions() {
  local before
  before=$(quota report --json) && ! "$KVFS" txn run -- sh -c 'head -c 500000 /dev/zero >tree/aborted; exit 1'
  [ "$(quota report --json)" = "$before" ] || return 1
  "$KVFS" txn run -- sh -c 'head -c 500000 /dev/zero >tree/committed; rm tree/5; cp tree/6 tree/copy' || return 1
  until_ok counts_what_is_there && "$KVFS" snapshot create then && rm -r tree/?? && "$KVFS" snapshot restore then && until_ok counts_what_is_there &&
    "$KVFS" branch create -s "$mnt" try && mkdir "$work/branch" && "$KVFS" branch mount -s "$mnt" try "$work/branch" &&
    head -c 70000 /dev/zero >"$work/branch/tree/branched" && "$KVFS" umount "$work/branch" && "$KVFS" branch merge -s "$mnt" try && counts_what_is_there
}

# project PATH
project() { "$KVFS" quota project get "$1"; }
counts_tree() { [ "$(has project "$1" inodes)" = "$(find "$2" | wc -l)" ]; }

projects() {
  mkdir -p p1/sub p2 && head -c 50000 /dev/zero >p1/sub/file && ln -s sub/file p1/link && mkfifo p1/fifo && mkdir p2/d || return 1
  "$KVFS" quota project set p1 42 && "$KVFS" quota project set p2 43 && mkdir p1/sub/new && echo x >p1/sub/new/file || return 1
  local path
  for path in p1 p1/link p1/fifo p1/sub/file p1/sub/new p1/sub/new/file; do [ "$(project $path)" = 42 ] || return 1; done
  [ "$(project tree)" = 0 ] && counts_tree 42 p1 && [ "$("$KVFS" quota project list -s . --json | grep -o '/p[12]' | xargs)" = "/p1 /p2" ] || return 1
  # Into the other tree it is a copy.
  ! ln p1/sub/file p2/file 2>"$work/said" && said 'ross-device' || return 1
  mv p1/sub/file p2/file && mv p1/sub/new p2/d/new && [ "$(project p2/file)" = 43 ] && [ "$(project p2/d/new/file)" = 43 ] || return 1
  until_ok counts_tree 42 p1 && until_ok counts_tree 43 p2 && mv p2/d tree/moved-out && [ "$(project tree/moved-out)" = 43 ] && mv tree/moved-out p2/d || return 1
  python3 - p2/file <<'EOF' || return 1
import fcntl, os, struct, sys
GET, SET, FLAGS = 0x801C581F, 0x401C5820, 0x80086601
file, directory = (os.open(path, os.O_RDONLY) for path in (sys.argv[1], os.path.dirname(sys.argv[1])))
words = list(struct.unpack("5I8x", fcntl.ioctl(file, GET, bytes(28))))
assert words[3] == 43 and words[0] & 0x200 == 0, words
fcntl.ioctl(file, SET, struct.pack("5I8x", *words[:3], 44, 0))
assert struct.unpack("5I8x", fcntl.ioctl(file, GET, bytes(28)))[3] == 44
assert struct.unpack("5I8x", fcntl.ioctl(directory, GET, bytes(28)))[0] & 0x200
assert struct.unpack("I", fcntl.ioctl(directory, FLAGS, bytes(8))[:4])[0] & 0x20000000
EOF
  [ "$(project p2/file)" = 44 ] && [ "$(has project 44 inodes)" = 1 ] && rm p2/file || return 1
  if command -v lsattr >/dev/null; then lsattr -pd p1 | grep -w 42 && chattr -p 43 p2/d/new/file || return 1; fi
  if is_root; then ! as "$KVFS" quota project set theirs 42 2>/dev/null || return 1; fi
  "$KVFS" txn run -- sh -c 'echo x >p1/committed && mkdir p1/more' && counts_tree 42 p1 && [ "$(project p1/more)" = 42 ]
}

limited_tree() {
  quota set --project 42 --bytes-hard 1M --inodes-hard 20 && quota get --project 42 && quota report | grep '^project  42' || return 1
  [ "$(df -B1 --output=size p1/sub | tail -n 1 | xargs)" = 1048576 ] && [ "$(df --output=itotal p1 | tail -n 1 | xargs)" = 20 ] || return 1
  [ "$(df -B1 --output=size tree | tail -n 1 | xargs)" -gt 1048576 ] && head -c 2000000 /dev/zero >tree/large || return 1
  ! cp tree/large p1/large 2>"$work/said" && said 'o space left' && [ "$(has project 42 bytes)" -le 1048576 ] || return 1
  ! dd if=/dev/zero of=p1/large bs=64K count=30 2>/dev/null && [ "$(df --output=avail p1 | tail -n 1 | xargs)" -le 256 ] && counts_tree 42 p1 && rm p1/large || return 1
  until_ok cp tree/1 p1/again 2>/dev/null && ! mv tree/large p1/large 2>/dev/null && [ -s tree/large ] && rm -f tree/large p1/large && "$KVFS" check "$mnt"
}

killed() {
  head -c 300000 /dev/zero >"$mnt/tree/synced" && sync "$mnt/tree/synced" && exec 3>"$mnt/tree/open" && rm "$mnt/tree/open" && head -c 50000 /dev/zero >&3
  echo x >"$mnt/p1/killed" && sync "$mnt/p1/killed" && "$KVFS" quota project set "$mnt/p1/sub" 45
  kill_daemon
  exec 3>&-
  mount_store && (cd "$mnt" && counts_what_is_there && [ "$(project p1/killed)" = 42 ]) && "$KVFS" check "$mnt"
}

not_mounted() {
  umount_store && check_store && on=$store quota set --user "$who" --inodes-hard 100000 && on=$store quota report && on=$store quota off &&
    ends 1 env on="$store" "$KVFS" quota report -s "$store" && on=$store quota on && [ "$(on=$store has user "$who" inodes_hard)" = 100000 ] && check_store && mount_store &&
    (cd "$mnt" && counts_what_is_there)
}

# Used and exclusive bytes of projects 51 and 52. Merges may copy short stretches of what is shared, which are exclusive
# then: where a flush has cut a file follows from when it came.
exclusive_are() {
  quota report --exclusive --json | python3 -c "
import json, sys
rows = {row['id']: row for row in json.load(sys.stdin) if row['kind'] == 'project'}
found = [rows.get(id, {}).get(key, 0) for id in (51, 52) for key in ('bytes', 'bytes_exclusive')]
expected = [int(word) for word in sys.argv[1:]]
fits = found[::2] == expected[::2] and all(0 <= a - b <= 1 << 15 for a, b in zip(found[1::2], expected[1::2]))
sys.exit(None if fits else f'{found} instead of {expected}')" "$@"
}

# What clones share is of none alone. What is in memory would be cloned by copies.
shares() {
  local m=1048576
  mkdir "$mnt/e1" "$mnt/e2" && "$KVFS" quota project set "$mnt/e1" 51 && "$KVFS" quota project set "$mnt/e2" 52 &&
    head -c $((4 * m)) /dev/urandom >"$mnt/e1/file" && umount_store && mount_store || return 1
  exclusive_are $((4 * m)) $((4 * m)) 0 0 && "$KVFS" clone "$mnt/e1/file" "$mnt/e1/again" && exclusive_are $((8 * m)) $((4 * m)) 0 0 || return 1
  "$KVFS" clone "$mnt/e1/file" "$mnt/e2/file" && exclusive_are $((8 * m)) 0 $((4 * m)) 0 || return 1
  dd if=/dev/urandom of="$mnt/e2/file" bs=64K seek=3 count=16 conv=notrunc status=none && sync "$mnt/e2/file" && exclusive_are $((8 * m)) $m $((4 * m)) $m || return 1
  quota report --exclusive | grep -E '^ +WHO +BYTES +EXCLUSIVE ' && quota report --exclusive | grep -E '^project +52 +4.0 MiB +1.0 MiB ' || return 1
  [ "$(quota get --project 51 --exclusive --json | python3 -c "import json,sys; print(json.load(sys.stdin)[0]['bytes_exclusive'] >> 20)")" = 1 ] || return 1
  ! quota report | grep EXCLUSIVE && [ "$(has project 51 bytes_exclusive)" = None ] || return 1
  if is_root; then
    chown "$who" "$mnt/e2/file" && chmod 666 "$store/control.sock" && as "$KVFS" quota get -s "$mnt" || return 1
    ends "$denied" as "$KVFS" quota get --exclusive -s "$mnt" && ends "$denied" as "$KVFS" quota report --exclusive -s "$mnt" || return 1
  fi
  rm "$mnt/e1/file" "$mnt/e1/again" && until_ok exclusive_are 0 0 $((4 * m)) $((4 * m)) || return 1
  umount_store && on=$store exclusive_are 0 0 $((4 * m)) $((4 * m)) && mount_store
}

received() {
  "$KVFS" mkfs --size 1G "$work/target" >/dev/null && "$KVFS" quota on -s "$work/target" && "$KVFS" snapshot create -s "$mnt" sent &&
    "$KVFS" snapshot send -s "$mnt" sent | "$KVFS" snapshot receive -s "$work/target" && "$KVFS" check "$work/target" || return 1
  [ "$(on=$work/target has user "$me" inodes)" = "$(has user "$me" inodes)" ] && [ "$(on=$work/target has project 42 inodes)" = "$(has project 42 inodes)" ]
}

step "turned on over files that are there" turned_on
step "usage follows writers, owners and removals" follows
step "hard limits" limited
step "soft limits and their grace time" graced
step "transactions, restores, branches" in_transactions
step "projects" projects
step "limits of projects" limited_tree
step "who sees what" seen_by_others
cd /
step "kill -9" killed
step "a store that is not mounted" not_mounted
step "exclusive bytes" shares
step "counted again after a receive" received
umount_store && check_store >/dev/null || { say "  the store is not sound in the end"; failed=$((failed + 1)); }
summary quota
