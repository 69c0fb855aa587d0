//! What is asked and answered: the calls of `kvfs_posix::Process` as values.
//!
//! Purpose: both ends build the same version of this file: [`crate::greeting::VERSION`] grows with each
//! change of it.
//!
//! Thread safety: plain values that borrow from the message that they were read from.
//!
//! Encoding: postcard, then the payload: what is written or was read, so that it is copied as one piece.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};

use crate::lane::LaneError;

/// Bytes that are encoded as one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Bytes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowed;
        impl<'de> Visitor<'de> for Borrowed {
            type Value = Bytes<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Bytes<'de>, E> {
                Ok(Bytes(bytes))
            }
        }
        deserializer.deserialize_bytes(Borrowed)
    }
}

/// Where a call looks, as `kvfs_posix::Place`: with a path beneath the open directory `base`, without one at
/// `base` itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct At<'a> {
    /// Handle of an open file; none: the root.
    pub base: Option<u64>,
    /// Absolute ones begin at the root of the file system.
    #[serde(borrow)]
    pub path: Option<Bytes<'a>>,
    /// Whether a symbolic link in the end is followed.
    pub follows: bool,
    /// Without a path: what `base` refers to, as by a name of it.
    pub is_named: bool,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Time {
    /// That of the call.
    Now,
    /// Since 1970.
    At {
        /// Seconds.
        seconds: i64,
        /// Nanoseconds.
        nanos: u32,
    },
}

/// A lock of a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Behind the last byte; `u64::MAX`: as far as the file may grow.
    pub end: u64,
    /// None: unlock.
    pub is_exclusive: Option<bool>,
    /// The open file has it, not the process.
    pub of_file: bool,
}

/// Handles that a connection numbers itself have this bit, and below it the number of a descriptor; those of
/// placeholders don't.
pub const NUMBERED: u64 = 1 << 63;

/// A change of a key: what the payload of [`Call::WriteKeys`] is made of, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyChange<'a> {
    /// Sets a key.
    Put {
        /// Key.
        #[serde(borrow)]
        key: Bytes<'a>,
        /// New value.
        #[serde(borrow)]
        value: Bytes<'a>,
    },
    /// Removes a key.
    Delete {
        /// Key.
        #[serde(borrow)]
        key: Bytes<'a>,
    },
    /// Removes the keys of a range.
    DeleteRange {
        /// The first one.
        #[serde(borrow)]
        start: Bytes<'a>,
        /// Behind the last one; none: to the last.
        #[serde(borrow)]
        end: Option<Bytes<'a>>,
    },
}

