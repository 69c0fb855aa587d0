//! The tables for people, as text.
//!
//! Thread safety: pure functions of the results.

use crate::goals::{self, Verdict};
use crate::results::{Results, TargetInfo, WorkloadInfo};
use crate::summary::Summary;
use std::fmt::Write;

/// Width of a cell in the first table.
const CELL: usize = 12;

/// Everything: medians side by side, what each cell used, goals, targets, failures.
pub fn text(results: &Results) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail, here and below.
    for machine in &results.machines {
        let _ = writeln!(text, "{}", machine.line());
    }
    text.push_str(&medians(results));
    text.push_str(&details(results));
    text.push_str(&beside(results));
    text.push_str(&verdicts(results));
    text.push_str("\nTargets\n");
    for target in &results.targets {
        let _ = writeln!(text, "  {:12} {}{}", target.name, target.about, memory_text(target));
    }
    for failure in &results.failures {
        let _ = writeln!(
            text,
            "FAILED run {}: {}: {}: {}",
            failure.run, failure.target, failure.workload, failure.error
        );
    }
    text
}

/// Seconds, or milliseconds where they are few.
pub fn seconds_text(seconds: f64) -> String {
    match seconds {
        _ if seconds < 0.1 => format!("{:.2} ms", seconds * 1e3),
        _ if seconds < 10.0 => format!("{seconds:.3} s"),
        _ => format!("{seconds:.1} s"),
    }
}

/// `median [min-max]`.
pub fn summary_text(summary: &Summary) -> String {
    let Summary { median, min, max, .. } = summary;
    format!("{} [{}-{}]", seconds_text(*median), seconds_text(*min), seconds_text(*max))
}

/// MiB and requests: `12.5 in 3,456`.
pub fn requests_text(bytes: f64, requests: f64) -> String {
    format!("{:.1} in {requests:.0}", bytes / f64::from(1 << 20))
}

fn medians(results: &Results) -> String {
    let mut text =
        "\nTime, medians; below each how many times as long as kvfs it took (more than 1: kvfs is faster)\n"
            .to_owned();
    let _ = write!(text, "{:13}{:36}", "class", "workload");
    for target in &results.targets {
        let _ = write!(text, "{:>CELL$}", target.name);
    }
    text.push('\n');
    for row in results.rows() {
        let _ = write!(text, "{:13}{:36}", row.class.title(), row.title);
        for target in &results.targets {
            let cell = results.seconds(&row.key, &target.name);
            let cell = cell.map_or_else(|| "-".to_owned(), |cell| seconds_text(cell.median));
            let _ = write!(text, "{cell:>CELL$}");
        }
        let _ = write!(text, "\n{:49}", "");
        for target in &results.targets {
            let ratio = results.ratios(&row.key, &target.name, "kvfs");
            let cell = ratio.filter(|_| target.name != "kvfs");
            let cell = cell.map_or_else(String::new, |ratio| format!("x {:.2}", ratio.median));
            let _ = write!(text, "{cell:>CELL$}");
        }
        text.push('\n');
    }
    text
}

fn details(results: &Results) -> String {
    let mut text =
        "\nEach cell: median [min-max]; processor seconds of the client, the daemon, the whole machine; \
                    MiB in requests at the device until everything was written out\n"
            .to_owned();
    let _ = writeln!(
        text,
        "{:50}{:12}{:>34}{:>9}{:>9}{:>9}{:>22}{:>22}{:>9}",
        "workload", "target", "time", "client", "daemon", "machine", "read", "written", "flushes"
    );
    for row in results.rows() {
        for target in &results.targets {
            let Some(seconds) = results.seconds(&row.key, &target.name) else { continue };
            let _ = write!(text, "{:50}{:12}{:>34}", row.full_title(), target.name, summary_text(&seconds));
            for value in usage_cells(results, &row.key, &target.name) {
                let _ = write!(text, "{value}");
            }
            text.push('\n');
        }
    }
    text
}

