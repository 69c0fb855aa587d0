#!/usr/bin/env bash
# POSIX semantics of a directory: pjdfstest 0.2.2. As root; other users must be let in.
# usage: tests/suites/pjdfstest.sh DIR [pattern...]
#
# OTHER_FS      a directory on another file system, for the EXDEV cases (default /dev/shm)
set -uo pipefail
dir=$(realpath "$1")
shift
if [ "$(id -u)" != 0 ]; then
  echo "pjdfstest changes users: it must run as root"
  echo "pjdfstest: 0 passed, 0 failed, 1 skipped"
  exit 0
fi
bin=$("$(dirname "$0")/tools.sh") || exit 2
here=$(mktemp -d "$dir/pjdfstest.XXXXXX")
there=$(mktemp -d "${OTHER_FS:-/dev/shm}/pjdfstest.XXXXXX")
tmp=$(mktemp -d)
trap 'rm -rf "$here" "$there" "$tmp"' EXIT
chmod 755 "$dir" "$here" "$there"

# The optional features are those that Linux file systems have.
cat >"$tmp/config.toml" <<'T'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
allow_remount = false
naptime = 0.01

[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
T

# The path of a socket has at most 107 bytes: in a mount namespace of its own the directory gets a short one.
# shellcheck disable=SC2016 # expanded by the inner shell
timeout "${LIMIT:-600}" unshare -m bash -c 'mount --bind "$1" /mnt && shift && exec "$@"' - "$here" \
  "$bin/pjdfstest" -c "$tmp/config.toml" -p /mnt -s "$there" "$@" >"$tmp/log" 2>&1
status=$?
sed -i 's/\x1b\[[0-9;]*m//g' "$tmp/log"
grep -a ' FAILED$' "$tmp/log" | head -n 60
# "Summary: 1 failed, 20 skipped, 500 passed (541 total)"
line=$(grep -a '^Summary' "$tmp/log" | tail -n 1)
if [ -z "$line" ]; then
  tail -n 20 "$tmp/log"
  echo "pjdfstest ended with $status and no summary"
  echo "pjdfstest: 0 passed, 1 failed, 0 skipped"
  exit 1
fi
[ -z "${VERBOSE:-}" ] || cat "$tmp/log"
echo "$line"
number() { grep -oE "[0-9]+ $1" <<<"$line" | grep -oE '[0-9]+' || echo 0; }
echo "pjdfstest: $(number passed) passed, $(number failed) failed, $(number skipped) skipped"
exit $status
