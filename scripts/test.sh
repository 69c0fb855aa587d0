#!/usr/bin/env bash
# Runs the tests stage by stage and adds up what their runners report.
# usage: scripts/test.sh [stage...]     stages: suites lint unit mount docs (default: all)
# A failing stage does not stop the later ones, so that one run tells everything.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export PATH=$PATH:$HOME/.cargo/bin CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(suites lint unit mount docs)
logs=$(mktemp -d) || exit 2
# Tests of other users go through it.
chmod 755 "$logs"
declare -A jobs=()
running=''
cleanup() {
  [ -z "$running" ] || { kill "$running" && wait "$running"; } 2>/dev/null
  [ ${#jobs[@]} = 0 ] || { kill -- "${jobs[@]/#/-}" && wait "${jobs[@]}"; } 2>/dev/null
  rm -rf --one-file-system "$logs"
}
trap cleanup EXIT
trap 'break_off 129' HUP
trap 'break_off 130' INT
trap 'break_off 131' QUIT
trap 'break_off 143' TERM

# attend COMMAND...: in the background and waited for, so that a signal is handled at once.
attend() {
  local status=0
  "$@" &
  running=$!
  wait "$running" || status=$?
  running=''
  return "$status"
}
# bound NAME: sets $bounded, what a command that runs tests begins with, so that a test that hangs does not take what
# follows, nor its time in CI. All of them take four to five minutes on two cores, and slow ones twice that, once they are
# compiled. What they make is in a directory of their own.
bound() {
  local dir=$logs/$1.tmp
  mkdir -m 1777 "$dir" || return
  bounded=(scripts/within.sh 1100 "$dir" env TMPDIR="$dir")
}

# What `cargo clippy` sets for `cargo check`, for a compilation that makes machine code as well: so the tests are
# compiled once, and not once for clippy and once to be run.
with_lints=(env RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__)
# Empty where they were not compiled so.
linted=()
# With the engine slatedb, which needs nothing of the system that is not here.
test_all=(cargo test --workspace --locked --features kvfs-cli/slatedb)
# The benchmarks are workspaces of their own, which are not compiled here: a new dependency of kvfs must be in their
# lock files, too.
check_locks() {
  local dir
  for dir in bench bench/engines; do
    (cd "$dir" && cargo update --workspace --locked --quiet) || { echo "run: cd $dir && cargo update --workspace"; return 1; }
  done
}

# Both look at the same dependencies, and neither makes code.
make_docs=(make --no-print-directory docs lint-build)

# What is ignored because it needs root and a loop device.
test_block_devices() {
  [ "$(id -u)" = 0 ] || { echo 'block-devices: 0 passed, 0 failed, 1 skipped'; return; }
  # Of the whole workspace, as everywhere here: for one crate its dependencies would be compiled once more, with
  # fewer features.
  bound block-devices && attend "${bounded[@]}" "${linted[@]}" "${test_all[@]}" --test it block_devices -- --ignored
}

# alongside NAME COMMAND...: until a stage needs it, with processes of a group of their own.
alongside() {
  local name=$1
  shift
  setsid "$@" >"$logs/beside-$name" 2>&1 </dev/null &
  jobs[$name]=$!
}
# beside NAME COMMAND...: the same with what the stages leave of the processors.
beside() { alongside "$1" chrt --idle 0 "${@:2}"; }
# joined NAME: waits for it, if there is one, and says what it said; whether it ended well.
joined() {
  local status=0
  [ -n "${jobs[$1]:-}" ] || return 0
  wait "${jobs[$1]}" || status=$?
  unset "jobs[$1]"
  cat "$logs/beside-$1"
  return "$status"
}
has_stage() { [[ " ${stages[*]} " == *" $1 "* ]]; }

run_stage() {
  case $1 in
    # What takes minutes to compile and is not needed yet; only once per machine.
    suites) beside tools tests/suites/tools.sh ;;
    lint) cargo fmt --all -- --check && check_locks && "${with_lints[@]}" "${test_all[@]}" --no-run ;;
    unit)
      # Tests wait for daemons and disks: more of them at a time than there are processors. Those of stores in
      # object storage wait for clocks, and hardly compute.
      local status=0 processors
      processors=$(nproc)
      "${linted[@]}" "${test_all[@]}" --no-run || return 1
      bound slatedb && alongside slatedb "${bounded[@]}" RUST_TEST_THREADS=$((4 * processors)) "${linted[@]}" "${test_all[@]}" --no-fail-fast --test it slatedb:: || return 1
      bound unit && attend "${bounded[@]}" RUST_TEST_THREADS=$((2 * processors)) "${linted[@]}" "${test_all[@]}" --no-fail-fast -- --skip slatedb:: || status=1
      joined slatedb || status=1
      return "$status"
      ;;
    docs) if [ -n "${jobs[docs]:-}" ]; then joined docs; else "${make_docs[@]}"; fi ;;
    mount)
      joined tools || return 1
      local status=0
      # With the unit tests nothing is left to compile: the examples are theirs.
      "${linted[@]}" "${test_all[@]}" --no-run || return 1
      test_block_devices || status=1
      # The suites wait more than they compute. Not before: two cargos wait for each other.
      ! has_stage docs || beside docs "${make_docs[@]}"
      # The tests' own binary: one compilation for all, and its assertions hold on mounts, too.
      attend env KVFS="$PWD/target/debug/kvfs" tests/suites/all.sh || status=1
      return "$status"
      ;;
    *) echo "no such stage: $1"; return 2 ;;
  esac
}

