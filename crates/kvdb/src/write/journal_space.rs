//! Room in the journal: more of its area, or what is retired, or its start.
//!
//! Thread safety: any thread; the log begins anew under the order lock, which keeps every append out.
//! Invariants: a part of the area that finds no space on the medium is never a failure: the log then begins
//! anew once everything in it is in runs, and `Full` is returned only for a batch that was refused by a log
//! that was empty, began at the start of its area and could get no more of it. Of several refused writers one
//! makes room, and all try again before they make more.

use kvfs_store::{Result, StoreError};

use crate::journal::{Journal, Room};
use crate::runtime::options::Background;
use crate::runtime::stalls::StallTimer;
use crate::write::Writer;
use crate::write::admission::PROGRESS_WAIT_MAX;

impl Writer {
    /// Makes room for a batch that the journal has refused because it had only what was `found`; the caller
    /// must try again.
    pub(super) fn make_journal_space(&self, found: Room, held: &mut StallTimer) -> Result<()> {
        self.runtime.hold(held, || {
            self.runtime.health.check()?;
            let journal = self.log.journal()?;
            if journal.room() != found {
                return Ok(());
            }
            match journal.allocate_part() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(%error, "no space for the next part of the journal");
                    // What another writer has made meanwhile may be enough.
                    if journal.room() != found || self.sequencer.restart_journal(0)? {
                        return Ok(());
                    }
                    // Elsewhere than at its start a log that has just become empty begins anew at the next
                    // try.
                    if found.is_whole(journal.area_bytes()) && self.live.view().sealed.is_empty() {
                        return Err(StoreError::Full);
                    }
                }
            }
            self.retire_journal(journal)
        })
    }

    /// Seals and flushes until the journal has retired something.
    fn retire_journal(&self, journal: &Journal) -> Result<()> {
        let seen = self.runtime.progress.count();
        let tail = journal.tail();
        // Also an empty table, when all others are in runs: a tail that was taken while a group was open lies
        // before that group, and nothing else would ever move it on.
        let is_behind = || self.live.view().sealed.is_empty() && journal.tail() < journal.head();
        // Where memory has no room for another layer, those that wait for their flush retire something.
        self.sequencer.seal_if_room(|active| active.bytes() > 0 || is_behind());
        match self.runtime.options.background {
            Background::Manual => self.flusher.flush_oldest().map(drop),
            Background::Threads => {
                self.runtime.work.notify();
                if journal.tail() == tail {
                    self.runtime.progress.wait_after(seen, PROGRESS_WAIT_MAX);
                    self.admission.check_flush_space()?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
