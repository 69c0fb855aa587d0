//! A daemon that is killed while a thread of it waits in the kernel for a page of its own mount: it keeps the
//! store, and answers nothing, until its connections are aborted.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::user::{DENIED, as_nobody, can_be_nobody};
use crate::world::{KVFS, World, can_mount, daemon_of, is_mounted, kvfs, wait_exit, wait_until};

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
        if can_be_nobody(NAME) {
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
