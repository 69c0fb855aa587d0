//! Counters as text and as JSON; for Prometheus: `prometheus`.

use std::fmt::Write;
use std::time::Duration;

use super::memory::CHARGES;
use super::operations::{as_counters, as_table};
use crate::control::OperationLines;
use crate::units::{human_bytes, human_duration, human_value};

/// Counters of an engine without zones.
pub(crate) const SPACE_CAPACITY: &str = "space.capacity_bytes";
pub(crate) const SPACE_USED: &str = "space.used_bytes";

/// Counters of this name are a histogram.
const HISTOGRAM: &str = "write.stalls_ms.";

/// A counter whose name begins with this ends with that of the policy in use.
const POLICY: &str = "cache.policy.";

/// Longest bar of a histogram (columns).
const BAR_LEN: u64 = 40;

/// For people: what matters in ten lines, operations by kind, then all counters by name.
pub(crate) fn as_report(stats: &[(String, u64)], operations: &OperationLines) -> String {
    format!("{}\n{}\nAll counters:\n{}", summary(stats), as_table(operations), counters(stats))
}

/// How the store is, in ten lines.
fn summary(stats: &[(String, u64)]) -> String {
    let get = |name: &str| value_of(stats, name);
    let bytes = |name: &str| human_bytes(get(name));
    if let Some(space) = space_of_plugged(stats) {
        return format!("{:13} {space}\n", "space");
    }
    let (live, capacity) = (get("zones.live_bytes"), get("zones.capacity_bytes"));
    let seconds = |name: &str| human_duration(Duration::from_micros(get(name)));
    let lines = [
        (
            "space",
            format!("{} of {} ({} %)", human_bytes(live), human_bytes(capacity), percent(live, capacity)),
        ),
        (
            "zones",
            format!(
                "{} free in the device as it is; at most {} in all",
                get("zones.free"),
                get("zones.total")
            ),
        ),
        (
            "memory",
            format!(
                "{} of {}, at most {}",
                bytes("memory.used_bytes"),
                bytes("memory.ceiling_bytes"),
                bytes("memory.peak_bytes")
            ),
        ),
        ("cache", cache_line(stats)),
        (
            "journal",
            format!(
                "{} of {} wait to be written out",
                bytes("journal.used_bytes"),
                bytes("journal.area_bytes")
            ),
        ),
        ("written", format!("{} in {} operations", bytes("write.payload_bytes"), get("write.ops"))),
        (
            "waits",
            format!(
                "{} writes stalled, for {} in all, {} at most",
                get("write.stalls"),
                seconds("write.stall_us"),
                seconds("write.stall_us_max")
            ),
        ),
        (
            "merges",
            format!(
                "{} done, {} running, {} to do",
                get("merge.count"),
                get("merge.running"),
                bytes("merge.debt_bytes")
            ),
        ),
        (
            "transactions",
            format!(
                "{} open, {} committed, {} aborted, {} conflicts",
                get("txn.open"),
                get("txn.commits"),
                get("txn.aborts"),
                get("txn.conflicts")
            ),
        ),
        (
            "kept",
            format!(
                "{} snapshots, {} branches, undo of {} transactions",
                get("snapshots.named"),
                get("txn.checkpointed"),
                get("undo.transactions")
            ),
        ),
    ];
    let mut lines: Vec<String> = lines.iter().map(|(name, text)| format!("{name:13} {text}")).collect();
    if get("zones.defrag_is_worth_it") != 0 {
        let gain = bytes("zones.reclaimable_bytes");
        lines.push(format!("\ndefragmentation would give back {gain}: kvfs defrag DIR"));
    }
    lines.join("\n") + "\n"
}

/// Use and capacity of an engine without zones, of which no other line is known; `None`: it is kvdb.
pub(crate) fn space_of_plugged(stats: &[(String, u64)]) -> Option<String> {
    let is_plugged = stats.iter().any(|(name, _)| name == SPACE_CAPACITY);
    let (used, capacity) = (value_of(stats, SPACE_USED), value_of(stats, SPACE_CAPACITY));
    is_plugged.then(|| {
        format!("{} of {} ({} %)", human_bytes(used), human_bytes(capacity), percent(used, capacity))
    })
}

/// How many reads of blocks hit, the policy, and, where there are two classes of devices, where the others
/// were read.
fn cache_line(stats: &[(String, u64)]) -> String {
    let get = |name: &str| value_of(stats, name);
    let (hits, misses) = (get("cache.hits"), get("cache.misses"));
    let policy = stats.iter().find_map(|(name, value)| name.strip_prefix(POLICY).filter(|_| *value == 1));
    let policy = policy.map_or_else(String::new, |policy| format!(" ({policy})"));
    let by_tier = if get("cache.hits_slow") + get("cache.misses_slow") > 0 {
        format!("; misses: {} fast, {} slow", get("cache.misses_fast"), get("cache.misses_slow"))
    } else {
        String::new()
    };
    format!("{} % of {} reads hit{policy}{by_tier}", percent(hits, hits + misses), hits + misses)
}

