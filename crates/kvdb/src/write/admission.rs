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

use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvfs_store::{Batch, Op, Result, StoreError};

use crate::commits::undo::Undo;
use crate::flush::Flusher;
use crate::flush::headroom::Space;
use crate::live::LiveSet;
use crate::memtable::space_of;
use crate::merge::Merger;
use crate::pressure::Pressure;
use crate::pressure::rate_limiter::RateLimiter;
use crate::pressure::throttle::{self, DELAY_MAX, Debt, SEALED_MAX};
use crate::runtime::Runtime;
use crate::runtime::ok_unless_full;
use crate::runtime::options::Background;
use crate::runtime::stalls::StallTimer;
use crate::space::Budget;
use std::sync::Arc;

/// Longest wait for one step of background progress before looking again.
pub(super) const PROGRESS_WAIT_MAX: Duration = Duration::from_millis(200);

/// Most operations between two passes (see [`Admission::reclaim_is_worth_it`]).
const RECLAIM_PAUSE_MAX: u64 = 64;

/// How often a writer waits for readers of what its pass has freed, and how long. Most have it for a moment; a reader that has it
/// longer (a scan, a backup) is not worth waiting for.
const WAITS_FOR_READERS: u32 = 40;
const WAIT_FOR_READERS: Duration = Duration::from_millis(5);

/// Below the resolution of a timed wait a delay would cost more than it asks for: it is left for the next one.
const DELAY_MIN: Duration = Duration::from_micros(200);

/// See the module.
pub(crate) struct Admission {
    pub(super) runtime: Arc<Runtime>,
    pub(super) live: Arc<LiveSet>,
    pub(super) pressure: Arc<Pressure>,
    pub(super) space: Arc<Space>,
    pub(super) merger: Arc<Merger>,
    pub(super) flusher: Arc<Flusher>,
    pub(super) undo: Arc<Undo>,
    /// The rate of writers that are held back.,
    rate: Mutex<RateLimiter>,
}

impl Admission {
    /// Before what `merger` merges.
    pub(crate) fn new(merger: &Arc<Merger>) -> Self {
        Self {
            runtime: Arc::clone(&merger.runtime),
            live: Arc::clone(&merger.live),
            pressure: Arc::clone(&merger.pressure),
            space: Arc::clone(&merger.space),
            merger: Arc::clone(merger),
            flusher: Arc::clone(&merger.flusher),
            undo: Arc::clone(&merger.undo),
            rate: Mutex::default(),
        }
    }

    /// Waits until the batch may come in.
    pub(super) fn admit(&self, batch: &Batch, held: &mut StallTimer) -> Result<()> {
        self.live.announce_features_of(batch)?;
        self.admit_space(batch, held)?;
        self.wait_for_room(held)?;
        self.pay_debt(batch.whole_bytes() as u64, held);
        Ok(())
    }

    pub(crate) fn admit_space(&self, batch: &Batch, held: &mut StallTimer) -> Result<()> {
        let is_range = |op: &Op| matches!(op, Op::DeleteRange { .. });
        if self.pressure.reclaims.pause.load(Ordering::Relaxed) > 0 && batch.ops().iter().any(is_range) {
            // There may be much to be found.
            self.pressure.reclaims.pause.store(0, Ordering::Relaxed);
        }
        self.admit_bytes(space_of(batch), budget_of(batch), held)
    }

    /// Waits for nothing; tries to make space for `bytes` when there is none.
    pub(super) fn admit_bytes(&self, bytes: u64, budget: Budget, held: &mut StallTimer) -> Result<()> {
        if self.space.has_space(bytes, budget) {
            return Ok(());
        }
        self.runtime.hold(held, || self.make_space(bytes, budget))
    }

