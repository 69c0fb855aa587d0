//! Making durable what was acknowledged, and leaving a mounted store.
//!
//! Thread safety: for threads that may block.

use std::path::PathBuf;

use kvfs_store::StoreError;

use crate::branches::Branches;
use crate::error::Result;
use crate::served::ServedStore;

impl ServedStore<'_> {
    /// Makes durable what was acknowledged before, on the main line and in mounted branches. Every user may
    /// ask. Returns where the branches are mounted.
    ///
    /// # Errors
    /// It may not be durable. Where that is so of a branch alone, all others and the main line are.
    pub fn sync(&self) -> Result<Vec<PathBuf>> {
        self.flush_main_line(false)?;
        let (branches, saved) = self.branches.map_or_else(|| (Vec::new(), Ok(())), Branches::save_all);
        let position = self.fs.sync_target_all()?;
        self.fs.sync(position)?;
        // What was durable before the failure still is, as far as the medium is there; it can't be vouched
        // for.
        if let Some(reason) = self.engine.health().failure {
            return Err(StoreError::Failed { reason: reason.into() }.into());
        }
        saved.map(|()| branches)
    }
}

#[cfg(test)]
mod tests;
