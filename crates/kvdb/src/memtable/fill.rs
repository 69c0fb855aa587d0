//! A read of consecutive blocks on its way down through the layers of a block keyspace.
//!
//! Invariant: the seqno ranges of the layers are disjoint and descending, so the first layer that decides a
//! block (data or covering range tombstone) decides it for good. Patches that were met on the way are put
//! over it in the end, and make it present.
//!
//! Thread safety: belongs to one reader.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use kvfs_store::{BLOCK_BYTES, Result, Seqno, StoreError};

use super::{UNREADABLE, patch::Overlay, tombstones::TombstoneSet};

/// What is known of one block of a [`BlockFill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// No layer has decided yet.
    Unknown,
    /// Present; its bytes are in the buffer (if there is one).
    Data,
    /// Deleted.
    Absent,
}

/// A read of the blocks `first .. first + count` of `prefix` at one snapshot. Positions inside it
/// are counted from 0.
#[derive(Debug)]
pub(crate) struct BlockFill<'a> {
    prefix: &'a [u8],
    first: u64,
    snapshot: Seqno,
    states: Vec<BlockState>,
    unknown: usize,
    /// `None`: only presence is asked for.
    buf: Option<&'a mut [u8]>,
    /// By position.
    patches: BTreeMap<usize, Overlay>,
    /// Whether a patch alone answers the question.
    do_patches_decide: bool,
    /// Whether bytes are wanted that can't be read.
    is_unreadable: bool,
}

impl<'a> BlockFill<'a> {
    /// A read into `buf`, whose length is a multiple of [`BLOCK_BYTES`].
    pub(crate) fn new(prefix: &'a [u8], first: u64, snapshot: Seqno, buf: &'a mut [u8]) -> Self {
        assert!(buf.len().is_multiple_of(BLOCK_BYTES), "the buffer holds whole blocks");
        let count = buf.len() / BLOCK_BYTES;
        Self { buf: Some(buf), ..Self::bases(prefix, first, count, snapshot) }
    }

    /// A question for presence only; no data is read.
    pub(crate) fn presence(prefix: &'a [u8], first: u64, count: usize, snapshot: Seqno) -> Self {
        Self { do_patches_decide: true, ..Self::bases(prefix, first, count, snapshot) }
    }

    /// As [`Self::presence`], but a block that has nothing but patches stays undecided: the question is which
    /// caller knows all of it.
    pub(crate) fn bases(prefix: &'a [u8], first: u64, count: usize, snapshot: Seqno) -> Self {
        Self {
            prefix,
            first,
            snapshot,
            states: vec![BlockState::Unknown; count],
            unknown: count,
            buf: None,
            patches: BTreeMap::new(),
            do_patches_decide: false,
            is_unreadable: false,
        }
    }

