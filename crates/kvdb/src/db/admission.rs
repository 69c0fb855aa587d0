//! What a write waits for before it comes in: space for its own flush, room in memory and journal, its share of the
//! debt.
//!
//! Thread safety: no lock is held during a wait, but for those of a transaction that commits. The time line of held
//! writers is locked for a few instructions, and only when there is a debt.
//!
//! Invariants: the active and the sealed memtables together stay below [`SEALED_MAX`] + 1 tables, but for what the
//! writes under way add. A writer is slowed down before it is stopped: while the last table fills, each byte costs
//! more and more of what its flush costs, so that the flush under way ends first. What still may hold a writer
//! longer than [`throttle::DELAY_MAX`]: flushes that suddenly take many times as long as they did, a journal
//! that is full before a table is, and a full store, where it waits for space that is being made, or makes some itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kvfs_store::{Batch, Op, Result, StoreError};

use super::inner::Inner;
use super::merges::{bytes_of, full_is_false, units_of};
use super::options::Background;
use super::stalls::Held;
use super::throttle::{self, DELAY_MAX, Debt, SEALED_MAX};
use crate::compaction::picker;
use crate::memtable::space_of;
use crate::zone::Budget;

/// Longest wait for one step of background progress before looking again.
const PROGRESS_WAIT_MAX: Duration = Duration::from_millis(200);

/// See [`Inner::compaction_bytes_full`]: in full memtables.
const TABLES_UNMERGED: u64 = 64;

/// Most operations between two passes (see [`Inner::reclaim_is_worth_it`]).
const RECLAIM_PAUSE_MAX: u64 = 64;

/// How often a writer waits for those who read what his pass has freed, and how long. Most have it for a moment; who has it
/// longer (a scan, a backup) is not worth waiting for.
const WAITS_FOR_READERS: u32 = 40;
const WAIT_FOR_READERS: Duration = Duration::from_millis(5);

/// Below the resolution of a timed wait a delay would cost more than it asks for: it is left for the next one.
const DELAY_MIN: Duration = Duration::from_micros(200);

impl Inner {
    /// Waits until the batch may come in.
    pub(crate) fn admit(&self, batch: &Batch, held: &mut Held) -> Result<()> {
        self.announce_features_of(batch)?;
        self.admit_space(batch, held)?;
        self.wait_for_room(held)?;
        self.pay_debt(batch.whole_bytes() as u64, held);
        Ok(())
    }

    pub(crate) fn admit_space(&self, batch: &Batch, held: &mut Held) -> Result<()> {
        let is_range = |op: &Op| matches!(op, Op::DeleteRange { .. });
        if self.reclaims.pause.load(Ordering::Relaxed) > 0 && batch.ops().iter().any(is_range) {
            // There may be much to be found.
            self.reclaims.pause.store(0, Ordering::Relaxed);
        }
        self.admit_bytes(space_of(batch), budget_of(batch), held)
    }

    /// Waits for nothing; tries to make space for `bytes` when there is none.
    pub(crate) fn admit_bytes(&self, bytes: u64, budget: Budget, held: &mut Held) -> Result<()> {
        if self.has_space(bytes, budget) {
            return Ok(());
        }
        self.hold(held, || self.make_space(bytes, budget))
    }

