#!/usr/bin/env bash
# Snapshots pushed to a repository and pulled from it: shared, encrypted, broken off, damaged, pruned.
# usage: tests/suites/repository.sh
# REPOSITORY_URL  where repositories are made, as URL/NAME (default: a directory); REPOSITORY_ENDPOINT: on which server
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "repository: a plain directory has no snapshots"
work_dir repository
make_store source --size 1G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"

base=${REPOSITORY_URL:-$work/repositories} at=()
[ -z "${REPOSITORY_ENDPOINT:-}" ] || at=(--endpoint "$REPOSITORY_ENDPOINT")
place=$base/one secret=$base/two
# Exit codes, as in `kvfs --help`.
failed_code=1 usage=2 not_a_store=4 damaged=5 denied=7

repository() { timeout 120 "$KVFS" repository "$@" "${at[@]}"; }
push() { timeout 120 "$KVFS" snapshot push -s "$mnt" "${at[@]}" "$@"; }
pull() { timeout 120 "$KVFS" snapshot pull "${at[@]}" "$@"; }
picture() {
  (
    cd "$1" || exit 1
    find . -printf '%M %U %G %n %T@ %P %l %s %b\n' | sort
    find . -type f -print0 | sort -z | xargs -0r sha256sum
    getfattr -R -d -m - . 2>/dev/null
  )
}
# is_restored STORE SNAPSHOT: the store is sound, and its tree is that of the snapshot in the source.
is_restored() {
  "$KVFS" check "$1" && mkdir -p "$work/target.mnt" && "$KVFS" mount "$1" "$work/target.mnt" || return 1
  picture "$mnt/.kvfs/snapshots/$2" >"$work/expected" && picture "$work/target.mnt" >"$work/found"
  "$KVFS" kv get -s "$work/target.mnt" tags song >"$work/key"
  "$KVFS" umount "$work/target.mnt" && diff "$work/expected" "$work/found"
}
new_bytes() { sed -n 's/.*"bytes_new":\([0-9]*\).*/\1/p' "$work/said"; }

