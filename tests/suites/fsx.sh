#!/usr/bin/env bash
# Random operations on one file beside a copy in memory: fsx 0.3.2.
# usage: tests/suites/fsx.sh DIR [OPERATIONS [seed...]]     default: 20000, seeds 1 2 3
# A failure prints the seed and the last operations; artifacts go to /tmp.
#
# PROFILES      which of: plain mapped holes large (default: all)
set -uo pipefail
dir=$(realpath "$1")
operations=${2:-20000}
shift $(($# > 2 ? 2 : $#))
seeds=("$@")
[ ${#seeds[@]} -gt 0 ] || seeds=(1 2 3)
bin=$("$(dirname "$0")/tools.sh") || exit 2
here=$(mktemp -d "$dir/fsx.XXXXXX")
tmp=$(mktemp -d)
trap 'rm -rf "$here" "$tmp"' EXIT

# write_profile NAME: weights of the operations and the sizes.
write_profile() {
  local size=262144 most=65536 map=10 hole=0
  case $1 in
    plain) map=0 ;;
    mapped) ;;
    holes) hole=4 ;;
    large) size=16777216 most=1048576 hole=1 ;;
  esac
  cat <<T
flen = $size

[opsize]
min = 0
max = $most
align = 1

[weights]
read = 10
write = 10
mapread = $map
mapwrite = $map
invalidate = $((map > 0))
truncate = 3
close_open = 1
fsync = 0.3
fdatasync = 0.3
punch_hole = $hole
posix_fallocate = $hole
copy_file_range = $hole
sendfile = $hole
posix_fadvise = $hole
T
}

passed=0 failed=0
for profile in ${PROFILES:-plain mapped holes large}; do
  write_profile "$profile" >"$tmp/config.toml"
  n=$operations
  [ "$profile" = large ] && n=$((operations / 10))
  for seed in "${seeds[@]}"; do
    t0=$(date +%s.%N)
    if timeout "${LIMIT:-300}" "$bin/fsx" -q -f "$tmp/config.toml" -N "$n" -S "$seed" -P /tmp "$here/$profile.$seed" \
      >"$tmp/log" 2>&1; then
      result=ok
      passed=$((passed + 1))
    else
      result="FAILED (exit $?)"
      failed=$((failed + 1))
      tail -n 15 "$tmp/log"
    fi
    rm -f "$here/$profile.$seed"
    printf '%-7s seed %-3s %7d operations %6.1f s  %s\n' \
      "$profile" "$seed" "$n" "$(echo "$(date +%s.%N) - $t0" | bc)" "$result"
  done
done
echo "fsx: $passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
