//! What the pages of a comparison come to while what is compared changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::testing::{Line, World, make_file};
use crate::transactions::Begin;

const NAMES: [&str; 6] = ["b1", "b2", "b3", "b4", "b5", "b6"];

fn on_connection(number: u64) -> Caller {
    let mut caller = Caller::own();
    caller.number = number;
    caller
}

fn names(lines: &[Difference]) -> Vec<String> {
    lines.iter().map(|line| String::from_utf8_lossy(&line.place[1..]).into_owned()).collect()
}

/// A snapshot, and the files that were made after it.
fn since_monday(world: &World) -> Compared {
    world.mounted().create_snapshot(&Caller::own(), "monday", false, false).expect("is made");
    for name in NAMES {
        make_file(&world.fs, name, 0);
    }
    Compared::Snapshots(Some("monday".to_owned()), None)
}

/// Reads a comparison in pages of two lines, with `work` behind each.
fn read_all(
    comparisons: &Comparisons,
    what: &Compared,
    begin: impl Fn() -> Result<Comparison>,
    mut work: impl FnMut(usize),
) -> Vec<String> {
    let mut all = Vec::new();
    for page in 0.. {
        let bounds = (all.len() as u64, 2, usize::MAX);
        let (lines, more) =
            comparisons.page(&on_connection(1), what.clone(), bounds, &begin).expect("is compared");
        all.extend(names(&lines));
        if !more {
            break;
        }
        work(page);
    }
    all
}

#[test]
fn comparison_with_now_is_of_one_moment_whatever_is_compared_and_changed_meanwhile() {
    let world = World::new(false);
    let store = world.mounted();
    let (comparisons, what) = (Comparisons::default(), since_monday(&world));
    let begin = || store.compare_snapshots(&Caller::own(), Some("monday"), None);
    let told = read_all(&comparisons, &what, begin, |page| {
        make_file(&world.fs, &format!("a{page}"), 0);
        let other = comparisons.page(&on_connection(2), what.clone(), (0, 2, usize::MAX), begin);
        assert!(other.expect("is compared").1);
    });
    assert_eq!(told, NAMES);
}

#[test]
fn connection_stays_while_a_comparison_has_more_however_slowly_it_is_read() {
    let world = World::new(false);
    let store = world.mounted();
    let (comparisons, what) = (Comparisons::default(), since_monday(&world));
    let begin = || store.compare_snapshots(&Caller::own(), Some("monday"), None);
    let line = Arc::new(Line::default());
    let caller = Line::caller(&line);
    let page = |from, lines_max| {
        let bounds = (from, lines_max, usize::MAX);
        comparisons.page(&caller, what.clone(), bounds, begin).expect("is compared").1
    };
    let kept = || line.kept.load(Ordering::Relaxed);
    assert!(!page(0, NAMES.len() + 1));
    assert_eq!(kept(), 0, "it is told whole");
    assert!(page(0, 4));
    assert_eq!(kept(), 1);
    assert!(!page(4, 4));
    assert_eq!(kept(), 1);
}

#[test]
fn comparison_of_a_transaction_is_of_one_moment_while_the_transaction_goes_on() {
    let world = World::new(false);
    let own = Caller::own();
    let id = world.transactions.begin(&own, Begin::default()).expect("begins");
    let view = world.transactions.view(&own, id).expect("is there");
    for name in NAMES {
        make_file(&view, name, 0);
    }
    let begin = || Ok(world.transactions.diff(&own, id)?.into());
    let told = read_all(&Comparisons::default(), &Compared::Transaction(id), begin, |page| {
        make_file(&view, &format!("a{page}"), 0);
    });
    assert_eq!(told, NAMES);
}

#[test]
fn comparison_that_was_given_up_is_refused_and_not_gone_on_with_at_another_moment() {
    let world = World::new(false);
    let store = world.mounted();
    let (comparisons, what) = (Comparisons::default(), since_monday(&world));
    let begin = || store.compare_snapshots(&Caller::own(), Some("monday"), None);
    let page =
        |number, from| comparisons.page(&on_connection(number), what.clone(), (from, 2, usize::MAX), begin);
    for number in 1..=KEPT_MAX as u64 + 1 {
        page(number, 0).expect("is compared");
    }
    let refused = page(1, 2).expect_err("is given up");
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert_eq!(names(&page(2, 2).expect("goes on").0), NAMES[2..4]);
}
