//! Keys of the database, and its sequence numbers.
//!
//! Purpose: before a key stands the number of its keyspace (big-endian `u32`). A sequence number is the seqno
//! of kvfs with lower bits for what is written between two batches: records of keyspaces, steps of the
//! reaper.
//!
//! Thread safety: functions. Invariants: the order of keys in a keyspace is that of the database; the order
//! of batches is that of sequence numbers. More steps than the lower bits can count take a seqno, which is
//! harmless.

use std::ops::Bound;

use bytes::{BufMut, Bytes, BytesMut};
use kvfs_store::{KeyRange, Seqno};

/// What is of no keyspace.
pub(crate) const META: u32 = 0;

/// Before each key (bytes).
const NUMBER_BYTES: usize = 4;

/// Of a sequence number, those below the seqno.
const STEP_BITS: u32 = 16;

/// The sequence number of the batch whose last seqno is `seqno`.
pub(crate) fn sequence(seqno: Seqno) -> u64 {
    seqno << STEP_BITS
}

/// The newest seqno at a sequence number.
pub(crate) fn seqno(sequence: u64) -> Seqno {
    sequence >> STEP_BITS
}

/// Both ends of a scan.
pub(crate) type Bounds = (Bound<Bytes>, Bound<Bytes>);

/// The key of the database.
pub(crate) fn full(space: u32, key: &[u8]) -> Bytes {
    let mut full = BytesMut::with_capacity(NUMBER_BYTES + key.len());
    full.put_u32(space);
    full.put_slice(key);
    full.freeze()
}

/// The key in its keyspace.
pub(crate) fn inner(full: &[u8]) -> &[u8] {
    full.get(NUMBER_BYTES..).unwrap_or_default()
}

/// Where the keys of `range` lie, which is not empty.
pub(crate) fn bounds(space: u32, range: &KeyRange) -> Bounds {
    let end = range.end.as_ref().map_or_else(|| full(space + 1, &[]), |end| full(space, end));
    (Bound::Included(full(space, &range.start)), Bound::Excluded(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyspaces_are_apart_and_keys_stay_in_order() {
        let (start, end) = bounds(7, &KeyRange::all());
        let within = |key: &Bytes| matches!((&start, &end), (Bound::Included(a), Bound::Excluded(b)) if a <= key && key < b);
        assert!(within(&full(7, &[])) && within(&full(7, &[255; 9])));
        assert!(!within(&full(8, &[])) && !within(&full(6, &[255; 9])));
        assert_eq!(inner(&full(7, b"key")), b"key");
    }
}