whole() {
  cd "$mnt" && mkdir -p dir/deep && echo one >one && ln one dir/link && ln -s ../one dir/symlink && mkfifo pipe &&
    head -c 30000000 /dev/urandom >large && truncate -s 1M sparse && echo tail >>sparse && setfattr -n user.note -v old one &&
    for n in $(seq 300); do echo "file $n" >"dir/deep/$n"; done && "$KVFS" kv put tags song old && "$KVFS" snapshot create monday || return 1
  cd / && ends "$not_a_store" push monday "$place" && said 'repository create' && repository create "$place" || return 1
  ends "$failed_code" repository create "$place" && said 'not empty' &&
    { [ -n "${REPOSITORY_URL:-}" ] || [ "$(stat -c %a "$place")" = 700 ]; } && ends 0 push --json monday "$place" || return 1
  first=$(new_bytes) && [ "$first" -gt 30000000 ] && ends 0 push monday "$place" && said 'already' &&
    ends 0 pull --create --size 1G -s "$work/whole.store" "$place" && said 'received "monday"' &&
    is_restored "$work/whole.store" monday && [ "$(cat "$work/key")" = old ]
}
shared() {
  cd "$mnt" && mv large dir/larger && printf changed | dd of=dir/larger bs=1 seek=9000000 conv=notrunc status=none &&
    cp -a dir/deep copies && "$KVFS" kv put tags song new && "$KVFS" snapshot create tuesday && cd / &&
    ends 0 push --json tuesday "$place" || return 1
  [ "$(new_bytes)" -lt $((first / 4)) ] || { echo "$(new_bytes) of $first bytes again"; return 1; }
  ends 0 repository list "$place" && said monday && said tuesday && ends 0 repository verify --data "$place" && said 'all is there' &&
    ends 0 pull --create --size 1G -s "$work/shared.store" "$place" tuesday && is_restored "$work/shared.store" tuesday
}
encrypted() {
  echo 'a passphrase' >"$work/phrase" && echo 'another' >"$work/wrong" &&
    ends "$usage" repository create --encrypt "$secret" </dev/null && said 'passphrase-file' || return 1
  repository create --encrypt --passphrase-file "$work/phrase" "$secret" &&
    ends "$denied" push monday "$secret" </dev/null && said 'encrypted' &&
    ends "$denied" push --passphrase-file "$work/wrong" monday "$secret" && said 'not the passphrase' || return 1
  export KVFS_PASSPHRASE_FILE=$work/phrase
  push monday "$secret" && ends 0 pull --create --size 1G -s "$work/secret.store" "$secret" monday &&
    is_restored "$work/secret.store" monday && ends 0 repository verify --data "$secret" || return 1
  ends "$usage" repository list "$place" && said 'not encrypted' && ends 0 repository list --unencrypted "$place" &&
    ends "$denied" repository list --unencrypted "$secret" && ends "$usage" repository create "$base/none" && said 'unencrypted' || return 1
  unset KVFS_PASSPHRASE_FILE
  ends "$usage" repository passphrase --passphrase-file "$work/phrase" "$secret" </dev/null && said 'new-passphrase-file' &&
    ends "$denied" repository passphrase --passphrase-file "$work/wrong" --new-passphrase-file "$work/wrong" "$secret" &&
    repository passphrase --passphrase-file "$work/phrase" --new-passphrase-file "$work/wrong" "$secret" &&
    ends "$denied" repository list --passphrase-file "$work/phrase" "$secret" && said 'not the passphrase' &&
    ends 0 repository verify --data --passphrase-file "$work/wrong" "$secret" && said 'all is there' || return 1
  [ -n "${REPOSITORY_URL:-}" ] || ! grep -rlF -e 'file 17' -e monday "$secret" || return 1
}
# Who may write to the place makes it say that it is not encrypted: nothing is written in clear, and nothing is taken from there.
disguised() {
  [ -z "${REPOSITORY_URL:-}" ] || return 0
  local place=$base/disguised
  repository create --encrypt --passphrase-file "$work/phrase" "$place" && repository create "$base/plain" &&
    cp "$base/plain/kvfs-repository" "$place/kvfs-repository" && export KVFS_PASSPHRASE_FILE=$work/phrase || return 1
  ends "$usage" push monday "$place" && said 'not encrypted' && ends "$usage" repository list "$place" &&
    ends "$usage" pull --create --size 1G -s "$work/disguised.store" "$place" && [ ! -e "$work/disguised.store" ] &&
    [ "$(find "$place" -type f | wc -l)" = 1 ] && ends 0 push --unencrypted monday "$place" || return 1
  unset KVFS_PASSPHRASE_FILE
}
# Killed in the middle: there is no snapshot, and what was written is not written again.
broken_off() {
  cd "$mnt" && head -c 60000000 /dev/urandom >larger && "$KVFS" snapshot create wednesday && cd / || return 1
  [ -z "${REPOSITORY_URL:-}" ] || { push wednesday "$place"; return; }
  local before
  before=$(find "$place/chunks" -type f | wc -l)
  "$KVFS" snapshot push -s "$mnt" wednesday "$place" >"$work/pusher" 2>&1 &
  local pusher=$!
  TRIES=1200 until_ok sh -c "[ \$(find '$place/chunks' -type f | wc -l) -ge $((before + 9)) ]" || return 1
  kill -9 "$pusher" 2>/dev/null
  wait "$pusher" 2>/dev/null
  ends 0 repository verify "$place" && said 'all is there' && ends 0 push --json wednesday "$place" || return 1
  if said '"pushed":null'; then echo "it was through before it was killed"; else [ "$(new_bytes)" -lt 55000000 ] || return 1; fi
  # A pull is killed as well, and goes on.
  "$KVFS" snapshot pull --create --size 1G -s "$work/broken.store" "$place" wednesday >"$work/puller" 2>&1 &
  local puller=$!
  TRIES=1200 until_ok sh -c "[ \$(stat -c %s '$work/broken.store/receiving' 2>/dev/null || echo 0) -gt 9000000 ]"
  kill -9 "$puller" 2>/dev/null
  wait "$puller" 2>/dev/null
  if [ -e "$work/broken.store/receiving" ]; then
    ends 0 pull -s "$work/broken.store" "$place" wednesday && said 'received "wednesday"' || return 1
  fi
  is_restored "$work/broken.store" wednesday
}
damaged_ones() {
  [ -n "${REPOSITORY_URL:-}" ] && return 0
  local chunk
  chunk=$(find "$place/chunks" -type f -size +200k | sort | head -n 1)
  cp "$chunk" "$work/good" && printf X | dd of="$chunk" bs=1 seek=1000 conv=notrunc status=none &&
    ends "$damaged" repository verify --data "$place" && said "$(basename "$chunk")" || return 1
  ends "$damaged" repository verify --data --mark-damaged "$place" && said '1 damaged objects are marked' || return 1
  rm "$chunk" && ends "$damaged" repository verify "$place" && said missing || return 1
  local name
  for name in monday tuesday wednesday; do
    said "\"$name\"" || continue
    ends "$damaged" repository verify "$place"
    ends "$damaged" pull --create --size 1G -s "$work/damaged.store" "$place" "$name" && said "$(basename "$chunk")" || return 1
    "$KVFS" check "$work/damaged.store" && cp "$work/good" "$chunk" &&
      ends 0 pull -s "$work/damaged.store" "$place" "$name" && is_restored "$work/damaged.store" "$name"
    return
  done
  echo "no snapshot needs $chunk"
  return 1
}
pruned() {
  ends 0 repository prune --dry-run --keep-last 1 "$place" && said 'would go: .*monday' && ends 0 repository list "$place" && said monday || return 1
  # What is a week old is marked.
  [ -n "${REPOSITORY_URL:-}" ] || find "$place/chunks" -type f -exec touch -d '8 days ago' {} +
  ends 0 repository prune --keep-last 1 "$place" && said 'gone: .*monday' && said 'marked' && ends 0 repository list "$place" && ! said monday &&
    said wednesday && ends 0 repository verify --data "$place" || return 1
  # A push that was killed leaves what it was writing.
  [ -n "${REPOSITORY_URL:-}" ] || echo half >"$place/chunks/half-written#1"
  # Pushed again while its chunks are marked, it does not rely on them.
  ends 0 push monday "$place" && ends 0 repository prune --now "$place" && said 'gone: 0 snapshots, [1-9]' && ends 0 repository verify --data "$place" &&
    ends 0 pull --create --size 1G -s "$work/again.store" "$place" monday && is_restored "$work/again.store" monday || return 1
  ends "$failed_code" repository delete "$place" monday never && ends 0 repository list "$place" && said monday &&
    ends 0 repository delete "$place" monday wednesday && ends 0 repository prune --now "$place" && ends 0 repository list "$place" && [ ! -s "$work/said" ] || return 1
  [ -n "${REPOSITORY_URL:-}" ] || [ "$(find "$place" -type f | tee "$work/left" | wc -l)" = 1 ] || { cat "$work/left"; return 1; }
}
unmounted() {
  umount_store && "$KVFS" snapshot push -s "$store" "${at[@]}" tuesday "$place" && ends 0 repository list --json "$place" && said tuesday
}

step "a snapshot is pushed and pulled" whole
step "what snapshots share is there once" shared
step "an encrypted repository" encrypted
step "a repository that was encrypted" disguised
step "pushes and pulls are broken off" broken_off
step "damage is named" damaged_ones
step "snapshots and objects are pruned" pruned
step "from a store that is not mounted" unmounted
check_store >/dev/null || failed=$((failed + 1))
summary repository
