//! Another front end beside the calls: what it is told of.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use kvfs_fs::{
    Caller, ContentObserver, FileSystem, FsError, Invalidations, MkfsOptions, MountOptions, NodeId,
    RenameMode, Telling,
};
use kvfs_posix::{Identity, Observer, View};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use rustix::fs::OFlags;

/// A kernel beside the calls, which tries to make each name that it is told of.
#[derive(Debug)]
struct Kernel {
    fs: Arc<FileSystem>,
    /// Names that it was told of.
    told: Mutex<Vec<String>>,
}

impl Kernel {
    fn mkdir(&self, directory: NodeId, name: &[u8]) -> Result<(), FsError> {
        let caller = Caller { goes_by_names: true, ..Caller::default() };
        self.fs.mkdir(&caller, directory, name, 0o755).map(drop)
    }
}

impl ContentObserver for Kernel {
    fn content_changed(&self, _: NodeId, _: Range<u64>) {}
}

impl Observer for Kernel {
    fn changed(&self, changes: Invalidations, telling: Option<Telling>) {
        for (directory, name) in &changes.entries {
            let refused = self.mkdir(*directory, name);
            assert!(matches!(refused, Err(FsError::NameChanged)), "{refused:?}");
            self.told.lock().expect("none has panicked").push(String::from_utf8_lossy(name).into_owned());
        }
        drop(telling);
        for (directory, name) in &changes.entries {
            assert!(!matches!(self.mkdir(*directory, name), Err(FsError::NameChanged)));
        }
    }
}

#[test]
fn kernel_changes_no_name_that_a_call_has_changed_before_it_has_been_told() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
    let kernel = Arc::new(Kernel { fs: Arc::clone(&fs), told: Mutex::default() });
    let process = View::of(fs, Some(kernel.clone())).process(&Identity::root());
    let told = || std::mem::take(&mut *kernel.told.lock().unwrap());
    process.mkdir("/directory", 0o755).unwrap();
    assert_eq!(told(), ["directory"]);
    process.mknod("/node", 0o644, 0).unwrap();
    assert_eq!(told(), ["node"]);
    process.symlink(b"target", "/symlink").unwrap();
    assert_eq!(told(), ["symlink"]);
    process.mkdir("/directory/below", 0o755).unwrap();
    assert_eq!(told(), ["below"]);
    process.open("/directory/file", OFlags::CREATE, 0o644).unwrap();
    assert_eq!(told(), ["file"]);
    process.link("/directory/file", "/link").unwrap();
    assert_eq!(told(), ["link"]);
    process.rename("/directory/file", "/directory/other", RenameMode::Replace).unwrap();
    assert_eq!(told(), ["file", "other"]);
    process.rmdir("/directory/below").unwrap();
    assert_eq!(told(), ["below"]);
    // What has failed is not told of, and nothing is kept of it.
    process.mkdir("/directory", 0o755).unwrap_err();
    process.rmdir("/directory").unwrap_err();
    assert!(told().is_empty());
    let caller = Caller { goes_by_names: true, ..Caller::default() };
    assert!(matches!(kernel.fs.rmdir(&caller, NodeId::ROOT, b"directory"), Err(FsError::NotEmpty)));
    process.unlink("/directory/other").unwrap();
    assert_eq!(told(), ["other"]);
}
