//! Which store a path means.

use std::io;
use std::path::{Path, PathBuf};

use kvfs_socket::address::Address;
use kvfs_socket::locate;

use super::error::{ClientError, Result};
use crate::SOCKET_NAME;

/// A mounted store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Its directory.
    pub store: PathBuf,
}

impl Located {
    /// How its socket is reached, and the owner of its directory, whose daemon is to be behind it; that of a
    /// mount of root's for all users, where the store's directory is closed.
    ///
    /// # Errors
    /// No socket is there, or that of a user that may not serve the store.
    pub(super) fn address(&self) -> io::Result<(Address, Option<u32>)> {
        locate::Located { store: self.store.clone() }.address(SOCKET_NAME)
    }
}

/// The store that `path` means: its directory, or anything on its mount or on a view of a transaction.
///
/// # Errors
/// [`ClientError::NotMounted`]; the mount table can't be read.
pub fn locate(path: &Path) -> Result<Located> {
    let found = locate::locate(path, SOCKET_NAME)?;
    found
        .map(|locate::Located { store }| Located { store })
        .ok_or_else(|| ClientError::NotMounted(path.to_owned()))
}
