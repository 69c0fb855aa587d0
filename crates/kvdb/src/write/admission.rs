//! What a write waits for before it comes in: space for its own flush, room in memory and journal, its share
//! of the debt.
//!
//! Thread safety: no lock is held during a wait, but for those of a transaction that commits. The time line
//! of held writers is locked for a few instructions, and only when there is a debt.
//!
//! Invariants: the active and the sealed memtables together stay below [`SEALED_MAX`] + 1 tables, but for
//! what the writes under way add. A writer is slowed down before it is stopped: while the last table fills,
//! each byte costs more and more of what its flush costs, so that the flush under way ends first. What still
//! may hold a writer longer than [`throttle::DELAY_MAX`]: flushes that suddenly take many times as long as
//! they did, a journal that is full before a table is, and a full store, where it does what
//! [`planner`](crate::space::planner) says.

use kvfs_locks::{Mutex, class};
use std::time::Duration;

use kvfs_store::{Batch, Op, Result, StoreError};

use crate::commits::undo::Undo;
use crate::flush::Flusher;
use crate::flush::headroom::Space;
use crate::layers::Layers;
use crate::live::LiveSet;
use crate::memtable::space_of;
use crate::merge::Merger;
use crate::pressure::Pressure;
use crate::pressure::rate_limiter::RateLimiter;
use crate::pressure::throttle::{self, DELAY_MAX, Debt, SEALED_MAX};
use crate::read::Reader;
use crate::runtime::Runtime;
use crate::runtime::ok_unless_full;
use crate::runtime::options::Background;
use crate::runtime::stalls::StallTimer;
use crate::space::Budget;
use crate::space::planner::{Act, Attempt, Known};
use crate::write::growth::ReserveGrowth;
use std::sync::Arc;

/// Longest wait for one step of background progress before looking again.
pub(super) const PROGRESS_WAIT_MAX: Duration = Duration::from_millis(200);

/// How often a writer waits for readers of what its pass has freed, and how long. Most have it for a moment;
/// a reader that has it longer (a scan, a backup) is not worth waiting for.
const WAITS_FOR_READERS: u32 = 40;
const WAIT_FOR_READERS: Duration = Duration::from_millis(5);

/// Below the resolution of a timed wait a delay would cost more than it asks for: it is left for the next
/// one.
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
    /// Of batches in the reserve.
    growth: ReserveGrowth,
    /// The rate of writers that are held back.
    rate: Mutex<RateLimiter, class::KvdbWriteAdmissionRate>,
}

