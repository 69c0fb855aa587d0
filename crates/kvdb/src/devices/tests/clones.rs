//! Clones whose blocks move: between devices and tiers, out of zones that are emptied, under power cuts and
//! lack of space.

use kvfs_store::{BlockClone, Compression, Transactions, TxnOptions};

use super::placement::{wish, wishes};
use super::*;

const SLOW: u32 = 1;
/// One, and its clones.
const TREES: u64 = 6;

/// A block of which half can be packed.
fn block(seed: u64) -> Bytes {
    let mut bytes = vec![7; BLOCK_BYTES];
    let mut rng = Rng::new(seed);
    bytes[..BLOCK_BYTES / 2].chunks_exact_mut(8).for_each(|word| {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    });
    bytes.into()
}

fn prefix(tree: u64) -> Bytes {
    tree.to_be_bytes().to_vec().into()
}

fn key(tree: u64, number: u64) -> Vec<u8> {
    [tree.to_be_bytes(), number.to_be_bytes()].concat()
}

fn clone_of(source: u64, (first, count): (u64, u64), target: u64, target_first: u64) -> BlockClone {
    let (source, target) = (prefix(source), prefix(target));
    BlockClone { source, first, count, target, target_first, compression: Compression::None }
}

fn put(db: &Db, tree: u64, blocks: std::ops::Range<u64>, compression: Compression) {
    for first in blocks.clone().step_by(64) {
        let numbers = first..blocks.end.min(first + 64);
        let data: Vec<u8> = numbers.flat_map(|number| block(tree * 10_000 + number).to_vec()).collect();
        let mut batch = Batch::new();
        batch.put_blocks_packed(files(db), prefix(tree), first, data, compression);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
}

fn commit_clones(db: &Db, clones: &[BlockClone]) {
    let txn = db.begin(TxnOptions::default()).expect("begins");
    txn.clone_blocks(files(db), clones).expect("clones");
    txn.commit(Durability::Synced).expect("commits");
}

/// All trees are the first one, as far as `is_there` says so of tree and block.
fn assert_clones(db: &Db, count: u64, is_there: impl Fn(u64, u64) -> bool) {
    for tree in 0..TREES {
        let mut found = AlignedBuf::zeroed(count as usize * BLOCK_BYTES);
        db.read_blocks(files(db), &prefix(tree), 0, found.as_mut()).expect("reads");
        for (number, found) in (0..).zip(found.as_ref().chunks(BLOCK_BYTES)) {
            let expected = if is_there(tree, number) { block(number) } else { vec![0; BLOCK_BYTES].into() };
            assert!(found == &expected[..], "block {number} of {tree}");
        }
    }
    let checked = db.check().expect("checks");
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}

fn with_slow() -> (Arc<Db>, Arc<dyn Device>) {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    let slow = memory(SLOW_BYTES);
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    (db, slow)
}

fn zones_in_use(db: &Db, id: u32) -> u64 {
    let device = db.devices().into_iter().find(|device| device.id == id).expect("is there");
    (device.bytes_total - device.bytes_free) / ZONE_BYTES
}

fn drain_all(db: &Db) {
    let is_empty = db.drain_device(SLOW, &mut |_| true).expect("drains");
    assert!(is_empty, "{:?}", db.devices());
}

/// How many blocks a tree has, and each of its clones: 40 zones.
const COUNT: u64 = 40 * 64;

/// Zones that a tree and its clones take on the first device when `drain` has drained the slow one.
fn drained(compression: Compression, change: impl Fn(&Db), drain: impl Fn(&Db)) -> (Arc<Db>, u64) {
    let (db, _slow) = with_slow();
    put(&db, 0, 0..COUNT, compression);
    db.flush().expect("flushes");
    let clones: Vec<_> =
        (1..TREES).map(|tree| BlockClone { compression, ..clone_of(0, (0, COUNT), tree, 0) }).collect();
    commit_clones(&db, &clones);
    change(&db);
    let before = zones_in_use(&db, 0);
    drain(&db);
    db.remove_device(SLOW).expect("removes");
    let taken = zones_in_use(&db, 0) - before;
    (db, taken)
}

#[test]
fn drain_right_after_a_clone_copies_once_what_is_shared() {
    for (compression, taken_max) in [(Compression::None, 46), (Compression::Lz4, 36)] {
        let (db, taken) = drained(compression, |_| (), drain_all);
        assert!(taken <= taken_max, "{taken} zones are taken, {compression:?}");
        assert_clones(&db, COUNT, |_, _| true);
    }
}

#[test]
fn drain_in_many_parts_copies_once_what_is_shared() {
    let in_parts = |db: &Db| {
        for _ in 0..500 {
            let mut pieces = 0;
            let goes_on = &mut |_| {
                pieces += 1;
                pieces < 4
            };
            if db.drain_device(SLOW, goes_on).expect("drains") {
                return;
            }
        }
        panic!("{:?}", db.devices());
    };
    let (db, taken) = drained(Compression::None, |_| (), in_parts);
    assert!(taken <= 48, "{taken} zones are taken for 40 of data");
    assert_clones(&db, COUNT, |_, _| true);
}

#[test]
fn drain_of_clones_that_were_changed_in_parts_copies_once_what_they_share() {
    // One has the beginnings of what others have, another one the ends, and so on.
    let gone = |tree: u64, first: u64| {
        let from = first + (tree * 7 + first / 64 * 3) % 24;
        from..from + tree * 5
    };
    let change = |db: &Db| {
        for tree in 0..TREES {
            let mut batch = Batch::new();
            for gone in (0..COUNT).step_by(64).map(|first| gone(tree, first)) {
                batch.delete_range(files(db), key(tree, gone.start), key(tree, gone.end));
            }
            db.apply(batch, Durability::Synced).expect("applies");
        }
        db.flush().expect("flushes");
    };
    let (db, taken) = drained(Compression::None, change, drain_all);
    assert!(taken <= 46, "{taken} zones are taken for 40 of data");
    assert_clones(&db, COUNT, |tree, number| !gone(tree, number / 64 * 64).contains(&number));
}

#[test]
fn migration_copies_once_what_clones_share() {
    for (compression, taken_max) in [(Compression::None, 46), (Compression::Lz4, 36)] {
        let (db, _slow) = with_slow();
        wishes(&db);
        put(&db, 0, 0..COUNT, compression);
        db.flush().expect("flushes");
        let clones: Vec<_> =
            (1..TREES).map(|tree| BlockClone { compression, ..clone_of(0, (0, COUNT), tree, 0) }).collect();
        commit_clones(&db, &clones);
        for (tier, device) in [(Tier::Fast, 0), (Tier::Slow, SLOW), (Tier::Fast, 0)] {
            let before = zones_in_use(&db, device);
            for tree in 0..TREES {
                db.apply(wish(&db, tree, Some(tier)), Durability::Synced).expect("is noted");
            }
            assert!(db.migrate(&mut |_| true).expect("migrates"), "{:?}", db.devices());
            let taken = zones_in_use(&db, device) - before;
            assert!(taken <= taken_max, "{taken} zones are taken on {device}, {compression:?}");
            // Metadata of a piece may lie with what it was made of.
            assert_eq!(live(&db, 1) > 64 << 10, tier == Tier::Slow, "all is on {tier:?}");
            assert_clones(&db, COUNT, |_, _| true);
        }
    }
}

#[test]
fn migration_of_one_of_many_clones_leaves_the_others_where_they_are() {
    let (db, _slow) = with_slow();
    wishes(&db);
    put(&db, 0, 0..COUNT, Compression::None);
    db.flush().expect("flushes");
    commit_clones(&db, &(1..TREES).map(|tree| clone_of(0, (0, COUNT), tree, 0)).collect::<Vec<_>>());
    let on_slow = live(&db, 1);
    for (tree, tier) in [(2, Tier::Fast), (4, Tier::Fast), (2, Tier::Slow), (4, Tier::Slow)] {
        let before = zones_in_use(&db, 0);
        db.apply(wish(&db, tree, Some(tier)), Durability::Synced).expect("is noted");
        assert!(db.migrate(&mut |_| true).expect("migrates"), "{:?}", db.devices());
        let taken = zones_in_use(&db, 0).saturating_sub(before);
        let taken_max = if (tree, tier) == (2, Tier::Fast) { 46 } else { 4 };
        assert!(taken <= taken_max, "{taken} zones are taken when {tree} goes to {tier:?}");
        assert!(live(&db, 1) >= on_slow / TREES * (TREES - 2), "the others stay");
        assert_clones(&db, COUNT, |_, _| true);
    }
}
