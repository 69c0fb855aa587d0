//! What a screen of `kvfs top` says: the difference of two looks at the counters.
//!
//! Thread safety: values, pure functions.

use std::fmt::Write;
use std::time::Duration;

use kvfs_service::units::human_latency;

use crate::control::{OperationLine, OperationLines};
use crate::report::operations::human_rate;
use crate::report::stats::space_of_plugged;
use crate::units::{human_bytes, human_duration};

/// The heading of the table of operations.
pub(super) const HEADING: [&str; 7] = ["KIND", "PER S", "ERRORS/S", "MOVED/S", "P50", "P99", "LONGEST"];

/// Columns of the table: the first is for words, the others for numbers.
pub(super) const WIDTHS: [u16; 7] = [12, 9, 9, 11, 9, 9, 9];

/// A look at the counters.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) stats: Vec<(String, u64)>,
    pub(super) operations: OperationLines,
}

/// One screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Screen {
    /// Names, and what there is to say.
    pub(super) lines: Vec<(&'static str, String)>,
    /// A row for each kind of which there were operations, and one for their sum; empty: there were none.
    pub(super) rows: Vec<[String; 7]>,
}

/// Two looks, one after the other.
struct Between<'l> {
    before: &'l Look,
    now: &'l Look,
    time: Duration,
}

impl Between<'_> {
    fn get(&self, name: &str) -> u64 {
        value_of(&self.now.stats, name)
    }

    fn bytes(&self, name: &str) -> String {
        human_bytes(self.get(name))
    }

    /// How much it has grown.
    fn grown(&self, name: &str) -> u64 {
        self.get(name).saturating_sub(value_of(&self.before.stats, name))
    }

    fn rate(&self, name: &str) -> String {
        human_rate(self.grown(name), self.time)
    }

    fn bytes_rate(&self, name: &str) -> String {
        human_bytes(per_second(self.grown(name), self.time))
    }
}

/// Counters are sorted by name.
fn value_of(stats: &[(String, u64)], name: &str) -> u64 {
    let place = stats.binary_search_by(|(known, _)| known.as_str().cmp(name));
    place.map_or(0, |place| stats[place].1)
}

fn per_second(count: u64, time: Duration) -> u64 {
    (count as f64 / time.as_secs_f64().max(0.001)) as u64
}

fn percent(part: u64, all: u64) -> String {
    part.saturating_mul(100).checked_div(all).map_or_else(|| "-".to_owned(), |percent| format!("{percent} %"))
}

impl Screen {
    pub(super) fn between(before: &Look, now: &Look) -> Self {
        let time = now.operations.since.saturating_sub(before.operations.since);
        let between = Between { before, now, time };
        Self { lines: lines(&between), rows: rows(&between) }
    }

    /// As text; `title` first.
    pub(super) fn as_text(&self, title: &str) -> String {
        let mut text = format!("{title}\n");
        for (name, words) in &self.lines {
            // Writing to a string never fails.
            let _ = writeln!(text, "{name:13} {words}");
        }
        text.push('\n');
        if self.rows.is_empty() {
            text.push_str("no operations\n");
            return text;
        }
        text.push_str(&row(&HEADING));
        self.rows.iter().for_each(|cells| text.push_str(&row(cells)));
        text
    }
}

fn row(cells: &[impl AsRef<str>; 7]) -> String {
    let mut text = String::new();
    for (place, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        let (cell, width) = (cell.as_ref(), usize::from(width));
        let _ = if place == 0 { write!(text, "{cell:width$}") } else { write!(text, " {cell:>width$}") };
    }
    text.push('\n');
    text
}

fn lines(between: &Between<'_>) -> Vec<(&'static str, String)> {
    let get = |name: &str| between.get(name);
    let bytes = |name: &str| between.bytes(name);
    let grown = |name: &str| between.grown(name);
    let rate = |name: &str| between.rate(name);
    if let Some(space) = space_of_plugged(&between.now.stats) {
        return vec![("space", space)];
    }
    let (live, capacity) = (get("zones.live_bytes"), get("zones.capacity_bytes"));
    let (hits, misses) = (grown("cache.hits"), grown("cache.misses"));
    let (hits_ever, reads_ever) = (get("cache.hits"), get("cache.hits") + get("cache.misses"));
    vec![
        (
            "space",
            format!(
                "{} of {} ({}), {} of {} zones free",
                human_bytes(live),
                human_bytes(capacity),
                percent(live, capacity),
                get("zones.free"),
                get("zones.total")
            ),
        ),
        (
            "memory",
            format!(
                "{} of {}, memtables {}",
                bytes("memory.used_bytes"),
                bytes("memory.ceiling_bytes"),
                bytes("memtable.bytes")
            ),
        ),
        (
            "cache",
            format!(
                "{} of {} reads/s hit, {} since the mount; {}",
                percent(hits, hits + misses),
                human_rate(hits + misses, between.time),
                percent(hits_ever, reads_ever),
                bytes("cache.bytes")
            ),
        ),
        (
            "journal",
            format!(
                "{}/s, {} of {} wait to be written out",
                between.bytes_rate("journal.bytes_written"),
                bytes("journal.used_bytes"),
                bytes("journal.area_bytes")
            ),
        ),
        (
            "writes",
            format!(
                "{}/s in {} operations/s; {} stalled/s",
                between.bytes_rate("write.payload_bytes"),
                rate("write.ops"),
                rate("write.stalls")
            ),
        ),
        (
            "background",
            format!(
                "flushes {}/s, merges {}/s; {} running, {} to do",
                between.bytes_rate("flush.bytes"),
                between.bytes_rate("merge.bytes_written"),
                get("merge.running"),
                bytes("merge.debt_bytes")
            ),
        ),
        (
            "transactions",
            format!(
                "{} open; {} committed/s, {} aborted/s, {} conflicts/s",
                get("txn.open"),
                rate("txn.commits"),
                rate("txn.aborts"),
                rate("txn.conflicts")
            ),
        ),
    ]
}

