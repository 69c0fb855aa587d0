//! The walk that takes detached trees apart: what is no directory goes in batches, a page of a directory at a
//! time, then the directory.
//!
//! A transaction that began before a tree was detached still sees it, and may move a directory out of it: its
//! rows are others than those that are removed below. So a directory's entry is written again, as it is,
//! before anything in it goes: to such a transaction that is a conflict; one that began later moves no
//! directory out of a tree. On the main line nothing moves during a batch ([`super::moves`]), and when
//! directories have moved since the last one it looks first whether those from the tree down still lie in
//! each other. So a batch is O(1), however deep it is.
//!
//! Thread safety: belongs to the thread that has the lock of detached trees. Never waits for names that
//! others hold: the tree is left for the next time. Memory: a page for each level.

use std::collections::VecDeque;

use crate::namespace::{Remover, entry_wants};
use crate::node::Pin;
use crate::schema::{DETACHED_INODE, Row};
use crate::{Caller, FileSystem, FileType, FsError, Result};

use super::{StaleOfTrees, beginning};

/// Names that are removed by one batch at most.
const PAGE: usize = 128;

/// A directory that is being emptied.
pub(super) struct Level {
    inode: u64,
    /// In the directory above.
    name: Box<[u8]>,
    /// The last name of the pages so far; empty: there was none.
    after: Box<[u8]>,
    /// Those of the page, which are emptied next.
    directories: VecDeque<Box<[u8]>>,
}

impl Level {
    fn new(inode: u64, name: Box<[u8]>) -> Self {
        Self { inode, name, after: Box::default(), directories: VecDeque::new() }
    }
}

/// Where the removal is.
#[derive(Default)]
pub(super) struct Walk {
    /// From the directory of detached trees down; empty: nowhere.
    levels: Vec<Level>,
    /// The count of moves at which they lay in each other.
    moves: u64,
}

impl Walk {
    /// It begins with the next step.
    pub(super) fn is_new(&self) -> bool {
        self.levels.is_empty()
    }
}

/// What one step came to.
pub(super) enum Step {
    /// So many names have gone.
    Removed(u64),
    /// The tree is not what it was; the walk begins anew.
    Changed,
    /// All trees are through, or wait for others.
    Ended,
}

/// The names that a page holds.
#[derive(Default)]
pub(crate) struct Page {
    pub(crate) files: Vec<Box<[u8]>>,
    pub(crate) directories: VecDeque<Box<[u8]>>,
    pub(crate) last: Option<Box<[u8]>>,
}

/// See the module.
pub(super) struct TreeRemover<'v> {
    main: &'v FileSystem,
    remover: Remover<'v>,
    caller: Caller,
    own_prefix: Vec<u8>,
    takes_foreign: bool,
}

impl<'v> TreeRemover<'v> {
    /// Of trees whose names begin with `own_prefix`; of others if it `takes_foreign`.
    pub(super) fn new(main: &'v FileSystem, own_prefix: Vec<u8>, takes_foreign: bool) -> Self {
        Self { main, remover: Remover::new(main), caller: Caller::default(), own_prefix, takes_foreign }
    }

    /// Goes on by one batch, or none, and by at most so many names. Those that have gone, and that a front
    /// end may know, go to `stale`. `passes_over`: a tree that is not what it was is left, as one that is
    /// damaged would be each time.
    ///
    /// # Errors
    /// Store errors; the walk goes on with the next tree.
    pub(super) fn step(
        &self,
        walk: &mut Walk,
        stale: &mut StaleOfTrees,
        names_max: u64,
        passes_over: bool,
    ) -> Result<Step> {
        let still = self.main.shared.detached.moves.hold();
        let have_moved = std::mem::replace(&mut walk.moves, still.count) != still.count;
        let levels = &mut walk.levels;
        // Else what failed is not one tree among others.
        let is_in_tree = levels.len() > 1 || levels.last().is_some_and(|trees| !trees.directories.is_empty());
        let page_len = names_max.clamp(1, PAGE as u64) as usize;
        let looked = if have_moved { self.expect_below(levels) } else { Ok(()) };
        match looked.and_then(|()| self.try_step(levels, stale, page_len)) {
            Err(FsError::Parked(_)) => {
                // What holds a part of this tree is not waited for; the next one may be free.
                levels.truncate(1);
                Ok(Step::Removed(0))
            }
            Err(
                FsError::NotFound
                | FsError::NotDirectory
                | FsError::IsDirectory
                | FsError::NotEmpty
                | FsError::Stale(_),
            ) => {
                if passes_over && is_in_tree {
                    levels.truncate(1);
                    return Ok(Step::Removed(0));
                }
                levels.clear();
                Ok(Step::Changed)
            }
            Err(error) => {
                levels.truncate(1);
                Err(error)
            }
            step => step,
        }
    }

