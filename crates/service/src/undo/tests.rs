//! Who may take back what, without a front end.

use kvfs_fs::{NodeId, SetAttr, WriteFlags, settled, settled_for};
use kvfs_kv::KeyspaceOwner;
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

/// Commits a transaction of `caller`'s that does `work`.
fn in_txn(world: &World, caller: &Caller, work: impl FnOnce(&FileSystem)) -> TxnId {
    let id = world.transactions.begin(caller, Begin::default()).expect("begins");
    work(&world.transactions.view(caller, id).expect("is open"));
    world.transactions.commit(caller, id, Durability::Buffered, None).expect("commits");
    TxnId(id)
}

fn made_by(fs: &FileSystem, uid: u32, parent: NodeId, name: &str, mode: u32) -> NodeId {
    let user = kvfs_fs::Caller { uid, ..kvfs_fs::Caller::default() };
    let made = settled_for(&user, |caller| fs.create(caller, parent, name.as_bytes(), mode, true));
    made.expect("is made").0.node
}

fn directory_of(fs: &FileSystem, uid: u32, parent: NodeId, name: &str, mode: u32) -> NodeId {
    let user = kvfs_fs::Caller { uid, ..kvfs_fs::Caller::default() };
    settled_for(&user, |caller| fs.mkdir(caller, parent, name.as_bytes(), mode)).expect("is made").node
}

fn node_at(fs: &FileSystem, names: &[&str]) -> NodeId {
    let look =
        |at, name: &&str| settled(|caller| fs.lookup(caller, at, name.as_bytes())).expect("is there").node;
    names.iter().fold(NodeId::ROOT, look)
}

fn set(fs: &FileSystem, node: NodeId, change: SetAttr) {
    settled(|caller| fs.setattr(caller, node, &change)).expect("is changed");
}

fn write(fs: &FileSystem, node: NodeId, content: &'static [u8]) {
    let written = settled(|caller| fs.write(caller, node, 0, content.into(), WriteFlags::default()));
    written.expect("is written");
}

fn content(fs: &FileSystem, node: NodeId) -> Vec<u8> {
    let mut buffer = vec![0; 9];
    let len = settled(|caller| fs.read(caller, node, 0, &mut buffer)).expect("is read");
    buffer.truncate(len);
    buffer
}

fn assert_not_yours(result: Result<Undone>, path: &str) {
    let error = result.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().starts_with(&format!("{path} is not yours")), "{error}");
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

#[test]
fn file_that_acts_for_a_group_comes_back_for_its_members_alone() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    for in_tree in [false, true] {
        let tree = directory_of(&world.fs, owner.uid, NodeId::ROOT, "tree", 0o777);
        let parent = if in_tree { tree } else { NodeId::ROOT };
        let file = made_by(&world.fs, owner.uid, parent, "file", 0o755);
        set(&world.fs, file, SetAttr { gid: Some(2000), ..SetAttr::default() });
        set(&world.fs, file, SetAttr { mode: Some(0o2755), ..SetAttr::default() });
        let (id, path) = if in_tree {
            (remove_trees(&store, &owner, &[b"/tree".to_vec()]).expect("is removed").txn, "/tree/file")
        } else {
            let user = kvfs_fs::Caller { uid: owner.uid, ..kvfs_fs::Caller::default() };
            let remove = |fs: &FileSystem| {
                settled_for(&user, |caller| fs.unlink(caller, NodeId::ROOT, b"file")).expect("is removed");
            };
            (in_txn(&world, &owner, remove), "/file")
        };
        assert_not_yours(store.take_back(&owner, id, all()), path);
        assert!(matches!(store.take_back(&Caller::of_mount(0, 1), id, all()), Ok(Undone::Done(..))));
        let at: &[&str] = if in_tree { &["tree", "file"] } else { &["file"] };
        let attr = settled(|caller| world.fs.getattr(caller, node_at(&world.fs, at))).expect("is there");
        assert_eq!((attr.gid, attr.mode), (2000, 0o2755));
        settled(|caller| world.fs.rmdir(caller, NodeId::ROOT, b"tree")).ok();
    }
}

