//! Reading and writing.

use std::io::{IoSlice, IoSliceMut};

use bytes::{Bytes, BytesMut};
use kvfs_fs::{
    Append, Caller, ChangedBeside, ContentWatch, FILE_SIZE_MAX, FallocateMode, FileType, FsError, SeekKind,
    WriteFlags, Written,
};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Process, Scope};
use crate::Fd;
use crate::error::{Result, refuse};
use crate::held::{settled, with_space};
use crate::open_file::OpenFile;

/// What is written wholly or not at all, and goes to the end of a file as one piece (bytes).
const WRITE_LEN_MAX: usize = 16 << 20;

/// Most that one call copies (bytes).
const COPY_LEN_MAX: u64 = 64 << 20;

/// Most that one call reads or writes (bytes), as on Linux.
const CALL_LEN_MAX: usize = 0x7fff_f000;

/// What `lseek` counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// The beginning of the file.
    Start,
    /// The offset of now.
    Current,
    /// The end of the file.
    End,
    /// The next data, from the offset given on.
    Data,
    /// The next hole, from the offset given on.
    Hole,
}

impl Process {
    /// Reads at the offset of the open file, and advances it. Fewer bytes than asked for: the end of the
    /// file.
    ///
    /// # Errors
    /// EBADF, EISDIR; I/O errors.
    pub fn read(&self, fd: Fd, buffer: &mut [u8]) -> Result<usize> {
        self.readv(fd, &mut [IoSliceMut::new(buffer)])
    }

    /// Reads at `offset`.
    ///
    /// # Errors
    /// As [`Process::read`]; EINVAL: the offset is beyond all files.
    pub fn pread(&self, fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.preadv(fd, &mut [IoSliceMut::new(buffer)], offset)
    }

    /// As [`Process::read`], into several buffers one after the other.
    ///
    /// # Errors
    /// As [`Process::read`].
    pub fn readv(&self, fd: Fd, buffers: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let file = self.scope.file(fd)?;
        file.check_readable()?;
        let mut offset = file.offset();
        let len = self.scope.read_at(&file, buffers, *offset)?;
        *offset += len as u64;
        Ok(len)
    }

    /// As [`Process::pread`], into several buffers one after the other.
    ///
    /// # Errors
    /// As [`Process::pread`].
    pub fn preadv(&self, fd: Fd, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        let file = self.scope.file(fd)?;
        file.check_readable()?;
        self.scope.read_at(&file, buffers, offset)
    }

    /// Writes at the offset of the open file, or at its end (`APPEND`), and advances the offset. Everything,
    /// unless space ends.
    ///
    /// # Errors
    /// EBADF, EFBIG, ENOSPC, EDQUOT; I/O errors.
    pub fn write(&self, fd: Fd, data: &[u8]) -> Result<usize> {
        self.writev(fd, &[IoSlice::new(data)])
    }

    /// Writes at `offset`; at the end, if the file is open with `APPEND`, as on Linux.
    ///
    /// # Errors
    /// As [`Process::write`]; EINVAL: the offset is beyond all files.
    pub fn pwrite(&self, fd: Fd, data: &[u8], offset: u64) -> Result<usize> {
        self.pwritev(fd, &[IoSlice::new(data)], offset)
    }

