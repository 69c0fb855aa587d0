#!/usr/bin/env bash
# Puts what `make install` installs into a package for Debian and its relatives; needs dpkg-dev.
# usage: packaging/deb.sh OUTDIR      prints the path of the package
# DEB_OPTIONS: one more for dpkg-deb, such as -Znone
# KVFS, SHARE: the binary, and what it has written by `kvfs pages` (default: those of `make build`)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: packaging/deb.sh OUTDIR}

version=$(cargo pkgid -p kvfs-cli | sed 's/.*[#@]//')
arch=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
pkg=$root/pkg
mkdir -p "$pkg/DEBIAN"

make --no-print-directory install-files ${KVFS:+KVFS="$KVFS"} ${SHARE:+SHARE="$SHARE"} DESTDIR="$pkg" PREFIX=/usr SBINDIR=/usr/sbin >&2
strip --strip-unneeded "$pkg/usr/bin/kvfs"
find "$pkg/usr/share/man" -type f -exec gzip -9n {} +

doc=$pkg/usr/share/doc/kvfs
mkdir -p "$doc"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
{
  printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n'
  printf 'Upstream-Name: kvfs\n\nFiles: *\nCopyright: the authors of kvfs\nLicense: Apache-2.0 or MIT\n\n'
  printf 'License: Apache-2.0\n See /usr/share/common-licenses/Apache-2.0.\n\nLicense: MIT\n'
  sed 's/^$/./; s/^/ /' LICENSE-MIT
} >"$doc/copyright"

# The libraries that the program is linked with, and their versions.
mkdir "$root/debian"
printf 'Source: kvfs\n\nPackage: kvfs\nArchitecture: any\n' >"$root/debian/control"
libraries=$(cd "$root" && dpkg-shlibdeps -O "pkg/usr/bin/kvfs" 2>/dev/null | sed 's/^shlibs:Depends=//')

cat >"$pkg/DEBIAN/control" <<CONTROL
Package: kvfs
Version: $version
Section: admin
Priority: optional
Architecture: $arch
Depends: $libraries, mount
Recommends: fuse3
Installed-Size: $(du -ks --exclude=DEBIAN "$pkg" | cut -f1)
Maintainer: the authors of kvfs <kvfs@localhost>
Description: transactional file system and key-value store
 Files (POSIX, through FUSE) and ordered key-value data live in one
 write-optimized store. Any mix of operations on both, from any number of
 processes, can run in one transaction. Snapshots, branches, undo, and
 checksums on every block.
CONTROL
for script in postinst postrm; do
  cat >"$pkg/DEBIAN/$script" <<'SCRIPT'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl --system daemon-reload || true; fi
SCRIPT
  chmod 755 "$pkg/DEBIAN/$script"
done

mkdir -p "$out"
file=$out/kvfs_${version}_$arch.deb
dpkg-deb ${DEB_OPTIONS:+"$DEB_OPTIONS"} --root-owner-group --build "$pkg" "$file" >&2
echo "$file"
