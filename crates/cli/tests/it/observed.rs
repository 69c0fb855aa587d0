//! What is told of the operations of a store.

use std::fs;

use serde_json::Value;

use crate::world::{World, can_mount, kvfs};

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&kvfs(args).ok()).unwrap()
}

#[test]
fn operations_of_a_mount_are_counted_by_kind_and_told_in_all_forms() {
    if !can_mount("operations_of_a_mount_are_counted_by_kind_and_told_in_all_forms") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    fs::write(format!("{dir}/file"), "hello").unwrap();
    fs::remove_file(format!("{dir}/file")).unwrap();
    fs::remove_dir(format!("{dir}/none")).unwrap_err();
    kvfs(&["kv", "put", "-s", &dir, "tags", "key", "value"]).ok();
    kvfs(&["txn", "run", "-q", "-s", &dir, "--", "touch", "made"]).ok();
    let stats = json(&["stats", "--json", &dir]);
    let get = |name: &str| stats[format!("operations.{name}")].as_u64().unwrap_or_default();
    // Another process may have looked at the mount, but none has changed anything.
    assert_eq!((get("write.count"), get("write.bytes"), get("write.errors")), (1, 5, 0), "{stats}");
    assert_eq!((get("unlink.count"), get("kv_write.count"), get("commit.count")), (1, 1, 1), "{stats}");
    assert!(get("lookup.count") >= 2 && get("write.p50_ns") <= get("write.max_ns"), "{stats}");
    assert!(get("write.max_ns") > 0 && get("write.sum_ns") == get("write.max_ns"), "{stats}");
    let told = kvfs(&["stats", &dir]).ok();
    let row = told.lines().find(|line| line.starts_with("unlink ")).unwrap();
    assert_eq!(row.split_whitespace().nth(1), Some("1"), "{told}");
    let read = |name: &str| fs::read_to_string(format!("{dir}/.kvfs/stats/{name}")).unwrap();
    assert!(read("stats.txt").lines().any(|line| line.starts_with("unlink ")));
    assert!(serde_json::from_str::<Value>(&read("stats.json")).unwrap()["operations.unlink.count"] == 1);
    let count = "kvfs_operation_duration_seconds_count{kind=\"unlink\"} 1";
    assert!(read("stats.prom").lines().any(|line| line == count), "{}", read("stats.prom"));
    kvfs(&["umount", &dir]).ok();
}
