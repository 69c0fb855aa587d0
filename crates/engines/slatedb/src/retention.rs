//! Which tables `SlateDB` may remove: those that no state has referred to for a while.
//!
//! Purpose: `SlateDB` counts the age of a table from when it was made, and removes an old one as soon as no
//! state refers to it. But readers elsewhere, of which the writer knows nothing, still read the state that
//! they have opened. So each collection offers its tables here, and what is removed has been offered for a
//! while.
//!
//! Thread safety: shared, behind one short lock. Invariant: a table is removed only when collections have
//! offered it for `kept` by the monotonic clock, one after the other; an opening begins anew.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kvfs_locks::{Mutex, class};
use kvfs_store::clock::Clock;
use object_store::path::Path;
use slatedb::GcFilter;
use slatedb_common::ObjectMetadata;

use crate::options::SlateOptions;

/// The directory of tables.
const TABLES: &str = "compacted";

/// One that so many collections did not offer is in use again, or gone.
const COLLECTIONS_MISSED: u32 = 3;

/// Since when a table has been offered, and when it was last.
struct Offered {
    since: Duration,
    last: Duration,
}

/// See the module.
pub(crate) struct Retention {
    kept: Duration,
    /// Between two collections.
    interval: Duration,
    clock: Arc<dyn Clock>,
    offered: Mutex<HashMap<Path, Offered>, class::EngineSlatedbRetention>,
}

impl Retention {
    /// For an opening.
    pub(crate) fn begin(options: &SlateOptions, clock: Arc<dyn Clock>) -> Self {
        let (kept, interval) = (options.kept, options.collection_interval);
        Self { kept, interval, clock, offered: Mutex::default() }
    }

    /// Whether it may be removed, which is offered now.
    fn is_due(&self, table: &Path, now: Duration) -> bool {
        let mut offered = self.offered.lock();
        let table = offered.entry(table.clone()).or_insert(Offered { since: now, last: now });
        table.last = now;
        now.saturating_sub(table.since) >= self.kept
    }

    /// Forgets those that are not offered any more.
    fn forget(&self, now: Duration) {
        let missed = self.interval * COLLECTIONS_MISSED;
        self.offered.lock().retain(|_, table| now.saturating_sub(table.last) <= missed);
    }
}

#[async_trait]
impl GcFilter for Retention {
    /// What is offered at a time are all objects of one kind that a collection would remove.
    async fn filter(&self, candidates: HashSet<ObjectMetadata>) -> HashSet<ObjectMetadata> {
        let now = self.clock.monotonic();
        self.forget(now);
        candidates
            .into_iter()
            .filter(|found| {
                let is_table = found.location.parent().is_some_and(|dir| dir.filename() == Some(TABLES));
                !is_table || self.is_due(&found.location, now)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use kvfs_store::clock::ManualClock;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn object(path: &str) -> ObjectMetadata {
        let (location, last_modified) = (path.into(), chrono::DateTime::UNIX_EPOCH);
        ObjectMetadata { location, last_modified, size: 1, e_tag: None, version: None }
    }

    /// Minutes in which a table goes that each collection offers but those between `absent`.
    fn goes_after(absent: std::ops::Range<u32>) -> u32 {
        let clock = Arc::new(ManualClock::at(MINUTE));
        let retention = Retention::begin(&SlateOptions::with_memory(1 << 20), Arc::clone(&clock) as _);
        let table = object("prefix/compacted/01.sst");
        let other = object("prefix/wal/01.sst");
        for minute in 0.. {
            let is_offered = minute % 5 == 0 && !absent.contains(&minute);
            let offered = is_offered.then(|| table.clone());
            let gone = block_on(retention.filter(offered.into_iter().collect()));
            if gone.contains(&table) {
                // That of one that could not be removed is not forgotten.
                assert!(block_on(retention.filter([table.clone()].into())).contains(&table));
                return minute;
            }
            // Others go at once.
            assert!(block_on(retention.filter([other.clone()].into())).contains(&other));
            clock.advance(MINUTE);
        }
        unreachable!("it goes")
    }

    #[test]
    fn tables_go_when_nothing_has_referred_to_them_for_as_long_as_they_are_kept() {
        assert_eq!(goes_after(0..0), 60);
        // A collection that has failed changes nothing.
        assert_eq!(goes_after(5..15), 60);
        assert_eq!(goes_after(5..20), 80);
    }
}
