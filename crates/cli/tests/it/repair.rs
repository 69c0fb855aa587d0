//! `kvfs check --repair` as a user runs it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use kvfs_kvdb::format::SUPERBLOCK_ADDRS;
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{KVFS, World, can_mount, fingerprint, kvfs, wait_exit, wait_until};

const SECTOR: usize = 4096;
const USAGE: i32 = 2;
const IN_USE: i32 = 3;
const NOT_A_STORE: i32 = 4;
const DAMAGED: i32 = 5;
const REPAIRED: i32 = 11;
const IN_PART: i32 = 12;

/// A store with a key in each of two keyspaces, closed.
fn made(world: &World) -> String {
    let store = world.store("store");
    kvfs(&["kv", "put", "-s", &store, "tags", "song", "artist"]).ok();
    kvfs(&["kv", "put", "-s", &store, "notes", "note", "a note on something"]).ok();
    store
}

pub(crate) fn spoil(device: &Path, is_there: impl Fn(&[u8]) -> bool) {
    let mut bytes = fs::read(device).unwrap();
    let mut found = 0;
    for sector in bytes.chunks_mut(SECTOR).filter(|sector| is_there(sector)) {
        // Behind the header; a block of one record is short.
        sector[36..60].fill(0xa5);
        found += 1;
    }
    assert!(found > 0, "it is on the device");
    fs::write(device, bytes).unwrap();
}

pub(crate) fn holds(sector: &[u8], words: &[u8]) -> bool {
    sector.windows(words.len()).any(|window| window == words)
}

#[test]
fn a_sound_store_is_clean_and_a_damaged_superblock_is_written_anew() {
    let world = World::new();
    let store = made(&world);
    assert_eq!(kvfs(&["check", "--repair", &store]).ok(), "clean: nothing to repair\n");
    let device = world.path("store/device");
    let mut bytes = fs::read(&device).unwrap();
    bytes[SUPERBLOCK_ADDRS[0] as usize + 100] ^= 1;
    fs::write(&device, bytes).unwrap();
    let before = fingerprint(&store);
    let dry = kvfs(&["check", "--repair", "--dry-run", "--json", &store]);
    assert_eq!(dry.code, Some(REPAIRED), "{dry:?}");
    let json: serde_json::Value = serde_json::from_slice(&dry.stdout).unwrap();
    assert_eq!(
        (&json["clean"], &json["dry_run"], &json["lost"]),
        (&false.into(), &true.into(), &serde_json::json!([]))
    );
    assert_eq!(fingerprint(&store), before, "nothing was written");
    let repaired = kvfs(&["check", "--repair", &store]);
    assert_eq!(repaired.code, Some(REPAIRED), "{repaired:?}");
    assert_eq!(kvfs(&["check", "--repair", &store]).ok(), "clean: nothing to repair\n");
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "tags", "song"]).ok(), "artist");
}

#[test]
fn a_name_of_a_device_that_the_store_does_not_need_keeps_it_from_no_repair() {
    let world = World::new();
    let store = made(&world);
    symlink("/nothing/is/here.img", world.path("store/device.1")).unwrap();
    fs::write(world.path("other.img"), vec![0; 2 << 20]).unwrap();
    symlink(world.path("other.img"), world.path("store/device.2")).unwrap();
    let copy = world.text("copy");
    for way in [&["--repair", "--dry-run"][..], &["--repair"], &["--repair", "--copy-to", &copy]] {
        let args = [&["check"][..], way, &[&store]].concat();
        assert!(kvfs(&args).ok().starts_with("clean"), "{way:?}");
    }
    assert_eq!(kvfs(&["kv", "get", "-s", &copy, "tags", "song"]).ok(), "artist");
}

#[test]
fn store_of_more_zones_than_there_are_numbers_is_refused_by_its_size() {
    let world = World::new();
    let store = world.text("huge");
    kvfs(&["mkfs", "--size", "64P", &store]).fails(USAGE, &["at most"]);
    assert!(!world.path("huge").exists());
}

#[test]
fn what_is_lost_is_listed_and_the_rest_is_there_in_a_copy_and_in_place() {
    let world = World::new();
    let store = made(&world);
    let device = world.path("store/device");
    // The block of one keyspace, but not what the journal remembers.
    spoil(&device, |sector| sector.starts_with(b"KVtb") && holds(sector, b"artist"));
    let before = fingerprint(&store);
    let copy = world.text("copy");
    let repaired = kvfs(&["check", "--repair", "--copy-to", &copy, &store]);
    assert_eq!(repaired.code, Some(IN_PART), "{repaired:?}");
    let said = String::from_utf8_lossy(&repaired.stdout);
    assert!(said.contains("lost: keyspace tags: up to 1 keys from song to song are lost"), "{said}");
    assert_eq!(fingerprint(&store), before, "the damaged store is as it was");
    kvfs(&["check", &copy]).ok();
    assert_eq!(kvfs(&["kv", "get", "-s", &copy, "notes", "note"]).ok(), "a note on something");
    kvfs(&["check", "--repair", "--copy-to", &copy, &store]).fails(IN_USE, &["already holds a store"]);

    kvfs(&["check", &store]).fails(DAMAGED, &[]);
    assert_eq!(kvfs(&["check", "--repair", &store]).code, Some(IN_PART));
    kvfs(&["check", &store]).ok();
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "tags", "song"]).code, Some(1), "it is gone");
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "notes", "note"]).ok(), "a note on something");
    kvfs(&["kv", "put", "-s", &store, "tags", "song", "again"]).ok();
}

