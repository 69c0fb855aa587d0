//! The time of day that `SlateDB` is given: never before that of what a store has.
//!
//! Purpose: `SlateDB` marks entries, tables and compactions with the time of day, and refuses to write what
//! would be older than what is there. So a store whose last writer had a clock that was ahead could not be
//! written to until that time has come. What it has is looked for at the opening; where it is later than the
//! time of the machine, time goes on from there. kvfs asks none of these times.
//!
//! Thread safety: shared; plain values. Invariant: time does not go back, neither within an opening nor from
//! one to the next.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use kvfs_store::Result;
use slatedb::{Error, ErrorKind, VersionedCompactions, WalReader};
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};

use crate::error::of_slatedb;
use crate::follower::Opener;

/// Clocks of two machines differ by so much every day.
const AHEAD_TOLD: Duration = Duration::from_secs(10);

/// Between two attempts to look for what a store has.
const PAUSE: Duration = Duration::from_millis(500);

/// The end of the year 9999 (milliseconds). What says to be later is damaged, and names of tables have hardly
/// room for more.
const MILLIS_MAX: u64 = 253_402_300_799_999;

/// See the module.
#[derive(Debug)]
pub(crate) struct Forward {
    system: DefaultSystemClock,
    ahead: TimeDelta,
}

impl Forward {
    /// It is `begin` now (since 1970-01-01 UTC).
    pub(crate) fn from(begin: Duration) -> Self {
        let system = DefaultSystemClock::new();
        let begin = i64::try_from(begin.as_millis()).ok().and_then(DateTime::from_timestamp_millis);
        let ahead = begin.map_or(TimeDelta::zero(), |begin| begin - system.now());
        Self { system, ahead }
    }
}

impl SystemClock for Forward {
    fn now(&self) -> DateTime<Utc> {
        self.system.now() + self.ahead
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.system.sleep(duration)
    }

    fn ticker(&self, duration: Duration) -> SystemClockTicker<'_> {
        SystemClockTicker::new(self, duration)
    }
}

/// The clock for an opening of the store that is there, and by how much it is ahead of `wall`.
pub(crate) async fn for_opening(opener: &Opener, wall: fn() -> Duration) -> Result<(Forward, Duration)> {
    let newest = loop {
        match newest(opener).await {
            // SlateDB makes most of these requests again by itself, but not all.
            Err(error) if error.kind() == ErrorKind::Unavailable => tokio::time::sleep(PAUSE).await,
            newest => break newest.map_err(|error| of_slatedb("opening a store", &error))?,
        }
    };
    let now = wall();
    let ahead = newest.saturating_sub(now);
    if ahead > AHEAD_TOLD {
        let secs = ahead.as_secs();
        tracing::warn!(
            "the clock of this machine is {secs} s behind that of the last mount that wrote to this store; one of them is wrong. \
             What is written is marked with the later time, which harms nothing"
        );
    }
    Ok((Forward::from(now + ahead), ahead))
}

/// The latest time that the store has.
async fn newest(opener: &Opener) -> Result<Duration, Error> {
    let state = opener.admin().read_compactor_state_view().await?;
    let manifest = state.manifest();
    let tables = manifest.all_sst_views().map(|view| view.sst.id.value().timestamp_ms());
    // Of one that has been compacted.
    let last = manifest.last_compacted_l0_sst_view_id().map(|id| id.timestamp_ms());
    let compactions = state.compactions().into_iter().flat_map(VersionedCompactions::recent_compactions);
    let compactions = compactions.map(|compaction| compaction.id().timestamp_ms());
    let in_log = newest_in_log(opener, manifest.replay_after_wal_id()).await?;
    let entries = [Some(manifest.last_l0_clock_tick()), in_log].into_iter().flatten();
    let entries = entries.filter_map(|tick| u64::try_from(tick).ok());
    let all = tables.chain(last).chain(compactions).chain(entries);
    Ok(Duration::from_millis(all.filter(|millis| *millis <= MILLIS_MAX).max().unwrap_or_default()))
}

/// Of the entries behind an object of the log; `None`: there are none. Times only grow there, so the last
/// object that has any tells.
async fn newest_in_log(opener: &Opener, after: u64) -> Result<Option<i64>, Error> {
    let log = WalReader::new(opener.prefix.clone(), Arc::clone(&opener.service));
    for object in log.list(after.saturating_add(1)..).await?.into_iter().rev() {
        let mut entries = object.iterator().await?;
        let mut newest = None;
        while let Some(entry) = entries.next().await? {
            newest = newest.max(entry.create_ts);
        }
        if newest.is_some() {
            return Ok(newest);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_from_where_it_begins() {
        let begin = Duration::from_secs(4_000_000_000);
        let clock = Forward::from(begin);
        let times = [(); 3].map(|()| u64::try_from(clock.now().timestamp_millis()).unwrap());
        assert!(times.is_sorted() && u128::from(times[0]) >= begin.as_millis());
        assert!(times[2] < 4_001_000_000_000, "{times:?}");
    }
}
