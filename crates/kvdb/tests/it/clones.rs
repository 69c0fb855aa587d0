//! Clones of blocks: what they take, what becomes of both sides under merges, crashes, compression and lack
//! of space.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{CrashDevice, CrashMode, Device, Rng};
use kvfs_kvdb::{Db, Options};
use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, Compression, Durability, Keyspace, NamedSnapshots, Read, Store,
    Transactions, TxnOptions,
};

use crate::basics::{create, data, make, open, stat};

const ZONES: u64 = 200;

pub(crate) fn clone(source: &str, (first, count): (u64, u64), target: &str, target_first: u64) -> BlockClone {
    let (source, target) = (Bytes::from(source.to_owned()), Bytes::from(target.to_owned()));
    BlockClone { source, first, count, target, target_first, compression: Compression::None }
}

/// Clones in a transaction of their own.
pub(crate) fn commit_clones(db: &Db, data: Keyspace, clones: &[BlockClone]) {
    let txn = db.begin(TxnOptions::default()).expect("begins");
    txn.clone_blocks(data, clones).expect("clones");
    txn.commit(Durability::Synced).expect("commits");
}

fn block(number: u64) -> Vec<u8> {
    (0..BLOCK_BYTES / 8).flat_map(|at| (number * 1000 + at as u64).to_le_bytes()).collect()
}

fn fill(db: &Db, data: Keyspace, prefix: &str, count: u64) {
    for first in (0..count).step_by(64) {
        let blocks: Vec<u8> = (first..count.min(first + 64)).flat_map(block).collect();
        let mut batch = Batch::new();
        batch.put_blocks(data, prefix.to_owned(), first, blocks);
        db.apply(batch, Durability::Buffered).expect("applies");
    }
}

pub(crate) fn remove(db: &Db, data: Keyspace, prefix: &str) {
    let mut batch = Batch::new();
    let end = [prefix.as_bytes(), &[255; 9]].concat();
    batch.delete_range(data, prefix.as_bytes().to_vec(), end);
    db.apply(batch, Durability::Synced).expect("applies");
}

fn holds(read: &dyn Read, data: Keyspace, prefix: &str, count: u64) -> bool {
    let mut found = vec![0; count as usize * BLOCK_BYTES];
    read.read_blocks(data, prefix.as_bytes(), 0, &mut found).expect("reads");
    found == (0..count).flat_map(block).collect::<Vec<u8>>()
}

pub(crate) fn assert_clean(db: &Db, when: &str) {
    let checked = db.check().expect("checks");
    assert!(checked.findings.is_empty(), "{when}: {:?}", checked.findings);
}

fn free_bytes(db: &Db) -> u64 {
    stat(db, "zones.free") * (256 << 10)
}

#[test]
fn clones_take_no_space_and_outlive_what_they_were_made_of() {
    const BLOCKS: u64 = 2048;
    let device = make(ZONES);
    let db = open(&device, |_| {});
    let data = data(&db);
    let before_all = free_bytes(&db);
    fill(&db, data, "f", BLOCKS);
    db.flush().expect("flushes");
    let before = free_bytes(&db);
    let names: Vec<String> = (0..20).map(|number| format!("g{number:02}")).collect();
    for name in &names {
        commit_clones(&db, data, &[clone("f", (0, BLOCKS), name, 0)]);
    }
    let taken = before - free_bytes(&db);
    assert!(taken <= 2 << 20, "20 clones of 8 MiB take {taken} bytes");
    db.compact().expect("merges");
    let taken = before.saturating_sub(free_bytes(&db));
    assert!(taken <= 3 << 20, "after a merge of all, 20 clones of 8 MiB take {taken} bytes");
    assert_clean(&db, "shared within a piece");
    remove(&db, data, "f");
    db.compact().expect("merges");
    db.close().expect("closes");
    drop(db);
    let db = open(&device, |_| {});
    assert_clean(&db, "without the source, opened again");
    assert!(names.iter().all(|name| holds(&*db, data, name, BLOCKS)));
    for name in &names {
        remove(&db, data, name);
    }
    db.compact().expect("merges");
    db.flush().expect("flushes");
    let lost = before_all.saturating_sub(free_bytes(&db));
    assert!(lost <= 2 << 20, "{lost} bytes are not free again");
}

