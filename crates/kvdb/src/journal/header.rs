//! The header of a group. It lies within the first 512 bytes of the group, so it never tears; its
//! own checksum lets a reader trust the length before it reads the payload.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::Crc32c;

const MAGIC: [u8; 4] = *b"KvJg";

/// Length of a group's header (bytes).
pub(super) const HEADER_BYTES: usize = 64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    payload_crc: U32,
    payload_len: U32,
    lsn: U64,
    epoch: U64,
    flushed_before: U64,
    first_seqno: U64,
    batches: U32,
    reserved: [u8; 12],
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);

/// What a group says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) payload_crc: u32,
    /// Length of the payload behind the header (bytes).
    pub(super) payload_len: u32,
    /// Where the group lies in the stream.
    pub(super) lsn: u64,
    /// The opening that wrote it.
    pub(super) epoch: u64,
    /// Everything before this had been flushed when the group was written.
    pub(super) flushed_before: u64,
    /// Seqno of the first operation of the first batch.
    pub(super) first_seqno: u64,
    /// Number of batches.
    pub(super) batches: u32,
}

impl Header {
    pub(super) fn encode(&self, salt: u32) -> [u8; HEADER_BYTES] {
        let mut raw = Raw {
            magic: MAGIC,
            crc: U32::ZERO,
            payload_crc: self.payload_crc.into(),
            payload_len: self.payload_len.into(),
            lsn: self.lsn.into(),
            epoch: self.epoch.into(),
            flushed_before: self.flushed_before.into(),
            first_seqno: self.first_seqno.into(),
            batches: self.batches.into(),
            reserved: [0; 12],
        };
        raw.crc = raw.checksum(salt).into();
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The header at the start of `bytes`, if it is whole and of this journal.
    pub(super) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let (raw, _) = Raw::ref_from_prefix(bytes).ok()?;
        if raw.magic != MAGIC || raw.crc.get() != raw.checksum(salt) {
            return None;
        }
        Some(Self {
            payload_crc: raw.payload_crc.get(),
            payload_len: raw.payload_len.get(),
            lsn: raw.lsn.get(),
            epoch: raw.epoch.get(),
            flushed_before: raw.flushed_before.get(),
            first_seqno: raw.first_seqno.get(),
            batches: raw.batches.get(),
        })
    }

    /// Bytes of the whole group on the device.
    pub(super) fn group_len(&self) -> u64 {
        group_len(HEADER_BYTES as u64 + u64::from(self.payload_len))
    }
}

impl Raw {
    /// Covers every field but itself, the payload's checksum included.
    fn checksum(&self, salt: u32) -> u32 {
        let mut crc = Crc32c::salted(salt);
        let mut raw = *self;
        raw.crc = U32::ZERO;
        crc.update(raw.as_bytes());
        crc.finish()
    }
}

/// Bytes that a group of `len` bytes, its header included, takes on the device.
pub(super) fn group_len(len: u64) -> u64 {
    len.next_multiple_of(crate::format::SECTOR_BYTES)
}
