//! What the header of a group tells beside its payload.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{FrameFields, FrameHeader};

/// The header of a group of the journal.
pub(super) type Header = FrameHeader<GroupFields>;

/// What a group says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct GroupFields {
    /// Where the group lies in the stream.
    pub(super) lsn: U64,
    /// The opening that wrote it.
    pub(super) epoch: U64,
    /// Everything before this had been flushed when the group was written.
    pub(super) flushed_before: U64,
    /// Seqno of the first operation of the first batch.
    pub(super) first_seqno: U64,
    /// Number of batches.
    pub(super) batches: U32,
    pub(super) reserved: [u8; 12],
}

impl FrameFields for GroupFields {
    const MAGIC: [u8; 4] = *b"KvJg";
}

impl Header {
    /// Where the group lies in the stream.
    pub(super) fn lsn(&self) -> u64 {
        self.fields.lsn.get()
    }

    /// The opening that wrote it.
    pub(super) fn epoch(&self) -> u64 {
        self.fields.epoch.get()
    }
}
