//! What the write sets of all transactions count for.
//!
//! Thread safety: the sum is an atomic; a charge belongs to one owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts in a sum until it is dropped.
#[derive(Debug)]
pub struct Charge {
    sum: Arc<AtomicU64>,
    bytes: u64,
}

impl Charge {
    /// So many bytes of `sum`.
    pub fn new(sum: &Arc<AtomicU64>, bytes: u64) -> Self {
        let mut charge = Self { sum: Arc::clone(sum), bytes: 0 };
        charge.set(bytes);
        charge
    }

    /// What it counts for (bytes).
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts for so much from now on (bytes).
    pub fn set(&mut self, bytes: u64) {
        // Wrapping: the difference may be negative, the sum never is.
        self.sum.fetch_add(bytes.wrapping_sub(self.bytes), Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}
