use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Change, ChangeCursor, KeyRange};

use super::*;
use crate::cache::Pool;
use crate::memtable::testing::{Append, Rng, for_seeds};

const ROWS: Keyspace = Keyspace(1);
const DATA: Keyspace = Keyspace(2);

fn kind_of(keyspace: Keyspace) -> KeyspaceKind {
    if keyspace == DATA { KeyspaceKind::Block } else { KeyspaceKind::Tuple }
}

fn merger() -> Merger {
    Merger::new("rows", Some(Arc::new(Append)))
}

fn writes() -> PrivateWrites {
    PrivateWrites::new(Accountant::new(1 << 20))
}

fn apply(writes: &mut PrivateWrites, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new();
    fill(&mut batch);
    writes.apply(&batch, kind_of);
}

fn changes(writes: &PrivateWrites, keyspace: Keyspace) -> Vec<Change> {
    let mut cursor = writes.changes_after(PRIVATE, keyspace.0, kind_of(keyspace), merger());
    std::iter::from_fn(|| cursor.next().unwrap()).collect()
}

fn net_batch(writes: &PrivateWrites) -> Batch {
    writes.batch(|keyspace| Ok((kind_of(Keyspace(keyspace)), merger()))).unwrap()
}

#[test]
fn stretches_of_blocks_are_cut_out_of_what_was_written() {
    let mut writes = writes();
    let data =
        |fills: &[u8]| Bytes::from(fills.iter().flat_map(|&fill| [fill; BLOCK_BYTES]).collect::<Vec<_>>());
    let first = data(&[1, 2, 3, 4, 5, 6]);
    apply(&mut writes, |b| b.put_blocks(DATA, "f", 10, first.clone()));
    apply(&mut writes, |b| {
        b.put_blocks(DATA, "f", 12, data(&[7]));
        b.delete(DATA, [&b"f"[..], &14_u64.to_be_bytes()].concat());
        b.put_blocks(DATA, "g", 0, data(&[8]));
    });
    let expected = [
        ("f", 10, vec![1, 2]),
        ("f", 12, vec![7]),
        ("f", 13, vec![4]),
        ("f", 15, vec![6]),
        ("g", 0, vec![8]),
    ];
    let batch = net_batch(&writes);
    let puts = batch.ops().iter().filter_map(|op| match op {
        Op::PutBlocks { prefix, first, data, .. } => {
            let fills: Vec<u8> = data.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
            Some((std::str::from_utf8(prefix).unwrap(), *first, fills))
        }
        _ => None,
    });
    assert_eq!(puts.collect::<Vec<_>>(), expected);
    let Op::PutBlocks { data, .. } = &batch.ops()[0] else { panic!("blocks come first") };
    assert_eq!(data.as_ptr(), first.as_ptr(), "block data is not copied");
    let block = |block: u64| Bytes::from([&b"f"[..], &block.to_be_bytes()].concat());
    assert_eq!(
        changes(&writes, DATA),
        [
            Change::Blocks { prefix: "f".into(), first: 10, count: 4 },
            Change::Delete { key: block(14) },
            Change::Blocks { prefix: "f".into(), first: 15, count: 1 },
            Change::Blocks { prefix: "g".into(), first: 0, count: 1 },
        ]
    );
}

#[test]
fn a_walk_over_the_changes_does_not_see_what_comes_later() {
    let mut writes = writes();
    apply(&mut writes, |b| b.put(ROWS, "b", "1"));
    let mut cursor = writes.changes_after(PRIVATE, ROWS.0, KeyspaceKind::Tuple, merger());
    apply(&mut writes, |b| {
        b.put(ROWS, "a", "2");
        b.put(ROWS, "b", "2");
        b.delete_range(ROWS, "a", "c");
    });
    assert_eq!(cursor.next().unwrap(), Some(Change::Put { key: "b".into(), value: "1".into() }));
    assert_eq!(cursor.next().unwrap(), None);
}

#[test]
fn memory_is_charged_until_the_set_and_its_readers_are_gone() {
    let accountant = Accountant::new(1 << 20);
    let mut writes = PrivateWrites::new(Arc::clone(&accountant));
    assert!(writes.own().is_none());
    apply(&mut writes, |b| b.put(ROWS, "key", vec![0; 10_000]));
    let used = accountant.used(Pool::Memtable);
    let bytes = writes.stats().bytes_memory;
    assert!((10_000..12_000).contains(&used) && (bytes..bytes + 512).contains(&used), "{used}, {bytes}");
    let own = writes.own().unwrap();
    drop(writes);
    assert_eq!(accountant.used(Pool::Memtable), used);
    drop(own);
    assert_eq!(accountant.used(Pool::Memtable), 0);
}

fn random_op(rng: &mut Rng, batch: &mut Batch) {
    let key = |rng: &mut Rng| format!("k{:02}", rng.below(20));
    match rng.below(8) {
        0..=2 => {
            let (key, value) = (key(rng), format!("={}", rng.below(1000)));
            batch.put(ROWS, key, value);
        }
        3 => batch.delete(ROWS, key(rng)),
        4 => {
            let (start, end) = (key(rng), key(rng));
            batch.delete_range(ROWS, start, end);
        }
        _ => {
            let mark = if rng.below(3) == 0 { "!" } else { "+" };
            let (key, operand) = (key(rng), format!("{mark}{}", rng.below(1000)));
            batch.merge(ROWS, key, operand);
        }
    }
}

/// What a table shows on top of nothing.
fn listing(table: &Arc<MemTable>) -> Vec<(Bytes, Bytes)> {
    use crate::iter::{Source, VisibleCursor};
    use kvfs_store::Cursor;
    let source = Source { records: table.iter(ROWS.0), tombstones: table.tombstone_sets(ROWS.0) };
    let mut cursor = VisibleCursor::new(vec![source], Seqno::MAX, KeyRange::all(), merger(), Box::new(()));
    std::iter::from_fn(|| {
        cursor.next().unwrap();
        cursor.entry().map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
    })
    .collect()
}

#[test]
fn the_net_batch_has_the_effect_of_all_batches() {
    for_seeds(200, |rng| {
        let base: Batch = {
            let mut batch = Batch::new();
            for key in 0..20 {
                if rng.below(2) == 0 {
                    batch.put(ROWS, format!("k{key:02}"), format!("base{key}"));
                }
            }
            batch
        };
        let mut writes = writes();
        let [all, net] = [0, 1].map(|_| Arc::new(MemTable::new(&Accountant::new(1 << 20))));
        all.apply(&base, 1, kind_of);
        net.apply(&base, 1, kind_of);
        let mut seqno = 100;
        for _ in 0..rng.below(12) {
            let mut batch = Batch::new();
            for _ in 0..=rng.below(5) {
                random_op(rng, &mut batch);
            }
            all.apply(&batch, seqno, kind_of);
            seqno += batch.len() as u64;
            writes.apply(&batch, kind_of);
        }
        let batch = net_batch(&writes);
        net.apply(&batch, 100, kind_of);
        assert_eq!(listing(&net), listing(&all), "{batch:?}");
        assert!(batch.len() as u64 <= writes.stats().operations + 20);
    });
}