    /// What comes before the block number in the key.
    pub(crate) fn prefix(&self) -> &'a [u8] {
        self.prefix
    }

    /// Block number at position 0.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Number of blocks.
    pub(crate) fn count(&self) -> usize {
        self.states.len()
    }

    /// The newest seqno that the read sees.
    pub(crate) fn snapshot(&self) -> Seqno {
        self.snapshot
    }

    /// Goes on in layers of which an older state is read: everything newer than `snapshot` there does not
    /// count.
    pub(crate) fn descend(&mut self, snapshot: Seqno) {
        self.snapshot = snapshot;
    }

    /// Whether bytes are wanted, not only presence.
    pub(crate) fn wants_data(&self) -> bool {
        self.buf.is_some()
    }

    /// Whether a patch is all that has to be known of a block.
    pub(super) fn do_patches_decide(&self) -> bool {
        self.do_patches_decide
    }

    /// Whether every block is decided.
    pub(crate) fn is_complete(&self) -> bool {
        self.unknown == 0
    }

    /// What is known of the block at `position`.
    pub(crate) fn state(&self, position: usize) -> BlockState {
        self.states[position]
    }

    /// The full key of the block at `position`.
    pub(crate) fn key(&self, position: usize) -> Vec<u8> {
        block_key(self.prefix, self.first + position as u64)
    }

    /// The first maximal stretch of undecided positions at or after `from`. Loop with it while
    /// deciding blocks: `while let Some(range) = fill.next_undecided(at) { …; at = range.end; }`
    pub(crate) fn next_undecided(&self, from: usize) -> Option<Range<usize>> {
        if self.unknown == 0 {
            return None;
        }
        let tail = self.states.get(from..)?;
        let start = from + tail.iter().position(|&state| state == BlockState::Unknown)?;
        let len = self.states[start..].iter().take_while(|&&state| state == BlockState::Unknown).count();
        Some(start..start + len)
    }

    /// All maximal stretches of undecided positions, ascending.
    #[cfg(test)]
    pub(crate) fn undecided(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let range = self.next_undecided(from)?;
            from = range.end;
            Some(range)
        })
    }

    /// Decides an undecided block: present with these [`BLOCK_BYTES`] bytes, or [`UNREADABLE`] (ignored when
    /// only presence is asked for).
    pub(crate) fn set_data(&mut self, position: usize, data: &[u8]) {
        if UNREADABLE == data {
            self.is_unreadable |= self.wants_data();
        } else if let Some(buf) = &mut self.buf {
            buf[position * BLOCK_BYTES..(position + 1) * BLOCK_BYTES].copy_from_slice(data);
        }
        self.decide(position..position + 1, BlockState::Data);
    }

    /// Takes in what an undecided block has been patched with in one layer: older than all that was taken in
    /// before. Decides the block when nothing else of it counts.
    pub(crate) fn patch(&mut self, position: usize, older: Overlay) {
        let known = match self.patches.get_mut(&position) {
            Some(known) => {
                known.put_overlay_below(&older);
                known
            }
            None => self.patches.entry(position).or_insert(older),
        };
        if known.is_whole() {
            self.mark_data(position..position + 1);
        }
    }

    /// Decides what a patched block lies on, unless nothing of that counts any more.
    pub(super) fn settle(&mut self, position: usize, base: Option<&[u8]>) {
        if self.states[position] == BlockState::Unknown {
            match base {
                Some(data) => self.set_data(position, data),
                None => self.mark_absent(position..position + 1),
            }
        }
    }

    /// The part of the buffer for `range`, for a read straight from the device; call
    /// [`BlockFill::mark_data`] when the bytes are there and verified. Only undecided blocks may be
    /// written. `None` when only presence is asked for.
    pub(crate) fn buffer(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        debug_assert!(self.states[range.clone()].iter().all(|&state| state == BlockState::Unknown));
        Some(&mut self.buf.as_mut()?[range.start * BLOCK_BYTES..range.end * BLOCK_BYTES])
    }

    /// Decides undecided blocks: present, their bytes are already in the buffer.
    pub(crate) fn mark_data(&mut self, range: Range<usize>) {
        self.decide(range, BlockState::Data);
    }

    /// Decides the blocks of `range` that are still undecided: deleted.
    pub(crate) fn mark_absent(&mut self, range: Range<usize>) {
        for position in range {
            if self.states[position] == BlockState::Unknown {
                self.states[position] = BlockState::Absent;
                self.unknown -= 1;
            }
        }
    }

    fn decide(&mut self, range: Range<usize>, state: BlockState) {
        for slot in &mut self.states[range] {
            assert_eq!(*slot, BlockState::Unknown, "a block is decided once");
            *slot = state;
            self.unknown -= 1;
        }
    }

    /// The stretches of positions that `tombstones` cover at the snapshot, ascending and disjoint,
    /// each with the newest covering seqno. O(log n + fragments met).
    pub(crate) fn covered(&self, tombstones: &TombstoneSet) -> Vec<(Range<usize>, Seqno)> {
        if tombstones.is_empty() || self.states.is_empty() {
            return Vec::new();
        }
        let start = self.key(0);
        let last = self.key(self.count() - 1);
        let mut covered = Vec::new();
        for fragment in tombstones.fragments_from(&start) {
            if fragment.start[..] > last[..] {
                break;
            }
            let Some(seqno) = fragment.newest_at(self.snapshot) else { continue };
            let range = self.positions(fragment.start, fragment.end);
            if !range.is_empty() {
                covered.push((range, seqno));
            }
        }
        covered
    }

    /// Ends the visit of a layer: what its range tombstones cover and nothing decided is absent.
    pub(crate) fn end_layer(&mut self, covered: &[(Range<usize>, Seqno)]) {
        for (range, _) in covered {
            self.mark_absent(range.clone());
        }
    }

    /// The positions whose keys lie in `[start, end)`.
    pub(crate) fn positions(&self, start: &[u8], end: &[u8]) -> Range<usize> {
        self.position_at_or_after(start)..self.position_at_or_after(end)
    }

    /// The first position whose key is at or after `key`, at most the count.
    fn position_at_or_after(&self, key: &[u8]) -> usize {
        let Some(suffix) = key.strip_prefix(self.prefix) else {
            // `key` sorts wholly before or wholly after every key under the prefix.
            return if key < self.prefix { 0 } else { self.count() };
        };
        let mut number = [0_u8; 8];
        let len = suffix.len().min(8);
        number[..len].copy_from_slice(&suffix[..len]);
        let block = u64::from_be_bytes(number);
        let at = block.saturating_sub(self.first);
        // A longer key sorts after the block with the same eight bytes.
        let at = if suffix.len() > 8 && block >= self.first { at.saturating_add(1) } else { at };
        usize::try_from(at).unwrap_or(usize::MAX).min(self.count())
    }

    /// After all layers: undecided blocks are absent, and absent blocks read as zeros. Returns the
    /// state of each block, `Data` or `Absent`.
    ///
    /// # Errors
    /// `Io` when a block is on a device that is missing.
    pub(crate) fn finish(mut self) -> Result<Vec<BlockState>> {
        if self.is_unreadable {
            return Err(unreadable());
        }
        self.mark_absent(0..self.count());
        if let Some(buf) = &mut self.buf {
            for (block, _) in buf
                .chunks_exact_mut(BLOCK_BYTES)
                .zip(&self.states)
                .filter(|(_, state)| **state == BlockState::Absent)
            {
                block.fill(0);
            }
        }
        for (&position, overlay) in &self.patches {
            self.states[position] = BlockState::Data;
            if let Some(buf) = &mut self.buf {
                overlay.apply(&mut buf[position * BLOCK_BYTES..(position + 1) * BLOCK_BYTES]);
            }
        }
        Ok(self.states)
    }
}

