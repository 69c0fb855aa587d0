use super::*;
use crate::memtable::RangeTombstone;

fn tombstone(start: Vec<u8>, end: Vec<u8>, seqno: Seqno) -> RangeTombstone {
    RangeTombstone { start: start.into(), end: end.into(), seqno }
}

#[test]
fn layers_decide_each_block_once_and_the_rest_reads_as_zeros() {
    let mut buf = vec![7_u8; 4 * BLOCK_BYTES];
    let mut fill = BlockFill::new(b"f", 10, 5, &mut buf);
    fill.set_data(1, &[1; BLOCK_BYTES]);
    fill.mark_absent(0..2);
    assert!(fill.undecided().eq(std::iter::once(2..4)));
    fill.buffer(2..3).unwrap().fill(3);
    fill.mark_data(2..3);
    assert_eq!(fill.next_undecided(0), Some(3..4));
    assert!(!fill.is_complete());
    assert_eq!(
        fill.finish().expect("is readable"),
        [BlockState::Absent, BlockState::Data, BlockState::Data, BlockState::Absent]
    );
    let blocks: Vec<u8> = buf.chunks(BLOCK_BYTES).map(|block| block[9]).collect();
    assert_eq!(blocks, [0, 1, 3, 0]);
}

#[test]
fn covered_translates_keys_of_any_length_into_positions() {
    let cases = [
        (block_key(b"f", 12), block_key(b"f", 14), 2..4),
        (b"f".to_vec(), b"g".to_vec(), 0..8),
        (b"".to_vec(), block_key(b"f", 11), 0..1),
        (block_key(b"f", 16), b"zz".to_vec(), 6..8),
        // A single-key delete: [key, key‖00).
        (block_key(b"f", 13), [&block_key(b"f", 13)[..], &[0]].concat(), 3..4),
        // Starts behind block 13, before block 14.
        ([&block_key(b"f", 13)[..], &[0]].concat(), block_key(b"f", 15), 4..5),
        // A short suffix stands for zeros behind it.
        (b"f\0\0\0\0\0\0\0".to_vec(), b"f\0\0\0\0\0\0\x01".to_vec(), 0..8),
    ];
    for (start, end, expected) in cases {
        let set = TombstoneSet::new([tombstone(start.clone(), end.clone(), 3)]);
        let fill = BlockFill::presence(b"f", 10, 8, 5);
        assert_eq!(fill.covered(&set), [(expected, 3)], "{start:?}..{end:?}");
        let earlier = BlockFill::presence(b"f", 10, 8, 2);
        assert!(earlier.covered(&set).is_empty(), "above the snapshot");
    }
    let elsewhere = TombstoneSet::new([tombstone(b"e".to_vec(), b"f".to_vec(), 3)]);
    assert!(BlockFill::presence(b"f", 10, 8, 5).covered(&elsewhere).is_empty());
}

#[test]
fn end_layer_leaves_decided_blocks_alone() {
    let set = TombstoneSet::new([tombstone(b"f".to_vec(), b"g".to_vec(), 3)]);
    let mut fill = BlockFill::presence(b"f", 0, 3, 5);
    let covered = fill.covered(&set);
    fill.mark_data(1..2);
    fill.end_layer(&covered);
    assert!(fill.is_complete());
    assert_eq!([0, 1, 2].map(|at| fill.state(at) == BlockState::Data), [false, true, false]);
}

#[test]
fn block_keys_split_back() {
    assert_eq!(split_block_key(&block_key(b"ab", 77)), Some((&b"ab"[..], 77)));
    assert_eq!(split_block_key(b"short"), None);
}

#[test]
fn block_numbers_of_any_key() {
    let key = |block: u64| block_key(b"pp", block);
    assert_eq!(first_block_at_or_after(b"pp", b""), Some(0));
    assert_eq!(first_block_at_or_after(b"pp", b"pa"), Some(0));
    assert_eq!(first_block_at_or_after(b"pp", b"pp"), Some(0));
    assert_eq!(first_block_at_or_after(b"pp", b"pq"), None);
    assert_eq!(first_block_at_or_after(b"pp", &key(7)), Some(7));
    assert_eq!(first_block_at_or_after(b"pp", &[&key(7)[..], b"\0"].concat()), Some(8));
    assert_eq!(first_block_at_or_after(b"pp", b"pp\x01"), Some(1 << 56));
    assert_eq!(first_block_at_or_after(b"pp", &[&key(u64::MAX)[..], b"\0"].concat()), None);
}
