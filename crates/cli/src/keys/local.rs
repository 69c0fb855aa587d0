//! Keys of a store that this process has opened: a process that can open it may do everything.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{BeginOptions, Caller, Durability, FileSystem, FsError, Owner};
use kvfs_kv::{AccessError, KeyChange, KeyspaceOwner, KeyspaceUser, OwnerChange, UserKeyspaces};
use kvfs_rpc::client::Range;
use kvfs_rpc::proto::{KeyValue, KeyspaceInfo};
use kvfs_store::{Cursor, KeyRange, Keyspace, StoreError};

use super::take_page;
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

pub(super) struct Local {
    store: OpenStore,
    /// What is read, if it is a named snapshot.
    snapshot: Option<Arc<FileSystem>>,
}

impl Local {
    pub(super) fn new(store: OpenStore, snapshot: Option<&str>) -> Result<Self> {
        let snapshot = snapshot.map(|name| {
            let opened = store.fs.store().open_snapshot(name).map_err(FsError::from)?;
            store.fs.view_of(opened)
        });
        let snapshot = snapshot.transpose().map_err(explain)?;
        Ok(Self { store, snapshot })
    }

    pub(super) fn close(self) -> Result<()> {
        drop(self.snapshot);
        self.store.close()
    }

    /// The main line, or the snapshot that is read.
    fn view(&self) -> &Arc<FileSystem> {
        self.snapshot.as_ref().unwrap_or(&self.store.fs)
    }

    fn find(&self, name: &str) -> Result<Option<Keyspace>> {
        keyspaces_in(self.view()).readable(name).map_err(explain_access)
    }

    fn make(&self, keyspace: &str) -> Result<Keyspace> {
        keyspaces_in(&self.store.fs).writable(keyspace).map_err(explain_access)
    }

    pub(super) fn get(&mut self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(keyspace) = self.find(keyspace)? else { return Ok(None) };
        settled(|caller| self.view().keys().get(caller, keyspace, key))
    }

    pub(super) fn put(&mut self, keyspace: &str, key: &[u8], value: &[u8]) -> Result<()> {
        let fs = &self.store.fs;
        let keyspace = self.make(keyspace)?;
        let put = KeyChange::Put { key: Bytes::copy_from_slice(key), value: Bytes::copy_from_slice(value) };
        let position = settled(|caller| fs.keys().apply(caller, vec![(keyspace, put.clone())]))?;
        fs.sync(position).map_err(explain)
    }

    pub(super) fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<bool> {
        let Some(keyspace) = self.find(keyspace)? else { return Ok(false) };
        let fs = &self.store.fs;
        let (position, existed) = settled(|caller| fs.keys().set(caller, keyspace, key, None))?;
        fs.sync(position).map_err(explain)?;
        Ok(existed)
    }

    pub(super) fn delete_range(&mut self, keyspace: &str, start: &[u8], end: Option<&[u8]>) -> Result<()> {
        let Some(keyspace) = self.find(keyspace)? else { return Ok(()) };
        let bytes = Bytes::copy_from_slice;
        let change = KeyChange::DeleteRange(KeyRange { start: bytes(start), end: end.map(bytes) });
        let fs = &self.store.fs;
        let position = settled(|caller| fs.keys().apply(caller, vec![(keyspace, change.clone())]))?;
        fs.sync(position).map_err(explain)
    }

    pub(super) fn drop_keyspace(&mut self, name: &str) -> Result<()> {
        let fs = &self.store.fs;
        let dropped = kvfs_fs::settled(|caller| match keyspaces_in(fs).drop_keyspace(caller, name) {
            // Again, when it is free.
            Err(AccessError::View(error)) => Err(error),
            done => Ok(done),
        });
        let position = dropped.map_err(|error| explain_missing(name, error))?.map_err(explain_access)?;
        fs.sync(position).map_err(explain)
    }

