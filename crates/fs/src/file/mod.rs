//! Content of files: inline in the row up to a threshold, else in 4 KiB blocks.
//!
//! Invariants:
//! * An inline file's content is exactly as long as its size.
//! * Of a file with blocks, no block at or beyond the size is present, and the bytes of the last block
//!   beyond the size are zero. Without the flag *sparse* every block below the size is present.
//! * A file becomes inline again only when it is truncated to nothing: so a file that grows and shrinks
//!   around the threshold isn't converted back and forth, and never while an operation relies on its blocks.
//!
//! Names: a write holds its range of blocks exclusively and size and times under increment (both only grow,
//! by maximum; times that lie in the future are set, and held exclusively); inline content is one granule,
//! all blocks; conversion, truncating and appending hold the size exclusively. A read holds its blocks
//! shared, so that it sees a write wholly or not at all.

mod accesses;
mod allocate;
mod beside;
mod blocks;
mod clone_range;
mod content;
mod copy;
mod read;
mod resize;
mod seek;
mod watches;
mod write;

pub use accesses::{AccessCount, AccessPattern, FileAccesses, StretchAccesses};
pub(crate) use accesses::{AccessLog, accesses_of};
pub use beside::{ChangedBeside, ContentObserver, write_pages};
pub(crate) use clone_range::{CLONES_MAX, RangeCloner, whole_file};
pub(crate) use content::Contents;
pub(crate) use read::Reader;
pub use seek::hole_of_seek;
pub(crate) use watches::{ChangedContent, ContentWatches};
pub use watches::{ContentWatch, ContentWatcher, watch_content};

use kvfs_store::BLOCK_BYTES;
use kvfs_txn::LockName;

use crate::{FILE_SIZE_MAX, FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Number of blocks that hold `bytes`.
pub(crate) fn block_count(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK)
}

/// The blocks that bytes `offset .. end` touch.
fn blocks_name(inode: u64, offset: u64, end: u64) -> LockName<'static> {
    LockName::Blocks { inode, first: offset / BLOCK, end: block_count(end) }
}

/// All blocks, and inline content.
fn all_blocks(inode: u64) -> LockName<'static> {
    LockName::Blocks { inode, first: 0, end: u64::MAX }
}

/// `offset + length`, if a file may be that long.
fn end_of(offset: u64, length: u64) -> Result<u64> {
    offset.checked_add(length).filter(|&end| end <= FILE_SIZE_MAX).ok_or(FsError::FileTooLarge)
}
