//! Sending snapshots and receiving them: what arrives, what is refused, and what a crash leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use kvfs_device::{CrashDevice, CrashMode};
use kvfs_fs::transfer::{
    Begin, Frame, ReceiveError, Received, Receiver, SendStream, SnapshotId, StreamError, StreamReader,
};
use kvfs_fs::{FileSystem, FsError, KEYSPACES, MountOptions, NodeId, TIER_ATTRIBUTE, XattrMode};
use kvfs_kv::KeyspaceOwner;
use kvfs_kvdb::Background;
use kvfs_store::model::ModelStore;
use kvfs_store::{Durability, KeyRange, Read, Store, Tier};

use crate::clones::clone;
use crate::driver::Driver;
use crate::engine;
use crate::prefix::Recorder;
use crate::setup::{Random, Setup};
use crate::snapshots::diff_from;
use crate::tiers::told;
use crate::undo::txn;

const ROOT: NodeId = NodeId::ROOT;
const OWNER: KeyspaceOwner = KeyspaceOwner { uid: 7, gid: 8, mode: 0o640 };

pub(crate) fn model(uuid: u8) -> Setup {
    Setup::with(Arc::new(ModelStore::with_uuid([uuid; 16])), 200, MountOptions::default())
}

pub(crate) fn id_of(setup: &Setup, name: &str) -> SnapshotId {
    let info = setup.store.named_snapshots().into_iter().find(|info| info.name == name).unwrap();
    setup.fs.snapshots().id(&info).unwrap()
}

/// All frames, without a prologue.
pub(crate) fn stream(setup: &Setup, from: Option<&str>, to: &str) -> Vec<Vec<u8>> {
    let from = from.map(|name| id_of(setup, name));
    let mut stream = SendStream::new(&setup.fs, from.as_ref(), &id_of(setup, to)).unwrap();
    let mut frames = Vec::new();
    while let Some(frame) = stream.next_frame().unwrap() {
        frames.push(frame);
    }
    frames
}

pub(crate) fn begin_of(
    frames: &[Vec<u8>],
    setup: &Setup,
    from: Option<&str>,
    to: &str,
) -> (Begin, StreamReader) {
    let from = from.map(|name| id_of(setup, name));
    let stream = SendStream::new(&setup.fs, from.as_ref(), &id_of(setup, to)).unwrap();
    let begin = stream.begin().clone();
    assert!(!frames.is_empty());
    let reader = StreamReader::new(stream.stream());
    (begin, reader)
}

fn take(setup: &mut Setup, begin: &Begin, bytes: &[u8], rollback: bool) -> Result<Received, ReceiveError> {
    Receiver::new(&setup.fs).check(begin, rollback)?;
    let received =
        Receiver::new(&setup.fs).receive(StreamReader::new(begin.stream()), &mut &bytes[..], rollback)?;
    setup.reopen();
    Ok(received)
}

/// Sends and receives.
pub(crate) fn pass_on(
    source: &Setup,
    from: Option<&str>,
    to: &str,
    target: &mut Setup,
    rollback: bool,
) -> Result<Received, ReceiveError> {
    let frames = stream(source, from, to);
    let (begin, _) = begin_of(&frames, source, from, to);
    take(target, &begin, &frames.concat(), rollback)
}

pub(crate) type Content = BTreeMap<(String, Vec<u8>), Bytes>;

/// Every record that a reader shows, but for the file system's own and what belongs to orphans.
fn content(store: &dyn Store, read: &dyn Read) -> Content {
    let mut all = Content::new();
    let mut orphans = BTreeSet::new();
    for info in store.keyspaces() {
        let mut cursor = read.cursor(info.keyspace, KeyRange::all()).unwrap();
        cursor.next().unwrap();
        while let Some((key, value)) = cursor.entry() {
            if info.name == KEYSPACES[3] {
                orphans.insert(key.to_vec());
            } else if info.name != KEYSPACES[0] || !key.starts_with(&[0; 8]) {
                all.insert((info.name.clone(), key.to_vec()), value.clone());
            }
            cursor.next().unwrap();
        }
    }
    let belongs = |keyspace: &str, key: &[u8]| {
        [KEYSPACES[1], KEYSPACES[2], "\u{1}clones"].contains(&keyspace) && orphans.contains(&key[..8])
    };
    all.retain(|(keyspace, key), _| !belongs(keyspace, key));
    all
}

