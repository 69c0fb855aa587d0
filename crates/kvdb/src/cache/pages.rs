//! Pages: decoded metadata that can be read again, in memory while it is wanted and there is room.
//!
//! Purpose: sparse indexes and filters of pieces. All pages together stay below their share of the ceiling
//! ([`Accountant::index_budget`]); beyond it the coldest ones go, by a clock: a hand goes round over what is
//! in memory, and takes what was not used since it came by last. The block cache's `Eviction` is called under
//! a lock at each hit, and knows no page that ends by itself; here a hit is one load, and at most one store,
//! of an atomic.
//!
//! Thread safety: all methods take `&self`. A hit takes no lock. Each page has a lock of its own, which is
//! held while the page is read, so that a thread that wants the same page waits for it and it is not read
//! twice; the clock's lock is held for a few instructions, and never across I/O.
//!
//! Invariants: a value never changes, and stays as long as a reader holds it, whether its page is evicted or
//! not; while it lives it is counted, once, and it is not read a second time. So what is in use is at most
//! the share and what is held at the moment. What can't go (range tombstones, what is held) takes room from
//! the pages down to their floor, not further, and the page that was asked for last stays: else each look-up
//! would read an index anew.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::{Bound, Deref};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwapOption, Guard};
use kvfs_locks::{Mutex, class};
use kvfs_memory::Charge;
use kvfs_store::Result;

use super::memory::{Accountant, Pool};

/// A value in memory, and its place in the books.
pub(crate) struct Loaded<T> {
    value: T,
    charge: Charge,
}

impl<T> Deref for Loaded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A value for the length of a look-up; a caller that needs it for longer keeps it by [`PageRef::keep`].
pub(crate) struct PageRef<T>(Guard<Option<Arc<Loaded<T>>>>);

impl<T> PageRef<T> {
    /// The value as long as the result lives.
    pub(crate) fn keep(&self) -> Arc<Loaded<T>> {
        match &*self.0 {
            Some(loaded) => Arc::clone(loaded),
            None => unreachable!("made of a value"),
        }
    }
}

impl<T> Deref for PageRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &*self.0 {
            Some(loaded) => &loaded.value,
            None => unreachable!("made of a value"),
        }
    }
}

/// What the clock sees of a page.
trait Evictable: Send + Sync {
    /// Whether it was used since the last call, or a reader holds its value.
    fn is_wanted(&self) -> bool;

    /// Lets the value go.
    fn evict(&self);
}

struct State<T> {
    resident: ArcSwapOption<Loaded<T>>,
    is_used: AtomicBool,
    /// Held while the value is read. What was evicted may still be held by a reader.
    last: Mutex<Weak<Loaded<T>>, class::KvdbCachePagesLast>,
}

impl<T> State<T> {
    fn peek(&self) -> Option<PageRef<T>> {
        let found = self.resident.load();
        if found.is_none() {
            return None;
        }
        // Readers on other cores have the line in their caches: it is written to only when it must be.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        Some(PageRef(found))
    }
}

impl<T: Send + Sync> Evictable for State<T> {
    fn is_wanted(&self) -> bool {
        let is_held = self.resident.load().as_ref().is_some_and(|loaded| Arc::strong_count(loaded) > 1);
        self.is_used.swap(false, Ordering::Relaxed) || is_held
    }

    fn evict(&self) {
        self.resident.store(None);
    }
}

/// A place for one value.
pub(crate) struct Page<T> {
    pages: Arc<Pages>,
    pool: Pool,
    id: u64,
    state: Arc<State<T>>,
}

