//! Measures what a program holds in memory that has the engine as a library, beside what the engine counts.
//!
//! `resident_set DIR [MEMORY_MIB] [LOAD]...` makes a store in DIR of four times the memory for each load,
//! uses it, and prints the greatest anonymous memory of the process, and what each pool had then. The
//! allocator is that of the C library.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvfs_device::{FileDevice, Rng};
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{BLOCK_BYTES, Batch, Durability, KeyRange, Keyspace, KeyspaceKind, Read, Store};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const MIB: u64 = 1 << 20;
const ROWS_PER_BATCH: u64 = 64;
const BLOCKS_PER_BATCH: u64 = 32;

/// What is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Rows of 64 bytes in random order.
    Rows,
    /// Rows of 20 to 60 KiB.
    LongRows,
    /// Blocks in random order.
    Blocks,
}

const LOADS: [(Load, &str); 3] =
    [(Load::Rows, "rows"), (Load::LongRows, "long-rows"), (Load::Blocks, "blocks")];

/// The most so far, and what was counted at that time.
#[derive(Default)]
struct Peak {
    bytes: u64,
    pools: Vec<(String, u64)>,
}

/// Anonymous memory of this process (bytes).
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn pools(db: &Db) -> Vec<(String, u64)> {
    let mut stats = db.stats();
    stats.retain(|(name, _)| name.starts_with("memory."));
    stats
}

/// Runs `work` and looks on meanwhile.
fn watched(what: &str, db: &Db, work: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = Peak::default();
            while !is_over.load(Ordering::Acquire) {
                std::thread::park_timeout(Duration::from_millis(20));
                let bytes = anonymous_bytes();
                if bytes > peak.bytes {
                    peak = Peak { bytes, pools: pools(db) };
                }
            }
            peak
        });
        let done = work();
        is_over.store(true, Ordering::Release);
        let peak = watcher.join().map_err(|_| "the watcher panicked")?;
        let pools = peak.pools.iter().map(|(name, bytes)| {
            format!("{} {:.1}", name.trim_start_matches("memory.").trim_end_matches("_bytes"), mib(*bytes))
        });
        println!(
            "{what:22} peak {:6.1} MiB, now {:6.1}; {}",
            mib(peak.bytes),
            mib(anonymous_bytes()),
            pools.collect::<Vec<_>>().join(", ")
        );
        done
    })
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn key(number: u64) -> Vec<u8> {
    let mut key = Rng::new(number).next_u64().to_be_bytes().to_vec();
    key.extend(number.to_be_bytes());
    key
}

fn value(load: Load, number: u64) -> Vec<u8> {
    let mut rng = Rng::new(!number);
    let len = if load == Load::LongRows { rng.range(20 << 10, 60 << 10) as usize } else { 48 };
    let mut value = vec![0; len];
    rng.fill(&mut value);
    value
}

fn fill(db: &Db, keyspace: Keyspace, load: Load, count: u64) -> Outcome<()> {
    if load == Load::Blocks {
        let mut numbers: Vec<u64> = (0..count).collect();
        Rng::new(1).shuffle(&mut numbers);
        for some in numbers.chunks(BLOCKS_PER_BATCH as usize) {
            let mut batch = Batch::new();
            for &number in some {
                batch.put_blocks(keyspace, "f", number, vec![number as u8; BLOCK_BYTES]);
            }
            db.apply(batch, Durability::Buffered)?;
        }
    } else {
        for first in (0..count).step_by(ROWS_PER_BATCH as usize) {
            let mut batch = Batch::new();
            for number in first..count.min(first + ROWS_PER_BATCH) {
                batch.put(keyspace, key(number), value(load, number));
            }
            db.apply(batch, Durability::Buffered)?;
        }
    }
    Ok(db.sync(db.position())?)
}

fn read(db: &Db, keyspace: Keyspace, load: Load, number: u64) -> Outcome<()> {
    let key = if load == Load::Blocks { [b"f", &number.to_be_bytes()[..]].concat() } else { key(number) };
    db.get(keyspace, &key)?.ok_or_else(|| format!("row {number} is missing"))?;
    Ok(())
}

fn scan(db: &Db, keyspace: Keyspace) -> Outcome<()> {
    let mut cursor = db.cursor(keyspace, KeyRange::all())?;
    cursor.seek(&[])?;
    while cursor.entry().is_some() {
        cursor.next()?;
    }
    Ok(())
}

fn measure(dir: &Path, memory_bytes: u64, load: Load, name: &str) -> Outcome<()> {
    let path = dir.join("resident-set.device");
    let data_bytes = 4 * memory_bytes;
    let bytes = 4 * data_bytes + (1 << 30);
    let device = Arc::new(FileDevice::create(&path, bytes)?);
    Db::create(device.clone(), &CreateOptions::new(bytes, [7; 16]))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let kind = if load == Load::Blocks { KeyspaceKind::Block } else { KeyspaceKind::Tuple };
    let count = data_bytes / [64, 40 << 10, BLOCK_BYTES as u64][load as usize];
    let reads = count.min(800_000);
    let db = Db::open(device.clone(), Options::with_memory(memory_bytes), Arc::clone(&clock))?;
    let keyspace = db.open_keyspace("rows", kind, None)?;
    watched(&format!("{name}: fill"), &db, || fill(&db, keyspace, load, count))?;
    watched(&format!("{name}: close"), &db, || Ok(db.close()?))?;
    drop(db);
    let db = Db::open(device, Options::with_memory(memory_bytes), clock)?;
    watched(&format!("{name}: point reads"), &db, || {
        let mut rng = Rng::new(2);
        (0..reads).try_for_each(|_| read(&db, keyspace, load, rng.below(count)))
    })?;
    watched(&format!("{name}: scan"), &db, || scan(&db, keyspace))?;
    watched(&format!("{name}: mixed"), &db, || {
        let mut rng = Rng::new(3);
        for number in 0..reads {
            if number % 2 == 0 {
                read(&db, keyspace, load, rng.below(count))?;
            } else if load == Load::Blocks {
                let mut batch = Batch::new();
                batch.put_blocks(keyspace, "f", rng.below(count), vec![7; BLOCK_BYTES]);
                db.apply(batch, Durability::Buffered)?;
            } else {
                let mut batch = Batch::new();
                batch.put(keyspace, key(rng.below(count)), value(load, number));
                db.apply(batch, Durability::Buffered)?;
            }
        }
        Ok(())
    })?;
    db.close()?;
    drop(db);
    Ok(std::fs::remove_file(path)?)
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let dir = words.next().ok_or("usage: resident_set DIR [MEMORY_MIB] [rows|long-rows|blocks]...")?;
    let memory_mib: u64 = words.next().map_or(Ok(128), |word| word.parse())?;
    let wanted: Vec<String> = words.collect();
    for (load, name) in LOADS {
        if wanted.is_empty() || wanted.iter().any(|wish| wish == name) {
            measure(Path::new(&dir), memory_mib * MIB, load, name)?;
        }
    }
    Ok(())
}
