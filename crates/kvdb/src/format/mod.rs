//! Pure codecs and the types that every other module shares; no state, and no I/O but that of the
//! superblock.
//!
//! The authority on the bytes is `docs/FORMAT.md`; this module carries offsets and size asserts.

mod codec;
mod crc;
mod piece_desc;
mod record;
mod superblock;

pub use codec::{DecodeError, Decoder, Sink, varint_len};
pub use crc::{Crc32c, crc32c};
pub use piece_desc::{PieceDesc, PieceId, ZoneUse};
pub use record::{Extent, RecordIter, RecordKind, RecordRef, ZoneId};
pub use superblock::{
    FORMAT_VERSION, MANIFEST_ZONES_MAX, SUPERBLOCK_ADDRS, SUPERBLOCK_BYTES, Superblock, SuperblockError,
    ZONE_BYTES_MAX, ZONE_BYTES_MIN,
};

/// The unit of space allocation inside a zone (bytes).
pub const SECTOR_BYTES: u64 = 4096;
