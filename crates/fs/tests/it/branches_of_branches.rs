//! Branches of branches: with the other branch in the place of the main line all is as it is with that, and
//! what comes of it comes to the main line once. The cases of [`crate::branches`] are run here, too.

use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{CrashDevice, CrashMode};
use kvfs_fs::{Area, FileSystem, FsError, MountOptions, Result, Selection};
use kvfs_kvdb::Background;
use kvfs_store::{Checkpoints, StoreError};

use crate::branches::{act, act_all, at, finish, merge, open, tree};
use crate::engine;
use crate::setup::Setup;

/// A branch of the branch whose view is `parent`.
fn fork(main: &Setup, parent: &Setup, name: &str) -> Setup {
    parent.fs.branches().fork(name, 1000).unwrap();
    open(main, name)
}

/// Leaves these as they are.
fn leave(views: impl IntoIterator<Item = Setup>) {
    for view in views {
        view.branches().checkpoint().unwrap();
    }
}

fn names(main: &Setup) -> Vec<String> {
    main.branches().all().into_iter().map(|branch| branch.name).collect()
}

/// The places of conflicts, without what is told of their authors.
fn places(error: Option<&FsError>) -> Vec<String> {
    match error {
        None => Vec::new(),
        Some(FsError::MergeRefused { conflicts, .. }) => {
            let place = |line: &String| {
                let place = line.split(", by ").next().unwrap().replace(", in branch \"parent\"", "");
                place.replace(", outside of any transaction that is kept", "")
            };
            conflicts.iter().map(place).collect()
        }
        Some(other) => panic!("{other}"),
    }
}

/// A main line with the closed branches "parent" and "child", one of the other, and the trees of these.
struct Met {
    main: Setup,
    now: Vec<String>,
    inside: Vec<String>,
}

/// Does in a branch, and in a branch of it, what was done on the main line and in a branch.
/// `is_made_in_branch`: what both begin with was made in the branch.
fn meet((before, in_branch, outside): (&str, &str, &str), is_made_in_branch: bool) -> Met {
    let main = Setup::new(1000);
    let (on_main, in_parent) = if is_made_in_branch { ("", before) } else { (before, "") };
    act_all(&main, on_main);
    main.fs.branches().create("parent", 1000).unwrap();
    let parent = open(&main, "parent");
    act_all(&parent, in_parent);
    let child = fork(&main, &parent, "child");
    act_all(&child, in_branch);
    main.clock.advance(Duration::from_secs(1));
    act_all(&parent, outside);
    let (now, inside) = (tree(&parent), tree(&child));
    leave([parent, child]);
    Met { main, now, inside }
}

/// What comes of [`meet`] must be the same as on the main line, and comes there with the branch.
pub(crate) fn meet_alike(
    case: (&str, &str, &str),
    is_made_in_branch: bool,
    (expected, refused): (&Setup, Option<&FsError>),
) {
    let context = format!("{case:?}, {is_made_in_branch}");
    let Met { main, now, inside } = meet(case, is_made_in_branch);
    let merged = kvfs_fs::merge_into_parent(&main.fs, &main.branch("child"), None);
    assert_eq!(places(merged.as_ref().err()), places(refused), "{context}");
    let parent = open(&main, "parent");
    if merged.is_ok() {
        assert_eq!(tree(&parent), tree(expected), "{context}");
        assert_eq!(names(&main), ["parent"], "{context}");
        parent.assert_sound(&context);
        finish(&main, parent, "parent").unwrap();
        assert_eq!(tree(&main), tree(expected), "{context}");
    } else {
        assert_eq!(tree(&parent), now, "{context}: a refused merge changes nothing");
        let child = open(&main, "child");
        assert_eq!(tree(&child), inside, "{context}: the branch stays usable");
        act(&child, "touch later").unwrap();
        let parent_is_kept = finish(&main, parent, "parent").unwrap_err();
        assert!(
            matches!(&parent_is_kept, FsError::HasBranches { names } if names == &["child"]),
            "{context}"
        );
        drop(child);
        main.branches().delete(&main.branch("child")).unwrap();
        merge(&main, "parent").unwrap();
        assert_eq!(tree(&main), now, "{context}");
    }
    main.assert_sound(&context);
}

