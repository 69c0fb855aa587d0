//! A store as the program needs it that opens it: what the users of a [`Store`] have no business with.
//!
//! Thread safety: as the store's.

use std::sync::Arc;
use std::time::Duration;

use crate::{Result, Store};

/// An engine that is opened by its path, beside kvdb. See `docs/engines.md`, which says how to add one.
pub trait EngineStore: Store {
    /// Why it accepts no more writes; `None`: it works.
    fn failure(&self) -> Option<Arc<str>>;

    /// Caches and buffers may take so many bytes from now on.
    fn set_memory_bytes(&self, bytes: u64);

    /// Longest time that a batch may stay volatile where nothing syncs it, from now on.
    fn set_commit_interval(&self, interval: Duration);

    /// Reads everything, and verifies it.
    ///
    /// # Errors
    /// What keeps it from reading on. Damage is no error, but a finding.
    fn verify(&self) -> Result<Verified>;

    /// Writes everything out. Writes fail from then on, and what it holds outside of memory is given back
    /// when the last snapshot and cursor has gone.
    ///
    /// # Errors
    /// I/O errors: it is closed all the same.
    fn close(&self) -> Result<()>;
}

/// What [`EngineStore::verify`] has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Damage, one line each; empty: none.
    pub findings: Vec<String>,
    /// What was looked at, by name.
    pub counts: Vec<(String, u64)>,
}
