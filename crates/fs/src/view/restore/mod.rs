//! Restoring a snapshot in place: one transaction whose changes bring everything back.
//!
//! Purpose: the difference between the snapshot and the transaction's own snapshot is undone by ordinary
//! operations of the transaction's view, so that locks, orphans, counters and the kernel's caches are treated
//! as for any other transaction: a process that has a removed file open keeps it, a change made meanwhile is
//! a conflict, and a commit shows all of it at once.
//!
//! The order: what is in a wrong place is taken away (kept things into a staging directory, the others for
//! good), then names are put back from the root down, then content and attributes, last the directories'.
//! What exists keeps its inode number; what is gone comes back as a new file with another number.
//!
//! Taking back one transaction (`view/undo`) is the same between the states before and after it, applied to
//! the present one. There others may have changed something since, in the same directories and files, and
//! that stays: what is set of an inode is then only what the transaction had changed.
//!
//! Thread safety: for one thread that may block; no other may use the view meanwhile. Invariant: the staging
//! directory is gone at the end.

mod content;
mod names;
mod plan;
mod privileges;
mod scope;

pub(super) use plan::{NameChange, Plan, Target};

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{BlockClone, KeyDifference, KeyRange, Keyspace};

use super::Origin;
use super::compare::{Place, Sides};
use super::diff::key_place;
use super::undo::Selection;
use crate::node::Pin;
use crate::{Entry, FileSystem, FsError, Result, Timestamp, settled};
use names::Staging;
use scope::Scope;

/// What a restore changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Names that were removed, moved or made.
    pub names: u64,
    /// Files and directories whose content or attributes were looked at and set.
    pub inodes: u64,
    /// Keys that were set or removed.
    pub keys: u64,
}

/// What is taken back is one transaction: what others changed since stays.
#[derive(Default)]
pub(super) struct Alone {
    /// Where inodes are after the transaction that it had moved.
    pub(super) moved: BTreeMap<u64, Place>,
    /// Times of change that directories are to have in the end, by inode.
    pub(super) mtimes: BTreeMap<u64, Timestamp>,
    /// Files whose content others have changed, too, and that get back all of what they had.
    pub(super) whole: BTreeSet<u64>,
    /// Which keys.
    pub(super) selection: Selection,
    /// Keys that stay as they are.
    pub(super) kept_keys: BTreeSet<(Keyspace, Bytes)>,
}

impl Alone {
    /// Whether a key of the keyspace of this name is taken back.
    pub(super) fn takes_key(&self, keyspace: Keyspace, name: &str, key: &Bytes) -> bool {
        self.selection.selects(&key_place(name, key), Some(name))
            && !self.kept_keys.contains(&(keyspace, key.clone()))
    }
}

/// A restore under way.
struct Restore<'f> {
    /// What is to be undone.
    sides: Sides<'f>,
    /// The view in which it is.
    target: &'f FileSystem,
    alone: Option<Alone>,
    plan: Plan,
    /// Nodes that the view must know until the end, by inode.
    pins: BTreeMap<u64, Pin<'f>>,
    /// What had to be made again: its inode in the snapshot, and now.
    made: BTreeMap<u64, u64>,
    staging: Option<Staging>,
    /// Kept things that were taken away, and those of them that have a place again.
    staged: BTreeSet<u64>,
    placed: BTreeSet<u64>,
    /// What files are to get of the snapshot's blocks.
    clones: Vec<BlockClone>,
    done: Restored,
}

/// Takes back what lies between the `sides`, whose `plan` it is, in the view `target`, of a transaction that
/// has written nothing yet. What is in the plan has not changed since, as `view/undo` has found.
pub(super) fn take_back<'f>(
    sides: Sides<'f>,
    target: &'f FileSystem,
    alone: Alone,
    plan: Plan,
) -> Result<Restored> {
    Restore::carry_out(sides, target, Some(alone), plan, true)
}

/// Brings everything in `view`, of a transaction that has written nothing yet, back to what `then`, the
/// view of a snapshot, shows: names, content, attributes but for change and creation times, extended
/// attributes, keys of all keyspaces. Nothing is committed. May block. O(what was written since), and
/// memory for the names among it.
///
/// # Errors
/// `Canceled`: another party was in the way. `NoSpace`: there is none for what comes back. On an error the
/// caller must abort the transaction.
pub fn restore(view: &FileSystem, then: &FileSystem) -> Result<Restored> {
    let sides = sides_to_restore(view, then)?;
    Restore::carry_out(sides, view, None, Plan::new(sides)?, true)
}

/// As [`restore`], but only what `paths` lead to, from the root on, with all below it; nothing else changes,
/// and no key. A file with names elsewhere is one file. O(what was written since, names below the paths).
///
/// # Errors
/// As [`restore`]; [`FsError::NotRestored`]: a path is not in the snapshot, or what is there can't be
/// brought back alone.
pub fn restore_paths(view: &FileSystem, then: &FileSystem, paths: &[Bytes]) -> Result<Restored> {
    let sides = sides_to_restore(view, then)?;
    let plan = Plan::within(sides, &Scope::new(sides, paths)?)?;
    Restore::carry_out(sides, view, None, plan, false)
}

