//! Key-value operations of a view: the same order, locks and transactions as files have.
//!
//! A keyspace is made outside of transactions, and stays when one comes to nothing; what is in it belongs to
//! the transaction.
//!
//! Thread safety: as [`FileSystem`].

use bytes::Bytes;
use kvfs_store::{Batch, Cursor, KeyRange, Keyspace, Position};
use kvfs_txn::{LockName, Want};

use crate::{Caller, FileSystem, Result};

/// The range of one key.
fn only(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}

impl FileSystem {
    /// The value under `key`.
    ///
    /// # Errors
    /// `Parked` only where reads are locked; store errors.
    pub fn key_get(&self, caller: &Caller, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        let end = only(key);
        self.lock_read(caller, &[Want::shared(LockName::Keys { keyspace, start: key, end: Some(&end) })])?;
        self.check_alive()?;
        let value = self.read_view().get(keyspace, key)?;
        self.confirm_read()?;
        Ok(value)
    }

    /// Sets `key`, or deletes it. Returns what to sync, and whether the key was there.
    ///
    /// # Errors
    /// `Parked`; `Canceled` when somebody else changed the key since the transaction began; store errors.
    pub fn key_set(
        &self,
        caller: &Caller,
        keyspace: Keyspace,
        key: &[u8],
        value: Option<Bytes>,
    ) -> Result<(Position, bool)> {
        self.check_writable()?;
        let end = only(key);
        let name = LockName::Keys { keyspace, start: key, end: Some(&end) };
        let _held = self.latch(caller, &[Want::exclusive(name)])?;
        let existed = self.read_view().get(keyspace, key)?.is_some();
        let mut batch = Batch::new();
        let key = Bytes::copy_from_slice(key);
        match value {
            Some(value) => batch.put(keyspace, key, value),
            None => batch.delete(keyspace, key),
        }
        Ok((self.apply(batch)?, existed))
    }

    /// A walk over the keys in `range`. Where reads are locked, the whole range is.
    ///
    /// # Errors
    /// As [`Self::key_get`].
    pub fn key_cursor(
        &self,
        caller: &Caller,
        keyspace: Keyspace,
        range: KeyRange,
    ) -> Result<Box<dyn Cursor>> {
        let name = LockName::Keys { keyspace, start: &range.start, end: range.end.as_deref() };
        self.lock_read(caller, &[Want::shared(name)])?;
        self.check_alive()?;
        let cursor = self.read_view().cursor(keyspace, range)?;
        self.confirm_read()?;
        Ok(cursor)
    }
}
