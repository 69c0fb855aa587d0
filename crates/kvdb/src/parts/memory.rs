//! What memory is charged of a store, and whether any still is when the store has gone.
//!
//! Thread safety: shared; reads atomics, and the shards of the cache one after the other.

use std::fmt::Write;
use std::sync::{Arc, Weak};
use std::thread;

use kvfs_memory::{Charges, LiveCharges};

use super::Parts;
use crate::cache::{Accountant, Pool};

/// What is charged of a store.
#[derive(Debug, Clone)]
pub struct ChargedMemory {
    /// By pool, and in each the place with the most bytes first.
    pub live: Vec<LiveCharges>,
    /// By pool.
    pub ownerless: Vec<Ownerless>,
}

/// What the owners that there are do not account for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownerless {
    /// Its name.
    pub pool: &'static str,
    /// Charged beyond what the owners hold: for what is on its way, such as a memtable that a reader still
    /// holds, or leaked.
    pub bytes: u64,
    /// What the owners are.
    pub owners: &'static str,
}

impl Parts {
    /// What is charged now. The owners of a few pools are known one by one: those are compared.
    pub(crate) fn charged_memory(&self) -> ChargedMemory {
        let accountant = &self.runtime.ctx.accountant;
        accountant.charges().set_now(self.runtime.clock.monotonic());
        let has_private = self.transactions.has_open();
        let tables = || self.live.view().charged_bytes();
        let blocks = || self.runtime.ctx.cache.bytes_of_blocks();
        let mut ownerless = Vec::new();
        let mut compare = |pool: Pool, owners, owned: &dyn Fn() -> u64| {
            // Owners that come or go meanwhile are seen by one of the two looks.
            let before = owned();
            let bytes = accountant.used(pool).saturating_sub(before.max(owned()));
            ownerless.push(Ownerless { pool: pool.name(), bytes, owners });
        };
        if !has_private && !self.transactions.has_open() {
            compare(Pool::Memtable, "the memtables in use", &tables);
        }
        compare(Pool::BlockCache, "the blocks in the cache", &blocks);
        ChargedMemory { live: accountant.charges().live(), ownerless }
    }
}

/// Another thread may be letting go of the last owner: it is given the processor so often.
const YIELDS_MAX: usize = 10_000;

/// Looks for leaks in debug builds when it is dropped, which must be after all owners of the store.
pub(crate) struct LeakCheck {
    accountant: Weak<Accountant>,
    charges: Arc<Charges>,
}

impl LeakCheck {
    /// Of what these charge.
    pub(crate) fn of(parts: &Parts) -> Self {
        let accountant = &parts.runtime.ctx.accountant;
        Self { accountant: Arc::downgrade(accountant), charges: Arc::clone(accountant.charges()) }
    }

    /// What is charged although it has no owner.
    fn leaks(&self) -> Vec<LiveCharges> {
        let mut left = self.charges.live();
        for _ in 0..YIELDS_MAX {
            if left.is_empty() || self.accountant.strong_count() > 0 {
                break;
            }
            thread::yield_now();
            left = self.charges.live();
        }
        left
    }
}

impl Drop for LeakCheck {
    fn drop(&mut self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let left = self.leaks();
        if left.is_empty() {
            return;
        }
        let places = places_of(&left);
        if self.accountant.strong_count() > 0 {
            tracing::warn!(
                "a snapshot, cursor or transaction outlives its store; charged are still:{places}"
            );
            return;
        }
        tracing::error!("the store is closed, and memory of it is still charged:{places}");
        assert!(thread::panicking(), "the store is closed, and memory of it is still charged:{places}");
    }
}

/// One line for each place.
fn places_of(live: &[LiveCharges]) -> String {
    let mut text = String::new();
    for LiveCharges { pool, at, bytes, count, age_max, .. } in live {
        let at = at.map_or_else(|| "other places".to_owned(), |at| format!("{}:{}", at.file(), at.line()));
        // Writing to a string never fails.
        let _ = write!(text, "\n  {bytes} bytes of {pool} in {count}, the oldest for {age_max:?}, at {at}");
    }
    text
}

#[cfg(test)]
mod tests;
