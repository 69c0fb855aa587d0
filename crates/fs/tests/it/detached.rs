//! Trees that go by one operation and are removed in the background: all or nothing, whatever comes in
//! between.

use std::sync::Arc;

use kvfs_fs::{
    Attr, Caller, DetachedTrees, FileSystem, FsError, Limits, MountOptions, NodeId, Pause, QuotaKind,
    RenameMode, Result, TreeRights, TxnId, check, remove_tree,
};
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, Isolation, KeyspaceKind, Store};

use crate::setup::{Random, Setup};
use crate::snapshots::{self, Tree, lines, rename, restore, tree, view_of};
use crate::transfer::{model, pass_on};
use crate::undo::{below, keeping, look, mess, over_the_engine, same, txn, undo_selected, undone, write};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

/// Root's.
pub(crate) struct All;

impl TreeRights for All {
    fn is_everything(&self) -> bool {
        true
    }

    fn check_directory(&self, _: NodeId, _: &Attr) -> Result<()> {
        unreachable!("nothing is asked")
    }

    fn depends_on_entries(&self, _: &Attr) -> bool {
        unreachable!("nothing is asked")
    }

    fn check_entry(&self, _: &Attr, _: &Attr) -> Result<()> {
        Ok(())
    }
}

/// Asks of everything, and allows it; at each directory something happens first.
pub(crate) struct Asking<F: Fn()>(pub(crate) F);

impl<F: Fn()> TreeRights for Asking<F> {
    fn is_everything(&self) -> bool {
        false
    }

    fn check_directory(&self, _: NodeId, _: &Attr) -> Result<()> {
        (self.0)();
        Ok(())
    }

    fn depends_on_entries(&self, _: &Attr) -> bool {
        false
    }

