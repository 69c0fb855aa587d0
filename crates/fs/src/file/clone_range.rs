//! Ranges of files that are cloned, where a copy was asked for; and files that get all that one of another
//! view has.
//!
//! Only whole blocks are, and only to where the target has none: that is how `cp` asks for a copy of a file.
//!
//! Thread safety: as [`FileSystem`].

use std::cell::OnceCell;

use bytes::Bytes;
use kvfs_store::{Batch, BlockClone, Compression};
use kvfs_txn::{Fields, LockName, Want};

use super::{BLOCK, Contents, all_blocks, block_count, blocks_name};
use crate::attr::{PrivilegeLoss, Privileges};
use crate::node::Pin;
use crate::schema::{ContentPatch, Header, NumberPatch, RowFlags, RowPatch, block_prefix};
use crate::view::{Names, TxnView};
use crate::{Caller, FileSystem, NodeId, Result, Written};

/// Fewer bytes are copied: a clone on the main line is a commit by a run of its own.
const CLONE_LEN_MIN: u64 = 16 << 20;

/// Files whose blocks are cloned at once, at most: each time what the transaction has in memory is spilled.
pub(crate) const CLONES_MAX: usize = 1 << 14;

/// All blocks of a file with blocks, for the file `target`.
pub(crate) fn whole_file(source: &Header, target: u64, compression: Compression) -> BlockClone {
    let is_sparse = source.flags.has(RowFlags::SPARSE);
    BlockClone {
        source: block_prefix(source.inode).to_vec().into(),
        first: 0,
        // Of a sparse file there may be some behind its end.
        count: if is_sparse { u64::MAX } else { block_count(source.size) },
        target: block_prefix(target).to_vec().into(),
        target_first: 0,
        compression,
    }
}

/// What a file needs that gets blocks and another size.
fn target_wants(inode: u64) -> [Want<'static>; 3] {
    let name = |fields| LockName::Attributes { inode, fields };
    [
        Want::exclusive(name(Fields::SIZE)),
        Want::increment(name(Fields::TIMES)),
        Want::exclusive(all_blocks(inode)),
    ]
}

/// A range of one file, and its place in another.
#[derive(Clone, Copy)]
pub(super) struct Ranges {
    /// Where it begins.
    pub(super) source: u64,
    /// And where there.
    pub(super) target: u64,
    /// No more than the source has.
    pub(super) len: u64,
}

/// What is cloned, and what that comes to.
struct RangeClone {
    blocks: BlockClone,
    bytes: u64,
    /// Of the target's row.
    patch: RowPatch,
}

/// Clones ranges in a view.
pub(crate) struct RangeCloner<'v>(&'v FileSystem);