    /// All or none, in a transaction.
    pub(super) fn import(
        &mut self,
        keyspace: &str,
        entries: &mut dyn Iterator<Item = Result<KeyValue>>,
    ) -> Result<u64> {
        let keyspace = self.make(keyspace)?;
        let view = self.store.fs.begin(&BeginOptions {
            owner: Owner {
                uid: rustix::process::geteuid().as_raw(),
                pid: std::process::id(),
                name: "import".into(),
            },
            ..BeginOptions::default()
        });
        let view = view.map_err(explain)?;
        let mut count = 0;
        for entry in entries {
            let KeyValue { key, value } = entry?;
            let put = KeyChange::Put { key, value };
            settled(|caller| view.keys().apply(caller, vec![(keyspace, put.clone())]))?;
            count += 1;
        }
        let commit = || view.expect_txn()?.freeze()?.plan()?.commit(|| ())?.harden(Durability::Synced);
        commit().map_err(explain)?;
        Ok(count)
    }

    pub(super) fn page(&mut self, keyspace: &str, range: &Range) -> Result<Vec<KeyValue>> {
        let Some(keyspace) = self.find(keyspace)? else { return Ok(Vec::new()) };
        let asked = KeyRange { start: range.start.clone(), end: range.end.clone() };
        let bounds = KeyRange::prefix(&range.prefix).within(&asked);
        if bounds.is_empty() {
            return Ok(Vec::new());
        }
        let mut cursor = settled(|caller| self.view().keys().cursor(caller, keyspace, bounds.clone()))?;
        let all = std::iter::from_fn(|| next(&mut *cursor, range.reverse).transpose());
        take_page(all.take(usize::try_from(range.limit).unwrap_or(usize::MAX)))
    }

    pub(super) fn keyspaces(&mut self) -> Result<Vec<KeyspaceInfo>> {
        let all = keyspaces_in(self.view()).list(self.snapshot.is_some()).map_err(explain_access)?;
        Ok(all.into_iter().map(|(name, owner)| info(name, owner)).collect())
    }

    pub(super) fn change_keyspace(
        &mut self,
        name: &str,
        [mode, uid, gid]: [Option<u32>; 3],
    ) -> Result<KeyspaceInfo> {
        let changed = keyspaces_in(&self.store.fs).change(name, OwnerChange { uid, gid, mode });
        let owner = changed.map_err(|error| match error {
            AccessError::View(error) => explain_missing(name, error),
            error => explain_access(error),
        })?;
        Ok(info(name.to_owned(), owner))
    }
}

fn next(cursor: &mut dyn Cursor, reverse: bool) -> Result<Option<KeyValue>> {
    if reverse {
        cursor.prev()?;
    } else {
        cursor.next()?;
    }
    let entry = cursor.entry();
    Ok(entry.map(|(key, value)| KeyValue { key: Bytes::copy_from_slice(key), value: value.clone() }))
}

fn info(name: String, owner: KeyspaceOwner) -> KeyspaceInfo {
    let KeyspaceOwner { uid, gid, mode } = owner;
    KeyspaceInfo { name, uid, gid, mode }
}

/// The keyspaces of a view, as this process may use them: all.
fn keyspaces_in(view: &FileSystem) -> UserKeyspaces<'_, FileSystem> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    view.keys().of_user(KeyspaceUser { uid, gid, groups: &[], is_master: true }, usize::MAX)
}

/// No other operation is in the way for long.
fn settled<T>(operation: impl FnMut(&Caller) -> Result<T, FsError>) -> Result<T> {
    kvfs_fs::settled(operation).map_err(explain)
}

fn explain_access(error: AccessError<FsError>) -> CliError {
    match error {
        AccessError::View(error) => explain(error),
        AccessError::Mode => CliError::new(Code::Usage, error.to_string()),
        error => CliError::new(Code::Failed, error.to_string()),
    }
}

fn explain_missing(name: &str, error: FsError) -> CliError {
    match error {
        FsError::NotFound => CliError::new(Code::Failed, format!("there is no keyspace \"{name}\"")),
        error => explain(error),
    }
}

/// As the daemon would say it.
fn explain(error: FsError) -> CliError {
    let is_usage = match &error {
        FsError::Invalid(_) => true,
        FsError::Store(cause) => matches!(
            **cause,
            StoreError::KeyEmpty | StoreError::KeyTooLong { .. } | StoreError::ValueTooLong { .. }
        ),
        _ => false,
    };
    if is_usage { CliError::new(Code::Usage, error.to_string()) } else { error.into() }
}