/// As [`meet_alike`], with a side preferred.
pub(crate) fn prefer_alike(
    selection: &Selection,
    case: (&str, &str, &str),
    is_made_in_branch: bool,
    expected: &[String],
) {
    let context = format!("{selection:?}: {case:?}, {is_made_in_branch}");
    let Met { main, now, .. } = meet(case, is_made_in_branch);
    let refused =
        kvfs_fs::merge_into_parent(&main.fs, &main.branch("child"), Some(&Selection::default())).unwrap_err();
    assert!(places(Some(&refused)).iter().all(|place| place.contains(" outside")), "{context}: {refused}");
    let parent = open(&main, "parent");
    assert_eq!(tree(&parent), now, "{context}: a refused merge changes nothing");
    drop(parent);
    kvfs_fs::merge_into_parent(&main.fs, &main.branch("child"), Some(selection))
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(names(&main), ["parent"], "{context}");
    let parent = open(&main, "parent");
    assert_eq!(tree(&parent), expected, "{context}");
    finish(&main, parent, "parent").unwrap();
    assert_eq!(tree(&main), expected, "{context}");
    main.assert_sound(&context);
}

#[test]
fn branch_of_a_branch_begins_with_it_and_both_go_on() {
    let main = Setup::new(1000);
    act_all(&main, "mkdir d; write d/old a");
    main.forget(at(&main, "d/old").unwrap(), u64::MAX);
    main.fs.branches().create("try", 1000).unwrap();
    let parent = open(&main, "try");
    act_all(&parent, "write d/try b; rm d/old; write gone c");
    let open_file = at(&parent, "gone").unwrap();
    act(&parent, "rm gone").unwrap();
    let child = fork(&main, &parent, "fix");
    assert_eq!(tree(&child), tree(&parent));
    act_all(&child, "write d/fix d; chmod d/try 600; mv d e");
    act_all(&parent, "write d/more e");
    act(&main, "touch outside").unwrap();
    assert_eq!(tree(&child), ["/e 755 2 2", "/e/fix 644 300 1", "/e/try 600 300 1"]);
    assert_eq!(tree(&parent), ["/d 755 2 2", "/d/more 644 300 1", "/d/try 644 300 1"]);
    // It tells what was changed since it was made.
    let mut lines: Vec<_> = kvfs_fs::diff(&child)
        .unwrap()
        .into_iter()
        .map(|line| String::from_utf8(line.place).unwrap())
        .collect();
    lines.sort();
    assert!(
        lines.iter().any(|path| path == "/e/fix") && !lines.iter().any(|path| path.contains("old")),
        "{lines:?}"
    );
    let info = main.branches().get("fix").unwrap();
    assert_eq!(info.parent, Some(main.branches().get("try").unwrap().id));
    assert_eq!(parent.read_all(open_file), "c".repeat(300).as_bytes());
    leave([child]);
    parent.forget(open_file, u64::MAX);
    parent.housekeep().unwrap();
    leave([parent]);
    kvfs_fs::merge_into_parent(&main.fs, &main.branch("fix"), None).unwrap();
    let parent = open(&main, "try");
    let both = ["/e 755 3 2", "/e/fix 644 300 1", "/e/more 644 300 1", "/e/try 600 300 1"];
    assert_eq!(tree(&parent), both);
    finish(&main, parent, "try").unwrap();
    assert_eq!(tree(&main), both.into_iter().chain(["/outside 644 0 1"]).collect::<Vec<_>>());
    main.housekeep().unwrap();
    let report = kvfs_fs::check::check(&main.store).unwrap();
    assert_eq!((report.files, report.orphans), (4, 0));
    main.assert_sound("merged");
}

