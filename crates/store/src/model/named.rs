//! Named snapshots of the model: pins that the commit state itself holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::snapshot::Pin;
use crate::{Position, Result, SnapshotInfo, StoreError, check_snapshot_name};

/// Those of a store, by name. Each counts as one pin.
#[derive(Default)]
pub(super) struct Named {
    positions: BTreeMap<String, Position>,
}

impl Named {
    /// Oldest first. The model has no clock: all were made at the beginning of time.
    pub(super) fn list(&self) -> Vec<SnapshotInfo> {
        let mut list: Vec<_> = self.positions.iter().map(|(name, &position)| info(name, position)).collect();
        list.sort_by_key(|info| info.position);
        list
    }

    fn get(&self, name: &str) -> Result<Position> {
        self.positions.get(name).copied().ok_or_else(|| StoreError::NoSnapshot(name.to_owned()))
    }
}

fn info(name: &str, position: Position) -> SnapshotInfo {
    SnapshotInfo { name: name.to_owned(), position, created: Duration::ZERO }
}

pub(super) fn create(shared: &Shared, name: &str) -> Result<SnapshotInfo> {
    check_snapshot_name(name)?;
    let mut commit = shared.commit.lock();
    if commit.named.positions.contains_key(name) {
        return Err(StoreError::SnapshotExists(name.to_owned()));
    }
    // Under the lock, as every pin.
    let position = Position(shared.newest());
    commit.pin(position.0);
    commit.named.positions.insert(name.to_owned(), position);
    Ok(info(name, position))
}

pub(super) fn open(shared: &Arc<Shared>, name: &str) -> Result<Pin> {
    let mut commit = shared.commit.lock();
    let position = commit.named.get(name)?;
    Ok(Pin::another(shared, &mut commit, position.0))
}

pub(super) fn delete(shared: &Shared, name: &str) -> Result<()> {
    let mut commit = shared.commit.lock();
    let position = commit.named.get(name)?;
    commit.named.positions.remove(name);
    commit.unpin(position.0);
    Ok(())
}
