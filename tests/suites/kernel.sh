#!/usr/bin/env bash
# What the kernel and other file systems build on a mount: overlays, open directories, file handles, asynchronous and ring I/O,
# bind mounts, locks; and what FUSE does not let a file system do, as the README's table "What to expect" says.
# usage: tests/suites/kernel.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "kernel: a plain directory is no FUSE mount"
needs_root kernel "for overlays and bind mounts"
work_dir kernel
make_store kernel --size 4G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
cd "$mnt" || die "no mount"

helper() { python3 "$here/kernel.py" "$@"; }
has_overlays() { grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null; }

# What is in a directory: names, types, modes, owners, content.
picture() {
  (cd "$1" && find . -printf '%p %y %m %U:%G %l\n' | sort && find . -type f -print0 | sort -z | xargs -0r sha256sum)
}

# Fills a lower directory.
fill() {
  mkdir -p "$1"/{kept,removed/deep,replaced,moved,etc} && cp -a /usr/include/linux/b*.h "$1/kept" &&
    echo lower >"$1/changed" && echo lower >"$1/removed/deep/file" && echo lower >"$1/replaced/old" &&
    echo lower >"$1/moved/file" && echo gone >"$1/gone" && ln "$1/changed" "$1/linked" && ln -s changed "$1/link" &&
    echo one >"$1/rename-me" && echo lower >"$1/single" && echo two >"$1/over" && chown 1000:1000 "$1/moved/file" && chmod 4755 "$1/gone"
}

# Works in an overlay (without an index, a file with two names that is changed is copied up as two, so that is left out): creating, changing (copied up), deleting, renaming files and directories, replacing a directory.
work_in() {
  cd "$1" && echo more >>single && chmod 640 moved/file && rm gone && rm -r removed && rm -r replaced && mkdir replaced &&
    echo new >replaced/new && mv rename-me renamed && mv renamed over && mkdir fresh && cp -a kept fresh/ &&
    mv fresh fresher && touch -d 2001-02-03 single && rm fresher/kept/b*a*.h && echo back >gone && ln -s x dangling &&
    mv moved moved-too && mknod device c 1 3 && mkfifo fifo && helper unnamed "$PWD" && chown 7:8 over &&
    truncate -s 5 kept/blkpg.h && dd if=/dev/zero of=large bs=1M count=5 status=none && sync large &&
    [ ! -e removed ] && [ ! -e replaced/old ] && [ "$(cat over)" = one ]
}

overlay_kernel_says() { dmesg 2>/dev/null | tail -n 40 | grep overlayfs | tail -n 5; }

