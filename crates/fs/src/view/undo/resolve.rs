//! What becomes of obstacles: overwritten by force, left as they are, or told.
//!
//! Thread safety: belongs to one search. Invariant: only files and keys of the selection's user are
//! overwritten or come back by force, so that force gives no right that its user has not.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvfs_store::KeyRange;

use super::super::compare::{Place, key_of};
use super::super::restore::{NameChange, Plan, Target};
use super::obstacles::{Cause, Found, FoundAt, Search, settled_key};
use super::selection::{Area, closest};
use crate::schema::{Placement, ROOT_INODE, Row};
use crate::{FileSystem, FileType, Result};

impl Search<'_> {
    /// Applies what the selection says of obstacles. Returns whether the plan has changed: then look again.
    pub(super) fn resolve(&mut self, plan: &mut Plan) -> Result<bool> {
        if !self.found.is_empty() && self.selection.has_paths() {
            self.learn_names(plan)?;
        }
        let (mut kept, mut forced) = (Vec::new(), Vec::new());
        for (at, found) in std::mem::take(&mut self.found) {
            let paths = self.paths_of_cause(&at.0, &found.cause)?;
            let keyspace = at.1.as_deref();
            let nearest =
                |areas: &[Area]| paths.iter().filter_map(|path| closest(areas, path, keyspace)).max();
            let (keep, force) = (nearest(&self.selection.keep), nearest(&self.selection.force));
            if keep.is_some() && keep >= force {
                kept.push((at, found));
            } else if force.is_some() {
                forced.push((at, found));
            } else {
                self.found.insert(at, found);
            }
        }
        // What stays may take along what was to be overwritten.
        if !kept.is_empty() {
            self.keep(plan, &kept)?;
            return Ok(true);
        }
        let mut names = Names::of(plan);
        let mut has_changed = false;
        for (at, found) in forced {
            if self.force(plan, &mut names, &found)? {
                has_changed = true;
                self.settled.insert(settled_key(&at, &found.cause));
            } else {
                self.found.insert(at, found);
            }
        }
        names.put_back(plan);
        Ok(has_changed)
    }

    /// Takes out of the plan what meets the obstacles. O(names in the plan), however many there are.
    fn keep(&mut self, plan: &mut Plan, kept: &[(FoundAt, Found)]) -> Result<()> {
        let (mut places, mut inodes, mut directories, mut tops) =
            (BTreeSet::<&Place>::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (at, found) in kept {
            match &found.cause {
                Cause::Name(place) => drop(places.insert(place)),
                Cause::Made(place) => drop(inodes.insert(place.0)),
                &Cause::Inode(inode, _)
                | &Cause::Gone(inode, _)
                | &Cause::Links(inode)
                | &Cause::Cycle(inode) => {
                    plan.touched.remove(&inode);
                    plan.directories.remove(&inode);
                    inodes.insert(inode);
                }
                Cause::Directory(directory) => drop(plan.directories.remove(directory)),
                &Cause::NoDirectory(directory) => {
                    plan.directories.remove(&directory);
                    directories.insert(directory);
                }
                &Cause::Leaving(top, _) => drop(tops.insert(top)),
                Cause::Key(_) => drop(self.alone.kept_keys.insert(found.record.clone())),
            }
            self.settled.insert(settled_key(at, &found.cause));
        }
        let is_meant = |change: &NameChange| {
            places.contains(&change.place)
                || directories.contains(&change.place.0)
                || [change.then, change.now].iter().flatten().any(|target| inodes.contains(&target.inode))
        };
        let seeds = plan.names.iter().enumerate().filter(|(_, change)| is_meant(change));
        let mut seeds: BTreeSet<usize> = seeds.map(|(at, _)| at).collect();
        if !tops.is_empty() {
            self.leave_trees(plan, &tops, &mut seeds)?;
        }
        self.leave(plan, seeds);
        Ok(())
    }

    /// Makes the plan overwrite what is in the way. False: that is not possible, or not for this user.
    fn force(&mut self, plan: &mut Plan, names: &mut Names, found: &Found) -> Result<bool> {
        match &found.cause {
            Cause::Name(place) => {
                if !self.may_replace(place)? {
                    return Ok(false);
                }
                self.turn(names, place)?;
            }
            Cause::Made(place) => {
                if !self.may_replace(place)? {
                    return Ok(false);
                }
                // What goes with a directory above is in the plan already.
                if !place.1.is_empty() && !names.has(place) {
                    let now = Target::at(self.view(), place)?;
                    names.insert(NameChange { place: place.clone(), then: None, now });
                    self.empty_too(names, now)?;
                }
            }
            Cause::Inode(inode, place) => {
                if !self.may_have(self.view(), place)? {
                    return Ok(false);
                }
                self.alone.whole.insert(*inode);
            }
            Cause::Gone(inode, place) => {
                let places = if place.1.is_empty() { self.names_of(*inode)? } else { vec![place.clone()] };
                let Some(first) = places.first() else { return Ok(false) };
                if !self.may_have(self.done.before, first)? {
                    return Ok(false);
                }
                plan.touched.remove(inode);
                self.moved_on.insert(*inode, place.clone());
                for place in places {
                    self.bring(names, place)?;
                }
            }
            &Cause::Directory(directory) => return self.may_have(self.view(), &(directory, Bytes::new())),
            // It comes back with the tree that it was removed with, or not at all.
            &Cause::NoDirectory(directory) if self.is_removed(directory)? => return Ok(false),
            &Cause::NoDirectory(directory) => {
                if !self.may_have(self.done.before, &(directory, Bytes::new()))? {
                    return Ok(false);
                }
                plan.directories.remove(&directory);
                if names.fills(directory) {
                    self.bring_directory(names, directory)?;
                }
            }
            // It goes with its tree.
            Cause::Leaving(_, place) => return self.may_replace(place),
            Cause::Links(_) | Cause::Cycle(_) => return Ok(false),
            Cause::Key(keyspace) => return self.may_write_keys(keyspace),
        }
        Ok(true)
    }

    // --- permissions ---

    /// Whether what is at `place` on one side, if anything, is the user's.
    fn may_have(&self, side: &FileSystem, place: &Place) -> Result<bool> {
        let Some(uid) = self.selection.uid else { return Ok(true) };
        Ok(side.rows().at(place)?.is_none_or(|(header, _)| header.uid == uid))
    }

    /// Whether what is at and below `place` now may go, and what was there may come.
    fn may_replace(&self, place: &Place) -> Result<bool> {
        if self.selection.uid.is_none() {
            return Ok(true);
        }
        if !self.may_have(self.view(), place)? || !self.may_have(self.done.before, place)? {
            return Ok(false);
        }
        let Some(Target { inode, kind: FileType::Directory }) = Target::at(self.view(), place)? else {
            return Ok(true);
        };
        let (mut todo, mut seen) = (vec![inode], BTreeSet::new());
        while let Some(directory) = todo.pop() {
            // In a damaged tree a directory may be below itself.
            if !seen.insert(directory) {
                continue;
            }
            for (place, target) in entries(self.view(), directory)? {
                if !self.may_have(self.view(), &place)? {
                    return Ok(false);
                }
                if target.kind == FileType::Directory {
                    todo.push(target.inode);
                }
            }
        }
        Ok(true)
    }

    fn may_write_keys(&self, keyspace: &str) -> Result<bool> {
        let Some(uid) = self.selection.uid else { return Ok(true) };
        let entry = self.view().keys().keyspace(keyspace)?;
        Ok(entry.is_some_and(|entry| entry.owner.uid == uid || entry.owner.mode & 0o002 != 0))
    }

    // --- changes of the plan ---

    /// Makes a name lead from where it leads now to where it led before.
    fn turn(&mut self, names: &mut Names, place: &Place) -> Result<()> {
        let now = Target::at(self.view(), place)?;
        let Some(change) = names.remove(place) else { return Ok(()) };
        if let Some(left) = change.now.filter(|_| change.now != now) {
            self.moved_on.insert(left.inode, place.clone());
        }
        let then = change.then;
        if then == now {
            return Ok(());
        }
        names.insert(NameChange { now, ..change });
        self.empty_too(names, now)?;
        let Some(Target { inode, kind }) = then else { return Ok(()) };
        self.bring_directory(names, place.0)?;
        if kind == FileType::Directory {
            match place_of(self.view(), inode)? {
                // It was moved elsewhere since.
                Some(at) if names.has(&at) => {}
                Some(at) => names.insert(NameChange { place: at, then: None, now: then }),
                None => self.fill_too(names, inode)?,
            }
        }
        Ok(())
    }

    /// What is below a directory that goes now goes, too.
    fn empty_too(&self, names: &mut Names, now: Option<Target>) -> Result<()> {
        let Some(Target { inode, kind: FileType::Directory }) = now else { return Ok(()) };
        if names.brings(inode) {
            return Ok(());
        }
        each_below(self.view(), inode, |place, target| {
            let then = names.remove(&place).and_then(|change| change.then);
            names.insert(NameChange { place, then, now: Some(target) });
        })
    }

    /// What was below a directory that comes back comes, too.
    fn fill_too(&self, names: &mut Names, directory: u64) -> Result<()> {
        each_below(self.done.before, directory, |place, target| {
            if !names.has(&place) {
                names.insert(NameChange { place, then: Some(target), now: None });
            }
        })
    }

    /// Brings back what was at `place`, if it is not in the plan, with the directories above that have gone.
    fn bring(&self, names: &mut Names, place: Place) -> Result<()> {
        let mut missing = Some(place);
        while let Some(place) = missing.filter(|place| !names.has(place)) {
            let (then, now) = (Target::at(self.done.before, &place)?, Target::at(self.view(), &place)?);
            let directory = place.0;
            names.insert(NameChange { place, then, now });
            self.empty_too(names, now)?;
            missing = self.missing(names, directory)?;
        }
        Ok(())
    }

    fn bring_directory(&self, names: &mut Names, directory: u64) -> Result<()> {
        self.missing(names, directory)?.map_or(Ok(()), |place| self.bring(names, place))
    }

    /// Where a directory was that has gone, unless it comes back anyway.
    fn missing(&self, names: &Names, directory: u64) -> Result<Option<Place>> {
        let is_there = directory == ROOT_INODE || self.view().rows().has_own(directory)?;
        if is_there || names.brings(directory) { Ok(None) } else { place_of(self.done.before, directory) }
    }

    /// The paths of a name on both sides; of a file with several names, all of them.
    pub(super) fn paths_of(&mut self, place: &Place) -> Result<Vec<Vec<u8>>> {
        let several = if place.1.is_empty() { self.paths_of_inode(place.0)? } else { Vec::new() };
        if !several.is_empty() {
            return Ok(several);
        }
        let mut paths = Vec::with_capacity(2);
        for (side, names) in [(self.done.before, &mut self.before), (self.done.after, &mut self.then)] {
            if side.rows().get(&key_of(place))?.is_some() {
                paths.push(names.path(place)?);
            }
        }
        paths.dedup();
        Ok(paths)
    }

    /// Where an obstacle is that is told of as `path`.
    fn paths_of_cause(&mut self, path: &[u8], cause: &Cause) -> Result<Vec<Vec<u8>>> {
        let several = match *cause {
            Cause::Inode(inode, _) | Cause::Gone(inode, _) | Cause::Links(inode) => {
                self.paths_of_inode(inode)?
            }
            _ => Vec::new(),
        };
        Ok(if several.is_empty() { vec![path.to_vec()] } else { several })
    }

    fn paths_of_inode(&mut self, inode: u64) -> Result<Vec<Vec<u8>>> {
        let places = self.names.as_ref().and_then(|names| names.get(&inode)).cloned().unwrap_or_default();
        places.iter().map(|place| self.before.path(place)).collect()
    }

    /// The names that a file with several had before the transaction, where these are learned; without those
    /// outside of the directory of a branch.
    pub(super) fn names_of(&mut self, inode: u64) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        for place in self.names.as_ref().and_then(|names| names.get(&inode)).cloned().unwrap_or_default() {
            if self.before.path(&place)?.starts_with(b"/") {
                places.push(place);
            }
        }
        Ok(places)
    }

    /// Learns the names before the transaction of files that have several: their rows do not tell them.
    /// O(names in the store), once, and only where paths are asked for, or such a file is in the way.
    pub(super) fn learn_names(&mut self, plan: &Plan) -> Result<()> {
        if self.names.is_some() {
            return Ok(());
        }
        let several = plan.touched.iter().filter(|(_, place)| place.1.is_empty()).map(|(&inode, _)| inode);
        let several: BTreeSet<u64> = several.collect();
        let mut names: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
        if !several.is_empty() {
            let side = self.done.before;
            let mut cursor = side.origin.read().cursor(side.keyspaces.meta, KeyRange::all())?;
            cursor.next()?;
            while let Some((key, value)) = cursor.entry() {
                if let Some((directory, name)) = Placement::parse_key(key)
                    && !name.is_empty()
                    && let Row::Link { inode, .. } = Row::decode(key, value)?
                    && several.contains(&inode)
                {
                    names.entry(inode).or_default().push((directory, Bytes::copy_from_slice(name)));
                }
                cursor.next()?;
            }
        }
        self.names = Some(names);
        Ok(())
    }
}

