//! How long a call waits for object storage that does not answer.
//!
//! Thread safety: plain values. Invariant: a wait that sees progress begins anew, so a slow network is no outage.

use std::io;
use std::time::Duration;

use kvfs_store::StoreError;
use tokio::time::Instant;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct WaitLimit {
    /// `None`: for ever.
    limit: Option<Duration>,
    begun: Instant,
}

impl WaitLimit {
    pub(crate) fn begin(limit: Option<Duration>) -> Self {
        Self { limit, begun: Instant::now() }
    }

    /// There was progress.
    pub(crate) fn restart(&mut self) {
        self.begun = Instant::now();
    }

    /// Returns when the wait has been too long.
    pub(crate) async fn run_out(&self) {
        match self.limit {
            Some(limit) => tokio::time::sleep_until(self.begun + limit).await,
            None => std::future::pending().await,
        }
    }

    /// An error if the wait has been too long. `what` was waited for.
    pub(crate) fn check(&self, what: &str) -> Result<(), StoreError> {
        let is_over = self.limit.is_some_and(|limit| self.begun.elapsed() >= limit);
        if is_over { Err(self.error(what)) } else { Ok(()) }
    }

    /// What a call fails with that has waited too long.
    pub(crate) fn error(&self, what: &str) -> StoreError {
        let limit = self.limit.unwrap_or_default();
        let text = format!(
            "object storage has not answered for {limit:?} (-o timeout=); what was written stays in memory, and goes there when it \
             answers again"
        );
        StoreError::io(what, io::Error::new(io::ErrorKind::TimedOut, text))
    }
}

/// Whether a call has failed because object storage did not answer: it may be made again.
pub(crate) fn is_unanswered(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::TimedOut)
}
