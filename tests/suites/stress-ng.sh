#!/usr/bin/env bash
# The file stressors of stress-ng, one by one, each verifying what it does.
# usage: tests/suites/stress-ng.sh DIR [SECONDS_EACH [stressor...]]     default: 2
set -uo pipefail
dir=$(realpath "$1")
seconds=${2:-2}
shift $(($# > 2 ? 2 : $#))
stressors=("$@")
[ ${#stressors[@]} -gt 0 ] || stressors=(
  access aio chdir chmod chown copy-file dentry dir dirdeep dirmany fallocate fcntl filename flock fpunch
  fsize fstat getdent hdd inotify lease link lockf lockofd metamix mknod msync open readahead rename revio
  seek sendfile splice symlink touch utime xattr)
here=$(mktemp -d "$dir/stress-ng.XXXXXX")
tmp=$(mktemp -d)
trap 'rm -rf "$here" "$tmp"' EXIT
chmod 777 "$here"

passed=0 failed=0 skipped=0
for stressor in "${stressors[@]}"; do
  timeout $((seconds * 10 + 60)) stress-ng "--$stressor" 2 --timeout "$seconds" --verify --oomable \
    --temp-path "$here" >"$tmp/log" 2>&1 </dev/null
  status=$?
  # 3: not to be had here (the machine, not the file system), 4: out of a resource.
  if [ $status = 0 ]; then
    passed=$((passed + 1))
  elif [ $status = 3 ] || [ $status = 4 ] || grep -q 'unrecognized option' "$tmp/log"; then
    skipped=$((skipped + 1))
    printf '%-10s skipped: %s\n' "$stressor" "$(grep -E 'skip|unrecognized|not ' "$tmp/log" | head -n 1)"
  else
    failed=$((failed + 1))
    printf '%-10s FAILED (exit %s)\n' "$stressor" "$status"
    grep -E 'fail|error' "$tmp/log" | head -n 5
  fi
done
echo "stress-ng: $passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
