//! Repairs of damaged stores: what is not damaged stays, what is lost is told, a repair that is cut off is
//! repeated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, CrashDevice, CrashMode, Device, MemoryDevice, Rng, SECTOR_BYTES};
use kvfs_kvdb::{CreateOptions, Db, Lost, Repaired, repair};
use kvfs_store::{
    BLOCK_BYTES, Batch, Compression, Durability, KeyRange, Keyspace, KeyspaceKind, NamedSnapshots, Op,
    Position, Read, Store,
};

use super::basics::{create, create_zoned, open};

const ZONES: u64 = 160;
const ZONE_BYTES: usize = 256 << 10;
/// Superblocks, then 16 zones of journal.
const FIRST_DATA_ZONE: usize = 17;
pub(crate) const SPACES: [(&str, KeyspaceKind); 2] =
    [("rows", KeyspaceKind::Tuple), ("data", KeyspaceKind::Block)];

/// Keys and values of both keyspaces.
pub(crate) type Content = [BTreeMap<Bytes, Bytes>; 2];

/// A closed or killed store, and all that was ever written to it.
pub(crate) struct Sample {
    pub(crate) medium: Arc<MemoryDevice>,
    pub(crate) history: Vec<(Position, Batch)>,
    spaces: [Keyspace; 2],
}

fn handles(db: &Db) -> [Keyspace; 2] {
    SPACES.map(|(name, kind)| db.open_keyspace(name, kind, None).expect("opens"))
}

fn random_batch(rng: &mut Rng, spaces: [Keyspace; 2]) -> Batch {
    let mut batch = Batch::new();
    let key = |rng: &mut Rng| format!("key{:04}", rng.below(2000)).into_bytes();
    for _ in 0..rng.range(1, 8) {
        match rng.below(10) {
            0 => batch.delete(spaces[0], key(rng)),
            1 if rng.chance(1, 4) => {
                let from = rng.below(1990);
                let key = |number: u64| format!("key{number:04}").into_bytes();
                batch.delete_range(spaces[0], key(from), key(from + rng.range(1, 10)));
            }
            2 if rng.chance(1, 2) => {
                let mut data = vec![0; rng.range(1, 30) as usize];
                rng.fill(&mut data);
                let (prefix, offset) = (vec![b'f', rng.below(6) as u8], rng.below(4060) as u16);
                batch.patch_block(spaces[1], prefix, rng.below(60), offset, data);
            }
            2 | 3 => {
                let mut data = vec![0; BLOCK_BYTES * rng.range(1, 6) as usize];
                // Something in it can be packed.
                let random = data.len() / 3;
                rng.fill(&mut data[..random]);
                let prefix = vec![b'f', rng.below(6) as u8];
                batch.push(Op::PutBlocks {
                    keyspace: spaces[1],
                    prefix: prefix.into(),
                    first: rng.below(60),
                    data: data.into(),
                    compression: if rng.chance(1, 2) { Compression::Lz4 } else { Compression::None },
                });
            }
            _ => {
                let mut value = vec![0; rng.range(10, 400) as usize];
                rng.fill(&mut value);
                batch.put(spaces[0], key(rng), value);
            }
        }
    }
    batch
}

/// A store of several runs, with a snapshot, that ends with an unflushed part (which the journal has).
pub(crate) fn sample(seed: u64) -> Sample {
    let mut rng = Rng::new(seed);
    let medium = Arc::new(MemoryDevice::growable(0, ZONES * ZONE_BYTES as u64));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, ZONES);
    let db = open(&device, |options| {
        options.merge.piece_bytes = 128 << 10;
        options.merge.class_runs = 3;
        options.merge.class_bytes_min = 32 << 10;
    });
    let spaces = handles(&db);
    let mut history = Vec::new();
    for round in 0..8 {
        for _ in 0..60 {
            let batch = random_batch(&mut rng, spaces);
            history.push((db.apply(batch.clone(), Durability::Buffered).expect("applies"), batch));
            if rng.chance(1, 10) {
                db.sync(db.position()).expect("syncs");
            }
        }
        if round == 4 {
            db.create_snapshot("middle").expect("names");
        }
        if round < 7 {
            db.flush().expect("flushes");
            if rng.chance(1, 2) {
                db.compact().expect("merges");
            }
        }
    }
    db.sync(db.position()).expect("syncs");
    Sample { medium, history, spaces }
}

