#!/usr/bin/env bash
# Puts what `make install` installs into packages for Debian and its relatives; needs dpkg-dev.
# usage: packaging/deb.sh OUTDIR      prints the paths of the packages: kvfs, libkvfs0, libkvfs-dev
# DEB_OPTIONS: one more for dpkg-deb, such as -Znone
# KVFS, SHARE, LIBRARIES: the binary, what it has written by `kvfs pages`, where the library is (default: those of `make build`)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: packaging/deb.sh OUTDIR}

version=$(cargo pkgid -p kvfs-cli | sed 's/.*[#@]//')
major=${version%%.*}
arch=$(dpkg --print-architecture)
libdir=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
for package in kvfs "libkvfs$major" libkvfs-dev; do mkdir -p "$root/$package/DEBIAN"; done
kvfs=$root/kvfs library=$root/libkvfs$major dev=$root/libkvfs-dev

make --no-print-directory install-files ${KVFS:+KVFS="$KVFS"} ${SHARE:+SHARE="$SHARE"} ${LIBRARIES:+LIBRARIES="$LIBRARIES"} DESTDIR="$kvfs" PREFIX=/usr SBINDIR=/usr/sbin >&2
strip --strip-unneeded "$kvfs/usr/bin/kvfs"
find "$kvfs/usr/share/man" -type f -exec gzip -9n {} +

make --no-print-directory install-library-files ${LIBRARIES:+LIBRARIES="$LIBRARIES"} DESTDIR="$dev" PREFIX=/usr LIBDIR="$libdir" >&2
strip --strip-unneeded "$dev$libdir/libkvfs.so.$version" "$kvfs/usr/lib/kvfs/libkvfs_preload.so"
strip --strip-debug "$dev$libdir/libkvfs.a"
# Programs need these, and compilers the rest.
mkdir -p "$library$libdir"
mv "$dev$libdir/libkvfs.so.$version" "$dev$libdir/libkvfs.so.$major" "$library$libdir/"

# document PACKAGE: what every package has to say of itself.
document() {
  local doc=$root/$1/usr/share/doc/$1
  mkdir -p "$doc"
  gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
  {
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
    printf 'Upstream-Name: kvfs\n\nFiles: *\nCopyright: the authors of kvfs\nLicense: Apache-2.0 or MIT\n\n'
    printf 'License: Apache-2.0\n See /usr/share/common-licenses/Apache-2.0.\n\nLicense: MIT\n'
    sed 's/^$/./; s/^/ /' LICENSE-MIT
  } >"$doc/copyright"
}

# libraries PACKAGE FILE: those that a file is linked with, and their versions.
libraries() {
  mkdir -p "$root/debian"
  printf 'Source: kvfs\n\nPackage: %s\nArchitecture: any\n' "$1" >"$root/debian/control"
  (cd "$root" && dpkg-shlibdeps -O "$1$2" 2>/dev/null | sed 's/^shlibs:Depends=//')
}

# control PACKAGE SECTION [FIELD...]: the description is read.
control() {
  local package=$1 section=$2
  shift 2
  {
    printf 'Package: %s\nSource: kvfs\nVersion: %s\nSection: %s\nPriority: optional\nArchitecture: %s\n' "$package" "$version" "$section" "$arch"
    printf '%s\n' "$@"
    printf 'Installed-Size: %s\n' "$(du -ks --exclude=DEBIAN "$root/$package" | cut -f1)"
    printf 'Maintainer: the authors of kvfs <kvfs@localhost>\n'
    cat
  } >"$root/$package/DEBIAN/control"
}

for package in kvfs "libkvfs$major" libkvfs-dev; do document "$package"; done
control kvfs admin "Depends: $(libraries kvfs /usr/bin/kvfs), mount" 'Recommends: fuse3' <<'TEXT'
Description: transactional file system and key-value store
 Files (POSIX, through FUSE) and ordered key-value data live in one
 write-optimized store. Any mix of operations on both, from any number of
 processes, can run in one transaction. Snapshots, branches, undo, and
 checksums on every block.
TEXT
control "libkvfs$major" libs "Depends: $(libraries "libkvfs$major" "$libdir/libkvfs.so.$version")" 'Multi-Arch: same' <<'TEXT'
Description: transactional file system and key-value store, inside a program
 The calls of POSIX, ordered keys, transactions and snapshots on a kvfs store
 that the program opens itself: no mount, no daemon.
TEXT
control libkvfs-dev libdevel "Depends: libkvfs$major (= $version), libc6-dev" 'Multi-Arch: same' <<'TEXT'
Description: transactional file system and key-value store, files for compilers
 Headers for C and C++17, the static library, and files for pkg-config and
 CMake, of libkvfs.
TEXT

# The linker's cache, as ldconfig keeps it.
printf 'activate-noawait ldconfig\n' >"$library/DEBIAN/triggers"
printf 'libkvfs %s libkvfs%s (>= %s)\n' "$major" "$major" "$version" >"$library/DEBIAN/shlibs"
for script in postinst postrm; do
  cat >"$kvfs/DEBIAN/$script" <<'SCRIPT'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl --system daemon-reload || true; fi
SCRIPT
  chmod 755 "$kvfs/DEBIAN/$script"
done

mkdir -p "$out"
for package in kvfs "libkvfs$major" libkvfs-dev; do
  file=$out/${package}_${version}_$arch.deb
  dpkg-deb ${DEB_OPTIONS:+"$DEB_OPTIONS"} --root-owner-group --build "$root/$package" "$file" >&2
  echo "$file"
done
