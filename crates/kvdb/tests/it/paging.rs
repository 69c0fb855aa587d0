//! Many pieces under a tiny ceiling: indexes and filters come and go, answers stay right.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{Call, Device, FaultDevice, FaultError, FaultRule, MemoryDevice, Rng};
use kvfs_kvdb::{Db, Options};
use kvfs_store::{
    BLOCK_BYTES, Batch, Compression, Durability, ExtentKind, KeyRange, Keyspace, KeyspaceKind, Op, Read,
    Result, Store, StoreError,
};

use super::basics::{create, open};

const KIB: u64 = 1 << 10;
const ZONES: u64 = 800;
const BLOCKS: u64 = 3000;
const FILES: [&[u8]; 2] = [b"a", b"b"];

/// Small pieces, and many of them; never everything in one run.
fn options(options: &mut Options, memory_bytes: u64) {
    options.memory_bytes = memory_bytes;
    options.memtable_bytes = 512 * KIB;
    options.merge.piece_bytes = 64 * KIB;
    options.merge.class_bytes_min = 256 * KIB;
}

fn stat(db: &Db, name: &str) -> u64 {
    let stats = db.stats();
    stats.iter().find(|(known, _)| known == name).map(|(_, value)| *value).expect("is counted")
}

/// What is written, in a plain map, too.
struct Twin {
    rng: Rng,
    spaces: [Keyspace; 2],
    rows: BTreeMap<Bytes, Bytes>,
    /// First bytes of each block, by file and number.
    blocks: BTreeMap<(usize, u64), u64>,
}

impl Twin {
    fn new(db: &Db, seed: u64) -> Self {
        println!("seed {seed}");
        let spaces = Self::spaces(db);
        Self { rng: Rng::new(seed), spaces, rows: BTreeMap::new(), blocks: BTreeMap::new() }
    }

    fn spaces(db: &Db) -> [Keyspace; 2] {
        [("rows", KeyspaceKind::Tuple), ("data", KeyspaceKind::Block)]
            .map(|(name, kind)| db.open_keyspace(name, kind, None).expect("opens"))
    }

    fn key(&mut self) -> Bytes {
        format!("a row with the number {:05}", self.rng.below(8000)).into_bytes().into()
    }

    fn write(&mut self, db: &Db) {
        let mut batch = Batch::new();
        for _ in 0..8 {
            let key = self.key();
            if self.rng.chance(1, 6) {
                self.rows.remove(&key);
                batch.delete(self.spaces[0], key);
            } else {
                let mut value = vec![0; 100];
                self.rng.fill(&mut value);
                self.rows.insert(key.clone(), value.clone().into());
                batch.put(self.spaces[0], key, value);
            }
            let (file, block, mark) = (self.rng.index(2), self.rng.below(BLOCKS), self.rng.next_u64());
            let mut data = vec![0; BLOCK_BYTES];
            data[..8].copy_from_slice(&mark.to_be_bytes());
            self.blocks.insert((file, block), mark);
            batch.push(Op::PutBlocks {
                keyspace: self.spaces[1],
                prefix: Bytes::from_static(FILES[file]),
                first: block,
                data: data.into(),
                compression: Compression::None,
            });
        }
        db.apply(batch, Durability::Buffered).expect("applies");
    }

    /// One row and one block, any of them.
    fn look(&mut self, db: &Db) -> Result<()> {
        let key = self.key();
        assert_eq!(db.get(self.spaces[0], &key)?, self.rows.get(&key).cloned(), "{key:?}");
        let (file, block) = (self.rng.index(2), self.rng.below(BLOCKS));
        let mut buf = vec![0; BLOCK_BYTES];
        db.read_blocks(self.spaces[1], FILES[file], block, &mut buf)?;
        let mark = self.blocks.get(&(file, block)).copied().unwrap_or_default();
        assert_eq!(buf[..8], mark.to_be_bytes(), "block {block} of {file}");
        Ok(())
    }

