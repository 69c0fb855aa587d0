//! Keys of a store that this process has opened: whoever can open it may do everything.

use bytes::Bytes;
use kvfs_fs::{Caller, FsError, KeyChange, KeyspaceOwner};
use kvfs_rpc::client::Range;
use kvfs_rpc::proto::{KeyValue, KeyspaceInfo};
use kvfs_store::{Cursor, KeyRange, Keyspace, StoreError};

use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

/// Bytes of keys and values after which a page is cut.
const PAGE_BYTES_MAX: usize = 2 << 20;

/// What a new keyspace allows: its owner only.
const MODE: u32 = 0o600;

pub(super) struct Local {
    store: OpenStore,
}

impl Local {
    pub(super) fn new(store: OpenStore) -> Self {
        Self { store }
    }

    pub(super) fn close(self) -> Result<()> {
        self.store.close()
    }

    fn find(&self, name: &str) -> Result<Option<Keyspace>> {
        let found = self.store.fs.keyspace(name).map_err(explain)?;
        Ok(found.map(|entry| entry.keyspace))
    }

    pub(super) fn get(&mut self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(keyspace) = self.find(keyspace)? else { return Ok(None) };
        settled(|caller| self.store.fs.key_get(caller, keyspace, key))
    }

    pub(super) fn put(&mut self, keyspace: &str, key: &[u8], value: &[u8]) -> Result<()> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let fs = &self.store.fs;
        let (entry, _) =
            fs.make_keyspace(keyspace, KeyspaceOwner { uid, gid, mode: MODE }).map_err(explain)?;
        let put = KeyChange::Put { key: Bytes::copy_from_slice(key), value: Bytes::copy_from_slice(value) };
        let position = settled(|caller| fs.keys_apply(caller, vec![(entry.keyspace, put.clone())]))?;
        fs.sync(position).map_err(explain)
    }

    pub(super) fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<bool> {
        let Some(keyspace) = self.find(keyspace)? else { return Ok(false) };
        let fs = &self.store.fs;
        let (position, existed) = settled(|caller| fs.key_set(caller, keyspace, key, None))?;
        fs.sync(position).map_err(explain)?;
        Ok(existed)
    }

    pub(super) fn page(&mut self, keyspace: &str, range: &Range) -> Result<Vec<KeyValue>> {
        let Some(keyspace) = self.find(keyspace)? else { return Ok(Vec::new()) };
        let asked = KeyRange { start: range.start.clone(), end: range.end.clone() };
        let bounds = KeyRange::prefix(&range.prefix).within(&asked);
        if bounds.is_empty() {
            return Ok(Vec::new());
        }
        let mut cursor = settled(|caller| self.store.fs.key_cursor(caller, keyspace, bounds.clone()))?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while bytes < PAGE_BYTES_MAX && (entries.len() as u64) < range.limit {
            let Some(entry) = next(&mut *cursor, range.reverse)? else { break };
            bytes += entry.key.len() + entry.value.len();
            entries.push(entry);
        }
        Ok(entries)
    }

    pub(super) fn keyspaces(&mut self) -> Result<Vec<KeyspaceInfo>> {
        let all = self.store.fs.keyspaces().map_err(explain)?;
        Ok(all.into_iter().map(|(name, entry)| info(name, entry.owner)).collect())
    }

    pub(super) fn change_keyspace(
        &mut self,
        name: &str,
        [mode, uid, gid]: [Option<u32>; 3],
    ) -> Result<KeyspaceInfo> {
        let change = |owner: KeyspaceOwner| {
            Ok::<_, FsError>(KeyspaceOwner {
                uid: uid.unwrap_or(owner.uid),
                gid: gid.unwrap_or(owner.gid),
                mode: mode.unwrap_or(owner.mode),
            })
        };
        match self.store.fs.change_keyspace(name, change) {
            Ok(entry) => Ok(info(name.to_owned(), entry.owner)),
            Err(FsError::NotFound) => {
                Err(CliError::new(Code::Failed, format!("there is no keyspace \"{name}\"")))
            }
            Err(error) => Err(explain(error)),
        }
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

/// Nobody else is in the way for long.
fn settled<T>(operation: impl FnMut(&Caller) -> Result<T, FsError>) -> Result<T> {
    kvfs_fs::settled(operation).map_err(explain)
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
