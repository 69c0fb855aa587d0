//! Reading a medium of which parts can't be read.

use crate::{AlignedBuf, Device, SECTOR_BYTES};

/// Fills `buf` from `offset` as far as that goes: where the medium gives nothing (also beyond its end), there
/// are zeros. Returns how many bytes that concerns.
///
/// Costs one request where all is well, else one for each sector.
pub fn read_around(device: &dyn Device, buf: &mut [u8], offset: u64) -> u64 {
    if device.read_at(buf, offset).is_ok() {
        return 0;
    }
    let mut bytes_missing = 0;
    let mut sector = AlignedBuf::zeroed(SECTOR_BYTES);
    for (place, at) in buf.chunks_mut(SECTOR_BYTES).zip((offset..).step_by(SECTOR_BYTES)) {
        if device.read_at(sector.as_mut(), at).is_ok() {
            place.copy_from_slice(&sector.as_ref()[..place.len()]);
        } else {
            place.fill(0);
            bytes_missing += place.len() as u64;
        }
    }
    bytes_missing
}