impl Sample {
    /// The content after everything up to `last`.
    pub(crate) fn content(&self, last: u64) -> Content {
        let mut content = Content::default();
        for op in self.history.iter().filter(|(at, _)| at.0 <= last).flat_map(|(_, batch)| batch.ops()) {
            let space = &mut content[usize::from(op.keyspace() == self.spaces[1])];
            match op {
                Op::Put { key, value, .. } => drop(space.insert(key.clone(), value.clone())),
                Op::Delete { key, .. } => drop(space.remove(key)),
                Op::DeleteRange { start, end, .. } => space.retain(|key, _| !(start <= key && key < end)),
                Op::PutBlocks { prefix, first, data, .. } => {
                    for (block, at) in (*first..).zip((0..data.len()).step_by(BLOCK_BYTES)) {
                        space.insert(block_key(prefix, block), data.slice(at..at + BLOCK_BYTES));
                    }
                }
                Op::PatchBlock { prefix, block, offset, data, .. } => {
                    let value =
                        space.entry(block_key(prefix, *block)).or_insert_with(|| vec![0; BLOCK_BYTES].into());
                    let mut whole = value.to_vec();
                    whole[usize::from(*offset)..][..data.len()].copy_from_slice(data);
                    *value = whole.into();
                }
                Op::Merge { .. } => unreachable!("none are written"),
            }
        }
        content
    }
}

fn block_key(prefix: &[u8], block: u64) -> Bytes {
    [prefix, &block.to_be_bytes()].concat().into()
}

pub(crate) fn content_of(db: &Db) -> Content {
    handles(db).map(|keyspace| {
        let mut content = BTreeMap::new();
        let mut cursor = db.cursor(keyspace, KeyRange::all()).expect("opens");
        loop {
            cursor.next().expect("reads");
            let Some((key, value)) = cursor.entry() else { return content };
            content.insert(Bytes::copy_from_slice(key), value.clone());
        }
    })
}

fn run_repair(device: &Arc<dyn Device>) -> Repaired {
    repair(device, &SPACES).expect("a repair ends")
}

/// Which keys a repair says are lost, or may be.
struct Told {
    keys: [Vec<Bytes>; 2],
    ranges: [Vec<Lost>; 2],
}

impl Told {
    fn by(db: &Db, repaired: &Repaired) -> Self {
        let mut told = Self { keys: Default::default(), ranges: Default::default() };
        for lost in &repaired.lost {
            let space = usize::from(lost.kind == KeyspaceKind::Block);
            let keys = db.lost_keys(lost).expect("reads");
            told.keys[space].extend(keys.older);
            for (prefix, first, count) in keys.blocks {
                told.keys[space].extend((first..first + count).map(|block| block_key(&prefix, block)));
            }
            // Of a lost block only its keys are listed, of a whole piece the range.
            if space == 0 || keys.gone_max.is_none() {
                told.ranges[space].push(lost.clone());
            }
        }
        told
    }

    /// A key that may be there as it was earlier.
    fn names(&self, space: usize, key: &Bytes) -> bool {
        // Of rows those that are there are listed.
        let in_range = || self.ranges[space].iter().any(|lost| lost.part.may_hold(key));
        self.keys[space].contains(key) || space == 1 && in_range()
    }

    /// A key that is gone altogether.
    fn may_lack(&self, space: usize, key: &Bytes) -> bool {
        self.names(space, key) || self.ranges[space].iter().any(|lost| lost.part.may_hold(key))
    }
}

