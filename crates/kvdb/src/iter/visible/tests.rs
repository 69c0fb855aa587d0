use std::fmt::Write as _;

use super::*;
use crate::{
    iter::testing::{
        Layer, VecIter, argument, merger, model, parse_layer, random_key, random_layers, run_script,
    },
    memtable::testing::{Rng, for_seeds},
};

fn cursor(layers: &[Layer], sets: usize, snapshot: Seqno, range: KeyRange) -> VisibleCursor {
    let sources = layers.iter().map(|layer| layer.source(sets)).collect();
    VisibleCursor::new(sources, snapshot, range, merger(), Box::new(()))
}

fn entry(cursor: &VisibleCursor) -> Option<(Bytes, Bytes)> {
    cursor.entry().map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
}

/// Makes a random move from `at` (`None`: fresh). Returns where that leads: the index of the entry, -1
/// before the first, the count behind the last.
fn expected_place(
    rng: &mut Rng,
    at: Option<i64>,
    entries: &[(Bytes, Bytes)],
    keys: u64,
    cursor: &mut VisibleCursor,
) -> i64 {
    let count = entries.len() as i64;
    let key = random_key(rng, keys);
    match rng.below(12) {
        0 => {
            cursor.seek(&key).unwrap();
            entries.partition_point(|entry| entry.0 < key) as i64
        }
        1 => {
            cursor.seek_back(&key).unwrap();
            entries.partition_point(|entry| entry.0 <= key) as i64 - 1
        }
        2 => {
            cursor.first().unwrap();
            0
        }
        3 => {
            cursor.last().unwrap();
            count - 1
        }
        4..=7 => {
            cursor.next().unwrap();
            at.map_or(0, |at| (at + 1).min(count))
        }
        _ => {
            cursor.prev().unwrap();
            at.map_or(count - 1, |at| (at - 1).max(-1))
        }
    }
}

fn check_random_moves(rng: &mut Rng, layers: &[Layer], keys: u64, moves: usize) {
    let newest = layers.iter().flat_map(|layer| &layer.records).map(|record| record.seqno).max();
    let snapshot = rng.below(newest.unwrap_or(0) + 2);
    let range = match rng.below(3) {
        0 => KeyRange::all(),
        1 => KeyRange::new(random_key(rng, keys), random_key(rng, keys)),
        _ => KeyRange { start: random_key(rng, keys), end: None },
    };
    let entries: Vec<_> =
        model(layers, snapshot).into_iter().filter(|(key, _)| range.contains(key)).collect();
    let sets = 1 + rng.below(3) as usize;
    let mut cursor = cursor(layers, sets, snapshot, range);
    let mut at = None;
    assert_eq!(entry(&cursor), None);
    for _ in 0..moves {
        at = Some(expected_place(rng, at, &entries, keys + 2, &mut cursor));
        let expected = at.and_then(|at| entries.get(usize::try_from(at).ok()?)).cloned();
        assert_eq!(entry(&cursor), expected, "snapshot {snapshot} place {at:?}");
    }
}

#[test]
fn mixed_moves_agree_with_the_model() {
    for_seeds(300, |rng| {
        let (count, keys) = (rng.below(5), 5 + rng.below(60));
        let layers = random_layers(rng, count, 25, keys);
        check_random_moves(rng, &layers, keys, 80);
    });
}

#[test]
fn mixed_moves_agree_over_keys_with_many_versions() {
    for_seeds(60, |rng| {
        let layers = random_layers(rng, 3, 60, 4);
        check_random_moves(rng, &layers, 4, 60);
    });
}

#[test]
fn mixed_moves_agree_over_long_deleted_stretches() {
    for_seeds(60, |rng| {
        let mut layers = random_layers(rng, 4, 50, 200);
        for layer in &mut layers {
            for tombstone in &mut layer.tombstones {
                tombstone.end = format!("k{:03}", rng.below(200)).into();
            }
        }
        check_random_moves(rng, &layers, 200, 60);
    });
}

