//! Stores of engines other than kvdb: how they are made, what is refused to them, and what is promised of the
//! one in memory.

use std::fs;
use std::io::ErrorKind;
#[cfg(feature = "slatedb")]
use std::path::Path;
#[cfg(feature = "slatedb")]
use std::process::Command;

#[cfg(feature = "slatedb")]
use crate::world::{KVFS, run};
use crate::world::{World, can_mount, kvfs};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const IN_USE: i32 = 3;
const NOT_A_STORE: i32 = 4;
#[cfg(feature = "slatedb")]
const MOUNT_POINT: i32 = 8;
const NOT_MOUNTED: i32 = 9;

fn memory_store(world: &World) -> (String, String) {
    let (store, dir) = (world.text("store"), world.dir("mnt"));
    kvfs(&["mkfs", &store, "--engine", "memory"]).ok();
    (store, dir)
}

#[test]
fn what_an_engine_can_not_have_is_refused_before_the_store_is_made() {
    let world = World::new();
    let (store, image) = (world.text("store"), world.text("image"));
    let cases: [&[&str]; 3] = [&["--size", "1G"], &["--device", &image], &["--placement", "hot-cold"]];
    for case in cases {
        let args = [&["mkfs", &store, "--engine", "memory"], case].concat();
        kvfs(&args).fails(USAGE, &["engine memory", "kvdb has"]);
        assert!(!world.path("store").exists(), "{case:?}: nothing is left behind");
    }
    kvfs(&["mkfs", &store, "--engine", "paper"]).fails(USAGE, &["kvdb", "memory"]);
}

#[test]
fn store_of_an_unknown_engine_or_version_is_refused_and_stays_as_it_is() {
    let world = World::new();
    let store = world.dir("store");
    let mark = world.path("store/engine");
    for (text, words) in [("kvfs-engine 2\nengine x\n", "version 2"), ("kvfs-engine 1\nengine x\n", "\"x\"")]
    {
        fs::write(&mark, text).unwrap();
        kvfs(&["check", &store]).fails(NOT_A_STORE, &[words]);
        assert_eq!(fs::read_to_string(&mark).unwrap(), text);
    }
}

#[test]
fn memory_store_is_empty_at_each_mount_and_says_so() {
    if !can_mount("memory_store_is_empty_at_each_mount_and_says_so") {
        return;
    }
    let world = World::new();
    let (store, dir) = memory_store(&world);
    kvfs(&["mkfs", &store]).fails(IN_USE, &["already holds a store"]);
    for words in [&["kv", "put", "-s", &store, "k", "a", "b"][..], &["check", &store]] {
        kvfs(words).fails(NOT_MOUNTED, &["in memory", "kvfs mount"]);
    }
    for _ in 0..2 {
        kvfs(&["mount", &store, &dir]).ok();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::write(format!("{dir}/file"), "content").unwrap();
        kvfs(&["kv", "put", "-s", &dir, "k", "a", "b"]).ok();
        assert_eq!(kvfs(&["kv", "get", "-s", &dir, "k", "a"]).ok(), "b");
        kvfs(&["mount", &store, &world.dir("second")]).fails(IN_USE, &["mounted on"]);
        assert!(kvfs(&["check", &dir]).ok().starts_with("clean"));
        kvfs(&["umount", &dir]).ok();
    }
    assert_eq!(fs::read_to_string(world.path("store/engine")).unwrap().lines().count(), 3);
}

