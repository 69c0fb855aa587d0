use kvfs_fs::{BeginOptions, Isolation, MkfsOptions, MountOptions, Owner};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;

use super::*;

fn main_line() -> Arc<FileSystem> {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes a file system");
    Arc::new(FileSystem::open(store, clock, MountOptions::default()).expect("opens it"))
}

fn begin(fs: &Arc<FileSystem>, isolation: Isolation) -> Arc<FileSystem> {
    let owner = Owner { uid: 0, pid: 1, name: String::new() };
    fs.begin(&BeginOptions { isolation, owner, ..BeginOptions::default() }).expect("begins a transaction")
}

#[test]
fn a_view_steers_only_where_that_was_asked_for() {
    let view = begin(&main_line(), Isolation::Snapshot);
    assert!(!session_config(&view, false).steers && session_config(&view, true).steers);
}

#[test]
fn a_view_answers_as_the_main_line_does() {
    let fs = main_line();
    let config = BridgeConfig { btimes: false, writeback: true, xattrs: false, ..BridgeConfig::default() };
    let timeout = config.directory_attr_timeout;
    let main = Bridge::new(Arc::clone(&fs), config).expect("starts");
    let of_view = bridge_config(&main, &begin(&fs, Isolation::Snapshot), Some((7, 8)));
    assert!(!of_view.btimes && !of_view.xattrs && !of_view.writeback);
    assert_eq!((of_view.directory_attr_timeout, of_view.only_ids), (timeout, Some((7, 8))));
    let serializable = begin(&fs, Isolation::Serializable);
    assert_eq!(bridge_config(&main, &serializable, None).directory_attr_timeout, Duration::ZERO);
    assert_eq!(session_config(&serializable, true).init.readdirplus, Readdirplus::Off);
}
