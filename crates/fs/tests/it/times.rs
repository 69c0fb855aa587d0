//! The times that changes give, where those that were there lie in the future.

use kvfs_fs::{Attr, FallocateMode, NodeId, RenameMode, Result, SetAttr, SetTime, Timestamp, XattrMode};
use kvfs_store::Isolation;

use crate::setup::Setup;
use crate::views::{begin, commit, is_parked};

const ROOT: NodeId = NodeId::ROOT;
const FUTURE: Timestamp = Timestamp { seconds: 2_000_000_000, nanos: 1 };

/// Changes a node.
type Change = dyn Fn(&Setup, NodeId) -> Result<()>;

fn attr(setup: &Setup, node: NodeId) -> Attr {
    setup.getattr(&setup.caller, node).unwrap()
}

/// Both times of change, as a front end may set them.
fn set_ahead(setup: &Setup, node: NodeId) {
    let ahead = SetAttr { mtime: Some(SetTime::At(FUTURE)), ctime: Some(FUTURE), ..SetAttr::default() };
    let attr = setup.setattr(&setup.caller, node, &ahead).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (FUTURE, FUTURE));
}

/// Times of the node, before and after the store was opened again.
fn both(setup: &mut Setup, name: &[u8]) -> [(Timestamp, Timestamp); 2] {
    let times = |setup: &Setup| {
        let entry = setup.lookup(&setup.caller, ROOT, name).unwrap();
        setup.forget(entry.node, 1);
        (entry.attr.mtime, entry.attr.ctime)
    };
    let before = times(setup);
    setup.reopen();
    [before, times(setup)]
}

#[test]
fn a_change_brings_back_times_that_lie_in_the_future() {
    let write = |setup: &Setup, node| setup.write_at(node, 0, b"x").map(drop);
    let cut = |setup: &Setup, node| {
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        setup.setattr(&setup.caller, node, &cut).map(drop)
    };
    let punch = |setup: &Setup, node| setup.fallocate(&setup.caller, node, 0, 1, FallocateMode::PunchHole);
    let create = |setup: &Setup, node| setup.create(&setup.caller, node, b"new", 0o600, true).map(drop);
    let unlink = |setup: &Setup, node| setup.unlink(&setup.caller, node, b"old");
    let rename =
        |setup: &Setup, node| setup.rename(&setup.caller, node, b"old", ROOT, b"old", RenameMode::Replace);
    let link = |setup: &Setup, node| {
        let old = setup.lookup(&setup.caller, node, b"old")?.node;
        setup.link(&setup.caller, old, node, b"another").map(drop)
    };
    let on_files: [&Change; 3] = [&write, &cut, &punch];
    let on_directories: [&Change; 4] = [&create, &unlink, &rename, &link];
    let all = on_files.map(|change| (false, change)).into_iter();
    for (at, (is_directory, change)) in all.chain(on_directories.map(|change| (true, change))).enumerate() {
        let mut setup = Setup::new(4096);
        let node = if is_directory { setup.dir(ROOT, "n") } else { setup.file(ROOT, "n") };
        if is_directory {
            setup.file(node, "old");
        } else {
            setup.write_at(node, 0, b"content").unwrap();
        }
        let now = attr(&setup, node).mtime;
        set_ahead(&setup, node);
        change(&setup, node).unwrap();
        assert_eq!(both(&mut setup, b"n"), [(now, now); 2], "change {at}");
        setup.assert_sound("times set back");
    }
}

#[test]
fn a_change_of_attributes_brings_back_its_own_time_alone() {
    let chmod = |setup: &Setup, node| {
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        setup.setattr(&setup.caller, node, &mode).map(drop)
    };
    let setxattr =
        |setup: &Setup, node| setup.setxattr(&setup.caller, node, b"user.a", b"value", XattrMode::Set);
    let rename = |setup: &Setup, _| {
        setup.rename(&setup.caller, ROOT, b"n", ROOT, b"m", RenameMode::Replace)?;
        setup.rename(&setup.caller, ROOT, b"m", ROOT, b"n", RenameMode::Replace)
    };
    let unlink = |setup: &Setup, node| {
        setup.link(&setup.caller, node, ROOT, b"m")?;
        set_ahead(setup, node);
        setup.unlink(&setup.caller, ROOT, b"m")
    };
    let changes: [&Change; 4] = [&chmod, &setxattr, &rename, &unlink];
    for (at, change) in changes.into_iter().enumerate() {
        let mut setup = Setup::new(4096);
        let node = setup.file(ROOT, "n");
        let now = attr(&setup, node).ctime;
        set_ahead(&setup, node);
        change(&setup, node).unwrap();
        assert_eq!(both(&mut setup, b"n"), [(FUTURE, now); 2], "change {at}");
    }
}

#[test]
fn a_transaction_that_brings_a_time_back_has_it_alone() {
    let mut main = Setup::new(4096);
    let directory = main.dir(ROOT, "n");
    let now = attr(&main, directory).mtime;
    set_ahead(&main, directory);
    let (first, second) = (begin(&main, Isolation::Snapshot), begin(&main, Isolation::Snapshot));
    let node_in = |view: &Setup| view.lookup(&view.caller, ROOT, b"n").unwrap().node;
    let (first_node, second_node) = (node_in(&first), node_in(&second));
    first.file(first_node, "a");
    assert_eq!(attr(&first, first_node).mtime, now);
    let result = second.create(&second.caller, second_node, b"b", 0o600, true);
    assert!(is_parked(&result), "{result:?}");
    drop(result);
    second.txn().unwrap().abort();
    assert_eq!(attr(&main, directory).mtime, FUTURE);
    commit(&first).unwrap();
    // The next ones meet no time ahead, and go side by side again.
    let (first, second) = (begin(&main, Isolation::Snapshot), begin(&main, Isolation::Snapshot));
    first.file(node_in(&first), "c");
    second.file(node_in(&second), "d");
    commit(&first).unwrap();
    commit(&second).unwrap();
    assert_eq!(both(&mut main, b"n"), [(now, now); 2]);
    main.assert_sound("committed");
}
