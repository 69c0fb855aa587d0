//! Blocks that lie in their final place before any piece refers to them (write once: BetrFS 0.2, "late
//! binding").
//!
//! Thread safety: immutable. Invariant: the bytes of a [`Bound`] count as live as long as it exists. The
//! journal holds it until they are written, the memtable until its flush has made a piece refer to what is
//! left of them.

use std::sync::Arc;

use kvfs_store::{BLOCK_BYTES, Result, Seqno, StoreError};

use super::{Budget, Destination, Zones};
use crate::format::Extent;

/// The place of one operation's blocks on the device, and their checksums.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Where they lie, one extent after the other; none reaches over the end of its zone.
    pub extents: Vec<Extent>,
    /// CRC-32C of each block.
    pub crcs: Vec<u32>,
}

impl Place {
    /// Whether the extents are of whole blocks, each within a zone, and hold as many as there are checksums.
    pub(crate) fn is_sound(&self, zone_bytes: u32) -> bool {
        let fits = |extent: &Extent| {
            extent.len > 0
                && extent.len.is_multiple_of(BLOCK_BYTES as u32)
                && extent.addr.is_multiple_of(BLOCK_BYTES as u64)
                && extent.addr % u64::from(zone_bytes) + u64::from(extent.len) <= u64::from(zone_bytes)
        };
        let bytes: u64 = self.extents.iter().map(|extent| u64::from(extent.len)).sum();
        self.extents.iter().all(fits) && bytes == self.crcs.len() as u64 * BLOCK_BYTES as u64
    }

    /// Where `count` blocks from block `at` on lie. O(extents + count).
    pub(crate) fn part(&self, at: usize, count: usize) -> Self {
        let (mut skipped, mut left) = ((at * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
        let mut extents = Vec::new();
        for extent in &self.extents {
            let before = skipped.min(extent.len.into());
            let len = left.min(u64::from(extent.len) - before);
            if len > 0 {
                extents.push(Extent { addr: extent.addr + before, len: len as u32 });
            }
            (skipped, left) = (skipped - before, left - len);
        }
        Self { extents, crcs: self.crcs[at..at + count].to_vec() }
    }
}

/// A [`Place`] whose bytes are live.
pub(crate) struct Bound {
    zones: Arc<Zones>,
    place: Place,
}

impl Bound {
    /// Space there for the blocks with these checksums.
    ///
    /// # Errors
    /// As [`Zones::allocate_outside_gaps`].
    pub(crate) fn allocate(
        zones: &Arc<Zones>,
        to: Destination,
        budget: Budget,
        crcs: Vec<u32>,
    ) -> Result<Self> {
        let mut left = crcs.len() * BLOCK_BYTES;
        let mut bound = Self { zones: Arc::clone(zones), place: Place { extents: Vec::new(), crcs } };
        while left > 0 {
            let len_max = left.min(zones.zone_bytes() as usize) as u32;
            let extent = match zones.allocate_outside_gaps(to, len_max, budget) {
                Ok(extent) => extent,
                Err(error) => {
                    // Nothing was written there: the newest first, all of it can be given out again.
                    std::mem::take(&mut bound.place.extents)
                        .into_iter()
                        .rev()
                        .for_each(|extent| zones.give_back(extent));
                    return Err(error);
                }
            };
            bound.place.extents.push(extent);
            left -= extent.len as usize;
        }
        Ok(bound)
    }

    /// At open, before any allocation: what the journal says of blocks that no piece has yet.
    ///
    /// # Errors
    /// `Corrupt` when they don't lie in data zones.
    pub(crate) fn restore(zones: &Arc<Zones>, place: Place) -> Result<Self> {
        if !place.is_sound(zones.zone_bytes()) {
            return Err(StoreError::corrupt("the journal's binding of blocks", "they don't fit their place"));
        }
        let mut bound =
            Self { zones: Arc::clone(zones), place: Place { crcs: place.crcs, extents: Vec::new() } };
        for extent in place.extents {
            zones.restore(std::iter::once(&zones.use_of(extent)))?;
            bound.place.extents.push(extent);
        }
        Ok(bound)
    }

    /// Says what the checksums are that were not known when the space was allocated; as many as there were.
    pub(crate) fn set_crcs(&mut self, crcs: Vec<u32>) {
        debug_assert_eq!(crcs.len(), self.place.crcs.len());
        self.place.crcs = crcs;
    }

    /// Where the blocks lie.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Number of blocks.
    pub(crate) fn count(&self) -> u64 {
        self.place.crcs.len() as u64
    }

    /// Where the block `at` lies: the number of the extent, and the device address; `None`: there are not so
    /// many.
    pub(crate) fn find(&self, at: u64) -> Option<(usize, u64)> {
        let mut offset = at.checked_mul(BLOCK_BYTES as u64)?;
        for (number, extent) in self.place.extents.iter().enumerate() {
            if offset < u64::from(extent.len) {
                return Some((number, extent.addr + offset));
            }
            offset -= u64::from(extent.len);
        }
        None
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        for &extent in &self.place.extents {
            self.zones.release(extent);
        }
    }
}

/// An operation whose blocks lie in their final place already, alone or with others that its place is for,
/// too.
#[derive(Clone)]
pub(crate) struct BoundOp {
    /// The first block of the place.
    pub first: u64,
    /// Where the blocks lie.
    pub bound: Arc<Bound>,
}

impl BoundOp {
    /// Where `block` lies; see [`Bound::find`].
    pub(crate) fn find(&self, block: u64) -> Option<(usize, u64)> {
        self.bound.find(block.checked_sub(self.first)?)
    }

    /// The checksums of `count` blocks from `first` on, which are all in the place.
    pub(crate) fn crcs(&self, first: u64, count: usize) -> &[u32] {
        &self.bound.place().crcs[(first - self.first) as usize..][..count]
    }
}

/// Holds blocks that were bound after it had taken them in.
pub(crate) trait HoldsBound: Send + Sync {
    /// So many blocks have their place: a flush need not find any for them.
    fn count(&self, blocks: u64);

    /// The operations of these seqnos are bound, and what they bind is written.
    fn hold(&self, ops: Vec<(Seqno, BoundOp)>);
}

/// Which operations of a batch are bound: by their numbers, ascending.
#[derive(Default)]
pub(crate) struct Bindings(Vec<(usize, Arc<Bound>)>);

impl Bindings {
    /// One more operation, behind all that are there.
    pub(crate) fn push(&mut self, op: usize, bound: Bound) {
        debug_assert!(self.0.last().is_none_or(|(last, _)| *last < op));
        self.0.push((op, Arc::new(bound)));
    }

    /// Whether no operation is bound.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Arc<Bound>)> {
        self.0.iter().map(|(op, bound)| (*op, bound))
    }

    /// Blocks of all of them.
    pub(crate) fn blocks(&self) -> u64 {
        self.0.iter().map(|(_, bound)| bound.count()).sum()
    }
}
