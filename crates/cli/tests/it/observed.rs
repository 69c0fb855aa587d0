//! What is told of the operations of a store.

use std::fs;

use serde_json::Value;

use crate::world::{World, can_mount, kvfs, wait_until};

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

#[test]
fn slow_operation_is_told_of_in_the_log_with_its_path() {
    if !can_mount("slow_operation_is_told_of_in_the_log_with_its_path") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    // Nothing is as fast as this.
    kvfs(&["mount", "-o", "slow=0.001ms", &store, &dir]).ok();
    fs::create_dir(format!("{dir}/below")).unwrap();
    fs::write(format!("{dir}/below/file"), "hello").unwrap();
    let told = || fs::read_to_string(format!("{store}/kvfs.log")).unwrap();
    let own = format!("pid={} ", std::process::id());
    let line = |kind: &str, path: &str| {
        let words = [&*format!("kind=\"{kind}\" path={path} "), &own, "slow operation"];
        told().lines().any(|line| words.iter().all(|word| line.contains(word)))
    };
    wait_until("the log tells of them", || line("mkdir", "/below") && line("write", "/below/file"));
    kvfs(&["umount", &dir]).ok();
    kvfs(&["mount", "-o", "slow=0", &store, &dir]).ok();
    let before = told().matches("slow operation").count();
    fs::write(format!("{dir}/below/file"), "again").unwrap();
    kvfs(&["umount", &dir]).ok();
    assert_eq!(told().matches("slow operation").count(), before);
}
