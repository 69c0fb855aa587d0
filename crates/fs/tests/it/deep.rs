//! Directories below each other, many of them: a tree has any depth.

use kvfs_fs::{Caller, FsError, NodeId, RenameMode};
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

#[test]
fn directory_deep_down_moves_and_moves_into_nothing_below_itself() {
    let main = Setup::new(100);
    let top = main.dir(ROOT, "top");
    let last = (0..20_000).fold(top, |above, _| main.dir(above, "d"));
    let (from, to) = (main.dir(last, "from"), main.dir(last, "to"));
    let moved = main.dir(from, "moved");
    let rename = |from, name: &[u8], to| {
        main.rename(&Caller::default(), from, name, to, b"moved", RenameMode::NoReplace)
    };
    rename(from, b"moved", to).unwrap();
    assert_eq!(main.lookup(&Caller::default(), to, b"moved").unwrap().node, moved);
    let refused = rename(ROOT, b"top", moved).unwrap_err();
    assert!(matches!(refused, FsError::Invalid(_)), "{refused}");
}
