use std::collections::BTreeMap;

use super::*;
use crate::model::ModelStore;
use crate::{Batch, Durability, Read, Store};

/// Appends; so operands show their order.
struct Append;

impl MergeFunction for Append {
    fn resolve(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        Ok(Some([base.unwrap_or_default(), &operands.concat()].concat().into()))
    }

    fn fold(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes> {
        (older.len() + newer.len() < 8).then(|| [older, newer].concat().into())
    }
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn key(&mut self) -> Bytes {
        format!("{:02}", self.below(40)).into()
    }

    /// One to four operations.
    fn batch(&mut self, keyspace: Keyspace) -> Batch {
        let mut batch = Batch::new();
        for _ in 0..=self.below(4) {
            let key = self.key();
            match self.below(6) {
                0 | 1 => batch.put(keyspace, key, format!("v{}", self.below(100))),
                2 => batch.delete(keyspace, key),
                3 => batch.delete_range(keyspace, key, self.key()),
                _ => batch.merge(keyspace, key, format!("+{}", self.below(10))),
            }
        }
        batch
    }
}

fn entries(cursor: &mut dyn crate::Cursor) -> Vec<(Bytes, Bytes)> {
    let mut all = Vec::new();
    cursor.first().expect("first");
    while let Some((key, value)) = cursor.entry() {
        all.push((Bytes::copy_from_slice(key), value.clone()));
        cursor.next().expect("next");
    }
    all
}

/// What is read through private writes, and what their batch leads to, is what the same operations lead to
/// one by one.
#[test]
fn overlay_reads_what_its_batch_comes_to() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let open = |store: &ModelStore| {
            store.open_keyspace("k", KeyspaceKind::Tuple, Some(Arc::new(Append))).expect("open")
        };
        let (base, plain) = (ModelStore::new(), ModelStore::new());
        let keyspace = open(&base);
        assert_eq!(keyspace, open(&plain));
        let space = Arc::new(Space {
            keyspace,
            name: "k".into(),
            kind: KeyspaceKind::Tuple,
            merge: Some(Arc::new(Append)),
        });
        let spaces = |_| Ok(Arc::clone(&space));
        for _ in 0..10 {
            let batch = random.batch(keyspace);
            base.apply(batch.clone(), Durability::Buffered).expect("apply");
            plain.apply(batch, Durability::Buffered).expect("apply");
        }
        let mut own = WriteSets::default();
        for _ in 0..random.below(12) {
            let batch = random.batch(keyspace);
            own.apply(batch.clone(), &spaces, &base).expect("apply");
            plain.apply(batch, Durability::Buffered).expect("apply");
        }
        let overlay = Overlay::new(&base, Arc::clone(&space), own.of(keyspace));
        let (start, end) = (random.key(), random.key());
        for range in [KeyRange::all(), KeyRange::new(start, end)] {
            let mut expected = plain.cursor(keyspace, range.clone()).expect("cursor");
            let map: BTreeMap<_, _> = entries(&mut *expected).into_iter().collect();
            let mut cursor = overlay.cursor(range.clone()).expect("cursor");
            assert!(entries(&mut *cursor).into_iter().eq(map.clone()), "seed {seed}, {range:?}");
            // Any moves, both ways.
            for step in 0..60 {
                let key = random.key();
                let both = [&mut cursor, &mut expected];
                let way = random.below(6);
                for cursor in both {
                    match way {
                        0 => cursor.seek(&key),
                        1 => cursor.seek_back(&key),
                        2 | 3 => cursor.next(),
                        _ => cursor.prev(),
                    }
                    .expect("move");
                }
                assert_eq!(cursor.entry(), expected.entry(), "seed {seed}, step {step}, {range:?}");
            }
        }
        for key in (0..40).map(|key| format!("{key:02}")) {
            assert_eq!(
                overlay.get(key.as_bytes()).expect("get"),
                plain.get(keyspace, key.as_bytes()).expect("get")
            );
        }
        assert_eq!(
            own.bytes(),
            own.of(keyspace).entries.iter().map(|(key, written)| entry_bytes(key, written)).sum::<u64>()
                + own
                    .of(keyspace)
                    .deleted
                    .iter()
                    .map(|(start, end)| (start.len() + end.len()) as u64)
                    .sum::<u64>()
        );
        base.apply(own.to_batch(&spaces).expect("batch"), Durability::Buffered).expect("apply");
        let all =
            |store: &ModelStore| entries(&mut *store.cursor(keyspace, KeyRange::all()).expect("cursor"));
        assert_eq!(all(&base), all(&plain), "seed {seed}");
    }
}

#[test]
fn batch_that_fails_leaves_no_trace() {
    let base = ModelStore::new();
    let keyspace = base.open_keyspace("k", KeyspaceKind::Tuple, None).expect("open");
    let space = Arc::new(Space { keyspace, name: "k".into(), kind: KeyspaceKind::Tuple, merge: None });
    let mut own = WriteSets::default();
    let mut batch = Batch::new();
    batch.put(keyspace, "a", "1");
    batch.merge(keyspace, "a", "2");
    let refused = own.apply(batch, &|_| Ok(Arc::clone(&space)), &base);
    assert!(matches!(refused, Err(StoreError::NoMergeFunction(_))), "{refused:?}");
    assert!(own.of(keyspace).is_empty() && own.bytes() == 0);
}

#[test]
fn copy_of_a_write_set_stays_as_it_is() {
    let mut set = WriteSet::default();
    set.set("a".into(), Written::Value("1".into()));
    let copy = set.clone();
    set.set("a".into(), Written::Value("2".into()));
    set.delete_range("b".into(), "c".into());
    assert_eq!(copy.get(b"a"), Some(Written::Value("1".into())));
    assert_eq!((copy.get(b"bb"), set.get(b"bb")), (None, Some(Written::Deleted)));
}
