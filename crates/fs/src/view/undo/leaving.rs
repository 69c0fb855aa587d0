//! Trees that go again as a whole: the plan has their tops only, so what others have changed in them since is
//! looked for here.
//!
//! That is so when the removal of a tree was taken back and that is taken back in turn, and when a branch has
//! removed a tree that others have written in.
//!
//! Thread safety: belongs to one search. Memory: the directories below the tops, the names of one directory,
//! and the files with several names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use bytes::Bytes;
use kvfs_store::KeyDifference;

use super::super::compare::Place;
use super::super::diff::DiffKind;
use super::super::paths::Paths;
use super::super::restore::{Plan, Target};
use super::obstacles::{Cause, Search};
use crate::schema::{DETACHED_INODE, Header, Placement, Row};
use crate::{FileSystem, FileType, Result};

/// A directory of such a tree, as it is now.
pub(super) struct Part {
    pub(super) top: u64,
    directory: u64,
    /// Without what goes elsewhere.
    pub(super) entries: Vec<(Place, Header)>,
}

/// A walk through all of them.
pub(super) struct Leaving<'f> {
    now: &'f FileSystem,
    /// What is in them now and goes elsewhere.
    kept: BTreeSet<u64>,
    /// Directories to be visited, with the tops of their trees.
    todo: Vec<(u64, u64)>,
    seen: BTreeSet<u64>,
}

impl<'f> Leaving<'f> {
    /// `before` has the paths of the state that comes back. O(names in the plan).
    pub(super) fn new<F: Deref<Target = FileSystem>>(
        plan: &Plan,
        before: &mut Paths<F>,
        now: &'f FileSystem,
    ) -> Result<Self> {
        let goes = plan.names.iter().filter(|change| change.place.0 == DETACHED_INODE);
        let todo: Vec<_> = goes.filter_map(|change| change.then.map(|top| (top.inode, top.inode))).collect();
        let mut kept = BTreeSet::new();
        for change in plan.names.iter().filter(|_| !todo.is_empty()) {
            if let Some(then) = change.then
                && !before.is_detached(&change.place)?
            {
                kept.insert(then.inode);
            }
        }
        Ok(Self { now, kept, todo, seen: BTreeSet::new() })
    }

    pub(super) fn next(&mut self) -> Result<Option<Part>> {
        let Some((top, directory)) = self.todo.pop() else { return Ok(None) };
        let mut entries = Vec::new();
        let range = Placement::own_subtree(directory).entries_after(b"");
        let mut cursor = self.now.origin.read().cursor(self.now.keyspaces.meta, range)?;
        cursor.next()?;
        while let Some((key, value)) = cursor.entry() {
            let header = match Row::decode(key, value)? {
                Row::Inode(header, _) => header,
                Row::Directory { inode, .. } | Row::Link { inode, .. } => {
                    Row::decode_own(inode, &self.now.rows().referred_to(key, inode)?)?.0
                }
            };
            if let Some((_, name)) = Placement::parse_key(key)
                && !self.kept.contains(&header.inode)
            {
                // In a damaged tree a directory may be below itself.
                if header.kind == FileType::Directory && self.seen.insert(header.inode) {
                    self.todo.push((top, header.inode));
                }
                entries.push(((directory, Bytes::copy_from_slice(name)), header));
            }
            cursor.next()?;
        }
        Ok(Some(Part { top, directory, entries }))
    }
}

impl Search<'_> {
    /// What was made and written since in trees that go as a whole. O(names in them).
    pub(super) fn look_into_leaving(&mut self, plan: &Plan) -> Result<()> {
        let view = self.view();
        let mut leaving = Leaving::new(plan, &mut self.before, view)?;
        // Files with several names: how many of them go, and one of those.
        let mut linked: BTreeMap<u64, (u32, u64, Place, Header)> = BTreeMap::new();
        while let Some(Part { top, directory, entries }) = leaving.next()? {
            if self.is_directory_changed(directory)? {
                let own = (directory, Bytes::new());
                let cause = Cause::Leaving(top, own.clone());
                self.add_place(DiffKind::Changed, FileType::Directory, &own, cause)?;
            }
            self.look_at_leaving_names(&leaving, top, directory)?;
            for (place, header) in entries {
                if header.kind != FileType::Directory && header.nlink > 1 {
                    linked.entry(header.inode).or_insert((0, top, place, header)).0 += 1;
                }
            }
        }
        for (inode, (count, top, place, header)) in linked {
            if header.nlink <= count && self.is_file_changed(&place, inode)? {
                let cause = Cause::Leaving(top, place.clone());
                self.add_place(DiffKind::Changed, header.kind, &place, cause)?;
            }
        }
        Ok(())
    }

    /// New names in a directory, and files with one name that were written to.
    fn look_at_leaving_names(&mut self, leaving: &Leaving<'_>, top: u64, directory: u64) -> Result<()> {
        let range = Placement::own_subtree(directory).entries_after(b"");
        let mut rows = self.since.differences(self.view().keyspaces.meta, range)?;
        while let Some(KeyDifference { key, older, newer }) = rows.next_touched()? {
            let (older, now) = (Target::of(&key, older.as_ref())?, Target::of(&key, newer.as_ref())?);
            let (Some(now), Some(row), Some((_, name))) = (now, newer, Placement::parse_key(&key)) else {
                continue;
            };
            let place = (directory, key.slice_ref(name));
            let kind = if older.is_none_or(|older| older.inode != now.inode) {
                DiffKind::Added
            } else if matches!(Row::decode(&key, &row)?, Row::Inode(..))
                && self.is_file_changed(&place, now.inode)?
            {
                DiffKind::Changed
            } else {
                continue;
            };
            if !leaving.kept.contains(&now.inode) {
                self.add_place(kind, now.kind, &place, Cause::Leaving(top, place.clone()))?;
            }
        }
        Ok(())
    }

    /// Takes trees that would go as a whole out of the plan, with what was to be changed in them before: the
    /// names of that are added to `seeds`.
    pub(super) fn leave_trees(
        &mut self,
        plan: &mut Plan,
        tops: &BTreeSet<u64>,
        seeds: &mut BTreeSet<usize>,
    ) -> Result<()> {
        for (at, change) in plan.names.iter().enumerate() {
            let Some(then) = change.then else { continue };
            if tops.contains(&then.inode) || self.was_inside(tops, change.place.0)? {
                seeds.insert(at);
            }
        }
        for (inode, place) in std::mem::take(&mut plan.touched) {
            if place.1.is_empty() || !self.was_inside(tops, place.0)? {
                plan.touched.insert(inode, place);
            }
        }
        for directory in std::mem::take(&mut plan.directories) {
            if !self.was_inside(tops, directory)? {
                plan.directories.insert(directory);
            }
        }
        Ok(())
    }

    fn was_inside(&mut self, tops: &BTreeSet<u64>, directory: u64) -> Result<bool> {
        Ok(self.before.detached_tree(directory)?.is_some_and(|tree| tops.contains(&tree)))
    }
}
