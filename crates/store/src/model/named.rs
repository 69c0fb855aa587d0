//! Named snapshots of the model: pins that the commit state itself holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::snapshot::Pin;
use super::{Commit, Shared};
use crate::{Position, Result, Seqno, SnapshotInfo, StoreError, check_snapshot_name};

/// Those of a store, by name. Each counts as one pin.
#[derive(Default)]
pub(super) struct Named {
    by_name: BTreeMap<String, (Position, Duration)>,
}

impl Named {
    /// Oldest first. The model has no clock: all that were made here were made at the beginning of time.
    pub(super) fn list(&self) -> Vec<SnapshotInfo> {
        let mut list: Vec<_> = self.by_name.iter().map(|(name, &at)| info(name, at)).collect();
        list.sort_by_key(|info| info.position);
        list
    }

    /// Position of the oldest: a transaction may begin there.
    pub(super) fn oldest(&self) -> Option<Seqno> {
        self.by_name.values().map(|(position, _)| position.0).min()
    }

    fn get(&self, name: &str) -> Result<Position> {
        let named = self.by_name.get(name).map(|&(position, _)| position);
        named.ok_or_else(|| StoreError::NoSnapshot(name.to_owned()))
    }
}

fn info(name: &str, (position, created): (Position, Duration)) -> SnapshotInfo {
    SnapshotInfo { name: name.to_owned(), position, created }
}

pub(super) fn create(shared: &Shared, name: &str, created: Duration) -> Result<SnapshotInfo> {
    check_snapshot_name(name)?;
    let mut commit = shared.commit.lock();
    if commit.named.by_name.contains_key(name) {
        return Err(StoreError::SnapshotExists(name.to_owned()));
    }
    // Under the lock, as every pin.
    let position = Position(shared.newest());
    commit.pin(position.0);
    commit.named.by_name.insert(name.to_owned(), (position, created));
    Ok(info(name, (position, created)))
}

pub(super) fn open(shared: &Arc<Shared>, name: &str) -> Result<Pin> {
    Ok(open_with(shared, name, |_, _| ())?.0)
}

/// As [`open`]; `also` is done under the same lock.
pub(super) fn open_with<R>(
    shared: &Arc<Shared>,
    name: &str,
    also: impl FnOnce(&mut Commit, Seqno) -> R,
) -> Result<(Pin, R)> {
    let mut commit = shared.commit.lock();
    let seqno = commit.named.get(name)?.0;
    let pin = Pin::another(shared, &mut commit, seqno);
    let done = also(&mut commit, seqno);
    Ok((pin, done))
}

pub(super) fn delete(shared: &Shared, name: &str) -> Result<()> {
    let mut commit = shared.commit.lock();
    let position = commit.named.get(name)?;
    commit.named.by_name.remove(name);
    commit.unpin(position.0);
    Ok(())
}
