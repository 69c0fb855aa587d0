//! What passes over all runs have found, and so whether another one may find anything.
//!
//! Thread safety: a plain value; its owner locks it for a few instructions. Invariant: a pass is worth it
//! again only after something has changed since one that could do as much; what is not known counts as
//! changed.

use kvfs_store::Seqno;

use super::Budget;

/// No pass knew of anything.
const NEVER: Seqno = 0;

/// Most operations that ordinary writes on a full store wait for before the next pass.
pub(crate) const PAUSE_MAX: u64 = 64;

/// What has come of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ended early, since there was enough space for its caller.
    Enough,
    /// It has gone over everything, and no zones are left that are worth emptying.
    Complete,
    /// It has gone over everything; zones are left.
    ZonesLeft,
    /// Its merges found no space.
    Stuck,
    /// It failed for another reason.
    Failed,
}

/// The end of a pass that a caller waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassEnd {
    /// The last operation that it knew of.
    pub(crate) mark: Seqno,
    pub(crate) budget: Budget,
    pub(crate) outcome: Outcome,
    /// A reader holds what was there before it.
    pub(crate) is_read: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    /// The last operation that a pass knew of which left nothing. Deletions may go further than one for
    /// ordinary writes that has failed, which is not meant.
    complete: Seqno,
    /// As `complete`, of the last pass for ordinary writes, whatever came of it.
    for_writes: Seqno,
    /// As `complete`, of the last pass of any kind, as long as a reader holds what was there before one.
    while_read: Seqno,
    /// As `complete`, of the last pass in the background.
    background: Seqno,
    is_stuck: bool,
    /// Operations that ordinary writes wait for before the next one.
    pause: u64,
    ended: u64,
    /// What `ended` was when a writer last waited in vain for readers of what passes have freed.
    readers_timed_out: u64,
}

impl Passes {
    /// Something that is no operation has left garbage.
    pub(crate) fn note_garbage(&mut self) {
        (self.complete, self.for_writes, self.while_read, self.background) = (NEVER, NEVER, NEVER, NEVER);
    }

    /// A range was deleted: there may be much to be found.
    pub(crate) fn note_range_deleted(&mut self) {
        self.pause = 0;
    }

    /// A pass that a caller waited for has ended.
    pub(crate) fn note_end(&mut self, end: &PassEnd) {
        let PassEnd { mark, budget, outcome, is_read } = *end;
        self.ended += 1;
        let is_for_write = budget == Budget::Ordinary;
        if !is_for_write {
            self.is_stuck = outcome == Outcome::Stuck;
        } else if outcome != Outcome::Enough {
            self.for_writes = mark;
        }
        match outcome {
            Outcome::Complete => self.note_complete(mark, is_read),
            // It would fail again.
            Outcome::Stuck | Outcome::Failed if !is_for_write => self.complete = mark,
            _ => {}
        }
    }

    /// A pass in the background has ended. One that failed would only fail again before anything has changed;
    /// one that is waited for may go further, since it may take the reserve. `is_complete`: as
    /// [`Outcome::Complete`].
    pub(crate) fn note_background_end(&mut self, mark: Seqno, is_complete: bool, is_read: bool) {
        self.ended += 1;
        self.background = mark;
        if is_complete {
            self.note_complete(mark, is_read);
        }
    }

    fn note_complete(&mut self, mark: Seqno, is_read: bool) {
        // Readers may hide what there is.
        *(if is_read { &mut self.while_read } else { &mut self.complete }) = mark;
    }

    /// Passes for an ordinary write have freed so many bytes, of zones of so many: where that was nothing,
    /// the next ones wait longer.
    pub(crate) fn note_freed(&mut self, bytes: u64, zone_bytes: u64) {
        self.pause = if bytes >= zone_bytes { 0 } else { (2 * self.pause).clamp(1, PAUSE_MAX) };
    }

    /// Operations since the last pass that has done what one within `budget` can; `u64::MAX`: there is
    /// something that no operation tells of. `last` is the newest operation, `is_read`: a reader holds what
    /// was there before a pass.
    pub(crate) fn operations_since(&self, budget: Budget, last: Seqno, is_read: bool) -> u64 {
        let mut known = self.complete;
        if is_read {
            known = known.max(self.while_read);
        }
        if budget == Budget::Ordinary {
            known = known.max(self.for_writes);
        }
        // What readers have hidden may be found when they are gone.
        if known == NEVER || (!is_read && self.had_reader_timeout()) {
            u64::MAX
        } else {
            last.saturating_sub(known)
        }
    }

    /// As [`Passes::operations_since`], for a pass in the background, which passes over what needs more space
    /// than there is.
    pub(crate) fn is_background_wanted(&self, last: Seqno, is_read: bool) -> bool {
        self.operations_since(Budget::Ordinary, last, is_read) > 0 && last > self.background
    }

