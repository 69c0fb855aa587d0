//! How long a call waits for object storage that does not answer.
//!
//! Thread safety: plain values. Invariants: a wait that sees progress begins anew, so a slow network is no
//! outage; threads of the store wait until its end at most.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use kvfs_store::{Result, StoreError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::health::Health;

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiter {
    Caller,
    /// A thread of the store.
    Background,
}

/// See the module.
pub(crate) struct WaitLimit {
    /// `None`: for ever.
    limit: Option<Duration>,
    begun: Instant,
    /// Tells that the wait is over; `None`: nothing does.
    end: Option<watch::Receiver<bool>>,
}

impl WaitLimit {
    pub(crate) fn begin(limit: Option<Duration>) -> Self {
        Self { limit, begun: Instant::now(), end: None }
    }

    /// The same, until it is told to end.
    pub(crate) fn until(self, end: watch::Receiver<bool>) -> Self {
        Self { end: Some(end), ..self }
    }

    /// There was progress.
    pub(crate) fn restart(&mut self) {
        self.begun = Instant::now();
    }

    /// Returns when the wait has been too long.
    pub(crate) async fn run_out(&self) {
        let time = async {
            match self.limit {
                Some(limit) => tokio::time::sleep_until(self.begun + limit).await,
                None => std::future::pending().await,
            }
        };
        let end = async {
            match &self.end {
                // One that can't be told any more is over, too.
                Some(end) => drop(end.clone().wait_for(|is_over| *is_over).await),
                None => std::future::pending().await,
            }
        };
        select(pin!(time), pin!(end)).await;
    }

    /// Whether it was told to end.
    fn is_ended(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end.borrow())
    }

    /// An error if the wait has been too long. `what` was waited for.
    pub(crate) fn check(&self, what: &str) -> Result<()> {
        let is_over = self.limit.is_some_and(|limit| self.begun.elapsed() >= limit) || self.is_ended();
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

/// Work during which nothing was answered for a limit fails, and work that has taken this many times as long:
/// requests that are answered may still lead nowhere, where a writer that has been taken over goes on
/// compacting.
const LIMITS_MAX: u32 = 10;

/// Drives `work`, of many requests, which would try for ever. `what` it is.
pub(crate) async fn while_answered<T>(
    what: &str,
    health: &Health,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    drive(what, || WaitLimit::begin(health.timeout()), || health.answers(), work).await
}

/// As [`while_answered`]: within limits that `begin` begins, each of which ends it unless `answers` has
/// grown. A thread of the store goes on until it is told to end.
pub(crate) async fn drive<T>(
    what: &str,
    begin: impl Fn() -> WaitLimit,
    answers: impl Fn() -> u64,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut work = pin!(work);
    for count in 1.. {
        let (limit, before) = (begin(), answers());
        match select(&mut work, pin!(limit.run_out())).await {
            Either::Left((done, _)) => return done,
            Either::Right(_) if answers() == before || limit.is_ended() => return Err(limit.error(what)),
            Either::Right(_) if limit.end.is_none() && count == LIMITS_MAX => break,
            Either::Right(_) => {}
        }
    }
    let text = "it has taken too long: object storage answers slowly, or another mount that was taken over is still \
                at work there; try again";
    Err(StoreError::io(what, io::Error::new(io::ErrorKind::TimedOut, text)))
}
