//! Free space of the file system around the database: writes are refused before `RocksDB` meets its end.
//!
//! Thread safety: atomics. Invariants: what is written between two looks is at most what the last one has found free; a reserve stays
//! for memtables, which come to files, and for compactions, which write before they remove.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use kvfs_store::{Result, StoreError};

/// The file system is asked again behind so much (bytes).
const LOOK_BYTES: u64 = 32 << 20;

/// Each byte of a batch is written to the log, and again to a table (bytes).
const COPIES: u64 = 2;

/// Kept free beside what memtables may come to (bytes); of a small file system at most an eighth.
const RESERVE_BYTES: u64 = 64 << 20;
const RESERVE_DIVISOR: u64 = 8;

/// See the module.
pub(crate) struct Room {
    write_buffers_bytes: u64,
    /// May be written before the next look (bytes).
    left: AtomicI64,
}

/// What the file system around a database has (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    /// For anything.
    pub(crate) bytes: u64,
    /// Of that the reserve.
    pub(crate) reserve_bytes: u64,
}

impl Room {
    pub(crate) fn new(write_buffers_bytes: u64) -> Self {
        Self { write_buffers_bytes, left: AtomicI64::new(0) }
    }

    pub(crate) fn look(&self, path: &Path) -> Result<Free> {
        let found = rustix::fs::statvfs(path);
        let found = found.map_err(|errno| StoreError::io("asking for free space", errno.into()))?;
        let bytes = found.f_bavail.saturating_mul(found.f_frsize);
        let total = found.f_blocks.saturating_mul(found.f_frsize);
        let reserve = COPIES * self.write_buffers_bytes + RESERVE_BYTES;
        Ok(Free { bytes, reserve_bytes: reserve.min(total / RESERVE_DIVISOR) })
    }

    /// Admits a batch of so many bytes; one that deletes may use most of the reserve.
    pub(crate) fn admit(&self, path: &Path, batch_bytes: u64, deletes: bool) -> Result<()> {
        let needed = (batch_bytes * COPIES) as i64;
        if self.left.fetch_sub(needed, Ordering::Relaxed) >= needed {
            return Ok(());
        }
        let Free { bytes, reserve_bytes } = self.look(path)?;
        let kept = if deletes { reserve_bytes / 4 } else { reserve_bytes };
        let left = bytes.saturating_sub(kept).min(LOOK_BYTES) as i64;
        self.left.store(if deletes { 0 } else { left - needed }, Ordering::Relaxed);
        if left >= needed || (needed as u64 > LOOK_BYTES && bytes.saturating_sub(kept) >= needed as u64) {
            return Ok(());
        }
        self.left.store(0, Ordering::Relaxed);
        Err(StoreError::Full)
    }
}
