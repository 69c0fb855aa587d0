use std::fmt::Write as _;

use kvfs_store::{Cursor, KeyRange};

use super::*;
use crate::{
    iter::{
        MergingIter, VisibleCursor,
        testing::{
            Layer, Record, VecIter, argument, merger, parse_layer, random_key, random_layers, run_script,
            show_record,
        },
    },
    memtable::testing::{Rng, for_seeds},
};

fn compaction(inputs: &[Layer], rules: &KeepRules) -> CompactionIter {
    let children = inputs.iter().map(|layer| VecIter::boxed(layer.records.clone())).collect();
    let tombstones = inputs.iter().flat_map(|layer| layer.source(2).tombstones);
    CompactionIter::new(Box::new(MergingIter::new(children)), tombstones, rules.clone())
}

fn drain(mut iter: CompactionIter) -> Vec<Kept> {
    std::iter::from_fn(|| iter.next_kept().unwrap()).collect()
}

fn compact(inputs: &[Layer], rules: &KeepRules) -> Layer {
    let mut iter = compaction(inputs, rules);
    iter.first().unwrap();
    let records = drain(iter)
        .into_iter()
        .map(|Kept { key, seqno, kind, value }| Record { key, seqno, kind, value })
        .collect();
    let sets: Vec<_> = inputs.iter().flat_map(|layer| layer.source(1).tombstones).collect();
    let all = TombstoneSet::union(sets.iter().map(|set| &**set));
    Layer { records, tombstones: surviving_tombstones(&all, rules).list().to_vec() }
}

fn visible(layers: &[Layer], snapshot: Seqno) -> Vec<(Bytes, Bytes)> {
    let sources = layers.iter().map(|layer| layer.source(1)).collect();
    let mut cursor = VisibleCursor::new(sources, snapshot, KeyRange::all(), merger(), Box::new(()));
    std::iter::from_fn(|| {
        cursor.next().unwrap();
        cursor.entry().map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
    })
    .collect()
}

fn random_rules(rng: &mut Rng, seqno_max: Seqno, bottom: bool) -> KeepRules {
    let mut boundaries: Vec<_> = (0..rng.below(5)).map(|_| 1 + rng.below(seqno_max)).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    KeepRules { boundaries, bottom, merger: merger() }
}

/// No two records of a key in one stripe, but for operands that do not fold on top of one base.
fn assert_minimal(output: &Layer, rules: &KeepRules) {
    for pair in output.records.windows(2).filter(|pair| pair[0].key == pair[1].key) {
        assert!(pair[0].seqno > pair[1].seqno);
        if rules.stripe(pair[0].seqno) == rules.stripe(pair[1].seqno) {
            assert_eq!(pair[0].kind, RecordKind::Merge, "{pair:?}");
            assert!(pair[1].kind != RecordKind::Put, "resolvable: {pair:?}");
            let folds = merger().fold(&pair[0].key, &pair[1].value, &pair[0].value).is_some();
            assert!(pair[1].kind != RecordKind::Merge || !folds, "foldable: {pair:?}");
        }
    }
}

#[test]
fn every_pinned_reader_sees_the_same_before_and_after() {
    for_seeds(400, |rng| {
        let (count, keys) = (2 + rng.below(3), 3 + rng.below(30));
        let layers = random_layers(rng, count, 25, keys);
        let bottom = rng.below(2) == 0;
        let inputs = if bottom { &layers[..] } else { &layers[..layers.len() - 1] };
        let older = &layers[inputs.len()..];
        let rules = random_rules(rng, 25 * count, bottom);
        let output = compact(inputs, &rules);
        assert_minimal(&output, &rules);
        let after: Vec<Layer> = std::iter::once(output.clone()).chain(older.iter().cloned()).collect();
        for &snapshot in rules.boundaries.iter().chain([&Seqno::MAX]) {
            assert_eq!(visible(&after, snapshot), visible(&layers, snapshot), "at {snapshot} {rules:?}");
        }
        if bottom {
            let oldest = rules.boundaries.first().copied().unwrap_or(Seqno::MAX);
            let idle = output.records.iter().find(|r| r.kind == RecordKind::Delete && r.seqno <= oldest);
            assert_eq!(idle, None, "a delete with nothing below");
            assert!(output.tombstones.iter().all(|tombstone| tombstone.seqno > oldest));
        }
        // A second pass finds nothing to do.
        let again = compact(std::slice::from_ref(&output), &rules);
        assert_eq!((again.records, again.tombstones), (output.records, output.tombstones));
    });
}