/// The names of a plan by their places, while obstacles are overwritten.
#[derive(Default)]
struct Names {
    changes: BTreeMap<Place, NameChange>,
    /// How many names lead to an inode in the end.
    then: BTreeMap<u64, usize>,
}

impl Names {
    fn of(plan: &mut Plan) -> Self {
        let mut names = Self::default();
        for change in std::mem::take(&mut plan.names) {
            names.insert(change);
        }
        names
    }

    fn put_back(self, plan: &mut Plan) {
        plan.names = self.changes.into_values().collect();
        plan.rename();
    }

    fn has(&self, place: &Place) -> bool {
        self.changes.contains_key(place)
    }

    /// Whether a name leads to `inode` in the end.
    fn brings(&self, inode: u64) -> bool {
        self.then.contains_key(&inode)
    }

    /// Whether something comes into `directory`.
    fn fills(&self, directory: u64) -> bool {
        let inside = self.changes.range((directory, Bytes::new())..);
        inside.take_while(|(place, _)| place.0 == directory).any(|(_, change)| change.then.is_some())
    }

    /// The place must have no change yet.
    fn insert(&mut self, change: NameChange) {
        if let Some(then) = change.then {
            *self.then.entry(then.inode).or_default() += 1;
        }
        self.changes.insert(change.place.clone(), change);
    }

