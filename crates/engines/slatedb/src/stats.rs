//! Figures of a store: its own, and those that `SlateDB` counts.
//!
//! Thread safety: functions. Invariant: names and their order do not change while a store is open.

use slatedb_common::metrics::{DefaultMetricsRecorder, MetricValue};

/// Counters and gauges of `SlateDB` that are shown, and as what.
const SHOWN: &[(&str, &str)] = &[
    ("slatedb.backpressure_count", slatedb::db_stats::BACKPRESSURE_COUNT),
    ("slatedb.disk_cache_bytes", slatedb::cached_object_store_stats::CACHE_BYTES),
    ("slatedb.disk_cache_hits", slatedb::cached_object_store_stats::PART_HIT_COUNT),
    ("slatedb.disk_cache_lookups", slatedb::cached_object_store_stats::PART_ACCESS_COUNT),
    ("slatedb.l0_tables", slatedb::db_stats::L0_SST_COUNT),
    ("slatedb.unflushed_bytes", slatedb::db_stats::TOTAL_MEM_SIZE_BYTES),
];

/// The shown ones, by name.
pub(crate) fn of_slatedb(recorder: &DefaultMetricsRecorder) -> Vec<(String, u64)> {
    let metrics = recorder.snapshot();
    let sum = |name: &str| -> u64 {
        let named = metrics.all().iter().filter(|metric| metric.name == name);
        named.map(|metric| value(&metric.value)).sum()
    };
    SHOWN.iter().map(|(as_what, name)| ((*as_what).to_owned(), sum(name))).collect()
}

fn value(value: &MetricValue) -> u64 {
    match value {
        MetricValue::Gauge(value) | MetricValue::UpDownCounter(value) => (*value).max(0) as u64,
        MetricValue::Counter(count) | MetricValue::Histogram { count, .. } => *count,
    }
}
