//! Wishes on which tier blocks lie.

use std::ops::Range;

use crate::{Keyspace, Result, TierBytes};

/// Placing blocks by wishes. An extension of a [`Store`](crate::Store), which an engine may lack.
pub trait Place: Send + Sync {
    /// From now on, until the store is closed, the rows of `wishes`, a keyspace of tuples, say on which tier
    /// the blocks of `data` are to lie: the key is a prefix of blocks, the value the byte
    /// [`Tier::code`](crate::Tier::code). The engine decides where there is no such row, or another value. A
    /// wish is never a reason to refuse anything: where a tier has no room, or no device, the other one is
    /// taken. Blocks that are there already go to the tier of a new wish when a merge copies them.
    ///
    /// # Errors
    /// There is no such keyspace, or it is of another kind.
    fn place_by(&self, data: Keyspace, wishes: Keyspace) -> Result<()>;

    /// What `blocks` of a prefix take on devices, former versions that no merge has dropped yet included;
    /// what is in memory alone is not. Reads the indexes of the pieces that may have them.
    ///
    /// # Errors
    /// There is no such keyspace, or it is of another kind; store errors.
    fn bytes_by_tier(&self, data: Keyspace, prefix: &[u8], blocks: Range<u64>) -> Result<TierBytes>;
}
