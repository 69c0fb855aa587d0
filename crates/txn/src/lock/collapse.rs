//! Where memory for locks is short, those of a transaction on parts of an object become one on the whole.
//!
//! Purpose: a transaction locks what it touches and nothing else, so work beside it is in no way of it, for
//! as long as there is room for that. Then the objects of which it has most parts are given up first: that
//! makes most room, and concerns fewest. Locks on many different objects can't collapse.
//!
//! Thread safety: each object under the mutex of its shard, one after the other. Between two of them others
//! may lock, and the transaction may end, which is found at the next object.

use std::sync::Arc;

use super::owner::OwnerState;
use super::table::{LockTable, Ready};

impl LockTable {
    /// Collapses the locks of `owner` on the objects of which it has most parts: at least half as many as of
    /// any. False where it has nothing that could collapse. O(objects of the owner).
    pub(super) fn collapse_largest(&self, owner: &Arc<OwnerState>) -> bool {
        let parts_of = |key| self.shard(key).lock().get(&key).map_or(0, |object| object.collapsible(owner));
        let mut large: Vec<_> = owner.objects().into_iter().map(|key| (parts_of(key), key)).collect();
        let most = large.iter().map(|(parts, _)| *parts).max().unwrap_or(0);
        if most < 2 {
            return false;
        }
        large.retain(|(parts, _)| *parts > 1 && *parts >= most / 2);
        let mut has_waiters = false;
        for (_, key) in large {
            let mut shard = self.shard(key).lock();
            if let Some(object) = shard.get_mut(&key)
                && object.collapsible(owner) > 1
            {
                let shrunk = object.collapse(owner);
                self.count(owner, &shrunk);
                has_waiters |= !object.waiting.is_empty();
            }
        }
        self.after_grant(owner, has_waiters, Ready::new());
        true
    }
}
