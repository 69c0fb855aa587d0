//! Small writes that are bound together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvfs_locks::{Mutex, class};
use kvfs_store::BLOCK_BYTES;

use super::*;
use crate::journal::gather::{Note, Sequence, Small, sequences};
use crate::journal::{Binder, Wanted};
use crate::space::{BoundOp, HoldsBound};

const ZONE_BYTES: u32 = 64 << 10;
const ZONES: u32 = 64;
const BYTES_MIN: usize = 5 * BLOCK_BYTES;

/// Zones behind the journal.
struct Places {
    zones: Arc<Zones>,
    finds: AtomicBool,
    with_patches: AtomicU64,
}

impl Places {
    fn behind(device: &Arc<MemoryDevice>) -> Arc<Self> {
        let device = Arc::clone(device) as Arc<dyn Device>;
        let first = ZoneId((DEVICE_BYTES / u64::from(ZONE_BYTES)) as u32);
        let zones = Zones::new(device, ZONE_BYTES, u64::from(ZONES * ZONE_BYTES), first);
        Arc::new(Self { zones, finds: AtomicBool::new(true), with_patches: AtomicU64::new(0) })
    }
}

impl Binder for Places {
    fn bytes_min(&self) -> usize {
        BYTES_MIN
    }

    fn place(&self, wanted: Wanted) -> Option<Bound> {
        let Wanted { blocks, has_patches, .. } = wanted;
        self.with_patches.fetch_add(has_patches.into(), Ordering::Relaxed);
        let place = || {
            Bound::allocate(&self.zones, Stream::FlushBlock.into(), Budget::Ordinary, vec![0; blocks])
                .unwrap()
        };
        self.finds.load(Ordering::Relaxed).then(place)
    }
}

#[derive(Default)]
struct Holder {
    held: Mutex<Vec<(Seqno, BoundOp)>, class::KvdbMemtableTableBound>,
    blocks: AtomicU64,
}

impl HoldsBound for Holder {
    fn count(&self, blocks: u64) {
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    fn hold(&self, ops: Vec<(Seqno, BoundOp)>) {
        self.held.lock().extend(ops);
    }
}

/// A device with room behind the journal.
fn large_device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::growable(DEVICE_BYTES, u64::from(ZONES * ZONE_BYTES)));
    Journal::create(device.as_ref(), AREA).unwrap();
    device
}

/// Writes `len` bytes from byte `at` on as file systems do: patches at the ends, whole blocks between.
fn push_write(batch: &mut Batch, prefix: &'static str, mut at: u64, data: &[u8]) {
    let mut rest = data;
    while !rest.is_empty() {
        let (block, offset) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
        let len = if offset == 0 && rest.len() >= BLOCK_BYTES {
            rest.len() / BLOCK_BYTES * BLOCK_BYTES
        } else {
            rest.len().min(BLOCK_BYTES - offset)
        };
        let (now, later) = rest.split_at(len);
        if len % BLOCK_BYTES == 0 {
            batch.put_blocks(KEYSPACE, prefix, block, Bytes::copy_from_slice(now));
        } else {
            batch.patch_block(KEYSPACE, prefix, block, offset as u16, Bytes::copy_from_slice(now));
        }
        (at, rest) = (at + len as u64, later);
    }
}

fn noted(prefix: &'static str, at: u64, len: usize) -> Note {
    let (block, offset) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
    let is_patch = offset > 0 || len < BLOCK_BYTES;
    let (keyspace, prefix) = (KEYSPACE, Bytes::from(prefix));
    Note::Small(Small {
        encoded: 0..len,
        seqno: 1,
        keyspace,
        prefix,
        block,
        offset,
        len,
        is_patch,
        holder: 0,
    })
}

fn found(notes: &[Note]) -> Vec<(u64, usize, Vec<usize>)> {
    sequences(notes, BYTES_MIN)
        .into_iter()
        .map(|Sequence { first, blocks, ops }| (first, blocks, ops))
        .collect()
}

