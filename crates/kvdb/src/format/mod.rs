//! Pure codecs and the types that every other module shares; no state, and no I/O but that of the
//! superblock.
//!
//! The authority on the bytes is `docs/FORMAT.md`; this module carries offsets and size asserts.

mod codec;
mod crc;
mod features;
mod frame;
mod member;
mod packing;
mod piece_desc;
mod piece_meta;
mod record;
mod region;
mod superblock;
mod tuple_block;
mod varint;

pub use codec::{DecodeError, Decoder, Sink, varint_len};
pub use crc::{Crc32c, crc32c};
pub use features::{FORMAT_VERSION, FORMAT_VERSION_PLAIN, Feature, Features};
pub(crate) use frame::{FRAME_HEADER_BYTES, FrameFields, FrameHeader, group_len, payload_crc};
pub use member::{MEMBER_DATA_FROM, Member};
pub use packing::{Codec, Packer, unpack};
pub use piece_desc::{PieceDesc, PieceId, ZoneUse};
pub use piece_meta::{
    Fingerprints, PackedBlock, PieceMetaHeader, Section, TupleEntry, decode_fingerprints, decode_layers,
    decode_tombstones, decode_tuples, encode_fingerprints, encode_layers, encode_tombstones, encode_tuples,
};
pub use record::{Extent, RecordIter, RecordKind, RecordRef, ZoneId};
pub(crate) use region::cmp_block_keys;
pub use region::{Layer, Region, SeqnoSpan, UNIT_BLOCKS_MAX, Unit, cmp_block_key};
pub use superblock::{
    MANIFEST_ZONES_MAX, SUPERBLOCK_ADDRS, SUPERBLOCK_BYTES, Superblock, SuperblockError, ZONE_BYTES_MAX,
    ZONE_BYTES_MIN,
};
pub use tuple_block::{TUPLE_BLOCK_BYTES_MAX, TupleBlock, TupleBlockBuilder, TupleCursor};

/// The unit of space allocation inside a zone (bytes).
pub const SECTOR_BYTES: u64 = 4096;
