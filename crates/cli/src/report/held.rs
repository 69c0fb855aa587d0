//! Locks in memory as a table and as JSON.

use std::fmt::Write;

use crate::control::{HeldLine, HeldLines};
use crate::units::human_latency;

/// One row for each thread that holds or waits for a lock.
pub(crate) fn as_text(lines: &HeldLines) -> String {
    if lines.held.is_empty() {
        return "no thread holds or waits for a lock\n".to_owned();
    }
    let width = lines.held.iter().map(|line| line.lock.len()).max().unwrap_or_default();
    let mut text = format!("{:width$}  RANK  {:23}  {:12}  {:>8}  AT\n", "LOCK", "THREAD", "STATE", "SINCE");
    for line in &lines.held {
        let HeldLine { lock, rank, file, line: number, .. } = line;
        let thread = format!("{} {}", line.thread, line.thread_name);
        let age = if line.age.is_zero() { "now".to_owned() } else { human_latency(line.age) };
        let mode = if line.is_shared { "shared" } else { "" };
        let state = format!("{} {mode}", state(line));
        // Writing to a string never fails.
        let _ =
            writeln!(text, "{lock:width$}  {rank:>4}  {thread:23}  {state:12}  {age:>8}  {file}:{number}");
    }
    if !lines.cycle.is_empty() {
        let threads: Vec<_> = lines.cycle.iter().map(u32::to_string).collect();
        let _ = writeln!(text, "These threads wait for each other: {}", threads.join(", "));
    }
    text
}

/// One object a line.
pub(crate) fn as_json(lines: &HeldLines) -> String {
    let object = |line: &HeldLine| {
        let value = serde_json::json!({
            "lock": line.lock,
            "rank": line.rank,
            "address": line.address,
            "thread": line.thread,
            "thread_name": line.thread_name,
            "state": state(line),
            "shared": line.is_shared,
            "age_seconds_min": line.age.as_secs_f64(),
            "file": line.file,
            "line": line.line,
            "in_cycle": lines.cycle.contains(&line.thread),
        });
        format!("{value}\n")
    };
    lines.held.iter().map(object).collect()
}

fn state(line: &HeldLine) -> &'static str {
    if line.waits { "waits" } else { "holds" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn held_locks_are_rows_with_thread_state_age_and_place() {
        let line = |thread, waits, age| HeldLine {
            lock: "kvdb/live.ledger".to_owned(),
            rank: 74,
            address: 4096,
            thread,
            thread_name: "kvfs-flush".to_owned(),
            waits,
            is_shared: waits,
            age,
            file: "crates/kvdb/src/live/mod.rs".to_owned(),
            line: 120,
        };
        let held = vec![line(11, false, Duration::from_millis(1200)), line(12, true, Duration::ZERO)];
        let lines = HeldLines { held, cycle: vec![11, 12] };
        let rows: Vec<_> =
            as_text(&lines).lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            rows,
            [
                "LOCK RANK THREAD STATE SINCE AT",
                "kvdb/live.ledger 74 11 kvfs-flush holds 1.2 s crates/kvdb/src/live/mod.rs:120",
                "kvdb/live.ledger 74 12 kvfs-flush waits shared now crates/kvdb/src/live/mod.rs:120",
                "These threads wait for each other: 11, 12",
            ]
        );
        let first: serde_json::Value =
            serde_json::from_str(as_json(&lines).lines().next().expect("a line")).expect("is JSON");
        assert_eq!(
            (&first["state"], &first["line"], &first["in_cycle"]),
            (&"holds".into(), &120.into(), &true.into())
        );
        assert_eq!(as_text(&HeldLines::default()), "no thread holds or waits for a lock\n");
    }
}
