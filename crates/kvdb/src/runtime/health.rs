//! Fail-stop: the first failed write or sync closes the store for writing, with its reason.
//!
//! Thread safety: shared by reference. Invariant: once failed, failed until reopened.

use std::sync::{Arc, OnceLock};

use kvfs_store::{Result, StoreError};

/// The sticky state of a store.
#[derive(Debug, Default)]
pub(crate) struct Health {
    reason: OnceLock<Arc<str>>,
}

impl Health {
    /// Ok while nothing has failed.
    pub(crate) fn check(&self) -> Result<()> {
        self.reason.get().map_or(Ok(()), |reason| Err(StoreError::Failed { reason: Arc::clone(reason) }))
    }

    /// Records the failure that `error` stands for, unless it is one that loses nothing.
    pub(crate) fn observe<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            match error {
                StoreError::Io { .. } | StoreError::Failed { .. } | StoreError::Corrupt { .. } => {
                    let reason = match error {
                        StoreError::Failed { reason } => Arc::clone(reason),
                        other => other.to_string().into(),
                    };
                    if self.reason.set(Arc::clone(&reason)).is_ok() {
                        tracing::error!(%reason, "the store stops accepting writes");
                    }
                }
                _ => {}
            }
        }
        result
    }

    /// Whether `error`, which this has observed if a write had failed, tells of something that can't be read.
    pub(crate) fn is_of_a_read(&self, error: &StoreError) -> bool {
        matches!(error, StoreError::Io { .. } | StoreError::Corrupt { .. }) && self.check().is_ok()
    }

    /// Why the store accepts no more writes, if so.
    pub(crate) fn reason(&self) -> Option<Arc<str>> {
        self.reason.get().cloned()
    }
}