/// What is asked. Handles are those of [`Reply::Opened`]; flags, modes and commands have the numbers of
/// Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the arguments are those of the system calls")]
pub enum Call<'a> {
    /// `open`. `handle`: that of a placeholder which the connection was given; none: the server chooses a
    /// number.
    Open {
        #[serde(borrow)]
        at: At<'a>,
        flags: u32,
        mode: u32,
        umask: u32,
        handle: Option<u64>,
    },
    /// The process has closed a descriptor of an open file: its locks of ranges end. The handle goes on, if
    /// it is a placeholder's that was opened.
    Close { handle: u64 },
    /// `stat`, `lstat`, `fstat`: [`Reply::Attributes`].
    Stat {
        #[serde(borrow)]
        at: At<'a>,
    },
    /// `access`: of 4, 2, 1.
    Access {
        #[serde(borrow)]
        at: At<'a>,
        access: u32,
    },
    /// `chmod`.
    Chmod {
        #[serde(borrow)]
        at: At<'a>,
        mode: u32,
    },
    /// `chown`.
    Chown {
        #[serde(borrow)]
        at: At<'a>,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// `utimensat`.
    Utimens {
        #[serde(borrow)]
        at: At<'a>,
        atime: Option<Time>,
        mtime: Option<Time>,
    },
    /// `truncate`, `ftruncate`.
    Truncate {
        #[serde(borrow)]
        at: At<'a>,
        size: u64,
    },
    /// `statfs`: [`Reply::FileSystem`].
    StatFs {
        #[serde(borrow)]
        at: At<'a>,
    },
    /// `mkdir`.
    Mkdir {
        #[serde(borrow)]
        at: At<'a>,
        mode: u32,
        umask: u32,
    },
    /// `mknod`.
    Mknod {
        #[serde(borrow)]
        at: At<'a>,
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    /// `symlink`; the payload is its target.
    Symlink {
        #[serde(borrow)]
        at: At<'a>,
    },
    /// `link`.
    Link {
        #[serde(borrow)]
        old: At<'a>,
        #[serde(borrow)]
        new: At<'a>,
    },
    /// `unlink`, `rmdir`.
    Unlink {
        #[serde(borrow)]
        at: At<'a>,
        is_directory: bool,
    },
    /// `renameat2`.
    Rename {
        #[serde(borrow)]
        old: At<'a>,
        #[serde(borrow)]
        new: At<'a>,
        flags: u32,
    },
    /// `readlink`: the payload.
    Readlink {
        #[serde(borrow)]
        at: At<'a>,
    },
    /// `getxattr`: the payload.
    Getxattr {
        #[serde(borrow)]
        at: At<'a>,
        #[serde(borrow)]
        name: Bytes<'a>,
    },
    /// `setxattr`; the payload is the value.
    Setxattr {
        #[serde(borrow)]
        at: At<'a>,
        #[serde(borrow)]
        name: Bytes<'a>,
        flags: u32,
    },
    /// `listxattr`: the payload, names with a zero behind each.
    Listxattr {
        #[serde(borrow)]
        at: At<'a>,
    },
    /// `removexattr`.
    Removexattr {
        #[serde(borrow)]
        at: At<'a>,
        #[serde(borrow)]
        name: Bytes<'a>,
    },
    /// `remove`: a name, or an empty directory.
    Remove {
        #[serde(borrow)]
        at: At<'a>,
    },
    /// A name, and a directory with all that is below: [`Reply::Number`], the transaction of its own, or 0.
    RemoveTree {
        #[serde(borrow)]
        at: At<'a>,
    },
    /// A name, and a directory with all that is below, a second time: [`Reply::Number`], the transaction of
    /// its own, or 0.
    CloneTree {
        #[serde(borrow)]
        source: At<'a>,
        #[serde(borrow)]
        target: At<'a>,
    },
    /// `chdir`, `fchdir`.
    Chdir {
        #[serde(borrow)]
        at: At<'a>,
    },
    /// `getcwd`: the payload.
    WorkingDirectory,
    /// The path of an open directory, from the root: the payload.
    PathOf { handle: u64 },
    /// `read` (without an offset), `pread`: the payload.
    Read { handle: u64, len: u32, offset: Option<u64> },
    /// `write` (without an offset), `pwrite`, of the payload: [`Reply::Number`], bytes.
    Write { handle: u64, offset: Option<u64> },
    /// `lseek`: [`Reply::Number`].
    Seek { handle: u64, offset: i64, whence: u32 },
    /// `getdents64`, at most `len` bytes of its records: the payload.
    List { handle: u64, len: u32 },
    /// The same from `offset` on; that of the open file stays.
    ListFrom { handle: u64, offset: u64, len: u32 },
    /// `fsync`.
    Sync { handle: u64 },
    /// `sync`, `syncfs`.
    SyncAll,
    /// Files that are closed have ended, and what was written into mapped memory of the transaction, or of
    /// the main line, is in its file, when this is answered.
    Settle,
    /// `fallocate`.
    Allocate { handle: u64, mode: u32, offset: u64, len: u64 },
    /// `copy_file_range`: [`Reply::Number`], bytes.
    Copy { from: u64, from_offset: Option<u64>, to: u64, to_offset: Option<u64>, len: u64 },
    /// `F_GETFL`: [`Reply::Number`].
    Flags { handle: u64 },
    /// `F_SETFL`.
    SetFlags { handle: u64, flags: u32 },
    /// `dup`, `F_DUPFD`: the lowest number from `min` on, [`Reply::Opened`].
    Dup { handle: u64, min: i32, closes_on_exec: bool },
    /// `dup3`: the number `new`, in place of what has it, [`Reply::Opened`].
    DupTo { handle: u64, new: i32, closes_on_exec: bool },
    /// `F_GETFD`: [`Reply::Number`], 1 or 0.
    ClosesOnExec { handle: u64 },
    /// `F_SETFD`.
    SetClosesOnExec { handle: u64, closes_on_exec: bool },
    /// `execve`: descriptors are closed that are to be.
    Exec,
    /// `_exit`: all descriptors are closed, and the locks of the process end.
    Exit,
    /// `flock`; none: unlock.
    Flock { handle: u64, is_exclusive: Option<bool>, waits: bool },
    /// `F_SETLK`, `F_SETLKW` and those of open files.
    Lock { handle: u64, lock: LockRange, waits: bool },
    /// `F_GETLK`: [`Reply::Locked`].
    FindLock { handle: u64, lock: LockRange },
    /// The value of a key: the payload; [`Reply::Number`]: there is none.
    GetKey {
        keyspace: &'a str,
        #[serde(borrow)]
        key: Bytes<'a>,
    },
    /// All changes of the payload ([`KeyChange`]), 10,000 at most, or none.
    WriteKeys { keyspace: &'a str },
    /// Removes a key: [`Reply::Number`], 1 or 0.
    DeleteKey {
        keyspace: &'a str,
        #[serde(borrow)]
        key: Bytes<'a>,
    },
    /// Removes the keys of a range; none: to the last.
    DeleteKeys {
        keyspace: &'a str,
        #[serde(borrow)]
        start: Bytes<'a>,
        #[serde(borrow)]
        end: Option<Bytes<'a>>,
    },
    /// The first keys of a range with their values, or the last, last one first: the payload, pairs of
    /// [`Bytes`], one behind the other, of some `len` bytes; no pair: there is none.
    ListKeys {
        keyspace: &'a str,
        #[serde(borrow)]
        start: Bytes<'a>,
        #[serde(borrow)]
        end: Option<Bytes<'a>>,
        is_backwards: bool,
        len: u32,
    },
    /// Makes a keyspace.
    CreateKeyspace { name: &'a str, mode: u32 },
    /// Removes a keyspace with its keys.
    DropKeyspace { name: &'a str },
    /// Names of keyspaces: the payload, a zero behind each.
    ListKeyspaces,
    /// Begins a transaction, for [`Greeting::txn`](crate::Greeting::txn) of other connections:
    /// [`Reply::Number`]. It is aborted with this connection, if it is open then.
    Begin { is_serializable: bool, label: &'a str },
    /// Commits a transaction that this connection has begun, durably.
    Commit { txn: u64 },
    /// Aborts a transaction that this connection has begun.
    Abort { txn: u64 },
}

/// What `stat` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of struct stat")]
pub struct Attributes {
    pub inode: u64,
    /// With the type.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// As Linux encodes it in 32 bits.
    pub rdev: u32,
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Seconds and nanoseconds, as the next ones.
    pub atime: (i64, u32),
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    pub btime: (i64, u32),
}

/// What `statfs` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of struct statfs")]
pub struct FsNumbers {
    pub block_bytes: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_len_max: u32,
}

/// What is answered. Bytes follow as payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, or: the payload is the answer.
    Done,
    /// Nothing happened; the payload says why, in words.
    Failed {
        /// Of Linux.
        errno: i32,
    },
    /// Nothing happened: the connection has no open file of that handle.
    Unknown,
    /// The path leads out of the file system: the payload is the absolute path, in the file system around it,
    /// at which to go on.
    Outside,
    /// A file is open.
    Opened {
        /// By which calls name it.
        handle: u64,
    },
    /// A number.
    Number(u64),
    /// Of `stat`.
    Attributes(Attributes),
    /// Of `statfs`.
    FileSystem(FsNumbers),
    /// Which lock would be in the way.
    Locked(Option<LockRange>),
}

/// Writes a message and its payload into `space`; returns its length. O(payload).
///
/// # Errors
/// [`LaneError::TooLong`].
pub fn encode(message: &impl Serialize, payload: &[u8], space: &mut [u8]) -> Result<usize, LaneError> {
    let head = postcard::to_slice(message, space).map_err(|_| LaneError::TooLong)?.len();
    let end = head + payload.len();
    space.get_mut(head..end).ok_or(LaneError::TooLong)?.copy_from_slice(payload);
    Ok(end)
}

/// A message, and the payload behind it.
///
/// # Errors
/// [`LaneError::Malformed`].
pub fn decode<'m, M: Deserialize<'m>>(message: &'m [u8]) -> Result<(M, &'m [u8]), LaneError> {
    postcard::take_from_bytes(message).map_err(|_| LaneError::Malformed)
}
