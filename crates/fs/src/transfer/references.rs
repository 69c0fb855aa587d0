//! References: blocks of a clone that a stream does not carry, since they are in it, or at its receiver, as
//! those of a file that comes before.
//!
//! Thread safety: plain values; a matcher belongs to one walk. Memory: one frame of references, and blocks of
//! the source that are read ahead.
//!
//! Invariants:
//! * which blocks are references follows from what the snapshot that the stream leads to says of its clones,
//!   and from its content: not from how the store keeps them;
//! * they come in the order of their files and blocks, with one source for each file that has a lower number,
//!   so that their receiver has all of the source, and no file gets more than its source has.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Extent, ExtentKind};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::provenance::CloneSource;
use crate::schema::block_prefix;
use crate::{FileSystem, Result};

/// References in one frame, at most.
pub(super) const REFERENCES_MAX: usize = 1 << 14;

/// Blocks that one frame of a sender refers to, at most (256 MiB): it has compared them with their source.
const FRAME_BLOCKS_MAX: u64 = 1 << 16;

/// Blocks of a source that are read ahead, at most.
const AHEAD_BLOCKS_MAX: u64 = 128;

/// So many neighbouring references tell that others will follow.
const STRETCH_BLOCKS_MIN: u64 = 16;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    inode: U64,
    first: U64,
    source: U64,
    source_first: U64,
    count: U64,
}

/// Bytes of a [`BlockReference`].
pub const REFERENCE_BYTES: usize = size_of::<Raw>();

const _: () = assert!(REFERENCE_BYTES == 40);

/// Neighbouring blocks of a file that are as those of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockReference {
    /// The file.
    pub inode: u64,
    /// Its first block that is meant.
    pub first: u64,
    /// The other file, which has a lower number.
    pub source: u64,
    /// That block there.
    pub source_first: u64,
    /// How many blocks.
    pub count: u64,
}

impl BlockReference {
    /// The bytes.
    pub fn encode(&self) -> [u8; REFERENCE_BYTES] {
        let raw = Raw {
            inode: self.inode.into(),
            first: self.first.into(),
            source: self.source.into(),
            source_first: self.source_first.into(),
            count: self.count.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Of these bytes; `None`: they make no sense.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let raw = Raw::read_from_bytes(bytes).ok()?;
        let reference = Self {
            inode: raw.inode.get(),
            first: raw.first.get(),
            source: raw.source.get(),
            source_first: raw.source_first.get(),
            count: raw.count.get(),
        };
        let Self { inode, first, source, source_first, count } = reference;
        let is_sane = 0 < source
            && source < inode
            && inode < crate::INODE_MAX
            && count > 0
            && first.checked_add(count).is_some()
            && source_first.checked_add(count).is_some();
        is_sane.then_some(reference)
    }

    /// Whether `next` may come behind it in a stream.
    pub(super) fn comes_before(&self, next: &Self) -> bool {
        let shift = |of: &Self| of.source_first.wrapping_sub(of.first);
        let goes_on = (next.inode, next.source, shift(next)) == (self.inode, self.source, shift(self));
        self.inode < next.inode || goes_on && self.first + self.count <= next.first
    }

    /// Whether `next` is the rest of it.
    pub(super) fn is_joined_by(&self, next: &Self) -> bool {
        self.comes_before(next) && self.inode == next.inode && self.first + self.count == next.first
    }
}

/// The payload that carries the references.
pub(super) fn encode_references(references: &[BlockReference]) -> Vec<u8> {
    references.iter().flat_map(BlockReference::encode).collect()
}

/// What a payload carries behind the reference `last`. `inode_next`: of the stream's first frame.
pub(super) fn decode_references(
    payload: &[u8],
    inode_next: u64,
    mut last: Option<BlockReference>,
) -> Option<Vec<BlockReference>> {
    let is_fit = payload.len().is_multiple_of(REFERENCE_BYTES)
        && (1..=REFERENCES_MAX).contains(&(payload.len() / REFERENCE_BYTES));
    let all = payload.chunks(REFERENCE_BYTES).map(|bytes| {
        let next = BlockReference::decode(bytes).filter(|next| next.inode < inode_next)?;
        let before = last.replace(next);
        before.is_none_or(|before| before.comes_before(&next)).then_some(next)
    });
    if is_fit { all.collect() } else { None }
}

/// References on their way into frames, neighbours as one.
#[derive(Default)]
pub(super) struct ReferenceList {
    all: Vec<BlockReference>,
    /// How many they refer to.
    blocks: u64,
}

impl ReferenceList {
    /// Adds one behind all others. Returns a full frame, without it, that comes before.
    pub(super) fn add(&mut self, next: BlockReference) -> Option<Vec<BlockReference>> {
        let is_joined = self.all.last().is_some_and(|last| last.is_joined_by(&next));
        let is_full = self.blocks.saturating_add(next.count) > FRAME_BLOCKS_MAX
            || !is_joined && self.all.len() == REFERENCES_MAX;
        let full = if is_full { self.take() } else { None };
        self.blocks = self.blocks.saturating_add(next.count);
        match self.all.last_mut().filter(|_| is_joined) {
            Some(last) => last.count += next.count,
            None => self.all.push(next),
        }
        full
    }

