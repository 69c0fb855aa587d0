//! Calls of POSIX from one process to another over shared memory.
//!
//! Purpose: a process that owns a store serves others that don't. Each connection ([`greeting`]) is a process
//! to the file system; each of its threads that calls has a [`ClientLane`], a piece of memory that it shares
//! with a thread of the server ([`ServerLane`]). A [`Call`] and its payload lie in it, then the [`Reply`] and
//! its payload. Nothing else goes through the kernel while both ends are awake.
//!
//! Thread safety: a lane has one thread at each end.
//!
//! Invariants: the server trusts nothing in a lane: it copies what it reads before it looks at it, and the
//! memory can't be taken away from under it (it is sealed).

mod call;
mod connection;
pub mod greeting;
mod lane;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

pub use call::{
    At, Attributes, Bytes, Call, FsNumbers, KeyChange, LockRange, NUMBERED, Reply, Time, decode, encode,
};
pub use connection::Connection;
pub use greeting::Greeting;
pub use lane::{ClientLane, LANE_DATA_BYTES, LaneEnd, LaneError, ServerLane};

/// Name of the socket in the directory of a store.
pub const SOCKET_NAME: &str = "files.sock";

/// Connects to the daemon of the store that `path` means: its directory, or anything on its mount.
///
/// # Errors
/// `NotFound`: no daemon serves it; `PermissionDenied`: the daemon is of a user that may not serve the store.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let found = kvfs_socket::locate::locate(path, SOCKET_NAME)?;
    found.ok_or(io::ErrorKind::NotFound)?.connect(SOCKET_NAME)
}