/// What must be true of the repaired store on `device`. Gives how many keys are lost.
fn assert_repaired(sample: &Sample, device: &Arc<dyn Device>, repaired: &Repaired, what: &str) -> usize {
    let db = open(device, |_| {});
    let checked = db.check().expect("checks");
    assert!(checked.findings.is_empty(), "{what}: {:?} after {:?}", checked.findings, repaired.findings);
    assert_eq!(db.position().0, repaired.last_seqno, "{what}");
    let (expected, found) = (sample.content(repaired.last_seqno), content_of(&db));
    let told = Told::by(&db, repaired);
    let mut lost = 0;
    for space in 0..2 {
        for (key, value) in &expected[space] {
            let is_fine = match found[space].get(key) {
                Some(there) if there == value => true,
                Some(_) => told.names(space, key),
                None => told.may_lack(space, key),
            };
            lost += usize::from(found[space].get(key) != Some(value));
            assert!(
                is_fine,
                "{what}: {} {} is not what it was: {:?}",
                SPACES[space].0,
                key.escape_ascii(),
                repaired.findings
            );
        }
        let more = found[space].keys().filter(|key| !expected[space].contains_key(*key));
        for key in more {
            assert!(
                repaired.is_uncertain || told.names(space, key),
                "{what}: {} {} came back: {:?}",
                SPACES[space].0,
                key.escape_ascii(),
                repaired.findings
            );
        }
    }
    // It is writable.
    let mut batch = Batch::new();
    batch.put(handles(&db)[0], &b"new"[..], &b"value"[..]);
    db.apply(batch, Durability::Synced).expect("applies");
    db.close().expect("closes");
    drop(db);
    let again = run_repair(device);
    assert!(again.findings.is_empty() && again.lost.is_empty(), "{what}: {again:?}");
    lost
}

/// Overwrites `len` bytes with zeros or noise.
fn spoil(device: &MemoryDevice, at: usize, len: usize, rng: &mut Rng) {
    let mut buf = AlignedBuf::zeroed(len);
    if rng.chance(1, 2) {
        rng.fill(buf.as_mut());
    }
    device.write_at(buf.as_ref(), at as u64).expect("writes");
}

fn flip(device: &MemoryDevice, sector: usize, rng: &mut Rng) {
    let mut buf = AlignedBuf::zeroed(SECTOR_BYTES);
    let at = (sector * SECTOR_BYTES) as u64;
    device.read_at(buf.as_mut(), at).expect("reads");
    // Half of them in the headers.
    let byte = if rng.chance(1, 2) { rng.index(64) } else { rng.index(SECTOR_BYTES) };
    buf.as_mut()[byte] ^= 1 << rng.index(8);
    device.write_at(buf.as_ref(), at).expect("writes");
}

/// That the last group of the journal is gone can't be told from a write that a crash has torn.
fn assert_end_told(sample: &Sample, repaired: &Repaired, sector: usize, what: &str) {
    let is_journal = (1..FIRST_DATA_ZONE).contains(&(sector * SECTOR_BYTES / ZONE_BYTES));
    let all = sample.history.last().expect("not empty").0.0;
    assert!(
        repaired.last_seqno == all || is_journal || !repaired.findings.is_empty(),
        "{what}: the end of the history is missing, and nothing is said"
    );
}

pub(crate) fn used_sectors(medium: &MemoryDevice) -> Vec<usize> {
    let image = medium.snapshot();
    let is_used = |(_, sector): &(usize, &[u8])| sector.iter().any(|&byte| byte != 0);
    image.chunks(SECTOR_BYTES).enumerate().filter(is_used).map(|(index, _)| index).collect()
}

#[test]
fn a_sound_store_has_nothing_to_repair() {
    let sample = sample(0x5a4e);
    let device: Arc<dyn Device> = Arc::new(sample.medium.fork());
    let repaired = run_repair(&device);
    assert!(repaired.findings.is_empty() && repaired.lost.is_empty(), "{repaired:?}");
    assert_eq!(assert_repaired(&sample, &device, &repaired, "sound"), 0);
}

