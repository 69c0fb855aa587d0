//! What is walked of a branch.

use std::time::Duration;

use kvfs_store::Store;
use kvfs_store::clock::ManualClock;
use kvfs_store::model::ModelStore;

use super::*;
use crate::{Caller, MkfsOptions, MountOptions, NodeId};

fn make(view: &FileSystem, name: &str) {
    view.create(&Caller::default(), NodeId::ROOT, name.as_bytes(), 0o644, true).unwrap();
}

/// In how many places it has written rows.
fn ranges(view: &FileSystem) -> usize {
    let all = view.origin.branch_ranges(view.keyspaces.meta, &KeyRange::all()).unwrap();
    let mut all = all.unwrap();
    std::iter::from_fn(|| all.next().unwrap()).count()
}

#[test]
fn branch_that_one_is_brought_into_is_asked_for_its_changes_since_they_parted() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let main = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
    main.branches().create("try", 0).unwrap();
    let parent = main.open_branch("try").unwrap();
    (0..100).for_each(|count| make(&parent, &format!("before {count}")));
    parent.branches().fork("fix", 0).unwrap();
    make(&parent, "since");
    parent.branches().checkpoint().unwrap();
    assert!(ranges(&parent) > 100);
    drop(parent);
    let [into, fix] = ["try", "fix"].map(|name| main.open_branch(name).unwrap());
    into.expect_txn().unwrap().note_brought_in(fix.expect_txn().unwrap());
    // The name, and its directory.
    assert_eq!(ranges(&into), 2);
}