    fn make_space(&self, bytes: u64, budget: Budget) -> Result<()> {
        // What waits to be flushed is counted with all that it may come to.
        let is_much = self.live.view().unwritten_space_bytes() >= self.space.flush_slack_bytes();
        if is_much && self.flusher.flush_everything()? && self.space.has_space(bytes, budget) {
            return Ok(());
        }
        if self.has_space_when_emptied(bytes, budget)? {
            return Ok(());
        }
        // Merges under way hold what they have written and not yet brought in.
        if self.merger.claims() > 0 {
            self.merger.end_merges();
            if self.space.has_space(bytes, budget) {
                return Ok(());
            }
        }
        // Deleted data takes space until a merge drops it: reclaim before saying "full".
        if self.merger.reclaim_wanted(budget) && (self.reclaim_is_worth_it(budget) || self.undo.keeps_any()) {
            let before = self.runtime.ctx.zones.free_bytes(Budget::Reserve);
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
        if self.undo.give_up()? && self.has_space_after_passes(bytes, budget)? {
            return Ok(());
        }
        // Merges that can't go on need what was left for them no more, and blocks may be found whose space comes back
        // without them.
        let is_stuck = self.pressure.reclaims.is_stuck.load(Ordering::Relaxed)
            || !self.runtime.ctx.zones.has_zones_for_merges();
        let is_last_resort = budget == Budget::Deleting && is_stuck;
        if is_last_resort && self.space.has_space(bytes, Budget::Reserve) {
            Ok(())
        } else {
            Err(StoreError::Full)
        }
    }

    /// Reclaims; whether that has made space.
    fn has_space_after_passes(&self, bytes: u64, budget: Budget) -> Result<bool> {
        // A pass that ran out of space half-way may have freed enough.
        ok_unless_full(match budget {
            Budget::Ordinary => self.merger.make_space(bytes),
            Budget::Deleting | Budget::Reserve => self.merger.reclaim(budget),
        })?;
        if self.has_space_soon(bytes, budget) {
            return Ok(true);
        }
        // Deletions, or merges that were ended, may have left less of the reserve than two runs need. Only what is done for
        // deletions goes on from there; without it writes would be refused until a caller deletes more. What undo keeps could not
        // be dropped yet.
        let operations = self.merger.operations_since_reclaim(Budget::Deleting);
        let is_paused = self.pressure.reclaims.pause.load(Ordering::Relaxed) > 0;
        let is_worth_it = operations > if is_paused { RECLAIM_PAUSE_MAX } else { 0 };
        if budget != Budget::Ordinary || !is_worth_it || self.undo.keeps_any() {
            return Ok(false);
        }
        ok_unless_full(self.merger.reclaim(Budget::Deleting))?;
        Ok(self.has_space_soon(bytes, budget))
    }

    /// A pass goes over all that is stored. One after the other that frees nothing would make every write on a full store
    /// that slow, so ordinary ones wait for more and more operations in between; deletions never do.
    fn reclaim_is_worth_it(&self, budget: Budget) -> bool {
        budget != Budget::Ordinary
            || self.merger.operations_since_reclaim(budget)
                > self.pressure.reclaims.pause.load(Ordering::Relaxed)
    }

    /// After a pass, before which so many bytes were free.
    fn note_reclaimed(&self, free_bytes_before: u64) {
        let freed = self.runtime.ctx.zones.free_bytes(Budget::Reserve).saturating_sub(free_bytes_before);
        let pause = self.pressure.reclaims.pause.load(Ordering::Relaxed);
        let is_worth_it = freed >= u64::from(self.runtime.ctx.zones.zone_bytes());
        let pause = if is_worth_it { 0 } else { (2 * pause).clamp(1, RECLAIM_PAUSE_MAX) };
        self.pressure.reclaims.pause.store(pause, Ordering::Relaxed);
    }

    /// As [`Space::has_space`], after a pass of any writer: what it has freed comes when no reader holds it any more, as a rule in
    /// a moment. Where that took too long once, no writer waits for long until another pass has ended.
    fn has_space_soon(&self, bytes: u64, budget: Budget) -> bool {
        let passes_ended = self.pressure.reclaims.passes_ended();
        for _ in 0..WAITS_FOR_READERS {
            // Looked for first: what has been let go of by then is free already.
            let is_read = self.live.is_anything_old_read();
            if self.space.has_space(bytes, budget) {
                return true;
            }
            if !is_read {
                return false;
            }
            if self.runtime.options.background == Background::Manual {
                break;
            }
            self.runtime.timer.wait(WAIT_FOR_READERS);
            if self.pressure.reclaims.had_reader_timeout() {
                break;
            }
        }
        let has_space = self.space.has_space(bytes, budget);
        if !has_space && self.live.is_old_version_read() {
            self.pressure.reclaims.record_reader_timeout(passes_ended);
        }
        has_space
    }

    /// As [`Space::has_space`], while zones are emptied at leisure and until they are: ended half-way, that would have taken space and
    /// given none back.
    fn has_space_when_emptied(&self, bytes: u64, budget: Budget) -> Result<bool> {
        let _hurry = self.pressure.pace.hurry();
        loop {
            let seen = self.runtime.progress.count();
            let is_emptying = self.pressure.is_emptying_zones();
            if self.space.has_space(bytes, budget) {
                return Ok(true);
            }
            if !is_emptying || self.runtime.is_stopping() {
                return Ok(false);
            }
            self.runtime.health.check()?;
            self.runtime.progress.wait_after(seen, PROGRESS_WAIT_MAX);
        }
    }

    /// Waits until memory has room for a batch: in the active table, or for another one.
    pub(super) fn wait_for_room(&self, held: &mut StallTimer) -> Result<()> {
        let waits = self.runtime.options.background == Background::Threads;
        self.wait_until(held, || {
            let view = self.live.view();
            view.sealed.len() < SEALED_MAX || (waits && view.active.flush_bytes() < self.runtime.table_bytes)
        })
    }

    /// Waits until memory has room for another sealed layer.
    pub(super) fn wait_for_layer(&self, held: &mut StallTimer) -> Result<()> {
        self.wait_until(held, || self.live.has_room_for_layer())
    }

    fn wait_until(&self, held: &mut StallTimer, has_room: impl Fn() -> bool) -> Result<()> {
        if has_room() {
            return Ok(());
        }
        self.runtime.hold(held, || {
            loop {
                let seen = self.runtime.progress.count();
                if has_room() {
                    return Ok(());
                }
                self.runtime.health.check()?;
                match self.runtime.options.background {
                    Background::Manual => {
                        self.flusher.flush_oldest()?;
                    }
                    Background::Threads => {
                        self.runtime.progress.wait_after(seen, PROGRESS_WAIT_MAX);
                        self.check_flush_space()?;
                    }
                }
            }
        })
    }

    /// `Full` when flushes find no space and reclaiming does not help: waiting would not end.
    pub(super) fn check_flush_space(&self) -> Result<()> {
        if !self.flusher.is_full() {
            return Ok(());
        }
        ok_unless_full(self.merger.reclaim(Budget::Reserve))?;
        if self.flusher.is_full() && self.undo.give_up()? {
            ok_unless_full(self.merger.reclaim(Budget::Reserve))?;
        }
        if self.flusher.is_full() && self.has_space_soon(0, Budget::Reserve) {
            ok_unless_full(self.flusher.flush_all())?;
        }
        if self.flusher.is_full() { Err(StoreError::Full) } else { Ok(()) }
    }

    /// Waits for what the background threads have to do for so many bytes, when they are behind.
    pub(super) fn pay_debt(&self, payload_bytes: u64, held: &mut StallTimer) {
        if self.runtime.options.background == Background::Manual {
            return;
        }
        let debt = Debt {
            unflushed_bytes: self.live.view().unflushed_bytes(),
            table_bytes: self.runtime.table_bytes,
            compaction_bytes: self.pressure.payable_bytes(),
            compaction_bytes_full: self.pressure.bytes_full(),
            flush_rate: self.runtime.counters.flush_rate(),
            shortage: if self.pressure.is_emptying_zones() { self.merger.victims.shortage() } else { 0.0 },
        };
        let cost = throttle::cost(payload_bytes, debt);
        if cost.is_zero() {
            return;
        }
        let now = self.runtime.clock.monotonic();
        let delay = self.rate.lock().take(now, cost, Duration::ZERO, DELAY_MAX);
        if delay >= DELAY_MIN {
            self.runtime.counters.note_delay(delay);
            self.runtime.hold(held, || {
                // Not for `progress`: the first thing to end would let all slowed writers go on.
                self.runtime.timer.wait(delay);
            });
        }
    }
}

/// Most payload of a batch that counts as deleting (bytes): an unlink also writes times and counters.
const DELETING_BYTES_MAX: usize = 64 << 10;

/// Deleting may dip into the reserve: it must work on a full store. The rest of the reserve is for the merges that give
/// the space of what is deleted back.
pub(super) fn budget_of(batch: &Batch) -> Budget {
    let deletes = batch.ops().iter().any(|op| matches!(op, Op::Delete { .. } | Op::DeleteRange { .. }));
    if deletes && batch.whole_bytes() <= DELETING_BYTES_MAX { Budget::Deleting } else { Budget::Ordinary }
}

#[cfg(test)]
mod tests;
