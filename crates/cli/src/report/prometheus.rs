//! Counters and histograms as Prometheus reads them (text format 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;

use super::memory::CHARGES;
use crate::control::OperationLines;

/// What the counters of a group are about, by the beginning of their names.
const GROUPS: &[(&str, &str)] = &[
    ("amplification.", "what the engine wrote, holds and read, in hundredths of what its users did"),
    ("cache.", "the cache of blocks"),
    (CHARGES, "memory that the engine accounts for, by pool and size of the charge"),
    ("data.", "data of files and keys in the zones"),
    ("device.", "the device of the store"),
    ("endurance.", "what is written to fast devices, against what may be in a day"),
    ("flush.", "memtables that became runs"),
    ("fs.", "the file system's table of nodes"),
    ("heat.", "how often parts of files are read"),
    ("index.", "pages of indexes and filters in memory"),
    ("journal.", "the journal"),
    ("keyspace.", "a keyspace in its runs"),
    ("leveldb.", "the engine LevelDB"),
    ("locks.", "locks of transactions"),
    ("log.", "the log of the daemon"),
    ("manifest.", "the manifest"),
    ("memory.", "memory that the engine accounts for"),
    ("memtable.", "memtables"),
    ("merge.", "merges of runs"),
    ("model.", "the model store"),
    ("placement.", "the policy that places blocks of files on fast and slow devices"),
    ("process.", "the process that has the store open"),
    ("read.", "reads of the engine"),
    ("rocksdb.", "the engine RocksDB"),
    ("slatedb.", "the engine SlateDB"),
    ("snapshots.", "snapshots, named and pinned"),
    ("space.", "capacity and use of an engine without zones"),
    ("store.", "the state of the store"),
    ("txn.", "transactions"),
    ("undo.", "what undo of transactions keeps"),
    ("write.", "writes to the engine, and how long they were held back"),
    ("zones.", "zones of the device"),
];

/// Counters that go up and down: of these groups all, and these.
const GAUGE_GROUPS: &[&str] = &[
    "amplification.",
    "cache.policy.",
    "endurance.",
    "heat.",
    "placement.",
    "data.",
    "keyspace.",
    "memory.",
    "memtable.",
    "process.",
    "snapshots.",
    "space.",
    "store.",
    "undo.",
    "zones.",
];
const GAUGES: &[&str] = &[
    "cache.blocks",
    "cache.bytes",
    "cache.ghosts",
    "fs.nodes",
    "fs.nodes_bytes",
    "fs.nodes_content_bytes",
    "fs.orphans_queued",
    "fs.trees_removing",
    "index.bytes",
    "index.share_bytes",
    "journal.area_bytes",
    "journal.unsynced_bytes",
    "journal.used_bytes",
    "locks.bytes",
    "locks.owners",
    "merge.debt_bytes",
    "merge.limit_us",
    "merge.running",
    "model.bytes_used",
    "model.keys_outdated",
    "model.pins",
    "model.transactions",
    "slatedb.cache_bytes",
    "slatedb.deleted_ranges",
    "slatedb.disk_cache_bytes",
    "slatedb.journal_bytes",
    "slatedb.l0_tables",
    "slatedb.segments_bytes",
    "slatedb.segments_unsent_bytes",
    "slatedb.snapshots",
    "slatedb.storage_cost_microdollars_month",
    "slatedb.tables_bytes",
    "slatedb.unflushed_bytes",
    "txn.checkpointed",
    "txn.open",
    "txn.private_bytes",
    "txn.runs_kept",
];

/// Upper bounds of the buckets that are told: each power of two nanoseconds from about 1 µs to about 69 s.
const BOUNDS_LOG2: std::ops::RangeInclusive<u32> = 10..=36;

fn is_gauge(name: &str) -> bool {
    name.ends_with("_max")
        || GAUGES.contains(&name)
        || GAUGE_GROUPS.iter().any(|group| name.starts_with(group))
}

fn help(name: &str) -> &'static str {
    GROUPS.iter().find(|(group, _)| name.starts_with(group)).map_or("the store", |(_, help)| help)
}

/// All of it: counters with type and help, operations as histograms.
pub(crate) fn as_prometheus(stats: &[(String, u64)], operations: &OperationLines) -> String {
    let mut text = String::new();
    // A metric's lines stay together, whichever labels they have.
    let mut of_many: BTreeMap<_, Vec<(String, u64)>> = BTreeMap::new();
    for (name, value) in stats {
        if let Some((metric, name, labels)) = labelled(name) {
            of_many.entry((metric, name)).or_default().push((labels, *value));
            continue;
        }
        let metric = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        head(&mut text, &metric, if is_gauge(name) { "gauge" } else { "counter" }, name, help(name));
        // Writing to a string never fails.
        let _ = writeln!(text, "kvfs_{metric} {value}");
    }
    for ((metric, name), values) in of_many {
        head(&mut text, &metric, "gauge", &name, help(&name));
        for (labels, value) in values {
            let _ = writeln!(text, "kvfs_{metric}{{{labels}}} {value}");
        }
    }
    histograms(&mut text, operations);
    text
}