#[test]
fn a_walk_can_begin_at_any_key() {
    for_seeds(60, |rng| {
        let layers = random_layers(rng, 3, 25, 20);
        let rules = random_rules(rng, 75, true);
        let whole = compact(&layers, &rules).records;
        let key = random_key(rng, 22);
        let mut iter = compaction(&layers, &rules);
        iter.seek(&key).unwrap();
        assert!(iter.peek_key().is_none_or(|next| next >= &key[..]));
        let tail: Vec<_> = drain(iter).into_iter().map(|kept| (kept.key, kept.seqno)).collect();
        let expected: Vec<_> = whole.into_iter().filter(|r| r.key >= key).map(|r| (r.key, r.seqno)).collect();
        assert_eq!(tail, expected);
    });
}

#[test]
fn without_a_merge_function_operands_and_their_base_stay() {
    let layer = parse_layer(&["a#3 merge x", "a#2 merge y", "a#1 put z", "b#4 merge w"]);
    let rules = KeepRules { boundaries: vec![], bottom: true, merger: Merger::new("rows", None) };
    let output = compact(std::slice::from_ref(&layer), &rules);
    assert_eq!(output.records, layer.records);
}

#[test]
fn above_a_boundary_no_change_is_forgotten_and_none_is_made_greater() {
    let layer = parse_layer(&[
        "a#30 merge x",
        "b#30 del",
        "c#5 del",
        "d#30 merge x",
        "d#20 put y",
        "e#5 merge x",
        "f#30 merge x",
        "f#20 del",
    ]);
    let rules = KeepRules { boundaries: vec![10], bottom: true, merger: merger() };
    let kinds: Vec<_> = compact(std::slice::from_ref(&layer), &rules)
        .records
        .into_iter()
        .map(|record| (record.key, record.seqno, record.kind))
        .collect();
    let expected = [
        ("a", 30, RecordKind::Merge),
        ("b", 30, RecordKind::Delete),
        ("d", 30, RecordKind::Put),
        ("e", 5, RecordKind::Put),
        ("f", 30, RecordKind::Put),
    ];
    assert_eq!(kinds, expected.map(|(key, seqno, kind)| (Bytes::from(key), seqno, kind)));
}

fn show(output: &Layer) -> String {
    let mut text = String::new();
    for Record { key, seqno, kind, value } in &output.records {
        writeln!(text, "{}", show_record(key, *seqno, *kind, value)).unwrap();
    }
    for RangeTombstone { start, end, seqno } in &output.tombstones {
        let (start, end) = (String::from_utf8_lossy(start), String::from_utf8_lossy(end));
        writeln!(text, "[{start}, {end})#{seqno}").unwrap();
    }
    text
}

#[test]
fn script() {
    let mut inputs: Vec<Layer> = Vec::new();
    run_script("compaction/script.txt", |command, lines| match command.split(' ').next() {
        Some("reset") => {
            inputs.clear();
            String::new()
        }
        Some("input") => {
            inputs.push(parse_layer(lines));
            String::new()
        }
        Some("compact") => {
            let boundaries = argument(command, "snapshots")
                .map(|text| text.split(',').map(|seqno| seqno.parse().unwrap()).collect())
                .unwrap_or_default();
            let bottom = command.ends_with("bottom");
            show(&compact(&inputs, &KeepRules { boundaries, bottom, merger: merger() }))
        }
        other => panic!("what is {other:?}"),
    });
}
