//! Forks of checkpointed transactions: what they take, that neither side depends on the other, and that
//! whatever becomes of one leaves the other as it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_device::{AlignedBuf, Device, MemoryDevice, Rng, SECTOR_BYTES};
use kvfs_kvdb::{Db, DefragLimit, DefragPolicy, Options, repair};
use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, Change, Checkpoints, Durability, Isolation, KeyRange, Keyspace, Read,
    Records, Store, Tier, Touch, Transactions, Txn, TxnId, TxnOptions,
};

use crate::basics::{data, make, open, rows, stat};
use crate::checkpoints::{Content, content};
use crate::clones::{assert_clean, clone, remove};
use crate::repair::{SPACES, used_sectors};

const ZONES: u64 = 200;

fn fork(db: &Db, id: TxnId) -> TxnId {
    db.fork(id, &|_| "fork".into()).expect("forks")
}

/// Blocks of a file, each of its own content.
fn blocks(seed: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; count as usize * BLOCK_BYTES];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn apply(txn: &dyn Txn, write: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    write(&mut batch);
    txn.apply(batch).expect("applies");
}

fn read_file(read: &dyn Read, data: Keyspace, prefix: &str, count: u64) -> Vec<u8> {
    let mut found = vec![0; count as usize * BLOCK_BYTES];
    read.read_blocks(data, prefix.as_bytes(), 0, &mut found).expect("reads");
    found
}

fn free_bytes(db: &Db) -> u64 {
    stat(db, "zones.free") * (256 << 10)
}

fn live_bytes(db: &Db) -> u64 {
    let figures: BTreeMap<_, _> = db.zone_map().figures().into_iter().collect();
    figures["data.live_bytes"]
}

/// So that most batches are spilled at once.
fn spilling(options: &mut Options) {
    options.private_bytes = 1;
    options.memtable_bytes = 64 << 10;
}

fn defragment(db: &Db) {
    db.defragment(DefragPolicy::Rewrite, &DefragLimit::default(), &mut |_| true).expect("moves");
}

#[test]
fn forks_take_no_space_and_give_back_all_of_it_with_the_last_one() {
    const BLOCKS: u64 = 2048;
    let device = make(ZONES);
    let mut db = open(&device, |_| {});
    let (rows, space) = (rows(&db), data(&db));
    let mut batch = Batch::new();
    batch.put(rows, "before", "1");
    db.apply(batch, Durability::Synced).expect("applies");
    db.flush().expect("flushes");
    let before_all = free_bytes(&db);
    let content = blocks(1, BLOCKS);
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for first in (0..BLOCKS).step_by(64) {
        let part = first as usize * BLOCK_BYTES..(first as usize + 64) * BLOCK_BYTES;
        apply(&*txn, |batch| batch.put_blocks(space, "f", first, content[part].to_vec()));
    }
    txn.checkpoint(b"").expect("is checkpointed");
    let mut ids = vec![txn.id()];
    drop(txn);
    let before = free_bytes(&db);
    for _ in 0..20 {
        ids.push(fork(&db, *ids.last().expect("not empty")));
    }
    let taken = before - free_bytes(&db);
    assert!(taken <= 1 << 20, "20 forks of 8 MiB take {taken} bytes");
    assert_clean(&db, "with forks");
    assert_eq!(stat(&db, "txn.open"), 0);
    for is_reopened in [false, true] {
        if is_reopened {
            db.close().expect("closes");
            drop(db);
            db = open(&device, |_| {});
            assert_clean(&db, "opened again");
        }
        for _ in 0..10 {
            let txn = db.resume(ids.remove(ids.len() / 2)).expect("resumes");
            assert!(read_file(&*txn, space, "f", BLOCKS) == content);
            txn.abort();
        }
        assert_clean(&db, "after half of them");
    }
    let last = db.resume(ids[0]).expect("is left");
    assert!(read_file(&*last, space, "f", BLOCKS) == content);
    last.abort();
    db.flush().expect("flushes");
    let lost = before_all.saturating_sub(free_bytes(&db));
    assert!(lost <= 1 << 20, "{lost} bytes are not free again");
    assert_clean(&db, "after all of them");
}

