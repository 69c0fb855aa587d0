//! How files were read and written, and where they lie.
//!
//! Thread safety: pure functions.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use kvfs_fs::{AccessCount, AccessPattern, FileAccesses, StretchAccesses};
use serde_json::{Value, json};

use crate::output::{printable_path, with_bytes};
use crate::units::{human_bytes, human_duration};

/// A table: the whole file first, then each stretch that was accessed, or lies on a device.
pub(crate) fn as_text(path: &Path, found: &FileAccesses) -> String {
    let total = found.total();
    let mut text = format!(
        "{}: {}\n{:>9}  {}  {}  {:>9}  {:>9}\n",
        printable_path(path),
        human_bytes(total.bytes),
        "FROM",
        heading("READS"),
        heading("WRITES"),
        "FAST",
        "SLOW"
    );
    add_row(&mut text, "all", &total);
    for stretch in &found.stretches {
        let is_empty = StretchAccesses { offset: stretch.offset, bytes: stretch.bytes, ..Default::default() };
        if *stretch != is_empty {
            add_row(&mut text, &human_bytes(stretch.offset), stretch);
        }
    }
    text
}

fn heading(kind: &str) -> String {
    format!("{kind:>8}  {:>9}  {:>7}  {:10}", "BYTES", "AGO", "PATTERN")
}

fn add_row(text: &mut String, name: &str, stretch: &StretchAccesses) {
    let StretchAccesses { reads, writes, stored, .. } = stretch;
    let (fast, slow) = (human_bytes(stored.fast), human_bytes(stored.slow));
    // Writing to a string never fails.
    let _ = writeln!(text, "{name:>9}  {}  {}  {fast:>9}  {slow:>9}", cells(reads), cells(writes));
}

fn cells(count: &AccessCount) -> String {
    let age = count.last.map_or_else(|| "-".to_owned(), human_duration);
    let pattern = count.pattern().map_or("-", AccessPattern::name);
    format!("{:>8}  {:>9}  {age:>7}  {pattern:10}", count.count, human_bytes(count.bytes))
}

/// One object for each file.
pub(crate) fn as_json(files: &[(&Path, FileAccesses)]) -> String {
    let of_file = |(path, found): &(&Path, FileAccesses)| {
        let stretches: Vec<_> = found.stretches.iter().map(stretch_json).collect();
        let mut file = stretch_json(&found.total());
        file["stretches"] = stretches.into();
        with_bytes(file, "path", Some(path.as_os_str().as_bytes()))
    };
    format!("{}\n", Value::Array(files.iter().map(of_file).collect()))
}

fn stretch_json(stretch: &StretchAccesses) -> Value {
    let StretchAccesses { offset, bytes, reads, writes, stored } = stretch;
    json!({
        "offset": offset,
        "bytes": bytes,
        "reads": count_json(reads),
        "writes": count_json(writes),
        "fast_bytes": stored.fast,
        "slow_bytes": stored.slow,
    })
}

fn count_json(count: &AccessCount) -> Value {
    let [random, strided, sequential] = count.patterns;
    json!({
        "count": count.count,
        "bytes": count.bytes,
        "seconds_ago": count.last.map(|last| last.as_secs_f64()),
        "pattern": count.pattern().map(AccessPattern::name),
        "random": random,
        "strided": strided,
        "sequential": sequential,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_a_file_has_what_was_accessed_and_where_it_lies() {
        let text = "0 262144 0 262144 0 0 - 0 0 0 0 0 - 0 0 0\n\
            262144 262144 262144 0 9 36864 3000 1 7 0 0 0 - 0 0 0\n\
            524288 100 0 0 0 0 - 0 0 0 0 0 - 0 0 0\n";
        let found = FileAccesses::parse(text).expect("is one");
        let table = as_text(Path::new("a"), &found);
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 5, "the last stretch has nothing: {table}");
        assert_eq!(rows[0][..], ["a:", "512", "KiB"]);
        assert!(table.contains("strided") && table.lines().all(|line| line.len() <= 120), "{table}");
        let json: Value = serde_json::from_str(&as_json(&[(Path::new("a"), found)])).expect("is JSON");
        assert_eq!(json[0]["reads"]["pattern"], "strided");
        assert_eq!(json[0]["stretches"][0]["slow_bytes"], 262_144);
    }
}