#[test]
fn undo_changes_no_file_of_others_by_another_of_its_names() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    let file = made_by(&world.fs, 0, NodeId::ROOT, "f", 0o666);
    settled(|caller| world.fs.link(caller, file, NodeId::ROOT, b"g")).expect("is linked");
    write(&world.fs, file, b"old");
    let id = in_txn(&world, &owner, |view| write(view, node_at(view, &["f"]), b"new"));
    set(&world.fs, file, SetAttr { mode: Some(0o644), ..SetAttr::default() });
    let refused = store.take_back(&owner, id, all()).expect_err("is refused");
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert_eq!(store.undo_obstacles(&owner, id, all()).expect_err("is refused").kind(), ErrorKind::Denied);
    assert_eq!(content(&world.fs, file), b"new");
    assert!(matches!(store.take_back(&Caller::of_mount(0, 1), id, all()), Ok(Undone::Done(..))));
}

#[test]
fn undo_changes_no_directory_of_others_that_has_another_name_by_now() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    let above = directory_of(&world.fs, owner.uid, NodeId::ROOT, "a", 0o755);
    let directory = directory_of(&world.fs, owner.uid, above, "d", 0o777);
    let id = in_txn(&world, &owner, |view| {
        set(view, node_at(view, &["a", "d"]), SetAttr { mode: Some(0o755), ..SetAttr::default() });
    });
    set(&world.fs, directory, SetAttr { uid: Some(0), ..SetAttr::default() });
    let moved =
        settled(|caller| world.fs.rename(caller, above, b"d", above, b"e", kvfs_fs::RenameMode::Replace));
    moved.expect("is moved");
    assert_not_yours(store.take_back(&owner, id, all()), "/a/e");
    let attr = settled(|caller| world.fs.getattr(caller, directory)).expect("is there");
    assert_eq!((attr.uid, attr.mode & 0o7777), (0, 0o755));
}

#[test]
fn part_of_a_removed_tree_that_is_not_the_users_does_not_come_back() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    let tree = directory_of(&world.fs, owner.uid, NodeId::ROOT, "tree", 0o777);
    made_by(&world.fs, owner.uid + 1, tree, "theirs", 0o4755);
    let removed = remove_trees(&store, &owner, &[b"/tree".to_vec()]).expect("is removed");
    let only = vec![PlaceLine::Path(b"/tree/theirs".to_vec())];
    let part = SelectionLine { only, ..SelectionLine::default() };
    assert_not_yours(store.take_back(&owner, removed.txn, part), "/tree/theirs");
    assert!(!has_file(&world.fs, "tree"));
}

#[test]
fn force_gives_no_name_in_a_directory_that_the_user_may_not_write_to() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    let spool = directory_of(&world.fs, 0, NodeId::ROOT, "spool", 0o755);
    let file = made_by(&world.fs, owner.uid, spool, "u", 0o644);
    write(&world.fs, file, b"old");
    let id = in_txn(&world, &owner, |view| write(view, node_at(view, &["spool", "u"]), b"new"));
    settled(|caller| world.fs.unlink(caller, spool, b"u")).expect("is removed");
    let forced = SelectionLine { force: vec![PlaceLine::All], ..all() };
    assert_not_yours(store.take_back(&owner, id, forced), "/spool");
    assert!(matches!(store.take_back(&owner, id, all()), Ok(Undone::Refused(_))));
    let found = settled(|caller| world.fs.lookup(caller, spool, b"u"));
    assert!(matches!(found, Err(FsError::NotFound)), "{found:?}");
}

