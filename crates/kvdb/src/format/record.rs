//! Records, extents, and the iterator that all sources of records offer.
//!
//! Invariant: records are ordered by key ascending, then seqno *descending*, so that a forward walk
//! meets the newest version of a key first.

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

/// Number of a zone on the device; zone 0 holds the superblocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneId(pub u32);

/// A sector-aligned stretch of bytes inside one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Byte address on the device, a multiple of 4096.
    pub addr: u64,
    /// Length in bytes, a multiple of 4096.
    pub len: u32,
}

/// What a point record does to its key. The numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// The key is absent from here on.
    Delete = 0,
    /// The key has this value.
    Put = 1,
    /// A merge operand, resolved at read by the keyspace's merge function.
    Merge = 2,
}

/// A borrowed point record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// User key.
    pub key: &'a [u8],
    /// Commit number.
    pub seqno: Seqno,
    /// Effect.
    pub kind: RecordKind,
}

/// A walk over point records in record order, both ways. Fresh iterators stand nowhere.
///
/// Range tombstones are not records: each source offers them apart.
pub trait RecordIter: Send {
    /// Moves to the first record at or after `(key, seqno)` in record order, that is, to the newest
    /// version of `key` that is at or below `seqno`, or else to the first version of the next key.
    ///
    /// # Errors
    /// I/O errors and corruption; the iterator is then nowhere.
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()>;

    /// Moves to the last record strictly before all versions of `key`: the oldest version of the
    /// greatest smaller key.
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    fn seek_before(&mut self, key: &[u8]) -> Result<()>;

    /// Moves to the first record.
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    fn first(&mut self) -> Result<()>;

    /// Moves to the last record (the oldest version of the greatest key).
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    fn last(&mut self) -> Result<()>;

    /// One record forward; only when [`RecordIter::record`] is `Some`.
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    fn next(&mut self) -> Result<()>;

    /// One record back; only when [`RecordIter::record`] is `Some`.
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    fn prev(&mut self) -> Result<()>;

    /// The record under the iterator; `None` when it stands nowhere.
    fn record(&self) -> Option<RecordRef<'_>>;

    /// The value or operand of the current record; empty for a delete. May read the device
    /// (block keyspaces).
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    fn value(&mut self) -> Result<Bytes>;
}
