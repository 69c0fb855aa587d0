//! Whole trees that go in one step.

use kvfs_fs::{BeginOptions, DetachedTrees};
use kvfs_posix::{Process, ProcessTrees, Volume};
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
    assert_eq!(ProcessTrees::of(&inside).remove("/tree").expect("is removed"), None);
    assert_eq!(errno(inside.stat("/tree/own/file")), Some(Errno::NOENT));
    assert!(root.stat("/tree/own/file").is_ok());
    drop(inside);
    txn.abort();
    let open = root.open("/tree/own/file", OFlags::RDWR, 0).expect("is opened");
    assert!(ProcessTrees::of(&root).remove("/tree/").expect("is removed").is_some());
    assert_eq!(errno(root.stat("/tree")), Some(Errno::NOENT));
    assert_eq!(root.write(open, b"x").expect("lives on"), 1);
    root.close(open).expect("is closed");
    DetachedTrees::of(volume.file_system()).remove_all().expect("is removed");
    // Of what is no directory, the name.
    file(&root, "/file");
    assert_eq!(errno(ProcessTrees::of(&root).remove("/file/")), Some(Errno::NOTDIR));
    assert!(ProcessTrees::of(&root).remove("/file").expect("is removed").is_some());
    let refusals = [("/file", Errno::NOENT), ("/", Errno::BUSY), (".", Errno::INVAL), ("/x/y", Errno::NOENT)];
    for (path, expected) in refusals {
        assert_eq!(errno(ProcessTrees::of(&root).remove(path)), Some(expected), "{path}");
    }
}

#[test]
fn tree_with_something_of_others_in_it_is_refused_with_its_path() {
    let (_volume, root, anna) = planted();
    assert_eq!(errno(ProcessTrees::of(&anna).remove("/tree")), Some(Errno::ACCESS), "the root is not hers");
    root.chmod("/", 0o777).expect("is opened");
    file(&root, "/tree/theirs/file");
    let refused = ProcessTrees::of(&anna).remove("/tree").expect_err("is refused");
    assert_eq!(refused.errno(), Errno::ACCESS);
    assert!(refused.to_string().starts_with("tree/theirs: "), "{refused}");
    assert!(anna.stat("/tree/own/file").is_ok(), "all or nothing");
    root.unlink("/tree/theirs/file").expect("is removed");
    assert!(ProcessTrees::of(&anna).remove("/tree").is_ok());
}

#[test]
fn tree_is_cloned_in_one_transaction_or_as_part_of_one() {
    let (volume, root, anna) = planted();
    let fd = root.open("/tree/own/file", OFlags::WRONLY, 0).expect("is opened");
    assert_eq!(root.write(fd, b"before").expect("is written"), 6);
    let txn = volume.begin(&BeginOptions::default()).expect("begins");
    let inside = txn.process(&kvfs_posix::Identity::root());
    assert_eq!(ProcessTrees::of(&inside).clone_to("/tree", "/clone").expect("is cloned"), None);
    assert_eq!(inside.stat("/clone/own/file").expect("is there").size, 6);
    drop(inside);
    txn.abort();
    assert_eq!(errno(root.stat("/clone")), Some(Errno::NOENT));
    assert!(ProcessTrees::of(&root).clone_to("/tree/", "/clone/").expect("is cloned").is_some());
    assert_eq!(root.pwrite(fd, b"after!", 0).expect("is written"), 6);
    root.close(fd).expect("is closed");
    let fd = root.open("/clone/own/file", OFlags::RDONLY, 0).expect("is opened");
    let mut content = [0; 6];
    assert_eq!(root.read(fd, &mut content).expect("is read"), 6);
    assert_eq!(&content, b"before");
    root.close(fd).expect("is closed");
    // Directories of both names, by descriptors.
    let own = root.open("/tree/own", OFlags::RDONLY | OFlags::DIRECTORY, 0).expect("is opened");
    let clone = root.open("/clone", OFlags::RDONLY | OFlags::DIRECTORY, 0).expect("is opened");
    ProcessTrees::of(&root).clone_to((own, "file"), (clone, "copy")).expect("is cloned");
    assert_eq!(root.stat("/clone/copy").expect("is there").size, 6);
    file(&root, "/file");
    let refusals = [
        ("/tree", "/clone", Errno::EXIST),
        ("/tree", "/tree/own/clone", Errno::INVAL),
        ("/", "/other", Errno::INVAL),
        ("/none", "/other", Errno::NOENT),
        ("/file/", "/other", Errno::NOTDIR),
        ("/file", "/other/", Errno::NOENT),
        ("/tree", "/none/other", Errno::NOENT),
    ];
    for (source, target, expected) in refusals {
        assert_eq!(
            errno(ProcessTrees::of(&root).clone_to(source, target)),
            Some(expected),
            "{source} to {target}"
        );
    }
    root.chmod("/tree/theirs", 0o700).expect("is closed");
    root.chmod("/", 0o777).expect("is opened");
    let refused = ProcessTrees::of(&anna).clone_to("/tree", "/hers").expect_err("is refused");
    assert_eq!(refused.errno(), Errno::ACCESS);
    assert!(refused.to_string().contains("theirs"), "{refused}");
    root.chmod("/tree/theirs", 0o755).expect("is opened");
    ProcessTrees::of(&anna).clone_to("/tree", "/hers").expect("is cloned");
    assert_eq!(root.stat("/hers/theirs").expect("is there").uid, 7);
}