#[test]
fn snapshots_that_have_lost_something_are_other_ones_for_streams_and_repositories() {
    let world = World::new();
    let sound = world.store("sound");
    let put =
        |key: &str| drop(kvfs(&["kv", "put", "-s", &sound, "users", key, &format!("name of {key}")]).ok());
    let (monday, tuesday) = (world.text("monday.kvfs"), world.text("tuesday.kvfs"));
    put("alice");
    kvfs(&["snapshot", "create", "-s", &sound, "monday"]).ok();
    put("dave");
    kvfs(&["snapshot", "create", "-s", &sound, "tuesday"]).ok();
    fs::write(&monday, kvfs(&["snapshot", "send", "-s", &sound, "monday"]).stdout).unwrap();
    fs::write(&tuesday, kvfs(&["snapshot", "send", "-s", &sound, "--from", "monday", "tuesday"]).stdout)
        .unwrap();
    let replica = world.store("replica");
    kvfs(&["snapshot", "receive", "-s", &replica, &monday]).ok();
    spoil(&world.path("replica/device"), |sector| {
        sector.starts_with(b"KVtb") && holds(sector, b"name of alice")
    });
    let repaired = kvfs(&["check", "--repair", &replica]);
    assert_eq!(repaired.code, Some(IN_PART), "{repaired:?}");
    let said = String::from_utf8_lossy(&repaired.stdout);
    assert!(
        said.contains("missing in monday, too; other stores and repositories know them no more"),
        "{said}"
    );
    let refused = kvfs(&["snapshot", "receive", "-s", &replica, &tuesday]);
    assert_ne!(refused.code, Some(0), "it would go on from a gap");
    assert!(refused.stderr.contains("monday"), "{}", refused.stderr);
    let forced = kvfs(&["snapshot", "receive", "-s", &replica, "--rollback", &tuesday]);
    assert_ne!(forced.code, Some(0), "{}", forced.stderr);

    let repository = world.text("repository");
    kvfs(&["repository", "create", &repository]).ok();
    kvfs(&["snapshot", "push", "-s", &replica, "monday", &repository]).ok();
    let pushed = kvfs(&["snapshot", "push", "-s", &sound, "monday", &repository]).ok();
    assert!(!pushed.contains("already"), "{pushed}");
}

#[test]
fn copy_for_a_repair_that_is_cut_off_is_no_store_and_one_that_is_interrupted_is_gone() {
    let world = World::new();
    let store = made(&world);
    // Holes take long to be read, and no space.
    let device = fs::File::options().write(true).open(world.path("store/device")).unwrap();
    device.set_len(256 << 30).unwrap();
    let copy = world.text("copy");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let args = ["check", "--repair", "--copy-to", &copy, &store];
        let mut child = Command::new(KVFS).args(args).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the device of the copy", || world.path("copy/device").exists());
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(!wait_exit(&mut child).success());
        assert_eq!(Path::new(&copy).exists(), signal == Signal::KILL);
    }
    kvfs(&["check", &copy]).fails(NOT_A_STORE, &["unfinished copy", "remove it"]);
    fs::remove_dir_all(&copy).unwrap();
}

#[test]
fn the_zones_are_a_picture() {
    let world = World::new();
    let store = made(&world);
    let picture = kvfs(&["stats", "--zones", &store]).ok();
    assert!(picture.lines().next().is_some_and(|line| line.trim_start().starts_with("0  SJJ")), "{picture}");
    assert!(picture.contains("M manifest") && picture.contains("data.dead_bytes"), "{picture}");
    let json: serde_json::Value =
        serde_json::from_str(&kvfs(&["stats", "--zones", "--json", &store]).ok()).unwrap();
    assert_eq!(json["zones"][0]["use"], "superblocks");
    assert_eq!(json["zones"].as_array().unwrap().len() as u64, json["zones.present"].as_u64().unwrap());
}

