//! Changing the size.

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Batch};

use super::blocks::padded;
use super::{BLOCK, Contents, block_count};
use crate::Result;
use crate::node::Pin;
use crate::schema::{ContentPatch, Header, NumberPatch, RowFlags, RowPatch};

impl Contents<'_> {
    /// Adds a change of the size to batch and patch. The size and all blocks are held exclusively.
    pub(crate) fn stage_resize(
        &self,
        batch: &mut Batch,
        node: &Pin<'_>,
        header: &Header,
        size: u64,
        patch: &mut RowPatch,
    ) -> Result<()> {
        patch.size = Some(NumberPatch::Set(size));
        if header.is_inline() {
            self.stage_inline_resize(batch, node, header, size, patch)
        } else if size == 0 {
            self.stage_block_deletion(batch, header.inode, 0, u64::MAX);
            patch.blocks = Some(NumberPatch::Set(0));
            *patch =
                std::mem::take(patch).with_flags(RowFlags::default(), RowFlags::BLOCKS | RowFlags::SPARSE);
            Ok(())
        } else if size < header.size {
            self.stage_shrink(batch, header, size, patch)
        } else {
            if block_count(size) > block_count(header.size) {
                *patch = std::mem::take(patch).with_flags(RowFlags::SPARSE, RowFlags::default());
            }
            Ok(())
        }
    }

    fn stage_inline_resize(
        &self,
        batch: &mut Batch,
        node: &Pin<'_>,
        header: &Header,
        size: u64,
        patch: &mut RowPatch,
    ) -> Result<()> {
        // What is longer than a threshold that was lowered stays in its row as long as it does not grow.
        if size <= header.size.max(self.inline_len_max.into()) {
            if size != header.size {
                patch.content = Some(ContentPatch::Resize(size as u32));
            }
            return Ok(());
        }
        let old_blocks = block_count(header.size);
        if old_blocks > 0 {
            let content = padded(&self.inline_content(node)?);
            self.stage_data(batch, header, 0, content);
            patch.content = Some(ContentPatch::Replace(Bytes::new()));
        }
        patch.blocks = Some(NumberPatch::Set(old_blocks));
        let is_sparse = block_count(size) > old_blocks;
        let flags = if is_sparse { RowFlags::BLOCKS | RowFlags::SPARSE } else { RowFlags::BLOCKS };
        *patch = std::mem::take(patch).with_flags(flags, RowFlags::default());
        Ok(())
    }

    fn stage_shrink(
        &self,
        batch: &mut Batch,
        header: &Header,
        size: u64,
        patch: &mut RowPatch,
    ) -> Result<()> {
        let (kept, old) = (block_count(size), block_count(header.size));
        if kept < old {
            let removed = self.present_blocks_of(header, kept, old)?;
            self.stage_block_deletion(batch, header.inode, kept, u64::MAX);
            patch.blocks = Some(NumberPatch::Add(-(removed as i64)));
        }
        let cut = (size % BLOCK) as usize;
        if cut != 0 {
            self.stage_zeros_in_block(batch, header, size / BLOCK, cut, BLOCK_BYTES)?;
        }
        Ok(())
    }
}