fn sides_to_restore<'f>(now: &'f FileSystem, then: &'f FileSystem) -> Result<Sides<'f>> {
    if now.origin.txn().is_none() || !matches!(then.origin, Origin::Snapshot(_)) {
        return Err(FsError::Invalid("a snapshot is restored in a transaction"));
    }
    if let Some(txn) = now.txn() {
        txn.begin_restore();
    }
    Ok(Sides { before: then, after: now })
}

impl<'f> Restore<'f> {
    fn carry_out(
        sides: Sides<'f>,
        target: &'f FileSystem,
        alone: Option<Alone>,
        plan: Plan,
        with_keys: bool,
    ) -> Result<Restored> {
        let mut restore = Restore {
            sides,
            target,
            alone,
            plan,
            pins: BTreeMap::new(),
            made: BTreeMap::new(),
            staging: None,
            staged: BTreeSet::new(),
            placed: BTreeSet::new(),
            clones: Vec::new(),
            done: Restored::default(),
        };
        let names = restore.plan.names.iter();
        let steps: usize =
            names.map(|change| usize::from(change.now.is_some()) + usize::from(change.then.is_some())).sum();
        let steps = steps + restore.plan.touched.len();
        progress::stage("bringing back", Unit::Items, steps as u64);
        restore.take_away()?;
        restore.put_back()?;
        restore.remove_staging()?;
        restore.set_files()?;
        restore.apply_clones()?;
        restore.set_directories()?;
        if with_keys {
            restore.set_keys()?;
        }
        Ok(restore.done)
    }

    /// The view that is changed.
    fn now(&self) -> &'f FileSystem {
        self.target
    }

    /// The view of the snapshot.
    fn then(&self) -> &'f FileSystem {
        self.sides.before
    }

    /// Keeps what an operation has answered.
    fn adopt(&mut self, entry: Entry) -> Result<u64> {
        let inode = entry.node.0;
        self.pins.insert(inode, self.now().locker().pin(entry.node)?);
        self.now().forget(entry.node, 1);
        Ok(inode)
    }

    /// Makes what has a row of its own known, and keeps it so.
    fn know_own(&mut self, inode: u64) -> Result<u64> {
        if !self.pins.contains_key(&inode) {
            self.pins.insert(inode, self.now().resolver().by_own_row(inode)?);
        }
        Ok(inode)
    }

    /// The inode that stands for an inode of the snapshot now.
    fn counterpart(&self, inode: u64) -> u64 {
        self.made.get(&inode).copied().unwrap_or(inode)
    }

    fn set_files(&mut self) -> Result<()> {
        for (inode, place) in std::mem::take(&mut self.plan.touched) {
            progress::check_wanted()?;
            self.set_file(inode, &place)?;
            progress::advance(1);
        }
        Ok(())
    }

    /// Brings a file that both sides have back.
    fn set_file(&mut self, inode: u64, place: &Place) -> Result<()> {
        // Seen from the snapshot: what is there only now has been taken away.
        let Some((header, content)) = self.then().rows().at(place)? else { return Ok(()) };
        if header.inode != inode {
            return Ok(());
        }
        let known = self.pins.contains_key(&inode);
        match self.know_file(inode, place) {
            // Others have moved or removed it since; had there been anything to set, that would be in the
            // way.
            Ok(false) | Err(FsError::NotFound) if self.alone.is_some() => return Ok(()),
            Ok(false) => {
                return Err(FsError::corrupt(format!("inode {inode}"), "a restored name leads elsewhere"));
            }
            Ok(true) => {}
            Err(error) => return Err(error),
        }
        if self.alone.is_some() {
            self.undo_inode(inode, place, &header, &content)?;
        } else {
            self.set_inode(inode, &header, &content)?;
        }
        if !known {
            self.pins.remove(&inode);
        }
        Ok(())
    }

    /// Pins the file at its place now. False: another one is there.
    fn know_file(&mut self, inode: u64, place: &Place) -> Result<bool> {
        if place.1.is_empty() {
            self.know_own(inode)?;
        } else if !self.pins.contains_key(&inode) {
            let parent = self.know_own(self.counterpart(place.0))?;
            let pin = self.now().resolver().resolve(&self.pins[&parent], &place.1)?;
            if pin.inode != inode {
                return Ok(false);
            }
            self.pins.insert(inode, pin);
        }
        Ok(true)
    }

    /// Makes a keyspace again that was dropped since, for its owner of then; it stays when nothing is
    /// committed.
    fn make_keyspace(&self, name: &str) -> Result<()> {
        if self.now().keys().keyspace(name)?.is_none()
            && let Some(owner) = self.then().keys().owner_then(name)?
        {
            self.now().keys().make_keyspace(name, owner)?;
        }
        Ok(())
    }

    fn set_keys(&mut self) -> Result<()> {
        for info in self.now().shared.keyspaces.user_keyspaces() {
            let mut keys = self.sides.differences(info.keyspace, KeyRange::all())?;
            while let Some(KeyDifference { key, older, .. }) = keys.next()? {
                let alone = self.alone.as_ref();
                if alone.is_some_and(|alone| !alone.takes_key(info.keyspace, &info.name, &key)) {
                    continue;
                }
                let find = || {
                    if older.is_some() {
                        self.make_keyspace(&info.name)?;
                    }
                    Ok(Some(info.keyspace))
                };
                settled(|caller| self.now().keys().set_found(caller, find, &key, older.as_ref())?)?;
                self.done.keys += 1;
            }
        }
        Ok(())
    }
}
