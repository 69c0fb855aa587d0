//! Changes of a batch, and the ranges of keys that they lock.

use bytes::Bytes;
use kvfs_store::{Batch, KEY_LEN_MAX, KeyRange, Keyspace};

use crate::KvError;

/// Most changes of one batch, most keys of one multi-get: each is a lock of its own.
pub const OPERATIONS_MAX: usize = 10_000;

/// Fails if so many changes or keys are too many for one call.
///
/// # Errors
/// `TooMany`.
pub fn check_count(count: usize) -> Result<(), KvError> {
    if count <= OPERATIONS_MAX { Ok(()) } else { Err(KvError::TooMany) }
}

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
    pub(crate) fn range(&self) -> KeyRange {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => KeyRange::new(key.clone(), only(key)),
            Self::DeleteRange(range) => range.clone(),
        }
    }

    pub(crate) fn stage(self, keyspace: Keyspace, batch: &mut Batch) {
        match self {
            Self::Put { key, value } => batch.put(keyspace, key, value),
            Self::Delete { key } => batch.delete(keyspace, key),
            Self::DeleteRange(KeyRange { start, end }) => {
                let Some(start) = key_from(start) else { return };
                match end.and_then(key_from) {
                    Some(end) if start < end => batch.delete_range(keyspace, start, end),
                    Some(_) => {}
                    None => {
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
    }
}

/// The first key at or behind a bound, which may be longer than keys are: one right behind a key of full
/// length is. `None`: there is none.
fn key_from(bound: Bytes) -> Option<Bytes> {
    if bound.len() <= KEY_LEN_MAX {
        return Some(bound);
    }
    let mut key = bound[..KEY_LEN_MAX].to_vec();
    let at = key.iter().rposition(|&byte| byte != 0xff)?;
    key[at] += 1;
    key.truncate(at + 1);
    Some(key.into())
}

/// The ranges, in order, those that meet each other as one: an operation is never in its own way, and many
/// neighbours are one lock.
pub(crate) fn united(mut ranges: Vec<(Keyspace, KeyRange)>) -> Vec<(Keyspace, KeyRange)> {
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

/// The range of one key.
pub(crate) fn only(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_and_begin_at_bounds_that_are_longer_than_keys() {
        let staged = |start: &[u8], end: Option<&[u8]>| {
            let mut batch = Batch::new();
            let range =
                KeyRange { start: Bytes::copy_from_slice(start), end: end.map(Bytes::copy_from_slice) };
            KeyChange::DeleteRange(range).stage(Keyspace(7), &mut batch);
            batch.check_limits().expect("are within the limits");
            batch.ops().to_vec()
        };
        let ranges = |start: &[u8], end: &[u8]| {
            let mut batch = Batch::new();
            batch.delete_range(Keyspace(7), start.to_vec(), end.to_vec());
            batch.ops().to_vec()
        };
        let long = |byte: u8, tail: &[u8]| [&[byte; KEY_LEN_MAX][..], tail].concat();
        let behind = |byte: u8| [&[byte; KEY_LEN_MAX - 1][..], &[byte + 1]].concat();
        assert_eq!(staged(b"a", Some(&long(b'm', b"\0"))), ranges(b"a", &behind(b'm')));
        assert_eq!(staged(&long(b'm', b"a"), Some(b"z")), ranges(&behind(b'm'), b"z"));
        assert_eq!(staged(&long(b'm', b"a"), Some(&long(b'm', b"b"))), [], "no key is in between");
        assert_eq!(staged(&long(0xff, b"a"), None), [], "nothing is behind the last key");
        assert_eq!(staged(b"a", Some(&long(0xff, b"a"))), staged(b"a", None));
        let mut ending = vec![b'm'; 10];
        ending.resize(KEY_LEN_MAX + 1, 0xff);
        assert_eq!(staged(b"a", Some(&ending)), ranges(b"a", b"mmmmmmmmmn"));
    }

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
