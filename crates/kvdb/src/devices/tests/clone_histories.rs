//! Histories at random of clones in a store whose devices come, are drained and go: what they come to, and
//! what a power cut in the midst of any operation leaves.

use std::collections::BTreeMap;

use kvfs_store::{BlockClone, Compression, NamedSnapshots, Place, Transactions, TxnOptions};

use super::*;
use crate::{DefragLimit, DefragPolicy};

const PREFIXES: u64 = 6;
const BLOCKS: u64 = 150;
/// Zones of the first device, of a slow one, and of another one.
const ZONES: [u64; 3] = [90, 60, 40];
const STEPS: u64 = 90;

type Content = BTreeMap<(u64, u64), Bytes>;

fn prefix(number: u64) -> Bytes {
    number.to_be_bytes().to_vec().into()
}

fn key(prefix: u64, number: u64) -> Vec<u8> {
    [prefix.to_be_bytes(), number.to_be_bytes()].concat()
}

fn len_of(part: usize) -> u64 {
    ZONES[part] * ZONE_BYTES + if part == 0 { 0 } else { MEMBER_DATA_FROM }
}

/// The devices of a store, which lose power together.
fn parts(whole: &Arc<dyn Device>) -> Vec<Arc<dyn Device>> {
    let mut offset = 0;
    let part = |part: usize| {
        let (device, len) = (Arc::clone(whole), len_of(part));
        offset += len;
        Arc::new(Part { device, offset: offset - len, len }) as Arc<dyn Device>
    };
    (0..ZONES.len()).map(part).collect()
}

/// How a history goes.
#[derive(Clone)]
struct Kind {
    compression: Compression,
    options: Options,
}

struct History {
    rng: Rng,
    seed: u64,
    kind: Kind,
    whole: Arc<CrashDevice>,
    devices: Vec<Arc<dyn Device>>,
    db: Arc<Db>,
    content: Content,
    pinned: Option<Content>,
    /// Before the last operation, and how many events there had been.
    before: (Content, usize),
}

impl History {
    fn new(seed: u64, kind: Kind) -> Self {
        let len = (0..ZONES.len()).map(len_of).sum();
        let whole = Arc::new(CrashDevice::in_memory(0, len).with_log().expect("is new"));
        whole.grow(len).expect("grows");
        let devices = parts(&(Arc::clone(&whole) as Arc<dyn Device>));
        let create_options = CreateOptions {
            zone_bytes: ZONE_BYTES as u32,
            journal_bytes: Some(4 << 20),
            ..CreateOptions::new(ZONES[0] * ZONE_BYTES, [5; 16])
        };
        Db::create(Arc::clone(&devices[0]), &create_options).expect("creates");
        let db = open(&devices[0], &[], kind.options.clone()).expect("opens");
        db.add_device(Arc::clone(&devices[1]), Tier::Slow).expect("adds");
        let history = Self {
            rng: Rng::new(seed),
            seed,
            kind,
            whole,
            devices,
            db,
            content: Content::new(),
            pinned: None,
            before: (Content::new(), 0),
        };
        history.place();
        history
    }

    /// As after each opening.
    fn place(&self) {
        let wishes = self.wishes();
        self.db.place_by(files(&self.db), wishes).expect("is heeded");
    }

    fn wishes(&self) -> Keyspace {
        self.db.open_keyspace("wishes", KeyspaceKind::Tuple, None).expect("opens")
    }

    /// Some blocks of a prefix.
    fn range(&mut self) -> (u64, u64, u64) {
        let (prefix, first) = (self.rng.below(PREFIXES), self.rng.below(BLOCKS));
        (prefix, first, (1 + self.rng.below(90)).min(BLOCKS - first))
    }

