//! Small writes of one group that follow each other in their file, bound together when the group is written
//! (late binding of streams: BetrFS 0.2 section 3).
//!
//! A group notes its puts and patches of blocks. Before it is written, [`Gathering::sequences`] says which of
//! them come to whole blocks enough for a place of their own. There they are written, and only their place
//! stands in the group; of a patch that does not end its block not even that: the one that does has the place
//! of the whole block.
//!
//! Thread safety: plain data. Invariant: between the operations of a sequence lies none that changes the same
//! file otherwise. So a block of a sequence is what the operation that ends it leaves, whatever lay below.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Compression, Keyspace, Op, Seqno};

use super::codec::{PlacedPatch, encode_bound, encode_patch_bound, encode_patch_later};
use crate::format::Sink;
use crate::space::{Bound, BoundOp, HoldsBound, Place};

/// What is to find a place.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Of blocks.
    pub keyspace: Keyspace,
    /// Of the one file that they are of.
    pub prefix: Bytes,
    /// So many of them, one after the other.
    pub blocks: usize,
    /// Some are made up of patches.
    pub has_patches: bool,
    /// No lock is held under which nothing may be looked up.
    pub may_read: bool,
}

/// Finds places for sequences.
pub(crate) trait Binder: Send + Sync {
    /// Runs of fewer bytes stay in their group.
    fn bytes_min(&self) -> usize;

    /// A place, without its checksums; `None`: there is none, or the blocks are to be packed. When this
    /// returns, the journal may have what it says.
    fn place(&self, wanted: Wanted) -> Option<Bound>;
}

/// A put of blocks, or a patch of one, that is to be stored as it is.
pub(super) struct Small {
    /// Where it lies in the group, its data at the end.
    pub(super) encoded: Range<usize>,
    pub(super) seqno: Seqno,
    pub(super) keyspace: Keyspace,
    pub(super) prefix: Bytes,
    pub(super) block: u64,
    /// In the block; of a put 0.
    pub(super) offset: usize,
    /// Of its data (bytes).
    pub(super) len: usize,
    pub(super) is_patch: bool,
    /// Which holder has it.
    pub(super) holder: usize,
}

impl Small {
    /// What `op`, which is encoded from `at` on, is if it is small.
    fn of(op: &Op, (at, seqno): (usize, Seqno), holder: usize) -> Option<Self> {
        let (keyspace, prefix, block, offset, data, is_patch) = match op {
            Op::PutBlocks { keyspace, prefix, first, data, compression: Compression::None } => {
                (*keyspace, prefix, *first, 0, data, false)
            }
            Op::PatchBlock { keyspace, prefix, block, offset, data, compression: Compression::None } => {
                (*keyspace, prefix, *block, usize::from(*offset), data, true)
            }
            _ => return None,
        };
        let (prefix, len, encoded) = (prefix.clone(), data.len(), at..at);
        Some(Self { encoded, seqno, keyspace, prefix, block, offset, len, is_patch, holder })
    }

    fn start(&self) -> u128 {
        u128::from(self.block) * BLOCK_BYTES as u128 + self.offset as u128
    }

    fn end(&self) -> u128 {
        self.start() + self.len as u128
    }

    /// Where its data lies in the group.
    pub(super) fn data(&self) -> Range<usize> {
        self.encoded.end - self.len..self.encoded.end
    }

    /// Blocks that are complete with it.
    fn blocks(&self) -> usize {
        if self.is_patch { usize::from(self.ends_block()) } else { self.len / BLOCK_BYTES }
    }

    fn ends_block(&self) -> bool {
        self.end().is_multiple_of(BLOCK_BYTES as u128)
    }

    /// Appends it as it is in a sequence that begins with block `first` and lies there.
    pub(super) fn encode(&self, first: u64, place: &Place, sink: &mut impl Sink) {
        let part = |count| place.part((self.block - first) as usize, count);
        let (keyspace, prefix, block, offset) = (self.keyspace, &self.prefix[..], self.block, self.offset);
        let patch = PlacedPatch { keyspace, prefix, block, offset };
        match (self.is_patch, self.ends_block()) {
            (false, _) => encode_bound(keyspace, prefix, block, &part(self.blocks()), sink),
            (true, true) => encode_patch_bound(patch, &part(1), sink),
            (true, false) => encode_patch_later(patch, self.len, sink),
        }
    }
}

