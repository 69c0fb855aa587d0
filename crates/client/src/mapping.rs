//! A piece of a file in memory, as mmap(2) would have it: copied in when it is made, and out when it is
//! synced.
//!
//! Purpose: programs that want a file as bytes. No engine can map its blocks, which are compressed and
//! checksummed.
//!
//! Thread safety: as the bytes of a vector.
//!
//! Invariant: a sync writes the pages that were changed here, and no others, so what others have written
//! beside them stays. It never makes the file longer.

use std::hash::{DefaultHasher, Hasher};

use kvfs_posix::{Fd, PosixError, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::Process;

const PAGE: usize = 4096;

/// See the module.
#[derive(Debug)]
pub struct Mapping {
    fd: Fd,
    offset: u64,
    bytes: Vec<u8>,
    /// Hashes of the pages when they were what the file has.
    pages: Vec<u64>,
}

fn hash(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(page);
    hasher.finish()
}

impl Mapping {
    /// `len` bytes of an open file from `offset` on; zeros behind its end. The descriptor has to stay open
    /// for [`Mapping::sync`]. O(`len`).
    ///
    /// # Errors
    /// EBADF: not open for reading; EINVAL: nothing; ENOMEM; those of reading.
    pub fn new(process: &Process, fd: Fd, offset: u64, len: usize) -> Result<Self> {
        let refuse = |errno, reason| Err(PosixError::Refused { errno, reason });
        if len == 0 {
            return refuse(Errno::INVAL, "a mapping of nothing");
        }
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(len).is_err() {
            return refuse(Errno::NOMEM, "no memory for the mapping");
        }
        bytes.resize(len, 0);
        let mut done = 0;
        while done < len {
            match process.pread(fd, &mut bytes[done..], offset + done as u64)? {
                0 => break,
                got => done += got,
            }
        }
        let pages = bytes.chunks(PAGE).map(hash).collect();
        Ok(Self { fd, offset, bytes, pages })
    }

    /// What it holds.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it holds, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Writes what was changed to the file, as far as that goes. Not durable: that is fsync. O(`len`).
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
        for (index, (page, known)) in self.bytes.chunks(PAGE).zip(&mut self.pages).enumerate() {
            let found = hash(page);
            if *known == found {
                continue;
            }
            let at = self.offset + (index * PAGE) as u64;
            let len = size.saturating_sub(at).min(page.len() as u64) as usize;
            let mut done = 0;
            while done < len {
                done += process.pwrite(self.fd, &page[done..len], at + done as u64)?;
            }
            *known = found;
        }
        Ok(())
    }
}
