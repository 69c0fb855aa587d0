//! Clones: a file, or a directory with all that is below it, a second time under another name, in one
//! transaction.
//!
//! The clone has rows of its own, so it is a tree like any other: nothing of it depends on what it was made
//! of. Blocks are not copied where the engine can refer to them in two places
//! ([`kvfs_store::Txn::clone_blocks`]); content in rows is.
//!
//! What is made is unknown to all others before its top gets its name, in the last batch. So no names are
//! taken for it, and no nodes are made of it; memory is that of the levels of the tree, and of numbers for
//! its files with several names. Where the clone fails, everything under the numbers that it took is deleted
//! again.
//!
//! Where others change the view meanwhile, the entries of a page and what they lead to are held until they
//! are cloned, those of small directories together: each file is whole, as is each page of names, and a
//! directory that was passed may have changed since. A commit is refused as long as it is under way.
//!
//! Thread safety: for one thread that may block. Invariant: only in the view of a transaction or on a branch.

mod copier;
mod walk;

use kvfs_txn::{Doom, DoomReason, Fields, LockName, Want};

use crate::namespace::entry_wants;
use crate::node::Pin;
use crate::schema::{Placement, check_name, encode_directory_link, encode_row};
use crate::view::{Names, TxnView};
use crate::{
    Attr, Caller, FileSystem, FileType, FsError, Invalidations, LINK_MAX, NodeId, Project, Result, Ticket,
    TreeError, settled_by,
};
use copier::{Copier, Made};
use walk::Walk;

/// What may be cloned, and whose the clone is, as far as the file system does not know.
pub trait CloneRights {
    /// Whether nothing is refused, and everything keeps its owner and its privileges.
    fn is_everything(&self) -> bool;

    /// Refuses to read this file, or to list and search this directory. Asked for the top, and for everything
    /// below it. May park, and is asked again then.
    ///
    /// # Errors
    /// `AccessDenied`, `NotPermitted` for what the caller may not make, or whatever ends the clone.
    fn check_source(&self, node: NodeId, attr: &Attr) -> Result<()>;

    /// User and group of the clone of an inode with these attributes. Where these are others than the
    /// inode's, set-id bits and capabilities are not taken over.
    fn owner_of(&self, attr: &Attr) -> (u32, u32);

    /// Whether the view is changed by this operation alone, so that nothing has to be held.
    fn is_alone(&self) -> bool;

    /// Waits until an operation is worth trying again. False: the clone is not wanted any more, and the
    /// ticket was cancelled.
    fn wait(&self, ticket: &Ticket) -> bool {
        ticket.wait();
        true
    }
}

/// What was cloned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cloned {
    /// Names that were made, that of the top among them.
    pub names: u64,
    /// Bytes of files whose content is in blocks, each counted once; holes count.
    pub bytes: u64,
}

/// Clones what is under `source` to `target`, which must not exist, in the view of a transaction. Waits where
/// names are held by others. Says what a front end of the view must forget. O(names), and O(stretches of
/// blocks on the device) of content.
///
/// # Errors
/// `NotFound`; `Exists`; what `rights` say; `Invalid` where a directory would come into itself, and in a view
/// that is not that of a transaction; `OtherProject` where the directory of the target got another one
/// meanwhile; `QuotaExceeded`, `NoSpace`; `Interrupted`. Nothing was made then.
pub fn clone_tree(
    view: &FileSystem,
    caller: &Caller,
    source: (NodeId, &[u8]),
    target: (NodeId, &[u8]),
    rights: &dyn CloneRights,
) -> Result<(Cloned, Invalidations), TreeError> {
    let failed = |error| TreeError { below: Vec::new(), error: Box::new(error) };
    if view.txn().is_none() {
        return Err(failed(FsError::Invalid("a clone is made in a transaction")));
    }
    let _under_way = view.txn().map(TxnView::begin_long_operation).transpose().map_err(failed)?;
    let job = Job { fs: view, caller, rights };
    job.fs.locker().check_writable().map_err(failed)?;
    let top = job.found(source).map_err(failed)?;
    let parent = job.place_for(&top, target).map_err(failed)?;
    job.settled(|_| rights.check_source(NodeId(top.inode), &top.attr())).map_err(failed)?;
    let mut copier = Copier::new(job, Project::of_new(&parent.header(), top.kind));
    match make(&mut copier, &top, (&parent, target.1)) {
        Ok(cloned) => Ok((cloned, told(&parent, target.1))),
        Err(error) => {
            // What was made is in the transaction, and has no name. One that is over or doomed takes it
            // along.
            if let Err(left) = copier.discard()
                && job.fs.origin.check_alive().is_ok()
            {
                tracing::error!(%left, "a clone that failed can't be taken away: its transaction is given up");
                job.give_up();
            }
            Err(error)
        }
    }
}

/// Makes all of the clone, and gives it its name.
fn make<'v>(
    copier: &mut Copier<'v, '_>,
    top: &Pin<'v>,
    place: (&Pin<'v>, &[u8]),
) -> Result<Cloned, TreeError> {
    let failed = |error| TreeError { below: Vec::new(), error: Box::new(error) };
    let job = copier.job();
    let held = job.hold(&[(top.inode, top.kind)]).map_err(failed)?;
    let (made, cloned) = if top.kind == FileType::Directory {
        let walk = Walk::new(copier, top, place.0.inode).map_err(failed)?;
        drop(held);
        let made = walk.clone_all()?;
        (made, copier.finish().map_err(failed)?)
    } else {
        let made = copier.clone_top(top).map_err(failed)?;
        let cloned = copier.finish().map_err(failed)?;
        drop(held);
        (made, cloned)
    };
    job.settled(|caller| job.attach(caller, place, &made)).map_err(failed)?;
    Ok(cloned)
}

