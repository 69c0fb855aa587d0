//! The way to a store that another process owns.
//!
//! Thread safety: everything is `&self`.

use std::io;
use std::path::{Path, PathBuf};

use kvfs_lane::{Connection, Greeting};
use kvfs_posix::{Identity, Result};

use crate::process::Process;
use crate::served::{Served, failed};

/// See the module.
#[derive(Debug)]
pub struct ServedStore {
    path: PathBuf,
}

impl ServedStore {
    /// The store that `path` means: its directory, or anything on its mount.
    ///
    /// # Errors
    /// `NotFound`: no daemon serves it; `PermissionDenied`: the daemon is of a user that may not; EPROTO: it is of another version.
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
        self.begin(Greeting::default())
    }

    /// The same for another user: for root, and the user whose server it is.
    ///
    /// # Errors
    /// As [`ServedStore::process`]; EPERM: for others.
    pub fn process_as(&self, identity: &Identity) -> Result<Process> {
        let acts_as = [&[identity.uid, identity.gid], &identity.groups[..]].concat();
        self.begin(Greeting { acts_as, ..Greeting::default() })
    }

    fn begin(&self, greeting: Greeting) -> Result<Process> {
        Ok(Served::new(self.connect(greeting).map_err(|error| failed(&error))?).into())
    }

    fn connect(&self, greeting: Greeting) -> io::Result<Connection> {
        Connection::greet(kvfs_lane::connect(&self.path)?, greeting)
    }
}
