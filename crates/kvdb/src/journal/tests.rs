//! Tests of the journal, on devices in memory.

mod commit;
mod crash;
mod gather;
mod group_commit_delay;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use kvfs_device::{Call, CountingDevice, Device, FaultDevice, FaultError, FaultRule, MemoryDevice, Rng};
use kvfs_store::clock::{Clock, ManualClock};
use kvfs_store::{Batch, Compression, Keyspace, NOTE_LEN_MAX, Op, Result, Seqno, StoreError, TxnId};
use zerocopy::IntoBytes;

use super::codec::Entry;
use super::header::{GroupFields, Header};
use super::{
    AppendError, Appended, CommitMark, CommitNote, JOURNAL_PART_BYTES, Journal, JournalArea, Lsn, Record,
    Replayed, SpilledCommit, codec,
};
use crate::cache::{Accountant, Pool};
use crate::format::{Decoder, Extent, FRAME_HEADER_BYTES as HEADER_BYTES, ZoneId, crc32c};
use crate::space::{Bindings, Bound, Budget, Place, Stream, Zones};

const AREA: JournalArea =
    JournalArea { addr: 64 << 10, len: 128 << 10, salt: 0x5eed, part_bytes: JOURNAL_PART_BYTES };
const DEVICE_BYTES: u64 = AREA.addr + AREA.len + (64 << 10);
const KEYSPACE: Keyspace = Keyspace(7);

/// A batch whose content follows from `seed` alone.
fn random_batch(seed: u64, value_len_max: u64) -> Batch {
    let mut rng = Rng::new(seed);
    let bytes = |rng: &mut Rng, len: u64| {
        let mut bytes = vec![0; len as usize];
        rng.fill(&mut bytes);
        Bytes::from(bytes)
    };
    let mut batch = Batch::new();
    for _ in 0..rng.range(1, 4) {
        let key_len = rng.range(1, 40);
        let key = bytes(&mut rng, key_len);
        let value_len = rng.below(value_len_max);
        match rng.below(6) {
            0 => batch.put(KEYSPACE, key, bytes(&mut rng, value_len)),
            1 => batch.delete(KEYSPACE, key),
            2 => batch.delete_range(KEYSPACE, key.clone(), bytes(&mut rng, key_len)),
            3 => batch.merge(KEYSPACE, key, bytes(&mut rng, value_len)),
            4 => {
                let (len, compression) = (rng.range(1, 4096), Compression::Zstd(rng.range(1, 9) as u8));
                let (offset, block) = (rng.below(4096 - len + 1) as u16, rng.next_u64() >> rng.below(64));
                let (keyspace, prefix, data) = (KEYSPACE, key, bytes(&mut rng, len));
                batch.push(Op::PatchBlock { keyspace, prefix, block, offset, data, compression });
            }
            _ => {
                let blocks = value_len.div_ceil(4096).max(1);
                let first = rng.next_u64() >> rng.below(64);
                batch.put_blocks(KEYSPACE, key, first, bytes(&mut rng, blocks * 4096));
            }
        }
    }
    batch
}

/// Half of the puts of blocks find a place, in zones so small that some are cut.
fn random_bindings(seed: u64, batch: &Batch) -> Bindings {
    let device = Arc::new(MemoryDevice::growable(0, 4 << 20));
    let zones = Zones::new(device, 64 << 10, 4 << 20, ZoneId(1));
    let mut rng = Rng::new(seed);
    let mut bindings = Bindings::default();
    for (at, op) in batch.ops().iter().enumerate() {
        if let Op::PutBlocks { data, compression: Compression::None, .. } = op
            && rng.chance(1, 2)
        {
            let crcs = data.chunks_exact(4096).map(crc32c).collect();
            let bound = Bound::allocate(&zones, Stream::FlushBlock.into(), Budget::Ordinary, crcs).unwrap();
            bindings.push(at, bound);
        }
    }
    bindings
}

/// A record of which nothing is bound, and which is no commit.
fn plain(batch: &Batch) -> Record<'_> {
    static NONE: LazyLock<Bindings> = LazyLock::new(Bindings::default);
    Record { batch, bindings: &NONE, mark: None, holder: None }
}

fn put(value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.put(KEYSPACE, &b"key"[..], Bytes::copy_from_slice(value));
    batch
}

