//! Transactions that have changed nothing: they end at once, and only they do.

use std::sync::{Arc, Barrier};

use bytes::Bytes;
use kvfs_fs::{FsError, NodeId, Result};
use kvfs_kv::KeyspaceOwner;
use kvfs_store::{Isolation, KeyRange, Keyspace};

use crate::setup::{Setup, patiently};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const BOTH: [Isolation; 2] = [Isolation::Snapshot, Isolation::Serializable];

fn keyspace(main: &Setup) -> Keyspace {
    let owner = KeyspaceOwner { uid: 1000, gid: 100, mode: 0o600 };
    main.keys().make_keyspace("tags", owner).unwrap().0.keyspace
}

fn put(view: &Setup, keyspace: Keyspace, key: &[u8]) -> Result<()> {
    view.keys().set(&view.caller, keyspace, key, Some(Bytes::from_static(b"1"))).map(drop)
}

#[test]
fn unwritten_commit_releases_locks_at_once() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let tags = keyspace(&main);
        let (view, idle) = (begin(&main, isolation), begin(&main, isolation));
        view.user_locks().keys(&view.caller, tags, &KeyRange::all(), true).unwrap();
        let Err(FsError::Parked(ticket)) = put(&main, tags, b"song") else { panic!("it is locked") };
        assert!(!ticket.is_ready());
        assert_eq!(view.txn().unwrap().commit_unwritten(), Some(main.store.position()));
        assert!(ticket.is_ready(), "its locks are gone");
        put(&main, tags, b"song").unwrap();
        assert!(
            idle.txn().unwrap().commit_unwritten().is_some()
                && idle.txn().unwrap().commit_unwritten().is_none(),
            "once"
        );
        assert!(matches!(put(&view, tags, b"song"), Err(FsError::ViewEnded(_) | FsError::Canceled(_))));
        main.assert_sound("after both");
    }
}

#[test]
fn unwritten_commit_of_written_frozen_or_doomed_transaction_returns_none() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let tags = keyspace(&main);
        let (writer, frozen, doomed) =
            (begin(&main, isolation), begin(&main, isolation), begin(&main, isolation));
        put(&writer, tags, b"song").unwrap();
        assert!(writer.txn().unwrap().commit_unwritten().is_none());
        commit(&writer).unwrap();
        let closed = frozen.expect_txn().unwrap().freeze().unwrap();
        assert!(frozen.txn().unwrap().commit_unwritten().is_none(), "another thread commits it");
        drop(closed);
        assert!(frozen.txn().unwrap().commit_unwritten().is_some());
        if isolation == Isolation::Snapshot {
            assert!(matches!(put(&doomed, tags, b"song"), Err(FsError::Canceled(_))));
            assert!(
                doomed.txn().unwrap().commit_unwritten().is_none()
                    && matches!(doomed.expect_txn().unwrap().freeze(), Err(FsError::Canceled(_)))
            );
        }
        assert!(main.txn().is_none(), "the main line is no transaction");
        let file = main.file(ROOT, "file");
        let view = begin(&main, isolation);
        view.lookup(&view.caller, ROOT, b"file").unwrap();
        assert!(view.txn().unwrap().commit_unwritten().is_some(), "looking changes nothing");
        main.forget(file, 1);
    }
}

/// The look and the end are one step: what comes in beside them is refused, or committed by the ordinary way.
#[test]
fn no_write_is_lost_that_comes_while_its_transaction_ends() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let tags = keyspace(&main);
        let (mut at_once, mut kept) = (0, 0);
        for round in 0..400u32 {
            let view = begin(&main, isolation);
            let (fs, caller) = (Arc::clone(&view.fs), view.caller.clone());
            let (key, start) = (round.to_be_bytes(), Barrier::new(2));
            let (written, ended) = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    start.wait();
                    patiently(&caller, |caller| {
                        fs.keys().set(caller, tags, &key, Some(Bytes::from_static(b"1")))
                    })
                });
                start.wait();
                let ended = view.txn().unwrap().commit_unwritten().is_some();
                (writer.join().unwrap(), ended)
            });
            if !ended {
                commit(&view).unwrap();
            }
            at_once += u32::from(ended);
            kept += u32::from(written.is_ok());
            let is_there = main.keys().get(&main.caller, tags, &key).unwrap().is_some();
            assert_eq!(is_there, written.is_ok(), "round {round}: {written:?}, ended at once: {ended}");
        }
        println!("{isolation:?}: {at_once} ended at once, {kept} writes were in time");
        main.assert_sound("after all");
    }
}
