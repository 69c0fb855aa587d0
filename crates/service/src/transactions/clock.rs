//! Time for transactions: locks that are waited for too long, transactions that take too long.

use std::time::Duration;

use kvfs_fs::DoomReason;

use super::taken::Use;
use super::{State, Transactions};

/// Between two looks, while there are transactions.
const TICK: Duration = Duration::from_millis(100);

/// Between two looks while there are none: merges of branches hold locks, too, and come and go unasked.
const SLOW_TICK: Duration = Duration::from_secs(1);

impl Transactions {
    /// Body of the clock thread.
    ///
    /// It looks when a tick is over, not when something changes: a caller that begins and ends one empty
    /// transaction after the other would wake it each time, and then find its own CPU taken.
    pub(super) fn tick(&self) {
        loop {
            {
                let has_owners = self.main.fs.admission().stats().owners > 0;
                let mut state = self.state.lock();
                state.is_clock_asleep = state.open.is_empty() && !has_owners && !state.is_closed;
                if state.is_clock_asleep {
                    self.clock_wanted.wait_for(&mut state, SLOW_TICK);
                    state.is_clock_asleep = false;
                }
                if state.is_closed && state.open.is_empty() {
                    return;
                }
                self.clock_wanted.wait_for(&mut state, TICK);
            }
            self.main.fs.admission().tick();
            self.abort_late();
        }
    }

    /// Called whenever a transaction has begun.
    pub(super) fn wake_clock(&self, state: &mut State) {
        if std::mem::take(&mut state.is_clock_asleep) {
            self.clock_wanted.notify_one();
        }
    }

    /// Drops transactions whose time is over, as a whole or without an operation, and those that gave way on
    /// a full store: no caller may ever come to do it.
    fn abort_late(&self) {
        let late: Vec<(u64, String)> = {
            let state = self.state.lock();
            let free = state.open.iter().filter(|(_, entry)| entry.used == Use::Free);
            let late = free.filter_map(|(&id, entry)| {
                let doom = entry.view.txn()?.doom().filter(|doom| is_late(doom.reason))?;
                Some((id, entry.view.lock_words().explain(&doom)))
            });
            late.collect()
        };
        for (id, why) in late {
            tracing::warn!(id, why, "transaction aborted");
            self.abort_by_daemon(id, &why);
        }
    }
}

fn is_late(reason: DoomReason) -> bool {
    matches!(reason, DoomReason::TimedOut | DoomReason::Idle { .. } | DoomReason::Space { .. })
}