    fn make_space(&self, bytes: u64, budget: Budget) -> Result<()> {
        // What waits to be flushed is counted with all that it may come to.
        let is_much = self.view().unwritten_space_bytes() >= self.flush_slack_bytes();
        if is_much && self.flush_everything()? && self.has_space(bytes, budget) {
            return Ok(());
        }
        if self.has_space_when_emptied(bytes, budget)? {
            return Ok(());
        }
        // Merges under way hold what they have written and not yet brought in.
        if self.merging.claims() > 0 {
            self.end_merges();
            if self.has_space(bytes, budget) {
                return Ok(());
            }
        }
        // Deleted data takes space until a merge drops it: reclaim before saying "full".
        if self.reclaim_wanted(budget) && (self.reclaim_is_worth_it(budget) || self.undo.keeps_any()) {
            let before = self.ctx.zones.free_bytes(Budget::Reserve);
            let has_space = self.has_space_after_passes(bytes, budget)?;
            self.note_reclaimed(before);
            if has_space {
                return Ok(());
            }
        } else if self.has_space_soon(bytes, budget) {
            // Of a pass that has ended since.
            return Ok(());
        }
        // What was there before a transaction is worth less than what comes now.
        if self.give_up_undo()? && self.has_space_after_passes(bytes, budget)? {
            return Ok(());
        }
        // Merges that can't go on need what was left for them no more, and blocks may be found whose space comes back
        // without them.
        let is_stuck =
            self.reclaims.is_stuck.load(Ordering::Relaxed) || !self.ctx.zones.has_zones_for_merges();
        let is_last_resort = budget == Budget::Deleting && is_stuck;
        if is_last_resort && self.has_space(bytes, Budget::Reserve) { Ok(()) } else { Err(StoreError::Full) }
    }

    /// Reclaims; whether that has made space.
    fn has_space_after_passes(&self, bytes: u64, budget: Budget) -> Result<bool> {
        // A pass that ran out of space half-way may have freed enough.
        full_is_false(self.reclaim(budget))?;
        if self.has_space_soon(bytes, budget) {
            return Ok(true);
        }
        // Deletions, or merges that were ended, may have left less of the reserve than two runs need. Only what is done for
        // deletions goes on from there; without it writes would be refused until somebody deletes more. What undo keeps could not
        // be dropped yet.
        let operations = self.operations_since_reclaim(Budget::Deleting);
        let is_paused = self.reclaims.pause.load(Ordering::Relaxed) > 0;
        let is_worth_it = operations > if is_paused { RECLAIM_PAUSE_MAX } else { 0 };
        if budget != Budget::Ordinary || !is_worth_it || self.undo.keeps_any() {
            return Ok(false);
        }
        full_is_false(self.reclaim(Budget::Deleting))?;
        Ok(self.has_space_soon(bytes, budget))
    }

    /// A pass goes over all that is stored. One after the other that frees nothing would make every write on a full store
    /// that slow, so ordinary ones wait for more and more operations in between; deletions never do.
    fn reclaim_is_worth_it(&self, budget: Budget) -> bool {
        budget != Budget::Ordinary
            || self.operations_since_reclaim(budget) > self.reclaims.pause.load(Ordering::Relaxed)
    }

    /// After a pass, before which so many bytes were free.
    fn note_reclaimed(&self, free_bytes_before: u64) {
        let freed = self.ctx.zones.free_bytes(Budget::Reserve).saturating_sub(free_bytes_before);
        let pause = self.reclaims.pause.load(Ordering::Relaxed);
        let is_worth_it = freed >= u64::from(self.ctx.zones.zone_bytes());
        let pause = if is_worth_it { 0 } else { (2 * pause).clamp(1, RECLAIM_PAUSE_MAX) };
        self.reclaims.pause.store(pause, Ordering::Relaxed);
    }

    /// Whether there is space for `bytes` more than what waits to be written.
    pub(crate) fn has_space(&self, bytes: u64, budget: Budget) -> bool {
        // Indexes and filters of the future runs, and padding of short records.
        let needed = (self.bytes_waiting() + bytes) / 16 * 17 + self.flush_slack_bytes();
        self.ctx.zones.free_bytes(budget) >= needed
    }

