#!/usr/bin/env bash
# Snapshots sent from store to store: whole, as differences, broken off and gone on with, damaged, with clones.
# usage: tests/suites/transfer.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "transfer: a plain directory has no snapshots"
work_dir transfer
make_store source --size 1G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
target=$work/target.store

# Exit codes, as in `kvfs --help`.
failed_code=1 usage=2 in_use=3 other_version=4 damaged=5

snap() { timeout 60 "$KVFS" snapshot "$@"; }
send() { timeout 60 "$KVFS" snapshot send -s "$mnt" "$@"; }
receive() { timeout 60 "$KVFS" snapshot receive -s "$target" "$@"; }
# What makes a tree. (Inode numbers of a snapshot are shown as others, and without set-id bits: [privileges].)
picture() {
  (
    cd "$1" || exit 1
    find . -printf '%M %U %G %n %T@ %P %l %s %b\n' | sed 's/^\(...\)s/\1x/' | sort
    find . -type f -print0 | sort -z | xargs -0r sha256sum
    getfattr -R -d -m - . 2>/dev/null
  )
}
# Files that lend privileges; nothing takes them away here after the first snapshot.
privileges() { (cd "$1" && find . -path ./.kvfs -prune -o -perm /7000 -printf '%m %U %G %P\n' | sort); }
# target_is DIRECTORY: the receiving store's tree is what is in DIRECTORY of the source, and sound.
target_is() {
  picture "$1" >"$work/expected"
  "$KVFS" check "$target" || return 1
  mkdir -p "$work/target.mnt" && "$KVFS" mount "$target" "$work/target.mnt" || return 1
  picture "$work/target.mnt" >"$work/found"
  privileges "$mnt" | tee "$work/lent" | diff - <(privileges "$work/target.mnt") && grep -q '^4750 .* dir/two$' "$work/lent" || return 1
  "$KVFS" kv get -s "$work/target.mnt" tags song >"$work/key" && "$KVFS" kv keyspaces -s "$work/target.mnt" >"$work/keyspaces"
  "$KVFS" umount "$work/target.mnt" && diff "$work/expected" "$work/found"
}

make_tree() {
  cd "$mnt" && mkdir -p dir/deep && echo one >one && ln one dir/link && ln -s ../one dir/symlink &&
    head -c 9000000 /dev/urandom >large && mkfifo pipe && echo hidden >dir/two && chmod 4750 dir/two &&
    setfattr -n user.note -v old one && truncate -s 1M sparse && echo tail >>sparse &&
    { [ "$(id -u)" != 0 ] || chown 1:2 dir/deep; } &&
    "$KVFS" kv put tags song old && "$KVFS" kv chmod 640 tags
}
change_tree() {
  cd "$mnt" && echo "changed $1" >one && rm -f dir/link && mkdir -p "new $1" && mv large "new $1/large-$1" &&
    dd if=/dev/urandom of="new $1/large-$1" bs=1000 seek=1000 count=3000 conv=notrunc status=none &&
    setfattr -n user.note -v "$1" one && "$KVFS" kv put tags song "$1" && cp -a "new $1/large-$1" large
}

