//! What differs between two positions of a store.
//!
//! Purpose: the base of comparing, restoring and sending snapshots. [`ChangedRanges`] is what an engine knows
//! without reading values; [`Differences`] compares the values inside of it.
//!
//! Thread safety: each belongs to one walker.

use bytes::Bytes;

use crate::{Cursor, KeyRange, Keyspace, Read, Result, Seqno, progress};

/// A walk over ranges of keys, ascending and disjoint; two may touch. See
/// [`crate::TrackChanges::changed_ranges`].
pub trait ChangedRanges: Send {
    /// The next range; its end is always given.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn next(&mut self) -> Result<Option<KeyRange>>;
}

/// A key, and what two positions have there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyDifference {
    /// Whole key.
    pub key: Bytes,
    /// The value at the older position.
    pub older: Option<Bytes>,
    /// The value at the newer position.
    pub newer: Option<Bytes>,
}

/// A walk, in key order, over the keys whose values differ between two readers.
pub struct Differences<'r> {
    keyspace: Keyspace,
    older: &'r dyn Read,
    newer: &'r dyn Read,
    ranges: Box<dyn ChangedRanges>,
    /// The two sides of the range that is being compared.
    open: Option<(Box<dyn Cursor>, Box<dyn Cursor>)>,
}

impl<'r> Differences<'r> {
    /// Compares `keyspace` where `ranges` say that it may differ.
    pub fn new(
        keyspace: Keyspace,
        older: &'r dyn Read,
        newer: &'r dyn Read,
        ranges: Box<dyn ChangedRanges>,
    ) -> Self {
        Self { keyspace, older, newer, ranges, open: None }
    }

    /// The next key, with two values that differ.
    ///
    /// # Errors
    /// I/O errors and corruption.
    #[expect(clippy::should_implement_trait, reason = "it fails")]
    pub fn next(&mut self) -> Result<Option<KeyDifference>> {
        while let Some(touched) = self.next_touched()? {
            if touched.older != touched.newer {
                return Ok(Some(touched));
            }
        }
        Ok(None)
    }

    /// The next key that may have been written to and is there on a side, also where both have the same.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn next_touched(&mut self) -> Result<Option<KeyDifference>> {
        loop {
            progress::check_wanted()?;
            if let Some((older, newer)) = &mut self.open {
                if let Some(touched) = next_in(&mut **older, &mut **newer)? {
                    return Ok(Some(touched));
                }
                self.open = None;
            }
            let Some(range) = self.ranges.next()? else { return Ok(None) };
            if is_one_key(&range) {
                let older = self.older.get(self.keyspace, &range.start)?;
                let newer = self.newer.get(self.keyspace, &range.start)?;
                if older.is_some() || newer.is_some() {
                    return Ok(Some(KeyDifference { key: range.start, older, newer }));
                }
                continue;
            }
            let mut older = self.older.cursor(self.keyspace, range.clone())?;
            let mut newer = self.newer.cursor(self.keyspace, range)?;
            older.first()?;
            newer.first()?;
            self.open = Some((older, newer));
        }
    }
}

fn is_one_key(range: &KeyRange) -> bool {
    range.end.as_ref().is_some_and(|end| end.strip_prefix(&range.start[..]) == Some(&[0]))
}

/// Walks side by side past the next key.
fn next_in(older: &mut dyn Cursor, newer: &mut dyn Cursor) -> Result<Option<KeyDifference>> {
    let order = match (older.entry(), newer.entry()) {
        (None, None) => return Ok(None),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (Some((old, _)), Some((new, _))) => old.cmp(new),
    };
    let old = older.entry().filter(|_| order.is_le());
    let new = newer.entry().filter(|_| order.is_ge());
    let key = old.or(new).map(|(key, _)| Bytes::copy_from_slice(key)).unwrap_or_default();
    let (old, new) = (old.map(|(_, value)| value.clone()), new.map(|(_, value)| value.clone()));
    if order.is_le() {
        older.next()?;
    }
    if order.is_ge() {
        newer.next()?;
    }
    Ok(Some(KeyDifference { key, older: old, newer: new }))
}

/// Finding what was written between two positions without reading the rest. An extension of a
/// [`Store`](crate::Store), which an engine may lack.
pub trait TrackChanges: Send + Sync {
    /// Where `keyspace` may differ, within `range`, between the positions `older` and `newer`, both of which
    /// the caller has pinned (by a snapshot or transaction). Outside of the ranges that come, every key has
    /// the same value at both. Inside, it may have: what was written counts, whatever was there before, and a
    /// key that was written in between and is there at the newer position always does. Cost and memory go by
    /// what was written in between; older data is not read.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn changed_ranges(
        &self,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Result<Box<dyn ChangedRanges>>;
}
