use std::cmp::Reverse;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{Call, FaultError, FaultRule, Rng};
use kvfs_store::{KeyspaceKind, Seqno, StoreError};

use super::{Record, Rig, small_options};
use crate::cache::Pool;
use crate::format::{RecordIter, RecordKind, TupleEntry};
use crate::memtable::{Lookup, Outcome};
use crate::table::{Access, Piece, RunOptions};

fn random_key(rng: &mut Rng) -> Vec<u8> {
    let len = rng.range(1, 7) as usize;
    (0..len).map(|_| b'a' + rng.below(5) as u8).collect()
}

/// Records in record order with seqnos from `seqno` on; some keys have many versions, some values
/// are huge.
fn random_records(rng: &mut Rng, count: u64, seqno: Seqno, value_max: u64) -> Vec<Record> {
    let mut records: Vec<Record> = (0..count)
        .map(|index| {
            let kind = match rng.below(10) {
                0 => RecordKind::Delete,
                1 | 2 => RecordKind::Merge,
                _ => RecordKind::Put,
            };
            let key = if rng.chance(1, 4) { b"many".to_vec() } else { random_key(rng) };
            let len = if rng.chance(1, 50) { rng.below(value_max) } else { rng.below(100) };
            let mut value = vec![0; if kind == RecordKind::Delete { 0 } else { len as usize }];
            rng.fill(&mut value);
            (key, seqno + index, kind, value)
        })
        .collect();
    records.sort_by(|a, b| (&a.0, Reverse(a.1)).cmp(&(&b.0, Reverse(b.1))));
    records
}

fn write(rig: &Rig, id: u64, records: &[Record], tombstones: &[(Vec<u8>, Vec<u8>, Seqno)]) -> Arc<Piece> {
    let mut writer = rig.writer(KeyspaceKind::Tuple, id);
    for (key, seqno, kind, value) in records {
        writer.add(key, *seqno, *kind, value).expect("space");
    }
    for (start, end, seqno) in tombstones {
        writer.add_tombstone(start, end, *seqno);
    }
    let (desc, piece) = writer.finish().expect("space");
    assert_eq!(&desc, piece.desc());
    assert_eq!(desc.records, records.len() as u64);
    piece
}

fn current(iter: &mut dyn RecordIter) -> Option<Record> {
    let record = iter.record().map(|r| (r.key.to_vec(), r.seqno, r.kind))?;
    let value = iter.value().expect("readable").to_vec();
    Some((record.0, record.1, record.2, value))
}

/// What a lookup over one layer gives, computed from the sorted list.
fn expected(
    records: &[Record],
    tombstones: &[(Vec<u8>, Vec<u8>, Seqno)],
    key: &[u8],
    snapshot: Seqno,
) -> (Vec<Vec<u8>>, Outcome) {
    let tombstone = tombstones
        .iter()
        .filter(|(start, end, seqno)| &start[..] <= key && key < &end[..] && *seqno <= snapshot)
        .map(|(_, _, seqno)| *seqno)
        .max();
    let mut operands = Vec::new();
    for (_, seqno, kind, value) in records.iter().filter(|r| r.0 == key && r.1 <= snapshot) {
        if tombstone.is_some_and(|tombstone| tombstone > *seqno) {
            return (operands, Outcome::Absent);
        }
        match kind {
            RecordKind::Put => return (operands, Outcome::Found(Bytes::copy_from_slice(value))),
            RecordKind::Delete => return (operands, Outcome::Absent),
            RecordKind::Merge => operands.push(value.clone()),
        }
    }
    (operands, if tombstone.is_some() { Outcome::Absent } else { Outcome::Pending })
}

fn check_lookups(
    seed: u64,
    piece: &Piece,
    records: &[Record],
    tombstones: &[(Vec<u8>, Vec<u8>, Seqno)],
    rng: &mut Rng,
) {
    for _ in 0..300 {
        let key =
            if rng.chance(1, 3) { records[rng.index(records.len())].0.clone() } else { random_key(rng) };
        let snapshot = if rng.chance(1, 2) { Seqno::MAX } else { 900 + rng.below(3000) };
        let mut lookup = Lookup::new(&key, snapshot);
        piece.lookup(&mut lookup).expect("readable");
        let (operands, outcome) = expected(records, tombstones, &key, snapshot);
        assert_eq!(lookup.outcome(), &outcome, "seed {seed}: {key:?} at {snapshot}");
        assert_eq!(lookup.operands(), operands, "seed {seed}: {key:?} at {snapshot}");
    }
}

