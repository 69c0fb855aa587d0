//! Users' keyspaces: which exist, and their owners.
//!
//! The record of a keyspace lies where [`Records`] says. A keyspace without a record (made through a library)
//! has no owner, so only callers that may do everything use it; without keys it does not exist, since the
//! engine keeps the names of dropped ones.
//!
//! Thread safety: any number of threads. All views of a store share one table, which is read once,
//! and again where another process has changed the store.
//! Invariants: an operation that makes, changes or drops a keyspace must hold *making* from the record's
//! write to the table's change; the record is durable before the keyspace exists; a drop is counted after its
//! keyspace is no longer known, and both happen while the keys are latched.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kvfs_locks::{Mutex, MutexGuard, RwLock, class};
use kvfs_store::{Batch, Durability, KeyRange, Keyspace, KeyspaceInfo, KeyspaceKind, Read, Store};

use crate::{KeyspaceOwner, KvError};

/// Longest name of a keyspace (bytes).
pub const KEYSPACE_NAME_LEN_MAX: usize = 255;

/// A keyspace that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyspaceEntry {
    /// Handle.
    pub keyspace: Keyspace,
    /// Its owner.
    pub owner: KeyspaceOwner,
}

/// Where the records of owners lie, and which keyspaces are no user's.
#[derive(Debug, Clone)]
pub struct Records {
    /// The keyspace that holds the records.
    pub keyspace: Keyspace,
    /// What comes before a keyspace's name in the key of its record.
    pub prefix: Bytes,
    /// Names that users can't have.
    pub reserved: &'static [&'static str],
}

impl Records {
    /// Key of the record that tells the owner of keyspace `name`.
    pub fn key(&self, name: &str) -> Bytes {
        [&self.prefix[..], name.as_bytes()].concat().into()
    }
}

/// What is known of the users' keyspaces of a store.
pub struct KeyspaceTable {
    store: Arc<dyn Store>,
    records: Records,
    /// Held across the store's writes; comes before `known`.
    making: Mutex<(), class::KvTableMaking>,
    /// `None`: not read yet.
    known: RwLock<Option<BTreeMap<String, KeyspaceEntry>>, class::KvTableKnown>,
    drops: AtomicU64,
}

impl fmt::Debug for KeyspaceTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyspaceTable").field("records", &self.records).finish_non_exhaustive()
    }
}

impl KeyspaceTable {
    /// The keyspaces of `store`. Reads nothing yet.
    pub fn new(store: Arc<dyn Store>, records: Records) -> Self {
        Self { store, records, making: Mutex::default(), known: RwLock::default(), drops: AtomicU64::new(0) }
    }

    /// The store.
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Where the owners' records lie.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The keyspaces that users may have, those without keys and owner included.
    pub fn user_keyspaces(&self) -> impl Iterator<Item = KeyspaceInfo> + use<> {
        let reserved = self.records.reserved;
        let all = self.store.keyspaces().into_iter();
        all.filter(move |info| info.kind == KeyspaceKind::Tuple && !reserved.contains(&&*info.name))
    }

    /// The owner of keyspace `name` in the state that `read` reads.
    ///
    /// # Errors
    /// Store errors; `Corrupt`.
    pub fn owner_in(&self, read: &dyn Read, name: &str) -> Result<Option<KeyspaceOwner>, KvError> {
        let record = read.get(self.records.keyspace, &self.records.key(name))?;
        record.map(|bytes| KeyspaceOwner::decode(name, &bytes)).transpose()
    }

    /// The keyspace `name`, if there is one. O(log n).
    ///
    /// # Errors
    /// `Invalid` for a name that no user's keyspace has; store errors.
    pub fn get(&self, name: &str) -> Result<Option<KeyspaceEntry>, KvError> {
        check_name(name, self.records.reserved)?;
        self.with_known(|known| known.get(name).copied())
    }

    /// The users' keyspaces, ordered by name.
    ///
    /// # Errors
    /// Store errors; `Corrupt`.
    pub fn all(&self) -> Result<Vec<(String, KeyspaceEntry)>, KvError> {
        self.with_known(|known| known.iter().map(|(name, entry)| (name.clone(), *entry)).collect())
    }

