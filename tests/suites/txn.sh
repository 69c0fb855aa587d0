#!/usr/bin/env bash
# Transactions as a user sees them, on a real mount: all or nothing, isolation, conflicts, sudden ends.
# usage: tests/suites/txn.sh
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR/../../scripts
. "$here/../../scripts/lib.sh"
[ "$KVFS" != plain ] || die "txn: a plain directory has no transactions"
work_dir txn
make_store txn --size 4G >/dev/null || die "mkfs failed"
mount_store || die "mount failed"
cd "$mnt" || die "no mount"

# Exit codes, as in `kvfs --help`.
in_use=3 built_on=10 conflict=75

# run [options of txn run] -- COMMAND...
run() { timeout 60 "$KVFS" txn run "$@"; }
no_open() { [ "$("$KVFS" txn list --json)" = '[]' ]; }
count_open() { "$KVFS" txn list --json | python3 -c 'import json,sys; print(len(json.load(sys.stdin)))'; }
has_open() { [ "$(count_open)" = "$1" ]; }
has_lock() { "$KVFS" locks | grep -q "$1"; }
# A command that goes on when it is told.
until_told="until [ -e '$work/told' ]; do sleep 0.1; done; rm '$work/told'"
tell() { touch "$work/told"; }
no_views() { ! grep -q "^$store .* fuse.kvfs-txn " /proc/mounts; }

