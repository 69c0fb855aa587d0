//! Memory from the kernel, for buffers in huge pages.
//!
//! Past the allocator: what is unmapped is given back at once, and advice about huge pages goes with it. On
//! an address that an allocator has again, the first small block touched after that would cost a whole huge
//! page.
//!
//! Thread safety: a buffer has its stretch to itself and may be sent and shared as a `Vec<u8>` may be.
//!
//! Invariants: the buffers of a mapping don't overlap, and it is unmapped with the last of them.
#![expect(unsafe_code, reason = "there is no safe form of these system calls")]

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::HUGE_PAGE_BYTES;

/// Bytes of an anonymous mapping that has no other owner.
#[derive(Debug)]
pub struct MappedBuf {
    /// Goes with the last of those that share it.
    mapping: Arc<Mapping>,
    /// Where in it the bytes begin.
    offset: usize,
    len: usize,
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: any thread may use and unmap what another one has mapped.
unsafe impl Send for Mapping {}
// SAFETY: shared it gives out an address and a length. Only a buffer turns these into slices, each of bytes
// that are its own.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// So many zeros, which take no memory before they are touched.
    fn new(len: usize) -> Self {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses an address where nothing is.
        let mapped = unsafe { mmap_anonymous(null_mut(), len, protection, flags) };
        match mapped.ok().and_then(|start| NonNull::new(start.cast())) {
            Some(start) => Self { start, len },
            // As an allocation that fails.
            None => handle_alloc_error(Layout::from_size_align(len, 1).unwrap_or(Layout::new::<u8>())),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, whole, and all holders of a part of it are gone.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// `count` zeroed buffers of `len` bytes, one behind the other in huge pages, if the kernel has some: else in
/// others. They take no memory before they are written to; what they lie in goes back to the kernel with the
/// last of them. The first one begins at a multiple of [`HUGE_PAGE_BYTES`].
///
/// Ends the process as an allocation does when there is no memory.
///
/// # Panics
/// When that is more than there are addresses.
pub fn zeroed_in_huge_pages(len: usize, count: usize) -> Vec<MappedBuf> {
    // Room to begin at a huge page.
    let sizes = len.checked_mul(count).and_then(|bytes| Some((bytes, bytes.checked_add(HUGE_PAGE_BYTES)?)));
    let (bytes, mapped_bytes) = sizes.expect("there are fewer addresses");
    let mapping = Arc::new(Mapping::new(mapped_bytes));
    let lead = mapping.start.addr().get().wrapping_neg() % HUGE_PAGE_BYTES;
    // SAFETY: less than the mapping is longer than the buffers.
    let first = unsafe { mapping.start.add(lead) };
    // Huge pages make it faster, nothing depends on them: the kernel may be built without.
    // SAFETY: all of it is in the mapping, and this advice leaves what is there as it is.
    let _ = unsafe { madvise(first.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
    let buffer = |number| MappedBuf { mapping: Arc::clone(&mapping), offset: lead + number * len, len };
    (0..count).map(buffer).collect()
}

impl MappedBuf {
    fn start(&self) -> *mut u8 {
        // SAFETY: the buffer is in the mapping, from here on.
        unsafe { self.mapping.start.add(self.offset) }.as_ptr()
    }
}

impl AsRef<[u8]> for MappedBuf {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: mapped, readable, initialized by the kernel, and shared as long as `self` is.
        unsafe { slice::from_raw_parts(self.start(), self.len) }
    }
}

impl AsMut<[u8]> for MappedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, writable, initialized by the kernel; the buffers of a mapping don't overlap, and
        // this one is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_do_not_overlap() {
        let mut buffers = zeroed_in_huge_pages(1 << 20, 3);
        assert_eq!(buffers.len(), 3);
        assert!(buffers[0].start().addr().is_multiple_of(HUGE_PAGE_BYTES));
        for (n, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.as_ref().len() == 1 << 20 && buffer.as_ref().iter().all(|&byte| byte == 0));
            buffer.as_mut().fill(n as u8 + 1);
        }
        for (n, buffer) in buffers.iter().enumerate() {
            assert!(buffer.as_ref().iter().all(|&byte| byte == n as u8 + 1));
        }
        buffers.swap_remove(0);
        assert!(buffers.iter().all(|buffer| buffer.as_ref()[7] > 1), "the others stay");
    }

    #[test]
    fn there_may_be_none_and_they_may_be_small() {
        assert!(zeroed_in_huge_pages(1 << 20, 0).is_empty());
        assert!(zeroed_in_huge_pages(0, 2).iter().all(|buffer| buffer.as_ref().is_empty()));
        let buffers = zeroed_in_huge_pages(100, 2);
        assert!(buffers.iter().all(|buffer| buffer.as_ref() == [0; 100]));
    }

    #[test]
    fn the_last_buffer_takes_the_mapping_along() {
        let mut buffers = zeroed_in_huge_pages(1 << 20, 2);
        let mapping = Arc::downgrade(&buffers[0].mapping);
        buffers.truncate(1);
        assert!(mapping.upgrade().is_some());
        buffers.clear();
        assert!(mapping.upgrade().is_none());
    }
}
