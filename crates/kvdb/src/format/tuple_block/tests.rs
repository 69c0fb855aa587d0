use bytes::Bytes;
use kvfs_device::Rng;

use super::*;

type Record = (Vec<u8>, Seqno, RecordKind, Vec<u8>);

/// Records in record order, with shared prefixes and several versions of some keys.
fn records(rng: &mut Rng, count: usize) -> Vec<Record> {
    let mut records: Vec<Record> = (0..count)
        .map(|index| {
            let len = rng.range(1, 12) as usize;
            let key = (0..len).map(|_| b'a' + rng.below(3) as u8).collect();
            let kind = [RecordKind::Delete, RecordKind::Put, RecordKind::Merge][rng.index(3)];
            let mut value = vec![0; rng.below(60) as usize];
            rng.fill(&mut value);
            (key, 1_000_000 + index as u64 * 3, kind, value)
        })
        .collect();
    rng.shuffle(&mut records);
    records.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    records
}

fn build(records: &[Record]) -> Bytes {
    let mut builder = TupleBlockBuilder::default();
    for (key, seqno, kind, value) in records {
        let bound = builder.len_with(key, value);
        builder.add(key, *seqno, *kind, value);
        assert!(builder.len() <= bound, "len_with is an upper bound");
    }
    Bytes::copy_from_slice(builder.finish().0)
}

fn current(cursor: &TupleCursor) -> Option<Record> {
    cursor.record().map(|r| (r.key.to_vec(), r.seqno, r.kind, cursor.value().to_vec()))
}

#[test]
fn round_trip_both_ways() {
    let seed = 0x51;
    let mut rng = Rng::new(seed);
    for count in [0, 1, 2, 15, 16, 17, 32, 33, 300] {
        let records = records(&mut rng, count);
        let bytes = build(&records);
        let block = TupleBlock::verify(&bytes).expect("own block");
        assert_eq!((block.len(), block.records() as usize), (bytes.len(), count));
        let mut cursor = TupleCursor::new(bytes, 0).expect("own block");
        cursor.first().expect("own block");
        for record in &records {
            assert_eq!(current(&cursor).as_ref(), Some(record), "seed {seed}");
            cursor.next().expect("own block");
        }
        assert_eq!(current(&cursor), None);
        cursor.last().expect("own block");
        for record in records.iter().rev() {
            assert_eq!(current(&cursor).as_ref(), Some(record), "seed {seed}");
            cursor.prev().expect("own block");
        }
        assert_eq!(current(&cursor), None);
    }
}

#[test]
fn seeks_agree_with_a_sorted_list() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let count = rng.range(1, 200) as usize;
        let records = records(&mut rng, count);
        let mut cursor = TupleCursor::new(build(&records), 0).expect("own block");
        for _ in 0..200 {
            let len = rng.below(6) as usize;
            let key: Vec<u8> = (0..len).map(|_| b'a' + rng.below(4) as u8).collect();
            let seqno = 1_000_000 + rng.below(count as u64 * 3);
            let expected = records
                .partition_point(|r| (&r.0, std::cmp::Reverse(r.1)) < (&key, std::cmp::Reverse(seqno)));
            cursor.seek(&key, seqno).expect("own block");
            assert_eq!(current(&cursor).as_ref(), records.get(expected), "seed {seed}, {key:?}@{seqno}");
            let first = records.partition_point(|r| r.0 < key);
            cursor.seek_before(&key).expect("own block");
            let expected = first.checked_sub(1).map(|at| &records[at]);
            assert_eq!(current(&cursor).as_ref(), expected, "seed {seed}, before {key:?}");
            // Mixed directions from there.
            if let Some(mut at) = first.checked_sub(1) {
                for _ in 0..10 {
                    if rng.chance(1, 2) {
                        cursor.next().expect("own block");
                        at += 1;
                    } else {
                        cursor.prev().expect("own block");
                        at = at.wrapping_sub(1);
                    }
                    assert_eq!(current(&cursor).as_ref(), records.get(at), "seed {seed}");
                    if at >= records.len() {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let mut rng = Rng::new(7);
    let bytes = build(&records(&mut rng, 40));
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(TupleBlock::verify(&damaged).is_err(), "bit {bit}");
    }
    assert!(TupleBlock::verify(&bytes[..bytes.len() - 1]).is_err());
    assert!(TupleBlock::verify(&[]).is_err());
}

#[test]
fn damage_past_the_checksum_never_panics() {
    let mut rng = Rng::new(9);
    let bytes = build(&records(&mut rng, 60));
    for _ in 0..3000 {
        let mut damaged = bytes.to_vec();
        for _ in 0..rng.range(1, 6) {
            let at = rng.index(damaged.len());
            damaged[at] = rng.next_u64() as u8;
        }
        let Ok(mut cursor) = TupleCursor::new(damaged.into(), 0) else { continue };
        let mut steps = 0;
        if cursor.first().is_ok() {
            while cursor.record().is_some() && cursor.next().is_ok() {
                steps += 1;
                assert!(steps <= bytes.len(), "the walk ends");
            }
        }
        let _ = cursor.seek(b"bbb", 5);
        if cursor.last().is_ok() {
            let mut back = 0;
            while cursor.record().is_some() && cursor.prev().is_ok() {
                back += 1;
                assert!(back <= bytes.len() * 16, "the walk ends");
            }
        }
    }
}

#[test]
fn golden_bytes() {
    let mut builder = TupleBlockBuilder::default();
    builder.add(b"apple", 300, RecordKind::Put, b"red");
    builder.add(b"apple", 299, RecordKind::Merge, b"+");
    builder.add(b"apricot", 301, RecordKind::Delete, b"");
    let (block, crc) = builder.finish();
    assert_eq!(crc, crc32c(&block[8..]));
    assert_eq!(&block[..4], b"KVtb");
    assert_eq!(block[8..32], [62, 0, 0, 0, 3, 0, 0, 0, 44, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&block[32..44], b"\0\x05\x0d\0applered");
    assert_eq!(&block[44..49], b"\x05\0\x06\x01+");
    assert_eq!(&block[49..58], b"\x02\x05\0\x02ricot");
    assert_eq!(block[58..], [32, 0, 0, 0]);
}
