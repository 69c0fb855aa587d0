//! Rounds of what empties zones or moves data, over what others may hold: merges under way, readers,
//! transactions.
//!
//! Thread safety: for one thread. Invariant: while merges or passes are under way nothing is given up: they
//! end by themselves, and what they leave is another store.

use std::time::Duration;

use super::Merger;

/// Rounds that get nowhere, while no merge is under way, before it ends.
const IN_VAIN_MAX: u32 = 16;
/// How long such a round waits for others. Beside merges each one waits twice as long as the one before, up
/// to [`WAIT_MAX`].
const WAIT: Duration = Duration::from_millis(20);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Looks at merges under way before anything is chosen: between two steps of one there is none. At most ten
/// seconds.
const LOOKS_QUIET: u32 = 3;
const LOOKS_MAX: u32 = 500;

/// See the module.
pub(super) struct Rounds<'m> {
    merger: &'m Merger,
    /// Without a merge under way.
    in_vain: u32,
    /// How long the next one beside a merge waits.
    wait: Duration,
}

impl<'m> Rounds<'m> {
    pub(super) fn of(merger: &'m Merger) -> Self {
        Self { merger, in_vain: 0, wait: WAIT }
    }

    /// What merges under way drop is not to be copied, and what they leave is another store than the one that
    /// a choice was made of: after an opening they have much to do. Where writers keep them at work for long,
    /// they are not waited for; nor when `goes_on` says no.
    pub(super) fn let_merges_end(merger: &Merger, mut goes_on: impl FnMut() -> bool) {
        let mut quiet = 0;
        for _ in 0..LOOKS_MAX {
            quiet = if merger.merging.is_quiet() { quiet + 1 } else { 0 };
            if !goes_on() || quiet == LOOKS_QUIET || merger.runtime.is_stopping() {
                return;
            }
            merger.runtime.timer.wait(WAIT);
        }
    }

    /// A round got somewhere.
    pub(super) fn got_on(&mut self) {
        (self.in_vain, self.wait) = (0, WAIT);
    }

    /// A round got nowhere: waits for others. False: there has been enough of that.
    pub(super) fn wait_for_others(&mut self) -> bool {
        let is_alone = self.merger.merging.is_quiet();
        self.in_vain += u32::from(is_alone);
        let goes_on = self.in_vain < IN_VAIN_MAX;
        if goes_on {
            let next = (self.wait * 2).min(WAIT_MAX);
            let wait = if is_alone { WAIT } else { std::mem::replace(&mut self.wait, next) };
            self.merger.runtime.timer.wait(wait);
        }
        goes_on
    }

    /// Whether the last round got nowhere though no merge was under way.
    pub(super) fn is_last_in_vain(&self) -> bool {
        self.in_vain > 0
    }
}
