//! A dense search index over sorted keys: eight bytes of each, those behind what all have in common.
//!
//! A binary search over keys on the heap misses the cache at every step; over numbers side by side
//! it does so in the first few.

use std::{cmp::Ordering, ops::Range};

use bytes::Bytes;

/// Heads of sorted keys.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyHeads {
    /// What all keys begin with.
    common: Vec<u8>,
    /// The next eight bytes of each key, zero-padded, as a big-endian number.
    heads: Vec<u64>,
}

/// The first eight bytes, zero-padded. Zero padding keeps the order: where padded heads differ, they order
/// the keys.
pub(super) fn head(rest: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = rest.len().min(8);
    bytes[..len].copy_from_slice(&rest[..len]);
    u64::from_be_bytes(bytes)
}

/// How many bytes all keys have in common at their beginnings.
pub(super) fn common_len<'a>(keys: impl IntoIterator<Item = &'a Bytes>) -> usize {
    let mut keys = keys.into_iter();
    let Some(first) = keys.next() else { return 0 };
    keys.fold(first.len(), |common, key| {
        let len = common.min(key.len());
        first[..len].iter().zip(&key[..len]).take_while(|(a, b)| a == b).count()
    })
}

impl KeyHeads {
    /// Indexes `keys`, which are sorted.
    pub(super) fn new<'a>(mut keys: impl DoubleEndedIterator<Item = &'a [u8]> + Clone) -> Self {
        let (first, last) = {
            let mut ends = keys.clone();
            let Some(first) = ends.next() else { return Self::default() };
            (first, ends.next_back().unwrap_or(first))
        };
        let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let heads = keys.by_ref().map(|key| head(&key[common..])).collect();
        Self { common: first[..common].to_vec(), heads }
    }

    /// Whether the heads alone show that the key at `at` is greater than `key`.
    pub(super) fn is_surely_greater(&self, at: usize, key: &[u8]) -> bool {
        self.heads
            .get(at)
            .is_some_and(|&at| key.strip_prefix(&self.common[..]).is_some_and(|rest| at > head(rest)))
    }

    /// Keys before the range are less than `key`, keys behind it greater; those inside share its
    /// head and must be looked at. O(log n).
    pub(super) fn equal_range(&self, key: &[u8]) -> Range<usize> {
        let Some(rest) = key.strip_prefix(&self.common[..]) else {
            return match key.cmp(&self.common) {
                Ordering::Less => 0..0,
                _ => self.heads.len()..self.heads.len(),
            };
        };
        let wanted = head(rest);
        let start = self.heads.partition_point(|&head| head < wanted);
        // Most keys differ in their heads, so a second search is rare.
        let is_equal = self.heads.get(start) == Some(&wanted);
        let len = if is_equal { self.heads[start..].partition_point(|&head| head == wanted) } else { 0 };
        start..start + len
    }
}