pub(crate) fn snapshot_content(setup: &Setup, name: &str) -> Content {
    content(&*setup.store, &*setup.store.open_snapshot(name).unwrap())
}

pub(crate) fn main_content(setup: &Setup) -> Content {
    content(&*setup.store, &*setup.store.snapshot().unwrap())
}

#[track_caller]
fn assert_same(a: &Content, b: &Content, context: &str) {
    let differing: Vec<_> = a.keys().chain(b.keys()).filter(|key| a.get(key) != b.get(key)).take(5).collect();
    assert!(differing.is_empty(), "{context}: {differing:?}");
}

pub(crate) fn change_keys(setup: &Setup, random: &mut Random) {
    for (name, keys) in [("tags", 40), ("counts", 5)] {
        let (entry, _) = setup.keys().make_keyspace(name, OWNER).unwrap();
        for _ in 0..20 {
            let key = format!("key {}", random.below(keys));
            let value = (!random.one_in(3)).then(|| Bytes::from(vec![random.next() as u8; 300]));
            setup.keys().set(&setup.caller, entry.keyspace, key.as_bytes(), value).unwrap();
        }
    }
}

/// A chain of snapshots of random work arrives in another store, and one made there comes back.
fn passes_on_random_work(source: Setup, mut target: Setup, seed: u64) {
    let mut random = Random::new(seed);
    let mut driver = Driver::new(source, seed, 20_000);
    let mut before: Option<&str> = None;
    for name in ["one", "two", "three"] {
        driver.run(120);
        change_keys(&driver.setup, &mut random);
        driver.setup.store.create_snapshot(name).unwrap();
        let context = format!("seed {seed}, {name}");
        pass_on(&driver.setup, before, name, &mut target, false).unwrap_or_else(|e| panic!("{context}: {e}"));
        let sent = snapshot_content(&driver.setup, name);
        assert_same(&sent, &snapshot_content(&target, name), &context);
        assert_same(&sent, &main_content(&target), &context);
        assert_eq!(id_of(&driver.setup, name), id_of(&target, name), "{context}");
        target.assert_sound(&context);
        before = Some(name);
    }
    assert_eq!(target.keys().keyspace("tags").unwrap().unwrap().owner, OWNER);
    // What the new owner of the files makes of them goes back, over what the source's reaper did meanwhile.
    let context = format!("seed {seed}, back");
    let dir = target.dir(ROOT, "from the target");
    let file = target.file(dir, "file");
    target.write_at(file, 0, &[5; 9000]).unwrap();
    change_keys(&target, &mut random);
    target.store.create_snapshot("four").unwrap();
    let mut source = driver.setup;
    source.reopen();
    pass_on(&target, Some("three"), "four", &mut source, false).unwrap_or_else(|e| panic!("{context}: {e}"));
    assert_same(&snapshot_content(&target, "four"), &main_content(&source), &context);
    source.assert_sound(&context);
    // Numbers that arrived are not given out again.
    let inode = source.getattr(&source.caller, source.file(ROOT, "newer")).unwrap().inode;
    assert!(inode > file.0, "{context}: {inode}");
    source.assert_sound(&context);
}

#[test]
fn a_snapshot_is_the_same_in_the_store_that_received_it() {
    for seed in 1..=20 {
        passes_on_random_work(model(1), model(2), seed);
    }
}

#[test]
fn a_snapshot_is_the_same_in_the_store_that_received_it_over_the_engine() {
    for seed in 101..=106 {
        let memtable_bytes = if seed % 2 == 0 { 16 << 10 } else { 1 << 20 };
        let source = engine::setup([1; 16], memtable_bytes, 200);
        let target = engine::setup([2; 16], 64 << 10, 4096);
        passes_on_random_work(source, target, seed);
    }
}

