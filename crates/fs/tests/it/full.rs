//! Opening a file system needs no space: what finds none is left to housekeeping.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_fs::transfer::{Receiver, StreamReader};
use kvfs_fs::{Caller, FsError, Limits, MountOptions, NodeId, QuotaKind, check};
use kvfs_store::model::ModelStore;
use kvfs_store::{
    Batch, Durability, Isolation, Keyspace, KeyspaceKind, Position, Read, Result, SpaceStats, Store,
    StoreError,
};

use crate::engine;
use crate::setup::Setup;
use crate::transfer::{begin_of, model, stream};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const ANNA: (QuotaKind, u32) = (QuotaKind::User, 1000);

/// The state of quotas that were not counted to the end.
const NOT_COUNTED: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

/// A store that refuses everything, deletions too, while it is full to the brim.
struct Brim {
    inner: ModelStore,
    is_full: AtomicBool,
}

impl Read for Brim {
    kvfs_store::pass_on!(inner: get, multi_get, cursor, read_blocks, next_extent);
}

impl Store for Brim {
    kvfs_store::pass_on!(
        inner: open_keyspace, keyspaces, snapshot, sync, position, capabilities, stats, uuid, transactions,
        snapshots, changes
    );

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(StoreError::Full);
        }
        self.inner.apply(batch, durability)
    }

    fn space(&self) -> SpaceStats {
        let space = self.inner.space();
        if self.is_full.load(Ordering::Relaxed) { SpaceStats { available_bytes: 0, ..space } } else { space }
    }
}

fn brim(uuid: u8) -> (Arc<Brim>, Setup) {
    let store = Arc::new(Brim { inner: ModelStore::with_uuid([uuid; 16]), is_full: AtomicBool::new(false) });
    let setup = Setup::with(Arc::clone(&store) as _, 200, MountOptions::default());
    (store, setup)
}

fn quotas_of(store: &Arc<dyn Store>) -> Keyspace {
    store.open_keyspace("\u{1}quota", KeyspaceKind::Tuple, None).unwrap()
}

/// As a crash during the count leaves it, or what was received.
fn forget_count(store: &Arc<dyn Store>) {
    let mut batch = Batch::new();
    batch.put(quotas_of(store), &b"state"[..], NOT_COUNTED.to_vec());
    store.apply(batch, Durability::Buffered).unwrap();
}

fn is_counted(store: &Arc<dyn Store>) -> bool {
    store.get(quotas_of(store), b"state").unwrap().unwrap()[4] == 1
}

fn inodes_of_anna(setup: &Setup) -> i64 {
    setup.quotas().get(ANNA.0, ANNA.1).unwrap().usage.inodes
}

fn fill(store: &Arc<dyn Store>) {
    let filler = store.open_keyspace("filler", KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    let key = store.position().0.to_be_bytes().to_vec();
    batch.put(filler, key, vec![1; (store.space().available_bytes as usize).saturating_sub(10)]);
    store.apply(batch, Durability::Buffered).unwrap();
}

fn make_room(store: &Arc<dyn Store>) {
    let filler = store.open_keyspace("filler", KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.delete_range(filler, &b""[..], vec![0xff; 9]);
    store.apply(batch, Durability::Buffered).unwrap();
}

fn remove(setup: &Setup, name: &str) {
    let file = setup.lookup(&setup.caller, ROOT, name.as_bytes()).unwrap().node;
    setup.unlink(&setup.caller, ROOT, name.as_bytes()).unwrap();
    setup.forget(file, 2);
    setup.housekeep().unwrap();
}

#[test]
fn full_store_opens_before_its_count_has_ended_and_counts_when_there_is_room() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::with_capacity_bytes(1 << 20));
    let mut main = Setup::with(Arc::clone(&store), 100, MountOptions::default());
    main.quotas().turn_on(&|_| {}).unwrap();
    for number in 0..20 {
        main.write_at(main.file(ROOT, &number.to_string()), 0, &[1; 50]).unwrap();
    }
    main.quotas().set(ANNA.0, ANNA.1, Limits { inodes_hard: 22, ..Limits::default() }).unwrap();
    forget_count(&store);
    fill(&store);
    // Each opening after the first one is as after a crash.
    for number in 0..4 {
        main.reopen();
        assert_eq!(inodes_of_anna(&main), 20 - number);
        let made = main.create(&main.caller, ROOT, b"new", 0o644, true);
        assert!(matches!(made, Err(FsError::NoSpace)), "{made:?}");
        remove(&main, &number.to_string());
        assert_eq!(inodes_of_anna(&main), 20 - number - 1);
        fill(&store);
        main.housekeep().unwrap();
        assert!(!is_counted(&store), "there is no room");
    }
    let words = main.quotas().tell_exclusive(&mut []).unwrap_err().to_string();
    assert!(words.contains("waits for space"), "{words}");
    make_room(&store);
    for number in 0..6 {
        main.file(ROOT, &format!("new {number}"));
    }
    let refused = main.create(&main.caller, ROOT, b"more", 0o644, true);
    assert!(matches!(refused, Err(FsError::QuotaExceeded)), "limits count: {refused:?}");
    for _ in 0..2 {
        main.housekeep().unwrap();
        assert!(is_counted(&store));
        assert_eq!(inodes_of_anna(&main), 22);
        main.assert_sound("counted once");
    }
    main.reopen();
    assert_eq!(inodes_of_anna(&main), 22);
    main.quotas().tell_exclusive(&mut []).unwrap();
    main.assert_sound("opened again");
}