/// The newest `own` layers belong to a transaction that reads at `snapshot`: they are seen in whole, though
/// the others hold newer records.
fn check_own_layers(rng: &mut Rng, layers: &[Layer], own: usize, keys: u64) {
    const PRIVATE: Seqno = 1 << 63;
    let mut layers = layers.to_vec();
    for layer in &mut layers[..own] {
        layer.records.iter_mut().for_each(|record| record.seqno += PRIVATE);
        layer.tombstones.iter_mut().for_each(|tombstone| tombstone.seqno += PRIVATE);
    }
    let newest = layers[own..].iter().flat_map(|layer| &layer.records).map(|record| record.seqno).max();
    let snapshot = rng.below(newest.unwrap_or(0) + 2);
    let all_own = layers[..own].iter().flat_map(|layer| &layer.records).map(|record| record.seqno);
    let (oldest_own, newest_own) = (all_own.clone().min(), all_own.max());
    let limit = match (oldest_own, newest_own) {
        (Some(oldest), Some(newest)) => oldest + rng.below(newest - oldest + 2),
        _ => PRIVATE,
    };
    let mut seen = layers.clone();
    for (at, layer) in seen.iter_mut().enumerate() {
        let limit = if at < own { limit } else { snapshot };
        layer.records.retain(|record| record.seqno <= limit);
        layer.tombstones.retain(|tombstone| tombstone.seqno <= limit);
    }
    let entries: Vec<_> = model(&seen, Seqno::MAX).into_iter().collect();
    let sources = |layers: &[Layer]| layers.iter().map(|layer| layer.source(2)).collect();
    let own_layers = OwnLayers { sources: sources(&layers[..own]), limit };
    let rest = sources(&layers[own..]);
    let mut cursor =
        VisibleCursor::through(own_layers, rest, snapshot, KeyRange::all(), merger(), Box::new(()));
    let mut at = None;
    for _ in 0..80 {
        at = Some(expected_place(rng, at, &entries, keys + 2, &mut cursor));
        let expected = at.and_then(|at| entries.get(usize::try_from(at).ok()?)).cloned();
        assert_eq!(entry(&cursor), expected, "snapshot {snapshot} limit {limit} place {at:?}");
    }
}

#[test]
fn own_layers_lie_above_a_snapshot_of_the_others() {
    for_seeds(300, |rng| {
        let keys = [4, 12, 60][rng.below(3) as usize];
        let layers = random_layers(rng, 4, 40, keys);
        let own = rng.below(3) as usize;
        check_own_layers(rng, &layers, own, keys);
    });
}

/// Counts the moves of a source.
struct Counting {
    inner: VecIter,
    moves: Arc<std::sync::atomic::AtomicUsize>,
}

macro_rules! counted {
    ($($name:ident($($arg:ident: $type:ty),*)),*) => {
        $(fn $name(&mut self, $($arg: $type),*) -> Result<()> {
            self.moves.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.inner.$name($($arg),*)
        })*
    };
}

impl RecordIter for Counting {
    counted!(seek(key: &[u8], seqno: Seqno), seek_before(key: &[u8]), first(), last(), next(), prev());

    fn record(&self) -> Option<RecordRef<'_>> {
        self.inner.record()
    }

    fn value(&mut self) -> Result<Bytes> {
        self.inner.value()
    }
}

#[test]
fn a_stretch_deleted_by_a_newer_layer_is_jumped_over_both_ways() {
    let mut old = Layer::default();
    for n in 0..5_000 {
        let line = format!("k{n:06}#{} put x", n + 1);
        old.records.extend(parse_layer(&[&line]).records);
    }
    // Touching tombstones, as a sequence of unlinks leaves them.
    let lines: Vec<_> =
        (1..49).map(|n| format!("[k{:06}, k{:06})#{}", n * 100, n * 100 + 100, 6000 + n)).collect();
    let new = parse_layer(&lines.iter().map(|line| &line[..]).collect::<Vec<_>>());
    let moves = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let inner = VecIter::new(old.records.clone());
    let counting = Counting { inner, moves: Arc::clone(&moves) };
    let sources = vec![new.source(1), Source { records: Box::new(counting), tombstones: Vec::new() }];
    let mut cursor = VisibleCursor::new(sources, 9000, KeyRange::all(), merger(), Box::new(()));
    cursor.seek(b"k000100").unwrap();
    assert_eq!(entry(&cursor).unwrap().0, "k004900");
    cursor.prev().unwrap();
    assert_eq!(entry(&cursor).unwrap().0, "k000099");
    let moves = moves.load(std::sync::atomic::Ordering::Relaxed);
    assert!(moves < 40, "{moves} moves");
}

#[test]
fn after_an_error_the_cursor_is_fresh_and_goes_on() {
    let layers = random_layers(&mut Rng::new(4), 2, 40, 30);
    let left = Arc::new(std::sync::atomic::AtomicUsize::new(12));
    let sources = layers
        .iter()
        .map(|layer| {
            let mut iter = VecIter::new(layer.records.clone());
            iter.moves_left = Some(Arc::clone(&left));
            Source { records: Box::new(iter), tombstones: layer.source(1).tombstones }
        })
        .collect();
    let mut cursor = VisibleCursor::new(sources, 80, KeyRange::all(), merger(), Box::new(()));
    let failure = std::iter::repeat_with(|| cursor.next()).take(30).find(Result::is_err);
    assert!(failure.is_some());
    assert_eq!(entry(&cursor), None);
    left.store(1000, std::sync::atomic::Ordering::Relaxed);
    cursor.next().unwrap();
    assert_eq!(entry(&cursor).unwrap(), model(&layers, 80).into_iter().next().unwrap());
}

