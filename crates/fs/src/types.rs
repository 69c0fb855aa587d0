//! Plain types of the file-system interface.

use std::sync::Arc;
use std::time::Duration;

use kvfs_store::Position;
use kvfs_txn::Ticket;

use crate::attr::{CAPABILITY, SET_ID};
use crate::{ChangedNames, ContentObserver, Credentials, Waits};

/// Longest name (bytes).
pub const NAME_LEN_MAX: usize = 255;

/// Longest target of a symbolic link (bytes).
pub const SYMLINK_LEN_MAX: usize = 4095;

/// Most names that one file may have.
pub const LINK_MAX: u32 = 1 << 30;

/// Largest file (bytes).
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// The bits of a mode that are not of the type.
pub(crate) const MODE_BITS: u32 = 0o7777;

/// Longest name of an extended attribute (bytes), namespace included.
pub const XATTR_NAME_LEN_MAX: usize = 255;

/// Longest value, and longest list of names, of extended attributes (bytes).
pub const XATTR_LEN_MAX: usize = 65536;

/// Names and values of all extended attributes of a file, at most (bytes), access-control lists apart.
pub const XATTR_BYTES_MAX: usize = 1 << 20;

/// Every inode number is below this one: front ends use the bits above.
pub const INODE_MAX: u64 = (1 << 48) - 1;

/// What the kernel (or another front end) calls a file or directory by. Equal to the inode number,
/// which is never reused; so the generation is always 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// The process that asks, and what a parked request brings along when it is tried again.
///
/// Access rights are the front end's business (FUSE: the kernel's `default_permissions`); the ids
/// here become owner and group of new files.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Bits that new files don't get.
    pub umask: u32,
    /// Process id, for diagnostics and [`Credentials`].
    pub pid: u32,
    /// What the kernel knows of it beyond the ids. `None`: the file system itself, which may do everything.
    pub credentials: Option<&'static dyn Credentials>,
    /// All its groups, ascending, where its [`Credentials`] go by what the front end brings along.
    pub groups: Option<Arc<[u32]>>,
    /// Reading leaves the time of the last access as it is (`O_NOATIME`).
    pub keeps_atime: bool,
    /// It goes by what its kernel knows of names and owners: a name that was changed, and is not told yet, is
    /// refused ([`crate::FsError::NameChanged`]), so that the kernel looks again.
    pub goes_by_names: bool,
    /// It asks beside a kernel, which must be told of the names that it changes: they are noted here, before
    /// another operation can hold them. `None`: there is no such kernel, or it asks itself.
    pub changed_names: Option<Arc<ChangedNames>>,
    /// Is told of content that the caller changes. `None`: no kernel has older pages of it.
    pub content_observer: Option<Arc<dyn ContentObserver>>,
    /// It writes back what the watcher of this watch holds, which is not told of it
    /// ([`crate::ContentWatch::of_writer`]).
    pub writes_back: Option<u64>,
    /// End what [`settled_for`](crate::settled_for) waits for. `None`: nothing does.
    pub waits: Option<Arc<Waits>>,
    /// The ticket of [`crate::FsError::Parked`], when the request is tried again: it keeps its place in
    /// the queues, so that no request starves. `None` at the first try.
    pub ticket: Option<Ticket>,
}

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
#[repr(u8)]
pub enum FileType {
    /// The values are those of `d_type` in `readdir` (and `mode >> 12`).
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    Regular = 8,
    Symlink = 10,
    Socket = 12,
}

impl FileType {
    /// The type in the upper bits of a `st_mode`, or `None`.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::from_d_type((mode >> 12) as u8)
    }

    /// The type with this `d_type`, or `None`.
    pub fn from_d_type(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits of this type.
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }
}

/// A point in time, nanoseconds included; seconds may be negative (before 1970).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 UTC, rounded down.
    pub seconds: i64,
    /// 0 ..= 999 999 999.
    pub nanos: u32,
}

