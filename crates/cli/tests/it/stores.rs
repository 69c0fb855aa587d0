//! Making stores, and what is said of stores that can't be opened. Nothing is ever lost.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use kvfs_kvdb::format::{SUPERBLOCK_ADDRS, SUPERBLOCK_BYTES, Superblock};
use rustix::process::{Signal, kill_process};

use crate::world::{World, can_mount, daemon_of, fingerprint, kvfs, run};

const IN_USE: i32 = 3;
const NOT_A_STORE: i32 = 4;
const DAMAGED: i32 = 5;
const NO_SPACE: i32 = 6;

#[track_caller]
fn put(store: &str) {
    kvfs(&["kv", "put", "-s", store, "tags", "song", "artist"]).ok();
}

#[track_caller]
fn still_there(store: &str) {
    assert_eq!(kvfs(&["kv", "get", "-s", store, "tags", "song"]).ok(), "artist");
    assert!(kvfs(&["check", store]).ok().starts_with("clean"));
}

#[test]
fn a_store_is_made_once() {
    let world = World::new();
    let store = world.store("store");
    put(&store);
    let before = fingerprint(&store);
    kvfs(&["mkfs", &store]).fails(IN_USE, &["already holds a store"]);
    assert_eq!(fingerprint(&store), before);
    still_there(&store);
}

#[test]
fn of_two_mkfs_at_once_one_makes_the_store() {
    let world = World::new();
    for round in 0..8 {
        let store = world.text(&format!("store-{round}"));
        let mkfs = || kvfs(&["mkfs", &store, "--size", "128M"]).code == Some(0);
        let both = std::thread::scope(|scope| {
            let one = scope.spawn(mkfs);
            [mkfs(), one.join().unwrap()]
        });
        assert_eq!(both.iter().filter(|made| **made).count(), 1, "round {round}: {both:?}");
        kvfs(&["check", &store]).ok();
    }
}

#[test]
fn mkfs_keeps_what_it_finds() {
    let world = World::new();
    let full = world.dir("full");
    fs::write(world.path("full/letter"), "dear").unwrap();
    kvfs(&["mkfs", &full]).fails(IN_USE, &["not empty"]);
    assert_eq!(fs::read_dir(&full).unwrap().count(), 1);

    fs::write(world.path("image"), vec![7; 1 << 20]).unwrap();
    let (image, store) = (world.text("image"), world.text("store"));
    kvfs(&["mkfs", &store, "--device", &image, "--size", "256M"]).fails(IN_USE, &["--force"]);
    assert!(!Path::new(&store).exists(), "nothing is left behind");
    assert_eq!(fs::read(&image).unwrap(), vec![7; 1 << 20]);
    kvfs(&["mkfs", &store, "--device", &image, "--size", "256M", "--force"]).ok();
    put(&store);
    still_there(&store);
    assert!(fs::symlink_metadata(world.path("store/device")).unwrap().is_symlink());
}

