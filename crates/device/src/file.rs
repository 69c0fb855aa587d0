//! A device in a regular file or on a block device, with direct I/O where the file system has it.
//!
//! Thread safety: calls run in parallel (`pread`/`pwrite`); growing is serialised.
//!
//! Invariants: the advisory lock is held from open to drop, so a store is never open twice for
//! writing, not even by two processes. It belongs to the open file description: it survives
//! `fork`, and is released when *any* process drops its copy of the device, so a parent that
//! forks a daemon must leave with `_exit`/`process::exit` and not drop it.
//!
//! Space: [`FileDevice::create`], `grow`, `reserve` and `allocate` allocate for real. `extend` leaves a hole,
//! so a write there may fail with `StorageFull`.

mod allocate;
mod open;

pub use open::OpenError;

use crate::{AlignedBuf, Device, SECTOR_BYTES, request};
use kvfs_locks::{Mutex, class};
use open::{Access, Opened};
use rustix::fs::{self, FlockOperation, OFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fmt::{self, Debug};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Size of the per-thread buffer for requests whose memory is not aligned (bytes). The buffer is
/// kept, because first touch of fresh memory costs more than the copy.
const BOUNCE_BYTES: usize = 256 * 1024;

thread_local! {
    static BOUNCE: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::zeroed(0));
}

/// A regular file or block device, locked against a second opening.
pub struct FileDevice {
    file: OwnedFd,
    path: PathBuf,
    len_bytes: AtomicU64,
    grow_lock: Mutex<(), class::DeviceFileGrowLock>,
    is_block_device: bool,
    is_direct: bool,
    /// Whether the file system has `fallocate`, as far as is known.
    sets_space_aside: AtomicBool,
    read_only: bool,
}

impl FileDevice {
    /// Makes a new file of `len_bytes` (rounded up to whole sectors), with all its space allocated
    /// and its name durable.
    ///
    /// # Errors
    /// [`OpenError::Exists`] when there is something at `path` already, [`OpenError::NoSpace`] when
    /// the space cannot be allocated (nothing is left behind then), and as [`FileDevice::open`].
    pub fn create(path: impl AsRef<Path>, len_bytes: u64) -> Result<Self, OpenError> {
        Self::create_by(path.as_ref(), path.as_ref(), len_bytes)
    }

    /// As [`FileDevice::create`] at the path `reach`, which may lead through a descriptor of this process;
    /// messages call the device `name`.
    ///
    /// # Errors
    /// As [`FileDevice::create`].
    pub fn create_by(reach: &Path, name: &Path, len_bytes: u64) -> Result<Self, OpenError> {
        let device = Self::from_opened(open::create(reach, name)?, name, Access::ReadWrite);
        let len_bytes = len_bytes.next_multiple_of(SECTOR_BYTES as u64);
        let made = device
            .grow(len_bytes)
            .and_then(|()| Ok(fs::fsync(&device.file)?))
            .and_then(|()| open::sync_parent(reach));
        match made {
            Ok(()) => Ok(device),
            Err(source) => {
                // The first error is the one to tell; an empty file left behind does no harm.
                let _ = fs::unlink(reach);
                Err(OpenError::of_creation(name, len_bytes, source))
            }
        }
    }

    /// Opens what is at `path`, and locks it: exclusively, or shared with other readers when
    /// `read_only`. The length is rounded down to whole sectors.
    ///
    /// # Errors
    /// Every variant of [`OpenError`] but `Exists` and `NoSpace`. A block device with a mounted
    /// file system is [`OpenError::InUse`].
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Self, OpenError> {
        Self::open_by(path.as_ref(), path.as_ref(), read_only)
    }

    /// As [`FileDevice::open`] at the path `reach`, which may lead through a descriptor of this process;
    /// messages call the device `name`.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_by(reach: &Path, name: &Path, read_only: bool) -> Result<Self, OpenError> {
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        Ok(Self::from_opened(open::open(reach, name, access)?, name, access))
    }

    fn from_opened(opened: Opened, path: &Path, access: Access) -> Self {
        let is_direct = set_direct(&opened.file, opened.len_bytes);
        Self {
            file: opened.file,
            path: path.to_owned(),
            len_bytes: AtomicU64::new(opened.len_bytes),
            grow_lock: Mutex::new(()),
            is_block_device: opened.is_block_device,
            is_direct,
            sets_space_aside: AtomicBool::new(true),
            read_only: matches!(access, Access::ReadOnly),
        }
    }

    /// Takes the name of a file away that was created and has come to nothing.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn remove_file(&self) -> io::Result<()> {
        Ok(fs::unlink(&self.path)?)
    }

    /// Where the device was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long the file could become now (bytes): what it takes, and what its file system can still give. It
    /// is asked by the descriptor: another user may have put something else at the path.
    ///
    /// # Errors
    /// The file system does not say.
    pub fn file_len_max(&self) -> io::Result<u64> {
        let stat = fs::fstatvfs(&self.file)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize).saturating_add(self.bytes_taken()))
    }

    /// Whether it is a block device, of fixed size.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Whether I/O goes past the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether the device was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only {
            let message = format!("{} was opened for reading only", self.path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(())
    }

    fn needs_bounce(&self, memory: *const u8) -> bool {
        self.is_direct && !memory.addr().is_multiple_of(SECTOR_BYTES)
    }

    /// Reads into memory that suits direct I/O, through short transfers and interrupts.
    fn read_all(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&self.file, &mut buf[done..], offset + done as u64) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(len) => match self.progress(len) {
                    0 => return Err(self.shortened(offset + done as u64)),
                    len => done += len,
                },
            }
        }
        Ok(())
    }

    /// The counterpart of [`Self::read_all`].
    fn write_all(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pwrite(&self.file, &buf[done..], offset + done as u64) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io_error(errno)),
                Ok(len) => match self.progress(len) {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    len => done += len,
                },
            }
        }
        Ok(())
    }

    /// How far a transfer of `len` bytes brings us: direct I/O has to go on at a whole sector.
    fn progress(&self, len: usize) -> usize {
        if self.is_direct { len / SECTOR_BYTES * SECTOR_BYTES } else { len }
    }

    fn shortened(&self, at: u64) -> io::Error {
        io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{} ends before offset {at}: it was shortened while open", self.path.display()),
        )
    }
}

