//! `kvfs tier`: devices that come and go under a mount, and one that is missing.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::world::{KVFS, World, can_mount, daemon_of, kvfs, run, wait_until};

const IN_USE: i32 = 3;
const USAGE: i32 = 2;
const NO_SPACE: i32 = 6;
const FILES: u64 = 8;
const FILE_BYTES: usize = 4 << 20;

fn device(world: &World, name: &str, bytes: u64) -> String {
    File::create(world.path(name)).unwrap().set_len(bytes).unwrap();
    world.text(name)
}

fn content(file: u64) -> Vec<u8> {
    (0..FILE_BYTES as u64 / 8)
        .flat_map(|word| (word ^ (file << 32)).wrapping_mul(0x9e37).to_le_bytes())
        .collect()
}

#[track_caller]
fn expect_content(dir: &str) {
    for file in 0..FILES {
        assert!(fs::read(format!("{dir}/{file}")).unwrap() == content(file), "file {file}");
    }
}

fn list(target: &str) -> Vec<Value> {
    let lines: Value = serde_json::from_str(&kvfs(&["tier", "list", "--json", target]).ok()).unwrap();
    lines.as_array().unwrap().clone()
}

fn stored(target: &str, at: usize) -> u64 {
    list(target)[at]["stored_bytes"].as_u64().unwrap()
}

#[test]
fn file_gets_its_space_when_it_becomes_a_device_and_nothing_changes_without_room() {
    if !can_mount("file_gets_its_space_when_it_becomes_a_device_and_nothing_changes_without_room") {
        return;
    }
    let world = World::new();
    let (store, small) = (world.store("store"), world.dir("small"));
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64M", "tmpfs", &small])).ok();
    let (image, sparse) = (device(&world, "small/image", 0), device(&world, "small/sparse", 200 << 20));
    let space = |path: &str| fs::metadata(path).map(|file| (file.len(), file.blocks() * 512)).unwrap();
    let said = ["136 MiB are missing", "nothing was changed"];
    kvfs(&["tier", "add", &store, &format!("slow:{image},size=200M")]).fails(NO_SPACE, &said);
    kvfs(&["tier", "add", &store, &format!("slow:{sparse}")]).fails(NO_SPACE, &said);
    let slow = format!("slow:{image},size=200M");
    let fast = format!("fast:{},size=256M", device(&world, "fast", 0));
    let other = world.text("other");
    kvfs(&["mkfs", &other, "--device", &fast, "--device", &slow]).fails(NO_SPACE, &said);
    assert!(!Path::new(&other).exists());
    kvfs(&["tier", "add", &store, &format!("slow:{image}")]).fails(1, &["size=100G"]);
    assert_eq!((space(&image), space(&sparse)), ((0, 0), (200 << 20, 0)));
    assert_eq!((list(&store).len(), Path::new(&format!("{store}/device.1")).is_symlink()), (1, false));

    kvfs(&["tier", "add", &store, &format!("slow:{image},size=48M")]).ok();
    assert_eq!(space(&image), (48 << 20, 48 << 20));
    // A file with holes has none any more; one whose space is there already needs no more of it.
    File::options().write(true).open(&sparse).unwrap().set_len(12 << 20).unwrap();
    assert_eq!(kvfs(&["tier", "add", &store, &format!("slow:{sparse}")]).stderr, "");
    assert_eq!(space(&sparse), (12 << 20, 12 << 20));
    assert_eq!(list(&store).len(), 3);

    // All are drained, or none.
    kvfs(&["tier", "drain", &store, "1", "0"]).fails(USAGE, &["the first device"]);
    assert!(list(&store).iter().all(|line| line["drain"].is_null()));
    kvfs(&["tier", "drain", "--no-wait", &store, "1", "2"]).ok();
    assert!(list(&store).iter().skip(1).all(|line| line["drain"].is_object()));
    kvfs(&["tier", "remove", &store, "1", "2"]).ok();
    assert_eq!(list(&store).len(), 1);
}