/// Both are committed with the same pieces, so these are counted from two positions in one keyspace.
#[test]
fn a_fork_and_what_it_came_of_are_both_committed_and_merged() {
    for order in 0..2 {
        let device = make(ZONES);
        let db = open(&device, spilling);
        let (rows, space) = (rows(&db), data(&db));
        let txn = db.begin(TxnOptions::default()).expect("begins");
        apply(&*txn, |batch| {
            (0..300).for_each(|row| batch.put(rows, format!("k{row:03}"), format!("begun {row}")));
            batch.put_blocks(space, "f", 0, blocks(1, 200));
        });
        txn.checkpoint(b"").expect("is checkpointed");
        let other = fork(&db, txn.id());
        apply(&*txn, |batch| batch.put(rows, "k007", "parent"));
        txn.checkpoint(b"").expect("is checkpointed");
        let ids = [txn.id(), other];
        drop(txn);
        // A writer between the two is overwritten by the second.
        let [first, second] = if order == 0 { ids } else { [ids[1], ids[0]] };
        db.resume(first).expect("resumes").commit(Durability::Synced).expect("commits");
        let mut between = Batch::new();
        between.put(rows, "k100", "between");
        between.put(rows, "other", "between");
        between.put_blocks(space, "f", 100, blocks(2, 10));
        db.apply(between, Durability::Synced).expect("applies");
        let snapshot = db.snapshot().expect("is made");
        let at = |read: &dyn Read, key: &str| {
            let value = read.get(rows, key.as_bytes()).expect("reads").expect("is there");
            String::from_utf8_lossy(&value).into_owned()
        };
        let check = |db: &Db, when: &str| {
            assert_eq!(
                (at(&*snapshot, "k100"), at(&*snapshot, "k200")),
                ("between".into(), "begun 200".into())
            );
            assert!(
                read_file(&*snapshot, space, "f", 200)[100 * BLOCK_BYTES..][..10 * BLOCK_BYTES]
                    == blocks(2, 10)
            );
            assert_clean(db, when);
        };
        check(&db, "one is committed");
        db.resume(second).expect("resumes").commit(Durability::Synced).expect("commits");
        check(&db, "both are");
        for round in 0..3 {
            match round {
                0 => db.flush().expect("adopts"),
                1 => defragment(&db),
                _ => db.compact().expect("merges"),
            }
            check(&db, &format!("order {order}, round {round}"));
            assert_eq!((at(&*db, "k100"), at(&*db, "other")), ("begun 100".into(), "between".into()));
            assert_eq!(at(&*db, "k007"), if order == 0 { "begun 7" } else { "parent" });
            assert!(read_file(&*db, space, "f", 200) == blocks(1, 200), "order {order}, round {round}");
        }
        drop(snapshot);
        db.close().expect("closes");
        let db = open(&device, spilling);
        assert!(read_file(&*db, space, "f", 200) == blocks(1, 200));
        assert_clean(&db, "opened again");
    }
}