    /// Operations that ordinary writes wait for before the next pass, since the last ones freed nothing.
    pub(crate) fn pause(&self) -> u64 {
        self.pause
    }

    /// Whether the last one that may take the reserve found no space for its merges.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Passes that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Readers of what passes have freed, of which `ended` had ended then, are no longer waited for.
    pub(crate) fn note_reader_timeout(&mut self, ended: u64) {
        self.readers_timed_out = self.readers_timed_out.max(ended);
    }

    /// Whether a writer was refused since the last pass because of readers that read on.
    pub(crate) fn had_reader_timeout(&self) -> bool {
        self.ended > 0 && self.readers_timed_out == self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDINARY: Budget = Budget::Ordinary;
    const DELETING: Budget = Budget::Deleting;

    fn end(mark: Seqno, budget: Budget, outcome: Outcome) -> PassEnd {
        PassEnd { mark, budget, outcome, is_read: false }
    }

    #[test]
    fn complete_pass_is_worth_it_again_after_an_operation() {
        let mut passes = Passes::default();
        assert_eq!(passes.operations_since(ORDINARY, 9, false), u64::MAX, "none knew of anything");
        passes.note_end(&end(9, DELETING, Outcome::Complete));
        for (last, operations) in [(9, 0), (12, 3)] {
            assert_eq!(passes.operations_since(ORDINARY, last, false), operations);
            assert_eq!(passes.operations_since(DELETING, last, false), operations);
        }
        passes.note_garbage();
        assert_eq!(passes.operations_since(DELETING, 9, false), u64::MAX);
    }

    #[test]
    fn pass_for_a_write_that_failed_says_nothing_of_deletions() {
        let mut passes = Passes::default();
        passes.note_end(&end(9, ORDINARY, Outcome::Stuck));
        assert_eq!(passes.operations_since(ORDINARY, 9, false), 0);
        assert_eq!(passes.operations_since(DELETING, 9, false), u64::MAX);
        passes.note_end(&end(9, DELETING, Outcome::Stuck));
        assert_eq!(passes.operations_since(DELETING, 9, false), 0, "it would fail again");
        assert!(passes.is_stuck());
        passes.note_end(&end(10, DELETING, Outcome::ZonesLeft));
        assert!(!passes.is_stuck());
    }

    #[test]
    fn pass_that_ended_with_enough_goes_on_for_the_next_write() {
        let mut passes = Passes::default();
        passes.note_end(&end(9, ORDINARY, Outcome::Enough));
        assert_eq!(passes.operations_since(ORDINARY, 9, false), u64::MAX);
    }

    #[test]
    fn complete_pass_beside_a_reader_counts_as_long_as_that_reads() {
        let mut passes = Passes::default();
        passes.note_end(&PassEnd { is_read: true, ..end(9, DELETING, Outcome::Complete) });
        assert_eq!(passes.operations_since(DELETING, 9, true), 0);
        assert_eq!(passes.operations_since(DELETING, 9, false), u64::MAX);
    }

    #[test]
    fn reader_timeout_lasts_until_the_next_pass_or_the_end_of_the_reader() {
        let mut passes = Passes::default();
        passes.note_reader_timeout(passes.ended());
        assert!(!passes.had_reader_timeout(), "there was no pass");
        passes.note_end(&end(9, DELETING, Outcome::Complete));
        passes.note_reader_timeout(passes.ended());
        assert!(passes.had_reader_timeout());
        assert_eq!(passes.operations_since(DELETING, 9, true), 0);
        assert_eq!(passes.operations_since(DELETING, 9, false), u64::MAX, "what it has hidden");
        passes.note_background_end(9, false, false);
        assert!(!passes.had_reader_timeout());
        passes.note_reader_timeout(1);
        assert!(!passes.had_reader_timeout(), "of an earlier one");
    }

    #[test]
    fn background_pass_that_skipped_something_is_not_repeated_and_says_nothing_of_others() {
        let mut passes = Passes::default();
        assert!(passes.is_background_wanted(9, false));
        passes.note_background_end(9, false, false);
        assert!(!passes.is_background_wanted(9, false) && passes.is_background_wanted(10, false));
        assert_eq!(passes.operations_since(ORDINARY, 9, false), u64::MAX);
        passes.note_background_end(10, true, false);
        assert_eq!(passes.operations_since(ORDINARY, 10, false), 0);
    }

    #[test]
    fn passes_that_free_nothing_come_ever_more_seldom() {
        let mut passes = Passes::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push(passes.pause());
            passes.note_freed(99, 100);
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        passes.note_freed(100, 100);
        assert_eq!(passes.pause(), 0);
        passes.note_freed(0, 100);
        passes.note_range_deleted();
        assert_eq!(passes.pause(), 0);
    }
}
