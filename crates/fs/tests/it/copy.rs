//! Stores copied into others, of the same and of another engine: what is there afterwards, and what is told
//! when it is not.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::copy::{Copied, CopyError, compare, copy, left_behind};
use kvfs_fs::{COMPRESSION_ATTRIBUTE, FileSystem, MountOptions, NodeId, XattrMode, check};
use kvfs_kv::KeyspaceOwner;
use kvfs_kvdb::Background;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Compression, Durability, KeyRange, Position, Read, Result, Store, StoreError};

use crate::driver::Driver;
use crate::engine;
use crate::setup::{Random, Setup};
use crate::transfer::{change_keys, model, pass_on};

const ROOT: NodeId = NodeId::ROOT;
const OWNER: KeyspaceOwner = KeyspaceOwner { uid: 7, gid: 8, mode: 0o640 };

type Change<'c> = &'c dyn Fn(&Arc<dyn Store>, &mut Batch);
type Content = BTreeMap<(String, Vec<u8>), Bytes>;

/// Every record that a reader shows.
fn content(store: &dyn Store, read: &dyn Read) -> Content {
    let mut all = Content::new();
    for info in store.keyspaces() {
        let mut cursor = read.cursor(info.keyspace, KeyRange::all()).unwrap();
        cursor.next().unwrap();
        while let Some((key, value)) = cursor.entry() {
            all.insert((info.name.clone(), key.to_vec()), value.clone());
            cursor.next().unwrap();
        }
    }
    all
}

fn main_of(store: &dyn Store) -> Content {
    content(store, &*store.snapshot().unwrap())
}

fn opened(store: &Arc<dyn Store>, setup: &Setup) -> Arc<FileSystem> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    Arc::new(FileSystem::open(Arc::clone(store), setup.clock.clone(), options).unwrap())
}

fn copied(from: &FileSystem, to: &Arc<dyn Store>) -> Copied {
    let done = copy(from, &**to, &|| true).unwrap();
    compare(from, &**to, &|| true).unwrap();
    let report = check::check(to).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    done
}

fn new_model() -> Arc<dyn Store> {
    Arc::new(ModelStore::with_uuid([9; 16]))
}

fn new_engine() -> Arc<dyn Store> {
    engine::open(&engine::create(), 64 << 10, Background::Manual)
}

/// A store with files, links, attributes, holes, keys and quotas, and the states that it had.
fn work(setup: Setup, seed: u64) -> Setup {
    let mut random = Random::new(seed);
    setup.fs.quotas().turn_on(&|_| {}).unwrap();
    let mut driver = Driver::new(setup, seed, 40_000);
    for name in ["one", "two", "three"] {
        driver.run(150);
        change_keys(&driver.setup, &mut random);
        driver.setup.fs.snapshots().create(name, name == "two").unwrap();
    }
    driver.run(60);
    driver.setup.fs.snapshots().delete("three").unwrap();
    driver.setup
}

/// Copies, and compares by other means than the copy itself does.
fn copies_everything(source: Setup, to: &Arc<dyn Store>, seed: u64) {
    let mut source = work(source, seed);
    source.reopen();
    let done = copied(&source.fs, to);
    assert_eq!(done.snapshots, 2, "seed {seed}");
    assert!(main_of(&*source.store) == main_of(&**to), "seed {seed}");
    for name in ["one", "two"] {
        let state = |store: &dyn Store| content(store, &*store.open_snapshot(name).unwrap());
        assert!(state(&*source.store) == state(&**to), "seed {seed}, snapshot {name}");
    }
    let created = |store: &dyn Store| -> Vec<_> {
        store.named_snapshots().into_iter().map(|info| (info.name, info.created)).collect()
    };
    assert_eq!(created(&*source.store), created(&**to), "seed {seed}");
    let fs = opened(to, &source);
    assert!(fs.snapshots().is_private("two") && !fs.snapshots().is_private("one"), "seed {seed}");
    assert_eq!(fs.keys().keyspace("tags").unwrap().unwrap().owner, OWNER);
}

#[test]
fn copy_of_a_random_store_has_every_record_and_snapshot() {
    for seed in 1..=8 {
        copies_everything(model(1), &new_model(), seed);
        copies_everything(model(1), &new_engine(), seed);
    }
}

#[test]
fn copy_of_a_random_store_over_the_engine_has_every_record_and_snapshot() {
    for seed in 11..=14 {
        let source = || engine::setup([1; 16], 32 << 10, 200);
        copies_everything(source(), &new_engine(), seed);
        copies_everything(source(), &new_model(), seed);
    }
}