/// Seqnos of a checkpoint count the operations that left no record.
#[test]
fn operations_without_a_record_count_before_a_fork() {
    let device = make(ZONES);
    let db = open(&device, |_| {});
    let rows = rows(&db);
    let txn = db.begin(TxnOptions::default()).expect("begins");
    apply(&*txn, |batch| {
        batch.put(rows, "a", "1");
        batch.delete_range(rows, "x", "b");
    });
    txn.checkpoint(b"").expect("is checkpointed");
    apply(&*txn, |batch| batch.delete_range(rows, "x", "b"));
    txn.checkpoint(b"").expect("is checkpointed");
    let at = txn.stats().operations;
    let child = fork(&db, txn.id());
    assert_eq!((at, db.checkpointed().iter().map(|info| info.operations).collect()), (3, vec![3, 3]));
    let child = db.resume(child).expect("resumes");
    assert_eq!(child.stats().operations, at);
    for txn in [&txn, &child] {
        apply(&**txn, |batch| batch.put(rows, "b", "2"));
        let key = |key: &'static str| Records::Key { key: key.into(), touch: Touch::ALL };
        assert!(txn.changed_after(at, rows, &[key("a")]).expect("looks").is_none());
        assert!(txn.changed_after(at, rows, &[key("a"), key("b")]).expect("looks").is_some());
        let mut changes = txn.changes_after(at, rows).expect("walks");
        assert_eq!(changes.next().expect("walks"), Some(Change::Put { key: "b".into(), value: "2".into() }));
        assert_eq!(changes.next().expect("walks"), None);
        let then = txn.as_of(at).expect("looks");
        assert_eq!(then.get(rows, b"a").expect("reads").as_deref(), Some(&b"1"[..]));
        assert_eq!(then.get(rows, b"b").expect("reads"), None);
        assert!(txn.as_of(at + 2).is_err(), "not yet");
    }
}

/// Much is written after the fork, and the comparison reads nothing of what came before: by the pieces.
#[test]
fn a_merge_of_a_fork_takes_its_blocks_by_reference_and_outlives_it() {
    const BLOCKS: u64 = 1024;
    let device = make(ZONES);
    let db = open(&device, spilling);
    let space = data(&db);
    let parent = db.begin(TxnOptions::default()).expect("begins");
    let mut content = blocks(1, BLOCKS);
    apply(&*parent, |batch| batch.put_blocks(space, "f", 0, content.clone()));
    parent.checkpoint(b"").expect("is checkpointed");
    let child = db.resume(fork(&db, parent.id())).expect("resumes");
    let at = child.stats().operations;
    let new = blocks(2, 700);
    for first in (0..700).step_by(100) {
        let part = new[first * BLOCK_BYTES..(first + 100) * BLOCK_BYTES].to_vec();
        apply(&*child, |batch| batch.put_blocks(space, "f", first as u64 + 50, part));
    }
    child.prepare().expect("prepares");
    apply(&*child, |batch| batch.put_blocks(space, "f", 3, vec![7; BLOCK_BYTES]));
    let mut changes = child.changes_after(at, space).expect("walks");
    let mut clones: Vec<BlockClone> = Vec::new();
    while let Some(change) = changes.next().expect("walks") {
        let Change::Blocks { first, count, .. } = change else { panic!("{change:?}") };
        let records = [Records::Blocks { prefix: "f".into(), first, count }];
        assert!(parent.changed_after(at, space, &records).expect("looks").is_none());
        clones.push(clone("f", (first, count), "f", first));
    }
    assert_eq!(
        clones.iter().map(|clone| (clone.first, clone.count)).collect::<Vec<_>>(),
        [(3, 1), (50, 700)]
    );
    let before = free_bytes(&db);
    let now = child.as_of(child.stats().operations).expect("looks");
    parent.clone_blocks_of(&*now, space, &clones).expect("clones");
    parent.checkpoint(b"").expect("is checkpointed");
    let taken = before - free_bytes(&db);
    assert!(taken <= 1 << 20, "700 blocks take {taken} bytes");
    content[50 * BLOCK_BYTES..750 * BLOCK_BYTES].copy_from_slice(&new);
    content[3 * BLOCK_BYTES..4 * BLOCK_BYTES].fill(7);
    // What it sees stays as long as it is held.
    child.abort();
    db.reclaim().expect("merges");
    assert!(read_file(&*now, space, "f", BLOCKS) == content);
    drop(now);
    let id = parent.id();
    drop(parent);
    db.close().expect("closes");
    let db = open(&device, spilling);
    assert_clean(&db, "opened again");
    let parent = db.resume(id).expect("resumes");
    assert!(read_file(&*parent, space, "f", BLOCKS) == content);
    parent.commit(Durability::Synced).expect("commits");
    db.compact().expect("merges");
    assert!(read_file(&*db, space, "f", BLOCKS) == content);
    remove(&db, space, "f");
    db.compact().expect("merges");
    assert_clean(&db, "removed");
}

