use std::{cmp::Reverse, ops::Range, sync::atomic::AtomicBool};

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, KeyRange, Records};

use super::*;
use crate::memtable::{
    BlockState, Merger, block_key,
    testing::{Append, Rng, for_seeds},
};

const TUPLES: Keyspace = Keyspace(1);
const BLOCKS: Keyspace = Keyspace(2);

fn kind_of(keyspace: Keyspace) -> KeyspaceKind {
    if keyspace == BLOCKS { KeyspaceKind::Block } else { KeyspaceKind::Tuple }
}

fn new_table() -> (Arc<Accountant>, Arc<MemTable>) {
    let accountant = Accountant::new(1 << 30);
    (Arc::clone(&accountant), Arc::new(MemTable::new(&accountant)))
}

fn merger() -> Merger {
    Merger::new("rows", Some(Arc::new(Append)))
}

/// The history as it was given; every question walks all of it.
#[derive(Default)]
struct Model {
    ops: Vec<(Seqno, Op)>,
}

impl Model {
    fn get(&self, wanted: &[u8], snapshot: Seqno) -> Option<Bytes> {
        let mut value: Option<Bytes> = None;
        for (_, op) in self.ops.iter().filter(|(seqno, _)| *seqno <= snapshot) {
            match op {
                Op::Put { key, value: new, .. } if key == wanted => value = Some(new.clone()),
                Op::Delete { key, .. } if key == wanted => value = None,
                Op::DeleteRange { start, end, .. } if start <= wanted && wanted < &end[..] => value = None,
                Op::Merge { key, operand, .. } if key == wanted => {
                    value = Some([&value.unwrap_or_default()[..], operand].concat().into());
                }
                _ => {}
            }
        }
        value
    }

    fn block(&self, prefix: &[u8], block: u64, snapshot: Seqno) -> Option<Vec<u8>> {
        let wanted = block_key(prefix, block);
        let mut value: Option<Vec<u8>> = None;
        for (_, op) in self.ops.iter().filter(|(seqno, _)| *seqno <= snapshot) {
            match op {
                Op::PutBlocks { prefix: p, first, data, .. } if p == prefix => {
                    if let Some(at) = block.checked_sub(*first).map(|at| at as usize * BLOCK_BYTES) {
                        value = data.get(at..at + BLOCK_BYTES).map(<[u8]>::to_vec).or(value);
                    }
                }
                Op::PatchBlock { prefix: p, block: b, offset, data, .. } if p == prefix && *b == block => {
                    let old = value.get_or_insert_with(|| vec![0; BLOCK_BYTES]);
                    old[usize::from(*offset)..][..data.len()].copy_from_slice(data);
                }
                Op::Delete { key, .. } if key[..] == wanted => value = None,
                Op::DeleteRange { start, end, .. } if start <= &wanted && &wanted < end => value = None,
                _ => {}
            }
        }
        value
    }
}

fn tuple_key(rng: &mut Rng) -> Bytes {
    format!("k{:02}", rng.below(30)).into()
}

fn tuple_op(rng: &mut Rng, seqno: Seqno) -> Op {
    let (keyspace, key) = (TUPLES, tuple_key(rng));
    match rng.below(8) {
        0 | 1 => Op::Delete { keyspace, key },
        2 => Op::DeleteRange { keyspace, start: key, end: tuple_key(rng) },
        3 | 4 => Op::Merge { keyspace, key, operand: format!("+{seqno}").into() },
        _ => Op::Put { keyspace, key, value: format!("={seqno}").into() },
    }
}