impl<T: Send + Sync + 'static> Page<T> {
    /// A page whose value is not in memory; once it is, it counts to `pool`.
    pub(crate) fn new(pages: &Arc<Pages>, pool: Pool) -> Self {
        let state = State {
            resident: ArcSwapOption::empty(),
            is_used: AtomicBool::new(false),
            last: Mutex::default(),
        };
        let id = pages.next_id.fetch_add(1, Ordering::Relaxed);
        Self { pages: Arc::clone(pages), pool, id, state: Arc::new(state) }
    }

    /// The value, if it is in memory.
    pub(crate) fn peek(&self) -> Option<PageRef<T>> {
        self.state.peek()
    }

    /// The value; if it is not in memory, `load` reads it and says how many bytes it takes. Of several
    /// threads that want it at the same time one reads, the others wait.
    ///
    /// # Errors
    /// Those of `load`; the next call tries again.
    #[track_caller]
    pub(crate) fn get(&self, load: impl FnOnce() -> Result<(T, usize)>) -> Result<PageRef<T>> {
        if let Some(found) = self.state.peek() {
            return Ok(found);
        }
        let mut last = self.state.last.lock();
        if let Some(found) = self.state.peek() {
            return Ok(found);
        }
        let loaded = if let Some(held) = last.upgrade() {
            held
        } else {
            let (value, bytes) = load()?;
            self.pages.loads.fetch_add(1, Ordering::Relaxed);
            self.charged(value, bytes)
        };
        *last = Arc::downgrade(&loaded);
        self.enter(&loaded);
        drop(last);
        self.pages.make_room(Some(self.id));
        Ok(PageRef(Guard::from_inner(Some(loaded))))
    }

    /// Puts a value in that need not be read, because it was just made.
    #[track_caller]
    pub(crate) fn put(&self, value: T, bytes: usize) {
        let loaded = self.charged(value, bytes);
        let mut last = self.state.last.lock();
        *last = Arc::downgrade(&loaded);
        self.enter(&loaded);
        drop((last, loaded));
        self.pages.make_room(Some(self.id));
    }

    /// As [`Page::put`], for a value that can't be read again: it stays as long as the page.
    #[track_caller]
    pub(crate) fn pin(&self, value: T, bytes: usize) {
        self.state.resident.store(Some(self.charged(value, bytes)));
    }

    #[track_caller]
    fn charged(&self, value: T, bytes: usize) -> Arc<Loaded<T>> {
        Arc::new(Loaded { value, charge: self.pages.accountant.charge(self.pool, bytes as u64) })
    }

    fn enter(&self, loaded: &Arc<Loaded<T>>) {
        self.state.resident.store(Some(Arc::clone(loaded)));
        let page = Arc::clone(&self.state) as Arc<dyn Evictable>;
        let replaced = self.pages.clock.lock().insert(self.id, Entry { page, bytes: loaded.charge.bytes() });
        drop(replaced);
    }
}

impl<T> Drop for Page<T> {
    fn drop(&mut self) {
        // What was taken out lets the value go outside of the lock.
        let taken = self.pages.clock.lock().remove(self.id);
        drop(taken);
    }
}

/// A page in memory that may go.
struct Entry {
    page: Arc<dyn Evictable>,
    bytes: u64,
}

/// Those in memory, by number; the hand stands on the one that it looked at last.
#[derive(Default)]
struct Clock {
    resident: BTreeMap<u64, Entry>,
    /// Of all entries.
    bytes: u64,
    hand: u64,
}

impl Clock {
    fn insert(&mut self, id: u64, entry: Entry) -> Option<Entry> {
        let replaced = self.remove(id);
        self.bytes += entry.bytes;
        self.resident.insert(id, entry);
        replaced
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let removed = self.resident.remove(&id);
        self.bytes -= removed.as_ref().map_or(0, |entry| entry.bytes);
        removed
    }

    /// Takes out the next page that is not wanted and not `newest`. `None`: all are held. O(pages in memory).
    fn victim(&mut self, newest: Option<u64>) -> Option<Entry> {
        for _ in 0..2 * self.resident.len() {
            let behind = (Bound::Excluded(self.hand), Bound::Unbounded);
            let next = self.resident.range(behind).next().or_else(|| self.resident.first_key_value());
            let (&id, entry) = next?;
            self.hand = id;
            if newest != Some(id) && !entry.page.is_wanted() {
                return self.remove(id);
            }
        }
        None
    }
}

/// Counters of [`Pages`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PagesStats {
    /// Values that were read.
    pub loads: u64,
    /// Values that had to go.
    pub evictions: u64,
}

/// All pages of a store, and the clock over those in memory.
pub(crate) struct Pages {
    accountant: Arc<Accountant>,
    clock: Mutex<Clock, class::KvdbCachePagesClock>,
    next_id: AtomicU64,
    loads: AtomicU64,
    evictions: AtomicU64,
}

impl Pages {
    /// No page yet.
    pub(crate) fn new(accountant: Arc<Accountant>) -> Arc<Self> {
        Arc::new(Self {
            accountant,
            clock: Mutex::default(),
            next_id: AtomicU64::new(1),
            loads: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        })
    }

    /// Whether so many bytes more can be taken without anything else going.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.bytes() + bytes <= self.accountant.index_budget()
    }

    /// Whether everything has fitted so far: then it is worth being read before it is asked for.
    pub(crate) fn is_ample(&self) -> bool {
        self.evictions.load(Ordering::Relaxed) == 0 && self.has_room(0)
    }

    /// Evicts until the share is kept, as far as values are not held.
    pub(crate) fn shrink(&self) {
        self.make_room(None);
    }

    /// Bytes held in all pages, and what pieces keep besides.
    pub(crate) fn bytes(&self) -> u64 {
        self.accountant.used(Pool::Index) + self.accountant.used(Pool::Filter)
    }

    /// Counters since the start.
    pub(crate) fn stats(&self) -> PagesStats {
        PagesStats {
            loads: self.loads.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }

    /// As [`Pages::shrink`], for the page `newest`, which stays.
    fn make_room(&self, newest: Option<u64>) {
        while self.bytes() > self.accountant.index_budget() {
            let mut clock = self.clock.lock();
            if clock.bytes <= self.accountant.index_floor() {
                return;
            }
            let victim = clock.victim(newest);
            drop(clock);
            let Some(victim) = victim else { return };
            victim.page.evict();
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
    }
}
