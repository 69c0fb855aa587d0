//! What a batch comes to, for a database.
//!
//! Thread safety: plain values. Invariant: the changes are in the order in which they are to be made.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::KeyRange;

use crate::space::Space;

/// One change of a keyspace.
#[expect(missing_docs, reason = "the variants' docs name their fields")]
pub enum Change<H> {
    /// Sets `key` to `value`.
    Put { space: Arc<Space<H>>, key: Bytes, value: Bytes },
    /// Removes `key`.
    Delete { space: Arc<Space<H>>, key: Bytes },
    /// Removes what lies in `range`, which is not empty; only for a database that can.
    DeleteRange { space: Arc<Space<H>>, range: KeyRange },
}

/// All of a batch.
pub struct Changes<H> {
    /// Of keyspaces.
    pub changes: Vec<Change<H>>,
    /// Of what is in none: the value, or `None` to remove it.
    pub meta: Vec<(&'static [u8], Option<Bytes>)>,
}

impl<H> Default for Changes<H> {
    fn default() -> Self {
        Self { changes: Vec::new(), meta: Vec::new() }
    }
}
