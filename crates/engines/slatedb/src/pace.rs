//! When a reader of `SlateDB` looks for a newer state: when it is asked to, and at no other time.
//!
//! Purpose: `SlateDB` has its readers look at an interval, by a clock that can be given. This clock ends that
//! one wait, which is longer than any other, when a poll is asked for. When the reader waits again, the poll
//! is over.
//!
//! Thread safety: shared. Invariant: one poll at a time is asked for.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};
use tokio::sync::{Notify, watch};

/// The interval at which a reader looks, by this clock. It is never waited for.
pub(crate) const NEVER: Duration = Duration::from_hours(24 * 365);

/// Only what is meant to be [`NEVER`] waits so long.
const LONG: Duration = Duration::from_hours(24);

/// See the module.
#[derive(Debug)]
pub(crate) struct Pace {
    system: DefaultSystemClock,
    asked: Notify,
    /// Polls that were asked for.
    polls: AtomicU64,
    /// How often the reader has begun to wait: once more than it was asked, when it is at rest.
    rests: watch::Sender<u64>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        let (rests, _) = watch::channel(0);
        Self { system: DefaultSystemClock::new(), asked: Notify::new(), polls: AtomicU64::new(0), rests }
    }

    /// Returns when the reader has done all that it was asked for. It polls once at its opening, unasked.
    pub(crate) async fn at_rest(&self) {
        let polls = self.polls.load(Ordering::Acquire);
        let mut rests = self.rests.subscribe();
        // It fails if the sender is gone, which is a part of this.
        rests.wait_for(|rests| *rests > polls).await.ok();
    }

    /// Has the reader look once for a newer state, and returns then. If this is dropped before, the poll goes
    /// on, and the next call waits for its end.
    pub(crate) async fn poll(&self) {
        self.at_rest().await;
        self.polls.fetch_add(1, Ordering::AcqRel);
        self.asked.notify_one();
        self.at_rest().await;
    }
}

impl SystemClock for Pace {
    fn now(&self) -> DateTime<Utc> {
        self.system.now()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        if duration < LONG {
            return self.system.sleep(duration);
        }
        Box::pin(async move {
            self.rests.send_modify(|rests| *rests += 1);
            self.asked.notified().await;
        })
    }

    fn ticker(&self, duration: Duration) -> SystemClockTicker<'_> {
        SystemClockTicker::new(self, duration)
    }
}
