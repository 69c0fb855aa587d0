//! Directory streams.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvfs_fs::{FileType, MountOptions, RenameMode};
use kvfs_store::model::ModelStore;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::world::{errno, root, user, volume, with};

#[test]
fn entries_come_once_and_places_are_found_again() {
    let process = root();
    process.mkdir("/dir", 0o755).expect("is made");
    let names: Vec<String> = (0..2500).map(|number| format!("file{number:05}")).collect();
    for name in &names {
        process.mknod(format!("/dir/{name}").as_str(), 0o100_644, 0).expect("is made");
    }
    let mut directory = process.opendir("/dir").expect("opens");
    let mut seen = Vec::new();
    let mut places = Vec::new();
    while let Some(entry) = directory.read().expect("reads") {
        assert_eq!(directory.tell(), entry.offset);
        if seen.len() % 500 == 3 {
            places.push((directory.tell(), seen.len()));
        }
        if entry.name.starts_with(b"file") {
            assert_eq!(entry.kind, FileType::Regular);
        }
        seen.push(entry.name);
    }
    assert_eq!(seen.len(), names.len() + 2, "`.` and `..` are among them");
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
    for (place, at) in places {
        directory.seek(place);
        let next = directory.read().expect("reads").map(|entry| entry.name);
        assert_eq!(next.as_ref(), seen.get(at + 1));
    }
    process.unlink("/dir/file00000").expect("is there");
    directory.rewind();
    let again: Vec<_> = directory.map(|entry| entry.expect("reads").name).collect();
    assert_eq!(again.len(), seen.len() - 1);
}

#[test]
fn streams_are_opened_by_those_who_may_read_and_of_directories_alone() {
    let volume = volume();
    let root = volume.process(&kvfs_posix::Identity::root());
    root.mkdir("/closed", 0o711).expect("is made");
    root.mknod("/file", 0o100_644, 0).expect("is made");
    assert_eq!(errno(user(&volume, 1000, &[]).opendir("/closed")), Some(Errno::ACCESS));
    assert_eq!(errno(root.opendir("/file")), Some(Errno::NOTDIR));
    assert_eq!(errno(root.opendir("/none")), Some(Errno::NOENT));
    let mut directory = root.opendir("/closed").expect("root may");
    assert!(root.stat((directory.fd(), ".")).is_ok());
    root.rmdir("/closed").expect("is empty");
    assert_eq!(directory.read().expect("is gone"), None);
}

#[test]
fn names_that_walks_came_by_are_kept_few_and_not_beyond_their_end() {
    let options = MountOptions { node_bytes_max: 32 << 10, ..MountOptions::default() };
    let volume = with(Arc::new(ModelStore::new()), options);
    let process = volume.process(&kvfs_posix::Identity::root());
    let known = |path: &str| {
        let inode = process.stat(path).expect("is there").inode;
        volume.file_system().nodes().knows(kvfs_fs::NodeId(inode))
    };
    for number in 0..200 {
        process.mkdir(format!("/dir{number}").as_str(), 0o755).expect("is made");
        process.mkdir(format!("/dir{number}/in").as_str(), 0o755).expect("is made");
    }
    assert!(known("/dir7/in"));
    let nodes = volume.file_system().nodes().stats().nodes;
    assert!((10..100).contains(&nodes), "{nodes} are kept of 400");
    let inode = process.stat("/dir7/in").expect("is there").inode;
    process.rmdir("/dir7/in").expect("is empty");
    assert!(!volume.file_system().nodes().knows(kvfs_fs::NodeId(inode)), "it is gone");
    let inode = process.stat("/dir8/in").expect("is there").inode;
    process.rename("/dir9/in", "/dir8/in", RenameMode::Replace).expect("replaces it");
    assert!(!volume.file_system().nodes().knows(kvfs_fs::NodeId(inode)), "it is gone");
    drop(process);
    volume.unmount().expect("no process uses it");
}

#[test]
fn names_of_other_threads_are_seen_as_they_are() {
    let volume = volume();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            let process = volume.process(&kvfs_posix::Identity::root());
            let is_over = &is_over;
            scope.spawn(move || {
                // Has names kept while they change.
                while !is_over.load(Ordering::Acquire) {
                    for name in ["/0a", "/0b", "/1a", "/1b"] {
                        let _ = process.stat(name);
                    }
                }
            });
        }
        let changers: Vec<_> = (0..2)
            .map(|number| {
                let process = volume.process(&kvfs_posix::Identity::root());
                scope.spawn(move || {
                    let (a, b) = (format!("/{number}a"), format!("/{number}b"));
                    let inode = |name: &str| process.stat(name).ok().map(|attr| attr.inode);
                    for _ in 0..300 {
                        let file =
                            process.open(a.as_str(), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, 0o644);
                        process.close(file.expect("is made")).expect("is open");
                        let made = inode(&a);
                        assert!(made.is_some());
                        process.rename(a.as_str(), b.as_str(), RenameMode::Replace).expect("is there");
                        assert_eq!((inode(&a), inode(&b)), (None, made));
                        process.link(b.as_str(), a.as_str()).expect("is there");
                        process.unlink(b.as_str()).expect("is there");
                        assert_eq!((inode(&a), inode(&b)), (made, None));
                        process.unlink(a.as_str()).expect("is there");
                        assert_eq!(inode(&a), None);
                    }
                })
            })
            .collect();
        let ends: Vec<_> = changers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Release);
        assert!(ends.iter().all(Result::is_ok));
    });
}

#[test]
fn what_is_listed_and_looked_up_is_as_it_is() {
    let process = root();
    process.mkdir("/dir", 0o755).expect("is made");
    for number in 0..5000 {
        process.mknod(format!("/dir/file{number:05}").as_str(), 0o100_644, 0).expect("is made");
    }
    let mut directory = process.opendir("/dir").expect("opens");
    let mut listed = 0;
    while let Some(entry) = directory.read().expect("reads") {
        if entry.kind == FileType::Directory {
            continue;
        }
        let number = listed;
        listed += 1;
        let name = (directory.fd(), &entry.name[..]);
        let found = process.stat(name).expect("is there");
        let was_changed = (1..10).contains(&(number % 1000)) || (700..710).contains(&(number % 1000));
        assert!(was_changed || found.inode == entry.inode);
        // Changed behind the back of the listing, which has read ahead.
        let ahead = format!("/dir/file{:05}", number + 3);
        match number % 1000 {
            1 | 700 => {
                process.unlink(ahead.as_str()).expect("is there");
                assert_eq!(errno(process.stat(ahead.as_str())), Some(Errno::NOENT));
                process.mknod(ahead.as_str(), 0o100_600, 0).expect("is made");
                assert_eq!(process.stat(ahead.as_str()).expect("is there").mode, 0o600);
            }
            2 | 701 => {
                let inode = |path: &str| process.stat(path).expect("is there").inode;
                let (first, second) = (inode("/dir/file00000"), inode(&ahead));
                process
                    .rename("/dir/file00000", ahead.as_str(), RenameMode::Exchange)
                    .expect("both are there");
                assert_eq!((inode("/dir/file00000"), inode(&ahead)), (second, first));
            }
            _ => {}
        }
    }
    assert_eq!(listed, 5000);
}