make_project() {
  mkdir -p project && cat >project/Makefile <<'EOF'
install:
	mkdir -p $(DEST)/bin $(DEST)/share/doc
	for i in $$(seq 200); do echo "file $$i" > $(DEST)/share/doc/$$i || exit 1; done
	cp Makefile $(DEST)/bin/tool && chmod 755 $(DEST)/bin/tool
	ln -s ../share/doc/1 $(DEST)/bin/link
	test -z "$(FAIL)"
EOF
}
install_commits() {
  make_project && ls >/dev/null && run -- make -s -C project install DEST="$mnt/installed" &&
    [ "$(find installed/share/doc -type f | wc -l)" = 200 ] && [ "$(cat installed/bin/link)" = "file 1" ] &&
    [ -x installed/bin/tool ] && no_open
}
install_fails() {
  ends 2 run -- make -s -C project install DEST="$mnt/broken" FAIL=1 && [ ! -e broken ] &&
    ! "$KVFS" kv keyspaces | grep -q broken && no_open
}
exit_status() {
  ends 7 run -- sh -c 'exit 7' && ends 127 run -- no-such-command && ends 143 run -- sh -c 'kill -TERM $$; sleep 5' &&
    ends 0 run -- true
}
cwd_kept() {
  mkdir -p deep/er && (cd deep/er && run -- sh -c 'pwd; echo x > here' && [ -f "$mnt/deep/er/here" ]) &&
    [ "$(cd deep/er && run -- pwd)" = "$mnt/deep/er" ] && [ "$(cd / && "$KVFS" txn run -s "$mnt" -- pwd)" = / ]
}
isolated() {
  # A long run changes things step by step; the main line looks on, with all that the kernel may remember.
  rm -rf iso && mkdir iso && echo old >iso/changed && echo gone >iso/removed && echo from >iso/from &&
    head -c 100000 /dev/zero >iso/large && mkfifo "$work/go" "$work/done" || return 1
  stat iso/changed iso/new 2>/dev/null >/dev/null
  cat iso/* >/dev/null
  ls -la iso >/dev/null
  run -- bash -c "
    echo new > iso/new; echo changed-and-longer > iso/changed; rm iso/removed; mv iso/from iso/to
    mkdir iso/dir; echo in > iso/dir/in; printf tail | dd of=iso/large bs=1 seek=100000 conv=notrunc status=none
    chmod 600 iso/changed
    echo >'$work/go'; read <'$work/done'" &
  local runner=$! status=0
  read -r <"$work/go"
  [ "$(cat iso/changed)" = old ] && [ ! -e iso/new ] && [ -e iso/removed ] && [ -e iso/from ] && [ ! -e iso/to ] &&
    [ ! -e iso/dir ] && [ "$(stat -c %s iso/large)" = 100000 ] && [ "$(ls iso | tr '\n' ' ')" = "changed from large removed " ] || status=1
  [ $status = 0 ] || echo "something showed before the commit"
  echo >"$work/done"
  wait $runner || { echo "not committed"; return 1; }
  rm "$work/go" "$work/done"
  [ "$(cat iso/changed)" = changed-and-longer ] && [ "$(cat iso/new)" = new ] && [ ! -e iso/removed ] && [ ! -e iso/from ] &&
    [ "$(cat iso/to)" = from ] && [ "$(cat iso/dir/in)" = in ] && [ "$(stat -c %s:%a iso/changed)" = 19:600 ] &&
    [ "$(stat -c %s iso/large)" = 100004 ] && [ "$(tail -c 4 iso/large)" = tail ] &&
    [ "$(ls iso | tr '\n' ' ')" = "changed dir large new to " ] || { echo "stale after the commit"; ls -la iso; status=1; }
  return $status
}
readers() {
  # Open descriptors, mappings and a running program of the main line, while commits replace and remove.
  python3 - "$KVFS" <<'EOF'
import mmap, os, subprocess, sys
kvfs = sys.argv[1]
def txn(script):
    subprocess.run([kvfs, "txn", "run", "--", "sh", "-ec", script], check=True)
open("mapped", "wb").write(b"a" * 8192)
open("replaced", "wb").write(b"a" * 8192)
open("small", "wb").write(b"tiny")
files = {name: open(name, "rb") for name in ("mapped", "replaced", "small")}
maps = {name: mmap.mmap(files[name].fileno(), 0, prot=mmap.PROT_READ) for name in ("mapped", "replaced")}
assert maps["mapped"][:4] == maps["replaced"][:4] == b"aaaa"
txn("printf bbbb | dd of=mapped conv=notrunc status=none; printf bbbb > new; mv new replaced; rm small")
assert maps["mapped"][:8] == b"bbbbaaaa", "a mapping shows what was committed in place"
assert os.pread(files["mapped"].fileno(), 8, 0) == b"bbbbaaaa"
assert maps["replaced"][:4] == b"aaaa", "a mapping keeps the file that it maps"
assert os.pread(files["replaced"].fileno(), 4, 0) == b"aaaa"
assert open("replaced", "rb").read() == b"bbbb"
assert not os.path.exists("small") and files["small"].read() == b"tiny"
assert os.fstat(files["small"].fileno()).st_nlink == 0
txn("truncate -s 4096 mapped")
assert os.fstat(files["mapped"].fileno()).st_size == 4096
# A writer's mapping of the main line and a transaction of the same file: never both.
shared = open("shared", "w+b")
shared.write(b"0" * 4096); shared.flush()
writer = mmap.mmap(shared.fileno(), 0)
view = open("shared", "rb").read(4)
done = subprocess.Popen([kvfs, "txn", "run", "--", "sh", "-ec", "printf txn! | dd of=shared conv=notrunc status=none; echo ready; read go"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
assert done.stdout.readline() == b"ready\n"
writer[0:4] = b"main"
out = done.communicate(b"\n")
assert done.returncode == 75, (done.returncode, out)
writer.flush()
assert open("shared", "rb").read(4) == b"main"
EOF
}
mapped_in_view() {
  # Dirty pages of a mapping inside of the transaction are part of it, also while the mapping lives.
  rm -f viewmap
  head -c 65536 /dev/zero >viewmap
  local id
  id=$("$KVFS" txn begin | head -n 1) && mkfifo "$work/go" "$work/done" || return 1
  "$KVFS" txn join "$id" -- python3 -c "
import mmap
f = open('viewmap', 'r+b'); m = mmap.mmap(f.fileno(), 0)
for at in range(0, 65536, 4096): m[at:at+4] = b'page'
open('$work/go', 'w').write('x'); open('$work/done').read()
try: m[0:4]
finally: import os; os._exit(0)" &
  local joined=$! status=0
  read -r -n 1 <"$work/go"
  "$KVFS" txn commit "$id" || status=1
  [ "$(tr -d '\0' <viewmap)" = "$(printf 'page%.0s' {1..16})" ] || { echo "pages are missing"; status=1; }
  echo >"$work/done"
  wait $joined
  rm "$work/go" "$work/done"
  return $status
}
conflict() {
  echo base >fought && echo base >first
  ends $conflict run -- sh -c "echo mine >> first; echo mine >> fought; $until_told" &
  local runner=$!
  until_ok has_lock fought
  timeout 20 sh -c 'echo theirs >> fought' || { echo "the main line's write failed"; return 1; }
  tell
  wait $runner || return 1
  said 'fought' && said 'nothing happened' && [ "$(cat fought | tr '\n' ' ')" = "base theirs " ] && [ "$(cat first)" = base ] && no_open
}
first_updater() {
  echo 1 >counter
  local id
  id=$("$KVFS" txn begin | head -n 1)
  echo 2 >counter
  ! "$KVFS" txn join "$id" -- sh -c 'echo 3 > counter' 2>/dev/null && ends $conflict "$KVFS" txn commit "$id" &&
    said counter && [ "$(cat counter)" = 2 ] && no_open && no_views
}
retried() {
  echo 0 >sum
  local i pids=() status=0
  for i in 1 2 3 4; do
    run --retry 20 -- sh -c 'n=$(cat sum) && echo $((n + 1)) > sum' >/dev/null 2>&1 &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || status=1; done
  [ "$(cat sum)" = 4 ] || { echo "sum is $(cat sum)"; status=1; }
  return $status
}
appends() {
  # A log that the main line keeps open, and runs that append to it at any moment: a run that says that it is in, is in.
  rm -f log && touch log
  (
    exec 6>>log
    for i in $(seq 60); do
      echo "main $i" >&6 || exit 1
      sleep 0.01
    done
  ) &
  local writer=$! i in=0
  for i in $(seq 15); do
    "$KVFS" txn run -- sh -c "echo 'txn $i' >> log; sleep 0.0$((RANDOM % 5))" 2>/dev/null && in=$((in + 1))
  done
  wait $writer || return 1
  echo "# $in of 15 runs committed beside a busy appender"
  [ "$(grep -c '^main [0-9]*$' log)" = 60 ] && [ "$(grep -c '^txn [0-9]*$' log)" = $in ] && [ "$(wc -l <log)" = $((60 + in)) ]
}
two_at_once() {
  mkdir -p two/a two/b
  run -- sh -c 'for i in $(seq 100); do echo $i > two/a/$i; done' &
  local one=$!
  run -- sh -c 'for i in $(seq 100); do echo $i > two/b/$i; done' &
  local other=$!
  wait $one && wait $other && [ "$(find two -type f | wc -l)" = 200 ] && [ "$(stat -c %s two)" = 2 ] && [ "$(ls two/a | wc -l)" = 100 ]
}
killed() {
  run -- sh -c 'mkdir killed; echo x > killed/x; sleep 60' &
  local runner=$!
  until_ok has_open 1 && sleep 0.3
  local pid
  pid=$("$KVFS" txn list --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["pid"])')
  kill -9 "$pid" && until_ok no_open && [ ! -e killed ] && until_ok sh -c "! pgrep -f '[m]kdir killed; echo x' >/dev/null"
  local status=$?
  wait $runner
  return $status
}
# What has left the process group outlives it, and must see an error at once: neither a hang, nor the main line.
killed_group() {
  rm -f "$work/left"*
  setsid "$KVFS" txn run -- sh -c "setsid sh -c 'exec 5>left; echo \$\$ >\"$work/left.pid\"; while echo x >&5; do sleep 0.05; done; ls /proc/\$\$/cwd/ ; cat file-of-nobody; echo over' >'$work/left.said' 2>&1 & sleep 60" &
  local runner=$! pid left status=0
  until_ok test -s "$work/left.pid" || return
  left=$(cat "$work/left.pid")
  pid=$("$KVFS" txn list --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["pid"])')
  kill -9 -- "-$(ps -o pgid= -p "$pid" | tr -d ' ')"
  until_ok no_open || status=1
  until_ok grep -qx over "$work/left.said" || { echo "it hangs: $(cat "$work/left.said")"; kill -9 "$left"; status=1; }
  grep -qE 'not connected|I/O error' "$work/left.said" || { cat "$work/left.said"; status=1; }
  [ ! -e left ] || { echo "it wrote to the main line"; status=1; }
  wait $runner
  return $status
}
interrupted() {
  # As the terminal does it: to the whole group. What bash starts with & ignores it.
  env --default-signal=INT setsid "$KVFS" txn run -- sh -c 'echo x > interrupted; sleep 60' &
  local leader=$!
  until_ok has_open 1 && sleep 0.3
  local pid status=0
  pid=$("$KVFS" txn list --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["pid"])')
  kill -INT -- "-$(ps -o pgid= -p "$pid" | tr -d ' ')"
  wait $leader || status=$?
  [ $status = 130 ] && [ ! -e interrupted ] && no_open
}
terminated() {
  "$KVFS" txn run -- sh -c 'echo x > terminated; sleep 60' &
  local pid=$! status=0
  until_ok has_open 1 && sleep 0.3
  kill -TERM $pid
  wait $pid || status=$?
  [ $status = 143 ] && [ ! -e terminated ] && no_open
}
descendants() {
  # What the command leaves in the background still belongs to it.
  run -- sh -c '(sleep 0.5; echo late > late) & exit 0' && [ "$(cat late)" = late ]
}
files_and_keys() {
  run -- sh -c "echo song > song.mp3 && '$KVFS' kv put tags song.mp3 artist && [ \"\$('$KVFS' kv get tags song.mp3)\" = artist ]" &&
    [ "$("$KVFS" kv get tags song.mp3)" = artist ] && [ -e song.mp3 ] &&
    ends 1 run -- sh -c "rm song.mp3; '$KVFS' kv del tags song.mp3; exit 1" && [ "$("$KVFS" kv get tags song.mp3)" = artist ] && [ -e song.mp3 ] &&
    run -- sh -c "'$KVFS' kv put tags other 1; ! KVFS_TXN= KVFS_TXN_STORE=/elsewhere '$KVFS' kv get tags other" && [ "$("$KVFS" kv get tags other)" = 1 ]
}
keys_conflict() {
  "$KVFS" kv put tags fought 0
  ends $conflict run -- sh -c "'$KVFS' kv put tags fought mine; $until_told" &
  local runner=$!
  until_ok has_lock fought
  timeout 20 "$KVFS" kv put tags fought theirs && tell && wait $runner && said 'fought' && [ "$("$KVFS" kv get tags fought)" = theirs ]
}
own_locks() {
  # A user's locks keep others away, are listed, and tell which transaction was late.
  local id late
  "$KVFS" kv put tags song/a 1 && mkdir -p kept && echo x >kept/a
  id=$("$KVFS" txn begin | head -n 1)
  late=$("$KVFS" txn begin | head -n 1)
  "$KVFS" txn lock "$id" --exclusive kv:tags/song/ kept/a && "$KVFS" txn lock "$id" --shared kept || return 1
  has_lock 'song/' && has_lock 'kept/a' && "$KVFS" kv put tags talk/a 1 || return 1
  "$KVFS" txn lock "$late" --shared kv:tags/song/ >"$work/said" 2>&1 &
  local waiter=$!
  until_ok sh -c "'$KVFS' locks --json | grep -q '\"waiters_count\":1'" || return 1
  KVFS_TXN=$id "$KVFS" kv put tags song/b 2 && "$KVFS" txn commit "$id" || return 1
  wait $waiter
  [ $? = "$conflict" ] && said 'song/b' && ends 2 "$KVFS" txn lock "$late" --shared /etc/passwd &&
    ends 2 "$KVFS" txn lock "$late" kept && "$KVFS" txn abort "$late" && no_open
}
begin_join_commit() {
  local id view
  { read -r id; read -r view; } < <("$KVFS" txn begin --isolation serializable)
  mkdir -p shared-dir
  "$KVFS" txn join "$id" -- sh -c 'echo one > shared-dir/one' 2>/dev/null
  [ -d "$view" ] && "$KVFS" txn join "$id" -- sh -c 'ls shared-dir; echo two > shared-dir/two; [ "$KVFS_TXN" = '"$id"' ]' &&
    [ ! -e shared-dir/two ] && [ -e "$view/shared-dir/two" ] && "$KVFS" txn list | grep -q serializable &&
    ends 2 "$KVFS" txn join "$id" -- "$KVFS" txn run -- true && "$KVFS" txn commit --async "$id" &&
    [ -e shared-dir/one ] && [ -e shared-dir/two ] && until_ok no_views && until_ok test ! -e "$view" &&
    ends 1 "$KVFS" txn commit "$id" && said 'no open transaction'
}
begin_abort() {
  local id view
  { read -r id; read -r view; } < <("$KVFS" txn begin)
  echo x >"$view/aborted" && "$KVFS" txn abort "$id" && [ ! -e aborted ] && no_open && until_ok no_views
}
compared() {
  local id
  rm -rf cmp && mkdir -p cmp/sub && echo a >cmp/same && echo b >cmp/edited && echo c >cmp/gone && echo d >cmp/moved && echo e >cmp/sub/inner && echo f >cmp/replaced
  "$KVFS" kv put tags kept 1 && "$KVFS" kv put tags dropped 1
  id=$("$KVFS" txn begin | head -n 1)
  "$KVFS" txn join "$id" -- sh -ec "echo bb > cmp/edited; rm cmp/gone; mv cmp/moved cmp/sub/here; mkdir cmp/new; echo x > cmp/new/file
    cat cmp/same > /dev/null; echo g > cmp/tmp; mv cmp/tmp cmp/replaced; mv cmp/sub cmp/under; '$KVFS' kv put tags fresh 1; '$KVFS' kv del tags dropped"
  "$KVFS" txn diff "$id" | tee "$work/said"
  local want line status=0 owner
  owner=$(id -un):$(id -gn)
  want="~ /cmp/edited  2 B → 3 B
- /cmp/gone
+ /cmp/new/  mode 0755, owner $owner
+ /cmp/new/file  2 B, mode 0644, owner $owner
~ /cmp/replaced  2 B
> /cmp/sub → /cmp/under/
> /cmp/moved → /cmp/under/here  2 B
- key tags/dropped  1 B, \"1\"
+ key tags/fresh  1 B, \"1\""
  diff <(echo "$want") <(sed '/gone/s/  .*//' "$work/said") || status=1
  [ "$("$KVFS" txn diff --stat "$id")" = "3 added, 2 removed, 2 changed, 2 renamed, 12 B" ] || { "$KVFS" txn diff --stat "$id"; status=1; }
  "$KVFS" txn diff --json "$id" | python3 -c 'import json,sys; [json.loads(l) for l in sys.stdin]' || status=1
  "$KVFS" txn diff --content "$id" >"$work/said"
  want=$'--- a/cmp/edited\n+++ b/cmp/edited\n@@ -1 +1 @@\n-b\n+bb'
  diff <(echo "$want") <(sed -n '/^--- a.cmp.edited/,/^+bb/p' "$work/said") || status=1
  [ "$(grep -cx -e '+++ b/cmp/new/file' -e '+x' -e '-c' "$work/said")" = 3 ] || { cat "$work/said"; status=1; }
  "$KVFS" txn abort "$id" && [ -e cmp/gone ] && return $status
}
ended_view() {
  # A process that is still inside of a view that has ended gets errors, not old data.
  local id
  echo before >ended
  id=$("$KVFS" txn begin | head -n 1)
  "$KVFS" txn join "$id" -- sh -c "exec 3<ended; echo >'$work/in'; while [ ! -e '$work/out' ]; do sleep 0.05; done; cat <&3; echo x > ended; ls" >"$work/inside" 2>&1 &
  local joined=$!
  until_ok test -e "$work/in" && "$KVFS" txn abort "$id" && until_ok no_views && touch "$work/out"
  ! wait $joined && grep -qiE 'not connected|stale|abort' "$work/inside" && [ "$(cat ended)" = before ]
}
timed_out() {
  local id
  id=$("$KVFS" txn begin --timeout 300ms | head -n 1)
  until_ok no_open && ends $conflict "$KVFS" txn commit "$id" && said 'time is over'
}
remove_open() {
  mkdir -p tree/sub && echo keep >tree/sub/open && for i in $(seq 50); do echo "$i" >tree/$i; done
  exec 5<tree/sub/open
  run -- rm -rf tree && [ ! -e tree ] && [ "$(cat <&5)" = keep ]
  local status=$?
  exec 5<&-
  return $status
}
# What the kernel keeps for long: attributes of what has another name, and a listing that a process is in.
removed_tree() {
  mkdir -p whole/sub && echo linked >whole/linked && ln whole/linked linked && for i in $(seq 50); do echo "$i" >whole/sub/$i; done
  (cd whole/sub && [ "$(ls | wc -l)" = 50 ] && [ "$(stat -c %h "$mnt/linked")" = 2 ] && "$KVFS" rm -r "$mnt/whole" &&
    until_ok eval '[ "$(stat -c %h "$mnt/linked")" = 1 ]' && until_ok eval '[ -z "$(ls)" ]') && [ ! -e whole ] && [ "$(cat linked)" = linked ]
}
many_files() {
  # More names than are forgotten one by one.
  mkdir -p many && touch many/first && ls many >/dev/null && stat many/3000 2>/dev/null
  run -- sh -c 'seq 3000 | (cd many && xargs touch)' && [ "$(ls many | wc -l)" = 3001 ] && stat many/3000 >/dev/null &&
    run -- sh -c 'rm many/*; touch many/last' && [ "$(ls many)" = last ] && ! stat many/3000 2>/dev/null
}
outside_descriptor() { run -- echo through >outside 2>"$work/said" && said 'descriptor 1 .*outside' && [ "$(cat outside)" = through ]; }
large() {
  run -- sh -c 'head -c 40M /dev/urandom > large.bin; sha256sum large.bin > large.sum' && sha256sum -c large.sum
}
appended() {
  # A descriptor of the main line that appends, while a transaction appends, and later shortens the file.
  rm -f log && python3 - "$KVFS" <<'PY'
import os, subprocess, sys
def txn(script):
    subprocess.run([sys.argv[1], "txn", "run", "--", "sh", "-ec", script], check=True)
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(log, b"one\n")
txn("echo two >>log")
os.write(log, b"three\n")
assert open("log").read() == "one\ntwo\nthree\n", open("log").read()
txn("truncate -s 4 log")
os.write(log, b"four\n")
assert open("log").read() == "one\nfour\n", open("log").read()
PY
}
photo_example() {
  local right
  right=$(KVFS=$KVFS "$here/../../examples/photo.sh" "$mnt" | grep -cE 'photo: absent   tags: absent|photo: there   tags: cat, sofa') && [ "$right" = 2 ]
}
umount_refused() {
  cd / || return
  local id
  id=$("$KVFS" txn begin -s "$mnt" | head -n 1)
  ends $in_use "$KVFS" umount "$mnt" && said "$id" && said 'abort-open' && is_mounted "$mnt" && "$KVFS" txn abort -s "$mnt" "$id"
}
abort_open() {
  cd / || return
  "$KVFS" txn begin -s "$mnt" >/dev/null
  "$KVFS" txn run -s "$mnt" -- sleep 60 >"$work/cut" 2>&1 &
  local runner=$! status=0
  until_ok has_open_at 2 && "$KVFS" umount --abort-open "$mnt" || status=1
  wait $runner && status=1
  grep -q 'aborted.*; nothing happened' "$work/cut" || status=1
  wait "$daemon" || status=1
  daemon=''
  no_views || status=1
  return $status
}
has_open_at() { [ "$("$KVFS" txn list -s "$mnt" --json | python3 -c 'import json,sys; print(len(json.load(sys.stdin)))')" = "$1" ]; }
sigterm() {
  mount_store || return
  "$KVFS" txn begin -s "$mnt" >/dev/null && kill -TERM "$daemon" && wait "$daemon"
  local status=$?
  daemon=''
  [ $status = 0 ] && grep -q 'transaction aborted' "$store.log" && ! is_mounted "$mnt"
}
daemon_killed() {
  mount_store || return
  "$KVFS" txn run -s "$mnt" -- sh -c "echo x > '$mnt/lost'; sleep 60" >/dev/null 2>&1 &
  local runner=$!
  until_ok has_open_at 1 && sleep 0.3
  kill_daemon
  ! wait $runner && mount_store && [ ! -e "$mnt/lost" ] && umount_store && check_store
}
# The machine's /dev/fuse may be closed to ordinary users: in a mount namespace of its own it is opened.
ordinary_user() {
  [ "$(id -u)" = 0 ] || { echo "needs root, to become another user"; return 77; }
  setpriv --reuid=65534 --regid=65534 --clear-groups -- "$KVFS" version >/dev/null 2>&1 || { echo "the binary is not for every user"; return 77; }
  setpriv --reuid=65534 --regid=65534 --clear-groups -- unshare --user --mount true 2>/dev/null || { echo "no user namespaces here"; return 77; }
  local home=$work/home
  mkdir -p "$home/mnt" && chown -R 65534:65534 "$home"
  unshare --mount --propagation private -- sh -c "
    mount -t tmpfs -o mode=755 tmpfs /mnt && mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse || exit 1
    # A transaction of root's, while the other one waits for it.
    ( until [ -e $home/your-turn ]; do sleep 0.1; done
      id=\$(\"$KVFS\" txn begin -s $home/store | head -n 1)
      KVFS_TXN=\$id KVFS_TXN_STORE=$home/store \"$KVFS\" kv put -s $home/store tags root 1
      \"$KVFS\" txn commit -s $home/store \$id; echo \$id >$home/roots; touch $home/done ) &
    exec setpriv --reuid=65534 --regid=65534 --clear-groups -- sh -exc '
      cd $home; export HOME=$home
      \"$KVFS\" mount --create --size 512M store mnt
      cd mnt; mkdir sub; cd sub; echo old > file
      \"$KVFS\" txn run -- sh -ec \"pwd; id -u; echo new > file; echo more > other; cat file\"
      cat file other; stat -c %u other
      if \"$KVFS\" txn run -- sh -c \"echo bad > file; exit 1\"; then exit 1; fi
      cat file
      id=\$(\"$KVFS\" txn begin | head -n 1)
      \"$KVFS\" txn join \$id -- sh -ec \"echo joined > joined\"
      test ! -e joined
      test \$(stat -c %u $home/mnt/.kvfs/txn/\$id) = 65534
      cat $home/mnt/.kvfs/locks | grep -q /sub/joined
      \"$KVFS\" txn commit \$id
      cat joined
      \"$KVFS\" txn undo \$id
      touch $home/your-turn; until [ -e $home/done ]; do sleep 0.1; done
      if \"$KVFS\" txn undo \$(cat $home/roots) 2>$home/refused; then exit 1; fi
      grep \"belonged to user 0\" $home/refused
      if \"$KVFS\" txn list --committed | grep \" \$(cat $home/roots) \"; then exit 1; fi
      test ! -e joined
      cd /; \"$KVFS\" umount $home/mnt
      \"$KVFS\" check $home/store'" >"$work/user.log" 2>&1
  local status=$?
  cat "$work/user.log"
  [ $status = 0 ]
}
# on_terminal CASE [SHELL]: see terminal.py.
on_terminal() { timeout 120 python3 "$here/terminal.py" "$KVFS" "$mnt" "$@" && no_open; }
reaped() {
  # What has a session and a process group of its own is waited for, too, and killed with the rest.
  run -- sh -c 'setsid sh -c "sleep 0.5; echo late >late" & exit 0' && [ "$(cat late)" = late ] &&
    ends 3 run -- sh -c "setsid sh -c 'sleep 1001; echo x' & until pgrep -f '[s]leep 1001' >/dev/null; do sleep 0.05; done; exit 3" &&
    ! pgrep -f '[s]leep 1001' >/dev/null && no_open
}
init_killed() {
  # The process between `kvfs txn run` and the command is killed: what it watched over goes all the same.
  run -- sh -c 'echo x >initless; setsid sleep 1002 & sleep 1003' >/dev/null 2>&1 &
  local runner=$! pid
  until_ok sh -c "pgrep -f '[s]leep 1002' >/dev/null && pgrep -f '[s]leep 1003' >/dev/null" || return
  pid=$(pgrep -f '[t]xn init .*sleep 1003') && kill -9 "$pid"
  ! wait $runner && [ ! -e initless ] && ! pgrep -f '[s]leep 100[23]' >/dev/null && no_open
}
without_dashes() {
  run echo -n x --json >"$work/said" && [ "$(cat "$work/said")" = 'x --json' ] && ends 4 run sh -c 'exit 4' && run --isolation si -- true
}
time_limit() {
  ends 124 run --timeout 300ms -- sh -c 'echo x >slow; sleep 60' && said 'longer than its time of .*--timeout' && [ ! -e slow ] && no_open &&
    ends 124 run --retry 3 --timeout 300ms sleep 60 && ! said 'trying again' &&
    for _ in 1 2 3 4 5; do ends 124 run --timeout 1ms sleep 60 || return; done && no_open
}
# Bind mounts of everything, of a part, inside of the mount; another file system on it. No path leads around the
# transaction, and no working directory.
every_mount() {
  [ "$(id -u)" = 0 ] || { echo "needs root, to mount"; return 77; }
  rm -rf parts && mkdir -p parts/sub parts/hole parts/again "$work/all" "$work/sub" && echo before >parts/sub/file &&
    mount --bind "$mnt" "$work/all" && mount --bind "$mnt/parts/sub" "$work/sub" && mount -o ro,bind "$mnt/parts/sub" "$mnt/parts/again" &&
    mount -t tmpfs tmpfs "$mnt/parts/hole" && echo other >parts/hole/file || return
  local dir status=0 files="$mnt/parts/sub/file $work/all/parts/sub/file $work/sub/file $mnt/parts/again/file"
  for dir in "$mnt/parts/sub" "$work/all/parts/sub" "$work/sub"; do
    (cd "$dir" && ends 5 run -s "$mnt" -- sh -ec "echo inside >file; cat $files $mnt/parts/hole/file; pwd; exit 5") || status=1
    [ "$(tr '\n' ' ' <"$work/said")" = "inside inside inside inside other $dir " ] || { echo "$dir: seen were: $(cat "$work/said")"; status=1; }
    # shellcheck disable=SC2086 # words
    [ "$(cat $files | sort -u)" = before ] || { echo "$dir: written outside of the transaction"; status=1; }
    (cd "$dir" && ends 1 run -- sh -c "echo x >'$work/all/parts/sub/file'; exit 1") && [ "$(cat parts/sub/file)" = before ] || status=1
  done
  # What was read-only is so in the transaction.
  ends 1 run -- sh -c "echo x >parts/again/file || exit 1" && [ "$(cat parts/again/file)" = before ] || status=1
  local id
  id=$("$KVFS" txn begin -s "$work/sub" | head -n 1)
  (cd "$work/sub" && "$KVFS" txn join "$id" -- sh -ec "echo joined >file; cat $files") >"$work/said" || status=1
  [ "$(sort -u "$work/said")" = joined ] && [ "$(cat parts/sub/file)" = before ] && "$KVFS" txn abort "$id" || status=1
  # Only a part is seen.
  unshare --mount sh -ec "umount '$mnt/parts/again' '$mnt/parts/hole'; umount -l '$mnt' '$work/all'; cd '$work/sub'
    ! '$KVFS' txn run -- sh -c 'cat file; echo part >file; ls; exit 1'; cat file" >"$work/said" 2>&1 || status=1
  [ "$(tr '\n' ' ' <"$work/said")" = "before file before " ] || { cat "$work/said"; status=1; }
  umount "$mnt/parts/hole" "$mnt/parts/again" "$work/sub" && umount -l "$work/all"
  return $status
}
on_branch() {
  mkdir -p "$work/branch" && echo main >of-branch && "$KVFS" branch create b1 && "$KVFS" branch mount b1 "$work/branch" || return
  local status=0 command
  (
    cd "$work/branch" || exit 1
    # Keys are those of the branch; what is of the main line alone is refused, and says what to do.
    "$KVFS" kv put branched key value && [ "$("$KVFS" kv get branched key)" = value ] && "$KVFS" sync || exit 1
    for command in 'txn run -- true' 'txn begin' 'txn join 1 -- true' 'snapshot create s1' 'snapshot restore s1' 'branch create b2'; do
      # shellcheck disable=SC2086 # words
      ends 2 "$KVFS" $command && said "on a branch, or in a transaction.*-s $mnt" || exit 1
    done
    # Named, the main line is meant; the branch can be read, not written.
    ends 1 "$KVFS" txn run -s "$mnt" -- sh -c 'cat of-branch; echo x >of-branch || exit 1' && said '^main' && said 'Read-only'
  ) || status=1
  ends 1 "$KVFS" kv get branched key || status=1
  [ "$(cat "$work/branch/of-branch")" = main ] || status=1
  "$KVFS" branch umount b1 && "$KVFS" branch merge b1 && [ "$("$KVFS" kv get branched key)" = value ] && return $status
}
key_outside() {
  # In the view of a transaction keys belong to it, also without the variable; where that can't be, it is said.
  local id view
  { read -r id; read -r view; } < <("$KVFS" txn begin)
  (cd "$view" && "$KVFS" kv put viewed key 1) && ends 1 "$KVFS" kv get viewed key && "$KVFS" txn commit "$id" &&
    [ "$("$KVFS" kv get viewed key)" = 1 ] && ends 2 run -- env -u KVFS_TXN "$KVFS" kv put viewed key 2 && said 'KVFS_TXN=ID' &&
    [ "$("$KVFS" kv get viewed key)" = 1 ]
}
view_gone() {
  local id view
  # The command itself refuses it, too, where the daemon has not noticed yet.
  refused() { ends 9 "$KVFS" txn join "$id" -- touch around && said "view of transaction $id was unmounted"; }
  { read -r id; read -r view; } < <("$KVFS" txn begin)
  umount "$view" && until_ok refused && [ ! -e around ] && "$KVFS" txn abort "$id" && no_open
}
dead_views() {
  mount_store && "$KVFS" txn begin -s "$mnt" >/dev/null && kill_daemon && ! no_views && mount_store && no_views &&
    [ -z "$(ls "$store/views")" ] && umount_store
}

# Users of a mount of root's: the store's directory is closed to them.
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }
can_be_nobody() {
  [ "$(id -u)" = 0 ] || { echo "needs root, to become another user"; return 77; }
  as_nobody "$KVFS" version >/dev/null 2>&1 || { echo "the binary is not for every user"; return 77; }
  as_nobody unshare --user --mount true 2>/dev/null || { echo "no user namespaces here"; return 77; }
}
users_of_mount() {
  can_be_nobody || return
  rm -rf of-user && mkdir -p of-user && chown 65534:65534 of-user && echo root >of-root && chmod 600 of-root && echo shared >for-all && chmod 666 for-all &&
    chmod 755 "$mnt" && "$KVFS" kv put roots key value && "$KVFS" quota on || return
  chmod 700 "$store"
  local id mine
  cd of-user || return
  # A transaction: permissions are those of the file system, for what is root's as for what is the user's.
  ends 0 as_nobody "$KVFS" txn run sh -ec "echo new >file; echo more >>../for-all; id -u; \"$KVFS\" kv put users key inside
    for refused in 'cat ../of-root' 'echo x >../of-root' 'chmod 777 ../for-all' 'chown 0 file'; do if sh -c \"\$refused\"; then exit 1; fi; done
    echo \$KVFS_TXN >id" &&
    said '^65534$' && [ "$(stat -c %u:%g file)" = 65534:65534 ] && [ "$(stat -c %a ../for-all)" = 666 ] || return
  mine=$(cat id)
  [ "$(as_nobody "$KVFS" kv get users key)" = inside ] && ends 7 as_nobody "$KVFS" kv get roots key && ends 1 as_nobody "$KVFS" txn run false || return
  # Of others nothing is seen, and nothing ended.
  id=$("$KVFS" txn begin | head -n 1) && ! as_nobody "$KVFS" txn list --json | grep -q "\"id\":$id," &&
    ends 7 as_nobody "$KVFS" txn diff "$id" && ends 7 as_nobody "$KVFS" txn abort "$id" && ends 7 as_nobody "$KVFS" txn commit "$id" && has_open 1 &&
    "$KVFS" txn abort "$id" || return
  as_nobody "$KVFS" txn list --committed | grep -qE "^ +$mine " || return
  # What the file system shows to every user.
  ends 0 as_nobody "$KVFS" sync && ends 0 as_nobody "$KVFS" stats --json "$mnt" && ! said 'keyspace[.].*roots' && ends 0 as_nobody "$KVFS" quota get --user 65534 &&
    ends 0 as_nobody "$KVFS" snapshot list && ends 7 as_nobody "$KVFS" quota get --user 0 || return
  local command
  for command in 'txn begin --nice=-5' 'txn run --nice=-5 true' 'snapshot create s1' 'branch create b1' 'quota off' "check $mnt" "stats --zones $mnt"; do
    # shellcheck disable=SC2086 # words
    ends 7 as_nobody "$KVFS" $command && said 'only root and the store' || return
  done
  # Taken back is what the user could do by hand: not in a file of root's, and not where rights were taken away since.
  ends 7 as_nobody "$KVFS" txn undo "$mine" && said 'for-all is not yours' && [ -e file ] || return
  as_nobody "$KVFS" txn run sh -ec 'echo first >first; mv file moved; echo $KVFS_TXN >id' && mine=$(cat id) &&
    ends 0 as_nobody "$KVFS" txn undo "$mine" && [ ! -e first ] && [ -e file ] || return
  as_nobody "$KVFS" txn run sh -ec 'echo second >second; echo $KVFS_TXN >id' && mine=$(cat id) && chown 0:0 ../of-user && chmod 700 ../of-user || return
  ends 7 as_nobody "$KVFS" txn undo -s "$mnt" "$mine" && said 'only root and the store' && [ -e second ] && ends 0 "$KVFS" txn undo "$mine" || return
  "$KVFS" quota off && no_open && [ "$(stat -c %a "$store/control.sock")" = 600 ]
}
begin_of_users() {
  can_be_nobody || return
  cd "$mnt" || return
  rm -rf begun && mkdir begun && chown 65534:65534 begun && echo root >of-root && chmod 600 of-root && chmod 755 "$mnt" && chmod 700 "$store" || return
  local id
  id=$(as_nobody "$KVFS" txn begin) && [ "$(wc -l <<<"$id")" = 1 ] || return
  cd begun || return
  # Several commands, each in namespaces of its own, in one view.
  ends 0 as_nobody "$KVFS" txn join "$id" -- sh -ec "echo one >file; \"$KVFS\" kv put begun key value; id -u; ! cat ../of-root" && said '^65534$' && [ ! -e file ] &&
    [ "$(as_nobody "$KVFS" txn join "$id" -- cat file)" = one ] && ends 0 as_nobody "$KVFS" txn join "$id" -- sh -ec 'echo two >>file' || return
  # Those of other users are not joined, and what is mounted in one of their namespaces is seen in no other.
  ends 7 setpriv --reuid=65533 --regid=65533 --clear-groups -- "$KVFS" txn join "$id" -- true &&
    ends 0 as_nobody "$KVFS" txn join "$id" -- unshare --user --map-root-user --mount --propagation unchanged sh -ec 'mkdir point; mount -t tmpfs tmpfs point; echo x >point/x' &&
    ends 1 as_nobody "$KVFS" txn join "$id" -- test -e point/x && ! grep -q "$store/views/$id/" /proc/mounts || return
  ends 0 as_nobody "$KVFS" txn commit "$id" && [ "$(tr '\n' , <file)" = one,two, ] && [ "$(stat -c %u:%g file)" = 65534:65534 ] &&
    [ "$(as_nobody "$KVFS" kv get begun key)" = value ] || return
  ends 7 as_nobody "$KVFS" txn begin --nice -1 || return
  id=$(as_nobody "$KVFS" txn begin) && ends 0 as_nobody "$KVFS" txn abort "$id" && no_open
}
many_connections() {
  # A user that takes all connections of that user's share keeps no other user, and not root, from the daemon.
  can_be_nobody || return
  python3 - "$KVFS" "$mnt" "$store" <<'PY'
import hashlib, os, socket, subprocess, sys
kvfs, mnt, store = sys.argv[1:]
path = f"/run/kvfs/{hashlib.sha256(os.fsencode(store)).hexdigest()}/control.sock"
assert os.stat(os.path.dirname(path)).st_mode & 0o7777 == 0o711 and os.stat(path).st_uid == 0
def run(uid, *words):
    return subprocess.run([kvfs, *words], cwd=mnt, user=uid, group=uid, extra_groups=[], capture_output=True, text=True)
held = []
pid = os.fork()
if pid == 0:
    os.setgid(65534); os.setuid(65534)
    for _ in range(300):
        held.append(socket.socket(socket.AF_UNIX)); held[-1].connect(path)
    refused = subprocess.run([kvfs, "txn", "list"], cwd=mnt, capture_output=True, text=True)
    assert refused.returncode == 3 and "too many connections" in refused.stderr, refused
    os.kill(os.getpid(), 19)
    os._exit(0)
_, status = os.waitpid(pid, os.WUNTRACED)
assert os.WIFSTOPPED(status), status
for uid in (0, 65533):
    done = run(uid, "txn", "list")
    assert done.returncode == 0, (uid, done)
os.kill(pid, 9); os.waitpid(pid, 0)
PY
}

# Everything that there is to see of a tree, but for inode numbers and times that no program sets.
tree_of() {
  (cd "$1" && find . -printf '%p %y %m %U %G %n %s %T@ %l\n' | sort && find . -type f -exec sha256sum {} + | sort &&
    getfattr -R -d . 2>/dev/null)
}
# noted SCRIPT: runs it in a transaction, whose number is $id then.
noted() {
  run -s "$mnt" -- sh -ec "cd '$mnt'; $1; echo \$KVFS_TXN >'$work/id'" && id=$(cat "$work/id")
}
undo() { "$KVFS" txn undo -s "$mnt" "$@"; }
taken_back() {
  rm -rf undone && mkdir -p undone/sub/deep && echo a >undone/a && ln undone/a undone/b && ln -s a undone/link &&
    head -c 100000 /dev/urandom >undone/sub/large && echo deep >undone/sub/deep/file && chmod 750 undone/sub || return 1
  "$KVFS" kv put undone song old
  local before id
  before=$(tree_of undone)
  noted "cd undone; echo longer >a; rm b; mv sub/deep here; printf x | dd of=sub/large bs=1 seek=50000 conv=notrunc status=none
    truncate -s 90000 sub/large; ln -sf b link; mkdir -p new/er; cp sub/large new/er/; chmod 700 sub; touch -d @5 here/file
    '$KVFS' kv put undone song new; '$KVFS' kv put undone other new" || return
  [ "$(tree_of undone)" != "$before" ] && "$KVFS" txn list --committed --json | grep -q "\"id\":$id," || return
  # Kept are the blocks that were overwritten, and rows.
  "$KVFS" txn list --committed | grep -qE "^ +$id .* [1-5][0-9]\.[0-9] KiB " || { "$KVFS" txn list --committed; return 1; }
  ends 0 undo --dry-run "$id" && said '^\+ /undone/b' && said '^- /undone/new/er/large' && said '^~ key undone/song' || return
  echo beside >undone/beside
  ends 0 undo "$id" && said "^took back transaction $id as transaction [0-9]+: " || return
  rm undone/beside && touch -d "@$(sed -n 's/^\. d .* \([0-9.]*\) $/\1/p' <<<"$before")" undone
  diff <(echo "$before") <(tree_of undone) || return
  [ "$("$KVFS" kv get undone song)" = old ] && ends 1 "$KVFS" kv get undone other && no_open || return
  # The undo of the undo.
  id=$("$KVFS" txn list --committed --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[-1]["id"])')
  ends 0 undo --json "$id" && said "\"undone\":$id" && [ -f undone/new/er/large ] && [ ! -e undone/b ]
}
undo_refused() {
  mkdir -p built && echo old >built/file && local id later
  noted "echo new >built/file; mkdir built/dir; echo in >built/dir/in" || return
  local first=$id
  echo newer >built/file
  noted "echo more >built/dir/more" && later=$id
  ends $built_on undo "$first" && said '~ /built/file' && said "\+ /built/dir/more.*transaction $later: .*user $(id -un)" || return
  ends $built_on undo --dry-run --json "$first" && said '"place":"/built/file"' || return
  [ "$(cat built/file)" = newer ] && [ -e built/dir/more ] && no_open || return
  # What was in the way goes: then it can be done.
  ends 0 undo "$later" && ends $built_on undo "$first" && ! said built/dir || return
  # An open transaction in the way is a conflict: that one ends some time.
  noted "echo new >built/other" && first=$id && id=$("$KVFS" txn begin | head -n 1) &&
    "$KVFS" txn join "$id" -- sh -c 'echo mine >built/other' || return
  ends $conflict undo "$first" && ends 1 undo "$id" && said 'is open' && "$KVFS" txn abort "$id" || return
  ends 1 undo 999999 && said 'no transaction 999999' && ends 0 undo "$first" && [ ! -e built/other ] && no_open
}
undo_survives() {
  mount_store && echo old >"$mnt/survivor" && sync "$mnt/survivor" || return
  local id
  noted "echo new >survivor; echo x >added" && kill_daemon && mount_store && ends 0 undo "$id" || return
  [ "$(cat "$mnt/survivor")" = old ] && [ ! -e "$mnt/added" ] || return
  noted "echo again >survivor" && umount_store && mount_store "$(mount_options),undo_count=1" && ends 0 undo "$id" &&
    [ "$(cat "$mnt/survivor")" = old ] || return
  # Pushed out by the next one.
  noted "echo first >survivor" && local first=$id && noted "echo second >survivor" && ends 1 undo "$first" &&
    said "transaction $first can't be taken back: what was there before it is not kept.*last 1 .*undo_count" || return
  umount_store && mount_store "$(mount_options),undo_count=0" && ends 1 undo "$id" && said 'undo_count=0' || return
  umount_store && check_store
}
quick() {
  local i t0 took best=100000
  for i in $(seq 20); do
    t0=$(date +%s%N)
    "$KVFS" txn run -- true || return 1
    took=$((($(date +%s%N) - t0) / 1000))
    [ $took -lt $best ] && best=$took
  done
  echo "# kvfs txn run -- true: $((best / 1000)).$((best % 1000 / 100)) ms at best"
}

# A step that failed leaves no transaction to the next one.
alone() {
  if [ -n "$daemon" ]; then
    "$KVFS" txn list -s "$mnt" --json 2>/dev/null | grep -o '"id":[0-9]*' | cut -d: -f2 |
      while read -r id; do "$KVFS" txn abort -s "$mnt" "$id"; done
  fi
  step "$@"
}

alone "make install is committed as a whole" install_commits
alone "a failing make install leaves nothing" install_fails
alone "the exit status is passed on" exit_status
alone "the working directory is kept" cwd_kept
alone "nothing shows before the commit, everything after it" isolated
alone "readers with descriptors and mappings during commits" readers
alone "dirty pages of mappings belong to the transaction" mapped_in_view
alone "a conflict: 75, and nothing happened" conflict
alone "the first updater wins" first_updater
alone "--retry loses no update" retried
alone "appends and commits lose nothing" appends
alone "two runs at once" two_at_once
alone "kill -9 of a run leaves nothing" killed
alone "kill -9 of the group of a run: what has left it sees errors" killed_group
alone "Ctrl-C aborts" interrupted
alone "SIGTERM aborts" terminated
alone "on a terminal: bash" on_terminal shell bash
alone "on a terminal: dash" on_terminal shell dash
alone "on a terminal: zsh" on_terminal shell zsh
alone "on a terminal: fish" on_terminal shell fish
alone "on a terminal: signals and size" on_terminal signals
alone "on a terminal: what is left is named" on_terminal left
alone "on a terminal: a line says what has come of it" on_terminal told
alone "on a terminal: lists with nothing in them say so" on_terminal empty
alone "what has left its process group belongs to the run" reaped
alone "kill -9 of the process above the command" init_killed
alone "without --" without_dashes
alone "--timeout ends with 124" time_limit
alone "every mount of the store shows the transaction" every_mount
alone "on a branch" on_branch
alone "keys in a view" key_outside
alone "a view that was unmounted is not joined" view_gone
alone "descendants belong to the run" descendants
alone "files and keys in one transaction" files_and_keys
alone "appends on the main line go to the end that a commit left" appended
alone "the example: a photo and its tags" photo_example
alone "a conflict over a key" keys_conflict
alone "locks that users take" own_locks
alone "begin, join, commit" begin_join_commit
alone "begin, abort" begin_abort
alone "diff" compared
alone "a view that has ended gives errors" ended_view
alone "a transaction whose time is over is gone" timed_out
alone "rm -rf while a file is open outside" remove_open
alone "a tree that is removed as a whole is forgotten" removed_tree
alone "thousands of names in one commit" many_files
alone "a descriptor from outside is warned of" outside_descriptor
alone "a large transaction" large
alone "a transaction is taken back" taken_back
alone "what was built on a transaction is in the way of undo" undo_refused
alone "users of a mount of root" users_of_mount
alone "transactions begun and joined by users of a mount of root" begin_of_users
alone "a user with many connections is in the way of no other" many_connections
alone "how long an empty run takes" quick
alone "umount is refused while one is open" umount_refused
alone "umount --abort-open" abort_open
alone "SIGTERM of the daemon aborts and logs" sigterm
alone "kill -9 of the daemon" daemon_killed
alone "dead views go at the next mount" dead_views
alone "undo after kill -9, and until it is pushed out" undo_survives
alone "as an ordinary user" ordinary_user
summary txn
