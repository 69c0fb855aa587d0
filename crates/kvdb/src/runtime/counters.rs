//! Counters of what the engine did, for `stats` and for throttling. Relaxed atomics: they order nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::Batch;

use crate::compaction::Totals;

/// All counters of an open store.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    batches: AtomicU64,
    ops: AtomicU64,
    payload_bytes: AtomicU64,
    lookups: AtomicU64,
    delays: AtomicU64,
    delay_us: AtomicU64,
    delay_us_max: AtomicU64,
    flushes: AtomicU64,
    flush_bytes: AtomicU64,
    /// What they would be if nothing was packed: what the memtables gave up.
    flush_raw_bytes: AtomicU64,
    flush_us: AtomicU64,
    /// Blocks whose patches could not be put over them.
    flush_blocks_lost: AtomicU64,
    flush_recent: Mutex<Recent, class::KvdbRuntimeCountersFlushRecent>,
    /// See [`Counters::flush_rate`].
    flush_rate: AtomicU64,
    merges: AtomicU64,
    merge_bytes_written: AtomicU64,
    merge_bytes_stitched: AtomicU64,
    merge_us: AtomicU64,
    journal_incomplete_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn note_write(&self, batch: &Batch) {
        self.batches.fetch_add(1, Relaxed);
        self.ops.fetch_add(batch.len() as u64, Relaxed);
        self.payload_bytes.fetch_add(batch.payload_bytes() as u64, Relaxed);
    }

    /// The commit of a transaction that had written everything before.
    pub(crate) fn note_spilled_commit(&self, operations: u64, payload_bytes: u64) {
        self.batches.fetch_add(1, Relaxed);
        self.ops.fetch_add(operations, Relaxed);
        self.payload_bytes.fetch_add(payload_bytes, Relaxed);
    }

    /// A key was asked for.
    pub(crate) fn note_lookup(&self) {
        self.lookups.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_delay(&self, delay: Duration) {
        let us = delay.as_micros() as u64;
        self.delays.fetch_add(1, Relaxed);
        self.delay_us.fetch_add(us, Relaxed);
        self.delay_us_max.fetch_max(us, Relaxed);
    }

    pub(crate) fn note_flush(&self, bytes: u64, raw_bytes: u64, took: Duration) {
        self.flushes.fetch_add(1, Relaxed);
        self.flush_bytes.fetch_add(bytes, Relaxed);
        self.flush_raw_bytes.fetch_add(raw_bytes, Relaxed);
        self.flush_us.fetch_add(took.as_micros() as u64, Relaxed);
        let rate = self.flush_recent.lock().add(raw_bytes, took);
        self.flush_rate.store(rate, Relaxed);
    }

    /// See [`crate::flush::patches`].
    pub(crate) fn note_lost_blocks(&self, count: u64) {
        self.flush_blocks_lost.fetch_add(count, Relaxed);
    }

    /// The opening has found so many bytes in a group at the end of the journal that is not whole.
    pub(crate) fn note_incomplete_group(&self, bytes: u64) {
        self.journal_incomplete_bytes.store(bytes, Relaxed);
    }

    pub(crate) fn journal_incomplete_bytes(&self) -> u64 {
        self.journal_incomplete_bytes.load(Relaxed)
    }

    pub(crate) fn note_merge_output(&self, totals: Totals) {
        self.merge_bytes_written.fetch_add(totals.bytes_written, Relaxed);
        self.merge_bytes_stitched.fetch_add(totals.bytes_stitched, Relaxed);
    }

    /// `is_done`: else it ended early, and another merge will go on.
    pub(crate) fn note_merge(&self, took: Duration, is_done: bool) {
        self.merges.fetch_add(u64::from(is_done), Relaxed);
        self.merge_us.fetch_add(took.as_micros() as u64, Relaxed);
    }

    /// What flushes have lately got through (bytes each second, before packing); 0 before the first.
    pub(crate) fn flush_rate(&self) -> u64 {
        self.flush_rate.load(Relaxed)
    }

    /// Names and values.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        [
            ("write.batches", &self.batches),
            ("write.ops", &self.ops),
            ("write.payload_bytes", &self.payload_bytes),
            ("read.lookups", &self.lookups),
            ("write.delays", &self.delays),
            ("write.delay_us", &self.delay_us),
            ("write.delay_us_max", &self.delay_us_max),
            ("flush.count", &self.flushes),
            ("flush.bytes", &self.flush_bytes),
            ("flush.time_us", &self.flush_us),
            ("flush.blocks_lost", &self.flush_blocks_lost),
            ("merge.count", &self.merges),
            ("merge.bytes_written", &self.merge_bytes_written),
            ("merge.bytes_stitched", &self.merge_bytes_stitched),
            ("merge.time_us", &self.merge_us),
            ("journal.incomplete_bytes", &self.journal_incomplete_bytes),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.load(Relaxed)))
        .collect()
    }
}