#[test]
fn what_is_open_without_a_name_is_not_sent() {
    let (source, mut target) = (model(1), model(2));
    let file = source.file(ROOT, "open");
    source.write_at(file, 0, &[1; 9000]).unwrap();
    let temporary = source.tmpfile(&source.caller, ROOT, 0o600, true).unwrap().node;
    source.write_at(temporary, 0, &[2; 9000]).unwrap();
    source.store.create_snapshot("one").unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    target.assert_sound("without the temporary file");
    // One loses its name and keeps its content, the other gets a name.
    source.unlink(&source.caller, ROOT, b"open").unwrap();
    source.link(&source.caller, temporary, ROOT, b"named").unwrap();
    source.store.create_snapshot("two").unwrap();
    pass_on(&source, Some("one"), "two", &mut target, false).unwrap();
    target.assert_sound("with the named one");
    assert_same(&snapshot_content(&source, "two"), &main_content(&target), "two");
    let named = target.lookup(&target.caller, ROOT, b"named").unwrap().node;
    assert_eq!(target.read_all(named), vec![2; 9000]);
    assert_eq!(source.read_all(file), vec![1; 9000]);
}

#[test]
fn a_store_that_has_gone_on_is_refused_or_rolled_back() {
    let (source, mut target) = (model(1), model(2));
    let file = source.file(ROOT, "file");
    source.write_at(file, 0, b"one").unwrap();
    source.store.create_snapshot("one").unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    source.write_at(file, 0, b"two").unwrap();
    source.store.create_snapshot("two").unwrap();
    target.file(ROOT, "mine");
    let here = target.lookup(&target.caller, ROOT, b"file").unwrap().node;
    target.unlink(&target.caller, ROOT, b"file").unwrap();
    target.forget(here, 1);
    target.housekeep().unwrap();
    let before = main_content(&target);
    let refused = pass_on(&source, Some("one"), "two", &mut target, false);
    assert!(matches!(&refused, Err(ReceiveError::Changed(name)) if name == "one"), "{refused:?}");
    assert_same(&before, &main_content(&target), "refused");
    let received = pass_on(&source, Some("one"), "two", &mut target, true).unwrap();
    assert!(received.rolled_back);
    assert_same(&snapshot_content(&source, "two"), &main_content(&target), "rolled back");
    target.assert_sound("rolled back");
    let back = target.lookup(&target.caller, ROOT, b"file").unwrap().node;
    assert_eq!((target.read_all(back), back), (b"two".to_vec(), file), "the same inode");
}

#[test]
fn reading_the_receiving_store_is_no_change_of_it() {
    let (source, mut target) = (model(1), model(2));
    let file = source.file(ROOT, "file");
    source.write_at(file, 0, b"one").unwrap();
    source.store.create_snapshot("one").unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    target.clock.advance(std::time::Duration::from_secs(1_000_000));
    let here = target.lookup(&target.caller, ROOT, b"file").unwrap().node;
    target.read_all(here);
    target.list(ROOT, 10, false);
    target.housekeep().unwrap();
    let received = snapshot_content(&target, "one");
    assert!(main_content(&target) != received, "the access times were written");
    source.write_at(source.file(ROOT, "new"), 0, b"two").unwrap();
    source.store.create_snapshot("two").unwrap();
    let received = pass_on(&source, Some("one"), "two", &mut target, false).unwrap();
    assert!(!received.rolled_back);
    assert_same(&snapshot_content(&source, "two"), &main_content(&target), "two");
}

