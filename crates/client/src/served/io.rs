//! Reading and writing, in pieces that a lane has room for.
//!
//! A call of more than [`PIECE_BYTES`] is several for the server: another process that uses the same offset,
//! or reads what is written, may come between them.

use std::borrow::Cow;
use std::io::{IoSlice, IoSliceMut};

use kvfs_fs::FallocateMode;
use kvfs_lane::{Call, Reply};
use kvfs_posix::{Fd, Result, Whence, linux};

use super::{Served, handle};

/// Most that passes at once.
const PIECE_BYTES: usize = 1 << 20;

impl Served {
    pub(crate) fn readv(&self, fd: Fd, buffers: &mut [IoSliceMut<'_>]) -> Result<usize> {
        self.read_pieces(fd, buffers, None)
    }

    pub(crate) fn preadv(&self, fd: Fd, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.read_pieces(fd, buffers, Some(offset))
    }

    pub(crate) fn writev(&self, fd: Fd, buffers: &[IoSlice<'_>]) -> Result<usize> {
        self.write_pieces(fd, buffers, None)
    }

    pub(crate) fn pwritev(&self, fd: Fd, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        self.write_pieces(fd, buffers, Some(offset))
    }

    pub(crate) fn lseek(&self, fd: Fd, offset: i64, whence: Whence) -> Result<u64> {
        let whence = linux::whence_number(whence);
        self.number(&Call::Seek { handle: handle(fd), offset, whence }, &[])
    }

    pub(crate) fn fsync(&self, fd: Fd) -> Result<()> {
        self.done(&Call::Sync { handle: handle(fd) }, &[])
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.done(&Call::SyncAll, &[])
    }

    pub(crate) fn fallocate(&self, fd: Fd, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        let mode = linux::fallocate_flags(mode);
        self.done(&Call::Allocate { handle: handle(fd), mode, offset, len }, &[])
    }

    pub(crate) fn copy_file_range(
        &self,
        from: Fd,
        from_offset: Option<u64>,
        to: Fd,
        to_offset: Option<u64>,
        len: u64,
    ) -> Result<u64> {
        let (from, to) = (handle(from), handle(to));
        self.number(&Call::Copy { from, from_offset, to, to_offset, len }, &[])
    }

    /// Until the buffers are full, or the file ends.
    fn read_pieces(&self, fd: Fd, buffers: &mut [IoSliceMut<'_>], offset: Option<u64>) -> Result<usize> {
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut done = 0;
        loop {
            let len = (total - done).min(PIECE_BYTES);
            let offset = offset.map(|offset| offset.saturating_add(done as u64));
            let call = Call::Read { handle: handle(fd), len: len as u32, offset };
            let read = self.call(&call, &[], |reply, payload| {
                let is_answer = reply == Reply::Done && payload.len() <= len;
                is_answer.then(|| scatter(payload, buffers, done))
            });
            match read {
                Ok(read) => {
                    done += read;
                    if done == total || read < len {
                        return Ok(done);
                    }
                }
                // The next call meets it again.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }

    /// Everything, unless space ends.
    fn write_pieces(&self, fd: Fd, buffers: &[IoSlice<'_>], offset: Option<u64>) -> Result<usize> {
        let data = gather(buffers);
        let mut done = 0;
        loop {
            let piece = &data[done..data.len().min(done + PIECE_BYTES)];
            let offset = offset.map(|offset| offset.saturating_add(done as u64));
            match self.number(&Call::Write { handle: handle(fd), offset }, piece) {
                Ok(written) => {
                    done += (written as usize).min(piece.len());
                    if done == data.len() || (written as usize) < piece.len() {
                        return Ok(done);
                    }
                }
                // The next call meets it again.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Puts `data` into the buffers, behind the first `skipped` bytes of them. Returns its length.
fn scatter(data: &[u8], buffers: &mut [IoSliceMut<'_>], mut skipped: usize) -> usize {
    let mut rest = data;
    for buffer in buffers {
        let from = skipped.min(buffer.len());
        skipped -= from;
        let room = &mut buffer[from..];
        let (head, tail) = rest.split_at(rest.len().min(room.len()));
        room[..head.len()].copy_from_slice(head);
        rest = tail;
    }
    data.len()
}

/// All buffers one after the other; copied only if there are several.
fn gather<'b>(buffers: &'b [IoSlice<'_>]) -> Cow<'b, [u8]> {
    match buffers {
        [one] => Cow::Borrowed(&**one),
        several => Cow::Owned(several.iter().flat_map(|buffer| buffer.iter().copied()).collect()),
    }
}
