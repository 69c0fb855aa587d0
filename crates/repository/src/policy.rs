//! Which snapshots are kept.
//!
//! Thread safety: a plain value. Invariants: a snapshot is kept where one rule keeps it; the newest one of a
//! store is always kept where there is a rule at all, by the clock of its machine and by its position in the
//! store: the one may have been wrong, and the other goes back where a disk is put back; stores do not count
//! against each other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike, Utc};
use kvfs_fs::transfer::StreamId;

use crate::manifest::Summary;

/// Which span of its kind a time is in.
type SpanOf = fn(&DateTime<Utc>) -> i64;

/// How many are kept of each store: the last ones, and the last of each of so many hours, days, weeks,
/// months, years (UTC) that have any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// The last ones.
    pub last: usize,
    /// Hours.
    pub hourly: usize,
    /// Days.
    pub daily: usize,
    /// Weeks, which begin on Monday (ISO 8601).
    pub weekly: usize,
    /// Months.
    pub monthly: usize,
    /// Years.
    pub yearly: usize,
}

impl Policy {
    /// There is no rule: all are kept.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Those that go, oldest first.
    pub(crate) fn goes(&self, snapshots: &[Summary]) -> Vec<Summary> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut stores: BTreeMap<&str, Vec<&Summary>> = BTreeMap::new();
        for summary in snapshots {
            stores.entry(&summary.store).or_default().push(summary);
        }
        let kept: BTreeSet<StreamId> = stores.into_values().flat_map(|all| self.kept(all)).collect();
        let mut goes: Vec<_> =
            snapshots.iter().filter(|summary| !kept.contains(&summary.id)).cloned().collect();
        goes.sort_by_key(|summary| (summary.created, summary.position));
        goes
    }

    /// Those of one store that are kept.
    fn kept(&self, mut all: Vec<&Summary>) -> BTreeSet<StreamId> {
        all.sort_by_key(|summary| Reverse((summary.created, summary.position)));
        let mut kept = self.kept_in(&all);
        all.sort_by_key(|summary| Reverse((summary.position, summary.created)));
        kept.extend(self.kept_in(&all));
        kept
    }

    /// Those of one store that are kept where this is their order, newest first.
    fn kept_in(&self, all: &[&Summary]) -> BTreeSet<StreamId> {
        let mut kept: BTreeSet<_> = all.iter().take(self.last.max(1)).map(|summary| summary.id).collect();
        let rules: [(usize, SpanOf); 5] = [
            (self.hourly, |time| time.timestamp().div_euclid(3600)),
            (self.daily, |time| time.timestamp().div_euclid(86_400)),
            (self.weekly, |time| {
                let week = time.iso_week();
                i64::from(week.year()) * 100 + i64::from(week.week())
            }),
            (self.monthly, |time| i64::from(time.year()) * 100 + i64::from(time.month())),
            (self.yearly, |time| i64::from(time.year())),
        ];
        for (count, span_of) in rules {
            let mut spans = BTreeSet::new();
            for summary in all {
                let time = DateTime::from_timestamp_nanos(summary.created.as_nanos() as i64);
                let is_new = spans.insert(span_of(&time));
                if spans.len() > count {
                    break;
                }
                if is_new {
                    kept.insert(summary.id);
                }
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: u64 = 3600;
    const DAY: u64 = 24 * HOUR;

    fn at(store: &str, seconds: u64) -> Summary {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&seconds.to_le_bytes());
        id[8] = store.as_bytes()[0];
        let (created, store) = (Duration::from_secs(seconds), store.to_owned());
        Summary {
            id: StreamId(id),
            name: String::new(),
            store,
            position: seconds,
            created,
            pushed: created,
            records: 0,
            bytes: 0,
        }
    }

    fn kept(policy: Policy, snapshots: &[Summary]) -> Vec<u64> {
        let goes = policy.goes(snapshots);
        let stay = snapshots.iter().filter(|summary| !goes.contains(summary));
        stay.map(|summary| summary.created.as_secs()).collect()
    }

    #[test]
    fn the_last_of_each_span_is_kept() {
        // Three a day for 60 days from 2026-01-01 on.
        let begin = 1_767_225_600;
        let times: Vec<_> = (0..180).map(|n| begin + n * 8 * HOUR).collect();
        let snapshots: Vec<_> = times.iter().map(|&time| at("a", time)).collect();
        let last_of = |day: u64| begin + day * DAY + 16 * HOUR;
        assert_eq!(kept(Policy { last: 4, ..Policy::default() }, &snapshots), times[176..]);
        let daily = kept(Policy { daily: 3, ..Policy::default() }, &snapshots);
        assert_eq!(daily, [last_of(57), last_of(58), last_of(59)]);
        // 2026-03-01, the 60th day, is a Sunday.
        let weekly = kept(Policy { weekly: 2, ..Policy::default() }, &snapshots);
        assert_eq!(weekly, [last_of(52), last_of(59)]);
        let monthly = kept(Policy { monthly: 12, ..Policy::default() }, &snapshots);
        assert_eq!(monthly, [last_of(30), last_of(58), last_of(59)]);
        assert_eq!(kept(Policy { yearly: 5, ..Policy::default() }, &snapshots), [last_of(59)]);
        let hourly = kept(Policy { hourly: 2, last: 1, ..Policy::default() }, &snapshots);
        assert_eq!(hourly, times[178..]);
    }

    #[test]
    fn the_newest_one_is_kept_whatever_the_clock_was() {
        let day = |day: u64| 1_767_225_600 + day * DAY;
        let made = |position: u64, seconds: u64| Summary { position, ..at("a", seconds) };
        // Once ten years ahead, and once at the beginning of time.
        let ahead = [made(1, day(0)), made(2, day(3650)), made(3, day(1)), made(4, day(2))];
        let behind = [made(1, day(0)), made(2, day(1)), made(3, 77)];
        for rule in [
            Policy { last: 1, ..Policy::default() },
            Policy { daily: 1, ..Policy::default() },
            Policy { yearly: 1, ..Policy::default() },
        ] {
            assert_eq!(kept(rule, &ahead), [day(3650), day(2)], "{rule:?}");
            assert_eq!(kept(rule, &behind), [day(1), 77], "{rule:?}");
        }
        let two = Policy { daily: 2, ..Policy::default() };
        assert_eq!(kept(two, &ahead), [day(3650), day(1), day(2)]);
    }

    #[test]
    fn without_a_rule_all_are_kept_and_stores_do_not_count_against_each_other() {
        let snapshots = [at("a", 1), at("b", 2), at("b", 3), at("a", 4)];
        assert!(Policy::default().goes(&snapshots).is_empty());
        assert_eq!(kept(Policy { last: 1, ..Policy::default() }, &snapshots), [3, 4]);
        assert_eq!(kept(Policy { yearly: 1, ..Policy::default() }, &snapshots), [3, 4]);
    }
}