/// Those that took most time first, behind their sum.
fn rows(between: &Between<'_>) -> Vec<[String; 7]> {
    let nothing = OperationLine::default();
    let mut kinds: Vec<OperationLine> = between
        .now
        .operations
        .kinds
        .iter()
        .map(|line| {
            let before = between.before.operations.kinds.iter().find(|before| before.kind == line.kind);
            line.since(before.unwrap_or(&nothing))
        })
        .filter(|line| line.count() > 0)
        .collect();
    kinds.sort_by_key(|line| std::cmp::Reverse(line.nanos));
    let cells = |line: &OperationLine| {
        [
            line.kind.clone(),
            human_rate(line.count(), between.time),
            if line.errors == 0 { "-".to_owned() } else { human_rate(line.errors, between.time) },
            if line.bytes == 0 { "-".to_owned() } else { human_bytes(per_second(line.bytes, between.time)) },
            human_latency(line.quantile(0.5)),
            human_latency(line.quantile(0.99)),
            human_latency(line.longest()),
        ]
    };
    let all = OperationLine::sum("all", &kinds);
    kinds.first().map(|_| &all).into_iter().chain(&kinds).map(cells).collect()
}

/// What is above a screen.
pub(super) fn title(store: &str, look: &Look) -> String {
    let failed = if value_of(&look.stats, "store.failed") == 0 { "" } else { ", FAILED: see kvfs status" };
    let read_only = if value_of(&look.stats, "store.read_only") == 0 { "" } else { ", read-only" };
    format!("kvfs {store}, up {}{read_only}{failed}", human_duration(look.operations.since))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, stats: &[(&str, u64)], kinds: Vec<OperationLine>) -> Look {
        let mut stats: Vec<_> = stats.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        stats.sort();
        Look { stats, operations: OperationLines { since: Duration::from_secs(seconds), kinds } }
    }

    fn kind(name: &str, bucket: u16, count: u64, bytes: u64) -> OperationLine {
        let start = kvfs_service::operations::bucket_start(usize::from(bucket));
        OperationLine {
            kind: name.to_owned(),
            errors: 0,
            bytes,
            nanos: start * count,
            nanos_max: start,
            buckets: vec![(bucket, count)],
        }
    }

    #[test]
    fn screen_says_what_has_happened_between_two_looks() {
        let stats = [("cache.hits", 100), ("cache.misses", 100), ("txn.commits", 5)];
        let before = look(10, &stats, vec![kind("read", 200, 1000, 0), kind("lookup", 100, 7, 0)]);
        let stats = [
            ("cache.hits", 190),
            ("cache.misses", 110),
            ("txn.commits", 9),
            ("txn.open", 2),
            ("zones.capacity_bytes", 4 << 20),
            ("zones.live_bytes", 1 << 20),
        ];
        let kinds =
            vec![kind("read", 200, 3000, 8 << 20), kind("write", 210, 4, 0), kind("lookup", 100, 7, 0)];
        let screen = Screen::between(&before, &look(12, &stats, kinds));
        let line = |name: &str| &screen.lines.iter().find(|(known, _)| *known == name).expect("is there").1;
        assert_eq!(line("space"), "1.0 MiB of 4.0 MiB (25 %), 0 of 0 zones free");
        assert_eq!(line("cache"), "90 % of 50 reads/s hit, 63 % since the mount; 0 B");
        assert_eq!(line("transactions"), "2 open; 2.0 committed/s, 0.0 aborted/s, 0.0 conflicts/s");
        let kinds: Vec<&str> = screen.rows.iter().map(|row| &*row[0]).collect();
        assert_eq!(kinds, ["all", "read", "write"], "of lookups there were none");
        assert_eq!(
            (&*screen.rows[0][1], &*screen.rows[1][1], &*screen.rows[2][1]),
            ("1 002", "1 000", "2.0")
        );
        assert_eq!(screen.rows[1][3], "4.0 MiB");
        let text = screen.as_text("kvfs /store");
        assert!(text.starts_with("kvfs /store\nspace         1.0 MiB"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn screen_of_an_idle_store_says_so() {
        let before = look(10, &[], vec![kind("read", 200, 1000, 0)]);
        let screen =
            Screen::between(&before, &look(11, &[("store.failed", 1)], before.operations.kinds.clone()));
        assert!(screen.rows.is_empty() && screen.as_text("t").ends_with("\n\nno operations\n"));
        assert_eq!(
            title("/store", &look(11, &[("store.failed", 1)], Vec::new())),
            "kvfs /store, up 11 s, FAILED: see kvfs status"
        );
    }
}