#[test]
fn what_the_engine_of_a_mounted_store_lacks_is_refused_by_name() {
    if !can_mount("what_the_engine_of_a_mounted_store_lacks_is_refused_by_name") {
        return;
    }
    let world = World::new();
    let (store, dir) = memory_store(&world);
    for option in ["dirty_bytes=64M", "placement=hot-cold", "cache=arc"] {
        let name = option.split('=').next().unwrap();
        kvfs(&["mount", &store, &dir, "-o", option]).fails(USAGE, &["engine memory", name, "kvdb has"]);
    }
    kvfs(&["mount", &store, &dir]).ok();
    let cases: [(&[&str], &str); 6] = [
        (&["defrag", &dir], "no defragmentation"),
        (&["tier", "list", &dir], "no devices"),
        (&["heat", &dir], "no devices"),
        (&["grow", &dir], "no way to grow"),
        (&["stats", "--zones", &dir], "no zones"),
        (&["txn", "-s", &dir, "undo", "1"], "no undo"),
    ];
    for (args, words) in cases {
        kvfs(args).fails(FAILED, &["is kept by memory, which has", words, "kvdb"]);
    }
    kvfs(&["check", "--repair", &store]).fails(USAGE, &["no repair", "kvdb has"]);
    // What it has works, and its figures are its own.
    fs::write(format!("{dir}/file"), "before").unwrap();
    kvfs(&["snapshot", "-s", &dir, "create", "then"]).ok();
    fs::write(format!("{dir}/file"), "after").unwrap();
    kvfs(&["snapshot", "-s", &dir, "restore", "then"]).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/file")).unwrap(), "before");
    let stats = kvfs(&["stats", &dir]).ok();
    assert!(stats.starts_with("space ") && !stats.contains("\nzones "), "{stats}");
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn options_of_object_storage_are_refused_to_other_engines() {
    if !can_mount("options_of_object_storage_are_refused_to_other_engines") {
        return;
    }
    let world = World::new();
    let (memory, dir) = memory_store(&world);
    let plain = world.text("plain");
    kvfs(&["mkfs", &plain, "--size", "128M"]).ok();
    for (store, engine) in [(&memory, "memory"), (&plain, "kvdb")] {
        for option in ["cache_size=1G", "take_over", "lease=5s", "timeout=1m", "ro,follow"] {
            let name = option.trim_start_matches("ro,").split('=').next().unwrap();
            let words = [engine, name, "slatedb has"];
            kvfs(&["mount", store, &dir, "-o", option]).fails(USAGE, &words);
        }
    }
}

#[test]
fn memory_store_is_full_at_its_bound_and_deletes_make_room() {
    if !can_mount("memory_store_is_full_at_its_bound_and_deletes_make_room") {
        return;
    }
    let world = World::new();
    let (store, dir) = memory_store(&world);
    kvfs(&["mount", &store, &dir, "--memory", "64M"]).ok();
    let write = |number: u32| fs::write(format!("{dir}/{number}"), vec![1; 1 << 20]);
    let full = (0..64).find_map(|number| write(number).err().map(|error| (number, error)));
    let (count, error) = full.expect("is bounded");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    assert!(count >= 32, "only {count} MiB of 64");
    for number in 0..4 {
        fs::remove_file(format!("{dir}/{number}")).unwrap();
    }
    write(0).expect("has room");
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn engine_that_the_build_lacks_is_refused_with_its_feature() {
    let world = World::new();
    for (name, is_built) in [("rocksdb", cfg!(feature = "rocksdb")), ("leveldb", cfg!(feature = "leveldb"))] {
        if is_built {
            continue;
        }
        let new = world.text("new");
        let make = format!("make build-{name}");
        let words = [name, "feature", &make];
        kvfs(&["mkfs", &new, "--engine", name]).fails(USAGE, &words);
        assert!(!world.path("new").exists(), "nothing is left behind");
        let store = world.dir(name);
        fs::write(format!("{store}/engine"), format!("kvfs-engine 1\nengine {name}\ninline 4096\n")).unwrap();
        kvfs(&["check", &store]).fails(USAGE, &words);
        assert!(!kvfs(&["mkfs", "--help"]).ok().contains(&format!("--engine {name}")));
    }
}

/// Files and keys of the store mounted on `dir` change wholly or not at all.
#[cfg(any(feature = "leveldb", feature = "rocksdb", feature = "slatedb"))]
fn transactions_are_all_or_nothing(dir: &str) {
    let run =
        |script: &str| kvfs(&["txn", "run", "-s", dir, "--", "sh", "-c", &format!("cd {dir} && {script}")]);
    let read = |name: &str| fs::read_to_string(format!("{dir}/{name}")).ok();
    run("mkdir d && echo one > d/a && cp file d/copy && test $(cat d/a) = one").ok();
    assert_eq!(read("d/a").as_deref(), Some("one\n"));
    assert_eq!(fs::read(format!("{dir}/d/copy")).unwrap(), fs::read(format!("{dir}/file")).unwrap());
    // What it has done is seen inside, and nowhere else, then or afterwards.
    let failed = run("echo two > d/a && rm d/copy && mkdir e && test $(cat d/a) = two && exit 3");
    assert_eq!(failed.code, Some(3), "{failed:?}");
    assert_eq!(read("d/a").as_deref(), Some("one\n"));
    assert!(fs::exists(format!("{dir}/d/copy")).unwrap() && !fs::exists(format!("{dir}/e")).unwrap());
    kvfs(&["branch", "-s", dir, "create", "try"]).fails(FAILED, &["which has no transactions that outlast"]);
}

#[cfg(any(feature = "leveldb", feature = "rocksdb"))]
fn store_keeps_files_and_keys_and_refuses_what_it_lacks(engine: &str) {
    let world = World::new();
    let (store, dir) = (world.text("store"), world.dir("mnt"));
    kvfs(&["mkfs", &store, "--engine", engine]).ok();
    kvfs(&["kv", "put", "-s", &store, "k", "a", "b"]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    fs::write(format!("{dir}/file"), vec![7; 100_000]).unwrap();
    kvfs(&["mount", &store, &world.dir("second")]).fails(IN_USE, &["mounted on"]);
    transactions_are_all_or_nothing(&dir);
    for args in [&["snapshot", "-s", &dir, "create", "x"][..], &["defrag", &dir]] {
        kvfs(args).fails(FAILED, &[&format!("is kept by {engine}, which has no"), "kvdb"]);
    }
    assert!(kvfs(&["stats", &dir]).ok().contains(&format!("{engine}.batches")));
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "k", "a"]).ok(), "b");
    kvfs(&["mount", &store, &dir, "-o", "ro"]).ok();
    assert_eq!(fs::read(format!("{dir}/file")).unwrap(), vec![7; 100_000]);
    kvfs(&["umount", &dir]).ok();
}

