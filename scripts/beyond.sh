#!/usr/bin/env bash
# Stores in object storage, and what may happen on the way there: the engine's contract, faults and crashes of a network in memory, suites
# on mounts over a directory and over a server of S3, outages, kill -9, transactions, named snapshots, take-over.
# usage: scripts/beyond.sh [short|long]      default: short, at most six minutes once it is built; a part of `make test`
#
# KVFS          a binary with the engine slatedb (default: that of make build-slatedb, built here)
# SKIP_ENGINE_TESTS=1  mounts alone
# VERSITYGW     a server of S3: versitygw. Default: one in the PATH, or the one that Go builds, once per machine; without Go that part is skipped
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
form=${1:-short}
case $form in
short) operations=3000 seeds=(1) ;;
long) operations=20000 seeds=(1 2 3) ;;
*) echo "usage: $0 [short|long]" >&2 && exit 2 ;;
esac
if [ -z "${KVFS:-}" ]; then
  make -C "$here/.." --no-print-directory build-slatedb || exit 2
  KVFS=$(cd "$here/.." && pwd)/target/slatedb/release/kvfs
  export KVFS
fi
# shellcheck source-path=SCRIPTDIR
. "$here/lib.sh"
# shellcheck source-path=SCRIPTDIR
. "$here/objects.sh"
suites=$repo/tests/suites

# Sets VERSITYGW, if there is one or one can be made.
find_versitygw() {
  [ -z "${VERSITYGW:-}" ] || return 0
  VERSITYGW=$(command -v versitygw) && return 0
  local tools
  tools=$("$suites/tools.sh" versitygw) || return 1
  VERSITYGW=$tools/versitygw
}

# More seeds and rounds in the long form.
engine_tests() {
  local more=()
  [ "$form" = short ] || more=(KVFS_SLATEDB_SEEDS=40 KVFS_SLATEDB_TAKE_OVERS=100)
  (cd "$repo" && env "${more[@]}" cargo test --locked -p kvfs-engine-slatedb --features client) || return 1
  grep -hE '^test result' "$log" | tail -n 2 | sed 's/^/# /'
}

fsx() { "$suites/fsx.sh" "$mnt" "$operations" "${seeds[@]}"; }
pjdfstest() { "$suites/pjdfstest.sh" "$mnt"; }

# Of stores on this machine, in a bucket.
repository() { REPOSITORY_URL=s3://bucket/repositories REPOSITORY_ENDPOINT=$SLATE_ENDPOINT "$suites/repository.sh"; }

# on WHAT: the suites and ends of mounts, on a new store whose objects are where SLATE_URL says.
on() {
  local what=$1
  make_store "$what" --engine slatedb --url "$SLATE_URL" ${SLATE_ENDPOINT:+--endpoint "$SLATE_ENDPOINT"} || die "mkfs failed"
  mount_store || die "the mount failed"
  step "$what: fsx" fsx
  # It has much to do with names and rights, and nothing with where objects are.
  if [ "$form" = long ] || [ "$what" = directory ]; then step "$what: pjdfstest" pjdfstest; fi
  step "$what: unmount" umount_store
  step "$what: check" check_store
  step "$what: kill -9" kill_after_fsync
  step "$what: transactions" transactions
  step "$what: named snapshots" named_snapshots
  step "$what: take-over" take_over
}

# Built before time is taken.
"$suites/tools.sh" fsx pjdfstest >/dev/null || exit 2
find_versitygw || VERSITYGW=''
work_dir beyond
trap 'status=$?; stop_s3; cleanup "$status"' EXIT

if [ -z "${SKIP_ENGINE_TESTS:-}" ]; then step "contract, faults, crashes, outages" engine_tests; fi
SLATE_URL=$work/objects SLATE_ENDPOINT=''
on directory
if [ -n "$VERSITYGW" ]; then
  serve_s3
  on s3
  step "s3: snapshots in a repository" repository
  step "s3: outage, shorter than the timeout" outage
  step "s3: outage, longer than the timeout" long_outage
  step "s3: unmount in an outage" umount_in_outage
  step "s3: journal on the local disk" local_journal
  stop_s3
else
  step "s3" sh -c 'echo "no versitygw, and no Go to build it"; exit 77'
fi
summary beyond