fn check_walks(seed: u64, piece: &Arc<Piece>, records: &[Record], access: Access, rng: &mut Rng) {
    let mut iter = piece.iter(access);
    iter.first().expect("readable");
    for record in records {
        assert_eq!(current(&mut iter).as_ref(), Some(record), "seed {seed}, forward");
        iter.next().expect("readable");
    }
    assert!(iter.record().is_none());
    iter.last().expect("readable");
    for record in records.iter().rev() {
        assert_eq!(current(&mut iter).as_ref(), Some(record), "seed {seed}, back");
        iter.prev().expect("readable");
    }
    assert!(iter.record().is_none());
    for _ in 0..200 {
        let key = random_key(rng);
        let seqno = if rng.chance(1, 2) { Seqno::MAX } else { 900 + rng.below(3000) };
        let mut at = if rng.chance(1, 2) {
            iter.seek(&key, seqno).expect("readable");
            records.partition_point(|r| (&r.0, Reverse(r.1)) < (&key, Reverse(seqno)))
        } else {
            iter.seek_before(&key).expect("readable");
            records.partition_point(|r| r.0 < key).wrapping_sub(1)
        };
        for _ in 0..rng.below(30) {
            assert_eq!(current(&mut iter).as_ref(), records.get(at), "seed {seed}: around {key:?}");
            if at >= records.len() {
                break;
            }
            if rng.chance(1, 2) {
                iter.next().expect("readable");
                at += 1;
            } else {
                iter.prev().expect("readable");
                at = at.wrapping_sub(1);
            }
        }
    }
}

#[test]
fn pieces_agree_with_sorted_lists() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let zone_bytes = 65536 << rng.below(5);
        let rig = Rig::new(zone_bytes, small_options());
        let count = rng.range(1, 1500);
        let records = random_records(&mut rng, count, 1000, 20_000);
        let tombstones: Vec<_> = (0..rng.below(20))
            .map(|_| (random_key(&mut rng), random_key(&mut rng), 1000 + rng.below(count)))
            .filter(|(start, end, _)| start < end)
            .collect();
        let piece = write(&rig, 7, &records, &tombstones);
        for piece in [rig.reopen(&piece), piece] {
            check_lookups(seed, &piece, &records, &tombstones, &mut rng);
            check_walks(seed, &piece, &records, Access::Random, &mut rng);
            check_walks(seed, &piece, &records, Access::Sequential, &mut rng);
            assert!(piece.verify().is_ok(), "seed {seed}");
        }
        assert_eq!(rig.bytes_live(), 0, "seed {seed}: dropped pieces hold nothing");
        assert_eq!(rig.ctx.accountant.used(Pool::Index), 0);
        assert_eq!(rig.ctx.accountant.used(Pool::Filter), 0);
        assert_eq!(rig.ctx.accountant.used(Pool::Io), 0);
    }
}

#[test]
fn index_entries_describe_their_blocks() {
    let mut rng = Rng::new(3);
    let rig = Rig::new(1 << 20, small_options());
    let records = random_records(&mut rng, 800, 1000, 100);
    let piece = write(&rig, 1, &records, &[]);
    let mut at = 0;
    let mut zone_bytes = 0;
    for entry in piece.index().expect("readable").tuple_entries() {
        let block = &records[at..at + entry.records as usize];
        at += block.len();
        assert_eq!(entry.first_key, block[0].0);
        assert_eq!(entry.last_key, block[block.len() - 1].0);
        assert_eq!(entry.seqno_min, block.iter().map(|r| r.1).min().expect("not empty"));
        assert_eq!(entry.seqno_max, block.iter().map(|r| r.1).max().expect("not empty"));
        let has = |kind| block.iter().any(|r| r.2 == kind);
        assert_eq!(entry.flags & TupleEntry::HAS_DELETES != 0, has(RecordKind::Delete));
        assert_eq!(entry.flags & TupleEntry::HAS_MERGES != 0, has(RecordKind::Merge));
        let versions = block.iter().any(|r| records.iter().filter(|other| other.0 == r.0).count() > 1);
        assert_eq!(entry.flags & TupleEntry::HAS_VERSIONS != 0, versions);
        zone_bytes += u64::from(entry.extent.len);
    }
    assert_eq!(at, records.len());
    assert_eq!(piece.desc().data_bytes, zone_bytes);
    let meta: u64 = piece.desc().meta.iter().map(|extent| u64::from(extent.len)).sum();
    let held: u64 = piece.desc().zones.iter().map(|zone_use| zone_use.bytes).sum();
    // The copy beside the data ends before the fingerprints.
    let copy = held - zone_bytes - meta;
    assert!(copy > 0 && copy <= meta, "{copy} of {meta}");
    assert_eq!(rig.bytes_live(), held);
}

