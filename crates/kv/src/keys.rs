//! Key-value operations of a view: the same order, locks and transactions as files have.
//!
//! Thread safety: as the [`View`].

use std::cell::Cell;
use std::fmt;

use bytes::Bytes;
use kvfs_store::{Cursor, KeyRange, Keyspace, Position, Read};
use kvfs_txn::{LockName, Mode, Want};

use crate::change::{check_count, only, united};
use crate::table::check_name;
use crate::{KeyChange, KeyspaceEntry, KeyspaceOwner, KvError, View, ViewKind};

fn wants(ranges: &[(Keyspace, KeyRange)], mode: Mode) -> Vec<Want<'_>> {
    ranges
        .iter()
        .map(|(keyspace, range)| Want {
            name: LockName::Keys { keyspace: *keyspace, start: &range.start, end: range.end.as_deref() },
            mode,
        })
        .collect()
}

fn values_of(
    read: &dyn Read,
    keyspace: Keyspace,
    keys: &[Bytes],
    bytes_max: usize,
) -> Result<Vec<Option<Bytes>>, KvError> {
    let mut left = bytes_max;
    let mut values = Vec::with_capacity(keys.len());
    for key in keys {
        let value = read.get(keyspace, key)?;
        let bytes = value.as_ref().map_or(0, Bytes::len);
        let too_much =
            KvError::Invalid("the values are too large for one answer; ask for fewer keys at once");
        left = left.checked_sub(bytes).ok_or(too_much)?;
        values.push(value);
    }
    Ok(values)
}

/// The users' keyspaces and their keys, as a view sees them.
pub struct Keys<'v, V> {
    view: &'v V,
}

impl<V> fmt::Debug for Keys<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl<'v, V: View> Keys<'v, V> {
    /// Those of `view`.
    pub fn new(view: &'v V) -> Self {
        Self { view }
    }

    /// The keyspace `name`, if there is one. O(log n).
    ///
    /// # Errors
    /// `Invalid` for a name that no user's keyspace has; store errors.
    pub fn keyspace(&self, name: &str) -> Result<Option<KeyspaceEntry>, V::Error> {
        Ok(self.view.keyspace_table().get(name)?)
    }

    /// The users' keyspaces, ordered by name.
    ///
    /// # Errors
    /// Store errors; `Corrupt`.
    pub fn keyspaces(&self) -> Result<Vec<(String, KeyspaceEntry)>, V::Error> {
        Ok(self.view.keyspace_table().all()?)
    }

    /// Whether a keyspace of this name is, was or may be a user's.
    pub fn is_for_users(&self, name: &str) -> bool {
        check_name(name, self.view.keyspace_table().records().reserved).is_ok()
    }

    /// The keyspace `name`; makes it for `owner`, durably, when there is none. The second says whether it
    /// did. Not a part of any transaction.
    ///
    /// # Errors
    /// As [`Self::keyspace`]; `ReadOnly`, `NoSpace`.
    pub fn make_keyspace(&self, name: &str, owner: KeyspaceOwner) -> Result<(KeyspaceEntry, bool), V::Error> {
        if let Some(entry) = self.keyspace(name)? {
            return Ok((entry, false));
        }
        self.view.check_writable()?;
        Ok(self.view.keyspace_table().make(name, owner)?)
    }

    /// Gives a keyspace to another owner or changes its mode, durably: what `change` makes of them.
    ///
    /// # Errors
    /// `NotFound`; what `change` says; as [`Self::make_keyspace`].
    pub fn change_keyspace(
        &self,
        name: &str,
        change: impl FnOnce(KeyspaceOwner) -> Result<KeyspaceOwner, V::Error>,
    ) -> Result<KeyspaceEntry, V::Error> {
        self.keyspace(name)?;
        self.view.check_writable()?;
        self.view.keyspace_table().change(name, change)
    }

    /// The keyspace as this view reads it, and all owners that must allow that: the one of now, and in a
    /// snapshot or transaction the one of then, since a name that was given up may belong to another user by
    /// now. `None`: there is nothing to be read.
    ///
    /// # Errors
    /// As [`Self::keyspace`].
    pub fn readable_keyspace(&self, name: &str) -> Result<Option<(Keyspace, Vec<KeyspaceOwner>)>, V::Error> {
        let now = self.keyspace(name)?;
        if self.view.kind() == ViewKind::Main {
            return Ok(now.map(|entry| (entry.keyspace, vec![entry.owner])));
        }
        let is_txn = self.view.kind() == ViewKind::Txn;
        let then = self.owner_then(name)?;
        let owners: Vec<KeyspaceOwner> = match (now, then) {
            (Some(now), Some(then)) if now.owner.uid == then.uid && is_txn => vec![now.owner],
            (now, then) => now.map(|now| now.owner).into_iter().chain(then).collect(),
        };
        let is_there = if is_txn { now.is_some() } else { then.is_some() };
        let mut all = self.view.keyspace_table().user_keyspaces();
        let handle = all.find(|info| info.name == name).filter(|_| is_there);
        Ok(handle.map(|info| (info.keyspace, owners)))
    }