/// What a front end must forget, which may know that nothing was there.
fn told(parent: &Pin<'_>, name: &[u8]) -> Invalidations {
    let parent = NodeId(parent.inode);
    Invalidations {
        nodes: vec![(parent, false)],
        entries: vec![(parent, Box::from(name))],
        ..Invalidations::default()
    }
}

/// On whose behalf a clone is made, and in which view.
#[derive(Clone, Copy)]
struct Job<'v, 'c> {
    fs: &'v FileSystem,
    caller: &'c Caller,
    rights: &'c dyn CloneRights,
}

/// What must not change of an inode while it is cloned.
fn wants_of<'n>(inode: u64, kind: FileType) -> impl Iterator<Item = Want<'n>> {
    let content = match kind {
        FileType::Regular => Some(LockName::Blocks { inode, first: 0, end: u64::MAX }),
        _ => None,
    };
    let all = LockName::Attributes { inode, fields: Fields::ALL };
    [Some(all), content].into_iter().flatten().map(Want::shared)
}

impl<'v> Job<'v, '_> {
    fn settled<T>(&self, operation: impl FnMut(&Caller) -> Result<T>) -> Result<T> {
        settled_by(self.caller, |ticket| self.rights.wait(ticket), operation)
    }

    /// What is under the name, locked where the view locks what it reads.
    fn found(&self, (parent, name): (NodeId, &[u8])) -> Result<Pin<'v>> {
        check_name(name)?;
        let (parent, _) = self.fs.locker().pin_directory(parent)?;
        let want = [Want::shared(LockName::Entry { directory: parent.inode, name })];
        self.settled(|caller| self.fs.locker().lock_read(caller, &want))?;
        self.fs.resolver().resolve(&parent, name)
    }

    /// Keeps inodes as they are until it is dropped, and locks them where the view locks what it reads.
    fn hold(&self, inodes: &[(u64, FileType)]) -> Result<Option<Names<'v>>> {
        if self.rights.is_alone() {
            return Ok(None);
        }
        let wants: Vec<_> = inodes.iter().flat_map(|&(inode, kind)| wants_of(inode, kind)).collect();
        self.settled(|caller| self.fs.locker().latch_to_read(caller, &wants)).map(Some)
    }

    /// The transaction can't be committed any more.
    fn give_up(&self) {
        if let Some(locks) = self.fs.txn().and_then(|view| view.locks.as_ref()) {
            locks.doom(Doom::new(DoomReason::Aborted));
        }
    }

    /// The directory that gets the clone.
    fn place_for(&self, top: &Pin<'_>, (parent, name): (NodeId, &[u8])) -> Result<Pin<'v>> {
        check_name(name)?;
        let (parent, directory) = self.fs.locker().pin_directory(parent)?;
        if parent.is_orphan() {
            return Err(FsError::NotFound);
        }
        if self.fs.rows().get(&directory.placement.key(name))?.is_some() {
            return Err(FsError::Exists);
        }
        if top.kind == FileType::Directory {
            let (above, ended) = self.fs.resolver().ancestors(&parent)?;
            ended?;
            if above.contains(&top.inode) {
                return Err(FsError::Invalid("a directory can't be cloned into itself"));
            }
        }
        Ok(parent)
    }

    /// Gives the clone its name, in a directory that hands down the project which it was made for.
    fn attach(&self, caller: &Caller, (parent, name): (&Pin<'_>, &[u8]), made: &Made) -> Result<()> {
        let Some(directory) = &parent.directory else { return Err(FsError::NotDirectory) };
        let gate = self.fs.gate();
        let mut guard = self.fs.locker().latch(caller, &entry_wants(parent.inode, name))?;
        if parent.is_orphan() {
            return Err(FsError::NotFound);
        }
        let meta = self.fs.keyspaces.meta;
        let key = directory.placement.key(name);
        if self.fs.rows().get(&key)?.is_some() {
            return Err(FsError::Exists);
        }
        // Settled from here on; it may have changed since.
        if Project::of_new(&parent.header(), made.header.kind) != made.header.project() {
            return Err(FsError::OtherProject);
        }
        let is_directory = made.header.kind == FileType::Directory;
        if is_directory && parent.header().nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let mut batch = made.beside.clone();
        // A directory has its row, and is counted, by now.
        let counted = (!is_directory).then_some(&made.header);
        let row = if is_directory {
            encode_directory_link(made.header.inode, &Placement::own_subtree(made.header.inode))
        } else {
            encode_row(&made.header, &made.content)
        };
        batch.put(meta, key, row);
        let patch = guard.counted(parent, 1, i32::from(is_directory))?;
        batch.merge(meta, directory.placement.own_key(), patch.encode(parent.inode));
        let position = gate.apply_counted(caller, batch, None, counted)?;
        parent.update(&patch, position);
        Ok(())
    }
}
