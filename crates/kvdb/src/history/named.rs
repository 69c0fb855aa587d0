//! Named snapshots: pins that the manifest remembers.
//!
//! Crash order at creation: the journal up to the position → the edit that names it. Were the edit first, a
//! crash could take away the end of the history below the position, and later writes would get the lost
//! seqnos and be seen by the snapshot.
//!
//! Thread safety: creations and deletions take turns; a thread that lists or opens waits for neither.

use std::collections::BTreeMap;
use std::time::Duration;

use kvfs_locks::{RwLock, class};
use kvfs_store::{Position, Result, Seqno, SnapshotInfo, StoreError, check_snapshot_name};

use crate::commit::{SnapshotPin, SnapshotTracker};
use crate::history::History;
use crate::version::{Edit, SnapshotState};

struct NamedPin {
    created: Duration,
    pin: SnapshotPin,
}

/// Those that exist, by name.
pub(crate) struct Named {
    by_name: RwLock<BTreeMap<String, NamedPin>, class::KvdbHistoryNamedByName>,
}

impl Named {
    /// Pins what the manifest names. Merges have not begun; the newest seqno is `last`.
    pub(crate) fn restore(
        saved: &BTreeMap<String, SnapshotState>,
        tracker: &SnapshotTracker,
        last: Seqno,
    ) -> Result<Self> {
        let mut by_name = BTreeMap::new();
        for (name, &SnapshotState { seqno, created }) in saved {
            if seqno > last {
                let detail = format!("it ends at seqno {last}, but snapshot \"{name}\" saw {seqno}");
                return Err(StoreError::corrupt("the journal", detail));
            }
            let created = Duration::from_nanos(created);
            by_name.insert(name.clone(), NamedPin { created, pin: tracker.pin(seqno) });
        }
        Ok(Self { by_name: RwLock::new(by_name) })
    }

    /// Oldest first.
    pub(crate) fn list(&self) -> Vec<SnapshotInfo> {
        let by_name = self.by_name.read();
        let mut list: Vec<_> = by_name.iter().map(|(name, named)| info(name, named)).collect();
        list.sort_by_key(|info| info.position);
        list
    }

    /// Another pin on the position of `name`.
    pub(crate) fn pin(&self, name: &str) -> Result<SnapshotPin> {
        let pin = self.by_name.read().get(name).map(|named| named.pin.clone());
        pin.ok_or_else(|| StoreError::NoSnapshot(name.to_owned()))
    }

    fn contains(&self, name: &str) -> bool {
        self.by_name.read().contains_key(name)
    }

    pub(crate) fn count(&self) -> u64 {
        self.by_name.read().len() as u64
    }
}

fn info(name: &str, named: &NamedPin) -> SnapshotInfo {
    let position = Position(named.pin.seqno());
    SnapshotInfo { name: name.to_owned(), position, created: named.created }
}

impl History {
    /// One sync of the journal and one edit of the manifest, whatever the store holds. `created`: when;
    /// `None`: now.
    pub(crate) fn create_snapshot(&self, name: &str, created: Option<Duration>) -> Result<SnapshotInfo> {
        self.runtime.check_accepting()?;
        check_snapshot_name(name)?;
        let naming = self.naming.lock();
        if self.named.contains(name) {
            return Err(StoreError::SnapshotExists(name.to_owned()));
        }
        let pin = self.pin_newest();
        self.log.sync(Position(pin.seqno()))?;
        let created = created.unwrap_or_else(|| self.runtime.clock.wall());
        let (name, seqno) = (name.to_owned(), pin.seqno());
        let edit = Edit::AddSnapshot { name: name.clone(), seqno, created: created.as_nanos() as u64 };
        self.live.install(vec![edit], &[], &[], |view| view)?;
        let named = NamedPin { created, pin };
        let info = info(&name, &named);
        self.named.by_name.write().insert(name, named);
        drop(naming);
        Ok(info)
    }

    /// Whether a snapshot was deleted and, by now, given up by all its readers, so that what only it saw can
    /// be cleared away. Tells it once.
    pub(crate) fn has_cleared_snapshot(&self) -> bool {
        let mut deleted = self.deleted_positions.lock();
        if deleted.is_empty() {
            return false;
        }
        let pinned = self.snapshots.boundaries();
        let before = deleted.len();
        deleted.retain(|position| pinned.binary_search(position).is_ok());
        let has_cleared = deleted.len() < before;
        if has_cleared {
            self.live.note_garbage();
        }
        has_cleared
    }

    pub(crate) fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.runtime.check_accepting()?;
        let naming = self.naming.lock();
        if !self.named.contains(name) {
            return Err(StoreError::NoSnapshot(name.to_owned()));
        }
        self.live.install(vec![Edit::DropSnapshot { name: name.to_owned() }], &[], &[], |view| view)?;
        let removed = self.named.by_name.write().remove(name);
        drop(naming);
        self.live.note_garbage();
        self.note_deleted(removed.map(|named| named.pin.seqno()));
        Ok(())
    }
}
