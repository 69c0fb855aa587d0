//! Which part of a change is meant, and what becomes of obstacles there.
//!
//! Purpose: names that belong together stay together. A file that was moved has both names in a part or none;
//! what is put into a directory needs the directory; a directory is removed with all that is in it.
//!
//! Thread safety: plain values.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Keys: a keyspace, a slash, and what the key begins with. As names of keyspaces may contain slashes, it
    /// may name keys of several; but none of a keyspace that it does not name in full.
    Keys(Vec<u8>),
}

impl Area {
    /// What is at and below a path from the root of the store.
    pub fn path(path: &[u8]) -> Self {
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        Self::Path(names.flat_map(|name| [b"/", name].concat()).collect())
    }

    /// Whether it contains a path, or a key of `keyspace`: that, a slash and the key.
    pub fn covers(&self, place: &[u8], keyspace: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Path(path) => {
                let rest = place.strip_prefix(&path[..]).filter(|_| keyspace.is_none());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            }
            Self::Keys(prefix) => {
                keyspace.is_some_and(|name| prefix.len() >= name.len()) && place.starts_with(prefix)
            }
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
    /// Whether a path or key, as [`Area::covers`] has it, is to be changed, if nothing is in the way.
    pub fn selects(&self, place: &[u8], keyspace: Option<&str>) -> bool {
        (self.only.is_empty() || covers(&self.only, place, keyspace)) && !covers(&self.skip, place, keyspace)
    }

    /// Whether a file at these paths is to be changed: one of them is meant, and none is left out.
    fn selects_one_of(&self, paths: &[Vec<u8>]) -> bool {
        let any = |areas: &[Area]| paths.iter().any(|path| covers(areas, path, None));
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
pub(super) fn closest(areas: &[Area], place: &[u8], keyspace: Option<&str>) -> Option<usize> {
    let len = |area: &Area| match area {
        Area::All => 0,
        Area::Path(place) | Area::Keys(place) => 1 + place.len(),
    };
    areas.iter().filter(|area| area.covers(place, keyspace)).map(len).max()
}

fn covers(areas: &[Area], place: &[u8], keyspace: Option<&str>) -> bool {
    areas.iter().any(|area| area.covers(place, keyspace))
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
            let meant = |paths: &[Vec<u8>]| paths.iter().any(|path| covers(&self.selection.only, path, None));
            let chosen = paths.iter().enumerate().filter(|(_, paths)| meant(paths)).map(|(at, _)| at);
            let chosen = include(&plan.names, chosen.collect());
            let out: BTreeSet<usize> = (0..plan.names.len()).filter(|at| !chosen.contains(at)).collect();
            self.drop_names(plan, &out);
            retain(&mut paths, &out);
        }
        let skipped = |paths: &[Vec<u8>]| paths.iter().any(|path| covers(&self.selection.skip, path, None));
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
            if paths.iter().all(|path| self.selection.selects(path, None)) {
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

/// Ties names to each other that are done or left together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tie {
    /// By an inode that both lead to.
    Inode(u64),
    /// By a directory that comes before what is in it.
    Comes(u64),
    /// By a directory that goes behind what is in it.
    Goes(u64),
}

fn inodes(change: &NameChange) -> impl Iterator<Item = Tie> + use<> {
    change.then.into_iter().chain(change.now).map(|target| Tie::Inode(target.inode))
}

/// What a name needs others for.
fn needs(change: &NameChange) -> impl Iterator<Item = Tie> + use<> {
    let comes = change.then.map(|_| Tie::Comes(change.place.0));
    let goes = change.now.map(|now| Tie::Goes(now.inode));
    inodes(change).chain(comes).chain(goes)
}

/// What others need a name for.
fn serves(change: &NameChange) -> impl Iterator<Item = Tie> + use<> {
    let comes = change.then.map(|then| Tie::Comes(then.inode));
    let goes = change.now.map(|_| Tie::Goes(change.place.0));
    inodes(change).chain(comes).chain(goes)
}

/// What must be done for the `chosen` names to be done.
fn include(names: &[NameChange], chosen: BTreeSet<usize>) -> BTreeSet<usize> {
    grown(names, chosen, needs, serves)
}

/// What can't be done when the names of `out` stay as they are.
fn exclude(names: &[NameChange], out: BTreeSet<usize>) -> BTreeSet<usize> {
    grown(names, out, serves, needs)
}

/// Grows a set of names by all that `answer` a tie that a name of it `asks` for. Looks at each name once
/// from either side.
fn grown<A: Iterator<Item = Tie>, B: Iterator<Item = Tie>>(
    names: &[NameChange],
    mut set: BTreeSet<usize>,
    asks: impl Fn(&NameChange) -> A,
    answers: impl Fn(&NameChange) -> B,
) -> BTreeSet<usize> {
    if set.is_empty() {
        return set;
    }
    let mut tied: BTreeMap<Tie, Vec<usize>> = BTreeMap::new();
    for (at, change) in names.iter().enumerate() {
        answers(change).for_each(|tie| tied.entry(tie).or_default().push(at));
    }
    let mut todo: Vec<usize> = set.iter().copied().collect();
    while let Some(at) = todo.pop() {
        // What was reached by a tie once is in the set.
        let found = asks(&names[at]).flat_map(|tie| tied.remove(&tie).unwrap_or_default());
        todo.extend(found.filter(|&other| set.insert(other)));
    }
    set
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;

    use super::super::super::restore::Target;
    use super::*;
    use crate::FileType;

    /// Directories in each other, the lowest first, that all come or all go.
    fn chain(depth: u64, comes: bool) -> Vec<NameChange> {
        let change = |inode: u64| {
            let target = Some(Target { inode, kind: FileType::Directory });
            let (then, now) = if comes { (target, None) } else { (None, target) };
            NameChange { place: (inode - 1, Bytes::from_static(b"d")), then, now }
        };
        (2..2 + depth).rev().map(change).collect()
    }

    #[test]
    fn selection_of_a_chain_of_directories_looks_at_each_name_twice() {
        const DEPTH: usize = 1000;
        let (first, last) = (BTreeSet::from([0]), BTreeSet::from([DEPTH - 1]));
        for comes in [true, false] {
            let names = chain(DEPTH as u64, comes);
            // What comes needs all above it, what goes all below it.
            let (all, one) = if comes { (&first, &last) } else { (&last, &first) };
            assert_eq!(include(&names, all.clone()).len(), DEPTH);
            assert_eq!(include(&names, one.clone()), *one);
            assert_eq!(exclude(&names, one.clone()).len(), DEPTH);
            assert_eq!(exclude(&names, all.clone()), *all);

            let looks = Cell::new(0);
            let asks = |change: &NameChange| {
                looks.set(looks.get() + 1);
                needs(change)
            };
            let answers = |change: &NameChange| {
                looks.set(looks.get() + 1);
                serves(change)
            };
            assert_eq!(grown(&names, all.clone(), asks, answers).len(), DEPTH);
            assert_eq!(looks.get(), 2 * DEPTH);
        }
    }
}