#[test]
fn branch_that_others_are_branches_of_is_neither_merged_nor_deleted() {
    let main = Setup::new(1000);
    main.fs.branches().create("a", 1000).unwrap();
    let a = open(&main, "a");
    let b = fork(&main, &a, "b");
    let c = fork(&main, &b, "c");
    assert!(matches!(a.branches().fork("b", 0), Err(FsError::Exists)));
    assert!(matches!(a.branches().fork("a/b", 0), Err(FsError::Invalid(_))));
    act(&c, "touch c").unwrap();
    leave([a, b, c]);
    let held = |result: Result<()>, by: &str| {
        assert!(matches!(&result, Err(FsError::HasBranches { names }) if names == &[by]), "{result:?}");
    };
    held(merge(&main, "a"), "b");
    held(main.branches().delete(&main.branch("a")), "b");
    held(kvfs_fs::merge_into_parent(&main.fs, &main.branch("b"), None), "c");
    held(main.branches().delete(&main.branch("b")), "c");
    // What is a branch of a branch comes to the main line with that alone.
    assert!(matches!(merge(&main, "c"), Err(FsError::Invalid(_))));
    assert!(matches!(
        kvfs_fs::merge_into_parent(&main.fs, &main.branch("a"), None),
        Err(FsError::Invalid(_))
    ));
    // Both are used by the merge alone.
    let view = open(&main, "b");
    let busy = kvfs_fs::merge_into_parent(&main.fs, &main.branch("c"), None).unwrap_err();
    assert!(matches!(busy, FsError::Store(error) if matches!(*error, StoreError::CheckpointOpen(_))));
    drop(view);
    for name in ["c", "b"] {
        kvfs_fs::merge_into_parent(&main.fs, &main.branch(name), None).unwrap();
    }
    merge(&main, "a").unwrap();
    assert_eq!((tree(&main), names(&main)), (vec!["/c 644 0 1".to_owned()], vec![]));
    main.assert_sound("merged");
}

/// Of several tries one is kept.
#[test]
fn of_several_branches_of_a_branch_the_first_that_is_merged_wins() {
    let main = Setup::new(1000);
    main.fs.branches().create("base", 1000).unwrap();
    let base = open(&main, "base");
    act_all(&base, "mkdir d; write d/f a");
    let tries = ["one", "two", "three"].map(|name| {
        let view = fork(&main, &base, name);
        act_all(&view, &format!("truncate d/f 0; write d/{name} b"));
        (view, name)
    });
    leave([base]);
    for (view, name) in tries {
        if name == "three" {
            // Without what the others have changed, too.
            act_all(&view, "rm d/f; write d/f c");
        }
        leave([view]);
    }
    kvfs_fs::merge_into_parent(&main.fs, &main.branch("two"), None).unwrap();
    for name in ["one", "three"] {
        let refused = kvfs_fs::merge_into_parent(&main.fs, &main.branch(name), None).unwrap_err();
        assert_eq!(
            places(Some(&refused)),
            ["/d/f was changed outside of the branch, in branch \"base\""],
            "{name}"
        );
        main.branches().delete(&main.branch(name)).unwrap();
    }
    merge(&main, "base").unwrap();
    assert_eq!(tree(&main), ["/d 755 2 2", "/d/f 644 0 1", "/d/two 644 300 1"]);
    main.assert_sound("merged");
}

/// Keys, attributes and large content, over the engine, with reopenings in between.
#[test]
fn branches_of_branches_last_and_bring_all_they_hold() {
    let mut main = engine::setup([3; 16], 64 << 10, 1000);
    let owner = kvfs_kv::KeyspaceOwner { uid: 0, gid: 0, mode: 0o600 };
    let keys = main.keys().make_keyspace("words", owner).unwrap().0.keyspace;
    let put = |view: &Setup, key: &'static [u8]| {
        let change = kvfs_kv::KeyChange::Put { key: key.into(), value: b"value"[..].into() };
        view.keys().apply(&view.caller, vec![(keys, change)]).unwrap();
    };
    act_all(&main, "touch both; block both 9");
    main.fs.branches().create("a", 1000).unwrap();
    let a = open(&main, "a");
    put(&a, b"of a");
    act_all(&a, "touch large; block large 0; block large 70");
    let b = fork(&main, &a, "b");
    put(&b, b"of b");
    act_all(&b, "block large 1; block large 70; setxattr large user.x; block both 3; mkdir t; touch t/u");
    act_all(&a, "block large 2");
    leave([a, b]);
    main.reopen();
    let b = open(&main, "b");
    act_all(&b, "truncate both 20000");
    leave([b]);
    main.reopen();
    kvfs_fs::merge_into_parent(&main.fs, &main.branch("b"), None).unwrap();
    main.reopen();
    merge(&main, "a").unwrap();
    let large = at(&main, "large").unwrap();
    let content = main.read_all(large);
    let blocks: Vec<_> = content.chunks(4096).map(|block| block[0]).collect();
    let expected: Vec<_> = (0..71).map(|block| if matches!(block, 0..3 | 70) { 7 } else { 0 }).collect();
    assert_eq!(blocks, expected);
    assert_eq!(main.getxattr(&main.caller, large, b"user.x").unwrap(), &b"1"[..]);
    assert_eq!(main.getattr(&main.caller, at(&main, "both").unwrap()).unwrap().size, 20000);
    for key in ["of a", "of b"] {
        assert!(main.store.get(keys, key.as_bytes()).unwrap().is_some(), "{key}");
    }
    main.assert_sound("merged");
}

