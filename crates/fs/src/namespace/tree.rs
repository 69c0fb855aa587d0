//! Removing a tree: it is detached as a whole, by one operation, and removed in the background
//! ([`crate::DetachedTrees`]).
//!
//! What a user may not remove by hand, name by name, is looked for first, unless that user may remove
//! everything.
//!
//! A view that began before the store had a directory for detached trees has none, and gets none: what its
//! transaction made would be in the way of the main line's. There a tree is removed name by name.
//!
//! Thread safety: for one thread that may block. Invariant: only in the view of a transaction. Memory of the
//! search: a page of names for each directory from the tree down.

use std::collections::VecDeque;

use kvfs_store::progress;

use super::Remover;
use super::rename::detach;
use crate::detached::{DetachedTrees, names_after};
use crate::node::Pin;
use crate::schema::{DETACHED_INODE, Row, check_name};
use crate::{Attr, Caller, FileSystem, FileType, FsError, Invalidations, NodeId, Result, Ticket, settled_by};

/// Names that are read at once.
const PAGE: usize = 128;

/// What a caller may do to a tree, as far as the file system does not know, and whether that caller still
/// waits.
pub trait TreeRights {
    /// Whether nothing is refused anywhere, so that nothing needs to be asked.
    fn is_everything(&self) -> bool;

    /// Refuses to remove anything from this directory. Asked for each that is not empty. May park, and is
    /// asked again then.
    ///
    /// # Errors
    /// `AccessDenied`, or whatever ends the removal.
    fn check_directory(&self, directory: NodeId, attr: &Attr) -> Result<()>;

    /// Whether entries of this directory may be refused, each for itself.
    fn depends_on_entries(&self, directory: &Attr) -> bool;

    /// Refuses to remove this entry of that directory. Asked for the tree itself, and where
    /// [`Self::depends_on_entries`].
    ///
    /// # Errors
    /// `NotPermitted`, or whatever ends the removal.
    fn check_entry(&self, directory: &Attr, entry: &Attr) -> Result<()>;

    /// Waits until the operation is worth trying again. False: the caller does not wait any more, and the
    /// ticket was cancelled.
    fn wait(&self, ticket: &Ticket) -> bool {
        ticket.wait();
        true
    }
}

/// Why a tree was not removed.
#[derive(Debug)]
pub struct TreeError {
    /// What could not be removed: names from the tree's top down, parted by `/`; empty: the top.
    pub below: Vec<u8>,
    /// Why not.
    pub error: Box<FsError>,
}

/// A directory that is looked at.
struct Level<'v> {
    name: Box<[u8]>,
    pin: Pin<'v>,
    /// The last name of the pages so far; empty: there was none.
    after: Box<[u8]>,
    /// Directories of the page, which are looked at next.
    directories: VecDeque<Box<[u8]>>,
}

/// A search for what may not be removed.
struct Search<'v, 'c> {
    fs: &'v FileSystem,
    rights: &'c dyn TreeRights,
    levels: Vec<Level<'v>>,
    /// Of the last directory: what may not be removed.
    refused: Option<Box<[u8]>>,
}

/// Removes `name` from `parent`, and everything below it, in the view of a transaction that has begun after
/// [`DetachedTrees::prepare`]. Waits where names are held by others. O(depth) where the rights are
/// everything, else O(names below). Returns what other front ends of the view must forget.
///
/// # Errors
/// `NotFound`; what `rights` say; `Invalid`: this is not the view of a transaction; `Interrupted`; those of
/// [`FileSystem::unlink`] and [`FileSystem::rename`]. Nothing was removed then, but for a view without a
/// directory for detached trees, where some names may have gone.
pub fn remove_tree(
    view: &FileSystem,
    caller: &Caller,
    (parent, name): (NodeId, &[u8]),
    rights: &dyn TreeRights,
) -> Result<Invalidations, TreeError> {
    let failed = |error| TreeError { below: Vec::new(), error: Box::new(error) };
    if view.txn().is_none() {
        return Err(failed(FsError::Invalid("a tree is removed in a transaction")));
    }
    view.locker().check_writable().map_err(failed)?;
    let (parent, top) = found(view, (parent, name), rights)?;
    Removal { view, caller, rights }.remove(&parent, name, &top).map_err(failed)?;
    let gone = vec![(NodeId(parent.inode), Box::from(name))];
    Ok(match top.kind {
        FileType::Directory => Invalidations { moved: gone, ..Invalidations::default() },
        _ => Invalidations {
            nodes: vec![(NodeId(top.inode), false)],
            entries: gone,
            ..Invalidations::default()
        },
    })
}

/// Looks at `name` in `parent`, and at everything below it, for what `rights` refuse. O(names below), unless
/// the rights are everything.
///
/// # Errors
/// `NotFound`; what `rights` say; store errors.
pub fn look_through(
    view: &FileSystem,
    place: (NodeId, &[u8]),
    rights: &dyn TreeRights,
) -> Result<(), TreeError> {
    found(view, place, rights).map(drop)
}

/// The directory and what is under the name in it, when nothing there and below is refused.
fn found<'v>(
    view: &'v FileSystem,
    (parent, name): (NodeId, &[u8]),
    rights: &dyn TreeRights,
) -> Result<(Pin<'v>, Pin<'v>), TreeError> {
    let mut search = Search { fs: view, rights, levels: Vec::new(), refused: None };
    search.find(parent, name).map_err(|error| TreeError { below: search.place(), error: Box::new(error) })
}

/// The directory `name` in `above`, on a walk from `top` down.
fn below_in<'v>(view: &'v FileSystem, above: &Pin<'_>, name: &[u8], top: u64) -> Result<Pin<'v>> {
    let Some(part) = &above.directory else { return Err(FsError::NotDirectory) };
    let below = view.resolver().resolve(above, name)?;
    view.rows().expect_in((above.inode, &part.placement.key(name)), below.inode, top)?;
    Ok(below)
}

