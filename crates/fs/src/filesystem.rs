//! The façade: one method per operation.
#![expect(unused_variables, reason = "bodies follow")]

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Position, Store, clock::Clock};

use crate::{
    Attr, Caller, DirEntry, Entry, FallocateMode, Fill, FsError, MkfsOptions, MountOptions, NodeId,
    NodeStats, PruneCandidate, RenameMode, Result, SeekKind, SetAttr, StatFs, View, WriteFlags, Written,
    XattrMode,
};

/// A file system in a store. Share it by `Arc`.
pub struct FileSystem {
    store: Arc<dyn Store>,
}

const LATER: FsError = FsError::NotSupported("not built yet");

impl FileSystem {
    /// Writes an empty file system into the store.
    ///
    /// # Errors
    /// [`FsError::Exists`] when there is one already; store errors.
    pub fn mkfs(store: &Arc<dyn Store>, clock: &dyn Clock, options: &MkfsOptions) -> Result<()> {
        Err(LATER)
    }

    /// Opens the file system of the store, and reaps what a crash left behind.
    ///
    /// # Errors
    /// [`FsError::Format`] when there is none, or one of another version; store errors.
    pub fn open(store: Arc<dyn Store>, clock: Arc<dyn Clock>, options: MountOptions) -> Result<Self> {
        Err(LATER)
    }

