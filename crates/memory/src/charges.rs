//! All charges of a store: which memory is taken, by pool, by size, and by place in the code.
//!
//! Purpose: an owner of memory holds a [`Charge`] for as long as it has it. A charge that outlives its owner
//! is a leak, and has the place where it was made (nDiskFS, "modular resource accounting").
//!
//! Thread safety: all methods take `&self` and are lock-free; figures that are read while others change them
//! may be of slightly different moments. Making and dropping a charge takes 12 atomic additions, about 150
//! ns, and no clock: the owner of the charges tells them the time.
//!
//! Invariants: what is charged is given back when its [`Charge`] is dropped, and by nothing else. A place has
//! a slot of its own in each pool that it charges, until there are more than [`SITES_MAX`]; the others share
//! one, which has no place.

mod charge;
mod gauge;
mod site;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

pub use charge::Charge;
use gauge::Gauge;
pub use site::SITES_MAX;
use site::Sites;

/// Charges of at most so many bytes are in the first class (log2); each other class goes up to twice as much
/// as the one before.
const CLASS_LOG2_MIN: u32 = 9;
/// Everything larger than the class before it is in the last one (log2).
const CLASS_LOG2_MAX: u32 = 40;
/// There are at most so many pools.
pub const POOLS_MAX: usize = 8;
const CLASSES: usize = (CLASS_LOG2_MAX - CLASS_LOG2_MIN + 1) as usize;

/// Charges of about one size: in one line of the processor's cache.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Class {
    bytes: Gauge,
    count: Gauge,
}

#[derive(Debug)]
struct Pool {
    name: &'static str,
    classes: [Class; CLASSES],
    sites: Sites,
}

/// See the module.
#[derive(Debug)]
pub struct Charges {
    pools: Box<[Pool]>,
    /// On the owner's clock.
    now_ms: AtomicU64,
    sums: Sums,
}

/// What pools take, in one line of the processor's cache: their sum need not be counted beside them.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Sums {
    pools: [AtomicI64; POOLS_MAX],
    /// The most that each took, then the most that all did.
    peaks: [AtomicI64; POOLS_MAX + 1],
}

impl Sums {
    #[inline]
    fn add(&self, pool: usize, change: i64) {
        let now = self.pools[pool].fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        if change > 0 {
            gauge::raise(&self.peaks[pool], now);
            gauge::raise(&self.peaks[POOLS_MAX], self.total());
        }
    }

    #[inline]
    fn total(&self) -> i64 {
        self.pools.iter().map(|pool| pool.load(Ordering::Relaxed)).sum()
    }
}

/// What charges of about one size take, and took at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassUse {
    /// The largest of them (bytes).
    pub bytes_max: u64,
    /// What they take.
    pub bytes: u64,
    /// What they took at most.
    pub bytes_peak: u64,
    /// How many there are.
    pub count: u64,
    /// How many there were at most.
    pub count_peak: u64,
}

/// What was charged at one place in the code and is not given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveCharges {
    /// Its name.
    pub pool: &'static str,
    /// `None`: places that had no slot left.
    pub at: Option<&'static Location<'static>>,
    /// What it takes.
    pub bytes: u64,
    /// What charges of the place took at most.
    pub bytes_peak: u64,
    /// How many charges there are.
    pub count: u64,
    /// How old the oldest is at most: up to twice as old as it is, where there are many.
    pub age_max: Duration,
}