    fn put(&mut self, batch: &mut Batch) {
        let (to, first, count) = self.range();
        let shape = self.rng.below(3);
        let mut data = Vec::new();
        for number in first..first + count {
            let mut block = vec![self.rng.below(200) as u8; BLOCK_BYTES];
            if shape > 0 {
                let noise = &mut block[..2000];
                noise.chunks_exact_mut(8).for_each(|word| {
                    word.copy_from_slice(&self.rng.next_u64().to_le_bytes());
                });
            }
            data.extend_from_slice(&block);
            self.content.insert((to, number), block.into());
        }
        batch.put_blocks_packed(files(&self.db), prefix(to), first, data, self.kind.compression);
    }

    fn patch(&mut self, batch: &mut Batch) {
        let (of, number, _) = self.range();
        let (offset, byte) = (self.rng.below(4000) as u16, self.rng.below(256) as u8);
        batch.patch_block(files(&self.db), prefix(of), number, offset, vec![byte; 9]);
        let old = self.content.get(&(of, number));
        let mut block = old.map_or(vec![0; BLOCK_BYTES], |block| block.to_vec());
        block[usize::from(offset)..][..9].fill(byte);
        self.content.insert((of, number), block.into());
    }

    fn delete(&mut self, batch: &mut Batch) {
        let (of, first, count) = self.range();
        // Now and then everything.
        let (first, count) = if self.rng.below(6) == 0 { (0, BLOCKS) } else { (first, count) };
        batch.delete_range(files(&self.db), key(of, first), key(of, first + count));
        self.content.retain(|&(p, number), _| p != of || number < first || number >= first + count);
    }

    fn batch(&mut self) -> Batch {
        let mut batch = Batch::new();
        for _ in 0..=self.rng.below(3) {
            match self.rng.below(5) {
                0 => self.patch(&mut batch),
                1 => self.delete(&mut batch),
                2 => {
                    let (of, wishes) = (self.rng.below(PREFIXES), self.wishes());
                    match self.rng.below(3) {
                        0 => batch.delete(wishes, prefix(of)),
                        1 => batch.put(wishes, prefix(of), vec![Tier::Fast.code()]),
                        _ => batch.put(wishes, prefix(of), vec![Tier::Slow.code()]),
                    }
                }
                _ => self.put(&mut batch),
            }
        }
        batch
    }

    /// Clones of some blocks of one prefix to one or two others, which lose what they had there.
    fn clones(&mut self) -> (Batch, Vec<BlockClone>) {
        let (source, first, count) = self.range();
        let (first, count) = if self.rng.below(3) == 0 { (0, BLOCKS) } else { (first, count) };
        let (mut batch, mut clones) = (Batch::new(), Vec::new());
        for step in 1..=1 + self.rng.below(3) {
            let target = (source + step) % PREFIXES;
            let target_first = self.rng.below(BLOCKS - count + 1);
            let (from, to) = (key(target, target_first), key(target, target_first + count));
            batch.delete_range(files(&self.db), from, to);
            clones.push(BlockClone {
                source: prefix(source),
                first,
                count,
                target: prefix(target),
                target_first,
                compression: self.kind.compression,
            });
            for number in 0..count {
                match self.content.get(&(source, first + number)).cloned() {
                    Some(block) => self.content.insert((target, target_first + number), block),
                    None => self.content.remove(&(target, target_first + number)),
                };
            }
        }
        (batch, clones)
    }

    /// A transaction that writes, clones, and writes again; dropped, now and then. False: there was no space.
    fn transaction(&mut self) -> Result<bool> {
        let txn = self.db.begin(TxnOptions::default())?;
        for _ in 0..=self.rng.below(3) {
            if self.rng.below(2) == 0 {
                let batch = self.batch();
                txn.apply(batch)?;
            }
            let (batch, clones) = self.clones();
            txn.apply(batch)?;
            txn.clone_blocks(files(&self.db), &clones)?;
        }
        if self.rng.below(5) == 0 {
            txn.abort();
            return Ok(false);
        }
        txn.commit(Durability::Synced)?;
        Ok(true)
    }

