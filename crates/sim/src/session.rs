//! One store on a device and its history, for the sweeps.

use std::sync::Arc;

use kvfs_device::Device;
use kvfs_store::{Durability, Isolation, Op, Position, Result, Store, StoreError, Txn, TxnId, TxnOptions};

use crate::crash_check::{History, compare, compare_readable};
use crate::engine::{Engine, OpenStore};
use crate::named::NamedLog;
use crate::ops::{OpWeights, Profile, SLOTS, Step, StepWeights};
use crate::spaces::{Handles, SPACES};
use crate::txns::Outcomes;

/// Steps that change things, for sweeps that look at the result only.
pub(crate) fn writes_only(steps: usize) -> Profile {
    let step_weights = StepWeights {
        apply: 30,
        sync: 4,
        flush: 3,
        compact: 2,
        reopen: 1,
        snapshot_create: 0,
        snapshot_drop: 0,
        named_create: 2,
        named_delete: 1,
        named_compare: 0,
        get: 0,
        multi_get: 0,
        cursor_open: 0,
        cursor_move: 0,
        read_blocks: 0,
        next_extent: 0,
        compare: 0,
        txn_begin: 5,
        txn_apply: 14,
        txn_changed: 0,
        txn_changes: 0,
        txn_prepare: 4,
        txn_checkpoint: 0,
        txn_fork: 0,
        txn_fork_compare: 0,
        txn_commit: 6,
        txn_abort: 1,
        crash: 0,
    };
    let op_weights =
        OpWeights { put: 10, delete: 4, delete_range: 2, merge: 5, put_blocks: 6, patch_block: 6 };
    Profile { steps, step_weights, op_weights, synced_one_in: 6, ..Profile::default() }
}

/// What a transaction that has applied `op` keeps of it. A patch becomes a block at once, out of what the
/// transaction sees; only its caller looks whether another writer has changed that block since, and the
/// sweeps commit whatever happens.
fn as_kept(txn: &dyn Txn, handles: &Handles, op: &Op) -> Result<Op> {
    let Op::PatchBlock { keyspace, prefix, block, compression, .. } = op else { return Ok(op.clone()) };
    let key = [&prefix[..], &block.to_be_bytes()].concat();
    let (keyspace, prefix, first, compression) = (*keyspace, prefix.clone(), *block, *compression);
    Ok(match txn.get(handles.get(keyspace.0), &key)? {
        Some(data) => Op::PutBlocks { keyspace, prefix, first, data, compression },
        // The same batch has deleted it.
        None => op.clone(),
    })
}

/// What became of a batch.
pub(crate) enum Applied {
    /// It is visible and in the history.
    Yes,
    /// It is visible and in the history, but its sync failed.
    Unsynced(StoreError),
    /// It was refused.
    No(StoreError),
}

/// A transaction, and what it has written.
pub(crate) struct OpenTxn {
    txn: Arc<dyn Txn>,
    ops: Vec<Op>,
}

pub(crate) struct Session {
    pub(crate) txns: [Option<OpenTxn>; SLOTS],
    pub(crate) outcomes: Outcomes,
    pub(crate) open: Box<dyn OpenStore>,
    pub(crate) handles: Handles,
    pub(crate) history: History,
    pub(crate) named: NamedLog,
}

impl Session {
    /// Makes a store on `device` and opens it.
    pub(crate) fn create(engine: &dyn Engine, device: &Arc<dyn Device>) -> Result<Self> {
        engine.create(Arc::clone(device))?;
        let open = engine.open(Arc::clone(device))?;
        let store = open.store();
        let handles = Handles::open(&*store)?;
        let history = History::new(store.position())?;
        Ok(Self {
            txns: Default::default(),
            outcomes: Outcomes::default(),
            open,
            handles,
            history,
            named: NamedLog::default(),
        })
    }

    /// Closes cleanly and opens again.
    pub(crate) fn reopen(mut self, engine: &dyn Engine, device: &Arc<dyn Device>) -> Result<Self> {
        self.txns = Default::default();
        self.open.close()?;
        self.open = engine.open(Arc::clone(device))?;
        self.handles = Handles::open(&*self.open.store())?;
        self.outcomes
            .check_reopened(&*self.open.store(), self.history.newest())
            .map_err(|problem| StoreError::corrupt("the outcomes of transactions", problem))?;
        self.history.record_sync();
        Ok(self)
    }

