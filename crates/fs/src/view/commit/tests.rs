use std::sync::Arc;

use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use kvfs_txn::{Doom, DoomReason};

use crate::{BeginOptions, Caller, FileSystem, FsError, MkfsOptions, MountOptions, NodeId};

fn file_system() -> Arc<FileSystem> {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes");
    Arc::new(FileSystem::open(store, clock, MountOptions::default()).expect("opens"))
}

fn view_with(main: &Arc<FileSystem>, name: &[u8]) -> Arc<FileSystem> {
    let view = main.begin(&BeginOptions::default()).expect("begins");
    view.create(&Caller::default(), NodeId::ROOT, name, 0o644, true).expect("creates");
    view
}

/// What the commit whose turn it is waits for may wait for it.
#[test]
fn commit_that_waits_for_its_turn_lets_others_commit_and_gives_way() {
    let main = file_system();
    for gives_way in [false, true] {
        let (one, other) = (view_with(&main, b"one"), view_with(&main, b"other"));
        let (first, second) = (one.expect_txn().expect("is one"), other.expect_txn().expect("is one"));
        let prepared = first.freeze().expect("freezes").prepare().expect("prepares");
        drop(second.freeze().expect("freezes").plan().expect("plans").commit(|| ()).expect("commits"));
        if gives_way {
            let doom = Doom::new(DoomReason::Conflict);
            assert!(first.lock_owner().expect("has locks").doom(doom), "it can't give way");
            assert!(matches!(prepared.begin(), Err(FsError::Canceled(_))));
            return;
        }
        let planned = prepared.begin().expect("nothing is in its way");
        let doom = Doom::new(DoomReason::Conflict);
        assert!(!first.lock_owner().expect("has locks").doom(doom), "it has begun");
        drop(planned.commit(|| ()).expect("commits"));
        for name in [&b"one"[..], b"other"] {
            main.unlink(&Caller::default(), NodeId::ROOT, name).expect("was committed");
        }
    }
}