/// What a group remembers of an operation.
pub(super) enum Note {
    Small(Small),
    /// The file of this prefix is changed in another way.
    Part(Keyspace, Bytes),
    /// So are those that have keys from the first to the last.
    PartRange(Keyspace, Bytes, Bytes),
    /// Any file may be.
    PartAll,
}

impl Note {
    fn small(&self) -> Option<&Small> {
        match self {
            Self::Small(op) => Some(op),
            Self::Part(..) | Self::PartRange(..) | Self::PartAll => None,
        }
    }
}

/// Whole blocks that follow each other in a file.
pub(super) struct Sequence {
    /// The first block.
    pub(super) first: u64,
    pub(super) blocks: usize,
    /// The operations: their numbers among the notes.
    pub(super) ops: Vec<usize>,
}

/// A sequence in its place, whose checksums are known.
pub(super) struct PlacedSequence {
    pub(super) sequence: Sequence,
    pub(super) bound: Arc<Bound>,
}

/// What a holder is to know.
pub(super) struct Told {
    holder: Arc<dyn HoldsBound>,
    ops: Vec<(Seqno, BoundOp)>,
}

impl Told {
    pub(super) fn tell(self) {
        self.holder.hold(self.ops);
    }
}

/// The small writes of a group.
#[derive(Default)]
pub(super) struct Gathering {
    /// They, and what parts them.
    notes: Vec<Note>,
    /// Their data (bytes).
    bytes: usize,
    /// Who has their blocks in memory.
    holders: Vec<Arc<dyn HoldsBound>>,
    /// The keyspaces that they are of.
    keyspaces: Vec<Keyspace>,
}

impl Gathering {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// This operation comes at byte `at` of the group; without a holder it stays as it is.
    pub(super) fn begin_op(
        &mut self,
        at: usize,
        seqno: Seqno,
        op: &Op,
        holder: Option<&Arc<dyn HoldsBound>>,
    ) {
        if let Some(holder) = holder {
            let is_last = self.holders.last().is_some_and(|last| Arc::ptr_eq(last, holder));
            let number = self.holders.len() - usize::from(is_last);
            if let Some(small) = Small::of(op, (at, seqno), number) {
                // Who has no small writes in the group is not kept.
                self.holders.extend((!is_last).then(|| Arc::clone(holder)));
                if !self.keyspaces.contains(&small.keyspace) {
                    self.keyspaces.push(small.keyspace);
                }
                self.bytes += small.len;
                self.notes.push(Note::Small(small));
                return;
            }
        }
        // Else there is nothing to part.
        if self.keyspaces.contains(&op.keyspace()) {
            self.part(op);
        }
    }

    /// The operation that began last ends before byte `at`.
    pub(super) fn end_op(&mut self, at: usize) {
        if let Some(Note::Small(op)) = self.notes.last_mut()
            && op.encoded.is_empty()
        {
            op.encoded.end = at;
        }
    }

    fn part(&mut self, op: &Op) {
        self.notes.push(match op {
            Op::PutBlocks { keyspace, prefix, .. } | Op::PatchBlock { keyspace, prefix, .. } => {
                Note::Part(*keyspace, prefix.clone())
            }
            Op::Delete { keyspace, key } => Note::PartRange(*keyspace, key.clone(), key.clone()),
            Op::DeleteRange { keyspace, start, end } => {
                Note::PartRange(*keyspace, start.clone(), end.clone())
            }
            // Such keyspaces have no blocks.
            Op::Put { .. } | Op::Merge { .. } => return,
        });
    }

    /// What follows may change anything.
    pub(super) fn part_all(&mut self) {
        self.notes.extend((!self.notes.is_empty()).then_some(Note::PartAll));
    }

    /// The sequences of at least so many bytes, with what they want. O(n log n) in the small writes, at once
    /// where they come to less.
    pub(super) fn sequences(&self, bytes_min: usize, may_read: bool) -> Vec<(Sequence, Wanted)> {
        if self.bytes < bytes_min {
            return Vec::new();
        }
        let with_wish = |sequence: Sequence| {
            let Small { keyspace, prefix, .. } = self.ops(&sequence).next()?;
            let (keyspace, prefix) = (*keyspace, prefix.clone());
            let (blocks, has_patches) = (sequence.blocks, self.ops(&sequence).any(|op| op.is_patch));
            Some((sequence, Wanted { keyspace, prefix, blocks, has_patches, may_read }))
        };
        sequences(&self.notes, bytes_min).into_iter().filter_map(with_wish).collect()
    }

