//! What is done, and by which user.

use std::fmt;

use rustix::fs::{Access, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};

/// One operation of one user.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    pub(crate) actor: usize,
    pub(crate) op: Op,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", crate::actor::NAMES[self.actor], self.op)
    }
}

/// Permission bits and those above them, shown as people write them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bits(pub(crate) u32);

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0o{:o}", self.0)
    }
}

impl From<Bits> for Mode {
    fn from(bits: Bits) -> Self {
        Self::from_raw_mode(bits.0)
    }
}

/// A kind of node that `mknod` makes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Node {
    File,
    Fifo,
    Socket,
    /// That of /dev/null.
    CharDevice,
}

/// An operation. Paths are relative to the episode's directory, slots number the user's descriptors.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Open { slot: usize, path: String, flags: OFlags, mode: Bits },
    TmpFile { slot: usize, path: String, mode: Bits },
    LinkSlot { slot: usize, path: String },
    Close { slot: usize },
    Read { slot: usize, offset: u64, len: usize },
    Write { slot: usize, offset: u64, len: usize, fill: u8 },
    Truncate { path: String, size: u64 },
    TruncateSlot { slot: usize, size: u64 },
    Allocate { slot: usize, flags: FallocateFlags, offset: u64, len: u64 },
    CopyRange { from: usize, from_offset: u64, to: usize, to_offset: u64, len: usize },
    Mkdir { path: String, mode: Bits },
    Mknod { path: String, node: Node, mode: Bits },
    Rmdir { path: String },
    Unlink { path: String },
    Rename { from: String, to: String, flags: RenameFlags },
    Link { from: String, to: String, follow: bool },
    Symlink { target: String, path: String },
    Readlink { path: String },
    Chmod { path: String, mode: Bits },
    ChmodSlot { slot: usize, mode: Bits },
    Chown { path: String, uid: Option<u32>, gid: Option<u32>, follow: bool },
    Utimens { path: String, mtime: Option<i64>, follow: bool },
    Access { path: String, access: Access },
    Stat { path: String, follow: bool },
    StatSlot { slot: usize },
    List { path: String },
    SetXattr { path: String, name: &'static str, value: Vec<u8>, flags: XattrFlags },
    GetXattr { path: String, name: &'static str, room: usize },
    RemoveXattr { path: String, name: &'static str },
    ListXattr { path: String },
}
