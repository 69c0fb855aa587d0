//! Memory that devices read into.
//!
//! Purpose: a request to a device lists the pieces of memory that it is about, and each costs the device, or the host that
//! plays it, some time. 1 MiB in 256 scattered pages takes a virtual disk twice as long as in one piece of a huge page.
//! So buffers for large reads, which are used again and again, lie in huge pages; nothing else does, since a huge page that
//! is used in part is resident as a whole.
//!
//! Thread safety: functions without state. [`huge_pages_only_where_asked_for`] is called before there are other threads.

mod advice;
mod mapping;

use bytes::{Buf, BytesMut};

pub use advice::huge_pages_only_where_asked_for;
pub use mapping::MappedBuf;

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
/// no memory before they are written to; what they lie in goes back to the kernel with the last of them. The first one
/// begins at a multiple of [`HUGE_PAGE_BYTES`].
///
/// Ends the process as an allocation does when there is no memory.
///
/// # Panics
/// When that is more than there are addresses.
pub fn zeroed_in_huge_pages(len: usize, count: usize) -> Vec<MappedBuf> {
    mapping::huge(len, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_aligned_and_as_long_as_asked_for() {
        for (len, align) in [(0, 512), (1, 4096), (100_000, 4096)] {
            let stretch = zeroed_aligned(len, align);
            assert!(stretch.len() == len && stretch.iter().all(|&byte| byte == 0));
            assert!(stretch.as_ptr().addr().is_multiple_of(align));
        }
    }
}
