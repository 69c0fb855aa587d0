//! What merges owe, and how they give way: the figures by which writers are slowed down.
//!
//! Thread safety: atomics; one update of the debt at a time, so that what is kept at last is of the newest
//! view.

pub(crate) mod pace;
pub(crate) mod rate_limiter;
pub(crate) mod throttle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use kvfs_locks::{Mutex, MutexGuard, class};

use crate::compaction::{MergeOptions, picker};
use crate::layers::view::View;
use crate::pressure::pace::MergePace;
use crate::runtime::options::Options;
use crate::space::passes::Passes;
use crate::version::{bytes_of, of_one_age};

/// See [`Pressure::bytes_full`]: in full memtables.
const TABLES_UNMERGED: u64 = 64;

/// See the module.
pub(crate) struct Pressure {
    pub(crate) pace: Arc<MergePace>,
    passes: Mutex<Passes, class::KvdbPressurePasses>,
    /// Those who empty zones in the background.
    emptying: AtomicUsize,
    merge: MergeOptions,
    bytes_full: u64,
    debt_bytes: AtomicU64,
    /// Part of that for whose merges there is no space, or that merges can't read.
    bytes_unpayable: AtomicU64,
    /// Held while the debt is computed and kept.
    update: Mutex<(), class::KvdbPressureUpdate>,
}

impl Pressure {
    /// Without any debt.
    pub(crate) fn new(options: &Options, pace: Arc<MergePace>) -> Self {
        Self {
            pace,
            passes: Mutex::default(),
            emptying: AtomicUsize::new(0),
            merge: options.merge,
            bytes_full: options.memtable_bytes * TABLES_UNMERGED,
            debt_bytes: AtomicU64::new(0),
            bytes_unpayable: AtomicU64::new(0),
            update: Mutex::default(),
        }
    }

    /// Bytes that merges owe.
    pub(crate) fn debt_bytes(&self) -> u64 {
        self.debt_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that merges owe and can pay. Writers that waited for others would wait for good.
    pub(crate) fn payable_bytes(&self) -> u64 {
        self.debt_bytes().saturating_sub(self.bytes_unpayable.load(Ordering::Relaxed))
    }

    /// So many bytes are owed by merges for which there is no space, or of what they can't read.
    pub(crate) fn note_unpayable(&self, bytes: u64) {
        self.bytes_unpayable.store(bytes, Ordering::Relaxed);
    }

    /// Debt of merges that makes the full price (bytes). A burst of half of it is written at full speed.
    pub(crate) fn bytes_full(&self) -> u64 {
        self.bytes_full
    }

    /// What is known of the passes over all runs, for a few instructions.
    #[track_caller]
    pub(crate) fn passes(&self) -> MutexGuard<'_, Passes, class::KvdbPressurePasses> {
        self.passes.lock()
    }

    /// Whether zones are being emptied in the background.
    pub(crate) fn is_emptying_zones(&self) -> bool {
        self.emptying.load(Ordering::Relaxed) > 0
    }

    /// From now on they are, until the matching end.
    pub(crate) fn begin_emptying_zones(&self) {
        self.emptying.fetch_add(1, Ordering::Relaxed);
    }

    /// See [`Pressure::begin_emptying_zones`].
    pub(crate) fn end_emptying_zones(&self) {
        self.emptying.fetch_sub(1, Ordering::Relaxed);
    }

    /// Recomputes the debt of the view that `newest` returns.
    pub(crate) fn update(&self, newest: impl FnOnce() -> Arc<View>) {
        let _one = self.update.lock();
        let view = newest();
        let debt = view.version.keyspaces().map(|(_, runs)| {
            let bytes: Vec<u64> = of_one_age(runs).map(bytes_of).collect();
            picker::debt_bytes(&bytes, &self.merge)
        });
        let debt = debt.sum();
        self.debt_bytes.store(debt, Ordering::Relaxed);
        let is_behind = throttle::is_charged(debt, self.bytes_full) || self.is_emptying_zones();
        self.pace.note_behind(is_behind);
    }
}
