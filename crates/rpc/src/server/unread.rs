//! Answers of one connection that were not written yet, by age: a client that takes none in time loses its
//! connection.
//!
//! A client that opens no window for an answer keeps it here, and what an answer counts is kept from the
//! user's other connections and from others.
//!
//! Thread safety: answers are noted and written on the thread of the event loop; the lock is held for
//! moments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::clock::{Clock, SystemClock};

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// When each was ready.
    since: BTreeMap<u64, Duration>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Unread {
    clock: SystemClock,
    state: Mutex<State, class::RpcServerUnreadState>,
}

/// An answer that waits to be written, until it is dropped.
pub(super) struct Mark {
    unread: Arc<Unread>,
    number: u64,
}

impl Unread {
    /// An answer is ready.
    pub(super) fn mark(self: &Arc<Self>) -> Mark {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.since.insert(number, self.clock.monotonic());
        Mark { unread: Arc::clone(self), number }
    }

    /// Returns when an answer has waited for so long.
    pub(super) async fn overdue(&self, time_max: Duration) {
        loop {
            let oldest = self.state.lock().since.first_key_value().map(|(_, since)| *since);
            let waited = oldest.map_or(Duration::ZERO, |since| self.clock.monotonic().saturating_sub(since));
            let left = time_max.saturating_sub(waited);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.unread.state.lock().since.remove(&self.number);
    }
}
