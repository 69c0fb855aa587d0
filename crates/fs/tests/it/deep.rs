//! Directories below each other, many of them: a tree has any depth.

use kvfs_fs::{Caller, NodeId, RenameMode};
use kvfs_store::Isolation;
use kvfs_store::clock::{Clock, SystemClock};

use crate::setup::Setup;
use crate::undo::look;
use crate::views::begin;

const ROOT: NodeId = NodeId::ROOT;

/// Makes directories below each other, and returns the last one.
fn chain(main: &Setup, depth: usize) -> NodeId {
    (0..depth).fold(ROOT, |above, _| main.dir(above, "d"))
}

#[test]
fn view_that_knows_a_tree_of_any_depth_is_dropped() {
    const DEPTH: usize = 100_000;
    let main = Setup::new(100);
    chain(&main, DEPTH);
    let view = begin(&main, Isolation::Snapshot);
    let last = (0..DEPTH).fold(ROOT, |above, _| look(&view, above, "d"));
    view.dir(last, "e");
    drop(view);
    drop(main);
}

/// The time to make the tree says how fast the machine is. A rename takes about as long; with the square of
/// the depth it took ten times as long.
#[test]
fn rename_in_a_deep_tree_does_not_take_the_square_of_its_depth() {
    let (main, clock) = (Setup::new(100), SystemClock::new());
    let begun = clock.monotonic();
    let last = chain(&main, 320_000);
    let time_max = 3 * clock.monotonic().saturating_sub(begun);
    let (from, to) = (main.dir(last, "from"), main.dir(last, "to"));
    main.dir(from, "moved");
    let mut places = [from, to];
    let is_fast = (0..5).any(|_| {
        let begun = clock.monotonic();
        let [from, to] = places;
        main.rename(&Caller::default(), from, b"moved", to, b"moved", RenameMode::Replace).unwrap();
        places.reverse();
        clock.monotonic().saturating_sub(begun) < time_max
    });
    assert!(is_fast, "each took more than {time_max:?}");
}
