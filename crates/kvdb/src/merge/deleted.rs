//! What range deletions have left on the device until merges drop it, zone by zone; and when a table is
//! flushed for their sake.
//!
//! Purpose: a deleted file counts as free as soon as it is deleted. A pass over all runs gives its blocks
//! back without copying anything, and a writer that finds no space makes one; so only blocks that such a pass
//! would drop are counted: older than the tombstone, and seen by no pinned position.
//!
//! Thread safety: one thread counts at a time, others take what was counted last. Invariant: nothing is
//! counted twice, or that something else than runs of the current version refers to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::{Batch, KeyspaceKind, Op, Result, Seqno};

use crate::format::{Layer, Region, SECTOR_BYTES, ZoneId, cmp_block_key};
use crate::history::History;
use crate::layers::view::View;
use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::memtable::{Fragment, TombstoneSet};
use crate::order::Sequencer;
use crate::runtime::Runtime;
use crate::runtime::options::Background;
use crate::version::Version;

/// What was counted may be so old while more is written.
const AGE_MAX: Duration = Duration::from_millis(100);

/// Deleted ranges of layers and stretches of blocks in them that are looked at in one count; what lies behind
/// them counts as live.
const STRETCHES_MAX: u64 = 1 << 20;

/// A table with so many bytes of blocks in their place is flushed when files were deleted (bytes): only then
/// are they free.
const FLUSHED_BOUND_BYTES: u64 = 8 << 20;

/// As [`FLUSHED_BOUND_BYTES`], for deleted rows.
const FLUSHED_DELETIONS: u64 = 1000;

/// Bytes of each zone that are dead, though they count as live.
pub(crate) type DeadBytes = HashMap<ZoneId, u64>;

/// The last count, and what it was of.
struct Counted {
    at: Duration,
    position: Seqno,
    /// Held, so that no later version has its address.
    version: Weak<Version>,
    pins: Vec<Seqno>,
    dead: Arc<DeadBytes>,
}

/// What is known of deletions.
pub(crate) struct Deleted {
    runtime: Arc<Runtime>,
    live: Arc<LiveSet>,
    keyspaces: Arc<Keyspaces>,
    history: Arc<History>,
    sequencer: Arc<Sequencer>,
    counted: Mutex<Option<Counted>, class::KvdbMergeDeletedCounted>,
    /// Deletions so far, of ranges and of keys.
    deletions: AtomicU64,
    /// How many there had been when a table was last flushed for them.
    flushed: AtomicU64,
}

impl Deleted {
    /// No deletions yet.
    pub(crate) fn new(
        keyspaces: &Arc<Keyspaces>,
        history: &Arc<History>,
        sequencer: &Arc<Sequencer>,
    ) -> Self {
        let (counted, deletions, flushed) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        let (runtime, live) = (Arc::clone(&history.runtime), Arc::clone(&history.live));
        let (keyspaces, history) = (Arc::clone(keyspaces), Arc::clone(history));
        let sequencer = Arc::clone(sequencer);
        Self { runtime, live, keyspaces, history, sequencer, counted, deletions, flushed }
    }

    pub(crate) fn note(&self, batch: &Batch) {
        let is_deletion = |op: &&Op| matches!(op, Op::Delete { .. } | Op::DeleteRange { .. });
        let count = batch.ops().iter().filter(is_deletion).count();
        if count > 0 {
            self.deletions.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.deletions.load(Ordering::Relaxed)
    }
}

/// A count under way.
struct Count<'a> {
    deleted: &'a Deleted,
    pins: &'a [Seqno],
    stretches_left: u64,
    dead: DeadBytes,
}

impl Deleted {
    /// The bytes that a pass over all runs would give back of blocks in deleted ranges.
    pub(crate) fn dead_bytes(&self) -> Arc<DeadBytes> {
        let mut counted = self.counted.lock();
        let (view, position) = self.history.read_view();
        let pins = self.history.boundaries();
        let now = self.runtime.clock.monotonic();
        if let Some(counted) = &*counted {
            let is_same = counted.position == position
                && counted.version.as_ptr() == Arc::as_ptr(&view.version)
                && counted.pins == pins;
            let is_fresh =
                self.runtime.options.background == Background::Threads && now < counted.at + AGE_MAX;
            if is_same || is_fresh {
                return Arc::clone(&counted.dead);
            }
        }
        let mut count =
            Count { deleted: self, pins: &pins, stretches_left: STRETCHES_MAX, dead: DeadBytes::new() };
        if let Err(error) = count.all(&view) {
            // It counts as live.
            tracing::debug!(%error, "what was deleted can't be counted");
        }
        let dead = Arc::new(count.dead);
        let version = Arc::downgrade(&view.version);
        *counted = Some(Counted { at: now, position, version, pins, dead: Arc::clone(&dead) });
        dead
    }

    /// Whether deletions have come for which no table was flushed yet.
    pub(crate) fn has_deletions_to_flush(&self) -> bool {
        self.count() != self.flushed.load(Ordering::Relaxed)
    }

