//! Memory that devices read into.
//!
//! Purpose: a request to a device lists the pieces of memory that it is about, and each costs the device, or the host that
//! plays it, some time. 1 MiB in 256 scattered pages takes a virtual disk twice as long as in one piece of a huge page.
//! So buffers for large reads, which are used again and again, lie in huge pages; nothing else does, since a huge page that
//! is used in part is resident as a whole.
//!
//! Thread safety: functions without state. [`huge_pages_only_where_asked_for`] is called before there are other threads.

mod advice;

use bytes::{Buf, BytesMut};

pub use advice::huge_pages_only_where_asked_for;

/// What a huge page measures where pages have 4 KiB (bytes). Elsewhere buffers still begin at a multiple of this.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// `len` zeroed bytes that begin at a multiple of `align`: a stretch of an ordinary allocation that is so much longer.
///
/// # Panics
/// When `align` is 0.
pub fn zeroed_aligned(len: usize, align: usize) -> BytesMut {
    let mut memory = BytesMut::zeroed(len + align);
    memory.advance(memory.as_ptr().addr().wrapping_neg() % align);
    memory.truncate(len);
    memory
}

/// `count` zeroed buffers of `len` bytes, one behind the other in huge pages, if the kernel has some: else in others. They take
/// no memory before they are written to. What they lie in is freed with the last of them.
pub fn zeroed_in_huge_pages(len: usize, count: usize) -> Vec<BytesMut> {
    let mut slab = zeroed_aligned(len * count, HUGE_PAGE_BYTES);
    // Huge pages make it faster, nothing depends on them.
    let _ = advice::use_huge_pages(&mut slab);
    (0..count).map(|_| slab.split_to(len)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_do_not_overlap() {
        // The second time from memory that the allocator has had in use.
        for _ in 0..2 {
            let mut buffers = zeroed_in_huge_pages(1 << 20, 3);
            assert_eq!(buffers.len(), 3);
            assert!(buffers[0].as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
            for (n, buffer) in buffers.iter_mut().enumerate() {
                assert!(buffer.len() == 1 << 20 && buffer.iter().all(|&byte| byte == 0));
                buffer.fill(n as u8 + 1);
            }
            for (n, buffer) in buffers.iter().enumerate() {
                assert!(buffer.iter().all(|&byte| byte == n as u8 + 1));
            }
        }
    }

    #[test]
    fn there_may_be_none_and_they_may_be_small() {
        assert!(zeroed_in_huge_pages(1 << 20, 0).is_empty());
        let buffers = zeroed_in_huge_pages(100, 2);
        assert!(buffers.iter().all(|buffer| buffer[..] == [0; 100]));
    }
}
