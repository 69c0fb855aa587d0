//! Free space of the file system around the database: writes are refused before the database meets its end.
//!
//! Thread safety: atomics. Invariants: what is written between two looks is at most what the last one has
//! found free; a reserve stays for memtables, which come to files, and for compactions, which write before
//! they remove.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};

use kvfs_store::{Result, StoreError};
use rustix::fs::StatVfs;

use crate::database::Reserve;

/// The file system is asked again behind so much (bytes).
const LOOK_BYTES: u64 = 32 << 20;

/// Each byte of a batch is written to the log, and again to a table (bytes).
const COPIES: u64 = 2;

/// A compaction of this part of the reserve finds room in half of it: it rewrites what lies in the same range
/// on the next level, too.
const PIECE_DIVISOR: u64 = 16;

/// See the module.
pub(crate) struct Room {
    /// Lies in the file system.
    path: PathBuf,
    reserve: Reserve,
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
    pub(crate) fn new(path: PathBuf, reserve: Reserve) -> Self {
        Self { path, reserve, left: AtomicI64::new(0) }
    }

    pub(crate) fn look(&self) -> Result<Free> {
        let found = stat(&self.path)?;
        let bytes = found.f_bavail.saturating_mul(found.f_frsize);
        let total = found.f_blocks.saturating_mul(found.f_frsize);
        Ok(Free { bytes, reserve_bytes: self.reserve.bytes.min(total / self.reserve.divisor) })
    }

    /// How much may be compacted at once (bytes); `None`: a compaction does not find what it needs.
    pub(crate) fn compaction_bytes(&self) -> Option<u64> {
        let free = self.look().ok().filter(|free| free.bytes >= free.reserve_bytes / 2)?;
        Some(free.reserve_bytes / PIECE_DIVISOR)
    }

    /// Admits a batch of so many bytes; one that deletes may use half of the reserve.
    pub(crate) fn admit(&self, batch_bytes: u64, deletes: bool) -> Result<()> {
        let needed = (batch_bytes * COPIES) as i64;
        if self.left.fetch_sub(needed, Ordering::Relaxed) >= needed {
            return Ok(());
        }
        let Free { bytes, reserve_bytes } = self.look()?;
        let kept = if deletes { reserve_bytes / 2 } else { reserve_bytes };
        let left = bytes.saturating_sub(kept).min(LOOK_BYTES) as i64;
        self.left.store(if deletes { 0 } else { left - needed }, Ordering::Relaxed);
        if left >= needed || (needed as u64 > LOOK_BYTES && bytes.saturating_sub(kept) >= needed as u64) {
            return Ok(());
        }
        self.left.store(0, Ordering::Relaxed);
        Err(StoreError::Full)
    }
}

/// Of the file system that a path lies in (bytes).
///
/// # Errors
/// I/O errors.
pub fn file_system_bytes(path: &Path) -> Result<u64> {
    let found = stat(path)?;
    Ok(found.f_blocks.saturating_mul(found.f_frsize))
}

fn stat(path: &Path) -> Result<StatVfs> {
    rustix::fs::statvfs(path).map_err(|errno| StoreError::io("asking for free space", errno.into()))
}
