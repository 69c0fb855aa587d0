//! Time for transactions: locks that are waited for too long, transactions that take too long.

use std::time::Duration;

use kvfs_fs::DoomReason;

use super::{State, Transactions};

/// Between two looks, while there are transactions.
const TICK: Duration = Duration::from_millis(100);

impl Transactions {
    /// Body of the clock thread.
    ///
    /// It looks when a tick is over, not when something changes: who begins and ends one empty transaction after the
    /// other would wake it each time, and then find his CPU taken.
    pub(super) fn tick(&self) {
        loop {
            {
                let mut state = self.state.lock();
                state.is_clock_asleep = state.open.is_empty();
                while state.is_clock_asleep && !state.is_closed {
                    self.clock_wanted.wait(&mut state);
                }
                if state.is_closed && state.open.is_empty() {
                    return;
                }
                self.clock_wanted.wait_for(&mut state, TICK);
            }
            self.main.fs.tick_locks();
            self.abort_late();
        }
    }

    /// Called whenever a transaction has begun.
    pub(super) fn wake_clock(&self, state: &mut State) {
        if std::mem::take(&mut state.is_clock_asleep) {
            self.clock_wanted.notify_one();
        }
    }

    /// Drops transactions whose time is over: nobody may ever come to do it.
    fn abort_late(&self) {
        let late: Vec<u64> = {
            let state = self.state.lock();
            let is_late =
                |doom: Option<kvfs_fs::Doom>| doom.is_some_and(|doom| doom.reason == DoomReason::TimedOut);
            let free = state.open.iter().filter(|(_, entry)| entry.busy.is_none());
            free.filter(|(_, entry)| is_late(entry.view.doom())).map(|(&id, _)| id).collect()
        };
        for id in late {
            tracing::warn!(id, "transaction aborted: its time is over");
            self.abort_by_daemon(id);
        }
    }
}
