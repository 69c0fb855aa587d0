//! Pure codecs and the types that every other module shares; no I/O, no state.
//!
//! The authority on the bytes is `docs/FORMAT.md`; this module carries offsets and size asserts.

mod piece_desc;
mod record;

pub use piece_desc::{PieceDesc, PieceId, ZoneUse};
pub use record::{Extent, RecordIter, RecordKind, RecordRef, ZoneId};

/// The unit of space allocation inside a zone (bytes).
pub const SECTOR_BYTES: u64 = 4096;
