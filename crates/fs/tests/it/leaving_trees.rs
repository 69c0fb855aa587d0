//! Trees that go again as a whole, and what others have made and written in them since.

use kvfs_fs::{Area, Caller, FsError, NodeId, Selection, SetAttr, TxnId, Undo, remove_tree, undo_points};
use kvfs_store::Isolation;

use crate::branches::merge_preferring;
use crate::detached::{All, finish, planted, remove, trees};
use crate::setup::Setup;
use crate::snapshots::{rename, tree};
use crate::undo::{below, keeping, look, over_the_engine, undo, undo_selected, undone, write};
use crate::views::begin;

const ROOT: NodeId = NodeId::ROOT;

fn all(prefers_done: bool) -> Selection {
    let all = vec![Area::All];
    if prefers_done {
        Selection { force: all, ..Selection::default() }
    } else {
        Selection { keep: all, ..Selection::default() }
    }
}

/// A tree that was removed and brought back, and the transaction that brought it back.
fn brought_back() -> [(Setup, TxnId); 2] {
    [keeping(100), over_the_engine(16 << 10)].map(|main| {
        planted(&main);
        let removal = remove(&main, ROOT, "tree");
        undone(&main, removal);
        let back = undo_points(&**main.fs.store()).pop().unwrap().0.txn;
        (main, back)
    })
}

fn chown(main: &Setup, node: NodeId, uid: u32) {
    main.setattr(&main.caller, node, &SetAttr { uid: Some(uid), ..SetAttr::default() }).unwrap();
}

/// What others do in the tree, one at a time, and what is named then.
const CHANGES: [&str; 5] = ["/tree/new", "/tree/a/new", "/tree/b/003", "/tree/b", "/tree/a/008"];

fn change(main: &Setup, path: &str) {
    let top = look(main, ROOT, "tree");
    let (a, b) = (look(main, top, "a"), look(main, top, "b"));
    match path {
        "/tree/new" => drop(main.dir(top, "new")),
        "/tree/a/new" => write(main, a, "new", "text"),
        "/tree/b/003" => assert_eq!(main.write_at(look(main, b, "003"), 0, b"more").unwrap(), 4),
        "/tree/b" => chown(main, b, 3000),
        // All its names go with the tree.
        _ => {
            main.link(&main.caller, look(main, a, "008"), a, b"two").unwrap();
            assert_eq!(main.write_at(look(main, a, "008"), 0, b"more").unwrap(), 4);
        }
    }
}

#[test]
fn undo_of_an_undo_leaves_a_tree_that_others_have_changed() {
    for path in CHANGES {
        for (main, back) in brought_back() {
            change(&main, path);
            let changed = tree(&main).0;
            let found = undo(&main, back).unwrap();
            assert!(found.iter().any(|line| line.ends_with(path)), "{path}: {found:?}");
            assert_eq!(undo_selected(&main, back, &all(false)).unwrap(), [""; 0]);
            assert_eq!(tree(&main).0, changed, "{path} is left");
            // Not what belongs to others.
            let as_user = Selection { uid: Some(2000), ..all(true) };
            assert_eq!(undo_selected(&main, back, &as_user).unwrap(), found);
            assert_eq!(undo_selected(&main, back, &all(true)).unwrap(), [""; 0]);
            assert_eq!(trees(&main.fs), 1);
            finish(&main);
            main.assert_sound(path);
        }
    }
}

#[test]
fn undo_of_an_undo_with_changes_beside_the_tree_removes_it_again() {
    for (main, back) in brought_back() {
        write(&main, look(&main, ROOT, "keep"), "new", "text");
        let top = look(&main, ROOT, "tree");
        // What was moved out stays, and what has another name.
        rename(&main, (look(&main, top, "a"), "003"), (ROOT, "out"));
        assert_eq!(main.write_at(look(&main, ROOT, "out"), 0, b"more").unwrap(), 4);
        assert_eq!(main.write_at(look(&main, ROOT, "outside"), 0, b"more").unwrap(), 4);
        undone(&main, back);
        finish(&main);
        let left: Vec<_> = tree(&main).0.into_keys().collect();
        assert_eq!(left, ["/", "/keep", "/keep/new", "/out", "/outside"]);
        main.assert_sound("removed again");
    }
}

/// So that an undo by its user is refused.
#[test]
fn effects_of_a_tree_that_goes_tell_of_files_of_others_in_it() {
    for (main, _) in brought_back() {
        let removal = remove(&main, ROOT, "tree");
        undone(&main, removal);
        let back = undo_points(&**main.fs.store()).pop().unwrap().0.txn;
        let b = look(&main, look(&main, ROOT, "tree"), "b");
        chown(&main, look(&main, b, "100"), 2000);
        let undo = Undo::open(&main.fs, back).unwrap();
        let view = begin(&main, Isolation::Snapshot);
        let effects = undo.plan(&view.fs, &all(true)).unwrap().effects().unwrap();
        assert!(effects.owned.contains(&(b"/tree/b/100".to_vec(), 2000)), "{effects:?}");
    }
}

/// A branch that has removed the tree, and a change outside.
fn removed_in_a_branch(path: &str) -> Setup {
    let main = over_the_engine(1 << 20);
    planted(&main);
    main.fs.branches().create("b", 1000).unwrap();
    let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
    let top = look(&branch, ROOT, "tree");
    // What the branch has made and changed goes with the tree; what it has moved out does not.
    write(&branch, branch.dir(top, "own"), "file", "text");
    let a = look(&branch, top, "a");
    assert_eq!(branch.write_at(look(&branch, a, "001"), 0, b"branch").unwrap(), 6);
    rename(&branch, (a, "002"), (ROOT, "out"));
    write(&branch, ROOT, "beside", "text");
    remove_tree(&branch.fs, &Caller::default(), (ROOT, b"tree"), &All).unwrap();
    branch.branches().checkpoint().unwrap();
    drop(branch);
    change(&main, path);
    main
}

#[test]
fn merge_that_prefers_a_side_has_a_removed_tree_wholly_or_not_at_all() {
    for path in CHANGES {
        for prefers_branch in [false, true] {
            let main = removed_in_a_branch(path);
            let changed = tree(&main).0;
            // What no path covers is a conflict still.
            let elsewhere = Selection { force: below(&["/beside"]), ..Selection::default() };
            match merge_preferring(&main, "b", &elsewhere) {
                Err(FsError::MergeRefused { conflicts, .. }) => {
                    let told = |conflict: &String| conflict.starts_with(&format!("{path} was changed"));
                    assert!(conflicts.iter().any(told), "{path}: {conflicts:?}");
                }
                other => panic!("{path}: {other:?}"),
            }
            merge_preferring(&main, "b", &all(prefers_branch)).unwrap();
            main.assert_sound(path);
            finish(&main);
            main.assert_sound(path);
            let mut left = tree(&main).0;
            assert!(left.remove("/beside").is_some() && left.remove("/out").is_some());
            let mut expected = changed;
            expected.remove("/tree/a/002");
            if prefers_branch {
                expected.retain(|path, _| !path.starts_with("/tree"));
            }
            let names = |tree: &crate::snapshots::Tree| tree.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&left), names(&expected), "{path}");
            if !prefers_branch {
                for name in ["/tree/a/001", "/tree/b/003"] {
                    assert_eq!(left[name], expected[name], "{path}");
                }
            }
        }
    }
}
