//! Time for transactions: locks that are waited for too long, transactions that take too long.

use std::time::Duration;

use kvfs_fs::DoomReason;

use super::Transactions;

/// Between two looks, while there are transactions.
const TICK: Duration = Duration::from_millis(100);

impl Transactions {
    /// Body of the clock thread.
    pub(super) fn tick(&self) {
        loop {
            {
                let mut state = self.state.lock();
                while state.open.is_empty() && !state.is_closed {
                    self.changed.wait(&mut state);
                }
                if state.open.is_empty() {
                    return;
                }
                self.changed.wait_for(&mut state, TICK);
            }
            self.main.fs.tick_locks();
            self.abort_late();
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
