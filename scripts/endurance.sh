#!/usr/bin/env bash
# The long form of the tests, part by part: what has passed for this revision is not done again, so it can be cut off and resumed.
# usage: scripts/endurance.sh [PART...]     default: all parts
#   load           transactions beside builds, scans and backups: 40 minutes
#   transactions   leaks, histories and power cuts, longer: an hour
#   differential   5,000,000 random operations beside ext4, half as many on a branch and with writeback: half an hour
#   privileges     set-id bits beside ext4, 10,000 rounds: half an hour
#   kills          kill -9 at random moments, 1,000 times: half an hour
#   fuzz           each target for an hour (FUZZ_SECONDS), two at a time: four hours; resumed by target
# ENDURANCE_ANEW=1 does again what has passed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(load transactions differential privileges kills fuzz)
notes=target/endurance/$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
mkdir -p "$notes" || exit 2

run_part() {
  case $1 in
    load) tests/suites/load.sh --long ;;
    transactions)
      cargo build --release --locked -p kvfs-cli --example history &&
        KVFS_LEAK_TXNS=10000 KVFS_LEAK_OPEN=200 KVFS_HISTORY_TXNS=2000 KVFS_POWER_ROUNDS=50 \
        cargo test --release --locked -p kvfs-cli --test it -- transactions --nocapture
      ;;
    differential)
      cargo build --release --locked -p kvfs-cli --example differential &&
        LIMIT=7200 DIFFERENTIAL=target/release/examples/differential tests/suites/differential.sh "${DIFFERENTIAL_OPERATIONS:-5000000}" "$RANDOM"
      ;;
    privileges) LIMIT=7200 tests/suites/privileges.sh 10000 ;;
    kills) scripts/torture.sh "${KILLS:-1000}" ;;
    fuzz) FUZZ_NOTES=$notes FUZZ_PROFILE=release scripts/fuzz.sh "${FUZZ_SECONDS:-3600}" ;;
    *) echo "no such part: $1" >&2; return 2 ;;
  esac
}

failed=0
for part in "${parts[@]}"; do
  if [ -e "$notes/$part" ] && [ -z "${ENDURANCE_ANEW:-}" ]; then
    echo "== $part: passed before ($(cat "$notes/$part"))"
    continue
  fi
  echo "== $part"
  t0=$SECONDS
  if run_part "$part" </dev/null; then
    echo "$((SECONDS - t0)) s" >"$notes/$part"
  else
    failed=1
    echo "== $part: FAILED after $((SECONDS - t0)) s"
  fi
done
exit $failed
