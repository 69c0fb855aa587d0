//! Transactions that end without their owners' doing, and why: for the error that the owners get.
//!
//! Thread safety: as the registry; [`Ended`] is a plain value below its lock. Invariant: what is remembered
//! is bounded; the oldest go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Transactions;
use super::taken::{AT_WORK, Use};
use crate::caller::Caller;

/// After so long without a change the log says what [`Transactions::abort_all`] waits for; then after twice
/// as long each time.
const WAIT_TIME_LOGGED: Duration = Duration::from_secs(10);

/// Most that are remembered.
const ENDED_MAX: usize = 1024;

/// By number: user and reason.
#[derive(Default)]
pub(super) struct Ended(BTreeMap<u64, (u32, String)>);

impl Ended {
    pub(super) fn note(&mut self, id: u64, uid: u32, why: String) {
        self.0.insert(id, (uid, why));
        while self.0.len() > ENDED_MAX {
            self.0.pop_first();
        }
    }

    /// What `caller` is told of transaction `id`.
    pub(super) fn why(&self, id: u64, caller: &Caller) -> Option<String> {
        self.0.get(&id).filter(|(uid, _)| caller.may_act_for(*uid)).map(|(_, why)| why.clone())
    }
}

impl Transactions {
    /// Aborts everything that is open now, and says so in the log. What the daemon is at work at fails at its
    /// next operation; a commit that is under way is waited for, however long it takes. What is begun
    /// meanwhile stays: its users could keep the caller here for ever.
    pub fn abort_all(&self, why: &str) {
        let Some(last) = self.state.lock().open.keys().next_back().copied() else { return };
        let working: Vec<_> = {
            let state = self.state.lock();
            let working = state.open.range(..=last).filter(|(_, entry)| entry.used.what() == Some(AT_WORK));
            working.map(|(&id, entry)| (id, Arc::clone(&entry.view))).collect()
        };
        for (id, view) in working {
            tracing::warn!(id, why, "what is at work is given up");
            if let Some(txn) = view.txn() {
                txn.abort();
            }
        }
        let mut wait_time = WAIT_TIME_LOGGED;
        loop {
            let next = {
                let mut state = self.state.lock();
                loop {
                    let mut open = state.open.range(..=last).peekable();
                    if open.peek().is_none() {
                        return;
                    }
                    if let Some((&id, entry)) = open.find(|(_, entry)| entry.used == Use::Free) {
                        break Some((id, entry.owner.to_string()));
                    }
                    if self.changed.wait_for(&mut state, wait_time).timed_out() {
                        wait_time *= 2;
                        let busy = state.open.range(..=last);
                        for (id, what) in busy.filter_map(|(id, entry)| Some((id, entry.used.what()?))) {
                            tracing::warn!(id, what, why, "the transaction is waited for");
                        }
                    }
                }
            };
            let Some((id, owner)) = next else { return };
            tracing::warn!(id, owner, why, "transaction aborted");
            self.abort_by_daemon(id, &format!("aborted: {why}"));
        }
    }

    /// Drops a transaction unless it is busy; `why` is told to its owner.
    pub(super) fn abort_by_daemon(&self, id: u64, why: &str) {
        let taken = self.take_entry(&mut self.state.lock(), id, "being aborted");
        if let Some(taken) = taken {
            taken.discard(None, Some(why.to_owned()));
        }
    }
}
