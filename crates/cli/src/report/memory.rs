//! What holds memory: the pools of the engine, the file system's nodes, locks, and the process as a whole.
//!
//! Thread safety: pure functions.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::units::human_bytes;

/// What the counters of the engine's pools begin with.
const POOL: &str = "memory.";

/// Counters that are about all pools, not one.
const NOT_POOLS: [&str; 3] = ["used", "peak", "ceiling"];

/// What the counters of charges by their size begin with: followed by `POOL.SIZE.FIGURE`.
pub(crate) const CHARGES: &str = "charges.";

/// Something that holds memory (bytes).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemoryLine {
    name: String,
    now: u64,
    /// `None`: it is not kept.
    peak: Option<u64>,
    /// What it is kept below.
    ceiling: Option<u64>,
}

/// Charges of a pool that are at most so large, and larger than half of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SizeLine {
    pool: String,
    bytes_max: u64,
    bytes: u64,
    peak_bytes: u64,
    count: u64,
    peak_count: u64,
}

/// From the counters of a store: the charges of each pool by their size, the smallest first.
pub(crate) fn sizes(stats: &[(String, u64)]) -> Vec<SizeLine> {
    let count = |(name, count): &(String, u64)| {
        let (pool, rest) = name.strip_prefix(CHARGES)?.split_once('.')?;
        let bytes_max = rest.strip_suffix(".count")?.parse().ok()?;
        Some((pool.to_owned(), bytes_max, *count))
    };
    let mut lines: Vec<_> = stats.iter().filter_map(count).collect();
    lines.sort();
    let of_counter = |(pool, bytes_max, count): (String, u64, u64)| {
        let find = |figure: &str| {
            let name = format!("{CHARGES}{pool}.{bytes_max}.{figure}");
            stats.iter().find(|(known, _)| *known == name).map_or(0, |&(_, value)| value)
        };
        let (bytes, peak_bytes, peak_count) = (find("bytes"), find("peak_bytes"), find("peak_count"));
        SizeLine { pool, bytes_max, bytes, peak_bytes, count, peak_count }
    };
    lines.into_iter().map(of_counter).collect()
}

/// From the counters of a store: each pool, what all of them come to, and what is beside them.
pub(crate) fn lines(stats: &[(String, u64)]) -> Vec<MemoryLine> {
    let find = |name: &str| stats.iter().find(|(known, _)| known == name).map(|&(_, value)| value);
    let line = |name: &str, now: Option<u64>, peak: Option<u64>, ceiling: Option<u64>| {
        now.map(|now| MemoryLine { name: name.to_owned(), now, peak, ceiling })
    };
    let pools = stats.iter().filter_map(|(name, _)| {
        let pool = name.strip_prefix(POOL)?.strip_suffix("_bytes")?;
        (!pool.ends_with("_peak") && !NOT_POOLS.contains(&pool)).then_some(pool)
    });
    let of_pool = |pool: &str| {
        let (now, peak) = (find(&format!("{POOL}{pool}_bytes")), find(&format!("{POOL}{pool}_peak_bytes")));
        line(&pool.replace('_', " "), now, peak, None)
    };
    let mut lines: Vec<_> = pools.filter_map(of_pool).collect();
    let (used, peak) = (find("memory.used_bytes"), find("memory.peak_bytes"));
    lines.extend(line("engine", used, peak, find("memory.ceiling_bytes")));
    lines.extend(line("file system nodes", find("fs.nodes_bytes"), None, None));
    lines.extend(line("their content", find("fs.nodes_content_bytes"), None, None));
    lines.extend(line("locks of transactions", find("locks.bytes"), None, None));
    let (resident, most) = (find("process.resident_bytes"), find("process.resident_peak_bytes"));
    let known = ["memory.used_bytes", "fs.nodes_bytes", "fs.nodes_content_bytes", "locks.bytes"];
    let known: u64 = known.into_iter().filter_map(find).sum();
    let others = resident.map(|resident| resident.saturating_sub(known));
    lines.extend(line("program, stacks, free in the allocator", others, None, None));
    lines.extend(line("process", resident, most, None));
    lines
}

