//! What is told of the operations of a store: counts and latencies by kind, and one by one. Plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::operations::{bucket_of, bucket_start};

/// The operations since the store was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationLines {
    /// For how long they have been counted.
    pub since: Duration,
    /// Kinds of which there were any.
    pub kinds: Vec<OperationLine>,
}

/// The operations of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationLine {
    /// As [`kvfs_fs::operations::OperationKind::name`].
    pub kind: String,
    pub errors: u64,
    /// Content and values that were moved.
    pub bytes: u64,
    pub nanos: u64,
    pub nanos_max: u64,
    /// Index and count of the buckets that are not empty, by index; see [`bucket_start`].
    pub buckets: Vec<(u16, u64)>,
}

impl OperationLine {
    /// All of these as if they were of one kind, which is called so.
    pub fn sum<'l>(kind: &str, lines: impl IntoIterator<Item = &'l Self>) -> Self {
        let (mut sum, mut buckets) = (Self { kind: kind.to_owned(), ..Self::default() }, BTreeMap::new());
        for line in lines {
            sum.errors += line.errors;
            sum.bytes += line.bytes;
            sum.nanos += line.nanos;
            sum.nanos_max = sum.nanos_max.max(line.nanos_max);
            line.buckets.iter().for_each(|&(index, count)| *buckets.entry(index).or_default() += count);
        }
        Self { buckets: buckets.into_iter().collect(), ..sum }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|&(_, count)| count).sum()
    }

    /// The time within which this part of them was done, off by at most a thirty-second; zero: there were
    /// none.
    pub fn quantile(&self, part: f64) -> Duration {
        let count = self.count();
        let rank = ((count as f64 * part).ceil() as u64).clamp(1, count.max(1));
        let mut passed = 0;
        for &(index, count) in &self.buckets {
            passed += count;
            if passed >= rank {
                let index = usize::from(index);
                let (start, end) = (bucket_start(index), bucket_start(index + 1));
                let middle = if end > start { start.midpoint(end) } else { self.nanos_max };
                return Duration::from_nanos(middle.min(self.nanos_max));
            }
        }
        Duration::ZERO
    }

    /// How many took less than so long, which should be the start of a bucket.
    pub fn count_below(&self, nanos: u64) -> u64 {
        let end = bucket_of(nanos) as u64;
        self.buckets.iter().filter(|(index, _)| u64::from(*index) < end).map(|&(_, count)| count).sum()
    }

    /// The longest one.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.nanos_max)
    }

    /// Those that `before`, an earlier count, does not have. The longest one is then the end of the last
    /// bucket, at most.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |index: u16| {
            let found = before.buckets.binary_search_by_key(&index, |&(index, _)| index);
            found.map_or(0, |place| before.buckets[place].1)
        };
        let buckets =
            self.buckets.iter().map(|&(index, count)| (index, count.saturating_sub(earlier(index))));
        let buckets: Vec<_> = buckets.filter(|&(_, count)| count > 0).collect();
        let end = buckets.last().map_or(0, |&(index, _)| bucket_start(usize::from(index) + 1));
        Self {
            kind: self.kind.clone(),
            errors: self.errors.saturating_sub(before.errors),
            bytes: self.bytes.saturating_sub(before.bytes),
            nanos: self.nanos.saturating_sub(before.nanos),
            nanos_max: end.min(self.nanos_max),
            buckets,
        }
    }
}

/// Which operations are to be told of as they end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// Those that took as long, at least.
    pub slower: Duration,
    /// Names of kinds; none: all of them.
    pub kinds: Vec<String>,
    /// Those of one process. Those of the process that asks are left out unless it says so.
    pub pid: Option<u32>,
}

/// An operation that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLine {
    /// Since 1970.
    pub ended: Duration,
    pub duration: Duration,
    pub kind: String,
    pub uid: u32,
    pub pid: u32,
    /// Empty: not known.
    pub command: String,
    /// 0: the main line.
    pub txn: u64,
    /// A path from the root of the store, as far as it is known, or keyspace and key.
    pub target: Vec<u8>,
    pub bytes: u64,
    /// 0: done.
    pub errno: i32,
}
