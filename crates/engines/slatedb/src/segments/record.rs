//! What the database says of segments: the reference that stands for a block, the extents of a segment, and
//! those that are dead.
//!
//! Thread safety: plain values. Invariants: a reference has another length than a block, so a value of a
//! keyspace of blocks is one or the other; what refers to a segment, and the extent that it lies in, are of
//! one batch, or the extent is of an earlier one.

use bytes::{BufMut, Bytes, BytesMut};
use kvfs_store::{BLOCK_BYTES, Result, StoreError};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Before segment (big-endian `u64`) and first block in it (big-endian `u16`), in the key of an extent.
pub(crate) const EXTENTS: &[u8] = b"segment/";

/// Before the segment (big-endian `u64`), in the key of a dead one.
pub(crate) const DEAD: &[u8] = b"segment-dead/";

/// Before the segment (big-endian `u64`), in the key of one some blocks of which were deleted, and which is
/// to be looked at.
pub(crate) const SUSPECTS: &[u8] = b"segment-suspect/";

/// The key of the bytes that all segments have together (little-endian `u64`).
pub(crate) const BYTES: &[u8] = b"segment-bytes";

/// The key of the segment that was looked at last (little-endian `u64`).
pub(crate) const LOOKED_AT: &[u8] = b"segment-looked-at";

/// Where the content of a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) segment: u64,
    /// Number of the block in it.
    pub(crate) index: u16,
    pub(crate) checksum: u32,
}

/// A [`BlockRef`] as it is stored.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRef {
    segment: U64,
    checksum: U32,
    index: U16,
}

const REF_BYTES: usize = size_of::<RawRef>();
const _: () = assert!(REF_BYTES == 14 && REF_BYTES != BLOCK_BYTES);

impl BlockRef {
    /// To `block`, which is there.
    pub(crate) fn to(segment: u64, index: u16, block: &[u8]) -> Self {
        Self { segment, index, checksum: checksum(block) }
    }

    pub(crate) fn value(self) -> Bytes {
        let Self { segment, index, checksum } = self;
        let raw = RawRef { segment: segment.into(), checksum: checksum.into(), index: index.into() };
        Bytes::copy_from_slice(raw.as_bytes())
    }

    /// `None`: the value is a block, or damaged.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let raw = RawRef::read_from_bytes(value).ok()?;
        Some(Self { segment: raw.segment.get(), index: raw.index.get(), checksum: raw.checksum.get() })
    }

    pub(crate) fn is_of(&self, block: &[u8]) -> bool {
        checksum(block) == self.checksum
    }
}

fn checksum(block: &[u8]) -> u32 {
    // The lower half of it.
    xxh3_64(block) as u32
}

/// Blocks of one file that lie one after another in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) segment: u64,
    /// Number of the first block in it.
    pub(crate) index: u16,
    pub(crate) count: u16,
    /// Sequence number of the batch that has written it.
    pub(crate) born: u64,
    /// Number of the keyspace.
    pub(crate) space: u32,
    /// Of the file.
    pub(crate) prefix: Bytes,
    pub(crate) first: u64,
}

/// The value of an [`Extent`], with the prefix behind it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtent {
    born: U64,
    first: U64,
    space: U32,
    count: U16,
}

const _: () = assert!(size_of::<RawExtent>() == 22);

impl Extent {
    pub(crate) fn key(&self) -> Bytes {
        let mut key = extents_of(self.segment);
        key.put_u16(self.index);
        key.freeze()
    }

    pub(crate) fn value(&self) -> Bytes {
        let raw = RawExtent {
            born: self.born.into(),
            first: self.first.into(),
            space: self.space.into(),
            count: self.count.into(),
        };
        let mut value = BytesMut::from(raw.as_bytes());
        value.put_slice(&self.prefix);
        value.freeze()
    }

    pub(crate) fn parse(key: &[u8], value: &[u8]) -> Result<Self> {
        let damaged = || StoreError::corrupt("SlateDB", "the record of an extent of a segment is damaged");
        let (segment, index) = key
            .strip_prefix(EXTENTS)
            .and_then(|key| key.split_first_chunk::<8>())
            .and_then(|(segment, index)| Some((u64::from_be_bytes(*segment), index.try_into().ok()?)))
            .ok_or_else(damaged)?;
        let (raw, prefix) = RawExtent::read_from_prefix(value).map_err(|_| damaged())?;
        Ok(Self {
            segment,
            index: u16::from_be_bytes(index),
            count: raw.count.get(),
            born: raw.born.get(),
            space: raw.space.get(),
            prefix: Bytes::copy_from_slice(prefix),
            first: raw.first.get(),
        })
    }
}

