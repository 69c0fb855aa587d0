#!/usr/bin/env bash
# Containers of a real runtime (crun or runc) on a store: its mount bound into them, with and without the sockets of
# /run/kvfs, as root and as a user; a root of overlays on it; and a store that is mounted inside of one.
# usage: tests/suites/container.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "container: a plain directory is no store"
for runtime in crun runc ''; do command -v "$runtime" >/dev/null && break; done
lacks=''
[ "$(id -u)" = 0 ] || lacks="root"
[ -n "$runtime" ] || lacks="crun or runc"
busybox=$(command -v busybox) && ! ldd "$busybox" >/dev/null 2>&1 || lacks="${lacks:+$lacks, }busybox-static"
if [ -n "$lacks" ]; then
  echo "container: needs $lacks; skipped"
  echo "container: 0 passed, 0 failed, 1 skipped"
  exit 0
fi
work_dir container
make_store container --size 2G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
echo outside >"$mnt/file"
chmod 777 "$mnt"

# A root without any distribution: busybox, the command, and the libraries that it is linked to.
image() { # DIR
  mkdir -p "$1"/{bin,dev,etc,proc,sys,tmp,data,run} && cp "$busybox" "$1/bin/busybox" && cp "$KVFS" "$1/bin/kvfs" && chmod 1777 "$1/tmp" || return
  local name
  for name in sh cat echo grep id ls mkdir mv rm stat test touch; do ln -s busybox "$1/bin/$name" || return; done
  printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$1/etc/passwd"
  ldd "$KVFS" | grep -o '/[^ ]*' | while read -r name; do mkdir -p "$1$(dirname "$name")" && cp -L "$name" "$1$name"; done
}