#[test]
fn mkfs_on_a_file_with_contents_keeps_and_names_them() {
    let world = World::new();
    let (image, store) = (world.text("image"), world.text("store"));
    let mut ext4 = vec![0; 128 << 10];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let mut late = vec![0; 1 << 20];
    late.push(b'x');
    let cases: [(&[u8], &str); 7] = [
        (b"x", "data"),
        (b"Dear diary, nothing of this is longer than 4 KiB.", "data"),
        (&[0; 100], "data"),
        (b"#!/bin/sh\nexit\n", "script"),
        (b"\x1f\x8b\x08 and so on", "gzip"),
        (&ext4, "ext4"),
        (&late, "data"),
    ];
    for (contents, name) in cases {
        fs::write(&image, contents).unwrap();
        kvfs(&["mkfs", &store, "--device", &image, "--size", "256M"])
            .fails(IN_USE, &[name, "--force", &image]);
        assert_eq!(fs::read(&image).unwrap(), contents);
        assert!(!Path::new(&store).exists(), "nothing is left behind");
    }
    let other = world.store("other");
    let device = format!("{other}/device");
    kvfs(&["mkfs", &store, "--device", &device, "--size", "256M"])
        .fails(IN_USE, &["a kvfs store", "--force"]);
    assert!(kvfs(&["check", &other]).ok().starts_with("clean"));
    // Room that was reserved and never written holds nothing.
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    kvfs(&["mkfs", &store, "--device", &image, "--size", "256M"]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn mkfs_refuses_what_makes_no_sense() {
    let world = World::new();
    let store = world.text("store");
    kvfs(&["mkfs", &store, "--size", "1M"]).fails(NO_SPACE, &["at least"]);
    kvfs(&["mkfs", &store, "--size", "256M", "--inline", "1M"]).fails(2, &["--inline", "64"]);
    kvfs(&["mkfs", &store, "--device", "/nowhere/at/all"]).fails(1, &["/nowhere/at/all"]);
    kvfs(&["mkfs", &world.text("no/such/parent")]).fails(1, &["no/such/parent"]);
    assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 0);
}

#[test]
fn no_space_for_a_store_leaves_nothing_behind() {
    if !can_mount("no_space_for_a_store_leaves_nothing_behind") {
        return;
    }
    let world = World::new();
    let small = world.dir("small");
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=2M", "tmpfs", &small])).ok();
    kvfs(&["mkfs", &format!("{small}/store"), "--size", "1G"]).fails(NO_SPACE, &["space"]);
    assert_eq!(fs::read_dir(&small).unwrap().count(), 0);
    // What is free there is too little for a store.
    kvfs(&["mkfs", &format!("{small}/store")]).fails(NO_SPACE, &["at least"]);
    assert_eq!(fs::read_dir(&small).unwrap().count(), 0);
}

#[test]
fn what_is_not_a_store_is_told_apart() {
    let world = World::new();
    let target = world.dir("mnt");
    let missing = world.text("missing");
    kvfs(&["mount", &missing, &target]).fails(NOT_A_STORE, &["no store", "kvfs mkfs"]);
    kvfs(&["check", &missing]).fails(NOT_A_STORE, &["no store"]);
    let junk = world.dir("junk");
    kvfs(&["mount", &junk, &target]).fails(NOT_A_STORE, &["not a kvfs store"]);
    fs::write(world.path("junk/device"), vec![0; 1 << 20]).unwrap();
    kvfs(&["mount", &junk, &target]).fails(NOT_A_STORE, &["not a kvfs store"]);
    kvfs(&["check", &junk]).fails(NOT_A_STORE, &["not a kvfs store"]);
    assert_eq!(fs::read(world.path("junk/device")).unwrap(), vec![0; 1 << 20]);
    fs::write(world.path("junk/device"), vec![7; 1 << 20]).unwrap();
    kvfs(&["mount", &junk, &target]).fails(DAMAGED, &["superblock", "overwritten"]);
    kvfs(&["check", &junk]).fails(DAMAGED, &["superblock", "overwritten"]);
    assert_eq!(fs::read(world.path("junk/device")).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn damaged_superblocks_and_other_versions_lose_nothing() {
    let world = World::new();
    let store = world.store("store");
    put(&store);
    let device = File::options().read(true).write(true).open(world.path("store/device")).unwrap();
    let mut slots = [[0; SUPERBLOCK_BYTES]; 2];
    for (slot, addr) in slots.iter_mut().zip(SUPERBLOCK_ADDRS) {
        device.read_exact_at(slot, addr).unwrap();
    }
    let write = |slots: &[[u8; SUPERBLOCK_BYTES]; 2]| {
        for (slot, addr) in slots.iter().zip(SUPERBLOCK_ADDRS) {
            device.write_all_at(slot, addr).unwrap();
        }
    };

    let damage = |slot: [u8; SUPERBLOCK_BYTES]| {
        let mut damaged = slot;
        damaged[100] ^= 1;
        damaged
    };
    write(&slots.map(damage));
    let before = fingerprint(&store);
    let target = world.dir("mnt");
    kvfs(&["mount", &store, &target]).fails(DAMAGED, &["superblock", &store]);
    kvfs(&["check", &store]).fails(DAMAGED, &["superblock"]);
    kvfs(&["kv", "put", "-s", &store, "a", "b", "c"]).fails(DAMAGED, &["superblock"]);
    assert_eq!(fingerprint(&store), before);

    let newer = slots.map(|slot| {
        let mut superblock = Superblock::decode(&slot).unwrap();
        superblock.format_version = kvfs_kvdb::FORMAT_VERSION + 1;
        superblock.encode()
    });
    write(&newer);
    let before = fingerprint(&store);
    kvfs(&["mount", &store, &target]).fails(NOT_A_STORE, &["version", &store]);
    kvfs(&["check", &store]).fails(NOT_A_STORE, &["version"]);
    assert_eq!(fingerprint(&store), before);

    // One of the two is enough.
    write(&[slots[0], damage(slots[1])]);
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "tags", "song"]).ok(), "artist");
    write(&[damage(slots[0]), slots[1]]);
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "tags", "song"]).ok(), "artist");
    write(&slots);
    still_there(&store);
}

