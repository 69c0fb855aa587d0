//! Histories of concurrent transactions over files, keys and both, judged by an independent checker.
//!
//! Each transaction reads lists and appends to them; a list is a file, or the value of a key. What all of
//! them saw is a history, in which the checker (crate `adya`, after Kingsbury and Alvaro's Elle) looks for
//! anomalies: what the level forbids must not be there, and what the snapshot level allows must show up, or
//! the test shows nothing.
//!
//! Threads decide the interleaving, so a failure does not replay from its seed; the history is printed
//! instead.

use std::sync::Arc;

use adya::r#gen::{GenOpts, TxnOp};
use adya::run::{Client, Outcome, RunOpts};
use adya::{Error, History, Opts, Valid, Workload};
use bytes::Bytes;
use kvfs_engine_transactions::Transacted;
use kvfs_fs::{
    Append, BeginOptions, Caller, FileSystem, FsError, MountOptions, NodeId, Owner, Result, WriteFlags,
};
use kvfs_kvdb::Background;
use kvfs_store::{Isolation, Keyspace, KeyspaceKind, Store};
use parking_lot::Mutex;

use crate::bare::Bare;
use crate::engine;
use crate::setup::{Setup, patiently};

/// Where lists are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lists {
    Files,
    Keys,
    /// Every other list.
    Both,
}

/// Runs transactions, one at a time.
struct Runner {
    main: Arc<FileSystem>,
    caller: Caller,
    keyspace: Keyspace,
    isolation: Isolation,
    lists: Lists,
    /// Commits take turns, as they do on a mount.
    turn: Arc<Mutex<()>>,
}

impl Runner {
    fn is_file(&self, list: i64) -> bool {
        match self.lists {
            Lists::Files => true,
            Lists::Keys => false,
            Lists::Both => list % 2 == 0,
        }
    }

    fn run(&self, ops: &[TxnOp]) -> Result<Vec<Option<Vec<i64>>>> {
        let options = BeginOptions {
            isolation: self.isolation,
            owner: Owner { uid: 1000, pid: 1, name: "history".into() },
            ..BeginOptions::default()
        };
        let view = self.main.begin(&options)?;
        let mut seen = Vec::new();
        for op in ops {
            seen.push(match *op {
                TxnOp::Append(list, element) | TxnOp::Write(list, element) => {
                    self.append(&view, list, element)?;
                    None
                }
                TxnOp::Read(list) => Some(parse(&self.read(&view, list)?)),
            });
        }
        let _turn = self.turn.lock();
        drop(view.expect_txn()?.freeze()?.plan()?.commit(|| ())?);
        Ok(seen)
    }

    fn read(&self, view: &FileSystem, list: i64) -> Result<Vec<u8>> {
        if !self.is_file(list) {
            let value = patiently(&self.caller, |caller| view.keys().get(caller, self.keyspace, &key(list)))?;
            return Ok(value.map(|value| value.to_vec()).unwrap_or_default());
        }
        match patiently(&self.caller, |caller| view.lookup(caller, NodeId::ROOT, &key(list))) {
            Err(FsError::NotFound) => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(entry) => {
                let attr = patiently(&self.caller, |caller| view.getattr(caller, entry.node))?;
                let mut content = vec![0; attr.size as usize];
                let len = patiently(&self.caller, |caller| view.read(caller, entry.node, 0, &mut content))?;
                content.truncate(len);
                Ok(content)
            }
        }
    }

    fn append(&self, view: &FileSystem, list: i64, element: i64) -> Result<()> {
        let text = format!("{element},").into_bytes();
        if !self.is_file(list) {
            let value = Bytes::from([self.read(view, list)?, text].concat());
            patiently(&self.caller, |caller| {
                view.keys().set(caller, self.keyspace, &key(list), Some(value.clone()))
            })?;
            return Ok(());
        }
        let (entry, _) =
            patiently(&self.caller, |caller| view.create(caller, NodeId::ROOT, &key(list), 0o644, false))?;
        let flags = WriteFlags { append: Append::End, ..WriteFlags::default() };
        let text = Bytes::from(text);
        patiently(&self.caller, |caller| view.write(caller, entry.node, 0, text.clone(), flags))?;
        Ok(())
    }
}