/// How many blocks these prefixes share, of all that `db` has now.
fn shared(db: &Db, data: Keyspace) -> BTreeMap<String, u64> {
    let mut shared = BTreeMap::new();
    let snapshot = db.snapshot().expect("pins");
    let told = snapshot.each_shared(data, &mut |blocks, prefixes| {
        let mut prefixes: Vec<_> = prefixes.iter().map(|prefix| String::from_utf8_lossy(prefix)).collect();
        prefixes.sort_unstable();
        *shared.entry(prefixes.join(" ")).or_default() += blocks;
        Ok(())
    });
    told.expect("is told");
    shared
}

#[test]
fn shared_blocks_are_told_until_they_are_overwritten_or_their_source_is_removed() {
    const BLOCKS: u64 = 1024;
    for compression in [Compression::None, Compression::Lz4] {
        let device = make(ZONES);
        // Merges would copy what is short.
        let open = || open(&device, |options| options.merge.stitch_bytes_min = 0);
        let mut db = open();
        let mut files = data(&db);
        let put = |db: &Db, prefix: &str, first: u64, count: u64| {
            for at in (first..first + count).step_by(64) {
                let content: Vec<u8> = (at..at + 64).flat_map(block).collect();
                let mut batch = Batch::new();
                batch.put_blocks_packed(files, prefix.to_owned(), at, content, compression);
                db.apply(batch, Durability::Buffered).expect("applies");
            }
        };
        put(&db, "f", 0, BLOCKS);
        db.flush().expect("flushes");
        commit_clones(&db, files, &[clone("f", (0, BLOCKS), "g", 0), clone("f", (100, 200), "h", 1000)]);
        let expected = |all: &[(&str, u64)]| -> BTreeMap<String, u64> {
            all.iter().map(|&(prefixes, count)| (prefixes.to_owned(), count)).collect()
        };
        let check = |db: &Db, when: &str, all: &[(&str, u64)]| {
            for merges in [false, true] {
                if merges {
                    db.compact().expect("merges");
                }
                assert_eq!(shared(db, files), expected(all), "{compression:?}, {when}, merges: {merges}");
            }
            assert_clean(db, when);
        };
        check(&db, "cloned", &[("f g", BLOCKS - 200), ("f g h", 200)]);
        put(&db, "g", 64, 128);
        check(&db, "overwritten", &[("f g", BLOCKS - 236), ("f g h", 108), ("f h", 92)]);
        db.create_snapshot("then").expect("pins");
        remove(&db, files, "f");
        check(&db, "without the source, which a snapshot has", &[("g h", 108)]);
        db.close().expect("closes");
        drop(db);
        db = open();
        files = data(&db);
        assert_eq!(shared(&db, files), expected(&[("g h", 108)]), "{compression:?}, opened again");
        db.reclaim().expect("reclaims");
        assert_eq!(shared(&db, files), expected(&[("g h", 108)]), "{compression:?}, zones are emptied");
        remove(&db, files, "h");
        assert!(shared(&db, files).is_empty(), "{compression:?}");
    }
}

/// A history at random, and what it must have come to.
struct History {
    rng: Rng,
    seed: u64,
    crash: Arc<CrashDevice>,
    db: Arc<Db>,
    configure: fn(&mut Options),
    data: Keyspace,
    compression: Compression,
    content: BTreeMap<(u64, u64), Vec<u8>>,
    pinned: Option<BTreeMap<(u64, u64), Vec<u8>>>,
}

const PREFIXES: u64 = 6;
const BLOCKS: u64 = 150;

fn prefix_of(number: u64) -> String {
    format!("p{number}")
}