/// No time passes.
fn still() -> Arc<dyn Clock> {
    Arc::new(ManualClock::default())
}

fn new_device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(DEVICE_BYTES));
    Journal::create(device.as_ref(), AREA).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>, epoch: u64, tail: Lsn) -> Result<(Journal, Vec<Replayed>)> {
    let mut replayed = Vec::new();
    let journal = Journal::open(device.clone(), AREA, epoch, (tail, 0), still(), &mut |batch| {
        replayed.push(batch);
        Ok(())
    })?;
    Ok((journal, replayed))
}

fn is_corrupt<T>(result: &Result<T>) -> bool {
    matches!(result, Err(StoreError::Corrupt { .. }))
}

/// Appends `count` batches of one small value each from seqno `from` on, each in a group of its own.
fn append_groups(journal: &Journal, from: Seqno, count: u64) -> Vec<Lsn> {
    let append = |seqno: Seqno| {
        let lsn = journal.append(seqno, plain(&put(&seqno.to_le_bytes()))).unwrap().lsn;
        journal.write_out().unwrap();
        lsn
    };
    (from..from + count).map(append).collect()
}

fn seqnos(replayed: &[Replayed]) -> Vec<Seqno> {
    replayed.iter().map(|batch| batch.base).collect()
}

#[test]
fn batches_survive_encoding() {
    for seed in 0..300 {
        let batch = random_batch(seed, 10_000);
        let bindings = random_bindings(seed, &batch);
        let mut encoded = Vec::new();
        let mark = (!seed.is_multiple_of(4)).then(|| CommitMark { txn: TxnId(seed << 40), note: note(seed) });
        let entry =
            Entry::Batch(Record { batch: &batch, bindings: &bindings, mark: mark.as_ref(), holder: None });
        codec::encode(seed << 20, entry, &mut encoded);
        assert!(encoded.len() <= codec::encoded_len_max(entry), "seed {seed}");
        let payload = Bytes::from(encoded);
        let mut reader = codec::BatchReader::new(&payload);
        let places: Vec<_> = bindings.iter().map(|(op, bound)| (op, bound.place().clone())).collect();
        let mut ops = batch.ops().to_vec();
        for (op, _) in &places {
            if let Op::PutBlocks { data, .. } = &mut ops[*op] {
                data.clear();
            }
        }
        let (base, operations) = (seed << 20, batch.len() as u64);
        let read =
            codec::Read { base, operations, ops, places, mark: mark.clone(), ..codec::Read::default() };
        assert_eq!(reader.next(), Ok(Some(read)), "seed {seed}");
        assert_eq!(reader.next(), Ok(None), "seed {seed}");
    }
}

fn spilled(seed: u64) -> SpilledCommit {
    let mut rng = Rng::new(seed);
    let runs = (0..rng.below(5)).map(|_| rng.next_u64()).collect();
    SpilledCommit { txn: TxnId(seed), note: note(seed), operations: rng.range(1, 1 << 40), runs }
}

/// What is remembered of every third commit, up to the longest note.
fn note(seed: u64) -> Option<CommitNote> {
    let note = vec![7; (seed as usize * 5).min(NOTE_LEN_MAX)].into();
    seed.is_multiple_of(3).then_some(CommitNote { committed: u64::MAX - seed, note })
}

#[test]
fn commits_of_spilled_transactions_survive_encoding_among_batches() {
    for seed in 0..100 {
        let (commit, after) = (spilled(seed), put(b"after"));
        let mut encoded = Vec::new();
        codec::encode(7, Entry::Spilled(&commit), &mut encoded);
        assert!(encoded.len() <= codec::encoded_len_max(Entry::Spilled(&commit)), "seed {seed}");
        codec::encode(7 + commit.operations, Entry::Batch(plain(&after)), &mut encoded);
        let payload = Bytes::from(encoded);
        let mut reader = codec::BatchReader::new(&payload);
        let read = reader.next().unwrap().unwrap();
        assert_eq!((read.base, read.operations), (7, commit.operations), "seed {seed}");
        assert!(read.ops.is_empty() && read.mark.is_none(), "seed {seed}");
        assert_eq!(read.spilled, Some(commit), "seed {seed}");
        assert_eq!(reader.next().unwrap().unwrap().ops, after.ops(), "seed {seed}");
        assert_eq!(reader.next(), Ok(None), "seed {seed}");
    }
}

