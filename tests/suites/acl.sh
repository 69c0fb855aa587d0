#!/usr/bin/env bash
# POSIX access-control lists: as on the kernel's own file systems, and through everything that kvfs has beside them.
# usage: tests/suites/acl.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "acl: a plain directory is the reference, not what is tested"
work_dir acl
make_store acl --size 1G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
cd "$mnt" || die "no mount"
is_root() { [ "$(id -u)" = 0 ]; }

# Somewhere with lists of the kernel's own.
mkdir "$work/reference"
if is_root; then mount -t tmpfs -o mode=755 none "$work/reference"; fi
has_reference() {
  touch "$work/reference/probe" && setfacl -m u:1:r "$work/reference/probe" && rm "$work/reference/probe" && return
  echo "there is no other file system with lists"
  return 77
}

same_as_kernel() {
  is_root || { echo "needs root, whom modes do not keep out"; return 77; }
  has_reference || return
  local seed
  for seed in 1 2; do
    mkdir "same-$seed" "$work/reference/same-$seed" &&
      python3 "$here/acl.py" "$mnt/same-$seed" "$work/reference/same-$seed" "$seed" 100 || return 1
  done
}

own_locks() {
  is_root || { echo "needs root, to become other users"; return 77; }
  has_reference || return
  find_python || return 77
  # Users come by the socket of the mount.
  chmod 700 "$store" || return 1
  local seed
  for seed in 1 2; do
    mkdir "locks-$seed" "$work/reference/locks-$seed" &&
      PYTHONPATH=$repo/python "$python" "$here/acl_locks.py" "$mnt" "locks-$seed" "$work/reference/locks-$seed" "$seed" || return 1
  done
}

lists_of() { (cd "$1" && find . | sort | xargs getfacl -n && find . | sort | xargs stat -c '%n %A'); }

# What the usual tools make of it.
by_tools() {
  has_reference || return
  local at
  for at in "$mnt" "$work/reference"; do
    (cd "$at" && mkdir tools && cd tools && umask 027 && {
      echo text >file && mkdir -p dir/sub && setfacl -m u:2001:rw,g:3001:r file && setfacl -d -m u:2001:rwx,o::- dir &&
        echo text >dir/made && mkdir dir/inner && chmod g-w file && chmod 700 dir/inner && cp -a file copied && cp file dir/plain &&
        setfacl -R -m u:2002:rX dir && setfacl -x g:3001 file && setfacl -b copied && setfacl -k dir/inner &&
        mv dir/made dir/inner/moved && ln dir/inner/moved linked && sed -i s/text/other/ file
      ! setfacl -d -m u:2001:r file 2>&1
      setfacl -m m::rwx linked && lists_of .
    }) >"$work/$(basename "$at").txt" 2>&1
  done
  diff "$work/reference.txt" "$work/acl.mnt.txt" && grep -q 2001:rw "$work/reference.txt" || { cat "$work/acl.mnt.txt"; return 1; }
}

as() { setpriv --reuid "$1" --regid "$1" --clear-groups -- "${@:2}"; }

# In an ordinary user's transaction the kernel takes no list that names another user.
knows_users() { is_root || { echo "needs root, to name other users in a transaction"; return 77; }; }

# What the kernel has been told of a list must not outlive it.
commits() {
  knows_users || return
  mkdir shared && echo text >shared/file && chmod 640 shared/file || return 1
  if is_root; then ! as 2001 cat shared/file 2>/dev/null || return 1; fi
  ! getfattr -n system.posix_acl_access shared/file 2>/dev/null || return 1
  "$KVFS" txn run -- sh -c 'setfacl -m u:2001:r shared/file && setfacl -d -m u:2001:rw shared && echo x >shared/made &&
    getfacl -n shared/made | grep -q user:2001:rw' || return 1
  getfacl -n shared/file | grep -q user:2001:r && getfacl -n shared/made | grep -q user:2001:rw || return 1
  if is_root; then as 2001 cat shared/file || return 1; fi
  "$KVFS" txn run -- setfacl -x u:2001 shared/file || return 1
  if is_root; then ! as 2001 cat shared/file 2>/dev/null || return 1; fi
  ! "$KVFS" txn run -- sh -c 'setfacl -m u:2001:rw shared/file; exit 1'
  ! getfacl -n shared/file | grep user:2001
}

