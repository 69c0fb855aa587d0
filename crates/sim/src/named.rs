//! What is known of the named snapshots of a store under test: which must exist, and what each must show.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{ChangedRanges, KeyRange, Position, Snapshot, Store, StoreError};

use crate::crash_check::{History, compare};
use crate::ops::short;
use crate::spaces::{Handles, SPACES, SpaceIndex};

/// The name that the snapshot in a slot has.
pub fn name_of(slot: usize) -> String {
    format!("snapshot {slot}")
}

/// What a named snapshot must show.
struct Expected {
    position: Position,
    state: Arc<dyn Snapshot>,
    /// Of the model that `state` belongs to.
    handles: Handles,
}

/// The named snapshots that a store must have, with their content. Survives reopening and crashes.
#[derive(Default)]
pub struct NamedStates {
    by_name: BTreeMap<String, Expected>,
}

impl NamedStates {
    /// Creates one in the store; where the name is taken the store must say so. Gives whether it was created.
    ///
    /// # Errors
    /// The store did something else.
    pub fn create(&mut self, store: &dyn Store, slot: usize, history: &History) -> Result<bool, String> {
        let name = name_of(slot);
        let created = store.create_snapshot(&name);
        match (created, self.by_name.contains_key(&name)) {
            (Err(StoreError::SnapshotExists(_)), true) => Ok(false),
            (Ok(info), false) if info.name == name && info.position == store.position() => {
                let state = history.model().snapshot().map_err(|error| error.to_string())?;
                let expected =
                    Expected { position: info.position, state, handles: history.handles().clone() };
                self.by_name.insert(name, expected);
                Ok(true)
            }
            (outcome, exists) => Err(format!(
                "creating \"{name}\" at {:?}, exists: {exists}, gave {outcome:?}",
                store.position()
            )),
        }
    }

    /// Deletes one in the store; where there is none the store must say so.
    ///
    /// # Errors
    /// The store did something else.
    pub fn delete(&mut self, store: &dyn Store, slot: usize) -> Result<(), String> {
        let name = name_of(slot);
        match (store.delete_snapshot(&name), self.by_name.remove(&name)) {
            (Ok(()), Some(_)) | (Err(StoreError::NoSnapshot(_)), None) => Ok(()),
            (outcome, expected) => {
                Err(format!("deleting \"{name}\", exists: {}, gave {outcome:?}", expected.is_some()))
            }
        }
    }

    /// Compares the list, and the content of the one in `slot`, if it is there.
    ///
    /// # Errors
    /// The first differences.
    pub fn compare(&self, store: &dyn Store, handles: &Handles, slot: usize) -> Result<(), String> {
        self.compare_list(store)?;
        let name = name_of(slot);
        match (store.open_snapshot(&name), self.by_name.get(&name)) {
            (Err(StoreError::NoSnapshot(_)), None) => Ok(()),
            (Ok(found), Some(expected)) => compare(&*found, handles, &*expected.state, &expected.handles)
                .map_err(|difference| format!("in \"{name}\": {difference}")),
            (found, expected) => Err(format!(
                "opening \"{name}\", exists: {}, gave {:?}",
                expected.is_some(),
                found.map(|found| found.seqno())
            )),
        }
    }

    /// Compares the list, and the content of all.
    ///
    /// # Errors
    /// The first differences.
    pub fn compare_all(&self, store: &dyn Store, handles: &Handles) -> Result<(), String> {
        (0..crate::ops::SLOTS).try_for_each(|slot| self.compare(store, handles, slot))
    }

    /// Checks that whatever differs between the snapshot in `slot` and each later one, and the newest state,
    /// lies in the ranges that the store tells.
    ///
    /// # Errors
    /// The first difference outside of them.
    pub fn compare_changes(
        &self,
        store: &dyn Store,
        handles: &Handles,
        slot: usize,
        history: &History,
    ) -> Result<(), String> {
        let Some(older) = self.by_name.get(&name_of(slot)) else { return Ok(()) };
        let newest = store.snapshot().map_err(|error| error.to_string())?;
        let state = history.model().snapshot().map_err(|error| error.to_string())?;
        let now = Expected { position: Position(newest.seqno()), state, handles: history.handles().clone() };
        let later = self.by_name.values().filter(|newer| newer.position >= older.position);
        for newer in later.chain([&now]) {
            for space in 0..SPACES.len() as SpaceIndex {
                let (low, high) = (older.position.0, newer.position.0);
                let ranges = store
                    .changed_ranges(handles.get(space), KeyRange::all(), low, high)
                    .map_err(|error| error.to_string())?;
                check_covered(older, newer, space, ranges).map_err(|problem| {
                    format!("{} between {low} and {high}: {problem}", SPACES[space as usize].name)
                })?;
            }
        }
        Ok(())
    }

