#!/usr/bin/env bash
# Builds the programs that come from crates.io, and by Go from its module proxy, once per machine.
# Prints the directory of their binaries. Several runs at a time wait for each other.
# usage: tests/suites/tools.sh [NAME...]       default: what `make test` needs
#
# KVFS_SUITES   where they are kept (default ~/.cache/kvfs-suites)
set -euo pipefail
root=${KVFS_SUITES:-${XDG_CACHE_HOME:-$HOME/.cache}/kvfs-suites}
mkdir -p "$root"
exec 9>"$root/.building"
flock 9
wanted=${*:-fsx pjdfstest}
# install NAME VERSION [OPTION...]
install() {
  local name=$1 version=$2
  shift 2
  [[ " $wanted " == *" $name "* ]] || return 0
  [ -x "$root/bin/$name" ] || cargo install --quiet --locked --root "$root" --version "$version" "$@" "$name" 9>&- >&2
}
install fsx 0.3.2
# They are quick enough unoptimized, and slow to optimize.
install pjdfstest 0.2.2 --debug
install cargo-fuzz 0.13.2 --debug
install cargo-deny 0.20.2 --debug
# with_go NAME: whether it is wanted and missing; Go builds it.
with_go() {
  [[ " $wanted " == *" $1 "* ]] && [ ! -x "$root/bin/$1" ] || return 1
  command -v go >/dev/null || { echo "tools.sh: $1 is built by Go 1.24 or newer, and there is none: https://go.dev/dl" >&2; exit 1; }
}
if with_go versitygw; then
  GOBIN=$root/bin timeout 900 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 9>&- >&2
fi
# What it has for other metadata and other storage is left out. Its own list of modules has a profiler that Go of today no longer builds.
if with_go juicefs; then
  source=$(mktemp -d)
  trap 'rm -rf "$source"' EXIT
  module=$(cd "$source" && go mod download -json github.com/juicedata/juicefs@v1.2.0 9>&- | sed -n 's/^\s*"Dir": "\(.*\)",*$/\1/p')
  cp -r "$module/." "$source"
  chmod -R u+w "$source"
  (
    cd "$source"
    go get github.com/grafana/pyroscope-go/godeltaprof@v0.1.9
    timeout 1800 go build -o "$root/bin/juicefs" -tags nogateway,nowebdav,nocos,nobos,nohdfs,noibmcos,noobs,nooss,noqingstor,noscs,nosftp,noswift,noupyun,noazure,nogs,noufile,nob2,nonfs,nodragonfly,nomysql,nopg,notikv,nobadger,noetcd .
  ) 9>&- >&2
fi
echo "$root/bin"