    fn remove(&mut self, place: &Place) -> Option<NameChange> {
        let change = self.changes.remove(place)?;
        if let Some(Target { inode, .. }) = change.then
            && let Entry::Occupied(mut count) = self.then.entry(inode)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(change)
    }
}

/// The names in a directory on one side.
pub(super) fn entries(side: &FileSystem, directory: u64) -> Result<Vec<(Place, Target)>> {
    let range = Placement::own_subtree(directory).entries_after(b"");
    let mut cursor = side.origin.read().cursor(side.keyspaces.meta, range)?;
    let mut entries = Vec::new();
    cursor.next()?;
    while let Some((key, value)) = cursor.entry() {
        let row = Row::decode(key, value)?;
        if let Some((_, name)) = Placement::parse_key(key) {
            let target = Target { inode: row.inode(), kind: row.kind() };
            entries.push(((directory, Bytes::copy_from_slice(name)), target));
        }
        cursor.next()?;
    }
    Ok(entries)
}

/// Calls `each` with every name below a directory on one side.
fn each_below(side: &FileSystem, directory: u64, mut each: impl FnMut(Place, Target)) -> Result<()> {
    let mut todo = vec![directory];
    let mut seen = BTreeSet::new();
    while let Some(directory) = todo.pop() {
        if !seen.insert(directory) {
            continue;
        }
        for (place, target) in entries(side, directory)? {
            if target.kind == FileType::Directory {
                todo.push(target.inode);
            }
            each(place, target);
        }
    }
    Ok(())
}

/// Where a directory is on one side.
fn place_of(side: &FileSystem, directory: u64) -> Result<Option<Place>> {
    if !side.rows().has_own(directory)? {
        return Ok(None);
    }
    let Some((header, _)) = side.rows().at(&(directory, Bytes::new()))? else { return Ok(None) };
    let found = entries(side, header.parent)?.into_iter().find(|(_, target)| target.inode == directory);
    Ok(found.map(|(place, _)| place))
}
