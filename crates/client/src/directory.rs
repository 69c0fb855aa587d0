//! Directory streams.
//!
//! Thread safety: one thread at a time.

use std::collections::VecDeque;

use kvfs_fs::FileType;
use kvfs_posix::{DirectoryEntry, Fd, Result};

use crate::served::Served;

/// What is asked for at once (bytes of records).
const RECORDS_BYTES: u32 = 64 << 10;

/// Bytes of a record of getdents64(2) in front of the name: inode number, offset, length of the record, type.
const HEAD_BYTES: usize = 19;

/// As [`kvfs_posix::Directory`].
#[derive(Debug)]
pub struct Directory<'p>(Kind<'p>);

#[derive(Debug)]
enum Kind<'p> {
    Embedded(kvfs_posix::Directory<'p>),
    Served(ServedDirectory<'p>),
}

impl<'p> From<kvfs_posix::Directory<'p>> for Directory<'p> {
    fn from(directory: kvfs_posix::Directory<'p>) -> Self {
        Self(Kind::Embedded(directory))
    }
}

impl<'p> From<ServedDirectory<'p>> for Directory<'p> {
    fn from(directory: ServedDirectory<'p>) -> Self {
        Self(Kind::Served(directory))
    }
}

impl Directory<'_> {
    /// As [`kvfs_posix::Directory::read`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn read(&mut self) -> Result<Option<DirectoryEntry>> {
        match &mut self.0 {
            Kind::Embedded(directory) => directory.read(),
            Kind::Served(directory) => directory.read(),
        }
    }

    /// As [`kvfs_posix::Directory::tell`].
    pub fn tell(&self) -> u64 {
        match &self.0 {
            Kind::Embedded(directory) => directory.tell(),
            Kind::Served(directory) => directory.offset,
        }
    }

    /// As [`kvfs_posix::Directory::seek`].
    pub fn seek(&mut self, offset: u64) {
        match &mut self.0 {
            Kind::Embedded(directory) => directory.seek(offset),
            Kind::Served(directory) => directory.seek(offset),
        }
    }

    /// As [`kvfs_posix::Directory::rewind`].
    pub fn rewind(&mut self) {
        self.seek(0);
    }

    /// As [`kvfs_posix::Directory::fd`].
    pub fn fd(&self) -> Fd {
        match &self.0 {
            Kind::Embedded(directory) => directory.fd(),
            Kind::Served(directory) => directory.fd,
        }
    }
}

/// A directory of a server.
#[derive(Debug)]
pub(crate) struct ServedDirectory<'p> {
    process: &'p Served,
    fd: Fd,
    /// Behind the last entry that was handed out.
    offset: u64,
    /// Read already.
    ahead: VecDeque<DirectoryEntry>,
    is_over: bool,
}

impl<'p> ServedDirectory<'p> {
    /// Reads the first entries, which shows whether it is an open directory.
    pub(crate) fn of(process: &'p Served, fd: Fd) -> Result<Self> {
        let records = process.records(fd, 0, RECORDS_BYTES)?;
        let mut directory = Self { process, fd, offset: 0, ahead: VecDeque::new(), is_over: false };
        directory.take(&records);
        Ok(directory)
    }
}

impl ServedDirectory<'_> {
    fn read(&mut self) -> Result<Option<DirectoryEntry>> {
        if self.ahead.is_empty() && !self.is_over {
            let records = self.process.records(self.fd, self.offset, RECORDS_BYTES)?;
            self.take(&records);
        }
        let next = self.ahead.pop_front();
        if let Some(entry) = &next {
            self.offset = entry.offset;
        }
        Ok(next)
    }

    fn seek(&mut self, offset: u64) {
        self.offset = offset;
        self.ahead.clear();
        self.is_over = false;
    }

    fn take(&mut self, records: &[u8]) {
        self.is_over = records.is_empty();
        self.ahead = entries(records).collect();
    }
}

impl Drop for ServedDirectory<'_> {
    fn drop(&mut self) {
        // The program may have closed the descriptor itself.
        let _ = self.process.close(self.fd);
    }
}

/// The entries of records; ends at what is none.
fn entries(mut records: &[u8]) -> impl Iterator<Item = DirectoryEntry> {
    std::iter::from_fn(move || {
        let (head, rest) = records.split_first_chunk::<HEAD_BYTES>()?;
        let [inode, offset] =
            [0, 8].map(|at| head[at..].first_chunk().copied().map_or(0, u64::from_ne_bytes));
        let len = usize::from(u16::from_ne_bytes([head[16], head[17]]));
        let name = rest.get(..len.checked_sub(HEAD_BYTES)?)?.split(|byte| *byte == 0).next()?.to_vec();
        let entry = DirectoryEntry { name, inode, offset, kind: FileType::from_d_type(head[18])? };
        records = &records[len..];
        Some(entry)
    })
}
