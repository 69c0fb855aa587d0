//! `SEEK_DATA` and `SEEK_HOLE`.

use kvfs_store::ExtentKind;
use kvfs_txn::Want;

use super::{BLOCK, all_blocks};
use crate::schema::{RowFlags, block_prefix};
use crate::{Caller, FileSystem, FsError, NodeId, Result, SeekKind};

impl FileSystem {
    /// The first offset at or after `offset` that is data, or a hole.
    ///
    /// # Errors
    /// `NoSuchOffset` at or beyond the end, or when there is no more data.
    pub fn seek(&self, caller: &Caller, node: NodeId, offset: u64, kind: SeekKind) -> Result<u64> {
        let node = self.locker().pin_file(node)?;
        let _settled = self.nodes.settled();
        let _names = self.locker().latch_to_read(caller, &[Want::shared(all_blocks(node.inode))])?;
        let header = node.header();
        if offset >= header.size {
            return Err(FsError::NoSuchOffset);
        }
        if header.is_inline() || !header.flags.has(RowFlags::SPARSE) {
            return Ok(match kind {
                SeekKind::Data => offset,
                SeekKind::Hole => header.size,
            });
        }
        let extent_kind = match kind {
            SeekKind::Data => ExtentKind::Data,
            SeekKind::Hole => ExtentKind::Hole,
        };
        let prefix = block_prefix(node.inode);
        let extent =
            self.origin.read().next_extent(self.keyspaces.data, &prefix, offset / BLOCK, extent_kind)?;
        let found = extent.map(|extent| extent.first.saturating_mul(BLOCK).max(offset));
        match (kind, found.filter(|&found| found < header.size)) {
            (_, Some(found)) => Ok(found),
            (SeekKind::Hole, None) => Ok(header.size),
            (SeekKind::Data, None) => Err(FsError::NoSuchOffset),
        }
    }
}
