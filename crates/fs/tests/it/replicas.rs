//! What counts as a change of a store that receives differences, and what does not.

use kvfs_fs::transfer::{ReceiveError, Receiver};
use kvfs_fs::{BeginOptions, NodeId};
use kvfs_kv::KeyspaceOwner;

use crate::transfer::{begin_of, main_content, model, pass_on, snapshot_content, stream};

const ROOT: NodeId = NodeId::ROOT;
const OWNER: KeyspaceOwner = KeyspaceOwner { uid: 7, gid: 8, mode: 0o640 };

#[test]
fn owner_and_mode_of_a_keyspace_that_the_receiver_changed_are_refused_or_rolled_back() {
    let (source, mut target) = (model(1), model(2));
    source.keys().make_keyspace("tags", OWNER).unwrap();
    source.store.create_snapshot("one").unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    // One that a stream made which came to nothing.
    target.keys().make_keyspace("new", OWNER).unwrap();
    source.keys().make_keyspace("new", OWNER).unwrap();
    source.store.create_snapshot("two").unwrap();
    pass_on(&source, Some("one"), "two", &mut target, false).unwrap();
    let closed = KeyspaceOwner { mode: 0o600, ..OWNER };
    target.keys().change_keyspace("tags", |_| Ok(closed)).unwrap();
    source.file(ROOT, "file");
    source.store.create_snapshot("three").unwrap();
    let (begin, _) = begin_of(&stream(&source, Some("two"), "three"), &source, Some("two"), "three");
    let refused = Receiver::new(&target.fs).check(&begin, false);
    assert!(matches!(&refused, Err(ReceiveError::Changed(name)) if name == "two"), "{refused:?}");
    let refused = pass_on(&source, Some("two"), "three", &mut target, false);
    assert!(matches!(&refused, Err(ReceiveError::Changed(name)) if name == "two"), "{refused:?}");
    assert_eq!(target.keys().keyspace("tags").unwrap().unwrap().owner, closed);
    let received = pass_on(&source, Some("two"), "three", &mut target, true).unwrap();
    assert!(received.rolled_back);
    assert_eq!(target.keys().keyspace("tags").unwrap().unwrap().owner, OWNER);
}

#[test]
fn transaction_that_only_reads_is_no_change_of_a_receiving_store_with_a_snapshot_of_its_own() {
    let (source, mut target) = (model(1), model(2));
    source.file(ROOT, "file");
    source.store.create_snapshot("one").unwrap();
    pass_on(&source, None, "one", &mut target, false).unwrap();
    target.snapshots().create("mine", false).unwrap();
    drop(target.fs.begin(&BeginOptions::default()).unwrap());
    let received = snapshot_content(&target, "one");
    assert!(main_content(&target) != received, "the directory of detached trees was made");
    source.file(ROOT, "new");
    source.store.create_snapshot("two").unwrap();
    let (begin, _) = begin_of(&stream(&source, Some("one"), "two"), &source, Some("one"), "two");
    Receiver::new(&target.fs).check(&begin, false).unwrap();
    let received = pass_on(&source, Some("one"), "two", &mut target, false).unwrap();
    assert!(!received.rolled_back);
    target.assert_sound("after both");
}
