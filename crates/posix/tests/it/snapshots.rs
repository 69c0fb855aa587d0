//! What there was, and what is never changed.

use std::sync::Arc;

use kvfs_fs::{FileSystem, MountOptions, SetTime};
use kvfs_posix::{Access, Identity, Volume};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::world::{errno, over, user};

#[test]
fn a_snapshot_shows_what_there_was_and_is_not_changed() {
    let volume = over(Arc::new(ModelStore::new()));
    let now = volume.process(&Identity::root());
    let file = now.open("/file", OFlags::CREATE | OFlags::WRONLY, 0o4755).expect("is made");
    now.write(file, b"then").expect("is written");
    volume.file_system().snapshots().create("monday", false).expect("is made");
    now.write(file, b" and now").expect("is written");
    now.unlink("/file").expect("is removed");
    assert_eq!(errno(volume.open_snapshot("tuesday")), Some(Errno::NOENT));

    let view = volume.open_snapshot("monday").expect("opens");
    let then = view.process(&Identity::root());
    let attr = then.stat("/file").expect("was there");
    assert_eq!((attr.size, attr.mode), (4, 0o755));
    let mut content = [0; 16];
    let opened = then.open("/file", OFlags::RDONLY, 0).expect("opens");
    assert_eq!(then.read(opened, &mut content).expect("reads"), 4);
    assert_eq!(&content[..4], b"then");
    assert_eq!(then.opendir("/").expect("opens").count(), 3);
    assert_eq!(errno(then.open("/file", OFlags::WRONLY, 0)), Some(Errno::ROFS));
    assert_eq!(errno(then.unlink("/file")), Some(Errno::ROFS));
    drop((now, view));
    assert_eq!(errno(volume.unmount()), Some(Errno::BUSY));
    drop(then);
    volume.unmount().expect("is free");
}

#[test]
fn nothing_is_opened_for_writing_on_a_read_only_file_system() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let volume = over(Arc::clone(&store));
    let process = volume.process(&Identity::root());
    process.open("/file", OFlags::CREATE | OFlags::RDWR, 0o666).expect("is made");
    drop(process);
    volume.unmount().expect("is free");

    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::open(store, Arc::new(SystemClock::new()), options).expect("opens");
    let volume = Volume::over(Arc::new(fs)).expect("starts a thread");
    let writes = Access { writes: true, ..Access::default() };
    for process in [volume.process(&Identity::root()), user(&volume, 7, &[])] {
        assert_eq!(errno(process.access("/file", writes)), Some(Errno::ROFS));
        assert_eq!(errno(process.open("/file", OFlags::RDWR, 0)), Some(Errno::ROFS));
        assert_eq!(errno(process.truncate("/file", 0)), Some(Errno::ROFS));
        assert_eq!(errno(process.mkdir("/new", 0o755)), Some(Errno::ROFS));
        let now = Some(SetTime::Now);
        assert_eq!(errno(process.utimens("/file", now, now)), Some(Errno::ROFS));
        process.open("/file", OFlags::RDONLY, 0).expect("is read");
    }
}