#[test]
fn decoding_survives_any_bytes() {
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut encoded = Vec::new();
        let batch = random_batch(seed, 100);
        let mark = CommitMark { txn: TxnId(seed), note: note(3 * seed) };
        let bindings = random_bindings(seed, &batch);
        let entry =
            Entry::Batch(Record { batch: &batch, bindings: &bindings, mark: Some(&mark), holder: None });
        codec::encode(1, entry, &mut encoded);
        codec::encode(200, Entry::Spilled(&spilled(seed)), &mut encoded);
        for _ in 0..rng.range(1, 4) {
            let at = rng.index(encoded.len());
            encoded[at] = rng.next_u64() as u8;
        }
        encoded.truncate(rng.index(encoded.len() + 1));
        let payload = Bytes::from(encoded);
        let mut reader = codec::BatchReader::new(&payload);
        while let Ok(Some(read)) = reader.next() {
            let bytes: usize = read.ops.iter().map(Op::payload_bytes).sum();
            let crcs: usize = read.places.iter().map(|(_, place)| place.crcs.len()).sum();
            assert!(bytes + 4 * crcs <= payload.len(), "seed {seed}");
        }
    }
}

#[test]
fn the_bytes_of_a_group_are_these() {
    let device = new_device();
    let (journal, _) = open(&device, 3, Lsn(0)).unwrap();
    let mut batch = Batch::new();
    batch.put(Keyspace(1), &b"k"[..], &b"vv"[..]);
    batch.delete(Keyspace(200), &b"d"[..]);
    batch.delete_range(Keyspace(1), &b"a"[..], &b"b"[..]);
    batch.merge(Keyspace(1), &b"m"[..], &b"+1"[..]);
    journal.append(300, plain(&batch)).unwrap();
    journal.sync(303).unwrap();
    let group = &device.snapshot()[AREA.addr as usize..][..4096];
    let payload = [
        &[0xac, 0x02, 4][..],
        &[1, 1, 1, b'k', 2, b'v', b'v'],
        &[2, 0xc8, 0x01, 1, b'd'],
        &[3, 1, 1, b'a', 1, b'b'],
        &[4, 1, 1, b'm', 2, b'+', b'1'],
    ]
    .concat();
    assert_eq!(group[HEADER_BYTES..HEADER_BYTES + payload.len()], payload);
    assert!(group[HEADER_BYTES + payload.len()..].iter().all(|&byte| byte == 0));
    let mut fields = Decoder::new(&group[12..HEADER_BYTES]);
    assert_eq!(&group[..4], b"KvJg");
    assert_eq!(fields.u32(), Ok(payload.len() as u32));
    for field in [0_u64, 3, 0, 300] {
        assert_eq!(fields.take(8), Ok(&field.to_le_bytes()[..]));
    }
    assert_eq!(fields.u32(), Ok(1));
    assert_eq!(group[4..8], 0x24ac_78be_u32.to_le_bytes(), "checksum of the header");
}

#[test]
fn a_commit_names_its_transaction() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    let mut batch = Batch::new();
    batch.delete(Keyspace(1), &b"d"[..]);
    let mark = CommitMark { txn: TxnId(300), note: None };
    let note = CommitNote { committed: 300, note: Bytes::from_static(b"me") };
    let noted = CommitMark { txn: TxnId(1), note: Some(note) };
    journal.append(5, Record { mark: Some(&mark), ..plain(&batch) }).unwrap();
    journal.append(6, Record { mark: Some(&noted), ..plain(&batch) }).unwrap();
    journal.append(7, plain(&batch)).unwrap();
    journal.sync(7).unwrap();
    let payload = b"\x05\x01\x06\xac\x02\x02\x01\x01d\x06\x01\x08\xac\x02\x02me\x06\x01\x02\x01\x01d\x07\x01\x02\x01\x01d";
    assert_eq!(device.snapshot()[AREA.addr as usize + HEADER_BYTES..][..payload.len()], payload[..]);
    let (_, replayed) = open(&device, 2, Lsn(0)).unwrap();
    assert_eq!(
        replayed.iter().map(|found| found.mark.clone()).collect::<Vec<_>>(),
        [Some(mark), Some(noted), None]
    );
}