    /// As [`Process::write`], of several buffers one after the other.
    ///
    /// # Errors
    /// As [`Process::write`].
    pub fn writev(&self, fd: Fd, buffers: &[IoSlice<'_>]) -> Result<usize> {
        let file = self.scope.file(fd)?;
        file.check_writable()?;
        Ok(self.scope.write_on(&file, buffers)?.len)
    }

    /// As [`Process::pwrite`], of several buffers one after the other.
    ///
    /// # Errors
    /// As [`Process::pwrite`].
    pub fn pwritev(&self, fd: Fd, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let file = self.scope.file(fd)?;
        file.check_writable()?;
        Ok(self.scope.write_at(&file, buffers, offset)?.len)
    }

    /// Moves the offset of the open file; returns it. Of a directory: to where a listing was.
    ///
    /// # Errors
    /// EBADF; EINVAL: before the beginning; EOVERFLOW; ENXIO: no data or hole is there.
    pub fn lseek(&self, fd: Fd, offset: i64, whence: Whence) -> Result<u64> {
        let file = self.scope.file(fd)?;
        file.check_open()?;
        let node = file.held.node();
        let mut current = file.offset();
        let base = match whence {
            Whence::Start => 0,
            Whence::Current => *current,
            Whence::End => file.held.attr(self.scope.caller())?.size,
            Whence::Data | Whence::Hole => {
                let from = u64::try_from(offset).map_err(|_| FsError::NoSuchOffset)?;
                let kind = if whence == Whence::Data { SeekKind::Data } else { SeekKind::Hole };
                *current =
                    settled(self.scope.caller(), |caller| self.scope.fs().seek(caller, node, from, kind))?;
                return Ok(*current);
            }
        };
        match base.checked_add_signed(offset) {
            None if offset < 0 => refuse(Errno::INVAL, "an offset before the beginning"),
            Some(sum) if sum <= FILE_SIZE_MAX || file.kind == FileType::Directory => {
                *current = sum;
                Ok(sum)
            }
            _ => refuse(Errno::OVERFLOW, "an offset beyond all files"),
        }
    }

    /// What the file holds, and everything that was done before, survives a power cut when this returns.
    /// `fdatasync` is the same.
    ///
    /// # Errors
    /// EBADF; I/O errors.
    pub fn fsync(&self, fd: Fd) -> Result<()> {
        let file = self.scope.file(fd)?;
        file.check_open()?;
        Ok(self.scope.fs().sync(self.scope.fs().sync_target(file.held.node())?)?)
    }

    /// As [`Process::fsync`], for everything that was done in the file system so far (`sync`, `syncfs`).
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync(&self) -> Result<()> {
        Ok(self.scope.fs().sync(self.scope.fs().sync_target_all()?)?)
    }

    /// Makes sure of space, takes it away, or fills it with zeros.
    ///
    /// # Errors
    /// EBADF, ENOSPC, EFBIG; EINVAL: no bytes, or a number that is negative as an offset of files; ENODEV:
    /// not a file.
    pub fn fallocate(&self, fd: Fd, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        let file = self.scope.file(fd)?;
        if !file.is_writable() {
            return refuse(Errno::BADF, "not open for writing");
        }
        if file.kind != FileType::Regular {
            return refuse(Errno::NODEV, "not a regular file");
        }
        if len == 0 || [offset, len].iter().any(|number| i64::try_from(*number).is_err()) {
            return refuse(Errno::INVAL, "no bytes, or before the beginning");
        }
        let node = file.held.node();
        self.scope.change_content(node, |caller| self.scope.fs().fallocate(caller, node, offset, len, mode))
    }

    /// Copies without the data coming to the caller, 64 MiB at most. Offsets that are `None` are those of the
    /// open files, and are advanced. Returns the bytes copied, 0 at the end of the source.
    ///
    /// # Errors
    /// EBADF: not open for that, or `APPEND`; EISDIR; EINVAL: the ranges overlap; ENOSPC, EFBIG.
    pub fn copy_file_range(
        &self,
        from: Fd,
        from_offset: Option<u64>,
        to: Fd,
        to_offset: Option<u64>,
        len: u64,
    ) -> Result<u64> {
        let scope = &self.scope;
        let (source, target) = (scope.file(from)?, scope.file(to)?);
        source.check_readable()?;
        target.check_writable()?;
        if target.flags().contains(OFlags::APPEND) {
            return refuse(Errno::BADF, "open for appending");
        }
        let len = len.min(COPY_LEN_MAX);
        let read_at = from_offset.unwrap_or_else(|| *source.offset());
        let write_at = to_offset.unwrap_or_else(|| *target.offset());
        let (node, to_node) = (source.held.node(), target.held.node());
        let copied = scope.change_content(to_node, |caller| {
            scope.fs().copy_file_range(caller, node, read_at, to_node, write_at, len)
        })?;
        if from_offset.is_none() {
            *source.offset() = read_at + copied.bytes;
        }
        if to_offset.is_none() {
            *target.offset() = write_at + copied.bytes;
        }
        scope.sync_if_asked(&target, &copied)?;
        Ok(copied.bytes)
    }
}

impl Scope {
    fn read_at(&self, file: &OpenFile, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        if offset > FILE_SIZE_MAX {
            return refuse(Errno::INVAL, "an offset beyond all files");
        }
        let keeps_atime = file.flags().contains(OFlags::NOATIME);
        let caller = Caller { keeps_atime, ..self.caller().clone() };
        let mut done = 0;
        for buffer in buffers {
            let wanted = buffer.len().min(CALL_LEN_MAX - done);
            let (at, space) = (offset + done as u64, &mut buffer[..wanted]);
            let len = settled(&caller, |caller| self.fs().read(caller, file.held.node(), at, space))?;
            done += len;
            if len < buffer.len() {
                break;
            }
        }
        Ok(done)
    }