impl Client for Runner {
    fn txn(&mut self, ops: &[TxnOp]) -> Outcome {
        match self.run(ops) {
            Ok(seen) => Outcome::Ok(seen),
            Err(error @ FsError::Canceled(_)) => Outcome::Fail(error.to_string()),
            Err(error) => Outcome::Info(error.to_string()),
        }
    }
}

fn key(list: i64) -> Vec<u8> {
    format!("list-{list}").into_bytes()
}

fn parse(text: &[u8]) -> Vec<i64> {
    let text = std::str::from_utf8(text).unwrap();
    text.split_terminator(',').map(|element| element.parse().unwrap()).collect()
}

/// A history of transactions over a fresh store, and the anomalies that `model` forbids.
fn anomalies(
    on: &Setup,
    isolation: Isolation,
    lists: Lists,
    model: &str,
    seed: u64,
) -> (String, Vec<String>) {
    let name = format!("lists-{seed}");
    let keyspace = on.store.open_keyspace(&name, KeyspaceKind::Tuple, None).unwrap();
    let turn = Arc::new(Mutex::new(()));
    let (fs, caller) = (&on.fs, &on.caller);
    let connect = || -> std::result::Result<Box<dyn Client>, Error> {
        let (main, caller, turn) = (Arc::clone(fs), caller.clone(), Arc::clone(&turn));
        Ok(Box::new(Runner { main, caller, keyspace, isolation, lists, turn }))
    };
    let r#gen = GenOpts { key_count: 4, max_txn_len: 5, ..GenOpts::default() };
    let options = RunOpts { processes: 8, txns: 2000, r#gen, seed, ..RunOpts::default() };
    let (history, stats) = adya::run::run(&connect, &options).unwrap();
    assert_eq!(stats.info, 0, "neither committed nor refused: {history}");
    let parsed = History::from_json(&history).unwrap();
    let options = Opts { models: vec![model.into()], ..Opts::default() };
    let report = adya::check(&parsed, Workload::ListAppend, &options);
    assert_ne!(report.valid, Valid::Unknown, "{history}");
    (history, report.anomaly_types)
}

/// All kinds of stores, each with an empty file system.
fn stores() -> [Setup; 3] {
    let device = engine::create();
    let db: Arc<dyn Store> = engine::open(&device, 64 << 10, Background::Threads);
    let added = Arc::new(Transacted::new(Bare::default(), 64 << 20));
    let over = |store| Setup::with(store, 100, MountOptions::default());
    [Setup::new(100), over(db), over(added)]
}

fn assert_none(isolation: Isolation, model: &str) {
    for lists in [Lists::Files, Lists::Keys, Lists::Both] {
        for (on, store) in stores().iter().zip(["model", "engine", "engine with added transactions"]) {
            let (history, found) = anomalies(on, isolation, lists, model, 1);
            assert!(found.is_empty(), "{lists:?} on the {store}: {found:?}\n{history}");
            on.assert_sound("after all of them");
        }
    }
}

#[test]
fn histories_at_snapshot_level_are_of_snapshot_isolation() {
    assert_none(Isolation::Snapshot, "strong-snapshot-isolation");
}

#[test]
fn histories_at_serializable_level_are_strictly_serializable() {
    assert_none(Isolation::Serializable, "strict-serializable");
}

#[test]
fn write_skew_shows_in_histories_at_snapshot_level() {
    for lists in [Lists::Files, Lists::Keys, Lists::Both] {
        let is_skewed = |seed: u64| {
            let on = Setup::new(100);
            let (_, found) = anomalies(&on, Isolation::Snapshot, lists, "serializable", seed);
            found.iter().any(|kind| kind.starts_with("G2"))
        };
        assert!((1..=20).any(is_skewed), "{lists:?}: twenty histories without write skew show nothing");
    }
}
