//! Trees that are removed in the view of a transaction, or on a branch.

use kvfs_fs::{Caller, FsError, NodeId, remove_tree};
use kvfs_store::Isolation;

use crate::detached::{All, finish, planted, remove, trees};
use crate::setup::Setup;
use crate::snapshots::{lines, rename, tree};
use crate::undo::{keeping, look, over_the_engine, write};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

#[test]
fn a_view_of_before_the_first_removal_removes_trees_name_by_name() {
    for root in ["/", "/tree"] {
        let main = over_the_engine(1 << 20);
        planted(&main);
        // Of a snapshot of before the first transaction.
        main.store.create_snapshot("before").unwrap();
        main.fs.branches().create_of("b", 1000, root.as_bytes(), Some("before")).unwrap();
        let removed = remove(&main, ROOT, "keep");
        let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
        let (parent, name) = if root == "/" { (ROOT, "tree") } else { (branch.nodes().root(), "a") };
        remove_tree(&branch.fs, &Caller::default(), (parent, name.as_bytes()), &All).unwrap();
        assert!(matches!(branch.lookup(&branch.caller, parent, name.as_bytes()), Err(FsError::NotFound)));
        branch.branches().checkpoint().unwrap();
        drop(branch);
        commit(&kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1).unwrap()).unwrap();
        finish(&main);
        let left: Vec<_> = tree(&main).0.into_keys().filter(|path| path.matches('/').count() < 3).collect();
        let expected: &[&str] =
            if root == "/" { &["/", "/outside"] } else { &["/", "/outside", "/tree", "/tree/b"] };
        assert_eq!(left, expected, "{removed:?}");
        main.assert_sound("merged");
    }
}

#[test]
fn a_tree_in_a_view_goes_with_the_views_end_and_is_told_of() {
    let main = keeping(100);
    let top = planted(&main);
    let view = begin(&main, Isolation::Serializable);
    look(&view, look(&view, look(&view, ROOT, "tree"), "a"), "007");
    let forgotten = remove_tree(&view.fs, &Caller::default(), (ROOT, b"tree"), &All).unwrap();
    assert_eq!((forgotten.moved, forgotten.entries), (vec![(ROOT, b"tree"[..].into())], Vec::new()));
    assert!(matches!(view.lookup(&view.caller, ROOT, b"tree"), Err(FsError::NotFound)));
    let forgotten = remove_tree(&view.fs, &Caller::default(), (ROOT, b"outside"), &All).unwrap();
    assert_eq!((forgotten.nodes.len(), forgotten.entries.len()), (1, 1));
    // A name in its place is another one's.
    view.dir(ROOT, "tree");
    assert_eq!(look(&main, ROOT, "tree"), top, "others see it still");
    view.fs.txn().unwrap().abort();
    assert_eq!((trees(&main.fs), look(&main, ROOT, "tree")), (0, top));
    let again = begin(&main, Isolation::Snapshot);
    remove_tree(&again.fs, &Caller::default(), (ROOT, b"tree"), &All).unwrap();
    commit(&again.fs).unwrap();
    assert_eq!(trees(&main.fs), 1);
    finish(&main);
}

#[test]
fn a_tree_in_a_branch_of_a_directory_goes_by_the_merge() {
    let main = over_the_engine(1 << 20);
    planted(&main);
    main.fs.branches().create_of("b", 1000, b"/tree", None).unwrap();
    let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
    let root = branch.nodes().root();
    remove_tree(&branch.fs, &Caller::default(), (root, b"a"), &All).unwrap();
    assert!(matches!(branch.lookup(&branch.caller, root, b"a"), Err(FsError::NotFound)));
    assert_eq!(lines(&kvfs_fs::diff(&branch.fs).unwrap())[0], "- /a");
    branch.branches().checkpoint().unwrap();
    drop(branch);
    commit(&kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1).unwrap()).unwrap();
    assert_eq!(trees(&main.fs), 1);
    finish(&main);
    assert!(matches!(main.lookup(&main.caller, look(&main, ROOT, "tree"), b"a"), Err(FsError::NotFound)));
    main.assert_sound("merged");
}