    /// At the offset of the open file, which moves behind what is written.
    fn write_on(&self, file: &OpenFile, buffers: &[IoSlice<'_>]) -> Result<Placed> {
        let mut offset = file.offset();
        let placed = self.write_at(file, buffers, *offset)?;
        if placed.len > 0 {
            *offset = placed.end;
        }
        Ok(placed)
    }

    fn write_at(&self, file: &OpenFile, buffers: &[IoSlice<'_>], offset: u64) -> Result<Placed> {
        if offset > FILE_SIZE_MAX {
            return refuse(Errno::INVAL, "an offset beyond all files");
        }
        let append = if file.flags().contains(OFlags::APPEND) { Append::End } else { Append::No };
        let flags = WriteFlags { append, kill_suidgid: !self.actor.is_root(), ..WriteFlags::default() };
        let (mut placed, mut last) = (Placed { end: offset, len: 0 }, None);
        let writer = self.writer();
        for data in batches(buffers) {
            let written = with_space(self.fs(), &writer, |caller| {
                self.fs().write(caller, file.held.node(), placed.end, data.clone(), flags)
            });
            match written {
                Ok(written) => {
                    placed.len += written.bytes as usize;
                    placed.end = written.offset + written.bytes;
                    last = Some(written);
                }
                // What was written before counts; the next call meets the failure again.
                Err(_) if placed.len > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if let Some(written) = last {
            self.shared.tell(&[(file.held.node(), true)]);
            self.sync_if_asked(file, &written)?;
        }
        Ok(placed)
    }

    fn sync_if_asked(&self, file: &OpenFile, written: &Written) -> Result<()> {
        if file.flags().intersects(OFlags::SYNC | OFlags::DSYNC) {
            self.fs().sync(written.position)?;
        }
        Ok(())
    }
}

/// Writes back what `watch` holds of a file: at most 16 MiB, in place. Bytes that were changed beside it stay
/// as they are, and so does the size where they go on behind it.
///
/// # Errors
/// As [`Process::pwrite`].
pub fn write_memory(
    process: &Process,
    fd: Fd,
    data: &[u8],
    offset: u64,
    watch: &ContentWatch,
    changed_beside: ChangedBeside<'_>,
) -> Result<()> {
    let scope = &process.scope;
    let file = scope.file(fd)?;
    file.check_writable()?;
    let flags = WriteFlags { kill_suidgid: !scope.actor.is_root(), ..WriteFlags::default() };
    let writer = Caller { writes_back: Some(watch.of_writer()), ..scope.writer() };
    let (fs, node, data) = (scope.fs(), file.held.node(), Bytes::copy_from_slice(data));
    let written = with_space(fs, &writer, |caller| {
        kvfs_fs::write_pages(fs, caller, node, offset, data.clone(), flags, changed_beside)
    })?;
    scope.shared.tell(&[(node, true)]);
    scope.sync_if_asked(&file, &written)
}

/// What was written.
struct Placed {
    /// Where it ends. Where others append as well, theirs may lie between.
    end: u64,
    /// How much it is (bytes).
    len: usize,
}

/// The bytes of `buffers` in pieces for one batch each, copied one piece at a time.
fn batches(buffers: &[IoSlice<'_>]) -> impl Iterator<Item = Bytes> {
    let mut rest = buffers.iter().map(|buffer| &buffer[..]);
    let (mut data, mut left) = (&[][..], CALL_LEN_MAX);
    std::iter::from_fn(move || {
        let mut piece = BytesMut::new();
        while piece.len() < WRITE_LEN_MAX.min(left) {
            if data.is_empty() {
                let Some(next) = rest.next() else { break };
                data = next;
                continue;
            }
            let (head, tail) = data.split_at(data.len().min(WRITE_LEN_MAX.min(left) - piece.len()));
            piece.extend_from_slice(head);
            data = tail;
        }
        left -= piece.len();
        (!piece.is_empty()).then(|| piece.freeze())
    })
}

#[cfg(test)]
mod tests;