    /// The keyspace `name`; makes it for `owner`, durably, when there is none. The second says whether it
    /// did.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn make(&self, name: &str, owner: KeyspaceOwner) -> Result<(KeyspaceEntry, bool), KvError> {
        let _making = self.making.lock();
        if let Some(entry) = self.known(name) {
            return Ok((entry, false));
        }
        let owner = owner.settled();
        self.record(name, owner)?;
        let keyspace = self.store.open_keyspace(name, KeyspaceKind::Tuple, None)?;
        let entry = KeyspaceEntry { keyspace, owner };
        self.enter(name, entry);
        Ok((entry, true))
    }

    /// Changes the owner of a keyspace, durably, to what `change` makes of it.
    ///
    /// # Errors
    /// `NotFound`; what `change` says; store errors.
    pub(crate) fn change<E: From<KvError>>(
        &self,
        name: &str,
        change: impl FnOnce(KeyspaceOwner) -> Result<KeyspaceOwner, E>,
    ) -> Result<KeyspaceEntry, E> {
        let _making = self.making.lock();
        let entry = self.known(name).ok_or(KvError::NotFound)?;
        let owner = change(entry.owner)?.settled();
        self.record(name, owner)?;
        let entry = KeyspaceEntry { owner, ..entry };
        self.enter(name, entry);
        Ok(entry)
    }

    /// Another process has changed the store: what is known is read anew when it is asked for next.
    pub fn renew(&self) {
        let _making = self.making.lock();
        *self.known.write() = None;
    }

    /// How many drops there were. A handle that was found since the count was read is that of its name while,
    /// under a latch on its keys, the count is the same.
    pub(crate) fn drops(&self) -> u64 {
        self.drops.load(Ordering::SeqCst)
    }

    /// Begins the drop of a keyspace: none is made or changed meanwhile.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn start_drop(&self, name: &str) -> Result<Dropping<'_>, KvError> {
        let making = self.making.lock();
        let entry = self.known(name).ok_or(KvError::NotFound)?;
        Ok(Dropping { table: self, name: name.to_owned(), entry, _making: making })
    }

    fn record(&self, name: &str, owner: KeyspaceOwner) -> Result<(), KvError> {
        let mut batch = Batch::new();
        batch.put(self.records.keyspace, self.records.key(name), owner.encode());
        self.store.apply(batch, Durability::Synced)?;
        Ok(())
    }

    fn known(&self, name: &str) -> Option<KeyspaceEntry> {
        self.known.read().as_ref()?.get(name).copied()
    }

    fn enter(&self, name: &str, entry: KeyspaceEntry) {
        if let Some(known) = self.known.write().as_mut() {
            known.insert(name.to_owned(), entry);
        }
    }

    fn with_known<T>(&self, ask: impl FnOnce(&BTreeMap<String, KeyspaceEntry>) -> T) -> Result<T, KvError> {
        if let Some(known) = self.known.read().as_ref() {
            return Ok(ask(known));
        }
        let _making = self.making.lock();
        let read = self.read()?;
        Ok(ask(self.known.write().get_or_insert(read)))
    }

    fn is_empty(&self, keyspace: Keyspace) -> Result<bool, KvError> {
        let mut cursor = self.store.cursor(keyspace, KeyRange::all())?;
        cursor.first()?;
        Ok(cursor.entry().is_none())
    }

    fn read(&self) -> Result<BTreeMap<String, KeyspaceEntry>, KvError> {
        let mut known = BTreeMap::new();
        for info in self.user_keyspaces() {
            let owner = match self.owner_in(&*self.store, &info.name)? {
                Some(owner) => owner,
                // It was dropped: the engine keeps the name.
                None if self.is_empty(info.keyspace)? => continue,
                None => KeyspaceOwner::NO_OWNER,
            };
            known.insert(info.name, KeyspaceEntry { keyspace: info.keyspace, owner });
        }
        Ok(known)
    }
}

/// A keyspace that is being dropped.
pub(crate) struct Dropping<'t> {
    table: &'t KeyspaceTable,
    name: String,
    entry: KeyspaceEntry,
    _making: MutexGuard<'t, (), class::KvTableMaking>,
}

impl Dropping<'_> {
    /// What is dropped.
    pub(crate) fn entry(&self) -> KeyspaceEntry {
        self.entry
    }

    /// The keyspace is not known any more. The caller must hold the latch on all its keys, and stage their
    /// deletion.
    pub(crate) fn forget(&self) -> Forgotten<'_> {
        if let Some(known) = self.table.known.write().as_mut() {
            known.remove(&self.name);
        }
        // After the removal: a write that reads this count does not find the keyspace.
        self.table.drops.fetch_add(1, Ordering::SeqCst);
        Forgotten { dropping: self, is_applied: false }
    }
}

/// A keyspace that is known again when its deletion is not applied.
pub(crate) struct Forgotten<'d> {
    dropping: &'d Dropping<'d>,
    is_applied: bool,
}

impl Forgotten<'_> {
    /// It was applied.
    pub(crate) fn confirm(mut self) {
        self.is_applied = true;
    }
}

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        if !self.is_applied {
            self.dropping.table.enter(&self.dropping.name, self.dropping.entry);
        }
    }
}

/// Whether a user's keyspace can have this name.
///
/// # Errors
/// `Invalid`.
pub fn check_name(name: &str, reserved: &[&str]) -> Result<(), KvError> {
    if name.is_empty() || name.len() > KEYSPACE_NAME_LEN_MAX || name.contains(char::is_control) {
        return Err(KvError::Invalid("a keyspace's name has 1 to 255 bytes and no control characters"));
    }
    if reserved.contains(&name) {
        return Err(KvError::Invalid("this keyspace belongs to the file system; choose another name"));
    }
    Ok(())
}