    fn check_entry(&self, _: &Attr, _: &Attr) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn remove(main: &Setup, parent: NodeId, name: &str) -> TxnId {
    DetachedTrees::of(&main.fs).prepare().unwrap();
    txn(main, |view| {
        // A view knows what it has looked up.
        if parent != ROOT {
            look(view, ROOT, "keep");
        }
        remove_tree(&view.fs, &Caller::default(), (parent, name.as_bytes()), &All).unwrap();
    })
}

/// Goes on with the removal: so many names, about.
pub(crate) fn go_on(main: &Setup, names: u64) -> u64 {
    DetachedTrees::of(&main.fs).remove_some(names).unwrap()
}

pub(crate) fn finish(main: &Setup) {
    while go_on(main, 1000) > 0 {}
    assert_eq!(trees(&main.fs), 0);
}

pub(crate) fn trees(fs: &FileSystem) -> u64 {
    DetachedTrees::of(fs).count().unwrap()
}

/// `tree` with 300 files in two directories, one of which has a name outside, too.
pub(crate) fn planted(main: &Setup) -> NodeId {
    let top = main.dir(ROOT, "tree");
    for name in ["a", "b"] {
        let directory = main.dir(top, name);
        for number in 0..150 {
            write(main, directory, &format!("{number:03}"), &format!("{name}{number}"));
        }
    }
    let linked = look(main, look(main, top, "a"), "007");
    main.link(&main.caller, linked, ROOT, b"outside").unwrap();
    main.dir(ROOT, "keep");
    top
}

/// A random tree as `tree`, with links to what is beside it, and a mess there.
pub(crate) fn grown(main: &Setup, random: &mut Random) -> NodeId {
    let top = main.dir(ROOT, "tree");
    mess(main, random, ROOT, "n", 20);
    mess(main, random, top, "n", 60);
    for listed in main.list(top, 50, false) {
        let name = String::from_utf8_lossy(&listed.name).into_owned();
        // A directory gets none.
        drop(main.link(&main.caller, NodeId(listed.inode), ROOT, format!("link-{name}").as_bytes()));
    }
    top
}

#[test]
fn file_that_goes_with_a_tree_it_was_moved_into_is_told_as_removed() {
    let main = keeping(100);
    main.file(ROOT, "a");
    main.dir(ROOT, "trash");
    main.store.create_snapshot("one").unwrap();
    rename(&main, (ROOT, "a"), (look(&main, ROOT, "trash"), "a"));
    remove(&main, ROOT, "trash");
    main.store.create_snapshot("two").unwrap();
    let (one, two) = (view_of(&main, "one").fs, view_of(&main, "two").fs);
    let told = |after, before| lines(&snapshots::diff_from(after, before).unwrap());
    assert_eq!(told(&two, &one), ["- /a", "- /trash"]);
    assert_eq!(told(&one, &two), ["+ /a", "+ /trash"]);
}

#[test]
fn file_that_an_earlier_transaction_moves_into_a_removed_tree_goes_with_it_and_a_directory_is_a_conflict() {
    let main = keeping(100);
    main.dir(main.dir(ROOT, "a"), "b");
    main.file(ROOT, "file");
    main.dir(ROOT, "directory");
    DetachedTrees::of(&main.fs).prepare().unwrap();
    let [files, directories] = [(); 2].map(|()| begin(&main, Isolation::Snapshot));
    remove(&main, ROOT, "a");
    let b = look(&files, look(&files, ROOT, "a"), "b");
    rename(&files, (ROOT, "file"), (b, "file"));
    files.file(ROOT, "made");
    commit(&files.fs).unwrap();
    let b = look(&directories, look(&directories, ROOT, "a"), "b");
    let (caller, mode) = (&directories.caller, RenameMode::Replace);
    let moved = directories.rename(caller, ROOT, b"directory", b, b"directory", mode);
    assert!(matches!(moved, Err(FsError::Canceled(_))), "{moved:?}");
    drop(directories);
    finish(&main);
    let left: Vec<_> = tree(&main).0.into_keys().collect();
    assert_eq!(left, ["/", "/directory", "/made"]);
    main.assert_sound("gone");
}

#[test]
fn a_tree_goes_by_one_operation_and_is_removed_behind_it() {
    for main in [keeping(100), over_the_engine(16 << 10)] {
        let top = planted(&main);
        let open = look(&main, look(&main, top, "b"), "100");
        remove(&main, ROOT, "tree");
        assert!(matches!(main.lookup(&main.caller, ROOT, b"tree"), Err(FsError::NotFound)));
        assert_eq!(trees(&main.fs), 1);
        main.assert_sound("detached");
        assert_eq!(go_on(&main, 40), 40);
        main.assert_sound("in the middle");
        assert_eq!(main.getattr(&main.caller, look(&main, ROOT, "outside")).unwrap().nlink, 1);
        finish(&main);
        main.assert_sound("at the end");
        assert_eq!(main.read_all(open), b"b100", "what is open stays");
        assert_eq!(DetachedTrees::of(&main.fs).stats().names_removed, 303);
        let left: Vec<_> = tree(&main).0.into_keys().collect();
        assert_eq!(left, ["/", "/keep", "/outside"]);
    }
}

#[test]
fn a_tree_is_removed_on_after_a_crash() {
    let mut main = keeping(100);
    planted(&main);
    remove(&main, ROOT, "tree");
    go_on(&main, 100);
    main.reopen();
    assert_eq!(trees(&main.fs), 1);
    main.housekeep().unwrap();
    assert_eq!(trees(&main.fs), 0);
    main.assert_sound("reopened");
}

#[test]
fn undo_brings_back_a_tree_however_much_of_it_has_gone() {
    let check = |main: &Setup, seed: u64| {
        let mut random = Random::new(seed);
        grown(main, &mut random);
        let before = tree(main).0;
        DetachedTrees::of(&main.fs).prepare().unwrap();
        let id = txn(main, |view| {
            if seed.is_multiple_of(3) {
                let top = look(view, ROOT, "tree");
                mess(view, &mut random, top, "n", 20);
            }
            remove_tree(&view.fs, &Caller::default(), (ROOT, b"tree"), &All).unwrap();
        });
        // Names in the tree that has gone count as links until they are removed.
        let unlinked = |mut tree: Tree| {
            for seen in tree.values_mut() {
                seen.nlink = 0;
            }
            tree
        };
        let without = unlinked(tree(main).0);
        let names = before.len() - without.len();
        go_on(main, random.below(names as u64 + 4));
        undone(main, id);
        same(&tree(main).0, &before, &format!("seed {seed}"));
        main.assert_sound(&format!("seed {seed}, taken back"));
        // And the undo is taken back.
        let point = kvfs_fs::undo_points(&**main.fs.store()).pop().unwrap().0;
        undone(main, point.txn);
        same(&unlinked(tree(main).0), &without, &format!("seed {seed}, back again"));
        finish(main);
        same(&unlinked(tree(main).0), &without, &format!("seed {seed}, removed"));
        main.assert_sound(&format!("seed {seed}, removed"));
    };
    for seed in 1..=30 {
        check(&keeping(if seed % 2 == 0 { 100 } else { 4096 }), seed);
    }
    for seed in 101..=112 {
        check(&over_the_engine(if seed % 2 == 0 { 16 << 10 } else { 1 << 20 }), seed);
    }
}

#[test]
fn undo_brings_back_a_part_of_a_tree_as_new_files() {
    let main = keeping(100);
    planted(&main);
    let id = remove(&main, ROOT, "tree");
    go_on(&main, 60);
    // What is left would be in the way.
    DetachedTrees::of(&main.fs).remove_all().unwrap();
    let selection = kvfs_fs::Selection { only: below(&["/tree/b/010"]), ..kvfs_fs::Selection::default() };
    assert_eq!(undo_selected(&main, id, &selection).unwrap(), [""; 0]);
    let found: Vec<_> = tree(&main).0.into_keys().collect();
    assert_eq!(found, ["/", "/keep", "/outside", "/tree", "/tree/b", "/tree/b/010"]);
    let b = look(&main, look(&main, ROOT, "tree"), "b");
    assert_eq!(main.read_all(look(&main, b, "010")), b"b10");
    finish(&main);
    main.assert_sound("a part");
    assert_eq!(tree(&main).0.len(), 6);
}

#[test]
fn restore_brings_back_a_tree_however_much_of_it_has_gone() {
    for (seed, parts) in (1..=20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let main = if seed % 4 == 0 { over_the_engine(16 << 10) } else { keeping(100) };
        let mut random = Random::new(seed);
        grown(&main, &mut random);
        let before = tree(&main).0;
        main.store.create_snapshot("whole").unwrap();
        remove(&main, ROOT, "tree");
        let names = before.len() - tree(&main).0.len();
        go_on(&main, random.below(names as u64 + 4));
        let pause = Pause::of(&main.fs);
        if parts {
            let then = view_of(&main, "whole");
            let view = begin(&main, Isolation::Snapshot);
            kvfs_fs::restore_paths(&view.fs, &then.fs, &["/tree".into()]).unwrap();
            commit(&view.fs).unwrap();
        } else {
            restore(&main, "whole").unwrap();
        }
        drop(pause);
        let without_times = |mut tree: Tree| {
            // Of directories above, which a restore of a part leaves alone.
            tree.remove("/");
            tree
        };
        let context = format!("seed {seed}, parts {parts}");
        same(&without_times(tree(&main).0), &without_times(before), &context);
        main.assert_sound(&context);
        finish(&main);
        main.assert_sound(&context);
    }
}

#[test]
fn comparisons_tell_of_a_removed_tree_and_not_of_its_removal() {
    let main = over_the_engine(16 << 10);
    let top = planted(&main);
    main.store.create_snapshot("before").unwrap();
    write(&main, look(&main, top, "a"), "008", "changed");
    DetachedTrees::of(&main.fs).prepare().unwrap();
    let view = begin(&main, Isolation::Snapshot);
    remove_tree(&view.fs, &Caller::default(), (ROOT, b"tree"), &All).unwrap();
    assert_eq!(lines(&kvfs_fs::diff(&view.fs).unwrap()), ["- /tree"]);
    commit(&view.fs).unwrap();
    main.store.create_snapshot("detached").unwrap();
    go_on(&main, 20);
    main.store.create_snapshot("begun").unwrap();
    finish(&main);
    main.store.create_snapshot("done").unwrap();
    let diff = |from: &str, to: &str| {
        let (before, after) = (view_of(&main, from), view_of(&main, to));
        lines(&snapshots::diff_from(&after.fs, &before.fs).unwrap())
    };
    assert_eq!(diff("detached", "begun"), [""; 0]);
    assert_eq!(diff("begun", "done"), [""; 0]);
    assert_eq!(diff("done", "detached"), [""; 0]);
    let gone = diff("before", "detached");
    assert_eq!(gone, ["- /tree", "- /tree/a/008"], "what has changed in it, too");
    let gone = diff("before", "done");
    assert_eq!((gone.len(), &gone[0][..]), (303, "- /tree"));
    assert!(gone.iter().all(|line| line.starts_with("- /tree")), "{gone:?}");
    assert_eq!(diff("done", "before").len(), 303);
}

#[test]
fn what_is_moved_out_of_a_tree_stays_whole() {
    let main = keeping(100);
    let top = planted(&main);
    let keep = look(&main, ROOT, "keep");
    // What a process inside of it can do: it has the directory open.
    remove(&main, ROOT, "tree");
    go_on(&main, 10);
    rename(&main, (top, "b"), (keep, "b"));
    let a = look(&main, top, "a");
    write(&main, a, "new", "made in what is going");
    rename(&main, (a, "140"), (keep, "140"));
    finish(&main);
    main.assert_sound("moved out");
    assert_eq!(tree(&main).0.keys().filter(|path| path.starts_with("/keep/b/")).count(), 150);
    assert_eq!(main.read_all(look(&main, keep, "140")), b"a140");
}

/// `tree` as a chain of so many directories named `d`, a file in each; from the top down.
fn chain(main: &Setup, len: usize) -> Vec<NodeId> {
    let mut directories = vec![main.dir(ROOT, "tree")];
    for level in 0..len {
        let above = directories[level];
        write(main, above, "file", &level.to_string());
        directories.push(main.dir(above, "d"));
    }
    main.dir(ROOT, "keep");
    directories
}

#[test]
fn what_is_moved_out_above_the_removal_stays_whole() {
    let main = keeping(100);
    let directories = chain(&main, 50);
    let keep = look(&main, ROOT, "keep");
    remove(&main, ROOT, "tree");
    // It is at about the thirtieth by now.
    go_on(&main, 30);
    assert!(main.lookup(&main.caller, directories[20], b"file").is_err());
    rename(&main, (directories[10], "d"), (keep, "moved"));
    let left = |main: &Setup| tree(main).0.keys().filter(|path| path.ends_with("/file")).count();
    let kept = left(&main);
    assert!((10..25).contains(&kept), "{kept}");
    finish(&main);
    assert_eq!(left(&main), kept);
    main.assert_sound("moved out above");
}

#[test]
fn a_transaction_that_begins_later_moves_no_directory_out_of_a_tree() {
    let main = keeping(100);
    let directories = chain(&main, 50);
    remove(&main, ROOT, "tree");
    go_on(&main, 30);
    let view = begin(&main, Isolation::Snapshot);
    let keep = look(&view, ROOT, "keep");
    let mode = RenameMode::Replace;
    let refused = view.rename(&view.caller, directories[10], b"d", keep, b"moved", mode);
    assert!(matches!(refused, Err(FsError::NotFound | FsError::Stale(_))), "{refused:?}");
    finish(&main);
    commit(&view.fs).unwrap();
    main.assert_sound("moved by a transaction");
}

#[test]
fn a_branch_moves_no_directory_out_of_what_is_being_removed() {
    let main = over_the_engine(1 << 20);
    chain(&main, 50);
    main.fs.branches().create("b", 1000).unwrap();
    let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
    let above = look(&branch, look(&branch, ROOT, "tree"), "d");
    rename(&branch, (above, "d"), (look(&branch, ROOT, "keep"), "moved"));
    branch.branches().checkpoint().unwrap();
    drop(branch);
    remove(&main, ROOT, "tree");
    go_on(&main, 30);
    let merging = kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1);
    assert!(matches!(merging, Err(FsError::MergeRefused { .. })), "{:?}", merging.map(drop));
    finish(&main);
    main.assert_sound("not merged");
}

