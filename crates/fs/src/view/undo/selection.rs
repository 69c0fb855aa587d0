//! Which part of a change is meant, and what becomes of obstacles there.
//!
//! Purpose: names that belong together stay together. A file that was moved has both names in a part or none;
//! what is put into a directory needs the directory; a directory is removed with all that is in it.
//!
//! Thread safety: plain values.

use std::collections::BTreeSet;

use super::super::compare::Place;
use super::super::restore::{NameChange, Plan};
use super::obstacles::Search;
use crate::Result;

/// A part of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Area {
    /// All files and keys.
    All,
    /// What a path leads to, and all below it; as [`Area::path`] makes it.
    Path(Vec<u8>),
    /// Keys: a keyspace, a slash, and what the key begins with.
    Keys(Vec<u8>),
}

impl Area {
    /// What is at and below a path from the root of the store.
    pub fn path(path: &[u8]) -> Self {
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        Self::Path(names.flat_map(|name| [b"/", name].concat()).collect())
    }

    /// Whether it contains a path, or (`is_key`) a keyspace, a slash and a key.
    pub fn covers(&self, place: &[u8], is_key: bool) -> bool {
        match self {
            Self::All => true,
            Self::Path(path) => {
                let rest = place.strip_prefix(&path[..]).filter(|_| !is_key);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            }
            Self::Keys(prefix) => is_key && place.starts_with(prefix),
        }
    }
}

/// What of a change is done. The default is all of it, if nothing is in the way.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Only this; nothing: everything.
    pub only: Vec<Area>,
    /// Not this.
    pub skip: Vec<Area>,
    /// What is in the way here is overwritten.
    pub force: Vec<Area>,
    /// What is in the way here stays as it is, and the rest is done.
    pub keep: Vec<Area>,
    /// Only this user's files are overwritten by force; `None`: all.
    pub uid: Option<u32>,
}

impl Selection {
    /// Whether a path or key is to be changed, if nothing is in the way.
    pub fn selects(&self, place: &[u8], is_key: bool) -> bool {
        (self.only.is_empty() || covers(&self.only, place, is_key)) && !covers(&self.skip, place, is_key)
    }

    /// Whether a file at these paths is to be changed: one of them is meant, and none is left out.
    fn selects_one_of(&self, paths: &[Vec<u8>]) -> bool {
        let any = |areas: &[Area]| paths.iter().any(|path| covers(areas, path, false));
        (self.only.is_empty() || any(&self.only)) && !any(&self.skip)
    }

    /// Whether it depends on paths, beyond all and nothing.
    pub(super) fn has_paths(&self) -> bool {
        let lists = [&self.only, &self.skip, &self.force, &self.keep];
        lists.into_iter().flatten().any(|area| matches!(area, Area::Path(_)))
    }

    /// Whether something is left out.
    pub fn is_limited(&self) -> bool {
        !self.only.is_empty() || !self.skip.is_empty()
    }
}

/// How closely the closest of `areas` that contain the place says where; `None`: none does.
pub(super) fn closest(areas: &[Area], place: &[u8], is_key: bool) -> Option<usize> {
    let len = |area: &Area| match area {
        Area::All => 0,
        Area::Path(place) | Area::Keys(place) => 1 + place.len(),
    };
    areas.iter().filter(|area| area.covers(place, is_key)).map(len).max()
}

fn covers(areas: &[Area], place: &[u8], is_key: bool) -> bool {
    areas.iter().any(|area| area.covers(place, is_key))
}