#[test]
fn whatever_single_sector_is_damaged_all_else_is_there() {
    for seed in 0..2 {
        let seed = 0x4e0_0000 + seed;
        let sample = sample(seed);
        let sectors = used_sectors(&sample.medium);
        let mut rng = Rng::new(seed);
        let mut lost = 0;
        for _ in 0..30 {
            let medium = sample.medium.fork();
            let sector = sectors[rng.index(sectors.len())];
            let what = format!("seed {seed:#x}, sector {sector}");
            if rng.chance(1, 3) {
                spoil(&medium, sector * SECTOR_BYTES, SECTOR_BYTES, &mut rng);
            } else {
                flip(&medium, sector, &mut rng);
            }
            let device: Arc<dyn Device> = Arc::new(medium);
            let repaired = run_repair(&device);
            assert_end_told(&sample, &repaired, sector, &what);
            lost += assert_repaired(&sample, &device, &repaired, &what);
        }
        println!("seed {seed:#x}: {lost} keys lost by 30 sectors");
    }
}

#[test]
fn a_snapshot_that_may_have_lost_something_is_created_at_another_moment() {
    let medium = Arc::new(MemoryDevice::growable(0, ZONES * ZONE_BYTES as u64));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, ZONES);
    let db = open(&device, |_| {});
    let rows = handles(&db)[0];
    for name in ["first", "second", "third"] {
        let mut batch = Batch::new();
        batch.put(rows, name.as_bytes(), format!("the value of {name}").into_bytes());
        db.apply(batch, Durability::Synced).expect("applies");
        db.flush().expect("flushes");
        db.create_snapshot(name).expect("names");
    }
    let before = db.named_snapshots();
    db.close().expect("closes");
    drop(db);
    let image = medium.snapshot();
    let words = b"the value of second";
    let is_block = |sector: &[u8]| {
        sector.starts_with(b"KVtb") && sector.windows(words.len()).any(|window| window == words)
    };
    let damaged: Vec<_> =
        (0..).zip(image.chunks(SECTOR_BYTES)).filter(|(_, sector)| is_block(sector)).collect();
    assert_eq!(damaged.len(), 1);
    spoil(&medium, damaged[0].0 * SECTOR_BYTES, SECTOR_BYTES, &mut Rng::new(1));
    let repaired = run_repair(&device);
    assert_eq!(Vec::from_iter(&repaired.snapshots), ["second", "third"], "{repaired:?}");
    let db = open(&device, |_| {});
    let after = db.named_snapshots();
    assert_eq!(after[0], before[0], "nothing that it had is lost");
    for (before, after) in before.iter().zip(&after).skip(1) {
        assert_eq!((&after.name, after.position), (&before.name, before.position));
        let later = after.created.checked_sub(before.created).expect("not earlier");
        assert!(!later.is_zero() && later < Duration::from_secs(1));
    }
}

#[test]
fn whatever_zone_is_lost_all_else_is_there() {
    for seed in 0..2 {
        let seed = 0x204e_0000 + seed;
        let sample = sample(seed);
        let zones: std::collections::BTreeSet<usize> =
            used_sectors(&sample.medium).iter().map(|sector| sector * SECTOR_BYTES / ZONE_BYTES).collect();
        let mut rng = Rng::new(seed);
        for zone in zones.into_iter().filter(|&zone| zone > 0) {
            let medium = sample.medium.fork();
            spoil(&medium, zone * ZONE_BYTES, ZONE_BYTES, &mut rng);
            let device: Arc<dyn Device> = Arc::new(medium);
            let repaired = run_repair(&device);
            let what = format!("seed {seed:#x}, zone {zone}");
            assert_end_told(&sample, &repaired, zone * ZONE_BYTES / SECTOR_BYTES, &what);
            let lost = assert_repaired(&sample, &device, &repaired, &what);
            println!("{what}: {lost} keys lost, {} findings", repaired.findings.len());
        }
    }
}