# overlay LOWER UPPER [OPTIONS]: over $work/merged, with work beside the upper directory; the outcome must be that of the same
# work in a copy.
overlay() {
  has_overlays || { echo "no overlayfs in this kernel"; return 77; }
  local lower=$1 upper=$2 options=${3:-redirect_dir=on} status=0
  rm -rf "$work/plain"
  mkdir -p "$work/merged" "$upper" "$upper.work" && cp -a "$lower" "$work/plain" || return 1
  mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$upper.work,$options" "$work/merged" ||
    { overlay_kernel_says; return 1; }
  (work_in "$work/merged") || { echo "the work in the overlay failed"; status=1; }
  (work_in "$work/plain") || { echo "the work in the copy failed"; status=1; }
  picture "$work/merged" >"$work/got"
  picture "$work/plain" >"$work/expected"
  umount "$work/merged" || return 1
  diff "$work/expected" "$work/got" || status=1
  # Whiteouts and marks are in the upper directory, so that the next mount shows the same.
  mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$upper.work,$options" "$work/merged" || return 1
  picture "$work/merged" | diff "$work/expected" - || status=1
  umount "$work/merged" || return 1
  [ -c "$upper/removed" ] && [ "$(getfattr --absolute-names --only-values -n trusted.overlay.opaque "$upper/replaced")" = y ] || status=1
  rm -rf "$work/plain" "$work/got" "$work/expected"
  return $status
}
overlay_upper() { mkdir -p "$work/disk" && fill "$work/disk/lower" && overlay "$work/disk/lower" "$mnt/upper"; }
overlay_lower() { fill "$mnt/lower" && overlay "$mnt/lower" "$work/disk/upper"; }
overlay_both() { fill "$mnt/both" && overlay "$mnt/both" "$mnt/both-upper"; }
overlay_metacopy() { fill "$mnt/meta" && overlay "$mnt/meta" "$mnt/meta-upper" metacopy=on,redirect_dir=on; }
# As containers of an ordinary user have them: marks are user.overlay.* attributes.
overlay_user() {
  has_overlays || { echo "no overlayfs in this kernel"; return 77; }
  mkdir -p user/{lower,upper,work,merged} && echo lower >user/lower/gone && mkdir user/lower/dir && chown -R 65534:65534 user
  setpriv --reuid=65534 --regid=65534 --clear-groups unshare -Ur true 2>/dev/null || { echo "no user namespaces"; return 77; }
  setpriv --reuid=65534 --regid=65534 --clear-groups unshare -Urm sh -ec "
    cd '$mnt/user'
    mount -t overlay overlay -o userxattr,lowerdir=lower,upperdir=upper,workdir=work merged
    cd merged; rm gone; rm -r dir; mkdir dir; echo new >dir/new; test ! -e gone" &&
    [ -c user/upper/gone ] && [ "$(getfattr --absolute-names --only-values -n user.overlay.opaque user/upper/dir)" = y ]
}
# What a container runtime does: a root of layers, its processes in namespaces of their own.
container() {
  has_overlays || { echo "no overlayfs in this kernel"; return 77; }
  mkdir -p image/{bin,lib,lib64,usr,tmp,proc} container work2 "$work/merged" && cp -aL /bin/sh /bin/ls /bin/rm /bin/mv /bin/cat image/bin/ &&
    { ldd /bin/sh /bin/ls /bin/mv | grep -o '/[^ ]*' | sort -u | grep -v : | while read -r lib; do mkdir -p "image$(dirname "$lib")" && cp -L "$lib" "image$lib"; done; }
  mount -t overlay overlay -o "lowerdir=$mnt/image,upperdir=$mnt/container,workdir=$mnt/work2" "$work/merged" || return 1
  local status=0
  unshare -mpf sh -ec "mount -t proc proc '$work/merged/proc'; exec chroot '$work/merged' /bin/sh -ec '
    echo from inside >/tmp/file; mv /tmp/file /tmp/moved; rm /bin/ls; test ! -e /bin/ls; cat /tmp/moved; test -d /proc/1'" || status=1
  umount "$work/merged" || return 1
  [ "$(cat container/tmp/moved)" = "from inside" ] && [ -c container/bin/ls ] && [ -x image/bin/ls ] || status=1
  return $status
}

