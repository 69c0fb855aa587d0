//! The way to a store that another process owns.
//!
//! Thread safety: everything is `&self`.

use std::io;
use std::path::{Path, PathBuf};

use kvfs_lane::{Call, Connection, Greeting};
use kvfs_posix::{Identity, Result};

use crate::process::Process;
use crate::served::{Served, failed};

/// See the module.
#[derive(Debug, Clone)]
pub struct ServedStore {
    path: PathBuf,
}

impl ServedStore {
    /// The store that `path` means: its directory, or anything on its mount.
    ///
    /// # Errors
    /// `NotFound`: no daemon serves it; `PermissionDenied`: the daemon is of a user that may not; EPROTO: it
    /// is of another version.
    pub fn find(path: &Path) -> io::Result<Self> {
        let store = Self { path: path.canonicalize()? };
        store.connect(Greeting::default())?;
        Ok(store)
    }

    /// A process of the user that this one is: working directory `/`, umask 022, no open files.
    ///
    /// # Errors
    /// EUSERS: there are too many; ENOTCONN: the server is gone.
    pub fn process(&self) -> Result<Process> {
        Ok(self.served(Greeting::default())?.into())
    }

    /// The same for another user: for root, and the user whose server it is.
    ///
    /// # Errors
    /// As [`ServedStore::process`]; EPERM: for others.
    pub fn process_as(&self, identity: &Identity) -> Result<Process> {
        Ok(self.served(Greeting { acts_as: ids(identity), ..Greeting::default() })?.into())
    }

    /// Begins a transaction over files and keys, that the server lists with `label`.
    ///
    /// # Errors
    /// EROFS: the store is read only; EOPNOTSUPP: the server has no transactions for programs; ENOTCONN: it
    /// is gone.
    pub fn begin(&self, is_serializable: bool, label: &str) -> Result<ServedTransaction> {
        let owner = self.served(Greeting::default())?;
        let txn = owner.number(&Call::Begin { is_serializable, label }, &[])?;
        Ok(ServedTransaction { store: self.clone(), owner, txn })
    }

    fn served(&self, greeting: Greeting) -> Result<Served> {
        Ok(Served::new(self.connect(greeting).map_err(|error| failed(&error))?))
    }

    fn connect(&self, greeting: Greeting) -> io::Result<Connection> {
        Connection::greet(kvfs_lane::connect(&self.path)?, greeting)
    }
}

fn ids(identity: &Identity) -> Vec<u32> {
    [&[identity.uid, identity.gid], &identity.groups[..]].concat()
}

/// A transaction of a server. It is aborted when this is dropped, and when this process ends.
#[derive(Debug)]
pub struct ServedTransaction {
    store: ServedStore,
    /// Its connection keeps it.
    owner: Served,
    txn: u64,
}

impl ServedTransaction {
    /// As [`ServedStore::process`], in the transaction. Calls fail with ESTALE when it has ended.
    ///
    /// # Errors
    /// As there; ENOENT, ESTALE: the transaction has ended.
    pub fn process(&self) -> Result<Process> {
        Ok(self.store.served(Greeting { txn: self.txn, ..Greeting::default() })?.into())
    }

    /// As [`ServedStore::process_as`], in the transaction.
    ///
    /// # Errors
    /// As there, and as [`ServedTransaction::process`].
    pub fn process_as(&self, identity: &Identity) -> Result<Process> {
        let greeting = Greeting { txn: self.txn, acts_as: ids(identity), ..Greeting::default() };
        Ok(self.store.served(greeting)?.into())
    }

    /// Commits everything at once, durably.
    ///
    /// # Errors
    /// ECANCELED: others have changed what it has changed or, if it is serializable, read. With any error it
    /// has ended, and nothing has happened, but with EIO and ENOTCONN it may have.
    pub fn commit(self) -> Result<()> {
        // What is dropped then has ended.
        self.owner.done(&Call::Commit { txn: self.txn }, &[])
    }
}

impl Drop for ServedTransaction {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.owner.done(&Call::Abort { txn: self.txn }, &[]);
    }
}
