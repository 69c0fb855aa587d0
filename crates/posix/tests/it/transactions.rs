//! Processes in transactions; volumes on the engine that are opened again.

use std::sync::Arc;

use kvfs_fs::{BeginOptions, FileSystem, MountOptions, NodeId, Owner, RenameMode};
use kvfs_kvdb::Db;
use kvfs_posix::{Identity, Volume};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::world::{errno, over};

fn options() -> BeginOptions {
    BeginOptions { owner: Owner { uid: 0, pid: 0, name: "test".to_owned() }, ..BeginOptions::default() }
}

#[test]
fn an_ordinary_write_does_not_wait_for_a_transaction_for_good() {
    let volume = over(Arc::new(ModelStore::new()));
    let main = volume.process(&Identity::root());
    let file = main.open("/file", OFlags::CREATE | OFlags::RDWR, 0o644).expect("is made");
    let transaction = volume.begin(&options()).expect("begins");
    let inside = transaction.process(&Identity::root());
    inside.truncate("/file", 5).expect("is set");
    main.write(file, b"x").expect("waits, and then goes first");
    assert_eq!(errno(inside.stat("/file")), Some(Errno::CANCELED));
    drop(inside);
    assert_eq!(errno(transaction.commit()), Some(Errno::CANCELED));
    assert_eq!(main.stat("/file").expect("is there").size, 1);
    assert_eq!(errno(volume.begin(&options()).and_then(|_open| volume.unmount())), Some(Errno::BUSY));
    drop(main);
    volume.unmount().expect("no process uses it");
}

#[test]
fn a_transaction_is_seen_whole_or_not_at_all_and_conflicts_are_told() {
    let dir = tempfile::tempdir().expect("makes a directory");
    let path = dir.path().join("store");
    let db = Db::builder().memory_bytes(64 << 20).capacity_bytes(64 << 20).open(&path).expect("opens");
    let volume = over(Arc::clone(&db) as Arc<dyn Store>);
    let main = volume.process(&Identity::root());
    let file = main.open("/config", OFlags::CREATE | OFlags::RDWR, 0o644).expect("is made");
    main.write(file, b"old").expect("writes");

    let transaction = volume.begin(&options()).expect("begins");
    let inside = transaction.process(&Identity::root());
    let fd = inside.open("/config", OFlags::RDWR, 0).expect("opens");
    inside.write(fd, b"new").expect("writes");
    inside.mkdir("/more", 0o755).expect("is made");
    let mut buffer = [0; 3];
    main.pread(file, &mut buffer, 0).expect("reads");
    assert_eq!((&buffer, errno(main.stat("/more"))), (b"old", Some(Errno::NOENT)));
    transaction.commit().expect("commits");
    main.pread(file, &mut buffer, 0).expect("reads");
    assert!(&buffer == b"new" && main.stat("/more").is_ok());
    assert_eq!(errno(inside.stat("/more")), Some(Errno::STALE), "it has ended");
    drop(inside);

    let aborted = volume.begin(&options()).expect("begins");
    aborted.process(&Identity::root()).unlink("/config").expect("is removed");
    aborted.abort();
    assert!(main.stat("/config").is_ok());

    let late = volume.begin(&options()).expect("begins");
    let inside = late.process(&Identity::root());
    main.pwrite(file, b"x", 0).expect("writes");
    assert_eq!(errno(inside.truncate("/config", 0)), Some(Errno::CANCELED), "it was changed since the begin");
    assert_eq!(errno(late.commit()), Some(Errno::CANCELED));
    drop((inside, main));

    volume.unmount().expect("no process uses it");
    drop(volume);
    db.close().expect("closes");
    drop(db);
    let db = Db::builder().open(&path).expect("opens again");
    let fs = FileSystem::open(
        Arc::clone(&db) as Arc<dyn Store>,
        Arc::new(SystemClock::new()),
        MountOptions::default(),
    );
    let volume = Volume::over(Arc::new(fs.expect("opens"))).expect("starts a thread");
    let main = volume.process(&Identity::root());
    assert_eq!(main.stat("/config").expect("is there").size, 3);
    drop(main);
    volume.unmount().expect("no process uses it");
    drop(volume);
    db.close().expect("closes");
}

#[test]
fn names_that_are_kept_are_those_of_the_newest_commit() {
    let volume = over(Arc::new(ModelStore::new()));
    let main = volume.process(&Identity::root());
    let make = |name: &str| {
        main.close(main.open(name, OFlags::CREATE | OFlags::WRONLY, 0o644).expect("is made"))
            .expect("is open");
        main.stat(name).expect("is there").inode
    };
    let (first, second) = (make("/first"), make("/second"));
    let transaction = volume.begin(&options()).expect("begins");
    let inside = transaction.process(&Identity::root());
    assert_eq!(inside.stat("/first").expect("is there").inode, first);
    inside.unlink("/first").expect("is there");
    assert_eq!(errno(inside.stat("/first")), Some(Errno::NOENT));
    inside.rename("/second", "/first", RenameMode::Replace).expect("is there");
    assert_eq!(inside.stat("/first").expect("is there").inode, second);
    assert_eq!(main.stat("/first").expect("is there").inode, first);
    drop(inside);
    transaction.commit().expect("no other has changed it");
    assert_eq!(main.stat("/first").expect("is there").inode, second);
    assert_eq!(errno(main.stat("/second")), Some(Errno::NOENT));
    let fs = volume.file_system();
    fs.housekeep().expect("reaps");
    assert!(!fs.nodes().knows(NodeId(first)), "a name that it has lost does not keep it");
}
