//! Buffers that READs are answered from, in huge pages.
//!
//! Thread safety: shared; a buffer has one owner and comes back when it is dropped, wherever that happens.
//! Invariants: a buffer begins on a page, as direct I/O asks for; there are at most as many as were in use at
//! the same time, rounded up to a slab. The last one that came back goes out first, so that few have memory.

use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use kvfs_memory::MappedBuf;

const PAGE_BYTES: usize = 4096;
/// Buffers that are made at once.
const SLAB_BUFFERS: usize = 4;

/// Gives and takes back buffers of one size.
pub(super) struct ReadBuffers {
    free: Mutex<Vec<MappedBuf>, class::FuseBridgeReadBuffersFree>,
    bytes: usize,
}

/// One buffer.
pub(super) struct ReadBuffer {
    /// `None` while it goes back.
    memory: Option<MappedBuf>,
    pool: Arc<ReadBuffers>,
}

impl ReadBuffers {
    /// Buffers of `bytes`, rounded up to whole pages. None is made yet.
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), bytes: bytes.next_multiple_of(PAGE_BYTES) })
    }

    /// An idle buffer, or a new one. What is in it is what it was used for last.
    pub(super) fn take(self: &Arc<Self>) -> ReadBuffer {
        let recycled = self.free.lock().pop();
        let memory = recycled.unwrap_or_else(|| self.add_slab());
        ReadBuffer { memory: Some(memory), pool: Arc::clone(self) }
    }

    /// Makes a slab; returns one of its buffers.
    fn add_slab(&self) -> MappedBuf {
        let mut slab = kvfs_memory::zeroed_in_huge_pages(self.bytes, SLAB_BUFFERS);
        // The neighbour in the huge page of the first goes out next.
        slab.reverse();
        let first = slab.swap_remove(SLAB_BUFFERS - 1);
        self.free.lock().append(&mut slab);
        first
    }
}

impl AsMut<[u8]> for ReadBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], AsMut::as_mut)
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        self.pool.free.lock().extend(self.memory.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_on_a_page_do_not_overlap_and_come_back() {
        let pool = ReadBuffers::new(100_000);
        let mut taken: Vec<_> = (0..SLAB_BUFFERS + 3).map(|_| pool.take()).collect();
        for (n, buffer) in taken.iter_mut().enumerate() {
            assert_eq!(buffer.as_mut().len(), 102_400);
            assert!(buffer.as_mut().as_ptr().addr().is_multiple_of(PAGE_BYTES));
            buffer.as_mut().fill(n as u8 + 1);
        }
        for (n, buffer) in taken.iter_mut().enumerate() {
            assert!(buffer.as_mut().iter().all(|&byte| byte == n as u8 + 1));
        }
        let last = taken[0].as_mut().as_ptr().addr();
        taken.reverse();
        drop(taken);
        assert_eq!(pool.free.lock().len(), 2 * SLAB_BUFFERS);
        assert_eq!(pool.take().as_mut().as_ptr().addr(), last, "the one in use last has memory");
    }
}
