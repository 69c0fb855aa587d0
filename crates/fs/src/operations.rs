//! The vocabulary in which front ends report the operations that they have answered.
//!
//! Purpose: a front end takes the time when a request comes in ([`Recorder::now`]) and reports an
//! [`Operation`] when its answer is known ([`Recorder::record`]). What is made of it (latencies by kind, a
//! log, a trace) is the recorder's affair.
//!
//! Thread safety: values, and a trait whose implementations are shared by all threads. Invariant: an
//! operation is reported once, by the front end that answers it; a commit or an abort by the registry of
//! transactions, whichever front end it came by.

use std::fmt::Debug;
use std::time::Duration;

pub use crate::view::{command_of, path_in, record_operations, recorder};

/// Defines the kinds once: the enum, their names, which of them may wait for a lock as long as its holder
/// likes.
macro_rules! kinds {
    ($($kind:ident = $name:literal),+ $(,)?) => {
        /// What an operation does.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "each is named after the system call or the call of the key-value socket")]
        pub enum OperationKind { $($kind),+ }

        impl OperationKind {
            /// All kinds, in their order.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// Its name, by which people and programs know it: lower-case letters and `_`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),+ }
            }
        }
    };
}

kinds! {
    Lookup = "lookup",
    Getattr = "getattr",
    Setattr = "setattr",
    Access = "access",
    Readlink = "readlink",
    Symlink = "symlink",
    Mknod = "mknod",
    Mkdir = "mkdir",
    Unlink = "unlink",
    Rmdir = "rmdir",
    Rename = "rename",
    Link = "link",
    Open = "open",
    Create = "create",
    Read = "read",
    Write = "write",
    Seek = "seek",
    Copy = "copy",
    Fallocate = "fallocate",
    Flush = "flush",
    Fsync = "fsync",
    Release = "release",
    Opendir = "opendir",
    Readdir = "readdir",
    Releasedir = "releasedir",
    Statfs = "statfs",
    Syncfs = "syncfs",
    Getxattr = "getxattr",
    Setxattr = "setxattr",
    Listxattr = "listxattr",
    Removexattr = "removexattr",
    Lock = "lock",
    LockWait = "lock_wait",
    Ioctl = "ioctl",
    Other = "other",
    KeyGet = "kv_get",
    KeyWrite = "kv_write",
    KeyDelete = "kv_delete",
    KeyScan = "kv_scan",
    KeyLock = "kv_lock",
    Keyspace = "keyspace",
    Commit = "commit",
    Drop = "drop",
}

impl OperationKind {
    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether it waits for another owner's lock, for as long as that is held.
    pub fn waits_for_locks(self) -> bool {
        matches!(self, Self::LockWait | Self::KeyLock)
    }
}

/// What an operation is about, as far as its front end knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// Nothing in particular.
    None,
    /// An inode, or the entry `name` of that directory if `name` is not empty.
    Inode {
        /// Its number.
        inode: u64,
        /// Of the entry.
        name: &'a [u8],
    },
    /// A path, as the caller has said it.
    Path(&'a [u8]),
    /// A key, or a whole keyspace if `key` is empty.
    Key {
        /// Name of the keyspace.
        keyspace: &'a str,
        /// The key.
        key: &'a [u8],
    },
}

/// An operation that is about to be answered.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'a> {
    /// What it does.
    pub kind: OperationKind,
    /// When it came in, by [`Recorder::now`].
    pub start: Duration,
    /// User that asks.
    pub uid: u32,
    /// Process that asks; 0: not visible from here.
    pub pid: u32,
    /// The transaction in which it is done; 0: the main line.
    pub txn: u64,
    /// 0: it is done; else the number of the error.
    pub errno: i32,
    /// Bytes of content or of a value that it has moved.
    pub bytes: u64,
    /// Whether it has waited for a transaction's or a user's lock.
    pub has_waited: bool,
    /// What it is about.
    pub target: Target<'a>,
}

/// Takes what front ends report.
pub trait Recorder: Debug + Send + Sync {
    /// The time, by a clock that never goes back.
    fn now(&self) -> Duration;

    /// Takes one operation, which ends now. Does not wait.
    fn record(&self, operation: &Operation<'_>);

    /// Whether [`Operation::target`] of an operation that began then would be looked at, if it ended now:
    /// where finding it out takes more than a few instructions.
    fn wants_target(&self, start: Duration) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_each_kind_leads_back_to_it() {
        for (place, &kind) in OperationKind::ALL.iter().enumerate() {
            assert_eq!(kind as usize, place);
            assert_eq!(OperationKind::from_name(kind.name()), Some(kind));
            assert!(kind.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", kind.name());
        }
        assert_eq!(OperationKind::from_name("no such kind"), None);
    }
}
