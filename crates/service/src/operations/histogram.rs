//! Latencies in buckets of equal relative width.
//!
//! A bucket is a sixteenth of an octave: 16 of them from each power of two nanoseconds to the next, from 128
//! ns to about 18 minutes, one for what is shorter and one for what is longer. A quantile that is read from
//! them is off by at most a thirty-second of its value.
//!
//! Thread safety: [`Histogram`] is written by any number of threads with relaxed atomics, so a snapshot may
//! miss what is being added. Invariant: the bounds are part of the control protocol: [`BUCKETS`] buckets, by
//! index.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shorter times are not told apart (power of two, ns).
const FIRST_LOG2: u32 = 7;

/// Octaves above.
const OCTAVES: usize = 33;

/// Buckets of an octave (power of two).
const SUB_LOG2: u32 = 4;

/// Number of buckets: the first is for times below 128 ns, the last for those from about 18 minutes on.
pub const BUCKETS: usize = (OCTAVES << SUB_LOG2) + 2;

/// The bucket of a time.
pub fn bucket_of(nanos: u64) -> usize {
    let Some(octave) = (nanos >> FIRST_LOG2).checked_ilog2() else { return 0 };
    let sub = (nanos >> (octave + FIRST_LOG2 - SUB_LOG2)) as usize & ((1 << SUB_LOG2) - 1);
    (1 + ((octave as usize) << SUB_LOG2) + sub).min(BUCKETS - 1)
}

/// The shortest time in a bucket (ns).
pub fn bucket_start(index: usize) -> u64 {
    let Some(place) = index.min(BUCKETS - 1).checked_sub(1) else { return 0 };
    let (octave, sub) = (place as u32 >> SUB_LOG2, place as u64 & ((1 << SUB_LOG2) - 1));
    ((1 << SUB_LOG2) + sub) << (octave + FIRST_LOG2 - SUB_LOG2)
}

/// What is counted of one kind of operation, by one of the shards.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: Box<[AtomicU64]>,
    nanos: AtomicU64,
    nanos_max: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: std::iter::repeat_with(AtomicU64::default).take(BUCKETS).collect(),
            nanos: AtomicU64::default(),
            nanos_max: AtomicU64::default(),
            errors: AtomicU64::default(),
            bytes: AtomicU64::default(),
        }
    }
}

impl Histogram {
    pub(super) fn add(&self, nanos: u64, is_error: bool, bytes: u64) {
        self.buckets[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        if nanos > self.nanos_max.load(Ordering::Relaxed) {
            self.nanos_max.fetch_max(nanos, Ordering::Relaxed);
        }
        if is_error {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Adds what it has counted.
    pub(super) fn add_to(&self, sum: &mut Sum) {
        for (index, bucket) in self.buckets.iter().enumerate() {
            sum.buckets[index] += bucket.load(Ordering::Relaxed);
        }
        sum.nanos += self.nanos.load(Ordering::Relaxed);
        sum.nanos_max = sum.nanos_max.max(self.nanos_max.load(Ordering::Relaxed));
        sum.errors += self.errors.load(Ordering::Relaxed);
        sum.bytes += self.bytes.load(Ordering::Relaxed);
    }
}

/// What all shards have counted.
pub(super) struct Sum {
    pub(super) buckets: [u64; BUCKETS],
    pub(super) nanos: u64,
    pub(super) nanos_max: u64,
    pub(super) errors: u64,
    pub(super) bytes: u64,
}

impl Default for Sum {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], nanos: 0, nanos_max: 0, errors: 0, bytes: 0 }
    }
}
