//! The keys of a process: of the keyspaces that its user may use, in the view that it sees.
//!
//! Thread safety: everything is `&self`.

use bytes::Bytes;
use kvfs_fs::{Caller, FileSystem, FsError};
use kvfs_kv::{Access, AccessError, KeyChange, KeyspaceUser, UserKeyspaces, View, ViewKind};
use kvfs_store::{Cursor, KeyRange, StoreError};
use rustix::io::Errno;

use crate::error::{PosixError, Result};
use crate::process::{Process, user_of};

/// See the module.
#[derive(Debug)]
pub struct ProcessKeys<'p> {
    fs: &'p FileSystem,
    /// The file system itself, which waits as long as the process does.
    caller: Caller,
    user: KeyspaceUser<'p>,
    own_max: usize,
}

impl<'p> ProcessKeys<'p> {
    /// The keys of a process, whose user may have `own_max` keyspaces.
    pub fn of(process: &'p Process, own_max: usize) -> Self {
        let (fs, caller, groups) = user_of(process);
        let is_master = kvfs_service::is_master(fs, caller.uid);
        let user = KeyspaceUser { uid: caller.uid, gid: caller.gid, groups, is_master };
        Self { fs, caller: Caller { waits: caller.waits.clone(), ..Caller::default() }, user, own_max }
    }

    fn keyspaces(&self) -> UserKeyspaces<'_, FileSystem> {
        self.fs.keys().of_user(self.user, self.own_max)
    }

    /// The value of a key; `None`: there is no such key, or no such keyspace.
    ///
    /// # Errors
    /// EACCES: the keyspace is another user's; EINVAL: no name or key; as all calls of transactions.
    pub fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        self.settled(|caller| {
            let Some(keyspace) = self.keyspaces().readable(keyspace)? else { return Ok(None) };
            Ok(self.fs.keys().get(caller, keyspace, key)?)
        })
    }

    /// Makes all changes at once, or none; the keyspace is made if there is none.
    ///
    /// # Errors
    /// As [`ProcessKeys::get`]; EDQUOT: the user has too many keyspaces; E2BIG: more than
    /// [`kvfs_kv::OPERATIONS_MAX`] changes; EROFS, ENOSPC.
    #[expect(clippy::needless_pass_by_value, reason = "callers make the changes for this call")]
    pub fn write(&self, keyspace: &str, changes: Vec<KeyChange>) -> Result<()> {
        let find = || {
            let keyspace = self.keyspaces().writable(keyspace)?;
            Ok(changes.iter().map(|change| (keyspace, change.clone())).collect())
        };
        self.settled(|caller| self.fs.keys().apply_found(caller, find)?).map(drop)
    }

    /// Removes a key; returns whether it was there.
    ///
    /// # Errors
    /// As [`ProcessKeys::write`].
    pub fn delete(&self, keyspace: &str, key: &[u8]) -> Result<bool> {
        let find = || self.keyspaces().existing(keyspace, Access::Write);
        let set = self.settled(|caller| self.fs.keys().set_found(caller, find, key, None)?);
        set.map(|(_, existed)| existed)
    }

    /// Removes all keys of a range.
    ///
    /// # Errors
    /// As [`ProcessKeys::write`].
    #[expect(clippy::needless_pass_by_value, reason = "callers make the range for this call")]
    pub fn delete_range(&self, keyspace: &str, range: KeyRange) -> Result<()> {
        let find = || {
            let found = self.keyspaces().existing(keyspace, Access::Write)?;
            let change = |keyspace| (keyspace, KeyChange::DeleteRange(range.clone()));
            Ok(found.map(change).into_iter().collect())
        };
        self.settled(|caller| self.fs.keys().apply_found(caller, find)?).map(drop)
    }

    /// A walk over the keys of a range, as they are now; `None`: there is no such keyspace.
    ///
    /// # Errors
    /// As [`ProcessKeys::get`].
    pub fn cursor(&self, keyspace: &str, range: &KeyRange) -> Result<Option<Box<dyn Cursor>>> {
        self.settled(|caller| {
            let Some(keyspace) = self.keyspaces().readable(keyspace)? else { return Ok(None) };
            Ok(Some(self.fs.keys().cursor(caller, keyspace, range.clone())?))
        })
    }

    /// Makes a keyspace, durably; `mode` says who may read (4) and write (2) keys, as of a file.
    ///
    /// # Errors
    /// EEXIST: there is one; EINVAL; EDQUOT.
    pub fn create_keyspace(&self, name: &str, mode: u32) -> Result<()> {
        self.keyspaces().create(name, Some(mode), true).map(drop).map_err(denied)
    }

    /// Removes a keyspace with all its keys, durably; outside of transactions.
    ///
    /// # Errors
    /// ENOENT: there is none; EPERM: it is another user's.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        let dropped = self.settled(|caller| self.keyspaces().drop_keyspace(caller, name))?;
        Ok(self.fs.sync(dropped)?)
    }

    /// The keyspaces that the user may use; of a snapshot, those that it has.
    ///
    /// # Errors
    /// I/O errors.
    pub fn list_keyspaces(&self) -> Result<Vec<String>> {
        let then = self.fs.kind() == ViewKind::Snapshot;
        let all = self.keyspaces().list(then).map_err(denied)?;
        Ok(all.into_iter().map(|(name, _)| name).collect())
    }

    /// Tries `operation` until no other holds what it needs. A keyspace may be dropped meanwhile: `operation`
    /// looks it up.
    fn settled<T>(
        &self,
        mut operation: impl FnMut(&Caller) -> std::result::Result<T, AccessError<FsError>>,
    ) -> Result<T> {
        let done = kvfs_fs::settled_for(&self.caller, |caller| match operation(caller) {
            Err(AccessError::View(error @ FsError::Parked(_))) => Err(error),
            done => Ok(done),
        });
        done.map_err(failed)?.map_err(denied)
    }
}

fn explained(errno: Errno, error: &impl ToString) -> PosixError {
    PosixError::Explained { errno, message: error.to_string().into() }
}

/// A key or value that can't be one is the caller's mistake.
fn failed(error: FsError) -> PosixError {
    let FsError::Store(cause) = &error else { return error.into() };
    match **cause {
        StoreError::KeyEmpty | StoreError::KeyTooLong { .. } | StoreError::ValueTooLong { .. } => {
            explained(Errno::INVAL, &error)
        }
        _ => error.into(),
    }
}

fn denied(error: AccessError<FsError>) -> PosixError {
    let errno = match error {
        AccessError::View(error) => return failed(error),
        AccessError::Denied(_) => Errno::ACCESS,
        AccessError::TooMany(_) => Errno::DQUOT,
        AccessError::Exists(_) => Errno::EXIST,
        AccessError::Mode => Errno::INVAL,
    };
    explained(errno, &error)
}
