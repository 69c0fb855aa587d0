//! Directory streams.

use std::collections::VecDeque;
use std::sync::Arc;

use kvfs_fs::{Caller, FileSystem, FileType, Fill};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Process, Scope};
use crate::error::{Result, refuse};
use crate::held::{Held, settled};
use crate::open_file::OpenFile;
use crate::{Fd, Place};

/// What is read ahead of the caller.
const ENTRIES_AHEAD: usize = 1024;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name; `.` and `..` are among them.
    pub name: Vec<u8>,
    /// Its inode number.
    pub inode: u64,
    /// What it is.
    pub kind: FileType,
    /// Where the stream goes on behind it: for [`Directory::seek`].
    pub offset: u64,
}

/// A directory that is being listed. Each entry that is there throughout comes once, whatever comes and goes
/// meanwhile.
#[derive(Debug)]
pub struct Directory<'p> {
    process: &'p Process,
    fd: Fd,
    held: Arc<Held>,
    /// Behind the last entry that was handed out.
    offset: u64,
    /// Read already.
    ahead: VecDeque<DirectoryEntry>,
    is_over: bool,
    /// How often names in it had been looked up when it was read last.
    lookups: Option<u64>,
}

impl Process {
    /// Opens a directory to be listed; drop it to close it.
    ///
    /// # Errors
    /// ENOTDIR, EACCES, EMFILE, and those of the walk.
    pub fn opendir<'a>(&self, place: impl Into<Place<'a>>) -> Result<Directory<'_>> {
        self.fdopendir(self.open(place, OFlags::DIRECTORY | OFlags::CLOEXEC, 0)?)
    }

    /// As [`Process::opendir`], of a descriptor, which is the stream's from then on.
    ///
    /// # Errors
    /// EBADF; ENOTDIR: then the descriptor is as it was.
    pub fn fdopendir(&self, fd: Fd) -> Result<Directory<'_>> {
        let file = self.scope.listable(fd)?;
        let held = Arc::clone(&file.held);
        Ok(Directory {
            process: self,
            fd,
            held,
            offset: 0,
            ahead: VecDeque::new(),
            is_over: false,
            lookups: None,
        })
    }

    /// Lists a directory from the offset of the open file on, which moves behind what `take` has taken
    /// (`getdents`), or `from` another offset, when it stays. `take` says whether there was room for the
    /// entry.
    ///
    /// # Errors
    /// EBADF, ENOTDIR; I/O errors.
    pub fn list(
        &self,
        fd: Fd,
        from: Option<u64>,
        take: &mut dyn FnMut(&kvfs_fs::DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let file = self.scope.listable(fd)?;
        let (mut own, mut shared);
        let offset = if let Some(from) = from {
            own = from;
            &mut own
        } else {
            shared = file.offset();
            &mut *shared
        };
        settled(self.scope.caller(), |caller| {
            let from = *offset;
            self.scope.fs().readdir(caller, file.held.node(), from, &mut |entry| {
                if !take(entry) {
                    return Fill::Full;
                }
                *offset = entry.offset;
                Fill::Taken
            })
        })
    }
}

impl Scope {
    fn listable(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        let file = self.file(fd)?;
        if !file.is_readable() {
            return refuse(Errno::BADF, "not open for reading");
        }
        file.check_directory()?;
        Ok(file)
    }
}

impl Directory<'_> {
    /// The next entry; `None`: no more. O(1) but for the first of each thousand.
    ///
    /// # Errors
    /// I/O errors.
    pub fn read(&mut self) -> Result<Option<DirectoryEntry>> {
        if self.ahead.is_empty() && !self.is_over {
            self.fill()?;
        }
        let next = self.ahead.pop_front();
        if let Some(entry) = &next {
            self.offset = entry.offset;
        }
        Ok(next)
    }

    /// Where it is: for [`Directory::seek`].
    pub fn tell(&self) -> u64 {
        self.offset
    }

    /// Goes on behind the entry that was read when `offset` was told, or that has it.
    pub fn seek(&mut self, offset: u64) {
        self.offset = offset;
        self.ahead.clear();
        self.is_over = false;
    }

    /// Begins anew, and sees what has come and gone meanwhile.
    pub fn rewind(&mut self) {
        self.seek(0);
    }

    /// Its descriptor, for calls on places beneath it.
    pub fn fd(&self) -> Fd {
        self.fd
    }

    fn fill(&mut self) -> Result<()> {
        let process = self.process;
        let fs = process.scope.fs();
        let lookups = fs.nodes().lookups_in(self.held.node());
        // What was listed was looked up, too: what comes next is read for both at once.
        let are_used = |before: u64| lookups.saturating_sub(before) >= ENTRIES_AHEAD as u64 / 2;
        let with_nodes = self.lookups.replace(lookups).is_some_and(are_used);
        settled(process.scope.caller(), |caller| self.list(fs, caller, with_nodes))
    }

    fn list(&mut self, fs: &FileSystem, caller: &Caller, with_nodes: bool) -> kvfs_fs::Result<()> {
        let (ahead, mut is_full) = (&mut self.ahead, false);
        ahead.clear();
        let mut take = |entry: &kvfs_fs::DirEntry<'_>| {
            if ahead.len() == ENTRIES_AHEAD {
                is_full = true;
                return Fill::Full;
            }
            let name = entry.name.to_vec();
            ahead.push_back(DirectoryEntry {
                name,
                inode: entry.inode,
                kind: entry.kind,
                offset: entry.offset,
            });
            Fill::Taken
        };
        let (node, offset) = (self.held.node(), self.offset);
        if with_nodes {
            self.held.list(caller, offset, &mut take)?;
        } else {
            fs.readdir(caller, node, offset, &mut take)?;
        }
        self.is_over = !is_full;
        Ok(())
    }
}

impl Iterator for Directory<'_> {
    type Item = Result<DirectoryEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

impl Drop for Directory<'_> {
    fn drop(&mut self) {
        // The program may have closed the descriptor itself.
        let _ = self.process.close(self.fd);
    }
}