#[test]
fn stitched_pieces_read_like_copied_ones() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let rig = Rig::new(256 << 10, small_options());
        let records = random_records(&mut rng, 1200, 1000, 5000);
        let mut source = write(&rig, 1, &records, &[]);
        if seed % 2 == 0 {
            source = rig.reopen(&source);
        }
        // Some blocks are stitched, some copied, some left out.
        let mut writer = rig.writer(KeyspaceKind::Tuple, 2);
        let (mut kept, mut at, mut stitched) = (Vec::new(), 0, 0);
        for (index, entry) in source.index().expect("readable").tuple_entries().iter().enumerate() {
            let block = &records[at..at + entry.records as usize];
            at += block.len();
            match rng.below(3) {
                0 => {
                    writer.stitch_tuples(&source, index..index + 1).expect("space");
                    stitched += u64::from(entry.extent.len);
                }
                1 => {
                    for (key, seqno, kind, value) in block {
                        writer.add(key, *seqno, *kind, value).expect("space");
                    }
                }
                _ => continue,
            }
            kept.extend_from_slice(block);
        }
        assert_eq!(writer.bytes_referenced(), stitched);
        let (_, piece) = writer.finish().expect("space");
        drop(source);
        for piece in [rig.reopen(&piece), piece] {
            check_walks(seed, &piece, &kept, Access::Random, &mut rng);
            check_walks(seed, &piece, &kept, Access::Sequential, &mut rng);
            check_lookups(seed, &piece, &kept, &[], &mut rng);
            assert!(kept.iter().all(|record| piece.may_contain(&record.0).expect("readable")), "seed {seed}");
        }
        assert_eq!(rig.bytes_live(), 0, "seed {seed}");
    }
}

#[test]
fn filters_stay_precise_through_stitching() {
    let rig = Rig::new(1 << 20, RunOptions::default());
    let key = |n: u64| n.to_be_bytes();
    let mut sources = Vec::new();
    for part in 0..4 {
        let records: Vec<Record> = (part * 5000..(part + 1) * 5000)
            .map(|n| (key(n * 2).to_vec(), n + 1, RecordKind::Put, b"value".to_vec()))
            .collect();
        sources.push(write(&rig, part, &records, &[]));
    }
    let mut writer = rig.writer(KeyspaceKind::Tuple, 9);
    for source in &sources {
        // Only the first half of each is kept: the rest must not linger in the filter.
        let index = source.index().expect("readable");
        let half = index.tuple_entries().len() / 2;
        writer.stitch_tuples(source, 0..half).expect("space");
    }
    let (_, piece) = writer.finish().expect("space");
    let piece = rig.reopen(&piece);
    let mut kept = 0;
    for source in &sources {
        let index = source.index().expect("readable");
        let last = &index.tuple_entries()[index.tuple_entries().len() / 2 - 1].last_key;
        for n in 0..40_000_u64 {
            let is_kept = n % 2 == 0 && source.desc().first_key[..] <= key(n)[..] && key(n)[..] <= last[..];
            if is_kept {
                kept += 1;
                assert!(piece.may_contain(&key(n)).expect("readable"), "no false negatives: {n}");
            }
        }
    }
    assert_eq!(kept, piece.desc().records);
    let absent = 100_000..200_000_u64;
    let positives = absent.filter(|n| piece.may_contain(&key(*n)).expect("readable")).count();
    assert!(positives < 20, "{positives} of 100000 absent keys pass");
}

