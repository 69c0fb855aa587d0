//! What is free, beside what waits to be written.
//!
//! Thread safety: any thread; figures of the moment, nothing is reserved.

use std::sync::Arc;

use crate::commits::transactions::Transactions;
use crate::live::LiveSet;
use crate::runtime::Runtime;
use crate::space::Budget;

/// So little (bytes) fits what a store has from the beginning: it stays small until there is more.
const UNSECURED_BYTES_MAX: u64 = 1 << 20;

/// See the module.
pub(crate) struct Space {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) live: Arc<LiveSet>,
    pub(crate) transactions: Arc<Transactions>,
}

impl Space {
    /// Of this live set, and what these transactions hold back.
    pub(crate) fn new(live: &Arc<LiveSet>, transactions: &Arc<Transactions>) -> Self {
        let (runtime, live) = (Arc::clone(&live.runtime), Arc::clone(live));
        Self { runtime, live, transactions: Arc::clone(transactions) }
    }

    /// Whether there is space for `bytes` more than what waits to be written.
    pub(crate) fn has_space(&self, bytes: u64, budget: Budget) -> bool {
        // Indexes and filters of the future runs, and padding of short records.
        let waiting = self.bytes_waiting() + bytes;
        let needed = waiting / 16 * 17 + self.flush_slack_bytes();
        if budget == Budget::Ordinary && waiting > UNSECURED_BYTES_MAX {
            self.runtime.ctx.zones.secure(needed);
        }
        self.runtime.ctx.zones.free_bytes(budget) >= needed
    }

    /// Bytes that ordinary writes may still bring, beside what waits to be written.
    pub(crate) fn space_left(&self) -> u64 {
        let free =
            self.runtime.ctx.zones.free_bytes(Budget::Ordinary).saturating_sub(self.flush_slack_bytes());
        (free / 17 * 16).saturating_sub(self.bytes_waiting())
    }

    /// What waits to be written, of transactions, too.
    pub(crate) fn bytes_waiting(&self) -> u64 {
        self.live.view().unwritten_space_bytes() + self.transactions.bytes_private()
    }

    /// What ordinary writes may take, as far as the medium has room for what the capacity allows (bytes).
    pub(crate) fn bytes_for_ordinary(&self) -> u64 {
        match self.runtime.ctx.device.room_bytes() {
            Some(room) => self.runtime.ctx.zones.free_bytes_within(room),
            None => self.runtime.ctx.zones.free_bytes(Budget::Ordinary),
        }
    }

    /// Space that a flush may need beyond its payload: an open zone for each stream (bytes).
    pub(crate) fn flush_slack_bytes(&self) -> u64 {
        2 * u64::from(self.runtime.ctx.zones.zone_bytes())
    }
}