/// A transaction at random, as it is and as its checkpoint is, with what it is to hold: values by key, and
/// the seed of each block.
struct Branch {
    id: TxnId,
    now: Content,
}

/// With the beginnings of values.
fn content_of(read: &dyn Read, spaces: (Keyspace, Keyspace)) -> Content {
    let mut content = content(read, spaces);
    content.0.values_mut().for_each(|value| value.truncate(8));
    content
}

fn change(rng: &mut Rng, (rows, space): (Keyspace, Keyspace), content: &mut Content) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..rng.range(1, 12) {
        let key = format!("k{:02}", rng.below(60));
        match rng.below(6) {
            0 => {
                batch.delete(rows, key.clone());
                content.0.remove(&key);
            }
            1 => {
                let end = format!("k{:02}", rng.below(60));
                batch.delete_range(rows, key.clone(), end.clone());
                content.0.retain(|known, _| *known < key || *known >= end);
            }
            2 | 3 => {
                let (first, count, fill) = (rng.below(150), rng.range(1, 30), rng.range(1, 250) as u8);
                batch.put_blocks(space, "f", first, vec![fill; count as usize * BLOCK_BYTES]);
                content.1.extend((first..first + count).map(|block| (block, fill)));
            }
            _ => {
                let value = format!("{:08}", rng.below(100_000_000));
                batch.put(rows, key.clone(), [value.as_bytes(), &[b'.'; 300]].concat());
                content.0.insert(key, value);
            }
        }
    }
    batch
}

/// Whatever is done to space leaves all branches, and the main line, as they are.
#[test]
fn families_of_forks_live_through_merges_emptying_drains_and_openings() {
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let device = make(ZONES);
        let slow: Arc<dyn Device> = Arc::new(MemoryDevice::growable(100 * (256 << 10), 100 * (256 << 10)));
        let mut db = open(&device, spilling);
        let spaces = (rows(&db), data(&db));
        let has_slow = seed % 2 == 1;
        let slow_id = if has_slow { db.add_device(slow, Tier::Slow).expect("adds") } else { 0 };
        let (mut main, mut branches) = (Content::default(), Vec::<Branch>::new());
        for step in 0..100 {
            let at = rng.index(branches.len().max(1));
            match rng.below(14) {
                0 if branches.len() < 8 => {
                    let txn = db.begin(TxnOptions::default()).expect("begins");
                    txn.checkpoint(b"").expect("is checkpointed");
                    branches.push(Branch { id: txn.id(), now: main.clone() });
                }
                1 => db.flush().expect("flushes"),
                2 => db.compact().expect("merges"),
                3 => db.reclaim().expect("empties"),
                4 => defragment(&db),
                5 if has_slow => {
                    db.drain_device(slow_id, &mut |_| true).expect("drains");
                    db.refill_device(slow_id).expect("fills");
                }
                6 if !has_slow => {
                    db.flush().expect("flushes");
                    let live = live_bytes(&db);
                    db.close().expect("closes");
                    db = open(&device, spilling);
                    assert_eq!(live, live_bytes(&db), "seed {seed}, step {step}");
                }
                7 => {
                    let batch = change(&mut rng, spaces, &mut main);
                    db.apply(batch, Durability::Buffered).expect("applies");
                }
                _ if branches.is_empty() => {}
                8 if branches.len() < 8 => {
                    let Branch { id, now } = &branches[at];
                    let (id, now) = (fork(&db, *id), now.clone());
                    branches.push(Branch { id, now });
                }
                9 => {
                    let Branch { id, .. } = branches.remove(at);
                    let txn = db.resume(id).expect("resumes");
                    if rng.chance(1, 2) {
                        txn.abort();
                    } else {
                        txn.commit(Durability::Synced).expect("commits");
                        main = content_of(&*db, spaces);
                    }
                }
                _ => {
                    let Branch { id, now } = &mut branches[at];
                    let txn = db.resume(*id).expect("resumes");
                    txn.apply(change(&mut rng, spaces, now)).expect("applies");
                    assert!(content_of(&*txn, spaces) == *now, "seed {seed}, step {step}");
                    txn.checkpoint(b"").expect("is checkpointed");
                }
            }
            assert!(content_of(&*db, spaces) == main, "seed {seed}, step {step}: the main line");
            if step % 10 == 0 {
                assert_clean(&db, &format!("seed {seed}, step {step}"));
                for Branch { id, now } in &branches {
                    let txn = db.resume(*id).expect("resumes");
                    assert!(content_of(&*txn, spaces) == *now, "seed {seed}, step {step}, transaction {id}");
                }
            }
        }
        for Branch { id, .. } in &branches {
            db.resume(*id).expect("resumes").abort();
        }
        db.flush().expect("flushes");
        assert_clean(&db, &format!("seed {seed}, in the end"));
        if !has_slow {
            let live = live_bytes(&db);
            db.close().expect("closes");
            let db = open(&device, spilling);
            assert_eq!(live, live_bytes(&db), "seed {seed}: what the manifest names, and no more, is live");
        }
    }
}