impl History {
    fn new(seed: u64, compression: Compression, configure: fn(&mut Options)) -> Self {
        let crash = Arc::new(CrashDevice::in_memory(0, ZONES * (256 << 10)));
        let device = Arc::clone(&crash) as Arc<dyn Device>;
        create(&device, ZONES);
        let db = open(&device, configure);
        let data = data(&db);
        let (rng, content) = (Rng::new(seed), BTreeMap::new());
        Self { rng, seed, crash, db, configure, data, compression, content, pinned: None }
    }

    /// Some blocks of a prefix.
    fn range(&mut self) -> (u64, u64, u64) {
        let (prefix, first) = (self.rng.below(PREFIXES), self.rng.below(BLOCKS));
        (prefix, first, (1 + self.rng.below(60)).min(BLOCKS - first))
    }

    fn put(&mut self, batch: &mut Batch) {
        let (prefix, first, count) = self.range();
        let shape = self.rng.below(3);
        let mut data = Vec::new();
        for number in first..first + count {
            let mut block = vec![self.rng.below(200) as u8; BLOCK_BYTES];
            if shape > 0 {
                block[..2000].iter_mut().for_each(|byte| *byte = self.rng.below(256) as u8);
            }
            data.extend_from_slice(&block);
            self.content.insert((prefix, number), block);
        }
        batch.put_blocks_packed(self.data, prefix_of(prefix), first, data, self.compression);
    }

    fn patch(&mut self, batch: &mut Batch) {
        let (prefix, number, _) = self.range();
        let (offset, byte) = (self.rng.below(4000) as u16, self.rng.below(256) as u8);
        batch.patch_block(self.data, prefix_of(prefix), number, offset, vec![byte; 9]);
        let block = self.content.entry((prefix, number)).or_insert_with(|| vec![0; BLOCK_BYTES]);
        block[usize::from(offset)..][..9].fill(byte);
    }

    fn delete(&mut self, batch: &mut Batch) {
        let (prefix, first, count) = self.range();
        let key = |number: u64| [prefix_of(prefix).as_bytes(), &number.to_be_bytes()].concat();
        batch.delete_range(self.data, key(first), key(first + count));
        self.content.retain(|&(p, number), _| p != prefix || number < first || number >= first + count);
    }

    fn batch(&mut self) -> Batch {
        let mut batch = Batch::new();
        for _ in 0..=self.rng.below(3) {
            match self.rng.below(4) {
                0 => self.patch(&mut batch),
                1 => self.delete(&mut batch),
                _ => self.put(&mut batch),
            }
        }
        batch
    }

    /// Clones of some blocks of one prefix to one or two others, which lose what they had there.
    fn clones(&mut self) -> (Batch, Vec<BlockClone>) {
        let (source, first, count) = self.range();
        let (mut batch, mut clones) = (Batch::new(), Vec::new());
        for step in 1..=1 + self.rng.below(2) {
            let target = (source + step) % PREFIXES;
            let target_first = self.rng.below(BLOCKS - count + 1);
            let (from, to) = (prefix_of(source), prefix_of(target));
            let key = |number: u64| [to.as_bytes(), &number.to_be_bytes()].concat();
            batch.delete_range(self.data, key(target_first), key(target_first + count));
            let compression = self.compression;
            clones.push(BlockClone { compression, ..clone(&from, (first, count), &to, target_first) });
            for number in 0..count {
                match self.content.get(&(source, first + number)).cloned() {
                    Some(block) => self.content.insert((target, target_first + number), block),
                    None => self.content.remove(&(target, target_first + number)),
                };
            }
        }
        (batch, clones)
    }

    /// A transaction that writes, clones, and writes again what it has cloned; dropped, now and then.
    fn transaction(&mut self) {
        let before = self.content.clone();
        let txn = self.db.begin(TxnOptions::default()).expect("begins");
        for _ in 0..=self.rng.below(4) {
            if self.rng.below(2) == 0 {
                let batch = self.batch();
                txn.apply(batch).expect("applies");
            }
            let (batch, clones) = self.clones();
            txn.apply(batch).expect("applies");
            txn.clone_blocks(self.data, &clones).expect("clones");
            self.compare(&*txn, &self.content, "in the transaction");
        }
        if self.rng.below(4) == 0 {
            txn.abort();
            self.content = before;
        } else {
            txn.commit(Durability::Synced).expect("commits");
        }
    }

