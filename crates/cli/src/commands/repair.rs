//! `kvfs check --repair`.
//!
//! One way for all forms: a device is repaired in place. With `--copy-to` that is a copy of the store's, with
//! `--dry-run` what would be written stays in memory.

mod copy;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use kvfs_device::{Device, OverlayDevice};
use kvfs_fs::repair as files;
use kvfs_kvdb::{Background, Db, Options, Repaired};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{Op, Store};

use crate::args::CheckArgs;
use crate::endpoint::{find_store, stop_by_signals};
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::progress::Bar;
use crate::store_dir::StoreDir;
use kvfs_open::{Memory, StoreDevices, Unopened, explain_open};
use report::Report;

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let (store, mounted) = find_store(args.target.as_deref().or(args.store.as_deref()))?;
    store.expect_kvdb("repair")?;
    let dir = match mounted {
        Some(mounted) => Some(mounted.dir),
        None => mounts::of_store(store.path())?,
    };
    if let Some(dir) = dir {
        let (path, dir) = (store.path().display(), dir.display());
        let message = format!("{path} is mounted on {dir}; unmount it first: kvfs umount {dir}");
        return Err(CliError::new(Code::InUse, message));
    }
    let bar = Bar::new("repairing");
    let report = bar.watch(|| by_way_of(args, &store))?;
    drop(bar);
    print!("{}", if args.json { report.as_json(args.dry_run) } else { report.as_text(args.dry_run) });
    Ok(report.exit_code())
}

/// The devices of a store: the first one, and the others. Those that can't be opened are passed over: the
/// engine knows whether it needs them.
struct Devices {
    first: Arc<dyn Device>,
    others: Vec<Arc<dyn Device>>,
    unopened: Unopened,
}

impl Devices {
    fn open(store: &StoreDir, read_only: bool) -> Result<Self> {
        let devices = StoreDevices::open(store, read_only)?;
        let (first, others) = devices.for_engine();
        Ok(Self { first, others, unopened: devices.unopened().clone() })
    }

    /// What is written to them stays in memory.
    fn overlaid(self) -> Self {
        let over = |device| Arc::new(OverlayDevice::over(device)) as Arc<dyn Device>;
        let others = self.others.into_iter().map(over).collect();
        Self { first: over(self.first), others, unopened: self.unopened }
    }
}

/// The store itself, a copy of it, or what only looks as if it were repaired.
fn by_way_of(args: &CheckArgs, store: &StoreDir) -> Result<Report> {
    let Some(target) = &args.copy_to else {
        let devices = Devices::open(store, args.dry_run)?;
        return repair(store, if args.dry_run { devices.overlaid() } else { devices });
    };
    let source = Devices::open(store, true)?;
    let several = kvfs_kvdb::names_other_devices(&source.first, &source.others);
    if several.map_err(|error| explain_open(store, error))? {
        let message = "--copy-to is for stores of one device; --repair alone mends the store in place, and with --dry-run \
                       it tells before what that comes to";
        return Err(CliError::new(Code::Usage, message));
    }
    let is_stopping = Arc::new(AtomicBool::new(false));
    stop_by_signals(&is_stopping)?;
    let target = copy::prepare(target)?;
    let report = copy::fill(&source.first, &target, &is_stopping).and_then(|(first, findings)| {
        let mut report =
            repair(&target, Devices { first, others: Vec::new(), unopened: Unopened::default() })?;
        report.findings.splice(0..0, findings);
        copy::check_stop(&is_stopping)?;
        target.end_copy(None)?;
        Ok(report)
    });
    if report.is_err() {
        copy::remove(&target);
    }
    report
}

/// The engine first, then what the file system makes of what is left.
fn repair(store: &StoreDir, devices: Devices) -> Result<Report> {
    let Devices { first, others, unopened } = devices;
    let engine = kvfs_kvdb::repair_joined(&first, &others, &files::KEYSPACES);
    let engine = engine.map_err(|error| unopened.explain(store, error))?;
    let memory = Memory::default();
    let mut options = Options::with_memory(memory.engine_bytes(memory.reserve_bytes()));
    options.background = Background::Manual;
    options.undo_count = usize::MAX;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = Db::open_joined(first, &others, options, Arc::clone(&clock));
    let db = db.map_err(|error| explain_open(store, error))?;
    let damaged = damaged_keys(&db, &engine)?;
    let handle: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
    let nameless = files::settle_receive(&handle, engine.lost.is_empty() && !engine.is_uncertain)?;
    let fixed = files::repair(&handle, &*clock, &damaged, engine.is_uncertain)?;
    let mut lost = files::describe(&handle, &damaged, &fixed.holed)?;
    lost.extend(fixed.lost.into_iter().chain(nameless));
    let mut report = Report {
        findings: engine.findings,
        is_uncertain: engine.is_uncertain,
        fixed: fixed.fixed,
        lost,
        lost_more: engine.dropped_count.saturating_sub(engine.dropped.len() as u64),
        snapshots: engine.snapshots,
        left: fixed.left.iter().map(ToString::to_string).collect(),
    };
    drop(handle);
    report.left.extend(db.check()?.findings);
    db.close()?;
    Ok(report)
}

/// What the engine has lost, in terms of keys of now.
fn damaged_keys(db: &Arc<Db>, engine: &Repaired) -> Result<Vec<files::DamagedKeys>> {
    let store: Arc<dyn Store> = Arc::clone(db) as Arc<dyn Store>;
    files::open_keyspaces(&store)?;
    let mut damaged = Vec::new();
    for lost in &engine.lost {
        let keys = db.lost_keys(lost)?;
        damaged.push(files::DamagedKeys {
            keyspace: lost.keyspace.clone(),
            txn: lost.txn,
            first: lost.part.first.clone(),
            last: lost.part.last.clone(),
            older: keys.older,
            gone_max: keys.gone_max,
            blocks: keys.blocks,
        });
    }
    for (keyspace, op) in &engine.dropped {
        damaged.push(files::DamagedKeys {
            keyspace: keyspace.clone(),
            older: keys_of(op),
            gone_max: Some(0),
            ..files::DamagedKeys::default()
        });
    }
    Ok(damaged)
}

/// What an operation would have changed.
fn keys_of(op: &Op) -> Vec<Bytes> {
    match op {
        Op::Put { key, .. } | Op::Delete { key, .. } | Op::Merge { key, .. } => vec![key.clone()],
        Op::DeleteRange { start, .. } => vec![start.clone()],
        Op::PutBlocks { prefix, first, .. } | Op::PatchBlock { prefix, block: first, .. } => {
            vec![[&prefix[..], &first.to_be_bytes()].concat().into()]
        }
    }
}
