//! Open files: what descriptors refer to, with the flags and the offset that copies of a descriptor share.
//!
//! Thread safety: everything is `&self`. Reads and writes that use the shared offset come one after the
//! other, as POSIX asks.
//!
//! Invariant: the locks of an open file end with it, whichever process has it last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kvfs_fs::{FileType, FsError};
use kvfs_locks::{Mutex, MutexGuard, class};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::{Result, refuse};
use crate::held::Held;
use crate::locks::{LockOwner, LockSpace, LockTable};
use crate::process::{Process, view_of};

/// Flags that `fcntl(F_SETFL)` changes.
const SETTABLE: OFlags = OFlags::APPEND.union(OFlags::NONBLOCK).union(OFlags::DIRECT).union(OFlags::NOATIME);

/// An open file description.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) held: Arc<Held>,
    pub(crate) kind: FileType,
    /// By which locks of this description are known.
    id: u64,
    flags: AtomicU32,
    offset: Mutex<u64, class::PosixOpenFileOffset>,
    locks: Arc<LockTable>,
}

/// Tells files of all views of all file systems apart, for as long as they are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    pub(crate) view: usize,
    pub(crate) inode: u64,
}

impl FileIdentity {
    /// Whether it is a file of the view that a process sees.
    pub fn is_seen_by(self, process: &Process) -> bool {
        self.view == view_of(process)
    }
}

/// An open file without a descriptor, on its way from one process to another ([`SharedFile::of`]). It stays
/// open as long as this is there.
#[derive(Debug, Clone)]
pub struct SharedFile(pub(crate) Arc<OpenFile>);

impl OpenFile {
    pub(crate) fn new(held: Arc<Held>, kind: FileType, flags: OFlags, locks: &Arc<LockTable>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            held,
            kind,
            id,
            flags: AtomicU32::new(flags.bits()),
            offset: Mutex::new(0),
            locks: Arc::clone(locks),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn flags(&self) -> OFlags {
        OFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// Sets those that may be set; the others stay.
    pub(crate) fn set_flags(&self, flags: OFlags) {
        let kept = self.flags().difference(SETTABLE);
        self.flags.store((kept | flags.intersection(SETTABLE)).bits(), Ordering::Relaxed);
    }

    /// The shared offset, for one read or write.
    #[track_caller]
    pub(crate) fn offset(&self) -> MutexGuard<'_, u64, class::PosixOpenFileOffset> {
        self.offset.lock()
    }

    fn is_path(&self) -> bool {
        self.flags().contains(OFlags::PATH)
    }

    /// Whether it was opened so that it may be read.
    pub(crate) fn is_readable(&self) -> bool {
        let mode = self.flags().intersection(OFlags::RWMODE);
        !self.is_path() && (mode == OFlags::RDONLY || mode == OFlags::RDWR)
    }

    /// Whether it was opened so that it may be written.
    pub(crate) fn is_writable(&self) -> bool {
        let mode = self.flags().intersection(OFlags::RWMODE);
        !self.is_path() && (mode == OFlags::WRONLY || mode == OFlags::RDWR)
    }

    /// # Errors
    /// EBADF: only its place is open.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_path() { refuse(Errno::BADF, "opened by O_PATH") } else { Ok(()) }
    }

    pub(crate) fn check_readable(&self) -> Result<()> {
        if !self.is_readable() {
            return refuse(Errno::BADF, "not open for reading");
        }
        self.check_content(Errno::ISDIR)
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if !self.is_writable() {
            return refuse(Errno::BADF, "not open for writing");
        }
        self.check_content(Errno::ISDIR)
    }

    /// # Errors
    /// ENOTDIR: no directory.
    pub(crate) fn check_directory(&self) -> Result<()> {
        if self.kind == FileType::Directory { Ok(()) } else { Err(FsError::NotDirectory.into()) }
    }

    /// `errno` for a directory.
    pub(crate) fn check_content(&self, errno: Errno) -> Result<()> {
        match self.kind {
            FileType::Regular => Ok(()),
            FileType::Directory => refuse(errno, "a directory"),
            _ => refuse(Errno::INVAL, "not a regular file"),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        for space in [LockSpace::Whole, LockSpace::Ranges] {
            self.locks.unlock_all(LockOwner::File(self.id), (self.held.node().0, space));
        }
    }
}
