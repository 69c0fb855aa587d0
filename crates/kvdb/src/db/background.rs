//! The threads of a store: one syncs the journal at each commit interval, one writes it in between, one flushes
//! memtables, one reads ahead of walks, a few merge. They talk to writers through bells and end when told to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{Result, StoreError};
use parking_lot::Mutex;

use super::inner::Inner;
use super::merges::{Leisure, full_is_false};
use super::options::Background;
use crate::zone::Budget;

/// An idle thread looks for work at least this often, should a bell ever be missed.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// After a failure a thread tries again this soon.
const ERROR_WAIT: Duration = Duration::from_secs(1);

/// Running background threads.
#[derive(Default)]
pub(crate) struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Starts them, if the options ask for any.
    pub(crate) fn start(inner: &Arc<Inner>) -> Result<Self> {
        let threads = Self::default();
        if inner.options.background == Background::Manual || inner.options.read_only {
            return Ok(threads);
        }
        let mut bodies = vec![
            ("kvfs-commit".to_owned(), commit_loop as fn(&Inner)),
            ("kvfs-journal".to_owned(), journal_loop),
            ("kvfs-flush".to_owned(), flush_loop),
            ("kvfs-ahead".to_owned(), ahead_loop),
        ];
        let merging = 1..=inner.options.merge_threads();
        bodies.extend(merging.map(|n| (format!("kvfs-merge-{n}"), merge_loop as fn(&Inner))));
        for (name, body) in bodies {
            let shared = Arc::clone(inner);
            match std::thread::Builder::new().name(name.clone()).spawn(move || body(&shared)) {
                Ok(handle) => threads.handles.lock().push(handle),
                Err(error) => {
                    threads.stop(inner);
                    return Err(StoreError::io(format!("starting thread {name}"), error));
                }
            }
        }
        Ok(threads)
    }

    /// Tells them to end and waits. Does nothing the second time.
    pub(crate) fn stop(&self, inner: &Inner) {
        inner.stopping.store(true, Ordering::Release);
        inner.work.ring();
        inner.progress.ring();
        inner.timer.ring();
        inner.journal_due.ring();
        inner.pace.stop();
        inner.ctx.windows.close();
        for handle in std::mem::take(&mut *self.handles.lock()) {
            if handle.join().is_err() {
                tracing::error!("a background thread of the store panicked");
            }
        }
    }
}

/// Reads what walks are about to come to.
fn ahead_loop(inner: &Inner) {
    inner.ctx.windows.serve();
}

/// Runs `step` until the store stops; waits for work when it did nothing.
fn work_loop(inner: &Inner, what: &str, step: impl Fn() -> Result<bool>) {
    loop {
        let seen = inner.work.rings();
        if inner.stopping.load(Ordering::Acquire) {
            return;
        }
        match step() {
            Ok(true) => {}
            Ok(false) => inner.work.wait_after(seen, IDLE_WAIT_MAX),
            Err(error) => {
                tracing::error!(%error, "{what} failed");
                inner.progress.ring();
                inner.work.wait_after(seen, ERROR_WAIT);
            }
        }
    }
}

fn flush_loop(inner: &Inner) {
    work_loop(inner, "flush", || inner.flush_oldest());
}

fn merge_loop(inner: &Inner) {
    work_loop(inner, "compaction", || {
        // One of these threads is enough for this, whichever has the time.
        if let Some(_tending) = inner.tending.try_lock() {
            full_is_false(inner.tend_undo())?;
        }
        let merged = inner.merge_once();
        match &merged {
            Ok(true) => return Ok(true),
            // No space for this merge: reclaiming may go further, since it may take the reserve.
            Ok(false) | Err(StoreError::Full) => {}
            Err(_) => {
                inner.back_off();
                return merged;
            }
        }
        if !full_is_false(clear_up(inner, merged.is_err()))? || merged.is_err() {
            inner.back_off();
        }
        Ok(false)
    });
}

/// A deleted snapshot's garbage, and deleted rows, lie where merges may not come by for long. Those under way come first, but
/// when there is no space for any, or soon will be none.
fn clear_up(inner: &Inner, is_full: bool) -> Result<()> {
    if !is_full && inner.merging.claims() > 0 && !inner.is_emptying_pressing() {
        return Ok(());
    }
    let Some(_tending) = inner.tending.try_lock() else { return Ok(()) };
    // What a snapshot has left was written long ago; and what was begun is brought to its end.
    let old = inner.has_cleared_snapshot().then_some(Leisure::OldGarbage).max(inner.merging.left_pass());
    if !inner.leisure_wanted() {
        return Ok(());
    }
    let short = inner.space_is_short().then_some(Leisure::ShortSpace);
    let much = || inner.has_much_garbage().then_some(Leisure::MuchGarbage);
    match old.max(short).or_else(much) {
        Some(why) => inner.reclaim_at_leisure(why),
        None => Ok(()),
    }
}

fn commit_loop(inner: &Inner) {
    let mut synced = inner.position();
    loop {
        // Nobody rings this bell but `stop`: it is a timer that can be ended.
        let seen = inner.timer.rings();
        if inner.stopping.load(Ordering::Acquire) {
            return;
        }
        inner.timer.wait_after(seen, inner.options.commit_interval);
        let position = inner.position();
        if position > synced {
            match inner.sync(position) {
                Ok(()) => synced = position,
                Err(error) => tracing::error!(%error, "periodic sync failed"),
            }
        }
    }
}

/// Writes groups that have grown long, so that writers, who hold the order lock, need not.
fn journal_loop(inner: &Inner) {
    loop {
        // Before the work: a ring that comes during it is seen.
        let seen = inner.journal_due.rings();
        inner.write_journal();
        if inner.stopping.load(Ordering::Acquire) {
            return;
        }
        inner.journal_due.wait_after(seen, IDLE_WAIT_MAX);
    }
}

impl Inner {
    /// After a merge that found no space: a new one now would do the same work in vain.
    fn back_off(&self) {
        let seen = self.timer.rings();
        if !self.stopping.load(Ordering::Acquire) {
            self.timer.wait_after(seen, ERROR_WAIT);
        }
    }

    /// Less than an eighth of the capacity is left for ordinary writes.
    fn space_is_short(&self) -> bool {
        let zones = &self.ctx.zones;
        zones.free_bytes(Budget::Ordinary) < zones.space().bytes_capacity / 8
    }

    /// Syncs, and turns memtables into runs so that the next open replays nothing.
    pub(crate) fn close(&self) -> Result<()> {
        if self.options.read_only || self.health.reason().is_some() {
            return self.health.check();
        }
        self.sync(self.position())?;
        // Also an empty one, when the journal's tail lies before its end although everything is in runs.
        let is_behind = self.journal()?.used_bytes() > 0;
        self.seal_if(|active| active.bytes() > 0 || is_behind);
        progress::stage("writing out", Unit::Bytes, self.view().unflushed_bytes());
        self.flush_all()?;
        self.close_transactions()?;
        self.withdraw_features_of_journal()
    }
}
