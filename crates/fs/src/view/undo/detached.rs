//! Detached trees that come back: what is left of them moves, what has been removed of them since is made again.
//!
//! Thread safety: belongs to one search. Invariant: a [`crate::Pause`] is held, so what is found here stays so until the commit.
//! Memory: the names that have gone.

use std::collections::BTreeSet;

use bytes::Bytes;
use kvfs_store::KeyDifference;

use super::super::compare::{Place, Sides};
use super::super::diff::DiffKind;
use super::super::restore::{NameChange, Plan, Target};
use super::Area;
use super::obstacles::{Cause, Search};
use super::resolve::target_at;
use crate::schema::{DETACHED_INODE, Placement, Row};
use crate::{FileType, FsError, Result};

/// Why a part of a tree does not come back yet. See [`crate::DetachedTrees::remove_all`].
const DIVIDED: &str =
    "a part of a removed tree comes back when the tree has gone, and something holds a part of it";

impl Search<'_> {
    /// Completes the plan of an undo that brings detached trees back. O(names below them).
    pub(super) fn bring_detached(&mut self, plan: &mut Plan) -> Result<()> {
        plan.directories.remove(&DETACHED_INODE);
        let (trees, names) = std::mem::take(&mut plan.names)
            .into_iter()
            .partition(|change| change.place.0 == DETACHED_INODE && change.now.is_some());
        plan.names = names;
        let trees: Vec<NameChange> = trees;
        for tree in trees {
            let Some(target) = tree.now else { continue };
            if target_at(self.view(), &tree.place)? == Some(target) {
                if self.is_divided(plan, target)? {
                    return Err(FsError::Busy(DIVIDED));
                }
                self.returning.insert(target.inode);
                plan.names.push(tree);
                self.complete(plan, target.inode)?;
            } else if !self.view().rows().has_own(target.inode)? {
                // All of it has gone by now.
                plan.directories.remove(&target.inode);
                self.fill_too(plan, target.inode)?;
            }
        }
        plan.rename();
        Ok(())
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
    fn complete(&mut self, plan: &mut Plan, top: u64) -> Result<()> {
        let gone = Sides { before: self.done.before, after: self.view() };
        let mut todo = vec![top];
        while let Some(directory) = todo.pop() {
            let entries = Placement::own_subtree(directory).entries_after(b"");
            let mut rows = gone.differences(self.view().keyspaces.meta, entries)?;
            while let Some(KeyDifference { key, older, newer: None }) = rows.next()? {
                let (Some(then), Some((_, name))) =
                    (Target::of(&key, older.as_ref())?, Placement::parse_key(&key))
                else {
                    continue;
                };
                // A directory that was moved elsewhere since stays there.
                let is_directory = then.kind == FileType::Directory;
                if is_directory && self.view().rows().has_own(then.inode)? {
                    continue;
                }
                self.dismantled.insert(directory);
                plan.directories.insert(directory);
                let place: Place = (directory, key.slice_ref(name));
                plan.names.push(NameChange { place, then: Some(then), now: None });
                if is_directory {
                    self.fill_too(plan, then.inode)?;
                }
            }
            self.each_subdirectory(directory, |inode| todo.push(inode))?;
        }
        Ok(())
    }

    /// The directories in a directory as it is now.
    fn each_subdirectory(&self, directory: u64, mut each: impl FnMut(u64)) -> Result<()> {
        let view = self.view();
        let entries = Placement::own_subtree(directory).entries_after(b"");
        let mut cursor = view.origin.read().cursor(view.keyspaces.meta, entries)?;
        cursor.next()?;
        while let Some((key, value)) = cursor.entry() {
            if let Row::Directory { inode, .. } = Row::decode(key, value)? {
                each(inode);
            }
            cursor.next()?;
        }
        Ok(())
    }
}
