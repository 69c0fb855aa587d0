//! Patches of blocks: parts that are put over what is there.

use kvfs_store::{BLOCK_BYTES, ExtentKind, StoreError};

use super::Fixture;

pub(super) fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_BYTES]
}

/// `base` with `data` over it.
pub(super) fn patched(mut base: Vec<u8>, offset: usize, data: &[u8]) -> Vec<u8> {
    base[offset..offset + data.len()].copy_from_slice(data);
    base
}

pub(super) fn key(number: u64) -> Vec<u8> {
    [b"f", &number.to_be_bytes()[..]].concat()
}

pub(super) fn read(f: &Fixture, number: u64) -> Vec<u8> {
    let value = f.store.get(f.blocks, &key(number)).unwrap().unwrap();
    let mut buf = vec![9; BLOCK_BYTES];
    f.store.read_blocks(f.blocks, b"f", number, &mut buf).unwrap();
    assert_eq!(value, buf);
    let mut cursor = f.store.cursor(f.blocks, kvfs_store::KeyRange::prefix(b"f")).unwrap();
    cursor.seek(&key(number)).unwrap();
    assert_eq!(cursor.entry().map(|(_, value)| value.to_vec()), Some(buf.clone()));
    cursor.last().unwrap();
    while cursor.entry().is_some_and(|(at, _)| *at > key(number)[..]) {
        cursor.prev().unwrap();
    }
    assert_eq!(cursor.entry().map(|(_, value)| value.to_vec()), Some(buf.clone()));
    buf
}

#[test]
fn a_patch_changes_its_bytes_and_no_others() {
    let f = Fixture::new();
    f.apply(|b| b.put_blocks(f.blocks, "f", 3, block(1)));
    f.apply(|b| b.patch_block(f.blocks, "f", 3, 100, "new"));
    assert_eq!(read(&f, 3), patched(block(1), 100, b"new"));
    f.apply(|b| b.patch_block(f.blocks, "f", 3, 102, "er"));
    f.apply(|b| b.patch_block(f.blocks, "f", 3, BLOCK_BYTES as u16 - 1, "z"));
    let expected = patched(patched(block(1), 100, b"neer"), BLOCK_BYTES - 1, b"z");
    assert_eq!(read(&f, 3), expected);
    f.apply(|b| b.patch_block(f.blocks, "f", 3, 0, block(7)));
    assert_eq!(read(&f, 3), block(7));
}

#[test]
fn a_patched_block_is_there_and_was_zeros() {
    let f = Fixture::new();
    f.apply(|b| b.patch_block(f.blocks, "f", 5, 10, "x"));
    assert_eq!(read(&f, 5), patched(block(0), 10, b"x"));
    let extent =
        |kind| f.store.next_extent(f.blocks, b"f", 0..u64::MAX, kind).unwrap().map(|e| (e.first, e.count));
    assert_eq!(extent(ExtentKind::Data), Some((5, 1)));
    assert_eq!(extent(ExtentKind::Hole), Some((0, 5)));
}

#[test]
fn a_patch_over_what_was_deleted_does_not_bring_it_back() {
    let f = Fixture::new();
    f.apply(|b| b.put_blocks(f.blocks, "f", 0, [block(1), block(2), block(3)].concat()));
    f.apply(|b| b.delete_range(f.blocks, key(0), key(2)));
    f.apply(|b| b.delete(f.blocks, key(2)));
    f.apply(|b| {
        for number in 0..3 {
            b.patch_block(f.blocks, "f", number, 1, "x");
        }
    });
    for number in 0..3 {
        assert_eq!(read(&f, number), patched(block(0), 1, b"x"), "block {number}");
    }
    f.apply(|b| b.delete_range(f.blocks, key(0), key(1)));
    assert_eq!(f.store.get(f.blocks, &key(0)).unwrap(), None);
    assert_eq!(f.store.get(f.blocks, &key(1)).unwrap().unwrap(), patched(block(0), 1, b"x"));
}

#[test]
fn operations_of_one_batch_count_in_order() {
    let f = Fixture::new();
    f.apply(|b| {
        b.patch_block(f.blocks, "f", 0, 0, "gone");
        b.put_blocks(f.blocks, "f", 0, block(1));
        b.patch_block(f.blocks, "f", 0, 2, "ab");
        b.patch_block(f.blocks, "f", 0, 3, "c");
        b.patch_block(f.blocks, "f", 1, 0, "gone");
        b.delete(f.blocks, key(1));
        b.patch_block(f.blocks, "f", 1, 4, "d");
    });
    assert_eq!(read(&f, 0), patched(block(1), 2, b"ac"));
    assert_eq!(read(&f, 1), patched(block(0), 4, b"d"));
}

#[test]
fn snapshots_between_patches_see_each_state() {
    let f = Fixture::new();
    let mut expected = block(1);
    f.apply(|b| b.put_blocks(f.blocks, "f", 0, block(1)));
    let mut seen = vec![(f.store.snapshot().unwrap(), expected.clone())];
    for number in 0..40_usize {
        f.apply(|b| b.patch_block(f.blocks, "f", 0, number as u16 * 3, vec![number as u8; 5]));
        expected = patched(expected, number * 3, &[number as u8; 5]);
        if number % 7 == 0 {
            seen.push((f.store.snapshot().unwrap(), expected.clone()));
        }
    }
    assert_eq!(read(&f, 0), expected);
    for (snapshot, expected) in seen {
        assert_eq!(snapshot.get(f.blocks, &key(0)).unwrap().unwrap(), expected);
    }
}

#[test]
fn what_is_no_part_of_a_block_is_refused() {
    let f = Fixture::new();
    let shapes = [(0, 0, 0), (0, 1, BLOCK_BYTES), (0, BLOCK_BYTES as u16, 1), (u64::MAX, 0, 1)];
    for (number, offset, len) in shapes {
        let refused = f.try_apply(|b| b.patch_block(f.blocks, "f", number, offset, vec![1; len]));
        assert!(matches!(refused, Err(StoreError::PatchShape { .. })), "{number} {offset} {len}");
    }
    // Each of them becomes a whole block.
    let refused = f.try_apply(|b| (0..8192).for_each(|number| b.patch_block(f.blocks, "f", number, 0, "x")));
    assert!(matches!(refused, Err(StoreError::BatchTooLarge { .. })));
    let refused = f.try_apply(|b| b.patch_block(f.plain, "f", 0, 0, "x"));
    assert!(matches!(refused, Err(StoreError::WrongKind { .. })));
    f.apply(|b| b.patch_block(f.blocks, "f", u64::MAX - 1, BLOCK_BYTES as u16 - 1, "x"));
}
