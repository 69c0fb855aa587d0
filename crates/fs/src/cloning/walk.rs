//! The walk through a tree that is cloned: directory by directory, a page of names at a time.
//!
//! Thread safety: belongs to one clone.

use std::collections::VecDeque;

use bytes::Bytes;
use kvfs_store::progress;
use kvfs_txn::{LockName, Want};

use super::copier::{Copier, Made};
use super::{Job, wants_of};
use crate::node::Pin;
use crate::schema::{Header, Placement, Row, encode_directory_link, encode_inode_link};
use crate::view::Names;
use crate::{Caller, FileType, FsError, NodeId, Result, TreeError};

/// Names that are read at once, and after which those that are held are given back. Of all levels together no
/// more directories wait.
const PAGE: usize = 1024;

/// The row under the name of a clone of a file.
pub(super) enum FileRow {
    Whole(Bytes),
    /// It has a row of its own.
    Link(u64, FileType),
}

/// A directory under way.
struct Level<'v> {
    name: Box<[u8]>,
    /// Of the source, where rights are asked for.
    pin: Option<Pin<'v>>,
    source: Directory,
    /// Of the clone, with the names so far.
    header: Header,
    /// The last name that was read; empty: none.
    after: Box<[u8]>,
    /// Those of the last page, which come next: name, source, and the clone's header. A page ends with the
    /// last directory that may wait; where others wait above, that is the first one, which is entered next.
    directories: VecDeque<(Box<[u8]>, Directory, Header)>,
}

/// A directory of the source.
struct Directory {
    inode: u64,
    placement: Placement,
}

/// What is under a name.
struct Found {
    name: Box<[u8]>,
    header: Header,
    content: FoundContent,
}

enum FoundContent {
    File { content: Bytes, is_linked: bool },
    Directory(Placement),
}

/// See the module.
pub(super) struct Walk<'v, 'c, 'w> {
    job: Job<'v, 'c>,
    copier: &'w mut Copier<'v, 'c>,
    levels: Vec<Level<'v>>,
    /// Directories of all levels that come next.
    waiting: usize,
    /// Pages whose clones are not applied yet, where others may change them. Of small directories there are
    /// several: what is applied for each would be a run of the transaction's for each, and those are all
    /// looked through by what comes behind.
    held: Vec<Names<'v>>,
    /// Names in them, and one for each.
    held_count: usize,
}

impl<'v, 'c, 'w> Walk<'v, 'c, 'w> {
    /// Through `top`, whose clone comes into the directory `parent`.
    pub(super) fn new(copier: &'w mut Copier<'v, 'c>, top: &Pin<'_>, parent: u64) -> Result<Self> {
        let Some(part) = &top.directory else { return Err(FsError::NotDirectory) };
        progress::stage("cloning", progress::Unit::Items, 0);
        let source = Directory { inode: top.inode, placement: part.placement.clone() };
        let header = Header { parent, ..copier.begin_directory(&top.header())? };
        let (job, levels, held) = (copier.job(), Vec::new(), Vec::new());
        let mut walk = Self { job, copier, levels, waiting: 0, held, held_count: 0 };
        walk.enter(Box::default(), source, header)?;
        Ok(walk)
    }

    /// Clones everything but the name of the top.
    pub(super) fn clone_all(mut self) -> Result<Made, TreeError> {
        loop {
            let has_more = self.clone_page()?;
            let Some(level) = self.levels.last_mut() else { continue };
            if let Some((name, source, header)) = level.directories.pop_front() {
                self.waiting -= 1;
                self.enter(name, source, header).map_err(|error| self.refused(b"", error))?;
            } else if !has_more && let Some(made) = self.leave() {
                self.let_go().map_err(|error| self.refused(b"", error))?;
                return Ok(made);
            }
        }
    }

    fn enter(&mut self, name: Box<[u8]>, source: Directory, header: Header) -> Result<()> {
        let is_asked = !self.job.rights.is_everything();
        let pin = is_asked.then(|| self.job.fs.resolver().by_own_row(source.inode)).transpose()?;
        let (after, directories) = (Box::default(), VecDeque::new());
        self.levels.push(Level { name, pin, source, header, after, directories });
        Ok(())
    }

    /// Ends the last directory, which has no more names; the top is given back.
    fn leave(&mut self) -> Option<Made> {
        let Level { header, .. } = self.levels.pop()?;
        self.copier.end_directory(&header);
        self.levels.is_empty().then(|| Made::directory(header))
    }

    /// Clones the next page of the last directory, unless directories of the one before are left. False:
    /// there is none.
    fn clone_page(&mut self) -> Result<bool, TreeError> {
        if self.levels.last().is_none_or(|level| !level.directories.is_empty()) {
            return Ok(true);
        }
        let mut name = Box::default();
        let page = self.next_page(&mut name).map_err(|error| self.refused(&name, error))?;
        let is_empty = page.is_empty();
        for found in page {
            name.clone_from(&found.name);
            self.clone_entry(found).map_err(|error| self.refused(&name, error))?;
            progress::advance(1);
        }
        if self.held_count >= PAGE {
            self.let_go().map_err(|error| self.refused(b"", error))?;
        }
        Ok(!is_empty)
    }