/// The last few flushes, by bytes: many small ones don't hide what a large one takes.
#[derive(Debug, Default)]
struct Recent {
    bytes: f64,
    seconds: f64,
}

impl Recent {
    /// So much counts.
    const BYTES: f64 = (256 << 20) as f64;

    /// Returns the rate with this one (bytes each second).
    fn add(&mut self, bytes: u64, took: Duration) -> u64 {
        self.bytes += bytes as f64;
        self.seconds += took.as_secs_f64();
        let share = (Self::BYTES / self.bytes.max(1.0)).min(1.0);
        (self.bytes, self.seconds) = (self.bytes * share, self.seconds * share);
        if self.seconds > 0.0 { (self.bytes / self.seconds) as u64 } else { 0 }
    }
}

/// What the engine wrote, holds and read, in hundredths of what its users did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Amplification {
    /// Keys and values that users wrote (bytes).
    pub(crate) payload_bytes: u64,
    /// All that went to the device for them: journal, flushes, merges, manifest (bytes).
    pub(crate) device_bytes: u64,
    /// What pieces refer to (bytes).
    pub(crate) live_bytes: u64,
    /// Zones that hold any of it (bytes).
    pub(crate) zones_bytes: u64,
    /// Keys that were asked for.
    pub(crate) lookups: u64,
    /// Blocks that had to be read, by lookups and short scans.
    pub(crate) blocks_read: u64,
}

impl Amplification {
    /// Names and values; what nothing was measured of is left out.
    pub(crate) fn list(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let percent = |part: u64, whole: u64| part.saturating_mul(100).checked_div(whole);
        [
            ("amplification.write_percent", percent(self.device_bytes, self.payload_bytes)),
            ("amplification.space_percent", percent(self.zones_bytes, self.live_bytes)),
            ("amplification.read_percent", percent(self.blocks_read, self.lookups)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_flushes_is_that_of_the_last_ones() {
        let mut recent = Recent::default();
        let mut add = |mib: u64, ms| recent.add(mib << 20, Duration::from_millis(ms)) >> 20;
        assert_eq!(add(64, 1000), 64);
        assert_eq!(add(64, 3000), 32);
        assert!((30..32).contains(&add(0, 100)), "a small one counts little");
        for _ in 0..40 {
            add(64, 500);
        }
        assert!((126..=128).contains(&add(64, 500)), "what is long ago does not count");
    }

    #[test]
    fn amplification_is_in_hundredths_and_left_out_where_nothing_was_done() {
        let measured = Amplification { payload_bytes: 200, device_bytes: 500, ..Amplification::default() };
        assert_eq!(measured.list().collect::<Vec<_>>(), [("amplification.write_percent", 250)]);
        let measured =
            Amplification { live_bytes: 80, zones_bytes: 100, lookups: 4, blocks_read: 1, ..measured };
        let all: Vec<u64> = measured.list().map(|(_, value)| value).collect();
        assert_eq!(all, [250, 125, 25]);
    }
}
