//! A file system by the calls of POSIX, whichever process owns its store.
//!
//! Purpose: a [`Process`] is one of the file system of this process ([`kvfs_posix::Process`]), or one of a
//! server that owns the store (`served`): a daemon, mounted or not. Its calls, results and errors are the
//! same. A [`ServedStore`] is the way to a server.
//!
//! Thread safety: everything is `&self`, but a [`Directory`].
//!
//! Invariants: no rule of paths, permissions, flags or offsets is here: the server has the open files, their
//! numbers and the working directory. A call that failed because the server is gone (ENOTCONN) may have
//! happened.

mod directory;
mod keys;
mod mapping;
mod process;
mod served;
mod store;

pub use directory::Directory;
pub use keys::{KeyCursor, Keys};
pub use mapping::Mapping;
pub use process::Process;
pub use store::{ServedStore, ServedTransaction};
