//! The task that makes the log durable: one object for all that wait.
//!
//! Purpose: a sync that gives up must not end what others wait for, nor hold a lock meanwhile. So it asks this task, and waits for what it tells.
//!
//! Thread safety: one task of the runtime, which ends with the store that asks it. Invariant: what it tells to be durable only grows.

use std::sync::Arc;

use slatedb::Db;
use tokio::sync::watch;

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
    /// Everything up to `durable` is so.
    pub(crate) fn start(executor: &Executor, db: &Db, durable: u64) -> Self {
        let (asked, asks) = watch::channel(durable);
        let (tells, flushed) = watch::channel(Flushed { durable, ..Flushed::default() });
        executor.spawn(run(db.clone(), asks, tells));
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

async fn run(db: Db, mut asks: watch::Receiver<u64>, tells: watch::Sender<Flushed>) {
    while asks.changed().await.is_ok() {
        let sequence = *asks.borrow_and_update();
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
    }
}
