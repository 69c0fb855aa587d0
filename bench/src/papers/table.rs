//! The results for people.
//!
//! Thread safety: pure functions.

use crate::{PARTS, PartInfo, Row};
use kvfs_bench::goals;
use kvfs_bench::values::{Part, Values};
use std::fmt::Write;

/// All parts that were measured, beside what is published and judged by their goals; `before` are an earlier
/// run's.
pub(crate) fn text(values: &Values, before: Option<&Values>) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail, here and below.
    for machine in &values.machines {
        let _ = writeln!(text, "{}", machine.line());
    }
    for part in PARTS {
        part_text(&mut text, part, values, before);
    }
    text
}

fn part_text(text: &mut String, part: &PartInfo, values: &Values, before: Option<&Values>) {
    let runs: Vec<&Part> = values.parts.iter().filter(|done| done.name == part.key).collect();
    let Some(first) = runs.first() else { return };
    let seeds: Vec<String> = runs.iter().map(|run| run.seed.to_string()).collect();
    let seconds: f64 = runs.iter().map(|run| run.seconds).sum();
    let _ = writeln!(text, "\n{}; seed {}; {seconds:.0} s", first.title, seeds.join(", "));
    for line in part.source.split_inclusive(". ") {
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    let has_published = part.rows.iter().any(|row| row.published.is_some());
    let published = if has_published { "published" } else { "" };
    let _ = writeln!(text, "  {:44}{:>13}{published:>13}", "", "kvfs");
    for row in part.rows {
        row_text(text, row, values, before);
    }
    for run in &runs {
        for note in &run.notes {
            let _ = writeln!(text, "  run {}: {note}", run.run);
        }
    }
}

fn row_text(text: &mut String, row: &Row, values: &Values, before: Option<&Values>) {
    let Some(summary) = values.summary(row.key) else { return };
    let show = |value| row.unit.text(value);
    let published = row.published.map_or_else(String::new, show);
    let _ = write!(text, "  {:44}{:>13}{published:>13}", row.title, show(summary.median));
    if summary.max > summary.min {
        let _ = write!(text, "  [{}-{}]", show(summary.min), show(summary.max));
    }
    if let Some(earlier) = before.and_then(|before| before.summary(row.key)) {
        let _ = write!(text, "  before: {}", show(earlier.median));
    }
    if let Some(bound) = goals::bound_of(row.key, before) {
        let _ = write!(text, "  {}", bound.text(summary.median, show));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvfs_bench::values::Value;

    #[test]
    fn values_stand_beside_what_is_published_and_are_judged() {
        let mut values = Values::default();
        let found =
            [("defrag.zones-used", 600.0), ("defrag.scan-faster", 0.3), ("overwrite.throughput", 1e8)];
        for (key, value) in found {
            let (name, _) = key.split_once('.').expect("part and value");
            let value = Value { key: key.into(), value };
            values.add(Part {
                name: name.into(),
                title: name.into(),
                values: vec![value],
                ..Part::default()
            });
            if key == "defrag.zones-used" {
                let text = text(&values, None);
                assert!(text.contains("600       11,264"), "{text}");
            }
        }
        let text = text(&values, Some(&values));
        assert!(text.contains("30.0 %       27.2 %  before: 30.0 %  >= 27.0 %: met"), "{text}");
        assert!(text.contains("95.4 MiB/s  >= 90.8 MiB/s: met"), "{text}");
    }
}
