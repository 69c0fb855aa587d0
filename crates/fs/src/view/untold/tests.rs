use std::sync::Arc;
use std::time::Duration;

use kvfs_store::clock::ManualClock;

use super::{ALL, ChangedNames, KEPT_MAX, NAME_LIFE_MAX, NAMES_MAX, UntoldNames};
use crate::NodeId;
use crate::view::Invalidations;

const DIR: u64 = 7;
const OTHER: u64 = 8;
const NEVER_CHANGED: u64 = 1 << 40;

fn untold() -> (Arc<UntoldNames>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000_000)));
    (Arc::new(UntoldNames::new(clock.clone())), clock)
}

fn changes<const N: usize>(names: [(u64, &str); N]) -> Invalidations {
    let entries = names.map(|(directory, name)| (NodeId(directory), Box::from(name.as_bytes())));
    Invalidations { entries: entries.into(), ..Invalidations::default() }
}

fn look_up(untold: &UntoldNames, directory: u64, name: &[u8]) {
    let next = untold.begin_lookup().expect("there are untold names");
    untold.end_lookup(next, NodeId(directory), name);
}

#[test]
fn names_of_a_directory_are_untold_until_all_that_were_queued_are_told() {
    let (untold, _) = untold();
    let telling = untold.begin(&changes([(DIR, "a"), (OTHER, "b")]));
    // Those of commits before were told. Its own are not queued yet.
    untold.told(DIR);
    assert!(untold.has(DIR, b"a") && untold.has(OTHER, b"b") && !untold.has(DIR, b"b"));
    telling.end(|directory| directory == DIR);
    assert!(untold.has(DIR, b"a") && !untold.has(OTHER, b"b"));
    untold.told(DIR);
    assert!(!untold.has(DIR, b"a") && untold.begin_lookup().is_none());
}

#[test]
fn all_names_of_a_directory_are_untold_until_a_commit_with_too_many_is_told() {
    let (untold, _) = untold();
    let earlier = untold.begin(&changes([(DIR, "a")]));
    let mut telling = untold.begin(&changes([]));
    telling.add_all([NodeId(DIR)].into_iter());
    earlier.end(|_| false);
    assert!(untold.has(DIR, b"a") && untold.has(DIR, b"b") && !untold.has(OTHER, b"b"));
    look_up(&untold, DIR, b"b");
    assert!(untold.has(DIR, b"a") && !untold.has(DIR, b"b"));
    telling.end(|_| false);
    assert!(!untold.has(DIR, b"a") && untold.begin_lookup().is_none());
    assert_eq!(untold.state.lock().len, 0);
}

#[test]
fn names_that_were_told_go_while_later_commits_to_their_directory_overlap() {
    let (untold, _) = untold();
    let mut telling = untold.begin(&changes([(DIR, "first"), (DIR, "again")]));
    for name in ["second", "third", "fourth"] {
        let next = untold.begin(&changes([(DIR, name), (DIR, "again")]));
        telling.end(|_| true);
        // All that were queued have been told, and the names of the next one are not yet queued.
        untold.told(DIR);
        assert_eq!(untold.state.lock().len, 2);
        assert!(!untold.has(DIR, b"first") && untold.has(DIR, name.as_bytes()) && untold.has(DIR, b"again"));
        telling = next;
    }
    // The other way round: the newer ones are queued first, but not told before the older ones are.
    let older = untold.begin(&changes([(DIR, "older")]));
    untold.begin(&changes([(DIR, "newer")])).end(|_| false);
    telling.end(|_| false);
    assert!(untold.has(DIR, b"older") && untold.has(DIR, b"newer") && !untold.has(DIR, b"again"));
    older.end(|_| false);
    assert_eq!((untold.state.lock().len, untold.begin_lookup()), (0, None));
}

#[test]
fn commits_to_a_held_directory_take_room_for_its_names_once() {
    let (untold, _) = untold();
    for _ in 0..1000 {
        untold.begin(&changes([(DIR, "a")])).end(|_| true);
    }
    let state = untold.state.lock();
    assert_eq!((state.directories.len(), state.len), (1, 1));
    drop(state);
    untold.told(DIR);
    assert!(!untold.has(DIR, b"a"));
}

#[test]
fn look_that_began_before_a_commit_tells_of_no_name_that_it_has_changed() {
    let (untold, _) = untold();
    let first = untold.begin(&changes([(DIR, "a")]));
    let next = untold.begin_lookup().expect("one is untold");
    let second = untold.begin(&changes([(DIR, "a")]));
    untold.end_lookup(next, NodeId(DIR), b"a");
    assert!(untold.has(DIR, b"a"));
    look_up(&untold, DIR, b"a");
    assert!(!untold.has(DIR, b"a"));
    drop((first, second));
}