#[test]
fn the_guard_lives_as_long_as_the_cursor() {
    let guard = Arc::new(());
    let cursor = VisibleCursor::new(Vec::new(), 1, KeyRange::all(), merger(), Box::new(Arc::clone(&guard)));
    assert_eq!(Arc::strong_count(&guard), 2);
    drop(cursor);
    assert_eq!(Arc::strong_count(&guard), 1);
}

/// The cursor's snapshot is fixed, whatever writers add to the memtable below it meanwhile.
#[test]
fn a_cursor_over_a_live_memtable_keeps_its_view() {
    use kvfs_store::{Batch, Keyspace, KeyspaceKind};

    use crate::{cache::Accountant, memtable::MemTable};

    const ROWS: Keyspace = Keyspace(1);
    let table = Arc::new(MemTable::new(&Accountant::new(1 << 30)));
    let apply = |seqno: Seqno, fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        fill(&mut batch);
        table.apply(&batch, seqno, |_| KeyspaceKind::Tuple);
    };
    for n in 0..500_u64 {
        apply(n + 1, &|batch| batch.put(ROWS, format!("k{n:03}"), "old"));
    }
    apply(501, &|batch| batch.delete_range(ROWS, "k100", "k200"));
    let expected: Vec<Bytes> = (0..100).chain(200..500).map(|n| Bytes::from(format!("k{n:03}"))).collect();
    let finished = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(9);
            for seqno in 502..6_000 {
                let key = random_key(&mut rng, 500);
                apply(seqno, &|batch| match seqno % 4 {
                    0 => batch.delete(ROWS, key.clone()),
                    1 => batch.delete_range(ROWS, key.clone(), "k400"),
                    2 => batch.merge(ROWS, key.clone(), "+new"),
                    _ => batch.put(ROWS, key.clone(), "new"),
                });
            }
            finished.store(true, std::sync::atomic::Ordering::Release);
        });
        let mut walks = 0;
        while walks < 3 || !finished.load(std::sync::atomic::Ordering::Acquire) {
            let source = Source { records: table.iter(ROWS.0), tombstones: table.tombstone_sets(ROWS.0) };
            let mut cursor = VisibleCursor::new(vec![source], 501, KeyRange::all(), merger(), Box::new(()));
            let is_forward = walks % 2 == 0;
            let mut keys: Vec<Bytes> = std::iter::from_fn(|| {
                if is_forward { cursor.next() } else { cursor.prev() }.unwrap();
                let (key, value) = entry(&cursor)?;
                assert_eq!(value, "old");
                Some(key)
            })
            .collect();
            if !is_forward {
                keys.reverse();
            }
            assert_eq!(keys, expected);
            walks += 1;
        }
    });
}

fn run_moves(cursor: &mut VisibleCursor, moves: &[&str]) -> String {
    let mut output = String::new();
    for line in moves {
        let (name, key) = line.split_once(' ').unwrap_or((line, ""));
        match name {
            "first" => cursor.first(),
            "last" => cursor.last(),
            "next" => cursor.next(),
            "prev" => cursor.prev(),
            "seek" => cursor.seek(key.as_bytes()),
            "seek-back" => cursor.seek_back(key.as_bytes()),
            other => panic!("what is {other:?}"),
        }
        .unwrap();
        let shown = match entry(cursor) {
            Some((key, value)) => {
                format!("{} = {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value))
            }
            None => ".".to_owned(),
        };
        writeln!(output, "{line}: {shown}").unwrap();
    }
    output
}

#[test]
fn script() {
    let mut layers: Vec<Layer> = Vec::new();
    run_script("visible/script.txt", |command, lines| match command.split(' ').next() {
        Some("reset") => {
            layers.clear();
            String::new()
        }
        Some("layer") => {
            layers.push(parse_layer(lines));
            String::new()
        }
        Some("cursor") => {
            let snapshot = argument(command, "snapshot").map_or(Seqno::MAX, |text| text.parse().unwrap());
            let range = argument(command, "range").map_or_else(KeyRange::all, |text| {
                let (start, end) = text.split_once("..").unwrap();
                KeyRange::new(start.to_owned(), end.to_owned())
            });
            run_moves(&mut cursor(&layers, 1, snapshot, range), lines)
        }
        other => panic!("what is {other:?}"),
    });
}