/// Where the keys of all extents of a segment begin.
pub(crate) fn extents_of(segment: u64) -> BytesMut {
    let mut key = BytesMut::from(EXTENTS);
    key.put_u64(segment);
    key
}

/// The key of a segment that is to be looked at.
pub(crate) fn suspect_key(segment: u64) -> Bytes {
    [SUSPECTS, &segment.to_be_bytes()].concat().into()
}

/// The segment that such a key is of.
pub(crate) fn suspect_of(key: &[u8]) -> Option<u64> {
    key.strip_prefix(SUSPECTS)?.try_into().ok().map(u64::from_be_bytes)
}

/// A segment that no block of the newest state refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) segment: u64,
    /// States from this sequence number on may refer to it, those from `died` on do not.
    pub(crate) born: u64,
    pub(crate) died: u64,
    /// When that was found, by the clock of its machine (seconds since 1970-01-01 UTC). Nothing follows from
    /// it.
    pub(crate) at_secs: u64,
    pub(crate) bytes: u64,
}

/// The value of a [`Dead`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDead {
    born: U64,
    died: U64,
    at_secs: U64,
    bytes: U64,
}

const _: () = assert!(size_of::<RawDead>() == 32);

impl Dead {
    pub(crate) fn key(&self) -> Bytes {
        [DEAD, &self.segment.to_be_bytes()].concat().into()
    }

    pub(crate) fn value(&self) -> Bytes {
        let raw = RawDead {
            born: self.born.into(),
            died: self.died.into(),
            at_secs: self.at_secs.into(),
            bytes: self.bytes.into(),
        };
        Bytes::copy_from_slice(raw.as_bytes())
    }

    pub(crate) fn parse(key: &[u8], value: &[u8]) -> Result<Self> {
        let damaged = || StoreError::corrupt("SlateDB", "the record of a dead segment is damaged");
        let segment = key.strip_prefix(DEAD).and_then(|key| key.try_into().ok()).ok_or_else(damaged)?;
        let raw = RawDead::read_from_bytes(value).map_err(|_| damaged())?;
        Ok(Self {
            segment: u64::from_be_bytes(segment),
            born: raw.born.get(),
            died: raw.died.get(),
            at_secs: raw.at_secs.get(),
            bytes: raw.bytes.get(),
        })
    }
}

/// A number that a record is.
pub(crate) fn parse_number(value: Option<&[u8]>) -> Result<u64> {
    let Some(value) = value else { return Ok(0) };
    let value = U64::read_from_bytes(value);
    value.map(U64::get).map_err(|_| StoreError::corrupt("SlateDB", "a number of segments is damaged"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_and_damage_is_found() {
        let block = [7; BLOCK_BYTES];
        let reference = BlockRef::to(3 << 32 | 9, 2047, &block);
        assert_eq!(BlockRef::parse(&reference.value()), Some(reference));
        assert!(reference.is_of(&block) && !reference.is_of(&[8; BLOCK_BYTES]));
        assert_eq!((BlockRef::parse(&block), BlockRef::parse(b"")), (None, None));
        let extent = Extent {
            segment: 1,
            index: 2,
            count: 3,
            born: 4,
            space: 5,
            prefix: Bytes::from_static(b"file"),
            first: 6,
        };
        assert_eq!(Extent::parse(&extent.key(), &extent.value()).unwrap(), extent);
        assert!(Extent::parse(&extent.key()[..16], &extent.value()).is_err());
        assert!(Extent::parse(&extent.key(), &extent.value()[..21]).is_err());
        let dead = Dead { segment: 1, born: 2, died: 3, at_secs: 4, bytes: 5 };
        assert_eq!(Dead::parse(&dead.key(), &dead.value()).unwrap(), dead);
        assert!(Dead::parse(&dead.key(), &dead.value()[1..]).is_err());
        assert_eq!((suspect_of(&suspect_key(7)), suspect_of(b"segment-suspect/")), (Some(7), None));
        assert_eq!(parse_number(None).unwrap(), 0);
        assert_eq!(parse_number(Some(&9u64.to_le_bytes())).unwrap(), 9);
        assert!(parse_number(Some(b"9")).is_err());
    }
}
