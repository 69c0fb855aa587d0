#!/usr/bin/env bash
# Builds the test programs that come from crates.io, once per machine.
# Prints the directory of their binaries. Several runs at a time wait for each other.
#
# KVFS_SUITES   where they are kept (default ~/.cache/kvfs-suites)
set -euo pipefail
root=${KVFS_SUITES:-${XDG_CACHE_HOME:-$HOME/.cache}/kvfs-suites}
mkdir -p "$root"
exec 9>"$root/.building"
flock 9
for program in fsx:0.3.2 pjdfstest:0.2.2; do
  name=${program%:*} version=${program#*:}
  [ -x "$root/bin/$name" ] && continue
  cargo install --quiet --locked --root "$root" --version "$version" "$name" 9>&- >&2
done
echo "$root/bin"