    fn try_step(&self, levels: &mut Vec<Level>, stale: &mut StaleOfTrees, page_len: usize) -> Result<Step> {
        if levels.is_empty() {
            levels.push(Level::new(DETACHED_INODE, Box::default()));
        }
        let at = levels.len() - 1;
        if let Some(name) = levels[at].directories.pop_front() {
            let entered = self.enter(levels, name)?;
            levels.push(entered);
            return Ok(Step::Removed(0));
        }
        let pin = self.main.resolver().by_own_row(levels[at].inode)?;
        let Page { files, mut directories, last } =
            names_after(self.main, &pin, &levels[at].after, page_len)?;
        let Some(last) = last else {
            if at > 0 {
                return self.leave(levels, stale);
            }
            levels.clear();
            return Ok(Step::Ended);
        };
        if at == 0 {
            directories.retain(|name| self.takes_foreign || name.starts_with(&self.own_prefix));
        }
        let removed = self.remove_files(&pin, &files, stale)?;
        (levels[at].after, levels[at].directories) = (last, directories);
        Ok(Step::Removed(removed))
    }

    /// Writes the entry of a directory again, so that no transaction that saw it before moves it elsewhere.
    fn enter(&self, levels: &[Level], name: Box<[u8]>) -> Result<Level> {
        let Some(above) = levels.last() else { return Err(FsError::NotFound) };
        let parent = self.main.resolver().by_own_row(above.inode)?;
        let Some(part) = &parent.directory else { return Err(FsError::NotDirectory) };
        let key = part.placement.key(&name);
        let _names = self.main.locker().latch(&self.caller, &entry_wants(above.inode, &name))?;
        let bytes = self.main.rows().get(&key)?.ok_or(FsError::NotFound)?;
        let Row::Directory { inode, .. } = Row::decode(&key, &bytes)? else {
            return Err(FsError::NotDirectory);
        };
        self.main.rows().expect_in((above.inode, &key), inode, DETACHED_INODE)?;
        self.main.origin.apply(beginning(self.main.keyspaces.meta, key, bytes))?;
        Ok(Level::new(inode, name))
    }

    /// Removes the last directory, in which nothing was found any more.
    fn leave(&self, levels: &mut Vec<Level>, stale: &mut StaleOfTrees) -> Result<Step> {
        let Some((level, above)) = levels.split_last() else { return Ok(Step::Ended) };
        let Some(parent) = above.last() else { return Ok(Step::Ended) };
        let parent = self.main.resolver().by_own_row(parent.inode)?;
        let inode = level.inode;
        let check = &mut |_: &[u8], attr: &crate::Attr| {
            if attr.inode == inode { Ok(()) } else { Err(FsError::NotFound) }
        };
        self.remover.remove_names(&self.main.gate(), &self.caller, &parent, &[&level.name], check)?;
        stale.note(&self.main.nodes, parent.inode, [(&*level.name, inode)].into_iter());
        levels.pop();
        Ok(Step::Removed(1))
    }

    /// Removes names of files from the last directory.
    fn remove_files(
        &self,
        directory: &Pin<'_>,
        files: &[Box<[u8]>],
        stale: &mut StaleOfTrees,
    ) -> Result<u64> {
        let names: Vec<&[u8]> = files.iter().map(AsRef::as_ref).collect();
        let mut rest = &names[..];
        while !rest.is_empty() {
            let mut inodes: Vec<u64> = Vec::with_capacity(rest.len());
            let check = &mut |_: &[u8], attr: &crate::Attr| {
                inodes.push(attr.inode);
                if attr.kind == FileType::Directory { Err(FsError::IsDirectory) } else { Ok(()) }
            };
            let removed =
                self.remover.remove_names(&self.main.gate(), &self.caller, directory, rest, check)?;
            stale.note(&self.main.nodes, directory.inode, rest[..removed].iter().copied().zip(inodes));
            rest = &rest[removed..];
        }
        Ok(names.len() as u64)
    }

    /// Refuses to go on where a directory is not in the one above any more. O(depth).
    fn expect_below(&self, levels: &[Level]) -> Result<()> {
        for pair in levels.windows(2) {
            let directory = self.main.resolver().by_own_row(pair[1].inode)?;
            if directory.is_orphan() || directory.header().parent != pair[0].inode {
                return Err(FsError::NotFound);
            }
        }
        Ok(())
    }
}

/// The next names of a directory of a view: so many at most, behind that name.
pub(crate) fn names_after(view: &FileSystem, directory: &Pin<'_>, after: &[u8], len: usize) -> Result<Page> {
    let Some(part) = &directory.directory else { return Err(FsError::NotDirectory) };
    let mut page = Page::default();
    let range = part.placement.entries_after(after);
    let mut cursor = view.origin.read().cursor(view.keyspaces.meta, range)?;
    while page.files.len() + page.directories.len() < len {
        cursor.next()?;
        let Some((key, bytes)) = cursor.entry() else { break };
        let name: Box<[u8]> = key[part.placement.prefix_len()..].into();
        page.last = Some(name.clone());
        if Row::decode(key, bytes)?.kind() == FileType::Directory {
            page.directories.push_back(name);
        } else {
            page.files.push(name);
        }
    }
    Ok(page)
}