/// A block that is on a device that is missing.
pub(super) fn unreadable() -> StoreError {
    let detail = "blocks that the journal refers to are on a device that is missing";
    StoreError::io("reading blocks", io::Error::new(io::ErrorKind::NotFound, detail))
}

/// The key of a block: `prefix ‖ be64(block)`.
pub(crate) fn block_key(prefix: &[u8], block: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(prefix.len() + 8);
    key.extend_from_slice(prefix);
    key.extend_from_slice(&block.to_be_bytes());
    key
}

/// The first block of `prefix` whose key is at or after `key`; `None` when all are before it.
pub(crate) fn first_block_at_or_after(prefix: &[u8], key: &[u8]) -> Option<u64> {
    let head = &key[..key.len().min(prefix.len())];
    match head.cmp(&prefix[..head.len()]) {
        std::cmp::Ordering::Less => Some(0),
        std::cmp::Ordering::Greater => None,
        std::cmp::Ordering::Equal if key.len() <= prefix.len() => Some(0),
        std::cmp::Ordering::Equal => {
            let tail = &key[prefix.len()..];
            let mut number = [0; 8];
            let taken = tail.len().min(8);
            number[..taken].copy_from_slice(&tail[..taken]);
            let block = u64::from_be_bytes(number);
            if tail.len() > 8 { block.checked_add(1) } else { Some(block) }
        }
    }
}

/// The inverse of [`block_key`]: prefix and block number; `None` for a key shorter than eight bytes.
pub(crate) fn split_block_key(key: &[u8]) -> Option<(&[u8], u64)> {
    let (prefix, number) = key.split_last_chunk::<8>()?;
    Some((prefix, u64::from_be_bytes(*number)))
}

#[cfg(test)]
mod tests;