#[test]
fn a_repair_that_is_cut_off_can_be_repeated() {
    let seed = 0xc0_ffee;
    let sample = sample(seed);
    let sectors = used_sectors(&sample.medium);
    let data: Vec<usize> =
        sectors.into_iter().filter(|sector| sector * SECTOR_BYTES >= FIRST_DATA_ZONE * ZONE_BYTES).collect();
    let mut rng = Rng::new(seed);
    for round in 0..6 {
        let medium = sample.medium.fork();
        for _ in 0..3 {
            let sector = data[rng.index(data.len())];
            spoil(&medium, sector * SECTOR_BYTES, SECTOR_BYTES, &mut rng);
        }
        if round % 2 == 1 {
            // Somewhere in the journal.
            spoil(&medium, ZONE_BYTES + rng.index(40) * SECTOR_BYTES, SECTOR_BYTES, &mut rng);
        }
        let crash = CrashDevice::over(Arc::new(medium)).with_log().expect("keeps a log");
        let crash = Arc::new(crash);
        let device = Arc::clone(&crash) as Arc<dyn Device>;
        run_repair(&device);
        let events = crash.events_len();
        for _ in 0..12 {
            let event = rng.index(events + 1);
            let mode = CrashMode::Any;
            let image = crash.image_at(event, rng.next_u64(), mode).expect("makes an image");
            let device: Arc<dyn Device> = Arc::new(image);
            let repaired = run_repair(&device);
            if event < events || !repaired.findings.is_empty() {
                let what = format!("seed {seed:#x}, round {round}, cut off at {event} of {events}");
                let db = open(&device, |_| {});
                assert!(db.check().expect("checks").findings.is_empty(), "{what}");
                // What a finished repair had told is not told again.
                let told = !repaired.findings.is_empty();
                drop(db);
                if told {
                    assert_repaired(&sample, &device, &repaired, &what);
                }
            }
        }
    }
}

/// A repair writes out what it has replayed from time to time, and the zone that it then fills may be one
/// that the journal has bound blocks in which come later.
#[test]
fn a_repair_fills_zones_behind_blocks_that_the_journal_has_bound() {
    const LONG_ZONE_BYTES: usize = 2 << 20;
    const FILE_BYTES: usize = 256 << 10;
    // Eight zones are what a repair keeps in memory; the ninth one is half full.
    const FILES: u64 = 8 * 8 + 4;
    let medium = Arc::new(MemoryDevice::growable(0, 64 * LONG_ZONE_BYTES as u64));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create_zoned(&device, LONG_ZONE_BYTES as u32, 64);
    let db = open(&device, |options| options.memtable_bytes = 64 << 20);
    let spaces = handles(&db);
    let content = |file: u64| {
        let mut data = vec![0; FILE_BYTES];
        Rng::new(file).fill(&mut data);
        data
    };
    for file in 0..FILES {
        let mut batch = Batch::new();
        batch.put_blocks(spaces[1], file.to_be_bytes().to_vec(), 0, content(file));
        db.apply(batch, Durability::Synced).expect("applies");
    }
    drop(db);

    // The last group but one.
    let journal = LONG_ZONE_BYTES / SECTOR_BYTES..LONG_ZONE_BYTES / SECTOR_BYTES + (4 << 20) / SECTOR_BYTES;
    let groups: Vec<usize> =
        used_sectors(&medium).into_iter().filter(|sector| journal.contains(sector)).collect();
    spoil(&medium, groups[groups.len() - 2] * SECTOR_BYTES, SECTOR_BYTES, &mut Rng::new(3));
    let repaired = run_repair(&device);
    assert!(!repaired.findings.is_empty() && repaired.lost.is_empty(), "{repaired:?}");
    let db = open(&device, |_| {});
    let spaces = handles(&db);
    let is_there = |file: &u64| {
        let mut found = AlignedBuf::zeroed(FILE_BYTES);
        db.read_blocks(spaces[1], &file.to_be_bytes(), 0, found.as_mut()).expect("reads");
        found.as_ref() == content(*file)
    };
    assert_eq!((0..FILES).take_while(is_there).count() as u64, FILES - 2);
    assert!(db.check().expect("checks").findings.is_empty());
}