# Adds up "test result: ok. 12 passed; 0 failed; 1 ignored" (cargo) and
# "fsx: 12 passed, 0 failed, 0 skipped" (our suites); prints the three sums.
counts() {
  awk '
    /^test result:/ { for (i = 1; i <= NF; i++) {
        if ($i ~ /^passed/) p += $(i - 1); if ($i ~ /^failed/) f += $(i - 1); if ($i ~ /^ignored/) s += $(i - 1) } }
    /^[a-z0-9-]+: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $2; f += $4; s += $6 }
    END { print p + 0, f + 0, s + 0 }' "$1"
}

# failures LOG STAGE: what failed, and the first panic of each test; short, since the end of a log is what is kept.
failures() {
  awk -v stage="$2" '
    /^failed: / { print stage ": " substr($0, 9) }
    /^---- .* stdout ----$/ { test = $2 }
    test != "" && / panicked at / { print stage ": " test; print "  " $0; getline; print "  " $0; test = "" }
    /^error: test failed, to rerun/ || / has overflowed its stack$/ || /^no end after / { print stage ": " $0 }
  ' "$1" | cut -c 1-300 | head -n 40
}

passed=0 failed=0 skipped=0 report=() stage='' what_failed=''
start=$SECONDS
# ended STATUS: of the stage that is run.
ended() {
  local p f s word=ok
  read -r p f s <<<"$(counts "$logs/$stage")"
  # A stage without a runner's summary counts as one; one that ended badly counts as a failure in any case.
  [ $((p + f)) -gt 0 ] || { [ "$1" = 0 ] && p=1; }
  [ "$1" = 0 ] || [ "$f" -gt 0 ] || f=1
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  [ "$f" = 0 ] || { word=FAILED && what_failed+=$(failures "$logs/$stage" "$stage")$'\n'; }
  report+=("$(printf '%-9s %-6s %5d passed, %d failed, %d skipped  %4d s' "$stage" "$word" "$p" "$f" "$s" $((SECONDS - t0)))")
}
summary() {
  [ -z "$what_failed" ] || printf '\n== failed\n%s' "$what_failed"
  printf '\n== summary\n'
  printf '%s\n' "${report[@]}"
  printf '%d passed, %d failed, %d skipped in %d s\n' "$passed" "$failed" "$skipped" $((SECONDS - start))
}
# show LINE: waits until it is in the log of the stage, so that all before it is, and has been shown.
show() {
  echo "$1"
  local i
  for ((i = 0; i < 30; i++)); do
    grep -qsxF "$1" "$logs/$stage" && return
    sleep 0.1
  done
}
# break_off STATUS: on a signal. In the middle of a stage, what is said goes through its log.
break_off() {
  trap '' INT TERM HUP QUIT PIPE
  local i
  [ -z "$running" ] || kill "$running"
  # Not for long: the summary must come before the stage is killed with what tells of it.
  for ((i = 0; i < 120; i++)); do
    kill -0 "$running" && sleep 0.1 || break
  done 2>/dev/null
  running=''
  if [ -f "$logs/$stage" ]; then
    show "$stage was broken off"
    ended 1
  fi
  summary
  show "broken off"
  exit "$1"
}
for stage in "${stages[@]}"; do
  t0=$SECONDS
  if [ "$stage" = suites ]; then
    run_stage suites
    continue
  fi
  printf '\n== %s\n' "$stage"
  # The signal that ends the stage must not end what tells of it.
  exec 4> >(trap '' INT TERM HUP QUIT && exec tee "$logs/$stage")
  tee=$!
  run_stage "$stage" >&4 2>&1 4>&- </dev/null
  status=$?
  exec 4>&-
  [ "$stage-$status" != lint-0 ] || linted=("${with_lints[@]}")
  # Until it has written its last line. A process that can't be killed may keep its pipe open.
  attend timeout 60 tail --pid="$tee" --sleep-interval=0.1 --follow /dev/null >/dev/null 2>&1
  ended "$status"
done
summary
[ "$failed" = 0 ]
