//! The merge function of one keyspace, with the name that errors need.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use kvfs_store::{Compression, MergeFunction, Result, StoreError, Touch};

use super::patch::Patches;

/// Resolves and folds the merge operands of one keyspace. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Merger {
    keyspace: Arc<str>,
    function: Option<Arc<dyn MergeFunction>>,
}

impl fmt::Debug for Merger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Merger")
            .field("keyspace", &self.keyspace)
            .field("function", &self.function.is_some())
            .finish()
    }
}

impl Merger {
    /// The merge function of the keyspace named `keyspace`; `None` when it was opened without one.
    pub(crate) fn new(keyspace: impl Into<Arc<str>>, function: Option<Arc<dyn MergeFunction>>) -> Self {
        Self { keyspace: keyspace.into(), function }
    }

    /// That of a block keyspace: its operands are patches.
    pub(crate) fn of_blocks(keyspace: impl Into<Arc<str>>) -> Self {
        Self::new(keyspace, Some(Arc::new(Patches)))
    }

    /// Whether operands can be resolved.
    pub(crate) fn has_function(&self) -> bool {
        self.function.is_some()
    }

    /// How `value` wants to be stored.
    pub(crate) fn compression(&self, value: &[u8]) -> Compression {
        self.function.as_ref().map_or(Compression::None, |function| function.compression(value))
    }

    /// Applies `operands` (newest first) to `base`; with no operands the base itself.
    ///
    /// # Errors
    /// [`StoreError::NoMergeFunction`] when there are operands and no function; corruption that the
    /// function finds in an operand.
    pub(crate) fn resolve(
        &self,
        key: &[u8],
        base: Option<Bytes>,
        operands: &[Bytes],
    ) -> Result<Option<Bytes>> {
        if operands.is_empty() {
            return Ok(base);
        }
        let function =
            self.function.as_ref().ok_or_else(|| StoreError::NoMergeFunction(self.keyspace.to_string()))?;
        let oldest_first: Vec<&[u8]> = operands.iter().rev().map(|operand| &operand[..]).collect();
        function.resolve(key, base.as_deref(), &oldest_first)
    }

    /// Which fields of the value `operand` touches, and how.
    pub(crate) fn touch(&self, key: &[u8], operand: &[u8]) -> Touch {
        self.function.as_ref().map_or(Touch::ALL, |function| function.touch(key, operand))
    }

    /// One operand for two neighbouring ones, or `None` when they do not fold.
    pub(crate) fn fold(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes> {
        self.function.as_ref()?.fold(key, older, newer)
    }
}
