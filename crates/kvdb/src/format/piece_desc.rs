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

impl PieceDesc {
    /// Whether the piece has `len` bytes at `addr`: all of them in one of its zones. O(log zones).
    pub fn holds(&self, addr: u64, len: u64, zone_bytes: u32) -> bool {
        let (zone, offset) = (addr / u64::from(zone_bytes), addr % u64::from(zone_bytes));
        let at = self.zones.binary_search_by_key(&zone, |zone_use| zone_use.zone.0.into());
        let end = offset.checked_add(len);
        at.is_ok_and(|at| end.is_some_and(|end| end <= u64::from(self.zones[at].end)))
    }
}
