//! `fallocate`.

use bytes::Bytes;
use kvfs_store::Batch;
use kvfs_txn::{Fields, LockName, Want};

use super::{BLOCK, Contents, all_blocks, block_count, end_of};
use crate::attr::{PrivilegeLoss, Privileges};
use crate::node::Pin;
use crate::schema::{ContentPatch, Header, NumberPatch, RowFlags, RowPatch};
use crate::{Caller, FallocateMode, FileSystem, FsError, NodeId, Result};

impl FileSystem {
    /// Allocates, punches or zeroes a range. See [`FallocateMode`] for what allocating means here. Takes
    /// set-id bits away as the caller's credentials say.
    ///
    /// # Errors
    /// `Invalid`, `FileTooLarge`, `NoSpace`, …
    pub fn fallocate(
        &self,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        length: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        if length == 0 {
            return Err(FsError::Invalid("an empty range"));
        }
        let end = end_of(offset, length)?;
        self.locker().check_writable()?;
        let node = self.locker().pin_file(node)?;
        let name = |fields| LockName::Attributes { inode: node.inode, fields };
        let gate = self.gate();
        let mut wants = vec![
            Want::exclusive(name(Fields::SIZE)),
            Want::increment(name(Fields::TIMES)),
            Want::exclusive(all_blocks(node.inode)),
        ];
        let loss = PrivilegeLoss::AsCaller;
        wants.extend(loss.want(node.inode));
        wants.extend(gate.want(node.inode));
        let mut names = self.locker().latch(caller, &wants)?;
        self.orphans().give_row(&gate, &mut names, &node)?;
        let header = node.header();
        let mut batch = Batch::new();
        let mut patch = names.modified(&node)?;
        let keep_size = match mode {
            FallocateMode::Allocate { keep_size } => {
                let available = self.store.space().available_bytes;
                Contents::new(self).check_room(&header, offset, end, available)?;
                keep_size
            }
            FallocateMode::PunchHole => {
                Contents::new(self).stage_zeros(&mut batch, &node, &header, offset, end, &mut patch)?;
                true
            }
            FallocateMode::ZeroRange { keep_size } => {
                Contents::new(self).stage_zeros(&mut batch, &node, &header, offset, end, &mut patch)?;
                keep_size
            }
        };
        if !keep_size && end > header.size {
            Contents::new(self).stage_extension(&mut batch, &node, &header, end, &mut patch)?;
        }
        Privileges::new(self).stage_loss(loss, caller, &node, &mut names, &mut batch, &mut patch)?;
        gate.apply_counted_to_node(caller, batch, &node, patch)?;
        let is_zeroed = !matches!(mode, FallocateMode::Allocate { .. });
        let from = if is_zeroed { offset.min(header.size) } else { header.size };
        let to = if keep_size { end.min(header.size) } else { end };
        if from < to {
            node.note_content(caller, from..to);
        }
        Ok(())
    }
}

impl Contents<'_> {
    /// Refuses what the range lacks if it is more than what is `available` (bytes). O(extents of the range),
    /// if the range is longer than that.
    fn check_room(&self, header: &Header, offset: u64, end: u64, available: u64) -> Result<()> {
        if end - offset <= available {
            return Ok(());
        }
        let (first, last) = (offset / BLOCK, block_count(end));
        let present = if header.is_inline() { 0 } else { self.present_blocks_of(header, first, last)? };
        if last - first - present > available / BLOCK { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// Extends the file after zeros may have been staged.
    fn stage_extension(
        &self,
        batch: &mut Batch,
        node: &Pin<'_>,
        header: &Header,
        end: u64,
        patch: &mut RowPatch,
    ) -> Result<()> {
        let zeroed = std::mem::take(patch);
        let mut resized = RowPatch::default();
        self.stage_resize(batch, node, header, end, &mut resized)?;
        if let (Some(ContentPatch::Write { offset, .. }), true) = (&zeroed.content, resized.flags.is_some()) {
            // The content leaves the row: zero what goes to the blocks instead.
            let mut content = self.inline_content(node)?.to_vec();
            content[*offset as usize..].fill(0);
            let content = super::blocks::padded(&content);
            self.stage_data(batch, header, 0, content);
            *patch = RowPatch { content: None, ..zeroed }.then(&resized).unwrap_or(resized);
            return Ok(());
        }
        if let (Some(ContentPatch::Write { offset, .. }), Some(ContentPatch::Resize(len))) =
            (&zeroed.content, &resized.content)
        {
            // Zeros up to the old end and zeros beyond it are one write of zeros.
            let data = Bytes::from(vec![0; (*len - *offset) as usize]);
            resized.content = Some(ContentPatch::Write { offset: *offset, data });
            *patch = RowPatch { content: None, ..zeroed }.then(&resized).unwrap_or(resized);
            return Ok(());
        }
        match zeroed.then(&resized) {
            Some(joined) => *patch = joined,
            None => return Err(FsError::Invalid("a range that can't be both zeroed and extended")),
        }
        Ok(())
    }

    /// Adds zeros over bytes `offset .. end`, as far as they are below the size.
    fn stage_zeros(
        &self,
        batch: &mut Batch,
        node: &Pin<'_>,
        header: &Header,
        offset: u64,
        end: u64,
        patch: &mut RowPatch,
    ) -> Result<()> {
        let end = end.min(header.size);
        if offset >= end {
            return Ok(());
        }
        if header.is_inline() {
            let data = Bytes::from(vec![0; (end - offset) as usize]);
            patch.content = Some(ContentPatch::Write { offset: offset as u32, data });
            return Ok(());
        }
        // Beyond the size there are zeros already, so the last block can go as a whole.
        let reach = if end == header.size { block_count(end) * BLOCK } else { end };
        let (first_whole, end_whole) = (block_count(offset), reach / BLOCK);
        if first_whole < end_whole {
            let removed = self.present_blocks_of(header, first_whole, end_whole)?;
            self.stage_block_deletion(batch, node.inode, first_whole, end_whole);
            patch.blocks = Some(NumberPatch::Add(-(removed as i64)));
            *patch = std::mem::take(patch).with_flags(RowFlags::SPARSE, RowFlags::default());
        }
        let (head, tail) = (offset / BLOCK, reach / BLOCK);
        let (skew, rest) = ((offset % BLOCK) as usize, (reach % BLOCK) as usize);
        if skew != 0 {
            let stop = if head == tail { rest } else { BLOCK as usize };
            self.stage_zeros_in_block(batch, header, head, skew, stop)?;
        }
        if rest != 0 && (head != tail || skew == 0) {
            self.stage_zeros_in_block(batch, header, tail, 0, rest)?;
        }
        Ok(())
    }
}
