//! What the tests of iterators share: records in vectors, random layers, a model, text scripts.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, sync::Arc};

use bytes::Bytes;
use kvfs_store::{MergeFunction as _, Result, Seqno, StoreError};

use super::Source;
use crate::{
    format::{RecordIter, RecordKind, RecordRef},
    memtable::{
        Merger, RangeTombstone, TombstoneSet,
        testing::{Append, Rng},
    },
};

/// An owned record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: Bytes,
    pub(super) seqno: Seqno,
    pub(super) kind: RecordKind,
    pub(super) value: Bytes,
}

/// Record order.
pub(super) fn sort(records: &mut [Record]) {
    records.sort_by(|a, b| a.key.cmp(&b.key).then(b.seqno.cmp(&a.seqno)));
}

/// A walk over sorted records.
pub(super) struct VecIter {
    records: Arc<Vec<Record>>,
    at: Option<usize>,
    /// Moves that succeed before one fails.
    pub(super) moves_left: Option<Arc<std::sync::atomic::AtomicUsize>>,
}

impl VecIter {
    pub(super) fn new(mut records: Vec<Record>) -> Self {
        sort(&mut records);
        Self { records: Arc::new(records), at: None, moves_left: None }
    }

    pub(super) fn boxed(records: Vec<Record>) -> Box<dyn RecordIter> {
        Box::new(Self::new(records))
    }

    fn go(&mut self, at: Option<usize>) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        self.at = None;
        if let Some(left) = &self.moves_left
            && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err()
        {
            return Err(StoreError::corrupt("test record", "the moves are used up"));
        }
        self.at = at.filter(|&at| at < self.records.len());
        Ok(())
    }
}

impl RecordIter for VecIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        let before = |r: &Record| r.key[..] < *key || r.key[..] == *key && r.seqno > seqno;
        self.go(Some(self.records.partition_point(before)))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.go(self.records.partition_point(|r| r.key[..] < *key).checked_sub(1))
    }

    fn first(&mut self) -> Result<()> {
        self.go(Some(0))
    }

    fn last(&mut self) -> Result<()> {
        self.go(self.records.len().checked_sub(1))
    }

    fn next(&mut self) -> Result<()> {
        self.go(Some(self.at.expect("stands on a record") + 1))
    }

    fn prev(&mut self) -> Result<()> {
        self.go(self.at.expect("stands on a record").checked_sub(1))
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        let record = &self.records[self.at?];
        Some(RecordRef { key: &record.key, seqno: record.seqno, kind: record.kind })
    }

    fn value(&mut self) -> Result<Bytes> {
        Ok(self.at.map(|at| self.records[at].value.clone()).unwrap_or_default())
    }
}

/// The content of one layer.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    pub(super) records: Vec<Record>,
    pub(super) tombstones: Vec<RangeTombstone>,
}

impl Layer {
    /// As a source; the tombstones spread over `sets` sets.
    pub(super) fn source(&self, sets: usize) -> Source {
        let mut parts = vec![Vec::new(); sets];
        for (at, tombstone) in self.tombstones.iter().enumerate() {
            parts[at % sets].push(tombstone.clone());
        }
        Source {
            records: VecIter::boxed(self.records.clone()),
            tombstones: parts.into_iter().map(|part| Arc::new(TombstoneSet::new(part))).collect(),
        }
    }
}

pub(super) fn merger() -> Merger {
    Merger::new("test", Some(Arc::new(Append)))
}

/// Layers of a random history, newest first, seqnos from 1 on without gaps. `keys` is the number of
/// different keys: few make many versions.
pub(super) fn random_layers(rng: &mut Rng, layers: u64, per_layer: u64, keys: u64) -> Vec<Layer> {
    let mut seqno = 0;
    let mut all: Vec<Layer> = (0..layers)
        .map(|_| {
            let mut layer = Layer::default();
            let ranges = rng.below(4);
            for _ in 0..per_layer {
                seqno += 1;
                let key = random_key(rng, keys);
                let mut record = |kind, value: String| {
                    layer.records.push(Record { key: key.clone(), seqno, kind, value: value.into() });
                };
                match rng.below(12) {
                    0..=2 => record(RecordKind::Delete, String::new()),
                    3..=5 => record(RecordKind::Merge, format!("+{seqno}")),
                    6 => record(RecordKind::Merge, format!("!{seqno}")),
                    7 if ranges > 0 => {
                        let (a, b) = (key, random_key(rng, keys));
                        let (start, end) = if a < b { (a, b) } else { (b, a) };
                        layer.tombstones.push(RangeTombstone { start, end, seqno });
                    }
                    _ => record(RecordKind::Put, format!("={seqno}")),
                }
            }
            layer
        })
        .collect();
    all.reverse();
    all
}