    fn change(&mut self) {
        let changed = if self.rng.below(2) == 0 {
            let batch = self.batch();
            self.db.apply(batch, Durability::Synced).map(|_| true)
        } else {
            self.transaction()
        };
        match changed {
            Ok(true) => {}
            Ok(false) | Err(StoreError::Full) => self.content.clone_from(&self.before.0),
            Err(error) => panic!("seed {:#x}: {error}", self.seed),
        }
    }

    /// Brings devices in, and has them go.
    fn change_devices(&mut self) {
        let at = 1 + self.rng.below(2) as usize;
        let (db, device) = (Arc::clone(&self.db), Arc::clone(&self.devices[at]));
        let Some(id) = db.device_id(&device) else {
            let tier = if self.rng.below(2) == 0 { Tier::Fast } else { Tier::Slow };
            db.add_device(device, tier).expect("adds");
            return;
        };
        let pieces = if self.rng.below(2) == 0 { u64::MAX } else { self.rng.below(6) };
        let mut seen = 0;
        let mut goes_on = |_| {
            seen += 1;
            seen <= pieces
        };
        match db.drain_device(id, &mut goes_on) {
            Ok(true) if self.rng.below(3) > 0 => db.remove_device(id).expect("removes"),
            Ok(_) if self.rng.below(2) == 0 => db.refill_device(id).expect("is filled again"),
            Ok(_) | Err(StoreError::Full) => {}
            Err(error) => panic!("seed {:#x}: {error}", self.seed),
        }
    }

    /// Moves what is there, which changes nothing.
    fn move_all(&mut self) {
        let db = Arc::clone(&self.db);
        let moved = match self.rng.below(10) {
            0 => db.flush(),
            1 => db.compact(),
            2 => db.reclaim(),
            3 => db.migrate(&mut |_| true).map(drop),
            4 => {
                let placements = ["static", "sequential-to-slow", "hot-cold", "hot-cold+endurance:2M"];
                let name = placements[self.rng.below(4) as usize];
                db.set_placement(name.parse().expect("is a placement"));
                Ok(())
            }
            5..7 => {
                let policy =
                    if self.rng.below(2) == 0 { DefragPolicy::Sparse } else { DefragPolicy::Rewrite };
                db.defragment(policy, &DefragLimit::default(), &mut |_| true).map(drop)
            }
            _ => {
                self.change_devices();
                Ok(())
            }
        };
        match moved {
            Ok(()) | Err(StoreError::Full) => {}
            Err(error) => panic!("seed {:#x}: {error}", self.seed),
        }
    }

    fn pin(&mut self) {
        if self.pinned.take().is_some() {
            self.db.delete_snapshot("then").expect("lets go");
        } else if self.db.create_snapshot("then").is_ok() {
            self.pinned = Some(self.content.clone());
        }
    }

    /// Power is cut in the midst of the last operation, or behind it.
    fn cut_power(&mut self, when: &str) {
        let end = self.whole.events_len();
        let event = end - self.rng.below((end - self.before.1) as u64 + 1) as usize;
        let mode = if self.rng.below(2) == 0 { CrashMode::DropAll } else { CrashMode::KeepSubset };
        let image = self.whole.image_at(event, self.rng.next_u64(), mode).expect("is in the log");
        self.whole = Arc::new(CrashDevice::over(Arc::new(image)).with_log().expect("is new"));
        self.devices = parts(&(Arc::clone(&self.whole) as Arc<dyn Device>));
        let opened = open(&self.devices[0], &self.devices[1..], self.kind.options.clone());
        self.db =
            opened.unwrap_or_else(|error| panic!("seed {:#x}, {when}, event {event}: {error}", self.seed));
        self.place();
        let (now, before) = (self.content.clone(), self.before.0.clone());
        let is_before = event < end && now != before && self.difference(&*self.db, &now).is_some();
        self.content = if is_before { before } else { now };
        self.before.1 = 0;
    }