#[cfg(not(feature = "slatedb"))]
#[test]
fn object_storage_that_the_build_lacks_is_refused_with_its_feature() {
    let world = World::new();
    let new = world.text("new");
    let words = ["slatedb", "feature", "make build-slatedb"];
    for args in [&["--url", "s3://bucket/prefix"][..], &[]] {
        kvfs(&[&["mkfs", &new, "--engine", "slatedb"], args].concat()).fails(USAGE, &words);
        assert!(!world.path("new").exists(), "nothing is left behind");
    }
    kvfs(&["mkfs", &new, "--url", "s3://bucket/prefix"]).fails(USAGE, &["no objects", "slatedb has"]);
    assert!(!kvfs(&["mkfs", "--help"]).ok().contains("--url"));
}

#[cfg(feature = "slatedb")]
#[test]
fn slatedb_store_keeps_files_and_keys_and_refuses_what_it_lacks() {
    let world = World::new();
    let (store, dir, objects) = (world.text("store"), world.dir("mnt"), world.text("data/objects"));
    kvfs(&["mkfs", &store, "--engine", "slatedb"]).fails(USAGE, &["--url"]);
    kvfs(&["mkfs", &store, "--engine", "slatedb", "--url", "ftp://x/y"]).fails(USAGE, &["no object storage"]);
    kvfs(&["mkfs", &store, "--engine", "slatedb", "--url", &objects, "--size", "1G"])
        .fails(USAGE, &["--size"]);
    assert!(!world.path("store").exists() && !world.path("data").exists(), "nothing is left behind");
    kvfs(&["mkfs", &store, "--engine", "slatedb", "--url", &objects]).ok();
    let other = world.text("other");
    kvfs(&["mkfs", &other, "--engine", "slatedb", "--url", &objects]).fails(IN_USE, &["objects already"]);
    assert!(!world.path("other").exists() && world.path("data/objects/kvfs-store").exists());
    kvfs(&["kv", "put", "-s", &store, "k", "a", "b"]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
    fs::create_dir(world.path("data/objects/empty")).unwrap();
    for near in ["data", "data/objects", "data/objects/empty"] {
        kvfs(&["mount", "-o", "nonempty", &store, &world.text(near)])
            .fails(MOUNT_POINT, &["objects", "lie inside each other"]);
    }
    if !can_mount("slatedb_store_keeps_files_and_keys_and_refuses_what_it_lacks") {
        return;
    }
    kvfs(&["mount", &store, &dir]).ok();
    fs::write(format!("{dir}/file"), vec![7; 100_000]).unwrap();
    kvfs(&["mount", &store, &world.dir("second")]).fails(IN_USE, &["mounted on"]);
    transactions_are_all_or_nothing(&dir);
    for args in [&["grow", &dir][..], &["defrag", &dir]] {
        kvfs(args).fails(FAILED, &["is kept by slatedb, which has no", "kvdb"]);
    }
    assert!(kvfs(&["stats", &dir]).ok().contains("slatedb"));
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "k", "a"]).ok(), "b");
    kvfs(&["mount", &store, &dir, "-o", "ro"]).ok();
    assert_eq!(fs::read(format!("{dir}/file")).unwrap(), vec![7; 100_000]);
    kvfs(&["umount", &dir]).ok();
}

