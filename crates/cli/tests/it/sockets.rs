//! The sockets for the users of a mount: where they are, and which daemon is behind them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use kvfs_rpc::client::blocking::Store;
use rustix::process::{Signal, kill_process};

use crate::user::{NOBODY, can_be_nobody, give};
use crate::world::{KVFS, World, can_mount, daemon_of, daemons_of, kvfs, run, wait_exit, wait_until};

#[test]
fn sockets_of_a_killed_daemon_are_removed_and_nothing_leads_there() {
    if !can_mount("sockets_of_a_killed_daemon_are_removed_and_nothing_leads_there") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let link = format!("{dir}/.kvfs/kv.sock");
    let public = fs::read_link(&link).unwrap();
    let directory = public.parent().unwrap();
    assert!(directory.starts_with("/run/kvfs"), "{}", public.display());
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
    assert!(directory.exists(), "a killed daemon removes nothing");
    kvfs(&["mount", "-o", "no_allow_other", &store, &dir]).ok();
    assert_eq!(fs::read_link(&link).unwrap(), Path::new(&store).join("kv.sock"));
    assert!(!directory.exists());
    let mut keys = Store::connect(Path::new(&dir)).unwrap();
    keys.put("tags", b"a", b"1").unwrap();
    assert_eq!(keys.get("tags", b"a").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_daemon_of_another_user_is_not_taken_for_that_of_a_store() {
    let test = "a_daemon_of_another_user_is_not_taken_for_that_of_a_store";
    if !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let home = world.dir("home");
    give(&home);
    let socket = format!("{home}/kv.sock");
    let script = "import socket, sys; line = socket.socket(socket.AF_UNIX); line.bind(sys.argv[1]); line.listen(); \
                  print('listens', flush=True); sys.stdin.read()";
    let mut served = Command::new("python3")
        .args(["-c", script, &socket])
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(served.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listens\n");
    let path = Path::new(&socket);
    let refused = Store::connect_to_daemon_of(path, Some(NOBODY + 1)).unwrap_err().to_string();
    assert!(refused.contains("user 65534"), "{refused}");
    let refused = Store::connect_to_daemon_of(path, None).unwrap_err().to_string();
    assert!(refused.contains("user 65534"), "{refused}");
    assert!(Store::connect_to_daemon_of(path, Some(NOBODY)).is_ok());
    drop(served.stdin.take());
    wait_exit(&mut served);
}

#[test]
fn daemon_takes_its_hard_limit_of_descriptors_and_serves_on_after_their_end() {
    if !can_mount("daemon_takes_its_hard_limit_of_descriptors_and_serves_on_after_their_end") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    let limited =
        |args: &[&str]| run(Command::new("prlimit").args(["--nofile=64:256", KVFS]).args(args)).ok();
    limited(&["mount", &store, &dir]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon_of(&store).as_raw_nonzero())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["256", "256"]);
    // What a command runs has the limit of the command.
    assert_eq!(limited(&["txn", "run", "-q", "-s", &dir, "--", "sh", "-c", "ulimit -n"]), "64\n");
    let mut held = Vec::new();
    for name in ["kv.sock", "control.sock"] {
        let socket = Path::new(&store).join(name);
        held.extend((0..100).map(|_| UnixStream::connect(&socket).unwrap()));
    }
    let open = || fs::read_dir(format!("/proc/{}/fd", daemon_of(&store).as_raw_nonzero())).unwrap().count();
    wait_until("the end of descriptors", || open() >= 250);
    drop(held);
    kvfs(&["kv", "put", "-s", &dir, "tags", "a", "1"]).ok();
    assert_eq!(kvfs(&["kv", "get", "-s", &dir, "tags", "a"]).ok(), "1");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}
