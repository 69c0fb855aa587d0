//! Counts and latencies of operations, as a table and as counters.

use std::fmt::Write;
use std::time::Duration;

use kvfs_service::units::human_latency;

use crate::control::{OperationLine, OperationLines};
use crate::units::{group_digits, human_bytes, human_duration};

/// A row for each kind, those that took most time in all first; a line where there were none.
pub(crate) fn as_table(operations: &OperationLines) -> String {
    let since = human_duration(operations.since);
    if operations.kinds.is_empty() {
        return format!("Operations: none in {since}\n");
    }
    let mut text = format!("Operations in {since}:\n");
    // Writing to a string never fails.
    let _ = writeln!(
        text,
        "{:12} {:>12} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8}",
        "KIND", "COUNT", "PER S", "ERRORS", "MOVED", "P50", "P99", "MAX"
    );
    let mut lines: Vec<&OperationLine> = operations.kinds.iter().collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.nanos));
    for line in lines {
        let _ = writeln!(
            text,
            "{:12} {:>12} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8}",
            line.kind,
            group_digits(line.count()),
            human_rate(line.count(), operations.since),
            line.errors,
            if line.bytes == 0 { "-".to_owned() } else { human_bytes(line.bytes) },
            human_latency(line.quantile(0.5)),
            human_latency(line.quantile(0.99)),
            human_latency(line.longest())
        );
    }
    text
}

/// How many there were each second.
pub(crate) fn human_rate(count: u64, time: Duration) -> String {
    let rate = count as f64 / time.as_secs_f64().max(0.001);
    if rate < 10.0 { format!("{rate:.1}") } else { group_digits(rate as u64) }
}

/// Each figure of each kind as a counter, sorted by name.
pub(crate) fn as_counters(operations: &OperationLines) -> Vec<(String, u64)> {
    let mut counters = vec![("operations.since_ms".to_owned(), operations.since.as_millis() as u64)];
    for line in &operations.kinds {
        let nanos = |part| line.quantile(part).as_nanos() as u64;
        let figures = [
            ("count", line.count()),
            ("errors", line.errors),
            ("bytes", line.bytes),
            ("sum_ns", line.nanos),
            ("p50_ns", nanos(0.5)),
            ("p99_ns", nanos(0.99)),
            ("max_ns", line.nanos_max),
        ];
        counters.extend(figures.map(|(name, value)| (format!("operations.{}.{name}", line.kind), value)));
    }
    counters.sort();
    counters
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A thousand reads of 1 to 1.06 ms, and one write that failed.
    pub(crate) fn sample() -> OperationLines {
        use kvfs_service::operations::bucket_of;
        let read = OperationLine {
            kind: "read".to_owned(),
            bytes: 4096 * 1000,
            nanos: 1_000_000_000,
            nanos_max: 1_060_000,
            buckets: vec![(bucket_of(1_010_000) as u16, 1000)],
            ..OperationLine::default()
        };
        let write = OperationLine {
            kind: "write".to_owned(),
            errors: 1,
            nanos: 5_000_000_000,
            nanos_max: 5_000_000_000,
            buckets: vec![(bucket_of(5_000_000_000) as u16, 1)],
            ..OperationLine::default()
        };
        OperationLines { since: Duration::from_secs(100), kinds: vec![read, write] }
    }

    #[test]
    fn table_has_the_kind_that_took_most_time_first() {
        let text = as_table(&sample());
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["Operations", "in", "100", "s:"]);
        assert_eq!(rows[2], ["write", "1", "0.0", "1", "-", "5.0", "s", "5.0", "s", "5.0", "s"]);
        assert_eq!(
            rows[3],
            ["read", "1", "000", "10", "0", "3.9", "MiB", "999", "µs", "999", "µs", "1.1", "ms"]
        );
        assert!(text.lines().all(|line| line.chars().count() <= 82), "{text}");
        assert_eq!(as_table(&OperationLines::default()), "Operations: none in 0 s\n");
    }

    #[test]
    fn counters_are_exact_numbers_by_kind() {
        let counters = as_counters(&sample());
        let get = |name: &str| counters.iter().find(|(known, _)| known == name).map(|&(_, value)| value);
        assert!(counters.is_sorted());
        assert_eq!(get("operations.read.count"), Some(1000));
        assert_eq!(get("operations.write.errors"), Some(1));
        assert_eq!(get("operations.write.max_ns"), Some(5_000_000_000));
        let p50 = get("operations.read.p50_ns").expect("is there");
        assert!((980_000..1_060_000).contains(&p50), "{p50}");
    }
}