#[test]
fn copy_goes_on_as_a_store_of_its_own() {
    let mut source = work(engine::setup([1; 16], 64 << 10, 200), 21);
    source.reopen();
    let to = new_engine();
    copied(&source.fs, &to);
    assert_ne!(source.store.uuid(), to.uuid());
    let fs =
        Arc::new(FileSystem::open(Arc::clone(&to), source.clock.clone(), MountOptions::default()).unwrap());
    let copy = source.through(fs, MountOptions::default());
    let copy = Setup { store: Arc::clone(&to), ..copy };
    let (file, other) = (copy.file(ROOT, "newer"), source.file(ROOT, "newer"));
    assert_eq!(
        copy.getattr(&copy.caller, file).unwrap().inode,
        source.getattr(&source.caller, other).unwrap().inode,
        "numbers go on where they were"
    );
    copy.write_at(file, 0, &vec![7; 50_000]).unwrap();
    copy.assert_sound("after the copy was written to");
    // A stream of the copy is no stream of what was copied.
    copy.store.create_snapshot("four").unwrap();
    let mut target = model(3);
    pass_on(&copy, None, "four", &mut target, false).unwrap();
    pass_on(&source, Some("one"), "two", &mut target, false).unwrap_err();
}

#[test]
fn compressed_content_of_a_copy_is_compressed() {
    let source = engine::setup([1; 16], 64 << 10, 200);
    let dir = source.dir(ROOT, "packed");
    let set = |node, name: &[u8], value: &str| {
        source.setxattr(&source.caller, node, name, value.as_bytes(), XattrMode::Set).unwrap();
    };
    set(dir, COMPRESSION_ATTRIBUTE, "zstd:3");
    let (file, plain) = (source.file(dir, "file"), source.file(ROOT, "plain"));
    for node in [file, plain] {
        source.write_at(node, 0, &b"twice ".repeat(300_000)).unwrap();
    }
    let (tags, _) = source.keys().make_keyspace("tags", OWNER).unwrap();
    source.store.set_compression(tags.keyspace, Compression::Lz4).unwrap();
    let device = engine::create();
    let db = engine::open(&device, 64 << 10, Background::Manual);
    let to: Arc<dyn Store> = Arc::clone(&db) as _;
    copied(&source.fs, &to);
    db.flush().unwrap();
    let tags = to.keyspaces().into_iter().find(|info| info.name == "tags").unwrap();
    assert_eq!(to.compression(tags.keyspace), Compression::Lz4);
    let counts = db.check().unwrap().counts;
    let (_, stored) = counts.iter().find(|(name, _)| name == "bytes verified").unwrap();
    assert!(*stored < 2_900_000, "{counts:?}: one of two files of 1.8 MB is compressed");
    assert_eq!(left_behind(&source.fs, &*to).unwrap(), Vec::<String>::new());
}

/// A store with nothing but what every engine has.
struct Plain {
    model: ModelStore,
}

impl Read for Plain {
    kvfs_store::pass_on!(model: get, multi_get, cursor, read_blocks, next_extent);
}

impl Store for Plain {
    kvfs_store::pass_on!(
        model: open_keyspace, keyspaces, snapshot, sync, position, capabilities, space, stats
    );

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.model.apply(batch, durability)
    }
}

fn new_plain() -> Arc<dyn Store> {
    Arc::new(Plain { model: ModelStore::with_uuid([9; 16]) })
}

#[test]
fn what_a_plain_engine_lacks_is_told_and_left_behind() {
    let mut source = work(engine::setup([1; 16], 64 << 10, 200), 31);
    source.reopen();
    source.fs.branches().create("try", 0).unwrap();
    let file = source.file(ROOT, "packed");
    source.setxattr(&source.caller, file, COMPRESSION_ATTRIBUTE, b"lz4", XattrMode::Set).unwrap();
    let to = new_plain();
    let left = left_behind(&source.fs, &*to).unwrap();
    let words = ["named snapshots, which its engine has not: one, two", "branches", "compression"];
    assert!(
        left.len() == 3 && words.iter().zip(&left).all(|(words, left)| left.starts_with(words)),
        "{left:?}"
    );
    assert_eq!(copied(&source.fs, &to).snapshots, 0);
    // Records of snapshots that are not there are not, either.
    let is_about_snapshots = |key: &[u8]| {
        [&b"private/"[..], b"received/", b"receiving"].iter().any(|name| key[9..].starts_with(name))
    };
    let (ours, theirs) = (main_of(&*source.store), main_of(&*to));
    let missing: Vec<_> = ours.keys().filter(|key| !theirs.contains_key(*key)).collect();
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert!(
        missing.iter().all(|(name, key)| name == "meta" && key[..8] == [0; 8] && is_about_snapshots(key))
    );
    assert!(theirs.iter().all(|(key, value)| ours.get(key) == Some(value)));
    // And back.
    let plain = opened(&to, &source);
    let back = new_engine();
    copied(&plain, &back);
    assert!(main_of(&*back) == theirs);
    assert_eq!(left_behind(&plain, &*back).unwrap(), Vec::<String>::new());
}

