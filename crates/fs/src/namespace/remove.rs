//! Removing names. What loses its last name becomes an orphan, in the same batch.

use kvfs_store::{Batch, DELETING_BYTES_MAX, Keyspace};
use kvfs_txn::Want;

use super::{Resolver, directory_removal_wants, directory_wants, entry_want, row_wants};
use crate::node::{Node, Pin};
use crate::orphan::Orphans;
use crate::quota::Gate;
use crate::schema::check_name;
use crate::view::{Locker, Origin};
use crate::{Attr, Caller, FileSystem, FileType, FsError, INLINE_LEN_LIMIT, NodeId, Result};

/// A batch of removals that has become as large as this gets no more of them (bytes): with the last one,
/// which may move a row with the longest content to the orphans, it still counts as deleting.
const REMOVAL_BYTES: usize = DELETING_BYTES_MAX / 2;

/// Most bytes of a removal beside the content of its row: keys, names, headers, the patch of the directory.
const BESIDE_CONTENT_BYTES: usize = 4 << 10;

const _: () = {
    let row_bytes = INLINE_LEN_LIMIT as usize + BESIDE_CONTENT_BYTES;
    assert!(REMOVAL_BYTES + row_bytes <= DELETING_BYTES_MAX);
    // A rename over a file moves its own row, too.
    assert!(2 * row_bytes <= DELETING_BYTES_MAX);
};

impl FileSystem {
    /// Removes the name of something that is no directory. One batch.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, …
    pub fn unlink(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        Remover::new(self).remove(&self.gate(), caller, (parent, name), None, false)
    }

    /// Removes an empty directory. One batch.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, …
    pub fn rmdir(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<()> {
        Remover::new(self).remove(&self.gate(), caller, (parent, name), None, true)
    }
}

/// As [`FileSystem::unlink`], or [`FileSystem::rmdir`] of a directory, of what a caller has found under the
/// name and may remove: `victim`.
///
/// # Errors
/// `NameChanged`; as these.
pub fn remove_found(
    fs: &FileSystem,
    caller: &Caller,
    (parent, name): (NodeId, &[u8]),
    victim: NodeId,
    directory: bool,
) -> Result<()> {
    Remover::new(fs).remove(&fs.gate(), caller, (parent, name), Some(victim), directory)
}

/// Removes names of a view.
pub(crate) struct Remover<'v> {
    origin: &'v Origin,
    meta: Keyspace,
    locker: Locker<'v>,
    resolver: Resolver<'v>,
    orphans: Orphans<'v>,
}

impl<'v> Remover<'v> {
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self {
            origin: &fs.origin,
            meta: fs.keyspaces.meta,
            locker: fs.locker(),
            resolver: fs.resolver(),
            orphans: fs.orphans(),
        }
    }

    fn remove(
        &self,
        gate: &Gate<'_>,
        caller: &Caller,
        (parent, name): (NodeId, &[u8]),
        expected: Option<NodeId>,
        directory: bool,
    ) -> Result<()> {
        check_name(name).map_err(|error| if name == b".." { FsError::NotEmpty } else { error })?;
        self.locker.check_writable()?;
        let (parent, _) = self.locker.pin_directory(parent)?;
        let check = &mut |_: &[u8], victim: &Attr| match (victim.kind == FileType::Directory, directory) {
            _ if expected.is_some_and(|expected| expected.0 != victim.inode) => Err(FsError::NameChanged),
            (true, false) => Err(FsError::IsDirectory),
            (false, true) => Err(FsError::NotDirectory),
            _ => Ok(()),
        };
        self.remove_names(gate, caller, &parent, &[name], check).map(drop)
    }

    /// Removes names of a directory, as long as `check` has no objection, which is asked under their latches.
    /// One batch, which a full store lets in. Returns how many: a name of a file that is among them already
    /// stays, with those behind it, and so do those for which the batch is too large.
    ///
    /// # Errors
    /// `Parked`; `NotFound`; what `check` says; `NotEmpty`; store errors. Nothing was removed then.
    pub(crate) fn remove_names(
        &self,
        gate: &Gate<'_>,
        caller: &Caller,
        parent: &Pin<'_>,
        names: &[&[u8]],
        check: &mut dyn FnMut(&[u8], &Attr) -> Result<()>,
    ) -> Result<usize> {
        let Some(part) = &parent.directory else { return Err(FsError::NotDirectory) };
        let directory = parent.inode;
        let mut wants = directory_wants(directory).to_vec();
        wants.extend(names.iter().map(|name| entry_want(directory, name)));
        let mut guard = self.locker.latch(caller, &wants)?;
        let mut victims: Vec<Pin<'_>> = Vec::with_capacity(names.len());
        for &name in names {
            let victim = self.resolver.resolve(parent, name)?;
            if victims.iter().any(|other| other.inode == victim.inode) {
                break;
            }
            check(name, &victim.attr())?;
            victims.push(victim);
        }
        let wants: Vec<_> = victims.iter().flat_map(|victim| removal_wants(victim)).collect();
        guard.try_extend(&wants)?;
        let mut batch = Batch::new();
        let mut removals = Vec::with_capacity(victims.len());
        for (victim, name) in victims.iter().zip(names) {
            if batch.payload_bytes() >= REMOVAL_BYTES {
                break;
            }
            batch.delete(self.meta, part.placement.key(name));
            removals.push(self.orphans.stage_removal(gate, &mut batch, victim, &mut guard)?);
            self.stage_emptied(&mut batch, victim);
        }
        victims.truncate(removals.len());
        let directories = victims.iter().filter(|victim| victim.kind == FileType::Directory).count();
        let patch = guard.counted(parent, -(victims.len() as i64), -(directories as i32))?;
        batch.merge(self.meta, part.placement.own_key(), patch.encode(directory));
        let position = self.origin.apply(batch)?;
        for (removal, victim) in removals.into_iter().zip(&victims) {
            removal.tell(victim, position);
        }
        parent.update(&patch, position);
        part.note_removed(victims.len() as u64);
        Ok(victims.len())
    }

    /// Tells the engine that nothing is left in a directory that goes and was large: it then drops what was
    /// there without reading it again (BetrFS 0.2, section 5). In views it is left out: a range there would
    /// be a part of what conflicts are looked for.
    fn stage_emptied(&self, batch: &mut Batch, victim: &Node) {
        let Some(emptied) = victim.directory.as_ref().filter(|emptied| emptied.was_large()) else { return };
        let takes_ranges =
            matches!(self.origin, Origin::Main(store) if store.capabilities().range_delete_constant);
        let range = emptied.placement.entries_after(b"");
        if let Some(end) = range.end.filter(|_| takes_ranges) {
            batch.delete_range(self.meta, range.start, end);
        }
    }
}

/// What removing (one name of) an inode needs.
pub(crate) fn removal_wants(victim: &Node) -> Vec<Want<'static>> {
    if victim.kind == FileType::Directory {
        directory_removal_wants(victim.inode).to_vec()
    } else {
        row_wants(victim.inode).to_vec()
    }
}