fn block_op(rng: &mut Rng) -> Op {
    let keyspace = BLOCKS;
    let prefix = if rng.below(2) == 0 { "a" } else { "ab" };
    let (first, count) = (rng.below(20), 1 + rng.below(6));
    match rng.below(9) {
        6.. => {
            let offset = rng.below(BLOCK_BYTES as u64 - 1);
            let is_long = rng.below(4) == 0;
            let len = 1 + rng.below(if is_long { BLOCK_BYTES as u64 - offset } else { 1 });
            Op::PatchBlock {
                keyspace,
                prefix: prefix.into(),
                // Few blocks, so that they are patched again and again.
                block: rng.below(3),
                offset: offset as u16,
                data: vec![1 + rng.below(255) as u8; len as usize].into(),
                compression: Compression::None,
            }
        }
        0 => Op::Delete { keyspace, key: block_key(prefix.as_bytes(), first).into() },
        1 => Op::DeleteRange {
            keyspace,
            start: block_key(prefix.as_bytes(), first).into(),
            end: block_key(prefix.as_bytes(), first + count).into(),
        },
        _ => {
            let data: Vec<u8> =
                (0..count).flat_map(|_| [1 + rng.below(255) as u8].repeat(BLOCK_BYTES)).collect();
            Op::PutBlocks {
                keyspace,
                prefix: prefix.into(),
                first,
                data: data.into(),
                compression: Compression::None,
            }
        }
    }
}

fn random_history(rng: &mut Rng, make: impl Fn(&mut Rng, Seqno) -> Op) -> (Arc<MemTable>, Model) {
    let (_, table) = new_table();
    let mut model = Model::default();
    let mut base = 1;
    for _ in 0..40 {
        let mut batch = Batch::new();
        for _ in 0..=rng.below(4) {
            let seqno = base + batch.len() as u64;
            let op = make(rng, seqno);
            model.ops.push((seqno, op.clone()));
            batch.push(op);
        }
        table.apply(&batch, base, kind_of);
        base += batch.len() as u64;
    }
    (table, model)
}

#[test]
fn lookups_agree_with_the_model_at_every_snapshot() {
    for_seeds(40, |rng| {
        let (table, model) = random_history(rng, tuple_op);
        let (_, newest) = table.seqno_range().unwrap();
        for snapshot in (0..=newest).step_by(3) {
            for n in 0..30 {
                let key = format!("k{n:02}");
                let mut lookup = Lookup::new(key.as_bytes(), snapshot);
                table.lookup(TUPLES.0, &mut lookup);
                let expected = model.get(key.as_bytes(), snapshot);
                assert_eq!(lookup.finish(&merger()).unwrap(), expected, "{key} at {snapshot}");
            }
        }
    });
}

#[test]
fn fills_agree_with_the_model_at_every_snapshot() {
    for_seeds(25, |rng| {
        let (table, model) = random_history(rng, |rng, _| block_op(rng));
        let (_, newest) = table.seqno_range().unwrap();
        for snapshot in (0..=newest).step_by(5) {
            for prefix in ["a", "ab", "b"] {
                let is_patched = rng.below(2) == 0;
                let first = rng.below(if is_patched { 2 } else { 10 });
                let mut buf = vec![0xee; 12 * BLOCK_BYTES];
                let mut fill = BlockFill::new(prefix.as_bytes(), first, snapshot, &mut buf);
                table.fill(BLOCKS.0, &mut fill);
                let states = fill.finish().expect("is readable");
                for (at, block) in buf.chunks(BLOCK_BYTES).enumerate() {
                    let expected = model.block(prefix.as_bytes(), first + at as u64, snapshot);
                    assert_eq!(states[at] == BlockState::Data, expected.is_some());
                    let expected = expected.unwrap_or_else(|| vec![0; BLOCK_BYTES]);
                    assert!(*block == expected[..], "{prefix} {at} at {snapshot}");
                }
            }
        }
    });
}

/// One block, and what it is after each of `count` patches with deletes and puts in between now and then.
fn patched_history(rng: &mut Rng, count: u64) -> (Arc<Accountant>, Arc<MemTable>, Vec<Vec<u8>>) {
    let (accountant, table) = new_table();
    let mut states = vec![vec![0; BLOCK_BYTES]];
    for seqno in 1..=count {
        let mut state = states.last().unwrap().clone();
        let mut batch = Batch::new();
        match rng.below(150) {
            0 => {
                batch.delete(BLOCKS, block_key(b"f", 7));
                state = vec![0; BLOCK_BYTES];
            }
            1 => {
                state = vec![seqno as u8; BLOCK_BYTES];
                batch.put_blocks(BLOCKS, "f", 7, state.clone());
            }
            _ => {
                let (offset, len) = (rng.below(4000), 1 + rng.below(96));
                state[offset as usize..(offset + len) as usize].fill(seqno as u8);
                batch.patch_block(BLOCKS, "f", 7, offset as u16, vec![seqno as u8; len as usize]);
            }
        }
        table.apply(&batch, seqno, kind_of);
        states.push(state);
    }
    (accountant, table, states)
}