    /// As [`Self::has_space`], after a pass, whoever has made it: what it has freed comes when nobody reads it any more, as a rule in
    /// a moment. Where that took too long once, nobody waits for long until another pass has ended.
    fn has_space_soon(&self, bytes: u64, budget: Budget) -> bool {
        let passes_ended = self.reclaims.passes_ended();
        for _ in 0..WAITS_FOR_READERS {
            // Looked for first: what has been let go of by then is free already.
            let is_read = self.versions_outlived.any() || self.pieces_outlived.any();
            if self.has_space(bytes, budget) {
                return true;
            }
            if !is_read {
                return false;
            }
            if self.options.background == Background::Manual {
                break;
            }
            self.timer.wait(WAIT_FOR_READERS);
            if self.reclaims.was_in_vain() {
                break;
            }
        }
        let has_space = self.has_space(bytes, budget);
        if !has_space && self.versions_outlived.any() {
            self.reclaims.note_in_vain(passes_ended);
        }
        has_space
    }

    /// As [`Self::has_space`], while zones are emptied at leisure and until they are: ended half-way, that would have taken space and
    /// given none back.
    fn has_space_when_emptied(&self, bytes: u64, budget: Budget) -> Result<bool> {
        let _hurry = self.pace.hurry();
        loop {
            let seen = self.progress.rings();
            let is_emptying = self.is_emptying_zones();
            if self.has_space(bytes, budget) {
                return Ok(true);
            }
            if !is_emptying || self.stopping.load(Ordering::Acquire) {
                return Ok(false);
            }
            self.health.check()?;
            self.progress.wait_after(seen, PROGRESS_WAIT_MAX);
        }
    }

    /// Whether space is being made for which nobody waits.
    fn is_emptying_zones(&self) -> bool {
        self.reclaims.is_emptying.load(Ordering::Relaxed)
    }

    /// Bytes that ordinary writes may still bring, beside what waits to be written.
    pub(crate) fn space_left(&self) -> u64 {
        let free = self.ctx.zones.free_bytes(Budget::Ordinary).saturating_sub(self.flush_slack_bytes());
        (free / 17 * 16).saturating_sub(self.bytes_waiting())
    }

    /// What waits to be written, of transactions, too.
    pub(crate) fn bytes_waiting(&self) -> u64 {
        self.view().unwritten_space_bytes() + self.transactions.bytes_private()
    }

    /// Waits until memory has room for a batch: in the active table, or for another one.
    pub(crate) fn wait_for_room(&self, held: &mut Held) -> Result<()> {
        let waits = self.options.background == Background::Threads;
        self.wait_until(held, || {
            let view = self.view();
            view.sealed.len() < SEALED_MAX || (waits && view.active.flush_bytes() < self.table_bytes)
        })
    }

    /// Waits until memory has room for another sealed layer.
    pub(crate) fn wait_for_layer(&self, held: &mut Held) -> Result<()> {
        self.wait_until(held, || self.view().sealed.len() < SEALED_MAX)
    }

    fn wait_until(&self, held: &mut Held, has_room: impl Fn() -> bool) -> Result<()> {
        if has_room() {
            return Ok(());
        }
        self.hold(held, || {
            loop {
                let seen = self.progress.rings();
                if has_room() {
                    return Ok(());
                }
                self.health.check()?;
                match self.options.background {
                    Background::Manual => {
                        self.flush_oldest()?;
                    }
                    Background::Threads => {
                        self.progress.wait_after(seen, PROGRESS_WAIT_MAX);
                        self.check_flush_space()?;
                    }
                }
            }
        })
    }

    /// `Full` when flushes find no space and reclaiming does not help: waiting would not end.
    fn check_flush_space(&self) -> Result<()> {
        if !self.flush_is_full.load(Ordering::Acquire) {
            return Ok(());
        }
        full_is_false(self.reclaim(Budget::Reserve))?;
        if self.flush_is_full.load(Ordering::Acquire) && self.give_up_undo()? {
            full_is_false(self.reclaim(Budget::Reserve))?;
        }
        if self.flush_is_full.load(Ordering::Acquire) && self.has_space_soon(0, Budget::Reserve) {
            full_is_false(self.flush_all())?;
        }
        if self.flush_is_full.load(Ordering::Acquire) { Err(StoreError::Full) } else { Ok(()) }
    }

