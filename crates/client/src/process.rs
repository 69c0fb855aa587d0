//! A process on a file system of this process, or of a server.
//!
//! Thread safety: everything is `&self`.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use kvfs_fs::{Attr, FallocateMode, RenameMode, SetTime, StatFs, TxnId, XattrMode};
use kvfs_posix::{Access, Fd, Place, PosixError, ProcessKeys, ProcessTrees, RangeLock, Result, Whence};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::directory::Directory;
use crate::keys::Keys;
use crate::served::Served;

/// See the module.
#[derive(Debug)]
pub struct Process(Kind);

#[derive(Debug)]
enum Kind {
    Embedded(Box<kvfs_posix::Process>),
    Served(Served),
}

impl From<kvfs_posix::Process> for Process {
    fn from(process: kvfs_posix::Process) -> Self {
        Self(Kind::Embedded(Box::new(process)))
    }
}

impl From<Served> for Process {
    fn from(process: Served) -> Self {
        Self(Kind::Served(process))
    }
}

impl Process {
    /// As [`kvfs_posix::Process::fork`].
    ///
    /// # Errors
    /// Of a server: EUSERS, EMFILE, and that it is gone.
    pub fn fork(&self) -> Result<Self> {
        Ok(match &self.0 {
            Kind::Embedded(process) => process.fork()?.into(),
            Kind::Served(process) => process.fork()?.into(),
        })
    }

    /// As [`kvfs_posix::Process::umask`].
    pub fn umask(&self, mask: u32) -> u32 {
        match &self.0 {
            Kind::Embedded(process) => process.umask(mask),
            Kind::Served(process) => process.umask(mask),
        }
    }

    /// As [`kvfs_posix::Process::exec`].
    ///
    /// # Errors
    /// The server is gone.
    pub fn exec(&self) -> Result<()> {
        match &self.0 {
            Kind::Embedded(process) => process.exec(),
            Kind::Served(process) => process.exec()?,
        }
        Ok(())
    }

    /// As [`kvfs_posix::Process::read`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn read(&self, fd: Fd, buffer: &mut [u8]) -> Result<usize> {
        self.readv(fd, &mut [IoSliceMut::new(buffer)])
    }

    /// As [`kvfs_posix::Process::pread`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn pread(&self, fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.preadv(fd, &mut [IoSliceMut::new(buffer)], offset)
    }

    /// As [`kvfs_posix::Process::write`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn write(&self, fd: Fd, data: &[u8]) -> Result<usize> {
        self.writev(fd, &[IoSlice::new(data)])
    }

    /// As [`kvfs_posix::Process::pwrite`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn pwrite(&self, fd: Fd, data: &[u8], offset: u64) -> Result<usize> {
        self.pwritev(fd, &[IoSlice::new(data)], offset)
    }

    /// The process of a server that it is.
    ///
    /// # Errors
    /// EINVAL: it is one of this process's file system.
    pub(crate) fn served(&self) -> Result<&Served> {
        match &self.0 {
            Kind::Served(process) => Ok(process),
            Kind::Embedded(_) => {
                Err(PosixError::Refused { errno: Errno::INVAL, reason: "a walk of another process" })
            }
        }
    }

    /// The keys that its user may use, in the view that it sees.
    pub fn keys(&self) -> Keys<'_> {
        match &self.0 {
            Kind::Embedded(process) => ProcessKeys::of(process, usize::MAX).into(),
            Kind::Served(process) => process.into(),
        }
    }

    /// As [`ProcessTrees::remove`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn remove_tree<'a>(&self, place: impl Into<Place<'a>>) -> Result<Option<TxnId>> {
        match &self.0 {
            Kind::Embedded(process) => ProcessTrees::of(process).remove(place),
            Kind::Served(process) => process.remove_tree(place),
        }
    }

    /// As [`ProcessTrees::clone_to`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn clone_tree<'a, 'b>(
        &self,
        source: impl Into<Place<'a>>,
        target: impl Into<Place<'b>>,
    ) -> Result<Option<TxnId>> {
        match &self.0 {
            Kind::Embedded(process) => ProcessTrees::of(process).clone_to(source, target),
            Kind::Served(process) => process.clone_tree(source, target),
        }
    }

    /// As [`kvfs_posix::Process::opendir`].
    ///
    /// # Errors
    /// As there; the server is gone.
    pub fn opendir<'a>(&self, place: impl Into<Place<'a>>) -> Result<Directory<'_>> {
        match &self.0 {
            Kind::Embedded(process) => process.opendir(place).map(Directory::from),
            Kind::Served(process) => process.opendir(place).map(Directory::from),
        }
    }

    /// As [`kvfs_posix::Process::fdopendir`].
    ///
    /// # Errors
    /// As there; the server is gone.
    pub fn fdopendir(&self, fd: Fd) -> Result<Directory<'_>> {
        match &self.0 {
            Kind::Embedded(process) => process.fdopendir(fd).map(Directory::from),
            Kind::Served(process) => process.fdopendir(fd).map(Directory::from),
        }
    }
}

