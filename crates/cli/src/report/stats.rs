//! Counters as text, as JSON, and as Prometheus reads them.

use std::fmt::Write;

use crate::units::human_value;

/// For people: names and rounded values.
pub(crate) fn as_text(stats: &[(String, u64)]) -> String {
    let width = stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in stats {
        // Writing to a string never fails.
        let _ = writeln!(text, "{name:width$}  {}", human_value(name, *value));
    }
    text
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
    fn three_forms_of_the_same_numbers() {
        let stats = [("cache.used_bytes".to_owned(), 2048), ("ops".to_owned(), 12_345)];
        assert_eq!(as_text(&stats), "cache.used_bytes  2.0 KiB\nops               12 345\n");
        assert_eq!(as_json(&stats), "{\"cache.used_bytes\":2048,\"ops\":12345}\n");
        let prometheus = "# TYPE kvfs_cache_used_bytes untyped\nkvfs_cache_used_bytes 2048\n\
                          # TYPE kvfs_ops untyped\nkvfs_ops 12345\n";
        assert_eq!(as_prometheus(&stats), prometheus);
    }
}
