//! Key-value data, on the store itself and through the daemon.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::world::{KVFS, World, can_mount, kvfs, run};

const NOT_FOUND: i32 = 1;

#[track_caller]
fn kv(target: &str, args: &[&str]) -> crate::world::Run {
    let mut words = vec!["kv", args[0], "-s", target];
    words.extend(&args[1..]);
    kvfs(&words)
}

/// Names and modes.
fn keyspaces(target: &str) -> Vec<(String, String)> {
    let all: serde_json::Value = serde_json::from_str(&kv(target, &["keyspaces", "--json"]).ok()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    all.as_array().unwrap().iter().map(|info| (text(&info["name"]), text(&info["mode"]))).collect()
}

/// The same on both ways to a store.
fn round_trip(target: &str) {
    assert_eq!(kv(target, &["keyspaces"]).ok(), "");
    kv(target, &["get", "tags", "a"]).fails(NOT_FOUND, &[]);
    kv(target, &["del", "tags", "a"]).fails(NOT_FOUND, &[]);
    for (key, value) in [("b", "2"), ("a", "1"), ("c/x", "drei"), ("c/y", "4")] {
        kv(target, &["put", "tags", key, value]).ok();
    }
    kv(target, &["put", "tags", "b", "zwei"]).ok();
    kv(target, &["put", "other", "a", "x"]).ok();
    assert_eq!(kv(target, &["get", "tags", "b"]).ok(), "zwei");
    assert_eq!(kv(target, &["scan", "tags"]).ok(), "a\t1\nb\tzwei\nc/x\tdrei\nc/y\t4\n");
    assert_eq!(kv(target, &["scan", "tags", "--prefix", "c/"]).ok(), "c/x\tdrei\nc/y\t4\n");
    assert_eq!(kv(target, &["scan", "tags", "--start", "b", "--end", "c/y"]).ok(), "b\tzwei\nc/x\tdrei\n");
    assert_eq!(kv(target, &["scan", "tags", "--reverse", "--limit", "2"]).ok(), "c/y\t4\nc/x\tdrei\n");
    assert_eq!(
        kv(target, &["scan", "tags", "--limit", "1", "--json"]).ok(),
        "{\"key\":\"a\",\"value\":\"1\"}\n"
    );
    assert_eq!(kv(target, &["scan", "nothing"]).ok(), "");
    kv(target, &["del", "tags", "b"]).ok();
    kv(target, &["get", "tags", "b"]).fails(NOT_FOUND, &[]);
    assert_eq!(keyspaces(target), [("other".into(), "0600".into()), ("tags".into(), "0600".into())]);
    kv(target, &["chmod", "640", "tags"]).ok();
    kv(target, &["chown", ":7", "tags"]).ok();
    assert_eq!(keyspaces(target)[1].1, "0640");
    assert!(kv(target, &["keyspaces"]).ok().contains("rw-r-----"));
    kv(target, &["chmod", "755", "tags"]).fails(2, &["755", "640"]);
    kv(target, &["chown", "somebody", "tags"]).fails(2, &["somebody"]);
    kv(target, &["chmod", "600", "nothing"]).fails(1, &["no keyspace"]);
    kv(target, &["chmod", "640", "meta"]).fails(2, &["belongs to the file system"]);
}

#[test]
fn keys_on_a_store_that_is_not_mounted() {
    let world = World::new();
    let store = world.store("store");
    round_trip(&store);
    kvfs(&["check", &store]).ok();
}

#[test]
fn keys_through_a_mount() {
    if !can_mount("keys_through_a_mount") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    round_trip(&dir);
    // The store's own path leads to the daemon, too, and so does the current directory.
    assert_eq!(kv(&store, &["get", "tags", "a"]).ok(), "1");
    fs::create_dir(format!("{dir}/below")).unwrap();
    let here = run(Command::new(KVFS).args(["kv", "get", "tags", "a"]).current_dir(format!("{dir}/below")));
    assert_eq!(here.ok(), "1");
    kvfs(&["umount", &dir]).ok();
    assert_eq!(kv(&store, &["get", "tags", "a"]).ok(), "1");
}

#[test]
fn scans_longer_than_a_page() {
    if !can_mount("scans_longer_than_a_page") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let count = 30;
    let value = "v".repeat(100_000);
    for number in 0..count {
        put_stdin(&dir, &format!("{number:04}"), value.as_bytes());
    }
    let forward = kv(&dir, &["scan", "big"]).ok();
    let keys: Vec<&str> = forward.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(keys, (0..count).map(|number| format!("{number:04}")).collect::<Vec<_>>());
    let back = kv(&dir, &["scan", "big", "--reverse"]).ok();
    assert!(back.lines().eq(forward.lines().rev()));
}

#[track_caller]
fn put_stdin(target: &str, key: &str, value: &[u8]) {
    assert!(try_put_stdin(target, key, value).status.success());
}

fn try_put_stdin(target: &str, key: &str, value: &[u8]) -> std::process::Output {
    let mut child = Command::new(KVFS)
        .args(["kv", "put", "-s", target, "big", key, "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses early does not read everything.
    let _ = child.stdin.take().unwrap().write_all(value);
    child.wait_with_output().unwrap()
}

#[test]
fn any_bytes_up_to_the_limit_are_values() {
    let world = World::new();
    let store = world.store("store");
    let value: Vec<u8> = (0..kvfs_store::VALUE_LEN_MAX).map(|at| (at * 7 / 3) as u8).collect();
    put_stdin(&store, "key", &value);
    assert_eq!(kv(&store, &["get", "big", "key"]).stdout, value);
    let refused = try_put_stdin(&store, "key", &vec![0; kvfs_store::VALUE_LEN_MAX + 1]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("exceeds the limit"));
    assert_eq!(kv(&store, &["get", "big", "key"]).stdout, value, "the old value stays");
}

#[test]
fn what_belongs_to_the_file_system_is_refused() {
    let world = World::new();
    let store = world.store("store");
    for keyspace in ["meta", "data", "xattr", "orphans"] {
        kv(&store, &["put", keyspace, "k", "v"]).fails(2, &["belongs to the file system"]);
        kv(&store, &["del", keyspace, "k"]).fails(2, &["belongs to the file system"]);
        kv(&store, &["scan", keyspace]).fails(2, &["belongs to the file system"]);
    }
    kv(&store, &["put", "tags", "", "v"]).fails(2, &["empty key"]);
    kv(&store, &["put", "tags", &"k".repeat(5000), "v"]).fails(2, &["5000", "4096"]);
    assert_eq!(kv(&store, &["scan", "tags"]).ok(), "");
    kvfs(&["check", &store]).ok();
}

#[test]
fn nowhere_is_not_mounted() {
    let world = World::new();
    let here = run(Command::new(KVFS).args(["kv", "keyspaces"]).current_dir(world.path("")));
    here.fails(9, &["not on a mounted kvfs store", "-s STORE"]);
}
