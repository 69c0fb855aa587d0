//! Memory that counts in the share of a user for as long as what takes it is there.
//!
//! Thread safety: atomic counters. Invariant: what was added is subtracted once, on drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
pub(super) struct Charge {
    table_bytes: Arc<AtomicUsize>,
    user_bytes: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    pub(super) fn new(table_bytes: &Arc<AtomicUsize>, user_bytes: &Arc<AtomicUsize>, bytes: usize) -> Self {
        table_bytes.fetch_add(bytes, Ordering::Relaxed);
        user_bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { table_bytes: Arc::clone(table_bytes), user_bytes: Arc::clone(user_bytes), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.table_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.user_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
