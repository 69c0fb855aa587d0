//! The group without batches that ends the log of a store that was closed.
//!
//! An opening writes it last, when all else is durable, and nothing behind it. Where it is the end of the
//! log, and the last opening that the superblock knows has written it, recovery need not search the rest of
//! the area for groups that a crash may have left there, or that tell of damage. When another opening has
//! come after it, it says nothing.
//!
//! Thread safety: plain functions.

use std::io;

use kvfs_device::{AlignedBuf, Device};
use kvfs_store::Seqno;
use zerocopy::IntoBytes;

use super::header::{GroupFields, Header};
use super::{JournalArea, Lsn};
use crate::format::{Crc32c, FRAME_HEADER_BYTES as HEADER_BYTES, SECTOR_BYTES};

/// What it takes of the area (bytes).
pub(super) const END_BYTES: u64 = SECTOR_BYTES;

/// Writes it at `lsn`, and flushes. `next_seqno`: of the first operation that is not in the log.
pub(super) fn write_end(
    device: &dyn Device,
    area: JournalArea,
    epoch: u64,
    lsn: Lsn,
    next_seqno: Seqno,
) -> io::Result<()> {
    let fields = GroupFields {
        lsn: lsn.0.into(),
        epoch: epoch.into(),
        flushed_before: lsn.0.into(),
        first_seqno: next_seqno.into(),
        batches: 0.into(),
        reserved: [0; 12],
    };
    let header = Header::new(fields, 0, Crc32c::salted(area.salt).finish(), area.salt);
    let mut sector = AlignedBuf::zeroed(END_BYTES as usize);
    sector.as_mut()[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    area.for_each_stretch(lsn.0, sector.len(), |addr, range| device.write_at(&sector.as_ref()[range], addr))?;
    device.flush()
}

/// Whether the opening before `epoch` has ended its log with this group.
pub(super) fn is_end(header: &Header, epoch: u64) -> bool {
    header.fields.batches.get() == 0 && header.epoch() + 1 == epoch
}
