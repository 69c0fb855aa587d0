//! Memory for the records of one list: given out piece by piece, given back as a whole.
//!
//! Thread safety: shared by reference; a lock that is held for a few instructions, longer when a chunk is
//! allocated.
//!
//! Invariants: no two pieces overlap; all stay where they are until the arena is dropped. Nothing in them is
//! dropped. What its callers were told to be taken is all that the arena has.

use std::alloc::Layout;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use kvfs_locks::{Mutex, class};

/// What chunks consist of: it aligns them.
type Unit = MaybeUninit<u128>;

/// The first chunk (bytes): most keyspaces of a table have few records, and each open transaction has a
/// table. Each is twice as long as the one before.
const CHUNK_BYTES_MIN: usize = 512;
/// The longest chunk (bytes), but for records that are longer.
const CHUNK_BYTES_MAX: usize = 256 << 10;

#[derive(Default)]
struct State {
    chunks: Vec<NonNull<[Unit]>>,
    /// Units of the last chunk that are given out.
    used: usize,
}

/// A piece of memory.
pub(super) struct Given {
    pub(super) memory: NonNull<u8>,
    /// What the arena took from the allocator for it (bytes): a whole chunk, or mostly nothing.
    pub(super) bytes_taken: usize,
}

/// See the module.
#[derive(Default)]
pub(super) struct Arena {
    state: Mutex<State, class::KvdbMemtableArenaState>,
}

// SAFETY: the chunks belong to the arena alone; it never looks into them.
unsafe impl Send for Arena {}
// SAFETY: as above; all access to the list of chunks is under the lock.
unsafe impl Sync for Arena {}

impl Arena {
    /// Memory for `layout`, which no other call has given or gives out; the caller must write it before it
    /// reads it.
    pub(super) fn allocate(&self, layout: Layout) -> Given {
        assert!(layout.align() <= align_of::<Unit>(), "chunks are aligned for no more");
        let units = layout.size().div_ceil(size_of::<Unit>());
        let mut state = self.state.lock();
        let mut bytes_taken = 0;
        let has_room = state.chunks.last().is_some_and(|chunk| chunk.len() - state.used >= units);
        if !has_room {
            let doubled = CHUNK_BYTES_MIN << state.chunks.len().min(usize::BITS as usize / 2);
            let length = (doubled.min(CHUNK_BYTES_MAX) / size_of::<Unit>()).max(units);
            let chunk: Box<[Unit]> = Box::new_uninit_slice(length);
            bytes_taken = size_of_val(&*chunk);
            state.chunks.push(NonNull::from(Box::leak(chunk)));
            state.used = 0;
        }
        let at = state.used;
        state.used += units;
        let Some(chunk) = state.chunks.last() else { unreachable!("there is one with room") };
        // SAFETY: `at + units` lies within the chunk.
        let memory = unsafe { chunk.cast::<Unit>().add(at).cast() };
        Given { memory, bytes_taken }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for chunk in self.state.get_mut().chunks.drain(..) {
            // SAFETY: it was leaked from a box of this type, once, and nothing uses it any more.
            drop(unsafe { Box::from_raw(chunk.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart_from_each_other() {
        let arena = Arena::default();
        let mut taken: Vec<(usize, usize)> = Vec::new();
        let mut bytes_taken = 0;
        for round in 0..2000 {
            let bytes =
                [1, 16, 100, 5000, CHUNK_BYTES_MAX + 1][if round % 500 == 499 { 4 } else { round % 4 }];
            let layout = Layout::from_size_align(bytes, 16).expect("a layout");
            let given = arena.allocate(layout);
            bytes_taken += given.bytes_taken;
            let start = given.memory.as_ptr() as usize;
            assert_eq!(start % 16, 0);
            taken.push((start, start + bytes));
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        let in_chunks: usize =
            arena.state.lock().chunks.iter().map(|chunk| size_of::<Unit>() * chunk.len()).sum();
        assert_eq!(bytes_taken, in_chunks, "all that it has was told");
    }
}