#[test]
fn devices_come_and_go_under_a_mount_and_a_missing_slow_one_leaves_it_read_only() {
    if !can_mount("devices_come_and_go_under_a_mount_and_a_missing_slow_one_leaves_it_read_only") {
        return;
    }
    let world = World::new();
    let (fast, slow) = (device(&world, "fast", 0), device(&world, "slow", 512 << 20));
    let (store, dir) = (world.text("store"), world.dir("mnt"));
    let named = [format!("fast:{fast},size=256M"), format!("slow:{slow}")];
    kvfs(&["mkfs", &store, "--device", &named[0], "--device", &named[1]]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    for file in 0..FILES {
        fs::write(format!("{dir}/{file}"), content(file)).unwrap();
    }
    kvfs(&["sync", &dir]).ok();
    assert!(stored(&dir, 1) >= FILES * FILE_BYTES as u64 && stored(&dir, 0) < 8 << 20, "{:?}", list(&dir));

    // What wishes to be fast is.
    fs::create_dir(format!("{dir}/hot")).unwrap();
    kvfs(&["set", &format!("{dir}/hot"), "tier=fast"]).ok();
    fs::write(format!("{dir}/hot/file"), content(0)).unwrap();
    kvfs(&["sync", &dir]).ok();
    assert!(kvfs(&["get", &format!("{dir}/hot/file")]).ok().contains("\ntier=fast\n"));
    assert!(stored(&dir, 0) >= FILE_BYTES as u64, "{:?}", list(&dir));

    kvfs(&["tier", "placement", &dir, "sequential-to-slow"]).ok();
    assert!(kvfs(&["tier", "placement", &store]).ok().starts_with("placement=sequential-to-slow\n"));
    kvfs(&["tier", "placement", &dir, "hot"]).fails(USAGE, &["is no placement"]);
    // For this mount alone; another cache would need another mount.
    kvfs(&["mount", "-o", "remount,placement=hot-cold+endurance:20G", &store, &dir]).ok();
    let status = kvfs(&["tier", "status", &dir]).ok();
    assert!(
        status.contains("placement=hot-cold+endurance:20G\n") && status.contains("of 20.0 GiB a day"),
        "{status}"
    );
    kvfs(&["mount", "-o", "remount,cache=lru", &store, &dir]).fails(USAGE, &["unmount, and mount it again"]);
    kvfs(&["mount", "-o", "remount,cache=tiered", &store, &dir]).ok();

    // What has a setting of its own has another one now, all at once.
    fs::create_dir(format!("{dir}/hot/below")).unwrap();
    fs::write(format!("{dir}/hot/below/file"), "x").unwrap();
    let said = kvfs(&["set", "-R", &format!("{dir}/hot"), "tier=auto"]).ok();
    assert!(said.contains("changed 4 of 4 files and directories"), "{said}");
    for path in ["hot", "hot/file", "hot/below", "hot/below/file"] {
        assert!(kvfs(&["get", &format!("{dir}/{path}")]).ok().contains("tier=auto\n"), "{path}");
    }
    kvfs(&["set", "-R", &world.dir("elsewhere-set"), "tier=auto"]).fails(9, &["has no such property"]);
    // Only the view of a transaction is a part of it, whatever the environment says.
    let set =
        run(Command::new(KVFS).args(["set", "-R", &format!("{dir}/hot"), "tier=slow"]).env("KVFS_TXN", "7"));
    set.fails(USAGE, &["they don't nest"]);
    assert!(kvfs(&["get", &format!("{dir}/hot/file")]).ok().contains("tier=auto\n"));

    // Another one takes its place; the daemon is killed on the way, and what was begun goes on.
    let second = device(&world, "second", 0);
    kvfs(&["tier", "add", &dir, &format!("slow:{second},size=512M")]).ok();
    kvfs(&["tier", "add", &dir, &format!("slow:{second}")]).fails(IN_USE, &["in use"]);
    fs::write(format!("{dir}/on-itself"), vec![0; 64 << 20]).unwrap();
    kvfs(&["tier", "add", "--force", &dir, &format!("slow:{dir}/on-itself")]).fails(8, &["is mounted; give"]);
    fs::remove_file(format!("{dir}/on-itself")).unwrap();
    let third = world.text("third");
    kvfs(&["tier", "add", &dir, &format!("slow:{third},size=1G")]).fails(1, &["touch", "third"]);
    kvfs(&["tier", "add", &dir, &format!("slow:{third}")]).fails(1, &["truncate -s 100G"]);
    kvfs(&["grow", &dir, "64G"]).fails(USAGE, &["first device", "kvfs tier add"]);
    kvfs(&["tier", "drain", "--no-wait", &dir, &slow]).ok();
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    kvfs(&["mount", &store, &dir]).ok();
    assert!(
        kvfs(&["tier", "placement", &dir]).ok().starts_with("placement=sequential-to-slow\n"),
        "the store keeps it"
    );
    kvfs(&["tier", "placement", &dir, "static"]).ok();
    wait_until("the end of the drain", || list(&dir)[1]["empty"] == true);
    assert!(kvfs(&["tier", "status", &dir]).ok().contains("device 1: it is empty, and can be removed"));
    kvfs(&["tier", "remove", &dir, "1"]).ok();
    kvfs(&["tier", "remove", &dir, "0"]).fails(USAGE, &["the first device"]);
    assert!(list(&dir).len() == 2 && !Path::new(&format!("{store}/device.1")).is_symlink());
    expect_content(&dir);
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));

    fs::rename(&second, world.path("elsewhere")).unwrap();
    kvfs(&["kv", "put", "-s", &store, "tags", "song", "artist"]).fails(1, &["slow device 2", &second]);
    kvfs(&["mount", &store, &dir]).ok();
    let status = String::from_utf8(kvfs(&["status"]).stdout).unwrap();
    assert!(status.contains("the slow device 2 is missing"), "{status}");
    assert_eq!(fs::metadata(format!("{dir}/0")).unwrap().len(), FILE_BYTES as u64);
    assert!(fs::read(format!("{dir}/0")).is_err() && fs::write(format!("{dir}/new"), "x").is_err());
    kvfs(&["umount", &dir]).ok();

    fs::rename(world.path("elsewhere"), &second).unwrap();
    // Unmounted as well: everything comes back to the first device.
    kvfs(&["tier", "remove", &store, &second]).ok();
    assert_eq!(list(&store).len(), 1);
    kvfs(&["mount", &store, &dir]).ok();
    expect_content(&dir);
    kvfs(&["umount", &dir]).ok();
}
