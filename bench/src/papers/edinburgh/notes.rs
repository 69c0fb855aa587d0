//! What a store or a database was seen to be asked for.
//!
//! Thread safety: shared by all threads; one lock.

use std::sync::{Arc, Mutex, PoisonError};

/// Nothing is noted before the first [`Notes::take`].
pub(super) struct Notes<T>(Arc<Mutex<Option<Vec<T>>>>);

impl<T> Default for Notes<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Notes<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Notes<T> {
    pub(super) fn note(&self, call: impl FnOnce() -> T) {
        if let Some(calls) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            calls.push(call());
        }
    }

    /// What was noted since the last call, from the first one on.
    pub(super) fn take(&self) -> Vec<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(Vec::new()).unwrap_or_default()
    }
}