#[test]
fn a_chain_of_many_directories_goes() {
    let main = keeping(100);
    chain(&main, 3000);
    remove(&main, ROOT, "tree");
    finish(&main);
    assert!(!tree(&main).0.keys().any(|path| path.starts_with("/tree")));
    main.assert_sound("gone");
}

#[test]
fn a_transaction_that_began_before_moves_nothing_out_of_what_is_being_removed() {
    for main in [keeping(100), over_the_engine(1 << 20)] {
        planted(&main);
        DetachedTrees::of(&main.fs).prepare().unwrap();
        let early = [begin(&main, Isolation::Snapshot), begin(&main, Isolation::Snapshot)];
        let outcome = |view: &Setup, from: &str| {
            let (top, keep) = (look(view, ROOT, "tree"), look(view, ROOT, "keep"));
            let mode = RenameMode::Replace;
            view.rename(&view.caller, top, from.as_bytes(), keep, b"moved", mode)?;
            commit(&view.fs).map(drop)
        };
        remove(&main, ROOT, "tree");
        // The first file of `a` has gone; `b` is as it was.
        go_on(&main, 1);
        let refused = outcome(&early[0], "a");
        assert!(matches!(refused, Err(FsError::Canceled(_))), "{refused:?}");
        outcome(&early[1], "b").unwrap();
        finish(&main);
        main.assert_sound("moved by a transaction");
        let kept = tree(&main).0;
        assert_eq!(kept.keys().filter(|path| path.starts_with("/keep/moved/")).count(), 150);
    }
}

