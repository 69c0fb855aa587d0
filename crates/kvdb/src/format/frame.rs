//! The header in front of each group of a log: of the journal's and of the manifest's.
//!
//! It lies within the first 512 bytes of the group, so it never tears; its own checksum lets a reader trust
//! the length before it reads the payload. Thread safety: values.

use std::ops::Range;

use bytes::Bytes;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Crc32c, SECTOR_BYTES};

/// Length of a header (bytes).
pub(crate) const FRAME_HEADER_BYTES: usize = 64;

/// What the headers of one log tell beside the payload: 48 bytes.
pub(crate) trait FrameFields:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy
{
    /// How a header begins.
    const MAGIC: [u8; 4];
}

/// A header, as it is on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader<F> {
    magic: [u8; 4],
    crc: U32,
    payload_crc: U32,
    payload_len: U32,
    /// What the log adds.
    pub(crate) fields: F,
}

impl<F: FrameFields> FrameHeader<F> {
    const SIZE: () = assert!(size_of::<Self>() == FRAME_HEADER_BYTES);

    /// The header of a payload of this length and salted checksum.
    pub(crate) fn new(fields: F, payload_len: usize, payload_crc: u32, salt: u32) -> Self {
        let () = Self::SIZE;
        let mut header = Self {
            magic: F::MAGIC,
            crc: U32::ZERO,
            payload_crc: payload_crc.into(),
            payload_len: (payload_len as u32).into(),
            fields,
        };
        header.crc = header.checksum(salt).into();
        header
    }

    /// The header at the start of `bytes`, if it is whole and of this log.
    pub(crate) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let (header, _) = Self::ref_from_prefix(bytes).ok()?;
        let is_whole = header.magic == F::MAGIC && header.crc() == header.checksum(salt);
        is_whole.then_some(*header)
    }

    /// Its own checksum.
    pub(crate) fn crc(&self) -> u32 {
        self.crc.get()
    }

    /// Bytes of the whole group on the device.
    pub(crate) fn group_len(&self) -> u64 {
        group_len(self.payload_range().end as u64)
    }

    /// Where the payload lies in the group.
    pub(crate) fn payload_range(&self) -> Range<usize> {
        FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + self.payload_len.get() as usize
    }

    /// The payload of the group that begins `group`, if it is what was written.
    pub(crate) fn payload(&self, group: &Bytes, salt: u32) -> Option<Bytes> {
        let range = self.payload_range();
        let payload = (range.end <= group.len()).then(|| group.slice(range))?;
        (payload_crc(&payload, salt) == self.payload_crc.get()).then_some(payload)
    }

    /// Covers every field but itself, the payload's checksum included.
    fn checksum(&self, salt: u32) -> u32 {
        payload_crc(Self { crc: U32::ZERO, ..*self }.as_bytes(), salt)
    }
}

/// The checksum of a payload in one stretch.
pub(crate) fn payload_crc(payload: &[u8], salt: u32) -> u32 {
    let mut crc = Crc32c::salted(salt);
    crc.update(payload);
    crc.finish()
}

/// Bytes that a group of `len` bytes, its header included, takes on the device.
pub(crate) fn group_len(len: u64) -> u64 {
    len.next_multiple_of(SECTOR_BYTES)
}
