//! Names that the kernel knows, and that a commit changes while a request for them is on its way.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::world::{World, can_mount, kvfs, wait_until};

/// Whether a request waits, as far as the kernel tells.
fn waits(dir: &str) -> bool {
    let device = fs::metadata(dir).unwrap().dev();
    let connection = format!("/sys/fs/fuse/connections/{}/waiting", rustix::fs::minor(device));
    fs::read_to_string(connection).map_or(true, |waiting| waiting.trim() != "0")
}

#[test]
fn names_that_wait_for_a_commit_are_those_that_it_has_made() {
    if !can_mount("names_that_wait_for_a_commit_are_those_that_it_has_made") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let at = |name: &str| format!("{dir}/{name}");
    let mut committed = 0;
    for round in 0..20 {
        for name in ["x", "victim"] {
            fs::write(at(name), "old").unwrap();
        }
        let text = kvfs(&["txn", "begin", "-s", &dir]).ok();
        let (id, view) = text.trim().split_once('\n').unwrap();
        for name in ["x", "victim"] {
            fs::write(format!("{view}/new"), "new").unwrap();
            fs::rename(format!("{view}/new"), format!("{view}/{name}")).unwrap();
        }
        let is_committed = std::thread::scope(|scope| {
            let renamed = scope.spawn(|| fs::rename(at("x"), at("z")));
            let replaced = scope.spawn(|| fs::rename(at("victim"), at("y")));
            if round % 2 == 0 {
                wait_until("a request that waits", || waits(&dir));
            }
            // Late, it has given way to those that wait.
            let is_committed = kvfs(&["txn", "commit", "-s", &dir, id]).code == Some(0);
            renamed.join().unwrap().unwrap();
            replaced.join().unwrap().unwrap();
            is_committed
        });
        for name in ["z", "y"] {
            let expected = if is_committed { "new" } else { "old" };
            assert_eq!(fs::read_to_string(at(name)).unwrap(), expected, "round {round}: {name}");
            let mut file = fs::File::options().append(true).open(at(name)).unwrap();
            file.write_all(b"er").unwrap();
            drop(file);
            assert_eq!(fs::metadata(at(name)).unwrap().nlink(), 1, "round {round}: {name}");
        }
        assert!(!Path::new(&at("x")).exists());
        committed += u32::from(is_committed);
    }
    kvfs(&["umount", &dir]).ok();
    kvfs(&["mount", &world.text("store"), &dir]).ok();
    for name in ["z", "y"] {
        assert!(fs::read_to_string(at(name)).unwrap().ends_with("er"), "{name}");
    }
    eprintln!("{committed} commits of 20");
    kvfs(&["umount", &dir]).ok();
}