impl<'v> RangeCloner<'v> {
    /// That of this view.
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self(fs)
    }

    /// Clones a range; `None`: it has to be copied.
    pub(super) fn clone_range(
        &self,
        caller: &Caller,
        source: NodeId,
        target: NodeId,
        ranges: Ranges,
    ) -> Result<Option<Written>> {
        let can_clone = || self.0.store.transactions().is_some_and(kvfs_store::Transactions::clones_blocks);
        let is_aligned = ranges.source.is_multiple_of(BLOCK) && ranges.target.is_multiple_of(BLOCK);
        if ranges.len < CLONE_LEN_MIN || !is_aligned || source == target || !can_clone() {
            return Ok(None);
        }
        let fs = self.0;
        fs.locker().check_writable()?;
        let (from, to) = (fs.locker().pin_file(source)?, fs.locker().pin_file(target)?);
        // A checkpoint of a branch must not come between the clone and the row of its target. A commit waits
        // for the names.
        let branch = fs.origin.txn().filter(|_| fs.origin.is_branch());
        let _under_way = branch.map(TxnView::begin_long_operation).transpose()?;
        let clones = OnceCell::new();
        let mut gate = fs.gate();
        let blocks = blocks_name(from.inode, ranges.source, ranges.source + ranges.len);
        let size = LockName::Attributes { inode: from.inode, fields: Fields::SIZE };
        let wants = [Want::shared(size), Want::shared(blocks)];
        let held = fs.locker().latch_to_read(caller, &wants)?;
        // On the main line nothing may be committed to the source meanwhile; a view reads its own state.
        // The source is only read, so no transaction is waited for: a wait would doom it.
        if fs.origin.is_main() && held.meets_locks(&wants) {
            return Ok(None);
        }
        let mut wants = target_wants(to.inode).to_vec();
        let loss = PrivilegeLoss::AsCaller;
        wants.extend(loss.want(to.inode));
        wants.extend(gate.want(to.inode));
        let mut names = fs.locker().latch_to_write(caller, &wants, false)?;
        fs.orphans().give_row(&gate, &mut names, &to)?;
        let Some(RangeClone { blocks, bytes, mut patch }) =
            self.range_clone(&mut names, &from, &to, ranges)?
        else {
            return Ok(None);
        };
        let mut batch = Batch::new();
        Privileges::new(fs).stage_loss(loss, caller, &to, &mut names, &mut batch, &mut patch)?;
        fs.shared.provenance.stage(&mut batch, &blocks)?;
        gate.cloning(std::slice::from_ref(clones.get_or_init(|| blocks)));
        let position = gate.apply_counted_to_node(caller, batch, &to, patch)?;
        to.note_content(caller, ranges.target..ranges.target + bytes);
        Ok(Some(Written { offset: ranges.target, bytes, position }))
    }

    /// Gives an empty file the size that `source` has, a file with blocks in the view `then`, and returns
    /// which blocks it is to get: the caller must clone them before the file is read.
    pub(crate) fn begin_whole(
        &self,
        caller: &Caller,
        (then, source): (&FileSystem, &Header),
        target: NodeId,
    ) -> Result<BlockClone> {
        let fs = self.0;
        fs.locker().check_writable()?;
        let to = fs.locker().pin_file(target)?;
        let gate = fs.gate();
        let mut wants = target_wants(to.inode).to_vec();
        wants.extend(gate.want(to.inode));
        let mut names = fs.locker().latch_to_write(caller, &wants, false)?;
        fs.orphans().give_row(&gate, &mut names, &to)?;
        let blocks = whole_file(source, to.inode, to.header().flags.compression());
        let present = Contents::new(then).present_blocks_of(source, 0, blocks.count)?;
        let flags = RowFlags::BLOCKS | source.flags.only(RowFlags::SPARSE);
        let patch = RowPatch {
            size: Some(NumberPatch::Set(source.size)),
            blocks: Some(NumberPatch::Set(present)),
            content: Some(ContentPatch::Replace(Bytes::new())),
            ..names.modified(&to)?
        };
        let mut batch = Batch::new();
        let provenance = &fs.shared.provenance;
        if let Some(source) = provenance.source_of(then.origin.read(), source.inode)? {
            provenance.stage_source(&mut batch, to.inode, source)?;
        }
        gate.apply_counted_to_node(caller, batch, &to, patch.with_flags(flags, RowFlags::default()))?;
        Ok(blocks)
    }

    /// `None`: the source has its content in its row, or the target has something in that place.
    fn range_clone(
        &self,
        names: &mut Names<'_>,
        from: &Pin<'_>,
        to: &Pin<'_>,
        ranges: Ranges,
    ) -> Result<Option<RangeClone>> {
        let contents = Contents::new(self.0);
        let (source, target) = (from.header(), to.header());
        let available = source.size.saturating_sub(ranges.source);
        // A part of a block would take along what is behind it.
        let bytes = if ranges.len < available { ranges.len - ranges.len % BLOCK } else { available };
        let (first, count) = (ranges.source / BLOCK, block_count(bytes));
        let target_first = ranges.target / BLOCK;
        let is_free = if target.is_inline() {
            target.size == 0
        } else {
            target_first >= block_count(target.size)
                && contents.present_blocks_of(&target, target_first, target_first + count)? == 0
        };
        if bytes == 0 || source.is_inline() || !is_free {
            return Ok(None);
        }
        let present = contents.present_blocks_of(&source, first, first + count)?;
        let size = Some(NumberPatch::Max(ranges.target + bytes));
        let mut patch = RowPatch { size, ..names.modified(to)? };
        patch.blocks = Some(NumberPatch::Add(present as i64));
        let mut flags = RowFlags::default();
        if present < count || target_first > block_count(target.size) {
            flags = RowFlags::SPARSE;
        }
        if target.is_inline() {
            patch.blocks = Some(NumberPatch::Set(present));
            patch.content = Some(ContentPatch::Replace(Bytes::new()));
            flags = flags | RowFlags::BLOCKS;
        }
        if flags != RowFlags::default() {
            patch = patch.with_flags(flags, RowFlags::default());
        }
        let blocks = BlockClone {
            source: block_prefix(source.inode).to_vec().into(),
            first,
            count,
            target: block_prefix(target.inode).to_vec().into(),
            target_first,
            compression: target.flags.compression(),
        };
        Ok(Some(RangeClone { blocks, bytes, patch }))
    }
}
