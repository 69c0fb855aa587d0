//! Which thread holds and waits for which lock, and where in the code.
//!
//! Thread safety: a [`Hold`] and a [`Wait`] belong to the thread that made them; [`held`] may be asked by
//! any.
//!
//! Invariants: what [`held`] says of one lock is true of one moment; of several locks, of moments close to
//! each other.

use std::panic::Location;
use std::time::Duration;

use crate::class::{self, Class};
use crate::threads::{self, Note, Slot};

/// Whether a lock is had alone or with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

fn note<C: Class>(address: usize, mode: Mode, at: &'static Location<'static>) -> Note {
    Note { rank: C::RANK, is_shared: mode == Mode::Shared, address, at }
}

/// The note of a lock that this thread has, until it is dropped.
pub(crate) struct Hold {
    /// `None`: there was no slot left, or the thread ends.
    slot: Option<&'static Slot>,
}

impl Hold {
    /// Notes that this thread has the lock at `address`.
    #[inline]
    pub(crate) fn begin<C: Class>(address: usize, mode: Mode, at: &'static Location<'static>) -> Self {
        Self { slot: threads::own().and_then(|record| record.hold(note::<C>(address, mode, at))) }
    }

    /// Takes the note back.
    #[inline]
    pub(crate) fn end(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.clear();
        }
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

/// The note of a lock that this thread waits for, until it is dropped.
pub(crate) struct Wait {
    slot: Option<&'static Slot>,
}

impl Wait {
    #[cold]
    pub(crate) fn begin<C: Class>(address: usize, mode: Mode, at: &'static Location<'static>) -> Self {
        Self { slot: threads::own().map(|record| record.wait(note::<C>(address, mode, at))) }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.clear();
        }
    }
}

/// Looks whether this thread may wait for the lock at `address`.
///
/// # Panics
/// In debug builds if it holds a lock of this or a later class.
#[inline]
pub(crate) fn check<C: Class>(address: usize, at: &Location<'_>) {
    if cfg!(debug_assertions) {
        check_order(C::RANK, C::NESTS, address, at);
    }
}

fn check_order(rank: u16, nests: bool, address: usize, at: &Location<'_>) {
    let Some(record) = threads::own() else { return };
    for Note { rank: outer, address: outer_address, at: outer_at, .. } in
        record.read().map(|noted| noted.note)
    {
        let is_before = outer < rank || (nests && outer == rank && outer_address != address);
        assert!(
            is_before,
            "against the order of locks: `{}` (rank {rank}) is taken at {at} by a thread that has held `{}` (rank \
             {outer}) since {outer_at}",
            class::name(rank),
            class::name(outer),
        );
    }
}

/// Whether a thread has a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It has it.
    Holds,
    /// It waits for it.
    Waits,
}

/// A lock, and a thread that holds it or waits for it.
#[derive(Debug, Clone)]
pub struct Held {
    /// The name of its class.
    pub lock: &'static str,
    /// The place of its class in the order.
    pub rank: u16,
    /// Which of the class, as long as it lives.
    pub address: usize,
    /// What the thread does.
    pub access: Access,
    /// With others.
    pub is_shared: bool,
    /// The number of the thread.
    pub thread: u32,
    /// Where it was asked for: file, line, column.
    pub at: &'static Location<'static>,
    /// How long at least; zero if a [`Watch`](crate::Watch) has not seen it before.
    pub age: Duration,
    pub(crate) slot: usize,
    pub(crate) number: u32,
}

impl Held {
    /// What the thread is called; empty if it has ended.
    #[must_use]
    pub fn thread_name(&self) -> String {
        let name = std::fs::read_to_string(format!("/proc/self/task/{}/comm", self.thread));
        name.map(|name| name.trim_end().to_owned()).unwrap_or_default()
    }

    fn is_held_by_another(&self, waiter: &Self) -> bool {
        self.access == Access::Holds && self.address == waiter.address && self.thread != waiter.thread
    }
}

/// What all threads hold and wait for.
#[must_use]
pub fn held() -> Vec<Held> {
    let mut found = Vec::new();
    for record in threads::all() {
        let thread = record.thread();
        found.extend(record.read().map(|noted| Held {
            lock: class::name(noted.note.rank),
            rank: noted.note.rank,
            address: noted.note.address,
            access: if noted.is_waiting { Access::Waits } else { Access::Holds },
            is_shared: noted.note.is_shared,
            thread,
            at: noted.note.at,
            age: Duration::ZERO,
            slot: noted.slot,
            number: noted.number,
        }));
    }
    found
}

/// Threads that wait for each other, each for the next and the last for the first; empty if there are none.
#[must_use]
pub fn cycle(held: &[Held]) -> Vec<u32> {
    let waits = || held.iter().filter(|entry| entry.access == Access::Waits);
    let wait_of = |thread: u32| waits().find(|entry| entry.thread == thread);
    for first in waits() {
        // Depth first: the path, and for each of its threads the holders that are still to be looked at.
        let (mut path, mut ahead, mut seen) = (Vec::new(), vec![vec![first.thread]], Vec::new());
        while let Some(next) = ahead.last_mut() {
            let Some(thread) = next.pop() else {
                ahead.pop();
                path.pop();
                continue;
            };
            if thread == first.thread && !path.is_empty() {
                return path;
            }
            if seen.contains(&thread) {
                continue;
            }
            seen.push(thread);
            let Some(wait) = wait_of(thread) else { continue };
            path.push(thread);
            let holders = held.iter().filter(|entry| entry.is_held_by_another(wait));
            ahead.push(holders.map(|entry| entry.thread).collect());
        }
    }
    Vec::new()
}
