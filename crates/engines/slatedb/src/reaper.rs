//! The thread that deletes the keys of deleted ranges.
//!
//! Purpose: a step looks at a bounded number of entries of the oldest range, and deletes those that are older
//! than it, in one transaction of `SlateDB`: a key that was written meanwhile is in its way, and the step is
//! made again. Behind the last step the record goes. A range that can't be read, such as one with a damaged
//! block, is left as it is until the next opening: readers see nothing of it, and nothing waits for it.
//!
//! Thread safety: one thread, ended by its owner. Invariants: a deleted range takes bounded memory, however
//! much lies in it; damage to what was deleted ends no writes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use kvfs_store::{Keyspace, Result, StoreError};
use slatedb::config::ScanOptions;
use slatedb::{DbTransaction, Error, IsolationLevel};

use crate::backlog::Backlog;
use crate::error::of_slatedb;
use crate::keys;
use crate::ranges::DeadRange;
use crate::segments::Segments;
use crate::shared::Shared;
use crate::space::Space;
use crate::wait_limit::{Waiter, is_unanswered};

/// Entries that one step looks at.
const STEP_ENTRIES: usize = 1024;

/// What a step asks of each table at once (bytes).
const READ_AHEAD_BYTES: usize = 256 << 10;

/// See the module.
pub(crate) struct Reaper {
    shared: Arc<Shared>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (theirs, end) = (Arc::clone(shared), Arc::clone(&is_over));
        let thread = std::thread::Builder::new().name("kvfs-slate-reap".into());
        let thread = thread.spawn(move || run(&theirs, &end));
        let thread = thread.map_err(|error| StoreError::io("starting a thread", error))?;
        Ok(Self { shared: Arc::clone(shared), is_over, thread: Some(thread) })
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.shared.notify_reaping();
        // A panic of the thread has been told of already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(shared: &Shared, is_over: &AtomicBool) {
    let ends = || is_over.load(Ordering::Acquire);
    loop {
        shared.wait_for_dead(|dead| ends() || (dead.oldest().is_some() && shared.check_writable().is_ok()));
        if ends() {
            return;
        }
        let Some(dead) = shared.dead().oldest().cloned() else { continue };
        match reap(shared, &dead, &ends) {
            // It is begun again.
            Err(error) if is_unanswered(&error) => {}
            // A commit has failed, or the store is over: there will be no other one.
            Err(error @ StoreError::Failed { .. }) => {
                shared.fail(&error);
                shared.wait_for_dead(|_| ends());
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "what was deleted takes room until the next mount, which tries again");
                shared.leave_dead(&dead);
            }
            Ok(()) => {}
        }
    }
}

/// Deletes everything in the range that is older than it, and its record; or ends before that, when it is
/// told to.
fn reap(shared: &Shared, dead: &DeadRange, ends: &dyn Fn() -> bool) -> Result<()> {
    let mut from = Bound::Included(keys::full(dead.space, &dead.range.start));
    while !ends() {
        let txn = shared.writer()?.begin(IsolationLevel::Snapshot);
        let txn = txn.map_err(|error| of_slatedb("deleting a range", &error))?;
        let space = shared.space(Keyspace(dead.space))?;
        // The first entry may be behind any number of those that were deleted.
        let looked =
            shared.read_on(Waiter::Background, "deleting a range", look(&txn, &space, dead, from.clone()))?;
        let Looked { last, deleted, mut bytes, suspects } = looked;
        if last.is_none() {
            let record = keys::full(keys::META, &dead.key());
            bytes += record.len();
            txn.delete(record).map_err(|error| of_slatedb("deleting a range", &error))?;
        }
        for (key, value) in Segments::suspect_records(&suspects) {
            bytes += key.len();
            txn.put(key, value).map_err(|error| of_slatedb("deleting a range", &error))?;
        }
        shared.wait_for_room(&mut shared.limit_of(Waiter::Background))?;
        let is_done = {
            let _order = shared.order.lock();
            let is_done =
                shared.commit_transaction(txn, Backlog::weight(deleted + suspects.len() + 1, bytes))?;
            shared.segments.suspect(suspects);
            is_done
        };
        match (is_done, last) {
            (true, None) => {
                shared.forget_dead(dead);
                return Ok(());
            }
            (true, Some(last)) => from = Bound::Excluded(last),
            (false, _) => {}
        }
    }
    Ok(())
}

/// What a step has found.
#[derive(Default)]
struct Looked {
    /// The last entry; `None`: the range ends there.
    last: Option<Bytes>,
    /// Entries, and their keys (bytes).
    deleted: usize,
    bytes: usize,
    /// Segments that they were in.
    suspects: BTreeSet<u64>,
}

/// Deletes in `txn` what is older than the range among its next entries.
async fn look(
    txn: &DbTransaction,
    space: &Space,
    dead: &DeadRange,
    from: Bound<Bytes>,
) -> Result<Looked, Error> {
    let (_, end) = keys::bounds(dead.space, &dead.range);
    let options = ScanOptions::default().with_read_ahead_bytes(READ_AHEAD_BYTES).with_max_fetch_tasks(2);
    let mut scan = txn.scan_with_options((from, end), &options).await?;
    let mut found = Looked::default();
    for looked in 1.. {
        let Some(entry) = scan.next().await? else { break };
        if entry.seq < dead.sequence {
            txn.delete(&entry.key)?;
            found.deleted += 1;
            found.bytes += entry.key.len();
            found.suspects.extend(space.segment_of(&entry.value));
        }
        if looked == STEP_ENTRIES {
            found.last = Some(entry.key);
            break;
        }
    }
    Ok(found)
}