/// Damages each tuple block that holds `words`, but not what the journal remembers of them.
fn spoil_block_with(device: &Path, words: &[u8]) {
    let mut bytes = fs::read(device).unwrap();
    let (mut end, mut found) = (0, 0);
    for (at, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        if sector.starts_with(b"KVtb") {
            let len = u32::from_le_bytes(sector[8..12].try_into().unwrap()) as usize;
            end = at + len.div_ceil(SECTOR);
        }
        if at < end && holds(sector, words) {
            sector[100..130].fill(0xa5);
            found += 1;
        }
    }
    assert!(found > 0, "it is on the device");
    fs::write(device, bytes).unwrap();
}

/// A block of a file that can be found again on the device.
fn marked(block: u64) -> Vec<u8> {
    format!("block {block:04} of big; ").into_bytes().into_iter().cycle().take(SECTOR).collect()
}

#[test]
fn check_goes_on_behind_each_damaged_block_and_names_paths_and_a_repair_counts_each_loss_once() {
    if !can_mount("check_goes_on_behind_each_damaged_block") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    fs::create_dir(format!("{dir}/dir")).unwrap();
    let big: Vec<u8> = (0..64).flat_map(marked).collect();
    fs::write(format!("{dir}/dir/big"), &big).unwrap();
    fs::write(format!("{dir}/dir/whole"), "whole").unwrap();
    let row = |number: u32| format!("row-{number:04}");
    for number in 0..600 {
        fs::write(format!("{dir}/dir/{}", row(number)), format!("content of {}; ", row(number)).repeat(40))
            .unwrap();
    }
    kvfs(&["kv", "put", "-s", &dir, "tags", "song", "artist"]).ok();
    kvfs(&["kv", "put", "-s", &dir, "notes", "note", "a note on something"]).ok();
    kvfs(&["umount", &dir]).ok();
    let device = world.path("store/device");
    for block in [7, 8, 21] {
        spoil(&device, |sector| sector == marked(block));
    }
    for number in [100, 500] {
        spoil_block_with(&device, format!("content of {}", row(number)).as_bytes());
    }
    spoil(&device, |sector| sector.starts_with(b"KVtb") && holds(sector, b"artist"));

    let check = |target: &str| {
        let checked = kvfs(&["check", "--json", target]);
        assert_eq!(checked.code, Some(DAMAGED), "{checked:?}");
        let json: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
        let of = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap().to_owned();
        let findings = json["findings"].as_array().unwrap().iter();
        let told: Vec<String> =
            findings.map(|finding| format!("{}: {}", of(finding, "place"), of(finding, "detail"))).collect();
        assert!(json["checked"]["files"].as_u64().unwrap() > 400, "it went on: {json}");
        told
    };
    let told = check(&store);
    let expected = |line: &str| told.iter().any(|told| told == line);
    assert!(expected("/dir/big: bytes 28672-36864 can't be read"), "{told:#?}");
    assert!(expected("/dir/big: bytes 86016-90112 can't be read"), "{told:#?}");
    assert!(expected("keyspace tags: up to 1 keys from song to song can't be read"), "{told:#?}");
    let names: Vec<_> = told.iter().filter(|line| line.starts_with("between /dir/row-")).collect();
    assert_eq!(names.len(), 2, "{told:#?}");
    assert!(
        names.iter().all(|line| line.ends_with("names (or rows of directories) can't be read")),
        "{told:#?}"
    );
    // What only follows from it is not told.
    assert!(!told.iter().any(|line| line.contains("it counts") || line.contains("owns it")), "{told:#?}");
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(check(&dir), told, "the same while it is mounted");
    kvfs(&["check", "--repair", &store]).fails(IN_USE, &[&format!("is mounted on {dir}; unmount it first")]);
    kvfs(&["umount", &dir]).ok();

    let repaired = kvfs(&["check", "--repair", &store]);
    assert_eq!(repaired.code, Some(IN_PART), "{repaired:?}");
    let said = String::from_utf8_lossy(&repaired.stdout);
    let lost: Vec<&str> = said.lines().filter(|line| line.starts_with("lost: ")).collect();
    let once = |words: &str| lost.iter().filter(|line| line.contains(words)).count() == 1;
    assert!(once("/dir/big: bytes 28672-36864, 86016-90112 of the file"), "{said}");
    assert!(once("keyspace tags: up to 1 keys"), "{said}");
    assert_eq!(lost.len(), 4, "{said}");
    assert!(said.contains(", 4 lost"), "{said}");
    kvfs(&["check", &store]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    let read = fs::read(format!("{dir}/dir/big")).unwrap();
    let good = |block: usize| read[block * SECTOR..][..SECTOR] == big[block * SECTOR..][..SECTOR];
    assert!((0..64).all(|block| good(block) != [7, 8, 21].contains(&block)));
    assert_eq!(fs::read(format!("{dir}/dir/whole")).unwrap(), b"whole");
    kvfs(&["umount", &dir]).ok();
}