#[test]
fn a_stream_is_refused_where_it_does_not_belong() {
    let (source, mut target, mut other) = (model(1), model(2), model(3));
    source.file(ROOT, "file");
    source.store.create_snapshot("one").unwrap();
    source.file(ROOT, "new");
    source.store.create_snapshot("two").unwrap();
    other.file(ROOT, "something else");
    let refused = pass_on(&source, None, "one", &mut other, false);
    assert!(matches!(refused, Err(ReceiveError::NotEmpty)), "{refused:?}");
    // One of the same name is another one.
    other.store.create_snapshot("one").unwrap();
    let refused = pass_on(&source, Some("one"), "two", &mut other, true);
    assert!(matches!(&refused, Err(ReceiveError::Unfounded(name)) if name == "one"), "{refused:?}");
    let refused = pass_on(&source, None, "one", &mut other, false);
    assert!(matches!(&refused, Err(ReceiveError::NameTaken(name)) if name == "one"), "{refused:?}");
    let refused = pass_on(&source, Some("one"), "two", &mut target, false);
    assert!(matches!(refused, Err(ReceiveError::Unfounded(_))), "not the first one first: {refused:?}");
    target.fs.branches().create("mine", 0).unwrap();
    let refused = pass_on(&source, None, "one", &mut target, false);
    assert!(matches!(refused, Err(ReceiveError::Branches)), "{refused:?}");
    target.fs.branches().delete(&target.branch("mine")).unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    let refused = pass_on(&source, None, "one", &mut target, false);
    assert!(matches!(refused, Err(ReceiveError::Present(_))), "{refused:?}");
    // A new one that takes the name has another identity.
    let sent = id_of(&target, "one");
    target.store.delete_snapshot("one").unwrap();
    target.file(ROOT, "mine");
    target.store.create_snapshot("one").unwrap();
    // The model's clock stands still, so it is the position that tells them apart here as well.
    assert_eq!(sent.store, [1; 16]);
    assert!(target.fs.snapshots().find(&SnapshotId { position: 1 << 40, ..sent }).unwrap().is_none());
}

#[test]
fn a_stream_is_the_same_at_any_time_and_goes_on_at_any_frame() {
    let mut source = engine::setup([1; 16], 16 << 10, 200);
    let file = source.file(ROOT, "file");
    source.write_at(file, 0, &vec![1; 900_000]).unwrap();
    source.store.create_snapshot("one").unwrap();
    source.keys().make_keyspace("tags", OWNER).unwrap();
    source.write_at(file, 100_000, &vec![2; 700_000]).unwrap();
    source.store.create_snapshot("two").unwrap();
    for from in [None, Some("one")] {
        let first = stream(&source, from, "two");
        assert!(first.len() >= 4, "{} frames", first.len());
        source.file(ROOT, if from.is_none() { "later" } else { "still later" });
        source.keys().make_keyspace("made later", OWNER).unwrap();
        source.reopen();
        assert!(stream(&source, from, "two") == first, "another stream, from {from:?}");
        let from_id = from.map(|name| id_of(&source, name));
        let mut offset = 0;
        for (index, frame) in first.iter().enumerate() {
            let mut resumed = SendStream::new(&source.fs, from_id.as_ref(), &id_of(&source, "two")).unwrap();
            resumed.skip_to(offset).unwrap();
            assert_eq!(resumed.next_frame().unwrap().as_ref(), Some(frame), "frame {index}");
            let (stream, to) = (resumed.stream(), id_of(&source, "two"));
            assert_eq!(source.fs.snapshots().find_stream(stream).unwrap(), Some((from_id, to)));
            let mut wrong = SendStream::new(&source.fs, from_id.as_ref(), &to).unwrap();
            assert!(matches!(wrong.skip_to(offset + 1), Err(FsError::Invalid(_))));
            offset += frame.len() as u64;
        }
    }
}

#[test]
fn a_damaged_stream_changes_nothing() {
    let source = model(1);
    let mut random = Random::new(77);
    let mut driver = Driver::new(source, 77, 20_000);
    driver.run(100);
    change_keys(&driver.setup, &mut random);
    driver.setup.store.create_snapshot("one").unwrap();
    let frames = stream(&driver.setup, None, "one");
    let (begin, _) = begin_of(&frames, &driver.setup, None, "one");
    let whole = frames.concat();
    let mut target = model(2);
    let empty = main_content(&target);
    for round in 0..300 {
        let mut bytes = whole.clone();
        let at = random.below(whole.len() as u64) as usize;
        let truncated = round % 3 == 0;
        if truncated {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << random.below(8);
        }
        let refused = take(&mut target, &begin, &bytes, false);
        match refused {
            Err(ReceiveError::Stream(StreamError::Truncated { .. })) => {}
            Err(ReceiveError::Stream(StreamError::Damaged { .. })) if !truncated => {}
            other => panic!("seed 77, round {round}, byte {at}: {other:?}"),
        }
        assert_same(&empty, &main_content(&target), "after damage");
        assert!(target.store.named_snapshots().is_empty());
    }
    // Frames in another order, left out, or twice.
    for order in [vec![0, 2, 1], vec![0, 2], vec![0, 1, 1], vec![1], vec![0, 0]] {
        let bytes = order.iter().flat_map(|&index: &usize| frames[index].clone()).collect::<Vec<u8>>();
        let refused = take(&mut target, &begin, &bytes, false);
        assert!(refused.is_err(), "{order:?}");
        assert_same(&empty, &main_content(&target), "after another order");
    }
    take(&mut target, &begin, &whole, false).unwrap();
    assert_same(&snapshot_content(&driver.setup, "one"), &main_content(&target), "whole");
}

