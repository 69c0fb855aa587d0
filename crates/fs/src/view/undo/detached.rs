//! Detached trees that come back: what is left of them moves, what has been removed of them since is made
//! again.
//!
//! Thread safety: belongs to one search. Invariant: a [`crate::Pause`] is held, so what is found here stays
//! so until the commit. Memory: the names that have gone.

use std::collections::BTreeSet;

use bytes::Bytes;
use kvfs_store::KeyDifference;

use super::super::compare::{Place, Sides};
use super::super::diff::DiffKind;
use super::super::restore::{NameChange, Plan, Target};
use super::Area;
use super::obstacles::{Cause, Search};
use super::resolve::entries;
use crate::schema::{DETACHED_INODE, Placement, Row};
use crate::{FileSystem, FileType, FsError, Result};

/// Why a part of a tree does not come back yet. See [`crate::DetachedTrees::remove_all`].
const DIVIDED: &str =
    "a part of a removed tree comes back when the tree has gone, and something holds a part of it";

impl Search<'_> {
    /// Completes the plan of an undo that brings detached trees back. O(names below them).
    pub(super) fn bring_detached(&mut self, plan: &mut Plan) -> Result<()> {
        plan.directories.remove(&DETACHED_INODE);
        let (trees, names): (Vec<NameChange>, _) = std::mem::take(&mut plan.names)
            .into_iter()
            .partition(|change| change.place.0 == DETACHED_INODE && change.now.is_some());
        plan.names = names;
        if trees.is_empty() {
            return Ok(());
        }
        let tops = trees.iter().filter_map(|tree| Some(tree.now?.inode)).collect();
        self.drop_gone(plan, &tops)?;
        let mut known: BTreeSet<Place> = plan.names.iter().map(|change| change.place.clone()).collect();
        for tree in trees {
            let Some(target) = tree.now else { continue };
            if Target::at(self.view(), &tree.place)? == Some(target) {
                if self.is_divided(plan, target)? {
                    return Err(FsError::Busy(DIVIDED));
                }
                self.returning.insert(target.inode);
                plan.names.push(tree);
                self.complete(plan, &mut known, target.inode)?;
            } else if !self.view().rows().has_own(target.inode)? {
                self.fill(plan, &mut known, target.inode)?;
            }
        }
        // Directories that the transaction had moved in a tree, and that have gone with what was in them.
        let moved: Vec<Target> = plan.names.iter().filter_map(|change| change.then).collect();
        for Target { inode, kind } in moved {
            let is_gone = kind == FileType::Directory && !self.view().rows().has_own(inode)?;
            if is_gone && self.was_in(inode, &tops)? {
                self.fill(plan, &mut known, inode)?;
            }
        }
        plan.rename();
        Ok(())
    }

    /// What the transaction had changed in trees before it detached them, and what has gone with them since:
    /// it comes again as it was before.
    fn drop_gone(&mut self, plan: &mut Plan, tops: &BTreeSet<u64>) -> Result<()> {
        for mut change in std::mem::take(&mut plan.names) {
            if self.was_in(change.place.0, tops)? && Target::at(self.view(), &change.place)?.is_none() {
                change.now = None;
                self.dismantled.insert(change.place.0);
            }
            if change.then.is_some() || change.now.is_some() {
                plan.names.push(change);
            }
        }
        for (inode, place) in std::mem::take(&mut plan.touched) {
            // A file with several names, of which some may have been elsewhere.
            let was_in = place.1.is_empty() || self.was_in(place.0, tops)?;
            if !was_in || Target::at(self.view(), &place)?.is_some() {
                plan.touched.insert(inode, place);
            }
        }
        for directory in std::mem::take(&mut plan.directories) {
            if !self.was_in(directory, tops)? || self.view().rows().has_own(directory)? {
                plan.directories.insert(directory);
            }
        }
        Ok(())
    }

    /// Whether the transaction left a directory in one of these trees.
    fn was_in(&mut self, directory: u64, tops: &BTreeSet<u64>) -> Result<bool> {
        Ok(self.then.detached_tree(directory)?.is_some_and(|tree| tops.contains(&tree)))
    }

    /// Directories with something in the plan that were removed since, with a tree that does not come back.
    pub(super) fn look_for_removed(&mut self, plan: &Plan) -> Result<()> {
        let places = plan.names.iter().map(|change| &change.place).chain(plan.touched.values());
        let directories: BTreeSet<u64> =
            places.map(|place| place.0).chain(plan.directories.iter().copied()).collect();
        for directory in directories.into_iter().filter(|directory| *directory != DETACHED_INODE) {
            if self.is_removed(directory)? {
                let (own, cause) = ((directory, Bytes::new()), Cause::NoDirectory(directory));
                self.add_place(DiffKind::Removed, FileType::Directory, &own, cause)?;
            }
        }
        Ok(())
    }

    /// Whether a directory is in a detached tree that does not come back.
    pub(super) fn is_removed(&mut self, directory: u64) -> Result<bool> {
        Ok(self.now.detached_tree(directory)?.is_some_and(|tree| !self.returning.contains(&tree)))
    }

    /// Whether the selection names something inside of the tree, so that not all of it comes back.
    fn is_divided(&mut self, plan: &Plan, tree: Target) -> Result<bool> {
        let Some(change) = plan.names.iter().find(|change| change.then == Some(tree)) else {
            return Ok(false);
        };
        let mut inside = self.before.path(&change.place)?;
        inside.push(b'/');
        let areas = self.selection.only.iter().chain(&self.selection.skip);
        Ok(areas.into_iter().any(|area| matches!(area, Area::Path(path) if path.starts_with(&inside))))
    }

    /// What has gone of the directory `top`, which is still there, and of those below it.
    fn complete(&mut self, plan: &mut Plan, known: &mut BTreeSet<Place>, top: u64) -> Result<()> {
        let gone = Sides { before: self.done.before, after: self.view() };
        let mut todo = vec![top];
        while let Some(directory) = todo.pop() {
            let entries = Placement::own_subtree(directory).entries_after(b"");
            let mut rows = gone.differences(self.view().keyspaces.meta, entries)?;
            while let Some(KeyDifference { key, older, newer }) = rows.next()? {
                let (then, now) = (Target::of(&key, older.as_ref())?, Target::of(&key, newer.as_ref())?);
                let (Some(then), Some((_, name))) = (then, Placement::parse_key(&key)) else { continue };
                // A name that was given anew since is in the way.
                if now.is_none_or(|now| now.inode != then.inode) {
                    self.bring_gone(plan, known, (directory, key.slice_ref(name)), then)?;
                }
            }
            each_subdirectory(self.view(), (directory, top), |inode| todo.push(inode))?;
        }
        Ok(())
    }

    /// Adds a name of a tree that has gone, with all below it.
    fn bring_gone(
        &mut self,
        plan: &mut Plan,
        known: &mut BTreeSet<Place>,
        place: Place,
        then: Target,
    ) -> Result<()> {
        // A directory that was moved elsewhere since stays there.
        let is_directory = then.kind == FileType::Directory;
        if !known.insert(place.clone()) || (is_directory && self.view().rows().has_own(then.inode)?) {
            return Ok(());
        }
        self.dismantled.insert(place.0);
        plan.directories.insert(place.0);
        plan.names.push(NameChange { place, then: Some(then), now: None });
        if is_directory { self.fill(plan, known, then.inode) } else { Ok(()) }
    }

    /// All that was in a directory that has gone.
    fn fill(&mut self, plan: &mut Plan, known: &mut BTreeSet<Place>, top: u64) -> Result<()> {
        let (mut todo, mut seen) = (vec![top], BTreeSet::new());
        while let Some(directory) = todo.pop() {
            // In a damaged tree a directory may be below itself.
            if !seen.insert(directory) {
                continue;
            }
            plan.directories.remove(&directory);
            for (place, then) in entries(self.done.before, directory)? {
                let is_directory = then.kind == FileType::Directory;
                if is_directory && self.view().rows().has_own(then.inode)? {
                    continue;
                }
                if known.insert(place.clone()) {
                    plan.names.push(NameChange { place, then: Some(then), now: None });
                }
                if is_directory {
                    todo.push(then.inode);
                }
            }
        }
        Ok(())
    }
}

/// The directories in a directory of the view, which is `top` or below it.
fn each_subdirectory(
    view: &FileSystem,
    (directory, top): (u64, u64),
    mut each: impl FnMut(u64),
) -> Result<()> {
    let entries = Placement::own_subtree(directory).entries_after(b"");
    let mut cursor = view.origin.read().cursor(view.keyspaces.meta, entries)?;
    cursor.next()?;
    while let Some((key, value)) = cursor.entry() {
        if let Row::Directory { inode, .. } = Row::decode(key, value)? {
            view.rows().expect_in((directory, key), inode, top)?;
            each(inode);
        }
        cursor.next()?;
    }
    Ok(())
}
