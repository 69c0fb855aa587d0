//! Which runs are merged, and what is in the way.

use std::sync::Arc;

use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, Checkpoints, Compression, Durability, Keyspace, KeyspaceKind, Read,
    Store, Transactions, Txn, TxnId, TxnOptions,
};

use crate::Db;
use crate::testing::small_store;

fn data(db: &Db) -> Keyspace {
    db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens")
}

fn put(first: u64, bytes: Vec<u8>, prefix: &'static str, space: Keyspace) -> Batch {
    let mut batch = Batch::new();
    batch.put_blocks(space, prefix, first, bytes);
    batch
}

fn runs_of(db: &Db, id: TxnId) -> usize {
    let (saved, _) = db.parts.checkpoints.saved(id).expect("is checkpointed");
    saved.runs.all().len()
}

/// A clone of many parts leaves several runs that are told apart by their numbers alone, once they are
/// committed. What is merged of one of them must not come before the others.
#[test]
fn runs_of_one_clone_are_merged_together_or_not_at_all() {
    let db = small_store(300, |options| options.merge.class_bytes_min = 2500 << 10);
    let space = data(&db);
    // Each two blocks of the source lie by themselves.
    for odd in [0, 1] {
        for pair in 0..600 {
            let bytes = vec![100 + odd; 2 * BLOCK_BYTES];
            db.apply(put(4 * pair + 2 * u64::from(odd), bytes, "source", space), Durability::Buffered)
                .expect("applies");
        }
        db.flush().expect("flushes");
    }
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for old in 1..4 {
        let mut batch = Batch::new();
        (0..60).for_each(|at| batch.put_blocks(space, "t", 2 * at, vec![old; BLOCK_BYTES]));
        batch.delete_range(space, "z", "zz");
        txn.apply(batch).expect("applies");
        txn.checkpoint(b"").expect("is checkpointed");
    }
    let clone = |first, count, target_first| BlockClone {
        source: "source".into(),
        first,
        count,
        target: "t".into(),
        target_first,
        compression: Compression::None,
    };
    // The last is taken first, so that what comes of the first is torn where a run is full.
    let singles = (0..511).map(|at| clone(4 * at, 1, 2000 + 2 * at));
    let clones: Vec<_> = [clone(0, 1200, 0)].into_iter().chain(singles).collect();
    txn.clone_blocks(space, &clones).expect("clones");
    txn.checkpoint(b"").expect("is checkpointed");
    let read = |read: &dyn Read| {
        let mut found = vec![0; 3100 * BLOCK_BYTES];
        read.read_blocks(space, b"t", 0, &mut found).expect("reads");
        found.chunks(BLOCK_BYTES).map(|block| block[0]).collect::<Vec<u8>>()
    };
    let expected = read(&*txn);
    assert!(expected[..1200].iter().all(|&fill| fill >= 100));
    let before = runs_of(&db, txn.id());
    db.compact().expect("merges");
    assert_eq!(read(&*txn), expected, "{before} runs, then {}", runs_of(&db, txn.id()));
    txn.commit(Durability::Synced).expect("commits");
    db.flush().expect("adopts");
    assert_eq!(read(&*db), expected);
}

/// Checkpoints of so many blocks each.
fn checkpoints(db: &Db, count: u64, blocks: u64) -> Arc<dyn Txn> {
    let space = data(db);
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for round in 0..count {
        for block in 0..blocks {
            let fill = vec![round as u8; BLOCK_BYTES];
            txn.apply(put(3 * block + round % 3, fill, "f", space)).expect("applies");
        }
        txn.checkpoint(b"").expect("is checkpointed");
    }
    txn
}

#[test]
fn merge_without_room_is_not_begun_and_in_the_way_of_no_other() {
    let db = small_store(120, |_| {});
    let large = checkpoints(&db, 4, 700);
    let small = checkpoints(&db, 20, 2);
    let ids = [large.id(), small.id()];
    let space = data(&db);
    // Most of what is left is taken.
    let mut filled = 0;
    while db.parts.space.space_left() > 6 << 20 {
        let bytes = vec![7; 64 * BLOCK_BYTES];
        db.apply(put(64 * filled, bytes, "filling", space), Durability::Buffered).expect("applies");
        db.flush().expect("flushes");
        filled += 1;
    }
    let written = || db.parts.runtime.ctx.zones.free_bytes(crate::space::Budget::Ordinary);
    let [before, free] = [runs_of(&db, ids[0]) as u64, written()];
    db.compact().expect("merges");
    assert_eq!(runs_of(&db, ids[0]) as u64, before, "there is no room for it");
    assert!(runs_of(&db, ids[1]) < 20, "{} runs", runs_of(&db, ids[1]));
    assert!(free.saturating_sub(written()) < 1 << 20, "nothing is written in vain");
    drop((large, small));
    for id in ids {
        db.resume(id).expect("resumes").abort();
    }
}

#[test]
fn merge_of_what_ends_meanwhile_ends_with_it() {
    let db = small_store(300, |options| options.merge.piece_bytes = 256 << 10);
    let txn = checkpoints(&db, 8, 200);
    let txns = &db.parts.txns;
    let mut pieces = 0;
    let merged = txns.merge_once(&mut || {
        pieces += 1;
        txn.abort();
    });
    assert_eq!((merged.expect("is given up"), pieces), (true, 1));
    assert_eq!(
        db.zone_map().figures().into_iter().find(|(name, _)| name == "data.live_bytes").expect("is told").1,
        0
    );
    let txn = checkpoints(&db, 8, 200);
    assert!(txns.merge_once(&mut || ()).expect("merges"));
    assert!(runs_of(&db, txn.id()) < 8);
}
