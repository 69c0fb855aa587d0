//! Reading around what can't be read: the walks of a check go on behind each damaged place.
//!
//! Thread safety: immutable. Invariants: keys outside of the damaged ranges are seen once, in order. What is
//! missing because its rows lie in such a range is no contradiction.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvfs_store::{KeyRange, Keyspace, Read, progress};

use crate::Result;
use crate::repair::DamagedKeys;

/// First and last key of a range, both within.
type Range = (Bytes, Bytes);

/// The ranges of keys that can't be read.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// By keyspace, sorted, apart from each other.
    ranges: BTreeMap<String, Vec<Range>>,
}

impl Unread {
    pub(crate) fn of(damaged: &[DamagedKeys]) -> Self {
        let mut ranges: BTreeMap<String, Vec<Range>> = BTreeMap::new();
        for keys in damaged.iter().filter(|keys| keys.txn.is_none()) {
            let range = (keys.first.clone(), keys.last.clone());
            ranges.entry(keys.keyspace.clone()).or_default().push(range);
        }
        for list in ranges.values_mut() {
            list.sort_unstable();
            list.dedup_by(|next, before| {
                let overlaps = next.0 <= before.1;
                if overlaps && before.1 < next.1 {
                    before.1 = next.1.clone();
                }
                overlaps
            });
        }
        Self { ranges }
    }

    /// Whether everything can be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether anything of `keyspace` can't be read.
    pub(crate) fn is_in(&self, keyspace: &str) -> bool {
        self.ranges.contains_key(keyspace)
    }

    /// Whether a key of `keyspace` that begins with the number of this inode may be among what can't be read.
    pub(crate) fn may_hold(&self, keyspace: &str, inode: u64) -> bool {
        let (start, end) = (inode.to_be_bytes(), inode.saturating_add(1).to_be_bytes());
        self.of_keyspace(keyspace).iter().any(|(first, last)| first[..] < end[..] && last[..] >= start[..])
    }

    fn of_keyspace(&self, keyspace: &str) -> &[Range] {
        self.ranges.get(keyspace).map_or(&[], Vec::as_slice)
    }

    /// Shows `see` each key of `keyspace`, called `name`, with its value.
    pub(crate) fn for_each<R: Read + ?Sized>(
        &self,
        read: &R,
        (keyspace, name): (Keyspace, &str),
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let mut start = Bytes::new();
        for (first, last) in self.of_keyspace(name) {
            if start < *first {
                // A walk reads ahead, so it may fail on the damage behind its end; that is known.
                let range = KeyRange::new(start, first.clone());
                let _ = walk(&mut *read.cursor(keyspace, range)?, &mut see);
            }
            start = [&last[..], &[0]].concat().into();
        }
        let mut cursor = read.cursor(keyspace, KeyRange::all())?;
        if start.is_empty() {
            cursor.next()?;
        } else {
            cursor.seek(&start)?;
        }
        walk_on(&mut *cursor, &mut see)
    }
}

fn walk(cursor: &mut dyn kvfs_store::Cursor, see: &mut impl FnMut(&[u8], &[u8])) -> Result<()> {
    cursor.next()?;
    walk_on(cursor, see)
}

/// From where the cursor is, to the end.
fn walk_on(cursor: &mut dyn kvfs_store::Cursor, see: &mut impl FnMut(&[u8], &[u8])) -> Result<()> {
    while let Some((key, value)) = cursor.entry() {
        progress::check_wanted()?;
        see(key, value);
        cursor.next()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged(first: &'static [u8], last: &'static [u8]) -> DamagedKeys {
        let (first, last) = (Bytes::from_static(first), Bytes::from_static(last));
        DamagedKeys { keyspace: "meta".to_owned(), first, last, ..DamagedKeys::default() }
    }

    #[test]
    fn ranges_that_overlap_are_one_and_hold_their_inodes() {
        let unread = Unread::of(&[
            damaged(b"m", b"p"),
            damaged(b"a", b"c"),
            damaged(b"b", b"bz"),
            damaged(b"c", b"d"),
        ]);
        let expected: Vec<Range> = vec![("a".into(), "d".into()), ("m".into(), "p".into())];
        assert_eq!(unread.of_keyspace("meta"), expected);
        assert!(!unread.is_empty() && unread.is_in("meta") && !unread.is_in("data"));
        let rows = |inode: u64| Bytes::from([&inode.to_be_bytes()[..], b"\0name"].concat());
        let keys = DamagedKeys { first: rows(7), last: rows(9), ..damaged(b"", b"") };
        let unread = Unread::of(&[keys]);
        let held: Vec<u64> = (5..12).filter(|&inode| unread.may_hold("meta", inode)).collect();
        assert_eq!(held, [7, 8, 9]);
    }
}