pub(super) fn random_key(rng: &mut Rng, keys: u64) -> Bytes {
    format!("k{:03}", rng.below(keys)).into()
}

/// What a reader at `snapshot` sees, by replaying the history in order.
pub(super) fn model(layers: &[Layer], snapshot: Seqno) -> BTreeMap<Bytes, Bytes> {
    enum Step<'a> {
        Record(&'a Record),
        Range(&'a RangeTombstone),
    }
    let mut steps: Vec<(Seqno, Step<'_>)> = Vec::new();
    for layer in layers {
        steps.extend(layer.records.iter().map(|record| (record.seqno, Step::Record(record))));
        steps.extend(layer.tombstones.iter().map(|range| (range.seqno, Step::Range(range))));
    }
    steps.sort_by_key(|(seqno, _)| *seqno);
    let mut state: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    for (_, step) in steps.into_iter().take_while(|(seqno, _)| *seqno <= snapshot) {
        match step {
            Step::Range(range) => state.retain(|key, _| !range.covers(key)),
            Step::Record(record) => match record.kind {
                RecordKind::Delete => drop(state.remove(&record.key)),
                RecordKind::Put => drop(state.insert(record.key.clone(), record.value.clone())),
                RecordKind::Merge => {
                    let base = state.get(&record.key).map(|value| &value[..]);
                    let value = Append.resolve(&record.key, base, &[&record.value]).unwrap();
                    state.insert(record.key.clone(), value.unwrap());
                }
            },
        }
    }
    state
}

/// Runs a text script: blocks of a command line, argument lines, `----`, expected output, and an
/// empty line. `KVFS_REWRITE=1` writes the outputs that came into the script instead.
pub(super) fn run_script(path: &str, mut run: impl FnMut(&str, &[&str]) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/iter").join(path);
    let script = std::fs::read_to_string(&path).unwrap();
    let rewrite = std::env::var_os("KVFS_REWRITE").is_some();
    let mut rewritten = String::new();
    for block in script.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let comments: Vec<_> = block.lines().take_while(|line| line.starts_with("# ")).collect();
        let (input, expected) = block.split_once("\n----").unwrap_or((block, ""));
        let lines: Vec<_> = input.lines().skip(comments.len()).collect();
        let (command, arguments) = lines.split_first().expect("a block begins with a command");
        let output = run(command, arguments);
        if !rewrite {
            assert_eq!(output.trim(), expected.trim(), "\nin {}:\n{input}", path.display());
        }
        writeln!(rewritten, "{input}\n----\n{}\n", output.trim()).unwrap();
    }
    if rewrite {
        std::fs::write(&path, rewritten.replace("----\n\n\n", "----\n\n")).unwrap();
    }
}

/// Parses `a#9 put x`, `a#9 merge +`, `a#9 del`, `[a, c)#7`.
pub(super) fn parse_layer(lines: &[&str]) -> Layer {
    let mut layer = Layer::default();
    for line in lines {
        if let Some(range) = line.strip_prefix('[') {
            let (keys, seqno) = range.split_once(")#").expect("[start, end)#seqno");
            let (start, end) = keys.split_once(", ").expect("start, end");
            let (start, end) = (Bytes::from(start.to_owned()), Bytes::from(end.to_owned()));
            layer.tombstones.push(RangeTombstone { start, end, seqno: seqno.parse().unwrap() });
            continue;
        }
        let mut words = line.split_whitespace();
        let (key, seqno) = words.next().and_then(|place| place.split_once('#')).expect("key#seqno");
        let kind = match words.next() {
            Some("put") => RecordKind::Put,
            Some("merge") => RecordKind::Merge,
            Some("del") => RecordKind::Delete,
            other => panic!("what is {other:?} in {line:?}"),
        };
        let value = Bytes::from(words.next().unwrap_or_default().to_owned());
        let key = Bytes::from(key.to_owned());
        layer.records.push(Record { key, seqno: seqno.parse().unwrap(), kind, value });
    }
    layer
}

/// The inverse of [`parse_layer`] for a record.
pub(super) fn show_record(key: &[u8], seqno: Seqno, kind: RecordKind, value: &[u8]) -> String {
    let kind = match kind {
        RecordKind::Put => "put",
        RecordKind::Merge => "merge",
        RecordKind::Delete => "del",
    };
    let (key, value) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
    format!("{key}#{seqno} {kind} {value}").trim_end().to_owned()
}

/// The value of `name=value` in a command line.
pub(super) fn argument<'a>(command: &'a str, name: &str) -> Option<&'a str> {
    command.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}
