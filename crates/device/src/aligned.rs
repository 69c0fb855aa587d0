//! A buffer whose start and length are sector-aligned, as `O_DIRECT` asks for.
//!
//! But for those in huge pages it is a stretch of an ordinary allocation that is a sector longer. C libraries
//! seldom use freed memory that was asked for with an alignment for the same thing again: what a program with
//! their allocator holds would grow to several times what it uses.
//!
//! Invariant: the stretch is within the allocation, which never moves.

use bytes::{Buf, BytesMut};
use kvfs_memory::MappedBuf;

use crate::SECTOR_BYTES;

/// A zero-filled buffer of whole, aligned sectors.
pub struct AlignedBuf {
    memory: Memory,
}

enum Memory {
    Heap(BytesMut),
    Mapped(MappedBuf),
}

impl AlignedBuf {
    /// A zeroed buffer of at least `len` bytes, rounded up to whole sectors.
    pub fn zeroed(len: usize) -> Self {
        let len = len.next_multiple_of(SECTOR_BYTES);
        if len == 0 {
            return Self { memory: Memory::Heap(BytesMut::new()) };
        }
        let mut memory = BytesMut::zeroed(len + SECTOR_BYTES);
        memory.advance(memory.as_ptr().addr().wrapping_neg() % SECTOR_BYTES);
        memory.truncate(len);
        Self { memory: Memory::Heap(memory) }
    }

    /// `count` buffers as by [`Self::zeroed`], for large reads: see [`kvfs_memory`].
    pub fn zeroed_in_huge_pages(len: usize, count: usize) -> Vec<Self> {
        let buffers = kvfs_memory::zeroed_in_huge_pages(len.next_multiple_of(SECTOR_BYTES), count);
        buffers.into_iter().map(|buf| Self { memory: Memory::Mapped(buf) }).collect()
    }

    /// A copy of `bytes`, zero-padded to whole sectors.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.as_mut()[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.as_ref().len()
    }

    /// Whether the buffer holds no sector.
    pub fn is_empty(&self) -> bool {
        self.as_ref().is_empty()
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::from_slice(self.as_ref())
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(memory) => memory,
            Memory::Mapped(memory) => memory.as_ref(),
        }
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(memory) => memory,
            Memory::Mapped(memory) => memory.as_mut(),
        }
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
        for buf in AlignedBuf::zeroed_in_huge_pages(100_000, 3) {
            assert_eq!(buf.len(), 102_400);
            assert!(buf.as_ref().as_ptr().addr().is_multiple_of(SECTOR_BYTES));
        }
        let buf = AlignedBuf::from_slice(b"abc");
        assert_eq!((buf.len(), &buf.as_ref()[..4]), (SECTOR_BYTES, &b"abc\0"[..]));
    }
}