/// A removal of what no right is in the way of.
struct Removal<'v, 'c> {
    view: &'v FileSystem,
    caller: &'c Caller,
    rights: &'c dyn TreeRights,
}

impl Removal<'_, '_> {
    fn remove(&self, parent: &Pin<'_>, name: &[u8], top: &Pin<'_>) -> Result<()> {
        if top.kind != FileType::Directory {
            return self.remove_names(parent, &[name]).map(drop);
        }
        let trees = match self.view.resolver().by_own_row(DETACHED_INODE) {
            Err(FsError::NotFound) => return self.remove_by_names(parent, name, top),
            trees => trees?,
        };
        let name_there = DetachedTrees::of(self.view).name_of(top.inode);
        let there = (&trees, &name_there[..]);
        self.settled(|caller| detach(self.view, caller, (parent, name), there))
    }

    /// One batch for each page of a directory.
    fn remove_by_names(&self, parent: &Pin<'_>, name: &[u8], top: &Pin<'_>) -> Result<()> {
        let at = |inode| self.view.resolver().by_own_row(inode);
        // From the tree's parent down.
        let mut levels = vec![(parent.inode, Box::default()), (top.inode, Box::from(name))];
        while let [.., (above, _), (directory, name)] = &levels[..] {
            let pin = at(*directory)?;
            let page = names_after(self.view, &pin, b"", PAGE)?;
            let mut files: Vec<&[u8]> = page.files.iter().map(AsRef::as_ref).collect();
            while !files.is_empty() {
                // Of several names of a file one at a time, and no more than one batch takes.
                let removed = self.remove_names(&pin, &files)?;
                files.drain(..removed);
            }
            if let Some(below) = page.directories.into_iter().next() {
                let inode = below_in(self.view, &pin, &below, top.inode)?.inode;
                levels.push((inode, below));
            } else if page.last.is_none() {
                self.remove_names(&at(*above)?, &[name])?;
                levels.pop();
            }
        }
        Ok(())
    }

    fn remove_names(&self, parent: &Pin<'_>, names: &[&[u8]]) -> Result<usize> {
        let (remover, check) = (Remover::new(self.view), &mut |_: &[u8], _: &Attr| Ok(()));
        self.settled(|caller| remover.remove_names(&self.view.gate(), caller, parent, names, check))
    }

    fn settled<T>(&self, operation: impl FnMut(&Caller) -> Result<T>) -> Result<T> {
        settled_by(self.caller, |ticket| self.rights.wait(ticket), operation)
    }
}

impl<'v> Search<'v, '_> {
    fn find(&mut self, parent: NodeId, name: &[u8]) -> Result<(Pin<'v>, Pin<'v>)> {
        check_name(name)?;
        let (parent, _) = self.fs.locker().pin_directory(parent)?;
        let top = self.fs.resolver().resolve(&parent, name)?;
        self.rights.check_entry(&parent.attr(), &top.attr())?;
        if top.kind == FileType::Directory && !self.rights.is_everything() {
            self.search(self.fs.resolver().resolve(&parent, name)?)?;
        }
        Ok((parent, top))
    }

    fn search(&mut self, top: Pin<'v>) -> Result<()> {
        progress::stage("looking for what may not go", progress::Unit::Items, 0);
        let inode = top.inode;
        self.enter(Box::default(), top)?;
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.directories.pop_front() {
                let directory = below_in(self.fs, &level.pin, &name, inode)?;
                self.enter(name, directory)?;
            } else if !self.look_at_page()? {
                self.levels.pop();
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: Box<[u8]>, pin: Pin<'v>) -> Result<()> {
        let attr = pin.attr();
        self.levels.push(Level { name, pin, after: Box::default(), directories: VecDeque::new() });
        if attr.size == 0 {
            return Ok(());
        }
        let wait = |ticket: &Ticket| self.rights.wait(ticket);
        settled_by(&Caller::default(), wait, |_| self.rights.check_directory(NodeId(attr.inode), &attr))
    }

    /// Notes the directories of the next page of the last one, and asks for its entries where that matters.
    /// False: there is none.
    fn look_at_page(&mut self) -> Result<bool> {
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        // A transaction is at work while it looks, though it does nothing else.
        self.fs.locker().check()?;
        let Some(part) = &level.pin.directory else { return Err(FsError::NotDirectory) };
        let attr = level.pin.attr();
        let is_asked = self.rights.depends_on_entries(&attr);
        let range = part.placement.entries_after(&level.after);
        let mut cursor = self.fs.origin.read().cursor(self.fs.keyspaces.meta, range)?;
        for number in 0..PAGE {
            cursor.next()?;
            let Some((key, bytes)) = cursor.entry() else { return Ok(number > 0) };
            let name: Box<[u8]> = key[part.placement.prefix_len()..].into();
            if is_asked {
                let entry = self.fs.resolver().resolve(&level.pin, &name)?.attr();
                self.rights.check_entry(&attr, &entry).inspect_err(|_| self.refused = Some(name.clone()))?;
            }
            if Row::decode(key, bytes)?.kind() == FileType::Directory {
                level.directories.push_back(name.clone());
            }
            level.after = name;
            progress::advance(1);
        }
        Ok(true)
    }

    /// Where it is, below the top.
    fn place(&self) -> Vec<u8> {
        let names = self.levels.iter().map(|level| &*level.name).chain(self.refused.as_deref());
        let names: Vec<&[u8]> = names.skip(1).collect();
        names.join(&b'/')
    }
}
