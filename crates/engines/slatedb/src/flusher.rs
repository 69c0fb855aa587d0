//! The task that makes the log durable: one object for all that wait.
//!
//! Purpose: a sync that gives up must not end what others wait for, nor hold a lock meanwhile. So it asks
//! this task, and waits for what it tells.
//!
//! Thread safety: one task of the runtime, which ends with the store that asks it. Invariant: what it tells
//! to be durable only grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slatedb::Db;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::of_slatedb;
use crate::runtime::Executor;

/// What came of it so far.
#[derive(Clone, Default)]
pub(crate) struct Flushed {
    /// Everything up to this sequence number is durable.
    pub(crate) durable: u64,
    pub(crate) flushes: u64,
    /// Nothing more will be.
    pub(crate) failure: Option<Arc<str>>,
}

/// See the module.
pub(crate) struct Flusher {
    asked: watch::Sender<u64>,
    flushed: watch::Receiver<Flushed>,
}

impl Flusher {
    /// Everything up to `newest` is durable; what is written from now on is told there when it is visible.
    pub(crate) fn start(executor: &Executor, db: &Db, newest: Arc<AtomicU64>) -> Self {
        let durable = newest.load(Ordering::Acquire);
        let (asked, asks) = watch::channel(durable);
        let (tells, flushed) = watch::channel(Flushed { durable, ..Flushed::default() });
        executor.spawn(run(db.clone(), newest, asks, tells));
        Self { asked, flushed }
    }

    /// What is written up to `sequence` becomes durable.
    pub(crate) fn ask(&self, sequence: u64) {
        self.asked.send_if_modified(|asked| {
            let is_more = sequence > *asked;
            *asked = sequence.max(*asked);
            is_more
        });
    }

    pub(crate) fn flushed(&self) -> watch::Receiver<Flushed> {
        self.flushed.clone()
    }
}

/// Clients that sync again and again fall into two halves, each of which waits for the other's object. So
/// where several are about, an object is held back for this part of the time that the last one took: those
/// that were woken by it come along.
const HELD_BACK: u32 = 4;

/// But not for longer: one that has waited for the end of an outage took as long as that.
const HELD_BACK_MAX: Duration = Duration::from_millis(100);

/// Several are about when something was written while an object was, until so many objects later.
const IN_COMPANY: u32 = 16;

async fn run(db: Db, newest: Arc<AtomicU64>, mut asks: watch::Receiver<u64>, tells: watch::Sender<Flushed>) {
    let mut in_company = 0;
    while asks.changed().await.is_ok() {
        asks.borrow_and_update();
        // More than was asked for: who asks for it while the object is written need not wait for another.
        let sequence = newest.load(Ordering::Acquire);
        let begun = Instant::now();
        let done = db.flush().await;
        tells.send_modify(|flushed| match &done {
            Ok(()) => {
                flushed.durable = sequence;
                flushed.flushes += 1;
            }
            Err(error) => {
                let error = of_slatedb("syncing the log", error);
                flushed.failure.get_or_insert_with(|| match error {
                    kvfs_store::StoreError::Failed { reason } => reason,
                    error => error.to_string().into(),
                });
            }
        });
        if done.is_err() {
            return;
        }
        // A client that waits for its sync writes nothing meanwhile.
        let has_company = newest.load(Ordering::Acquire) > sequence;
        in_company = if has_company { IN_COMPANY } else { in_company.saturating_sub(1) };
        if in_company > 0 {
            tokio::time::sleep((begun.elapsed() / HELD_BACK).min(HELD_BACK_MAX)).await;
        }
    }
}
