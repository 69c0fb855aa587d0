//! Branches: worked in beside the main line, kept, merged or refused. Each way in which the tree could come
//! apart has its case.

use std::sync::Arc;

use kvfs_fs::{
    Area, BRANCHES_MAX, FsError, MountOptions, NodeId, Owner, RenameMode, Result, SNAPSHOTS_MAX, Selection,
    SetAttr, XattrMode, undo_points,
};
use kvfs_store::model::ModelStore;
use kvfs_store::{Isolation, StoreError};

use crate::branches_of_branches;
use crate::engine;
use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

fn branch(main: &Setup, name: &str) -> Setup {
    main.fs.branches().create(name, 1000).unwrap();
    open(main, name)
}

pub(crate) fn open(main: &Setup, name: &str) -> Setup {
    main.through(main.fs.open_branch(name).unwrap(), main.options)
}

pub(crate) fn merge(main: &Setup, name: &str) -> Result<()> {
    commit(&*kvfs_fs::begin_merge(&main.fs, &main.branch(name), 1)?).map(drop)
}

/// Leaves the branch as it is and merges it.
pub(crate) fn finish(main: &Setup, view: Setup, name: &str) -> Result<()> {
    view.branches().checkpoint().unwrap();
    drop(view);
    merge(main, name)
}

