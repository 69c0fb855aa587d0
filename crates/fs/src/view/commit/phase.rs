//! How far a transaction's view is: the state of `commit`, which has the diagram, and the lock around it.
//!
//! Thread safety: any number of threads. A transition waits for the operations that hold what
//! [`CommitPhase::admit`] has returned; those wait for nothing.

use kvfs_locks::class;
use kvfs_store::Position;

use crate::fair_lock::{FairLock, ReadGuard};

/// How far a transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is admitted.
    Open,
    /// It is being committed: only the kernel's dirty pages still come in.
    Frozen,
    /// The commit takes place: nothing comes in.
    Closed,
    /// Committed or aborted.
    Ended,
}

/// The phase of a view.
pub(crate) struct CommitPhase(FairLock<Phase, class::FsViewCommitPhase>);

impl CommitPhase {
    pub(in crate::view) fn open() -> Self {
        Self(FairLock::new(Phase::Open))
    }

    /// The phase now.
    pub(in crate::view) fn now(&self) -> Phase {
        *self.0.read()
    }

    /// Keeps the phase, unless it is later than `phase_max`. An operation may consist of two: a transition
    /// waits for what is under way, which waits for nothing.
    pub(super) fn admit(&self, phase_max: Phase) -> Option<ReadGuard<'_, Phase, class::FsViewCommitPhase>> {
        let phase = self.0.read();
        if *phase > phase_max { None } else { Some(phase) }
    }

    /// `Open` → `Frozen`.
    ///
    /// # Errors
    /// The phase, which is another one.
    pub(super) fn freeze(&self) -> Result<(), Phase> {
        self.advance(Phase::Open, Phase::Frozen)
    }

    /// `Frozen` → `Closed`. Waits for writes that are under way: later ones would be a part of what is
    /// committed, but not of what the main line hears of.
    ///
    /// # Errors
    /// The phase, which is another one.
    pub(super) fn close(&self) -> Result<(), Phase> {
        self.advance(Phase::Frozen, Phase::Closed)
    }

    /// `Frozen`, `Closed` → `Open`; `reopened` runs before any operation is admitted.
    pub(super) fn reopen(&self, reopened: impl FnOnce()) {
        let mut phase = self.0.write();
        if matches!(*phase, Phase::Frozen | Phase::Closed) {
            *phase = Phase::Open;
            reopened();
        }
    }

    /// `Closed` → `Ended`, after the store's commit.
    pub(super) fn end(&self) {
        *self.0.write() = Phase::Ended;
    }

    /// `Open`, `Frozen` → `Ended`. False: it is in another one.
    pub(super) fn end_early(&self) -> bool {
        let mut phase = self.0.write();
        // What is being committed is not taken back any more.
        let may_end = !matches!(*phase, Phase::Closed | Phase::Ended);
        if may_end {
            *phase = Phase::Ended;
        }
        may_end
    }

    /// `Open` → `Ended`, if `commit` commits. A writer must hold the phase, so nothing comes in between its
    /// look and the end. Waits for no thread: `None` while an operation is under way.
    pub(super) fn end_unwritten(&self, commit: impl FnOnce() -> Option<Position>) -> Option<Position> {
        let mut phase = self.0.try_write()?;
        if *phase != Phase::Open {
            return None;
        }
        let position = commit()?;
        *phase = Phase::Ended;
        Some(position)
    }

    fn advance(&self, from: Phase, to: Phase) -> Result<(), Phase> {
        let mut phase = self.0.write();
        if *phase != from {
            return Err(*phase);
        }
        *phase = to;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_phase_leaves_closed_by_commit_or_reopening_only() {
        let phase = CommitPhase::open();
        assert_eq!(phase.close(), Err(Phase::Open));
        phase.freeze().unwrap();
        assert_eq!(phase.freeze(), Err(Phase::Frozen));
        assert!(phase.admit(Phase::Open).is_none() && phase.admit(Phase::Frozen).is_some());
        phase.close().unwrap();
        assert!(!phase.end_early() && phase.now() == Phase::Closed);
        phase.reopen(|| ());
        assert_eq!(phase.now(), Phase::Open);
        assert!(phase.end_early() && phase.now() == Phase::Ended);
        phase.reopen(|| unreachable!("the end is for good"));
        assert_eq!(phase.freeze(), Err(Phase::Ended));
    }

    #[test]
    fn commit_phase_ends_unwritten_when_open_and_unused_only() {
        let phase = CommitPhase::open();
        let commit = || Some(Position::default());
        let under_way = phase.admit(Phase::Open);
        assert_eq!(phase.end_unwritten(commit), None);
        drop(under_way);
        assert_eq!(phase.end_unwritten(|| None), None);
        assert_eq!(phase.now(), Phase::Open);
        assert_eq!(phase.end_unwritten(commit), Some(Position::default()));
        assert_eq!(phase.now(), Phase::Ended);
    }
}
