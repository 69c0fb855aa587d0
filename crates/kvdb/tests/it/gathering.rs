//! Small writes that follow each other in a file: bound together, written once, as they were whatever
//! happens.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_device::{
    Call, CountingDevice, CrashDevice, CrashMode, Device, FaultDevice, FaultError, FaultRule, Rng,
};
use kvfs_kvdb::{Background, Db, Options};
use kvfs_store::{BLOCK_BYTES, Batch, Durability, Keyspace, Read, Store};

use super::basics::{data, make, open, rows, stat};

const ZONES: u64 = 400;
const ZONE_BYTES: u64 = 256 << 10;
const BLOCK: usize = BLOCK_BYTES;

fn gathering(options: &mut Options) {
    options.bind_bytes_min = 32 << 10;
    options.memtable_bytes = 4 << 20;
}

/// Puts `bytes` at byte `at` of a file as a file system does: patches at the ends, whole blocks between.
fn push_write(batch: &mut Batch, data: Keyspace, file: &str, mut at: u64, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (block, offset) = (at / BLOCK as u64, at as usize % BLOCK);
        let whole = if offset == 0 { rest.len() / BLOCK * BLOCK } else { 0 };
        let len = if whole > 0 { whole } else { rest.len().min(BLOCK - offset) };
        let (now, later) = rest.split_at(len);
        if whole > 0 {
            batch.put_blocks(data, file.to_owned(), block, now.to_vec());
        } else {
            batch.patch_block(data, file.to_owned(), block, offset as u16, now.to_vec());
        }
        (at, rest) = (at + len as u64, later);
    }
}

fn key(file: &str, block: u64) -> Vec<u8> {
    [file.as_bytes(), &block.to_be_bytes()].concat()
}

/// The bytes of a file as the reference has them.
type Files = BTreeMap<String, Vec<u8>>;

fn assert_holds(db: &(impl Read + ?Sized), data: Keyspace, files: &Files, what: &str) {
    for (file, bytes) in files {
        for (number, wanted) in (0..).zip(bytes.chunks(BLOCK)) {
            let found = db.get(data, &key(file, number)).expect("reads").unwrap_or_default();
            let found = found.get(..wanted.len()).unwrap_or_default();
            let is_zero = found.is_empty() && wanted.iter().all(|byte| *byte == 0);
            assert!(found == wanted || is_zero, "{what}: block {number} of {file}");
        }
    }
}

#[test]
fn sync_fails_whichever_of_its_flushes_has_failed() {
    for nth in 0.. {
        let device = Arc::new(FaultDevice::new(make(ZONES)));
        let db = open(&(Arc::clone(&device) as Arc<dyn Device>), gathering);
        let data = data(&db);
        db.sync(db.position()).expect("syncs");
        for block in 0..32 {
            let mut batch = Batch::new();
            push_write(&mut batch, data, "f", block * BLOCK as u64, &[7; BLOCK]);
            db.apply(batch, Durability::Buffered).expect("applies");
        }
        // Blocks are bound for the first time, so the superblocks are flushed before the journal is.
        device.add(FaultRule::once(Call::Flush, nth, FaultError::EIO));
        let synced = db.sync(db.position());
        device.clear();
        if db.failure().is_none() {
            synced.expect("no flush has failed");
            assert!(nth > 1, "the superblocks and the journal are flushed");
            break;
        }
        synced.expect_err("what was to be flushed may be lost");
        db.sync(db.position()).expect_err("and later, too");
    }
}

#[test]
fn small_writes_that_follow_each_other_reach_the_device_once() {
    // tar(1) writes 10 KiB at a time.
    for (write_bytes, background) in [
        (10_240, Background::Manual),
        (10_240, Background::Threads),
        (4096, Background::Manual),
        (65_536, Background::Threads),
        (5000, Background::Manual),
    ] {
        let device = Arc::new(CountingDevice::new(make(ZONES)));
        let db = open(&(Arc::clone(&device) as Arc<dyn Device>), |options| {
            options.background = background;
            options.memtable_bytes = 4 << 20;
        });
        let data = data(&db);
        let before = device.counts().bytes_written;
        let mut files = Files::new();
        let (mut rng, total) = (Rng::new(1), 32 << 20);
        while files.values().map(Vec::len).sum::<usize>() < total {
            let file = files.entry("f".into()).or_default();
            let mut bytes = vec![0; write_bytes];
            rng.fill(&mut bytes);
            let mut batch = Batch::new();
            push_write(&mut batch, data, "f", file.len() as u64, &bytes);
            db.apply(batch, Durability::Buffered).expect("applies");
            file.extend(bytes);
        }
        db.sync(db.position()).expect("syncs");
        db.close().expect("closes");
        let written = device.counts().bytes_written - before - 2 * stat(&db, "merge.bytes_written");
        let percent = written * 100 / total as u64;
        // How much is gathered beside threads depends on how they get on.
        let percent_max = if background == Background::Manual { 108 } else { 150 };
        assert!(percent < percent_max, "{write_bytes} bytes at a time: {percent} % of them written");
        assert_holds(&*db, data, &files, "after closing");
        assert!(db.check().expect("checks").findings.is_empty());
    }
}

