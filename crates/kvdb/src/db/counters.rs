//! Counters of what the engine did, for `stats` and for throttling. Relaxed atomics: they order nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvfs_store::Batch;

use crate::compaction::Totals;

/// All counters of an open store.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    batches: AtomicU64,
    ops: AtomicU64,
    payload_bytes: AtomicU64,
    delays: AtomicU64,
    delay_us: AtomicU64,
    delay_us_max: AtomicU64,
    flushes: AtomicU64,
    flush_bytes: AtomicU64,
    /// What they would be if nothing was packed: what the memtables gave up.
    flush_raw_bytes: AtomicU64,
    flush_us: AtomicU64,
    merges: AtomicU64,
    merge_bytes_written: AtomicU64,
    merge_bytes_stitched: AtomicU64,
    merge_us: AtomicU64,
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
    }

    pub(crate) fn note_merge_output(&self, totals: Totals) {
        self.merge_bytes_written.fetch_add(totals.bytes_written, Relaxed);
        self.merge_bytes_stitched.fetch_add(totals.bytes_stitched, Relaxed);
    }

    pub(crate) fn note_merge(&self, took: Duration) {
        self.merges.fetch_add(1, Relaxed);
        self.merge_us.fetch_add(took.as_micros() as u64, Relaxed);
    }

    /// Applied batches.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Relaxed)
    }

    /// What flushes have got through on average (bytes each second, before packing); 0 before the first.
    pub(crate) fn flush_rate(&self) -> u64 {
        let us = self.flush_us.load(Relaxed);
        if us == 0 {
            0
        } else {
            (u128::from(self.flush_raw_bytes.load(Relaxed)) * 1_000_000 / u128::from(us)) as u64
        }
    }

    /// Names and values.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        [
            ("write.batches", &self.batches),
            ("write.ops", &self.ops),
            ("write.payload_bytes", &self.payload_bytes),
            ("write.delays", &self.delays),
            ("write.delay_us", &self.delay_us),
            ("write.delay_us_max", &self.delay_us_max),
            ("flush.count", &self.flushes),
            ("flush.bytes", &self.flush_bytes),
            ("flush.time_us", &self.flush_us),
            ("merge.count", &self.merges),
            ("merge.bytes_written", &self.merge_bytes_written),
            ("merge.bytes_stitched", &self.merge_bytes_stitched),
            ("merge.time_us", &self.merge_us),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.load(Relaxed)))
        .collect()
    }
}