    /// Waits for what the background threads have to do for so many bytes, when they are behind.
    pub(crate) fn pay_debt(&self, payload_bytes: u64, held: &mut Held) {
        if self.options.background == Background::Manual {
            return;
        }
        let debt = Debt {
            unflushed_bytes: self.view().unflushed_bytes(),
            table_bytes: self.table_bytes,
            // Who waited for merges that find no space would wait for good.
            compaction_bytes: (self.compaction_debt_bytes.load(Ordering::Relaxed))
                .saturating_sub(self.debt_lacking_space.load(Ordering::Relaxed)),
            compaction_bytes_full: self.compaction_bytes_full(),
            flush_rate: self.counters.flush_rate(),
            shortage: if self.is_emptying_zones() { self.shortage() } else { 0.0 },
        };
        let cost = throttle::cost(payload_bytes, debt);
        if cost.is_zero() {
            return;
        }
        let now = self.clock.monotonic();
        let delay = self.admission.lock().take(now, cost, Duration::ZERO, DELAY_MAX);
        if delay >= DELAY_MIN {
            self.counters.note_delay(delay);
            self.hold(held, || {
                // Not the bell of progress: whatever ends first would let all go on who have been slowed down.
                self.timer.wait(delay);
            });
        }
    }

    /// Seals and flushes until the journal has retired something.
    pub(crate) fn make_journal_space(&self, held: &mut Held) -> Result<()> {
        self.hold(held, || self.retire_journal())
    }

    fn retire_journal(&self) -> Result<()> {
        self.health.check()?;
        let seen = self.progress.rings();
        let journal = self.journal()?;
        let tail = journal.tail();
        // Also an empty table, when all others are in runs: a tail that was taken while a group was open lies
        // before that group, and nothing else would ever move it on.
        let is_behind = || self.view().sealed.is_empty() && journal.tail() < journal.head();
        self.seal_if(|active| active.bytes() > 0 || is_behind());
        match self.options.background {
            Background::Manual => self.flush_oldest().map(drop),
            Background::Threads => {
                self.work.ring();
                if journal.tail() == tail {
                    self.progress.wait_after(seen, PROGRESS_WAIT_MAX);
                    self.check_flush_space()?;
                }
                Ok(())
            }
        }
    }

    /// Debt of merges that makes the full price (bytes). A burst of half of it is written at full speed.
    fn compaction_bytes_full(&self) -> u64 {
        self.options.memtable_bytes * TABLES_UNMERGED
    }

    /// Recomputes what throttling goes by.
    pub(crate) fn update_debt(&self) {
        // One at a time, so that what is kept at last is of the newest view.
        let _one = self.debt_update.lock();
        let view = self.view();
        let debt = view.version.keyspaces().map(|(_, runs)| {
            let bytes: Vec<u64> = units_of(runs).map(bytes_of).collect();
            picker::debt_bytes(&bytes, &self.options.merge)
        });
        let debt = debt.sum();
        self.compaction_debt_bytes.store(debt, Ordering::Relaxed);
        let is_behind = throttle::is_charged(debt, self.compaction_bytes_full()) || self.is_emptying_zones();
        self.pace.note_behind(is_behind);
    }
}

/// Most payload of a batch that counts as deleting (bytes): an unlink also writes times and counters.
const DELETING_BYTES_MAX: usize = 64 << 10;

/// Deleting may dip into the reserve: it must work on a full store. The rest of the reserve is for the merges that give
/// the space of what is deleted back.
pub(crate) fn budget_of(batch: &Batch) -> Budget {
    let deletes = batch.ops().iter().any(|op| matches!(op, Op::Delete { .. } | Op::DeleteRange { .. }));
    if deletes && batch.whole_bytes() <= DELETING_BYTES_MAX { Budget::Deleting } else { Budget::Ordinary }
}

#[cfg(test)]
mod tests;
