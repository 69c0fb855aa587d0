//! Names of transactions, and what became of them, as records of the store: in a keyspace of its own, that is
//! made for the first transaction.
//!
//! Thread safety: under its lock. Invariants: a name is durable as given away before it is given; the record
//! of a commit is a part of it.

use std::collections::VecDeque;

use bytes::Bytes;
use kvfs_store::{
    Batch, Durability, KeyRange, Keyspace, KeyspaceKind, Position, Result, Store, StoreError, TxnId,
};

/// Hidden from users by its first byte, as those of the file system.
pub(crate) const KEYSPACE: &str = "\u{1}transactions";

/// The first name that was not given away (little-endian).
const NEXT: &[u8] = b"n";
/// And the name (big-endian): its commit, with the position (little-endian).
const COMMITTED: &[u8] = b"c";

/// So many names are given away at once.
const IDS: u64 = 1024;

/// Commits that are remembered.
pub(crate) const COMMITS_MAX: usize = 4096;

/// See the module.
pub(crate) struct Outcomes {
    keyspace: Keyspace,
    next: u64,
    given: u64,
    /// Those that have a record, in their order.
    committed: VecDeque<TxnId>,
}

impl Outcomes {
    /// Of a store that may have none yet, which is made.
    pub(crate) fn open(store: &dyn Store) -> Result<Self> {
        let keyspace = store.open_keyspace(KEYSPACE, KeyspaceKind::Tuple, None)?;
        let next = match store.get(keyspace, NEXT)? {
            Some(value) => number(&value)?,
            None => 1,
        };
        Ok(Self { keyspace, next, given: next, committed: committed(store, keyspace)? })
    }

    /// Another name.
    pub(crate) fn next(&mut self, store: &dyn Store) -> Result<TxnId> {
        if self.next == self.given {
            let given = self.next + IDS;
            let mut batch = Batch::new();
            // A full store takes batches that delete: a transaction may be there to make room.
            batch.delete(self.keyspace, NEXT);
            batch.put(self.keyspace, NEXT, given.to_le_bytes().to_vec());
            store.apply(batch, Durability::Synced)?;
            self.given = given;
        }
        self.next += 1;
        Ok(TxnId(self.next - 1))
    }

    /// Adds the record of its commit to the batch of a transaction, which also removes the oldest one. The
    /// batch is the next one behind `before`.
    pub(crate) fn add_record(&self, id: TxnId, batch: &mut Batch, before: Position) {
        if let Some(&oldest) = self.committed.front().filter(|_| self.committed.len() >= COMMITS_MAX) {
            batch.delete(self.keyspace, key(oldest));
        }
        let position = before.0 + batch.len() as u64 + 1;
        batch.put(self.keyspace, key(id), position.to_le_bytes().to_vec());
    }

    /// The batch has taken effect.
    pub(crate) fn committed(&mut self, id: TxnId) {
        self.committed.push_back(id);
        if self.committed.len() > COMMITS_MAX {
            self.committed.pop_front();
        }
    }

    /// Where it was committed, if the store has a record of that. Where an engine takes numbers for itself
    /// they may lie in between.
    pub(crate) fn find(store: &dyn Store, id: TxnId) -> Result<Option<Position>> {
        let Some(info) = store.keyspaces().into_iter().find(|info| info.name == KEYSPACE) else {
            return Ok(None);
        };
        store.get(info.keyspace, &key(id))?.map(|value| number(&value).map(Position)).transpose()
    }
}

/// The transactions that have a record.
fn committed(store: &dyn Store, keyspace: Keyspace) -> Result<VecDeque<TxnId>> {
    let mut cursor = store.cursor(keyspace, KeyRange::prefix(COMMITTED))?;
    let mut ids = VecDeque::new();
    cursor.first()?;
    while let Some((key, _)) = cursor.entry() {
        let id = key.strip_prefix(COMMITTED).and_then(|id| Some(u64::from_be_bytes(id.try_into().ok()?)));
        ids.push_back(TxnId(id.ok_or_else(damaged)?));
        cursor.next()?;
    }
    Ok(ids)
}

fn key(id: TxnId) -> Bytes {
    [COMMITTED, &id.0.to_be_bytes()].concat().into()
}

fn number(value: &[u8]) -> Result<u64> {
    value.try_into().map(u64::from_le_bytes).map_err(|_| damaged())
}

fn damaged() -> StoreError {
    StoreError::corrupt("the records of transactions", "one has another length")
}
