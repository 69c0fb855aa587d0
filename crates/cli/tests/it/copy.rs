//! `kvfs copy`: whole stores, of one engine or two, and what is left when it fails.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use kvfs_device::FileDevice;
use kvfs_kvdb::{Db, Options};
use kvfs_store::clock::SystemClock;
use kvfs_store::{Batch, Durability, KeyspaceKind, Store};
use rustix::process::{Pid, Signal, kill_process};

use crate::repair::{holds, spoil};
use crate::world::{KVFS, World, can_mount, fingerprint, kvfs, run, wait_exit, wait_until};

const USAGE: i32 = 2;
const IN_USE: i32 = 3;
const NOT_A_STORE: i32 = 4;
const DAMAGED: i32 = 5;
const NO_SPACE: i32 = 6;

/// Files of all kinds, keys and quotas.
fn fill(dir: &str) {
    let path = |name: &str| format!("{dir}/{name}");
    fs::create_dir_all(path("tree/below")).unwrap();
    for number in 0..200 {
        fs::write(path(&format!("tree/below/{number}")), format!("content {number} ").repeat(number * 3))
            .unwrap();
    }
    fs::write(path("large"), (0..3_000_000_u32).map(|at| (at / 7) as u8).collect::<Vec<_>>()).unwrap();
    fs::hard_link(path("large"), path("tree/again")).unwrap();
    symlink("large", path("link")).unwrap();
    let sparse = File::create(path("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(b"in the middle", 700 << 20).unwrap();
    run(Command::new("setfattr").args(["-n", "user.note", "-v", "a note", &path("large")])).ok();
    run(Command::new("chown").args(["1000:100", &path("tree/below/7")])).ok();
    kvfs(&["quota", "-s", dir, "on"]).ok();
    kvfs(&["quota", "-s", dir, "set", "--user", "1000", "--bytes-hard", "1G"]).ok();
    kvfs(&["kv", "put", "-s", dir, "tags", "song", "artist"]).ok();
}

/// What stat(2) tells of everything below `dir`, and the content.
fn listing(dir: &str) -> String {
    let command = format!(
        "cd {dir} && find . -printf '%p %i %y %m %U %G %n %s %b %T@ %C@ %l\\n' | sort && find . -type f -size -100M \
         -exec sha256sum {{}} + | sort && getfattr -R -d . && kvfs=\"$0\" && \"$kvfs\" quota -s . report --json"
    );
    run(Command::new("sh").args(["-c", &command, KVFS])).ok()
}

/// Mounts a store, lists it, unmounts it.
fn listing_of(world: &World, store: &str) -> String {
    let dir = world.dir("mnt");
    kvfs(&["mount", store, &dir, "-o", "noatime"]).ok();
    let listing = listing(&dir);
    assert_eq!(kvfs(&["kv", "get", "-s", &dir, "tags", "song"]).ok(), "artist");
    kvfs(&["umount", &dir]).ok();
    listing
}

#[test]
fn copy_has_all_files_keys_quotas_and_snapshots_and_goes_its_own_way() {
    if !can_mount("copy_has_all_files_keys_quotas_and_snapshots_and_goes_its_own_way") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    fill(&dir);
    kvfs(&["snapshot", "-s", &dir, "create", "then"]).ok();
    fs::remove_file(format!("{dir}/tree/below/3")).unwrap();
    kvfs(&["branch", "-s", &dir, "create", "try"]).ok();
    let copy = world.text("copy");
    for store in [&store, &dir] {
        let words = ["is mounted on", "unmount it first", "kvfs snapshot send"];
        kvfs(&["copy", store, &copy]).fails(IN_USE, &words);
        assert!(!Path::new(&copy).exists());
    }
    kvfs(&["umount", &dir]).ok();
    let before = fingerprint(&store);
    let done = kvfs(&["copy", &store, &copy, "--json"]);
    assert!(done.stderr.contains("will not have branches, with what was changed in them: try"), "{done:?}");
    let json: serde_json::Value = serde_json::from_str(&done.ok()).unwrap();
    assert_eq!((&json["clean"], &json["snapshots"]), (&true.into(), &1.into()), "{json}");
    assert_eq!(fingerprint(&store), before, "nothing was written to it");
    assert_eq!(listing_of(&world, &store), listing_of(&world, &copy));
    assert!(kvfs(&["check", &copy]).ok().starts_with("clean"));
    assert!(!world.path("copy/engine").exists());
    let uuid = |store: &str| {
        let mut slot = [0; 16];
        File::open(format!("{store}/device")).unwrap().read_exact_at(&mut slot, 16).unwrap();
        slot
    };
    assert_ne!(uuid(&store), uuid(&copy));
    // It is a store like any other: the snapshot brings the file back, and the copy of a copy is one.
    kvfs(&["snapshot", "-s", &copy, "restore", "then"]).ok();
    let second = world.text("second");
    let said = kvfs(&["copy", &copy, &second, "--size", "512M"]).ok();
    assert!(said.contains("1 named snapshots") && said.contains("512 MiB: compared, and clean"), "{said}");
    let dir = world.dir("mnt");
    kvfs(&["mount", &second, &dir]).ok();
    assert!(fs::read_to_string(format!("{dir}/tree/below/3")).unwrap().starts_with("content 3"));
    let sparse = fs::metadata(format!("{dir}/sparse")).unwrap();
    assert!(sparse.len() == 1 << 30 && sparse.blocks() < 100, "{} blocks", sparse.blocks());
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn copy_to_what_is_no_place_for_a_store_is_refused_and_leaves_it_as_it_is() {
    let world = World::new();
    let store = world.store("store");
    kvfs(&["kv", "put", "-s", &store, "tags", "song", "artist"]).ok();
    let before = fingerprint(&store);
    kvfs(&["copy", &store, &store]).fails(IN_USE, &["already holds a store"]);
    let full = world.dir("full");
    fs::write(world.path("full/letter"), "dear").unwrap();
    kvfs(&["copy", &store, &full]).fails(IN_USE, &["not empty"]);
    let copy = world.text("copy");
    kvfs(&["copy", &store, &copy, "--engine", "memory"]).fails(USAGE, &["engine memory", "gone"]);
    kvfs(&["copy", &store, &copy, "--size", "1M"]).fails(NO_SPACE, &["at least"]);
    let device = format!("{store}/device");
    kvfs(&["copy", &store, &copy, "--device", &device, "--force"]).fails(IN_USE, &[&device]);
    kvfs(&["copy", &world.text("missing"), &copy]).fails(NOT_A_STORE, &["no store"]);
    assert!(!Path::new(&copy).exists(), "nothing is left behind");
    assert_eq!(fingerprint(&store), before);
    let image = world.text("image");
    kvfs(&["copy", &store, &copy, "--device", &image, "--size", "256M"]).fails(1, &[&image]);
    File::create(&image).unwrap();
    kvfs(&["copy", &store, &copy, "--device", &image, "--size", "256M"]).ok();
    assert_eq!(kvfs(&["kv", "get", "-s", &copy, "tags", "song"]).ok(), "artist");
}

#[test]
fn copy_of_a_store_in_memory_is_refused_with_what_can_be_done() {
    let world = World::new();
    let (store, copy) = (world.text("store"), world.text("copy"));
    kvfs(&["mkfs", &store, "--engine", "memory"]).ok();
    kvfs(&["copy", &store, &copy]).fails(USAGE, &["engine memory", "kvfs snapshot send"]);
    assert!(!Path::new(&copy).exists());
}

#[test]
fn copy_of_a_damaged_store_ends_with_the_damage_and_what_to_do_and_leaves_nothing() {
    let world = World::new();
    let store = world.store("store");
    kvfs(&["kv", "put", "-s", &store, "tags", "song", "artist"]).ok();
    kvfs(&["kv", "put", "-s", &store, "notes", "note", "a note on something"]).ok();
    // The block, but not what the journal remembers.
    spoil(&world.path("store/device"), |sector| sector.starts_with(b"KVtb") && holds(sector, b"artist"));
    let copy = world.text("copy");
    let words = ["cannot read what is to be copied", "checksum", "--repair --copy-to"];
    kvfs(&["copy", &store, &copy]).fails(DAMAGED, &words);
    assert!(!Path::new(&copy).exists(), "nothing is left behind");
}

#[test]
fn copy_of_a_store_that_contradicts_itself_is_as_it_is_and_says_so() {
    let world = World::new();
    let store = world.store("store");
    kvfs(&["kv", "put", "-s", &store, "tags", "song", "artist"]).ok();
    // A block of no file.
    let device = Arc::new(FileDevice::open(world.path("store/device"), false).unwrap());
    let db = Db::open(device, Options::with_memory(64 << 20), Arc::new(SystemClock::new())).unwrap();
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).unwrap();
    let mut batch = Batch::new();
    batch.put_blocks(data, 4711_u64.to_be_bytes().to_vec(), 5, vec![1; 4096]);
    db.apply(batch, Durability::Synced).unwrap();
    db.close().unwrap();
    drop(db);
    let copy = world.text("copy");
    let done = kvfs(&["copy", &store, &copy, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done.code, Some(DAMAGED), "{done:?}");
    assert_eq!(json["clean"], false);
    assert_eq!(json["findings"][0]["place"], "block 5 of inode 4711", "{json}");
    let findings = |store: &str| {
        let checked = kvfs(&["check", "--json", store]);
        serde_json::from_slice::<serde_json::Value>(&checked.stdout).unwrap()["findings"].clone()
    };
    assert_eq!(findings(&store), findings(&copy));
    assert_eq!(kvfs(&["kv", "get", "-s", &copy, "tags", "song"]).ok(), "artist");
}

/// A store with so many MiB that can't be compressed.
fn large(world: &World, mib: usize) -> String {
    let (store, dir) = (world.text("store"), world.dir("mnt"));
    kvfs(&["mkfs", &store, "--size", "512M"]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    let mut file = File::create(format!("{dir}/large")).unwrap();
    let mut random = File::open("/dev/urandom").unwrap();
    let mut chunk = std::io::Read::by_ref(&mut random);
    std::io::copy(&mut std::io::Read::take(&mut chunk, (mib as u64) << 20), &mut file).unwrap();
    drop(file);
    kvfs(&["umount", &dir]).ok();
    store
}

#[test]
fn copy_to_a_store_that_is_too_small_ends_without_space_and_leaves_nothing() {
    if !can_mount("copy_to_a_store_that_is_too_small_ends_without_space_and_leaves_nothing") {
        return;
    }
    let world = World::new();
    let store = large(&world, 140);
    let copy = world.text("copy");
    kvfs(&["copy", &store, &copy, "--size", "128M"]).fails(NO_SPACE, &["too small", "128 MiB", &copy]);
    assert!(!Path::new(&copy).exists(), "nothing is left behind");
    // Where the file system around it is too small, it is the same.
    let small = world.dir("small");
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=120M", "tmpfs", &small])).ok();
    kvfs(&["copy", &store, &format!("{small}/copy"), "--size", "1G"]).fails(NO_SPACE, &["too small"]);
    assert_eq!(fs::read_dir(&small).unwrap().count(), 0);
}

#[test]
fn copy_that_is_cut_off_is_no_store_and_one_that_is_interrupted_is_gone() {
    if !can_mount("copy_that_is_cut_off_is_no_store_and_one_that_is_interrupted_is_gone") {
        return;
    }
    let world = World::new();
    let store = large(&world, 64);
    let (copy, dir) = (world.text("copy"), world.dir("mnt"));
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut child =
            Command::new(KVFS).args(["copy", &store, &copy]).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the device of the copy", || world.path("copy/device").exists());
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(!wait_exit(&mut child).success());
        assert_eq!(Path::new(&copy).exists(), signal == Signal::KILL);
    }
    let before = fingerprint(&copy);
    for args in
        [&["mount", &copy, &dir][..], &["check", &copy], &["check", "--repair", &copy], &["stats", &copy]]
    {
        kvfs(args).fails(NOT_A_STORE, &["unfinished copy", "remove it"]);
    }
    kvfs(&["kv", "put", "-s", &copy, "a", "b", "c"]).fails(NOT_A_STORE, &["unfinished copy"]);
    kvfs(&["copy", &copy, &world.text("second")]).fails(NOT_A_STORE, &["unfinished copy"]);
    kvfs(&["copy", &store, &copy]).fails(IN_USE, &["already holds"]);
    assert_eq!(fingerprint(&copy), before);
    fs::remove_dir_all(&copy).unwrap();
    kvfs(&["copy", &store, &copy]).ok();
}

#[cfg(feature = "rocksdb")]
#[test]
fn copy_to_rocksdb_and_back_has_all_files_and_keys() {
    if can_mount("copy_to_rocksdb_and_back_has_all_files_and_keys") {
        copy_to_engine_and_back_has_all_files_and_keys("rocksdb");
    }
}

#[cfg(feature = "leveldb")]
#[test]
fn copy_to_leveldb_and_back_has_all_files_and_keys() {
    if can_mount("copy_to_leveldb_and_back_has_all_files_and_keys") {
        copy_to_engine_and_back_has_all_files_and_keys("leveldb");
    }
}

#[cfg(any(feature = "leveldb", feature = "rocksdb"))]
fn copy_to_engine_and_back_has_all_files_and_keys(engine: &str) {
    let world = World::new();
    let (store, dir) = world.mounted();
    fill(&dir);
    kvfs(&["set", &format!("{dir}/tree"), "compression=lz4"]).ok();
    kvfs(&["snapshot", "-s", &dir, "create", "then"]).ok();
    kvfs(&["umount", &dir]).ok();
    let (other, back) = (world.text("other"), world.text("back"));
    let done = kvfs(&["copy", &store, &other, "--engine", engine]);
    for words in
        ["will not have named snapshots, which its engine has not: then", "will not have compression"]
    {
        assert!(done.stderr.contains(words), "{done:?}");
    }
    done.ok();
    assert_eq!(
        fs::read_to_string(world.path("other/engine")).unwrap(),
        format!("kvfs-engine 1\nengine {engine}\ninline 4096\n")
    );
    // The engine stays, unless another one is named.
    kvfs(&["copy", &other, &world.text("second")]).ok();
    assert!(world.path(&format!("second/{engine}")).exists());
    kvfs(&["copy", &other, &back, "--engine", "kvdb"]).ok();
    let expected = listing_of(&world, &store);
    for store in [&other, &back, &world.text("second")] {
        assert_eq!(expected, listing_of(&world, store), "{store}");
        assert!(kvfs(&["check", store]).ok().starts_with("clean"));
    }
    // Without space it is as with any engine.
    let small = world.dir("small");
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24M", "tmpfs", &small])).ok();
    let copy = format!("{small}/copy");
    fs::write(format!("{small}/ballast"), vec![1; 21 << 20]).unwrap();
    kvfs(&["copy", &store, &copy, "--engine", engine]).fails(NO_SPACE, &["too small"]);
    assert!(!Path::new(&copy).exists(), "nothing is left behind");
}

#[cfg(feature = "slatedb")]
#[test]
fn copy_to_object_storage_and_back_has_all_files_keys_and_snapshots() {
    if !can_mount("copy_to_object_storage_and_back_has_all_files_keys_and_snapshots") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    kvfs(&["snapshot", "-s", &dir, "create", "empty"]).ok();
    fill(&dir);
    kvfs(&["snapshot", "-s", &dir, "create", "full"]).ok();
    fs::remove_dir_all(format!("{dir}/tree/below")).unwrap();
    fs::write(format!("{dir}/large"), "small by now").unwrap();
    kvfs(&["umount", &dir]).ok();
    let (slate, back, objects) = (world.text("slate"), world.text("back"), world.text("objects"));
    kvfs(&["copy", &store, &slate, "--engine", "slatedb", "--url", &objects]).ok();
    kvfs(&["copy", &slate, &back, "--engine", "kvdb"]).ok();
    let expected = listing_of(&world, &store);
    for store in [&slate, &back] {
        kvfs(&["mount", store, &dir, "-o", "ro"]).ok();
        assert_eq!(fs::read_dir(format!("{dir}/.kvfs/snapshots/empty")).unwrap().count(), 0);
        assert_eq!(fs::read_dir(format!("{dir}/.kvfs/snapshots/full/tree/below")).unwrap().count(), 200);
        kvfs(&["umount", &dir]).ok();
        assert_eq!(expected, listing_of(&world, store), "{store}");
        assert!(kvfs(&["check", store]).ok().starts_with("clean"));
    }
}