pub(crate) fn at(view: &Setup, path: &str) -> Result<NodeId> {
    path.split('/').filter(|name| !name.is_empty()).try_fold(view.nodes().root(), |dir, name| {
        view.lookup(&view.caller, dir, name.as_bytes()).map(|entry| entry.node)
    })
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Small commands, so that a case is a line.
pub(crate) fn act(view: &Setup, command: &str) -> Result<()> {
    let words: Vec<&str> = command.split(' ').collect();
    let caller = &view.caller;
    let (dir, name) = split(words[1]);
    let parent = at(view, dir)?;
    match (words[0], words.get(2)) {
        ("mkdir", _) => view.mkdir(caller, parent, name.as_bytes(), 0o755).map(drop),
        ("rmdir", _) => view.rmdir(caller, parent, name.as_bytes()),
        ("rm", _) => view.unlink(caller, parent, name.as_bytes()),
        ("touch", _) => view.create(caller, parent, name.as_bytes(), 0o644, true).map(drop),
        ("write", Some(text)) => {
            let node = view.create(caller, parent, name.as_bytes(), 0o644, false)?.0.node;
            view.write_at(node, 0, text.repeat(300).as_bytes()).map(drop)
        }
        ("block", Some(number)) => {
            let offset = number.parse::<u64>().unwrap() * 4096;
            view.write_at(at(view, words[1])?, offset, &[7; 4096]).map(drop)
        }
        ("truncate", Some(size)) => {
            let size = Some(size.parse().unwrap());
            let change = SetAttr { size, ..SetAttr::default() };
            view.setattr(caller, at(view, words[1])?, &change).map(drop)
        }
        ("chmod", Some(mode)) => {
            let mode = Some(u32::from_str_radix(mode, 8).unwrap());
            let change = SetAttr { mode, ..SetAttr::default() };
            view.setattr(caller, at(view, words[1])?, &change).map(drop)
        }
        ("setxattr", Some(name)) => {
            view.setxattr(caller, at(view, words[1])?, name.as_bytes(), b"1", XattrMode::Set)
        }
        ("mv", Some(to)) => {
            let (to_dir, to_name) = split(to);
            let target = at(view, to_dir)?;
            view.rename(caller, parent, name.as_bytes(), target, to_name.as_bytes(), RenameMode::Replace)
        }
        ("ln", Some(to)) => {
            let (to_dir, to_name) = split(to);
            view.link(caller, at(view, words[1])?, at(view, to_dir)?, to_name.as_bytes()).map(drop)
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn act_all(view: &Setup, commands: &str) {
    for command in commands.split("; ").filter(|command| !command.is_empty()) {
        act(view, command).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

/// Every path, with size and links.
pub(crate) fn tree(view: &Setup) -> Vec<String> {
    let mut tree = Vec::new();
    let mut stack = vec![(String::new(), view.nodes().root())];
    while let Some((path, dir)) = stack.pop() {
        for listed in view.list(dir, 9, false) {
            let name = String::from_utf8(listed.name).unwrap();
            if name == "." || name == ".." {
                continue;
            }
            let entry = view.lookup(&view.caller, dir, name.as_bytes()).unwrap();
            let path = format!("{path}/{name}");
            tree.push(format!("{path} {:o} {} {}", entry.attr.mode, entry.attr.size, entry.attr.nlink));
            if listed.kind == kvfs_fs::FileType::Directory {
                stack.push((path, entry.node));
            }
        }
    }
    tree.sort();
    tree
}

/// The main line has `before`, then the branch does one thing and the main line another. Gives what a merge
/// says.
fn meet(before: &str, in_branch: &str, outside: &str) -> (Setup, Result<()>) {
    let context = format!("{before} | {in_branch} | {outside}");
    let main = Setup::new(1000);
    act_all(&main, before);
    let view = branch(&main, "b");
    act_all(&view, in_branch);
    let inside = tree(&view);
    act_all(&main, outside);
    let now = tree(&main);
    let merged = finish(&main, view, "b");
    if merged.is_err() {
        assert_eq!(tree(&main), now, "{context}: a refused merge changes nothing");
        let view = open(&main, "b");
        assert_eq!(tree(&view), inside, "{context}: the branch stays usable");
        act(&view, "touch later").unwrap();
        drop(view);
        assert_eq!(main.admission().transactions().len(), 0, "{context}: no lock is left");
        // No lock is in the way of the main line.
        act(&main, "touch later").unwrap();
    }
    main.assert_sound(&context);
    for is_made_in_branch in [false, true] {
        branches_of_branches::meet_alike(
            (before, in_branch, outside),
            is_made_in_branch,
            (&main, merged.as_ref().err()),
        );
    }
    (main, merged)
}

#[test]
fn branches_that_are_open_share_the_bound_of_nodes() {
    let options = MountOptions { node_bytes_max: 4_000_000, ..MountOptions::default() };
    let main = Setup::with(Arc::new(ModelStore::new()), 100, options);
    let names: Vec<String> = (0..10).map(|n| format!("b{n}")).collect();
    for name in &names {
        main.fs.branches().create(name, 1000).unwrap();
    }
    let is_over = |view: &Setup| {
        for n in 0..400 {
            act(view, &format!("touch /{n}")).unwrap();
        }
        !view.nodes().prune_candidates(1).is_empty()
    };
    let open_all = || names.iter().map(|name| open(&main, name)).collect::<Vec<_>>();
    let views = open_all();
    assert!(is_over(&views[9]), "the last of ten has a tenth of what the first has");
    assert!(!is_over(&views[0]));
    drop(views);
    assert!(!is_over(&open(&main, "b5")), "it is the only one");
}

#[test]
fn a_branch_is_worked_in_beside_the_main_line_and_merged() {
    let main = Setup::new(1000);
    act_all(&main, "mkdir d; write d/f old");
    let view = branch(&main, "try");
    act_all(&view, "write d/f new; mkdir d/sub; touch d/sub/x; setxattr d/f user.a; mv d/f d/g");
    act_all(&main, "touch d/other; mkdir elsewhere; chmod d 700");
    assert!(at(&main, "d/g").is_err() && at(&view, "d/other").is_err(), "each sees its own");
    let info = main.branches().get("try").unwrap();
    assert_eq!((&info.name[..], info.uid, info.is_open), ("try", 1000, true));
    finish(&main, view, "try").unwrap();
    assert_eq!(
        tree(&main),
        [
            "/d 700 3 3",
            "/d/g 644 900 1",
            "/d/other 644 0 1",
            "/d/sub 755 1 2",
            "/d/sub/x 644 0 1",
            "/elsewhere 755 0 2"
        ]
    );
    assert_eq!(main.read_all(at(&main, "d/g").unwrap()), "new".repeat(300).as_bytes());
    assert_eq!(main.branches().all(), []);
    main.assert_sound("merged");
}

/// Two moves of directories that make a circle together touch no common record.
#[test]
fn a_merge_never_makes_a_circle_of_directories() {
    for (before, in_branch, outside) in [
        ("mkdir a; mkdir b", "mv a b/a", "mv b a/b"),
        ("mkdir a; mkdir a/x; mkdir b; mkdir b/y", "mv a b/y/a", "mv b a/x/b"),
        ("mkdir a; mkdir b; mkdir c", "mv a b/a", "mv b c/b; mv c a/c"),
        // Through a directory that was made in the branch.
        ("mkdir a; mkdir b", "mkdir b/new; mv a b/new/a", "mv b a/b"),
        ("mkdir a; mkdir b; mkdir c", "mv b a/b; mv a c/a", "mv c b/c"),
    ] {
        let (_, merged) = meet(before, in_branch, outside);
        let Err(FsError::MergeRefused { conflicts, .. }) = merged else { panic!("{merged:?}") };
        assert!(conflicts[0].contains("inside of itself"), "{conflicts:?}");
    }
    // Moves that make none are merged, those of ancestors too.
    for (before, in_branch, outside) in [
        ("mkdir a; mkdir b; mkdir c", "mv a b/a", "mv b c/b"),
        ("mkdir a; mkdir b; mkdir c", "mv a b/a", "mv c a/c"),
        ("mkdir a; mkdir a/x; mkdir b", "mv a/x b/x", "mv a b/a"),
        // Below a directory that the main line has made since.
        ("mkdir a; mkdir b", "mv a b/a", "mkdir c; mv b c/b"),
    ] {
        meet(before, in_branch, outside).1.unwrap();
    }
}

#[test]
fn what_the_main_line_took_away_from_under_a_branch_is_a_conflict() {
    for (before, in_branch, outside) in [
        // Removed, and entered.
        ("mkdir d", "touch d/f", "rmdir d"),
        ("mkdir d", "rmdir d", "touch d/f"),
        ("mkdir d; mkdir e", "mv e d/e", "rmdir d"),
        ("mkdir d; mkdir e", "rmdir d", "mv e d/e"),
        ("mkdir d; touch f", "mv f d/f", "rmdir d"),
        ("mkdir d; mkdir d/e", "rmdir d/e; rmdir d", "touch d/e/f"),
        // Moved, and removed.
        ("mkdir d; mkdir e", "mv d e/d", "rmdir d"),
        ("mkdir d; mkdir e", "rmdir d", "mv d e/d"),
        ("mkdir d; mkdir e", "mv d e/d", "rmdir e"),
        ("mkdir d; mkdir e; mkdir g", "mv d e/d", "mv d g/d"),
        // Names.
        ("", "touch f", "touch f"),
        ("", "mkdir f", "touch f"),
        ("touch f", "mv f g", "mv f h"),
        ("touch f", "mv f g", "touch g"),
        ("touch f", "rm f", "mv f g"),
        // Removed, and written.
        ("write f a", "write f b", "rm f"),
        ("write f a", "rm f", "write f b"),
        ("write f aaaaaaaaaa", "block f 0", "rm f"),
        ("write f a", "setxattr f user.a", "rm f"),
        ("write f a", "mv f g", "write f b"),
        // Content.
        ("write f a", "write f b", "write f c"),
        ("write f aaaaaaaaaa", "block f 0", "block f 0"),
        ("write f aaaaaaaaaa; block f 9", "truncate f 4096", "block f 9"),
        ("write f aaaaaaaaaa; block f 9", "block f 9", "truncate f 4096"),
        ("write f a", "block f 5", "write f b"),
        ("write f aaaaaaaaaa", "block f 3", "block f 8"),
        // Attributes.
        ("touch f", "chmod f 600", "chmod f 640"),
        ("mkdir d", "chmod d 700", "chmod d 711"),
        ("mkdir d", "chmod d 700", "rmdir d"),
        ("touch f", "setxattr f user.a", "setxattr f user.a"),
        // Links: each takes what looks like not the last one.
        ("touch f; ln f g", "rm f", "rm g"),
        ("touch f; ln f g", "rm f", "ln g h"),
        ("touch f", "ln f g", "rm f"),
        ("touch f", "rm f", "ln f g"),
        ("touch f; ln f g", "rm f; rm g", "ln f h"),
        ("touch f; ln f g; ln f h", "rm f; rm g", "rm h"),
    ] {
        let (_, merged) = meet(before, in_branch, outside);
        assert!(
            matches!(merged, Err(FsError::MergeRefused { .. })),
            "{before} | {in_branch} | {outside}: {merged:?}"
        );
    }
}

#[test]
fn what_does_not_meet_is_merged() {
    for (before, in_branch, outside, after) in [
        ("mkdir d", "touch d/f", "touch d/g", "/d 755 2 2"),
        ("mkdir d", "mkdir d/f", "mkdir d/g", "/d 755 2 4"),
        ("mkdir d; touch d/f; touch d/g", "rm d/f", "rm d/g", "/d 755 0 2"),
        ("mkdir d; mkdir e", "touch d/f", "mv d e/d", "/e/d/f 644 0 1"),
        ("mkdir d; mkdir e", "mv d e/d", "touch d/f", "/e/d/f 644 0 1"),
        ("mkdir d", "touch d/f", "chmod d 700", "/d 700 1 2"),
        ("write f aaaaaaaaaa; block f 9", "block f 2", "block f 7", "/f 644 40960 1"),
        ("touch f; ln f g", "mv f h", "write g a", "/h 644 300 2"),
        ("touch f; ln f g", "write f a", "mv g h", "/h 644 300 2"),
        ("touch f", "rm f", "touch g", "/g 644 0 1"),
        ("mkdir d", "touch d/f; rm d/f", "touch d/g", "/d 755 1 2"),
    ] {
        let (main, merged) = meet(before, in_branch, outside);
        merged.unwrap_or_else(|error| panic!("{before} | {in_branch} | {outside}: {error}"));
        let tree = tree(&main);
        assert!(tree.iter().any(|line| line == after), "{before} | {in_branch} | {outside}: {tree:?}");
    }
}

#[test]
fn a_refusal_names_all_paths_and_keys() {
    let main = Setup::new(1000);
    act_all(&main, "mkdir d; mkdir d/e; write d/e/f a; touch d/g");
    let owner = kvfs_kv::KeyspaceOwner { uid: 0, gid: 0, mode: 0o600 };
    let tags = main.keys().make_keyspace("tags", owner).unwrap().0.keyspace;
    let view = branch(&main, "b");
    let put = |on: &Setup, value: &'static [u8]| {
        let change = kvfs_kv::KeyChange::Put { key: b"song"[..].into(), value: value.into() };
        on.keys().apply(&on.caller, vec![(tags, change)]).unwrap();
    };
    act_all(&view, "write d/e/f b; rm d/g");
    put(&view, b"inside");
    act_all(&main, "write d/e/f c; chmod d/g 600");
    put(&main, b"outside");
    let refused = finish(&main, view, "b");
    let Err(FsError::MergeRefused { conflicts, more: 0 }) = refused else { panic!("{refused:?}") };
    let all = conflicts.join("\n");
    for part in ["/d/e/f ", "/d/g ", "\"song\" of keyspace tags"] {
        assert!(all.contains(part), "{part} is not in {all}");
    }
    assert_eq!(conflicts.len(), 3, "{all}");
}

#[test]
fn a_refusal_of_very_many_conflicts_names_a_hundred_and_counts_the_rest() {
    let main = Setup::new(1000);
    let touch = |on: &Setup| (0..150).for_each(|n| act_all(on, &format!("write f{n} x")));
    touch(&main);
    let view = branch(&main, "b");
    touch(&view);
    touch(&main);
    let refused = finish(&main, view, "b");
    let Err(error @ FsError::MergeRefused { .. }) = refused else { panic!("{refused:?}") };
    let text = error.to_string();
    let FsError::MergeRefused { conflicts, more } = error else { return };
    assert!(conflicts.len() == 100 && more >= 50, "{} and {more}", conflicts.len());
    assert!(text.ends_with(&format!("; and {more} more changes")), "{text}");
}

#[test]
fn branches_have_names_and_last() {
    let mut main = Setup::new(1000);
    for bad in ["", ".", "a/b", "a\nb"] {
        assert!(matches!(main.fs.branches().create(bad, 0), Err(FsError::Invalid(_))), "{bad:?}");
    }
    let view = branch(&main, "one");
    assert!(matches!(main.fs.branches().create("one", 0), Err(FsError::Exists)));
    assert!(matches!(view.fs.branches().create("inner", 0), Err(FsError::NotSupported(_))));
    let busy = main.fs.open_branch("one").map(drop).unwrap_err();
    assert!(matches!(busy, FsError::Store(error) if matches!(*error, StoreError::CheckpointOpen(_))));
    assert!(
        kvfs_fs::begin_merge(&main.fs, &main.branch("one"), 1).is_err()
            && main.branches().delete(&main.branch("one")).is_err(),
        "a view of it is open"
    );
    assert!(matches!(main.fs.open_branch("two").map(drop), Err(FsError::NotFound)));
    act_all(&view, "mkdir d; touch d/kept");
    view.branches().checkpoint().unwrap();
    act_all(&view, "touch d/lost");
    branch(&main, "two");
    drop(view);
    main.reopen();
    let names: Vec<_> =
        main.branches().all().into_iter().map(|branch| (branch.name, branch.is_open)).collect();
    assert_eq!(names, [("one".into(), false), ("two".into(), false)]);
    let view = open(&main, "one");
    assert_eq!(tree(&view), ["/d 755 1 2", "/d/kept 644 0 1"]);
    drop(view);
    main.branches().delete(&main.branch("two")).unwrap();
    merge(&main, "one").unwrap();
    assert_eq!(tree(&main), ["/d 755 1 2", "/d/kept 644 0 1"]);
    main.assert_sound("merged after all");
}

/// Numbers are given once, over branches, main line and restarts.
#[test]
fn inode_numbers_of_branches_are_given_once() {
    let device = engine::create();
    let open_db = move || engine::open(&device, 16 << 10, kvfs_kvdb::Background::Manual);
    let mut db = open_db();
    let mut main = Setup::with(db.clone() as _, 1000, MountOptions::default());
    main.reopen_store = Some(Box::new(move || {
        db.close().unwrap();
        db = open_db();
        db.clone() as _
    }));
    let mut seen = std::collections::BTreeSet::new();
    let mut note = |view: &Setup, path: &str| {
        let inode = view.getattr(&view.caller, at(view, path).unwrap()).unwrap().inode;
        assert!(seen.insert(inode), "{path} has the number {inode} of another file");
    };
    for name in ["a", "b"] {
        main.fs.branches().create(name, 0).unwrap();
    }
    for round in 0..3 {
        for name in ["a", "b"] {
            let view = open(&main, name);
            for file in 0..40 {
                let path = format!("{name}-{round}-{file}");
                act(&view, &format!("mkdir {path}")).unwrap();
                act(&view, &format!("touch {path}/f")).unwrap();
                note(&view, &path);
                note(&view, &format!("{path}/f"));
            }
            view.branches().checkpoint().unwrap();
        }
        act(&main, &format!("touch main-{round}")).unwrap();
        note(&main, &format!("main-{round}"));
        main.reopen();
    }
    for name in ["a", "b"] {
        merge(&main, name).unwrap();
    }
    assert_eq!(tree(&main).len(), 2 * 3 * 80 + 3);
    main.assert_sound("both merged");
}

/// What a branch has unlinked while it was open goes away with the merge, whether the main line had it or
/// not.
#[test]
fn orphans_of_a_branch_end_with_the_merge() {
    let main = Setup::new(100);
    act_all(&main, "write old a; write known b");
    let [old, known] = ["old", "known"].map(|name| at(&main, name).unwrap());
    main.forget(old, u64::MAX);
    let view = branch(&main, "b");
    act_all(&view, "write new a; rm new; rm old; rm known");
    let tmp = view.tmpfile(&view.caller, ROOT, 0o600, false).unwrap();
    view.write_at(tmp.node, 0, &[7; 9000]).unwrap();
    finish(&main, view, "b").unwrap();
    assert_eq!(main.read_all(known), "b".repeat(300).as_bytes(), "it is open");
    main.forget(known, u64::MAX);
    main.housekeep().unwrap();
    let report = kvfs_fs::check::check(&main.store).unwrap();
    assert_eq!((report.files, report.orphans, report.blocks), (0, 0, 0));
    main.assert_sound("merged");
}

/// One file is open on the main line and loses its name in the branch, one had lost it before.
#[test]
fn branch_that_is_opened_again_ends_no_orphan_of_the_main_line() {
    let main = Setup::new(100);
    let [open_file, unlinked] = ["open", "unlinked"].map(|name| {
        let file = main.file(ROOT, name);
        main.write_at(file, 0, &[7; 9000]).unwrap();
        file
    });
    act_all(&main, "rm unlinked");
    let view = branch(&main, "b");
    act_all(&view, "rm open; write new a; rm new");
    view.branches().checkpoint().unwrap();
    drop(view);
    let view = open(&main, "b");
    view.housekeep().unwrap();
    assert_eq!(view.nodes().stats().orphans_queued, 0);
    finish(&main, view, "b").unwrap();
    for file in [open_file, unlinked] {
        assert_eq!(main.read_all(file), [7; 9000]);
        main.forget(file, u64::MAX);
    }
    main.housekeep().unwrap();
    let report = kvfs_fs::check::check(&main.store).unwrap();
    assert_eq!((report.files, report.orphans, report.blocks), (0, 0, 0));
    main.assert_sound("merged");
}

/// A transaction that works on the same things stands in the way, and keeps what it has.
#[test]
fn a_merge_and_a_transaction_exclude_each_other() {
    let main = Setup::new(1000);
    act_all(&main, "write f a; write g a; mkdir d");
    for in_transaction in ["write f c", "rm f", "mv f h", "chmod f 600"] {
        let view = branch(&main, "b");
        act_all(&view, "write f b; touch d/x");
        view.branches().checkpoint().unwrap();
        drop(view);
        let txn = begin(&main, Isolation::Snapshot);
        act(&txn, in_transaction).unwrap();
        let refused = crate::interleaved::in_time(&main, || {
            kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1).map(drop)
        });
        assert!(matches!(refused, Err(FsError::Canceled(_))), "{refused:?}");
        assert!(txn.txn().unwrap().doom().is_none());
        drop(txn);
        // The other way round: what is being merged is locked.
        let merging = kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1).unwrap();
        let txn = begin(&main, Isolation::Snapshot);
        assert!(matches!(act(&txn, in_transaction), Err(FsError::Parked(_))));
        act(&txn, "touch d/y").unwrap();
        drop((txn, merging));
        main.branches().delete(&main.branch("b")).unwrap();
    }
}

/// An open transaction that is to outlast a restart becomes a branch.
#[test]
fn a_transaction_becomes_a_branch() {
    let mut main = Setup::new(1000);
    act_all(&main, "write f a; mkdir d");
    let txn = begin(&main, Isolation::Snapshot);
    act_all(&txn, "write f b; mkdir d/e; touch d/e/x; mkdir n; mv d/e n/e");
    txn.branches().keep("txn-1", 1000).unwrap();
    drop(txn);
    assert_eq!(main.admission().transactions().len(), 0);
    act(&main, "touch other").unwrap();
    main.reopen();
    let view = open(&main, "txn-1");
    act(&view, "touch n/e/y").unwrap();
    finish(&main, view, "txn-1").unwrap();
    assert!(at(&main, "n/e/x").is_ok() && at(&main, "n/e/y").is_ok() && at(&main, "other").is_ok());
    main.assert_sound("merged");
    let txn = begin(&main, Isolation::Serializable);
    act(&txn, "touch z").unwrap();
    assert!(matches!(txn.branches().keep("txn-2", 1000), Err(FsError::NotSupported(_))));
    drop(txn);
    assert_eq!(main.store.checkpointed(), []);
}

#[test]
fn merge_of_a_branch_leaves_an_undo_point_of_its_owner() {
    let store = Arc::new(ModelStore::new());
    store.keep_for_undo(8);
    let main = Setup::with(store, 200, MountOptions::default());
    main.fs.branches().create("twig", 1000).unwrap();
    let view = open(&main, "twig");
    act_all(&view, "touch f");
    finish(&main, view, "twig").unwrap();
    let points = undo_points(&**main.fs.store());
    assert_eq!(points.last().unwrap().1.uid, 1000);
    assert!(points.last().unwrap().1.name.contains("twig"));
}

/// Merges with one side preferred everywhere.
pub(crate) fn merge_preferring(main: &Setup, name: &str, selection: &Selection) -> Result<()> {
    let owner = Owner { uid: 0, pid: 1, name: "merge".to_owned() };
    let [merging, branch] = kvfs_fs::begin_merge_preferring(&main.fs, &main.branch(name), owner, selection)?;
    // Nothing can be done in it that would be lost with it, nor a branch be made of it.
    let busy = main.fs.open_branch(name).map(drop).unwrap_err();
    assert!(matches!(busy, FsError::Store(error) if matches!(*error, StoreError::CheckpointOpen(_))));
    commit(&merging)?;
    branch.branches().delete_open()
}

fn branch_wins() -> Selection {
    Selection { force: vec![Area::All], ..Selection::default() }
}

fn main_wins() -> Selection {
    Selection { keep: vec![Area::All], ..Selection::default() }
}

/// What `before`, `in_branch` and `outside` come to when one side is preferred.
fn preferring(selection: &Selection, before: &str, in_branch: &str, outside: &str) -> Vec<String> {
    let main = Setup::new(1000);
    act_all(&main, before);
    let view = branch(&main, "b");
    act_all(&view, in_branch);
    main.clock.advance(std::time::Duration::from_secs(1));
    act_all(&main, outside);
    assert!(matches!(finish(&main, view, "b"), Err(FsError::MergeRefused { .. })), "{in_branch} | {outside}");
    merge_preferring(&main, "b", selection)
        .unwrap_or_else(|error| panic!("{in_branch} | {outside}: {error}"));
    assert_eq!(main.branches().all(), []);
    main.assert_sound(in_branch);
    for is_made_in_branch in [false, true] {
        branches_of_branches::prefer_alike(
            selection,
            (before, in_branch, outside),
            is_made_in_branch,
            &tree(&main),
        );
    }
    tree(&main)
}

#[test]
fn merge_that_prefers_the_branch_has_its_side_of_every_conflict() {
    for (before, in_branch, outside, after) in [
        ("write f a", "write f bb", "write f ccc", &["/f 644 600 1"][..]),
        ("write f a", "write f bb", "rm f", &["/f 644 600 1"]),
        ("write f a", "rm f", "write f bb", &[]),
        ("touch f", "chmod f 600", "chmod f 640", &["/f 600 0 1"]),
        ("", "touch f; chmod f 600", "mkdir f; touch f/g", &["/f 600 0 1"]),
        ("mkdir d", "touch d/f", "rmdir d", &["/d 755 1 2", "/d/f 644 0 1"]),
        ("mkdir d", "rmdir d", "mkdir d/e; touch d/e/f", &[]),
        ("touch f", "mv f g", "mv f h", &["/g 644 0 1", "/h 644 0 1"]),
        ("write f aaaaaaaaaa", "block f 3", "block f 8", &["/f 644 16384 1"]),
        // Of several names all come back, with the directories that they were in.
        ("write f a; ln f g", "write f bb", "rm f; rm g", &["/f 644 600 2", "/g 644 600 2"]),
        (
            "mkdir d; write f a; ln f d/g",
            "write f bb; mv f h",
            "rm f; rm d/g; rmdir d",
            &["/d 755 1 2", "/d/g 644 600 2", "/h 644 600 2"],
        ),
        ("write f a; ln f g", "write f bb", "rm f; rm g; touch f", &["/f 644 600 2", "/g 644 600 2"]),
        // What is in no way of another is merged with it.
        (
            "touch f; mkdir d",
            "chmod f 600; touch d/in",
            "chmod f 640; touch d/out",
            &["/d 755 2 2", "/d/in 644 0 1", "/d/out 644 0 1", "/f 600 0 1"],
        ),
    ] {
        assert_eq!(preferring(&branch_wins(), before, in_branch, outside), after, "{in_branch} | {outside}");
    }
}

#[test]
fn merge_that_prefers_the_main_line_has_the_rest_of_the_branch() {
    for (before, in_branch, outside, after) in [
        ("write f a", "write f bb; touch g", "write f ccc", &["/f 644 900 1", "/g 644 0 1"][..]),
        ("write f a", "write f bb; touch g", "rm f", &["/g 644 0 1"]),
        ("write f a", "rm f; touch g", "write f bb", &["/f 644 600 1", "/g 644 0 1"]),
        ("mkdir d", "touch d/f; touch g", "rmdir d", &["/g 644 0 1"]),
        ("mkdir d", "rmdir d; touch g", "touch d/e", &["/d 755 1 2", "/d/e 644 0 1", "/g 644 0 1"]),
        ("touch f", "mv f g; touch i", "mv f h", &["/h 644 0 1", "/i 644 0 1"]),
        ("mkdir a; mkdir b", "mv a b/a; touch g", "mv b a/b", &["/a 755 1 3", "/a/b 755 0 2", "/g 644 0 1"]),
        ("touch f; ln f g", "rm f; touch i", "rm g", &["/f 644 0 1", "/i 644 0 1"]),
    ] {
        assert_eq!(preferring(&main_wins(), before, in_branch, outside), after, "{in_branch} | {outside}");
    }
}

#[test]
fn merge_that_prefers_a_side_at_paths_tells_what_is_left() {
    let main = Setup::new(1000);
    act_all(&main, "mkdir d; write d/f a; write d/g a; write h a");
    let view = branch(&main, "b");
    act_all(&view, "write d/f bb; write d/g bb; write h bb");
    main.clock.advance(std::time::Duration::from_secs(1));
    act_all(&main, "write d/f ccc; write d/g ccc; write h ccc");
    view.branches().checkpoint().unwrap();
    drop(view);
    let part = Selection { force: vec![Area::path(b"/d")], ..Selection::default() };
    let refused = merge_preferring(&main, "b", &part);
    let Err(FsError::MergeRefused { conflicts, .. }) = refused else { panic!("{refused:?}") };
    assert!(conflicts.len() == 1 && conflicts[0].starts_with("/h was changed outside"), "{conflicts:?}");
    assert_eq!(main.read_all(at(&main, "d/f").unwrap()).len(), 900, "nothing happened");
    // The closest place decides.
    let both = Selection {
        force: vec![Area::All],
        keep: vec![Area::path(b"/d/g"), Area::path(b"/h")],
        ..Selection::default()
    };
    merge_preferring(&main, "b", &both).unwrap();
    assert_eq!(tree(&main), ["/d 755 2 2", "/d/f 644 600 1", "/d/g 644 900 1", "/h 644 900 1"]);
    main.assert_sound("merged");
}

#[test]
fn refusal_of_a_merge_names_the_transaction_in_the_way() {
    let store = Arc::new(ModelStore::new());
    store.keep_for_undo(8);
    let main = Setup::with(store, 1000, MountOptions::default());
    act_all(&main, "write f a; write g a");
    let view = branch(&main, "b");
    act_all(&view, "write f bb; write g bb");
    let other = begin(&main, Isolation::Snapshot);
    act_all(&other, "write f ccc");
    let id = other.fs.txn().unwrap().id();
    commit(&other.fs).unwrap();
    act_all(&main, "write g ccc");
    let refused = finish(&main, view, "b");
    let Err(FsError::MergeRefused { conflicts, .. }) = refused else { panic!("{refused:?}") };
    let of = |place: &str| conflicts.iter().find(|text| text.starts_with(place)).unwrap();
    assert!(of("/f ").contains(&format!("by transaction {id} (")), "{conflicts:?}");
    assert!(of("/g ").contains("outside of any transaction"), "{conflicts:?}");
}

#[test]
fn branches_and_named_snapshots_of_a_store_are_bounded() {
    let main = Setup::new(100);
    for number in 0..BRANCHES_MAX {
        main.fs.branches().create(&format!("b{number}"), 0).unwrap();
    }
    let full = |made: FsError| {
        let text = made.to_string();
        assert!(matches!(made, FsError::TooMany { .. }) && text.contains("delete"), "{text}");
    };
    full(main.fs.branches().create("more", 0).unwrap_err());
    let txn = begin(&main, Isolation::Snapshot);
    full(txn.fs.branches().keep("more", 0).unwrap_err());
    assert!(matches!(main.fs.branches().create("b0", 0), Err(FsError::Exists)));
    main.fs.branches().delete(&main.branch("b7")).unwrap();
    txn.fs.branches().keep("more", 0).unwrap();

    for number in 0..SNAPSHOTS_MAX {
        main.store.create_snapshot(&format!("s{number}")).unwrap();
    }
    full(main.fs.snapshots().create("more", true).unwrap_err());
    assert!(!main.fs.snapshots().is_private("more"), "nothing has happened");
    main.fs.snapshots().delete("s7").unwrap();
    main.fs.snapshots().create("more", false).unwrap();
}

#[test]
fn branch_of_a_snapshot_begins_there_and_its_merge_looks_for_what_was_changed_since() {
    for mut main in [Setup::new(1000), engine::setup([8; 16], 1 << 20, 1000)] {
        act_all(&main, "mkdir d; write d/f old; write d/g old; touch gone");
        main.store.create_snapshot("then").unwrap();
        act_all(&main, "write d/f new; rm gone; touch since; mkdir p; touch p/new");
        let create =
            |name: &str, path: &[u8], from: &str| main.fs.branches().create_of(name, 0, path, Some(from));
        create("whole", b"/", "then").unwrap();
        create("part", b"/d", "then").unwrap();
        assert!(matches!(create("x", b"/p", "then"), Err(FsError::NotFound)), "it was not there then");
        assert!(
            matches!(create("x", b"/", "none"), Err(FsError::Store(error)) if matches!(*error, StoreError::NoSnapshot(_)))
        );
        // The branches keep what they began at.
        main.store.delete_snapshot("then").unwrap();
        main.reopen();
        let view = open(&main, "whole");
        assert_eq!(tree(&view), ["/d 755 2 2", "/d/f 644 900 1", "/d/g 644 900 1", "/gone 644 0 1"]);
        act_all(&view, "write d/g changed; write d/f in; touch made");
        let refused = finish(&main, view, "whole");
        let Err(FsError::MergeRefused { conflicts, .. }) = refused else { panic!("{refused:?}") };
        assert!(
            conflicts.len() == 1 && conflicts[0].starts_with("/d/f was changed outside"),
            "{conflicts:?}"
        );
        let view = open(&main, "part");
        assert_eq!(tree(&view), ["/f 644 900 1", "/g 644 900 1"]);
        act_all(&view, "touch added");
        finish(&main, view, "part").unwrap();
        merge_preferring(&main, "whole", &main_wins()).unwrap();
        let merged = [
            "/d 755 3 2",
            "/d/added 644 0 1",
            "/d/f 644 900 1",
            "/d/g 644 2100 1",
            "/made 644 0 1",
            "/p 755 1 2",
            "/p/new 644 0 1",
            "/since 644 0 1",
        ];
        assert_eq!(tree(&main), merged);
        main.assert_sound("merged");
    }
}
