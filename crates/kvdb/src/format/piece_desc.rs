//! What the manifest records of a piece: identity, bounds, and where its bytes are.

use bytes::Bytes;
use kvfs_store::Seqno;

use super::{Extent, ZoneId};

/// Number of a piece, unique in the store for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceId(pub u64);

/// How much of one zone a piece holds. Rebuilds the allocator's tables at open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZoneUse {
    /// The zone.
    pub zone: ZoneId,
    /// Bytes of it that the piece refers to (live).
    pub bytes: u64,
    /// Number of contiguous stretches that they form.
    pub pieces: u32,
    /// Highest used offset in the zone (exclusive): the bump pointer is at or beyond it.
    pub end: u32,
}

/// An immutable table as the manifest knows it. Several pieces may refer to the same bytes (stitching);
/// then each counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceDesc {
    /// Identity.
    pub id: PieceId,
    /// Smallest key, range tombstone starts included.
    pub first_key: Bytes,
    /// Greatest key, inclusive; where a range tombstone reaches further, its (exclusive) end.
    pub last_key: Bytes,
    /// Smallest seqno of any record or range tombstone.
    pub seqno_min: Seqno,
    /// Greatest seqno of any record or range tombstone.
    pub seqno_max: Seqno,
    /// Bytes of data that the piece refers to, padding to sectors included, metadata excluded.
    pub data_bytes: u64,
    /// Point records (tuple keyspaces) or blocks (block keyspaces).
    pub records: u64,
    /// Range tombstones (start, end, seqno).
    pub tombstones: u64,
    /// Where the metadata blob lies, in order; each extent but the last is full.
    pub meta: Vec<Extent>,
    /// Length of the blob (bytes).
    pub meta_len: u32,
    /// CRC-32C of the blob's header, which in turn holds those of its sections.
    pub meta_crc: u32,
    /// Everything that the piece holds in the zones, data and metadata, by zone ascending.
    pub zones: Vec<ZoneUse>,
}