bind_mounts() {
  mkdir -p bound/below "$work/bound" && echo here >bound/below/file && mount --bind bound "$work/bound" || return 1
  local status=0
  echo there >"$work/bound/below/new" && [ "$(cat bound/below/new)" = there ] && [ "$(cat "$work/bound/below/file")" = here ] &&
    mount -o remount,bind,ro "$work/bound" && ! touch "$work/bound/x" 2>/dev/null && touch bound/y || status=1
  umount "$work/bound" || status=1
  return $status
}
# What is mounted inside stays, whatever is committed beside it, and has a call by setxattr been made before.
mounted_inside() {
  mkdir -p inside/point many && mount -t tmpfs none inside/point && echo kept >inside/point/file || return 1
  local status=0
  python3 -c "import os, sys; os.setxattr(sys.argv[1], 'system.kvfs.txn.begin', b'label=x'); os.setxattr(sys.argv[1], 'system.kvfs.txn.abort', b'label=x')" "$mnt" || status=1
  "$KVFS" txn run -s "$mnt" -- sh -c 'cd "$1/many" && seq 1500 | xargs touch && touch "$1/beside"' sh "$mnt" || status=1
  mountpoint -q inside/point && [ "$(cat inside/point/file)" = kept ] || status=1
  umount inside/point || status=1
  return $status
}
ring() {
  command -v cc >/dev/null || { echo "no C compiler"; return 77; }
  cc -O1 -o "$work/uring" "$here/uring.c" || { echo "no headers of io_uring"; return 77; }
  "$work/uring" "$mnt/ring"
}
no_nfs() {
  # knfsd asks exportfs for handles that outlive the kernel's memory; without them it refuses the directory.
  helper handles "$mnt/handle" || return 1
  mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || { echo "# no NFS server in this kernel; not tried"; return 0; }
}
no_flags() {
  touch flags || return 1
  ! chattr +i flags 2>"$work/said" && said 'not supported|Inappropriate|Invalid' && ! chattr +a flags 2>/dev/null && rm flags
}
# How a file comes by a commit: made elsewhere, it is never opened on the mount.
committing() { echo "'$KVFS' txn run -s '$mnt' -- touch '$mnt/watched/$1'"; }
inotify() { mkdir -p watched && helper watch "$mnt/watched" "$(committing committed)"; }
fanotify() { mkdir -p watched && helper watch_mount "$mnt/watched" "$(committing committed-too)"; }
fallocated() {
  # More than there is, is refused; what is free is not set aside.
  ! fallocate -l 100G toomuch 2>"$work/said" && said 'No space' && rm -f toomuch || return 1
  fallocate -l 1G large && [ "$(stat -c %s large)" = 1073741824 ] && [ "$(stat -c %b large)" -lt 2097152 ] && rm large
}
direct_device() {
  # The daemon's descriptor of the device: O_DIRECT.
  local fd flags
  for fd in /proc/"$daemon"/fd/*; do
    case $(readlink "$fd") in
      "$store"/*) ;;
      *) continue ;;
    esac
    flags=$(awk '/^flags/ { print $2 }' "/proc/$daemon/fdinfo/${fd##*/}")
    [ $((flags & 040000)) != 0 ] && echo "# $(readlink "$fd" | sed "s|$store|STORE|"): flags $flags" && return 0
  done
  echo "no descriptor with O_DIRECT"
  ls -l /proc/"$daemon"/fd
  return 1
}

step "an overlay with kvfs as its upper directory" overlay_upper
step "an overlay with kvfs as its lower directory" overlay_lower
step "an overlay with kvfs as both" overlay_both
step "an overlay with metacopy" overlay_metacopy
step "an overlay of an ordinary user" overlay_user
step "a container" container
step "rename leaves a whiteout" helper whiteout "$mnt/whiteouts"
step "types in listings" helper types "$mnt/types"
step "telldir, seekdir and rewinddir while the directory changes" helper telldir "$mnt/telldir"
step "no file handles that would not last, so no NFS export" no_nfs
step "asynchronous direct writes beside buffered reads" helper aio "$mnt/aio"
step "holes that a mapping has written into are data" helper dirty_holes "$mnt/dirty-holes"
step "io_uring" ring
step "bind mounts" bind_mounts
step "what is mounted inside stays when many names are committed" mounted_inside
step "locks between processes" helper locks "$mnt/locks"
step "fallocate sets nothing aside" fallocated
step "no flags of chattr" no_flags
step "no reflinks" helper no_reflink "$mnt/reflink"
step "inotify tells what the mount does, and no commits" inotify
step "fanotify, too" fanotify
step "sync and syncfs reach no daemon" helper sync_calls "$work/noted"
step "the device is opened for direct I/O" direct_device
cd /
umount_store || { failed=$((failed + 1)); failures+=(unmount); }
step "check" check_store
summary kernel