# box ROOT USER CAPABILITIES BINDS COMMAND: runs COMMAND in a shell in a container. CAPABILITIES: none, default (what
# docker gives root), admin (with CAP_SYS_ADMIN). BINDS: words FROM:TO, or "fuse" for /dev/fuse.
boxes=0
box() {
  boxes=$((boxes + 1))
  local bundle=$work/box-$boxes
  mkdir -p "$bundle"
  python3 - "$bundle" "$@" <<'PY' || return
import json, os, sys
bundle, root, user, capabilities, binds, command = sys.argv[1:]
names = {"none": "", "default": "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE SYS_CHROOT"}
names["admin"] = names["default"] + " SYS_ADMIN"
kept = [f"CAP_{name}" for name in names[capabilities].split()]
mounts = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
    {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]},
]
devices = []
for bind in binds.split():
    if bind == "fuse":
        devices.append({"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666})
    else:
        source, destination = bind.split(":")
        mounts.append({"destination": destination, "type": "bind", "source": source, "options": ["rbind", "rw"]})
spaces = [{"type": kind} for kind in ["pid", "ipc", "uts", "mount", "network"]]
spec = {
    "ociVersion": "1.0.0",
    "process": {
        "terminal": False, "cwd": "/", "args": ["sh", "-c", command], "env": ["PATH=/bin"],
        "user": {"uid": int(user), "gid": int(user)}, "noNewPrivileges": True,
        "capabilities": {kind: kept for kind in ["bounding", "effective", "permitted"]},
    },
    "root": {"path": root}, "mounts": mounts,
    "linux": {"namespaces": spaces, "devices": devices},
}
with open(os.path.join(bundle, "config.json"), "w") as file:
    json.dump(spec, file)
PY
  # In a mount namespace of its own, where no cgroups are mounted that a runtime can't use (v1 beside v2).
  local managed=()
  [ "$runtime" != crun ] || managed=(--cgroup-manager=disabled)
  timeout 60 unshare -m sh -c 'umount -l /sys/fs/cgroup/unified 2>/dev/null; exec "$@"' sh \
    "$runtime" --root "$work/state" "${managed[@]}" run --bundle "$bundle" "kvfs-$$-$boxes" 2>"$work/said" </dev/null
  local status=$?
  cat "$work/said"
  return $status
}
sockets=/run/kvfs:/run/kvfs
in_box() { box "$work/root" "$@"; }

starts() { image "$work/root" && in_box 0 default "" 'test "$(id -u)" = 0 && kvfs version' || { cat "$work/said"; return 1; }; }
files() {
  in_box "$1" "$2" "$mnt:/data" 'cat /data/file && echo inside >/data/new && mv /data/new /data/renamed-'"$1" >"$work/out" && grep -qx outside "$work/out" && [ "$(cat "$mnt/renamed-$1")" = inside ]
}
# Without the sockets nothing but files works, and each command says what to bind; nothing runs outside of the transaction.
without_sockets() {
  local command
  for command in "kvfs txn run -s /data -- touch /data/ran" "cd /data && kvfs txn run touch ran" "kvfs kv put -s /data k a b" \
    "kvfs snapshot list -s /data" "kvfs stats /data" "kvfs sync /data"; do
    if in_box "$1" "$2" "$mnt:/data" "$command" >"$work/out"; then echo "succeeded: $command"; return 1; fi
    grep -q 'bind /run/kvfs into it' "$work/out" || { echo "$command said: $(cat "$work/out")"; return 1; }
  done
  [ ! -e "$mnt/ran" ]
}
# A transaction in a container: seen inside, and outside with the commit; dropped when the command fails.
with_sockets() {
  in_box "$1" "$2" "$mnt:/data $sockets" 'cd /data && kvfs txn run sh -c "echo x >run-'"$1"' && test -e run-'"$1"' && test -e file" &&
    ! kvfs txn run sh -c "echo x >dropped; exit 1" && test ! -e dropped && kvfs kv put keys-'"$1"' a b && test "$(kvfs kv get keys-'"$1"' a)" = b && kvfs status' >"$work/out" || { cat "$work/out"; return 1; }
  cat "$work/out"
  [ -e "$mnt/run-$1" ] && [ ! -e "$mnt/dropped" ] && grep -q serving "$work/out"
}
# Root of a container as it usually is has no right to make views; then nothing runs, and keys work.
root_without_admin() {
  ! in_box 0 default "$mnt:/data $sockets" 'kvfs txn run -s /data touch /data/ran' >"$work/out" && grep -q CAP_SYS_ADMIN "$work/out" && [ ! -e "$mnt/ran" ] &&
    in_box 0 default "$mnt:/data $sockets" 'kvfs kv put -s /data plain a b && test "$(kvfs kv get -s /data plain a)" = b'
}
root_of_overlays() {
  mkdir -p "$mnt/"{upper,work} "$work/merged" && image "$mnt/image" || return
  mount -t overlay overlay -o "lowerdir=$mnt/image,upperdir=$mnt/upper,workdir=$mnt/work" "$work/merged" || { echo "no overlayfs in this kernel"; return 77; }
  local status=0
  box "$work/merged" 0 default "" 'echo new >/tmp/new && mv /tmp/new /tmp/moved && rm /bin/ls && test ! -e /bin/ls && kvfs version' || status=1
  umount "$work/merged" || status=1
  [ "$(cat "$mnt/upper/tmp/moved")" = new ] && [ -c "$mnt/upper/bin/ls" ] && [ -e "$mnt/image/bin/ls" ] || status=1
  return $status
}
mounted_inside() {
  in_box 0 admin fuse 'mkdir /tmp/m && kvfs mount --create --size 256M /tmp/s /tmp/m && cd /tmp/m && echo text >file && kvfs txn run sh -c "echo more >>file" &&
    test "$(kvfs kv put k a b && kvfs kv get k a)" = b && cat file && cd / && kvfs umount /tmp/m && kvfs check /tmp/s' >"$work/out"
  local status=$?
  cat "$work/out"
  [ $status = 0 ] && grep -qx more "$work/out" && ! in_box 0 default fuse 'mkdir /tmp/n && kvfs mount --create --size 256M /tmp/t /tmp/n' >"$work/out" &&
    grep -q CAP_SYS_ADMIN "$work/out"
}

step "a container runs" starts
step "files, as root" files 0 default
step "files, as a user" files 65534 none
step "without the sockets, as root" without_sockets 0 admin
step "without the sockets, as a user" without_sockets 65534 none
step "transactions and keys with the sockets, as root with CAP_SYS_ADMIN" with_sockets 0 admin
step "transactions and keys with the sockets, as a user" with_sockets 65534 none
step "root without CAP_SYS_ADMIN" root_without_admin
step "a root of overlays" root_of_overlays
step "a store mounted inside" mounted_inside
umount_store || { failed=$((failed + 1)); failures+=(unmount); }
step "check" check_store
summary container