#[test]
fn a_reader_ends_well_whatever_comes() {
    let source = model(1);
    source.write_at(source.file(ROOT, "file"), 0, &[1; 5000]).unwrap();
    source.store.create_snapshot("one").unwrap();
    let frames = stream(&source, None, "one");
    let (begin, mut reader) = begin_of(&frames, &source, None, "one");
    let bytes = frames.concat();
    let mut rest = &bytes[..];
    let mut last = None;
    while let Some(frame) = reader.next(&mut rest).unwrap() {
        last = Some(frame);
    }
    assert!(matches!(last, Some(Frame::End)) && rest.is_empty() && reader.position() == bytes.len() as u64);
    assert!(reader.next(&mut rest).unwrap().is_none(), "it stays there");
    let mut other = StreamReader::new(kvfs_fs::transfer::StreamId([9; 16]));
    assert!(matches!(other.next(&mut &bytes[..]), Err(StreamError::Damaged { .. })), "another stream");
    assert_ne!(begin.stream(), kvfs_fs::transfer::StreamId([9; 16]));
}

/// A crash at any event of a receipt leaves the state before it or all of it, with the snapshot's name.
#[test]
fn a_crash_leaves_what_is_received_wholly_or_not_at_all() {
    for (seed, memtable_bytes) in [(1, 1 << 20), (2, 16 << 10)] {
        let mut driver = Driver::new(model(1), seed, 20_000);
        driver.run(60);
        let source = &driver.setup;
        source.write_at(source.file(ROOT, "cloned"), 0, &vec![3; 90_000]).unwrap();
        txn(source, |view| assert!(clone(view, (ROOT, "cloned"), (ROOT, "clone")).is_ok()));
        source.store.create_snapshot("one").unwrap();
        let device = Arc::new(CrashDevice::in_memory(0, engine::CAPACITY_BYTES).with_log().unwrap());
        engine::create_on(&device, [2; 16]);
        let db = engine::open(&device, memtable_bytes, Background::Manual);
        let mut target = Setup::with(Arc::clone(&db) as _, 200, MountOptions::default());
        let again = Arc::clone(&db);
        target.reopen_store = Some(Box::new(move || Arc::clone(&again) as _));
        db.sync(db.position()).unwrap();
        let events = device.events_len();
        let before = main_content(&target);
        pass_on(source, None, "one", &mut target, false).unwrap();
        let sent = snapshot_content(source, "one");
        let (mut was_before, mut was_after) = (0, 0);
        let last = device.events_len();
        let step = ((last - events) / 60).max(1);
        for event in (events..=last).step_by(step).chain([last]) {
            for mode in [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Any] {
                let context = format!("seed {seed}, event {event} of {events}..={last}, {mode:?}");
                let image = Arc::new(device.image_at(event, seed + event as u64, mode).unwrap());
                let db = engine::open(&image, memtable_bytes, Background::Manual);
                let options = MountOptions::default();
                let fs = FileSystem::open(Arc::clone(&db) as _, target.clock.clone(), options).unwrap();
                let store: Arc<dyn Store> = Arc::clone(&db) as _;
                let found = content(&*store, &*store.snapshot().unwrap());
                match &store.named_snapshots()[..] {
                    [] => {
                        was_before += 1;
                        assert_same(&before, &found, &context);
                    }
                    [info] => {
                        was_after += 1;
                        assert_same(&sent, &found, &context);
                        assert_eq!(fs.snapshots().id(info).unwrap(), id_of(source, "one"), "{context}");
                        let reader = store.open_snapshot("one").unwrap();
                        assert_same(&sent, &content(&*store, &*reader), &context);
                    }
                    other => panic!("{context}: {other:?}"),
                }
                let report = kvfs_fs::check::check(&store).unwrap();
                assert!(report.problems.is_empty(), "{context}: {:?}", report.problems);
            }
        }
        assert!(was_before > 0 && was_after > 0, "seed {seed}: {was_before} and {was_after}");
        db.apply(kvfs_store::Batch::new(), Durability::Buffered).ok();
    }
}

