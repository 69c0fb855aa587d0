//! Places in the code at which memory is charged, and the ages of what was charged there.
//!
//! Purpose: a charge finds the slot of its place by the address of the `Location`, in a table that is never
//! moved. The age of the oldest is known without a list of all: charges are counted in *generations*, each of
//! which has the time of its first one. The oldest generation that still counts some says how old the oldest
//! is, at most.
//!
//! Thread safety: lock-free. Invariants: a slot that has a place keeps it. A generation is begun anew only
//! when it counts nothing, and is entered for longer the more of them are taken, so that they cover any time:
//! from a second to half a day.

use std::panic::Location;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::gauge::Gauge;

/// So many places of a pool have a slot of their own.
pub const SITES_MAX: usize = 32;

const GENERATIONS: usize = 16;
/// For how long a generation is entered when it is the only one.
const SPAN_MS: u64 = 1000;

#[derive(Debug, Default)]
struct Generation {
    since_ms: AtomicU64,
    count: AtomicU64,
}

/// See the module. What each charge looks at is in one line of the processor's cache, but for its generation.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Site {
    at: Option<&'static Location<'static>>,
    bytes: Gauge,
    /// From when on another generation is entered than the current one.
    until_ms: AtomicU64,
    current: AtomicU8,
    generations: [Generation; GENERATIONS],
}

impl Site {
    fn new(at: Option<&'static Location<'static>>) -> Self {
        Self {
            at,
            bytes: Gauge::default(),
            until_ms: AtomicU64::new(SPAN_MS),
            current: AtomicU8::new(0),
            generations: Default::default(),
        }
    }

    pub(super) fn at(&self) -> Option<&'static Location<'static>> {
        self.at
    }

    pub(super) fn bytes(&self) -> &Gauge {
        &self.bytes
    }

    /// Counts one more; the generation that [`Site::leave`] is to be told.
    #[inline]
    pub(super) fn enter(&self, now_ms: u64) -> u8 {
        let mut current = self.current.load(Ordering::Relaxed);
        if now_ms >= self.until_ms.load(Ordering::Relaxed) {
            current = self.next_generation(now_ms);
        }
        let generation = &self.generations[usize::from(current) % GENERATIONS];
        if generation.count.fetch_add(1, Ordering::Relaxed) == 0 {
            generation.since_ms.store(now_ms, Ordering::Relaxed);
        }
        current
    }

    /// One less.
    #[inline]
    pub(super) fn leave(&self, generation: u8) {
        self.generations[usize::from(generation) % GENERATIONS].count.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    fn next_generation(&self, now_ms: u64) -> u8 {
        let is_free = |generation: &Generation| generation.count.load(Ordering::Relaxed) == 0;
        let taken = self.generations.iter().filter(|generation| !is_free(generation)).count();
        self.until_ms.store(now_ms.saturating_add(SPAN_MS << taken), Ordering::Relaxed);
        // While none is free the last one stays.
        if let Some(free) = self.generations.iter().position(is_free) {
            self.current.store(free as u8, Ordering::Relaxed);
        }
        self.current.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> u64 {
        self.generations.iter().map(|generation| generation.count.load(Ordering::Relaxed)).sum()
    }

    /// When the oldest was charged, or before; `None`: there are none.
    pub(super) fn oldest_ms(&self) -> Option<u64> {
        let taken = self.generations.iter().filter(|one| one.count.load(Ordering::Relaxed) > 0);
        taken.map(|one| one.since_ms.load(Ordering::Relaxed)).min()
    }
}

/// The places of one pool: a hash table with open addressing, and the slot of those that found it full.
#[derive(Debug, Default)]
pub(super) struct Sites {
    slots: [OnceLock<Box<Site>>; SITES_MAX],
    others: OnceLock<Box<Site>>,
}

impl Sites {
    /// The number of the slot of that place.
    #[inline]
    pub(super) fn find(&self, at: &'static Location<'static>) -> u8 {
        let first = hash(ptr::from_ref(at).addr());
        for step in 0..SITES_MAX {
            let number = (first + step) % SITES_MAX;
            let site = self.slots[number].get_or_init(|| Box::new(Site::new(Some(at))));
            if site.at.is_some_and(|known| ptr::eq(known, at)) {
                return number as u8;
            }
        }
        SITES_MAX as u8
    }

    /// The slot of a number that [`Sites::find`] gave.
    #[inline]
    pub(super) fn get(&self, number: u8) -> &Site {
        let slot = self.slots.get(usize::from(number)).unwrap_or(&self.others);
        slot.get_or_init(|| Box::new(Site::new(None)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Site> {
        self.slots.iter().chain([&self.others]).filter_map(OnceLock::get).map(|site| &**site)
    }
}

/// Locations lie beside each other, each with a length of three words.
#[inline]
fn hash(address: usize) -> usize {
    (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(8) as usize % SITES_MAX
}