/// Two of which a repair is told, and two of which it is not.
const ALL_SPACES: [(&str, KeyspaceKind); 4] =
    [SPACES[0], SPACES[1], ("blobs", KeyspaceKind::Block), ("notes", KeyspaceKind::Tuple)];

/// Something new in each keyspace, each with an edit of its own. `names` are what they are called.
fn write_everywhere(device: &Arc<dyn Device>, names: &[String; 4], round: u8) {
    let db = open(device, |_| {});
    for (name, (_, kind)) in names.iter().zip(ALL_SPACES) {
        let keyspace = db.open_keyspace(name, kind, None).expect("opens");
        let mut batch = Batch::new();
        match kind {
            KeyspaceKind::Tuple => batch.put(keyspace, vec![b'k', round], vec![round; 100]),
            KeyspaceKind::Block => batch.put_blocks(keyspace, vec![b'f', round], 0, vec![round; BLOCK_BYTES]),
        }
        db.apply(batch, Durability::Synced).expect("applies");
        db.flush().expect("flushes");
    }
    db.close().expect("closes");
}

/// Nothing of what so many rounds have written is missing. Gives what the keyspaces are called.
fn assert_everywhere(device: &Arc<dyn Device>, rounds: u8, what: &str) -> [String; 4] {
    let db = open(device, |_| {});
    assert!(db.check().expect("checks").findings.is_empty(), "{what}");
    let there = db.keyspaces();
    let mut id = 0;
    ALL_SPACES.map(|(name, kind)| {
        id += 1;
        let is_named = there.iter().any(|space| *space.name == *name);
        let name = if is_named { name.to_owned() } else { format!("recovered-{id}") };
        let keyspace = db.open_keyspace(&name, kind, None).expect("opens");
        let mut cursor = db.cursor(keyspace, KeyRange::all()).expect("opens");
        for round in 0..rounds {
            let (key, value) = match kind {
                KeyspaceKind::Tuple => (vec![b'k', round].into(), vec![round; 100]),
                KeyspaceKind::Block => (block_key(&[b'f', round], 0), vec![round; BLOCK_BYTES]),
            };
            cursor.next().expect("reads");
            let entry = cursor.entry().map(|(key, value)| (Bytes::copy_from_slice(key), value.to_vec()));
            assert!(entry == Some((key, value)), "{what}: round {round} of {name}");
        }
        name
    })
}

/// The sectors in which groups of a manifest begin.
fn groups_of(medium: &MemoryDevice) -> Vec<usize> {
    let image = medium.snapshot();
    let sectors = image.chunks(SECTOR_BYTES).enumerate();
    sectors.filter(|(_, sector)| sector.starts_with(b"KvMf")).map(|(index, _)| index).collect()
}

/// A store without the group of its manifest in `sector`, repaired.
fn repaired_without(medium: &MemoryDevice, sector: usize) -> (Arc<MemoryDevice>, Repaired) {
    let medium = Arc::new(medium.fork());
    spoil(&medium, sector * SECTOR_BYTES, SECTOR_BYTES, &mut Rng::new(3));
    let repaired = run_repair(&(Arc::clone(&medium) as Arc<dyn Device>));
    (medium, repaired)
}