whole() {
  make_tree && snap create monday && cd / || return 1
  send monday | receive --create --size 1G --json >"$work/said" && said '"snapshot":"monday"' && cat "$work/said" &&
    target_is "$mnt/.kvfs/snapshots/monday" && [ "$(cat "$work/key")" = old ] && grep -q 'rw-r-----.*tags' "$work/keyspaces"
}
differences() {
  change_tree tuesday && snap create tuesday && change_tree wednesday && snap create wednesday && cd / || return 1
  send --from tuesday wednesday >"$work/later" && ends "$failed_code" receive "$work/later" && said 'does not have' || return 1
  send --from monday tuesday | receive && target_is "$mnt/.kvfs/snapshots/tuesday" && [ "$(cat "$work/key")" = tuesday ] || return 1
  ends 0 receive "$work/later" && target_is "$mnt/.kvfs/snapshots/wednesday" && ends 0 snap -s "$target" diff wednesday &&
    [ ! -s "$work/said" ] && ends 0 snap -s "$target" list && said 'monday' && said 'tuesday' && said 'wednesday' &&
    ends "$failed_code" receive "$work/later" && said 'already'
}
gone_on() {
  mkdir -p "$work/target.mnt" && "$KVFS" mount "$target" "$work/target.mnt" && echo mine >"$work/target.mnt/mine" || return 1
  change_tree thursday && snap create thursday && cd / && send --from wednesday thursday >"$work/next" || return 1
  ends "$in_use" receive "$work/next" && said 'unmount' && "$KVFS" umount "$work/target.mnt" || return 1
  ends "$failed_code" receive "$work/next" && said 'rollback' && ends 0 receive --rollback "$work/next" &&
    said 'giving up' && target_is "$mnt/.kvfs/snapshots/thursday"
}
# Killed in the middle, and cut off: what has arrived is kept, and the rest is enough.
resumed() {
  change_tree friday && snap create friday && cd / || return 1
  ends "$failed_code" receive --status && said 'no stream' || return 1
  # The receiver is killed while it waits for more than this.
  send --from thursday friday >"$work/friday" && mkfifo "$work/fifo" || return 1
  "$KVFS" snapshot receive -s "$target" "$work/fifo" >"$work/receiver" 2>&1 &
  local receiver=$!
  exec 7>"$work/fifo" && head -c 3000000 "$work/friday" >&7
  until_ok arrived 2000000
  local status=$?
  kill -9 "$receiver"
  wait "$receiver"
  exec 7>&-
  [ "$status" = 0 ] || return 1
  ends 0 receive --status && said 'friday' && ends 0 receive --status --json && said '"from":"thursday"' &&
    "$KVFS" check "$target" || return 1
  local token
  token=$(receive --resume-token) && ends "$in_use" receive "$work/next" && said 'abandon' || return 1
  # Again cut off, by the sender's end.
  (send --resume "$token" || true) | head -c 4000000 >"$work/part" && ends "$failed_code" receive "$work/part" && said 'send --resume' || return 1
  token=$(receive --resume-token) && [ "${token##*-}" -gt 5000000 ] && cp -p "$target/receiving" "$work/left" && send --resume "$token" --json 2>"$work/sent" | receive &&
    cat "$work/sent" && target_is "$mnt/.kvfs/snapshots/friday" && ends "$failed_code" receive --status &&
    [ ! -e "$target/receiving" ] && cd "$mnt"
}
arrived() { [ "$(stat -c %s "$target/receiving" 2>/dev/null || echo 0)" -gt "$1" ]; }
broken() {
  change_tree saturday && snap create saturday && cd / && send --from friday saturday >"$work/good" || return 1
  local size at
  size=$(stat -c %s "$work/good")
  for at in 3 9 40 70 $((size / 2)) $((size - 5)); do
    cp "$work/good" "$work/bad" && printf '\xa7' | dd of="$work/bad" bs=1 seek="$at" conv=notrunc status=none || return 1
    cmp -s "$work/good" "$work/bad" && continue
    case $at in 3 | 9) ends "$other_version" receive "$work/bad" ;; *) ends "$damaged" receive "$work/bad" ;; esac || return 1
    ends 0 snap -s "$target" diff friday && [ ! -s "$work/said" ] && receive --abandon || return 1
  done
  ends "$other_version" receive /bin/sh && head -c 30 "$work/good" >"$work/bad" && ends "$failed_code" receive "$work/bad" &&
    (cat "$work/good"; echo more) >"$work/bad" && ends "$damaged" receive "$work/bad" && said 'behind its end' && receive --abandon &&
    cp -p "$work/left" "$target/receiving" && ends 0 receive "$work/good" && target_is "$mnt/.kvfs/snapshots/saturday"
}
unmounted() {
  cd / && umount_store && timeout 60 "$KVFS" snapshot send -s "$store" --from friday saturday >"$work/cold" && cmp "$work/good" "$work/cold" &&
    ends "$usage" snap send -s "$store" --resume none && ends "$failed_code" snap send -s "$store" none &&
    ends "$usage" snap send -s "$store" --from friday friday && mount_store
}
# Backwards: what the copy has made of it comes home.
home_again() {
  mkdir -p "$work/target.mnt" && "$KVFS" mount "$target" "$work/target.mnt" && echo home >"$work/target.mnt/home" &&
    snap create -s "$work/target.mnt" sunday && snap send -s "$work/target.mnt" --from saturday sunday >"$work/sunday" &&
    "$KVFS" umount "$work/target.mnt" && umount_store && ends 0 snap receive -s "$store" "$work/sunday" && check_store &&
    mount_store && [ "$(cat "$mnt/home")" = home ]
}
# What clones share is sent once.
clones() {
  cd "$mnt" && "$KVFS" clone large "large copy" && "$KVFS" clone "new saturday" "new copy" &&
    dd if=/dev/urandom of="large copy" bs=4096 seek=100 count=3 conv=notrunc status=none && snap create clones && cd / &&
    send --from sunday clones >"$work/clones" || return 1
  stat -c %s "$work/clones"
  [ "$(stat -c %s "$work/clones")" -lt 100000 ] && ends 0 receive "$work/clones" && target_is "$mnt/.kvfs/snapshots/clones"
}
ordinary_user() {
  [ "$(id -u)" = 0 ] || { echo "needs root, to become another user"; return 77; }
  setpriv --reuid=65534 --regid=65534 --clear-groups -- "$KVFS" version >/dev/null 2>&1 || { echo "the binary is not for every user"; return 77; }
  mkdir -p "$work/home" && chown 65534:65534 "$work/home" || return 1
  send saturday >"$work/whole" && chmod 644 "$work/whole" || return 1
  setpriv --reuid=65534 --regid=65534 --clear-groups -- sh -exc "
    cd '$work/home'; umask 022
    '$KVFS' snapshot receive --create --size 1G -s store <'$work/whole'
    '$KVFS' check store
    '$KVFS' snapshot send -s store saturday >again.kvfs
    tail -c +65 again.kvfs >frames; tail -c +65 '$work/whole' | cmp - frames
    '$KVFS' snapshot send -s store saturday | '$KVFS' snapshot receive --create --size 1G -s again"
}

step "whole, into a store that it makes" whole
cd / || exit 1
step "differences, one after the other" differences
cd / || exit 1
step "a store that is mounted, or has gone on" gone_on
cd / || exit 1
step "kill -9 and cut off, then gone on with" resumed
cd / || exit 1
step "damage is refused, and nothing changes" broken
cd / || exit 1
step "the same stream from a store that is not mounted" unmounted
step "as an ordinary user" ordinary_user
step "and back" home_again
cd / || exit 1
step "clones" clones
cd / || exit 1
umount_store || failed=$((failed + 1))
check_store >/dev/null || failed=$((failed + 1))
summary transfer