#[test]
fn what_was_synced_is_replayed_and_appending_goes_on_behind_it() {
    let device = new_device();
    let (journal, replayed) = open(&device, 1, Lsn(0)).unwrap();
    assert!(replayed.is_empty());
    assert_eq!((journal.durable_seqno(), journal.appended_seqno()), (0, 0));
    let batches: Vec<_> = (0..20).map(|seed| random_batch(seed, 2000)).collect();
    let mut seqno = 1;
    for batch in &batches {
        journal.append(seqno, plain(batch)).unwrap();
        seqno += batch.len() as u64;
    }
    assert_eq!(journal.durable_seqno(), 0);
    journal.sync(seqno - 1).unwrap();
    assert_eq!(journal.durable_seqno(), seqno - 1);
    assert_eq!(journal.stats().flushes, 1);
    let head = journal.head();
    drop(journal);

    let (journal, replayed) = open(&device, 2, Lsn(0)).unwrap();
    assert_eq!(replayed.into_iter().map(|found| found.batch).collect::<Vec<_>>(), batches);
    assert_eq!((journal.head(), journal.durable_seqno()), (head, seqno - 1));
    assert_eq!(journal.append(seqno, plain(&put(b"more"))).unwrap().lsn, head);
    journal.sync(seqno).unwrap();
    let (_, replayed) = open(&device, 3, Lsn(0)).unwrap();
    assert_eq!(replayed.last().map(|found| (found.base, found.lsn)), Some((seqno, head)));
}

