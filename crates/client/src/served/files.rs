//! Descriptors, the working directory, locks, listings.

use std::ops::Range;

use kvfs_lane::{Call, LockRange, Reply};
use kvfs_posix::{Fd, Place, RangeLock, Result};
use rustix::fs::OFlags;

use super::{Served, at, handle};
use crate::directory::ServedDirectory;

impl Served {
    pub(crate) fn open<'a>(&self, place: impl Into<Place<'a>>, flags: OFlags, mode: u32) -> Result<Fd> {
        let (flags, umask) = (flags.bits(), self.mask());
        self.opened(&Call::Open { at: at(place), flags, mode, umask, handle: None })
    }

    pub(crate) fn close(&self, fd: Fd) -> Result<()> {
        self.done(&Call::Close { handle: handle(fd) }, &[])
    }

    pub(crate) fn dup(&self, fd: Fd, min: i32, closes_on_exec: bool) -> Result<Fd> {
        self.opened(&Call::Dup { handle: handle(fd), min, closes_on_exec })
    }

    pub(crate) fn dup_to(&self, fd: Fd, new: Fd, closes_on_exec: bool) -> Result<Fd> {
        self.opened(&Call::DupTo { handle: handle(fd), new: new.0, closes_on_exec })
    }

    pub(crate) fn flags(&self, fd: Fd) -> Result<OFlags> {
        let flags = self.number(&Call::Flags { handle: handle(fd) }, &[])?;
        Ok(OFlags::from_bits_retain(flags as u32))
    }

    pub(crate) fn set_flags(&self, fd: Fd, flags: OFlags) -> Result<()> {
        self.done(&Call::SetFlags { handle: handle(fd), flags: flags.bits() }, &[])
    }

    pub(crate) fn closes_on_exec(&self, fd: Fd) -> Result<bool> {
        Ok(self.number(&Call::ClosesOnExec { handle: handle(fd) }, &[])? != 0)
    }

    pub(crate) fn set_closes_on_exec(&self, fd: Fd, closes_on_exec: bool) -> Result<()> {
        self.done(&Call::SetClosesOnExec { handle: handle(fd), closes_on_exec }, &[])
    }

    pub(crate) fn chdir<'a>(&self, place: impl Into<Place<'a>>) -> Result<()> {
        self.done(&Call::Chdir { at: at(place) }, &[])
    }

    pub(crate) fn getcwd(&self) -> Result<Vec<u8>> {
        self.bytes(&Call::WorkingDirectory)
    }

    pub(crate) fn opendir<'a>(&self, place: impl Into<Place<'a>>) -> Result<ServedDirectory<'_>> {
        let fd = self.open(place, OFlags::DIRECTORY | OFlags::CLOEXEC, 0)?;
        self.fdopendir(fd).inspect_err(|_| {
            // It was opened here.
            let _ = self.close(fd);
        })
    }

    pub(crate) fn fdopendir(&self, fd: Fd) -> Result<ServedDirectory<'_>> {
        ServedDirectory::of(self, fd)
    }

    /// Records of getdents64(2), from an offset of the directory on.
    pub(crate) fn records(&self, fd: Fd, offset: u64, len: u32) -> Result<Vec<u8>> {
        self.bytes(&Call::ListFrom { handle: handle(fd), offset, len })
    }

    pub(crate) fn flock(&self, fd: Fd, is_exclusive: Option<bool>, waits: bool) -> Result<()> {
        self.done(&Call::Flock { handle: handle(fd), is_exclusive, waits }, &[])
    }

    pub(crate) fn lock_range(&self, fd: Fd, lock: &RangeLock, of_file: bool, waits: bool) -> Result<()> {
        let lock = range(&lock.range, Some(lock.is_exclusive), of_file);
        self.done(&Call::Lock { handle: handle(fd), lock, waits }, &[])
    }

    pub(crate) fn unlock_range(&self, fd: Fd, of: &Range<u64>, of_file: bool) -> Result<()> {
        let lock = range(of, None, of_file);
        self.done(&Call::Lock { handle: handle(fd), lock, waits: false }, &[])
    }

    pub(crate) fn find_lock(&self, fd: Fd, lock: &RangeLock, of_file: bool) -> Result<Option<RangeLock>> {
        let lock = range(&lock.range, Some(lock.is_exclusive), of_file);
        self.call(&Call::FindLock { handle: handle(fd), lock }, &[], |reply, _| match reply {
            Reply::Locked(found) => Some(found.map(|found| RangeLock {
                range: found.start..found.end,
                is_exclusive: found.is_exclusive == Some(true),
            })),
            _ => None,
        })
    }
}

fn range(range: &Range<u64>, is_exclusive: Option<bool>, of_file: bool) -> LockRange {
    LockRange { start: range.start, end: range.end, is_exclusive, of_file }
}
