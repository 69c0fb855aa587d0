//! Of which nodes the kernel may have something: pages of files, for writers past its cache, and names in
//! directories, which it is told of when they change elsewhere.
//!
//! A direct write drops the pages of its range before it is sent, and again when it has returned, but for
//! asynchronous ones: what is read between the two would stay, old, for good. So the answer to a direct write
//! waits until the kernel has dropped the range again, if the file may have pages there at all.
//!
//! Thread safety: atomics. Invariants: a READ through the cache is noted before it looks at the content, a
//! WRITE through it before it changes that, and data for the cache before it is read; so a write that finds
//! no note changed the content before any of them. A request for a name, or for a listing, is noted before it
//! looks at the directory. Several nodes share a bit, which costs a notification that is not needed, and
//! nothing else.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering, fence};

const WORDS: usize = 1024;

/// See the module.
pub(super) struct Cached(Box<[AtomicU64]>);

impl Default for Cached {
    fn default() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Cached {
    fn place(&self, node: u64) -> (&AtomicU64, u64) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(node);
        (&self.0[hash as usize % WORDS], 1 << ((hash >> 32) % 64))
    }

    /// The kernel is about to have something of `node`. To be called before that is looked at.
    pub(super) fn note(&self, node: u64) {
        let (word, bit) = self.place(node);
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// Whether the kernel may have something of `node`. To be called after that has changed.
    pub(super) fn has(&self, node: u64) -> bool {
        fence(Ordering::SeqCst);
        let (word, bit) = self.place(node);
        word.load(Ordering::SeqCst) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_files_are_known_and_most_others_are_not() {
        let cached = Cached::default();
        (0..100).for_each(|node| cached.note(node));
        assert!((0..100).all(|node| cached.has(node)));
        assert!((100..10_000).filter(|node| cached.has(*node)).count() < 100);
    }
}