#[test]
fn users_take_back_by_force_what_is_theirs() {
    let world = open_world();
    let (store, owner) = (world.mounted(), stranger());
    let home = directory_of(&world.fs, owner.uid, NodeId::ROOT, "home", 0o755);
    let file = made_by(&world.fs, owner.uid, home, "u", 0o644);
    write(&world.fs, file, b"old");
    let id = in_txn(&world, &owner, |view| write(view, node_at(view, &["home", "u"]), b"new"));
    settled(|caller| world.fs.unlink(caller, home, b"u")).expect("is removed");
    let forced = SelectionLine { force: vec![PlaceLine::All], ..all() };
    assert!(matches!(store.take_back(&owner, id, forced), Ok(Undone::Done(..))));
    let back = node_at(&world.fs, &["home", "u"]);
    assert_eq!(content(&world.fs, back), b"old");
}

#[test]
fn undo_and_comparison_of_keys_ask_for_the_rights_of_their_own_keyspace() {
    let world = open_world();
    let (store, user) = (world.mounted(), stranger());
    let owned = |uid, mode| KeyspaceOwner { uid, gid: 0, mode };
    let keys = world.fs.keys();
    let cache = keys.make_keyspace("app/cache", owned(user.uid + 1, 0o666)).expect("is made").0.keyspace;
    let set_key = |view: &FileSystem, value: &'static str| {
        settled(|caller| view.keys().set(caller, cache, b"k", Some(value.into()))).expect("is set");
    };
    let allow = |mode| {
        let change = |owner| Ok::<_, FsError>(KeyspaceOwner { mode, ..owner });
        keys.change_keyspace("app/cache", change).expect("is changed");
    };
    let value = || world.fs.store().get(cache, b"k").expect("is read").expect("is there");
    set_key(&world.fs, "old");
    let id = in_txn(&world, &user, |view| set_key(view, "new"));
    let old_value = || {
        let mut diff = store.undo_diff(&user, id).expect("is compared");
        let (lines, _) = diff.next_page(&user, 9, usize::MAX).expect("is told");
        lines[0].after.is_some()
    };
    assert!(old_value());
    allow(0o600);
    // A keyspace that the name begins with gives no right to it.
    keys.make_keyspace("app", owned(user.uid, 0o600)).expect("is made");
    assert_not_yours(store.take_back(&user, id, all()), "app/cache/k");
    assert_eq!(value(), "new");
    assert!(!old_value());
    allow(0o666);
    settled(|caller| keys.drop_keyspace(caller, "app", |_| Ok(()))).expect("is dropped");
    assert!(old_value());
    assert!(matches!(store.take_back(&user, id, all()), Ok(Undone::Done(..))));
    assert_eq!(value(), "old");
}

#[test]
fn comparison_of_an_undo_is_told_in_pages_without_what_may_not_be_read() {
    let world = open_world();
    let (store, user) = (world.mounted(), stranger());
    let owner = KeyspaceOwner { uid: user.uid + 1, gid: 0, mode: 0o622 };
    let tags = world.fs.keys().make_keyspace("tags", owner).expect("is made").0.keyspace;
    let set_all = |view: &FileSystem, value: &'static str| {
        for key in [b"a", b"b", b"c"] {
            settled(|caller| view.keys().set(caller, tags, key, Some(value.into()))).expect("is set");
        }
    };
    set_all(&world.fs, "old");
    let id = in_txn(&world, &user, |view| set_all(view, "new"));
    for caller in [&user, &Caller::of_mount(0, 1)] {
        let mut diff = store.undo_diff(caller, id).expect("is compared");
        for key in ["tags/a", "tags/b", "tags/c"] {
            let (lines, more) = diff.next_page(caller, 1, usize::MAX).expect("is told");
            let told = (lines.len(), &lines[0].place[..], lines[0].after.is_some(), more);
            assert_eq!(told, (1, key.as_bytes(), caller.uid == 0, true), "{key}");
        }
        assert!(!diff.next_page(caller, 1, usize::MAX).expect("is told").1);
    }
}