fn value_of(stats: &[(String, u64)], name: &str) -> u64 {
    stats.iter().find(|(known, _)| known == name).map_or(0, |&(_, value)| value)
}

fn percent(part: u64, all: u64) -> u64 {
    part.saturating_mul(100).checked_div(all).unwrap_or(0)
}

/// For people: all counters, then operations by kind.
pub(crate) fn as_text(stats: &[(String, u64)], operations: &OperationLines) -> String {
    format!("{}\n{}", counters(stats), as_table(operations))
}

/// Names and rounded values, and a histogram as bars.
fn counters(stats: &[(String, u64)]) -> String {
    let width = stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let buckets = stats.iter().filter(|(name, _)| name.starts_with(HISTOGRAM));
    let bar_max = buckets.map(|&(_, value)| value).max().unwrap_or(0);
    let mut text = String::new();
    // Of charges there is a table of their own.
    for (name, value) in stats.iter().filter(|(name, _)| !name.starts_with(CHARGES)) {
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

/// One object with exact numbers, and a line break; operations are `operations.KIND.FIGURE`.
pub(crate) fn as_json(stats: &[(String, u64)], operations: &OperationLines) -> String {
    let all = stats.iter().cloned().chain(as_counters(operations));
    let map: serde_json::Map<_, _> = all.map(|(name, value)| (name, value.into())).collect();
    format!("{}\n", serde_json::Value::Object(map))
}

#[cfg(test)]
mod tests {
    use super::super::operations::tests::sample;
    use super::*;

    #[test]
    fn stalls_are_shown_as_bars() {
        let stats = [("write.stalls_ms.below_0001", 80), ("write.stalls_ms.below_0256", 1), ("zones", 3)];
        let text = counters(&stats.map(|(name, value)| (name.to_owned(), value)));
        let lines: Vec<&str> = text.lines().collect();
        let full = "#".repeat(40);
        assert_eq!(lines[0], format!("write.stalls_ms.below_0001  80        {full}"));
        assert_eq!(lines[1], "write.stalls_ms.below_0256  1         #");
        assert!(lines[2].ends_with(" 3"));
    }

    #[test]
    fn report_begins_with_ten_lines_for_people() {
        let stats = [("zones.live_bytes", 1 << 20), ("zones.capacity_bytes", 4 << 20), ("txn.open", 3)];
        let stats = stats.map(|(name, value)| (name.to_owned(), value));
        let text = as_report(&stats, &OperationLines::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "space         1.0 MiB of 4.0 MiB (25 %)");
        assert_eq!(lines[8], "transactions  3 open, 0 committed, 0 aborted, 0 conflicts");
        assert_eq!(&lines[10..14], ["", "Operations: none in 0 s", "", "All counters:"]);
        assert!(lines[..10].iter().all(|line| !line.is_empty() && line.len() <= 80), "{text}");
        assert_eq!(summary(&[]).lines().count(), 10);
    }

    #[test]
    fn report_names_the_cache_policy_and_the_class_of_what_was_missed() {
        let line = |stats: &[(&str, u64)]| {
            let stats: Vec<_> = stats.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
            cache_line(&stats)
        };
        let one =
            [("cache.hits", 90), ("cache.misses", 10), ("cache.misses_fast", 10), ("cache.policy.arc", 1)];
        assert_eq!(line(&one), "90 % of 100 reads hit (arc)");
        let two =
            [("cache.hits", 90), ("cache.misses", 10), ("cache.misses_fast", 3), ("cache.misses_slow", 7)];
        assert_eq!(line(&two), "90 % of 100 reads hit; misses: 3 fast, 7 slow");
    }

    #[test]
    fn report_advises_defragmentation_when_it_is_worth_it() {
        let stats =
            |is_worth_it| [("zones.reclaimable_bytes", 5 << 28), ("zones.defrag_is_worth_it", is_worth_it)];
        let text = |is_worth_it| summary(&stats(is_worth_it).map(|(name, value)| (name.to_owned(), value)));
        let advice = "\ndefragmentation would give back 1.2 GiB: kvfs defrag DIR\n";
        assert!(text(1).contains(advice) && !text(0).contains(advice), "{}", text(1));
    }

    #[test]
    fn two_forms_of_the_same_numbers() {
        let stats = [("cache.used_bytes".to_owned(), 2048), ("ops".to_owned(), 12_345)];
        assert_eq!(counters(&stats), "cache.used_bytes  2.0 KiB\nops               12 345\n");
        let none = OperationLines::default();
        let json = "{\"cache.used_bytes\":2048,\"operations.since_ms\":0,\"ops\":12345}\n";
        assert_eq!(as_json(&stats, &none), json);
        assert!(as_json(&stats, &sample()).contains("\"operations.read.count\":1000,"));
        assert!(as_text(&stats, &sample()).contains("12 345\n\nOperations in 100 s:\n"));
    }
}
