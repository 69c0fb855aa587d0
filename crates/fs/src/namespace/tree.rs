//! Removing a tree: what is below a directory, then the directory.
//!
//! The walk goes down first. What is no directory goes in batches, a page of a directory at a time, so that a tree of any width and
//! depth takes bounded memory: a page for each level.
//!
//! Thread safety: for one thread that may block. Invariant: only in the view of a transaction, so that all of it happens or nothing;
//! on an error the caller must abort the transaction.

use std::cell::RefCell;
use std::collections::VecDeque;

use kvfs_store::progress;

use super::check_name;
use super::remove::Remover;
use crate::node::Pin;
use crate::schema::Row;
use crate::{Attr, Caller, FileSystem, FileType, FsError, NodeId, Result, settled_for};

/// Names that are removed by one batch.
const PAGE: usize = 128;

/// What the caller of a removal may do, as far as the file system does not know.
pub trait RemovalRights {
    /// Refuses to remove anything from this directory. Asked once for each that is not empty.
    ///
    /// # Errors
    /// `AccessDenied`, or whatever ends the removal.
    fn check_directory(&self, directory: NodeId, attr: &Attr) -> Result<()>;

    /// Refuses to remove this entry of that directory.
    ///
    /// # Errors
    /// `NotPermitted`, or whatever ends the removal.
    fn check_entry(&self, directory: &Attr, entry: &Attr) -> Result<()>;
}

/// Why a tree was not removed.
#[derive(Debug)]
pub struct TreeError {
    /// What could not be removed: names from the tree's top down, parted by `/`; empty: the top.
    pub below: Vec<u8>,
    /// Why not.
    pub error: Box<FsError>,
}

/// A directory that is being emptied; the first one is that of the tree, which keeps its other names.
struct Level<'v> {
    /// In the directory above.
    name: Box<[u8]>,
    pin: Pin<'v>,
    /// The last name of the pages so far; empty: there was none.
    after: Box<[u8]>,
    /// Those of the page, which are emptied next.
    directories: VecDeque<Box<[u8]>>,
}

/// The names that a page holds.
#[derive(Default)]
struct Page {
    files: Vec<Box<[u8]>>,
    directories: VecDeque<Box<[u8]>>,
    last: Option<Box<[u8]>>,
}

struct Walk<'v, 'c> {
    remover: Remover<'v>,
    fs: &'v FileSystem,
    caller: &'c Caller,
    rights: &'c dyn RemovalRights,
    levels: Vec<Level<'v>>,
    /// Of the directory that the walk is in: what may not be removed.
    refused: RefCell<Option<Box<[u8]>>>,
    names: u64,
}

/// Removes `name` from `parent`, and everything below it, in the view of a transaction. Waits where names are held by others. Returns how
/// many names were removed. O(names below).
///
/// # Errors
/// `NotFound`; what `rights` say; `Invalid`: this is not the view of a transaction; those of [`FileSystem::unlink`] and
/// [`FileSystem::rmdir`]. The caller must abort the transaction then.
pub fn remove_tree(
    view: &FileSystem,
    caller: &Caller,
    (parent, name): (NodeId, &[u8]),
    rights: &dyn RemovalRights,
) -> Result<u64, TreeError> {
    let mut walk = Walk {
        remover: Remover::new(view),
        fs: view,
        caller,
        rights,
        levels: Vec::new(),
        refused: RefCell::default(),
        names: 0,
    };
    match walk.remove(parent, name) {
        Ok(()) => Ok(walk.names),
        Err(error) => Err(TreeError { below: walk.place(), error: Box::new(error) }),
    }
}

impl<'v> Walk<'v, '_> {
    fn remove(&mut self, parent: NodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        if self.fs.txn().is_none() {
            return Err(FsError::Invalid("a tree is removed in a transaction"));
        }
        progress::stage("removing", progress::Unit::Items, 0);
        let (parent, _) = self.fs.locker().pin_directory(parent)?;
        let top = self.fs.resolver().resolve(&parent, name)?;
        let is_directory = top.kind == FileType::Directory;
        self.enter(Box::default(), parent);
        if !is_directory {
            return self.remove_names(0, &[name.into()]);
        }
        self.levels[0].directories.push_back(name.into());
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.directories.pop_front() {
                let directory = self.fs.resolver().resolve(&level.pin, &name)?;
                self.enter(name, directory);
                self.check_directory()?;
            } else if self.levels.len() == 1 || !self.remove_page()? {
                self.leave()?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: Box<[u8]>, pin: Pin<'v>) {
        self.levels.push(Level { name, pin, after: Box::default(), directories: VecDeque::new() });
    }

    /// Whether the last directory may be emptied, if there is anything in it.
    fn check_directory(&self) -> Result<()> {
        let Some(attr) = self.levels.last().map(|level| level.pin.attr()) else { return Ok(()) };
        if attr.size == 0 { Ok(()) } else { self.rights.check_directory(NodeId(attr.inode), &attr) }
    }

    /// Removes the files of the next page, and notes its directories. False: there is no page any more.
    fn remove_page(&mut self) -> Result<bool> {
        let at = self.levels.len() - 1;
        let level = &mut self.levels[at];
        let Page { files, directories, last } = page(self.fs, &level.pin, &level.after)?;
        let Some(last) = last else { return Ok(false) };
        (level.directories, level.after) = (directories, last);
        self.remove_names(at, &files)?;
        Ok(true)
    }

    /// Goes up, and removes the directory, which is empty, but for the first.
    fn leave(&mut self) -> Result<()> {
        let at = self.levels.len() - 1;
        if at > 0 {
            let name = self.levels[at].name.clone();
            self.remove_names(at - 1, &[name])?;
        }
        self.levels.pop();
        Ok(())
    }

    /// Removes names of the directory at this level: of files, or of directories that are empty.
    fn remove_names(&mut self, at: usize, names: &[Box<[u8]>]) -> Result<()> {
        let parent = &self.levels[at].pin;
        let directory = parent.attr();
        let check = &mut |name: &[u8], entry: &Attr| {
            let checked = self.rights.check_entry(&directory, entry);
            checked.inspect_err(|_| *self.refused.borrow_mut() = Some(name.into()))
        };
        let mut names: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
        while !names.is_empty() {
            let removed = settled_for(self.caller, |caller| {
                self.remover.remove_names(&self.fs.gate(), caller, parent, &names, check)
            })?;
            names.drain(..removed);
            self.names += removed as u64;
            progress::advance(removed as u64);
        }
        Ok(())
    }

    /// Where it is, below the top.
    fn place(&self) -> Vec<u8> {
        let refused = self.refused.borrow();
        let names = self.levels.iter().map(|level| &*level.name).chain(refused.as_deref());
        let names: Vec<&[u8]> = names.skip(2).collect();
        names.join(&b'/')
    }
}

/// The next names of a directory.
fn page(view: &FileSystem, directory: &Pin<'_>, after: &[u8]) -> Result<Page> {
    let Some(part) = &directory.directory else { return Err(FsError::NotDirectory) };
    let mut page = Page::default();
    let mut cursor = view.origin.read().cursor(view.keyspaces.meta, part.placement.entries_after(after))?;
    while page.files.len() + page.directories.len() < PAGE {
        cursor.next()?;
        let Some((key, bytes)) = cursor.entry() else { break };
        let name: Box<[u8]> = key[part.placement.prefix_len()..].into();
        if Row::decode(key, bytes)?.kind() == FileType::Directory {
            page.directories.push_back(name.clone());
        } else {
            page.files.push(name.clone());
        }
        page.last = Some(name);
    }
    Ok(page)
}
