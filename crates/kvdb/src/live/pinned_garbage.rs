//! What was replaced, as long as a reader holds it: it takes space until then.
//!
//! Thread safety: the lock is held for a few instructions for each thing that is still read, which are few.

use std::sync::{Arc, Weak};

use kvfs_locks::{Mutex, class};

/// Replaced things that readers may still hold.
pub(crate) struct PinnedGarbage<T>(Mutex<Vec<Weak<T>>, class::KvdbLivePinnedGarbage>);

impl<T> Default for PinnedGarbage<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PinnedGarbage<T> {
    /// These were replaced; forgets those that no reader holds any more.
    pub(crate) fn add<'a>(&self, replaced: impl IntoIterator<Item = &'a Arc<T>>)
    where
        T: 'a,
    {
        let mut all = self.0.lock();
        forget_unread(&mut all);
        all.extend(replaced.into_iter().map(Arc::downgrade));
    }

    /// Whether any of them is read.
    pub(crate) fn any(&self) -> bool {
        self.0.lock().iter().any(|one| one.strong_count() > 0)
    }

    /// Those that are read. The last reference to one may come to be the caller's.
    pub(crate) fn read(&self) -> Vec<Arc<T>> {
        let mut all = self.0.lock();
        forget_unread(&mut all);
        all.iter().filter_map(Weak::upgrade).collect()
    }
}

fn forget_unread<T>(all: &mut Vec<Weak<T>>) {
    all.retain(|one| one.strong_count() > 0);
}
