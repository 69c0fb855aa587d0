//! Writing.

use bytes::Bytes;
use kvfs_store::Batch;
use kvfs_txn::{Fields, LockName, Want};

use super::accesses::AccessKind;
use super::beside::ChangedBeside;
use super::blocks::{Edge, padded};
use super::{BLOCK, Contents, all_blocks, block_count, blocks_name, end_of};
use crate::attr::{PrivilegeLoss, Privileges};
use crate::node::Pin;
use crate::orphan::Orphans;
use crate::quota::Gate;
use crate::schema::{ContentPatch, Header, NumberPatch, RowFlags, RowPatch};
use crate::view::Locker;
use crate::{Append, Caller, FileSystem, FsError, NodeId, Result, WriteFlags, Written};

/// Most bytes of one write.
const WRITE_LEN_MAX: usize = 16 << 20;

impl FileSystem {
    /// Writes all of `data` (at most 16 MiB), wholly or not at all. One batch of one put of the blocks, whose
    /// value is a slice of `data` (no copy of whole blocks), and one merge of the attributes; a small file's
    /// content is part of the merge. Of a block that is overwritten in part a little is a patch, for which
    /// nothing is read; else the block is read first.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace`, …
    pub fn write(
        &self,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        data: Bytes,
        flags: WriteFlags,
    ) -> Result<Written> {
        write_counted(self, &Writer::new(self), caller, (node, offset), data, flags)
    }
}

/// A write that counts as an access.
pub(super) fn write_counted(
    fs: &FileSystem,
    writer: &Writer<'_>,
    caller: &Caller,
    place: (NodeId, u64),
    data: Bytes,
    flags: WriteFlags,
) -> Result<Written> {
    let loss = if flags.is_writeback && !flags.kill_suidgid {
        PrivilegeLoss::None
    } else {
        PrivilegeLoss::by_request(flags.kill_suidgid)
    };
    let written = writer.write(&fs.gate(), caller, place, data, flags, loss)?;
    let now = fs.shared.clock.monotonic();
    fs.shared.accesses.note(place.0.0, AccessKind::Write, written.offset, written.bytes, now);
    Ok(written)
}

/// Writes content.
pub(super) struct Writer<'v> {
    locker: Locker<'v>,
    orphans: Orphans<'v>,
    contents: Contents<'v>,
    privileges: Privileges<'v>,
    /// Of a kernel's pages.
    changed_beside: Option<ChangedBeside<'v>>,
}

impl<'v> Writer<'v> {
    /// That of this view.
    pub(super) fn new(fs: &'v FileSystem) -> Self {
        Self {
            locker: fs.locker(),
            orphans: fs.orphans(),
            contents: Contents::new(fs),
            privileges: Privileges::new(fs),
            changed_beside: None,
        }
    }

    /// That of pages of a kernel's.
    pub(super) fn of_pages(fs: &'v FileSystem, changed_beside: ChangedBeside<'v>) -> Self {
        Self { changed_beside: Some(changed_beside), ..Self::new(fs) }
    }

    /// As [`FileSystem::write`], where `loss` says what it takes away of the file's privileges.
    pub(super) fn write(
        &self,
        gate: &Gate<'_>,
        caller: &Caller,
        (node, offset): (NodeId, u64),
        data: Bytes,
        flags: WriteFlags,
        loss: PrivilegeLoss,
    ) -> Result<Written> {
        if data.len() > WRITE_LEN_MAX {
            return Err(FsError::Invalid("a write of more than 16 MiB"));
        }
        self.locker.check_writable()?;
        let node = self.locker.pin_file(node)?;
        if data.is_empty() {
            return Ok(Written { offset, bytes: 0, position: node.state().changed_at });
        }
        let mut wants = attribute_wants(node.inode, flags);
        wants.extend(loss.want(node.inode));
        wants.extend(gate.want(node.inode));
        let mut guard = self.locker.latch_to_write(caller, &wants, flags.is_writeback)?;
        self.orphans.give_row(gate, &mut guard, &node)?;
        let offset = {
            let state = node.state();
            let at_end = match flags.append {
                Append::No => false,
                Append::End => true,
                Append::KnownEnd => state.is_end_moved || self.locker.are_ends_shared(),
            };
            if at_end { state.header.size } else { offset }
        };
        let end = end_of(offset, data.len() as u64)?;
        loop {
            // Inline content is one granule; whether it is inline can change until its blocks are held.
            let was_inline = node.header().is_inline();
            let blocks =
                if was_inline { all_blocks(node.inode) } else { blocks_name(node.inode, offset, end) };
            guard.try_extend(&[Want::exclusive(blocks)])?;
            if node.header().is_inline() == was_inline {
                break;
            }
        }
        let header = node.header();
        let (bytes, mut data, mut end) = (data.len() as u64, data, end);
        let changed = self.changed_beside.map_or_else(Vec::new, |changed| changed(offset..end));
        if !changed.is_empty() {
            data = self.contents.without_changed(&node, &header, offset, &data, &changed)?;
            end = offset + data.len() as u64;
            if data.is_empty() {
                return Ok(Written { offset, bytes, position: node.state().changed_at });
            }
        }
        let mut batch = Batch::new();
        let times = if flags.keeps_times { RowPatch::default() } else { guard.modified(&node)? };
        let mut patch = RowPatch { size: Some(NumberPatch::Max(end)), ..times };
        self.privileges.stage_loss(loss, caller, &node, &mut guard, &mut batch, &mut patch)?;
        self.contents.stage_write(&mut batch, &node, &header, offset, data, &mut patch)?;
        let position = gate.apply_counted_to_node(caller, batch, &node, patch)?;
        node.note_content(caller, offset..end);
        Ok(Written { offset, bytes, position })
    }
}