/// What a history is now, and was at each write.
struct History {
    rng: Rng,
    files: Files,
    /// The files behind each position.
    states: Vec<(u64, Files)>,
    /// The positions that were synced, with the number of the device's events then.
    synced: Vec<(usize, u64)>,
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            files: Files::new(),
            states: vec![(0, Files::new())],
            synced: vec![(0, 0)],
        }
    }

    /// Small writes, most of them behind the last one, between overwrites, deletions, flushes and syncs.
    fn step(&mut self, db: &Db, data: Keyspace, events: impl Fn() -> usize) {
        let mut batch = Batch::new();
        let name = ["f", "g", "h"][self.rng.index(3)].to_owned();
        let mut bytes = vec![0; self.rng.range(1, 12_000) as usize];
        self.rng.fill(&mut bytes);
        let what = self.rng.below(40);
        let file = self.files.entry(name.clone()).or_default();
        match what {
            0 => db.flush().expect("flushes"),
            1 => db.compact().expect("merges"),
            2 | 3 => {
                db.sync(db.position()).expect("syncs");
                self.synced.push((events(), db.position().0));
            }
            4 => {
                batch.delete_range(data, key(&name, 0), key(&name, u64::MAX));
                file.clear();
            }
            // The block that is not full becomes a hole, and what follows is put behind that.
            5 | 7 => {
                let whole = file.len() / BLOCK;
                batch.delete_range(data, key(&name, whole as u64), key(&name, whole as u64 + 1));
                file[whole * BLOCK..].fill(0);
            }
            8 => batch.put(rows(db), name.clone(), "row"),
            _ => {}
        }
        let at = if what == 6 { self.rng.below(file.len() as u64 + 1) } else { file.len() as u64 };
        push_write(&mut batch, data, &name, at, &bytes);
        let end = at as usize + bytes.len();
        file.resize(file.len().max(end), 0);
        file[at as usize..end].copy_from_slice(&bytes);
        let position = db.apply(batch, Durability::Buffered).expect("applies");
        self.states.push((position.0, self.files.clone()));
    }
}

/// How many histories; `KVFS_GATHER_SEEDS` says otherwise.
fn seeds() -> u64 {
    std::env::var("KVFS_GATHER_SEEDS").map_or(30, |text| text.parse().expect("is a number"))
}

#[test]
fn small_writes_are_there_after_a_crash_as_far_as_the_log_was_written() {
    let mut bytes_bound = 0;
    for seed in 0..seeds() {
        let mut history = History::new(seed);
        let inner = make(ZONES);
        let device = Arc::new(CrashDevice::over(inner).with_log().expect("is copied"));
        let db = open(&(Arc::clone(&device) as Arc<dyn Device>), gathering);
        let data = data(&db);
        for _ in 0..history.rng.range(20, 300) {
            history.step(&db, data, || device.events_len());
        }
        bytes_bound += stat(&db, "journal.bytes_bound");
        assert_holds(&*db, data, &history.files, &format!("seed {seed}"));
        for image in 0..4 {
            let event = history.rng.index(device.events_len() + 1);
            let what = format!("seed {seed}, image {image} at event {event}");
            let seed = history.rng.next_u64();
            let medium: Arc<dyn Device> =
                Arc::new(device.image_at(event, seed, CrashMode::Any).expect("is made"));
            let synced = history.synced.iter().rev().find(|(at, _)| *at <= event).expect("is one").1;
            // Before the keyspaces are durable there is nothing to look for.
            if synced == 0 {
                continue;
            }
            for round in 0..2 {
                let db = open(&medium, gathering);
                let position = db.position().0;
                assert!(position >= synced, "{what}: {position} of {synced}");
                let (_, files) = history.states.iter().rev().find(|(at, _)| *at <= position).expect("is one");
                assert_holds(&*db, data, files, &what);
                if round == 1 {
                    db.close().expect("closes");
                    assert_holds(&*db, data, files, &what);
                    let findings = db.check().expect("checks").findings;
                    assert!(findings.is_empty(), "{what}: {findings:?}");
                }
            }
        }
    }
    assert!(bytes_bound > seeds() << 17, "{bytes_bound} bytes were bound");
}