    /// The store underneath (to wait for a [`Position`] elsewhere: `store().sync(position)`).
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The entry `name` of directory `parent`. Raises the node's lookup count. Never parks.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`, `Stale`, store errors.
    pub fn lookup(&self, view: View, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<Entry> {
        Err(LATER)
    }

    /// Lowers the lookup count of `node` by `count`. At zero the node is forgotten, and an orphan dies.
    pub fn forget(&self, view: View, node: NodeId, count: u64) {}

    /// Attributes. Never parks; no store access for a node that is known.
    ///
    /// # Errors
    /// `Stale`.
    pub fn getattr(&self, view: View, caller: &Caller, node: NodeId) -> Result<Attr> {
        Err(LATER)
    }

    /// Changes attributes, the size included; returns them all.
    ///
    /// # Errors
    /// `IsDirectory` or `Invalid` for the size of something else than a file, `FileTooLarge`, `NoSpace`, …
    pub fn setattr(&self, view: View, caller: &Caller, node: NodeId, changes: &SetAttr) -> Result<Attr> {
        Err(LATER)
    }

    /// The target of a symbolic link. Never parks.
    ///
    /// # Errors
    /// `Invalid` when it is none.
    pub fn readlink(&self, view: View, caller: &Caller, node: NodeId) -> Result<Bytes> {
        Err(LATER)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// `Exists`, `NameTooLong`, …
    pub fn symlink(
        &self,
        view: View,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        Err(LATER)
    }

    /// Creates a file, device node, fifo or socket; `mode` is an `st_mode` with type.
    ///
    /// # Errors
    /// `Exists`, `Invalid` for other types, …
    pub fn mknod(
        &self,
        view: View,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Entry> {
        Err(LATER)
    }

    /// Creates a regular file, or, unless `exclusive`, returns the existing entry of any kind; then the
    /// second value is false.
    ///
    /// # Errors
    /// `Exists` when `exclusive`, …
    pub fn create(
        &self,
        view: View,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        exclusive: bool,
    ) -> Result<(Entry, bool)> {
        Err(LATER)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// `Exists`, `TooManyLinks`, …
    pub fn mkdir(
        &self,
        view: View,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<Entry> {
        Err(LATER)
    }

    /// Creates a regular file without a name (`O_TMPFILE`); `linkable` is false with `O_EXCL`.
    ///
    /// # Errors
    /// `NotDirectory`, `NoSpace`, …
    pub fn tmpfile(
        &self,
        view: View,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
        linkable: bool,
    ) -> Result<Entry> {
        Err(LATER)
    }

    /// Removes the name of something that is no directory.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, …
    pub fn unlink(&self, view: View, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        Err(LATER)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, …
    pub fn rmdir(&self, view: View, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        Err(LATER)
    }

    /// Renames or swaps.
    ///
    /// # Errors
    /// `NotFound`, `Exists` (`NoReplace`), `NotEmpty`, `IsDirectory`, `NotDirectory`, `Invalid` (a directory
    /// into itself), …
    #[expect(clippy::too_many_arguments, reason = "a rename has two names")]
    pub fn rename(
        &self,
        view: View,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        Err(LATER)
    }

    /// Gives `node` another name. Raises its lookup count.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for directories, `NotFound` for orphans that can't be linked, `TooManyLinks`, …
    pub fn link(
        &self,
        view: View,
        caller: &Caller,
        node: NodeId,
        new_parent: NodeId,
        new_name: &[u8],
    ) -> Result<Entry> {
        Err(LATER)
    }

    /// Fills `buffer` from `offset` on; returns the bytes read, short only at the end of the file.
    /// Fastest when `offset` and the buffer's length are multiples of 4096.
    ///
    /// # Errors
    /// `IsDirectory`, store errors.
    pub fn read(
        &self,
        view: View,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        Err(LATER)
    }

    /// Writes all of `data` (at most 16 MiB), wholly or not at all. The store keeps slices of `data` when
    /// it is block-aligned.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace`, …
    pub fn write(
        &self,
        view: View,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        data: Bytes,
        flags: WriteFlags,
    ) -> Result<Written> {
        Err(LATER)
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// `Invalid`, `FileTooLarge`, `NoSpace`, …
    pub fn fallocate(
        &self,
        view: View,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        length: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        Err(LATER)
    }

    /// The first offset at or after `offset` that is data, or a hole.
    ///
    /// # Errors
    /// `NoSuchOffset` at or beyond the end, or when there is no more data.
    pub fn seek(
        &self,
        view: View,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        kind: SeekKind,
    ) -> Result<u64> {
        Err(LATER)
    }

    /// Copies up to `length` bytes between files; may copy less, like the system call.
    ///
    /// # Errors
    /// `Invalid` for overlapping ranges of one file, …
    #[expect(clippy::too_many_arguments, reason = "the system call has as many")]
    pub fn copy_file_range(
        &self,
        view: View,
        caller: &Caller,
        source: NodeId,
        source_offset: u64,
        target: NodeId,
        target_offset: u64,
        length: u64,
    ) -> Result<Written> {
        Err(LATER)
    }

    /// Lists a directory from `offset` (0: the start; else a [`DirEntry::offset`]) on. Never parks.
    ///
    /// # Errors
    /// `NotDirectory`, store errors.
    pub fn readdir(
        &self,
        view: View,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> Fill,
    ) -> Result<()> {
        Err(LATER)
    }

    /// As [`Self::readdir`], with an [`Entry`] each whose lookup count goes up. Never parks.
    ///
    /// # Errors
    /// `NotDirectory`, store errors.
    pub fn readdirplus(
        &self,
        view: View,
        caller: &Caller,
        node: NodeId,
        offset: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> Fill,
    ) -> Result<()> {
        Err(LATER)
    }

    /// The value of an extended attribute. Never parks.
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported` for foreign namespaces.
    pub fn getxattr(&self, view: View, caller: &Caller, node: NodeId, name: &[u8]) -> Result<Bytes> {
        Err(LATER)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` (by `mode`), `AttributeTooLarge`, `NotSupported`, …
    #[expect(clippy::too_many_arguments, reason = "the system call has as many")]
    pub fn setxattr(
        &self,
        view: View,
        caller: &Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        Err(LATER)
    }

    /// The names of all extended attributes, each followed by a zero byte. Never parks.
    ///
    /// # Errors
    /// Store errors.
    pub fn listxattr(&self, view: View, caller: &Caller, node: NodeId) -> Result<Vec<u8>> {
        Err(LATER)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, …
    pub fn removexattr(&self, view: View, caller: &Caller, node: NodeId, name: &[u8]) -> Result<()> {
        Err(LATER)
    }

    /// Capacity and use.
    pub fn statfs(&self, view: View) -> StatFs {
        unreachable!()
    }

    /// What `fsync`, `fdatasync` and `fsyncdir` of `node` must wait for: call `store().sync(position)`
    /// wherever blocking is fine, then answer.
    ///
    /// # Errors
    /// `Stale`.
    pub fn sync_target(&self, view: View, node: NodeId) -> Result<Position> {
        Err(LATER)
    }

    /// What `syncfs`, `sync` and unmounting must wait for. Flushes lazily kept access times.
    ///
    /// # Errors
    /// Store errors.
    pub fn sync_target_all(&self, view: View) -> Result<Position> {
        Err(LATER)
    }

    /// Nodes that the kernel should forget, least recently used first; empty while the table is within
    /// [`MountOptions::node_bytes_max`]. Cheap when there is nothing to do.
    pub fn prune_candidates(&self, count_max: usize) -> Vec<PruneCandidate> {
        Vec::new()
    }

    /// Figures of the node table.
    pub fn node_stats(&self) -> NodeStats {
        NodeStats::default()
    }

    /// Background work: reaps queued orphans, writes lazily kept access times. Call it about once a second
    /// from a thread that may block, and before unmounting.
    ///
    /// # Errors
    /// Store errors; what was not done stays queued.
    pub fn housekeep(&self) -> Result<()> {
        Err(LATER)
    }
}