    /// All that are there, if there are any.
    pub(super) fn take(&mut self) -> Option<Vec<BlockReference>> {
        self.blocks = 0;
        Some(std::mem::take(&mut self.all)).filter(|all| !all.is_empty())
    }

    /// What they take in a frame.
    pub(super) fn bytes(&self) -> usize {
        self.all.len() * REFERENCE_BYTES
    }
}

/// Blocks of a source that were read.
#[derive(Default)]
struct Ahead {
    first: u64,
    /// The block behind those that are known.
    end: u64,
    /// Empty: they are absent.
    data: Vec<u8>,
}

/// Finds out which blocks of a walk are references.
pub(super) struct Matcher {
    /// The snapshot that the stream leads to.
    after: Arc<FileSystem>,
    /// What is not sent with the others, so that nothing refers to it.
    apart: BTreeSet<u64>,
    /// Whose blocks come, and where they may have come from.
    inode: u64,
    source: Option<CloneSource>,
    ahead: Ahead,
    list: ReferenceList,
    full: Option<Vec<BlockReference>>,
}

impl Matcher {
    /// For the walk over the blocks that `after` has; `apart` are inodes of which nothing is in its order.
    pub(super) fn new(after: Arc<FileSystem>, apart: BTreeSet<u64>) -> Self {
        Self {
            after,
            apart,
            inode: 0,
            source: None,
            ahead: Ahead::default(),
            list: ReferenceList::default(),
            full: None,
        }
    }

    /// Whether blocks with that prefix may be references.
    pub(super) fn concerns(&mut self, prefix: &[u8]) -> Result<bool> {
        let Ok(inode) = prefix.try_into().map(u64::from_be_bytes) else { return Ok(false) };
        if inode != self.inode {
            let source = self.after.shared.provenance.source_of(self.after.origin.read(), inode)?;
            let is_before = |source: u64| 0 < source && source < inode && !self.apart.contains(&source);
            self.source = source.filter(|source| is_before(source.inode));
            self.inode = inode;
            self.ahead = Ahead::default();
        }
        Ok(self.source.is_some())
    }

    /// Takes a block as a reference, if it is one.
    pub(super) fn take(&mut self, prefix: &[u8], block: u64, value: &[u8]) -> Result<bool> {
        let source = if self.concerns(prefix)? { self.source } else { None };
        let found = source.and_then(|source| Some((source.inode, source.block_of(block)?)));
        let Some((source, source_first)) = found else { return Ok(false) };
        if self.block_of(source, source_first)? != Some(value) {
            return Ok(false);
        }
        let next = BlockReference { inode: self.inode, first: block, source, source_first, count: 1 };
        if let Some(full) = self.list.add(next) {
            self.full = Some(full);
        }
        Ok(true)
    }

