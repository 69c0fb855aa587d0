//! What is to be looked at for segments that are in no use.
//!
//! Thread safety: shared; one lock, held for moments. Invariant: a segment that was named stays until it is
//! taken.

use std::collections::BTreeSet;
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};

/// How often it is looked whether dead segments may go, and whether object storage answers again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Segments that are looked at for as many blocks as one has.
const LOOKS: usize = 2;

/// What the sweeper is to look at.
#[derive(Default)]
pub(crate) struct Queue {
    asked: Mutex<Asked, class::EngineSlatedbSegmentsQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct Asked {
    suspects: BTreeSet<u64>,
    /// Segments that are to be looked at in turn.
    looks: usize,
    /// Blocks that were written since.
    written: usize,
}

/// What is to be done next.
pub(super) enum Task {
    Suspect(u64),
    Next,
    /// Nothing, for a moment.
    Wait,
    End,
}

impl Queue {
    pub(super) fn suspect(&self, segments: BTreeSet<u64>) {
        if !segments.is_empty() {
            self.asked.lock().suspects.extend(segments);
            self.changed.notify_all();
        }
    }

    /// Blocks were written: for as many as a segment has at most, `full`, segments are looked at.
    pub(super) fn written(&self, blocks: usize, full: usize) {
        let mut asked = self.asked.lock();
        asked.written += blocks;
        if asked.written >= full {
            asked.looks += asked.written / full * LOOKS;
            asked.written %= full;
            self.changed.notify_all();
        }
    }

    /// Whether it is to be looked at.
    pub(super) fn has(&self, segment: u64) -> bool {
        self.asked.lock().suspects.contains(&segment)
    }

    pub(super) fn notify(&self) {
        // Who is about to wait holds it.
        drop(self.asked.lock());
        self.changed.notify_all();
    }

    /// Waits for a task; for a moment only if `has_dead`.
    pub(super) fn next(&self, has_dead: bool, ends: &dyn Fn() -> bool) -> Task {
        let mut asked = self.asked.lock();
        loop {
            if ends() {
                return Task::End;
            }
            if let Some(suspect) = asked.suspects.pop_first() {
                return Task::Suspect(suspect);
            }
            if asked.looks > 0 {
                asked.looks -= 1;
                return Task::Next;
            }
            if has_dead {
                self.changed.wait_for(&mut asked, LOOK_AGAIN);
                return if ends() { Task::End } else { Task::Wait };
            }
            self.changed.wait(&mut asked);
        }
    }

    /// Waits for a moment, or the end.
    pub(super) fn pause(&self, ends: &dyn Fn() -> bool) {
        let mut asked = self.asked.lock();
        if !ends() {
            self.changed.wait_for(&mut asked, LOOK_AGAIN);
        }
    }
}