/// Turns on direct I/O if reading then works, and says whether it did.
fn set_direct(file: &OwnedFd, len_bytes: u64) -> bool {
    let Ok(flags) = fs::fcntl_getfl(file) else { return false };
    if fs::fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    // Some file systems take the flag and then refuse the I/O.
    let mut sector = AlignedBuf::zeroed(SECTOR_BYTES);
    if len_bytes > 0 && rustix::io::pread(file, sector.as_mut(), 0) == Err(Errno::INVAL) {
        return fs::fcntl_setfl(file, flags).is_err();
    }
    true
}

/// Calls `act` with pieces of this thread's aligned buffer, each with its place in the request.
fn with_bounce(
    len: usize,
    mut act: impl FnMut(&mut [u8], std::ops::Range<usize>) -> io::Result<()>,
) -> io::Result<()> {
    BOUNCE.with_borrow_mut(|bounce| {
        if bounce.is_empty() {
            *bounce = AlignedBuf::zeroed(BOUNCE_BYTES);
        }
        let mut start = 0;
        while start < len {
            let end = (start + BOUNCE_BYTES).min(len);
            act(&mut bounce.as_mut()[..end - start], start..end)?;
            start = end;
        }
        Ok(())
    })
}

impl Device for FileDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        request::check_read(self.len_bytes(), offset, buf.len())?;
        if !self.needs_bounce(buf.as_ptr()) {
            return self.read_all(buf, offset);
        }
        with_bounce(buf.len(), |bounce, range| {
            self.read_all(bounce, offset + range.start as u64)?;
            buf[range].copy_from_slice(bounce);
            Ok(())
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        request::check_write("write", self.len_bytes(), offset, buf.len() as u64)?;
        if !self.needs_bounce(buf.as_ptr()) {
            return self.write_all(buf, offset);
        }
        with_bounce(buf.len(), |bounce, range| {
            let at = offset + range.start as u64;
            bounce.copy_from_slice(&buf[range]);
            self.write_all(bounce, at)
        })
    }

    fn flush(&self) -> io::Result<()> {
        loop {
            match fs::fdatasync(&self.file) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        request::check_grow(len)?;
        let _one_at_a_time = self.grow_lock.lock();
        let len_now = self.len_bytes();
        if len <= len_now {
            return Ok(());
        }
        if self.is_block_device {
            let message = format!("{} is a block device of {len_now} bytes", self.path.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        self.allocate_end(len_now, len)?;
        self.len_bytes.store(len, Ordering::Release);
        Ok(())
    }

    fn extend(&self, len: u64) -> io::Result<()> {
        if self.is_block_device {
            return self.grow(len);
        }
        self.check_writable()?;
        request::check_grow(len)?;
        let _one_at_a_time = self.grow_lock.lock();
        if len > self.len_bytes() {
            fs::ftruncate(&self.file, len).map_err(io_error)?;
            self.len_bytes.store(len, Ordering::Release);
        }
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        request::check_write("allocate", self.len_bytes(), offset, len)?;
        if self.is_block_device { Ok(()) } else { self.allocate_within(offset, len) }
    }

    fn refresh_len(&self) -> io::Result<u64> {
        if self.is_block_device {
            let _one_at_a_time = self.grow_lock.lock();
            let len = fs::seek(&self.file, fs::SeekFrom::End(0))?;
            self.len_bytes.fetch_max(len / SECTOR_BYTES as u64 * SECTOR_BYTES as u64, Ordering::AcqRel);
        }
        Ok(self.len_bytes())
    }

    fn room_bytes(&self) -> Option<u64> {
        if self.is_block_device {
            return Some(0);
        }
        let stat = fs::fstatvfs(&self.file).ok()?;
        let room = stat.f_bavail.saturating_mul(stat.f_frsize);
        // What the file has of holes comes first: its length is promised already.
        Some(room.saturating_sub(self.bytes_missing()))
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // Closing is not enough: a child between fork and exec may still hold a copy of the
        // descriptor, and the next open would find the device in use.
        let _ = fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDevice")
            .field("path", &self.path)
            .field("len_bytes", &self.len_bytes())
            .field("is_block_device", &self.is_block_device)
            .field("is_direct", &self.is_direct)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

/// A file that may not become longer (EFBIG, as by `ulimit -f`) has no space.
fn io_error(errno: Errno) -> io::Error {
    if errno == Errno::FBIG { Errno::NOSPC.into() } else { errno.into() }
}

#[cfg(test)]
mod tests;
