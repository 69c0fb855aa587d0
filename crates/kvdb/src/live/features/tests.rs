//! The version in the superblocks, through all its changes and crashes in them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_device::{CrashDevice, CrashMode, Device, MemoryDevice};
use kvfs_store::clock::ManualClock;
use kvfs_store::{
    Batch, BlockClone, Checkpoints, Compress, Compression, Durability, Keyspace, KeyspaceKind, Op, Store,
    Tier, Transactions, TxnOptions,
};

use crate::format::{Feature, Features, Superblock};
use crate::journal::{Journal, JournalArea};
use crate::version::{Edit, manifest};
use crate::{Background, CreateOptions, Db, DefragLimit, DefragPolicy, Options};

const ZONE_BYTES: u32 = 64 << 10;
const CAPACITY: u64 = 60 * ZONE_BYTES as u64;

fn create(device: &Arc<dyn Device>) {
    let create = CreateOptions {
        zone_bytes: ZONE_BYTES,
        journal_bytes: Some(512 << 10),
        ..CreateOptions::new(CAPACITY, [7; 16])
    };
    Db::create(Arc::clone(device), &create).expect("creates");
}

fn open(device: &Arc<dyn Device>) -> Arc<Db> {
    let options = Options {
        background: Background::Manual,
        bind_bytes_min: 16 << 10,
        ..Options::with_memory(64 << 20)
    };
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    Db::open(Arc::clone(device), options, clock).expect("opens")
}

fn data(db: &Db) -> Keyspace {
    db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens")
}

fn patch(db: &Db) {
    let mut batch = Batch::new();
    batch.patch_block(data(db), "f", 1, 7, "abcd");
    db.apply(batch, Durability::Buffered).expect("applies");
}

fn write(db: &Db) {
    let mut batch = Batch::new();
    batch.put_blocks(data(db), "f", 1, vec![7; 4096]);
    db.apply(batch, Durability::Buffered).expect("applies");
}

fn bind(db: &Db) {
    let mut batch = Batch::new();
    batch.put_blocks(data(db), "f", 1, vec![7; 4 * 4096]);
    db.apply(batch, Durability::Buffered).expect("applies");
}

