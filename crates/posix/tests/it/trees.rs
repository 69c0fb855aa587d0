//! Whole trees that go in one step.

use kvfs_fs::{BeginOptions, DetachedTrees};
use kvfs_posix::{Process, Volume};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::world::{errno, user, volume};

fn file(process: &Process, path: &str) {
    let fd = process.open(path, OFlags::CREATE | OFlags::WRONLY, 0o644).expect("is made");
    process.close(fd).expect("is closed");
}

/// `/tree` of user 7, with a directory of another user's in it.
fn planted() -> (Volume, Process, Process) {
    let volume = volume();
    let (root, anna) = (user(&volume, 0, &[]), user(&volume, 7, &[]));
    root.mkdir("/tree", 0o755).expect("is made");
    root.chown("/tree", Some(7), Some(7)).expect("is given");
    root.mkdir("/tree/theirs", 0o755).expect("is made");
    anna.mkdir("/tree/own", 0o755).expect("is made");
    file(&anna, "/tree/own/file");
    (volume, root, anna)
}

#[test]
fn tree_is_removed_in_one_transaction_or_as_part_of_one() {
    let (volume, root, _) = planted();
    let txn = volume.begin(&BeginOptions::default()).expect("begins");
    let inside = txn.process(&kvfs_posix::Identity::root());
    assert_eq!(inside.remove_tree("/tree").expect("is removed"), None);
    assert_eq!(errno(inside.stat("/tree/own/file")), Some(Errno::NOENT));
    assert!(root.stat("/tree/own/file").is_ok());
    drop(inside);
    txn.abort();
    let open = root.open("/tree/own/file", OFlags::RDWR, 0).expect("is opened");
    assert!(root.remove_tree("/tree/").expect("is removed").is_some());
    assert_eq!(errno(root.stat("/tree")), Some(Errno::NOENT));
    assert_eq!(root.write(open, b"x").expect("lives on"), 1);
    root.close(open).expect("is closed");
    DetachedTrees::of(volume.file_system()).remove_all().expect("is removed");
    // Of what is no directory, the name.
    file(&root, "/file");
    assert_eq!(errno(root.remove_tree("/file/")), Some(Errno::NOTDIR));
    assert!(root.remove_tree("/file").expect("is removed").is_some());
    let refusals = [("/file", Errno::NOENT), ("/", Errno::BUSY), (".", Errno::INVAL), ("/x/y", Errno::NOENT)];
    for (path, expected) in refusals {
        assert_eq!(errno(root.remove_tree(path)), Some(expected), "{path}");
    }
}

#[test]
fn tree_with_something_of_others_in_it_is_refused_with_its_path() {
    let (_volume, root, anna) = planted();
    assert_eq!(errno(anna.remove_tree("/tree")), Some(Errno::ACCESS), "the root is not hers");
    root.chmod("/", 0o777).expect("is opened");
    file(&root, "/tree/theirs/file");
    let refused = anna.remove_tree("/tree").expect_err("is refused");
    assert_eq!(refused.errno(), Errno::ACCESS);
    assert!(refused.to_string().starts_with("tree/theirs: "), "{refused}");
    assert!(anna.stat("/tree/own/file").is_ok(), "all or nothing");
    root.unlink("/tree/theirs/file").expect("is removed");
    assert!(anna.remove_tree("/tree").is_ok());
}
