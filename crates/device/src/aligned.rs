//! A heap buffer whose start and length are sector-aligned, as `O_DIRECT` asks for.

use crate::SECTOR_BYTES;

/// One sector, aligned to itself; the unit that [`AlignedBuf`] is allocated in.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Sector([u8; SECTOR_BYTES]);

const _: () = assert!(size_of::<Sector>() == SECTOR_BYTES && align_of::<Sector>() == SECTOR_BYTES);

/// A zero-filled buffer of whole, aligned sectors.
#[derive(Clone)]
pub struct AlignedBuf {
    sectors: Vec<Sector>,
}

impl AlignedBuf {
    /// A zeroed buffer of at least `len` bytes, rounded up to whole sectors.
    pub fn zeroed(len: usize) -> Self {
        Self { sectors: vec![Sector([0; SECTOR_BYTES]); len.div_ceil(SECTOR_BYTES)] }
    }

    /// A copy of `bytes`, zero-padded to whole sectors.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.as_mut()[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.sectors.len() * SECTOR_BYTES
    }

    /// Whether the buffer holds no sector.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self.sectors.as_flattened_bytes()
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self.sectors.as_flattened_bytes_mut()
    }
}

/// Views a slice of sectors as the bytes it is made of.
trait Flatten {
    fn as_flattened_bytes(&self) -> &[u8];
    fn as_flattened_bytes_mut(&mut self) -> &mut [u8];
}

impl Flatten for [Sector] {
    fn as_flattened_bytes(&self) -> &[u8] {
        // SAFETY: `Sector` is `repr(C)` around a byte array with size = alignment, so a slice of
        // them has no padding and every byte is initialised; `u8` has no alignment demand.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), size_of_val(self)) }
    }

    fn as_flattened_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the exclusive borrow of `self` lives as long as the result.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), size_of_val(self)) }
    }
}
