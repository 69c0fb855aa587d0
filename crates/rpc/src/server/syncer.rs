//! One thread that syncs for all waiting requests: those that come while it works are the next group.
//!
//! Thread safety: all methods are `&self`. Invariant: a request that is told `Ok` was at or below a position
//! that was synced after it asked; each request is answered, also where the thread panics.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use kvfs_locks::{Condvar, Mutex, class};
use kvfs_store::{Position, StoreError};
use tokio::sync::oneshot;

type Answer = Result<(), StoreError>;

#[derive(Default)]
struct State {
    waiting: Vec<(Position, oneshot::Sender<Answer>)>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State, class::RpcServerSyncerState>,
    changed: Condvar,
}

/// See the module. Ends on drop.
pub(super) struct Syncer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// `sync` returns when everything at or below a position survives a power cut.
    pub(super) fn start(sync: impl Fn(Position) -> Answer + Send + 'static) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let working = Arc::clone(&shared);
        let body = move || {
            while let Some(group) = working.next_group() {
                let newest = group.iter().map(|(position, _)| *position).max().unwrap_or_default();
                let synced = catch_unwind(AssertUnwindSafe(|| sync(newest))).unwrap_or_else(|_| {
                    tracing::error!("a sync for key-value requests panicked");
                    Err(StoreError::io("syncing", io::Error::other("a panic; the daemon's log has more")))
                });
                for (_, waiter) in group {
                    // A client that has gone does not want to know.
                    let _ = waiter.send(synced.clone());
                }
            }
        };
        let thread = std::thread::Builder::new().name("kv-sync".into()).spawn(body)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns when everything at or below `position` survives a power cut. `None`: the server has ended.
    pub(super) async fn sync(&self, position: Position) -> Option<Answer> {
        let (sender, receiver) = oneshot::channel();
        self.shared.state.lock().waiting.push((position, sender));
        self.shared.changed.notify_one();
        receiver.await.ok()
    }
}

impl Shared {
    fn next_group(&self) -> Option<Vec<(Position, oneshot::Sender<Answer>)>> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.is_closed {
            self.changed.wait(&mut state);
        }
        Some(std::mem::take(&mut state.waiting)).filter(|group| !group.is_empty())
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the sync thread panicked");
        }
    }
}

#[cfg(test)]
mod tests;
