//! Transactions by each of their entrances: the command, the key-value socket, calls on the mount.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kvfs_rpc::client::blocking::Store;
use kvfs_rpc::client::{BeginOptions, calls};

use super::limits::{begin, is_open};
use crate::world::{World, can_mount, kvfs, run, wait_until};

#[test]
fn idle_bound_of_every_entrance_ends_the_transaction() {
    if !can_mount("idle_bound_of_every_entrance_ends_the_transaction") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let options = |idle_ms: Option<u64>| BeginOptions {
        idle_max: idle_ms.map(Duration::from_millis),
        ..BeginOptions::default()
    };
    let mount = calls::Mount::open(Path::new(&dir)).unwrap();
    let mut store = Store::connect(Path::new(&dir)).unwrap();
    let mut by_socket = |idle: Option<u64>| {
        let begun = store.call(async |client| client.begin(options(idle)).await);
        begun.unwrap().to_string()
    };
    let by_call = |idle: Option<u64>| mount.begin(&options(idle)).unwrap().to_string();
    let bounded = [begin(&dir, &["--idle-timeout", "200ms"]), by_socket(Some(200)), by_call(Some(200))];
    let unbounded = [begin(&dir, &[]), by_socket(None), by_call(None)];
    for id in &bounded {
        wait_until("the end of the idle one", || !is_open(&dir, id));
    }
    for id in &unbounded {
        kvfs(&["txn", "-s", &dir, "commit", id]).ok();
    }
}

#[test]
fn lock_by_a_path_on_a_bind_mount_is_that_of_the_store() {
    if !can_mount("lock_by_a_path_on_a_bind_mount_is_that_of_the_store") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let bound = world.dir("bound");
    fs::create_dir_all(format!("{dir}/home/part")).unwrap();
    fs::write(format!("{dir}/home/part/file"), "text").unwrap();
    run(Command::new("mount").args(["--bind", &format!("{dir}/home/part"), &bound])).ok();
    let id = begin(&dir, &[]);
    kvfs(&["txn", "-s", &dir, "lock", "--shared", &id, &format!("{bound}/file")]).ok();
    let locks = kvfs(&["locks", "-s", &dir]).ok();
    assert!(locks.contains("home/part/file"), "{locks}");
    kvfs(&["txn", "-s", &dir, "lock", "--shared", &id, "/etc/passwd"])
        .fails(2, &["is not on a mount of the store"]);
    kvfs(&["txn", "-s", &dir, "abort", &id]).ok();
    run(Command::new("umount").arg(&bound)).ok();
}
