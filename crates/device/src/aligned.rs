//! A heap buffer whose start and length are sector-aligned, as `O_DIRECT` asks for.
//!
//! It is a stretch of an ordinary allocation that is a sector longer. C libraries seldom use freed memory that was
//! asked for with an alignment for the same thing again: what a program with their allocator holds would grow to several
//! times what it uses.
//!
//! Invariant: the stretch is within the allocation, which never moves.

use std::ops::Range;

use crate::SECTOR_BYTES;

/// A zero-filled buffer of whole, aligned sectors.
pub struct AlignedBuf {
    memory: Vec<u8>,
    aligned: Range<usize>,
}

impl AlignedBuf {
    /// A zeroed buffer of at least `len` bytes, rounded up to whole sectors.
    pub fn zeroed(len: usize) -> Self {
        let len = len.next_multiple_of(SECTOR_BYTES);
        if len == 0 {
            return Self { memory: Vec::new(), aligned: 0..0 };
        }
        let memory = vec![0; len + SECTOR_BYTES];
        let start = memory.as_ptr().addr().wrapping_neg() % SECTOR_BYTES;
        Self { memory, aligned: start..start + len }
    }

    /// A copy of `bytes`, zero-padded to whole sectors.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.as_mut()[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.aligned.len()
    }

    /// Whether the buffer holds no sector.
    pub fn is_empty(&self) -> bool {
        self.aligned.is_empty()
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::from_slice(self.as_ref())
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.aligned.clone()]
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.aligned.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_cloned_as_such() {
        for len in [0, 1, SECTOR_BYTES, SECTOR_BYTES + 1, 100_000, 3 << 20] {
            let mut buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.len(), len.next_multiple_of(SECTOR_BYTES));
            assert_eq!(buf.is_empty(), len == 0);
            assert!(buf.as_ref().iter().all(|&byte| byte == 0));
            assert!(buf.is_empty() || buf.as_ref().as_ptr().addr().is_multiple_of(SECTOR_BYTES));
            buf.as_mut().fill(7);
            let moved = buf;
            let copy = moved.clone();
            assert!(copy.is_empty() || copy.as_ref().as_ptr().addr().is_multiple_of(SECTOR_BYTES));
            assert!(copy.as_ref() == moved.as_ref());
        }
        let buf = AlignedBuf::from_slice(b"abc");
        assert_eq!((buf.len(), &buf.as_ref()[..4]), (SECTOR_BYTES, &b"abc\0"[..]));
    }
}
