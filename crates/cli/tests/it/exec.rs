//! `kvfs exec`: programs on a store without a mount. A path below `/kvfs` is none of the machine's: what is
//! found there says that the library was at work.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::user::{can_be_nobody, give};
use crate::world::{KVFS, Run, World, can_mount, daemons_of, kvfs, run, wait_exit, wait_until};

const USAGE: i32 = 2;

/// Beside this test, as it depends on it.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libkvfs_preload.so")
}

fn is_served_here(test: &str) -> bool {
    let is_served = cfg!(all(target_arch = "x86_64", target_env = "gnu"));
    if !is_served {
        eprintln!("SKIPPED {test}: needs x86-64 and glibc");
    }
    is_served
}

/// A shell with `script` under `kvfs exec`.
pub(crate) fn exec(store: &str, options: &[&str], script: &str) -> Run {
    let mut command = Command::new(KVFS);
    command.args(["exec", "-s", store]).args(options).args(["--", "sh", "-euc", script]);
    run(command.env("KVFS_PRELOAD", library()).env("KVFS", KVFS))
}

#[test]
fn programs_use_a_store_without_a_mount() {
    if !is_served_here("programs_use_a_store_without_a_mount") {
        return;
    }
    let world = World::new();
    let store = world.text("store");
    let script = "mkdir /kvfs/d; cd /kvfs/d; echo hi > f; ln -s f l; cat l; pwd; test ! -e /data";
    assert_eq!(exec(&store, &["--create"], script).ok(), "hi\n/kvfs/d\n");
    assert!(daemons_of(Path::new(&store)).is_empty(), "the server ends with its last client");
    let script = "cd /data/d; ls; cat l; $KVFS kv put k x y; $KVFS kv get k x; exit 7";
    let ran = exec(&store, &["--at", "/data"], script);
    assert_eq!((ran.code, &*ran.stdout), (Some(7), &b"f\nl\nhi\ny"[..]), "{}", ran.stderr);
    exec(&store, &["--at", "data"], "true").fails(USAGE, &["--at", "absolute"]);
    kvfs(&["check", &store]).ok();
}

/// They begin at once, and come when others leave.
#[test]
fn commands_that_overlap_share_a_server_or_begin_another_one() {
    if !is_served_here("commands_that_overlap_share_a_server_or_begin_another_one") {
        return;
    }
    let world = World::new();
    let store = world.text("store");
    exec(&store, &["--create"], "echo hi > /kvfs/f").ok();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..4).for_each(|_| assert_eq!(exec(&store, &[], "cat /kvfs/f").ok(), "hi\n")));
        }
    });
    kvfs(&["check", &store]).ok();
}

#[test]
fn a_transaction_of_exec_happens_wholly_or_not_at_all() {
    if !is_served_here("a_transaction_of_exec_happens_wholly_or_not_at_all") {
        return;
    }
    let world = World::new();
    let store = world.text("store");
    let script = "echo 1 > /kvfs/a; mkdir /kvfs/d; $KVFS kv put k x y; ls /kvfs";
    assert_eq!(exec(&store, &["--create", "--txn"], script).ok(), "a\nd\n");
    let failing = exec(&store, &["--txn"], "rm -r /kvfs/a /kvfs/d; $KVFS kv put k x z; ls /kvfs; exit 3");
    assert_eq!((failing.code, &*failing.stdout), (Some(3), &b""[..]), "{}", failing.stderr);
    assert_eq!(exec(&store, &[], "ls /kvfs; $KVFS kv get k x").ok(), "a\nd\ny");
}

#[test]
fn transaction_of_exec_waits_for_what_its_command_leaves_behind() {
    if !is_served_here("transaction_of_exec_waits_for_what_its_command_leaves_behind") {
        return;
    }
    let world = World::new();
    let store = world.text("store");
    let script = "(while kill -0 $$; do sleep 0.05; done; sleep 0.5; echo late > /kvfs/f) 2> /dev/null &";
    exec(&store, &["--create", "--txn"], script).ok();
    assert_eq!(exec(&store, &[], "cat /kvfs/f").ok(), "late\n");
    let script = format!("{script} exit 3");
    assert_eq!(exec(&store, &["--txn"], &script.replace("late", "later")).code, Some(3));
    assert_eq!(exec(&store, &[], "cat /kvfs/f").ok(), "late\n");
}

