//! What a store and its transactions have in common.
//!
//! Thread safety: see the crate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::write_set::{Space, WriteSets};
use kvfs_store::{
    Batch, Changed, Keyspace, Op, Position, Records, Result, Seqno, Snapshot, StoreError, TxnId, TxnOutcome,
};

use crate::Base;
use crate::outcomes::{COMMITS_MAX, Outcomes};
use crate::recent::RecentChanges;

/// What an entry takes beside its key and value: its node in the map, and what the allocator rounds up
/// (bytes; an estimate).
const ENTRY_BYTES: u64 = 256;

/// A change that is remembered takes about so much (bytes).
const CHANGE_BYTES: u64 = 256;

/// Of the engine's memory transactions may hold this part.
const MEMORY_DIVISOR: u64 = 4;

/// And what is remembered of others' changes this part of that.
const CHANGES_DIVISOR: u64 = 4;

/// See the module.
pub(crate) struct Shared<S> {
    pub(crate) base: S,
    /// `None`: no transaction has begun since the store was opened.
    outcomes: Mutex<Option<Outcomes>, class::EngineTransactionsOutcomes>,
    /// Held by each batch while it is applied, together with others, and by one alone while it takes its
    /// snapshot or is committed.
    gate: RwLock<(), class::EngineTransactionsGate>,
    state: Mutex<State, class::EngineTransactionsState>,
    spaces: RwLock<BTreeMap<Keyspace, Arc<Space>>, class::EngineTransactionsSpaces>,
    /// What open transactions hold (bytes).
    pub(crate) bytes_private: Arc<AtomicU64>,
    bytes_max: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The snapshots of the open transactions. One is added with the gate held alone.
    open: BTreeMap<TxnId, Seqno>,
    recent: RecentChanges,
    /// The last ones that were committed since the store was opened.
    committed: BTreeMap<TxnId, Position>,
}

impl<S: Base> Shared<S> {
    pub(crate) fn new(base: S, memory_bytes: u64) -> Self {
        Self {
            base,
            outcomes: Mutex::default(),
            gate: RwLock::default(),
            state: Mutex::default(),
            spaces: RwLock::default(),
            bytes_private: Arc::default(),
            bytes_max: AtomicU64::new(memory_bytes / MEMORY_DIVISOR),
        }
    }

    pub(crate) fn set_memory_bytes(&self, bytes: u64) {
        self.bytes_max.store(bytes / MEMORY_DIVISOR, Ordering::Relaxed);
    }

    pub(crate) fn add_space(&self, space: Space) {
        let mut spaces = self.spaces.write();
        let known = spaces.get(&space.keyspace).and_then(|known| known.merge.clone());
        let merge = space.merge.clone().or(known);
        spaces.insert(space.keyspace, Arc::new(Space { merge, ..space }));
    }

    pub(crate) fn space(&self, keyspace: Keyspace) -> Result<Arc<Space>> {
        if let Some(space) = self.spaces.read().get(&keyspace) {
            return Ok(Arc::clone(space));
        }
        // One that was not opened here.
        let info = self.base.keyspaces().into_iter().find(|info| info.keyspace == keyspace);
        let info = info.ok_or_else(|| StoreError::NoKeyspace(format!("#{}", keyspace.0)))?;
        Ok(Arc::new(Space { keyspace, name: info.name, kind: info.kind, merge: None }))
    }

    /// What an operation changes.
    pub(crate) fn records_of(&self, op: &Op) -> Result<Records> {
        Records::of(op, |key, operand| Ok(self.space(op.keyspace())?.merge_function()?.touch(key, operand)))
    }

    /// Applies a batch that was admitted, and remembers what it changes, if there are more than `own`
    /// transactions that may ask for it. `then` is called under the lock of the state; the caller holds the
    /// gate.
    fn apply_at_gate(
        &self,
        batch: Batch,
        own: usize,
        then: impl FnOnce(&mut State, Position),
    ) -> Result<Position> {
        // None begins while the gate is held.
        let are_others = self.state.lock().open.len() > own;
        let changes = if are_others {
            let of = |op: &Op| Ok((op.keyspace(), self.records_of(op)?));
            batch.ops().iter().map(of).collect::<Result<_>>()?
        } else {
            Vec::new()
        };
        let position = self.base.apply_admitted(batch)?;
        let mut state = self.state.lock();
        if are_others {
            state.recent.push(changes, position.0);
            state.forget(self.changes_max());
        }
        then(&mut state, position);
        Ok(position)
    }