#[test]
fn received_snapshot_has_the_same_identity_in_a_copy() {
    let (source, mut target) = (model(1), model(2));
    source.write_at(source.file(ROOT, "file"), 0, &[3; 9000]).unwrap();
    source.store.create_snapshot("one").unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    let to = new_model();
    copied(&target.fs, &to);
    let fs = opened(&to, &target);
    let id = |fs: &FileSystem| fs.snapshots().id(&fs.store().named_snapshots()[0]).unwrap();
    assert_eq!(id(&fs), id(&source.fs), "the next stream goes on from it");
}

#[test]
fn copy_that_differs_is_told_with_the_key() {
    let source = work(model(1), 41);
    let make = || {
        let to = new_model();
        copied(&source.fs, &to);
        to
    };
    let handle = |to: &Arc<dyn Store>, name: &str| {
        to.keyspaces().into_iter().find(|info| info.name == name).unwrap().keyspace
    };
    let first_key = |to: &Arc<dyn Store>, name: &str| {
        let mut cursor = to.cursor(handle(to, name), KeyRange::all()).unwrap();
        cursor.next().unwrap();
        let (key, value) = cursor.entry().unwrap();
        (key.to_vec(), value.clone())
    };
    let cases: [(&str, Change<'_>, &str); 3] = [
        (
            "tags",
            &|to, batch| batch.put(handle(to, "tags"), first_key(to, "tags").0, "other"),
            "another value",
        ),
        (
            "data",
            &|to, batch| {
                let (key, _) = first_key(to, "data");
                batch.put_blocks(handle(to, "data"), key[..8].to_vec(), 1 << 40, vec![1; 4096]);
            },
            "should not be there",
        ),
        ("meta", &|to, batch| batch.delete(handle(to, "meta"), first_key(to, "meta").0), "is missing"),
    ];
    for (name, change, words) in cases {
        let to = make();
        let mut batch = Batch::new();
        change(&to, &mut batch);
        to.apply(batch, Durability::Buffered).unwrap();
        let told = compare(&source.fs, &*to, &|| true).unwrap_err().to_string();
        assert!(told.contains(words) && told.contains(&format!("keyspace {name}")), "{told}");
    }
    let to = make();
    to.delete_snapshot("one").unwrap();
    assert!(matches!(compare(&source.fs, &*to, &|| true), Err(CopyError::Differs(_))));
}

#[test]
fn snapshot_of_a_copy_that_differs_is_found() {
    let source = model(1);
    let file = source.file(ROOT, "file");
    for (name, byte) in [("one", 1), ("two", 2)] {
        source.write_at(file, 0, &[byte; 9000]).unwrap();
        source.store.create_snapshot(name).unwrap();
    }
    let to = new_model();
    copied(&source.fs, &to);
    // The same states, with another one in the place of the first.
    let other = new_model();
    let plain = new_plain();
    copy(&source.fs, &*plain, &|| true).unwrap();
    copy(&opened(&plain, &source), &*other, &|| true).unwrap();
    for info in source.store.named_snapshots() {
        other.adopt_snapshot(&info.name, info.created).unwrap();
    }
    let told = compare(&source.fs, &*other, &|| true).unwrap_err();
    assert!(matches!(told, CopyError::Differs(_)), "{told}");
}

#[test]
fn snapshots_that_are_one_state_in_the_copy_are_the_same_whatever_their_names() {
    for to in [new_model(), new_engine()] {
        let source = model(1);
        let entry = source.keys().make_keyspace("tags", OWNER).unwrap().0;
        for name in ["zebra", "ape", "monkey"] {
            // Nothing is copied of what stays as it is, so these are one state there.
            let value = Some(Bytes::from_static(b"value"));
            source.keys().set(&source.caller, entry.keyspace, b"key", value).unwrap();
            source.store.create_snapshot(name).unwrap();
        }
        assert_eq!(copied(&source.fs, &to).snapshots, 3);
    }
}

#[test]
fn copy_is_given_up_when_it_is_told_to_and_where_there_is_no_space() {
    let source = work(model(1), 51);
    let asked = Cell::new(0);
    let goes_on = || {
        asked.set(asked.get() + 1);
        asked.get() < 4
    };
    assert!(matches!(copy(&source.fs, &*new_model(), &goes_on), Err(CopyError::Stopped)));
    assert_eq!(asked.get(), 4);
    let options = kvfs_store::model::ModelOptions { capacity_bytes: Some(20_000), ..Default::default() };
    let small: Arc<dyn Store> = Arc::new(ModelStore::with(options));
    let told = copy(&source.fs, &*small, &|| true);
    assert!(matches!(told, Err(CopyError::Target(StoreError::Full))), "{told:?}");
}