/// Of a counter with labels in its name: the metric, the name without them, the labels.
fn labelled(name: &str) -> Option<(String, String, String)> {
    if let Some(rest) = name.strip_prefix("keyspace.") {
        let (keyspace, figure) = rest.rsplit_once('.')?;
        let labels = format!("keyspace=\"{}\"", escaped(keyspace));
        return Some((format!("keyspace_{figure}"), format!("keyspace.NAME.{figure}"), labels));
    }
    let (pool, rest) = name.strip_prefix(CHARGES)?.split_once('.')?;
    let (bytes_max, figure) = rest.split_once('.')?;
    let labels = format!("pool=\"{}\",bytes_max=\"{}\"", escaped(pool), escaped(bytes_max));
    Some((format!("charges_{figure}"), format!("{CHARGES}POOL.SIZE.{figure}"), labels))
}

fn head(text: &mut String, metric: &str, kind: &str, name: &str, help: &str) {
    let _ = writeln!(text, "# HELP kvfs_{metric} {name} of kvfs stats: {help}.\n# TYPE kvfs_{metric} {kind}");
}

fn histograms(text: &mut String, operations: &OperationLines) {
    const DURATION: &str = "kvfs_operation_duration_seconds";
    let _ = writeln!(
        text,
        "# HELP {DURATION} How long operations on files, keys and transactions took, by kind.\n\
         # TYPE {DURATION} histogram"
    );
    for line in &operations.kinds {
        let kind = &line.kind;
        for log2 in BOUNDS_LOG2 {
            let (bound, count) = ((1u64 << log2) as f64 / 1e9, line.count_below(1 << log2));
            let _ = writeln!(text, "{DURATION}_bucket{{kind=\"{kind}\",le=\"{bound}\"}} {count}");
        }
        let (count, seconds) = (line.count(), line.nanos as f64 / 1e9);
        let _ = writeln!(
            text,
            "{DURATION}_bucket{{kind=\"{kind}\",le=\"+Inf\"}} {count}\n\
             {DURATION}_sum{{kind=\"{kind}\"}} {seconds}\n\
             {DURATION}_count{{kind=\"{kind}\"}} {count}"
        );
    }
    for (metric, what) in
        [("errors", "Operations that have failed"), ("bytes", "Bytes that operations have moved")]
    {
        let _ = writeln!(
            text,
            "# HELP kvfs_operation_{metric}_total {what}, by kind.\n# TYPE kvfs_operation_{metric}_total counter"
        );
        for line in &operations.kinds {
            let value = if metric == "errors" { line.errors } else { line.bytes };
            let _ = writeln!(text, "kvfs_operation_{metric}_total{{kind=\"{}\"}} {value}", line.kind);
        }
    }
}

/// As a label's value.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::operations::tests::sample;
    use super::*;

    #[test]
    fn counters_have_types_and_keyspaces_are_labels() {
        let stats = [
            ("cache.hits", 7),
            ("cache.bytes", 2048),
            ("keyspace.my \"tags\".bytes", 5),
            ("keyspace.b.bytes", 6),
            ("charges.block_cache.8192.count", 4),
            ("write.stall_us_max", 9),
        ];
        let stats = stats.map(|(name, value)| (name.to_owned(), value));
        let text = as_prometheus(&stats, &OperationLines::default());
        for lines in [
            "# TYPE kvfs_cache_hits counter\nkvfs_cache_hits 7\n",
            "# TYPE kvfs_cache_bytes gauge\nkvfs_cache_bytes 2048\n",
            "# TYPE kvfs_keyspace_bytes gauge\nkvfs_keyspace_bytes{keyspace=\"my \\\"tags\\\"\"} 5\n\
             kvfs_keyspace_bytes{keyspace=\"b\"} 6\n",
            "# TYPE kvfs_write_stall_us_max gauge\n",
            "# TYPE kvfs_charges_count gauge\n\
             kvfs_charges_count{pool=\"block_cache\",bytes_max=\"8192\"} 4\n",
        ] {
            assert!(text.contains(lines), "{lines} in {text}");
        }
        assert!(text.starts_with("# HELP kvfs_cache_hits cache.hits of kvfs stats: the cache of blocks.\n"));
    }

    #[test]
    fn operations_are_histograms_whose_buckets_add_up() {
        let text = as_prometheus(&[], &sample());
        let counts: Vec<u64> = text
            .lines()
            .filter(|line| line.starts_with("kvfs_operation_duration_seconds_bucket{kind=\"read\""))
            .map(|line| line.rsplit_once(' ').expect("has a value").1.parse().expect("is a number"))
            .collect();
        assert_eq!(counts.len(), BOUNDS_LOG2.count() + 1);
        assert!(counts.is_sorted() && counts.first() == Some(&0) && counts.last() == Some(&1000));
        for line in [
            "kvfs_operation_duration_seconds_bucket{kind=\"read\",le=\"0.000524288\"} 0",
            "kvfs_operation_duration_seconds_bucket{kind=\"read\",le=\"0.001048576\"} 1000",
            "kvfs_operation_duration_seconds_sum{kind=\"read\"} 1",
            "kvfs_operation_duration_seconds_count{kind=\"read\"} 1000",
            "kvfs_operation_errors_total{kind=\"write\"} 1",
            "kvfs_operation_bytes_total{kind=\"read\"} 4096000",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