#[test]
fn snapshots_between_small_writes_see_what_was_there() {
    for seed in 0..seeds() / 3 {
        let mut history = History::new(1000 + seed);
        let device = make(ZONES);
        let db = open(&device, gathering);
        let data = data(&db);
        let mut snapshots = Vec::new();
        for _ in 0..200 {
            history.step(&db, data, || 0);
            if history.rng.chance(1, 10) {
                snapshots.push((db.snapshot().expect("pins"), history.files.clone()));
            }
            if snapshots.len() > 5 {
                snapshots.remove(history.rng.index(snapshots.len()));
            }
        }
        db.flush().expect("flushes");
        for (snapshot, files) in &snapshots {
            assert_holds(&**snapshot, data, files, &format!("seed {seed}"));
        }
        db.compact().expect("merges");
        for (snapshot, files) in &snapshots {
            assert_holds(&**snapshot, data, files, &format!("seed {seed}, merged"));
        }
        assert!(db.check().expect("checks").findings.is_empty());
    }
}

#[test]
fn store_that_fills_up_by_small_writes_loses_none_and_takes_deletions() {
    let device = make(80);
    let mut db = open(&device, gathering);
    let data = data(&db);
    for round in 0..4 {
        let mut files = Files::from([("f".into(), Vec::new())]);
        let file = files.get_mut("f").expect("is there");
        loop {
            let bytes = vec![round + 1; 10_240];
            let mut batch = Batch::new();
            push_write(&mut batch, data, "f", file.len() as u64, &bytes);
            if db.apply(batch, Durability::Buffered).is_err() {
                break;
            }
            file.extend(bytes);
        }
        assert!(file.len() as u64 > 20 * ZONE_BYTES, "round {round}: {} bytes fitted", file.len());
        if round % 2 == 1 {
            db.sync(db.position()).expect("syncs");
            drop(db);
            db = open(&device, gathering);
        }
        db.flush().expect("flushes");
        assert_holds(&*db, data, &files, &format!("round {round}"));
        let mut batch = Batch::new();
        batch.delete_range(data, "f", "g");
        db.apply(batch, Durability::Synced).expect("a full store takes deletions");
        db.flush().expect("flushes");
        db.compact().expect("merges");
    }
    assert!(db.check().expect("checks").findings.is_empty());
}

#[test]
fn full_store_flushes_what_was_patched_after_it_was_bound() {
    let device = make(120);
    let db = open(&device, |options| {
        gathering(options);
        options.memtable_bytes = 64 << 20;
    });
    let data = data(&db);
    let blocks = 2000;
    for number in 0..blocks {
        let mut batch = Batch::new();
        batch.put_blocks(data, "f", number, vec![1; BLOCK]);
        db.apply(batch, Durability::Buffered).expect("there is space");
    }
    db.sync(db.position()).expect("syncs");
    assert!(stat(&db, "journal.bytes_bound") > blocks * 3000, "most of it is bound");
    for number in 0..blocks {
        let mut batch = Batch::new();
        batch.patch_block(data, "f", number, 7, vec![2; 16]);
        db.apply(batch, Durability::Buffered).expect("there is space");
    }
    let mut more = 0;
    loop {
        let mut batch = Batch::new();
        batch.put_blocks(data, "g", more, vec![3; 4 * BLOCK]);
        if db.apply(batch, Durability::Buffered).is_err() {
            break;
        }
        more += 4;
    }
    db.flush().expect("has its space");
    let mut batch = Batch::new();
    batch.delete_range(data, "f", "z");
    db.apply(batch, Durability::Synced).expect("a full store takes deletions");
    db.flush().expect("flushes");
    assert!(db.check().expect("checks").findings.is_empty());
}
