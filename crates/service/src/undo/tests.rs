//! Who may take back what, without a front end.

use kvfs_fs::{NodeId, SetAttr, settled, settled_for};
use kvfs_store::Durability;

use super::*;
use crate::lines::PlaceLine;
use crate::testing::{World, assert_denied, has_file, make_file, stranger};
use crate::transactions::Begin;
use crate::trees::remove_trees;

/// Commits a transaction of `caller`'s that makes a file of that user's.
fn make_in_txn(world: &World, caller: &Caller, name: &str) -> TxnId {
    let id = world.transactions.begin(caller, Begin::default()).expect("begins");
    make_file(&world.transactions.view(caller, id).expect("is open"), name, caller.uid);
    world.transactions.commit(caller, id, Durability::Buffered, None).expect("commits");
    TxnId(id)
}

/// Everything.
fn all() -> SelectionLine {
    SelectionLine { only: vec![PlaceLine::All], ..SelectionLine::default() }
}

/// The root is open to all users, as a mount may have it.
fn open_world() -> World {
    let world = World::new(false);
    let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    settled(|caller| world.fs.setattr(caller, NodeId::ROOT, &mode)).expect("is changed");
    world
}

#[test]
fn transaction_of_another_user_is_not_shown_and_not_taken_back() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    let id = make_in_txn(&world, &owner, "file");
    let other = Caller::of_mount(owner.uid + 1, 1);
    let words = format!("transaction {id} belonged to user {}; only that user and root may", owner.uid);
    assert_denied(store.undo_diff(&other, id), &words);
    assert_denied(store.undo_obstacles(&other, id, all()), &words);
    assert_denied(store.take_back(&other, id, all()), &words);
    assert!(store.committed(&other).expect("is listed").is_empty());
    assert_eq!(store.committed(&owner).expect("is listed")[0].id, id.0);
    assert!(store.is_kept(id) && has_file(&world.fs, "file"));
    assert!(matches!(store.take_back(&owner, id, all()), Ok(Undone::Done(..))));
    assert!(!has_file(&world.fs, "file"));
}

#[test]
fn owner_without_rights_any_more_is_refused_and_root_is_not() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    let id = make_in_txn(&world, &owner, "file");
    let mode = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    settled(|caller| world.fs.setattr(caller, NodeId::ROOT, &mode)).expect("is changed");
    let error = store.take_back(&owner, id, all()).expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("is not yours, or not open to you any more"), "{error}");
    assert!(matches!(store.take_back(&Caller::of_mount(0, 1), id, all()), Ok(Undone::Done(..))));
}

#[test]
fn undo_needs_a_mounted_store_and_names_what_is_not_kept() {
    let world = World::new(false);
    let unmounted = world.unmounted().committed(&Caller::own()).expect_err("is not mounted");
    assert_eq!(unmounted.kind(), ErrorKind::NotMounted);
    let unknown = world.mounted().undo_diff(&Caller::own(), TxnId(99)).expect_err("is unknown");
    assert!(unknown.to_string().contains("no transaction 99 that was committed is known"), "{unknown}");
}

#[test]
fn removed_tree_with_files_of_others_comes_back_by_root_alone() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    let user = kvfs_fs::Caller { uid: owner.uid, ..kvfs_fs::Caller::default() };
    let tree =
        settled_for(&user, |caller| world.fs.mkdir(caller, NodeId::ROOT, b"tree", 0o777)).expect("is made");
    let other = kvfs_fs::Caller { uid: owner.uid + 1, ..user.clone() };
    let made = settled_for(&other, |caller| world.fs.create(caller, tree.node, b"theirs", 0o4755, true));
    made.expect("is made");
    // In a directory of one's own that is not sticky the files of others may go.
    let removed = remove_trees(&store, &owner, &[b"/tree".to_vec()]).expect("is removed");
    let error = store.take_back(&owner, removed.txn, all()).expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().starts_with("/tree/theirs is not yours"), "{error}");
    assert!(matches!(store.take_back(&Caller::of_mount(0, 1), removed.txn, all()), Ok(Undone::Done(..))));
    assert!(has_file(&world.fs, "tree"));
}