    fn compare(&self, read: &dyn Read, content: &BTreeMap<(u64, u64), Vec<u8>>, when: &str) {
        let seed = self.seed;
        for prefix in 0..PREFIXES {
            let mut found = vec![9; BLOCKS as usize * BLOCK_BYTES];
            read.read_blocks(self.data, prefix_of(prefix).as_bytes(), 0, &mut found).expect("reads");
            for (number, block) in (0..).zip(found.chunks(BLOCK_BYTES)) {
                match content.get(&(prefix, number)) {
                    Some(expected) => {
                        assert!(block == expected, "seed {seed:#x}, {when}: block {number} of {prefix}");
                    }
                    None => assert!(
                        block.iter().all(|&byte| byte == 0),
                        "seed {seed:#x}, {when}: block {number} of {prefix} is absent"
                    ),
                }
            }
        }
    }

    fn reopen(&mut self) {
        let seed = self.rng.below(u64::MAX);
        let mode = if self.rng.below(2) == 0 { CrashMode::DropAll } else { CrashMode::KeepSubset };
        let image = Arc::new(self.crash.crash_image(seed, mode).expect("an image"));
        self.crash = Arc::new(CrashDevice::over(image));
        let device = Arc::clone(&self.crash) as Arc<dyn Device>;
        self.db = open(&device, self.configure);
        self.data = data(&self.db);
    }

    fn step(&mut self) {
        match self.rng.below(12) {
            0..5 => {
                let batch = self.batch();
                self.db.apply(batch, Durability::Synced).expect("applies");
            }
            5..9 => self.transaction(),
            9 => self.db.flush().expect("flushes"),
            10 => match self.rng.below(4) {
                0 => self.db.compact().expect("merges"),
                1 => self.db.reclaim().expect("reclaims"),
                2 if self.pinned.is_none() => {
                    self.db.create_snapshot("then").expect("pins");
                    self.pinned = Some(self.content.clone());
                }
                _ if self.pinned.take().is_some() => {
                    self.db.delete_snapshot("then").expect("lets go");
                }
                _ => {}
            },
            _ => self.reopen(),
        }
    }

    fn run(mut self) {
        for step in 0..250 {
            self.step();
            let when = format!("step {step}");
            self.compare(&*self.db, &self.content, &when);
            if let Some(then) = &self.pinned {
                let snapshot = self.db.open_snapshot("then").expect("opens");
                self.compare(&*snapshot, then, &format!("{when}, the snapshot"));
            }
            if step % 25 == 24 {
                assert_clean(&self.db, &format!("seed {:#x}, {when}", self.seed));
            }
        }
    }
}

#[test]
fn clones_are_copies_under_merges_and_crashes_with_small_pieces() {
    History::new(0xc10e, Compression::None, |options| {
        options.merge.piece_bytes = 64 << 10;
        options.merge.class_runs = 2;
        options.memtable_bytes = 256 << 10;
    })
    .run();
}

#[test]
fn clones_are_copies_under_merges_that_copy_or_stitch_everything() {
    History::new(0xc10f, Compression::None, |options| options.merge.stitch_bytes_min = 0).run();
    History::new(0xc110, Compression::None, |options| options.merge.stitch_bytes_min = u64::MAX).run();
}

#[test]
fn clones_share_parts_of_packed_units() {
    History::new(0xc111, Compression::Lz4, |options| {
        options.merge.piece_bytes = 128 << 10;
        options.memtable_bytes = 256 << 10;
    })
    .run();
    History::new(0xc112, Compression::Lz4, |options| options.private_bytes = 1).run();
}