fn read_block(table: &MemTable, snapshot: Seqno) -> Vec<u8> {
    let mut buf = vec![0xee; BLOCK_BYTES];
    let mut fill = BlockFill::new(b"f", 7, snapshot, &mut buf);
    table.fill(BLOCKS.0, &mut fill);
    fill.finish().expect("is readable");
    buf
}

#[test]
fn what_reads_keep_of_long_chains_is_right_for_every_snapshot() {
    for_seeds(12, |rng| {
        let (accountant, table, states) = patched_history(rng, 600);
        let before = table.bytes();
        for _ in 0..300 {
            let snapshot = rng.below(601);
            assert!(read_block(&table, snapshot) == states[snapshot as usize], "at {snapshot}");
        }
        assert!(table.bytes() > before, "something was kept");
        assert_eq!(accountant.used(Pool::Memtable), table.memory_bytes());
    });
}

#[test]
fn a_block_that_is_patched_without_end_costs_a_read_no_more_than_the_last_patches() {
    let (_, table) = new_table();
    for seqno in 1..=20_000_u64 {
        let mut batch = Batch::new();
        batch.patch_block(BLOCKS, "f", 7, (seqno % 500) as u16, seqno.to_be_bytes().to_vec());
        table.apply(&batch, seqno, kind_of);
        // Without folds these are 10^8 patches; the test would not come to its end.
        if seqno % 2 == 0 {
            assert_eq!(read_block(&table, seqno)[(seqno % 500) as usize..][..8], seqno.to_be_bytes());
        }
    }
    // 20 000 patches, and a fold for every 33 of them.
    let patches = 20_000 * (8 + 4 + 9 + 144 + 64);
    assert!(table.bytes() <= patches + 20_000 / 32 * 1024, "{} bytes", table.bytes());
}

#[test]
fn block_put_without_end_costs_a_read_no_more_than_its_last_puts() {
    let (_, table) = new_table();
    let count = 20_000;
    let block = Bytes::from(vec![7; BLOCK_BYTES]);
    let put = |seqno, number| {
        let mut batch = Batch::new();
        batch.put_blocks(BLOCKS, "f", number, block.clone());
        table.apply(&batch, seqno, kind_of);
    };
    put(1, 6);
    put(2, 8);
    (3..=count).for_each(|seqno| put(seqno, 7));
    let present = |first, blocks, snapshot| {
        let mut buf = vec![0; blocks * BLOCK_BYTES];
        let mut fill = BlockFill::new(b"f", first, snapshot, &mut buf);
        table.fill(BLOCKS.0, &mut fill);
        fill.finish().expect("reads").iter().filter(|&&state| state == BlockState::Data).count()
    };
    // Step by step these are 10^9 puts; the test would not come to its end.
    for at in 0..20_000 {
        assert_eq!([present(7, 1, count), present(6, 3, count)], [1, 3]);
        assert_eq!([present(6, 2, 1), present(6, 3, 2), present(6, 3, 3 + at % 9)], [1, 2, 3]);
    }
}

