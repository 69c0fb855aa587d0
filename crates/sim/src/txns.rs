//! What is known of the transactions of a store under test, and how their net changes are compared.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvfs_store::{Change, ChangeCursor, Position, Result, Store, TxnId, TxnOutcome};

use crate::ops::short;

/// The transactions that a store has given so far.
#[derive(Debug, Clone, Default)]
pub struct Outcomes {
    /// With the position of the commit; `None`: open, aborted or lost.
    given: BTreeMap<TxnId, Option<Position>>,
}

impl Outcomes {
    /// The greatest id so far; 0 if none.
    pub fn last_id(&self) -> TxnId {
        self.given.last_key_value().map_or(TxnId(0), |(&id, _)| id)
    }

    /// Takes in the id of a transaction that begins.
    ///
    /// # Errors
    /// It is not greater than all before.
    pub fn begun(&mut self, id: TxnId) -> Result<(), String> {
        let last = self.last_id();
        if id <= last {
            return Err(format!("transaction {id} begins after transaction {last}"));
        }
        self.given.insert(id, None);
        Ok(())
    }

    /// The transaction was committed, with writes.
    pub fn committed(&mut self, id: TxnId, position: Position) {
        self.given.insert(id, Some(position));
    }

    /// After an opening that found everything up to `newest`: the commits until then are known, the others
    /// are forgotten.
    ///
    /// # Errors
    /// The store says something else.
    pub fn check_reopened(&mut self, store: &dyn Store, newest: Position) -> Result<(), String> {
        for position in self.given.values_mut() {
            *position = position.filter(|&position| position <= newest);
        }
        for (&id, position) in &self.given {
            let expected = position.map_or(TxnOutcome::Unknown, TxnOutcome::Committed);
            let found = store.txn_outcome(id);
            if found != expected {
                return Err(format!(
                    "transaction {id} is {found:?} after opening at {newest:?}, not {expected:?}"
                ));
            }
        }
        Ok(())
    }
}

/// What a transaction does to one key.
#[derive(Debug, PartialEq, Eq)]
enum NetChange {
    Put(Bytes),
    Block,
    /// How operands were folded is the engine's affair.
    Merge,
}

/// A net write set of one keyspace in a form that does not depend on what made it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NetSet {
    /// Start to end; those that touch are one. A deleted key is a range too.
    deleted: Vec<(Bytes, Bytes)>,
    changed: BTreeMap<Bytes, NetChange>,
}

impl NetSet {
    /// Reads `cursor` to its end.
    ///
    /// # Errors
    /// Those of the cursor, and changes that are out of order.
    pub fn read(cursor: &mut dyn ChangeCursor) -> Result<Self, String> {
        let mut set = Self::default();
        let mut last: Option<Bytes> = None;
        while let Some(change) = cursor.next().map_err(|error| error.to_string())? {
            let first = set.take(change);
            if last.as_ref().is_some_and(|last| *last > first) {
                return Err(format!("the change of {} comes late", short(&first)));
            }
            last = Some(first);
        }
        Ok(set)
    }

    /// Takes in a change; gives its first key.
    fn take(&mut self, change: Change) -> Bytes {
        match change {
            Change::Put { key, value } => {
                self.changed.insert(key.clone(), NetChange::Put(value));
                key
            }
            Change::Delete { key } => {
                self.delete(key.clone(), [&key[..], &[0]].concat().into());
                key
            }
            Change::DeleteRange { start, end } => {
                self.delete(start.clone(), end);
                start
            }
            Change::Merge { key, .. } => {
                self.changed.insert(key.clone(), NetChange::Merge);
                key
            }
            Change::Blocks { prefix, first, count } => {
                let key = |block: u64| Bytes::from([&prefix[..], &block.to_be_bytes()].concat());
                for block in first..first + count {
                    self.changed.insert(key(block), NetChange::Block);
                }
                key(first)
            }
        }
    }

    fn delete(&mut self, start: Bytes, end: Bytes) {
        match self.deleted.last_mut() {
            Some((_, last_end)) if *last_end >= start => *last_end = end.max(last_end.clone()),
            _ => self.deleted.push((start, end)),
        }
    }
}
