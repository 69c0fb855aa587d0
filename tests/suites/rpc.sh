#!/usr/bin/env bash
# The key-value socket on a real mount: the command, the Python package, the examples, other users, bad clients.
# usage: tests/suites/rpc.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "rpc: a plain directory has no keys"
work_dir rpc
make_store rpc --size 1G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"

# Exit codes, as in `kvfs --help`.
denied=7

kv() { "$KVFS" kv "$@"; }

same_way_mounted_or_not() {
  kv put -s "$mnt" tags song artist && [ "$(kv get -s "$mnt" tags song)" = artist ] && [ -S "$store/kv.sock" ] &&
    [ "$(stat -c %a "$store/kv.sock")" = 666 ] && [ "$(stat -c %a "$store")" = 700 ] && umount_store &&
    [ ! -e "$store/kv.sock" ] && [ "$(kv get -s "$store" tags song)" = artist ] &&
    kv put -s "$store" tags offline 1 && kv chmod 644 tags -s "$store" && mount_store &&
    [ "$(kv get -s "$mnt" tags offline)" = 1 ] && kv keyspaces -s "$mnt" | grep -q '^rw-r--r-- .* tags$'
}
in_a_transaction() {
  local id
  id=$("$KVFS" txn begin | head -n 1)
  KVFS_TXN=$id KVFS_TXN_STORE=$store kv put tags inside 1 && ends 1 kv get tags inside &&
    [ "$(KVFS_TXN=$id KVFS_TXN_STORE=$store kv scan tags --prefix in)" = "$(printf 'inside\t1')" ] &&
    "$KVFS" txn commit "$id" && [ "$(kv get tags inside)" = 1 ] && KVFS_TXN=$id ends 1 kv get tags inside && said 'no open transaction'
}
big_pages() {
  # More than the socket's buffers hold, through a pipe that is slow at first.
  local i
  head -c 900000 /dev/urandom | base64 -w 0 | head -c 1000000 >"$work/value"
  for i in $(seq 12); do kv put big "$i" - <"$work/value" || return 1; done
  [ "$(kv scan big --reverse | (sleep 0.3; cut -f 1) | tr '\n' ' ')" = "9 8 7 6 5 4 3 2 12 11 10 1 " ]
}
# A user other than root serves itself; root serves others, too.
other_users() {
  [ "$(id -u)" = 0 ] || { echo "needs root"; return 77; }
  getent passwd nobody >/dev/null && has_setpriv || { echo "needs nobody and setpriv"; return 77; }
  chmod 711 "$store" && cp "$KVFS" "$work/kvfs" && chmod 755 "$work/kvfs" "$work"
  local as=(setpriv --reuid 65534 --regid 65534 --clear-groups) group=(setpriv --reuid 65534 --regid 65534 --groups 4242)
  kv put shared a 1 && kv put secret a 1 && kv chmod 644 shared && kv chown :4242 shared || return 1
  ends $denied "${as[@]}" "$work/kvfs" kv get -s "$store" secret a && said secret &&
    [ "$("${as[@]}" "$work/kvfs" kv get -s "$store" shared a)" = 1 ] &&
    ends $denied "${as[@]}" "$work/kvfs" kv put -s "$store" shared a 2 && kv chmod 660 shared &&
    ends $denied "${as[@]}" "$work/kvfs" kv get -s "$store" shared a &&
    "${group[@]}" "$work/kvfs" kv put -s "$store" shared a 2 && [ "$(kv get shared a)" = 2 ] &&
    "${as[@]}" "$work/kvfs" kv put -s "$store" theirs a 3 && [ "$(kv get theirs a)" = 3 ] &&
    kv keyspaces | grep -qE "^rw------- +(65534|$(id -nu 65534)) +(65534|$(id -ng 65534)) +theirs$" &&
    ! "${as[@]}" "$work/kvfs" kv keyspaces -s "$store" | grep -q secret &&
    ends $denied "${as[@]}" "$work/kvfs" kv chmod 666 secret -s "$store" &&
    ends $denied "${as[@]}" "$work/kvfs" kv chown 0 theirs -s "$store" && in_others_transaction "${as[@]}"
}
has_setpriv() { command -v setpriv >/dev/null; }
in_others_transaction() {
  local id
  id=$("$KVFS" txn begin | head -n 1)
  KVFS_TXN=$id KVFS_TXN_STORE=$store ends $denied "$@" "$work/kvfs" kv get -s "$store" shared a && said 'another user'
  local status=$?
  "$KVFS" txn abort "$id" && chmod 700 "$store" && return $status
}
bad_clients() {
  # Nonsense, silence, too many: the daemon lives, and so do the others.
  python3 - "$store/kv.sock" <<'PY'
import os, socket, sys
def connect():
    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); return s
preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
for round in range(200):
    s = connect()
    try:
        s.sendall((preface if round % 2 else b"") + os.urandom(round * 7 % 200))
    except (BrokenPipeError, ConnectionResetError):
        pass
    s.close()
