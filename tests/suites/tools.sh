#!/usr/bin/env bash
# Builds the programs that come from crates.io, once per machine.
# Prints the directory of their binaries. Several runs at a time wait for each other.
# usage: tests/suites/tools.sh [NAME...]       default: what `make test` needs
#
# KVFS_SUITES   where they are kept (default ~/.cache/kvfs-suites)
set -euo pipefail
root=${KVFS_SUITES:-${XDG_CACHE_HOME:-$HOME/.cache}/kvfs-suites}
mkdir -p "$root"
exec 9>"$root/.building"
flock 9
wanted=${*:-fsx pjdfstest cargo-deny}
# install NAME VERSION [OPTION...]
install() {
  local name=$1 version=$2
  shift 2
  [[ " $wanted " == *" $name "* ]] || return 0
  [ -x "$root/bin/$name" ] || cargo install --quiet --locked --root "$root" --version "$version" "$@" "$name" 9>&- >&2
}
install fsx 0.3.2
install pjdfstest 0.2.2
# They are quick enough unoptimized, and slow to optimize.
install cargo-fuzz 0.13.2 --debug
install cargo-deny 0.20.2 --debug
echo "$root/bin"