#[test]
fn space_of_what_all_clones_have_deleted_comes_back() {
    const BLOCKS: u64 = 16;
    for (compression, files, new) in [(Compression::None, 400, 350), (Compression::Lz4, 800, 600)] {
        let device = make(ZONES);
        let db = open(&device, |_| {});
        let data = data(&db);
        let name = |tree: &str, number: u64| format!("{tree}{number:03}");
        let block = |number: u64| -> Vec<u8> {
            let mut rng = Rng::new(number);
            // Half of it can be packed.
            let packed = if compression == Compression::None { 0 } else { BLOCK_BYTES / 2 };
            (0..BLOCK_BYTES).map(|at| if at < packed { 7 } else { rng.below(256) as u8 }).collect()
        };
        let content =
            |number: u64| -> Vec<u8> { (0..BLOCKS).flat_map(|at| block(number * 100 + at)).collect() };
        let write = |name: String, content: Vec<u8>| {
            let mut batch = Batch::new();
            batch.put_blocks_packed(data, name, 0, content, compression);
            db.apply(batch, Durability::Buffered)
        };
        for number in 0..files {
            write(name("s", number), content(number)).expect("applies");
        }
        db.flush().expect("flushes");
        for tree in ["g", "h"] {
            let clones: Vec<_> = (0..files)
                .map(|number| clone(&name("s", number), (0, BLOCKS), &name(tree, number), 0))
                .collect();
            commit_clones(&db, data, &clones);
        }
        // Here and there in each zone.
        for tree in ["s", "g", "h"] {
            for number in (0..files).filter(|number| number % 2 == 1) {
                remove(&db, data, &name(tree, number));
            }
        }
        for number in 0..new {
            let written = write(name("n", number), content(number + 1000));
            assert!(written.is_ok(), "{compression:?}: {written:?} at {number} of {new}");
        }
        db.flush().expect("flushes");
        assert_clean(&db, "full");
        db.close().expect("closes");
        drop(db);
        let db = open(&device, |_| {});
        assert_clean(&db, "opened again");
        let is_right = |name: String, number: u64| {
            let mut found = vec![0; BLOCKS as usize * BLOCK_BYTES];
            db.read_blocks(data, name.as_bytes(), 0, &mut found).expect("reads");
            assert!(found == content(number), "{compression:?}: {name}");
        };
        for tree in ["s", "g", "h"] {
            (0..files).step_by(2).for_each(|number| is_right(name(tree, number), number));
        }
        (0..new).for_each(|number| is_right(name("n", number), number + 1000));
    }
}

/// A store that fills up, with files and clones of them, by name; of each the numbers of its blocks, and what
/// these are made of.
struct Crowded {
    rng: Rng,
    compression: Compression,
    crash: Arc<CrashDevice>,
    db: Arc<Db>,
    data: Keyspace,
    files: BTreeMap<String, BTreeMap<u64, u64>>,
}

const BLOCKS_OF_FILE: u64 = 24;

impl Crowded {
    fn new(seed: u64, compression: Compression) -> Self {
        let crash = Arc::new(CrashDevice::in_memory(0, ZONES * (256 << 10)));
        let device = Arc::clone(&crash) as Arc<dyn Device>;
        create(&device, ZONES);
        let db = open(&device, |options| options.memtable_bytes = 1 << 20);
        let data = data(&db);
        Self { rng: Rng::new(seed), compression, crash, db, data, files: BTreeMap::new() }
    }

    fn content(&self, seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let packed = if self.compression == Compression::None { 0 } else { 1500 };
        (0..BLOCK_BYTES).map(|at| if at < packed { 7 } else { rng.below(256) as u8 }).collect()
    }

    /// False: there is no space.
    fn write(&mut self, name: String) -> bool {
        let seeds: Vec<u64> = (0..BLOCKS_OF_FILE).map(|_| self.rng.below(1 << 40)).collect();
        let content = seeds.iter().flat_map(|&seed| self.content(seed)).collect::<Vec<u8>>();
        let mut batch = Batch::new();
        batch.put_blocks_packed(self.data, name.clone(), 0, content, self.compression);
        let is_written = self.db.apply(batch, Durability::Synced).is_ok();
        if is_written {
            self.files.insert(name, (0..).zip(seeds).collect());
        }
        is_written
    }

