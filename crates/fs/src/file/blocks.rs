//! Staging of block changes.

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Batch, Compression, ExtentKind, Op};

use super::{BLOCK, Contents, block_count};
use crate::Result;
use crate::schema::{Header, RowFlags, block_prefix};

/// Most bytes of one block that are put over what is there without reading it.
const PATCH_BYTES_MAX: usize = 1024;

/// What a block holds that is overwritten in part.
pub(super) enum Edge {
    /// `None`: it counts as zeros.
    Known(Option<Bytes>),
    /// It has not been read; a patch will do.
    Unread,
}

/// Says what the block of a number holds, of which so many bytes are overwritten.
type FindEdge<'a> = &'a dyn Fn(u64, usize) -> Result<Edge>;

impl Contents<'_> {
    /// A block as stored.
    pub(super) fn block(&self, inode: u64, block: u64) -> Result<Option<Bytes>> {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&block_prefix(inode));
        key[8..].copy_from_slice(&block.to_be_bytes());
        Ok(self.read.get(self.keyspaces.data, &key)?)
    }

    /// Number of present blocks in `first .. end`. O(number of extents).
    pub(super) fn present_blocks(&self, inode: u64, first: u64, end: u64) -> Result<u64> {
        let prefix = block_prefix(inode);
        let (mut at, mut present) = (first, 0);
        while let Some(extent) =
            self.read.next_extent(self.keyspaces.data, &prefix, at..end, ExtentKind::Data)?
        {
            present += extent.count;
            at = extent.first + extent.count;
        }
        Ok(present)
    }

    /// Number of present blocks in `first .. end` of a file with blocks.
    pub(super) fn present_blocks_of(&self, header: &Header, first: u64, end: u64) -> Result<u64> {
        if header.flags.has(RowFlags::SPARSE) {
            return self.present_blocks(header.inode, first, end);
        }
        Ok(block_count(header.size).min(end).saturating_sub(first))
    }

    /// The block of which a write of bytes `offset .. end` changes `len` bytes. Where patches are not blind
    /// the store would read it, too. What goes on at the end of a file is patches of any length: they are
    /// less than their blocks, and make these up together with what comes next.
    pub(super) fn edge(
        &self,
        header: &Header,
        block: u64,
        (offset, end): (u64, u64),
        len: usize,
    ) -> Result<Edge> {
        let start = block * BLOCK;
        let is_beyond = start >= header.size;
        let is_covered = offset <= start && end >= header.size;
        let goes_on = offset == header.size && offset > 0 && header.flags.compression() == Compression::None;
        if self.patches_blindly && goes_on {
            return Ok(Edge::Unread);
        }
        if is_beyond || is_covered {
            return Ok(Edge::Known(None));
        }
        if self.patches_blindly && len <= PATCH_BYTES_MAX {
            return Ok(Edge::Unread);
        }
        Ok(Edge::Known(self.block(header.inode, block)?))
    }

    /// Adds whole blocks from `block` on to the batch, to be stored as the file's row says.
    pub(super) fn stage_data(&self, batch: &mut Batch, header: &Header, block: u64, data: Bytes) {
        let prefix = block_prefix(header.inode).to_vec();
        batch.put_blocks_packed(self.keyspaces.data, prefix, block, data, header.flags.compression());
    }

    /// Adds a change of a part of one block to the batch.
    fn stage_part(&self, batch: &mut Batch, header: &Header, block: u64, offset: usize, data: Bytes) {
        batch.push(Op::PatchBlock {
            keyspace: self.keyspaces.data,
            prefix: block_prefix(header.inode).to_vec().into(),
            block,
            offset: offset as u16,
            data,
            compression: header.flags.compression(),
        });
    }

    /// Adds `data` at byte `offset` to the batch: whole blocks as slices of `data`, the first and the last
    /// block joined with what was there, or as patches.
    pub(super) fn stage_blocks(
        &self,
        batch: &mut Batch,
        header: &Header,
        offset: u64,
        data: &Bytes,
        find_edge: FindEdge<'_>,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let block = at / BLOCK;
            let skew = at % BLOCK;
            let is_whole = skew == 0 && end - at >= BLOCK;
            let stop = if is_whole { end - end % BLOCK } else { end.min((block + 1) * BLOCK) };
            let piece = data.slice((at - offset) as usize..(stop - offset) as usize);
            at = stop;
            if is_whole {
                self.stage_data(batch, header, block, piece);
                continue;
            }
            let skew = skew as usize;
            match find_edge(block, piece.len())? {
                Edge::Known(old) => self.stage_data(batch, header, block, join(old, skew, &piece)),
                Edge::Unread => self.stage_part(batch, header, block, skew, piece),
            }
        }
        Ok(())
    }

    /// Adds the deletion of blocks `first .. end` (`u64::MAX`: all from `first` on) to the batch.
    pub(crate) fn stage_block_deletion(&self, batch: &mut Batch, inode: u64, first: u64, end: u64) {
        if (first, end) == (0, u64::MAX) {
            self.provenance.stage_end(batch, inode);
        }
        let key = |inode: u64, block: u64| {
            let mut key = inode.to_be_bytes().to_vec();
            key.extend_from_slice(&block.to_be_bytes());
            key
        };
        let end = if end == u64::MAX { key(inode + 1, 0) } else { key(inode, end) };
        batch.delete_range(self.keyspaces.data, key(inode, first), end);
    }

    /// Adds zeros over bytes `from .. to` of one block to the batch, unless it is absent.
    pub(super) fn stage_zeros_in_block(
        &self,
        batch: &mut Batch,
        header: &Header,
        block: u64,
        from: usize,
        to: usize,
    ) -> Result<()> {
        let is_present = !header.flags.has(RowFlags::SPARSE) && block < block_count(header.size);
        if is_present && self.patches_blindly {
            self.stage_part(batch, header, block, from, vec![0; to - from].into());
        } else if let Some(old) = self.block(header.inode, block)? {
            let mut new = old.to_vec();
            new[from..to].fill(0);
            self.stage_data(batch, header, block, new.into());
        }
        Ok(())
    }
}

/// One block: `old` (or zeros) with `piece` over it from `skew` on.
fn join(old: Option<Bytes>, skew: usize, piece: &[u8]) -> Bytes {
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    if let Some(old) = old {
        block.extend_from_slice(&old);
    }
    block.resize(BLOCK_BYTES, 0);
    block[skew..skew + piece.len()].copy_from_slice(piece);
    block.into()
}

/// Content as whole blocks, filled up with zeros.
pub(super) fn padded(content: &[u8]) -> Bytes {
    let mut blocks = content.to_vec();
    blocks.resize(content.len().next_multiple_of(BLOCK_BYTES), 0);
    blocks.into()
}