#[test]
fn sequences_are_of_whole_blocks_that_follow_each_other() {
    let kib = |number: u64| number << 10;
    let write = |at, len: usize| noted("f", kib(at), len << 10);
    assert_eq!(found(&[write(0, 20)]), [(0, 5, vec![0])]);
    assert_eq!(found(&[write(0, 16)]), []);
    assert_eq!(found(&[write(0, 8), write(8, 12)]), [(0, 5, vec![0, 1])]);
    assert_eq!(found(&[write(0, 8), write(12, 8)]), [], "a gap");
    // Parts of blocks at both ends belong to none; between they make up blocks.
    let parts =
        [write(2, 2), write(4, 8), write(12, 1), write(13, 1), write(14, 2), write(16, 8), write(24, 3)];
    assert_eq!(found(&parts), [(1, 5, vec![1, 2, 3, 4, 5])]);
    let interleaved = [write(0, 8), noted("g", 0, 20 << 10), write(8, 12)];
    assert_eq!(found(&interleaved), [(0, 5, vec![0, 2]), (0, 5, vec![1])]);
    let again = [write(0, 8), write(8, 8), write(4, 4), write(8, 12), write(20, 8)];
    assert_eq!(found(&again), [(1, 6, vec![2, 3, 4])], "what was written before is no part of it");
}

#[test]
fn what_changes_a_file_otherwise_parts_its_sequence() {
    let other = Keyspace(KEYSPACE.0 + 1);
    let prefix = |prefix: &'static str| Bytes::from(prefix);
    let range = |of, first: &'static [u8], last: &'static [u8]| {
        Note::PartRange(of, Bytes::from_static(first), Bytes::from_static(last))
    };
    let between = |note| found(&[noted("f", 0, 8 << 10), note, noted("f", 8 << 10, 12 << 10)]).len();
    assert_eq!(between(Note::Part(KEYSPACE, prefix("f"))), 0);
    assert_eq!(between(Note::Part(KEYSPACE, prefix("g"))), 1);
    for (first, last) in [("a", "z"), ("f", "f"), ("f\0\0", "z"), ("a", "f\0"), ("f\0\0\0\0\0\0\0\u{1}", "g")]
    {
        assert_eq!(between(range(KEYSPACE, first.as_bytes(), last.as_bytes())), 0, "{first:?} to {last:?}");
    }
    assert_eq!(between(range(KEYSPACE, b"a", b"e\xff")), 1);
    assert_eq!(between(range(KEYSPACE, b"g", b"z")), 1);
    assert_eq!(between(range(other, b"a", b"z")), 1);
    assert_eq!(between(Note::Part(other, prefix("f"))), 1);
    assert_eq!(between(Note::PartAll), 0);
}

/// A journal of random small writes, and the batches that it was given.
fn random_life(
    seed: u64,
    device: &Arc<MemoryDevice>,
    places: &Arc<Places>,
    holder: &Arc<dyn HoldsBound>,
) -> Vec<(Seqno, Batch)> {
    let mut rng = Rng::new(seed);
    let (journal, _) = open(device, 1, Lsn(0)).unwrap();
    journal.bind_by(Arc::clone(places) as Arc<dyn Binder>);
    let (mut ends, mut next, mut history) = ([0_u64; 3], 1, Vec::new());
    for _ in 0..rng.range(10, 60) {
        let mut batch = Batch::new();
        let file = rng.index(3);
        let prefix = ["f", "g", "h"][file];
        match rng.below(20) {
            0 => batch.delete_range(KEYSPACE, "f", "g"),
            1 => ends[file] = rng.below(ends[file] + 1),
            2 => journal.write_out().unwrap(),
            3 => places.finds.store(rng.chance(1, 2), Ordering::Relaxed),
            4 => batch.put(Keyspace(1), "key", "value"),
            _ => {}
        }
        let mut data = vec![0; rng.range(1, 12_000) as usize];
        rng.fill(&mut data);
        push_write(&mut batch, prefix, ends[file], &data);
        ends[file] += data.len() as u64;
        let bindings = Bindings::default();
        let holder = (!rng.chance(1, 20)).then_some(holder);
        let record = Record { batch: &batch, bindings: &bindings, mark: None, holder };
        match journal.append(next, record) {
            Ok(_) => {}
            // The area is small.
            Err(AppendError::AreaFull(_)) => break,
            Err(error) => panic!("{error}"),
        }
        history.push((next, batch.clone()));
        next += batch.len() as u64;
    }
    journal.sync(next - 1).unwrap();
    history
}

