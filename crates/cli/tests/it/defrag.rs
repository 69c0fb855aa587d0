//! `kvfs defrag`, of a mounted store and of one that is not.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::world::{KVFS, World, can_mount, fingerprint, kvfs, wait_exit, wait_until};

const PIECE: usize = 64 << 10;
const FILES: u8 = 48;
const PIECES: u64 = 40;

/// What a piece of a file holds after it was written so many times.
fn piece(file: u8, number: u64, times: u8) -> Vec<u8> {
    let mut bytes = vec![file ^ times.rotate_left(4); PIECE];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Files of which every second piece was overwritten, and every third file was deleted.
fn age(dir: &str) {
    for times in 0..2 {
        for file in 0..FILES {
            let open =
                fs::File::options().create(true).truncate(false).write(true).open(format!("{dir}/{file}"));
            let open = open.unwrap();
            for number in (0..PIECES).step_by(1 + usize::from(times)) {
                open.write_all_at(&piece(file, number, times), number * PIECE as u64).unwrap();
            }
        }
        kvfs(&["sync", dir]).ok();
    }
    for file in (0..FILES).step_by(3) {
        fs::remove_file(format!("{dir}/{file}")).unwrap();
    }
    kvfs(&["sync", dir]).ok();
}

#[track_caller]
fn expect_content(dir: &str) {
    for file in 0..FILES {
        let Ok(found) = fs::read(format!("{dir}/{file}")) else {
            assert_eq!(file % 3, 0, "file {file} is there");
            continue;
        };
        let expected = (0..PIECES).flat_map(|number| piece(file, number, u8::from(number % 2 == 0)));
        assert!(file % 3 != 0 && expected.eq(found), "content of file {file}");
    }
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&kvfs(args).ok()).unwrap()
}

/// Far fewer zones than the files had taken, whether a defragmentation or the merges beside it have given
/// them back.
#[track_caller]
fn expect_compact(done: &Value) {
    let after = |what: &str| done["after"][what].as_u64().expect("a number");
    assert!(after("zones_used") * 2 <= after("zones_needed") * 3, "{done}");
}

/// A defragmentation that takes minutes, once it has begun.
fn begin_slowly(store: &str, dir: &str) -> Child {
    let begun = || fs::read_to_string(format!("{store}/kvfs.log")).unwrap().matches("defragmenting").count();
    let before = begun();
    let child = Command::new(KVFS)
        .args(["defrag", "--policy", "rewrite", "--limit", "64K", dir])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    wait_until("a defragmentation", || begun() > before);
    child.unwrap()
}

#[test]
fn defrag_of_an_unmounted_store_gives_zones_back_and_keeps_content() {
    if !can_mount("defrag_of_an_unmounted_store_gives_zones_back_and_keeps_content") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    age(&dir);
    kvfs(&["umount", &dir]).ok();
    let before = fingerprint(&store);
    let plan = json(&["defrag", "--dry-run", "--json", &store]);
    assert!(kvfs(&["defrag", "--dry-run", &store]).ok().contains("zones would be free"), "{plan}");
    assert_eq!(fingerprint(&store), before, "a dry run changes nothing");
    assert!(plan["plan"]["zones"].as_u64() > Some(1), "{plan}");

    let done = json(&["defrag", "--json", &store]);
    println!("{plan}\n{done}");
    assert_eq!(done["complete"], true);
    expect_compact(&done);
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
    assert!(kvfs(&["defrag", "--policy", "rewrite", &store]).ok().contains("moved in"));
    kvfs(&["mount", &store, &dir]).ok();
    expect_content(&dir);
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn defrag_of_a_mounted_store_runs_once_at_a_time_and_ends_with_its_client_and_the_mount() {
    if !can_mount("defrag_of_a_mounted_store_runs_once_at_a_time_and_ends_with_its_client_and_the_mount") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    age(&dir);
    let mut first = begin_slowly(&store, &dir);
    kvfs(&["defrag", &dir]).fails(3, &["being defragmented already"]);
    assert!(kvfs(&["defrag", "--dry-run", &dir]).ok().contains("zones used"));
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    assert!(!wait_exit(&mut first).success());
    expect_content(&dir);
    let mut done = None;
    wait_until("the end of the first one", || {
        let run = kvfs(&["defrag", "--json", &dir]);
        if run.code != Some(3) {
            done = Some(run.ok());
        }
        done.is_some()
    });
    let done: Value = serde_json::from_str(&done.unwrap()).unwrap();
    println!("{done}");
    assert_eq!(done["complete"], true);
    expect_content(&dir);
    let stats = json(&["stats", "--json", &dir]);
    expect_compact(&done);
    assert_eq!(stats["zones.defrag_is_worth_it"], 0);

    let mut second = begin_slowly(&store, &dir);
    kvfs(&["umount", &dir]).ok();
    assert!(!wait_exit(&mut second).success());
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
    kvfs(&["mount", "-o", "ro", &store, &dir]).ok();
    expect_content(&dir);
    kvfs(&["defrag", "--dry-run", &dir]).ok();
    assert!(kvfs(&["defrag", &dir]).code != Some(0), "a mount for reading only can't");
    kvfs(&["umount", &dir]).ok();
}
