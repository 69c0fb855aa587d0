#!/usr/bin/env bash
# Compression as a user sees it, on a real mount: what is set, what is inherited, what it saves, that nothing changes.
# usage: tests/suites/compress.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "compress: a plain directory compresses nothing"
work_dir compress
make_store compress --size 4G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"

# remounted: everything is written, and comes from the device again.
remounted() { cd / && umount_store && mount_store && cd "$mnt"; }
# counter NAME: of the mounted store.
counter() { "$KVFS" stats --json "$mnt" | python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"; }

settings() {
  cd "$mnt" || return 1
  mkdir packed && ends 0 "$KVFS" get packed && said '^compression=none$' &&
    "$KVFS" set packed compression=zstd:3 && ends 0 "$KVFS" get packed && said '^compression=zstd:3$' &&
    mkdir packed/sub && echo x >packed/sub/file && ends 0 "$KVFS" get packed/sub/file && said '^compression=zstd:3$' &&
    mv packed/sub/file . && ends 0 "$KVFS" get file && said '^compression=zstd:3$' && rm file &&
    "$KVFS" set packed/sub compression=lz4 && ends 0 "$KVFS" get packed packed/sub && said 'packed/sub: compression=lz4' &&
    ends 2 "$KVFS" set packed compression=gzip && said 'zstd:1 to zstd:19' && ends 2 "$KVFS" set packed colour=red &&
    ends 2 "$KVFS" set compression=lz4 && ends 9 "$KVFS" get /proc/version &&
    "$KVFS" set packed/sub tier=slow && echo x >packed/sub/tiered && ends 0 "$KVFS" get packed/sub/tiered && said '^tier=slow$' && said '^compression=lz4$' &&
    rm packed/sub/tiered && "$KVFS" set packed/sub tier=auto && ends 2 "$KVFS" set packed tier=warm && said 'fast, slow or auto' &&
    [ "$(getfattr -n kvfs.compression --only-values packed/sub)" = lz4 ] && [ -z "$(getfattr -d -m - packed)" ]
}
# What cuts it off makes it fail.
text() { seq "$1" 90000 | sed 's/$/ compressible words in a row/' | head -c 2500000 || true; }
less_space() {
  cd "$mnt" || return 1
  mkdir plain && for n in 1 2 3 4; do text $n >packed/$n && text $n >plain/$n || return 1; done
  text 5 >packed/sub/5 && head -c 3000000 /dev/urandom >packed/noise && sha256sum packed/[1-4] packed/sub/5 packed/noise >"$work/sums" &&
    remounted || return 1
  local stored raw
  stored=$(counter keyspace.data.bytes) raw=$(counter keyspace.data.raw_bytes)
  # 10 MB of text are as they are, 12.5 MB are packed, 3 MB are noise.
  echo "# $stored of $raw bytes"
  [ "$raw" -gt 25000000 ] && [ "$stored" -lt 17000000 ] && [ "$stored" -gt 13000000 ]
}
same_content() {
  cd "$mnt" || return 1
  sha256sum --status -c "$work/sums" && for n in 1 2 3 4; do cmp packed/$n plain/$n || return 1; done
  [ "$(dd if=packed/3 bs=777 skip=1000 count=1 status=none | sha256sum)" = "$(dd if=plain/3 bs=777 skip=1000 count=1 status=none | sha256sum)" ]
}
overwritten() {
  cd "$mnt" || return 1
  local n
  for n in packed/2 plain/2; do
    printf 'in the middle' | dd of=$n bs=1 seek=1234567 conv=notrunc status=none && truncate -s 2000000 $n && echo end >>$n || return 1
  done
  sync packed/2 plain/2 && sha256sum packed/2 >"$work/sum2" && cmp packed/2 plain/2 && cd / && kill_daemon && mount_store && cd "$mnt" &&
    sha256sum --status -c "$work/sum2" && cmp packed/2 plain/2 && cmp packed/1 plain/1
}
keyspaces() {
  cd "$mnt" || return 1
  "$KVFS" kv put words key "$(text 1 | head -c 60000)" && "$KVFS" set --keyspace words compression=lz4 &&
    ends 0 "$KVFS" get --keyspace words && said '^compression=lz4$' && ends 1 "$KVFS" set --keyspace nothing compression=lz4 &&
    "$KVFS" kv put words other "$(text 2 | head -c 60000)" && remounted &&
    [ "$("$KVFS" kv get words key)" = "$(text 1 | head -c 60000)" ] && [ "$(counter keyspace.words.bytes)" -lt 60000 ] &&
    ends 0 "$KVFS" get --keyspace words && said '^compression=lz4$'
}

echo "compression"
step "settings and who inherits them" settings
cd / || exit
step "takes less space on the device" less_space
cd / || exit
step "reads the same after a remount" same_content
cd / || exit
step "overwritten in part, cut, and after kill -9" overwritten
cd / || exit
step "keyspaces" keyspaces
cd / || exit
step "unmounts" umount_store
step "is clean" check_store
summary compress
