//! The sockets in the directory of a store, for the daemon that binds them and the commands that come by
//! them.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use kvfs_lane::SOCKET_NAME as FILES;
use kvfs_socket::BoundSocket;
use kvfs_socket::address::Address;
use kvfs_socket::public;

use super::StoreDir;
use crate::control::SOCKET_NAME as CONTROL;

/// Only the user of the daemon, and root.
const CONTROL_MODE: u32 = 0o600;

/// Every user that the store's directory lets in may connect: each keyspace and each transaction has an
/// owner.
const KEYS_MODE: u32 = 0o666;

/// The same: a process does what its user may do.
const FILES_MODE: u32 = 0o666;

impl StoreDir {
    /// Binds the socket for the command.
    pub(crate) fn bind_control(&self) -> io::Result<BoundSocket> {
        BoundSocket::bind(Arc::clone(self.directory()), CONTROL, CONTROL_MODE)
    }

    /// Binds the socket for keys.
    pub(crate) fn bind_keys(&self) -> io::Result<BoundSocket> {
        BoundSocket::bind(Arc::clone(self.directory()), kvfs_rpc::SOCKET_NAME, KEYS_MODE)
    }

    /// Binds the socket for calls of POSIX.
    pub(crate) fn bind_files(&self) -> io::Result<BoundSocket> {
        BoundSocket::bind(Arc::clone(self.directory()), FILES, FILES_MODE)
    }

    /// Connects to the daemon's socket for the command. `TimedOut`: it accepts nothing.
    pub(crate) fn connect_control(&self) -> io::Result<UnixStream> {
        let stream = kvfs_socket::connect(self.address(CONTROL)?.path())?;
        public::expect_daemon_of(&stream, Some(self.uid()))?;
        Ok(stream)
    }

    /// How the daemon's socket for keys is reached.
    pub(crate) fn keys_address(&self) -> io::Result<Address> {
        self.address(kvfs_rpc::SOCKET_NAME)
    }

    /// Whether there is a socket for keys.
    pub(crate) fn has_keys_socket(&self) -> bool {
        self.look(kvfs_rpc::SOCKET_NAME).is_ok()
    }

    /// What messages call the socket for the command.
    pub(crate) fn control_name(&self) -> PathBuf {
        self.path().join(CONTROL)
    }

    /// What messages and other programs call the socket for keys.
    pub(crate) fn keys_name(&self) -> PathBuf {
        self.path().join(kvfs_rpc::SOCKET_NAME)
    }

    /// What messages and other programs call the socket for calls of POSIX.
    pub(crate) fn files_name(&self) -> PathBuf {
        self.path().join(FILES)
    }

    fn address(&self, name: &str) -> io::Result<Address> {
        Address::beneath(self.directory(), name, |uid| public::may_serve(uid, Some(self.uid())))
    }
}
