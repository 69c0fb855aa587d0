//! The steps of forks: what one began with, what both sides have changed since.

use std::cell::Cell;

use kvfs_store::{CheckpointInfo, Checkpoints, Records, StoreError, TxnId};

use super::{Pair, Runner, Verdict, compare, text};
use crate::ops::{Reader, SLOTS};
use crate::spaces::SpaceIndex;

/// Where a transaction forked.
pub(super) struct Fork {
    /// The subject's id of what it came of.
    from: TxnId,
    /// Operations up to there.
    operations: Pair<u64>,
}

impl Runner<'_> {
    pub(super) fn txn_fork(&mut self, slot: usize) -> Verdict {
        let mut slots = (slot..slot + SLOTS).map(|slot| slot % SLOTS);
        let Some(slot) = slots.find(|&slot| self.is_checkpointed(slot)) else { return Ok(()) };
        let Some(pair) = &self.txns[slot] else { return Ok(()) };
        let from = Pair { subject: pair.subject.id(), model: pair.model.id() };
        let operations = Pair { subject: Cell::new(0), model: Cell::new(0) };
        let forked = self.subject.store().fork(from.subject, &|info: &CheckpointInfo| {
            operations.subject.set(info.operations);
            info.owner.clone()
        });
        let subject = match forked {
            Err(StoreError::Full) if self.subject.may_fill_up() => return Ok(()),
            result => result.map_err(|error| text(&error))?,
        };
        let model = self.history.model().fork(from.model, &|info: &CheckpointInfo| {
            operations.model.set(info.operations);
            info.owner.clone()
        });
        let ids = Pair { subject, model: model.map_err(|error| text(&error))? };
        self.outcomes.begun(ids.subject)?;
        self.synced();
        let operations = Pair { subject: operations.subject.get(), model: operations.model.get() };
        if operations.subject != operations.model {
            return Err(format!("forked at {}, not {} operations", operations.subject, operations.model));
        }
        self.forks.insert(ids.subject, Fork { from: from.subject, operations });
        let other = (slot + 1) % SLOTS;
        self.txn_abort(other)?;
        self.txns[other] = Some(self.resume(&ids)?);
        self.compare(Reader::Txn(slot))?;
        self.compare(Reader::Txn(other))
    }

    pub(super) fn txn_fork_compare(&self, slot: usize, space: SpaceIndex, records: &Records) -> Verdict {
        let slots = self.txns.iter().cycle().skip(slot).take(SLOTS).flatten();
        let mut forks = slots.filter_map(|pair| Some((pair, self.forks.get(&pair.subject.id())?)));
        let Some((pair, Fork { from, operations })) = forks.next() else { return Ok(()) };
        // Behind the end of the other side nothing is told of the fork any more.
        if !self.subject.store().checkpointed().iter().any(|info| info.id == *from) {
            return Ok(());
        }
        let now = Pair { subject: pair.subject.stats().operations, model: pair.model.stats().operations };
        for (name, at) in [("where it began", operations), ("now", &now)] {
            let subject = pair.subject.as_of(at.subject).map_err(|error| text(&error))?;
            let model = pair.model.as_of(at.model).map_err(|error| text(&error))?;
            compare(&*subject, &self.handles, &*model, self.history.handles())
                .map_err(|error| format!("{name}: {error}"))?;
        }
        self.same_changes(pair, Some(operations))?;
        let Some(from) = self.txns.iter().flatten().find(|pair| pair.subject.id() == *from) else {
            return Ok(());
        };
        let records = std::slice::from_ref(records);
        let found = from.subject.changed_after(operations.subject, self.handles.get(space), records);
        let model = self.history.handles().get(space);
        let expected = from.model.changed_after(operations.model, model, records);
        match (found, expected) {
            (Ok(found), Ok(expected)) if found.is_some() == expected.is_some() => Ok(()),
            (found, expected) => Err(format!("since the fork: got {found:?}, expected {expected:?}")),
        }
    }
}
