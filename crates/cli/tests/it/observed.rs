//! What is told of the operations of a store.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::Value;

use crate::world::{KVFS, World, can_mount, kvfs, wait_exit, wait_until};

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
    // The kernel tells of threads.
    let own = format!("pid={} ", rustix::thread::gettid().as_raw_nonzero());
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

#[test]
fn trace_shows_operations_as_they_end_until_the_store_is_unmounted() {
    if !can_mount("trace_shows_operations_as_they_end_until_the_store_is_unmounted") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let output = world.path("trace");
    let mut reader = Command::new(KVFS)
        .args(["trace", "--json", "--kind", "unlink,write,kv_get,commit", &dir])
        .stdout(fs::File::create(&output).unwrap())
        .spawn()
        .unwrap();
    let told = || -> Vec<Value> {
        // The last line may be on its way.
        let lines = fs::read_to_string(&output).unwrap();
        lines.split_inclusive('\n').filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    wait_until("it has begun", || {
        fs::write(format!("{dir}/begin"), "x").unwrap();
        !told().is_empty()
    });
    fs::create_dir(format!("{dir}/below")).unwrap();
    fs::write(format!("{dir}/below/file"), "hello").unwrap();
    fs::remove_file(format!("{dir}/none")).unwrap_err();
    fs::remove_file(format!("{dir}/below/file")).unwrap();
    kvfs(&["kv", "get", "-s", &dir, "tags", "key"]);
    kvfs(&["txn", "run", "-q", "-s", &dir, "--", "true"]).ok();
    let found = |what: &dyn Fn(&Value) -> bool| told().iter().any(what);
    let is = |kind: &str, path: &str| found(&|line| line["kind"] == kind && line["path"] == path);
    wait_until("all of it is shown", || found(&|line| line["kind"] == "commit") && is("kv_get", "tags/key"));
    assert!(is("write", "/below/file") || found(&|line| line["kind"] == "write" && line["bytes"] == 5));
    assert!(is("unlink", "/below/file") && !found(&|line| line["kind"] == "mkdir"), "{:?}", told());
    assert!(
        told().iter().all(|line| line["lost"].is_null() && line["uid"] == rustix::process::getuid().as_raw())
    );
    kvfs(&["umount", &dir]).ok();
    assert!(wait_exit(&mut reader).success());
}

/// The answer to a request.
fn asked(socket: &str, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: kvfs\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_served_on_a_socket_for_the_user_of_the_mount_until_it_is_unmounted() {
    if !can_mount("metrics_are_served_on_a_socket_for_the_user_of_the_mount_until_it_is_unmounted") {
        return;
    }
    let world = World::new();
    let (store, dir, socket) = (world.store("store"), world.dir("mnt"), world.text("metrics.sock"));
    let option = format!("metrics=unix:{socket}");
    kvfs(&["mount", "-o", &format!("metrics=unix:{dir}/m"), &store, &dir]).fails(2, &["on the mount itself"]);
    kvfs(&["mount", "-o", &option, &store, &dir]).ok();
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    fs::write(format!("{dir}/file"), "hello").unwrap();
    let answer = asked(&socket, "GET /metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    let line = "kvfs_operation_duration_seconds_count{kind=\"write\"} 1";
    assert!(answer.lines().any(|found| found == line), "{answer}");
    assert!(asked(&socket, "GET /").starts_with("HTTP/1.1 404 "));
    assert!(asked(&socket, "POST /metrics").starts_with("HTTP/1.1 405 "));
    let other = (world.store("other"), world.dir("other-mnt"));
    kvfs(&["mount", "-o", &option, &other.0, &other.1])
        .fails(1, &["cannot serve metrics", "another process"]);
    kvfs(&["umount", &dir]).ok();
    assert!(!fs::exists(&socket).unwrap());
}

#[test]
fn heat_of_a_store_of_one_device_shows_what_is_read() {
    if !can_mount("heat_of_a_store_of_one_device_shows_what_is_read") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    fs::write(format!("{dir}/file"), vec![7; 4 << 20]).unwrap();
    kvfs(&["sync", &dir]).ok();
    let first = kvfs(&["heat", "--width", "32", &dir]);
    assert!(first.stderr.contains("counted from now on"), "{first:?}");
    assert!(first.ok().starts_with("device 0, fast, "));
    let png = world.text("heat.png");
    assert!(kvfs(&["heat", "--png", &png, &dir]).ok().contains(" pixels"));
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    kvfs(&["heat", "--png", &world.text("none/heat.png"), &dir]).fails(1, &["none/heat.png"]);
    kvfs(&["umount", &dir]).ok();
    let unmounted = kvfs(&["heat", "--json", &store]);
    assert!(unmounted.stderr.contains("is not mounted"), "{unmounted:?}");
    let heat: Value = serde_json::from_str(&unmounted.ok()).unwrap();
    assert!(heat["devices"][0]["content_bytes"].as_u64().unwrap() >= 4 << 20, "{heat}");
}

#[test]
fn top_prints_a_screen_where_there_is_no_terminal() {
    if !can_mount("top_prints_a_screen_where_there_is_no_terminal") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let screen = kvfs(&["top", "--delay", "1ms", &dir]).ok();
    assert!(screen.starts_with(&format!("kvfs {dir}, up ")), "{screen}");
    for name in ["space", "memory", "cache", "journal", "writes", "background", "transactions"] {
        assert!(screen.lines().any(|line| line.starts_with(name)), "{name}: {screen}");
    }
    // On the same daemon: what it has charged.
    fs::write(format!("{dir}/file"), "hello").unwrap();
    let memory = json(&["stats", "--memory", "--json", &dir]);
    let sizes = memory["memtable"]["sizes"].as_array().unwrap();
    assert!(sizes.iter().any(|size| size["count"].as_u64() >= Some(1)), "{memory}");
    let leaks = kvfs(&["debug", "leaks", &dir]).ok();
    let is_memtable = |row: &str| row.starts_with("memtable ") && row.contains("crates/kvdb/src/");
    assert!(leaks.starts_with("POOL ") && leaks.lines().any(is_memtable), "{leaks}");
    let places = kvfs(&["debug", "leaks", "--json", &dir]).ok();
    let places: Vec<Value> = places.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(places.iter().any(|place| place["pool"] == "memtable" && place["bytes"].as_u64() > Some(0)));
    assert!(places.iter().any(|place| place["ownerless_bytes"] == 0), "{places:?}");
    kvfs(&["umount", &dir]).ok();
    kvfs(&["debug", "leaks", &store]).fails(9, &["is not mounted"]);
    kvfs(&["top", "--once", &store]).fails(9, &["is not mounted"]);
}