impl Charges {
    /// Nothing is charged yet, to pools of these names. A pool goes by its place among them.
    ///
    /// # Panics
    /// There are more than [`POOLS_MAX`].
    #[must_use]
    pub fn new(pools: &[&'static str]) -> Arc<Self> {
        assert!(pools.len() <= POOLS_MAX, "{pools:?}");
        let pool = |&name| Pool { name, classes: Default::default(), sites: Sites::default() };
        Arc::new(Self {
            pools: pools.iter().map(pool).collect(),
            now_ms: AtomicU64::new(0),
            sums: Sums::default(),
        })
    }

    /// Charges so many bytes to a pool until the result is dropped, at the place of the caller. Never
    /// refuses.
    ///
    /// # Panics
    /// There is no such pool.
    #[track_caller]
    pub fn charge(self: &Arc<Self>, pool: usize, bytes: u64) -> Charge {
        Charge::new(Arc::clone(self), pool, Location::caller(), bytes)
    }

    /// Tells the time, on a clock that never goes back. Ages are as exact as this is called often.
    pub fn set_now(&self, now: Duration) {
        self.now_ms.store(millis(now), Ordering::Relaxed);
    }

    /// Bytes charged to a pool.
    #[must_use]
    pub fn used(&self, pool: usize) -> u64 {
        gauge::read(&self.sums.pools[pool])
    }

    /// The most that was ever charged to a pool (bytes).
    #[must_use]
    pub fn peak(&self, pool: usize) -> u64 {
        gauge::read(&self.sums.peaks[pool])
    }

    /// Bytes charged to all pools.
    #[must_use]
    pub fn used_total(&self) -> u64 {
        self.sums.total().try_into().unwrap_or(0)
    }

    /// The most that was ever charged to all pools together (bytes).
    #[must_use]
    pub fn peak_total(&self) -> u64 {
        gauge::read(&self.sums.peaks[POOLS_MAX])
    }

    /// The charges of a pool by their size, the smallest first; sizes that never occurred are left out.
    #[must_use]
    pub fn classes(&self, pool: usize) -> Vec<ClassUse> {
        let classes = self.pools[pool].classes.iter().zip(CLASS_LOG2_MIN..);
        let class_use = |(class, log2): (&Class, u32)| ClassUse {
            bytes_max: 1 << log2,
            bytes: class.bytes.now(),
            bytes_peak: class.bytes.peak(),
            count: class.count.now(),
            count_peak: class.count.peak(),
        };
        classes.map(class_use).filter(|class| class.count_peak > 0).collect()
    }

    /// What is charged now, by pool, and in each the place with the most bytes first.
    #[must_use]
    pub fn live(&self) -> Vec<LiveCharges> {
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        self.pools.iter().flat_map(|pool| live_in(pool, now_ms)).collect()
    }

    /// A charge of one of its pools has changed from so many bytes to so many: what does not depend on the
    /// place.
    #[inline]
    fn resize(&self, number: usize, before: u64, after: u64) {
        let (pool, change) = (&self.pools[number], after.wrapping_sub(before).cast_signed());
        self.sums.add(number, change);
        let (from, to) = (class_of(before), class_of(after));
        if from == to {
            if let Some(class) = to {
                pool.classes[class].bytes.add(change);
            }
            return;
        }
        if let Some(class) = from {
            pool.classes[class].bytes.add(-before.cast_signed());
            pool.classes[class].count.add(-1);
        }
        if let Some(class) = to {
            pool.classes[class].bytes.add(after.cast_signed());
            pool.classes[class].count.add(1);
        }
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }
}

/// The compiler may have several addresses for one place: they are put together here.
fn live_in(pool: &Pool, now_ms: u64) -> Vec<LiveCharges> {
    let mut by_place = BTreeMap::new();
    for site in pool.sites.iter() {
        let Some(oldest_ms) = site.oldest_ms() else { continue };
        let age_max = Duration::from_millis(now_ms.saturating_sub(oldest_ms));
        let live = LiveCharges {
            pool: pool.name,
            at: site.at(),
            bytes: site.bytes().now(),
            bytes_peak: site.bytes().peak(),
            count: site.count(),
            age_max,
        };
        let place = live.at.map(|at| (at.file(), at.line(), at.column()));
        let same = by_place.entry(place).or_insert(LiveCharges { bytes: 0, bytes_peak: 0, count: 0, ..live });
        same.bytes += live.bytes;
        same.bytes_peak += live.bytes_peak;
        same.count += live.count;
        same.age_max = same.age_max.max(age_max);
    }
    let mut found: Vec<_> = by_place.into_values().collect();
    found.sort_by_key(|live| std::cmp::Reverse(live.bytes));
    found
}

/// `None`: nothing is charged.
#[inline]
fn class_of(bytes: u64) -> Option<usize> {
    let last = bytes.checked_sub(1)?;
    let log2 = (u64::BITS - last.leading_zeros()).clamp(CLASS_LOG2_MIN, CLASS_LOG2_MAX);
    Some((log2 - CLASS_LOG2_MIN) as usize)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