#[test]
fn full_store_over_the_engine_opens_before_its_count_has_ended() {
    let mut main = engine::setup([1; 16], 64 << 10, 200);
    main.quotas().turn_on(&|_| {}).unwrap();
    let mut files = 0_i64;
    // What a flush has taken less than was set aside for it is filled, too.
    loop {
        let before = files;
        let refused = loop {
            let made = main.create(&main.caller, ROOT, files.to_string().as_bytes(), 0o644, true);
            match made {
                Ok((entry, _)) => {
                    files += 1;
                    main.write_at(entry.node, 0, &[7; 12_000]).ok();
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, FsError::NoSpace), "{refused:?}");
        if files == before {
            break;
        }
        main.reopen();
    }
    // A repair, or what was received, leaves it so; a deletion is not refused.
    let quotas = quotas_of(&main.store);
    let mut batch = Batch::new();
    batch.delete(quotas, &b"state"[..]);
    batch.put(quotas, &b"state"[..], NOT_COUNTED.to_vec());
    main.store.apply(batch, Durability::Buffered).unwrap();
    for _ in 0..3 {
        main.reopen();
        assert_eq!(inodes_of_anna(&main), files);
        assert!(!is_counted(&main.store), "there is no room");
    }
    for number in 0..files {
        remove(&main, &number.to_string());
    }
    main.file(ROOT, "new");
    main.housekeep().unwrap();
    assert!(is_counted(&main.store));
    main.assert_sound("counted");
    main.reopen();
    assert_eq!(inodes_of_anna(&main), 1);
}

/// A store with a file and quotas, whose count waits for space.
fn with_count_that_waits() -> (Arc<Brim>, Setup) {
    let (brim, mut main) = brim(1);
    main.quotas().turn_on(&|_| {}).unwrap();
    main.file(ROOT, "before");
    forget_count(&main.store);
    brim.is_full.store(true, Ordering::Relaxed);
    main.reopen();
    (brim, main)
}

#[test]
fn what_transactions_change_while_a_count_waits_for_space_is_counted_once() {
    let (brim, main) = with_count_that_waits();
    let store = Arc::clone(&main.store);
    // One is committed before the count is written, and one after it.
    let (first, second) = (begin(&main, Isolation::Snapshot), begin(&main, Isolation::Snapshot));
    brim.is_full.store(false, Ordering::Relaxed);
    assert!(!is_counted(&store));
    for (view, name) in [(&first, &b"first"[..]), (&second, b"second")] {
        view.create(&main.caller, ROOT, name, 0o644, false).unwrap();
    }
    main.file(ROOT, "beside");
    commit(&first).unwrap();
    assert_eq!(inodes_of_anna(&main), 3);
    main.housekeep().unwrap();
    assert!(is_counted(&store));
    main.assert_sound("counted");
    commit(&second).unwrap();
    assert_eq!(inodes_of_anna(&main), 4);
    main.assert_sound("with both");
}

#[test]
fn quotas_that_are_turned_off_while_a_count_waits_for_space_are_not_written() {
    let (brim, main) = with_count_that_waits();
    brim.is_full.store(false, Ordering::Relaxed);
    main.quotas().turn_off().unwrap();
    main.housekeep().unwrap();
    main.file(ROOT, "uncounted");
    main.quotas().turn_on(&|_| {}).unwrap();
    assert_eq!(inodes_of_anna(&main), 2);
    main.assert_sound("counted anew");
}

#[test]
fn orphans_that_find_no_space_keep_no_store_from_being_opened() {
    let (brim, mut main) = brim(1);
    main.quotas().turn_on(&|_| {}).unwrap();
    for number in 0..300 {
        let file = main.file(ROOT, &number.to_string());
        main.write_at(file, 0, &[1; 5000]).unwrap();
        main.unlink(&main.caller, ROOT, number.to_string().as_bytes()).unwrap();
    }
    main.snapshots().create("held", false).unwrap();
    brim.is_full.store(true, Ordering::Relaxed);
    main.reopen();
    assert_eq!((check::check(&main.store).unwrap().orphans, inodes_of_anna(&main)), (300, 300));
    main.snapshots().delete("held").unwrap();
    main.reopen();
    brim.is_full.store(false, Ordering::Relaxed);
    main.housekeep().unwrap();
    assert_eq!((check::check(&main.store).unwrap().orphans, inodes_of_anna(&main)), (0, 0));
    main.assert_sound("reaped");
}

#[test]
fn snapshot_received_by_a_full_store_is_named_once_and_no_later_state_gets_its_name() {
    let has_note = |setup: &Setup| {
        let meta = setup.store.open_keyspace("meta", KeyspaceKind::Tuple, None).unwrap();
        setup.store.get(meta, &[&[0; 9][..], b"receiving"].concat()).unwrap().is_some()
    };
    let source = model(1);
    source.file(ROOT, "file");
    source.snapshots().create("one", false).unwrap();
    let frames = stream(&source, None, "one");
    for is_deleted in [false, true] {
        let (brim, mut target) = brim(2);
        let (begin, _) = begin_of(&frames, &source, None, "one");
        // The transaction has taken the last space.
        brim.is_full.store(true, Ordering::Relaxed);
        let bytes = frames.concat();
        let reader = StreamReader::new(begin.stream());
        Receiver::new(&target.fs).receive(reader, &mut &bytes[..], false).unwrap();
        target.reopen();
        assert!(has_note(&target), "it waits");
        target.lookup(&Caller::default(), ROOT, b"file").unwrap();
        assert_eq!(target.store.named_snapshots().len(), 1);
        let refused = target.snapshots().delete("one");
        assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
        brim.is_full.store(false, Ordering::Relaxed);
        if is_deleted {
            target.snapshots().delete("one").unwrap();
        } else {
            target.housekeep().unwrap();
        }
        assert!(!has_note(&target));
        target.file(ROOT, "later");
        target.reopen();
        assert_eq!(target.store.named_snapshots().len(), usize::from(!is_deleted));
        target.assert_sound("received");
    }
}
