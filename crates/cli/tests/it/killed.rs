//! A daemon that is killed while a thread of it waits in the kernel for a page of its own mount: it keeps the
//! store, and answers nothing, until its connections are aborted.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal, kill_process};

use crate::user::{DENIED, as_nobody, can_be_nobody};
use crate::world::{KVFS, World, can_mount, daemon_of, daemons_of, is_mounted, kvfs, wait_exit, wait_until};

/// What `unshare` runs in a mount namespace of its own: makes another store of the same name in the same
/// place, mounts it when it is told to, and shows a file of it when its input ends.
const ELSEWHERE: &str = "set -e; exec 3>&1 >&2
    mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs \"$2\"; mkdir \"$2/mnt\"; \"$1\" mkfs \"$2/store\" --size 256M
    echo >&3; read -r _; \"$1\" mount \"$2/store\" \"$2/mnt\"; echo alive >\"$2/mnt/file\"
    echo >&3; cat; echo still >>\"$2/mnt/file\"; cat \"$2/mnt/file\" >&3; \"$1\" umount \"$2/mnt\"";

const FAILED: i32 = 1;
const NAME: &str = "daemon_that_was_killed_while_it_waits_for_its_own_pages_ends_with_the_next_command";

/// The states of all threads of a process. Other files of it may not be readable for as long as it waits.
fn states(process: Pid) -> Vec<char> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).into_iter().flatten();
    let lines = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    lines.filter_map(|line| line.rsplit_once(") ")?.1.chars().next()).collect()
}

/// Kills the daemon of `store`, while one of its threads waits for a page of the view of a transaction, which
/// waits for the lock of another one. Returns the process that commits that.
fn kill_beside_its_pages(store: &str, dir: &str) -> Child {
    fs::write(format!("{dir}/file"), [0; 8192]).unwrap();
    let begin = || {
        let begun = kvfs(&["txn", "begin", "-s", dir]).ok();
        let (id, view) = begun.trim().split_once('\n').unwrap();
        (id.to_owned(), format!("{view}/file"))
    };
    let ((_, locked), (id, waiting)) = (begin(), begin());
    fs::write(locked, [1; 8192]).unwrap();
    // The kernel keeps a page locked that is written in part. It ends with an error when the connection does.
    let mut waiting = fs::File::options().write(true).open(waiting).unwrap();
    thread::spawn(move || waiting.write_all(&[2; 100]));
    wait_until("the wait for a lock", || kvfs(&["locks", "-s", dir, "--json"]).ok().contains("\"waiter\":{"));
    let commit = Command::new(KVFS)
        .args(["txn", "commit", "-s", dir, &id])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let daemon = daemon_of(store);
    wait_until("the wait for a page", || states(daemon).contains(&'D'));
    kill_process(daemon, Signal::KILL).unwrap();
    wait_until("the end of the other threads", || {
        states(daemon).iter().all(|state| ['D', 'Z'].contains(state))
    });
    assert!(states(daemon).contains(&'D'), "it does not end by itself");
    commit
}

#[test]
fn daemon_that_was_killed_while_it_waits_for_its_own_pages_ends_with_the_next_command() {
    if !can_mount(NAME) {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    for command in
        [&["umount", "--lazy", &dir][..], &["mount", &store, &dir], &["check", &store], &["stats", &dir]]
    {
        if !is_mounted(&dir) {
            kvfs(&["mount", &store, &dir]).ok();
        }
        let mut commit = kill_beside_its_pages(&store, &dir);
        let status = kvfs(&["status", &store]);
        assert!(String::from_utf8_lossy(&status.stdout).contains("\ndead "), "{status:?}");
        if command[0] == "check" && can_be_nobody(NAME) {
            as_nobody(&["stats", &dir]).fails(DENIED, &["was killed", "as root"]);
        }
        let run = kvfs(command);
        assert!(run.stderr.contains("was killed"), "{}", run.stderr);
        run.ok();
        assert!(!wait_exit(&mut commit).success());
        kvfs(&["umount", "--lazy", &dir]);
        assert!(!is_mounted(&dir) && Path::new(&dir).read_dir().unwrap().next().is_none());
    }
}

#[test]
fn end_of_a_killed_daemon_spares_another_store_of_the_same_name_in_another_namespace() {
    if !can_mount("end_of_a_killed_daemon_spares_another_store_of_the_same_name_in_another_namespace") {
        return;
    }
    let world = World::new();
    let (place, dir) = (world.dir("place"), world.dir("place/mnt"));
    let store = world.store("place/store");
    let mut elsewhere = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "sh", "-c", ELSEWHERE, "sh", KVFS, &place])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = elsewhere.stdin.take().unwrap();
    let mut said = BufReader::new(elsewhere.stdout.take().unwrap());
    let mut expect_line = || assert_eq!(said.read_line(&mut String::new()).unwrap(), 1);
    expect_line();
    kvfs(&["mount", &store, &dir]).ok();
    let mut commit = kill_beside_its_pages(&store, &dir);
    input.write_all(b"\n").unwrap();
    expect_line();
    kvfs(&["check", &store]).ok();
    assert!(!wait_exit(&mut commit).success());
    drop(input);
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "alive\nstill\n");
    assert!(wait_exit(&mut elsewhere).success());
}

/// Has connections to the socket of `store` wait, until there is no place for another one.
fn fill_backlog(store: &str) -> Vec<OwnedFd> {
    let address = SocketAddrUnix::new(Path::new(store).join("control.sock")).unwrap();
    let mut waiting = Vec::new();
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&socket, &address) {
            Ok(()) => waiting.push(socket),
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                return waiting;
            }
        }
    }
}

#[test]
fn commands_end_though_the_daemon_accepts_no_connection() {
    if !can_mount("commands_end_though_the_daemon_accepts_no_connection") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let daemon = daemon_of(&store);
    kill_process(daemon, Signal::STOP).unwrap();
    wait_until("the stop", || states(daemon).iter().all(|&state| state == 'T'));
    let waiting = fill_backlog(&store);
    let status = kvfs(&["status", &store]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("\nsilent "), "{status:?}");
    for command in [&["stats", &*dir], &["check", &*store]] {
        kvfs(command).fails(FAILED, &["does not answer", "umount -f"]);
    }
    kvfs(&["umount", "--lazy", &dir]).fails(FAILED, &["does not answer", "umount -f"]);
    assert!(!is_mounted(&dir));
    drop(waiting);
    kill_process(daemon, Signal::CONT).unwrap();
    wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
}
