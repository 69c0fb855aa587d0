#!/usr/bin/env bash
# Installs the system packages that are missing; prints nothing when none is.
# usage: scripts/setup.sh [run|test|engines|rocksdb|leveldb|bench|bench-db|bench-beyond]     run = mount a store; test = the suites as well; bench = rivals
# as well; engines = RocksDB and LevelDB as well, or one of them; bench-db = databases; bench-beyond = s3fs
set -euo pipefail

want=${1:-run}
missing=()

# need PACKAGE TEST...: notes PACKAGE unless TEST succeeds.
need() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
has() { command -v "$1"; }
# Not libclang-cpp, which is something else.
find_libclang() { compgen -G '/usr/lib/llvm-*/lib/libclang.so*' || compgen -G '/usr/lib/*/libclang-[0-9]*.so*'; }
# /usr/sbin is not in every user's PATH.
has_admin() { PATH=$PATH:/usr/sbin:/sbin command -v "$1"; }

need fuse3 has fusermount3
need gcc has cc
need libc6-dev test -e /usr/include/stdlib.h
if [ "$want" != run ]; then
  need make has make
  need g++ has c++
  need pkg-config has pkg-config
  need cmake has cmake
  need git has git
  need procps has pkill
  need rsync has rsync
  need sqlite3 has sqlite3
  need python3 python3 -c 'import sqlite3'
  need python3-venv python3 -c 'import ensurepip'
  need bc has bc
  need zsh has zsh
  need fish has fish
  need acl has setfacl
  need attr has setfattr
  need libacl1-dev test -e /usr/include/sys/acl.h
  need stress-ng has stress-ng
  need e2fsprogs has_admin mkfs.ext4
  need xz-utils has xz
  need dpkg-dev has dpkg-source
  need crun has crun
  need busybox-static has busybox
fi
if [ "$want" = bench ]; then
  need xfsprogs has_admin mkfs.xfs
  need btrfs-progs has_admin mkfs.btrfs
  need bindfs has bindfs
  need gocryptfs has gocryptfs
  need librocksdb-dev test -e /usr/include/rocksdb/c.h
  need libclang-dev find_libclang
  need libleveldb-dev test -e /usr/include/leveldb/c.h
  need linux-perf has perf
  need fonts-dejavu-core test -e /usr/share/fonts/truetype/dejavu
fi
if [ "$want" = engines ] || [ "$want" = rocksdb ]; then
  need librocksdb-dev test -e /usr/include/rocksdb/c.h
  need libclang-dev find_libclang
fi
if [ "$want" = engines ] || [ "$want" = leveldb ]; then
  need libleveldb-dev test -e /usr/include/leveldb/c.h
fi
has_postgres() { compgen -G '/usr/lib/postgresql/*/bin/pg_amcheck'; }
if [ "$want" = bench-db ]; then
  need postgresql has_postgres
  need mariadb-server has_admin mariadbd
  need xfsprogs has_admin mkfs.xfs
  need fonts-dejavu-core test -e /usr/share/fonts/truetype/dejavu
fi

if [ "$want" = bench-beyond ]; then
  need s3fs has s3fs
  need fonts-dejavu-core test -e /usr/share/fonts/truetype/dejavu
fi

if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    echo "setup: there is no apt-get here; install what provides: ${missing[*]}" >&2
    exit 1
  fi
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: not root and no sudo; as root: apt-get install ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"
  }
  log=$(mktemp)
  # A package list that is too old only shows when the install fails: refresh it then, not every time.
  if ! apt install -y --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1; then
    if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; } </dev/null >"$log" 2>&1; then
      tail -n 20 "$log" >&2
      echo "setup: apt-get could not install ${missing[*]}" >&2
      rm -f "$log"
      exit 1
    fi
  fi
  rm -f "$log"
fi

if [ ! -e /dev/fuse ]; then
  if [ "$(id -u)" = 0 ]; then
    modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229 2>/dev/null || true
  fi
  [ -e /dev/fuse ] || echo "setup: no /dev/fuse: the kernel module 'fuse' is missing, or a container hides it (docker: --device /dev/fuse --cap-add SYS_ADMIN)" >&2
fi

if ! command -v cargo >/dev/null && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
  echo "setup: Rust 1.95 or newer is needed: https://rustup.rs" >&2
  exit 1
fi