    /// What is not as it must be.
    fn difference(&self, read: &dyn Read, content: &Content) -> Option<String> {
        for of in 0..PREFIXES {
            let mut found = AlignedBuf::zeroed(BLOCKS as usize * BLOCK_BYTES);
            read.read_blocks(files(&self.db), &prefix(of), 0, found.as_mut()).expect("reads");
            for (number, block) in (0..).zip(found.as_ref().chunks(BLOCK_BYTES)) {
                let is_right = match content.get(&(of, number)) {
                    Some(expected) => block == &expected[..],
                    None => block.iter().all(|&byte| byte == 0),
                };
                if !is_right {
                    return Some(format!("block {number} of {of}"));
                }
            }
        }
        None
    }

    fn assert_right(&self, when: &str) {
        let wrong = self.difference(&*self.db, &self.content);
        assert!(wrong.is_none(), "seed {:#x}, {when}: {}", self.seed, wrong.unwrap_or_default());
        if let Some(then) = &self.pinned {
            let snapshot = self.db.open_snapshot("then").expect("opens");
            let wrong = self.difference(&*snapshot, then);
            assert!(wrong.is_none(), "seed {:#x}, {when}, then: {}", self.seed, wrong.unwrap_or_default());
        }
    }

    fn assert_clean(&self, when: &str) {
        let checked = self.db.check().expect("checks");
        assert!(checked.findings.is_empty(), "seed {:#x}, {when}: {:?}", self.seed, checked.findings);
        assert!(self.db.failure().is_none(), "seed {:#x}, {when}: {:?}", self.seed, self.db.failure());
    }

    fn run(mut self) {
        for step in 0..STEPS {
            self.before = (self.content.clone(), self.whole.events_len());
            let snapshots = self.pinned.is_some();
            match self.rng.below(20) {
                0..9 => self.change(),
                9 => self.pin(),
                _ => self.move_all(),
            }
            let when = format!("step {step}");
            // Whether a snapshot is there is not looked at again.
            if self.rng.below(5) == 0 && snapshots == self.pinned.is_some() {
                self.cut_power(&when);
                self.assert_clean(&when);
            }
            self.assert_right(&when);
            if step % 10 == 9 {
                self.assert_clean(&when);
            }
        }
        self.assert_nothing_is_lost();
    }

    /// When all is deleted, all space is free again.
    fn assert_nothing_is_lost(self) {
        if self.pinned.is_some() {
            self.db.delete_snapshot("then").expect("lets go");
        }
        let mut batch = Batch::new();
        batch.delete_range(files(&self.db), key(0, 0), key(PREFIXES, 0));
        self.db.apply(batch, Durability::Synced).expect("deletes, whatever space there is");
        self.db.reclaim().expect("reclaims");
        self.db.flush().expect("flushes");
        self.assert_clean("all is deleted");
        let live: u64 = self.db.devices().iter().map(|device| device.bytes_live).sum();
        assert!(live <= 1 << 20, "seed {:#x}: {live} bytes are not free again", self.seed);
    }
}

fn kind(number: u64) -> Kind {
    let mut options = Options { memtable_bytes: 512 << 10, ..options() };
    match number % 4 {
        0 => {
            options.merge.piece_bytes = 256 << 10;
            options.merge.class_runs = 2;
        }
        1 => options.merge.stitch_bytes_min = 0,
        2 => options.private_bytes = 64 << 10,
        _ => options = Options { memtable_bytes: 512 << 10, ..Options { memory_bytes: 4 << 20, ..options } },
    }
    let compression = if number % 8 < 4 { Compression::None } else { Compression::Lz4 };
    Kind { compression, options }
}

#[test]
fn clones_are_copies_while_devices_come_and_go_and_power_is_cut() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (first, count) = (number("KVFS_SIM_SEED").unwrap_or(1), number("KVFS_SIM_SEEDS").unwrap_or(6));
    for seed in first..first + count {
        History::new(seed, kind(seed)).run();
    }
}