#[test]
fn searches_pass_over_the_patches_of_a_block_that_they_do_not_want() {
    let (_, table) = new_table();
    let patch = |seqno, block| {
        let mut batch = Batch::new();
        batch.patch_block(BLOCKS, "f", block, 9, "abcd");
        table.apply(&batch, seqno, kind_of);
    };
    let count = 20_000;
    (1..=count).for_each(|seqno| patch(seqno, 7));
    let mut batch = Batch::new();
    batch.put_blocks(BLOCKS, "f", 8, vec![1; BLOCK_BYTES]);
    table.apply(&batch, count + 1, kind_of);
    let (newest, merger) = (count + 1, merger());
    let blocks = |first| Records::Blocks { prefix: "f".into(), first, count: 9 };
    let found = |since, first| {
        let records = blocks(first);
        let mut walk = ChangeWalk::conflict(&records, since, &merger);
        table.walk_changes(BLOCKS.0, &mut walk);
        walk.into_found().map(|(_, seqno)| seqno)
    };
    let changed = |older, newer| {
        let mut walk = ChangeWalk::ranges(KeyRange::all(), older, newer);
        table.walk_changes(BLOCKS.0, &mut walk);
        walk.finish().ranges.into_iter().map(|range| range.start).collect::<Vec<_>>()
    };
    let key = |block| Bytes::from(block_key(b"f", block));
    // Step by step these are 10^9 patches; the test would not come to its end.
    for _ in 0..10_000 {
        assert_eq!([found(newest, 0), found(count, 0)], [None, Some(newest)]);
        assert_eq!(changed(count, newest), [key(8)]);
        assert_eq!(changed(5, 7), [key(7)]);
        assert_eq!(next_block(&table, b"f", 0..u64::MAX, 3), Some(7));
    }
    assert_eq!([found(count - 1, 0), found(3, 0), found(3, 8)].map(|found| found.is_some()), [true; 3]);
    assert_eq!(changed(0, newest), [key(7), key(8)]);
    assert!(changed(0, 0).is_empty());
    for seqno in 1..20 {
        assert_eq!(
            [changed(seqno - 1, seqno), changed(count - seqno, count - seqno + 1)],
            [[key(7)], [key(7)]]
        );
    }
}

#[test]
fn a_patch_counts_for_the_flush_as_the_block_that_it_becomes() {
    let (_, table) = new_table();
    let patch = |seqno, block| {
        let mut batch = Batch::new();
        batch.patch_block(BLOCKS, "f", block, 0, "abcd");
        table.apply(&batch, seqno, kind_of);
        table.flush_bytes() - table.bytes()
    };
    assert_eq!([patch(1, 3), patch(2, 3), patch(3, 4), patch(4, 3)].map(|more| more / 4096), [1, 1, 2, 2]);
    table.note_pinned(3);
    assert_eq!([patch(5, 4), patch(6, 4), patch(7, 3)].map(|more| more / 4096), [3, 3, 3]);
    let mut batch = Batch::new();
    batch.put_blocks(BLOCKS, "f", 9, vec![1; BLOCK_BYTES]);
    table.apply(&batch, 8, kind_of);
    // What was put may be bound, and the flush then writes no block but for the patches.
    assert_eq!([patch(9, 9), patch(10, 9)].map(|more| more / 4096), [4, 4]);
}

/// The first block of a prefix in a range that the table holds.
fn next_block(table: &MemTable, prefix: &[u8], blocks: Range<u64>, snapshot: Seqno) -> Option<u64> {
    let mut search = BlockSearch::new(prefix, blocks, snapshot);
    table.search(BLOCKS.0, &mut search);
    search.finish()
}

#[test]
fn next_block_finds_the_first_record_whatever_tombstones_say() {
    let (_, table) = new_table();
    let mut batch = Batch::new();
    batch.put_blocks(BLOCKS, "f", 7, vec![1; 2 * BLOCK_BYTES]);
    batch.delete_range(BLOCKS, "f", "g");
    batch.put_blocks(BLOCKS, "f", 20, vec![1; BLOCK_BYTES]);
    table.apply(&batch, 5, kind_of);
    let next = |from, snapshot| next_block(&table, b"f", from..u64::MAX, snapshot);
    assert_eq!([next(0, 9), next(8, 9), next(9, 9), next(21, 9)], [Some(7), Some(8), Some(20), None]);
    assert_eq!([next(0, 4), next(9, 6)], [None, None]);
    assert_eq!(next_block(&table, b"e", 0..u64::MAX, 9), None);
    assert_eq!([7, 8, 9].map(|end| next_block(&table, b"f", 0..end, 9)), [None, Some(7), Some(7)]);
}

