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
    kv(target, &["chown", "stranger", "tags"]).fails(2, &["stranger"]);
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

/// Ranges, whole keyspaces, and what goes out and comes in again.
fn in_bulk(target: &str) {
    for (key, value) in [("a/1", "1"), ("a/2", "2"), ("b", "3"), ("c", "4")] {
        kv(target, &["put", "bulk", key, value]).ok();
    }
    let exported = kv(target, &["export", "bulk"]).ok();
    assert_eq!(exported.lines().next(), Some("{\"key\":\"a/1\",\"value\":\"1\"}"));
    kv(target, &["delete-range", "bulk"]).fails(2, &["--prefix"]);
    kv(target, &["delete-range", "bulk", "--prefix", "a/"]).ok();
    assert_eq!(kv(target, &["scan", "bulk"]).ok(), "b\t3\nc\t4\n");
    kv(target, &["delete-range", "bulk", "--start", "b", "--end", "c"]).ok();
    assert_eq!(kv(target, &["scan", "bulk"]).ok(), "c\t4\n");
    kv(target, &["delete-range", "bulk", "--all"]).ok();
    assert_eq!(kv(target, &["scan", "bulk"]).ok(), "");

    let import = |text: &[u8]| {
        let mut child = Command::new(KVFS)
            .args(["kv", "import", "-s", target, "copy"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text).unwrap();
        let done = child.wait_with_output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    assert_eq!(import(exported.as_bytes()), (Some(0), "4 keys\n".to_owned()));
    assert_eq!(kv(target, &["export", "copy"]).ok(), exported);
    let (code, why) = import(b"{\"key\": \"new\", \"value\": \"1\"}\nnonsense\n");
    assert!(code == Some(2) && why.contains("line 2"), "{why}");
    kv(target, &["get", "copy", "new"]).fails(NOT_FOUND, &[]);
    // Whatever bytes they are.
    assert_eq!(
        import(b"{\"key\":\"?\",\"key_base64\":\"/wA=\",\"value\":\"x\",\"value_base64\":\"gA==\"}").0,
        Some(0)
    );
    let odd = kv(target, &["scan", "copy", "--reverse", "--limit", "1", "--json"]).ok();
    let odd: serde_json::Value = serde_json::from_str(&odd).unwrap();
    assert_eq!((&odd["key_base64"], &odd["value_base64"]), (&"/wA=".into(), &"gA==".into()));
    kv(target, &["drop", "copy"]).ok();
    kv(target, &["drop", "copy"]).fails(1, &["no keyspace"]);
    kv(target, &["drop", "bulk"]).ok();
    assert!(!keyspaces(target).iter().any(|(name, _)| name == "copy" || name == "bulk"));
}

/// The keys of a named snapshot.
fn of_a_snapshot(target: &str) {
    kv(target, &["put", "tags", "a", "then"]).ok();
    kvfs(&["snapshot", "-s", target, "create", "monday"]).ok();
    kv(target, &["put", "tags", "a", "now"]).ok();
    kv(target, &["put", "late", "a", "now"]).ok();
    let then = |args: &[&str]| kv(target, &[args, &["--snapshot", "monday"]].concat());
    assert_eq!(then(&["get", "tags", "a"]).ok(), "then");
    assert_eq!(then(&["scan", "tags", "--json"]).ok(), "{\"key\":\"a\",\"value\":\"then\"}\n");
    assert_eq!(then(&["export", "tags"]).ok(), "{\"key\":\"a\",\"value\":\"then\"}\n");
    assert_eq!(then(&["scan", "late"]).ok(), "");
    let names = then(&["keyspaces", "-n"]).ok();
    assert!(names.contains("tags") && !names.contains("late"), "{names}");
    then(&["put", "tags", "a", "1"]).fails(2, &["read-only"]);
    then(&["drop", "tags"]).fails(2, &["read-only"]);
    kv(target, &["get", "tags", "a", "--snapshot", "none"]).fails(1, &["no snapshot"]);
    kv(target, &["drop", "tags"]).ok();
    assert_eq!(then(&["get", "tags", "a"]).ok(), "then");
    kvfs(&["snapshot", "-s", target, "delete", "monday"]).ok();
    kv(target, &["drop", "late"]).ok();
}

#[test]
fn keys_in_bulk_and_of_a_snapshot_of_a_store_that_is_not_mounted() {
    let world = World::new();
    let store = world.store("store");
    in_bulk(&store);
    of_a_snapshot(&store);
    kvfs(&["check", &store]).ok();
}

#[test]
fn keys_in_bulk_and_of_a_snapshot_through_a_mount() {
    if !can_mount("keys_in_bulk_and_of_a_snapshot_through_a_mount") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    in_bulk(&dir);
    of_a_snapshot(&dir);
    kvfs(&["umount", &dir]).ok();
    kvfs(&["check", &store]).ok();
}
