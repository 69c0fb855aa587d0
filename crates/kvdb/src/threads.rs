//! The threads of a store: one syncs the journal at each commit interval, one writes it in between, one
//! flushes memtables, one reads ahead of walks, one moves between devices, a few merge. They wait for events
//! that writers notify and end when told to. One that panics closes the store for writing.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::{Result, StoreError};

use crate::parts::Parts;
use crate::runtime::options::Background;
use crate::runtime::{ERROR_WAIT, ok_unless_full};

/// An idle thread looks for work at least this often, should a notification ever be missed.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Deletions are over when none has come for so long; whether any has come is looked at twice as seldom.
const DELETIONS_WAIT: Duration = Duration::from_millis(250);

/// Running background threads.
#[derive(Default)]
pub(crate) struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>, class::KvdbThreadsHandles>,
}

impl Threads {
    /// Starts them, if the options ask for any.
    pub(crate) fn start(parts: &Arc<Parts>) -> Result<Self> {
        let threads = Self::default();
        if parts.runtime.options.background == Background::Manual || parts.runtime.options.read_only {
            return Ok(threads);
        }
        let mut bodies = vec![
            ("kvfs-commit".to_owned(), commit_loop as fn(&Parts)),
            ("kvfs-journal".to_owned(), journal_loop),
            ("kvfs-flush".to_owned(), flush_loop),
            ("kvfs-ahead".to_owned(), ahead_loop),
            ("kvfs-drain".to_owned(), drain_loop),
        ];
        let merging = 1..=parts.runtime.options.merge_threads();
        bodies.extend(merging.map(|n| (format!("kvfs-merge-{n}"), merge_loop as fn(&Parts))));
        for (name, body) in bodies {
            let shared = Arc::clone(parts);
            let work = move || fail_if_it_panics(&shared, || body(&shared));
            match std::thread::Builder::new().name(name.clone()).spawn(work) {
                Ok(handle) => threads.handles.lock().push(handle),
                Err(error) => {
                    threads.stop(parts);
                    return Err(StoreError::io(format!("starting thread {name}"), error));
                }
            }
        }
        Ok(threads)
    }

    /// Tells them to end and waits. Does nothing the second time.
    pub(crate) fn stop(&self, parts: &Parts) {
        parts.runtime.stop();
        parts.pressure.pace.stop();
        parts.runtime.ctx.windows.close();
        for handle in std::mem::take(&mut *self.handles.lock()) {
            if handle.join().is_err() {
                tracing::error!("a background thread of the store panicked");
            }
        }
    }
}

/// A thread that has panicked does no more of what others wait for: the store fails, so that they end, too.
fn fail_if_it_panics(parts: &Parts, body: impl FnOnce()) {
    if std::panic::catch_unwind(AssertUnwindSafe(body)).is_ok() {
        return;
    }
    let thread = std::thread::current();
    let reason = format!("its thread {} panicked", thread.name().unwrap_or("without a name"));
    let failed: Result<()> = Err(StoreError::Failed { reason: reason.into() });
    drop(parts.runtime.health.observe(failed));
    parts.runtime.progress.notify();
}

/// Reads what walks are about to come to.
fn ahead_loop(parts: &Parts) {
    parts.runtime.ctx.windows.serve();
}

/// Moves what lies on devices that are to leave the store, then what wishes to lie on the other tier. What
/// did not get on is tried again.
fn drain_loop(parts: &Parts) {
    loop {
        let seen = parts.runtime.drain_due.count();
        if parts.runtime.is_stopping() {
            return;
        }
        parts.devices.advance_drains();
        let is_alone = || parts.runtime.drain_due.count() == seen;
        if let Err(error) = parts.migrator.advance(&mut |_| is_alone()) {
            tracing::warn!(%error, "what lies on another tier than it is wished to can't be moved");
        }
        parts.runtime.drain_due.wait_after(seen, parts.migrator.rest(IDLE_WAIT_MAX));
    }
}

