//! What of a mount changes while it is there.
//!
//! Thread safety: for threads that may block.

use std::time::Duration;

use crate::authority::authorize_server;
use crate::caller::Caller;
use crate::error::{Result, ServiceError};
use crate::served::ServedStore;

/// What a remount changes; `None`: it stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remount {
    /// Longest time that a change stays only in memory.
    pub commit_interval: Option<Duration>,
    /// Where content goes that is wished nowhere: by the name of a policy.
    pub placement: Option<String>,
}

impl ServedStore<'_> {
    /// Whether the caller may change how the store is mounted.
    ///
    /// # Errors
    /// The caller may not.
    pub fn check_may_remount(&self, caller: &Caller) -> Result<()> {
        authorize_server(caller, "change how it is mounted")
    }

    /// Changes it, until the unmount.
    ///
    /// # Errors
    /// As [`ServedStore::check_may_remount`]; there is no such policy.
    pub fn remount(&self, caller: &Caller, change: &Remount) -> Result<()> {
        self.check_may_remount(caller)?;
        if let Some(policy) = &change.placement {
            self.engine
                .control_of("placement")?
                .set_placement(policy, false)
                .map_err(ServiceError::of_order)?;
            tracing::info!(policy, "content is placed by another policy");
        }
        if let Some(interval) = change.commit_interval {
            self.engine.set_commit_interval(interval);
            tracing::info!(?interval, "changes stay in memory for another time at most");
        }
        Ok(())
    }
}
