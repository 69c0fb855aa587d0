//! Defragmenting a store.
//!
//! Thread safety: for threads that may block. Invariant: one runs at a time, beside all other requests. It
//! ends behind the piece that is being copied, without a limit, when the store is to be closed, the caller
//! has gone, or the process is told to end.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_locks::{Mutex, class};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::progress::{self, Unit};

use crate::authority::authorize;
use crate::caller::Caller;
use crate::engine::DefragOrder;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{DefragPlanLine, DefragRequest, DefragmentedLine};
use crate::served::ServedStore;

/// What an engine may lack.
const DEFRAGMENTATION: &str = "defragmentation";

/// Between two looks whether work of short steps goes on: a look may cost more than a step.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Admits one defragmentation at a time, and ends it, other long work, and the waiting for it.
#[derive(Debug, Default)]
pub struct DefragGate {
    running: Mutex<(), class::ServiceDefragRunning>,
    is_stopping: Arc<AtomicBool>,
}

impl DefragGate {
    /// The one that runs ends soon, and none runs after it; nor is a drain waited for.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Whether long work of `caller` is to go on: the gate is not stopped, and the caller is there.
    pub(crate) fn goes_on(&self, caller: &Caller) -> impl Fn() -> bool + Send + Sync + use<> {
        let (is_stopping, is_there) = (Arc::clone(&self.is_stopping), caller.watch());
        move || !is_stopping.load(Ordering::Relaxed) && is_there()
    }

    /// Carries out long work of `caller` of which nothing stays when it is given up.
    pub(crate) fn while_wanted<T>(&self, caller: &Caller, work: impl FnOnce() -> T) -> T {
        let (goes_on, clock) = (self.goes_on(caller), SystemClock::new());
        let (due, is_wanted) = (Cell::new(Duration::ZERO), Cell::new(true));
        let look = move || {
            let now = clock.monotonic();
            if is_wanted.get() && now >= due.get() {
                due.set(now + LOOK_PERIOD);
                is_wanted.set(goes_on());
            }
            is_wanted.get()
        };
        progress::while_wanted(look, work)
    }

    /// Set, it ends the one that runs, and lets none run after it.
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.is_stopping
    }
}

impl ServedStore<'_> {
    /// What a defragmentation would do now.
    ///
    /// # Errors
    /// The caller may not.
    pub fn defrag_plan(&self, caller: &Caller, rewrite: bool) -> Result<DefragPlanLine> {
        admit(self.fs, caller)?;
        Ok(self.engine.control_of(DEFRAGMENTATION)?.defrag_plan(rewrite))
    }

    /// Defragments the store, as far as it comes.
    ///
    /// # Errors
    /// The caller may not; it is being done already; store errors.
    pub fn defragment(&self, caller: &Caller, request: DefragRequest) -> Result<DefragmentedLine> {
        admit(self.fs, caller)?;
        let control = self.engine.control_of(DEFRAGMENTATION)?;
        let Some(_running) = self.defrag.running.try_lock() else {
            let message = "the store is being defragmented already; wait until that has ended";
            return Err(ServiceError::new(ErrorKind::InUse, message));
        };
        tracing::info!(?request, "defragmenting");
        let DefragRequest { rewrite, bytes_per_second, .. } = request;
        let goes_on = Arc::new(self.defrag.goes_on(caller));
        let order = DefragOrder { rewrite, bytes_per_second, goes_on };
        let clock = SystemClock::new();
        let (mut bytes_all, mut bytes_told) = (0, 0);
        let done = control.defragment(&order, &mut |now| {
            if bytes_all != now.bytes {
                (bytes_all, bytes_told) = (now.bytes, 0);
                progress::stage("emptying zones", Unit::Bytes, bytes_all);
            }
            progress::advance(now.bytes_done.saturating_sub(bytes_told));
            bytes_told = bytes_told.max(now.bytes_done);
            (order.goes_on)()
        })?;
        let done = DefragmentedLine { took: clock.monotonic(), ..done };
        tracing::info!(
            took = ?done.took,
            bytes_moved = done.bytes_moved,
            zones_before = done.before.zones_used,
            zones_after = done.after.zones_used,
            is_complete = done.is_complete,
            "defragmented"
        );
        Ok(done)
    }
}

fn admit(fs: &FileSystem, caller: &Caller) -> Result<()> {
    authorize(fs, caller, "defragment it")
}

#[cfg(test)]
mod tests;
