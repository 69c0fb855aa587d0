//! The walk through a tree that is cloned: directory by directory, a page of names at a time.
//!
//! Thread safety: belongs to one clone.

use std::collections::VecDeque;

use bytes::Bytes;
use kvfs_store::progress;

use super::Job;
use super::copier::{Copier, Made};
use crate::node::Pin;
use crate::schema::{Header, Placement, Row, encode_directory_link, encode_inode_link};
use crate::{FileType, FsError, NodeId, Result, TreeError};

/// Names that are read at once.
const PAGE: usize = 256;

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
    source: Placement,
    placement: Placement,
    /// Of the clone, with the names so far.
    header: Header,
    /// The last name that was read; empty: none.
    after: Box<[u8]>,
    /// Names that were read, with their rows.
    page: VecDeque<(Box<[u8]>, Bytes)>,
}

/// See the module.
pub(super) struct Walk<'v, 'c, 'w> {
    job: Job<'v, 'c>,
    copier: &'w mut Copier<'v, 'c>,
    levels: Vec<Level<'v>>,
    /// Of the top.
    parent: u64,
    /// What was looked at last, in the last directory.
    at: Box<[u8]>,
}

impl<'v, 'c, 'w> Walk<'v, 'c, 'w> {
    /// In which nothing was looked at.
    pub(super) fn new(copier: &'w mut Copier<'v, 'c>) -> Self {
        Self { job: copier.job(), copier, levels: Vec::new(), parent: 0, at: Box::default() }
    }

    /// Clones a directory with all that is below it, but for its name in `parent`.
    pub(super) fn clone_directory(mut self, top: &Pin<'_>, parent: u64) -> Result<Made, TreeError> {
        progress::stage("cloning", progress::Unit::Items, 0);
        self.parent = parent;
        self.go_through(top).map_err(|error| TreeError { below: self.place(), error: Box::new(error) })
    }

    fn go_through(&mut self, top: &Pin<'_>) -> Result<Made> {
        let Some(part) = &top.directory else { return Err(FsError::NotDirectory) };
        self.enter(Box::default(), part.placement.clone(), &top.header())?;
        loop {
            let Some(level) = self.levels.last_mut() else { return Err(FsError::NotDirectory) };
            if let Some((name, row)) = level.page.pop_front() {
                self.at.clone_from(&name);
                self.clone_entry(name, &row)?;
                progress::advance(1);
            } else if !self.read_page()?
                && let Some(made) = self.leave()
            {
                return Ok(made);
            }
        }
    }

    fn enter(&mut self, name: Box<[u8]>, source: Placement, header: &Header) -> Result<Placement> {
        let pin = self.known(&name, header)?;
        let parent = self.levels.last().map_or(self.parent, |level| level.header.inode);
        let header = Header { parent, ..self.copier.begin_directory(header)? };
        let placement = Placement::own_subtree(header.inode);
        let (after, page) = (Box::default(), VecDeque::new());
        self.levels.push(Level { name, pin, source, placement: placement.clone(), header, after, page });
        Ok(placement)
    }

    /// Ends the last directory, which has no more names; the top is given back.
    fn leave(&mut self) -> Option<Made> {
        let Level { header, placement, .. } = self.levels.pop()?;
        self.copier.end_directory(&header);
        self.levels.is_empty().then(|| Made::directory(header, placement))
    }

    /// Reads the next page of the last directory. False: there is none.
    fn read_page(&mut self) -> Result<bool> {
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        let range = level.source.entries_after(&level.after);
        let mut cursor = self.job.fs.origin.read().cursor(self.job.fs.keyspaces.meta, range)?;
        while level.page.len() < PAGE {
            cursor.next()?;
            let Some((key, row)) = cursor.entry() else { break };
            let name: Box<[u8]> = key[level.source.prefix_len()..].into();
            level.after.clone_from(&name);
            level.page.push_back((name, row.clone()));
        }
        Ok(!level.page.is_empty())
    }

    fn clone_entry(&mut self, name: Box<[u8]>, row: &Bytes) -> Result<()> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let key = level.placement.key(&name);
        let source_key = level.source.key(&name);
        let row = Row::decode(&source_key, row)?;
        let (inode, kind) = (row.inode(), row.kind());
        self.job.lock_inode(inode, kind)?;
        let (row, is_directory) = match row {
            Row::Inode(header, content) => {
                self.check(&name, &header)?;
                (self.copier.clone_file(&header, content, false)?, false)
            }
            Row::Link { inode, .. } => {
                let own = self.own_row(inode)?;
                let (header, content) = Row::decode_own(inode, &own)?;
                self.check(&name, &header)?;
                (self.copier.clone_file(&header, content, true)?, false)
            }
            Row::Directory { inode, placement: source } => {
                let own = self.own_row(inode)?;
                let (header, _) = Row::decode_own(inode, &own)?;
                self.check(&name, &header)?;
                let placement = self.enter(name, source, &header)?;
                let made = self.levels.last().map_or(0, |level| level.header.inode);
                (FileRow::Whole(encode_directory_link(made, &placement)), true)
            }
        };
        let above = self.levels.len().checked_sub(1 + usize::from(is_directory));
        if let Some(level) = above.and_then(|at| self.levels.get_mut(at)) {
            level.header.size += 1;
            level.header.nlink += u32::from(is_directory);
        }
        let row = match row {
            FileRow::Whole(row) => row,
            FileRow::Link(inode, kind) => encode_inode_link(inode, kind),
        };
        self.copier.put_entry(key, row)
    }

    /// Asks for the rights to what is under a name of the last directory.
    fn check(&self, name: &[u8], header: &Header) -> Result<()> {
        let _known = self.known(name, header)?;
        self.job.rights.check_source(NodeId(header.inode), &header.attr())
    }

    /// Makes an inode known to the view, unless nobody asks for rights to it.
    fn known(&self, name: &[u8], header: &Header) -> Result<Option<Pin<'v>>> {
        if self.job.rights.is_everything() {
            return Ok(None);
        }
        match self.levels.last().and_then(|level| level.pin.as_ref()) {
            Some(above) if header.kind != FileType::Directory => {
                self.job.fs.resolver().resolve(above, name).map(Some)
            }
            _ => self.job.fs.resolver().by_own_row(header.inode).map(Some),
        }
    }

    /// Where it is, below the top.
    fn place(&self) -> Vec<u8> {
        let above = self.levels.iter().skip(1).map(|level| &*level.name);
        let names: Vec<&[u8]> =
            above.chain([&*self.at].into_iter().filter(|name| !name.is_empty())).collect();
        names.join(&b'/')
    }

    fn own_row(&self, inode: u64) -> Result<Bytes> {
        let own = self.job.fs.rows().get(&Placement::own_subtree(inode).own_key())?;
        own.ok_or_else(|| FsError::corrupt(format!("inode {inode}"), "a name leads to it, and it has no row"))
    }
}
