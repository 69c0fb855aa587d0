//! Which trees go, wholly or not at all, and by whose wish.

use kvfs_fs::{Entry, SetAttr, settled, settled_for};

use super::*;
use crate::error::ErrorKind;
use crate::lines::{PlaceLine, SelectionLine};
use crate::testing::{World, has_file, stranger};
use crate::undo::Undone;

/// More than two pages of the walk.
const FILES: usize = 300;

fn make_directory(fs: &FileSystem, parent: NodeId, name: &str, (uid, mode): (u32, u32)) -> NodeId {
    let user = kvfs_fs::Caller { uid, ..kvfs_fs::Caller::default() };
    let made = settled_for(&user, |caller| fs.mkdir(caller, parent, name.as_bytes(), mode));
    let Entry { node, .. } = made.expect("is made");
    // Whatever the umask says.
    let mode = SetAttr { mode: Some(mode), ..SetAttr::default() };
    settled(|caller| fs.setattr(caller, node, &mode)).expect("is set");
    node
}

fn make_file(fs: &FileSystem, parent: NodeId, name: &str, uid: u32) -> NodeId {
    let user = kvfs_fs::Caller { uid, ..kvfs_fs::Caller::default() };
    let made = settled_for(&user, |caller| fs.create(caller, parent, name.as_bytes(), 0o644, true));
    made.expect("is made").0.node
}

/// A tree of a user's, with files enough for pages, directories below, and a file with names inside and
/// outside.
fn make_tree(world: &World, uid: u32) {
    let fs = &*world.fs;
    let top = make_directory(fs, NodeId::ROOT, "tree", (uid, 0o755));
    let below = make_directory(fs, top, "below", (uid, 0o755));
    let deep = make_directory(fs, below, "deep", (uid, 0o755));
    for number in 0..FILES {
        make_file(fs, below, &format!("{number:03}"), uid);
    }
    let linked = make_file(fs, deep, "linked", uid);
    for (parent, name) in [(deep, "twice"), (top, "thrice"), (NodeId::ROOT, "outside")] {
        settled(|caller| fs.link(caller, linked, parent, name.as_bytes())).expect("is linked");
    }
}

fn has(world: &World, path: &[&str]) -> bool {
    let mut at = KnownNode::root(&world.fs);
    for name in path {
        match settled(|caller| at.lookup(caller, name.as_bytes())) {
            Ok(known) => at = known,
            Err(FsError::NotFound) => return false,
            Err(error) => panic!("{error}"),
        }
    }
    true
}

#[test]
fn tree_goes_as_a_whole_and_comes_back_as_a_whole() {
    let world = World::new(false);
    let (store, root) = (world.mounted(), Caller::of_mount(0, 1));
    make_tree(&world, 7);
    make_file(&world.fs, NodeId::ROOT, "file", 7);
    let paths = [b"/tree".to_vec(), b"file".to_vec()];
    let removed = remove_trees(&store, &root, &paths).expect("is removed");
    assert_eq!((removed.trees, removed.is_kept), (2, true));
    assert!(!has(&world, &["tree"]) && !has_file(&world.fs, "file") && has_file(&world.fs, "outside"));
    DetachedTrees::of(&world.fs).remove_all().expect("is removed");
    let outside = KnownNode::root(&world.fs);
    let links = settled(|caller| outside.lookup(caller, b"outside")?.attr(caller)).expect("is there").nlink;
    assert_eq!(links, 1, "three of four names have gone");
    let all = SelectionLine { only: vec![PlaceLine::All], ..SelectionLine::default() };
    assert!(matches!(store.take_back(&root, removed.txn, all), Ok(Undone::Done(..))));
    assert!(has(&world, &["tree", "below", "deep", "twice"]) && has(&world, &["tree", "below", "299"]));
}

