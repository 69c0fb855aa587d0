//! Counters as text, as JSON, and as Prometheus reads them.

use std::fmt::Write;

use crate::units::human_value;

/// Counters of this name are a histogram.
const HISTOGRAM: &str = "write.stalls_ms.";

/// Longest bar of a histogram (columns).
const BAR_LEN: u64 = 40;

/// For people: names and rounded values, and a histogram as bars.
pub(crate) fn as_text(stats: &[(String, u64)]) -> String {
    let width = stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let buckets = stats.iter().filter(|(name, _)| name.starts_with(HISTOGRAM));
    let bar_max = buckets.map(|&(_, value)| value).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in stats {
        // Writing to a string never fails.
        let value_text = human_value(name, *value);
        let _ = match bar(name, *value, bar_max) {
            Some(bar) => writeln!(text, "{name:width$}  {value_text:<9} {bar}"),
            None => writeln!(text, "{name:width$}  {value_text}"),
        };
    }
    text
}

/// `None`: the counter has none.
fn bar(name: &str, value: u64, value_max: u64) -> Option<String> {
    let columns = (value * BAR_LEN).div_ceil(value_max.max(1));
    name.starts_with(HISTOGRAM).then(|| "#".repeat(columns as usize))
}

/// One object with exact numbers, and a line break.
pub(crate) fn as_json(stats: &[(String, u64)]) -> String {
    let map: serde_json::Map<_, _> =
        stats.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    format!("{}\n", serde_json::Value::Object(map))
}

/// Prometheus' text format: names of letters, digits and underscores, one value a line.
pub(crate) fn as_prometheus(stats: &[(String, u64)]) -> String {
    let mut text = String::new();
    for (name, value) in stats {
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let _ = writeln!(text, "# TYPE kvfs_{name} untyped\nkvfs_{name} {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_shown_as_bars() {
        let stats = [("write.stalls_ms.below_0001", 80), ("write.stalls_ms.below_0256", 1), ("zones", 3)];
        let text = as_text(&stats.map(|(name, value)| (name.to_owned(), value)));
        let lines: Vec<&str> = text.lines().collect();
        let full = "#".repeat(40);
        assert_eq!(lines[0], format!("write.stalls_ms.below_0001  80        {full}"));
        assert_eq!(lines[1], "write.stalls_ms.below_0256  1         #");
        assert!(lines[2].ends_with(" 3"));
    }

    #[test]
    fn three_forms_of_the_same_numbers() {
        let stats = [("cache.used_bytes".to_owned(), 2048), ("ops".to_owned(), 12_345)];
        assert_eq!(as_text(&stats), "cache.used_bytes  2.0 KiB\nops               12 345\n");
        assert_eq!(as_json(&stats), "{\"cache.used_bytes\":2048,\"ops\":12345}\n");
        let prometheus = "# TYPE kvfs_cache_used_bytes untyped\nkvfs_cache_used_bytes 2048\n\
                          # TYPE kvfs_ops untyped\nkvfs_ops 12345\n";
        assert_eq!(as_prometheus(&stats), prometheus);
    }
}