#[test]
fn interrupt_sent_to_exec_alone_ends_its_command_and_drops_the_transaction() {
    if !is_served_here("interrupt_sent_to_exec_alone_ends_its_command_and_drops_the_transaction") {
        return;
    }
    let world = World::new();
    let (store, begun) = (world.text("store"), world.path("begun"));
    exec(&store, &["--create"], "true").ok();
    let script = format!("echo x > /kvfs/made; : > '{}'; exec sleep 600", begun.display());
    for options in [&[][..], &["--txn"]] {
        let mut command = Command::new(KVFS);
        command.args(["exec", "-s", &store]).args(options).args(["--", "sh", "-euc", &script]);
        let mut ran = command.env("KVFS_PRELOAD", library()).spawn().unwrap();
        wait_until("the command", || begun.exists());
        kill_process(Pid::from_child(&ran), Signal::INT).unwrap();
        assert_eq!(wait_exit(&mut ran).code(), Some(130));
        let left = if options.is_empty() { "made\n" } else { "" };
        assert_eq!(exec(&store, &[], "ls /kvfs; rm -f /kvfs/made").ok(), left);
        fs::remove_file(&begun).unwrap();
    }
}

/// The kernel's names and contents follow what comes beside it.
#[test]
fn programs_share_a_mounted_store_with_those_on_the_mount() {
    let test = "programs_share_a_mounted_store_with_those_on_the_mount";
    if !is_served_here(test) || !can_mount(test) {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    fs::write(format!("{dir}/f"), "one").unwrap();
    assert_eq!(exec(&dir, &[], "cat /kvfs/f; printf two > /kvfs/f; mv /kvfs/f /kvfs/g").ok(), "one");
    assert_eq!(fs::read_to_string(format!("{dir}/g")).unwrap(), "two");
    assert!(!Path::new(&dir).join("f").exists());
}

#[test]
fn ordinary_users_need_no_fuse_device() {
    let test = "ordinary_users_need_no_fuse_device";
    if !is_served_here(test) || !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let home = world.dir("home");
    give(&home);
    let library = world.path("libkvfs_preload.so");
    fs::copy(self::library(), &library).unwrap();
    // A namespace of its own hides the device.
    let script = "mount -t tmpfs -o mode=755 tmpfs /dev/shm && test ! -e /dev/shm/fuse && mount --bind /dev/null /dev/fuse; exec \"$@\"";
    let ran = run(Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "sh", "-c", script, "sh", "setpriv"])
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", KVFS, "exec", "--create", "-s"])
        .arg(format!("{home}/store"))
        .args(["--", "sh", "-euc", "cp -a /etc/passwd /kvfs/p; cmp /etc/passwd /kvfs/p; stat -c %U /kvfs/p"])
        .env("KVFS_PRELOAD", &library));
    assert_eq!(ran.ok(), "nobody\n");
}

#[test]
fn output_of_another_user_to_an_open_file_is_refused_and_not_lost() {
    let test = "output_of_another_user_to_an_open_file_is_refused_and_not_lost";
    if !is_served_here(test) || !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let store = world.text("store");
    let library = world.path("libkvfs_preload.so");
    fs::copy(self::library(), &library).unwrap();
    let script = "setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'cd /; echo hi' > /kvfs/log";
    let mut command = Command::new(KVFS);
    command.args(["exec", "--create", "-s", &store, "--", "sh", "-uc", script]);
    let ran = run(command.env("KVFS_PRELOAD", &library));
    assert!(ran.code.is_some_and(|code| code != 0) && !ran.stderr.contains("preload"), "{}", ran.stderr);
    assert!(ran.stderr.contains("I/O error"), "{}", ran.stderr);
    assert_eq!(exec(&store, &[], "cat /kvfs/log").ok(), "");
}
