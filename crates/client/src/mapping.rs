//! A piece of a file in memory, as mmap(2) would have it: copied in when it is made, and out when it is
//! synced.
//!
//! Purpose: programs that want a file as bytes. No engine can map its blocks, which are compressed and
//! checksummed.
//!
//! Thread safety: as the bytes of a vector.
//!
//! Invariant: a sync writes the bytes that were changed here, and no others, so what others have written
//! between them and behind them stays. It never makes the file longer.

use std::ops::Range;

use kvfs_posix::{Fd, PosixError, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::Process;

/// So many bytes are compared at once.
const PAGE: usize = 4096;

/// See the module.
#[derive(Debug)]
pub struct Mapping {
    fd: Fd,
    offset: u64,
    bytes: Vec<u8>,
    /// The bytes as they were when they were read, or written by a sync. Hashes would tell which pages were
    /// changed, but not which bytes of them.
    known: Vec<u8>,
}

fn zeros(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(len).is_err() {
        return Err(PosixError::Refused { errno: Errno::NOMEM, reason: "no memory for the mapping" });
    }
    bytes.resize(len, 0);
    Ok(bytes)
}

/// The first bytes from `at` on that are not what they were; both are of one length.
fn next_change(bytes: &[u8], known: &[u8], mut at: usize) -> Option<Range<usize>> {
    while at < bytes.len() {
        let end = bytes.len().min(at + PAGE);
        if bytes[at..end] != known[at..end] {
            break;
        }
        at = end;
    }
    let is_same = |(one, other): (&u8, &u8)| one == other;
    let pairs = |from: usize| bytes[from..].iter().zip(&known[from..]);
    let start = at + pairs(at).position(|pair| !is_same(pair))?;
    Some(start..pairs(start).position(is_same).map_or(bytes.len(), |len| start + len))
}

impl Mapping {
    /// `len` bytes of an open file from `offset` on; zeros behind its end. The descriptor has to stay open
    /// for [`Mapping::sync`]. O(`len`), and twice `len` bytes of memory.
    ///
    /// # Errors
    /// EBADF: not open for reading; EINVAL: nothing; ENOMEM; those of reading.
    pub fn new(process: &Process, fd: Fd, offset: u64, len: usize) -> Result<Self> {
        if len == 0 {
            return Err(PosixError::Refused { errno: Errno::INVAL, reason: "a mapping of nothing" });
        }
        let (mut bytes, mut known) = (zeros(len)?, zeros(len)?);
        let mut done = 0;
        while done < len {
            match process.pread(fd, &mut bytes[done..], offset + done as u64)? {
                0 => break,
                got => done += got,
            }
        }
        known[..done].copy_from_slice(&bytes[..done]);
        Ok(Self { fd, offset, bytes, known })
    }

    /// What it holds.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it holds, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Writes the bytes that were changed to the file, as far as that goes: what was changed behind its end
    /// no later sync writes, either. Not durable: that is fsync. O(`len`), and a write for each stretch of
    /// changed bytes.
    ///
    /// # Errors
    /// EBADF: not open for writing, or closed; ENODEV: open for appending, so nothing can be written in its
    /// place; those of writing.
    pub fn sync(&mut self, process: &Process) -> Result<()> {
        if process.flags(self.fd)?.contains(OFlags::APPEND) {
            return Err(PosixError::Refused {
                errno: Errno::NODEV,
                reason: "a mapping of a file to append to",
            });
        }
        let size = process.stat(self.fd)?.size;
        let end = size.saturating_sub(self.offset).min(self.bytes.len() as u64) as usize;
        let mut at = 0;
        while let Some(Range { start, end }) = next_change(&self.bytes[..end], &self.known[..end], at) {
            at = start + process.pwrite(self.fd, &self.bytes[start..end], self.offset + start as u64)?;
            self.known[start..at].copy_from_slice(&self.bytes[start..at]);
        }
        self.known[end..].copy_from_slice(&self.bytes[end..]);
        Ok(())
    }
}