impl Contents<'_> {
    fn stage_write(
        &self,
        batch: &mut Batch,
        node: &Pin<'_>,
        header: &Header,
        offset: u64,
        data: Bytes,
        patch: &mut RowPatch,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        if !header.is_inline() {
            self.note_new_blocks(header, offset, end, patch)?;
            let edge = |block, len| self.edge(header, block, (offset, end), len);
            return self.stage_blocks(batch, header, offset, &data, &edge);
        }
        if end.max(header.size) <= u64::from(self.inline_len_max) {
            patch.content = Some(ContentPatch::Write { offset: offset as u32, data });
            return Ok(());
        }
        // The whole content moves to blocks, in this one batch.
        let old = padded(&self.inline_content(node)?);
        let (old_blocks, first, last) = (block_count(header.size), offset / BLOCK, block_count(end));
        for block in (0..old_blocks).filter(|block| !(first..last).contains(block)) {
            let start = (block * BLOCK) as usize;
            let data = old.slice(start..start + BLOCK as usize);
            self.stage_data(batch, header, block, data);
        }
        let edge = |block: u64, _| {
            let start = (block * BLOCK) as usize;
            Ok(Edge::Known((block < old_blocks).then(|| old.slice(start..start + BLOCK as usize))))
        };
        self.stage_blocks(batch, header, offset, &data, &edge)?;
        let is_sparse = first > old_blocks;
        let flags = if is_sparse { RowFlags::BLOCKS | RowFlags::SPARSE } else { RowFlags::BLOCKS };
        let present = if is_sparse { old_blocks + (last - first) } else { old_blocks.max(last) };
        patch.blocks = Some(NumberPatch::Set(present));
        // Also of an empty file: a transaction that writes inline content on an older snapshot must see the
        // conflict.
        patch.content = Some(ContentPatch::Replace(Bytes::new()));
        *patch = std::mem::take(patch).with_flags(flags, RowFlags::default());
        Ok(())
    }

    /// Counts the blocks that a write of bytes `offset .. end` adds.
    fn note_new_blocks(&self, header: &Header, offset: u64, end: u64, patch: &mut RowPatch) -> Result<()> {
        let (first, last) = (offset / BLOCK, block_count(end));
        let present = self.present_blocks_of(header, first, last)?;
        let added = (last - first).saturating_sub(present);
        if added > 0 {
            patch.blocks = Some(NumberPatch::Add(added as i64));
        }
        if first > block_count(header.size) && !header.flags.has(RowFlags::SPARSE) {
            *patch = std::mem::take(patch).with_flags(RowFlags::SPARSE, RowFlags::default());
        }
        Ok(())
    }
}

fn attribute_wants(inode: u64, flags: WriteFlags) -> Vec<Want<'static>> {
    let name = |fields| LockName::Attributes { inode, fields };
    let mut wants = Vec::with_capacity(4);
    if flags.append == Append::No {
        wants.push(Want::increment(name(Fields::SIZE)));
    } else {
        wants.push(Want::exclusive(name(Fields::SIZE)));
    }
    wants.push(Want::increment(name(Fields::TIMES)));
    wants
}
