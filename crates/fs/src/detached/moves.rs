//! Moves of directories on the main line, which change what lies below a detached tree while it is taken
//! apart.
//!
//! A move of a name to another directory takes part here for as long as it takes; the removal keeps all of
//! them out for one batch, and sees whether directories have moved since it looked last. Of transactions it
//! needs to know nothing: what they saw before has changed ([`super::remover`]), and what they see later they
//! don't move out of a tree.
//!
//! Thread safety: any thread; taken before names, never while names are held.

use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_locks::{RwLock, RwLockReadGuard, RwLockWriteGuard, class};

/// See the module.
#[derive(Default)]
pub(crate) struct Moves {
    count: AtomicU64,
    passage: RwLock<(), class::FsDetachedMoves>,
}

/// A move, for as long as it may change the tree.
#[must_use]
pub(crate) struct Move<'m> {
    moves: &'m Moves,
    _passage: RwLockReadGuard<'m, (), class::FsDetachedMoves>,
}

/// None moves.
#[must_use]
pub(super) struct Still<'m> {
    /// How many directories have been moved until now, or a greater number.
    pub(super) count: u64,
    _passage: RwLockWriteGuard<'m, (), class::FsDetachedMoves>,
}

impl Moves {
    /// To another directory.
    pub(crate) fn begin(&self) -> Move<'_> {
        Move { moves: self, _passage: self.passage.read() }
    }

    /// A directory was moved by what keeps the removal out for as long.
    pub(super) fn count_one(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for the moves that have begun; others wait meanwhile.
    pub(super) fn hold(&self) -> Still<'_> {
        let passage = self.passage.write();
        Still { count: self.count.load(Ordering::Relaxed), _passage: passage }
    }
}

impl Move<'_> {
    /// What moves is a directory.
    pub(crate) fn is_of_directory(&self) {
        self.moves.count_one();
    }
}
