//! Arguments of requests, in typed form.

use crate::abi::{FileLock, SetattrIn, flags};

/// The request and its caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestContext {
    /// The kernel's number of the request.
    pub unique: u64,
    /// Effective user of the caller.
    pub uid: u32,
    /// Effective group of the caller.
    pub gid: u32,
    /// Process of the caller; 0 when it isn't visible from here, or the kernel itself asks.
    pub pid: u32,
    /// Supplementary groups, when the kernel gives them (it names at most the parent directory's group, with
    /// requests that make something).
    pub groups: Vec<u32>,
}

/// A time to be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeChange {
    /// The time of the change itself.
    Now,
    /// Seconds since 1970 and nanoseconds.
    At(i64, u32),
}

/// Attributes to be changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// Permission bits (and file type, which can't change).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size (bytes).
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeChange>,
    /// Modification time.
    pub mtime: Option<TimeChange>,
    /// Change time (under write-back cache only).
    pub ctime: Option<(i64, u32)>,
    /// Handle of the open file.
    pub fh: Option<u64>,
    /// Whether setuid and setgid bits are to be cleared.
    pub kill_suidgid: bool,
}

impl From<&SetattrIn> for AttributeChange {
    fn from(wire: &SetattrIn) -> Self {
        use flags::setattr as bit;
        let has = |flag| wire.valid & flag != 0;
        let time = |flag, now, secs: u64, nanos| {
            has(flag).then(|| if has(now) { TimeChange::Now } else { TimeChange::At(secs as i64, nanos) })
        };
        Self {
            mode: has(bit::MODE).then_some(wire.mode),
            uid: has(bit::UID).then_some(wire.uid),
            gid: has(bit::GID).then_some(wire.gid),
            size: has(bit::SIZE).then_some(wire.size),
            atime: time(bit::ATIME, bit::ATIME_NOW, wire.atime, wire.atimensec),
            mtime: time(bit::MTIME, bit::MTIME_NOW, wire.mtime, wire.mtimensec),
            ctime: has(bit::CTIME).then_some((wire.ctime as i64, wire.ctimensec)),
            fh: has(bit::FH).then_some(wire.fh),
            kill_suidgid: has(bit::KILL_SUIDGID),
        }
    }
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetxattrArgs {
    /// Flags of setxattr(2).
    pub flags: u32,
    /// Whether set-group-id goes with it: an access-control list is set by a caller outside the file's group.
    pub clears_setgid: bool,
}

/// A node to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMode {
    /// Type and permissions; the umask is taken off already unless that was negotiated away.
    pub mode: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// The caller's umask.
    pub umask: u32,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenArgs {
    /// Flags of open(2), without `O_CREAT`, `O_EXCL`, `O_NOCTTY` and (normally) `O_TRUNC`.
    pub flags: u32,
    /// Whether setuid and setgid bits are to be cleared (only with `O_TRUNC`).
    pub kill_suidgid: bool,
}

/// The end of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleaseArgs {
    /// Handle.
    pub fh: u64,
    /// Flags of open(2).
    pub flags: u32,
    /// Owner whose POSIX locks end.
    pub lock_owner: u64,
    /// Whether flock(2) locks of the owner end.
    pub flock_unlock: bool,
}

/// What is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadArgs {
    /// Handle; 0 when files are opened without a message.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes at most.
    pub size: u32,
    /// Flags of open(2).
    pub flags: u32,
    /// Whether it is for the page cache, as also those are that a mapping of a file with `O_DIRECT` needs.
    /// Only a caller that reads past it names itself as the owner of locks.
    pub is_cached: bool,
}

/// What is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteArgs {
    /// Handle; 0 when files are opened without a message; a guess when `cache`.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// Flags of open(2).
    pub flags: u32,
    /// Whether the page cache writes (mapped files, write-back) rather than a write(2).
    pub cache: bool,
    /// Whether setuid and setgid bits are to be cleared.
    pub kill_suidgid: bool,
}

/// A part of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaddirArgs {
    /// Handle; 0 when directories are opened without a message.
    pub fh: u64,
    /// Where to go on: 0, or the `next_offset` of an entry.
    pub offset: u64,
    /// Bytes at most.
    pub size: u32,
    /// Flags of open(2).
    pub flags: u32,
    /// Whether attributes are wanted.
    pub plus: bool,
}

/// A lock on a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockArgs {
    /// Handle.
    pub fh: u64,
    /// Owner of the lock.
    pub owner: u64,
    /// Range, type, process.
    pub lock: FileLock,
    /// flock(2) rather than fcntl(2).
    pub flock: bool,
    /// Whether to wait for it.
    pub wait: bool,
}

/// Space to be allocated or freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FallocateArgs {
    /// Handle.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Flags of fallocate(2).
    pub mode: u32,
}

/// A range to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyArgs {
    /// Handle to read from.
    pub fh_in: u64,
    /// First byte to read.
    pub offset_in: u64,
    /// Node to write to.
    pub node_out: u64,
    /// Handle to write to.
    pub fh_out: u64,
    /// First byte to write.
    pub offset_out: u64,
    /// Number of bytes.
    pub len: u64,
    /// Flags of `copy_file_range(2)`.
    pub flags: u64,
}

/// An ioctl with a well-formed argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoctlArgs {
    /// Handle.
    pub fh: u64,
    /// Bits `IOCTL_*` of [`flags`].
    pub flags: u32,
    /// Command.
    pub command: u32,
    /// The argument as a number.
    pub arg: u64,
    /// Bytes of the answer at most.
    pub out_size: u32,
}