#[test]
fn long_group_is_due_once_and_no_writer_waits_for_its_write() {
    let area = JournalArea { len: 32 << 20, ..AREA };
    let device = Arc::new(MemoryDevice::new(area.addr + area.len));
    let journal = Journal::open(device, area, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    let due = |seqnos: std::ops::RangeInclusive<u64>| -> Vec<u64> {
        let append = |seqno: &u64| journal.append(*seqno, plain(&put(&vec![7; 300_000]))).unwrap().is_due;
        seqnos.filter(append).collect()
    };
    assert_eq!(due(1..=10), [4]);
    assert_eq!(journal.stats().groups, 0);
    journal.write_out().unwrap();
    assert_eq!(due(11..=20), [14]);
    // No other thread wrote it: the writer whose batch would make the group too long does.
    assert_eq!(due(21..=27), [27]);
    assert_eq!(journal.stats().groups, 2);
}

#[test]
fn memory_of_groups_is_charged_while_they_are_open_written_and_spare() {
    let area = JournalArea { len: 32 << 20, ..AREA };
    let device = Arc::new(MemoryDevice::new(area.addr + area.len));
    let accountant = Accountant::new(64 << 20);
    let journal = Journal::open(device, area, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    let journal = journal.charged_to(Arc::clone(&accountant));
    assert_eq!(accountant.used(Pool::Io), 0);
    for seqno in 1..=3 {
        journal.append(seqno, plain(&put(&vec![7; 900_000]))).unwrap();
    }
    assert_eq!(accountant.used(Pool::Io), 3 << 20);
    journal.write_out().unwrap();
    assert_eq!(accountant.used(Pool::Io), 3 << 20, "they serve again");
    journal.append(4, plain(&put(&vec![7; 5 << 20]))).unwrap();
    journal.append(5, plain(&put(&vec![7; 5 << 20]))).unwrap();
    assert_eq!(accountant.peak(Pool::Io), 6 << 20, "the second group has the memory of the first one");
    drop(journal);
    assert_eq!(accountant.used(Pool::Io), 0);
}

#[test]
fn a_batch_larger_than_a_chunk_survives() {
    let area = JournalArea { len: 8 << 20, ..AREA };
    let device = Arc::new(MemoryDevice::new(area.addr + area.len));
    let journal = Journal::open(device.clone(), area, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    let mut data = vec![0; 3 << 20];
    Rng::new(1).fill(&mut data);
    let mut batch = Batch::new();
    batch.put_blocks(KEYSPACE, &b"prefix"[..], 5, data);
    // Three laps: each batch is due by its size alone, and wraps somewhere.
    let mut tail = Lsn(0);
    for seqno in 1..=8 {
        let Appended { lsn, is_due } = journal.append(seqno, plain(&batch)).unwrap();
        assert!(is_due);
        journal.write_out().unwrap();
        journal.retire(lsn);
        tail = lsn;
    }
    let mut replayed = Vec::new();
    let recovered = Journal::replay(device.as_ref(), area, 2, (tail, 0), &mut |found| {
        replayed.push(found);
        Ok(())
    });
    assert_eq!(recovered.unwrap().head, journal.head());
    assert_eq!(
        replayed,
        [Replayed {
            base: 8,
            batch,
            places: vec![],
            unreadable: vec![],
            mark: None,
            spilled: None,
            lsn: tail
        }]
    );
}

#[test]
fn place_that_two_writes_have_bound_is_corrupt() {
    let addr = AREA.addr + AREA.len;
    for (distance, is_sound) in [(0, false), (4096, false), (8192, true)] {
        let device = new_device();
        let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
        let zones = Zones::new(device.clone(), 64 << 10, DEVICE_BYTES, ZoneId(3));
        let mut batch = Batch::new();
        batch.put_blocks(KEYSPACE, &b"f"[..], 0, vec![0; 8192]);
        for (seqno, addr) in [(1, addr + distance), (2, addr)] {
            let extents = vec![Extent { addr, len: 8192 }];
            let place = Place { extents, crcs: vec![crc32c(&[0; 4096]); 2] };
            let mut bindings = Bindings::default();
            bindings.push(0, Bound::restore(&zones, place).unwrap());
            journal.append(seqno, Record { bindings: &bindings, ..plain(&batch) }).unwrap();
            journal.write_out().unwrap();
        }
        let opened = open(&device, 2, Lsn(0));
        assert_eq!(is_corrupt(&opened), !is_sound, "{distance} bytes apart");
        assert_eq!(opened.map_or(0, |(_, replayed)| replayed.len()), if is_sound { 2 } else { 0 });
    }
}

#[test]
fn a_torn_group_ends_the_log_at_every_sector() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    append_groups(&journal, 1, 2);
    let torn = journal.append(3, plain(&put(&[7; 10_000]))).unwrap().lsn;
    let before = device.fork();
    journal.write_out().unwrap();
    let len = (journal.head().0 - torn.0) as usize;
    let mut written = vec![0; len];
    device.read_at(&mut written, AREA.addr + torn.0).unwrap();
    for missing in 0..len / 512 {
        let image = Arc::new(before.fork());
        let mut group = written.clone();
        group[missing * 512..(missing + 1) * 512].fill(0xee);
        image.write_at(&group, AREA.addr + torn.0).unwrap();
        let (after, replayed) = open(&image, 2, Lsn(0)).unwrap();
        let is_padding = missing * 512 > HEADER_BYTES + 10_020;
        assert_eq!(replayed.len(), if is_padding { 3 } else { 2 }, "piece {missing}");
        assert_eq!(after.head() == torn, !is_padding, "piece {missing}");
        // Without its header it is as if it had never been.
        let is_seen = missing > 0 && !is_padding;
        assert_eq!(after.incomplete_bytes(), if is_seen { len as u64 } else { 0 }, "piece {missing}");
    }
}

#[test]
fn groups_of_earlier_laps_do_not_count() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    for seqno in 1..200 {
        journal.append(seqno, plain(&put(&seqno.to_le_bytes()))).unwrap();
        journal.sync(seqno).unwrap();
        journal.retire(Lsn(journal.head().0.saturating_sub(8192)));
        let recovered =
            Journal::replay(device.as_ref(), AREA, 2, (journal.tail(), 0), &mut |_| Ok(())).unwrap();
        assert_eq!((recovered.head, recovered.last_seqno), (journal.head(), seqno));
    }
    assert!(journal.head().0 > 5 * AREA.len);
}

#[test]
fn a_group_left_behind_the_end_never_counts_again() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    let lsns = append_groups(&journal, 1, 4);
    // Group 2 was lost; 3 and 4, written later, arrived.
    device.write_at(&[0; 4096], AREA.addr + lsns[1].0).unwrap();
    let (journal, replayed) = open(&device, 2, Lsn(0)).unwrap();
    assert_eq!(seqnos(&replayed), [1]);
    assert_eq!(journal.head(), lsns[1]);
    // The new opening fills the gap exactly.
    append_groups(&journal, 2, 1);
    let (journal, replayed) = open(&device, 3, Lsn(0)).unwrap();
    assert_eq!(seqnos(&replayed), [1, 2]);
    // A tail that points right at where the old group 3 was: nothing of it may come back.
    assert_eq!(journal.head(), lsns[2]);
    let (_, replayed) = open(&device, 4, lsns[2]).unwrap();
    assert_eq!(seqnos(&replayed), [0_u64; 0]);
}