#[test]
fn a_tree_that_a_branch_removed_and_others_changed_is_a_conflict() {
    let change = |main: &Setup, path: &str| {
        let a = look(main, look(main, ROOT, "tree"), "a");
        match path {
            "/tree/a/003" => assert_eq!(main.write_at(look(main, a, "003"), 0, b"more").unwrap(), 4),
            "/tree/a/new" => write(main, a, "new", "text"),
            // The name outside stays with what was written.
            "/outside" => assert_eq!(main.write_at(look(main, ROOT, "outside"), 0, b"more").unwrap(), 4),
            _ => write(main, ROOT, "beside", "text"),
        }
    };
    for (path, is_refused) in
        [("/tree/a/003", true), ("/tree/a/new", true), ("/outside", false), ("/beside", false)]
    {
        let main = over_the_engine(1 << 20);
        planted(&main);
        main.fs.branches().create("b", 1000).unwrap();
        let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
        // What the branch has made itself goes with the tree.
        let own = branch.dir(look(&branch, ROOT, "tree"), "own");
        rename(&branch, (ROOT, "keep"), (own, "keep"));
        write(&branch, own, "file", "text");
        remove_tree(&branch.fs, &Caller::default(), (ROOT, b"tree"), &All).unwrap();
        branch.branches().checkpoint().unwrap();
        drop(branch);
        change(&main, path);
        match kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1) {
            Err(FsError::MergeRefused { conflicts, .. }) => {
                let told = |conflict: &String| conflict.starts_with(&format!("{path} was changed outside"));
                assert!(is_refused && conflicts.iter().any(told), "{path}: {conflicts:?}");
            }
            merging => {
                assert!(!is_refused, "{path} is lost");
                commit(&merging.unwrap()).unwrap();
                finish(&main);
                main.assert_sound(path);
            }
        }
    }
}

/// A branch that has removed `tree`, and its merge before the commit.
fn merging_a_removal(main: &Setup) -> std::sync::Arc<kvfs_fs::FileSystem> {
    planted(main);
    main.fs.branches().create("b", 1000).unwrap();
    let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
    remove_tree(&branch.fs, &Caller::default(), (ROOT, b"tree"), &All).unwrap();
    branch.branches().checkpoint().unwrap();
    drop(branch);
    kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1).unwrap()
}

/// What others do in a directory of a tree.
type Done = fn(&Setup, &Caller, NodeId) -> kvfs_fs::Result<()>;

const IN_A_TREE: [(&str, Done); 6] = [
    ("create", |main, caller, a| main.create(caller, a, b"new", 0o644, true).map(drop)),
    ("mkdir", |main, caller, a| main.mkdir(caller, a, b"new", 0o755).map(drop)),
    ("link", |main, caller, a| main.link(caller, look(main, ROOT, "outside"), a, b"new").map(drop)),
    ("rename", |main, caller, a| main.rename(caller, ROOT, b"keep", a, b"new", kvfs_fs::RenameMode::Replace)),
    ("write", |main, caller, a| {
        let more = bytes::Bytes::from_static(b"more");
        main.write(caller, look(main, a, "003"), 0, more, kvfs_fs::WriteFlags::default()).map(drop)
    }),
    ("chmod", |main, caller, a| {
        let mode = kvfs_fs::SetAttr { mode: Some(0o700), ..kvfs_fs::SetAttr::default() };
        main.setattr(caller, a, &mode).map(drop)
    }),
];

#[test]
fn nothing_changes_in_a_tree_between_the_look_of_a_merge_and_its_commit() {
    for (what, change) in IN_A_TREE {
        for gives_way in [true, false] {
            let main = over_the_engine(1 << 20);
            let merging = merging_a_removal(&main);
            let a = look(&main, look(&main, ROOT, "tree"), "a");
            // A file with a name elsewhere stays, and is written to meanwhile.
            assert_eq!(main.write_at(look(&main, ROOT, "outside"), 0, b"more").unwrap(), 4);
            let Err(FsError::Parked(ticket)) = change(&main, &main.caller, a) else {
                panic!("{what}: beside the merge")
            };
            let again = Caller { ticket: Some(ticket.clone()), ..main.caller.clone() };
            if gives_way {
                crate::interleaved::in_time(&main, || ticket.wait());
                change(&main, &again, a).unwrap();
                assert!(matches!(commit(&merging), Err(FsError::Canceled(_))), "{what}: lost");
                assert_eq!(look(&main, ROOT, "tree"), look(&main, a, ".."));
                continue;
            }
            commit(&merging).unwrap();
            // Names are not made where they would go.
            let done = change(&main, &again, a);
            assert_eq!(done.is_ok(), ["write", "chmod"].contains(&what), "{what}: {done:?}");
            assert!(matches!(done, Ok(()) | Err(FsError::NotFound)), "{what}: {done:?}");
            assert!(main.lookup(&main.caller, ROOT, b"keep").is_ok());
            finish(&main);
            main.assert_sound(what);
        }
    }
}
