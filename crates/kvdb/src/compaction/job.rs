//! One merge: its inputs and what they become.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kvfs_store::{KeyspaceKind, Result, StoreError};

use super::output::{OutputSpec, Sink, Totals};
use super::{MergeOptions, Sharing, blocks, tuples};
use crate::cache::{Charge, Pool};
use crate::format::{Extent, PieceDesc, ZoneId};
use crate::iter::{KeepRules, surviving_tombstones};
use crate::memtable::{RangeTombstone, TombstoneSet};
use crate::version::Run;

/// Runs that are neighbours in age, newest first, and how to merge them.
pub(crate) struct MergeJob {
    pub(crate) spec: OutputSpec,
    pub(crate) inputs: Vec<Arc<Run>>,
    /// What may be dropped.
    pub(crate) rules: KeepRules,
    pub(crate) options: MergeOptions,
    /// What lies there is copied, however contiguous.
    pub(crate) victims: Victims,
    /// Keys from here on are left for later; `None`: none are.
    pub(crate) end: Option<Bytes>,
    /// What came of the victims.
    pub(crate) rescue: Rescue,
}

/// What was copied for the sake of its place, and the first thing that could not be read of it, which stays.
#[derive(Debug, Default)]
pub(crate) struct Rescue {
    bytes_copied: AtomicU64,
    unread: OnceLock<StoreError>,
}

impl Rescue {
    /// Why something stays that was to be copied.
    pub(crate) fn unread(&self) -> Option<StoreError> {
        self.unread.get().cloned()
    }

    /// Whether anything was copied.
    pub(crate) fn has_copied(&self) -> bool {
        self.bytes_copied.load(Ordering::Relaxed) > 0
    }