/// Blocks one after the other, each by itself, and each in parts.
fn gather(db: &Db) {
    for number in 0..5 {
        let mut batch = Batch::new();
        batch.put_blocks(data(db), "f", number, vec![7; 4096]);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
}

fn gather_parts(db: &Db) {
    for part in 0..10 {
        let mut batch = Batch::new();
        batch.patch_block(data(db), "f", part / 2, (part % 2 * 2048) as u16, vec![7; 2048]);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
}

fn pack(db: &Db) {
    db.set_compression(data(db), Compression::Lz4).expect("sets");
}

/// Files of which every second one is deleted, then moved together.
fn defragment(db: &Db) {
    for file in 0..16 {
        let mut batch = Batch::new();
        batch.put_blocks(data(db), vec![file], 0, vec![file; 4 * 4096]);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
    db.flush().expect("flushes");
    for file in (0..16_u8).step_by(2) {
        let mut batch = Batch::new();
        batch.delete_range(data(db), vec![file], vec![file, 0xff]);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
    db.flush().expect("flushes");
    db.defragment(DefragPolicy::Rewrite, &DefragLimit::default(), &mut |_| true).expect("moves");
}

fn clone(db: &Db) {
    let mut batch = Batch::new();
    batch.put_blocks(data(db), "source", 0, vec![7; 4 * 4096]);
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    let (source, target) = ("source".into(), "target".into());
    let clone =
        BlockClone { source, first: 0, count: 4, target, target_first: 0, compression: Compression::None };
    let txn = db.begin(TxnOptions::default()).expect("begins");
    txn.clone_blocks(data(db), &[clone]).expect("clones");
    txn.commit(Durability::Synced).expect("commits");
}

/// A checkpoint, and another transaction with the same runs.
fn fork(db: &Db) {
    let txn = db.begin(TxnOptions::default()).expect("begins");
    let mut batch = Batch::new();
    batch.put_blocks(data(db), "f", 0, vec![7; 4096]);
    txn.apply(batch).expect("applies");
    txn.checkpoint(b"").expect("is checkpointed");
    db.fork(txn.id(), &|_| Bytes::new()).expect("forks");
    // Not that there is nothing any more.
    txn.suspend();
}

fn add_device(db: &Db) {
    let device = Arc::new(MemoryDevice::growable(CAPACITY, CAPACITY));
    db.add_device(device, Tier::Slow).expect("adds");
}

fn version(device: &dyn Device) -> u32 {
    Superblock::read_newest(device).expect("reads").format_version
}

/// What the journal, from its tail on, and the manifest have in fact.
fn held(device: &dyn Device) -> Features {
    let superblock = Superblock::read_newest(device).expect("reads");
    let mut features = Features::default();
    let mut pieces = HashSet::new();
    let look = |edit: &Edit| match edit {
        Edit::DropPiece { .. } | Edit::RecordMerge { .. } => features = features.with(Feature::Steps),
        Edit::AddMember(_) => features = features.with(Feature::Members),
        // Of these lives, only clones prepare runs, and forks behind them.
        Edit::PrepareRun { .. } => features = features.with(Feature::Clones),
        Edit::AddPiece { piece, .. } if !pieces.insert(piece.id) => features = features.with(Feature::Forks),
        _ => {}
    };
    let state = manifest::read_state(device, &superblock, look).expect("is whole");
    if state.keyspaces.values().any(|keyspace| keyspace.compression != Compression::None) {
        features = features.with(Feature::Packed);
    }
    let area = JournalArea::of(&superblock);
    let mut look = |replayed: crate::journal::Replayed| {
        for op in replayed.batch.ops() {
            match op {
                Op::PatchBlock { .. } => features = features.with(Feature::Patches),
                Op::PutBlocks { compression, .. } if *compression != Compression::None => {
                    features = features.with(Feature::Packed);
                }
                _ => {}
            }
        }
        for (at, _) in &replayed.places {
            features = features.with(Feature::Bound);
            if matches!(replayed.batch.ops()[*at], Op::PatchBlock { .. }) {
                features = features.with(Feature::BoundPatches);
            }
        }
        Ok(())
    };
    let from = (state.journal_tail, state.flushed_seqno);
    Journal::replay(device, area, superblock.epoch + 1, from, &mut look).expect("replays");
    features
}

/// One step of a store's life, and the version that it leaves.
type Step = (fn(&Db), u32);

fn live(steps: &[Step], versions_closed: u32) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
    create(&device);
    let crash = Arc::new(CrashDevice::over(device).with_log().expect("is copied"));
    let device: Arc<dyn Device> = crash.clone();
    let db = open(&device);
    data(&db);
    for (step, left) in steps {
        step(&db);
        db.sync(db.position()).expect("syncs");
        assert_eq!(version(device.as_ref()), *left);
    }
    db.close().expect("closes");
    drop(db);
    assert_eq!(version(device.as_ref()), versions_closed);
    assert!(
        Feature::OF_JOURNAL.iter().all(|&feature| !held(device.as_ref()).has(feature)),
        "the journal is empty"
    );
    for event in 0..=crash.events_len() {
        for (seed, mode) in CrashMode::EACH.into_iter().enumerate() {
            let image: Arc<dyn Device> = Arc::new(crash.image_at(event, seed as u64, mode).expect("is made"));
            let (told, needed) = (version(image.as_ref()), held(image.as_ref()).version());
            assert!(told >= needed, "event {event}, {mode:?}: version {told}, holds what needs {needed}");
            // The next life ends in order, and leaves what any program of that version reads. One of several
            // devices needs all of them.
            if event % 16 == 0 && !held(image.as_ref()).has(Feature::Members) {
                open(&image).close().expect("closes");
                // What came with a version and may stay for good does, where its crash leaves open whether
                // there is any.
                let staying = match told {
                    ..=4 => 2,
                    5..=7 | 9 => told,
                    _ => 7,
                };
                assert!(version(image.as_ref()) <= staying);
                assert!(version(image.as_ref()) >= held(image.as_ref()).version());
            }
        }
    }
}

#[test]
fn nothing_is_held_that_the_superblocks_do_not_announce() {
    live(&[(write, 1)], 1);
    live(&[(patch, 3), (write, 3)], 1);
    live(&[(pack, 2), (write, 2)], 2);
    live(&[(pack, 2), (patch, 3)], 2);
    live(&[(patch, 3), (pack, 3), (patch, 3)], 2);
    live(&[(bind, 4), (write, 4)], 1);
    live(&[(patch, 3), (bind, 4), (patch, 4)], 1);
    live(&[(bind, 4), (pack, 4), (patch, 4)], 2);
    live(&[(write, 1), (gather, 4), (write, 4)], 1);
    live(&[(patch, 3), (gather_parts, 8), (patch, 8)], 1);
    live(&[(pack, 2), (gather_parts, 3)], 2);
    live(&[(defragment, 5), (write, 5)], 5);
    live(&[(add_device, 6), (write, 6)], 6);
    live(&[(clone, 7), (gather_parts, 8)], 7);
    live(&[(clone, 7), (fork, 9), (gather_parts, 9)], 9);
}

#[test]
fn patches_that_are_in_runs_but_not_retired_from_the_journal_keep_their_version() {
    // The group with the patch was open when its table was sealed: the journal's tail stays before it.
    live(
        &[(
            |db| {
                patch(db);
                db.flush().expect("flushes");
            },
            3,
        )],
        1,
    );
    live(
        &[(
            |db| {
                patch(db);
                db.flush().expect("flushes");
                write(db);
            },
            3,
        )],
        1,
    );
}

#[test]
fn a_patch_after_the_version_went_back_is_refused_or_announced_anew() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, CAPACITY));
    create(&device);
    let db = open(&device);
    patch(&db);
    db.sync(db.position()).expect("syncs");
    db.flush().expect("flushes");
    db.parts.sequencer.withdraw_features_of_journal().expect("is empty");
    assert_eq!(version(device.as_ref()), 1);
    patch(&db);
    assert_eq!(version(device.as_ref()), 3);
    db.parts.sequencer.withdraw_features_of_journal().expect("does nothing");
    assert_eq!(version(device.as_ref()), 3, "the journal has one");
}