#[cfg(feature = "slatedb")]
#[test]
fn snapshots_of_a_store_in_object_storage_are_made_shown_compared_sent_pushed_and_deleted() {
    if !can_mount("snapshots_of_a_store_in_object_storage_are_made_shown_compared_sent_pushed_and_deleted") {
        return;
    }
    let world = World::new();
    let (store, dir, objects) = (world.text("store"), world.dir("mnt"), world.text("objects"));
    kvfs(&["mkfs", &store, "--engine", "slatedb", "--url", &objects]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    let path = |name: &str| format!("{dir}/{name}");
    fs::create_dir(path("tree")).unwrap();
    fs::write(path("tree/large"), vec![7; 1_000_000]).unwrap();
    fs::write(path("tree/gone"), "soon").unwrap();
    kvfs(&["kv", "put", "-s", &dir, "k", "a", "old"]).ok();
    let snapshot = |args: &[&str]| kvfs(&[&["snapshot", "-s", &dir][..], args].concat());
    snapshot(&["create", "then"]).ok();
    snapshot(&["create", "then"]).fails(FAILED, &["already"]);
    fs::write(path("tree/large"), vec![8; 1_000_000]).unwrap();
    fs::remove_file(path("tree/gone")).unwrap();
    fs::write(path("tree/new"), "new").unwrap();
    kvfs(&["kv", "put", "-s", &dir, "k", "a", "new"]).ok();
    let shows_then = || {
        assert_eq!(fs::read(path(".kvfs/snapshots/then/tree/large")).unwrap(), vec![7; 1_000_000]);
        assert_eq!(fs::read_to_string(path(".kvfs/snapshots/then/tree/gone")).unwrap(), "soon");
        assert!(!Path::new(&path(".kvfs/snapshots/then/tree/new")).exists());
        assert_eq!(fs::read(path("tree/large")).unwrap(), vec![8; 1_000_000]);
    };
    shows_then();
    snapshot(&["create", "now"]).ok();
    for args in [&["diff", "then"][..], &["diff", "then", "now"]] {
        let told = snapshot(args).ok();
        for line in ["~ /tree/large", "- /tree/gone", "+ /tree/new", "~ key k/a"] {
            assert!(told.contains(line), "{args:?}: {told}");
        }
    }
    // To another engine, whole and what differs, and to a repository.
    let (other, other_dir) = (world.store("other"), world.dir("other-mnt"));
    for args in ["then", "now --from then"] {
        let line = format!("\"$0\" snapshot -s {dir} send {args} | \"$0\" snapshot -s {other} receive");
        run(Command::new("sh").args(["-c", &line, KVFS])).ok();
    }
    kvfs(&["mount", &other, &other_dir]).ok();
    assert_eq!(fs::read(format!("{other_dir}/tree/large")).unwrap(), vec![8; 1_000_000]);
    assert!(fs::exists(format!("{other_dir}/.kvfs/snapshots/then/tree/gone")).unwrap());
    kvfs(&["umount", &other_dir]).ok();
    let place = world.text("repository");
    kvfs(&["repository", "create", &place]).ok();
    for name in ["then", "now"] {
        snapshot(&["push", name, &place]).ok();
    }
    // They are there at the next mount, also of one that only reads.
    kvfs(&["umount", &dir]).ok();
    kvfs(&["mount", &store, &dir, "-o", "ro"]).ok();
    shows_then();
    snapshot(&["create", "more"]).fails(FAILED, &["read-only"]);
    kvfs(&["umount", &dir]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    snapshot(&["delete", "then"]).ok();
    let listed = snapshot(&["list"]).ok();
    assert!(listed.contains("now") && !listed.contains("then"), "{listed}");
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

/// The objects are those of one store, whichever directory names them: another mount that writes is refused,
/// or takes it over.
#[cfg(feature = "slatedb")]
#[test]
fn mount_that_another_one_has_taken_over_says_so_and_acknowledges_nothing() {
    if !can_mount("mount_that_another_one_has_taken_over_says_so_and_acknowledges_nothing") {
        return;
    }
    let world = World::new();
    let (store, dir, objects) = (world.text("store"), world.dir("mnt"), world.text("objects"));
    kvfs(&["mkfs", &store, "--engine", "slatedb", "--url", &objects]).ok();
    let (second, second_dir) = (world.text("second"), world.dir("second-mnt"));
    for path in ["second", "second/slatedb"] {
        fs::create_dir(world.path(path)).unwrap();
    }
    for name in ["engine", "slatedb/place"] {
        fs::copy(world.path(&format!("store/{name}")), world.path(&format!("second/{name}"))).unwrap();
    }
    let write_synced = |path: String| {
        let mut file = fs::File::create(path)?;
        std::io::Write::write_all(&mut file, b"content")?;
        file.sync_all()
    };
    kvfs(&["mount", &store, &dir, "-o", "cache_size=8M"]).ok();
    write_synced(format!("{dir}/before")).unwrap();
    // It says who has it; a mount that only reads does not disturb it.
    kvfs(&["mount", &second, &second_dir]).fails(IN_USE, &["open elsewhere", &store, "pid", "-o take_over"]);
    kvfs(&["mount", &second, &second_dir, "-o", "ro"]).ok();
    assert_eq!(fs::read_to_string(format!("{second_dir}/before")).unwrap(), "content");
    kvfs(&["umount", &second_dir]).ok();
    write_synced(format!("{dir}/between")).unwrap();
    kvfs(&["mount", &second, &second_dir, "-o", "take_over"]).ok();
    assert_eq!(fs::read_to_string(format!("{second_dir}/between")).unwrap(), "content");
    write_synced(format!("{second_dir}/after")).unwrap();
    write_synced(format!("{dir}/late")).expect_err("is not acknowledged");
    let stats = kvfs(&["stats", &dir]);
    assert!(format!("{stats:?}").contains("taken this store over"), "{stats:?}");
    kvfs(&["umount", &dir]);
    write_synced(format!("{second_dir}/again")).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(&second_dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["after", "again", "before", "between"]);
    kvfs(&["umount", &second_dir]).ok();
    assert!(kvfs(&["check", &second]).ok().starts_with("clean"));
    kvfs(&["check", &store]).ok();
}

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_store_keeps_files_and_keys_and_refuses_what_it_lacks() {
    if can_mount("rocksdb_store_keeps_files_and_keys_and_refuses_what_it_lacks") {
        store_keeps_files_and_keys_and_refuses_what_it_lacks("rocksdb");
    }
}

#[cfg(feature = "leveldb")]
#[test]
fn leveldb_store_keeps_files_and_keys_and_refuses_what_it_lacks() {
    if !can_mount("leveldb_store_keeps_files_and_keys_and_refuses_what_it_lacks") {
        return;
    }
    store_keeps_files_and_keys_and_refuses_what_it_lacks("leveldb");
    let world = World::new();
    let (store, dir) = (world.text("store"), world.dir("mnt"));
    kvfs(&["mkfs", &store, "--engine", "leveldb"]).ok();
    kvfs(&["mount", &store, &dir, "-o", "io_limit=50M"]).fails(USAGE, &["io_limit", "kvdb has"]);
    // A second reader is refused, too: opening writes.
    kvfs(&["mount", &store, &dir, "-o", "ro"]).ok();
    kvfs(&["mount", &store, &world.dir("second"), "-o", "ro"]).fails(IN_USE, &["mounted on"]);
    kvfs(&["umount", &dir]).ok();
}
