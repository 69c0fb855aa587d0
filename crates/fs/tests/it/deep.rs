//! Directories below each other, many of them: a tree has any depth.

use kvfs_fs::NodeId;
use kvfs_store::Isolation;

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
