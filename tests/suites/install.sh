#!/usr/bin/env bash
# What is around the command: mount(8), /etc/fstab, the unit, the manual, completions, the package.
# usage: tests/suites/install.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "install: a plain directory has no command"
work_dir install
KVFS=$(realpath "$KVFS")
mnt=$work/mnt
mkdir "$mnt"
root=$work/root
# As cargo puts it for tests, or for users.
LIBRARIES=$(dirname "$KVFS")
[ -e "$LIBRARIES/libkvfs.so" ] || LIBRARIES=$LIBRARIES/deps
# mount(8) calls the helper as root only, and looks in one place that is not ours: its calls are made by hand.
helper=$work/bin/mount.fuse.kvfs uhelper=$work/bin/umount.fuse.kvfs
mkdir "$work/bin"
ln -s "$KVFS" "$helper"
ln -s "$KVFS" "$uhelper"

install_all() {
  make -C "$repo" --no-print-directory install-files KVFS="$KVFS" LIBRARIES="$LIBRARIES" SHARE="$work/share" DESTDIR="$root" PREFIX=/usr &&
    [ -x "$root/usr/bin/kvfs" ] && [ "$(readlink "$root/usr/sbin/mount.fuse.kvfs")" = /usr/bin/kvfs ] &&
    [ -s "$root/usr/share/man/man1/kvfs-mount.1" ] && [ -s "$root/usr/share/man/man8/mount.fuse.kvfs.8" ] &&
    [ -s "$root/usr/share/bash-completion/completions/kvfs" ] && [ -s "$root/usr/share/zsh/site-functions/_kvfs" ] &&
    [ -s "$root/usr/share/fish/vendor_completions.d/kvfs.fish" ]
}
pages() { "$KVFS" pages "$work/share" && [ "$(find "$work/share/man" -name 'kvfs*.1' | wc -l)" -gt 40 ]; }
manual() {
  command -v man groff >/dev/null || { echo "no man here"; return 77; }
  local page
  for page in "$work"/share/man/man*/*; do
    groff -k -man -Tutf8 -ww "$page" 2>>"$work/groff" >/dev/null || return 1
  done
  cat "$work/groff"
  [ ! -s "$work/groff" ] && MANWIDTH=100 man "$work/share/man/man1/kvfs-mount.1" | grep -q 'undo_count=N'
}
completions() {
  local words
  words=$("$KVFS" completions bash >"$work/bash" && bash -c '. "$1"; COMP_WORDS=(kvfs snap) COMP_CWORD=1
    _kvfs kvfs snap kvfs; echo "${COMPREPLY[@]}"' - "$work/bash") && [ "$words" = snapshot ] || return 1
  "$KVFS" completions zsh >"$work/zsh" && "$KVFS" completions fish >"$work/fish" || return 1
  ! command -v zsh >/dev/null || zsh -n "$work/zsh" || return 1
  ! command -v fish >/dev/null || fish -n "$work/fish"
}
unit() {
  local file=$root/usr/lib/systemd/system/kvfs@.service
  grep -q '^ExecStart=/usr/bin/kvfs mount' "$file" || return 1
  command -v systemd-analyze >/dev/null || { echo "no systemd-analyze here"; return 77; }
  # An instance, with the program where it is here.
  sed "s|/usr/bin/kvfs|$KVFS|" "$file" >"$work/kvfs@srv-data.service"
  systemd-analyze verify --man=no "$work/kvfs@srv-data.service" >"$work/verify" 2>&1
  local status=$?
  cat "$work/verify"
  # Of other units of this machine it complains, too.
  [ $status = 0 ] || ! grep -q 'kvfs@' "$work/verify"
}
# Of each mount point the unit finds its own settings and no other's, also where systemd-escape writes a backslash: as
# systemd does, which takes each EnvironmentFile for a pattern.
unit_settings() {
  command -v systemd-escape >/dev/null || { echo "no systemd-escape here"; return 77; }
  local point instance files own=$work/etc/kvfs/mounts points=(/srv/data /srv-data /srv/my-data "/srv/ünder way" /mounts/srv)
  mkdir -p "$own/srv" "$own/mounts" || return 1
  for point in "${points[@]}"; do touch "$own$point.conf" || return 1; done
  for point in "${points[@]}"; do
    instance=$(systemd-escape --path "$point")
    files=$(sed -n 's/^EnvironmentFile=-//p' "$root/usr/lib/systemd/system/kvfs@.service" | while read -r line; do
      line=${line//%i/"$instance"}
      python3 - "$work${line//%f/"$point"}" <<'PY'
import ctypes, sys
class Found(ctypes.Structure):
    _fields_ = [("count", ctypes.c_size_t), ("paths", ctypes.POINTER(ctypes.c_char_p)), ("rest", ctypes.c_char * 256)]
found = Found()
if ctypes.CDLL(None).glob(sys.argv[1].encode(), 0, None, ctypes.byref(found)) == 0:
    for at in range(found.count): print(found.paths[at].decode())
PY
    done)
    [ "$files" = "$own$point.conf" ] || { echo "$point: found '$files'"; return 1; }
  done
  # The name of the instance serves where it has no backslash.
  grep -qx 'EnvironmentFile=-/etc/kvfs/%i.conf' "$root/usr/lib/systemd/system/kvfs@.service"
}
by_helper() {
  "$KVFS" mkfs "$work/store" --size 512M && "$helper" "$work/store" "$mnt" -o rw,noatime,_netdev,noauto,x-a=b,memory=128M &&
    is_mounted "$mnt" && grep -q "^$work/store $mnt fuse.kvfs rw.*noatime" /proc/self/mounts && echo hi >"$mnt/file" &&
    "$uhelper" "$mnt" && ! is_mounted "$mnt" && "$helper" -n "$work/store" "$mnt" -o ro && grep -q hi "$mnt/file" &&
    ! touch "$mnt/x" 2>/dev/null && "$uhelper" -v "$mnt"
}
helper_codes() {
  ends 32 "$helper" "$work/nowhere" "$mnt" && said 'no store' && ends 1 "$helper" "$work/store" "$mnt" -o sparkle &&
    said sparkle && ends 32 "$helper" "$work/store" "$mnt" -o remount,ro && said 'not on a mounted' &&
    ends 0 "$helper" -f "$work/store" "$mnt" && ! is_mounted "$mnt" && ends 1 "$helper" "$work/store" &&
    ends 0 "$helper" -s -o sparkle "$work/store" "$mnt" && ends 32 "$helper" "$work/store" "$mnt" && ends 0 "$uhelper" "$mnt"
}
# In a mount namespace of its own the link may lie where mount(8) looks.
by_mount8() {
  [ "$(id -u)" = 0 ] || { echo "needs root"; return 77; }
  printf '%s %s fuse.kvfs noatime,noauto,user,memory=128M 0 0\n' "$work/store" "$mnt" >"$work/fstab"
  unshare -m --propagation private sh -ec '
    mkdir "$1/sbin" "$1/up"
    mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$1/sbin,workdir=$1/up" /usr/sbin 2>/dev/null ||
      { echo "no overlay here"; exit 77; }
    ln -s "$2" /usr/sbin/mount.fuse.kvfs
    ln -s "$2" /usr/sbin/umount.fuse.kvfs
    mount -t fuse.kvfs -o nosuid,memory=128M "$1/store" "$1/mnt"
    grep "$1/mnt fuse.kvfs .*nosuid" /proc/self/mounts
    mount -o remount,ro "$1/mnt"
    if touch "$1/mnt/remounted" 2>/dev/null; then exit 1; fi
    mount -o remount,rw "$1/mnt"
    touch "$1/mnt/remounted"
    umount "$1/mnt"
    mount --fstab "$1/fstab" "$1/mnt"
    grep -q hi "$1/mnt/file"
    umount "$1/mnt"' - "$work" "$KVFS"
}
sync_all() {
  local m=$mnt
  "$KVFS" mount "$work/store" "$m" && mkdir -p "$m/a" "$work/try" && echo one >"$m/a/b" && "$KVFS" sync "$m/a" &&
    (cd "$m" && "$KVFS" sync) && "$KVFS" sync "$work/store" || return 1
  local before after
  before=$("$KVFS" stats --json "$m" | grep -o '"journal.flushes":[0-9]*') && echo two >"$m/a/c" && "$KVFS" sync "$m" &&
    after=$("$KVFS" stats --json "$m" | grep -o '"journal.flushes":[0-9]*') && echo "# $before, then $after" &&
    [ "${before#*:}" -lt "${after#*:}" ] || return 1
  "$KVFS" branch create -s "$m" try && "$KVFS" branch mount -s "$m" try "$work/try" && echo three >"$work/try/d" &&
    ends 0 "$KVFS" sync "$work/try" && ! said transaction || return 1
  local daemon
  daemon=$(pgrep -f "^[^ ]*kvfs mount .*$work/store ") && kill -9 "$daemon" && umount -l "$work/try" && umount -l "$m" &&
    "$KVFS" sync "$work/store" && "$KVFS" mount "$work/store" "$m" && grep -q two "$m/a/c" &&
    "$KVFS" branch mount -s "$m" try "$work/try" && grep -q three "$work/try/d" && "$KVFS" umount "$work/try" || return 1
  (cd "$m" && ends 0 "$KVFS" txn run -- "$KVFS" sync . && said 'durable when it is committed') && "$KVFS" umount "$m" &&
    ends 4 "$KVFS" sync "$m" && said 'not a kvfs store'
}
package() {
  command -v dpkg-deb dpkg-shlibdeps strip >/dev/null || { echo "no dpkg-dev here"; return 77; }
  local deb lib dev
  DEB_OPTIONS=-Znone KVFS=$KVFS LIBRARIES=$LIBRARIES SHARE=$work/share "$repo/packaging/deb.sh" "$work" >"$work/debs" || return 1
  { read -r deb && read -r lib && read -r dev; } <"$work/debs" && dpkg-deb --info "$deb" &&
    dpkg-deb -c "$deb" >"$work/list" && grep -q ' ./usr/bin/kvfs$' "$work/list" &&
    grep -q './usr/sbin/mount.fuse.kvfs -> /usr/bin/kvfs' "$work/list" && grep -q './usr/share/man/man1/kvfs-txn-run.1.gz' "$work/list" &&
    grep -q './usr/lib/systemd/system/kvfs@.service' "$work/list" && mkdir "$work/unpacked" && dpkg-deb -x "$deb" "$work/unpacked" &&
    "$work/unpacked/usr/bin/kvfs" version || return 1
  # The library's two, unpacked over each other: the example compiles and runs with them.
  dpkg-deb --info "$lib" && dpkg-deb -I "$lib" control | grep -q '^Depends: libc6' && dpkg-deb -x "$lib" "$work/unpacked" &&
    dpkg-deb -x "$dev" "$work/unpacked" || return 1
  local libdir=$work/unpacked/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
  [ "$(readlink "$libdir/libkvfs.so")" = libkvfs.so.0 ] && [ -f "$libdir/libkvfs.a" ] && [ -f "$libdir/cmake/kvfs/kvfsConfig.cmake" ] &&
    cc "$repo/examples/photo.c" -o "$work/photo" $(PKG_CONFIG_PATH=$libdir/pkgconfig PKG_CONFIG_SYSROOT_DIR=$work/unpacked pkg-config --cflags --libs kvfs) &&
    LD_LIBRARY_PATH=$libdir "$work/photo" "$work/photo.store" && "$KVFS" check "$work/photo.store"
}

step "pages of the manual and completions are written" pages
step "make install-files" install_all
step "man and groff read every page without a warning" manual
step "completions" completions
step "the unit passes systemd-analyze" unit
step "the unit finds its settings, whatever the mount point is called" unit_settings
step "mount.fuse.kvfs and umount.fuse.kvfs" by_helper
step "the helpers' exit codes are those of mount(8)" helper_codes
step "mount -t fuse.kvfs and a line of fstab" by_mount8
step "kvfs sync: on a mount, a branch, a store, after kill -9, in a transaction" sync_all
lazy_times() {
  local m=$mnt then kept seen
  "$KVFS" mount -o lazytime,nobtime "$work/store" "$m" && echo x >"$m/lazy" && touch -a -d 2020-01-01 "$m/lazy" &&
    "$KVFS" sync "$m" && then=$(stat -c %X "$m/lazy") && cat "$m/lazy" && kept=$(stat -c %X "$m/lazy") || return 1
  # A snapshot has it; a fresh mount after kill -9 has what was synced.
  "$KVFS" snapshot create -s "$m" seen && seen=$(stat -c %X "$m/.kvfs/snapshots/seen/lazy") && touch -a -d 2020-01-01 "$m/lazy" &&
    "$KVFS" sync "$m" && cat "$m/lazy" && echo "# atime $then, read $kept, in the snapshot $seen" &&
    [ "$kept" != "$then" ] && [ "$seen" = "$kept" ] && [ "$(stat -c %w "$m/lazy")" = - ] || return 1
  sleep 2.5
  kill -9 "$(pgrep -f "^[^ ]*kvfs mount .*$work/store ")" && umount -l "$m" && "$KVFS" mount -o noatime "$work/store" "$m" &&
    [ "$(stat -c %X "$m/lazy")" = "$then" ] && [ "$(stat -c %w "$m/lazy")" != - ] && "$KVFS" umount "$m" || return 1
  "$KVFS" mount -o lazytime "$work/store" "$m" && cat "$m/lazy" && kept=$(stat -c %X "$m/lazy") &&
    "$KVFS" umount "$m" && "$KVFS" mount -o noatime "$work/store" "$m" && [ "$(stat -c %X "$m/lazy")" = "$kept" ] &&
    [ "$kept" != "$then" ] && "$KVFS" umount "$m"
}
# `script` is the terminal; a second and more passes while a process holds the device.
bars() {
  command -v script >/dev/null || { echo "no script here"; return 77; }
  local big=$work/big
  "$KVFS" mkfs "$big" --size 2G && "$KVFS" mount "$big" "$mnt" && head -c 8M /dev/urandom >"$mnt/data" && "$KVFS" sync "$mnt" || return 1
  # A slow reader of a stream makes sending take its time.
  "$KVFS" snapshot create -s "$mnt" a || return 1
  script -qec "'$KVFS' snapshot send -s '$mnt' a | { sleep 2; cat; } >/dev/null" /dev/null >"$work/screen" </dev/null
  grep -q 'sending' "$work/screen" || { cat -v "$work/screen"; return 1; }
  script -qec "'$KVFS' -q snapshot send -s '$mnt' a | { sleep 2; cat; } >/dev/null" /dev/null >"$work/quiet" </dev/null
  ! grep -q 'sending' "$work/quiet" && "$KVFS" umount "$mnt" && "$KVFS" check "$big"
}

step "lazytime and nobtime" lazy_times
step "a progress bar on a terminal, and none with --quiet" bars
step "the packages for Debian" package
summary install