impl Admission {
    /// Before what `merger` merges; `reader` tells what batches replace.
    pub(crate) fn new(merger: &Arc<Merger>, reader: &Arc<Reader>) -> Self {
        Self {
            growth: ReserveGrowth::new(reader),
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

    /// Waits until the batch may come in, over what `layers` show.
    pub(super) fn admit(
        &self,
        batch: &Batch,
        layers: impl FnOnce() -> Result<Layers>,
        held: &mut StallTimer,
    ) -> Result<()> {
        self.live.announce_features_of(batch)?;
        self.admit_space(batch, layers, held)?;
        self.wait_for_room(held)?;
        self.pay_debt(batch.whole_bytes() as u64, held);
        Ok(())
    }

    pub(crate) fn admit_space(
        &self,
        batch: &Batch,
        layers: impl FnOnce() -> Result<Layers>,
        held: &mut StallTimer,
    ) -> Result<()> {
        if batch.ops().iter().any(|op| matches!(op, Op::DeleteRange { .. })) {
            self.pressure.passes().note_range_deleted();
        }
        let bytes = space_of(batch);
        if self.space.has_space(bytes, Budget::Ordinary) {
            self.growth.reset();
            return Ok(());
        }
        let growth = if batch.is_deleting() { self.growth.growth_of(batch, &layers()?) } else { i64::MAX };
        if !self.growth.allows(growth) {
            return self.admit_bytes(bytes, Budget::Ordinary, held);
        }
        self.admit_bytes(bytes, Budget::Deleting, held)?;
        self.growth.note(growth);
        Ok(())
    }

    /// Waits until the commit of a transaction may come in as one batch. Each of its batches was admitted,
    /// and counts since then among what waits to be written: so it brings nothing more, and what other
    /// deletions have taken of the reserve meanwhile is no reason to refuse it. What merges need stays
    /// theirs.
    pub(super) fn admit_commit(&self, held: &mut StallTimer) -> Result<()> {
        self.admit_bytes(0, Budget::Deleting, held)?;
        self.wait_for_room(held)
    }

    /// Waits for nothing; tries to make space for `bytes` when there is none.
    fn admit_bytes(&self, bytes: u64, budget: Budget, held: &mut StallTimer) -> Result<()> {
        if self.space.has_space(bytes, budget) {
            return Ok(());
        }
        self.runtime.hold(held, || self.make_space(bytes, budget))
    }

    /// Does what [`planner`](crate::space::planner) says until there is space for `bytes`; in
    /// [`Budget::Reserve`] for a flush that has found none.
    fn make_space(&self, bytes: u64, budget: Budget) -> Result<()> {
        let (mut attempt, mut hurry) = (Attempt::new(budget), None);
        let ended = loop {
            // Before the look at what is known: what comes after it is no reason to wait.
            let seen = self.runtime.progress.count();
            match attempt.next(&self.known(bytes, budget)) {
                Act::Admit => break Ok(()),
                Act::Refuse => break Err(StoreError::Full),
                Act::Flush => self.flusher.flush_everything().map(drop)?,
                Act::AwaitZones => {
                    hurry.get_or_insert_with(|| self.pressure.pace.hurry());
                    self.runtime.health.check()?;
                    self.runtime.progress.wait_after(seen, PROGRESS_WAIT_MAX);
                }
                Act::EndSteps => self.merger.end_merges(),
                // One that ran out of space half-way may have freed enough.
                Act::Pass(Budget::Ordinary) => ok_unless_full(self.merger.make_space(bytes)).map(drop)?,
                Act::Pass(budget) => ok_unless_full(self.merger.reclaim(budget)).map(drop)?,
                Act::AwaitReaders => self.await_readers(bytes, budget)?,
                Act::GiveUpUndo => self.undo.give_up().map(drop)?,
            }
        };
        if let Some(freed) = attempt.freed_bytes() {
            self.pressure.passes().note_freed(freed, u64::from(self.runtime.ctx.zones.zone_bytes()));
        }
        ended
    }

    fn known(&self, bytes: u64, budget: Budget) -> Known {
        let zones = &self.runtime.ctx.zones;
        // Before the look at space: what is being emptied meanwhile is waited for.
        let is_emptying = self.pressure.is_emptying_zones() && !self.runtime.is_stopping();
        let mut known = Known {
            is_emptying,
            fits: match budget {
                Budget::Reserve => !self.flusher.is_full(),
                _ => self.space.has_space(bytes, budget),
            },
            fits_reserve: budget == Budget::Deleting && self.space.has_space(bytes, Budget::Reserve),
            free_bytes: zones.free_bytes(Budget::Reserve),
            is_much_unwritten: self.live.view().unwritten_space_bytes() >= self.space.flush_slack_bytes(),
            has_steps: self.merger.claims() > 0,
            keeps_undo: self.undo.keeps_any(),
            is_stuck: !zones.has_zones_for_merges(),
            ..Known::default()
        };
        let now = self.merger.now();
        // After the look at space: a pass that has just ended is not repeated, but what it has freed is
        // looked for again.
        let passes = self.pressure.passes();
        let operations = |budget| passes.operations_since(budget, &now);
        known.operations = operations(budget);
        known.operations_for_deletions = operations(Budget::Deleting);
        known.pause = passes.pause();
        known.is_stuck |= passes.is_stuck();
        known
    }

    /// Waits until what passes have freed is free, those of other callers, too: when no reader holds it any
    /// more, as a rule in a moment. Where that took too long once, no writer waits for long until another
    /// pass has ended.
    fn await_readers(&self, bytes: u64, budget: Budget) -> Result<()> {
        let passes_ended = self.pressure.passes().ended();
        for _ in 0..WAITS_FOR_READERS {
            // Looked for first: what has been let go of by then is free already.
            let is_read = self.live.is_anything_old_read();
            if !is_read || self.space.has_space(bytes, budget) {
                break;
            }
            if self.runtime.options.background == Background::Manual {
                break;
            }
            self.runtime.timer.wait(WAIT_FOR_READERS);
            if self.pressure.passes().had_reader_timeout() {
                break;
            }
        }
        if !self.space.has_space(bytes, budget) {
            if self.live.is_old_version_read() {
                self.pressure.passes().note_reader_timeout(passes_ended);
            }
        } else if budget == Budget::Reserve {
            ok_unless_full(self.flusher.flush_all())?;
        }
        Ok(())
    }

    /// Waits until memory has room for a batch: in the active table, or for another one.
    fn wait_for_room(&self, held: &mut StallTimer) -> Result<()> {
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
        if self.flusher.is_full() { self.make_space(0, Budget::Reserve) } else { Ok(()) }
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

#[cfg(test)]
mod tests;
