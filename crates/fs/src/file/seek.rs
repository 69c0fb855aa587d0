//! `SEEK_DATA` and `SEEK_HOLE`.

use std::ops::Range;

use kvfs_store::ExtentKind;
use kvfs_txn::Want;

use super::{BLOCK, all_blocks, block_count};
use crate::schema::{Header, RowFlags, block_prefix};
use crate::{Caller, FileSystem, FsError, NodeId, Result, SeekKind};

impl FileSystem {
    /// The first offset at or after `offset` that is data, or a hole.
    ///
    /// # Errors
    /// `NoSuchOffset` at or beyond the end, or when there is no more data.
    pub fn seek(&self, caller: &Caller, node: NodeId, offset: u64, kind: SeekKind) -> Result<u64> {
        let node = self.locker().pin_file(node)?;
        let _settled = self.nodes.settled(&node);
        let _names = self.locker().latch_to_read(caller, &[Want::shared(all_blocks(node.inode))])?;
        let header = node.header();
        if offset >= header.size {
            return Err(FsError::NoSuchOffset);
        }
        match (kind, next(self, &header, offset, kind)?) {
            (_, Some(found)) => Ok(found),
            (SeekKind::Hole, None) => Ok(header.size),
            (SeekKind::Data, None) => Err(FsError::NoSuchOffset),
        }
    }
}

/// The hole that [`FileSystem::seek`] would tell of, by what is stored at this moment: what it passes over on
/// its way to data, or the hole itself. `None`: it would tell of none but that behind the end.
///
/// # Errors
/// As [`FileSystem::seek`].
pub fn hole_of_seek(
    fs: &FileSystem,
    node: NodeId,
    offset: u64,
    kind: SeekKind,
) -> Result<Option<Range<u64>>> {
    let node = fs.locker().pin_file(node)?;
    let _settled = fs.nodes.settled(&node);
    let header = node.header();
    let begin = match kind {
        SeekKind::Data => offset,
        SeekKind::Hole => next(fs, &header, offset, kind)?.unwrap_or(header.size),
    };
    let end = next(fs, &header, begin, SeekKind::Data)?.unwrap_or(header.size);
    Ok((begin < end).then_some(begin..end))
}

/// The first offset at or after `offset`, and before the end, that is data, or a hole.
fn next(fs: &FileSystem, header: &Header, offset: u64, kind: SeekKind) -> Result<Option<u64>> {
    let found = if header.is_inline() || !header.flags.has(RowFlags::SPARSE) {
        (kind == SeekKind::Data).then_some(offset)
    } else {
        let extent_kind = match kind {
            SeekKind::Data => ExtentKind::Data,
            SeekKind::Hole => ExtentKind::Hole,
        };
        let prefix = block_prefix(header.inode);
        let blocks = offset / BLOCK..block_count(header.size);
        let extent = fs.origin.read().next_extent(fs.keyspaces.data, &prefix, blocks, extent_kind)?;
        extent.map(|extent| extent.first.saturating_mul(BLOCK).max(offset))
    };
    Ok(found.filter(|&found| found < header.size))
}