    /// Everything, in order, and where the holes are.
    fn walk(&self, db: &Db) -> Result<()> {
        let mut cursor = db.cursor(self.spaces[0], KeyRange::all())?;
        for (key, value) in &self.rows {
            cursor.next()?;
            assert_eq!(cursor.entry(), Some((&key[..], value)));
        }
        cursor.next()?;
        assert_eq!(cursor.entry(), None);
        let mut cursor = db.cursor(self.spaces[1], KeyRange::all())?;
        for ((file, block), mark) in &self.blocks {
            cursor.next()?;
            let key = [FILES[*file], &block.to_be_bytes()].concat();
            let entry = cursor.entry().map(|(key, value)| (key.to_vec(), value[..8].to_vec()));
            assert_eq!(entry, Some((key, mark.to_be_bytes().to_vec())));
        }
        for (file, prefix) in FILES.into_iter().enumerate() {
            let hole = (0..=BLOCKS).find(|&block| !self.blocks.contains_key(&(file, block)));
            let found = db.next_extent(self.spaces[1], prefix, 0..u64::MAX, ExtentKind::Hole)?;
            assert_eq!(found.map(|extent| extent.first), hole);
        }
        Ok(())
    }
}

/// The share is half of what memtables leave. While one grows they follow at the next load, or when it is
/// sealed.
fn assert_share_is_kept(db: &Db) {
    let (bytes, share) = (stat(db, "index.bytes"), stat(db, "memory.ceiling_bytes") / 2);
    assert!(bytes <= share, "{bytes} bytes of a share of {share}");
}

#[test]
fn indexes_and_filters_of_many_pieces_stay_below_their_share() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, ZONES * 256 * KIB));
    create(&device, ZONES);
    let memory_bytes = 192 * KIB;
    let mut db = open(&device, |o| options(o, memory_bytes));
    let mut twin = Twin::new(&db, 61);
    for round in 0..6 {
        for _ in 0..200 {
            twin.write(&db);
            assert_share_is_kept(&db);
        }
        db.flush().expect("flushes");
        assert_share_is_kept(&db);
        if round % 2 == 1 {
            db.compact().expect("merges");
            assert_share_is_kept(&db);
        }
        for _ in 0..300 {
            twin.look(&db).expect("reads");
            assert_share_is_kept(&db);
        }
        twin.walk(&db).expect("reads");
        assert_share_is_kept(&db);
        assert_eq!(db.check().expect("checks").findings, Vec::<String>::new());
        assert_share_is_kept(&db);
        if round % 3 == 2 {
            db.close().expect("closes");
            drop(db);
            db = open(&device, |o| options(o, memory_bytes));
            twin.spaces = Twin::spaces(&db);
            assert_share_is_kept(&db);
            assert!(stat(&db, "index.loads") < 10, "an opening loads what fits: {:?}", db.stats());
        }
    }
    db.reclaim().expect("merges");
    twin.walk(&db).expect("reads");
    assert!(stat(&db, "index.evictions") > 100, "{:?}", db.stats());
    let all = Options::with_memory(64 << 20).memory_bytes;
    drop(db);
    let db = open(&device, |o| options(o, all));
    assert!(stat(&db, "index.bytes") > memory_bytes, "all of them would not have fitted");
}

#[test]
fn an_index_that_can_not_be_read_again_is_an_error_and_later_reads_are_right() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::growable(0, ZONES * 256 * KIB)));
    let seam = Arc::clone(&device) as Arc<dyn Device>;
    create(&seam, ZONES);
    // Nothing stays: the share is a few bytes.
    let db = open(&seam, |o| options(o, KIB));
    let mut twin = Twin::new(&db, 62);
    for _ in 0..400 {
        twin.write(&db);
    }
    db.flush().expect("flushes");
    let errors = |result: Result<()>| match result {
        Ok(()) => 0,
        Err(StoreError::Io { .. }) => 1,
        Err(other) => panic!("a device that fails is no \"{other}\""),
    };
    for nth in 0..40 {
        device.add(FaultRule::from(Call::Read, nth, FaultError::EIO));
        // The first one comes to some reads, the second one to none.
        let failed: u32 = (0..40).map(|_| errors(twin.look(&db))).sum();
        assert!(failed > 0, "fault at read {nth}");
        assert_eq!(errors(twin.walk(&db)), 1, "fault at read {nth}");
        device.clear();
        for _ in 0..4 {
            twin.look(&db).expect("reads again");
        }
    }
    twin.walk(&db).expect("reads again");
    for _ in 0..200 {
        twin.write(&db);
    }
    device.add(FaultRule::once(Call::Read, 3, FaultError::EIO));
    db.flush().expect("reads nothing");
    let merged = db.compact();
    assert!(matches!(merged, Err(StoreError::Io { .. } | StoreError::Failed { .. }) | Ok(())), "{merged:?}");
    device.clear();
    twin.walk(&db).expect("reads again");
    assert_eq!(db.check().expect("checks").findings, Vec::<String>::new());
}
