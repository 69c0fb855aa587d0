//! A transaction that is about to be taken back: what is in the way, what it does to which files, and doing
//! it.
//!
//! Thread safety: for one thread that may block. Invariant: the plan is final: what [`Planned::effects`]
//! tells is what [`Planned::carry_out`] does, however a selection or force has grown it.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::compare::{Place, Sides};
use super::super::paths::Paths;
use super::super::restore::{Alone, Plan, take_back};
use super::leaving::{Leaving, Part};
use super::obstacles::{Search, rights};
use super::{Obstacle, Selection, TakenBack};
use crate::schema::DETACHED_INODE;
use crate::{FileSystem, Result};

/// See the module.
pub struct Planned<'f> {
    sides: Sides<'f>,
    view: &'f FileSystem,
    obstacles: Vec<Obstacle>,
    alone: Alone,
    plan: Plan,
}

/// What taking a transaction back does to files and directories, for who has to know whether a user may.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// What is made, removed, moved or changed, as it was before the transaction and as it is now: a path,
    /// and the user that it belongs to.
    pub owned: Vec<(Vec<u8>, u32)>,
    /// Directories of the present in which names come or go.
    pub directories: Vec<Vec<u8>>,
}

impl<'f> Planned<'f> {
    /// To bring what differs from `before` to `after` of the `sides` to what it is before, in `view`.
    pub(in crate::view) fn new(
        sides: Sides<'f>,
        view: &'f FileSystem,
        selection: &Selection,
    ) -> Result<Self> {
        let (obstacles, alone, plan) = Search::new(sides, view, selection)?.run()?;
        Ok(Self { sides, view, obstacles, alone, plan })
    }

    /// What is in the way; none: it can be done.
    pub fn into_obstacles(self) -> Vec<Obstacle> {
        self.obstacles
    }

    /// Whether nothing is in the way.
    pub fn is_free(&self) -> bool {
        self.obstacles.is_empty()
    }

    /// What it does; keys are not among it. O(names and files that it changes).
    ///
    /// # Errors
    /// Store errors.
    pub fn effects(&self) -> Result<Effects> {
        let root = self.view.nodes.root().0;
        let mut before = Side { fs: self.sides.before, paths: Paths::below(self.sides.before, root) };
        let mut now = Side { fs: self.view, paths: Paths::below(self.view, root) };
        let (mut owned, mut directories) = (Vec::new(), BTreeSet::new());
        for change in &self.plan.names {
            if let Some(then) = change.then {
                owned.extend(before.owner(then.inode, &change.place)?);
            }
            for target in [change.then, change.now].into_iter().flatten() {
                owned.extend(now.owner(target.inode, &change.place)?);
                // Where others have moved it since, or one of its other names leads to it.
                owned.extend(now.owner(target.inode, &own(target.inode))?);
            }
            directories.insert(change.place.0);
        }
        for (&inode, place) in &self.plan.touched {
            owned.extend(before.owner(inode, place)?);
            owned.extend(now.owner(inode, self.alone.moved.get(&inode).unwrap_or(place))?);
        }
        for &directory in &self.plan.directories {
            if self.changes_rights(directory)? {
                owned.extend(before.owner(directory, &own(directory))?);
                owned.extend(now.owner(directory, &own(directory))?);
            }
        }
        // Of trees that go as a whole the names are the tops': what is below and another's is told, too.
        let mut leaving = Leaving::new(&self.plan, &mut before.paths, self.view)?;
        while let Some(Part { top, entries, .. }) = leaving.next()? {
            let Some((above, _)) = self.view.rows().at(&own(top))? else { continue };
            for (place, header) in entries.iter().filter(|(_, header)| header.uid != above.uid) {
                owned.push((now.paths.path(place)?, header.uid));
            }
        }
        directories.remove(&DETACHED_INODE);
        let mut paths = Vec::with_capacity(directories.len());
        for directory in directories {
            // One that comes back itself is the user's, or told of above.
            if self.view.rows().has_own(directory)? {
                paths.push(now.paths.path(&own(directory))?);
            }
        }
        Ok(Effects { owned, directories: paths })
    }

    /// Whether the transaction changed more of a directory than its entries.
    fn changes_rights(&self, directory: u64) -> Result<bool> {
        let Sides { before, after } = self.sides;
        let own = own(directory);
        let (Some((then, _)), Some((after, _))) = (before.rows().at(&own)?, after.rows().at(&own)?) else {
            return Ok(false);
        };
        Ok(rights(&then) != rights(&after) || self.sides.differ_in(self.view.keyspaces.xattr, directory)?)
    }

    /// Does it, unless something is in the way. Nothing is committed. O(what the transaction wrote).
    ///
    /// # Errors
    /// As [`crate::restore`].
    pub fn carry_out(self) -> Result<TakenBack> {
        if !self.is_free() {
            return Ok(TakenBack::Refused(self.obstacles));
        }
        let Self { sides, view, alone, plan, .. } = self;
        take_back(sides, view, alone, plan).map(TakenBack::Done)
    }
}

fn own(inode: u64) -> Place {
    (inode, Bytes::new())
}

/// A state, and paths in it.
struct Side<'f> {
    fs: &'f FileSystem,
    paths: Paths<&'f FileSystem>,
}

impl Side<'_> {
    /// Path and owner of the inode, if it is at `place`.
    fn owner(&mut self, inode: u64, place: &Place) -> Result<Option<(Vec<u8>, u32)>> {
        let is_there = !place.1.is_empty() || self.fs.rows().has_own(inode)?;
        match if is_there { self.fs.rows().at(place)? } else { None } {
            Some((header, _)) if header.inode == inode => Ok(Some((self.paths.path(place)?, header.uid))),
            _ => Ok(None),
        }
    }
}