silent = []
for _ in range(300):
    try:
        s = connect(); s.sendall(preface); silent.append(s)
    except (BrokenPipeError, ConnectionResetError):
        pass
s = silent[0]
s.shutdown(socket.SHUT_WR)
os.write(1, b"# %d connections that say nothing\n" % len(silent))
PY
  kv put tags after-all 1 && [ "$(kv get tags after-all)" = 1 ] && kill -0 "$daemon"
}
python_package() {
  find_python || return 77
  (cd "$mnt" && KVFS=$KVFS KVFS_DIR=$mnt PYTHONPATH=$repo/python timeout 100 "$python" -m unittest discover -q -s "$repo/python/tests")
}
# The machine's /dev/fuse may be closed to ordinary users: in a mount namespace of its own it is opened.
as_ordinary_user() {
  # A store, a mount and a program of that user's own.
  [ "$(id -u)" = 0 ] || { echo "the other steps ran as one"; return 77; }
  find_python && has_setpriv || { echo "needs grpcio and setpriv"; return 77; }
  local home=$work/home nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups) site
  "${nobody[@]}" unshare --user --mount true 2>/dev/null || { echo "no user namespaces here"; return 77; }
  # What root has installed for itself others may not read.
  site=$("$python" -c 'import grpc, os; print(os.path.dirname(os.path.dirname(grpc.__file__)))')
  mkdir -p "$home/mnt" "$home/crates/rpc" && cp "$KVFS" "$home/kvfs" && cp -r "$repo/python" "$home/python" &&
    cp -r "$repo/crates/rpc/proto" "$home/crates/rpc" && cp -r "$site" "$home/site" && chown -R 65534:65534 "$home" || return 1
  local own=/usr/bin/python3
  PYTHONPATH=$home/site "${nobody[@]}" $own -c 'import grpc, google.protobuf' 2>/dev/null ||
    { echo "no Python with grpcio for ordinary users"; return 77; }
  unshare --mount --propagation private -- sh -c "
    mount -t tmpfs -o mode=755 tmpfs /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse &&
    exec ${nobody[*]} sh -exc '
      cd $home; export HOME=$home KVFS=$home/kvfs KVFS_DIR=$home/mnt PYTHONDONTWRITEBYTECODE=1
      ./kvfs mount --create --size 512M --memory 128M store mnt
      PYTHONPATH=$home/python:$home/site timeout 100 $own -m unittest discover -q -s python/tests || status=\$?
      ./kvfs umount mnt && ./kvfs check store && exit \${status:-0}'" >"$work/user.log" 2>&1
  local status=$?
  cat "$work/user.log"
  [ $status = 0 ]
}
# example NAME COMMAND...: prints what examples/photo.sh prints, but for how the program ended.
example() {
  local name=$1
  shift
  mkdir -p "example-$name" && "$@" "$mnt/example-$name" | tee "$work/said" || return 1
  [ "$(grep -c 'photo: absent   tags: absent' "$work/said")" = 1 ] && [ "$(grep -cE 'photo: there   tags: (there|cat, sofa)' "$work/said")" = 1 ] &&
    [ -e "example-$name/photos/cat.jpg" ] && kv del photo-tags cat.jpg && [ "$("$KVFS" txn list --json)" = '[]' ]
}
example_shell() { KVFS=$KVFS example shell "$repo/examples/photo.sh"; }
example_python() {
  find_python || return 77
  PYTHONPATH=$repo/python example python "$python" "$repo/examples/photo.py"
}
example_rust() {
  local built=$(dirname "$KVFS")/examples/photo
  if [ "$KVFS" = "$repo/target/release/kvfs" ]; then
    # Together with the command, so that what they have in common is built once.
    (cd "$repo" && cargo build -q --release --locked -p kvfs-cli --bin kvfs -p kvfs-rpc --example photo) || return 1
  fi
  [ -x "$built" ] || { echo "$built is not there"; return 77; }
  example rust "$built"
}

step "keys are the same, mounted or not" same_way_mounted_or_not
cd "$mnt" || die "no mount"
# That for all users, where there is one.
step "the socket is under .kvfs, too" sh -c "readlink .kvfs/kv.sock | grep -qE '^($store|/run/kvfs/[0-9a-f]{64})/kv.sock$' && [ -S .kvfs/kv.sock ]"
step "KVFS_TXN puts commands into a transaction" in_a_transaction
step "large values through a slow pipe" big_pages
step "keyspaces have owners, groups and modes" other_users
step "bad clients hurt no other" bad_clients
step "the Python package" python_package
step "the Python package as an ordinary user" as_ordinary_user
step "a photo and its tags, in shell" example_shell
step "a photo and its tags, in Python" example_python
step "a photo and its tags, in Rust" example_rust
cd /
step "unmounts" umount_store
step "is clean" check_store
summary rpc
