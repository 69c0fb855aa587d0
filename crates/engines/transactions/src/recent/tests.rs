use super::*;

const SPACE: Keyspace = Keyspace(3);

fn key(key: &'static str, touch: Touch) -> Records {
    Records::Key { key: key.into(), touch }
}

fn pushed(changes: Vec<(Records, Seqno)>) -> RecentChanges {
    let mut recent = RecentChanges::default();
    for (records, seqno) in changes {
        recent.push(vec![(SPACE, records)], seqno);
    }
    recent
}

const ADDED: Touch = Touch { exclusive: 0, increment: 1 };
const SET: Touch = Touch { exclusive: 1, increment: 0 };
const OTHER: Touch = Touch { exclusive: 2, increment: 0 };

#[test]
fn last_change_of_each_part_of_a_range_counts() {
    let range = |start: &'static str, end: &'static str| Records::Range(KeyRange::new(start, end));
    let recent = pushed(vec![(range("a", "m"), 1), (range("c", "d"), 5), (key("g", Touch::ALL), 7)]);
    let found = |records: &Records, since| recent.find(SPACE, records, since).map(|changed| changed.seqno);
    assert_eq!(found(&key("b", Touch::ALL), 0), Some(1));
    assert_eq!(found(&key("b", Touch::ALL), 1), None);
    assert_eq!(found(&key("cc", SET), 1), Some(5));
    assert_eq!(found(&key("g", Touch::default()), 0), None, "which touches nothing");
    assert_eq!(found(&range("f", "h"), 5), Some(7));
    assert_eq!(found(&range("m", "z"), 0), None);
    assert_eq!(found(&Records::Range(KeyRange::all()), 5), Some(7));
}

#[test]
fn fields_conflict_by_what_they_touch() {
    let recent = pushed(vec![(key("k", ADDED), 1), (key("k", ADDED), 2), (key("k", OTHER), 3)]);
    let found = |touch, since| recent.find(SPACE, &key("k", touch), since).map(|changed| changed.seqno);
    assert_eq!(found(ADDED, 0), None);
    assert_eq!(found(SET, 0), Some(2));
    assert_eq!(found(SET, 2), None);
    assert_eq!(found(OTHER, 2), Some(3));
    assert_eq!(found(Touch::ALL, 2), Some(3));
    assert_eq!(recent.by_keyspace[&SPACE].fields["k".as_bytes()].len(), 2, "what is covered is gone");
}

#[test]
fn what_nothing_asks_for_is_forgotten_and_too_much_wholly() {
    let keys = |count: u64| {
        (1..=count).map(|at| (Records::Blocks { prefix: "f".into(), first: 2 * at, count: 1 }, at))
    };
    let mut recent = pushed(keys(3000).collect());
    recent.forget(Some(2990), 100_000);
    assert_eq!(recent.len(), 10);
    let mut recent = pushed(keys(3000).collect());
    recent.forget(Some(0), 2000);
    assert_eq!(recent.len(), 0);
    assert!(recent.find(SPACE, &key("x", SET), 2999).is_some(), "it may have been changed");
    assert!(recent.find(SPACE, &key("x", SET), 3000).is_none());
    recent.forget(None, 2000);
    assert!(recent.find(SPACE, &key("x", SET), 0).is_none());
}

#[test]
fn count_is_kept_while_changes_join_split_and_cover_one_another() {
    let range = |start: &'static str, end: &'static str| Records::Range(KeyRange::new(start, end));
    let blocks = |prefix: &'static str, first, count| Records::Blocks { prefix: prefix.into(), first, count };
    let changes = [
        range("a", "m"),
        range("c", "d"),
        range("x", "x"),
        key("k", ADDED),
        key("k", SET),
        key("l", OTHER),
        key("l", Touch::ALL),
        key("z", Touch::default()),
        blocks("f", 0, 8),
        blocks("f", 2, 3),
        blocks("g", 0, 0),
        blocks("g", 7, 1),
        blocks("f", 0, 16),
        range("b", "z"),
    ];
    let mut recent = RecentChanges::default();
    for (records, seqno) in changes.into_iter().zip(1..) {
        recent.push(vec![(SPACE, records)], seqno);
        let counted: usize = recent.by_keyspace.values().map(Changes::len).sum();
        assert_eq!(recent.len(), counted, "after {seqno}");
    }
    assert!(recent.len() > 4);
    recent.forget(Some(20), 1);
    assert_eq!(recent.len(), 0);
}
