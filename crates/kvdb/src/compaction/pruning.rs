//! Leaf pruning: tuple blocks that range tombstones hide wholly are left out of a merge without being read
//! (BetrFS 0.2, section 5).
//!
//! Thread safety: immutable. Invariant: each record of a block that is left out would be dropped if it were
//! read: a newer tombstone of its snapshot stripe lies over it, in the inputs of this merge.

use std::sync::Arc;

use kvfs_store::Seqno;

use crate::format::TupleEntry;
use crate::iter::KeepRules;
use crate::memtable::TombstoneSet;

/// Decides by the index alone.
pub(super) struct Pruning {
    /// Of all inputs.
    tombstones: Arc<TombstoneSet>,
    rules: KeepRules,
}

impl Pruning {
    pub(super) fn new(tombstones: &Arc<TombstoneSet>, rules: &KeepRules) -> Arc<Self> {
        Arc::new(Self { tombstones: Arc::clone(tombstones), rules: rules.clone() })
    }

    /// Whether no record of the block that `entry` names is kept. O(log n), and O(tombstones that begin or
    /// end in it).
    pub(super) fn drops(&self, entry: &TupleEntry) -> bool {
        if self.tombstones.seqno_max() <= entry.seqno_max {
            return false;
        }
        let (below, newest): (Seqno, Seqno) = self.rules.stripe(entry.seqno_max);
        entry.seqno_min > below
            && self.tombstones.hides(&entry.first_key, &entry.last_key, entry.seqno_max, newest)
    }
}

#[cfg(test)]
mod tests;