#[test]
fn what_a_transaction_holds_waits_and_the_next_tree_does_not() {
    let main = keeping(100);
    let top = planted(&main);
    let other = main.dir(ROOT, "other");
    write(&main, other, "file", "text");
    let view = begin(&main, Isolation::Snapshot);
    let a = look(&view, look(&view, ROOT, "tree"), "a");
    write(&view, a, "000", "held");
    remove(&main, ROOT, "tree");
    remove(&main, ROOT, "other");
    while go_on(&main, 1000) > 0 {}
    assert_eq!(trees(&main.fs), 1, "but for what is held");
    assert!(main.lookup(&main.caller, look(&main, top, "a"), b"000").is_ok());
    commit(&view.fs).unwrap();
    finish(&main);
    main.assert_sound("held and given back");
}

#[test]
fn nothing_is_removed_while_something_may_come_back() {
    let main = keeping(100);
    planted(&main);
    remove(&main, ROOT, "tree");
    let pauses = [Pause::of(&main.fs), Pause::of(&main.fs)];
    assert_eq!(go_on(&main, 1000), 0);
    for pause in pauses {
        assert_eq!(go_on(&main, 1000), 0);
        drop(pause);
    }
    finish(&main);
}

#[test]
fn a_user_out_of_quota_gets_what_a_removed_tree_had() {
    let mut main = keeping(100);
    planted(&main);
    // No file is open.
    main.reopen();
    let (quotas, user) = (main.fs.quotas(), main.caller.uid);
    quotas.turn_on(&|_| {}).unwrap();
    let usage = |main: &Setup| main.fs.quotas().get(QuotaKind::User, user).unwrap().usage.inodes;
    let used = usage(&main);
    let limits = Limits { inodes_hard: used as u64, ..Limits::default() };
    quotas.set(QuotaKind::User, user, limits).unwrap();
    let make = |name: &str| {
        main.fs.with_space(&main.caller, || main.create(&main.caller, ROOT, name.as_bytes(), 0o644, true))
    };
    assert!(matches!(make("more"), Err(FsError::QuotaExceeded)));
    remove(&main, ROOT, "tree");
    make("more").unwrap();
    finish(&main);
    assert_eq!(usage(&main), used - 302 + 1, "a file has a name outside");
    main.assert_sound("counted");
    let report = check::check(&main.store).unwrap();
    assert_eq!(report.problems, []);
}