    fn changes_max(&self) -> usize {
        (self.bytes_max.load(Ordering::Relaxed) / CHANGES_DIVISOR / CHANGE_BYTES) as usize
    }

    /// Applies a batch that was admitted and is of no transaction.
    pub(crate) fn apply(&self, batch: Batch) -> Result<Position> {
        let _gate = self.gate.read();
        self.apply_at_gate(batch, 0, |_, _| ())
    }

    /// Its name, and the state that it begins at.
    pub(crate) fn begin(&self) -> Result<(TxnId, Arc<dyn Snapshot>)> {
        let id = {
            let mut outcomes = self.outcomes.lock();
            let outcomes = match &mut *outcomes {
                Some(outcomes) => outcomes,
                none => none.insert(Outcomes::open(&self.base)?),
            };
            outcomes.next(&self.base)?
        };
        let _gate = self.gate.write();
        let pin = self.base.snapshot()?;
        self.state.lock().open.insert(id, pin.seqno());
        Ok((id, pin))
    }

    /// Applies what a transaction has written, which was admitted, with a record of its commit. It has ended
    /// then.
    pub(crate) fn commit(&self, id: TxnId, mut batch: Batch) -> Result<Position> {
        let mut guard = self.outcomes.lock();
        // It has one, since it has begun.
        let Some(outcomes) = &mut *guard else { return Err(StoreError::TxnEnded(id)) };
        // Alone, so that the record can say where it is.
        let _gate = self.gate.write();
        outcomes.add_record(id, &mut batch, self.base.position());
        let position =
            self.apply_at_gate(batch, 1, |state, position| self.end_in(state, id, Some(position)))?;
        outcomes.committed(id);
        Ok(position)
    }

    /// The transaction has ended without a batch; `position`: it was committed.
    pub(crate) fn end(&self, id: TxnId, position: Option<Position>) {
        self.end_in(&mut self.state.lock(), id, position);
    }

    fn end_in(&self, state: &mut State, id: TxnId, position: Option<Position>) {
        if let Some(position) = position {
            state.committed.insert(id, position);
            if state.committed.len() > COMMITS_MAX {
                state.committed.pop_first();
            }
        }
        if state.open.remove(&id).is_some() {
            state.forget(self.changes_max());
        }
    }

    pub(crate) fn find_change(&self, keyspace: Keyspace, records: &Records, since: Seqno) -> Option<Changed> {
        self.state.lock().recent.find(keyspace, records, since)
    }

    /// What became of a transaction.
    pub(crate) fn outcome(&self, id: TxnId) -> TxnOutcome {
        {
            let state = self.state.lock();
            if state.open.contains_key(&id) {
                return TxnOutcome::Open;
            }
            if let Some(&position) = state.committed.get(&id) {
                return TxnOutcome::Committed(position);
            }
        }
        let found = Outcomes::find(&self.base, id).ok().flatten();
        found.map_or(TxnOutcome::Unknown, TxnOutcome::Committed)
    }

    pub(crate) fn counts(&self) -> [(&'static str, u64); 3] {
        let state = self.state.lock();
        [
            ("transactions.bytes_memory", self.bytes_private.load(Ordering::Relaxed)),
            ("transactions.changes_remembered", state.recent.len() as u64),
            ("transactions.open", state.open.len() as u64),
        ]
    }

    /// What private entries take (bytes).
    pub(crate) fn bytes_of(own: &WriteSets) -> u64 {
        own.bytes() + own.entry_count() * ENTRY_BYTES
    }

    /// Refuses a batch for which transactions have no memory.
    pub(crate) fn check_memory(&self, batch: &Batch) -> Result<()> {
        let needed = batch.whole_bytes() as u64 + batch.len() as u64 * ENTRY_BYTES;
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        if self.bytes_private.load(Ordering::Relaxed) + needed > bytes_max {
            return Err(StoreError::TransactionsFull { engine: self.base.engine_name(), bytes_max });
        }
        Ok(())
    }
}

impl State {
    fn forget(&mut self, changes_max: usize) {
        let oldest = self.open.values().min().copied();
        self.recent.forget(oldest, changes_max);
    }
}