#[test]
fn stream_with_a_circle_of_directories_is_refused() {
    let (source, mut target) = (model(1), model(2));
    let a = source.dir(ROOT, "a");
    let b = source.dir(a, "b");
    source.file(b, "file");
    let row_key = |directory: u64, name: &str| -> Bytes {
        [&directory.to_be_bytes()[..], b"\0", name.as_bytes()].concat().into()
    };
    let meta = source.store.keyspaces().into_iter().find(|info| info.name == "meta").unwrap().keyspace;
    let to_a = source.store.get(meta, &row_key(ROOT.0, "a")).unwrap().unwrap();
    let mut batch = kvfs_store::Batch::new();
    batch.delete(meta, row_key(ROOT.0, "a"));
    batch.put(meta, row_key(b.0, "up"), to_a);
    source.store.apply(batch, Durability::Buffered).unwrap();
    source.store.create_snapshot("hostile").unwrap();
    let refused = pass_on(&source, None, "hostile", &mut target, false);
    assert!(matches!(refused, Err(ReceiveError::NoTree(_))), "{refused:?}");
    target.assert_sound("after it was refused");
    assert!(target.store.named_snapshots().is_empty());
    assert!(
        target.list(ROOT, 10, false).iter().all(|entry| entry.name.starts_with(b".")),
        "nothing has come"
    );
}

/// Whatever the entries say that a difference leaves as they are.
#[test]
fn stream_with_a_directory_in_two_places_is_refused() {
    // In an inode's row (docs/FORMAT.md).
    const PARENT: std::ops::Range<usize> = 48..56;
    let key = |directory: NodeId, name: &str| -> Bytes {
        [&directory.0.to_be_bytes()[..], b"\0", name.as_bytes()].concat().into()
    };
    let (source, mut target) = (model(1), model(2));
    let a = source.dir(ROOT, "a");
    let b = source.dir(a, "b");
    source.store.create_snapshot("one").unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    let meta = source.store.keyspaces().into_iter().find(|info| info.name == "meta").unwrap().keyspace;
    let row = |directory: NodeId, name: &str| source.store.get(meta, &key(directory, name)).unwrap().unwrap();
    let below = |directory: NodeId, parent: NodeId| {
        let mut own = row(directory, "").to_vec();
        own[PARENT].copy_from_slice(&parent.0.to_le_bytes());
        own
    };
    let mut batch = kvfs_store::Batch::new();
    batch.delete(meta, key(ROOT, "a"));
    batch.put(meta, key(ROOT, "b"), row(a, "b"));
    batch.put(meta, key(b, "a"), row(ROOT, "a"));
    batch.put(meta, key(a, ""), below(a, b));
    batch.put(meta, key(b, ""), below(b, ROOT));
    source.store.apply(batch, Durability::Buffered).unwrap();
    source.store.create_snapshot("two").unwrap();
    let refused = pass_on(&source, Some("one"), "two", &mut target, false);
    assert!(matches!(refused, Err(ReceiveError::NoTree(_))), "{refused:?}");
    target.assert_sound("after it was refused");
}

#[test]
fn rows_that_claim_more_blocks_than_there_are_numbers_are_findings() {
    // In an inode's row (docs/FORMAT.md).
    const BLOCKS: std::ops::Range<usize> = 40..48;
    let setup = model(1);
    let meta = setup.store.keyspaces().into_iter().find(|info| info.name == "meta").unwrap().keyspace;
    let mut batch = kvfs_store::Batch::new();
    for name in ["a", "b"] {
        setup.write_at(setup.file(ROOT, name), 0, &vec![7; 100_000]).unwrap();
        let key: Bytes = [&ROOT.0.to_be_bytes()[..], b"\0", name.as_bytes()].concat().into();
        let mut row = setup.store.get(meta, &key).unwrap().unwrap().to_vec();
        row[BLOCKS].copy_from_slice(&u64::MAX.to_le_bytes());
        batch.put(meta, key, row);
    }
    setup.store.apply(batch, Durability::Buffered).unwrap();
    let report = kvfs_fs::check::check(&setup.store).unwrap();
    let claims = report
        .problems
        .iter()
        .filter(|problem| problem.to_string().contains("it counts 18446744073709551615"));
    assert_eq!(claims.count(), 2, "{:?}", report.problems);
}

