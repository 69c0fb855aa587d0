//! The steps of transactions: what is allowed and refused must agree to the last conflict.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvfs_store::{
    Checkpoints, Durability, Isolation, Op, Records, StoreError, Transactions, Txn, TxnId, TxnOptions,
    TxnOutcome,
};

use super::{Pair, Runner, Verdict, compare, text};
use crate::ops::Reader;
use crate::spaces::{Handles, SPACES, SpaceIndex};
use crate::txns::NetSet;

impl Runner<'_> {
    pub(super) fn txn_begin(&mut self, slot: usize, isolation: Isolation) -> Verdict {
        if self.is_checkpointed(slot) {
            self.txn_abort(slot)?;
        }
        self.txns[slot] = None;
        let store = self.subject.store();
        if store.transactions().is_none() {
            return Ok(());
        }
        let options = TxnOptions { isolation };
        let subject = store.begin(options).map_err(|error| text(&error))?;
        let model = self.history.model().begin(options).map_err(|error| text(&error))?;
        self.outcomes.begun(subject.id())?;
        if (subject.isolation(), subject.snapshot_seqno()) != (isolation, store.position().0) {
            return Err(format!(
                "begun at {}, but the position is {:?}",
                subject.snapshot_seqno(),
                store.position()
            ));
        }
        if store.txn_outcome(subject.id()) != TxnOutcome::Open {
            return Err("a transaction that has begun is not open".to_owned());
        }
        self.txns[slot] = Some(Pair { subject, model });
        Ok(())
    }

    pub(super) fn txn_apply(&mut self, slot: usize, ops: &[Op]) -> Verdict {
        let Some(pair) = &self.txns[slot] else { return Ok(()) };
        let (found, may_fill_up) = (pair.subject.apply(self.handles.batch(ops)), self.subject.may_fill_up());
        if may_fill_up && matches!(found, Err(StoreError::Full)) {
            return Ok(());
        }
        let expected = pair.model.apply(self.history.handles().batch(ops));
        match (found, expected) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(StoreError::Conflict { changed }), Err(StoreError::Conflict { .. })) => {
                let is_newer = changed.seqno > pair.subject.snapshot_seqno();
                if is_newer { Ok(()) } else { Err(format!("a conflict with the past: {changed:?}")) }
            }
            (found, expected) => Err(format!("got {found:?}, expected {expected:?}")),
        }
    }

    pub(super) fn txn_changed(&self, slot: usize, space: SpaceIndex, records: &Records) -> Verdict {
        let Some(pair) = &self.txns[slot] else { return Ok(()) };
        let records = std::slice::from_ref(records);
        let found = pair.subject.changed_since_snapshot(self.handles.get(space), records);
        let expected = pair.model.changed_since_snapshot(self.history.handles().get(space), records);
        match (found, expected) {
            (Ok(found), Ok(expected)) if found.is_some() == expected.is_some() => Ok(()),
            (found, expected) => Err(format!("got {found:?}, expected {expected:?}")),
        }
    }

    pub(super) fn txn_changes(&self, slot: usize) -> Verdict {
        let Some(pair) = &self.txns[slot] else { return Ok(()) };
        self.same_changes(pair, None)
    }

    /// Compares the net changes, or those after so many operations.
    pub(super) fn same_changes(&self, pair: &Pair<Arc<dyn Txn>>, since: Option<&Pair<u64>>) -> Verdict {
        for (space, index) in SPACES.iter().zip(0..) {
            let net = |txn: &dyn Txn, handles: &Handles, since: Option<u64>| {
                let space = handles.get(index);
                let walk = since.map_or_else(|| txn.changes(space), |since| txn.changes_after(since, space));
                NetSet::read(&mut *walk.map_err(|error| text(&error))?)
            };
            let found = net(&*pair.subject, &self.handles, since.map(|since| since.subject))?;
            let expected = net(&*pair.model, self.history.handles(), since.map(|since| since.model))?;
            if found != expected {
                return Err(format!("{}: the net changes are {found:?}, not {expected:?}", space.name));
            }
        }
        Ok(())
    }

    pub(super) fn txn_prepare(&self, slot: usize) -> Verdict {
        let Some(pair) = &self.txns[slot] else { return Ok(()) };
        match pair.subject.prepare() {
            Err(StoreError::Full) if self.subject.may_fill_up() => return Ok(()),
            result => result.map_err(|error| text(&error))?,
        }
        pair.model.prepare().map_err(|error| text(&error))
    }

    pub(super) fn is_checkpointed(&self, slot: usize) -> bool {
        let Some(pair) = &self.txns[slot] else { return false };
        self.subject.store().checkpointed().iter().any(|info| info.id == pair.subject.id())
    }

    pub(super) fn txn_checkpoint(&mut self, slot: usize) -> Verdict {
        let Some(pair) = &self.txns[slot] else { return Ok(()) };
        if self.subject.store().checkpoints().is_none() {
            return Ok(());
        }
        match pair.subject.checkpoint(b"sim") {
            Err(StoreError::Full) if self.subject.may_fill_up() => return Ok(()),
            result => result.map_err(|error| text(&error))?,
        }
        pair.model.checkpoint(b"sim").map_err(|error| text(&error))?;
        let ids = Pair { subject: pair.subject.id(), model: pair.model.id() };
        self.synced();
        if slot.is_multiple_of(2) {
            self.txns[slot] = None;
            self.txns[slot] = Some(self.resume(&ids)?);
        }
        self.compare(Reader::Txn(slot))
    }

    pub(super) fn resume(&self, ids: &Pair<TxnId>) -> Result<Pair<Arc<dyn Txn>>, String> {
        let subject = self.subject.store().resume(ids.subject).map_err(|error| text(&error))?;
        let model = self.history.model().resume(ids.model).map_err(|error| text(&error))?;
        if (subject.id(), subject.isolation()) != (ids.subject, model.isolation()) {
            return Err(format!("resumed as {} {:?}", subject.id(), subject.isolation()));
        }
        Ok(Pair { subject, model })
    }

    /// Lets all transactions go, those with a checkpoint to be asked for later.
    pub(super) fn suspend_all(&mut self) {
        for slot in 0..self.txns.len() {
            let is_checkpointed = self.is_checkpointed(slot);
            let pair = self.txns[slot].take().filter(|_| is_checkpointed);
            let ids = pair.map(|pair| Pair { subject: pair.subject.id(), model: pair.model.id() });
            self.suspended.extend(ids);
        }
    }

    /// After an opening: the suspended ones are there, as they were, and end.
    pub(super) fn end_suspended(&mut self, has_newest: bool) -> Verdict {
        let suspended = std::mem::take(&mut self.suspended);
        let listed: BTreeSet<TxnId> =
            self.subject.store().checkpointed().iter().map(|info| info.id).collect();
        let expected: BTreeSet<TxnId> = suspended.iter().map(|ids| ids.subject).collect();
        if !listed.is_superset(&expected) || (has_newest && listed != expected) {
            return Err(format!("checkpoints of {listed:?} are there, not of {expected:?}"));
        }
        // A commit that a crash has taken back leaves what was prepared for it.
        for &id in listed.difference(&expected) {
            let store = self.subject.store();
            if store.txn_outcome(id) != TxnOutcome::Open {
                return Err(format!("transaction {id} was committed, and its checkpoint is there"));
            }
            store.resume(id).map_err(|error| text(&error))?.abort();
        }
        for ids in &suspended {
            let pair = self.resume(ids)?;
            // Another one reads the newest state, of which a crash may have taken the end.
            if has_newest || pair.subject.isolation() == Isolation::Snapshot {
                let model = self.history.handles();
                compare(&*pair.subject, &self.handles, &*pair.model, model)?;
            }
            pair.subject.abort();
            pair.model.abort();
        }
        Ok(())
    }

    pub(super) fn txn_commit(&mut self, slot: usize, durability: Durability) -> Verdict {
        let Some(pair) = self.txns[slot].take() else { return Ok(()) };
        let store = self.subject.store();
        let before = store.position();
        let position = match pair.subject.commit(durability) {
            Err(StoreError::Full) if self.subject.may_fill_up() => {
                self.txns[slot] = Some(pair);
                let after = store.position();
                return if before == after {
                    Ok(())
                } else {
                    Err(format!("refused at {before:?}, now {after:?}"))
                };
            }
            result => result.map_err(|error| text(&error))?,
        };
        let id = pair.subject.id();
        let has_written = self
            .history
            .record_commit(&*pair.model, position)
            .map_err(|error| format!("the model: {error}"))?;
        if (position > before) != has_written || store.position() != position {
            return Err(format!("committed at {position:?}, from {before:?} to {:?}", store.position()));
        }
        let outcome = store.txn_outcome(id);
        if outcome != TxnOutcome::Committed(position) {
            return Err(format!("committed at {position:?}, but the outcome is {outcome:?}"));
        }
        if has_written {
            self.outcomes.committed(id, position);
            if durability == Durability::Synced {
                self.synced();
            }
        }
        Ok(())
    }

    pub(super) fn txn_abort(&mut self, slot: usize) -> Verdict {
        let Some(pair) = self.txns[slot].take() else { return Ok(()) };
        pair.subject.abort();
        pair.model.abort();
        match self.subject.store().txn_outcome(pair.subject.id()) {
            TxnOutcome::Unknown => Ok(()),
            outcome => Err(format!("aborted, but the outcome is {outcome:?}")),
        }
    }
}