    /// The keyspaces that a snapshot has, with their owners of then, ordered by name.
    ///
    /// # Errors
    /// As [`Self::keyspaces`].
    pub fn keyspaces_then(&self) -> Result<Vec<(String, KeyspaceEntry)>, V::Error> {
        let mut all = Vec::new();
        for info in self.view.keyspace_table().user_keyspaces() {
            if let Some(owner) = self.owner_then(&info.name)? {
                all.push((info.name, KeyspaceEntry { keyspace: info.keyspace, owner }));
            }
        }
        Ok(all)
    }

    /// The owner that a keyspace had in the state that this view reads.
    ///
    /// # Errors
    /// Store errors; `Corrupt`.
    pub fn owner_then(&self, name: &str) -> Result<Option<KeyspaceOwner>, V::Error> {
        Ok(self.view.keyspace_table().owner_in(self.view.reads(), name)?)
    }

    /// Removes a keyspace and all its keys at once, if `may` says so of its owner. Named snapshots keep both.
    /// Not a part of any transaction; waits for those that have locked keys of it. Returns what to sync.
    ///
    /// # Errors
    /// `NotFound`; what `may` says; as [`Self::apply`].
    pub fn drop_keyspace(
        &self,
        caller: &V::Caller,
        name: &str,
        may: impl FnOnce(KeyspaceOwner) -> Result<(), V::Error>,
    ) -> Result<Position, V::Error> {
        self.keyspace(name)?;
        self.view.check_writable()?;
        let table = self.view.keyspace_table();
        let dropping = table.start_drop(name)?;
        let KeyspaceEntry { keyspace, owner } = dropping.entry();
        may(owner)?;
        let all = [(keyspace, KeyRange::all())];
        let wants = wants(&all, Mode::Exclusive);
        let (position, forgotten) = self.view.write_locked(caller, &wants, |_, batch| {
            KeyChange::DeleteRange(KeyRange::all()).stage(keyspace, batch);
            batch.delete(table.records().keyspace, table.records().key(name));
            Ok(dropping.forget())
        })?;
        forgotten.confirm();
        Ok(position)
    }

