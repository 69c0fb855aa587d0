#!/usr/bin/env bash
# Real work on a mounted store, compared with the same work on the machine's own disk.
# usage: scripts/realwork.sh [--short]
# Long: a kernel tree (fetched once), zlib and libarchive, about a quarter of an hour. Short: trees that are on
# the machine, no network needed but for zlib (skipped without), some minutes.
#
# KVFS=plain    tries the script itself, on a plain directory
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
tools=$PWD/tests/work

short=''
[ "${1:-}" = --short ] && short=yes
# git packs a kernel tree for ten minutes on a busy machine.
[ -n "$short" ] || export LIMIT=${LIMIT:-2400}
work_dir realwork
plain=$work/plain
mkdir "$plain"
# No setting of the user's may change what git does here.
user_home=$HOME
export KVFS_WORK_CACHE=${KVFS_WORK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvfs-realwork}
export HOME=$work GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=kvfs GIT_AUTHOR_EMAIL=kvfs@example.org \
  GIT_COMMITTER_NAME=kvfs GIT_COMMITTER_EMAIL=kvfs@example.org
cores=$(nproc)

# ---------------------------------------------------------------------------------------------- the tree

# Everything a tree can hold that real ones seldom do.
odd_tree() {
  local d=$1/odd f i
  mkdir -p "$d/deep" && cd "$d" || return
  echo one >linked && ln linked other-name && mkdir sub && ln linked sub/third
  ln -s linked symlink && ln -s /nowhere/at/all dangling && ln -s "$(printf 'x%.0s' {1..4000})" long-symlink
  printf 'a' >"$(printf 'n%.0s' {1..255})"
  touch -- $'new\nline' $'\x01\xff\xfe not text' '-dash' ' space ' '*'
  mkfifo fifo
  for i in 1 4095 4096 4097 65535 1048577; do head -c "$i" /dev/urandom >"size-$i"; done
  truncate -s 300M hole && printf 'middle' | dd of=hole bs=1 seek=$((123 << 20)) conv=notrunc status=none
  chmod 4755 linked && chmod 1777 sub && chmod 000 size-1
  touch -d '1969-12-31 23:59:58.123456789' size-4095 && touch -d '2100-02-03 04:05:06.000000001' size-4096
  f=$d
  for i in {1..60}; do f=$f/deep && mkdir -p "$f"; done && echo bottom >"$f/file"
  setfattr -n user.note -v "a value" size-4097 || return
  setfattr -n user.empty size-4097
  # Not every file system has ACLs, and only root makes devices: as far as both sides can.
  touch "$mnt/probe" && setfacl -m u:games:r "$mnt/probe" 2>/dev/null && setfacl -m u:games:r size-4097 2>/dev/null
  rm -f "$mnt/probe"
  [ "$(id -u)" != 0 ] || { mknod null c 1 3 && chown games:games sub; }
}