    /// The next page of the last directory, held where others may change it. On an error `refused` is the
    /// name.
    fn next_page(&mut self, refused: &mut Box<[u8]>) -> Result<Vec<Found>> {
        let mut taken = self.take_page(self.job.caller, refused);
        while let Err(FsError::Parked(ticket)) = taken {
            // Nothing is waited for while others may wait for what is held.
            self.let_go()?;
            if !self.job.rights.wait(&ticket) {
                return Err(FsError::Interrupted);
            }
            taken = self.take_page(&Caller { ticket: Some(ticket), ..self.job.caller.clone() }, refused);
        }
        let (held, page) = taken?;
        if let Some(held) = held {
            self.held.push(held);
            self.held_count += 1 + page.len();
        }
        Ok(page)
    }

    /// Applies what was cloned of all that is held, and gives it back.
    fn let_go(&mut self) -> Result<()> {
        if !self.held.is_empty() {
            self.copier.apply_all()?;
            self.held.clear();
            self.held_count = 0;
        }
        Ok(())
    }

    /// As [`Self::next_page`]. Parks, with nothing changed.
    fn take_page(&self, caller: &Caller, refused: &mut Box<[u8]>) -> Result<(Option<Names<'v>>, Vec<Found>)> {
        self.job.fs.locker().check()?;
        let Some(level) = self.levels.last() else { return Ok((None, Vec::new())) };
        let mut held = None;
        if !self.job.rights.is_alone() {
            let entries = [Want::shared(LockName::Entries { directory: level.source.inode })];
            let mut names = self.job.fs.locker().latch_to_read(caller, &entries)?;
            // Which inodes they are does not change from here on, and nothing of them behind this.
            for (name, row) in self.read_rows(level)? {
                let row = Row::decode(&level.source.placement.key(&name), &row)?;
                names.try_extend(&wants_of(row.inode(), row.kind()).collect::<Vec<_>>())?;
            }
            held = Some(names);
        }
        let mut page = Vec::new();
        for (name, row) in self.read_rows(level)? {
            refused.clone_from(&name);
            let found = self.found(level, name, &row)?;
            self.check(level, &found)?;
            page.push(found);
        }
        *refused = Box::default();
        Ok((held, page))
    }

    /// The rows of the next page.
    fn read_rows(&self, level: &Level<'v>) -> Result<Vec<(Box<[u8]>, Bytes)>> {
        let placement = &level.source.placement;
        let mut directories_left = PAGE.saturating_sub(self.waiting).max(1);
        let range = placement.entries_after(&level.after);
        let mut cursor = self.job.fs.origin.read().cursor(self.job.fs.keyspaces.meta, range)?;
        let mut rows = Vec::new();
        while rows.len() < PAGE {
            cursor.next()?;
            let Some((key, row)) = cursor.entry() else { break };
            rows.push((key[placement.prefix_len()..].into(), row.clone()));
            directories_left -= usize::from(matches!(Row::decode(key, row)?, Row::Directory { .. }));
            if directories_left == 0 {
                break;
            }
        }
        Ok(rows)
    }

    fn found(&self, level: &Level<'v>, name: Box<[u8]>, row: &Bytes) -> Result<Found> {
        let key = level.source.placement.key(&name);
        Ok(match Row::decode(&key, row)? {
            Row::Inode(header, content) => {
                let content = FoundContent::File { content: row.slice_ref(content), is_linked: false };
                Found { name, header, content }
            }
            Row::Link { inode, .. } => {
                let own = self.job.fs.rows().referred_to(&key, inode)?;
                let (header, content) = Row::decode_own(inode, &own)?;
                let content = FoundContent::File { content: own.slice_ref(content), is_linked: true };
                Found { name, header, content }
            }
            Row::Directory { inode, placement } => {
                let top = self.levels.first().map_or(level.source.inode, |top| top.source.inode);
                let header = self.job.fs.rows().expect_in((level.source.inode, &key), inode, top)?;
                Found { name, header, content: FoundContent::Directory(placement) }
            }
        })
    }

    /// Asks for the rights to what is under a name.
    fn check(&self, level: &Level<'v>, found: &Found) -> Result<()> {
        let header = &found.header;
        let _known = match &level.pin {
            None => None,
            Some(_) if header.kind == FileType::Directory => {
                Some(self.job.fs.resolver().by_own_row(header.inode)?)
            }
            Some(above) => Some(self.job.fs.resolver().resolve(above, &found.name)?),
        };
        self.job.rights.check_source(NodeId(header.inode), &header.attr())
    }

    fn clone_entry(&mut self, found: Found) -> Result<()> {
        let Found { name, header, content } = found;
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        level.after.clone_from(&name);
        level.header.size += 1;
        let key = Placement::own_subtree(level.header.inode).key(&name);
        let row = match content {
            FoundContent::File { content, is_linked } => {
                match self.copier.clone_file(&header, &content, is_linked)? {
                    FileRow::Whole(row) => row,
                    FileRow::Link(inode, kind) => encode_inode_link(inode, kind),
                }
            }
            FoundContent::Directory(placement) => {
                level.header.nlink += 1;
                let made = Header { parent: level.header.inode, ..self.copier.begin_directory(&header)? };
                let source = Directory { inode: header.inode, placement };
                level.directories.push_back((name, source, made));
                self.waiting += 1;
                encode_directory_link(made.inode, &Placement::own_subtree(made.inode))
            }
        };
        self.copier.put_entry(key, row)
    }

    /// Why the clone fails, and at which name of the last directory; empty: at that one.
    fn refused(&self, name: &[u8], error: FsError) -> TreeError {
        let above = self.levels.iter().skip(1).map(|level| &*level.name);
        let names: Vec<&[u8]> = above.chain([name].into_iter().filter(|name| !name.is_empty())).collect();
        TreeError { below: names.join(&b'/'), error: Box::new(error) }
    }
}