#[test]
fn names_of_an_operation_that_came_twice_are_untold_from_the_last_time_on() {
    let (untold, _) = untold();
    let changed = ChangedNames::default();
    let names = [(DIR, Box::from(&b"a"[..]))];
    changed.note(&untold, &names);
    let next = untold.begin_lookup().expect("one is untold");
    changed.note(&untold, &names);
    untold.end_lookup(next, NodeId(DIR), b"a");
    // Nor are they told with what was queued before.
    untold.told(DIR);
    assert!(untold.has(DIR, b"a"));
    changed.take().expect("noted").end(|_| false);
    assert!(!untold.has(DIR, b"a") && changed.take().is_none());
}

#[test]
fn more_untold_names_than_are_kept_make_all_of_their_directory_untold_but_what_is_looked_up() {
    let (untold, _) = untold();
    let other = untold.begin(&changes([(OTHER, "a")]));
    let many = (0..NAMES_MAX as u64 + 10_000).map(|name| (NodeId(DIR), Box::from(name.to_be_bytes())));
    let many = untold.begin(&Invalidations { entries: many.collect(), ..Invalidations::default() });
    assert_eq!(untold.state.lock().len, 1);
    assert!(untold.has(OTHER, b"a") && !untold.has(OTHER, b"b") && untold.has(DIR, b"any"));
    look_up(&untold, DIR, b"any");
    assert!(!untold.has(DIR, b"any") && untold.has(DIR, b"another"));
    let again = untold.begin(&changes([(DIR, "a")]));
    assert!(untold.has(DIR, b"any"), "it may be one that has been changed now");
    drop((other, many));
    assert!(untold.has(DIR, b"any") && !untold.has(OTHER, b"a"));
    drop(again);
    assert!(!untold.has(DIR, b"any"));
}

#[test]
fn names_that_are_given_up_stay_untold_for_as_long_as_a_kernel_may_keep_them() {
    let (untold, clock) = untold();
    untold.begin(&changes([(DIR, "a"), (OTHER, "b")])).end(|_| true);
    untold.give_up(vec![DIR, OTHER]).keep();
    untold.give_up(vec![OTHER]).end(|_| false);
    untold.told(DIR);
    untold.told(OTHER);
    assert!(untold.has(DIR, b"a") && untold.has(DIR, b"any"));
    look_up(&untold, DIR, b"a");
    assert!(!untold.has(DIR, b"a") && untold.has(DIR, b"any"));
    clock.advance(NAME_LIFE_MAX / 2);
    untold.expire(|_| false);
    assert!(untold.has(DIR, b"any"));
    clock.advance(NAME_LIFE_MAX);
    untold.expire(|directory| directory == OTHER);
    assert!(!untold.has(DIR, b"any") && untold.has(OTHER, b"any"), "some of the latter wait");
    untold.forget_all();
    assert!(untold.begin_lookup().is_none());
}

#[test]
fn more_directories_than_are_kept_make_all_names_untold_but_what_is_looked_up() {
    let (untold, clock) = untold();
    let step = NAME_LIFE_MAX / 4;
    let name = |directory: usize| (NodeId(directory as u64 + 1), Box::from(&b"a"[..]));
    let waiting = untold.begin(&changes([(DIR, "a")]));
    for directories in [0..KEPT_MAX, KEPT_MAX..2 * KEPT_MAX + 1] {
        clock.advance(step);
        let entries = directories.map(name).collect();
        untold.begin(&Invalidations { entries, ..Invalidations::default() }).keep();
    }
    let directories: Vec<u64> = untold.state.lock().directories.keys().copied().collect();
    assert!(directories.len() == 2 && directories.contains(&DIR) && directories.contains(&ALL));
    waiting.end(|_| false);
    for directory in [DIR, OTHER, NEVER_CHANGED] {
        assert!(untold.has(directory, b"any"));
        look_up(&untold, directory, b"any");
        assert!(!untold.has(directory, b"any") && untold.has(directory, b"another"));
    }
    let again = untold.begin(&changes([(DIR, "any"), (OTHER, "a")]));
    assert!(untold.has(DIR, b"any"), "it has been changed now");
    drop(again);
    assert!(!untold.has(DIR, b"any"), "the kernel has been told");
    clock.advance(step * 3);
    untold.expire(|_| false);
    assert!(untold.has(DIR, b"another"), "for as long as the last one is kept");
    clock.advance(step);
    untold.expire(|_| false);
    assert!(!untold.has(DIR, b"another") && untold.begin_lookup().is_none());
}
