//! Transactions without operations: their time-out, and their space on a full store.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{
    BeginOptions, DoomReason, FsError, MountOptions, NodeId, Owner, Result, Selection,
    begin_merge_preferring, remove_tree, restore,
};
use kvfs_kv::KeyChange;
use kvfs_kvdb::Background;
use kvfs_store::{Isolation, KeyspaceKind, Store};

use crate::detached::Asking;
use crate::engine::{create, open};
use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const MIB: usize = 1 << 20;

#[test]
fn idle_transaction_is_ended_by_the_mounts_timeout_and_its_owner_told() {
    let store = Arc::new(kvfs_store::model::ModelStore::new());
    let options = MountOptions { txn_idle: Some(Duration::from_mins(1)), ..MountOptions::default() };
    let setup = Setup::with(store, 4096, options);
    let idle = begin(&setup, Isolation::Snapshot);
    let used = begin(&setup, Isolation::Snapshot);
    let patient = BeginOptions { idle_max: Some(Duration::MAX), ..BeginOptions::default() };
    let patient = setup.through(setup.fs.begin(&patient).unwrap(), setup.options);
    idle.file(ROOT, "idle");
    setup.clock.advance(Duration::from_secs(50));
    used.file(ROOT, "used");
    setup.clock.advance(Duration::from_secs(10));
    setup.admission().tick();
    let error = commit(&idle.fs).expect_err("its time is over");
    let FsError::Canceled(doom) = &error else { panic!("{error}") };
    assert_eq!(doom.reason, DoomReason::Idle { idle_max_ms: 60_000 });
    idle.txn().unwrap().abort();
    let after = idle.create(&idle.caller, ROOT, b"more", 0o644, true).expect_err("it has ended");
    assert!(after.to_string().contains("idle time-out"), "{after}");
    commit(&used.fs).unwrap();
    patient.file(ROOT, "patient");
    setup.clock.advance(Duration::from_hours(1000));
    setup.admission().tick();
    commit(&patient.fs).unwrap();
}

/// A file system on a small engine, and an idle transaction that pins the first content of a file of 24 MiB,
/// which is written anew until only the space of the old versions is left.
fn filled() -> (Setup, Setup, NodeId) {
    let db = open(&create(), 1 << 20, Background::Manual);
    let setup = Setup::with(Arc::clone(&db) as Arc<dyn Store>, 4096, MountOptions::default());
    let file = setup.file(ROOT, "f");
    for index in 0..24 {
        setup.write_at(file, (index * MIB) as u64, &noise(index, MIB)).unwrap();
    }
    let view = begin(&setup, Isolation::Snapshot);
    let other = view.file(ROOT, "other");
    for index in 0..12 {
        view.write_at(other, (index * MIB) as u64, &noise(100 + index, MIB)).unwrap();
    }
    (setup, view, file)
}

fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut random = crate::setup::Random::new(seed as u64 + 1);
    (0..len / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// Rewrites the file; the first error.
fn rewrite(setup: &Setup, file: NodeId) -> Result<(), FsError> {
    for round in 0..3 {
        for index in 0..24 {
            let data = noise(1000 * (round + 1) + index, MIB);
            setup.with_space(&setup.caller, || setup.write_at(file, (index * MIB) as u64, &data))?;
        }
    }
    Ok(())
}

#[test]
fn full_store_ends_the_idle_transaction_that_pins_space_instead_of_refusing_writes() {
    let (setup, view, file) = filled();
    setup.clock.advance(Duration::from_secs(30));
    rewrite(&setup, file).expect("the idle transaction gives way");
    let error = commit(&view.fs).expect_err("it has ended");
    let FsError::Canceled(doom) = &error else { panic!("{error}") };
    assert!(matches!(doom.reason, DoomReason::Space { .. }), "{doom}");
    let text = doom.to_string();
    assert!(text.contains("the store was full") && text.contains("idle for 30 s"), "{text}");
    drop(view);
    setup.assert_sound("after it gave way");
}

#[test]
fn full_store_leaves_a_transaction_at_work_alone() {
    let (setup, view, file) = filled();
    setup.clock.advance(Duration::from_secs(29));
    let refused = rewrite(&setup, file);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert!(view.txn().unwrap().doom().is_none());
    commit(&view.fs).unwrap();
}

/// Whether its owner ever comes to abort it or not.
#[test]
fn full_store_ends_a_doomed_transaction_that_its_owner_has_left() {
    let (setup, view, file) = filled();
    view.txn().unwrap().give_way(7, file);
    rewrite(&setup, file).expect("what is doomed gives way");
    let error = commit(&view.fs).expect_err("it has ended");
    let FsError::Canceled(doom) = &error else { panic!("{error}") };
    assert_eq!(doom.reason, DoomReason::Conflict, "it is told why");
    drop(view);
    setup.assert_sound("after it gave way");
}

/// It is at work while it compares, which is no operation of its view.
#[test]
fn restore_and_undo_and_preferring_merge_are_never_idle() {
    let store = Arc::new(kvfs_store::model::ModelStore::new());
    store.keep_for_undo(8);
    let options = MountOptions { txn_idle: Some(Duration::from_mins(1)), ..MountOptions::default() };
    let setup = Setup::with(store, 4096, options);
    setup.fs.branches().create("b", 1000).unwrap();
    let branch = setup.through(setup.fs.open_branch("b").unwrap(), setup.options);
    branch.file(ROOT, "made");
    branch.branches().checkpoint().unwrap();
    drop(branch);
    let owner = Owner { uid: 1000, pid: 1, name: "merge".to_owned() };
    let [merging, _branch] =
        begin_merge_preferring(&setup.fs, &setup.branch("b"), owner, &Selection::default()).unwrap();
    setup.clock.advance(Duration::from_hours(1));
    setup.admission().tick();
    commit(&merging).unwrap();

    let (setup, view, file) = filled();
    drop(view);
    setup.store.create_snapshot("then").unwrap();
    setup.file(ROOT, "made");
    let then = setup.fs.view_of(setup.store.open_snapshot("then").unwrap()).unwrap();
    let view = begin(&setup, Isolation::Snapshot);
    restore(&view.fs, &then).unwrap();
    setup.clock.advance(Duration::from_mins(1));
    let refused = rewrite(&setup, file);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert!(view.txn().unwrap().doom().is_none());
}

#[test]
fn a_removal_is_at_work_while_it_looks_for_what_may_not_go() {
    let store = Arc::new(kvfs_store::model::ModelStore::new());
    let options = MountOptions { txn_idle: Some(Duration::from_mins(1)), ..MountOptions::default() };
    let setup = Setup::with(store, 4096, options);
    let top = setup.dir(ROOT, "tree");
    for name in ["a", "b", "c"] {
        let directory = setup.dir(top, name);
        setup.file(directory, "file");
    }
    let view = begin(&setup, Isolation::Snapshot);
    // Each takes most of the time that a transaction may be idle.
    let asking = Asking(|| {
        setup.clock.advance(Duration::from_secs(40));
        setup.admission().tick();
    });
    remove_tree(&view.fs, &view.caller, (ROOT, b"tree"), &asking).unwrap();
    commit(&view.fs).unwrap();
    assert!(matches!(setup.lookup(&setup.caller, ROOT, b"tree"), Err(FsError::NotFound)));
}

#[test]
fn full_store_ends_an_idle_transaction_for_keys_too() {
    let (setup, view, _) = filled();
    setup.clock.advance(Duration::from_mins(1));
    let tags = setup.store.open_keyspace("user.tags", KeyspaceKind::Tuple, None).unwrap();
    for index in 0.. {
        let (key, value) = (format!("k{index}").into(), noise(5000 + index, MIB / 8).into());
        setup.keys().apply(&setup.caller, vec![(tags, KeyChange::Put { key, value })]).unwrap();
        if view.txn().unwrap().doom().is_some() {
            break;
        }
    }
    assert!(matches!(view.txn().unwrap().doom().map(|doom| doom.reason), Some(DoomReason::Space { .. })));
}
