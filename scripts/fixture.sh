#!/usr/bin/env bash
# Makes the fixture of a format: a small store with something of everything, as the released program of that format
# leaves it, and what it holds. Run it once, with that program, before a change of the format is released; the suite
# `formats` opens all fixtures with every later program.
# usage: KVFS=path/to/released/kvfs scripts/fixture.sh NAME       writes tests/fixtures/formats/NAME/
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR
. "$here/lib.sh"
. "$here/picture.sh"
name=${1:?usage: scripts/fixture.sh NAME}
out=$repo/tests/fixtures/formats/$name
[ ! -e "$out" ] || die "$out is there already"
work_dir fixture
make_store store --size 128M >/dev/null
mount_store "$(mount_options)"

# What goes to runs: the store is closed once.
mkdir -p "$mnt/tree/deep/er" "$mnt/many"
echo small >"$mnt/tree/small"
: >"$mnt/tree/empty"
seq 1 30000 >"$mnt/tree/large"
truncate -s 1M "$mnt/tree/sparse" && echo end >>"$mnt/tree/sparse"
ln "$mnt/tree/large" "$mnt/tree/deep/hard" && ln -s ../large "$mnt/tree/deep/soft"
mkfifo "$mnt/tree/pipe" && chmod 4751 "$mnt/tree/small"
setfattr -n user.note -v "an attribute" "$mnt/tree/small"
for i in $(seq 1 300); do echo "file $i" >"$mnt/many/file-$i"; done
for i in $(seq 1 40); do (cd "$mnt" && "$KVFS" kv put tags "key-$i" "value-$i"); done
# Packed data, and what has come with it.
mkdir -p "$mnt/packed/lz4" "$mnt/shared"
"$KVFS" set "$mnt/packed" compression=zstd:3 && "$KVFS" set "$mnt/packed/lz4" compression=lz4
seq 1 60000 >"$mnt/packed/large" && seq 1 30000 >"$mnt/packed/lz4/large" && head -c 20000 /dev/zero >"$mnt/packed/zeros"
setfacl -m u:12345:rw,d:g:54321:rx "$mnt/shared" && echo inherited >"$mnt/shared/file"
chown 12345:54321 "$mnt/shared/file" && "$KVFS" quota on -s "$mnt" && "$KVFS" quota set -s "$mnt" --user 12345 --bytes-hard 1M
(cd "$mnt" && "$KVFS" kv put packed key "$(seq 1 2000)" && "$KVFS" set --keyspace packed compression=lz4)
# A slow device, and content that lies there.
touch "$store/slow"
"$KVFS" tier add "$mnt" "slow:$store/slow,size=64M"
mkdir "$mnt/slow"
"$KVFS" set "$mnt/slow" tier=slow
seq 1 40000 >"$mnt/slow/large"
(cd "$mnt" && "$KVFS" snapshot create first)
umount_store
mount_store "$(mount_options)"

# Of what is in runs, a clone shares the blocks.
"$KVFS" clone "$mnt/tree" "$mnt/cloned"

# What the journal has: the daemon is killed.
cd "$mnt"
seq 7 200 | dd of=packed/large bs=1 seek=50000 conv=notrunc status=none && seq 1 9000 >packed/new
# Large enough to go to its final place at once.
seq 1 100000 | dd of=tree/at-once bs=1M iflag=fullblock status=none
# Small enough to be put together into blocks that do.
seq 1 100000 | dd of=tree/in-parts bs=512 iflag=fullblock status=none
echo changed >>cloned/large
seq 50 60 | dd of=slow/large bs=1 seek=9000 conv=notrunc status=none
rm -r many/file-1* && mv tree/deep/er tree/moved && echo more >>tree/large && : >tree/small
"$KVFS" kv del tags key-1 && "$KVFS" kv put tags key-2 changed
"$KVFS" txn run -- sh -c 'echo whole >tree/by-transaction; kvfs=1; exit 0'
if "$KVFS" branch --help >/dev/null 2>&1; then "$KVFS" branch create aside; fi
sync tree/large
picture . >"$work/picture"
keys >"$work/keys"
picture .kvfs/snapshots/first >"$work/snapshot"
cd /
kill_daemon || true # its status is that of the signal

mkdir -p "$out"
cp "$work/picture" "$work/keys" "$work/snapshot" "$out/"
cp --sparse=always "$store/device" "$store/slow" "$work/"
tar -C "$work" -S -c --owner=0 --group=0 --mtime=@0 device slow | xz -9 >"$out/device.tar.xz"
"$KVFS" version >"$out/made-by"
ls -l "$out"
