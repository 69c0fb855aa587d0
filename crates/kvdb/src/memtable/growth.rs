//! What an insertion adds to a memtable, in the several measures that others go by.
//!
//! Thread safety: plain data.

use std::ops::AddAssign;

use kvfs_store::{Batch, Op};

use crate::format::SECTOR_BYTES;

/// Shorter records are packed so tightly that what they take in memory beyond key and value exceeds their
/// padding (bytes).
const PADDED_BYTES_MIN: usize = 1 << 10;

/// A block of at least so many bytes has no more than a sector of padding, and an entry in the index.
const BLOCK_BYTES: usize = 4 * SECTOR_BYTES as usize;

/// By how much a table grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Growth {
    /// Keys, values, and what comes with each record (bytes): tables are full by this.
    pub(super) bytes: usize,
    /// Memory that was taken for it (bytes): arenas take theirs by the chunk, and give out of it later for
    /// nothing.
    pub(super) memory_bytes: usize,
    /// What a flush may have to write for patches beyond `bytes` (bytes).
    pub(super) patched_bytes: usize,
    /// What records may take on the device beyond themselves; see [`slack_of`] (bytes).
    pub(super) slack_bytes: usize,
}

/// The most that an operation takes on the device beyond its payload (bytes), but for what comes with every
/// record: its part of what fills up the last sector of its block, and of the two keys that the index has of
/// each block, twice. A long record may be alone in its block. Whole blocks have nothing of it.
pub(super) fn slack_of(op: &Op) -> usize {
    let (key_len, len) = match op {
        Op::Put { key, value, .. } => (key.len(), key.len() + value.len()),
        Op::Merge { key, operand, .. } => (key.len(), key.len() + operand.len()),
        Op::Delete { key, .. } => (key.len(), key.len()),
        Op::DeleteRange { .. } | Op::PutBlocks { .. } | Op::PatchBlock { .. } => return 0,
    };
    let padding = if len < PADDED_BYTES_MIN { 0 } else { len.min(BLOCK_BYTES) / 4 };
    padding + 4 * key_len * len.min(BLOCK_BYTES) / BLOCK_BYTES
}

/// What the flush of `batch` may write (bytes), but for what comes with every record.
pub(crate) fn space_of(batch: &Batch) -> u64 {
    let slack: usize = batch.ops().iter().map(slack_of).sum();
    (batch.whole_bytes() + slack) as u64
}

impl Growth {
    /// So many bytes in allocations of their own.
    pub(super) fn of(bytes: usize) -> Self {
        Self { bytes, memory_bytes: bytes, ..Self::default() }
    }
}

impl AddAssign for Growth {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.memory_bytes += other.memory_bytes;
        self.patched_bytes += other.patched_bytes;
        self.slack_bytes += other.slack_bytes;
    }
}