/// A fork is taken of a whole checkpoint, whatever another thread does to its transaction.
#[test]
fn forks_beside_the_thread_of_the_transaction_hold_whole_checkpoints() {
    let device = make(ZONES);
    let db = open(&device, spilling);
    let (rows, space) = (rows(&db), data(&db));
    for end in 0..4 {
        let txn = db.begin(TxnOptions { isolation: Isolation::Serializable }).expect("begins");
        txn.checkpoint(b"0").expect("is checkpointed");
        let (id, has_ended, has_forked) = (txn.id(), AtomicBool::new(false), AtomicBool::new(false));
        let forks = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1..40_u64 {
                    apply(&*txn, |batch| {
                        batch.put(rows, "round", round.to_string());
                        batch.put_blocks(space, "f", round % 7, vec![round as u8; BLOCK_BYTES]);
                    });
                    txn.checkpoint(round.to_string().as_bytes()).expect("is checkpointed");
                }
                while !has_forked.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                match end {
                    0 => txn.abort(),
                    1 => drop(txn.commit(Durability::Buffered).expect("commits")),
                    _ => txn.suspend(),
                }
                has_ended.store(true, Ordering::Release);
            });
            let mut forks = Vec::new();
            while !has_ended.load(Ordering::Acquire) {
                let owner = std::cell::RefCell::new(Vec::new());
                let forked = db.fork(id, &|info| {
                    *owner.borrow_mut() = info.owner.to_vec();
                    info.owner.clone()
                });
                let Ok(fork) = forked else { break };
                has_forked.store(true, Ordering::Release);
                forks.push((fork, String::from_utf8_lossy(&owner.into_inner()).into_owned()));
            }
            writer.join().expect("writes");
            forks
        });
        assert!(!forks.is_empty());
        for (id, round) in forks {
            let txn = db.resume(id).expect("resumes");
            let value = txn.get(rows, b"round").expect("reads");
            if round != "0" {
                assert_eq!(value.as_deref(), Some(round.as_bytes()));
            }
            txn.abort();
        }
        if end > 1 {
            db.resume(id).expect("is there").abort();
        }
        assert_clean(&db, "after all forks have ended");
    }
}

/// Changes the bytes at each sector where a piece's metadata begins, whatever it is a copy of.
fn damage_indexes(medium: &MemoryDevice) {
    for sector in used_sectors(medium) {
        let at = (sector * SECTOR_BYTES) as u64;
        let mut buf = AlignedBuf::zeroed(SECTOR_BYTES);
        medium.read_at(buf.as_mut(), at).expect("reads");
        if buf.as_ref().starts_with(b"KVpm") {
            buf.as_mut()[60] ^= 0xff;
            medium.write_at(buf.as_ref(), at).expect("writes");
        }
    }
}