/// A table, and one of sizes.
pub(crate) fn as_text(lines: &[MemoryLine], sizes: &[SizeLine]) -> String {
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let mut text = format!("{:width$}  {:>9}  {:>9}  {:>9}\n", "", "NOW", "PEAK", "CEILING");
    let cell = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), human_bytes);
    for line in lines {
        let (now, peak, ceiling) = (human_bytes(line.now), cell(line.peak), cell(line.ceiling));
        // Writing to a string never fails.
        let _ = writeln!(text, "{:width$}  {now:>9}  {peak:>9}  {ceiling:>9}", line.name);
    }
    let _ = writeln!(
        text,
        "\n{:12}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}",
        "CHARGES", "UP TO", "NOW", "BYTES", "PEAK", "BYTES"
    );
    for line in sizes {
        let pool = line.pool.replace('_', " ");
        let (bytes_max, bytes) = (human_bytes(line.bytes_max), human_bytes(line.bytes));
        let (count, peak, peak_bytes) = (line.count, line.peak_count, human_bytes(line.peak_bytes));
        let _ =
            writeln!(text, "{pool:12}  {bytes_max:>9}  {count:>9}  {bytes:>9}  {peak:>9}  {peak_bytes:>9}");
    }
    text
}

/// An object with one of each line; pools have their sizes.
pub(crate) fn as_json(lines: &[MemoryLine], sizes: &[SizeLine]) -> String {
    let of_size = |size: &SizeLine| {
        json!({
            "bytes_max": size.bytes_max,
            "bytes": size.bytes,
            "peak_bytes": size.peak_bytes,
            "count": size.count,
            "peak_count": size.peak_count,
        })
    };
    let of_line = |line: &MemoryLine| {
        let own = sizes.iter().filter(|size| size.pool.replace('_', " ") == line.name);
        let own: Vec<_> = own.map(of_size).collect();
        let mut value = json!({ "bytes": line.now, "peak_bytes": line.peak, "ceiling_bytes": line.ceiling });
        if !own.is_empty() {
            value["sizes"] = own.into();
        }
        (line.name.replace(' ', "_").replace(',', ""), value)
    };
    format!("{}\n", Value::Object(lines.iter().map(of_line).collect::<Map<_, _>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_by_pool_and_as_a_whole() {
        let stats = [
            ("memory.block_cache_bytes", 3 << 20),
            ("memory.block_cache_peak_bytes", 4 << 20),
            ("memory.ceiling_bytes", 64 << 20),
            ("memory.peak_bytes", 9 << 20),
            ("memory.used_bytes", 5 << 20),
            ("fs.nodes_bytes", 1 << 20),
            ("charges.block_cache.8192.bytes", 3 << 20),
            ("charges.block_cache.8192.count", 700),
            ("charges.block_cache.8192.peak_bytes", 4 << 20),
            ("charges.block_cache.8192.peak_count", 900),
            ("process.resident_bytes", 20 << 20),
            ("process.resident_peak_bytes", 30 << 20),
        ];
        let stats = stats.map(|(name, value)| (name.to_owned(), value));
        let text = as_text(&lines(&stats), &sizes(&stats));
        let of = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("is there");
            line[name.len()..].split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("block cache"), "3.0 MiB 4.0 MiB -");
        assert_eq!(of("engine"), "5.0 MiB 9.0 MiB 64.0 MiB");
        assert_eq!(of("file system nodes"), "1.0 MiB - -");
        assert_eq!(of("program, stacks, free in the allocator"), "14.0 MiB - -");
        assert_eq!(of("process"), "20.0 MiB 30.0 MiB -");
        let last = text.lines().last().expect("sizes").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(last, "block cache 8.0 KiB 700 3.0 MiB 900 4.0 MiB");
        let value: Value = serde_json::from_str(&as_json(&lines(&stats), &sizes(&stats))).expect("is JSON");
        assert_eq!(value["block_cache"]["sizes"][0]["peak_count"], 900);
        assert_eq!(value["engine"]["ceiling_bytes"], 64 << 20);
        assert_eq!(value["block_cache"]["peak_bytes"], 4 << 20);
    }
}
