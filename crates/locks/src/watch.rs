//! How long locks are held.
//!
//! Purpose: an acquisition reads no clock. A watch that looks again and again, and finds the same hold again,
//! knows that it has lasted since the first look.
//!
//! Thread safety: shared; one look at a time. Invariant: a hold, and a cycle of waits, is reported once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::held::{Access, Held, cycle, held};

/// A lock that is held for so long is worth a line in the log.
pub const HOLD_TIME_MAX: Duration = Duration::from_secs(1);

/// When a watch first saw a note, and whether it was reported as too old.
#[derive(Debug, Clone, Copy)]
struct Seen {
    number: u32,
    first: Duration,
    is_reported: bool,
}

#[derive(Debug, Default)]
struct State {
    /// By thread and slot.
    seen: HashMap<(u32, usize), Seen>,
    /// The last cycle that was reported.
    cycle: Vec<u32>,
}

/// What is seen of the locks of this process by looking again and again.
#[derive(Debug, Default)]
pub struct Watch(Mutex<State>);

/// What is worth a line in the log.
#[derive(Debug, Default)]
pub struct Report {
    /// Locks that are held for [`HOLD_TIME_MAX`] or longer by now, each with the number of threads that wait
    /// for it.
    pub long_held: Vec<(Held, usize)>,
    /// Threads that have waited for each other all this time, with what each waits for.
    pub cycle: Vec<Held>,
}

impl Watch {
    /// What all threads hold and wait for at `now`, on the monotonic clock.
    pub fn look(&self, now: Duration) -> Vec<Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).look(now)
    }

    /// Looks, and says what has become too old since the last report. To be asked once in [`HOLD_TIME_MAX`].
    pub fn report(&self, now: Duration) -> Report {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).report(now)
    }
}

impl State {
    fn look(&mut self, now: Duration) -> Vec<Held> {
        let mut found = held();
        let mut seen = HashMap::new();
        for entry in &mut found {
            let key = (entry.thread, entry.slot);
            let known = self.seen.get(&key).filter(|seen| seen.number == entry.number);
            let known =
                known.copied().unwrap_or(Seen { number: entry.number, first: now, is_reported: false });
            entry.age = now.saturating_sub(known.first);
            seen.insert(key, known);
        }
        self.seen = seen;
        found
    }

    fn report(&mut self, now: Duration) -> Report {
        let found = self.look(now);
        let waiters = |lock: &Held| {
            let is_waiter = |entry: &&Held| entry.access == Access::Waits && entry.address == lock.address;
            found.iter().filter(is_waiter).count()
        };
        let mut long_held = Vec::new();
        let is_old = |entry: &&Held| entry.age >= HOLD_TIME_MAX;
        for entry in found.iter().filter(is_old).filter(|entry| entry.access == Access::Holds) {
            let seen = self.seen.get_mut(&(entry.thread, entry.slot));
            if seen.is_some_and(|seen| !std::mem::replace(&mut seen.is_reported, true)) {
                long_held.push((entry.clone(), waiters(entry)));
            }
        }
        // What passes by while the threads are read one by one is none.
        let old: Vec<_> = found.iter().filter(is_old).cloned().collect();
        let threads = cycle(&old);
        let is_new = std::mem::replace(&mut self.cycle, threads.clone()) != threads;
        let wait_of =
            |thread: &u32| old.iter().find(|entry| entry.access == Access::Waits && entry.thread == *thread);
        let cycle = if is_new { threads.iter().filter_map(wait_of).cloned().collect() } else { Vec::new() };
        Report { long_held, cycle }
    }
}