# In the namespaces of an ordinary user's transaction the kernel knows no other user.
ordinary_user() {
  is_root || { echo "needs root, to become another user"; return 77; }
  as 65534 unshare --user --mount true 2>/dev/null && as 65534 "$KVFS" version >/dev/null || { echo "no namespaces here"; return 77; }
  local home=$work/home
  mkdir -p "$home/mnt" && chown -R 65534:65534 "$home" || return 1
  # /dev/fuse may be closed to ordinary users.
  (cd / && unshare --mount --propagation private -- sh -c '
    mount -t tmpfs -o mode=755 tmpfs /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse || exit 1
    exec setpriv --reuid 65534 --regid 65534 --clear-groups -- env HOME="$1" sh -exc "
      cd $1; $0 mount --create --size 256M store mnt; cd mnt; echo text >file; setfacl -m u:2002:r,u:65534:r file; getfacl -n file
      $0 txn run -- sh -exc \"cat file; getfacl -n file; echo more >>file; mkdir dir; setfacl -d -m u:65534:rwx dir; chmod 640 file\"
      cat file; getfacl -n file dir | tee said; grep -q default:user:65534 said; grep -q user:2002:r said; cd ..; $0 umount mnt"' "$KVFS" "$home")
}

snapshots() {
  lists_of tools >"$work/before" || return 1
  "$KVFS" snapshot create -s "$mnt" then && setfacl -R -b tools && setfacl -d -m u:2003:rwx tools && rm tools/linked &&
    rm -r tools/dir/inner && lists_of .kvfs/snapshots/then/tools | diff "$work/before" - || return 1
  if is_root; then ! as 2003 sh -c 'echo x >tools/file' 2>/dev/null || return 1; fi
  "$KVFS" snapshot restore -s "$mnt" then && lists_of tools | diff "$work/before" - && "$KVFS" check "$mnt"
}

undone() {
  knows_users || return
  "$KVFS" txn run -- sh -c 'setfacl -m u:2003:rwx tools/file && chmod 777 tools/dir && rm -r tools/dir/sub' || return 1
  ! lists_of tools | diff -q "$work/before" - >/dev/null || return 1
  local id
  id=$("$KVFS" txn list --committed --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[-1]["id"])')
  "$KVFS" txn undo "$id" && lists_of tools | diff "$work/before" -
}

branches() {
  mkdir "$work/branch" && "$KVFS" branch create -s "$mnt" try && "$KVFS" branch mount -s "$mnt" try "$work/branch" || return 1
  (cd "$work/branch" && setfacl -m u:2003:rwx tools/file && mkdir -p shared/deep) && ! getfacl -n tools/file | grep 2003 || return 1
  "$KVFS" umount "$work/branch" && "$KVFS" branch merge -s "$mnt" try && getfacl -n tools/file | grep user:2003:rwx &&
    { ! is_root || getfacl -n shared/deep | grep default:user:2001:rw; }
}

sent() {
  local before
  "$KVFS" snapshot create -s "$mnt" sent && before=$(lists_of tools) && "$KVFS" mkfs --size 1G "$work/target" >/dev/null &&
    "$KVFS" snapshot send -s "$mnt" sent | "$KVFS" snapshot receive -s "$work/target" && mkdir "$work/target.mnt" &&
    "$KVFS" mount "$work/target" "$work/target.mnt" || return 1
  [ "$(lists_of "$work/target.mnt/tools")" = "$before" ] && "$KVFS" umount "$work/target.mnt" && "$KVFS" check "$work/target"
}

noacl() {
  local before
  before=$(lists_of "$mnt/tools")
  umount_store && check_store && mount_store "$(mount_options),noacl" && cd "$mnt" || return 1
  ! setfacl -m u:2001:r tools/copied 2>/dev/null && getfattr -d -m - tools/file && ! getfacl -n tools/file | grep 2001 || return 1
  (umask 022 && echo x >tools/dir/plainly && mkdir tools/dir/directory) &&
    [ "$(stat -c %a tools/dir/plainly tools/dir/directory | tr '\n' ' ')" = "644 755 " ] && rm -r tools/dir/plainly tools/dir/directory || return 1
  cd / && umount_store && mount_store && lists_of "$mnt/tools" | diff - <(echo "$before")
}

killed() {
  setfacl -m u:2002:r "$mnt/tools/copied" && sync "$mnt/tools/copied" && kill_daemon && mount_store && cd "$mnt" &&
    getfacl -n tools/copied | grep user:2002:r && "$KVFS" check "$mnt" && cd /
}

step "as tmpfs has it, in random changes by several users" same_as_kernel
step "locks of transactions need the rights that the kernel asks for" own_locks
step "setfacl, getfacl, chmod, cp, mv as elsewhere" by_tools
step "commits and aborts show at once" commits
step "an ordinary user's transaction" ordinary_user
step "snapshots show lists and restore them" snapshots
step "a transaction with lists is taken back" undone
step "branches" branches
step "sent and received" sent
cd /
step "noacl: permission bits alone" noacl
step "kill -9" killed
umount_store && check_store >/dev/null || { say "  the store is not sound in the end"; failed=$((failed + 1)); }
summary acl
