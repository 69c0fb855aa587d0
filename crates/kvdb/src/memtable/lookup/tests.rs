use super::*;

fn merger() -> Merger {
    Merger::new("test", Some(std::sync::Arc::new(crate::memtable::testing::Append)))
}

#[test]
fn the_newest_put_decides_and_takes_the_operands_above_it() {
    let mut lookup = Lookup::new(b"k", 10);
    assert!(lookup.visit(9, RecordKind::Merge, || Bytes::from_static(b"c"), None));
    assert!(lookup.end_layer(None));
    assert!(lookup.visit(8, RecordKind::Merge, || Bytes::from_static(b"b"), Some(2)));
    assert!(!lookup.visit(7, RecordKind::Put, || Bytes::from_static(b"a"), Some(2)));
    assert!(!lookup.visit(6, RecordKind::Put, || unreachable!("decided"), None));
    assert_eq!(lookup.finish(&merger()).unwrap().unwrap(), "abc");
}

#[test]
fn a_tombstone_of_the_layer_hides_older_records_and_layers() {
    let mut lookup = Lookup::new(b"k", 10);
    assert!(lookup.visit(9, RecordKind::Merge, || Bytes::from_static(b"c"), Some(8)));
    assert!(!lookup.visit(7, RecordKind::Put, || unreachable!("hidden"), Some(8)));
    assert_eq!(lookup.outcome(), &Outcome::Absent);
    assert_eq!(lookup.finish(&merger()).unwrap().unwrap(), "c");

    let mut lookup = Lookup::new(b"k", 10);
    assert!(!lookup.end_layer(Some(3)));
    assert_eq!(lookup.finish(&merger()).unwrap(), None);
}

#[test]
fn operands_without_a_merge_function_are_an_error() {
    let mut lookup = Lookup::new(b"k", 10);
    lookup.visit(9, RecordKind::Merge, || Bytes::from_static(b"c"), None);
    let error = lookup.finish(&Merger::new("rows", None)).unwrap_err();
    assert!(matches!(error, kvfs_store::StoreError::NoMergeFunction(name) if name == "rows"));
}