#[test]
fn nothing_goes_where_a_part_may_not_go() {
    let world = World::new(false);
    let (store, user) = (world.mounted(), stranger());
    make_directory(&world.fs, NodeId::ROOT, "open", (0, 0o1777));
    make_tree(&world, user.uid);
    let tree = KnownNode::root(&world.fs);
    let tree = settled(|caller| tree.lookup(caller, b"tree")).expect("is there");
    let closed = make_directory(&world.fs, tree.node(), "closed", (user.uid + 1, 0o755));
    let refused = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        let error = remove_trees(&store, &user, &paths).expect_err("is refused");
        (error.kind(), error.to_string())
    };
    // The directory that it is in is root's.
    let (kind, words) = refused(&["/tree"]);
    assert!(kind == ErrorKind::Denied && words.starts_with("/tree: "), "{words}");
    let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    settled(|caller| world.fs.setattr(caller, NodeId::ROOT, &open)).expect("is set");
    // It is another user's, but empty: as rm(1) would have it, it may go. With a file in it it may not.
    make_file(&world.fs, closed, "theirs", user.uid + 1);
    let (kind, words) = refused(&["/outside", "/tree"]);
    assert!(kind == ErrorKind::Denied && words.starts_with("/tree/closed: "), "{words}");
    assert!(words.ends_with("nothing was removed"), "{words}");
    assert!(has(&world, &["tree", "below", "000"]) && has_file(&world.fs, "outside"));
    // In a sticky directory goes what is one's own.
    let top = KnownNode::root(&world.fs);
    let open = settled(|caller| top.lookup(caller, b"open")).expect("is there");
    make_file(&world.fs, open.node(), "own", user.uid);
    make_file(&world.fs, open.node(), "theirs", user.uid + 1);
    let (kind, words) = refused(&["/open"]);
    assert!(kind == ErrorKind::Denied && words.starts_with("/open/theirs: "), "{words}");
    assert_eq!(remove_trees(&store, &user, &[b"/open/own".to_vec()]).expect("is removed").trees, 1);
    assert!(has(&world, &["open", "theirs"]) && !has(&world, &["open", "own"]));
}

#[test]
fn what_is_no_tree_is_refused_in_words() {
    let world = World::new(false);
    let (store, root) = (world.mounted(), Caller::of_mount(0, 1));
    make_tree(&world, 7);
    for (path, words) in [
        ("/", "the root of a store is not removed"),
        ("/none", "no such file or directory"),
        ("/tree/thrice/below", "not a directory"),
        ("/tree/..", "can't be created, removed or renamed"),
    ] {
        let paths = [b"/outside".to_vec(), path.as_bytes().to_vec()];
        let error = remove_trees(&store, &root, &paths).expect_err("is refused").to_string();
        assert!(error.contains(words) && error.ends_with("nothing was removed"), "{path}: {error}");
    }
    assert!(has(&world, &["tree", "below", "deep", "linked"]));
}

#[test]
fn clones_are_made_of_what_a_user_may_read() {
    let world = World::new(false);
    let (store, user) = (world.mounted(), stranger());
    make_directory(&world.fs, NodeId::ROOT, "open", (0, 0o1777));
    make_tree(&world, user.uid + 1);
    let cloned = clone_tree(&store, &user, b"/tree", b"open/copy").expect("is cloned");
    assert_eq!((cloned.cloned.names, cloned.is_kept), (306, true));
    assert!(
        has(&world, &["open", "copy", "below", "deep", "twice"]) && has(&world, &["open", "copy", "thrice"])
    );
    let refused = |source: &str, target: &str| {
        let error = clone_tree(&store, &user, source.as_bytes(), target.as_bytes()).expect_err("is refused");
        let words = error.to_string();
        assert!(words.ends_with("nothing was cloned"), "{words}");
        (error.kind(), words)
    };
    let (kind, words) = refused("/tree", "/copy");
    assert!(kind == ErrorKind::Denied && words.starts_with("/copy: "), "{words}");
    let (kind, words) = refused("/tree", "/open/copy");
    assert!(kind == ErrorKind::Failed && words.starts_with("/open/copy: "), "{words}");
    for (source, target) in [("/", "/open/all"), ("/tree", "/"), ("/tree", "/tree/in")] {
        refused(source, target);
    }
    let known = |path: &[&str]| {
        let mut at = KnownNode::root(&world.fs);
        for name in path {
            at = settled(|caller| at.lookup(caller, name.as_bytes())).expect("is there");
        }
        at
    };
    let secret = known(&["tree", "below", "100"]);
    let closed = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    settled(|caller| world.fs.setattr(caller, secret.node(), &closed)).expect("is set");
    let (kind, words) = refused("/tree", "/open/other");
    assert!(kind == ErrorKind::Denied && words.starts_with("/tree/below/100: "), "{words}");
    settled(|caller| world.fs.mknod(caller, known(&["open"]).node(), b"device", 0o020_666, 1))
        .expect("is made");
    let (kind, words) = refused("/open/device", "/open/own");
    assert!(kind == ErrorKind::Denied && words.contains("devices"), "{words}");
    let hidden = clone_tree(&store, &Caller::of_mount(0, 1), b"/tree", b"/.kvfs").expect_err("is refused");
    assert!(hidden.to_string().contains("hidden"), "{hidden}");
}