/// Nor are those that an earlier store has left on the device.
#[test]
fn no_repair_takes_pieces_of_another_store_for_own_ones() {
    let names = ALL_SPACES.map(|(name, _)| name.to_owned());
    let new_store_on = |medium: MemoryDevice, uuid, rounds| {
        let medium = Arc::new(medium);
        let device = Arc::clone(&medium) as Arc<dyn Device>;
        let (zone_bytes, journal_bytes) = (ZONE_BYTES as u32, Some(4 << 20));
        let of_size = CreateOptions::new(ZONES * ZONE_BYTES as u64, uuid);
        Db::create(Arc::clone(&device), &CreateOptions { zone_bytes, journal_bytes, ..of_size })
            .expect("creates");
        (0..rounds).for_each(|round| write_everywhere(&device, &names, round));
        (medium, device)
    };
    let (other, _) = new_store_on(MemoryDevice::growable(0, ZONES * ZONE_BYTES as u64), [8; 16], 9);
    let (medium, device) = new_store_on(other.fork(), [7; 16], 2);
    let db = open(&device, |_| {});
    let image = other.snapshot();
    for sector in used_sectors(&other) {
        let mut batch = Batch::new();
        let block = &image[sector * SECTOR_BYTES..][..BLOCK_BYTES];
        batch.put_blocks(handles(&db)[1], &b"image"[..], sector as u64, block.to_vec());
        db.apply(batch, Durability::Buffered).expect("applies");
    }
    db.flush().expect("flushes");
    let expected = content_of(&db);
    db.close().expect("closes");
    let mut searched = 0;
    for group in groups_of(&medium) {
        let (medium, repaired) = repaired_without(&medium, group);
        // Else it was one of the other store, in the image or elsewhere.
        if !repaired.is_uncertain {
            continue;
        }
        searched += 1;
        let what = format!("without the group in sector {group}");
        assert!(repaired.lost.is_empty(), "{what}: {repaired:?}");
        if !repaired.findings.iter().any(|finding| finding.contains("from now on")) {
            assert!(content_of(&open(&(medium as Arc<dyn Device>), |_| {})) == expected, "{what}");
        }
    }
    assert!(searched > 3, "{searched}");
}

/// Also one that makes a keyspace of which later groups name pieces, and one that has the whole state of a
/// manifest that was written anew.
#[test]
fn whichever_group_of_a_manifest_is_damaged_each_keyspace_is_there() {
    let medium = Arc::new(MemoryDevice::growable(0, ZONES * ZONE_BYTES as u64));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, ZONES);
    let names = ALL_SPACES.map(|(name, _)| name.to_owned());
    (0..2).for_each(|round| write_everywhere(&device, &names, round));
    let groups = groups_of(&medium);
    assert!(groups.len() > 3 * ALL_SPACES.len(), "{groups:?}");

    let mut renamed = 0;
    for group in groups {
        let (medium, repaired) = repaired_without(&medium, group);
        let what = format!("without the group in sector {group}");
        assert!(repaired.lost.is_empty(), "{what}: {repaired:?}");
        let device = Arc::clone(&medium) as Arc<dyn Device>;
        let names = assert_everywhere(&device, 2, &what);
        renamed += repaired.findings.iter().filter(|finding| finding.contains("from now on")).count();
        if repaired.findings.is_empty() || renamed > 1 {
            continue;
        }
        // The state that the repair has written is the first group.
        write_everywhere(&device, &names, 2);
        for group in groups_of(&medium) {
            let (medium, repaired) = repaired_without(&medium, group);
            let what = format!("{what}, then without that in sector {group}");
            assert!(repaired.lost.is_empty(), "{what}: {repaired:?}");
            assert_everywhere(&(medium as Arc<dyn Device>), 3, &what);
        }
    }
    assert_eq!(renamed, 2);
}

