//! Blocks that the journal has bound, read back from their place.
//!
//! Thread safety: one thread; only reads.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::ErrorKind;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{BLOCK_BYTES, Keyspace, Op, Result, Seqno, StoreError};

use super::codec::Read;
use crate::format::{Extent, crc32c};
use crate::space::Place;

/// An operation of a group whose data is not in its record: the number of its batch, and its own.
type Number = (usize, usize);

/// What is at the place of blocks.
pub(super) enum Found {
    /// What was bound there.
    Blocks(Bytes),
    /// Something else: the device did not get that far.
    Others,
    /// Its device is missing, so nothing is known.
    Unreadable,
}

/// Where that data is.
enum Elsewhere {
    Placed(Place),
    /// A part of this length of the block that a later operation binds.
    Later(usize),
}

/// Puts what lies in its final place into the operations of a group, as far as `find` has it; not of batches
/// up to `flushed`. Says how many operations lack theirs: these change nothing. Those that can't be read are
/// noted.
///
/// # Errors
/// Those of `find`.
pub(super) fn fetch(
    reads: &mut [Read],
    flushed: Seqno,
    find: impl Fn(&Place) -> Result<Found>,
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
        let found = match found {
            Found::Blocks(blocks) => Some(blocks),
            Found::Others => {
                missing += 1 + parts.len() as u64;
                None
            }
            Found::Unreadable => {
                let of_parts = parts.iter().map(|&(part, _)| (part, 1));
                for ((batch, op), blocks) in of_parts.chain([(number, place.crcs.len() as u64)]) {
                    reads[batch].unreadable.push((op, blocks));
                }
                None
            }
        };
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

/// Puts its part of what was found into an operation: `len` bytes of it, or all up to the end. What was not
/// found becomes a put of no blocks.
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

/// Reads places. Those of small writes lie one behind the other, so more is read than is asked for.
pub(super) struct PlaceReader<'a> {
    device: &'a dyn Device,
    /// What was read last, and from where.
    window: RefCell<(u64, Bytes)>,
}

/// So much is read at once for less than [`SMALL_BYTES`].
const WINDOW_BYTES: u64 = 1 << 20;
/// See [`WINDOW_BYTES`].
const SMALL_BYTES: u32 = 64 << 10;

impl<'a> PlaceReader<'a> {
    pub(super) fn new(device: &'a dyn Device) -> Self {
        Self { device, window: RefCell::default() }
    }

    /// What is at a place. A device that ends before it did not get that far.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn read(&self, place: &Place) -> Result<Found> {
        let end = |addr: u64, len: u32| addr.checked_add(len.into());
        let is_there = place
            .extents
            .iter()
            .all(|extent| end(extent.addr, extent.len).is_some_and(|end| end <= self.device.len_bytes()));
        if !is_there {
            return Ok(Found::Others);
        }
        let found = match self.read_extents(place) {
            // Of several devices the last one tells the length; one before it may end earlier. One that has
            // gone fails in another way (`JoinedDevice`).
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::UnexpectedEof => {
                return Ok(Found::Others);
            }
            // As a missing device answers.
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(Found::Unreadable);
            }
            found => found?,
        };
        let is_right =
            found.chunks_exact(BLOCK_BYTES).zip(&place.crcs).all(|(block, crc)| crc32c(block) == *crc);
        Ok(if is_right { Found::Blocks(found) } else { Found::Others })
    }

    fn read_extents(&self, place: &Place) -> Result<Bytes> {
        if let [extent] = place.extents[..] {
            return self.read_extent(extent);
        }
        let mut all = Vec::with_capacity(place.crcs.len() * BLOCK_BYTES);
        for extent in &place.extents {
            all.extend_from_slice(&self.read_extent(*extent)?);
        }
        Ok(Bytes::from(all))
    }

    fn read_extent(&self, Extent { addr, len }: Extent) -> Result<Bytes> {
        let mut window = self.window.borrow_mut();
        let is_within = |(from, bytes): &(u64, Bytes)| {
            addr >= *from && addr + u64::from(len) <= *from + bytes.len() as u64
        };
        if !is_within(&window) {
            let ahead = if len < SMALL_BYTES { WINDOW_BYTES } else { len.into() };
            let blocks_left = (self.device.len_bytes() - addr) / BLOCK_BYTES as u64;
            let len_max = (blocks_left * BLOCK_BYTES as u64).min(ahead).max(len.into());
            // What lies behind it may be unreadable.
            let read = self.read_at(addr, len_max).or_else(|_| self.read_at(addr, len.into()));
            *window = (addr, read?);
        }
        let from = (addr - window.0) as usize;
        let part = &window.1[from..from + len as usize];
        // A part is copied: the window would live as long.
        Ok(if part.len() == window.1.len() { window.1.clone() } else { Bytes::copy_from_slice(part) })
    }

    fn read_at(&self, addr: u64, len: u64) -> Result<Bytes> {
        let mut buf = AlignedBuf::zeroed(len as usize);
        self.device.read_at(buf.as_mut(), addr).map_err(|error| {
            StoreError::io(format!("reading blocks of the journal at device address {addr:#x}"), error)
        })?;
        Ok(Bytes::from_owner(buf))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvfs_device::{JoinedDevice, MemoryDevice, Segment};

    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[test]
    fn blocks_behind_the_end_of_a_device_are_not_there_though_another_one_follows() {
        let first = Arc::new(MemoryDevice::growable(0, 64 * BLOCK));
        first.grow(4 * BLOCK).expect("grows");
        let joined = JoinedDevice::new(first, Arc::default());
        let device = Arc::new(MemoryDevice::new(8 * BLOCK));
        let len = 8 * BLOCK;
        joined.append(Segment { start: 64 * BLOCK, device, offset: 0, len, written: Arc::default() });
        let places = PlaceReader::new(&joined);
        let zeros = crc32c(&[0; BLOCK_BYTES]);
        let at = |addr: u64| Place {
            extents: vec![Extent { addr: addr * BLOCK, len: BLOCK_BYTES as u32 }],
            crcs: vec![zeros],
        };
        for (addr, is_there) in [(3, true), (4, false), (63, false), (64, true), (71, true), (72, false)] {
            let found = places.read(&at(addr)).expect("reads");
            assert_eq!(matches!(found, Found::Blocks(_)), is_there, "block {addr}");
        }
    }
}
