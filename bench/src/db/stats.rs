//! What kvfs counts while a row is measured, as `kvfs stats` has it.
//!
//! Thread safety: plain values.

use crate::row::detail;
use crate::target::Target;
use anyhow::Result;
use kvfs_bench::results::Detail;
use kvfs_bench::units::Unit;
use std::collections::HashMap;

/// Counters, what they are called in the tables, and their unit; each is divided by the number of
/// transactions.
const COUNTERS: &[(&str, &str, Unit)] = &[
    ("operations.fsync.count", "fsyncs, 1,000 transactions", Unit::Count),
    ("operations.write.count", "writes, 1,000 transactions", Unit::Count),
    ("write.payload_bytes", "given to the engine, a transaction", Unit::Bytes),
    ("journal.bytes_written", "written to the journal, a transaction", Unit::Bytes),
    ("flush.bytes", "flushed, a transaction", Unit::Bytes),
    ("merge.bytes_written", "merged, a transaction", Unit::Bytes),
];

/// Begins before the work.
pub(crate) struct StatsMeter {
    before: HashMap<String, u64>,
}

impl StatsMeter {
    /// Reads the counters.
    pub(crate) fn start(target: &Target) -> Result<Self> {
        Ok(Self { before: target.stats()? })
    }

    /// What was counted since; nothing where there are no counters.
    pub(crate) fn finish(self, target: &Target, transactions: f64) -> Result<Vec<Detail>> {
        let after = target.stats()?;
        let found = COUNTERS.iter().filter_map(|&(counter, name, unit)| {
            let since = after.get(counter)?.saturating_sub(*self.before.get(counter).unwrap_or(&0)) as f64;
            let scale = if unit == Unit::Count { 1000.0 } else { 1.0 };
            Some(detail(name, unit, since * scale / transactions))
        });
        Ok(found.collect())
    }
}