/// The same piece in several runs, without an index: each gets what is found of it.
#[test]
fn a_repair_gives_what_it_finds_of_a_shared_piece_to_each_of_its_owners() {
    let medium = Arc::new(MemoryDevice::growable(0, ZONES * (256 << 10)));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    crate::basics::create(&device, ZONES);
    let db = open(&device, |_| {});
    let rows = rows(&db);
    let _ = data(&db);
    let txn = db.begin(TxnOptions::default()).expect("begins");
    apply(&*txn, |batch| {
        (0..500).for_each(|row| batch.put(rows, format!("k{row:03}"), vec![row as u8; 100]));
    });
    txn.checkpoint(b"").expect("is checkpointed");
    let ids = [fork(&db, txn.id()), fork(&db, txn.id()), fork(&db, txn.id())];
    txn.suspend();
    // Two are committed, so one piece is in two runs of the main line, too.
    for id in [txn.id(), ids[0]] {
        db.resume(id).expect("resumes").commit(Durability::Synced).expect("commits");
    }
    db.flush().expect("adopts");
    db.close().expect("closes");
    drop((txn, db));
    let sound = repair(&(Arc::new(medium.fork()) as Arc<dyn Device>), &SPACES).expect("repairs");
    assert!(sound.findings.is_empty() && sound.lost.is_empty(), "{:?}", sound.findings);
    damage_indexes(&medium);
    let repaired = repair(&device, &SPACES).expect("repairs");
    assert!(repaired.lost.is_empty(), "{:?} {:?}", repaired.lost, repaired.findings);
    assert_eq!(repaired.findings.len(), 4, "{:?}", repaired.findings);
    let db = open(&device, |_| {});
    assert_clean(&db, "repaired");
    let count = |read: &dyn Read| content_rows(read, rows);
    assert_eq!(count(&*db), 500);
    // They share what is left, so merges keep apart what came before the fork and after it.
    let txn = db.resume(ids[1]).expect("resumes");
    let at = txn.stats().operations;
    for round in 0..6 {
        apply(&*txn, |batch| batch.put(rows, "k007", vec![7; 100 + round]));
        txn.checkpoint(b"").expect("is checkpointed");
    }
    db.compact().expect("merges");
    assert_eq!(count(&*txn.as_of(at).expect("looks")), 500);
    txn.abort();
    for id in &ids[2..] {
        let txn = db.resume(*id).expect("resumes");
        assert_eq!(count(&*txn), 500);
        txn.abort();
    }
    assert_clean(&db, "without them");
}

fn content_rows(read: &dyn Read, rows: Keyspace) -> usize {
    let mut cursor = read.cursor(rows, KeyRange::all()).expect("opens");
    cursor.first().expect("moves");
    let mut count = 0;
    while let Some((key, value)) = cursor.entry() {
        let number: usize = String::from_utf8_lossy(&key[1..]).parse().expect("a number");
        assert_eq!(value[..], vec![number as u8; 100]);
        count += 1;
        cursor.next().expect("moves");
    }
    count
}

#[test]
fn a_read_only_store_forks_nothing() {
    let device = make(ZONES);
    let db = open(&device, |_| {});
    let space = data(&db);
    let txn = db.begin(TxnOptions::default()).expect("begins");
    apply(&*txn, |batch| batch.put_blocks(space, "f", 0, blocks(1, 2)));
    txn.checkpoint(b"").expect("is checkpointed");
    let id = txn.id();
    drop(txn);
    db.close().expect("closes");
    drop(db);
    let db = open(&device, |options| options.read_only = true);
    assert!(db.fork(id, &|_| "".into()).is_err());
    assert_eq!(db.checkpointed().len(), 1);
}