#[test]
fn trees_that_a_stream_brings_are_left_to_the_next_stream() {
    let (source, mut replica) = (model(1), model(2));
    planted(&source);
    source.store.create_snapshot("first").unwrap();
    remove(&source, ROOT, "tree");
    go_on(&source, 100);
    source.store.create_snapshot("second").unwrap();
    finish(&source);
    source.store.create_snapshot("third").unwrap();
    for (from, to) in [(None, "first"), (Some("first"), "second"), (Some("second"), "third")] {
        pass_on(&source, from, to, &mut replica, false).unwrap();
        assert_eq!(trees(&replica.fs), u64::from(to == "second"));
        replica.housekeep().unwrap();
        replica.assert_sound(to);
        let (then, now) = (view_of(&source, to), tree(&replica).0);
        same(&now, &tree(&then).0, to);
    }
    // Where the stream was not gone on with, they go when the store goes on by itself.
    let mut replica = model(3);
    for (from, to) in [(None, "first"), (Some("first"), "second")] {
        pass_on(&source, from, to, &mut replica, false).unwrap();
    }
    // A snapshot alone is no change.
    replica.store.create_snapshot("own").unwrap();
    replica.housekeep().unwrap();
    assert_eq!(trees(&replica.fs), 1);
    replica.file(ROOT, "new");
    replica.store.create_snapshot("changed").unwrap();
    finish(&replica);
    replica.assert_sound("on its own");
    let mut replica = model(4);
    for (from, to) in [(None, "first"), (Some("first"), "second"), (Some("second"), "third")] {
        let received = pass_on(&source, from, to, &mut replica, false).unwrap();
        assert!(!received.rolled_back);
        replica.store.create_snapshot(&format!("own {to}")).unwrap();
        replica.housekeep().unwrap();
    }
    replica.assert_sound("with snapshots of its own");
}

