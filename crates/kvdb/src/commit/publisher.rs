//! The visible watermark.
//!
//! Thread safety: writers and readers at once; `visible` takes no lock.
//! Invariants: everything at or below the watermark is wholly in memtables; the watermark never goes
//! back, and stands on commit boundaries only; a writer returns from `publish` when its own commit
//! is visible. A commit that is given up half-way stops the watermark for good (fail-stop): what it
//! left behind stays invisible.

use std::{collections::BTreeMap, fmt};

use kvfs_locks::class;
use kvfs_store::{Result, Seqno, StoreError};

use super::sync::{AtomicU64, Condvar, Mutex, Ordering, SPINS};

#[derive(Debug, Default)]
struct State {
    /// The last seqno that was given to a writer.
    begun: Seqno,
    /// Finished commits above the watermark: first seqno to last.
    finished: BTreeMap<Seqno, Seqno>,
    /// First seqno of a commit that was given up.
    given_up: Option<Seqno>,
}

/// Publishes commits in the order in which they were begun.
pub(crate) struct Publisher {
    visible: AtomicU64,
    state: Mutex<State, class::KvdbCommitPublisherState>,
    advanced: Condvar,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("visible", &self.visible()).finish_non_exhaustive()
    }
}

/// The right and duty to publish one commit. Dropped unpublished, it stops the publisher.
#[derive(Debug)]
#[must_use = "a commit that is dropped unpublished stops the store"]
pub(crate) struct Ticket<'a> {
    publisher: &'a Publisher,
    first: Seqno,
    last: Seqno,
    is_done: bool,
}

impl Publisher {
    /// Everything up to `visible` is visible.
    pub(crate) fn new(visible: Seqno) -> Self {
        Self {
            visible: AtomicU64::new(visible),
            state: Mutex::new(State { begun: visible, ..State::default() }),
            advanced: Condvar::default(),
        }
    }

    /// The newest visible seqno.
    pub(crate) fn visible(&self) -> Seqno {
        self.visible.load(Ordering::Acquire)
    }

    /// Announces the commit of the seqnos `base .. base + count`. Call in seqno order and without
    /// gaps, that is, under the lock that gives out seqnos. `count` is at least 1.
    pub(crate) fn begin(&self, base: Seqno, count: u64) -> Ticket<'_> {
        let mut state = self.state.lock();
        assert!(count > 0 && base == state.begun + 1, "{base} does not follow {}", state.begun);
        state.begun = base + count - 1;
        Ticket { publisher: self, first: base, last: state.begun, is_done: false }
    }

    /// Takes in a finished commit, and moves the watermark as far as that allows.
    fn finish(&self, state: &mut State, first: Seqno, last: Seqno) {
        state.finished.insert(first, last);
        // Only holders of the lock move the watermark.
        let before = self.visible.load(Ordering::Relaxed);
        let mut visible = before;
        while let Some(entry) = state.finished.first_entry()
            && *entry.key() == visible + 1
        {
            visible = entry.remove();
        }
        if visible != before {
            self.visible.store(visible, Ordering::Release);
            self.advanced.notify_all();
        }
    }
}

impl Ticket<'_> {
    /// First and last seqno of the commit.
    #[cfg(test)]
    pub(crate) fn seqnos(&self) -> (Seqno, Seqno) {
        (self.first, self.last)
    }

    /// Declares the commit complete, and returns when it is visible, which takes as long as the
    /// commits before it.
    ///
    /// # Errors
    /// [`StoreError::Failed`] when a commit before this one was given up.
    pub(crate) fn publish(mut self) -> Result<()> {
        self.is_done = true;
        let publisher = self.publisher;
        let mut state = publisher.state.lock();
        publisher.finish(&mut state, self.first, self.last);
        if publisher.visible.load(Ordering::Relaxed) < self.last {
            // Those before this one are about to finish, on other CPUs: sooner than a thread is woken.
            drop(state);
            for _ in 0..SPINS {
                if publisher.visible.load(Ordering::Acquire) >= self.last {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            state = publisher.state.lock();
        }
        while publisher.visible.load(Ordering::Relaxed) < self.last {
            if let Some(given_up) = state.given_up.filter(|&given_up| given_up < self.first) {
                let reason = format!("the commit at seqno {given_up} was given up half-way");
                return Err(StoreError::Failed { reason: reason.into() });
            }
            state = publisher.advanced.wait(state);
        }
        Ok(())
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut state = self.publisher.state.lock();
            let given_up = state.given_up.unwrap_or(Seqno::MAX).min(self.first);
            state.given_up = Some(given_up);
            self.publisher.advanced.notify_all();
        }
    }
}
