//! Key-value operations of a view: the same order, locks and transactions as files have.
//!
//! A keyspace is made outside of transactions, and stays when one comes to nothing; what is in it belongs to
//! the transaction. Whose it is says [`keyspaces`]; whoever calls here has asked.
//!
//! Thread safety: as [`FileSystem`].

mod keyspaces;

pub use keyspaces::{KEYSPACE_NAME_LEN_MAX, KeyspaceEntry, KeyspaceOwner};
pub(crate) use keyspaces::{KeyspaceTable, check_name};

use bytes::Bytes;
use kvfs_store::{Batch, Cursor, KEY_LEN_MAX, KeyRange, Keyspace, Position, Read};
use kvfs_txn::{LockName, Mode, Want};

use crate::{Caller, FileSystem, FsError, Result};

/// One change of a batch of key-value operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChange {
    /// Sets a key.
    Put {
        /// Key.
        key: Bytes,
        /// New value.
        value: Bytes,
    },
    /// Removes a key; it need not exist.
    Delete {
        /// Key.
        key: Bytes,
    },
    /// Removes every key in the range.
    DeleteRange(KeyRange),
}

impl KeyChange {
    /// The keys that it may change.
    fn range(&self) -> KeyRange {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => KeyRange::new(key.clone(), only(key)),
            Self::DeleteRange(range) => range.clone(),
        }
    }

    fn stage(self, keyspace: Keyspace, batch: &mut Batch) {
        match self {
            Self::Put { key, value } => batch.put(keyspace, key, value),
            Self::Delete { key } => batch.delete(keyspace, key),
            Self::DeleteRange(range) if range.is_empty() => {}
            Self::DeleteRange(KeyRange { start, end: Some(end) }) => batch.delete_range(keyspace, start, end),
            Self::DeleteRange(KeyRange { start, end: None }) => {
                // Ranges of the store have an end: the greatest key, which goes by itself.
                let last = Bytes::from_static(&[0xff; KEY_LEN_MAX]);
                if start < last {
                    batch.delete_range(keyspace, start, last.clone());
                }
                batch.delete(keyspace, last);
            }
        }
    }
}

/// The ranges, in order, those that meet each other as one: nobody stands in his own way, and many neighbours
/// are one lock.
fn united(mut ranges: Vec<(Keyspace, KeyRange)>) -> Vec<(Keyspace, KeyRange)> {
    ranges.retain(|(_, range)| !range.is_empty());
    ranges.sort_unstable_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.start.cmp(&y.start)));
    let mut united: Vec<(Keyspace, KeyRange)> = Vec::with_capacity(ranges.len());
    for (keyspace, range) in ranges {
        match united.last_mut() {
            Some((same, last))
                if *same == keyspace && last.end.as_ref().is_none_or(|end| *end >= range.start) =>
            {
                if last.end.is_some() && range.end.as_ref().is_none_or(|end| last.end.as_ref() < Some(end)) {
                    last.end = range.end;
                }
            }
            _ => united.push((keyspace, range)),
        }
    }
    united
}

fn wants(ranges: &[(Keyspace, KeyRange)], mode: Mode) -> Vec<Want<'_>> {
    ranges
        .iter()
        .map(|(keyspace, range)| Want {
            name: LockName::Keys { keyspace: *keyspace, start: &range.start, end: range.end.as_deref() },
            mode,
        })
        .collect()
}

/// The range of one key.
fn only(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}

fn values_of(
    read: &(impl Read + ?Sized),
    keyspace: Keyspace,
    keys: &[Bytes],
    bytes_max: usize,
) -> Result<Vec<Option<Bytes>>> {
    let mut left = bytes_max;
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        let value = read.get(keyspace, key)?;
        let bytes = value.as_ref().map_or(0, Bytes::len);
        let too_much =
            FsError::Invalid("the values are too large for one answer; ask for fewer keys at once");
        left = left.checked_sub(bytes).ok_or(too_much)?;
        values.push(value);
    }
    Ok(values)
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

    /// The values under `keys`, in their order, at one moment.
    ///
    /// # Errors
    /// As [`Self::key_get`]; `Invalid` when the values have more than `bytes_max` bytes.
    pub fn key_multi_get(
        &self,
        caller: &Caller,
        keyspace: Keyspace,
        keys: &[Bytes],
        bytes_max: usize,
    ) -> Result<Vec<Option<Bytes>>> {
        if self.locks_reads() {
            let range = |key: &Bytes| (keyspace, KeyRange::new(key.clone(), only(key)));
            let ranges = united(keys.iter().map(range).collect());
            self.lock_read(caller, &wants(&ranges, Mode::Shared))?;
        }
        self.check_alive()?;
        // One by one, so that the bound holds whatever the values are.
        let values = match self.txn() {
            None => values_of(&*self.store.snapshot()?, keyspace, keys, bytes_max),
            Some(_) => values_of(self.read_view(), keyspace, keys, bytes_max),
        }?;
        self.confirm_read()?;
        Ok(values)
    }

    /// Makes all changes or none. Returns what to sync.
    ///
    /// # Errors
    /// As [`Self::key_set`].
    pub fn keys_apply(&self, caller: &Caller, changes: Vec<(Keyspace, KeyChange)>) -> Result<Position> {
        self.check_writable()?;
        let ranges = united(changes.iter().map(|(keyspace, change)| (*keyspace, change.range())).collect());
        let _held = self.latch(caller, &wants(&ranges, Mode::Exclusive))?;
        let mut batch = Batch::new();
        for (keyspace, change) in changes {
            change.stage(keyspace, &mut batch);
        }
        self.apply(batch)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_one() {
        let range = |start: &'static str, end: Option<&'static str>| KeyRange {
            start: Bytes::from_static(start.as_bytes()),
            end: end.map(|end| Bytes::from_static(end.as_bytes())),
        };
        let (a, b) = (Keyspace(7), Keyspace(8));
        let given = vec![
            (b, range("a", Some("b"))),
            (a, range("x", None)),
            (a, range("c", Some("d"))),
            (a, range("a", Some("m"))),
            (a, range("m", Some("n"))),
            (a, range("z", Some("zz"))),
            (a, range("p", Some("p"))),
        ];
        let want = vec![(a, range("a", Some("n"))), (a, range("x", None)), (b, range("a", Some("b")))];
        assert_eq!(united(given), want);
    }
}