# Arguments for tar: the trees of this machine that make up the short form. What is in a registry of crates grows with
# the machine's age, so some of each are taken.
local_trees() {
  local d registry=${CARGO_HOME:-$user_home/.cargo}/registry/src
  for d in /usr/include /usr/share/{zoneinfo,perl,perl5,doc,i18n} "$(dirname "$tools")"; do
    [ -d "$d" ] && printf '%s\n' -C "$(dirname "$d")" "$(basename "$d")"
  done
  for d in "$registry"/*/[bc]*; do
    [ -d "$d" ] && printf '%s\n' -C "$registry" "${d#"$registry/"}"
  done
}

get_tarball() {
  if [ -n "$short" ]; then
    local trees
    mapfile -t trees < <(local_trees)
    tar --format=posix -cf "$work/tree.tar" --transform 's,^,tree/,S' "${trees[@]}" || return
  else
    local packed
    packed=$("$tools/fetch.sh" kernel) || return
    case $packed in
      *.xz) xz -T0 -dc "$packed" >"$work/tree.tar" ;;
      *) ln -s "$packed" "$work/tree.tar" ;;
    esac || return
  fi
  echo "# $(tar -tf "$work/tree.tar" | wc -l) entries, $(($(stat -L -c %s "$work/tree.tar") >> 20)) MiB"
}

# Directories that are in the tarball only as part of their files' paths get the time of the unpacking: a fixed one.
unpack() {
  touch "$work/before" && sleep 0.01 && mkdir "$1/tree" && tar -xf "$work/tree.tar" -C "$1/tree" --strip-components=1 &&
    find "$1/tree" -type d -newer "$work/before" -exec touch -d 2001-02-03 {} +
}

# Bytes, modes, owners, times to the nanosecond, hard links, ACLs, extended attributes.
same() {
  local lines
  lines=$(rsync -aniHAX --delete --checksum --modify-window=-1 "$plain/$1/" "$mnt/$1/") || return
  [ -z "$lines" ] || {
    head -n 20 <<<"$lines"
    return 1
  }
  # rsync does not count links.
  diff <(listing "$plain/$1") <(listing "$mnt/$1")
}
listing() { (cd "$1" && find . ! -type d -printf '%P\0%y %m %U %G %n %s %T@ %l\n' | sort); }

# ---------------------------------------------------------------------------------------------- the work

build_zlib() {
  local source
  source=$("$tools/fetch.sh" source zlib 2>"$work/fetch.log") || {
    tail -n 2 "$work/fetch.log"
    return 77
  }
  cp -a "$source" "$mnt/zlib" && cd "$mnt/zlib" && ./configure && make -j"$cores" && make test
}

build_libarchive() {
  local source
  source=$("$tools/fetch.sh" source libarchive) || return
  cp -a "$source" "$mnt/libarchive" && cd "$mnt/libarchive" || return
  # Patched sources are newer than what autotools made of them: no need to make it again.
  local make=(make -j"$cores" ACLOCAL=: AUTOCONF=: AUTOHEADER=: AUTOMAKE=:)
  ./configure --without-xml2 --without-expat --without-openssl --without-nettle && "${make[@]}" libarchive.la bsdtar || return
  # Its tests of hard and symbolic links, sparse files, times, modes, ACLs and attributes write to the disk.
  "${make[@]}" libarchive_test bsdtar_test && mkdir tmp || return
  local as=()
  [ "$(id -u)" != 0 ] || as=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
  chmod -R a+rwX . && TMPDIR=$PWD/tmp "${as[@]}" ./libarchive_test -r "$PWD/libarchive/test" 'test_write_disk*' 'test_read_disk*' &&
    TMPDIR=$PWD/tmp "${as[@]}" ./bsdtar_test -p "$PWD/bsdtar" -r "$PWD/tar/test"
}

git_work() {
  cd "$mnt/tree" && git init -q && git config gc.auto 0 && git add -A -f && git commit -q -m first || return
  [ -z "$(git status --porcelain)" ] || { echo "not clean after the commit"; git status --porcelain | head; return 1; }
  local changed
  changed=$(git ls-files | sed -n '1~97p' | head -n 200)
  while read -r f; do [ -f "$f" ] && [ ! -L "$f" ] && [ -w "$f" ] && echo changed >>"$f"; done <<<"$changed"
  git commit -qam second && git gc -q && git fsck --full --strict 2>&1 | grep -vE '^(dangling|Checking|notice)' && return 1
  [ -z "$(git status --porcelain)" ] || return 1
  git reset -q --hard HEAD~1 && git clone -q --no-hardlinks . "$mnt/clone" || return
  changed=$(git ls-files -z | rsync -nirlc --from0 --files-from=- ./ "$mnt/clone/")
  [ -z "$changed" ] || { echo "the clone differs:"; head <<<"$changed"; return 1; }
  rm -rf "$mnt/clone" .git && echo "# $(du -sh --apparent-size . | cut -f1) in the tree"
}

# What git left: contents as they were, times newer. Put the times back, so that the tree can be compared.
restore_times() { rsync -a --delete "$plain/tree/" "$mnt/tree/" && same tree; }

sqlite_work() {
  mkdir "$mnt/sqlite" && python3 "$tools/sqlite_writers.py" "$mnt/sqlite" "${1:-5}" &&
    sqlite3 "$mnt/sqlite/bank.db" 'pragma integrity_check' | grep -qx ok
}

# Goes on with a mount even when something was wrong, so that the later steps tell more.
remount() {
  local status=0
  umount_store || status=1
  check_store || status=1
  mount_store || return
  return $status
}

# Rounds of work that ends in kill -9. Each has a directory and a log of its own; all are verified at the end
# too, so that a later recovery does not undo what an earlier one saved.
crash_rounds() {
  local rounds=$1 i writer database
  for ((i = 1; i <= rounds; i++)); do
    mkdir "$mnt/crash.$i" "$mnt/crash.$i/files" "$mnt/crash.$i/db" && sync -f "$mnt" || return
    python3 "$tools/fsynced.py" write "$mnt/crash.$i/files" "$work/crash.$i.log" 2>/dev/null &
    writer=$!
    python3 "$tools/sqlite_writers.py" "$mnt/crash.$i/db" 600 >/dev/null 2>&1 &
    database=$!
    sleep "$((2 + RANDOM % 3)).$((RANDOM % 10))"
    kill_daemon
    [ "$KVFS" != plain ] || kill -9 "$writer" # it would never notice
    wait "$writer"
    pkill -9 -P "$database" 2>/dev/null
    kill -9 "$database" 2>/dev/null
    wait "$database" 2>/dev/null
    mount_store || return
    echo "# round $i:"
    python3 "$tools/fsynced.py" verify "$mnt/crash.$i/files" "$work/crash.$i.log" || return
    sqlite3 "$mnt/crash.$i/db/bank.db" 'pragma integrity_check' | grep -x ok || return
    # The store works on.
    echo again >"$mnt/crash.$i/again" && sync -f "$mnt" || return
  done
  remount || return
  for ((i = 1; i <= rounds; i++)); do
    python3 "$tools/fsynced.py" verify "$mnt/crash.$i/files" "$work/crash.$i.log" || return
  done
}

within_memory() {
  echo "# peak $((rss_max_kib / 1024)) MiB, ceiling $KVFS_MEMORY + 64 MiB"
  [ "$rss_max_kib" -le $(((KVFS_MEMORY + 64) * 1024)) ]
}

remove_all() {
  rm -rf "${mnt:?}"/* && [ -z "$(ls -A "$mnt")" ]
}

# ---------------------------------------------------------------------------------------------- the order

# Each step leaves the directory it found, and one that fails spares no later one but those that need it.
in_repo() { (cd "$repo" && "$@"); }

step "a tree to work with" in_repo get_tarball || { summary realwork; exit 1; }
make_store realwork --size 20G >/dev/null || die "mkfs failed"
step "mount" mount_store || { summary realwork; exit 1; }
step "unpack it on the plain disk" unpack "$plain"
step "unpack it on the store" unpack "$mnt"
(odd_tree "$plain") 2>&1 | sed 's/^/          | /'
step "a tree of odd things, copied" cp -a "$plain/odd" "$mnt/"
step "the tree is the same" same tree
step "the odd tree is the same" same odd
step "zlib: configure, build, test" in_repo build_zlib
[ -n "$short" ] || step "libarchive: build, tests that write to the disk" in_repo build_libarchive
step "git: init, add, commit, status, gc, fsck, clone" in_repo git_work
step "git gave the tree back" restore_times
step "SQLite: WAL, four writers, two readers" sqlite_work "$([ -n "$short" ] && echo 5 || echo 30)"
step "unmount, check, mount" remount
step "the tree is still the same" same tree
step "the odd tree is still the same" same odd
sqlite_is_whole() { sqlite3 "$mnt/sqlite/bank.db" 'pragma integrity_check' | grep -x ok; }
step "SQLite still has its integrity" sqlite_is_whole
step "kill -9 at work" crash_rounds "$([ -n "$short" ] && echo 2 || echo 8)"
step "the tree is the same after the crashes" same tree
step "remove everything" remove_all
step "unmount" umount_store
step "check" check_store
[ "$KVFS" = plain ] || step "memory stayed under its ceiling" within_memory
summary realwork
