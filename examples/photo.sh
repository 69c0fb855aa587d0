#!/usr/bin/env bash
# A photo and its tags, stored together or not at all: the file in the file system, the tags as a key beside it.
# usage: examples/photo.sh DIR        DIR: in a mounted kvfs, e.g. the one of `make run`
# Crashes on purpose between the two, and shows that neither is there; then does it right.
set -euo pipefail
kvfs=${KVFS:-kvfs}
dir=${1:?usage: examples/photo.sh DIR, a directory in a mounted kvfs}
cd "$dir"
mkdir -p photos

state() {
  printf '  photo: %s   tags: %s\n' "$([ -e photos/cat.jpg ] && echo there || echo absent)" \
    "$("$kvfs" kv get photo-tags cat.jpg 2>/dev/null || echo absent)"
}

echo "a program that crashes when the photo is stored and its tags are not:"
"$kvfs" txn run -- sh -c 'head -c 100000 /dev/urandom >photos/cat.jpg && kill -KILL $$' || echo "  it ended with exit code $?"
state

echo "the same program without the crash:"
# shellcheck disable=SC2016 # The inner shell reads its own $1.
"$kvfs" txn run -- sh -c 'head -c 100000 /dev/urandom >photos/cat.jpg && "$1" kv put photo-tags cat.jpg "cat, sofa"' sh "$kvfs"
state
