//! The block cache under a store with devices of two classes: its counts, its trace, and what becomes of
//! blocks whose zone is free.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvfs_device::{AlignedBuf, Device, MemoryDevice};
use kvfs_kvdb::{Background, CacheEvent, CacheReplay, CacheTrace, CreateOptions, Db, Options, Policy};
use kvfs_store::clock::ManualClock;
use kvfs_store::{BLOCK_BYTES, Batch, Durability, Keyspace, KeyspaceKind, Read, Store, Tier};

const ZONE_BYTES: u64 = 256 << 10;
const ZONES: u64 = 100;
const FILES: u64 = 16;
const BLOCKS: usize = 32;

/// A file that a test can look into.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panicked").write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A store with files on a slow device and rows on a fast one.
struct Rig {
    db: Arc<Db>,
    files: Keyspace,
    rows: Keyspace,
}

impl Rig {
    fn new(policy: Policy) -> Self {
        let first = Arc::new(MemoryDevice::growable(0, ZONES * ZONE_BYTES)) as Arc<dyn Device>;
        let create = CreateOptions {
            zone_bytes: ZONE_BYTES as u32,
            journal_bytes: Some(4 << 20),
            ..CreateOptions::new(ZONES * ZONE_BYTES, [5; 16])
        };
        Db::create(Arc::clone(&first), &create).expect("creates");
        let options = Options {
            background: Background::Manual,
            cache_policy: policy,
            ..Options::with_memory(64 << 20)
        };
        let db = Db::open(first, options, Arc::new(ManualClock::at(Duration::from_secs(1)))).expect("opens");
        db.add_device(Arc::new(MemoryDevice::new(64 << 20)), Tier::Slow).expect("takes it");
        let files = db.open_keyspace("files", KeyspaceKind::Block, None).expect("opens");
        let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
        Self { db, files, rows }
    }

    fn write(&self, version: u8) {
        for file in 0..FILES {
            let mut batch = Batch::new();
            batch.put(self.rows, file.to_be_bytes().to_vec(), vec![version; 100]);
            batch.put_blocks(self.files, file.to_be_bytes().to_vec(), 0, vec![version; BLOCKS * BLOCK_BYTES]);
            self.db.apply(batch, Durability::Buffered).expect("applies");
        }
        self.db.flush().expect("flushes");
        self.db.compact().expect("merges");
    }

    /// Each row, and each block by itself, in an order of which nothing is read ahead.
    fn read(&self, version: u8) {
        for step in 0..BLOCKS as u64 {
            for file in 0..FILES {
                let row = self.db.get(self.rows, &file.to_be_bytes()).expect("reads").expect("is there");
                assert_eq!(row[..], [version; 100]);
                let (mut buf, block) = (AlignedBuf::zeroed(BLOCK_BYTES), step * 13 % BLOCKS as u64);
                self.db.read_blocks(self.files, &file.to_be_bytes(), block, buf.as_mut()).expect("reads");
                assert!(buf.as_ref().iter().all(|&byte| byte == version));
            }
        }
    }

    fn stat(&self, name: &str) -> u64 {
        let stats = self.db.stats();
        stats.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
    }
}

#[test]
fn cache_counts_by_class_and_its_trace_replays_as_it_was_with_each_policy() {
    for policy in Policy::ALL {
        let (rig, file) = (Rig::new(policy), Shared::default());
        rig.write(1);
        let name = format!("cache.policy.{policy}");
        assert_eq!(rig.stat(&name), 1);
        rig.db.start_cache_trace(Box::new(file.clone()), u64::MAX).expect("begins");
        rig.read(1);
        rig.read(1);
        for tier in Tier::ALL {
            assert!(rig.stat(&format!("cache.hits_{tier}")) > 0, "{policy}, {tier}");
            assert!(rig.stat(&format!("cache.misses_{tier}")) > 0, "{policy}, {tier}");
        }
        let all =
            |event: &str| rig.stat(&format!("cache.{event}_fast")) + rig.stat(&format!("cache.{event}_slow"));
        let (hits, misses) = (rig.stat("cache.hits"), rig.stat("cache.misses"));
        assert_eq!((all("hits"), all("misses")), (hits, misses));
        rig.db.close().expect("closes, and ends the trace");
        let bytes = file.0.lock().expect("no writer panicked").clone();
        let replay = CacheReplay::new(policy, 64 << 20);
        let (mut found, mut asked) = (0, 0);
        for access in CacheTrace::new(&bytes).expect("is one") {
            let access = access.expect("is whole");
            if let Some(is_hit) = replay.apply(&access) {
                assert_eq!(is_hit, access.event == CacheEvent::Hit, "{policy}: {access:?}");
                (found, asked) = (found + u64::from(is_hit), asked + 1);
            }
        }
        assert_eq!((found, asked - found), (hits, misses), "{policy}");
    }
}

#[test]
fn blocks_of_zones_that_have_become_free_leave_the_cache() {
    for policy in Policy::ALL {
        let rig = Rig::new(policy);
        let write = |version: u8| {
            let mut batch = Batch::new();
            for row in 0..2000_u64 {
                batch.put(rig.rows, row.to_be_bytes().to_vec(), vec![version; 1000]);
            }
            rig.db.apply(batch, Durability::Buffered).expect("applies");
            rig.db.flush().expect("flushes");
        };
        let read = |version: u8| {
            for row in 0..2000_u64 {
                let value = rig.db.get(rig.rows, &row.to_be_bytes()).expect("reads").expect("is there");
                assert!(value.len() == 1000 && value[0] == version, "{policy}");
            }
        };
        write(1);
        // What is popular stays longest.
        (0..4).for_each(|_| read(1));
        let before = rig.stat("cache.blocks");
        assert!(before > 100, "{policy}: {before}");
        write(2);
        rig.db.compact().expect("merges");
        rig.db.reclaim().expect("reclaims");
        let after = rig.stat("cache.blocks");
        assert!(after < before / 4, "{policy}: {after} of {before}");
        read(2);
    }
}