#[test]
fn repair_leaves_detached_trees_where_they_are() {
    let main = keeping(100);
    planted(&main);
    remove(&main, ROOT, "tree");
    go_on(&main, 20);
    let report = kvfs_fs::repair::repair(&main.store, &*main.clock, &[], false).unwrap();
    assert_eq!(report, kvfs_fs::repair::RepairReport::default());
    let mut main = main;
    main.reopen();
    finish(&main);
    main.assert_sound("repaired");
}

#[test]
fn names_that_have_gone_and_are_known_are_told() {
    let mut main = keeping(100);
    planted(&main);
    // No name is known.
    main.reopen();
    let top = look(&main, ROOT, "tree");
    let (a, b) = (look(&main, top, "a"), look(&main, top, "b"));
    let (linked, known) = (look(&main, a, "007"), look(&main, b, "017"));
    remove(&main, ROOT, "tree");
    go_on(&main, 20);
    let stale = DetachedTrees::of(&main.fs).take_stale();
    assert_eq!(
        (stale.linked, stale.emptied),
        ([linked].into(), [a].into()),
        "its attributes, and one listing"
    );
    finish(&main);
    let stale = DetachedTrees::of(&main.fs).take_stale();
    let told: Vec<_> = stale.gone.into_iter().map(|gone| (gone.link.unwrap(), gone.node)).collect();
    assert_eq!(told[0], ((top, Box::from(&b"a"[..])), a));
    assert_eq!(told[1], ((b, Box::from(&b"017"[..])), known));
    // And the other directories.
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!((stale.linked, stale.emptied), ([].into(), [a, b, top].into()));
    let stale = DetachedTrees::of(&main.fs).take_stale();
    assert!(stale.gone.is_empty() && stale.linked.is_empty() && stale.emptied.is_empty());
}

