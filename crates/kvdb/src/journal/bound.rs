//! Blocks that the journal has bound, read back from their place.
//!
//! Thread safety: one thread; only reads.

use std::collections::HashMap;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{BLOCK_BYTES, Keyspace, Op, Result, Seqno, StoreError};

use super::codec::Read;
use crate::format::crc32c;
use crate::space::Place;

/// An operation of a group whose data is not in its record: the number of its batch, and its own.
type Number = (usize, usize);

/// Where that data is.
enum Elsewhere {
    Placed(Place),
    /// A part of this length of the block that a later operation binds.
    Later(usize),
}

/// Puts what lies in its final place into the operations of a group, as far as `find` has it; not of batches up to `flushed`.
/// Says how many operations lack theirs: these change nothing.
///
/// # Errors
/// Those of `find`.
pub(super) fn fetch(
    reads: &mut [Read],
    flushed: Seqno,
    find: impl Fn(&Place) -> Result<Option<Bytes>>,
) -> Result<u64> {
    let mut missing = 0;
    // Patches that are before the one that completes their block.
    let mut waiting: HashMap<(Keyspace, Bytes, u64), Vec<(Number, usize)>> = HashMap::new();
    for (number, elsewhere) in all_elsewhere(reads, flushed) {
        let block = match &reads[number.0].ops[number.1] {
            Op::PatchBlock { keyspace, prefix, block, .. } => Some((*keyspace, prefix.clone(), *block)),
            _ => None,
        };
        let place = match (elsewhere, block.clone()) {
            (Elsewhere::Placed(place), _) => place,
            (Elsewhere::Later(len), Some(block)) => {
                waiting.entry(block).or_default().push((number, len));
                continue;
            }
            (Elsewhere::Later(_), None) => continue,
        };
        let found = find(&place)?;
        let parts = block.and_then(|block| waiting.remove(&block)).unwrap_or_default();
        missing += if found.is_none() { 1 + parts.len() as u64 } else { 0 };
        for (part, len) in parts {
            fill(&mut reads[part.0].ops[part.1], found.as_ref(), Some(len));
        }
        fill(&mut reads[number.0].ops[number.1], found.as_ref(), None);
    }
    for (part, _) in waiting.into_values().flatten() {
        missing += 1;
        fill(&mut reads[part.0].ops[part.1], None, None);
    }
    Ok(missing)
}

/// What of the batches behind `flushed` is elsewhere, in order.
fn all_elsewhere(reads: &[Read], flushed: Seqno) -> Vec<(Number, Elsewhere)> {
    let mut all = Vec::new();
    for (batch, read) in reads.iter().enumerate().filter(|(_, read)| read.base > flushed) {
        let from = all.len();
        all.extend(read.places.iter().map(|(op, place)| ((batch, *op), Elsewhere::Placed(place.clone()))));
        all.extend(read.later.iter().map(|(op, len)| ((batch, *op), Elsewhere::Later(*len))));
        all[from..].sort_by_key(|(number, _)| *number);
    }
    all
}

/// Puts its part of what was found into an operation: `len` bytes of it, or all up to the end. What was not found
/// becomes a put of no blocks.
fn fill(op: &mut Op, found: Option<&Bytes>, len: Option<usize>) {
    match (op, found) {
        (Op::PutBlocks { data, .. }, Some(found)) => *data = found.clone(),
        (Op::PatchBlock { offset, data, .. }, Some(found)) => {
            let offset = usize::from(*offset);
            *data = found.slice(offset..len.map_or(found.len(), |len| offset + len));
        }
        (op, None) => {
            if let Op::PatchBlock { keyspace, prefix, block: first, compression, .. } = op {
                let (keyspace, prefix, first, compression) =
                    (*keyspace, prefix.clone(), *first, *compression);
                *op = Op::PutBlocks { keyspace, prefix, first, data: Bytes::new(), compression };
            }
        }
        _ => {}
    }
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
