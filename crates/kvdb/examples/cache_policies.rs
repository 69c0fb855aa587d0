//! Measures the policies of the block cache on a store whose data is several times as large as its memory.
//!
//! `cache_policies DIR [--quick]` makes a store in DIR for each policy and load, by turns, and prints hit
//! rates, reads per second, and what was read from the device. docs/decisions/block-cache.md quotes it.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{FileDevice, Rng};
use kvfs_kvdb::Policy;
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Read, Store};

type Outcome<T> = Result<T, Box<dyn Error>>;

const VALUE_BYTES: usize = 200;
const ROUNDS: usize = 3;
/// Skew of the popular rows, as in YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

struct Sizes {
    rows: u64,
    reads: u64,
    memory_bytes: u64,
}

/// What is read.
#[derive(Clone, Copy)]
enum Load {
    /// Rows by their popularity.
    Zipf,
    /// The same, with a scan over a tenth of the rows after each hundredth of the reads.
    ZipfAndScans,
    /// Every row alike.
    Uniform,
    /// One row after the other, again and again, over somewhat more than fits.
    Loop,
    /// Rows by their popularity; another tenth of them is popular after each tenth of the reads.
    Shifting,
}

const LOADS: [(Load, &str); 5] = [
    (Load::Zipf, "popular rows"),
    (Load::ZipfAndScans, "popular rows and scans"),
    (Load::Uniform, "any row"),
    (Load::Loop, "loop over 1.2 x cache"),
    (Load::Shifting, "popular rows that change"),
];

/// Draws ranks with a zipfian distribution by a table of its sums.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: u64) -> Self {
        let mut sum = 0.0;
        Self(
            (1..=count)
                .map(|rank| {
                    sum += 1.0 / (rank as f64).powf(ZIPF_EXPONENT);
                    sum
                })
                .collect(),
        )
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let most = self.0.last().copied().unwrap_or(0.0);
        let at = rng.next_u64() as f64 / u64::MAX as f64 * most;
        self.0.partition_point(|&sum| sum < at) as u64
    }
}

fn key(row: u64) -> [u8; 8] {
    row.to_be_bytes()
}

/// Spreads neighbouring ranks over the store.
fn scattered(rank: u64, rows: u64) -> u64 {
    rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % rows
}

fn fill(dir: &Path, policy: Policy, sizes: &Sizes) -> Outcome<(Arc<Db>, Keyspace)> {
    let path = dir.join("cache-policies.device");
    let bytes = sizes.rows * VALUE_BYTES as u64 * 4 + (1 << 30);
    if path.exists() {
        std::fs::remove_file(&path)?;
    }
    let device = Arc::new(FileDevice::create(&path, bytes)?);
    Db::create(device.clone(), &CreateOptions::new(bytes, [7; 16]))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let options = Options { cache_policy: policy, ..Options::with_memory(sizes.memory_bytes) };
    let db = Db::open(device, options, clock)?;
    let keyspace = db.open_keyspace("rows", KeyspaceKind::Tuple, None)?;
    for start in (0..sizes.rows).step_by(1000) {
        let mut batch = Batch::new();
        for row in start..(start + 1000).min(sizes.rows) {
            batch.put(keyspace, key(row).to_vec(), vec![row as u8; VALUE_BYTES]);
        }
        db.apply(batch, Durability::Buffered)?;
    }
    db.flush()?;
    db.compact()?;
    Ok((db, keyspace))
}

fn read(db: &Db, keyspace: Keyspace, load: Load, sizes: &Sizes) -> Outcome<Duration> {
    let mut rng = Rng::new(1);
    let zipf = Zipf::new(sizes.rows);
    let rows_cached = sizes.memory_bytes / (VALUE_BYTES as u64 + 20);
    let scan_every = (sizes.reads / 100).max(1);
    let clock = SystemClock::new();
    let start = clock.monotonic();
    for n in 0..sizes.reads {
        let row = match load {
            Load::Zipf | Load::ZipfAndScans => scattered(zipf.draw(&mut rng), sizes.rows),
            Load::Uniform => rng.next_u64() % sizes.rows,
            Load::Loop => n * 61 % (rows_cached * 6 / 5).min(sizes.rows),
            Load::Shifting => {
                let shift = n * 10 / sizes.reads * (sizes.rows / 10);
                scattered(zipf.draw(&mut rng) + shift, sizes.rows)
            }
        };
        if db.get(keyspace, &key(row))?.is_none() {
            return Err(format!("row {row} is missing").into());
        }
        if matches!(load, Load::ZipfAndScans) && n % scan_every == 0 {
            let first = rng.next_u64() % sizes.rows;
            for row in first..(first + sizes.rows / 10).min(sizes.rows) {
                db.get(keyspace, &key(row))?;
            }
        }
    }
    Ok(clock.monotonic().saturating_sub(start))
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let dir = words.next().ok_or("usage: cache_policies DIR [--quick]")?;
    let dir = Path::new(&dir);
    let sizes = if words.next().as_deref() == Some("--quick") {
        Sizes { rows: 100_000, reads: 50_000, memory_bytes: 8 << 20 }
    } else {
        Sizes { rows: 1_000_000, reads: 400_000, memory_bytes: 64 << 20 }
    };
    println!("{} rows of {VALUE_BYTES} bytes, memory {} MiB", sizes.rows, sizes.memory_bytes >> 20);
    for (load, name) in LOADS {
        for _ in 0..ROUNDS {
            for policy in Policy::ALL {
                let (db, keyspace) = fill(dir, policy, &sizes)?;
                let before = counts(&db);
                let time = read(&db, keyspace, load, &sizes)?;
                let after = counts(&db);
                let (hits, misses) = (after.0 - before.0, after.1 - before.1);
                let rate = 100.0 * hits as f64 / (hits + misses).max(1) as f64;
                let per_second = (hits + misses) as f64 / time.as_secs_f64();
                println!(
                    "{name:26} {policy:?}: hits {rate:.1} %, {misses} misses, {per_second:.0} lookups/s"
                );
                db.close()?;
            }
        }
    }
    std::fs::remove_file(dir.join("cache-policies.device"))?;
    Ok(())
}

/// Hits and misses of the block cache so far.
fn counts(db: &Db) -> (u64, u64) {
    let stats = db.stats();
    let of = |name: &str| stats.iter().find(|(n, _)| n == name).map_or(0, |(_, value)| *value);
    (of("cache.hits"), of("cache.misses"))
}
