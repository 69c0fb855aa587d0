//! What memory is charged, as a table and as JSON.

use std::fmt::Write;

use serde_json::json;

use crate::control::{ChargeLine, ChargeLines, OwnerlessLine};
use crate::units::{human_bytes, human_latency};

/// One row for each place in the code, then what has no owner.
pub(crate) fn as_text(lines: &ChargeLines) -> String {
    let mut text =
        format!("{:11}  {:>8}  {:>9}  {:>9}  {:>8}  AT\n", "POOL", "CHARGES", "BYTES", "PEAK", "OLDEST");
    for line in &lines.places {
        let ChargeLine { pool, count, .. } = line;
        let (bytes, peak, age) =
            (human_bytes(line.bytes), human_bytes(line.peak_bytes), human_latency(line.age));
        // Writing to a string never fails.
        let _ = writeln!(text, "{pool:11}  {count:>8}  {bytes:>9}  {peak:>9}  {age:>8}  {}", place(line));
    }
    for OwnerlessLine { pool, bytes, owners } in lines.ownerless.iter().filter(|line| line.bytes > 0) {
        let bytes = human_bytes(*bytes);
        let _ = writeln!(
            text,
            "{pool}: {bytes} more than {owners} account for: readers may hold it for a while; what stays is a leak"
        );
    }
    text
}

/// One object a line.
pub(crate) fn as_json(lines: &ChargeLines) -> String {
    let of_place = |line: &ChargeLine| {
        let (file, number) = (Some(&line.file), Some(line.line));
        let is_known = !line.file.is_empty();
        let value = json!({
            "pool": line.pool,
            "count": line.count,
            "bytes": line.bytes,
            "peak_bytes": line.peak_bytes,
            "age_seconds_max": line.age.as_secs_f64(),
            "file": file.filter(|_| is_known),
            "line": number.filter(|_| is_known),
        });
        format!("{value}\n")
    };
    let of_pool = |line: &OwnerlessLine| {
        let value = json!({ "pool": line.pool, "ownerless_bytes": line.bytes });
        format!("{value}\n")
    };
    lines.places.iter().map(of_place).chain(lines.ownerless.iter().map(of_pool)).collect()
}

fn place(line: &ChargeLine) -> String {
    if line.file.is_empty() {
        return "other places".to_owned();
    }
    format!("{}:{}", line.file, line.line)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn charges_are_rows_with_place_and_age_and_pools_with_more_than_their_owners_are_marked() {
        let line = |file: &str| ChargeLine {
            pool: "memtable".to_owned(),
            file: file.to_owned(),
            line: 120,
            count: 3,
            bytes: 2 << 20,
            peak_bytes: 3 << 20,
            age: Duration::from_millis(1200),
        };
        let ownerless = |pool: &str, bytes| OwnerlessLine {
            pool: pool.to_owned(),
            bytes,
            owners: "the memtables in use".to_owned(),
        };
        let ownerless = vec![ownerless("memtable", 4096), ownerless("block_cache", 0)];
        let lines = ChargeLines { places: vec![line("crates/a.rs"), line("")], ownerless };
        let rows: Vec<_> =
            as_text(&lines).lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            rows,
            [
                "POOL CHARGES BYTES PEAK OLDEST AT",
                "memtable 3 2.0 MiB 3.0 MiB 1.2 s crates/a.rs:120",
                "memtable 3 2.0 MiB 3.0 MiB 1.2 s other places",
                "memtable: 4.0 KiB more than the memtables in use account for: readers may hold it for a while; \
                 what stays is a leak",
            ]
        );
        let objects: Vec<serde_json::Value> =
            as_json(&lines).lines().map(|line| serde_json::from_str(line).expect("is JSON")).collect();
        assert_eq!((&objects[0]["line"], &objects[1]["line"]), (&120.into(), &serde_json::Value::Null));
        assert_eq!(objects[2]["ownerless_bytes"], 4096);
    }
}