    /// This sequence has found a place: its holders are told how much that is.
    pub(super) fn count(&self, sequence: &Sequence) {
        for op in self.ops(sequence).filter(|op| op.blocks() > 0) {
            self.holders[op.holder].count(op.blocks() as u64);
        }
    }

    /// The operations of a sequence, in order.
    pub(super) fn ops(&self, sequence: &Sequence) -> impl Iterator<Item = &Small> {
        sequence.ops.iter().filter_map(|&number| self.notes.get(number)?.small())
    }

    /// The operations of all sequences, each with its own, as they lie in the group.
    pub(super) fn in_order<'a>(
        &'a self,
        sequences: &'a [PlacedSequence],
    ) -> Vec<(&'a Small, &'a PlacedSequence)> {
        let mut all: Vec<_> = sequences
            .iter()
            .flat_map(|sequence| self.ops(&sequence.sequence).map(move |op| (op, sequence)))
            .collect();
        all.sort_unstable_by_key(|(op, _)| op.encoded.start);
        all
    }

    /// What each holder is to know of the operations of sequences.
    pub(super) fn to_tell(&self, placed: &[(&Small, &PlacedSequence)]) -> Vec<Told> {
        let mut told: Vec<Told> = (self.holders.iter())
            .map(|holder| Told { holder: Arc::clone(holder), ops: Vec::new() })
            .collect();
        for (op, PlacedSequence { sequence, bound }) in placed {
            if op.blocks() > 0 {
                let (first, bound) = (sequence.first, Arc::clone(bound));
                told[op.holder].ops.push((op.seqno, BoundOp { first, bound }));
            }
        }
        told.retain(|told| !told.ops.is_empty());
        told
    }
}

/// Operations each of which begins where the one before it ends.
#[derive(Default)]
struct Row {
    end: u128,
    bytes: usize,
    ops: Vec<usize>,
}

/// Every sequence of at least `bytes_min`, in the order of their first operations. O(n log n).
pub(super) fn sequences(notes: &[Note], bytes_min: usize) -> Vec<Sequence> {
    let mut rows: BTreeMap<(Keyspace, &[u8]), Row> = BTreeMap::new();
    let mut done = Vec::new();
    let mut end = |row: Row| done.extend((row.bytes >= bytes_min).then_some(row.ops));
    for (number, note) in notes.iter().enumerate() {
        match note {
            Note::Small(op) => {
                let row = rows.entry((op.keyspace, &op.prefix)).or_default();
                if row.end != op.start() {
                    end(std::mem::take(row));
                }
                row.end = op.end();
                row.bytes += op.len;
                row.ops.push(number);
            }
            Note::Part(keyspace, prefix) => {
                rows.remove(&(*keyspace, &prefix[..])).into_iter().for_each(&mut end);
            }
            Note::PartRange(keyspace, first, last) => {
                let touches = |prefix: &[u8]| {
                    last[..] >= *prefix && (first.starts_with(prefix) || first[..] <= *prefix)
                };
                rows.extract_if(.., |(of, prefix), _| of == keyspace && touches(prefix))
                    .for_each(|(_, row)| end(row));
            }
            Note::PartAll => std::mem::take(&mut rows).into_values().for_each(&mut end),
        }
    }
    rows.into_values().for_each(&mut end);
    done.sort_unstable_by_key(|ops: &Vec<usize>| ops.first().copied());
    done.into_iter().filter_map(|ops| whole_blocks(notes, &ops, bytes_min)).collect()
}

/// What of a row is whole blocks.
fn whole_blocks(notes: &[Note], ops: &[usize], bytes_min: usize) -> Option<Sequence> {
    let op = |number: &usize| notes[*number].small();
    let from = ops.iter().position(|number| op(number).is_some_and(|op| op.offset == 0))?;
    let to = ops.iter().rposition(|number| op(number).is_some_and(Small::ends_block))?;
    let ops = ops.get(from..=to)?;
    let (first, last) = (op(ops.first()?)?, op(ops.last()?)?);
    let bytes = usize::try_from(last.end() - first.start()).ok()?;
    (bytes >= bytes_min).then(|| Sequence {
        first: first.block,
        blocks: bytes / BLOCK_BYTES,
        ops: ops.to_vec(),
    })
}
