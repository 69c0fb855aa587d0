//! A piece of a file in memory, as mmap(2) would have it: copied in when it is made, and out when it is
//! synced.
//!
//! Purpose: programs that want a file as bytes. No engine can map its blocks, which are compressed and
//! checksummed.
//!
//! Thread safety: as the bytes of a vector.
//!
//! Invariant: a sync changes the bytes that were changed here, and no others, so what others had written
//! between them and behind them stays. An aligned word is written at once, so that no reader and no crash
//! finds a part of one. It never makes the file longer.

use std::ops::Range;

use kvfs_posix::{Fd, PosixError, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::Process;

/// So many bytes are compared, and read again, at once.
const PAGE: usize = 4096;

/// The bytes of a number that must not be torn.
const WORD: usize = 8;

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

/// What of a page is to be written in one call, from `at` on: whole words, the first and the last of which
/// were changed here. Between them lie none that others have changed, as far as `now`, the page as the file
/// has it, tells: those are not written while others may be at it.
fn next_stretch(bytes: &[u8], known: &[u8], now: &[u8], at: usize) -> Option<Range<usize>> {
    let mut stretch: Option<Range<usize>> = None;
    for at in (at..now.len()).step_by(WORD) {
        let word = at..now.len().min(at + WORD);
        if bytes[word.clone()] != known[word.clone()] {
            stretch.get_or_insert(word.clone()).end = word.end;
        } else if stretch.is_some() && now[word.clone()] != known[word] {
            break;
        }
    }
    stretch
}

/// Reads until there are enough bytes, or the file ends. Returns how many there are.
fn read(process: &Process, fd: Fd, bytes: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match process.pread(fd, &mut bytes[done..], offset + done as u64)? {
            0 => break,
            got => done += got,
        }
    }
    Ok(done)
}

/// See [`Mapping::sync`].
fn sync_page(process: &Process, fd: Fd, bytes: &[u8], known: &mut [u8], offset: u64) -> Result<()> {
    let mut now = [0; PAGE];
    let len = read(process, fd, &mut now[..bytes.len()], offset)?;
    let now = &mut now[..len];
    let mut at = 0;
    while let Some(stretch) = next_stretch(bytes, known, now, at) {
        for at in stretch.clone().filter(|at| bytes[*at] != known[*at]) {
            now[at] = bytes[at];
        }
        at = stretch.start + process.pwrite(fd, &now[stretch.clone()], offset + stretch.start as u64)?;
        known[stretch.start..at].copy_from_slice(&bytes[stretch.start..at]);
    }
    // Behind the end of the file.
    known[len..].copy_from_slice(&bytes[len..]);
    Ok(())
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
        let done = read(process, fd, &mut bytes, offset)?;
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
    /// no later sync writes, either. Not durable: that is fsync. O(`len`), and a read and a write for each
    /// page of 4 KiB with changed bytes; more writes where others have changed bytes between them.
    ///
    /// # Errors
    /// EBADF: not open for writing or reading, or closed; ENODEV: open for appending, so nothing can be
    /// written in its place; those of writing.
    pub fn sync(&mut self, process: &Process) -> Result<()> {
        if process.flags(self.fd)?.contains(OFlags::APPEND) {
            return Err(PosixError::Refused {
                errno: Errno::NODEV,
                reason: "a mapping of a file to append to",
            });
        }
        let Self { fd, offset, bytes, known } = self;
        let pages = bytes.chunks(PAGE).zip(known.chunks_mut(PAGE)).zip((*offset..).step_by(PAGE));
        for ((bytes, known), offset) in pages.filter(|((bytes, known), _)| bytes != known) {
            sync_page(process, *fd, bytes, known, offset)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