#[test]
fn small_writes_that_were_bound_are_replayed_as_they_were_appended() {
    let mut with_patches = 0;
    for seed in 0..200 {
        let device = large_device();
        let places = Places::behind(&device);
        let holds = Arc::new(Holder::default());
        let holder: Arc<dyn HoldsBound> = holds.clone();
        let history = random_life(seed, &device, &places, &holder);
        let (_, replayed) = open(&device, 2, Lsn(0)).unwrap();
        let read: Vec<_> = replayed.iter().map(|read| (read.base, &read.batch)).collect();
        let wanted: Vec<_> = history.iter().map(|(base, batch)| (*base, batch)).collect();
        assert_eq!(read, wanted, "seed {seed}");
        // What the holder was told is what stands there, and is what the replay finds in its place.
        let mut blocks = 0;
        for read in &replayed {
            for (at, place) in &read.places {
                let seqno = read.base + *at as u64;
                let held = holds.held.lock();
                let (_, op) = held.iter().find(|(held, _)| *held == seqno).expect("is told");
                let first = match &read.batch.ops()[*at] {
                    Op::PutBlocks { first, .. } | Op::PatchBlock { block: first, .. } => *first,
                    _ => panic!("seed {seed}: {seqno} has no blocks"),
                };
                let count = place.crcs.len();
                assert_eq!(op.crcs(first, count), place.crcs, "seed {seed}");
                assert_eq!(op.find(first).map(|(_, addr)| addr), Some(place.extents[0].addr), "seed {seed}");
                blocks += count;
            }
        }
        assert_eq!(replayed.iter().map(|read| read.places.len()).sum::<usize>(), holds.held.lock().len());
        assert_eq!(holds.blocks.load(Ordering::Relaxed), blocks as u64, "seed {seed}");
        if blocks > 0 {
            with_patches += places.with_patches.load(Ordering::Relaxed);
        }
    }
    assert!(with_patches > 100, "{with_patches} sequences had patches");
}

#[test]
fn group_ends_the_log_when_a_block_that_patches_make_up_is_not_what_it_was() {
    let device = large_device();
    let (journal, _) = open(&device, 1, Lsn(0)).unwrap();
    let places = Places::behind(&device);
    journal.bind_by(Arc::clone(&places) as Arc<dyn Binder>);
    let holder: Arc<dyn HoldsBound> = Arc::new(Holder::default());
    let bindings = Bindings::default();
    let mut next = 1;
    for part in 0..10 {
        let mut batch = Batch::new();
        push_write(&mut batch, "f", part * 10_240, &[part as u8 + 1; 10_240]);
        let record = Record { batch: &batch, bindings: &bindings, mark: None, holder: Some(&holder) };
        journal.append(next, record).unwrap();
        next += batch.len() as u64;
    }
    journal.sync(next - 1).unwrap();
    assert!(journal.stats().bytes_bound >= 24 * 4096, "{:?}", journal.stats());
    assert!(journal.stats().bytes_written <= 8192, "{:?}", journal.stats());
    let (_, replayed) = open(&device, 2, Lsn(0)).unwrap();
    assert_eq!(replayed.len(), 10);
    let place = replayed.iter().flat_map(|read| &read.places).find(|(_, place)| place.crcs.len() == 1);
    let addr = place.expect("a patch is bound").1.extents[0].addr;
    device.write_at(&[0xee; 4096], addr).unwrap();
    assert!(matches!(open(&device, 3, Lsn(0)), Ok((_, replayed)) if replayed.is_empty()));
}