    /// A block of the source; `None`: it is absent.
    fn block_of(&mut self, source: u64, block: u64) -> Result<Option<&[u8]>> {
        if !(self.ahead.first..self.ahead.end).contains(&block) {
            self.ahead = self.read_ahead(source, block)?;
        }
        let at = (block - self.ahead.first) as usize * BLOCK_BYTES;
        Ok(self.ahead.data.get(at..at + BLOCK_BYTES))
    }

    /// Blocks from `block` on: the more, the more were read before it.
    fn read_ahead(&self, source: u64, block: u64) -> Result<Ahead> {
        let Ahead { first, end, .. } = self.ahead;
        let count = if block == end { (2 * (end - first)).clamp(1, AHEAD_BLOCKS_MAX) } else { 1 };
        let (read, keyspace, prefix) =
            (self.after.origin.read(), self.after.keyspaces.data, block_prefix(source));
        let end = block.saturating_add(count);
        let found = read.next_extent(keyspace, &prefix, block..end, ExtentKind::Data)?;
        let mut ahead = Ahead { first: block, end, data: Vec::new() };
        match found {
            Some(Extent { first, count }) if first == block => {
                ahead.end = block + count;
                ahead.data.resize(count as usize * BLOCK_BYTES, 0);
                read.read_blocks(keyspace, &prefix, block, &mut ahead.data)?;
            }
            Some(Extent { first, .. }) => ahead.end = first,
            None => {}
        }
        Ok(ahead)
    }

    /// Whether others are likely to follow the last one.
    pub(super) fn is_in_stretch(&self) -> bool {
        let last = self.list.all.last();
        last.is_some_and(|last| last.inode == self.inode && last.count >= STRETCH_BLOCKS_MIN)
    }

    /// Whether there is a frame of them.
    pub(super) fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// A full frame, if there is one.
    pub(super) fn take_full(&mut self) -> Option<Vec<BlockReference>> {
        self.full.take()
    }

    /// What is left.
    pub(super) fn take_rest(&mut self) -> Option<Vec<BlockReference>> {
        self.list.take()
    }
}

/// The block of a run of content, by its place in it.
pub(super) fn blocks_of(data: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    data.chunks(BLOCK_BYTES).map(|block| data.slice_ref(block))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames_of(references: impl IntoIterator<Item = BlockReference>) -> Vec<Vec<BlockReference>> {
        let mut list = ReferenceList::default();
        let mut frames: Vec<_> = references.into_iter().filter_map(|next| list.add(next)).collect();
        frames.extend(list.take());
        frames
    }

    /// A frame has as much as a sender compares at a time, and a repository makes the same ones again.
    #[test]
    fn frames_end_behind_so_many_blocks_however_these_come() {
        let one = |inode, first| BlockReference { inode, first, source: 5, source_first: first, count: 1 };
        let of_one_file = (0..3 * FRAME_BLOCKS_MAX / 2).map(|first| one(7, first));
        let of_many = (8..70_000).map(|inode| one(inode, inode));
        let frames = frames_of(of_one_file.chain(of_many));
        let blocks = |frame: &Vec<BlockReference>| frame.iter().map(|one| one.count).sum::<u64>();
        assert_eq!((blocks(&frames[0]), frames[0].len()), (FRAME_BLOCKS_MAX, 1));
        assert!(
            frames.iter().all(|frame| blocks(frame) <= FRAME_BLOCKS_MAX && frame.len() <= REFERENCES_MAX)
        );
        assert_eq!(frames.iter().map(blocks).sum::<u64>(), 3 * FRAME_BLOCKS_MAX / 2 + 69_992);
        assert_eq!(frames_of(frames.iter().flatten().copied()), frames);
    }
}