    /// Clones files whose names begin with this.
    fn clone_all(&mut self, from: &str, to: &str) {
        let names: Vec<String> = self.files.keys().filter(|name| name.starts_with(from)).cloned().collect();
        let target = |name: &String| format!("{to}{}", &name[1..]);
        let clones: Vec<_> = names
            .iter()
            .map(|name| BlockClone {
                compression: self.compression,
                ..clone(name, (0, BLOCKS_OF_FILE), &target(name), 0)
            })
            .collect();
        let txn = self.db.begin(TxnOptions::default()).expect("begins");
        if txn.clone_blocks(self.data, &clones).is_ok() && txn.commit(Durability::Synced).is_ok() {
            for name in &names {
                self.files.insert(target(name), self.files[name].clone());
            }
        }
    }

    fn delete(&mut self, name: &str, blocks: std::ops::Range<u64>) {
        let mut batch = Batch::new();
        let key = |number: u64| [name.as_bytes(), &number.to_be_bytes()].concat();
        batch.delete_range(self.data, key(blocks.start), key(blocks.end));
        self.db.apply(batch, Durability::Synced).expect("applies");
        if let Some(file) = self.files.get_mut(name) {
            file.retain(|number, _| !blocks.contains(number));
        }
    }

    /// The same of a file and its clones, now and then of one of them something else.
    fn delete_here_and_there(&mut self) {
        let names: Vec<String> = self.files.keys().filter(|name| name.starts_with('s')).cloned().collect();
        for name in names {
            let whole = 0..BLOCKS_OF_FILE;
            let part = self.rng.below(12)..12 + self.rng.below(12);
            let blocks = match self.rng.below(4) {
                0 => continue,
                1 => part,
                _ => whole.clone(),
            };
            for tree in ["s", "g", "h"] {
                let blocks = if self.rng.below(9) == 0 { 3..5 } else { blocks.clone() };
                self.delete(&format!("{tree}{}", &name[1..]), blocks);
            }
        }
    }

    fn assert_right(&self, when: &str) {
        for (name, file) in &self.files {
            let mut found = vec![1; BLOCKS_OF_FILE as usize * BLOCK_BYTES];
            self.db.read_blocks(self.data, name.as_bytes(), 0, &mut found).expect("reads");
            for (number, block) in (0..).zip(found.chunks(BLOCK_BYTES)) {
                let expected = file.get(&number).map_or(vec![0; BLOCK_BYTES], |&seed| self.content(seed));
                assert!(block == expected, "{when}: block {number} of {name}");
            }
        }
        assert_clean(&self.db, when);
    }

    fn cut_power(&mut self) {
        let seed = self.rng.below(u64::MAX);
        let image = Arc::new(self.crash.crash_image(seed, CrashMode::KeepSubset).expect("an image"));
        self.crash = Arc::new(CrashDevice::over(image));
        let device = Arc::clone(&self.crash) as Arc<dyn Device>;
        self.db = open(&device, |options| options.memtable_bytes = 1 << 20);
        self.data = data(&self.db);
    }
}

#[test]
fn clones_stay_copies_while_zones_that_they_share_are_emptied() {
    for (seed, compression) in [(1, Compression::None), (2, Compression::Lz4)] {
        let mut store = Crowded::new(seed, compression);
        for round in 0..2 {
            let when = format!("seed {seed}, round {round}");
            (0..300).take_while(|number| store.write(format!("s{round}{number:03}"))).count();
            store.db.flush().expect("flushes");
            store.clone_all(&format!("s{round}"), "g");
            store.clone_all(&format!("s{round}"), "h");
            store.delete_here_and_there();
            let written = (0..400).take_while(|number| store.write(format!("n{number:03}"))).count();
            store.assert_right(&format!("{when}, {written} written"));
            store.cut_power();
            store.assert_right(&format!("{when}, opened again"));
            let names: Vec<String> = store.files.keys().cloned().collect();
            for name in names.iter().filter(|name| name.starts_with('n')) {
                store.delete(name, 0..BLOCKS_OF_FILE);
            }
            store.delete_here_and_there();
        }
    }
}
