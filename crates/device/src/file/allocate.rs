//! Space for a regular file: at its end, and in its holes.
//!
//! Thread safety: calls run in parallel on disjoint ranges. Invariants: nothing that was written changes; a
//! failure gives back what it took, where the file system has a call for that.

use std::io;
use std::sync::atomic::Ordering;

use rustix::fs::{self, FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::{BOUNCE_BYTES, FileDevice, io_error};
use crate::{AlignedBuf, Device, SECTOR_BYTES, request};

/// Unit of `st_blocks` (bytes).
const STAT_BLOCK_BYTES: u64 = 512;

impl FileDevice {
    /// Makes a regular file at least `len` bytes long, with space set aside for all of it, holes included.
    /// What it has stays, and nothing is written. False: its file system has no call for that, and a later
    /// write may find no space.
    ///
    /// # Errors
    /// `StorageFull`, or any other I/O error. The length is unchanged then, and what the call took is given
    /// back, as [`Device::allocate`] does. An attempt takes all that others have left before it fails: ask
    /// [`FileDevice::file_len_max`] first.
    pub fn reserve(&self, len: u64) -> io::Result<bool> {
        if self.is_block_device {
            return self.grow(len).map(|()| true);
        }
        self.check_writable()?;
        request::check_grow(len)?;
        let _one_at_a_time = self.grow_lock.lock();
        let (len_now, before) = (self.len_bytes(), fs::fstat(&self.file)?);
        let len = len.max(len_now);
        let reserved = self.set_aside(0, len).and_then(|is_set_aside| {
            if !is_set_aside && len > len_now {
                fs::ftruncate(&self.file, len).map_err(io_error)?;
            }
            Ok(is_set_aside)
        });
        if reserved.is_ok() {
            self.len_bytes.store(len, Ordering::Release);
        } else {
            // The file system may have allocated part of it before it gave up.
            let _ = fs::ftruncate(&self.file, before.st_size as u64);
            self.give_back_holes((0, len_now), Vec::new(), taken_of(&before));
        }
        reserved.map_err(|error| self.explain_full(len_now, len, error))
    }

    /// Allocates `[len_now, len)`; on failure the file keeps its length.
    pub(super) fn allocate_end(&self, len_now: u64, len: u64) -> io::Result<()> {
        let allocated = match self.set_aside(len_now, len - len_now) {
            Ok(true) => Ok(()),
            Ok(false) => self.allocate_by_writing(len_now, len),
            Err(error) => Err(error),
        };
        allocated.map_err(|error| {
            // The file system may have allocated part of it before it gave up.
            let _ = fs::ftruncate(&self.file, len_now);
            self.explain_full(len_now, len, error)
        })
    }

    /// Allocates what is missing in the range, and writes zeros into its holes: space that was only set aside
    /// costs a change of metadata at the first write, and so a slower flush.
    pub(super) fn allocate_within(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        let taken_before = self.bytes_taken();
        let mut filled = Vec::new();
        let allocated = match self.set_aside(offset, len) {
            Ok(true) => self.fill_holes(offset, end, &mut filled),
            Ok(false) => self.allocate_by_rewriting(offset, end),
            Err(error) => Err(error),
        };
        allocated.map_err(|error| {
            self.give_back_holes((offset, end), filled, taken_before);
            self.explain_full(offset, end, error)
        })
    }

    /// Makes holes again of those that the range had before an allocation that has failed: `filled`, and what
    /// is behind them and was never written to.
    fn give_back_holes(&self, (offset, end): (u64, u64), mut filled: Vec<(u64, u64)>, taken_before: u64) {
        // What is still a hole may have been set aside.
        while let Ok(Some((start, stop))) = self.next_hole(filled.last().map_or(offset, |&(_, at)| at), end) {
            filled.push((start, stop));
        }
        if self.bytes_taken() > taken_before {
            for (start, stop) in filled {
                self.give_back(start, stop);
            }
        }
    }

    /// Writes zeros into the holes of the range; `filled` gets each before it is written to.
    fn fill_holes(&self, offset: u64, end: u64, filled: &mut Vec<(u64, u64)>) -> io::Result<()> {
        let mut at = offset;
        while let Some((start, stop)) = self.next_hole(at, end)? {
            filled.push((start, stop));
            self.allocate_by_writing(start, stop)?;
            at = stop;
        }
        Ok(())
    }

    /// Has the file system set space aside for the range; false: it can't, and space is certain only once it
    /// was written.
    fn set_aside(&self, offset: u64, len: u64) -> io::Result<bool> {
        while self.sets_space_aside.load(Ordering::Relaxed) {
            match fs::fallocate(&self.file, FallocateFlags::empty(), offset, len) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.sets_space_aside.store(false, Ordering::Relaxed),
                Err(errno) => return Err(io_error(errno)),
            }
        }
        Ok(false)
    }

    /// Bytes of the file system that the file takes, as far as that tells.
    pub(super) fn bytes_taken(&self) -> u64 {
        fs::fstat(&self.file).map_or(0, |stat| taken_of(&stat))
    }

    /// Bytes of the file that have no space yet.
    pub(super) fn bytes_missing(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire).saturating_sub(self.bytes_taken())
    }

    /// Makes a hole of what was one before. A file system without holes keeps the space, and the next
    /// allocation of the range needs no more of it.
    fn give_back(&self, start: u64, stop: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fs::fallocate(&self.file, flags, start, stop - start);
    }

    /// The whole sectors of the first hole at or behind `offset` and before `end`. Space that was set aside
    /// and never written to is a hole; a file system that knows of no holes has none.
    fn next_hole(&self, offset: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
        let sector = SECTOR_BYTES as u64;
        let mut at = offset;
        while at < end {
            let start = match fs::seek(&self.file, SeekFrom::Hole(at)) {
                Ok(start) if start < end => start,
                Ok(_) | Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            };
            let stop = match fs::seek(&self.file, SeekFrom::Data(start)) {
                Ok(stop) => stop.min(end),
                Err(Errno::NXIO) => end,
                Err(errno) => return Err(errno.into()),
            };
            let whole = (start.next_multiple_of(sector), stop / sector * sector);
            if whole.0 < whole.1 {
                return Ok(Some(whole));
            }
            at = stop.max(at + 1);
        }
        Ok(None)
    }

    /// As [`Self::allocate_by_writing`], where the file system may not tell what is a hole: sectors of zeros
    /// may be holes, and all others were written. Each is written as it is.
    fn allocate_by_rewriting(&self, start: u64, end: u64) -> io::Result<()> {
        let mut content = AlignedBuf::zeroed(BOUNCE_BYTES);
        let mut offset = start;
        while offset < end {
            let step = (end - offset).min(BOUNCE_BYTES as u64);
            let content = &mut content.as_mut()[..step as usize];
            self.read_all(content, offset)?;
            let may_be_hole = |sector: &[u8]| sector.iter().all(|&byte| byte == 0);
            if content.chunks(SECTOR_BYTES).any(may_be_hole) {
                self.write_all(content, offset)?;
            }
            offset += step;
        }
        Ok(())
    }

    /// For file systems without `fallocate`, and for holes: space is certain only once it was written.
    pub(super) fn allocate_by_writing(&self, start: u64, end: u64) -> io::Result<()> {
        let zeros = AlignedBuf::zeroed(BOUNCE_BYTES);
        let mut offset = start;
        while offset < end {
            let step = (end - offset).min(BOUNCE_BYTES as u64);
            self.write_all(&zeros.as_ref()[..step as usize], offset)?;
            offset += step;
        }
        Ok(())
    }

    fn explain_full(&self, start: u64, end: u64, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                request::storage_full(start, end, &format_args!("{}: {error}", self.path.display()))
            }
            _ => error,
        }
    }
}

fn taken_of(stat: &fs::Stat) -> u64 {
    (stat.st_blocks as u64).saturating_mul(STAT_BLOCK_BYTES)
}