impl Search<'_> {
    /// Leaves in `plan` what the selection means.
    pub(super) fn limit(&mut self, plan: &mut Plan) -> Result<()> {
        if !self.selection.is_limited() {
            return Ok(());
        }
        if self.selection.has_paths() {
            self.learn_names(plan)?;
        }
        let mut paths = Vec::with_capacity(plan.names.len());
        for change in &plan.names {
            paths.push(self.paths_of(&change.place)?);
        }
        if !self.selection.only.is_empty() {
            let meant =
                |paths: &[Vec<u8>]| paths.iter().any(|path| covers(&self.selection.only, path, false));
            let chosen = paths.iter().enumerate().filter(|(_, paths)| meant(paths)).map(|(at, _)| at);
            let chosen = include(&plan.names, chosen.collect());
            let out: BTreeSet<usize> = (0..plan.names.len()).filter(|at| !chosen.contains(at)).collect();
            self.drop_names(plan, &out);
            retain(&mut paths, &out);
        }
        let skipped = |paths: &[Vec<u8>]| paths.iter().any(|path| covers(&self.selection.skip, path, false));
        let seeds = paths.iter().enumerate().filter(|(_, paths)| skipped(paths)).map(|(at, _)| at).collect();
        self.leave(plan, seeds);
        let mut touched = std::mem::take(&mut plan.touched);
        for (inode, place) in std::mem::take(&mut touched) {
            let paths = self.paths_of(&place)?;
            if self.selection.selects_one_of(&paths) {
                plan.touched.insert(inode, place);
            }
        }
        for directory in std::mem::take(&mut plan.directories) {
            let paths = self.paths_of(&(directory, bytes::Bytes::new()))?;
            // A directory above gets its time back only with all that was changed in it.
            if paths.iter().all(|path| self.selection.selects(path, false)) {
                plan.directories.insert(directory);
            }
        }
        Ok(())
    }

    /// Takes these names out of the plan, and what can't be done without them.
    pub(super) fn leave(&mut self, plan: &mut Plan, seeds: BTreeSet<usize>) {
        let out = exclude(&plan.names, seeds);
        self.drop_names(plan, &out);
    }

    fn drop_names(&mut self, plan: &mut Plan, out: &BTreeSet<usize>) {
        self.left.extend(out.iter().map(|&at| plan.names[at].place.0));
        retain(&mut plan.names, out);
        plan.rename();
    }
}

/// Drops the elements at `out`.
fn retain<T>(all: &mut Vec<T>, out: &BTreeSet<usize>) {
    let mut at = 0..;
    all.retain(|_| at.next().is_none_or(|at| !out.contains(&at)));
}

fn inodes(change: &NameChange) -> impl Iterator<Item = u64> {
    change.then.into_iter().chain(change.now).map(|target| target.inode)
}

/// What is at `place` belongs to a directory with this inode.
fn is_in(place: &Place, directories: &BTreeSet<u64>) -> bool {
    directories.contains(&place.0)
}

/// Grows a set of names until the test that is made of them finds no other one.
fn grown<T: Fn(&NameChange) -> bool>(
    names: &[NameChange],
    mut set: BTreeSet<usize>,
    test: impl Fn(&[&NameChange]) -> T,
) -> BTreeSet<usize> {
    while !set.is_empty() {
        let chosen: Vec<&NameChange> = set.iter().map(|&at| &names[at]).collect();
        let belongs = test(&chosen);
        let more: Vec<usize> =
            (0..names.len()).filter(|at| !set.contains(at) && belongs(&names[*at])).collect();
        if more.is_empty() {
            break;
        }
        set.extend(more);
    }
    set
}

/// What must be done for the `chosen` names to be done.
fn include(names: &[NameChange], chosen: BTreeSet<usize>) -> BTreeSet<usize> {
    grown(names, chosen, |chosen| {
        let chosen_inodes: BTreeSet<u64> = chosen.iter().flat_map(|change| inodes(change)).collect();
        let filled = chosen.iter().filter(|change| change.then.is_some()).map(|change| change.place.0);
        let filled: BTreeSet<u64> = filled.collect();
        let emptied = chosen.iter().filter_map(|change| Some(change.now?.inode)).collect();
        move |other| {
            inodes(other).any(|inode| chosen_inodes.contains(&inode))
                || other.then.is_some_and(|then| filled.contains(&then.inode))
                || (other.now.is_some() && is_in(&other.place, &emptied))
        }
    })
}

/// What can't be done when the names of `out` stay as they are.
fn exclude(names: &[NameChange], out: BTreeSet<usize>) -> BTreeSet<usize> {
    grown(names, out, |out| {
        let out_inodes: BTreeSet<u64> = out.iter().flat_map(|change| inodes(change)).collect();
        let occupied = out.iter().filter(|change| change.now.is_some()).map(|change| change.place.0);
        let occupied: BTreeSet<u64> = occupied.collect();
        let missing = out.iter().filter_map(|change| Some(change.then?.inode)).collect();
        move |other| {
            inodes(other).any(|inode| out_inodes.contains(&inode))
                || other.now.is_some_and(|now| occupied.contains(&now.inode))
                || (other.then.is_some() && is_in(&other.place, &missing))
        }
    })
}
