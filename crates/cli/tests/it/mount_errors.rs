//! What keeps a store from being mounted: each has its message and its exit code, and changes nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::world::{World, can_mount, daemon_of, daemons_of, fingerprint, is_mounted, kvfs, run};

const IN_USE: i32 = 3;
const MOUNT_POINT: i32 = 8;
const NOT_MOUNTED: i32 = 9;

#[test]
fn unfit_directories() {
    let world = World::new();
    let store = world.store("store");
    let before = fingerprint(&store);

    kvfs(&["mount", &store, &world.text("missing")])
        .fails(MOUNT_POINT, &["missing", "does not exist", "mkdir"]);
    fs::write(world.path("file"), "").unwrap();
    kvfs(&["mount", &store, &world.text("file")]).fails(MOUNT_POINT, &["not a directory"]);
    let full = world.dir("full");
    fs::write(world.path("full/letter"), "dear").unwrap();
    kvfs(&["mount", &store, &full]).fails(MOUNT_POINT, &["not empty", "-o nonempty"]);
    assert_eq!(fs::read_to_string(world.path("full/letter")).unwrap(), "dear");
    kvfs(&["mount", &store, "/proc"]).fails(MOUNT_POINT, &["mount point already", "proc"]);

    let inside = world.dir("store/inside");
    kvfs(&["mount", &store, &inside]).fails(MOUNT_POINT, &["inside each other"]);
    fs::remove_dir(inside).unwrap();
    kvfs(&["mount", "-o", "nonempty", &store, &store]).fails(MOUNT_POINT, &["inside each other"]);
    kvfs(&["mount", "-o", "nonempty", &store, &world.text("")]).fails(MOUNT_POINT, &["inside each other"]);

    assert_eq!(fingerprint(&store), before);
    assert!(daemons_of(Path::new(&store)).is_empty());
}

#[test]
fn a_device_below_the_mount_point() {
    let world = World::new();
    let (images, store) = (world.dir("images"), world.text("store"));
    fs::write(world.path("images/device"), "").unwrap();
    kvfs(&["mkfs", &store, "--device", &world.text("images/device"), "--size", "256M"]).ok();
    kvfs(&["mount", "-o", "nonempty", &store, &images]).fails(MOUNT_POINT, &["device", "inside each other"]);
}

#[test]
fn a_store_is_mounted_once() {
    if !can_mount("a_store_is_mounted_once") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    fs::write(format!("{dir}/file"), "hello").unwrap();
    let other = world.dir("other");
    kvfs(&["mount", &store, &other]).fails(IN_USE, &["mounted on", &dir]);
    kvfs(&["mount", &store, &dir]).fails(IN_USE, &["mounted on", &dir]);
    kvfs(&["mount", "--foreground", &store, &other]).fails(IN_USE, &["mounted on", &dir]);
    assert!(!is_mounted(&other));
    let second = world.store("second");
    kvfs(&["mount", &second, &dir]).fails(MOUNT_POINT, &["mount point already", &store]);
    assert_eq!(fs::read_to_string(format!("{dir}/file")).unwrap(), "hello");
    daemon_of(&store);
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn store_is_not_made_on_the_mount_of_another() {
    if !can_mount("store_is_not_made_on_the_mount_of_another") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let inside = format!("{dir}/inside");
    for path in [&dir, &inside] {
        kvfs(&["mkfs", path, "--size", "128M"]).fails(MOUNT_POINT, &[&store, "is mounted on", &dir]);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is left of it");
    }
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn a_store_that_another_command_works_on() {
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    let device = fs::File::open(world.path("store/device")).unwrap();
    rustix::fs::flock(&device, rustix::fs::FlockOperation::LockExclusive).unwrap();
    kvfs(&["mount", &store, &dir]).fails(IN_USE, &["in use"]);
    kvfs(&["kv", "put", "-s", &store, "a", "b", "c"]).fails(IN_USE, &["in use"]);
    kvfs(&["check", &store]).fails(IN_USE, &["in use"]);
}

#[test]
fn umount_refuses_what_is_not_a_mount_point() {
    let world = World::new();
    let dir = world.dir("plain");
    kvfs(&["umount", &dir]).fails(NOT_MOUNTED, &["not on a mounted kvfs store"]);
    kvfs(&["umount", &world.text("missing")]).fails(NOT_MOUNTED, &["not on a mounted kvfs store"]);
    if !can_mount("umount_refuses_what_is_not_a_mount_point") {
        return;
    }
    let (_, dir) = world.mounted();
    fs::create_dir(format!("{dir}/below")).unwrap();
    kvfs(&["umount", &format!("{dir}/below")]).fails(MOUNT_POINT, &["inside a mount", &dir]);
    let busy = fs::File::create(format!("{dir}/open")).unwrap();
    kvfs(&["umount", &dir]).fails(IN_USE, &["in use"]);
    assert!(is_mounted(&dir));
    drop(busy);
    kvfs(&["umount", &dir]).ok();
    kvfs(&["umount", &dir]).fails(NOT_MOUNTED, &[]);
}

#[test]
fn an_other_mount_point_is_covered_only_when_asked() {
    if !can_mount("an_other_mount_point_is_covered_only_when_asked") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", &dir])).ok();
    fs::write(format!("{dir}/below"), "kept").unwrap();
    kvfs(&["mount", &store, &dir]).fails(MOUNT_POINT, &["tmpfs", "nonempty"]);
    kvfs(&["mount", "-o", "nonempty", &store, &dir]).ok();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    kvfs(&["umount", &dir]).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/below")).unwrap(), "kept");
}