    /// The value under `key`.
    ///
    /// # Errors
    /// `Parked` only where reads are locked; store errors.
    pub fn get(&self, caller: &V::Caller, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>, V::Error> {
        let end = only(key);
        let wants = [Want::shared(LockName::Keys { keyspace, start: key, end: Some(&end) })];
        self.view.read_locked(caller, &wants, |read| Ok(read.get(keyspace, key).map_err(KvError::from)?))
    }

    /// The values under `keys`, in their order, at one moment.
    ///
    /// # Errors
    /// As [`Self::get`]; `Invalid` when the values have more than `bytes_max` bytes; `TooMany`: of keys.
    pub fn multi_get(
        &self,
        caller: &V::Caller,
        keyspace: Keyspace,
        keys: &[Bytes],
        bytes_max: usize,
    ) -> Result<Vec<Option<Bytes>>, V::Error> {
        check_count(keys.len())?;
        let range = |key: &Bytes| (keyspace, KeyRange::new(key.clone(), only(key)));
        let ranges =
            if self.view.locks_reads() { united(keys.iter().map(range).collect()) } else { Vec::new() };
        self.view.read_locked(caller, &wants(&ranges, Mode::Shared), |read| {
            // One by one, so that the bound holds whatever the values are.
            Ok(if self.view.kind() == ViewKind::Main {
                let snapshot = self.view.keyspace_table().store().snapshot().map_err(KvError::from)?;
                values_of(&*snapshot, keyspace, keys, bytes_max)
            } else {
                values_of(read, keyspace, keys, bytes_max)
            }?)
        })
    }

    /// Makes all changes or none. Returns what to sync. The keyspaces must not be dropped meanwhile: see
    /// [`Self::apply_found`].
    ///
    /// # Errors
    /// As [`Self::set`]; `TooMany`: more than [`crate::OPERATIONS_MAX`].
    #[expect(clippy::needless_pass_by_value, reason = "callers make the changes for this call")]
    pub fn apply(
        &self,
        caller: &V::Caller,
        changes: Vec<(Keyspace, KeyChange)>,
    ) -> Result<Position, V::Error> {
        self.apply_with(caller, &changes, || Ok(()))
    }

    /// As [`Self::apply`], in keyspaces that `find` looks up. Comes before or after each drop: where a
    /// keyspace was dropped since, `find` looks again.
    ///
    /// # Errors
    /// As [`Self::apply`]; inside, those of `find`.
    pub fn apply_found<E>(
        &self,
        caller: &V::Caller,
        find: impl Fn() -> Result<Vec<(Keyspace, KeyChange)>, E>,
    ) -> Result<Result<Position, E>, V::Error> {
        self.among_drops(|check| match find() {
            Ok(changes) if changes.is_empty() => Ok(Ok(Position::default())),
            Ok(changes) => self.apply_with(caller, &changes, check).map(Ok),
            Err(error) => Ok(Err(error)),
        })
    }

    fn apply_with(
        &self,
        caller: &V::Caller,
        changes: &[(Keyspace, KeyChange)],
        check: impl Fn() -> Result<(), V::Error>,
    ) -> Result<Position, V::Error> {
        check_count(changes.len())?;
        let ranges = united(changes.iter().map(|(keyspace, change)| (*keyspace, change.range())).collect());
        let wants = wants(&ranges, Mode::Exclusive);
        let (position, ()) = self.view.write_locked(caller, &wants, |_, batch| {
            check()?;
            for (keyspace, change) in changes {
                change.clone().stage(*keyspace, batch);
            }
            Ok(())
        })?;
        Ok(position)
    }

    /// Does `write`, which looks keyspaces up and then calls its argument under its latch, again while a
    /// keyspace was dropped in between.
    fn among_drops<T>(
        &self,
        write: impl Fn(&dyn Fn() -> Result<(), V::Error>) -> Result<T, V::Error>,
    ) -> Result<T, V::Error> {
        let table = self.view.keyspace_table();
        loop {
            let (seen, is_late) = (table.drops(), Cell::new(false));
            let check = || {
                is_late.set(table.drops() != seen);
                if is_late.get() { Err(KvError::NotFound.into()) } else { Ok(()) }
            };
            match write(&check) {
                Err(_) if is_late.get() => {}
                done => return done,
            }
        }
    }

    /// Sets `key`, or deletes it. Returns what to sync, and whether the key was there. The keyspace must not
    /// be dropped meanwhile: see [`Self::set_found`].
    ///
    /// # Errors
    /// `Parked`; `Canceled` when another party changed the key since the transaction began; store errors.
    #[expect(clippy::needless_pass_by_value, reason = "callers make the value for this call")]
    pub fn set(
        &self,
        caller: &V::Caller,
        keyspace: Keyspace,
        key: &[u8],
        value: Option<Bytes>,
    ) -> Result<(Position, bool), V::Error> {
        self.set_with(caller, keyspace, key, value.as_ref(), || Ok(()))
    }

    /// As [`Self::set`], in the keyspace that `find` looks up, as [`Self::apply_found`] does. Without one the
    /// key is not there.
    ///
    /// # Errors
    /// As [`Self::set`]; inside, those of `find`.
    pub fn set_found<E>(
        &self,
        caller: &V::Caller,
        find: impl Fn() -> Result<Option<Keyspace>, E>,
        key: &[u8],
        value: Option<&Bytes>,
    ) -> Result<Result<(Position, bool), E>, V::Error> {
        self.among_drops(|check| match find() {
            Ok(Some(keyspace)) => self.set_with(caller, keyspace, key, value, check).map(Ok),
            Ok(None) => Ok(Ok((Position::default(), false))),
            Err(error) => Ok(Err(error)),
        })
    }

    fn set_with(
        &self,
        caller: &V::Caller,
        keyspace: Keyspace,
        key: &[u8],
        value: Option<&Bytes>,
        check: impl Fn() -> Result<(), V::Error>,
    ) -> Result<(Position, bool), V::Error> {
        let end = only(key);
        let wants = [Want::exclusive(LockName::Keys { keyspace, start: key, end: Some(&end) })];
        self.view.write_locked(caller, &wants, |read, batch| {
            check()?;
            let existed = read.get(keyspace, key).map_err(KvError::from)?.is_some();
            let key = Bytes::copy_from_slice(key);
            match value.cloned() {
                Some(value) => batch.put(keyspace, key, value),
                None => batch.delete(keyspace, key),
            }
            Ok(existed)
        })
    }

    /// A walk over the keys in `range`. Where reads are locked, the whole range is.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn cursor(
        &self,
        caller: &V::Caller,
        keyspace: Keyspace,
        range: KeyRange,
    ) -> Result<Box<dyn Cursor>, V::Error> {
        let (start, end) = (range.start.clone(), range.end.clone());
        let wants = [Want::shared(LockName::Keys { keyspace, start: &start, end: end.as_deref() })];
        self.view
            .read_locked(caller, &wants, |read| Ok(read.cursor(keyspace, range).map_err(KvError::from)?))
    }
}