/// Methods that both have, with the same arguments and results.
macro_rules! calls {
    ($($name:ident $(<$($lifetime:lifetime),+>)? ($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        impl Process {
            $(
                #[doc = concat!("As [`kvfs_posix::Process::", stringify!($name), "`].")]
                ///
                /// # Errors
                /// As there; ENOTCONN: the server is gone.
                pub fn $name $(<$($lifetime),+>)? (&self $(, $argument: $type)*) -> Result<$result> {
                    match &self.0 {
                        Kind::Embedded(process) => process.$name($($argument),*),
                        Kind::Served(process) => process.$name($($argument),*),
                    }
                }
            )+
        }
    };
}

calls! {
    open<'a>(place: impl Into<Place<'a>>, flags: OFlags, mode: u32) -> Fd;
    close(fd: Fd) -> ();
    dup(fd: Fd, min: i32, closes_on_exec: bool) -> Fd;
    dup_to(fd: Fd, new: Fd, closes_on_exec: bool) -> Fd;
    flags(fd: Fd) -> OFlags;
    set_flags(fd: Fd, flags: OFlags) -> ();
    closes_on_exec(fd: Fd) -> bool;
    set_closes_on_exec(fd: Fd, closes_on_exec: bool) -> ();
    chdir<'a>(place: impl Into<Place<'a>>) -> ();
    getcwd() -> Vec<u8>;
    readv(fd: Fd, buffers: &mut [IoSliceMut<'_>]) -> usize;
    preadv(fd: Fd, buffers: &mut [IoSliceMut<'_>], offset: u64) -> usize;
    writev(fd: Fd, buffers: &[IoSlice<'_>]) -> usize;
    pwritev(fd: Fd, buffers: &[IoSlice<'_>], offset: u64) -> usize;
    lseek(fd: Fd, offset: i64, whence: Whence) -> u64;
    fsync(fd: Fd) -> ();
    sync() -> ();
    fallocate(fd: Fd, mode: FallocateMode, offset: u64, len: u64) -> ();
    copy_file_range(from: Fd, from_offset: Option<u64>, to: Fd, to_offset: Option<u64>, len: u64) -> u64;
    stat<'a>(place: impl Into<Place<'a>>) -> Attr;
    access<'a>(place: impl Into<Place<'a>>, access: Access) -> ();
    chmod<'a>(place: impl Into<Place<'a>>, mode: u32) -> ();
    chown<'a>(place: impl Into<Place<'a>>, uid: Option<u32>, gid: Option<u32>) -> ();
    utimens<'a>(place: impl Into<Place<'a>>, atime: Option<SetTime>, mtime: Option<SetTime>) -> ();
    truncate<'a>(place: impl Into<Place<'a>>, size: u64) -> ();
    statvfs<'a>(place: impl Into<Place<'a>>) -> StatFs;
    mkdir<'a>(place: impl Into<Place<'a>>, mode: u32) -> ();
    mknod<'a>(place: impl Into<Place<'a>>, mode: u32, rdev: u32) -> ();
    symlink<'a>(target: &[u8], place: impl Into<Place<'a>>) -> ();
    readlink<'a>(place: impl Into<Place<'a>>) -> Vec<u8>;
    link<'a, 'b>(old: impl Into<Place<'a>>, new: impl Into<Place<'b>>) -> ();
    unlink<'a>(place: impl Into<Place<'a>>) -> ();
    rmdir<'a>(place: impl Into<Place<'a>>) -> ();
    remove<'a>(place: impl Into<Place<'a>>) -> ();
    rename<'a, 'b>(old: impl Into<Place<'a>>, new: impl Into<Place<'b>>, mode: RenameMode) -> ();
    getxattr<'a>(place: impl Into<Place<'a>>, name: &[u8]) -> Vec<u8>;
    setxattr<'a>(place: impl Into<Place<'a>>, name: &[u8], value: &[u8], mode: XattrMode) -> ();
    removexattr<'a>(place: impl Into<Place<'a>>, name: &[u8]) -> ();
    listxattr<'a>(place: impl Into<Place<'a>>) -> Vec<Vec<u8>>;
    flock(fd: Fd, is_exclusive: Option<bool>, waits: bool) -> ();
    lock_range(fd: Fd, lock: &RangeLock, of_file: bool, waits: bool) -> ();
    unlock_range(fd: Fd, range: &Range<u64>, of_file: bool) -> ();
    find_lock(fd: Fd, lock: &RangeLock, of_file: bool) -> Option<RangeLock>;
}
