#!/usr/bin/env bash
# Stores of every released format: each is opened, holds what it held, and takes writes.
# usage: tests/suites/formats.sh
# The fixtures come from scripts/fixture.sh.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
. "$here/../../scripts/picture.sh"
[ "$KVFS" != plain ] || die "formats: a plain directory has no format"
needs_root formats "since the files there belong to others"
work_dir formats
fixtures=$here/../fixtures/formats

unpack() {
  store=$work/$1.store mnt=$work/$1.mnt
  mkdir -p "$store" "$mnt" && chmod 700 "$store" && tar -C "$store" -xJf "$fixtures/$1/device.tar.xz" || return
  # Since format 6.
  [ ! -e "$store/slow" ] || ln -s "$store/slow" "$store/device.1"
}
same() { diff -u "$1" "$2" | head -n 40; cmp -s "$1" "$2"; }
# In subshells: a process that stands in the mount keeps it in use.
holds_what_it_held() (
  cd "$mnt" || exit 1
  picture . >"$work/picture" && same "$fixtures/$1/picture" "$work/picture" &&
    keys >"$work/keys" && same "$fixtures/$1/keys" "$work/keys" &&
    picture .kvfs/snapshots/first | sort >"$work/snapshot" && shown "$fixtures/$1/snapshot" >"$work/shown" &&
    same "$work/shown" "$work/snapshot"
)
# A snapshot is shown without set-id bits; with them it is restored.
shown() { sed 's/^f [2-7]\([0-7][0-7][0-7] \)/f \1/' "$1" | sort; }
write() (
  cd "$mnt" && echo new >tree/new && echo more >>tree/large && rm many/file-2 && "$KVFS" kv put tags new value &&
    "$KVFS" txn run -- sh -c 'echo one >tree/small; rm tree/empty' && "$KVFS" snapshot create second &&
    "$KVFS" snapshot restore first
)
takes_writes() {
  write && umount_store && check_store && mount_store && [ -d "$mnt/tree/deep/er" ] && [ ! -e "$mnt/tree/new" ] &&
    [ "$(stat -c %a "$mnt/tree/small")" = 4751 ] &&
    [ "$(cat "$mnt/many/file-2")" = "file 2" ]
}
repairs() { umount_store && ends 0 "$KVFS" check --repair "$store" && said '^clean'; }

for fixture in "$fixtures"/*/; do
  name=$(basename "$fixture")
  unpack "$name" || die "$name can't be unpacked"
  step "opened after a sudden end" mount_store "$(mount_options)" &&
    step "holds what it held" holds_what_it_held "$name" &&
    step "takes writes and goes back to its snapshot" takes_writes &&
    step "nothing to repair" repairs
done
summary formats