#[test]
fn huge_values_get_blocks_of_their_own() {
    let mut rng = Rng::new(1);
    let rig = Rig::new(2 << 20, RunOptions::default());
    let records: Vec<Record> = (0..12_u8)
        .map(|n| {
            let mut value = vec![0; if n % 3 == 0 { 1 << 20 } else { 700 }];
            rng.fill(&mut value);
            (vec![b'k', n], 50, RecordKind::Put, value)
        })
        .collect();
    let piece = rig.reopen(&write(&rig, 1, &records, &[]));
    check_walks(1, &piece, &records, Access::Sequential, &mut rng);
    let small = Rig::new(64 << 10, RunOptions::default());
    let error = small.writer(KeyspaceKind::Tuple, 1).add(b"k", 1, RecordKind::Put, &vec![0; 1 << 20]);
    assert!(matches!(error, Err(StoreError::ValueTooLong { .. })), "{error:?}");
}

#[test]
fn empty_and_tombstone_only_pieces_open() {
    let rig = Rig::new(64 << 10, RunOptions::default());
    let piece = write(&rig, 1, &[], &[(b"b".to_vec(), b"f".to_vec(), 9)]);
    let piece = rig.reopen(&piece);
    assert_eq!((&piece.desc().first_key[..], &piece.desc().last_key[..]), (&b"b"[..], &b"f"[..]));
    assert_eq!((piece.desc().seqno_min, piece.desc().seqno_max), (9, 9));
    let mut lookup = Lookup::new(b"c", 10);
    piece.lookup(&mut lookup).expect("readable");
    assert_eq!(lookup.outcome(), &Outcome::Absent);
    let mut iter = piece.iter(Access::Random);
    iter.first().expect("readable");
    assert!(iter.record().is_none());
    iter.last().expect("readable");
    assert!(iter.record().is_none());
    let empty = rig.writer(KeyspaceKind::Tuple, 2);
    assert!(empty.is_empty());
    let (desc, _piece) = empty.finish().expect("space");
    assert_eq!((desc.records, desc.seqno_min, desc.seqno_max), (0, 0, 0));
}

/// A piece of about 230 blocks of 16 KiB, in a store of its own, and its records.
fn large_piece() -> (Rig, Arc<Piece>, Vec<Record>) {
    let rig = Rig::new(8 << 20, RunOptions::default());
    let records: Vec<Record> = (0..30_000_u64)
        .map(|n| (n.to_be_bytes().to_vec(), n + 1, RecordKind::Put, vec![n as u8; 100]))
        .collect();
    let piece = write(&rig, 1, &records, &[]);
    (rig, piece, records)
}

#[test]
fn scans_read_ahead() {
    let (rig, piece, records) = large_piece();
    let blocks = piece.index().expect("readable").tuple_entries().len() as u64;
    let walk = |access, forward: bool| {
        let reads_before = rig.device.counts().of(Call::Read);
        let mut iter = piece.iter(access);
        if forward { iter.first() } else { iter.last() }.expect("readable");
        let mut count = 0;
        while iter.record().is_some() {
            count += 1;
            if forward { iter.next() } else { iter.prev() }.expect("readable");
        }
        assert_eq!(count, records.len());
        rig.device.counts().of(Call::Read) - reads_before
    };
    let requests_min = piece.desc().data_bytes.div_ceil(1 << 20);
    assert!(walk(Access::Sequential, true) <= requests_min + 1, "1 MiB at a time");
    assert!(walk(Access::Sequential, false) <= requests_min + 1, "backward, too");
    assert_eq!(rig.ctx.cache.bytes(), 0, "merges leave the cache alone");
    let cold = walk(Access::Random, true);
    assert!(cold <= requests_min + 8, "{cold} requests for {blocks} blocks: they grow");
    assert_eq!(walk(Access::Random, true), 0, "all is cached now");
    rig.make_cold(&piece);
    let mut lookup = Lookup::new(&records[777].0, Seqno::MAX);
    let reads_before = rig.device.counts().of(Call::Read);
    piece.lookup(&mut lookup).expect("readable");
    assert_eq!(rig.device.counts().of(Call::Read), reads_before + 1, "a point read is one request");
}