    fn compare_list(&self, store: &dyn Store) -> Result<(), String> {
        let mut expected: Vec<_> =
            self.by_name.iter().map(|(name, expected)| (expected.position, name.clone())).collect();
        expected.sort();
        let found: Vec<_> =
            store.named_snapshots().into_iter().map(|info| (info.position, info.name)).collect();
        if found == expected { Ok(()) } else { Err(format!("listed {found:?}, expected {expected:?}")) }
    }
}

/// Whether all that differs in one keyspace lies in `ranges`, which ascend.
fn check_covered(
    older: &Expected,
    newer: &Expected,
    space: SpaceIndex,
    mut ranges: Box<dyn ChangedRanges>,
) -> Result<(), String> {
    let error = |error: StoreError| error.to_string();
    let (mut old, mut new) = (content(older, space)?, content(newer, space)?);
    let mut low = Bytes::new();
    while let Some(range) = ranges.next().map_err(error)? {
        let Some(end) = range.end.clone().filter(|end| *end > range.start && low <= range.start) else {
            return Err(format!("{range:?} comes behind {}", short(&low)));
        };
        for side in [&mut old, &mut new] {
            side.retain(|key, _| !range.contains(key));
        }
        low = end;
    }
    old.retain(|key, value| new.get(key) != Some(value) || new.remove(key).is_none());
    match old.first_key_value().or(new.first_key_value()) {
        None => Ok(()),
        Some((key, _)) => Err(format!("{} differs outside of all ranges", short(key))),
    }
}

fn content(side: &Expected, space: SpaceIndex) -> Result<BTreeMap<Bytes, Bytes>, String> {
    let read = || {
        let mut content = BTreeMap::new();
        let mut cursor = side.state.cursor(side.handles.get(space), KeyRange::all())?;
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            content.insert(Bytes::copy_from_slice(key), value.clone());
            cursor.next()?;
        }
        Ok(content)
    };
    read().map_err(|error: StoreError| error.to_string())
}

/// What was done to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    /// Given to the state after so many batches, which is at the position.
    Create(usize, Position),
    Delete,
}

/// All creations and deletions of a run, for images of crashes within it.
#[derive(Debug, Clone, Default)]
pub(crate) struct NamedLog {
    done: Vec<(usize, Did)>,
}

impl NamedLog {
    pub(crate) fn len(&self) -> usize {
        self.done.len()
    }

    /// Creates the snapshot in `slot`, or, where it exists, does nothing.
    pub(crate) fn create(
        &mut self,
        store: &dyn Store,
        slot: usize,
        history: &History,
    ) -> kvfs_store::Result<()> {
        match store.create_snapshot(&name_of(slot)) {
            Ok(info) => self.done.push((slot, Did::Create(history.len(), info.position))),
            Err(StoreError::SnapshotExists(_) | StoreError::Unsupported { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Deletes the snapshot in `slot`, if it exists.
    pub(crate) fn delete(&mut self, store: &dyn Store, slot: usize) -> kvfs_store::Result<()> {
        match store.delete_snapshot(&name_of(slot)) {
            Ok(()) => self.done.push((slot, Did::Delete)),
            Err(StoreError::NoSnapshot(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether `store`, opened after a crash, has what it must have when the first `sure` entries were done
    /// and those up to `begun` perhaps.
    pub(crate) fn check(
        &self,
        store: &dyn Store,
        history: &History,
        sure: usize,
        begun: usize,
    ) -> Result<(), String> {
        let begun = begun.min(self.done.len());
        let found = store.named_snapshots();
        let fits = |count: usize| {
            let mut expected = BTreeMap::new();
            for &(slot, did) in &self.done[..count] {
                match did {
                    Did::Create(_, position) => expected.insert(name_of(slot), position),
                    Did::Delete => expected.remove(&name_of(slot)),
                };
            }
            found.len() == expected.len()
                && found.iter().all(|info| expected.get(&info.name) == Some(&info.position))
        };
        let Some(count) = (sure..=begun).find(|&count| fits(count)) else {
            return Err(format!(
                "named snapshots after the crash are {found:?}, after {sure} to {begun} of {:?}",
                self.done
            ));
        };
        let handles = Handles::open(store).map_err(|error| error.to_string())?;
        let last_of: BTreeMap<_, _> = self.done[..count].iter().copied().collect();
        for (slot, did) in last_of {
            let Did::Create(batches, _) = did else { continue };
            let snapshot = store.open_snapshot(&name_of(slot)).map_err(|error| error.to_string())?;
            let state = history.state_at(batches).ok_or("this state was forgotten")?;
            compare(&*snapshot, &handles, &**state, history.handles())
                .map_err(|difference| format!("in \"{}\": {difference}", name_of(slot)))?;
        }
        Ok(())
    }
}