#[test]
fn behind_the_end_of_a_closed_log_nothing_is_read() {
    const LONG: JournalArea = JournalArea { len: 64 << 20, ..AREA };
    let device = Arc::new(CountingDevice::new(MemoryDevice::new(LONG.addr + LONG.len)));
    Journal::create(device.as_ref(), LONG).unwrap();
    let open = |epoch: u64| {
        let before = device.counts().bytes_read;
        let mut seqnos = Vec::new();
        let journal = Journal::open(device.clone(), LONG, epoch, (Lsn(0), 0), still(), &mut |batch| {
            seqnos.push(batch.base);
            Ok(())
        });
        (journal.unwrap(), seqnos, device.counts().bytes_read - before)
    };
    let (journal, ..) = open(1);
    append_groups(&journal, 1, 3);
    journal.sync(3).unwrap();
    journal.end().unwrap();
    journal.end().unwrap();
    assert!(matches!(
        journal.append(4, plain(&put(b"4"))),
        Err(AppendError::Store(StoreError::Failed { .. }))
    ));
    let (journal, seqnos, bytes_read) = open(2);
    assert_eq!(seqnos, [1, 2, 3]);
    assert!(bytes_read <= 4 << 20, "{bytes_read} bytes of the journal were read");
    // That one was not closed: something may lie behind the end now.
    append_groups(&journal, 4, 1);
    drop(journal);
    let (_, seqnos, bytes_read) = open(3);
    assert_eq!(seqnos, [1, 2, 3, 4]);
    assert!(bytes_read >= LONG.len, "{bytes_read} bytes of the journal were read");
}

#[test]
fn remains_behind_the_end_of_a_closed_log_never_count() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    append_groups(&journal, 1, 1);
    journal.sync(1).unwrap();
    journal.end().unwrap();
    let (journal, _) = open(&device, 2, Lsn(0)).unwrap();
    // The first group of this opening was lost; the second one, written later, arrived.
    let lsns = append_groups(&journal, 2, 2);
    device.write_at(&[0; 4096], AREA.addr + lsns[0].0).unwrap();
    let (journal, replayed) = open(&device, 3, Lsn(0)).unwrap();
    assert_eq!(seqnos(&replayed), [1]);
    assert_eq!(journal.head(), lsns[0]);
    let (_, replayed) = open(&device, 4, lsns[1]).unwrap();
    assert_eq!(seqnos(&replayed), [0_u64; 0]);
}

#[test]
fn epochs_alone_keep_remains_out_of_a_log() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    let lsns = append_groups(&journal, 1, 3);
    let mut remains = vec![0; 4096];
    device.read_at(&mut remains, AREA.addr + lsns[2].0).unwrap();
    device.write_at(&[0; 4096], AREA.addr + lsns[1].0).unwrap();
    let (journal, _) = open(&device, 2, Lsn(0)).unwrap();
    append_groups(&journal, 2, 1);
    // As if wiping had not happened.
    device.write_at(&remains, AREA.addr + lsns[2].0).unwrap();
    let (_, replayed) = open(&device, 3, Lsn(0)).unwrap();
    assert_eq!(seqnos(&replayed), [1, 2]);
}

#[test]
fn damage_before_what_was_flushed_is_refused() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    let lsns = append_groups(&journal, 1, 3);
    journal.sync(3).unwrap();
    append_groups(&journal, 4, 1);
    for &lsn in &lsns {
        for at in [0, 70] {
            let image = Arc::new(device.fork());
            let mut sector = vec![0; 4096];
            image.read_at(&mut sector, AREA.addr + lsn.0).unwrap();
            sector[at] ^= 1;
            image.write_at(&sector, AREA.addr + lsn.0).unwrap();
            assert!(is_corrupt(&open(&image, 2, Lsn(0))), "position {lsn:?}, byte {at}");
        }
    }
}

#[test]
fn a_tail_that_was_overwritten_is_refused() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    let lsns = append_groups(&journal, 1, 20);
    journal.retire(lsns[19]);
    append_groups(&journal, 21, 20);
    assert!(journal.head().0 > AREA.len);
    assert!(is_corrupt(&open(&device, 2, Lsn(0))));
    assert!(open(&device, 2, lsns[19]).is_ok());
}