/// A run that is nothing but range tombstones does not tell of which kind its keyspace is.
#[test]
fn whichever_group_of_a_manifest_is_damaged_deleted_ranges_stay_deleted() {
    let medium = Arc::new(MemoryDevice::growable(0, ZONES * ZONE_BYTES as u64));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, ZONES);
    let names = ALL_SPACES.map(|(name, _)| name.to_owned());
    (0..2).for_each(|round| write_everywhere(&device, &names, round));
    let db = open(&device, |_| {});
    for (name, kind) in ALL_SPACES {
        let keyspace = db.open_keyspace(name, kind, None).expect("opens");
        let mut batch = Batch::new();
        let first = if kind == KeyspaceKind::Tuple { b'k' } else { b'f' };
        batch.delete_range(keyspace, vec![first, 0], vec![first, 1]);
        db.apply(batch, Durability::Synced).expect("applies");
        db.flush().expect("flushes");
    }
    db.close().expect("closes");
    drop(db);
    for group in groups_of(&medium) {
        let (medium, repaired) = repaired_without(&medium, group);
        let what = format!("without the group in sector {group}");
        assert!(repaired.lost.is_empty(), "{what}: {repaired:?}");
        let db = open(&(medium as Arc<dyn Device>), |_| {});
        assert!(db.check().expect("checks").findings.is_empty(), "{what}");
        let mut id = 0;
        for (name, kind) in ALL_SPACES {
            id += 1;
            let is_named = db.keyspaces().iter().any(|space| *space.name == *name);
            let name = if is_named { name.to_owned() } else { format!("recovered-{id}") };
            let keyspace = db.open_keyspace(&name, kind, None).expect("opens");
            let mut cursor = db.cursor(keyspace, KeyRange::all()).expect("opens");
            let mut rounds = Vec::new();
            cursor.next().expect("reads");
            while let Some((key, _)) = cursor.entry() {
                rounds.push(key[1]);
                cursor.next().expect("reads");
            }
            assert_eq!(rounds, [1], "{what}: {name}");
        }
    }
}

/// Zones that dead pieces lay in were written anew, while indexes of such pieces are still found elsewhere.
#[test]
fn repair_without_a_manifest_takes_nothing_that_is_there_for_lost() {
    const FEW_ZONES: u64 = 56;
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let medium = Arc::new(MemoryDevice::growable(0, FEW_ZONES * ZONE_BYTES as u64));
        let device = Arc::clone(&medium) as Arc<dyn Device>;
        create(&device, FEW_ZONES);
        let db = open(&device, |options| {
            options.merge.piece_bytes = 128 << 10;
            options.merge.class_runs = 3;
            options.merge.class_bytes_min = 32 << 10;
        });
        let spaces = handles(&db);
        for _ in 0..30 {
            for _ in 0..60 {
                let mut batch = Batch::new();
                let mut data = vec![0; BLOCK_BYTES * rng.range(1, 6) as usize];
                rng.fill(&mut data);
                batch.put_blocks(spaces[1], vec![b'f', rng.below(6) as u8], rng.below(60), data);
                let mut value = vec![0; rng.range(10, 400) as usize];
                rng.fill(&mut value);
                batch.put(spaces[0], format!("key{:04}", rng.below(300)).into_bytes(), value);
                db.apply(batch, Durability::Buffered).expect("applies");
            }
            db.flush().expect("flushes");
            if rng.chance(1, 2) {
                db.compact().expect("merges");
            }
        }
        let expected = content_of(&db);
        db.close().expect("closes");
        drop(db);
        for sector in groups_of(&medium) {
            spoil(&medium, sector * SECTOR_BYTES, SECTOR_BYTES, &mut rng);
        }
        let repaired = run_repair(&device);
        assert!(repaired.is_uncertain, "seed {seed}");
        let found = content_of(&open(&device, |_| {}));
        for space in 0..2 {
            let gone = expected[space].keys().filter(|key| !found[space].contains_key(*key));
            let gone: Vec<_> = gone.map(|key| key.escape_ascii().to_string()).collect();
            assert!(gone.is_empty(), "seed {seed}: {gone:?} of {}", expected[space].len());
        }
    }
}
