#!/usr/bin/env bash
# Branches as a user sees them, on a real mount: worked in beside the main line, kept, merged, refused.
# usage: tests/suites/branch.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "branch: a plain directory has no branches"
work_dir branch
make_store branch --size 2G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"

# Exit codes, as in `kvfs --help`.
failed_code=1 usage=2 in_use=3 conflict=75

branch() { timeout 60 "$KVFS" branch "$@" -s "$store"; }
at=$work/branch-1 at2=$work/branch-2
mkdir "$at" "$at2"
no_branches() { [ "$(branch list --json)" = '[]' ]; }
no_orphans() { [ "$("$KVFS" stats --json "$mnt" | python3 -c 'import json,sys; print(json.load(sys.stdin)["fs.orphans_queued"])')" = 0 ]; }

named() {
  ends 0 branch create first && ends "$failed_code" branch create first && said 'exists already' &&
    ends "$usage" branch create a/b && ends "$failed_code" branch delete none && said 'no branch' &&
    ends "$failed_code" branch merge none && ends 0 branch list && said 'first  */$' && ends 0 branch list --json &&
    said '"name":"first"' && ends 0 branch mount first "$at" && ends "$in_use" branch mount first "$at2" &&
    ends 0 branch list && said "first .*$at" && ends 0 branch umount first && ends 0 branch delete first && no_branches
}
worked_in() {
  cd "$mnt" && mkdir -p project/src && echo one >project/src/a && echo two >project/src/b && head -c 3000000 /dev/urandom >project/large || return 1
  branch create try && branch mount try "$at" && cd "$at/project" || return 1
  echo changed >src/a && rm src/b && mkdir -p new/deep && echo new >new/deep/file && mv large new/large && ln src/a new/link &&
    setfattr -n user.note -v inside src/a && dd if=/dev/urandom of=new/large bs=4096 count=3 seek=7 conv=notrunc status=none || return 1
  # The main line goes on.
  [ "$(cat "$mnt/project/src/a")" = one ] && [ ! -e "$mnt/project/new" ] && echo beside >"$mnt/project/src/c" &&
    mkdir "$mnt/elsewhere" && chmod 700 "$mnt/project" && [ ! -e src/c ] || return 1
  local sum
  sum=$(sha256sum <new/large) && cd / && ends 0 branch diff try && said '^~ /project/src/a' && said '^\+ /project/new/deep/file' &&
    said '^> /project/large → /project/new/large' && said '^- /project/src/b' && ends 0 branch diff --stat try &&
    ends 0 "$KVFS" umount "$at" && [ -z "$(ls "$at")" ] && ends 0 branch merge try || return 1
  cd "$mnt/project" && [ "$(cat src/a)" = changed ] && [ ! -e src/b ] && [ "$(cat src/c)" = beside ] && [ "$(cat new/deep/file)" = new ] &&
    [ "$sum" = "$(sha256sum <new/large)" ] && [ ! -e large ] && [ "$(stat -c %h src/a)" = 2 ] && [ "$(stat -c %a .)" = 700 ] &&
    getfattr -n user.note src/a >/dev/null && no_branches && cd / && rm -rf "$mnt/project" "$mnt/elsewhere"
}
seen_at_once() {
  cd "$mnt" && mkdir d && echo old >d/f && branch create cached && branch mount cached "$at" && echo new >"$at/d/f" && touch "$at/d/g" || return 1
  # What the kernel may remember, and a file that is open.
  ls -l d >/dev/null && cat d/f >/dev/null && ! cat d/g 2>/dev/null && exec 8<d/f && branch merge cached &&
    [ "$(cat <&8)" = new ] && [ "$(cat d/f)" = new ] && [ -e d/g ] && [ "$(ls d | wc -l)" = 2 ] && exec 8<&- && cd / && rm -r "$mnt/d"
}
refused() {
  cd "$mnt" && mkdir d e && echo old >d/f && branch create meets && branch mount meets "$at" || return 1
  echo inside >"$at/d/f" && mv "$at/d" "$at/e/d" && echo outside >d/f && touch d/g && ends "$conflict" branch merge meets && said '/d/f was changed outside' &&
    [ "$(cat d/f)" = outside ] && [ -z "$(ls e)" ] || return 1
  # It stays, mounted where it was, and can be gone on with: put what is in the way away.
  [ "$(cat "$at/e/d/f")" = inside ] && branch umount meets || return 1
  rm -r d && ends "$conflict" branch merge meets && ends 0 branch delete meets && no_branches && rm -rf d e && cd /
}
no_circle() {
  cd "$mnt" && mkdir a b && branch create circle && branch mount circle "$at" && mv "$at/a" "$at/b/a" && mv b a/b &&
    ends "$conflict" branch merge circle && said 'inside of itself' && [ -d a/b ] && [ -d "$at/b/a" ] && branch delete circle && rmdir a/b a && cd /
}
in_use_inside() {
  branch create busy && branch mount busy "$at" && echo 1 >"$at/f" && exec 8<"$at/f" && ends "$in_use" branch merge busy &&
    ends "$in_use" branch umount busy && exec 8<&- && ends 0 branch merge busy && [ "$(cat "$mnt/f")" = 1 ] && rm "$mnt/f"
}
one_side_preferred() {
  cd "$mnt" && echo old >f && echo old >g && branch create sides && branch mount sides "$at" && echo inside >"$at/f" && echo inside >"$at/g" &&
    echo outside >f && echo outside >g && ends "$conflict" branch merge sides && said 'prefer main' &&
    ends "$conflict" branch merge sides --prefer branch /f && said '/g was changed outside' && [ "$(cat f)" = outside ] &&
    ends 0 branch merge sides --prefer branch /f --prefer main /g && [ "$(cat f g | xargs)" = 'inside outside' ] && no_branches && rm f g && cd /
}
two_at_once() {
  mkdir "$mnt/shared" && branch create one && branch create two && branch mount one "$at" && branch mount two "$at2" || return 1
  local i
  for i in $(seq 50); do echo "$i" >"$at/shared/one-$i" && echo "$i" >"$at2/shared/two-$i" && echo "$i" >"$mnt/shared/main-$i" || return 1; done
  [ "$(ls "$at/shared" | wc -l)" = 50 ] && [ "$(ls "$at2/shared" | wc -l)" = 50 ] && ends 0 branch merge one && ends 0 branch merge two &&
    [ "$(ls "$mnt/shared" | wc -l)" = 150 ] && [ "$(ls -i "$mnt/shared" | awk '{ print $1 }' | sort -u | wc -l)" = 150 ] && rm -r "$mnt/shared"
}
transaction_in_the_way() {
  echo old >"$mnt/f" && branch create late && branch mount late "$at" && echo inside >"$at/f" && branch umount late || return 1
  local id
  id=$("$KVFS" txn begin -s "$mnt" | head -n 1) && (cd "$mnt" && "$KVFS" txn join "$id" -- sh -c 'echo txn > f') && ends "$conflict" branch merge late &&
    "$KVFS" txn abort -s "$mnt" "$id" && ends 0 branch merge late && [ "$(cat "$mnt/f")" = inside ] && rm "$mnt/f"
}
open_at_the_end() {
  local id two
  id=$("$KVFS" txn begin -s "$mnt" | head -n 1) && (cd "$mnt" && "$KVFS" txn join "$id" -- sh -c 'mkdir kept && echo text > kept/file') || return 1
  ends "$in_use" "$KVFS" umount "$mnt" && said 'checkpoint-open' || return 1
  two=$("$KVFS" txn begin -s "$mnt" --isolation serializable | head -n 1) && ends "$in_use" "$KVFS" umount --checkpoint-open "$mnt" && said 'serializable' && no_branches || return 1
  "$KVFS" txn abort -s "$mnt" "$two"
  note_rss
  ends 0 "$KVFS" umount --checkpoint-open "$mnt" && said "branch txn-" || return 1
  wait "$daemon"
  daemon=''
  mount_store && [ ! -e "$mnt/kept" ] && ends 0 branch list && said 'txn-' && ends 0 branch merge "$(branch list --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["name"])')" &&
    [ "$(cat "$mnt/kept/file")" = text ] && rm -r "$mnt/kept" && no_branches
}
unmounted() {
  mkdir "$mnt/cold" && branch create cold && branch mount cold "$at" && echo deep >"$at/cold/file" && umount_store || return 1
  [ -z "$(ls "$at")" ] && ends 0 branch list && said 'cold  */$' && ends 0 branch diff cold && said '^\+ /cold/file' && check_store >/dev/null &&
    ends 0 branch create colder && ends 0 branch merge cold && ends 0 branch delete colder && mount_store && [ "$(cat "$mnt/cold/file")" = deep ] && rm -r "$mnt/cold"
}
killed() {
  branch create safe && branch mount safe "$at" && mkdir "$at/kept" && echo kept >"$at/kept/file" && "$KVFS" umount "$at" && branch mount safe "$at" &&
    echo lost >"$at/kept/file" && touch "$at/lost" && kill_daemon || return 1
  umount -l "$at" 2>/dev/null
  mount_store && branch mount safe "$at" && [ "$(cat "$at/kept/file")" = kept ] && [ ! -e "$at/lost" ] && echo more >"$at/kept/more" &&
    ends 0 branch merge safe && [ "$(cat "$mnt/kept/more")" = more ] && "$KVFS" check "$mnt" && rm -r "$mnt/kept"
}
keys_in_it() {
  local id kv
  kv() { timeout 20 "$KVFS" kv "$1" -s "$mnt" "${@:2}"; }
  kv put tags song old && branch create keys && branch mount keys "$at" && id=$(branch list --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["transaction"])') &&
    echo file >"$at/song" && KVFS_TXN=$id kv put tags song new && KVFS_TXN=$id kv put tags other 1 && [ "$(KVFS_TXN=$id kv get tags song)" = new ] &&
    [ "$(kv get tags song)" = old ] && ends 0 branch diff keys && said '^~ key tags/song' && kv put tags song outside &&
    ends "$conflict" branch merge keys && said 'key "song" of keyspace tags' && branch delete keys && branch create again && branch mount again "$at" &&
    id=$(branch list --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["transaction"])') && KVFS_TXN=$id kv put tags song again && echo file >"$at/song" &&
    kv put tags beside 1 && ends 0 branch merge again && [ "$(kv get tags song)" = again ] && [ -e "$mnt/song" ] && rm "$mnt/song"
}
# Nothing leads out of a branch of a directory, not even a handle; what a program is used to works in it.
of_directory() {
  mkdir -p "$mnt/team/project" && echo secret >"$mnt/team/secret" && echo old >"$mnt/team/project/f" && ends 0 branch create inside "$mnt/team/project" &&
    ends 0 branch list && said 'inside .* /team/project' && branch mount inside "$at" || return 1
  python3 - "$mnt/team/secret" "$at" <<'PY' || return 1
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
handle, mount = Handle(bytes=128), ctypes.c_int()
AT_FDCWD, AT_HANDLE_FID = -100, 0x200
of = lambda flags: libc.name_to_handle_at(AT_FDCWD, sys.argv[1].encode(), ctypes.byref(handle), ctypes.byref(mount), flags)
if of(0) != 0 and of(AT_HANDLE_FID) != 0:
    sys.exit(0)  # there are no handles at all
there = os.open(sys.argv[2], os.O_RDONLY)
assert libc.open_by_handle_at(there, ctypes.byref(handle), os.O_RDONLY) < 0, "a handle leads out of the branch"
PY
  cd "$at" && git init -q . && git -c user.name=a -c user.email=a@b add f && git -c user.name=a -c user.email=a@b commit -qm one && mkdir -p a/b && mv f a/b &&
    [ "$(cd a/b && /bin/pwd -P)" = "$at/a/b" ] && [ "$(find . -name secret | wc -l)" = 0 ] && tar -cf - . | tar -tf - >/dev/null && cd / || return 1
  ends 0 branch diff inside && said '^> /f → /a/b/f' && ends 0 branch merge inside && [ "$(cat "$mnt/team/project/a/b/f")" = old ] &&
    (cd "$mnt/team/project" && git log --oneline | grep -q one) && no_branches && rm -r "$mnt/team"
}
no_trace_of_two() { ! branch list --json | grep -q '"name":"two"'; }
# Two ways to go on from a branch that is worked in; one of them is kept.
of_branch() {
  mkdir "$mnt/p" && echo old >"$mnt/p/f" && branch create base && branch mount base "$at" && echo base >"$at/p/base" && head -c 5000000 /dev/urandom >"$at/p/large" &&
    ends 0 branch create one --of base && ends 0 branch create two --of base --flush && ends "$failed_code" branch create one --of base && said 'exists already' &&
    ends 0 branch list && said 'one  *branch base' && branch list --json | grep -q '"parent":"base"' && branch mount one "$at2" || return 1
  cmp "$at/p/large" "$at2/p/large" && echo one >"$at2/p/f" && dd if=/dev/urandom of="$at2/p/large" bs=4096 count=3 seek=7 conv=notrunc status=none &&
    mv "$at2/p" "$at2/q" && echo beside >"$at/p/beside" && ends 0 branch diff one && said '/q/f' && ! said 'base$' || return 1
  ends "$in_use" branch merge base && said 'one, two' && [ "$(cat "$at/p/beside")" = beside ] && ends "$in_use" branch delete base || return 1
  local sum
  sum=$(sha256sum <"$at2/q/large") && exec 8<"$at/p/f" && ends "$in_use" branch merge one && exec 8<&- && [ "$(cat "$at2/q/f")" = one ] || return 1
  # Both are mounted; what it is merged into is mounted again.
  ends 0 branch merge one && [ -z "$(ls "$at2")" ] && [ "$(cat "$at/q/f")" = one ] && [ "$(cat "$at/q/beside")" = beside ] && [ "$sum" = "$(sha256sum <"$at/q/large")" ] &&
    [ "$(cat "$mnt/p/f")" = old ] || return 1
  branch mount two "$at2" && echo two >"$at2/p/f" && kill_daemon && umount -l "$at" "$at2" 2>/dev/null
  mount_store && branch mount two "$at2" && echo two >"$at2/p/f" && ends "$conflict" branch merge two && said '/p/f was changed outside' && [ "$(cat "$at2/p/f")" = two ] &&
    ends 0 branch merge two --prefer main && no_trace_of_two && ends 0 branch merge base && [ "$(cat "$mnt/q/f")" = one ] && [ "$sum" = "$(sha256sum <"$mnt/q/large")" ] && no_branches && "$KVFS" check "$mnt" && rm -r "$mnt/q"
}
# A build's worth of files, ten branches, and nothing is left of them.
space_back() {
  until_ok no_orphans
  local i
  for i in $(seq 10); do
    branch create "fat-$i" && branch mount "fat-$i" "$at" && head -c 8000000 /dev/urandom >"$at/fat" && (cd "$at" && seq 300 | xargs touch) && branch delete "fat-$i" || return 1
  done
  no_branches && [ "$("$KVFS" stats --json "$mnt" | python3 -c 'import json,sys; print(json.load(sys.stdin)["zones.live_bytes"])')" -lt 40000000 ] && [ "$(ls "$mnt" | wc -l)" = 0 ]
}

step "names, lists, errors" named
step "worked in beside the main line, and merged" worked_in
step "a merge shows at once on the main line" seen_at_once
step "a conflict: 75, the paths, and the branch stays" refused
step "one side preferred, where both have changed something" one_side_preferred
step "no circle of directories" no_circle
step "files open in it" in_use_inside
step "two branches and the main line at once" two_at_once
step "keys in a branch" keys_in_it
step "a branch of a directory, and no way out of it" of_directory
step "branches of a branch: one is kept" of_branch
step "a transaction in the way" transaction_in_the_way
step "open transactions are kept at the unmount" open_at_the_end
step "a store that is not mounted" unmounted
step "kill -9 leaves the last checkpoint" killed
step "deleted branches leave no space behind" space_back
umount_store || failed=$((failed + 1))
check_store >/dev/null || failed=$((failed + 1))
summary branch