    /// Begins a transaction; the one in the slot is dropped. Engines without them begin none.
    pub(crate) fn txn_begin(&mut self, slot: usize, isolation: Isolation) -> Result<()> {
        self.txns[slot] = None;
        let store = self.open.store();
        if store.transactions().is_some() {
            let txn = store.begin(TxnOptions { isolation })?;
            self.outcomes
                .begun(txn.id())
                .map_err(|problem| StoreError::corrupt("the ids of transactions", problem))?;
            self.txns[slot] = Some(OpenTxn { txn, ops: Vec::new() });
        }
        Ok(())
    }

    /// Writes privately; a conflict refuses the batch and no more.
    pub(crate) fn txn_apply(&mut self, slot: usize, ops: &[Op]) -> Result<()> {
        let Some(open) = &mut self.txns[slot] else { return Ok(()) };
        match open.txn.apply(self.handles.batch(ops)) {
            Ok(()) => {}
            Err(StoreError::Conflict { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        match ops.iter().map(|op| as_kept(&*open.txn, &self.handles, op)).collect::<Result<Vec<_>>>() {
            Ok(kept) => open.ops.extend(kept),
            // What it has written is not known any more: it must not be committed.
            Err(error) => {
                self.txns[slot] = None;
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) fn txn_prepare(&self, slot: usize) -> Result<()> {
        self.txns[slot].as_ref().map_or(Ok(()), |open| open.txn.prepare())
    }

    /// What a commit of the transaction in `slot` would do.
    pub(crate) fn txn_ops(&self, slot: usize) -> &[Op] {
        self.txns[slot].as_ref().map_or(&[], |open| &open.ops)
    }

    /// Commits; `None` when there was nothing to commit.
    pub(crate) fn txn_commit(&mut self, slot: usize, durability: Durability) -> Result<Option<Applied>> {
        let Some(OpenTxn { txn, ops }) = self.txns[slot].take() else { return Ok(None) };
        let store = self.open.store();
        let before = store.position();
        let (position, error) = match txn.commit(durability) {
            Ok(position) => (position, None),
            Err(error) if store.position() > before => (store.position(), Some(error)),
            Err(error) => return Ok(Some(Applied::No(error))),
        };
        if position == before {
            return Ok(None);
        }
        self.history.record(&ops, position)?;
        self.outcomes.committed(txn.id(), position);
        if let Some(error) = error {
            return Ok(Some(Applied::Unsynced(error)));
        }
        if durability == Durability::Synced {
            self.history.record_sync();
        }
        Ok(Some(Applied::Yes))
    }

    /// The greatest id that a transaction has had so far.
    pub(crate) fn last_txn(&self) -> TxnId {
        self.outcomes.last_id()
    }

    pub(crate) fn apply(&mut self, ops: &[Op], durability: Durability) -> Result<Applied> {
        let store = self.open.store();
        let before = store.position();
        match store.apply(self.handles.batch(ops), durability) {
            Ok(position) => {
                self.history.record(ops, position)?;
                if durability == Durability::Synced {
                    self.history.record_sync();
                }
                Ok(Applied::Yes)
            }
            Err(error) if store.position() > before => {
                self.history.record(ops, store.position())?;
                Ok(Applied::Unsynced(error))
            }
            Err(error) => Ok(Applied::No(error)),
        }
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        let store = self.open.store();
        store.sync(store.position())?;
        self.history.record_sync();
        Ok(())
    }

    /// Creates the named snapshot of `slot`, which syncs everything; nothing happens where it exists.
    pub(crate) fn named_create(&mut self, slot: usize) -> Result<()> {
        let before = self.named.len();
        self.named.create(&*self.open.store(), slot, &self.history)?;
        if self.named.len() > before {
            self.history.record_sync();
        }
        Ok(())
    }

    /// Deletes the named snapshot of `slot`, if it exists.
    pub(crate) fn named_delete(&mut self, slot: usize) -> Result<()> {
        self.named.delete(&*self.open.store(), slot)
    }

    /// Compares everything with the newest state.
    pub(crate) fn compare(&self) -> Result<(), String> {
        compare(&*self.open.store(), &self.handles, &**self.history.model(), self.history.handles())
    }

    /// As [`Session::compare`], where reads may fail, as `may_fail` says.
    pub(crate) fn compare_readable(&self, may_fail: impl Fn(&StoreError) -> bool) -> Result<(), String> {
        let (store, history) = (self.open.store(), &self.history);
        compare_readable(&*store, &self.handles, &**history.model(), history.handles(), may_fail)
    }

    /// Runs a step; what does not write is left out. Space may run out: such batches don't count.
    pub(crate) fn step(mut self, engine: &dyn Engine, device: &Arc<dyn Device>, step: &Step) -> Result<Self> {
        match step {
            Step::Apply { ops, durability } => match self.apply(ops, *durability)? {
                Applied::Yes => {}
                Applied::No(StoreError::Full) if engine.may_fill_up() => {}
                Applied::No(error) | Applied::Unsynced(error) => return Err(error),
            },
            Step::TxnBegin { slot, isolation } => self.txn_begin(*slot, *isolation)?,
            Step::TxnApply { slot, ops } => match self.txn_apply(*slot, ops) {
                Err(StoreError::Full) if engine.may_fill_up() => {}
                result => result?,
            },
            Step::TxnCommit { slot, durability } => match self.txn_commit(*slot, *durability)? {
                None | Some(Applied::Yes) => {}
                Some(Applied::No(StoreError::Full)) if engine.may_fill_up() => {}
                Some(Applied::No(error) | Applied::Unsynced(error)) => return Err(error),
            },
            Step::TxnPrepare { slot } => match self.txn_prepare(*slot) {
                Err(StoreError::Full) if engine.may_fill_up() => {}
                result => result?,
            },
            Step::TxnAbort { slot } => self.txns[*slot] = None,
            Step::NamedCreate { slot } => self.named_create(*slot)?,
            Step::NamedDelete { slot } => self.named_delete(*slot)?,
            Step::Sync => self.sync()?,
            Step::Flush => self.open.flush()?,
            Step::Compact => match self.open.compact() {
                Ok(()) => {}
                Err(StoreError::Full) if engine.may_fill_up() => {}
                Err(error) => return Err(error),
            },
            Step::Reopen => return self.reopen(engine, device),
            _ => {}
        }
        Ok(self)
    }
}

/// Fails unless all keyspaces are there already, since opening would make them.
pub(crate) fn expect_keyspaces(store: &dyn Store) -> Result<(), String> {
    let infos = store.keyspaces();
    let missing = SPACES
        .iter()
        .find(|space| !infos.iter().any(|info| info.name == space.name && info.kind == space.kind));
    missing.map_or(Ok(()), |space| Err(format!("keyspace {} is missing", space.name)))
}

/// Opens what a crash or fault left, and compares it with the prefixes that `allowed` names. Gives also where
/// the history was then.
pub(crate) fn check_recovery(
    engine: &dyn Engine,
    device: Arc<dyn Device>,
    history: &History,
    allowed: std::ops::RangeInclusive<usize>,
) -> Result<(Box<dyn OpenStore>, Position), String> {
    let open = engine.open(device).map_err(|error| format!("opening failed: {error}"))?;
    let store = open.store();
    expect_keyspaces(&*store)?;
    let count = history.find_prefix(&*store, allowed)?;
    let position = history.position_at(count).ok_or("this state was forgotten")?;
    open.check()?;
    Ok((open, position))
}

/// A transaction that begins after a recovery has an id that none had before.
pub(crate) fn check_ids_go_on(store: &dyn Store, last: TxnId) -> Result<(), String> {
    if store.transactions().is_none() {
        return Ok(());
    }
    match store.begin(TxnOptions::default()) {
        Ok(txn) if txn.id() > last => Ok(()),
        Ok(txn) => Err(format!("transaction {} begins although {last} was given", txn.id())),
        Err(StoreError::Full) => Ok(()),
        Err(error) => Err(format!("beginning after the recovery: {error}")),
    }
}

/// Applies a batch after a recovery and crashes again at once; what was synced must be there.
pub(crate) fn check_goes_on(open: &dyn OpenStore) -> Result<Position, String> {
    let store = open.store();
    let handles = Handles::open(&*store).map_err(|error| error.to_string())?;
    let mut batch = kvfs_store::Batch::new();
    batch.put(handles.get(2), "written after the recovery", "synced");
    match store.apply(batch, Durability::Synced) {
        // A full store may refuse, since the space of the crashed process is freed later.
        Err(StoreError::Full) => Ok(store.position()),
        result => result.map_err(|error| format!("writing after the recovery: {error}")),
    }
}
