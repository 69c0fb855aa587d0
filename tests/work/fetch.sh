#!/usr/bin/env bash
# Fetches a tree for `make realwork` once per machine, from the distribution's own archive, and prints its path.
# usage: tests/work/fetch.sh kernel        a tarball of the kernel's sources (Debian's linux-source-*)
#        tests/work/fetch.sh source NAME   the unpacked source package NAME
#
# KVFS_WORK_CACHE   where they are kept (default ~/.cache/kvfs-realwork)
set -euo pipefail
cache=${KVFS_WORK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvfs-realwork}
mkdir -p "$cache"
cd "$cache"
command -v apt-get >/dev/null || {
  echo "there is no apt-get here to fetch with" >&2
  exit 77
}

# A package index of our own: needs no root, and leaves the system's alone. With "source" it is the index of
# source packages, which few machines have configured.
private_apt() {
  local kind=$1
  rm -rf "apt.$kind"
  mkdir -p "apt.$kind"/{lists/partial,archives/partial,sources.d}
  : >"apt.$kind/sources.list"
  local f
  for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e "$f" ] && grep -E '^deb ' "$f" >>"apt.$kind/sources.list" || true
  done
  for f in /etc/apt/sources.list.d/*.sources; do
    [ -e "$f" ] && cp "$f" "apt.$kind/sources.d/" || true
  done
  if [ "$kind" = source ]; then
    sed -i 's/^deb /deb-src /' "apt.$kind/sources.list"
    for f in "apt.$kind"/sources.d/*.sources; do
      [ -e "$f" ] && sed -i 's/^Types:.*/Types: deb-src/' "$f" || true
    done
  fi
  apt=(apt-get -q -o Dir::Etc::SourceList="$PWD/apt.$kind/sources.list" -o Dir::Etc::SourceParts="$PWD/apt.$kind/sources.d"
    -o Dir::State::Lists="$PWD/apt.$kind/lists" -o Dir::Cache="$PWD/apt.$kind" -o APT::Sandbox::User=)
  "${apt[@]}" update >&2
}

case ${1:-} in
  kernel)
    if ! ls linux-source-*.tar* >/dev/null 2>&1; then
      private_apt binary
      name=$("${apt[@]/apt-get/apt-cache}" -n search '^linux-source-[0-9.]+$' | awk '{ print $1 }' | sort -V | tail -n 1)
      [ -n "$name" ] || {
        echo "the archive has no linux-source package" >&2
        exit 77
      }
      "${apt[@]}" download "$name" >&2
      dpkg-deb --fsys-tarfile "$name"_*.deb | tar -x --wildcards './usr/src/linux-source-*.tar.*' --strip-components=3
      rm -f "$name"_*.deb
      rm -rf apt.binary
    fi
    # The unpacked one first, should there be one: the benchmark leaves it here.
    ls "$PWD"/linux-source-*.tar* | grep -E '\.tar(\.xz)?$' | sort | head -n 1
    ;;
  source)
    if [ ! -d "$2" ]; then
      private_apt source
      rm -rf "$2.new"
      mkdir "$2.new"
      (cd "$2.new" && "${apt[@]}" source --only-source "$2" >&2)
      mv "$2.new"/*/ "$2"
      rm -rf "$2.new" apt.source
    fi
    echo "$PWD/$2"
    ;;
  *)
    echo "usage: $0 kernel | source NAME" >&2
    exit 2
    ;;
esac