impl From<Duration> for Timestamp {
    fn from(since_1970: Duration) -> Self {
        Self { seconds: since_1970.as_secs() as i64, nanos: since_1970.subsec_nanos() }
    }
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number; equals the node id.
    pub inode: u64,
    /// Kind.
    pub kind: FileType,
    /// Permission bits, set-id and sticky bits included (`07777`); without the type.
    pub mode: u32,
    /// Number of names; 0 for orphans.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes, as Linux encodes it in 32 bits.
    pub rdev: u32,
    /// Bytes; number of entries for directories; target length for symbolic links.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of content or attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
}

/// What a view tells the kernel of privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownPrivileges {
    Everything,
    /// Device nodes lead to no device: the user that the view is handed over to may clear `nodev` on its
    /// mount.
    NoDevices,
    /// Programs have neither set-id bits nor capabilities, either: those of a snapshot may have been taken
    /// away since.
    NoPrivileges,
}

impl ShownPrivileges {
    /// What is told of attributes.
    pub(crate) fn attr(self, attr: Attr) -> Attr {
        match self {
            Self::Everything => attr,
            Self::NoDevices => attr.without_devices(),
            Self::NoPrivileges => attr.without_devices().without_set_ids(),
        }
    }

    /// Whether the extended attribute is a privilege that must not be given.
    pub(crate) fn hides(self, name: &[u8]) -> bool {
        self == Self::NoPrivileges && name == CAPABILITY
    }
}

/// A device number that no driver ever has: of the unnamed major, and not that of a whiteout.
const NO_DEVICE: u32 = 1;

impl Attr {
    /// `st_mode`: type and permission bits.
    pub fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | self.mode
    }

    /// What `nosuid` does for a whole mount: programs lose their set-id bits.
    pub(crate) fn without_set_ids(self) -> Self {
        if self.kind == FileType::Regular { Self { mode: self.mode & !SET_ID, ..self } } else { self }
    }

    /// What `nodev` does for a whole mount: device nodes lead to no device.
    pub(crate) fn without_devices(self) -> Self {
        match self.kind {
            // 0:0 is what overlayfs takes for a whiteout, as a node or not.
            FileType::CharDevice | FileType::BlockDevice if self.rdev != 0 => {
                Self { rdev: NO_DEVICE, ..self }
            }
            _ => self,
        }
    }
}

/// Answer to a lookup or creation. The node's lookup count went up by one: give it back with
/// [`crate::FileSystem::forget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Node id.
    pub node: NodeId,
    /// Always 0, because inode numbers are never reused.
    pub generation: u64,
    /// Attributes.
    pub attr: Attr,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation (`UTIME_NOW`).
    Now,
    /// This time.
    At(Timestamp),
}

/// What to change; `None` leaves a field alone (`UTIME_OMIT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission, set-id and sticky bits (`07777`); type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size (truncate).
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change; only the write-back cache of the kernel sets it.
    pub ctime: Option<Timestamp>,
    /// Clear set-user-id, and set-group-id where the group may execute or the caller is not in it
    /// (`FATTR_KILL_SUIDGID`). A change of owner or group does so by itself, except on directories. A change
    /// of size or owner takes file capabilities in any case.
    pub kill_suidgid: bool,
}

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Append {
    /// To its offset.
    #[default]
    No,
    /// To the end of the file, whatever the offset says.
    End,
    /// To its offset, which the front end took for the end of a file opened for appending. It is believed,
    /// unless something may have moved the end behind its back, a commit of a transaction or another front
    /// end ([`crate::NodeTable::share_ends`]): then to the end of now.
    KnownEnd,
}

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteFlags {
    /// Where it goes.
    pub append: Append,
    /// Clear set-id bits as in [`SetAttr::kill_suidgid`] (`FUSE_WRITE_KILL_SUIDGID`). File capabilities go in
    /// any case, but for what [`Self::is_writeback`] says.
    pub kill_suidgid: bool,
    /// The kernel writes out a dirty page of its cache (`FUSE_WRITE_CACHE`). A committing transaction may
    /// wait for the page (it invalidates the cache), so a committing transaction in its way gives way at
    /// once. Without a calling process there is nothing to decide by, so the file keeps its privileges.
    pub is_writeback: bool,
    /// Times stay as they are: a kernel that caches writes sets them itself.
    pub keeps_times: bool,
}

/// Answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Where: not where it was asked for, if it was an append.
    pub offset: u64,
    /// Bytes written: all of them.
    pub bytes: u64,
    /// For `O_SYNC` and `O_DSYNC`: sync the store to here before answering.
    pub position: Position,
}

/// Flags of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replace what has the new name.
    #[default]
    Replace,
    /// Fail when the new name exists (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap both (`RENAME_EXCHANGE`).
    Exchange,
    /// As `Replace`, and leave a whiteout under the old name (`RENAME_WHITEOUT`): a character device 0:0, by
    /// which an overlay hides what is below.
    Whiteout,
    /// As `NoReplace`, and leave a whiteout.
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Of the flags of renameat2(2); `None`: flags that mean nothing here, or not together.
    pub fn from_flags(flags: u32) -> Option<Self> {
        match flags {
            0 => Some(Self::Replace),
            1 => Some(Self::NoReplace),
            2 => Some(Self::Exchange),
            4 => Some(Self::Whiteout),
            5 => Some(Self::WhiteoutNoReplace),
            _ => None,
        }
    }

    fn parts(self) -> (bool, bool) {
        match self {
            Self::Replace | Self::Exchange => (true, false),
            Self::NoReplace => (false, false),
            Self::Whiteout => (true, true),
            Self::WhiteoutNoReplace => (false, true),
        }
    }

    /// Whether what has the new name may go, or move.
    pub(crate) fn replaces(self) -> bool {
        self.parts().0
    }

    /// Whether the old name stays, of a whiteout.
    pub(crate) fn leaves_whiteout(self) -> bool {
        self.parts().1
    }
}

/// What `fallocate` does with the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Mode 0, or `FALLOC_FL_KEEP_SIZE`: checks that there is space and, unless `keep_size`, extends the
    /// file. Space is not set aside: in a write-once store a later overwrite needs new space anyway.
    Allocate {
        /// Leave the size alone.
        keep_size: bool,
    },
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`.
    ZeroRange {
        /// Leave the size alone.
        keep_size: bool,
    },
}

impl FallocateMode {
    /// Of the mode of fallocate(2); `None`: a way that is not supported.
    pub fn from_flags(flags: u32) -> Option<Self> {
        const KEEP_SIZE: u32 = 0x01;
        const PUNCH_HOLE: u32 = 0x02;
        const ZERO_RANGE: u32 = 0x10;
        let keep_size = flags & KEEP_SIZE != 0;
        match flags & !KEEP_SIZE {
            0 => Some(Self::Allocate { keep_size }),
            PUNCH_HOLE if keep_size => Some(Self::PunchHole),
            ZERO_RANGE => Some(Self::ZeroRange { keep_size }),
            _ => None,
        }
    }
}

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekKind {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`; the end of the file counts as a hole.
    Hole,
}

/// `XATTR_CREATE` and `XATTR_REPLACE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Set,
    /// Fail when it exists.
    Create,
    /// Fail when it doesn't exist.
    Replace,
}

impl XattrMode {
    /// Of the flags of setxattr(2); `None`: flags that mean nothing here, or not together.
    pub fn from_flags(flags: u32) -> Option<Self> {
        match flags {
            0 => Some(Self::Set),
            1 => Some(Self::Create),
            2 => Some(Self::Replace),
            _ => None,
        }
    }
}