#[test]
fn search_for_a_block_passes_over_what_newer_layers_have_deleted() {
    let layers = [new_table().1, new_table().1, new_table().1];
    let [oldest, older, newest] = &layers;
    let key = |block| block_key(b"f", block);
    let apply = |table: &MemTable, seqno, change: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        change(&mut batch);
        table.apply(&batch, seqno, kind_of);
    };
    apply(oldest, 1, &|batch| batch.put_blocks(BLOCKS, "f", 0, vec![1; 99 * BLOCK_BYTES]));
    apply(older, 2, &|batch| batch.delete_range(BLOCKS, key(0), key(40)));
    apply(older, 3, &|batch| batch.delete(BLOCKS, key(40)));
    apply(newest, 4, &|batch| batch.delete_range(BLOCKS, key(60), Bytes::from("g")));
    // More than are searched one by one, side by side in sets and behind them.
    (0..20).for_each(|at| {
        apply(newest, 5 + at, &|batch| batch.delete_range(BLOCKS, key(59 - at), key(60 - at)));
    });
    apply(newest, 25, &|batch| batch.put_blocks(BLOCKS, "f", 50, vec![1; BLOCK_BYTES]));
    let next = |blocks, snapshot| {
        let mut search = BlockSearch::new(b"f", blocks, snapshot);
        for layer in layers.iter().rev() {
            layer.search(BLOCKS.0, &mut search);
        }
        search.finish()
    };
    assert_eq!([1, 2, 3].map(|snapshot| next(0..99, snapshot)), [Some(0), Some(40), Some(41)]);
    assert_eq!([next(60..99, 3), next(60..99, 4), next(59..99, 4)], [Some(60), None, Some(59)]);
    assert_eq!([next(41..99, 23), next(40..99, 24), next(0..41, 23)], [None, None, None]);
    assert_eq!([next(40..99, 25), next(40..50, 25), next(51..99, 25)], [Some(50), None, None]);
}

#[test]
fn an_iterator_walks_all_records_both_ways() {
    for_seeds(20, |rng| {
        let (table, model) = random_history(rng, tuple_op);
        let mut expected: Vec<(Bytes, Reverse<Seqno>, Bytes)> = model
            .ops
            .iter()
            .filter_map(|(seqno, op)| match op {
                Op::Put { key, value, .. } => Some((key.clone(), Reverse(*seqno), value.clone())),
                Op::Merge { key, operand, .. } => Some((key.clone(), Reverse(*seqno), operand.clone())),
                Op::Delete { key, .. } => Some((key.clone(), Reverse(*seqno), Bytes::new())),
                _ => None,
            })
            .collect();
        expected.sort();
        let mut iter = table.iter(TUPLES.0);
        assert!(iter.record().is_none());
        iter.first().unwrap();
        for (key, Reverse(seqno), value) in &expected {
            let record = iter.record().unwrap();
            assert_eq!((record.key, record.seqno), (&key[..], *seqno));
            assert_eq!(iter.value().unwrap(), value);
            iter.next().unwrap();
        }
        assert!(iter.record().is_none());
        iter.last().unwrap();
        for (key, Reverse(seqno), _) in expected.iter().rev() {
            assert_eq!(iter.record().map(|r| (r.key, r.seqno)), Some((&key[..], *seqno)));
            iter.prev().unwrap();
        }
        assert!(iter.record().is_none());
        for _ in 0..20 {
            let (key, seqno) = (tuple_key(rng), rng.below(100));
            iter.seek(&key, seqno).unwrap();
            let at = expected.partition_point(|r| (&r.0, r.1) < (&key, Reverse(seqno)));
            assert_eq!(iter.record().map(|r| r.seqno), expected.get(at).map(|r| r.1.0));
            iter.seek_before(&key).unwrap();
            let before = expected.iter().rfind(|r| r.0 < key);
            assert_eq!(iter.record().map(|r| r.seqno), before.map(|r| r.1.0));
        }
    });
}

#[test]
fn memory_is_charged_until_the_last_holder_drops() {
    let (accountant, table) = new_table();
    let mut batch = Batch::new();
    batch.put(TUPLES, "k", vec![0; 1000]);
    batch.delete_range(TUPLES, "a", "b");
    table.apply(&batch, 1, kind_of);
    assert_eq!(accountant.used(Pool::Memtable), table.memory_bytes());
    assert!((1000..3000).contains(&table.bytes()));
    assert!((table.bytes()..4000).contains(&table.memory_bytes()));
    assert_eq!((table.keyspaces(), table.seqno_range()), (vec![TUPLES.0], Some((1, 2))));
    let mut iter = table.iter(TUPLES.0);
    drop(table);
    iter.first().unwrap();
    assert_eq!(iter.record().map(|record| record.key), Some(&b"k"[..]));
    assert!(accountant.used(Pool::Memtable) > 0, "the iterator holds the table");
    drop(iter);
    assert_eq!(accountant.used(Pool::Memtable), 0);
}

