//! Block keyspaces: reads of stretches, holes, extents.

use kvfs_store::{BLOCK_BYTES, Extent, ExtentKind, KeyRange, StoreError};

use super::Fixture;

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_BYTES]
}

fn blocks(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().flat_map(|&byte| block(byte)).collect()
}

/// Blocks 2, 3, 4 and 7 of "f", block 0 of "f\0" and of "g".
fn filled() -> Fixture {
    let f = Fixture::new();
    f.apply(|b| {
        b.put_blocks(f.blocks, "f", 2, blocks(&[2, 3, 4]));
        b.put_blocks(f.blocks, "f", 7, block(7));
        b.put_blocks(f.blocks, "f\0", 0, block(100));
        b.put_blocks(f.blocks, "g", 0, block(101));
    });
    f
}

#[test]
fn read_blocks_fills_holes_with_zeros() {
    let f = filled();
    let mut buf = blocks(&[9; 8]);
    f.store.read_blocks(f.blocks, b"f", 1, &mut buf).unwrap();
    assert_eq!(buf, blocks(&[0, 2, 3, 4, 0, 0, 7, 0]));
    f.store.read_blocks(f.blocks, b"absent", 1, &mut buf).unwrap();
    assert_eq!(buf, blocks(&[0; 8]));
}

#[test]
fn blocks_are_values_under_big_endian_keys() {
    let f = filled();
    let mut key = b"f".to_vec();
    key.extend_from_slice(&3u64.to_be_bytes());
    assert_eq!(f.store.get(f.blocks, &key).unwrap().unwrap(), block(3));
    f.apply(|b| b.delete(f.blocks, key.clone()));
    assert_eq!(f.store.get(f.blocks, &key).unwrap(), None);
    let data = f.store.next_extent(f.blocks, b"f", 0..u64::MAX, ExtentKind::Data).unwrap();
    assert_eq!(data, Some(Extent { first: 2, count: 1 }));
}

#[test]
fn extents_alternate_between_data_and_holes() {
    let f = filled();
    let next = |from, kind| {
        f.store.next_extent(f.blocks, b"f", from..u64::MAX, kind).unwrap().map(|e| (e.first, e.count))
    };
    assert_eq!(next(0, ExtentKind::Data), Some((2, 3)));
    assert_eq!(next(3, ExtentKind::Data), Some((3, 2)));
    assert_eq!(next(5, ExtentKind::Data), Some((7, 1)));
    assert_eq!(next(8, ExtentKind::Data), None);
    assert_eq!(next(0, ExtentKind::Hole), Some((0, 2)));
    assert_eq!(next(2, ExtentKind::Hole), Some((5, 2)));
    assert_eq!(next(7, ExtentKind::Hole), Some((8, u64::MAX - 8)));
    assert_eq!(next(u64::MAX - 1, ExtentKind::Hole), Some((u64::MAX - 1, 1)));
    assert_eq!(next(u64::MAX, ExtentKind::Hole), None);
}

#[test]
fn extents_are_looked_for_within_some_blocks_alone() {
    let f = filled();
    let next = |blocks, kind| f.store.next_extent(f.blocks, b"f", blocks, kind).unwrap();
    let data = |blocks| next(blocks, ExtentKind::Data).map(|e| (e.first, e.count));
    assert_eq!([0..2, 5..7, 3..3].map(data), [None; 3]);
    assert_eq!([0..3, 3..4, 0..5, 4..9].map(data), [Some((2, 1)), Some((3, 1)), Some((2, 3)), Some((4, 1))]);
    let hole = |blocks| next(blocks, ExtentKind::Hole).map(|e| (e.first, e.count));
    assert_eq!([2..5, 7..8, 6..6].map(hole), [None; 3]);
    assert_eq!([0..9, 1..2, 3..6, 7..9].map(hole), [Some((0, 2)), Some((1, 1)), Some((5, 1)), Some((8, 1))]);
}

#[test]
fn the_last_block_number_can_be_written() {
    let f = Fixture::new();
    f.apply(|b| b.put_blocks(f.blocks, "f", u64::MAX - 1, block(1)));
    let past = f.try_apply(|b| b.put_blocks(f.blocks, "f", u64::MAX, block(1)));
    assert!(matches!(past, Err(StoreError::BlockShape { .. })));
    let last = f.store.next_extent(f.blocks, b"f", 0..u64::MAX, ExtentKind::Data).unwrap();
    assert_eq!(last, Some(Extent { first: u64::MAX - 1, count: 1 }));
    assert_eq!(f.store.next_extent(f.blocks, b"f", u64::MAX - 1..u64::MAX, ExtentKind::Hole).unwrap(), None);
    let mut buf = block(9);
    f.store.read_blocks(f.blocks, b"f", u64::MAX - 1, &mut buf).unwrap();
    assert_eq!(buf, block(1));
    let past = f.store.read_blocks(f.blocks, b"f", u64::MAX, &mut buf);
    assert!(matches!(past, Err(StoreError::BlockShape { .. })));
}

#[test]
fn delete_range_truncates_one_file() {
    let f = filled();
    let KeyRange { start, end } = KeyRange::prefix(b"f\0\0\0\0\0\0\0\x03");
    let start = start.slice(..9);
    f.apply(|b| b.delete_range(f.blocks, start, end.unwrap()));
    let snapshot = f.store.snapshot().unwrap();
    let mut buf = blocks(&[9; 3]);
    snapshot.read_blocks(f.blocks, b"f", 2, &mut buf).unwrap();
    assert_eq!(buf, blocks(&[2, 0, 4]));
}

#[test]
fn snapshots_keep_blocks() {
    let f = filled();
    let snapshot = f.store.snapshot().unwrap();
    f.apply(|b| {
        b.delete_range(f.blocks, "f", "g");
        b.put_blocks(f.blocks, "f", 3, blocks(&[30, 40, 50]));
    });
    let mut buf = blocks(&[9; 5]);
    snapshot.read_blocks(f.blocks, b"f", 1, &mut buf).unwrap();
    assert_eq!(buf, blocks(&[0, 2, 3, 4, 0]));
    f.store.read_blocks(f.blocks, b"f", 1, &mut buf).unwrap();
    assert_eq!(buf, blocks(&[0, 0, 30, 40, 50]));
    let hole = snapshot.next_extent(f.blocks, b"f", 3..u64::MAX, ExtentKind::Hole).unwrap();
    assert_eq!(hole, Some(Extent { first: 5, count: 2 }));
}