#[test]
fn walks_go_on_in_other_zones_while_a_thread_reads_ahead() {
    let rig = Rig::new(1 << 20, RunOptions::default());
    let records: Vec<Record> = (0..60_000_u64)
        .map(|n| (n.to_be_bytes().to_vec(), n + 1, RecordKind::Put, vec![n as u8; 100]))
        .collect();
    let piece = write(&rig, 1, &records, &[]);
    let windows = piece.desc().data_bytes.div_ceil(rig.ctx.windows.window_bytes_max());
    let zones = piece.desc().zones.len() as u64;
    let walk = |forward: bool| {
        rig.make_cold(&piece);
        let reads_before = rig.device.counts().of(Call::Read);
        let mut iter = piece.iter(Access::Random);
        if forward { iter.first() } else { iter.last() }.expect("readable");
        let mut seen = Vec::new();
        while let Some(record) = current(&mut iter) {
            seen.push(record);
            if forward { iter.next() } else { iter.prev() }.expect("readable");
        }
        if !forward {
            seen.reverse();
        }
        assert!(seen == records, "forward: {forward}");
        rig.device.counts().of(Call::Read) - reads_before
    };
    rig.ctx.windows.while_served(|| {
        for forward in [true, false] {
            let reads = walk(forward);
            // One that ends with its zone is followed by a shorter one; the first ones are short.
            assert!(reads <= windows + zones + 8, "{reads} requests for {windows} windows in {zones} zones");
        }
    });
}

/// Looks up the first key of each block, in any order; the requests that it takes.
fn touch_blocks(rig: &Rig, piece: &Piece, rng: &mut Rng) -> u64 {
    let mut keys: Vec<Bytes> = {
        let index = piece.index().expect("readable");
        index.tuple_entries().iter().map(|entry| entry.first_key.clone()).collect()
    };
    rng.shuffle(&mut keys);
    let reads_before = rig.device.counts().of(Call::Read);
    for key in keys {
        let mut lookup = Lookup::new(&key, Seqno::MAX);
        piece.lookup(&mut lookup).expect("readable");
        assert!(matches!(lookup.outcome(), Outcome::Found(_)), "{key:?}");
    }
    rig.device.counts().of(Call::Read) - reads_before
}

#[test]
fn neighbours_come_along_while_there_is_room() {
    let (rig, piece, _) = large_piece();
    let blocks = piece.index().expect("readable").tuple_entries().len() as u64;
    let mut rng = Rng::new(1);
    let reads = touch_blocks(&rig, &piece, &mut rng);
    assert!(reads * 3 < blocks, "{reads} requests for {blocks} blocks");
    assert_eq!(touch_blocks(&rig, &piece, &mut rng), 0, "all came in, and stays");

    // Now each block would push out another one.
    rig.make_cold(&piece);
    rig.ctx.accountant.set_bytes_ceiling(64 << 10);
    let before = rig.ctx.cache.stats().insertions;
    touch_blocks(&rig, &piece, &mut rng);
    assert_eq!(rig.ctx.cache.stats().insertions - before, blocks, "one for each that is asked for");
}

#[test]
fn what_is_wrong_with_a_neighbour_is_its_own_affair() {
    let (rig, piece, _) = large_piece();
    let index = piece.index().expect("readable");
    let [wanted, damaged] = [&index.tuple_entries()[0], &index.tuple_entries()[1]];
    let find = |key: &[u8]| {
        let mut lookup = Lookup::new(key, Seqno::MAX);
        piece.lookup(&mut lookup).map(|()| matches!(lookup.outcome(), Outcome::Found(_)))
    };
    rig.device.flip(damaged.extent.addr + 100, 1);
    assert!(find(&wanted.first_key).expect("whole"));
    assert!(find(&damaged.first_key).is_err(), "the flip shows");
    rig.device.clear();
    rig.make_cold(&piece);
    assert!(find(&damaged.first_key).expect("whole again"));

    // A request for several fails where one for the wanted block alone does not.
    rig.make_cold(&piece);
    rig.device.add(FaultRule::once(Call::Read, 0, FaultError::EIO));
    assert!(find(&wanted.first_key).expect("read alone"));
    rig.device.clear();
    rig.make_cold(&piece);
    assert!(find(&wanted.last_key).expect("readable"));
}
