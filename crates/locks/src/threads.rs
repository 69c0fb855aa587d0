//! What each thread holds and waits for, where all threads can read it.
//!
//! Purpose: a thread writes into slots of its own, without a lock; a reader looks at the slots of all
//! threads.
//!
//! Thread safety: one thread writes a record, any number read it. A slot is a sequence lock: its number is
//! odd while it holds something, and a reader that sees the same odd number before and after has read what
//! belongs together.
//!
//! Invariants: a record belongs to at most one living thread; those of threads that ended are used again, so
//! there are as many as there were threads at a time.

use std::cell::Cell;
use std::panic::Location;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

/// So many locks of a thread are noted; more are held without a note.
const SLOTS: usize = 15;
/// The slot of what the thread waits for.
const WAITING: usize = SLOTS;

/// What is done with a lock, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) rank: u16,
    /// Held with others, or asked for so.
    pub(crate) is_shared: bool,
    pub(crate) address: usize,
    pub(crate) at: &'static Location<'static>,
}

/// A place for a note.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    number: AtomicU32,
    /// The rank, and [`SHARED`].
    kind: AtomicU32,
    location: AtomicPtr<Location<'static>>,
    address: AtomicUsize,
}

/// Beside the rank.
const SHARED: u32 = 1 << 16;

impl Slot {
    #[inline]
    fn is_free(&self) -> bool {
        self.number.load(Ordering::Relaxed).is_multiple_of(2)
    }

    #[inline]
    fn set(&self, note: Note) {
        let number = self.number.load(Ordering::Relaxed);
        // What follows must not be seen before the even number that the last note left.
        fence(Ordering::Release);
        let kind = u32::from(note.rank) | if note.is_shared { SHARED } else { 0 };
        self.kind.store(kind, Ordering::Relaxed);
        self.location.store(std::ptr::from_ref(note.at).cast_mut(), Ordering::Relaxed);
        self.address.store(note.address, Ordering::Relaxed);
        self.number.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Takes the note back.
    #[inline]
    pub(crate) fn clear(&self) {
        let number = self.number.load(Ordering::Relaxed);
        self.number.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Its note, and which of all its notes that is.
    fn read(&self) -> Option<(u32, Note)> {
        let number = self.number.load(Ordering::Acquire);
        if number.is_multiple_of(2) {
            return None;
        }
        let kind = self.kind.load(Ordering::Relaxed);
        let location = self.location.load(Ordering::Relaxed);
        let address = self.address.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if self.number.load(Ordering::Relaxed) != number || location.is_null() {
            return None;
        }
        // SAFETY: `set` alone stores here, and what it stores is a reference that lives as long as the
        // program.
        let at = unsafe { &*location };
        Some((number, Note { rank: kind as u16, is_shared: kind & SHARED != 0, address, at }))
    }
}

/// A note as another thread reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noted {
    pub(crate) slot: usize,
    /// Which of all notes of its slot it is.
    pub(crate) number: u32,
    pub(crate) note: Note,
    pub(crate) is_waiting: bool,
}

/// The slots of one thread.
#[derive(Debug, Default)]
pub(crate) struct Record {
    slots: [Slot; SLOTS],
    waiting: Slot,
    /// Zero: no thread has it.
    thread: AtomicU32,
}

impl Record {
    /// Notes a lock that the thread has; `None` if there are too many.
    #[inline]
    pub(crate) fn hold(&self, note: Note) -> Option<&Slot> {
        let slot = self.slots.iter().find(|slot| slot.is_free())?;
        slot.set(note);
        Some(slot)
    }

    /// Notes a lock that the thread waits for.
    pub(crate) fn wait(&self, note: Note) -> &Slot {
        self.waiting.set(note);
        &self.waiting
    }

    /// The number of its thread.
    pub(crate) fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// What its slots say.
    pub(crate) fn read(&self) -> impl Iterator<Item = Noted> {
        let slots = self.slots.iter().chain([&self.waiting]).enumerate();
        slots.filter_map(|(slot, place)| {
            let (number, note) = place.read()?;
            Some(Noted { slot, number, note, is_waiting: slot == WAITING })
        })
    }
}

/// Every record there is.
static ALL: std::sync::Mutex<Vec<&'static Record>> = std::sync::Mutex::new(Vec::new());

/// The record of a thread, until that ends.
struct Own(&'static Record);

impl Own {
    fn register() -> Self {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let free = all.iter().find(|record| record.thread.load(Ordering::Acquire) == 0).copied();
        let record = free.unwrap_or_else(|| {
            let new: &'static Record = Box::leak(Box::default());
            all.push(new);
            new
        });
        record
            .thread
            .store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
        Self(record)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        RECORD.set(None);
        // The guard of such a note was forgotten.
        self.0.slots.iter().filter(|slot| !slot.is_free()).for_each(Slot::clear);
        self.0.thread.store(0, Ordering::Release);
    }
}

thread_local! {
    /// What [`OWN`] has: a plain word, which needs no look at whether it exists.
    static RECORD: Cell<Option<&'static Record>> = const { Cell::new(None) };
    static OWN: Own = Own::register();
}

/// The record of this thread; `None` while the thread ends.
#[inline]
pub(crate) fn own() -> Option<&'static Record> {
    RECORD.get().or_else(register)
}

#[cold]
fn register() -> Option<&'static Record> {
    let record = OWN.try_with(|own| own.0).ok();
    RECORD.set(record);
    record
}

/// The records of all threads that live.
pub(crate) fn all() -> Vec<&'static Record> {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter(|record| record.thread() != 0).copied().collect()
}