    /// Has the active table flushed when much in it was deleted and no deletion has come since `seen` of
    /// them; a burst of deletions is flushed once. Returns how many there are now.
    pub(crate) fn flush_deleted(&self, seen: u64) -> u64 {
        let count = self.count();
        let flushed = self.flushed.load(Ordering::Relaxed);
        // Where memory has no room for another layer, the flush under way comes first.
        if count == flushed || count != seen || !self.live.has_room_for_layer() {
            return count;
        }
        self.flushed.store(count, Ordering::Relaxed);
        let active = Arc::clone(&self.live.view().active);
        if active.bytes_bound() >= FLUSHED_BOUND_BYTES || count - flushed >= FLUSHED_DELETIONS {
            self.sequencer.seal_if_room(|active| active.bytes() > 0);
        }
        count
    }
}

impl Count<'_> {
    fn all(&mut self, view: &View) -> Result<()> {
        for (keyspace, runs) in view.version.keyspaces() {
            if self.deleted.keyspaces.kind(keyspace)? != KeyspaceKind::Block {
                continue;
            }
            let pieces = || runs.iter().flat_map(|run| &run.pieces);
            let of_tables = view.tables().map(|table| table.tombstones(keyspace));
            let of_pieces = pieces().map(|piece| Arc::clone(piece.tombstones()));
            let sets: Vec<Arc<TombstoneSet>> =
                of_tables.chain(of_pieces).filter(|set| !set.is_empty()).collect();
            if sets.is_empty() {
                continue;
            }
            let all = TombstoneSet::union(sets.iter().map(Arc::as_ref));
            for run in runs {
                for piece in run.pieces.iter().filter(|piece| piece.seqno_min() < all.seqno_max()) {
                    let (first, last) = (&piece.desc().first_key, &piece.desc().last_key);
                    let lower = if run.lower_bound > *first { &run.lower_bound } else { first };
                    if !all.overlaps(lower, Some(&[&last[..], b"\0"].concat())) {
                        continue;
                    }
                    // What can't be read counts as live.
                    let Ok(index) = piece.index() else { continue };
                    for layer in index.layers() {
                        self.layer(layer, &all, lower);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether one more is to be looked at.
    fn may_look(&mut self) -> bool {
        let may_look = self.stretches_left > 0;
        self.stretches_left -= u64::from(may_look);
        may_look
    }

    /// The blocks of `layer` from `lower` on that are in deleted ranges.
    fn layer(&mut self, layer: &Layer, all: &TombstoneSet, lower: &[u8]) {
        for fragment in all.fragments_from(lower) {
            if !self.may_look() {
                return;
            }
            let start = if fragment.start[..] < *lower { lower } else { &fragment.start[..] };
            let Some((first, mut from)) = layer.find_key(start) else { return };
            for at in first..layer.len() {
                let region = layer.region(at);
                let begin = from.max(region.first);
                from = 0;
                if cmp_block_key(region.prefix, begin, fragment.end).is_ge() || !self.may_look() {
                    break;
                }
                self.region(&region, begin, &fragment);
            }
        }
    }

    /// The blocks of `region` from `begin` on that are in the fragment; of a packed one all or none, since
    /// other regions may have parts of the unit.
    fn region(&mut self, region: &Region<'_>, begin: u64, fragment: &Fragment<'_>) {
        let ends_inside = |block| cmp_block_key(region.prefix, block, fragment.end).is_lt();
        if region.unit.is_some() {
            let is_whole = begin == region.first && ends_inside(region.end() - 1) && region.is_whole_unit();
            let mut spans = region.spans(begin, region.end());
            if is_whole && spans.all(|(_, span)| self.is_dead(fragment, span.seqno)) {
                self.add(region.addr, region.extent().len.into());
            }
            return;
        }
        for (block, span) in region.spans(begin, region.end()) {
            if self.is_dead(fragment, span.seqno) {
                let blocks = block..block + u64::from(span.count);
                let is_inside = ends_inside(blocks.end - 1);
                let count = if is_inside {
                    span.count.into()
                } else {
                    blocks.take_while(|&at| ends_inside(at)).count() as u64
                };
                self.add(region.addr_of(block), count * SECTOR_BYTES);
            }
        }
    }

    /// Whether a block of this seqno in the fragment is seen by no position: a tombstone follows, and no pin
    /// lies between.
    fn is_dead(&self, fragment: &Fragment<'_>, seqno: Seqno) -> bool {
        let Some(newest) = fragment.newest_at(Seqno::MAX).filter(|&newest| newest > seqno) else {
            return false;
        };
        // The first pin that sees the block sees the oldest tombstone above it, too, or none does.
        match self.pins.iter().find(|&&pin| pin >= seqno && pin < newest) {
            None => true,
            Some(&pin) => fragment.newest_at(pin).is_some_and(|tombstone| tombstone > seqno),
        }
    }

    fn add(&mut self, addr: u64, bytes: u64) {
        *self.dead.entry(self.deleted.runtime.ctx.zones.zone_of(addr)).or_default() += bytes;
    }
}

#[cfg(test)]
mod tests;
