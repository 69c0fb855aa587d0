//! What passes over all runs have found, and so whether another one may find anything.
//!
//! Thread safety: a plain value; its owner locks it for a few instructions. Invariant: a pass is worth it
//! again only after something has changed since one that could do as much; what is not known counts as
//! changed. Operations, garbage that is noted, and pins that go are changes, also while a pass is under way.

use kvfs_store::Seqno;

use super::Budget;

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

/// What a pass knew of when it began.
#[derive(Debug, Clone)]
pub(crate) struct PassStart {
    /// The last operation.
    mark: Seqno,
    /// How often garbage had been noted.
    garbage: u64,
    /// The pinned positions below `mark`: what only they see, the pass keeps. What the others see was
    /// replaced by later operations.
    pins: Vec<Seqno>,
}

/// The end of a pass that a caller waited for.
#[derive(Debug, Clone)]
pub(crate) struct PassEnd {
    pub(crate) start: PassStart,
    pub(crate) budget: Budget,
    pub(crate) outcome: Outcome,
    /// A reader holds what was there before it.
    pub(crate) is_read: bool,
}

/// What the passes that have ended are held against.
#[derive(Debug, Clone)]
pub(crate) struct Now {
    /// The newest operation.
    pub(crate) last: Seqno,
    /// What is pinned, ascending.
    pub(crate) pins: Vec<Seqno>,
    /// A reader holds what was there before a pass.
    pub(crate) is_read: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    /// The last pass that left nothing. Deletions may go further than one for ordinary writes that has
    /// failed, which is not meant.
    complete: Option<PassStart>,
    /// The last pass for ordinary writes, whatever came of it.
    for_writes: Option<PassStart>,
    /// As `complete`, of the last pass of any kind, as long as a reader holds what was there before one.
    while_read: Option<PassStart>,
    /// The last pass in the background.
    background: Option<PassStart>,
    /// How often garbage was noted.
    garbage: u64,
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
        self.garbage += 1;
    }

    /// A pass begins, which knows of the operations up to `mark`. `pins`: what is pinned, ascending, looked
    /// at after `mark`.
    pub(crate) fn begin(&self, mark: Seqno, mut pins: Vec<Seqno>) -> PassStart {
        pins.truncate(pins.partition_point(|pin| *pin < mark));
        PassStart { mark, garbage: self.garbage, pins }
    }

    /// A range was deleted: there may be much to be found.
    pub(crate) fn note_range_deleted(&mut self) {
        self.pause = 0;
    }

    /// A pass that a caller waited for has ended.
    pub(crate) fn note_end(&mut self, end: PassEnd) {
        let PassEnd { start, budget, outcome, is_read } = end;
        self.ended += 1;
        let is_for_write = budget == Budget::Ordinary;
        if !is_for_write {
            self.is_stuck = outcome == Outcome::Stuck;
        } else if outcome != Outcome::Enough {
            self.for_writes = Some(start.clone());
        }
        match outcome {
            Outcome::Complete => self.note_complete(start, is_read),
            // It would fail again.
            Outcome::Stuck | Outcome::Failed if !is_for_write => self.complete = Some(start),
            _ => {}
        }
    }

    /// A pass in the background has ended. One that failed would only fail again before anything has changed;
    /// one that is waited for may go further, since it may take the reserve. `is_complete`: as
    /// [`Outcome::Complete`].
    pub(crate) fn note_background_end(&mut self, start: PassStart, is_complete: bool, is_read: bool) {
        self.ended += 1;
        if is_complete {
            self.note_complete(start.clone(), is_read);
        }
        self.background = Some(start);
    }

    fn note_complete(&mut self, start: PassStart, is_read: bool) {
        // Readers may hide what there is.
        *(if is_read { &mut self.while_read } else { &mut self.complete }) = Some(start);
    }

    /// Whether there is no garbage that a pass has passed over, as far as its operations go: none was noted
    /// since it began, and the positions that it kept something for are all pinned.
    fn counts(&self, start: &PassStart, now: &Now) -> bool {
        let is_pinned = |pin| now.pins.binary_search(pin).is_ok();
        start.garbage == self.garbage && start.pins.iter().all(is_pinned)
    }

    /// Passes for an ordinary write have freed so many bytes, of zones of so many: where that was nothing,
    /// the next ones wait longer.
    pub(crate) fn note_freed(&mut self, bytes: u64, zone_bytes: u64) {
        self.pause = if bytes >= zone_bytes { 0 } else { (2 * self.pause).clamp(1, PAUSE_MAX) };
    }

    /// Operations since the last pass that has done what one within `budget` can; `u64::MAX`: there is
    /// something that no operation tells of.
    pub(crate) fn operations_since(&self, budget: Budget, now: &Now) -> u64 {
        let while_read = self.while_read.as_ref().filter(|_| now.is_read);
        let for_writes = self.for_writes.as_ref().filter(|_| budget == Budget::Ordinary);
        let passes = [self.complete.as_ref(), while_read, for_writes].into_iter().flatten();
        match passes.map(|start| (start.mark, self.counts(start, now))).max() {
            // What readers have hidden may be found when they are gone.
            Some((mark, true)) if now.is_read || !self.had_reader_timeout() => now.last.saturating_sub(mark),
            _ => u64::MAX,
        }
    }

    /// As [`Passes::operations_since`], for a pass in the background, which passes over what needs more space
    /// than there is.
    pub(crate) fn is_background_wanted(&self, now: &Now) -> bool {
        let has_been = |start: &PassStart| now.last <= start.mark && self.counts(start, now);
        self.operations_since(Budget::Ordinary, now) > 0 && !self.background.as_ref().is_some_and(has_been)
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

    fn end(passes: &Passes, mark: Seqno, budget: Budget, outcome: Outcome) -> PassEnd {
        PassEnd { start: passes.begin(mark, Vec::new()), budget, outcome, is_read: false }
    }

    fn now(last: Seqno, is_read: bool) -> Now {
        Now { last, pins: Vec::new(), is_read }
    }

    #[test]
    fn complete_pass_is_worth_it_again_after_an_operation() {
        let mut passes = Passes::default();
        assert_eq!(passes.operations_since(ORDINARY, &now(9, false)), u64::MAX, "none knew of anything");
        passes.note_end(end(&passes, 9, DELETING, Outcome::Complete));
        for (last, operations) in [(9, 0), (12, 3)] {
            assert_eq!(passes.operations_since(ORDINARY, &now(last, false)), operations);
            assert_eq!(passes.operations_since(DELETING, &now(last, false)), operations);
        }
        passes.note_garbage();
        assert_eq!(passes.operations_since(DELETING, &now(9, false)), u64::MAX);
    }

    #[test]
    fn garbage_noted_while_a_pass_is_under_way_is_for_the_next_one() {
        let mut passes = Passes::default();
        let start = passes.begin(9, Vec::new());
        passes.note_garbage();
        passes.note_background_end(start.clone(), true, false);
        assert!(passes.is_background_wanted(&now(9, false)));
        passes.note_end(PassEnd { start, budget: DELETING, outcome: Outcome::Complete, is_read: false });
        assert_eq!(passes.operations_since(DELETING, &now(9, false)), u64::MAX);
        passes.note_end(end(&passes, 9, DELETING, Outcome::Complete));
        assert_eq!(passes.operations_since(DELETING, &now(9, false)), 0);
    }

    #[test]
    fn pin_that_goes_makes_a_pass_that_kept_something_for_it_worth_it_again() {
        let at = |pins: &[Seqno]| Now { pins: pins.to_vec(), ..now(9, false) };
        for outcome in [Outcome::Complete, Outcome::Stuck] {
            let mut passes = Passes::default();
            let start = passes.begin(9, vec![3, 5, 9]);
            passes.note_background_end(start.clone(), false, false);
            passes.note_end(PassEnd { start, budget: DELETING, outcome, is_read: false });
            for (pins, operations) in [
                (&[3, 5, 9][..], 0),
                (&[3, 5], 0),
                (&[3, 5, 12], 0),
                (&[3, 9], u64::MAX),
                (&[5, 9], u64::MAX),
                (&[], u64::MAX),
            ] {
                assert_eq!(passes.operations_since(DELETING, &at(pins)), operations, "{pins:?}");
                assert_eq!(passes.is_background_wanted(&at(pins)), operations > 0, "{pins:?}");
            }
            passes
                .note_end(PassEnd { start: passes.begin(9, vec![3]), ..end(&passes, 9, DELETING, outcome) });
            assert_eq!(passes.operations_since(DELETING, &at(&[3])), 0, "it was made without the others");
        }
    }

    #[test]
    fn pass_for_a_write_that_failed_says_nothing_of_deletions() {
        let mut passes = Passes::default();
        passes.note_end(end(&passes, 9, ORDINARY, Outcome::Stuck));
        assert_eq!(passes.operations_since(ORDINARY, &now(9, false)), 0);
        assert_eq!(passes.operations_since(DELETING, &now(9, false)), u64::MAX);
        passes.note_end(end(&passes, 9, DELETING, Outcome::Stuck));
        assert_eq!(passes.operations_since(DELETING, &now(9, false)), 0, "it would fail again");
        assert!(passes.is_stuck());
        passes.note_end(end(&passes, 10, DELETING, Outcome::ZonesLeft));
        assert!(!passes.is_stuck());
    }

    #[test]
    fn pass_that_ended_with_enough_goes_on_for_the_next_write() {
        let mut passes = Passes::default();
        passes.note_end(end(&passes, 9, ORDINARY, Outcome::Enough));
        assert_eq!(passes.operations_since(ORDINARY, &now(9, false)), u64::MAX);
    }

    #[test]
    fn complete_pass_beside_a_reader_counts_as_long_as_that_reads() {
        let mut passes = Passes::default();
        passes.note_end(PassEnd { is_read: true, ..end(&passes, 9, DELETING, Outcome::Complete) });
        assert_eq!(passes.operations_since(DELETING, &now(9, true)), 0);
        assert_eq!(passes.operations_since(DELETING, &now(9, false)), u64::MAX);
    }

    #[test]
    fn reader_timeout_lasts_until_the_next_pass_or_the_end_of_the_reader() {
        let mut passes = Passes::default();
        passes.note_reader_timeout(passes.ended());
        assert!(!passes.had_reader_timeout(), "there was no pass");
        passes.note_end(end(&passes, 9, DELETING, Outcome::Complete));
        passes.note_reader_timeout(passes.ended());
        assert!(passes.had_reader_timeout());
        assert_eq!(passes.operations_since(DELETING, &now(9, true)), 0);
        assert_eq!(passes.operations_since(DELETING, &now(9, false)), u64::MAX, "what it has hidden");
        passes.note_background_end(passes.begin(9, Vec::new()), false, false);
        assert!(!passes.had_reader_timeout());
        passes.note_reader_timeout(1);
        assert!(!passes.had_reader_timeout(), "of an earlier one");
    }

    #[test]
    fn background_pass_that_skipped_something_is_not_repeated_and_says_nothing_of_others() {
        let mut passes = Passes::default();
        assert!(passes.is_background_wanted(&now(9, false)));
        passes.note_background_end(passes.begin(9, Vec::new()), false, false);
        assert!(!passes.is_background_wanted(&now(9, false)) && passes.is_background_wanted(&now(10, false)));
        assert_eq!(passes.operations_since(ORDINARY, &now(9, false)), u64::MAX);
        passes.note_background_end(passes.begin(10, Vec::new()), true, false);
        assert_eq!(passes.operations_since(ORDINARY, &now(10, false)), 0);
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
