//! Blocks that the journal has bound, read back from their place.
//!
//! Thread safety: one thread; only reads.

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{BLOCK_BYTES, Op, Result, StoreError};

use super::codec::Read;
use crate::format::crc32c;
use crate::space::Place;

/// Puts the bound blocks of a batch into its operations, as far as `find` has them. Says how many operations lack theirs.
///
/// # Errors
/// Those of `find`.
pub(super) fn fetch(read: &mut Read, find: impl Fn(&Place) -> Result<Option<Bytes>>) -> Result<u64> {
    let mut missing = 0;
    for (at, place) in &read.places {
        match (find(place)?, read.ops.get_mut(*at)) {
            (Some(found), Some(Op::PutBlocks { data, .. })) => *data = found,
            _ => missing += 1,
        }
    }
    Ok(missing)
}

/// The blocks of a place, if they are what was bound. A device that ends before it did not get that far.
///
/// # Errors
/// I/O errors.
pub(super) fn read_place(device: &dyn Device, place: &Place) -> Result<Option<Bytes>> {
    let end = |addr: u64, len: u32| addr.checked_add(len.into());
    let is_there = place
        .extents
        .iter()
        .all(|extent| end(extent.addr, extent.len).is_some_and(|end| end <= device.len_bytes()));
    if !is_there {
        return Ok(None);
    }
    let mut buf = AlignedBuf::zeroed(place.crcs.len() * BLOCK_BYTES);
    let mut rest = buf.as_mut();
    for extent in &place.extents {
        let (here, more) = rest.split_at_mut(extent.len as usize);
        device.read_at(here, extent.addr).map_err(|error| {
            StoreError::io(
                format!("reading blocks of the journal at device address {:#x}", extent.addr),
                error,
            )
        })?;
        rest = more;
    }
    let blocks = buf.as_ref().chunks_exact(BLOCK_BYTES);
    let is_right = blocks.zip(&place.crcs).all(|(block, crc)| crc32c(block) == *crc);
    Ok(is_right.then(|| Bytes::from_owner(buf)))
}