    pub(super) fn note_copied(&self, bytes: u64) {
        self.bytes_copied.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Where a step over `inputs` has to end for the sake of their range tombstones, of which it passes more than
/// half of `tombstones_max` then, however they lie, and no more but for those that begin at one key.
/// Those that begin at or before the first key of an input don't count. O(pieces · log n + n²) for n inputs.
pub(crate) fn end_of_step(inputs: &[Arc<Run>], tombstones_max: usize) -> Option<Bytes> {
    let lists: Vec<Vec<&[RangeTombstone]>> =
        inputs.iter().map(|run| run.tombstones_behind_first_key().collect()).collect();
    if lists.iter().flatten().map(|list| list.len()).sum::<usize>() <= tombstones_max {
        return None;
    }
    // Between neighbours of the ends that come into question lie no more than half as many.
    let stride = (tombstones_max / (2 * inputs.len())).max(1);
    let starts = |lists: &Vec<&[RangeTombstone]>| -> Vec<_> {
        let all = lists.iter().copied().flatten().map(|tombstone| &tombstone.start);
        all.step_by(stride).skip(1).take(tombstones_max / stride + 1).cloned().collect()
    };
    let mut ends: Vec<Bytes> = lists.iter().flat_map(starts).collect();
    ends.sort_unstable();
    let begun_before = |end: &Bytes| -> usize {
        lists.iter().flatten().map(|list| list.partition_point(|tombstone| tombstone.start < *end)).sum()
    };
    let fitting = ends.partition_point(|end| begun_before(end) <= tombstones_max);
    ends.into_iter().nth(fitting.saturating_sub(1))
}

/// Zones to empty, by number, ascending; or what lies on another tier than it wishes.
#[derive(Clone, Default)]
pub(crate) struct Victims {
    zones: Vec<u32>,
    zone_bytes: u64,
    /// Of what lies on another tier than it wishes: bytes that were moved; `None`: it is not meant.
    moved: Option<Arc<AtomicU64>>,
    /// What of the zones has been copied already, if that counts.
    sharing: Option<Arc<Sharing>>,
    /// What finds no room elsewhere, or can't be read, stays.
    leaves_rest: bool,
}

impl Victims {
    pub(crate) fn new(mut zones: Vec<u32>, zone_bytes: u64) -> Self {
        zones.sort_unstable();
        Self { zones, zone_bytes, ..Self::default() }
    }

    /// No zones, but blocks on another tier than they wish to lie on; counts the bytes of those that come to
    /// lie there.
    pub(crate) fn misplaced(moved: Arc<AtomicU64>) -> Self {
        Self { moved: Some(moved), ..Self::default() }
    }

    /// The same, of which what is known to be copied already is not copied again.
    pub(crate) fn copied_once(&self, sharing: &Arc<Sharing>) -> Self {
        Self { sharing: Some(Arc::clone(sharing)), ..self.clone() }
    }

    /// The same, but what finds no room elsewhere, or can't be read, stays.
    pub(crate) fn leaving_rest(self) -> Self {
        Self { leaves_rest: true, ..self }
    }

    /// What of them has been copied already, if that counts.
    pub(super) fn sharing(&self) -> Option<&Arc<Sharing>> {
        self.sharing.as_ref()
    }

    /// Whether blocks are among them that lie on another tier than they wish.
    pub(super) fn are_misplaced(&self) -> bool {
        self.moved.is_some()
    }

    /// So many bytes that were misplaced are copied to where they wish to lie.
    pub(super) fn note_moved(&self, bytes: u64) {
        if let Some(moved) = &self.moved {
            moved.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The zones.
    pub(super) fn zones(&self) -> impl Iterator<Item = ZoneId> + '_ {
        self.zones.iter().map(|&zone| ZoneId(zone))
    }

    /// Whether there are any zones.
    pub(crate) fn any(&self) -> bool {
        !self.zones.is_empty()
    }

    /// Whether `extent` lies in one of them.
    pub(crate) fn contain(&self, extent: Extent) -> bool {
        !self.zones.is_empty() && self.have(ZoneId((extent.addr / self.zone_bytes) as u32))
    }

    /// Whether `zone` is one of them.
    pub(crate) fn have(&self, zone: ZoneId) -> bool {
        self.zones.binary_search(&zone.0).is_ok()
    }

    /// Whether `piece` may have anything of them, which was made of `old` and its neighbours: what is
    /// misplaced is known of `old` alone.
    pub(crate) fn may_have_any_of(&self, piece: &PieceDesc, old: &PieceDesc) -> bool {
        let meets_old = || piece.first_key <= old.last_key && piece.last_key >= old.first_key;
        (self.are_misplaced() && meets_old()) || self.have_any_of(piece)
    }

    /// Whether `piece` has anything there.
    pub(crate) fn have_any_of(&self, piece: &PieceDesc) -> bool {
        self.any() && piece.zones.iter().any(|zone_use| self.have(zone_use.zone))
    }
}

impl MergeJob {
    /// Merges; pieces go to `sink` in key order as they are finished.
    ///
    /// # Errors
    /// I/O errors, corruption, no space. What was handed over stays valid.
    pub(crate) fn run(&self, sink: &mut dyn Sink) -> Result<Totals> {
        match self.spec.kind {
            KeyspaceKind::Tuple => tuples::merge(self, sink),
            KeyspaceKind::Block => blocks::merge(self, sink),
        }
    }

    /// Whether what lies in `extent` is copied for the sake of its zone.
    pub(super) fn empties(&self, extent: Extent) -> bool {
        let zones = &self.spec.ctx.zones;
        let has_room = || zones.fits_rewrite(extent.len.into(), zones.free_bytes(self.spec.budget));
        self.victims.contain(extent) && (!self.victims.leaves_rest || has_room())
    }

    /// Whether what is copied for the sake of its place stays there after this error, which is noted then.
    pub(super) fn leaves_unread(&self, error: &StoreError) -> bool {
        let leaves = self.victims.are_misplaced() || self.victims.leaves_rest;
        let is_of_place = matches!(error, StoreError::Io { .. } | StoreError::Corrupt { .. });
        if leaves && is_of_place {
            // The first one is told.
            let _ = self.rescue.unread.set(error.clone());
        }
        leaves && is_of_place
    }

    /// The range tombstones of all inputs, those that live on, and what both take.
    pub(super) fn tombstones(&self) -> (TombstoneSet, TombstoneSet, Charge) {
        let sets: Vec<_> =
            self.inputs.iter().flat_map(|run| run.tombstones_before(self.end.as_ref())).collect();
        let all = TombstoneSet::union(sets.iter().map(AsRef::as_ref));
        let survivors = surviving_tombstones(&all, &self.rules);
        let bytes = (all.bytes() + survivors.bytes()) as u64;
        let charge = self.spec.ctx.accountant.charge(Pool::Io, bytes);
        (all, survivors, charge)
    }

    /// Whether `key` is left for later.
    pub(super) fn is_behind(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_some_and(|end| *key >= end[..])
    }
}
