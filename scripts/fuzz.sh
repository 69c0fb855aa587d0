#!/usr/bin/env bash
# Runs the fuzz targets, two at a time, each from its corpus.
# usage: scripts/fuzz.sh [SECONDS [TARGET...]]      default: 60 seconds each of all of fuzz/fuzz_targets
# What one finds is kept in fuzz/artifacts/TARGET; `cargo fuzz run TARGET FILE` repeats it.
#
# FUZZ_PROFILE   dev (default: quick to build) or release (quick to run)
# FUZZ_NOTES     a directory: what has passed is noted there, and not done again
# FUZZ_SEED      a number: the same inputs each time; default: other ones each time
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export PATH=$PATH:$HOME/.cargo/bin
seconds=${1:-60}
shift $(($# > 0))
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for path in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$path" .rs)"); done

if ! command -v c++ >/dev/null; then
  echo "fuzz: 0 passed, 0 failed, ${#targets[@]} skipped"
  exit
fi
tools=$(tests/suites/tools.sh cargo-fuzz) || exit 1
export PATH=$tools:$PATH
options=(--sanitizer none --features libfuzzer --target-dir "$PWD/target/fuzz")
[ "${FUZZ_PROFILE:-dev}" = release ] || options+=(--dev)
RUSTFLAGS='' cargo fuzz build "${options[@]}" || { echo "fuzz: 0 passed, 1 failed, 0 skipped"; exit 1; }

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# An input that takes 20 s, or 2 GiB, is a finding.
fuzz_one() {
  local target=$1 corpus status=0
  # What a run adds to the corpus stays with it.
  corpus=$(mktemp -d "$logs/corpus.XXXXXX")
  cargo fuzz run "${options[@]}" "$target" "$corpus" "fuzz/corpus/$target" -- \
    -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 >"$logs/$target" 2>&1 </dev/null ||
    status=$?
  if [ "$status" = 0 ]; then
    local inputs
    inputs=$(awk '/stat::number_of_executed_units/ { print $2 }' "$logs/$target")
    echo "  ok      $target: $inputs inputs in $seconds s"
    [ -z "${FUZZ_NOTES:-}" ] || echo "$inputs inputs in $seconds s" >"$FUZZ_NOTES/fuzz-$target"
  else
    echo "  FAILED  $target"
    grep -aE 'panicked|ERROR|SUMMARY|Test unit written' -A2 "$logs/$target" | tail -n 30 | sed 's/^/          | /'
    echo "$target" >>"$logs/failed"
  fi
}
running=0
for target in "${targets[@]}"; do
  if [ -n "${FUZZ_NOTES:-}" ] && [ -e "$FUZZ_NOTES/fuzz-$target" ]; then
    echo "  ok      $target: passed before ($(cat "$FUZZ_NOTES/fuzz-$target"))"
    continue
  fi
  fuzz_one "$target" &
  running=$((running + 1))
  if [ "$running" = 2 ]; then
    wait -n
    running=1
  fi
done
wait
failed=0
[ ! -e "$logs/failed" ] || failed=$(wc -l <"$logs/failed")
echo "fuzz: $((${#targets[@]} - failed)) passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