#[test]
fn check_and_other_readers_change_nothing() {
    let world = World::new();
    let store = world.store("store");
    put(&store);
    let before = fingerprint(&store);
    still_there(&store);
    let json: serde_json::Value = serde_json::from_str(&kvfs(&["check", "--json", &store]).ok()).unwrap();
    assert_eq!(json["clean"], true);
    assert_eq!(json["findings"], serde_json::json!([]));
    assert_eq!(json["checked"]["directories"], 1);
    kvfs(&["kv", "scan", "-s", &store, "tags"]).ok();
    kvfs(&["stats", &store]).ok();
    assert_eq!(fingerprint(&store), before);
}

#[test]
fn check_finds_flipped_bits() {
    let world = World::new();
    let store = world.store("store");
    // Values that can be found again on the device.
    let value = "hallo welt ".repeat(4000);
    for key in 0..8 {
        kvfs(&["kv", "put", "-s", &store, "tags", &format!("key{key}"), &value]).ok();
    }
    let mut bytes = fs::read(world.path("store/device")).unwrap();
    // Behind the journal lies what was written when the command closed the store.
    let needle = b"hallo welt hallo welt hallo welt ";
    let at = bytes.windows(needle.len()).rposition(|window| window == needle).expect("is on the device");
    bytes[at] ^= 1;
    fs::write(world.path("store/device"), bytes).unwrap();
    let checked = kvfs(&["check", &store]);
    assert_eq!(checked.code, Some(DAMAGED), "{}", checked.stderr);
    assert!(String::from_utf8_lossy(&checked.stdout).contains("damaged: "), "{checked:?}");
}

#[test]
fn the_inline_threshold_is_changed_on_a_live_store_and_on_one_that_is_not_mounted() {
    let test = "the_inline_threshold_is_changed_on_a_live_store_and_on_one_that_is_not_mounted";
    if !can_mount(test) {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    assert_eq!(kvfs(&["get", "--inline", "-s", &store]).ok(), "inline=4096\n");
    kvfs(&["set", "--inline", "0", "-s", &store]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(kvfs(&["get", "--inline", "-s", &dir]).ok(), "inline=0\n");
    kvfs(&["set", "--inline", "16K", "-s", &dir]).ok();
    kvfs(&["set", "--inline", "65K", "-s", &dir]).fails(2, &["at most 64 KiB"]);
    kvfs(&["set", "--inline", "8K", "-s", &store, &dir]).fails(2, &["--inline"]);
    fs::write(format!("{dir}/small"), [7; 10_000]).unwrap();
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(kvfs(&["get", "--inline", "-s", &dir]).ok(), "inline=16384\n");
    kvfs(&["umount", &dir]).ok();
    kvfs(&["mount", "-o", "ro", &store, &dir]).ok();
    kvfs(&["set", "--inline", "4K", "-s", &dir]).fails(1, &["read-only"]);
    kvfs(&["umount", &dir]).ok();
    kvfs(&["check", &store]).ok();
}
