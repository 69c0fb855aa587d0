//! Asking the filter of a piece, and when it is worth reading.
//!
//! To make a filter costs a read of all fingerprints of the piece and sorting them: as much as many blocks
//! that it could have saved. So flushes and merges make it only where readers have looked for keys in what
//! was there before. While there is room it is read when it is first asked for. Else a piece has to be asked
//! as often as the filter has blocks' worth of bytes: then so much was read without it that the filter costs
//! no more.
//!
//! Thread safety: shared by `Arc`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvfs_store::{KeyspaceKind, Result};

use super::RunContext;
use super::filter::Filter;
use crate::cache::{Page, PageRef, Pages, Pool};
use crate::format::Fingerprints;

/// Bytes of a fingerprint on the device; its share of a filter in memory is smaller.
const FINGERPRINT_BYTES: u64 = 4;
/// What could not be read is tried again after so many look-ups.
const LOOKUPS_AFTER_FAILURE: u64 = 1000;

/// How much a filter that is not in memory is missed.
#[derive(Debug, Default)]
pub(super) struct FilterWish {
    /// Look-ups that did without it since it was read last.
    lookups: AtomicU64,
    /// Whether a reader has asked, in memory or not.
    is_asked: AtomicBool,
    has_failed: AtomicBool,
}

impl FilterWish {
    /// One more look-up would like to ask the filter; whether it is to be read now. `worth`: the look-ups
    /// that cost as much as reading it.
    fn is_due(&self, worth: u64, has_room: impl FnOnce() -> bool) -> bool {
        let lookups = self.lookups.fetch_add(1, Ordering::Relaxed);
        if self.has_failed.load(Ordering::Relaxed) {
            return lookups >= worth.max(LOOKUPS_AFTER_FAILURE);
        }
        lookups >= worth || has_room()
    }

    fn note_asked(&self) {
        // Readers on other cores have the line in their caches.
        if !self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(true, Ordering::Relaxed);
        }
    }

    fn note_read(&self, has_failed: bool) {
        self.lookups.store(0, Ordering::Relaxed);
        self.has_failed.store(has_failed, Ordering::Relaxed);
    }
}

/// The filter of a piece, in memory or not.
pub(super) struct KeyFilter {
    kind: KeyspaceKind,
    /// Shared with the same piece on another base. `None` in it: more keys than a filter can tell apart.
    page: Arc<Page<Option<Filter>>>,
    wish: FilterWish,
}

impl KeyFilter {
    /// Of a piece of this kind; not in memory.
    pub(super) fn new(pages: &Arc<Pages>, kind: KeyspaceKind) -> Self {
        Self { kind, page: Arc::new(Page::new(pages, Pool::Filter)), wish: FilterWish::default() }
    }

    /// The same filter, for the same piece on another base. Readers have not asked there.
    pub(super) fn shared(&self) -> Self {
        Self { kind: self.kind, page: Arc::clone(&self.page), wish: FilterWish::default() }
    }

    /// Whether a reader has looked for a key here: if not, what becomes of this needs no filter before one
    /// does.
    pub(super) fn is_asked(&self) -> bool {
        self.wish.is_asked.load(Ordering::Relaxed)
    }

    /// Puts in what was just made.
    pub(super) fn put(&self, fingerprints: Fingerprints) {
        let (filter, bytes) = self.build(fingerprints);
        self.page.put(filter, bytes);
    }

    /// What the filter says, if it is in memory.
    pub(super) fn resident_says(&self, key: &[u8]) -> Option<bool> {
        self.wish.note_asked();
        self.page.peek().map(|filter| passes(filter.as_ref(), key))
    }

    /// What the filter of so many records says; it is made of what `load` reads if it is not in memory and
    /// that is worth it.
    pub(super) fn passes(
        &self,
        ctx: &RunContext,
        records: u64,
        key: &[u8],
        load: impl FnOnce() -> Result<Fingerprints>,
    ) -> bool {
        self.wanted(ctx, records, load).is_none_or(|filter| passes(filter.as_ref(), key))
    }

    fn wanted(
        &self,
        ctx: &RunContext,
        records: u64,
        load: impl FnOnce() -> Result<Fingerprints>,
    ) -> Option<PageRef<Option<Filter>>> {
        self.wish.note_asked();
        if let Some(filter) = self.page.peek() {
            return Some(filter);
        }
        let filter_bytes = records * FINGERPRINT_BYTES;
        let worth = filter_bytes / ctx.options.tuple_block_bytes.max(1) as u64;
        if !self.wish.is_due(worth, || ctx.pages.has_room(filter_bytes)) {
            return None;
        }
        let loaded = self.page.get(|| {
            let fingerprints = load()?;
            let bytes = fingerprints.values.len() as u64 * FINGERPRINT_BYTES;
            let _charge = ctx.accountant.charge(Pool::Io, bytes);
            let built = self.build(fingerprints);
            ctx.make_room_for(built.1);
            Ok(built)
        });
        self.wish.note_read(loaded.is_err());
        loaded
            .inspect_err(|error| {
                tracing::error!(%error, "a filter can't be read; lookups in its piece go on without it");
            })
            .ok()
    }

    fn build(&self, fingerprints: Fingerprints) -> (Option<Filter>, usize) {
        let filter = match self.kind {
            KeyspaceKind::Tuple => Filter::build(fingerprints.values),
            KeyspaceKind::Block => None,
        };
        let bytes = filter.as_ref().map_or(0, Filter::memory_bytes);
        (filter, bytes)
    }
}

fn passes(filter: Option<&Filter>, key: &[u8]) -> bool {
    filter.is_none_or(|filter| filter.may_contain(key))
}

#[cfg(test)]
impl super::Piece {
    /// Whether there may be a record with `key`: exact for blocks, which the index knows; for
    /// tuples the filter says yes to very few absent keys. Ignores range tombstones.
    ///
    /// # Errors
    /// I/O errors and corruption of the index of a block piece.
    pub(crate) fn may_contain(&self, key: &[u8]) -> Result<bool> {
        match self.kind() {
            KeyspaceKind::Block => Ok(holds_block(self.metadata().glance()?.layers(), key)),
            KeyspaceKind::Tuple => Ok(self.metadata().passes_filter(key)),
        }
    }
}

#[cfg(test)]
fn holds_block(layers: &[crate::format::Layer], key: &[u8]) -> bool {
    crate::memtable::split_block_key(key).is_some_and(|(prefix, block)| {
        layers.iter().any(|layer| {
            let index = layer.find(prefix, block);
            index < layer.len() && {
                let region = layer.region(index);
                region.prefix[..] == *prefix && region.first <= block
            }
        })
    })
}
