//! What an open transaction, and a user of the mount, may take of the daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::world::{KVFS, World, can_mount, daemon_of, kvfs, mounts_below, run, wait_exit, wait_until};

const IN_USE: i32 = 3;
const CONFLICT: i32 = 75;
const USER: u32 = 65_533;

pub(super) fn begin(dir: &str, options: &[&str]) -> String {
    let all = [&["txn", "-s", dir, "begin"], options].concat();
    kvfs(&all).ok().lines().next().unwrap().to_owned()
}

pub(super) fn is_open(dir: &str, id: &str) -> bool {
    let list = kvfs(&["txn", "-s", dir, "list", "--json"]).ok();
    let list: Vec<serde_json::Value> = serde_json::from_str(&list).unwrap();
    list.iter().any(|line| line["id"].as_u64() == id.parse().ok())
}

#[test]
fn idle_transaction_is_aborted_by_its_timeout_and_its_owner_told() {
    if !can_mount("idle_transaction_is_aborted_by_its_timeout_and_its_owner_told") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let (short, long) = (begin(&dir, &["--idle-timeout", "200ms"]), begin(&dir, &[]));
    wait_until("the end of the idle one", || !is_open(&dir, &short));
    kvfs(&["txn", "-s", &dir, "commit", &short]).fails(CONFLICT, &["idle time-out: no operation for 0.2 s"]);
    kvfs(&["txn", "-s", &dir, "commit", &long]).ok();
    // A command that runs in one is ended with it, and told why.
    let run = ["txn", "-s", &dir, "run", "--idle-timeout", "200ms", "--", "sleep", "600"];
    kvfs(&run).fails(CONFLICT, &["idle time-out", "nothing happened"]);
}

#[test]
fn begin_that_cannot_print_its_number_leaves_no_transaction() {
    if !can_mount("begin_that_cannot_print_its_number_leaves_no_transaction") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let begun = Command::new(KVFS).args(["txn", "-s", &dir, "begin"]).stdout(full).status().unwrap();
    assert!(!begun.success());
    assert_eq!(kvfs(&["txn", "-s", &dir, "list", "--json"]).ok().trim(), "[]");
}

#[test]
fn umount_and_quota_on_name_the_owners_of_open_transactions_and_end_them_on_request() {
    let test = "umount_and_quota_on_name_the_owners_of_open_transactions_and_end_them_on_request";
    if !can_mount(test) {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let id = begin(&dir, &[]);
    let named = [&*id, "txn begin, pid", "uid", " old)", "--abort-open"];
    kvfs(&["umount", &dir]).fails(IN_USE, &named);
    kvfs(&["quota", "-s", &dir, "on"]).fails(IN_USE, &named);
    kvfs(&["quota", "-s", &dir, "on", "--abort-open"]).ok();
    kvfs(&["txn", "-s", &dir, "commit", &id])
        .fails(CONFLICT, &["aborted: quotas are being turned on with --abort-open"]);
    kvfs(&["quota", "-s", &dir, "off"]).ok();
    begin(&dir, &[]);
    kvfs(&["umount", "--abort-open", &dir]).ok();
}

#[test]
fn umount_of_a_mount_in_use_ends_no_transaction() {
    if !can_mount("umount_of_a_mount_in_use_ends_no_transaction") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    fs::create_dir(format!("{dir}/below")).unwrap();
    let below = format!("{dir}/below");
    let id = begin(&dir, &[]);
    let mut sleeper = Command::new("sleep").arg("1000").current_dir(&below).spawn().unwrap();
    let pid = format!("pid {}", sleeper.id());
    for how in ["--abort-open", "--checkpoint-open"] {
        kvfs(&["umount", how, &dir]).fails(IN_USE, &["in use", &pid]);
        assert!(is_open(&dir, &id) && kvfs(&["branch", "list", "-s", &dir, "--json"]).ok().trim() == "[]");
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", &below])).ok();
    kvfs(&["umount", "--abort-open", &dir]).fails(IN_USE, &["tmpfs is mounted on"]);
    assert!(is_open(&dir, &id));
    run(Command::new("umount").arg(&below)).ok();
    // A command in a transaction is where others see the mount, and ends with the transaction.
    let words = ["txn", "run", "--", "sh", "-c", "sleep 1000 & wait"];
    let mut within = Command::new(KVFS).args(words).current_dir(&below).spawn().unwrap();
    let open = || kvfs(&["txn", "list", "-s", &dir, "--json"]).ok();
    let count = || serde_json::from_str::<serde_json::Value>(&open()).unwrap().as_array().unwrap().len();
    wait_until("the run's transaction", || count() == 2);
    // The process above the command may leave the mount a moment later than the transaction ends.
    wait_until("the unmount", || kvfs(&["umount", "--abort-open", &dir]).code == Some(0));
    assert!(!wait_exit(&mut within).success());
}

/// Begins transactions by setxattr on the mount and follows the links to their views, as a user without any
/// right.
const FOLLOW: &str = "
import os, sys
root, count = sys.argv[1], int(sys.argv[2])
for n in range(count):
    os.setxattr(root, 'system.kvfs.txn.begin', b'label=l%d' % n)
seen = refused = 0
for name in sorted(os.listdir(root + '/.kvfs/txn'), key=int):
    try:
        os.stat(root + '/.kvfs/txn/' + name + '/')
        seen += 1
    except OSError:
        refused += 1
try:
    for n in range(2000):
        os.setxattr(root, 'system.kvfs.txn.begin', b'')
    print('never refused')
except OSError as error:
    print(seen, refused, error.errno)
";

#[test]
fn views_and_transactions_of_a_user_are_bounded() {
    if !can_mount("views_and_transactions_of_a_user_are_bounded") || !rustix::process::geteuid().is_root() {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    for path in [&store, &world.text("")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let status = |name: &str| {
        let pid = daemon_of(&store).as_raw_nonzero();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = (status("Threads:"), status("VmRSS:"));
    let out = Command::new("python3").args(["-c", FOLLOW, &dir, "200"]).uid(USER).gid(USER).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let numbers: Vec<u64> = said.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [_, _, errno] = numbers[..] else {
        panic!("{said} {}", String::from_utf8_lossy(&out.stderr));
    };
    // Whether that user gets into the store's directory is another matter.
    let views = mounts_below(Path::new(&store)).len();
    let (threads, resident) = (status("Threads:") - before.0, status("VmRSS:").saturating_sub(before.1));
    println!("{views} views; {threads} threads and {resident} KiB more");
    assert!(views > 0 && views <= 64, "{views}");
    assert_eq!(errno, 16, "EBUSY");
    assert!(threads <= 64 * 3 + 8, "{threads}");
    assert!(resident < 64 << 10, "{resident} KiB");
    // Others are not concerned.
    let id = begin(&dir, &[]);
    kvfs(&["txn", "-s", &dir, "commit", &id]).ok();
    kvfs(&["umount", "--abort-open", &dir]).ok();
}