#[test]
fn what_was_removed_as_a_whole_is_in_the_way_of_an_undo_in_it() {
    for names in [0, 20] {
        let main = over_the_engine(1 << 20);
        let top = planted(&main);
        let earlier = txn(&main, |view| {
            let a = look(view, look(view, ROOT, "tree"), "a");
            view.write_at(look(view, a, "003"), 0, b"earlier").unwrap();
            write(view, a, "made", "by it");
        });
        let removal = remove(&main, ROOT, "tree");
        go_on(&main, names);
        let all = kvfs_fs::Selection { force: vec![kvfs_fs::Area::All], ..kvfs_fs::Selection::default() };
        for selection in [kvfs_fs::Selection::default(), all] {
            let found = undo_selected(&main, earlier, &selection).unwrap();
            assert_eq!(found[0], "- /tree/a", "{found:?}");
        }
        undone(&main, removal);
        if names == 0 {
            // Files that had to be made again would be others.
            undone(&main, earlier);
            let a = look(&main, top, "a");
            assert_eq!(main.read_all(look(&main, a, "003")), b"a3");
            assert!(main.lookup(&main.caller, a, b"made").is_err());
        }
    }
}

#[test]
fn a_branch_of_what_was_removed_as_a_whole_does_not_merge() {
    let change = |branch: &Setup, path: &str| {
        let a = look(branch, look(branch, ROOT, "tree"), "a");
        match path {
            "/tree/a/003" => assert_eq!(branch.write_at(look(branch, a, "003"), 0, b"more").unwrap(), 4),
            "/tree/a/new" => write(branch, a, "new", "text"),
            _ => rename(branch, (ROOT, "keep"), (a, "keep")),
        }
    };
    for path in ["/tree/a/003", "/tree/a/new", "keep"] {
        let main = over_the_engine(1 << 20);
        planted(&main);
        main.fs.branches().create("b", 1000).unwrap();
        let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
        change(&branch, path);
        branch.branches().checkpoint().unwrap();
        drop(branch);
        remove(&main, ROOT, "tree");
        let Err(FsError::MergeRefused { conflicts, .. }) =
            kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1)
        else {
            panic!("{path}: merged into what was removed");
        };
        let told = |conflict: &String| {
            conflict.starts_with("/tree/a") && conflict.ends_with("was removed outside of the branch")
        };
        assert!(conflicts.iter().any(told), "{path}: {conflicts:?}");
    }
}

#[test]
fn a_tree_on_a_full_store_goes_and_makes_room() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::with_capacity_bytes(1 << 20));
    let main = Setup::with(Arc::clone(&store), 100, MountOptions::default());
    let top = main.dir(ROOT, "tree");
    let files: Vec<NodeId> =
        (0..100).map(|number| main.file(main.dir(top, &format!("{number}")), "file")).collect();
    for file in files {
        main.write_at(file, 0, &[1; 8192]).unwrap();
    }
    let filler = store.open_keyspace("filler", KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.put(filler, "k", vec![1; store.space().available_bytes as usize - 1]);
    store.apply(batch, Durability::Buffered).unwrap();
    let mut main = main;
    main.reopen();
    let make = || main.with_space(&main.caller, || main.create(&main.caller, ROOT, b"new", 0o644, true));
    assert!(matches!(make(), Err(FsError::NoSpace)));
    remove(&main, ROOT, "tree");
    make().unwrap();
    finish(&main);
    main.assert_sound("made room");
}

