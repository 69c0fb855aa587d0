//! Users' keyspaces: which exist, and whose they are.
//!
//! The record of a keyspace is in `meta`, see `schema`. One without a record (made through a library) belongs to
//! nobody in particular, so only those who may do everything use it. Whether a caller may is for the front end
//! to ask: [`KeyspaceOwner::allows`].
//!
//! Thread safety: as [`FileSystem`]. All views of a file system share one table, which is read once. Invariants:
//! who changes a keyspace holds *making* from the record's write to the table's change; the record is durable
//! before the keyspace exists, so none is left without its owner.

use std::collections::BTreeMap;

use kvfs_store::{Batch, Durability, Keyspace, KeyspaceInfo, KeyspaceKind};
use parking_lot::{Mutex, RwLock};

use crate::quota::QUOTA_KEYSPACE;
use crate::schema::{KEYSPACES, decode_keyspace, encode_keyspace, keyspace_key};
use crate::{FileSystem, FsError, Result};

/// Longest name of a keyspace (bytes).
pub const KEYSPACE_NAME_LEN_MAX: usize = 255;

/// Whose a keyspace is, and what others may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyspaceOwner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Nine bits as of a file; those for execution mean nothing.
    pub mode: u32,
}

impl KeyspaceOwner {
    /// What a keyspace without a record has: nobody's.
    const NOBODY: Self = Self { uid: u32::MAX, gid: u32::MAX, mode: 0 };

    /// Whether a user in these groups may do all that `access` asks for (4: read, 2: write).
    pub fn allows(&self, uid: u32, groups: &[u32], access: u32) -> bool {
        let shift = match () {
            () if uid == self.uid => 6,
            () if groups.contains(&self.gid) => 3,
            () => 0,
        };
        (self.mode >> shift) & access == access
    }
}

/// A keyspace that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyspaceEntry {
    /// Handle.
    pub keyspace: Keyspace,
    /// Whose it is.
    pub owner: KeyspaceOwner,
}

/// What is known of the users' keyspaces.
#[derive(Debug, Default)]
pub(crate) struct KeyspaceTable {
    /// Held across the store's writes; comes before `known`.
    making: Mutex<()>,
    /// `None`: not read yet.
    known: RwLock<Option<BTreeMap<String, KeyspaceEntry>>>,
}

impl FileSystem {
    /// The keyspace `name`, if there is one. O(log n).
    ///
    /// # Errors
    /// `Invalid` for a name that no user's keyspace has; store errors.
    pub fn keyspace(&self, name: &str) -> Result<Option<KeyspaceEntry>> {
        check_name(name)?;
        self.with_keyspaces(|known| known.get(name).copied())
    }

    /// The users' keyspaces, ordered by name.
    ///
    /// # Errors
    /// Store errors; `Corrupt`.
    pub fn keyspaces(&self) -> Result<Vec<(String, KeyspaceEntry)>> {
        self.with_keyspaces(|known| known.iter().map(|(name, entry)| (name.clone(), *entry)).collect())
    }

    /// The keyspace `name`; makes it for `owner`, durably, when there is none. The second says whether it did.
    /// Not a part of any transaction.
    ///
    /// # Errors
    /// As [`Self::keyspace`]; `ReadOnly`, `NoSpace`.
    pub fn make_keyspace(&self, name: &str, owner: KeyspaceOwner) -> Result<(KeyspaceEntry, bool)> {
        if let Some(entry) = self.keyspace(name)? {
            return Ok((entry, false));
        }
        self.check_writable()?;
        let _making = self.shared.keyspaces.making.lock();
        if let Some(entry) = self.known_keyspace(name) {
            return Ok((entry, false));
        }
        let owner = KeyspaceOwner { mode: owner.mode & 0o777, ..owner };
        self.record_keyspace(name, owner)?;
        let keyspace = self.store.open_keyspace(name, KeyspaceKind::Tuple, None)?;
        let entry = KeyspaceEntry { keyspace, owner };
        self.enter_keyspace(name, entry);
        Ok((entry, true))
    }

    /// Gives a keyspace to another owner or changes its mode, durably: what `change` makes of them.
    ///
    /// # Errors
    /// `NotFound`; what `change` says; as [`Self::make_keyspace`].
    pub fn change_keyspace<E: From<FsError>>(
        &self,
        name: &str,
        change: impl FnOnce(KeyspaceOwner) -> Result<KeyspaceOwner, E>,
    ) -> Result<KeyspaceEntry, E> {
        self.keyspace(name)?;
        self.check_writable()?;
        let _making = self.shared.keyspaces.making.lock();
        let entry = self.known_keyspace(name).ok_or(FsError::NotFound)?;
        let owner = change(entry.owner)?;
        let owner = KeyspaceOwner { mode: owner.mode & 0o777, ..owner };
        self.record_keyspace(name, owner)?;
        let entry = KeyspaceEntry { owner, ..entry };
        self.enter_keyspace(name, entry);
        Ok(entry)
    }

    fn record_keyspace(&self, name: &str, owner: KeyspaceOwner) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(self.keyspaces.meta, keyspace_key(name), encode_keyspace(owner));
        self.store.apply(batch, Durability::Synced)?;
        Ok(())
    }

    fn known_keyspace(&self, name: &str) -> Option<KeyspaceEntry> {
        self.shared.keyspaces.known.read().as_ref()?.get(name).copied()
    }

    fn enter_keyspace(&self, name: &str, entry: KeyspaceEntry) {
        if let Some(known) = self.shared.keyspaces.known.write().as_mut() {
            known.insert(name.to_owned(), entry);
        }
    }

    fn with_keyspaces<T>(&self, ask: impl FnOnce(&BTreeMap<String, KeyspaceEntry>) -> T) -> Result<T> {
        if let Some(known) = self.shared.keyspaces.known.read().as_ref() {
            return Ok(ask(known));
        }
        let _making = self.shared.keyspaces.making.lock();
        let read = self.read_keyspaces()?;
        Ok(ask(self.shared.keyspaces.known.write().get_or_insert(read)))
    }

    /// The keyspaces that are not the file system's own.
    pub(crate) fn user_keyspaces(&self) -> impl Iterator<Item = KeyspaceInfo> + use<> {
        let all = self.store.keyspaces().into_iter();
        all.filter(|info| info.kind == KeyspaceKind::Tuple && !is_own(&info.name))
    }

    fn read_keyspaces(&self) -> Result<BTreeMap<String, KeyspaceEntry>> {
        let mut known = BTreeMap::new();
        for info in self.user_keyspaces() {
            let record = self.store.get(self.keyspaces.meta, &keyspace_key(&info.name))?;
            let owner = match record {
                Some(bytes) => decode_keyspace(&info.name, &bytes)?,
                None => KeyspaceOwner::NOBODY,
            };
            known.insert(info.name, KeyspaceEntry { keyspace: info.keyspace, owner });
        }
        Ok(known)
    }
}

/// Whether a keyspace is the file system's own.
fn is_own(name: &str) -> bool {
    KEYSPACES.contains(&name) || name == QUOTA_KEYSPACE
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    if KEYSPACES.contains(&name) {
        return Err(FsError::Invalid("this keyspace belongs to the file system; choose another name"));
    }
    if name.is_empty() || name.len() > KEYSPACE_NAME_LEN_MAX || name.contains(char::is_control) {
        return Err(FsError::Invalid("a keyspace's name has 1 to 255 bytes and no control characters"));
    }
    Ok(())
}