#[test]
fn what_arenas_have_taken_ahead_is_charged() {
    let (accountant, table) = new_table();
    let mut seqno = 0;
    for keyspace in 0..50 {
        seqno += 1;
        let mut batch = Batch::new();
        batch.put(Keyspace(100 + keyspace), "k", "v");
        table.apply(&batch, seqno, |_| KeyspaceKind::Tuple);
    }
    // A chunk for each keyspace, of which a record takes a part.
    assert_eq!(accountant.used(Pool::Memtable), 50 * 512);
    assert!(table.bytes() < 50 * 128, "{}", table.bytes());
    let before = table.memory_bytes();
    let (mut grown, mut last) = (0, before);
    for number in 0..20_000_u32 {
        seqno += 1;
        let mut batch = Batch::new();
        batch.put(Keyspace(100), number.to_be_bytes().to_vec(), vec![7; 50]);
        table.apply(&batch, seqno, |_| KeyspaceKind::Tuple);
        grown += u64::from(table.memory_bytes() > last);
        last = table.memory_bytes();
        assert!(last >= table.bytes());
    }
    assert!(grown < 30, "by the chunk, and chunks get longer: {grown}");
    assert!(last - table.bytes() < (256 << 10) + 50 * 512, "no more than the rest of a chunk");
    assert_eq!(accountant.used(Pool::Memtable), last);
    drop(table);
    assert_eq!(accountant.used(Pool::Memtable), 0);
}

#[test]
fn an_absent_keyspace_reads_as_empty() {
    let (_, table) = new_table();
    let mut lookup = Lookup::new(b"k", 9);
    table.lookup(77, &mut lookup);
    assert!(!lookup.is_decided());
    let mut iter = table.iter(77);
    iter.first().unwrap();
    assert!(iter.record().is_none() && table.is_empty());
    assert!(table.tombstones(77).is_empty() && table.tombstone_sets(77).is_empty());
}

#[test]
fn a_waiter_for_quiescence_sees_what_the_writers_did() {
    let (_, table) = new_table();
    let guards: Vec<_> = (0..4).map(|_| table.begin_write()).collect();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            table.wait_quiescent();
            table.seqno_range()
        });
        for (n, guard) in guards.into_iter().enumerate() {
            let mut batch = Batch::new();
            batch.put(TUPLES, format!("k{n}"), "v");
            table.apply(&batch, n as u64 + 1, kind_of);
            drop(guard);
        }
        assert_eq!(waiter.join().unwrap(), Some((1, 4)));
    });
}

/// Writers own keys; each batch puts its number into two keys of one writer. At any snapshot below
/// the watermark a reader must find both keys at the same number.
#[test]
fn readers_meet_whole_batches_while_writers_apply() {
    const WRITERS: u64 = 3;
    const BATCHES: u64 = 2_000;
    let (_, table) = new_table();
    let visible = AtomicU64::new(0);
    let next = AtomicU64::new(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (table, visible, next) = (&table, &visible, &next);
                scope.spawn(move || {
                    for n in 1..=BATCHES {
                        let mut batch = Batch::new();
                        batch.put(TUPLES, format!("a{writer}"), n.to_string());
                        batch.put(TUPLES, format!("b{writer}"), n.to_string());
                        let base = next.fetch_add(2, Ordering::Relaxed);
                        table.apply(&batch, base, kind_of);
                        while visible.load(Ordering::Acquire) != base - 1 {
                            std::thread::yield_now();
                        }
                        visible.store(base + 1, Ordering::Release);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut rng = Rng::new(1);
            while !stop.load(Ordering::Relaxed) {
                let snapshot = visible.load(Ordering::Acquire);
                let writer = rng.below(WRITERS);
                let get = |key: String| {
                    let mut lookup = Lookup::new(key.as_bytes(), snapshot);
                    table.lookup(TUPLES.0, &mut lookup);
                    lookup.finish(&merger()).unwrap()
                };
                assert_eq!(get(format!("a{writer}")), get(format!("b{writer}")), "at {snapshot}");
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(table.seqno_range(), Some((1, 2 * WRITERS * BATCHES)));
}