/// What was measured beside the time: a row each, below that of its workload.
fn beside(results: &Results) -> String {
    let mut text = String::new();
    for row in results.rows() {
        let details = results.details(&row.key);
        if details.is_empty() {
            continue;
        }
        let _ = write!(text, "\n{:49}", row.title);
        for target in &results.targets {
            let _ = write!(text, "{:>CELL$}", target.name);
        }
        text.push('\n');
        for (name, unit) in details {
            let _ = write!(text, "  {name:47}");
            for target in &results.targets {
                let value = results.detail(&row.key, &target.name, name);
                let _ = write!(text, "{:>CELL$}", value.map_or_else(|| "-".to_owned(), |it| unit.text(it)));
            }
            text.push('\n');
        }
    }
    text
}

fn usage_cells(results: &Results, workload: &str, target: &str) -> [String; 6] {
    let median = |value: &dyn Fn(&crate::counters::Usage) -> Option<f64>| {
        results.median(workload, target, |sample| value(&sample.usage))
    };
    let cpu =
        |value: Option<f64>| value.map_or_else(|| format!("{:>9}", "-"), |value| format!("{value:>9.2}"));
    let pair = |bytes: Option<f64>, requests: Option<f64>| match bytes.zip(requests) {
        Some((bytes, requests)) => format!("{:>22}", requests_text(bytes, requests)),
        None => format!("{:>22}", "-"),
    };
    [
        cpu(median(&|usage| Some(usage.client_cpu_seconds))),
        cpu(median(&|usage| usage.daemon_cpu_seconds)),
        cpu(median(&|usage| Some(usage.machine_cpu_seconds))),
        pair(
            median(&|usage| Some(usage.device?.read_bytes as f64)),
            median(&|usage| Some(usage.device?.read_requests as f64)),
        ),
        pair(
            median(&|usage| Some(usage.device?.write_bytes as f64)),
            median(&|usage| Some(usage.device?.write_requests as f64)),
        ),
        median(&|usage| Some(usage.device?.flush_requests as f64))
            .map_or_else(|| format!("{:>9}", "-"), |value| format!("{value:>9.0}")),
    ]
}

fn verdicts(results: &Results) -> String {
    let verdicts = goals::judge(results);
    if verdicts.is_empty() {
        return String::new();
    }
    let mut text =
        "\nGoals: the other's time divided by that of kvfs, median of the runs' own ratios\n".to_owned();
    for verdict in &verdicts {
        let Verdict { workload, ours, other, against, factor, ratio } = verdict;
        let title = title(results, workload);
        let _ = writeln!(
            text,
            "  {title:50}{ours:12} {ratio:>6.2} x {other:10} at least {factor:.2} ({against}): {}",
            verdict.text()
        );
    }
    let reached = verdicts.iter().filter(|verdict| verdict.is_reached()).count();
    let _ = writeln!(text, "  {reached} of {} reached", verdicts.len());
    text
}

/// Medians of kvfs before and after a change, judged.
pub fn changes(before: &Results, after: &Results) -> String {
    let changes = goals::changes(before, after);
    let mut text = "Before and after: medians of kvfs, and time after divided by time before\n".to_owned();
    for change in &changes {
        let title = title(after, &change.workload);
        let verdict = if change.is_near() { "near or faster" } else { "SLOWER" };
        let (before, after) = (seconds_text(change.before), seconds_text(change.after));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {title:50}{before:>12}{after:>12}{:>8.2} {verdict}", change.ratio());
    }
    let slower = changes.iter().filter(|change| !change.is_near()).count();
    let _ = writeln!(text, "  {slower} of {} slower", changes.len());
    text
}

/// The title of a row, or its key.
pub fn title(results: &Results, key: &str) -> String {
    let found = results.workloads.iter().find(|info| info.key == key);
    found.map_or_else(|| key.to_owned(), WorkloadInfo::full_title)
}

/// The daemon's peak beside its limit; empty without a daemon.
pub fn memory_text(target: &TargetInfo) -> String {
    let Some(resident) = target.resident_bytes_max else { return String::new() };
    let mib = |bytes: u64| bytes >> 20;
    let mut text = format!(
        "; peak resident {} MiB, anonymous {} MiB",
        mib(resident),
        mib(target.anonymous_bytes_max.unwrap_or(0))
    );
    if let (Some(limit), Some(is_within)) = (target.memory_limit_bytes, target.is_within_limit()) {
        let verdict = if is_within { "kept" } else { "PASSED" };
        let _ = write!(text, ", limit {} MiB {verdict}", mib(limit));
    }
    text
}