/// One entry of a directory listing.
#[derive(Debug)]
pub struct DirEntry<'a> {
    /// Name; `.` and `..` come first.
    pub name: &'a [u8],
    /// Inode number.
    pub inode: u64,
    /// Kind.
    pub kind: FileType,
    /// Pass this to the next call to go on *after* this entry.
    pub offset: u64,
    /// With `readdirplus`: what a lookup of the name would answer. `None` for `.` and `..`, for files that
    /// the caller is taken not to look at (no lookup count changes), and in a plain `readdir`.
    pub entry: Option<Entry>,
}

/// Whether a listing goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// The entry was taken.
    Taken,
    /// There was no room: the entry was not taken, the listing ends here, and its lookup count was not
    /// raised.
    Full,
}

/// Numbers for `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the block counts (bytes).
    pub block_bytes: u32,
    /// Capacity (blocks).
    pub blocks: u64,
    /// Free (blocks).
    pub blocks_free: u64,
    /// Free for ordinary writes (blocks).
    pub blocks_available: u64,
    /// Inode numbers in all: 0, as there is no fixed number of them.
    pub files: u64,
    /// Free inode numbers: 0, as there is no fixed number of them.
    pub files_free: u64,
    /// Longest name (bytes).
    pub name_len_max: u32,
}

/// A node that the front end should make the kernel forget: to keep the node table within bounds, or because
/// it has gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneCandidate {
    /// The node, for a prune notification.
    pub node: NodeId,
    /// Directory and name, for an entry invalidation where prune isn't known.
    pub link: Option<(NodeId, Box<[u8]>)>,
}

/// Figures of the node table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeStats {
    /// Nodes in the table.
    pub nodes: u64,
    /// Memory they take, names and cached content included (bytes).
    pub bytes: u64,
    /// Of these, cached content of small files (bytes).
    pub content_bytes: u64,
    /// Orphans that wait for the reaper.
    pub orphans_queued: u64,
}

/// When reading updates the access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimePolicy {
    /// When it is not after the last change, or a day old (the default of Linux).
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always: for a front end that sees each read.
    Strict,
}

/// What `mkfs` fixes for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MkfsOptions {
    /// Largest content kept in the row of a file (bytes); at most [`crate::INLINE_LEN_LIMIT`]; 0: none.
    pub inline_len_max: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub mode: u32,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self { inline_len_max: 4096, uid: 0, gid: 0, mode: 0o755 }
    }
}

/// What a mount chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct MountOptions {
    /// Access times.
    pub atime: AtimePolicy,
    /// Access times of directories never change.
    pub nodiratime: bool,
    /// Access times are written with the next change of the inode, at an fsync, by
    /// [`crate::FileSystem::sync_target_all`], or after a day; else within about a second.
    pub lazytime: bool,
    /// Refuse every change.
    pub read_only: bool,
    /// Access-control lists; without them, permission bits alone count, and lists are neither shown nor
    /// handed down.
    pub acls: bool,
    /// How long a transaction may go without an operation unless its begin says otherwise; `None`: as long as
    /// it likes.
    pub txn_idle: Option<Duration>,
    /// Node table size above which [`crate::NodeTable::prune_candidates`] names nodes (bytes).
    pub node_bytes_max: u64,
    /// Content of small files kept between a lookup and the read that follows (bytes).
    pub content_bytes_max: u64,
    /// All named snapshots are shown to root and the store's owner alone.
    pub private_snapshots: bool,
    /// The store's owner, with the rights of root where that is said.
    pub owner_uid: u32,
    /// Locks of transactions: of one user as much as all leave free; of root, all of it (bytes).
    pub lock_bytes_max: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            atime: AtimePolicy::default(),
            nodiratime: false,
            lazytime: false,
            read_only: false,
            acls: true,
            txn_idle: None,
            node_bytes_max: 64 << 20,
            content_bytes_max: 16 << 20,
            private_snapshots: false,
            owner_uid: 0,
            lock_bytes_max: 64 << 20,
        }
    }
}