#[test]
fn deep_tree_is_checked_sent_received_and_compared() {
    // Deeper than paths are told whole: up to there each line costs more than the one before.
    const DEPTH: usize = 10_000;
    let (source, mut target) = (model(1), model(2));
    source.store.create_snapshot("empty").unwrap();
    let mut at = ROOT;
    for _ in 0..DEPTH {
        at = source.dir(at, "d");
    }
    source.store.create_snapshot("deep").unwrap();
    source.assert_sound("a deep tree");
    pass_on(&source, None, "deep", &mut target, false).unwrap();
    target.assert_sound("a deep tree that was received");
    let view = |name: &str| source.fs.view_of(source.store.open_snapshot(name).unwrap()).unwrap();
    let lines = diff_from(&view("deep"), &view("empty")).unwrap();
    let longest = lines.iter().map(|line| line.place.len()).max().unwrap();
    // Names of one byte: from here on paths begin with a number.
    assert!((8000..9000).contains(&lines.iter().filter(|line| line.place.starts_with(b"/")).count()));
    assert!(lines.len() >= DEPTH && longest < 17 << 10, "{} {longest}", lines.len());
}

#[test]
fn received_files_are_wished_to_lie_where_they_were() {
    let (source, mut target) = (model(1), model(2));
    let set = |setup: &Setup, node, words: &[u8]| {
        setup.setxattr(&setup.caller, node, TIER_ATTRIBUTE, words, XattrMode::Set).unwrap();
    };
    set(&source, ROOT, b"slow");
    let (a, b) = (source.file(ROOT, "a"), source.file(ROOT, "b"));
    source.store.create_snapshot("one").unwrap();
    set(&source, a, b"fast");
    set(&source, b, b"auto");
    source.store.create_snapshot("two").unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    assert_eq!(told(&target.store), [(a.0, Tier::Slow), (b.0, Tier::Slow)]);
    pass_on(&source, Some("one"), "two", &mut target, false).unwrap();
    assert_eq!(told(&target.store), [(a.0, Tier::Fast)]);
    target.assert_sound("after both");
}

#[test]
fn a_keyspace_that_was_dropped_is_dropped_where_it_was_received() {
    for key in [Some(&b"key"[..]), None] {
        let (source, mut target) = (model(1), model(2));
        for name in ["tags", "kept"] {
            let (entry, _) = source.keys().make_keyspace(name, OWNER).unwrap();
            let value = key.map(|_| Bytes::from_static(b"value"));
            source.keys().set(&source.caller, entry.keyspace, key.unwrap_or(b"none"), value).unwrap();
        }
        source.store.create_snapshot("one").unwrap();
        source.keys().drop_keyspace(&source.caller, "tags", |_| Ok(())).unwrap();
        source.store.create_snapshot("two").unwrap();
        pass_on(&source, None, "one", &mut target, false).unwrap();
        assert!(target.keys().keyspace("tags").unwrap().is_some());
        pass_on(&source, Some("one"), "two", &mut target, false).unwrap();
        let left: Vec<_> = target.keys().keyspaces().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["kept"], "{key:?}");
        target.assert_sound("after both");
    }
}

#[test]
fn stream_to_a_store_without_what_receiving_takes_is_refused_before_its_content_comes() {
    let source = model(1);
    source.snapshots().create("s", false).unwrap();
    let plain = Recorder { inner: ModelStore::new(), history: Mutex::default() };
    let target = Setup::with(Arc::new(plain) as Arc<dyn Store>, 100, MountOptions::default());
    let (begin, _) = begin_of(&stream(&source, None, "s"), &source, None, "s");
    let refused = Receiver::new(&target.fs).check(&begin, false).unwrap_err();
    assert!(refused.to_string().contains("has no transactions"), "{refused}");
}