/// Runs `step` until the store stops; waits for work when it did nothing.
fn work_loop(parts: &Parts, what: &str, step: impl Fn() -> Result<bool>) {
    loop {
        let seen = parts.runtime.work.count();
        if parts.runtime.is_stopping() {
            return;
        }
        match step() {
            Ok(true) => {}
            Ok(false) => parts.runtime.work.wait_after(seen, IDLE_WAIT_MAX),
            Err(error) => {
                // What has closed the store for writing was told then.
                if !matches!(error, StoreError::Failed { .. }) {
                    tracing::error!(%error, "{what} failed");
                }
                parts.runtime.progress.notify();
                parts.runtime.work.wait_after(seen, ERROR_WAIT);
            }
        }
    }
}

fn flush_loop(parts: &Parts) {
    work_loop(parts, "flush", || parts.flusher.flush_oldest());
}

fn merge_loop(parts: &Parts) {
    work_loop(parts, "compaction", || {
        parts.merger.tend_undo()?;
        let merged = parts.merger.merge_once().and_then(|merged| Ok(merged || merge_private(parts)?));
        match &merged {
            Ok(true) => return Ok(true),
            // No space for this merge: reclaiming may go further, since it may take the reserve.
            Ok(false) | Err(StoreError::Full) => {}
            Err(_) => {
                parts.runtime.back_off();
                return merged;
            }
        }
        if !ok_unless_full(parts.merger.clear_up(merged.is_err()))? || merged.is_err() {
            parts.runtime.back_off();
        }
        Ok(false)
    });
}

/// Merges runs of checkpoints. Whatever is due in the main line comes first, and gets a step behind each
/// piece.
fn merge_private(parts: &Parts) -> Result<bool> {
    parts.txns.merge_once(&mut || {
        if let Err(error) = parts.merger.merge_once() {
            tracing::warn!(%error, "compaction failed");
        }
    })
}

/// Syncs what was applied, after the interval or when it is much, and flushes what was deleted: a burst of
/// deletions half a second after its end.
fn commit_loop(parts: &Parts) {
    let mut synced = parts.history.position();
    let mut deletions = parts.deleted.count();
    let mut looked = parts.runtime.clock.monotonic();
    let mut has_failed = false;
    loop {
        // Before the look at what is unsynced: a notification that comes during it is seen.
        let seen = parts.runtime.commit_due.count();
        if parts.runtime.is_stopping() {
            return;
        }
        let wait = if parts.deleted.has_deletions_to_flush() { DELETIONS_WAIT } else { 2 * DELETIONS_WAIT };
        // No sync is later than the interval for the sake of deletions.
        let interval = parts.runtime.commit_interval();
        let due = looked.saturating_add(interval).saturating_sub(parts.runtime.clock.monotonic());
        if has_failed || !parts.runtime.is_commit_due() {
            parts.runtime.commit_due.wait_after(seen, due.min(wait));
        }
        deletions = parts.deleted.flush_deleted(deletions);
        let (position, now) = (parts.history.position(), parts.runtime.clock.monotonic());
        parts.runtime.ctx.accountant.charges().set_now(now);
        let is_much = parts.runtime.is_commit_due();
        if now < looked.saturating_add(interval) && !is_much {
            continue;
        }
        looked = now;
        parts.runtime.ctx.zones.retry_growth();
        if position > synced || is_much {
            let done = parts.history.sync();
            has_failed = done.is_err();
            match done {
                Ok(position) => synced = position,
                Err(StoreError::Failed { .. }) => {}
                Err(error) => tracing::error!(%error, "periodic sync failed"),
            }
        }
    }
}

/// Writes groups that have grown long, so that writers, which hold the order lock, need not.
fn journal_loop(parts: &Parts) {
    loop {
        // Before the work: a ring that comes during it is seen.
        let seen = parts.runtime.journal_due.count();
        parts.log.write_journal();
        if parts.runtime.is_stopping() {
            return;
        }
        parts.runtime.journal_due.wait_after(seen, IDLE_WAIT_MAX);
    }
}

#[cfg(test)]
mod tests;