#[test]
fn groups_from_openings_that_the_superblock_does_not_know_are_refused() {
    let device = new_device();
    let (journal, _) = open(&device, 5, Lsn(0)).unwrap();
    append_groups(&journal, 1, 1);
    assert!(is_corrupt(&open(&device, 5, Lsn(0))));
    assert!(open(&device, 6, Lsn(0)).is_ok());
}

#[test]
fn another_stores_groups_do_not_count() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    append_groups(&journal, 1, 3);
    let other = JournalArea { salt: AREA.salt + 1, ..AREA };
    let recovered = Journal::replay(device.as_ref(), other, 2, (Lsn(0), 0), &mut |_| Ok(())).unwrap();
    assert_eq!(recovered.groups, 0);
}

#[test]
fn a_full_area_says_so_until_it_is_retired() {
    let device = new_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    let batch = put(&vec![1; 30_000]);
    let mut seqno = 1;
    let lsns: Vec<_> = std::iter::from_fn(|| {
        let lsn = journal.append(seqno, plain(&batch)).ok()?.lsn;
        seqno += 1;
        Some(lsn)
    })
    .collect();
    assert_eq!(lsns.len(), 4);
    assert!(journal.used_bytes() <= journal.area_bytes());
    assert!(matches!(journal.append(seqno, plain(&batch)), Err(AppendError::AreaFull(_))));
    journal.retire(journal.head());
    assert_eq!(journal.used_bytes(), 0);
    journal.append(seqno, plain(&batch)).unwrap();
    journal.sync(seqno).unwrap();
    let (_, replayed) = open(&device, 2, journal.tail()).unwrap();
    assert_eq!(seqnos(&replayed), [seqno]);

    let too_large = journal.append(seqno + 1, plain(&put(&vec![1; AREA.len as usize])));
    assert!(matches!(too_large, Err(AppendError::Store(StoreError::BatchTooLarge { .. }))));
    // Nearly the whole area, with an open group in the way of it.
    journal.append(seqno + 1, plain(&put(b"small"))).unwrap();
    let nearly = put(&vec![1; AREA.len as usize - 4096]);
    assert!(matches!(journal.append(seqno + 2, plain(&nearly)), Err(AppendError::AreaFull(_))));
    journal.retire(journal.head());
    journal.append(seqno + 2, plain(&nearly)).unwrap();
    journal.sync(seqno + 2).unwrap();
}

#[test]
fn a_failed_write_or_flush_is_sticky() {
    for call in [Call::Write, Call::Flush] {
        let device = Arc::new(FaultDevice::new(new_device()));
        let journal = Journal::open(device.clone(), AREA, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
        journal.append(1, plain(&put(b"a"))).unwrap();
        journal.sync(1).unwrap();
        journal.append(2, plain(&put(b"b"))).unwrap();
        device.add(FaultRule::once(call, 0, FaultError::EIO));
        assert!(matches!(journal.sync(2), Err(StoreError::Failed { .. })), "{call:?}");
        assert!(matches!(journal.sync(2), Err(StoreError::Failed { .. })), "{call:?}");
        assert!(matches!(journal.write_out(), Err(StoreError::Failed { .. })), "{call:?}");
        let append = journal.append(3, plain(&put(b"c")));
        assert!(matches!(append, Err(AppendError::Store(StoreError::Failed { .. }))), "{call:?}");
        assert!(journal.sync(1).is_ok(), "what is durable stays so");
        assert_eq!(journal.durable_seqno(), 1);
    }
}

#[test]
fn headers_survive_encoding_and_nothing_else_decodes() {
    let fields = GroupFields {
        lsn: (3 << 40).into(),
        epoch: 4.into(),
        flushed_before: 5.into(),
        first_seqno: 6.into(),
        batches: 7.into(),
        reserved: [0; 12],
    };
    let header = Header::new(fields, 2, 1, 9);
    let bytes = <[u8; HEADER_BYTES]>::try_from(header.as_bytes()).unwrap();
    assert_eq!(Header::decode(&bytes, 9), Some(header));
    assert_eq!(Header::decode(&bytes, 8), None);
    for bit in 0..HEADER_BYTES * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Header::decode(&flipped, 9), None, "bit {bit}");
    }
}