/// The power is cut at each event of a merge.
#[test]
fn merge_into_a_branch_that_is_cut_off_is_done_or_not_begun() {
    let device = Arc::new(CrashDevice::in_memory(0, engine::CAPACITY_BYTES).with_log().unwrap());
    engine::create_on(&device, [7; 16]);
    let store = engine::open(&device, 16 << 10, Background::Manual);
    let main = Setup::with(store, 1000, MountOptions::default());
    main.fs.branches().create("parent", 1000).unwrap();
    let parent = open(&main, "parent");
    act_all(&parent, "write f a; touch large; block large 0");
    let child = fork(&main, &parent, "child");
    act_all(&child, "write f b; write g b; block large 50; block large 0");
    act_all(&parent, "write beside c");
    leave([parent, child]);
    let begun = device.events_len();
    let [before, after] = [false, true].map(|is_merged| {
        if is_merged {
            kvfs_fs::merge_into_parent(&main.fs, &main.branch("child"), None).unwrap();
        }
        tree(&open(&main, "parent"))
    });
    assert_ne!(before, after);
    let (mut merged, mut leftovers) = (0, 0);
    for event in begun..=device.events_len() {
        let image = Arc::new(device.image_at(event, event as u64, CrashMode::Any).unwrap());
        let store = engine::open(&image, 16 << 10, Background::Manual);
        let listed = store.checkpointed().len();
        let fs = FileSystem::open(store.clone() as _, main.clock.clone(), main.options).unwrap();
        let main = Setup { store: store.clone() as _, ..main.through(Arc::new(fs), main.options) };
        let found = names(&main);
        let now = tree(&open(&main, "parent"));
        if found == ["parent", "child"] {
            assert_eq!((now, store.checkpointed().len()), (before.clone(), 2), "event {event}");
            kvfs_fs::merge_into_parent(&main.fs, &main.branch("child"), None).unwrap();
        } else {
            assert_eq!((found, now), (vec!["parent".to_owned()], after.clone()), "event {event}");
            assert_eq!(store.checkpointed().len(), 1, "event {event}: nothing is left of it");
            (merged, leftovers) = (merged + 1, leftovers + usize::from(listed == 2));
        }
        merge(&main, "parent").unwrap();
        assert_eq!(tree(&main), after, "event {event}");
        main.assert_sound(&format!("event {event}"));
        assert!(store.check().unwrap().findings.is_empty(), "event {event}");
    }
    assert!(merged > 0 && leftovers > 0, "{merged} merged, {leftovers} leftovers");
}

#[test]
fn merge_that_prefers_a_side_in_a_branch_is_in_no_way_of_new_names_outside() {
    let main = Setup::new(1000);
    act_all(&main, "mkdir d; touch d/f");
    main.fs.branches().create("try", 1000).unwrap();
    let parent = open(&main, "try");
    let [child, sibling] = ["fix", "beside"].map(|name| fork(&main, &parent, name));
    act_all(&child, "touch d/in; chmod d/f 600; touch in");
    act_all(&sibling, "touch d/beside; touch beside");
    main.clock.advance(Duration::from_secs(1));
    leave([parent, child, sibling]);
    let branch_wins = Selection { force: vec![Area::All], ..Selection::default() };
    kvfs_fs::merge_into_parent(&main.fs, &main.branch("fix"), Some(&branch_wins)).unwrap();
    kvfs_fs::merge_into_parent(&main.fs, &main.branch("beside"), None).unwrap();
    act_all(&main, "touch d/out; touch out");
    merge(&main, "try").unwrap();
    let names =
        ["/d/beside 644", "/d/f 600", "/d/in 644", "/d/out 644", "/beside 644", "/in 644", "/out 644"];
    let tree = tree(&main);
    assert!(names.iter().all(|name| tree.iter().any(|line| line.starts_with(name))), "{tree:?}");
    main.assert_sound("merged");
}