#[test]
fn undo_finds_what_has_gone_behind_what_came() {
    let main = keeping(100);
    let top = planted(&main);
    let b = look(&main, top, "b");
    let id = remove(&main, ROOT, "tree");
    go_on(&main, 200);
    // A process that is inside.
    write(&main, b, "0-new", "text");
    undone(&main, id);
    let names: Vec<_> = tree(&main).0.into_keys().filter(|path| path.starts_with("/tree/b/")).collect();
    assert_eq!(names.len(), 151, "{names:?}");
    main.assert_sound("with what came");
}

#[test]
fn undo_leaves_what_was_moved_out_where_it_is() {
    let main = keeping(100);
    let top = planted(&main);
    let keep = look(&main, ROOT, "keep");
    let id = remove(&main, ROOT, "tree");
    rename(&main, (top, "b"), (keep, "b"));
    finish(&main);
    undone(&main, id);
    let found = tree(&main).0;
    assert!(!found.contains_key("/tree/b") && found.contains_key("/keep/b/149"));
    assert_eq!(found.keys().filter(|path| path.starts_with("/tree/a/")).count(), 150);
    main.assert_sound("moved out and taken back");
}

#[test]
fn trees_that_come_during_a_walk_are_not_missed() {
    let main = keeping(100);
    let detach = |name: &str| {
        write(&main, main.dir(ROOT, name), "file", "text");
        remove(&main, ROOT, name);
    };
    for number in 0..20 {
        detach(&format!("tree-{number}"));
        // The walk stops behind some tree; a later number may sort before it.
        go_on(&main, random_of(number));
    }
    DetachedTrees::of(&main.fs).remove_all().unwrap();
    assert_eq!(trees(&main.fs), 0);
}

fn random_of(number: u64) -> u64 {
    Random::new(number + 1).below(4)
}

#[test]
fn trees_with_many_directories_are_told_as_removed() {
    // More names than paths are remembered of: what is detached is told all the same.
    let main = keeping(100);
    let top = planted(&main);
    let mut at = look(&main, top, "a");
    for _ in 0..300 {
        at = main.dir(at, &"d".repeat(200));
    }
    let earlier = txn(&main, |view| {
        let mut at = look(view, look(view, ROOT, "tree"), "a");
        for _ in 0..300 {
            at = look(view, at, &"d".repeat(200));
        }
        write(view, at, "deep", "down");
    });
    remove(&main, ROOT, "tree");
    let found = undo_selected(&main, earlier, &kvfs_fs::Selection::default()).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_damaged_tree_is_in_the_way_of_no_other() {
    for damage in 0..3 {
        let main = keeping(100);
        let (first, second) = (planted(&main), main.dir(ROOT, "second"));
        write(&main, second, "file", "content");
        let a = look(&main, first, "a");
        remove(&main, ROOT, "tree");
        remove(&main, ROOT, "second");
        let all = main.store.keyspaces();
        let meta = all.iter().find(|info| info.name == "meta").unwrap().keyspace;
        let row = |inode: NodeId, name: &[u8]| [&inode.0.to_be_bytes()[..], b"\0", name].concat();
        let mut batch = Batch::new();
        match damage {
            0 => batch.delete(meta, row(a, b"")),
            // Counted, and not there.
            1 => batch.delete(meta, row(a, b"008")),
            // Without the row that it leads to.
            _ => batch.delete(meta, row(look(&main, ROOT, "outside"), b"")),
        }
        main.store.apply(batch, Durability::Buffered).unwrap();
        let mut main = main;
        main.reopen();
        let removed = DetachedTrees::of(&main.fs).remove_all();
        assert_eq!(removed.is_err(), damage == 2, "{removed:?}");
        assert_eq!(trees(&main.fs), 1, "damage {damage}: the rest waits for a repair");
        kvfs_fs::repair::repair(&main.store, &*main.clock, &[], false).unwrap();
        main.reopen();
        finish(&main);
        main.assert_sound("repaired");
    }
}
