//! What becomes of obstacles: overwritten by force, left as they are, or told.
//!
//! Thread safety: belongs to one search. Invariant: only files and keys of the selection's user are
//! overwritten or come back by force, so that force gives no right that its user has not.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvfs_store::KeyRange;

use super::super::compare::{Place, key_of};
use super::super::restore::{NameChange, Plan, Target};
use super::obstacles::{Cause, Found, Search, settled_key};
use super::selection::{Area, closest};
use crate::schema::{Placement, ROOT_INODE, Row};
use crate::{FileSystem, FileType, Result};

impl Search<'_> {
    /// Applies what the selection says of obstacles. Returns whether the plan has changed: then look again.
    pub(super) fn resolve(&mut self, plan: &mut Plan) -> Result<bool> {
        let mut has_changed = false;
        if !self.found.is_empty() && self.selection.has_paths() {
            self.learn_names(plan)?;
        }
        for (path, found) in std::mem::take(&mut self.found) {
            let is_key = found.cause == Cause::Key;
            let paths = self.paths_of_cause(&path, &found.cause)?;
            let nearest = |areas: &[Area]| paths.iter().filter_map(|path| closest(areas, path, is_key)).max();
            let (keep, force) = (nearest(&self.selection.keep), nearest(&self.selection.force));
            let is_settled = if keep.is_some() && keep >= force {
                self.keep(plan, &found)?;
                true
            } else {
                force.is_some() && self.force(plan, &found)?
            };
            if is_settled {
                has_changed = true;
                self.settled.insert(settled_key(&path, &found.cause));
            } else {
                self.found.insert(path, found);
            }
        }
        Ok(has_changed)
    }

    /// Takes out of the plan what meets the obstacle.
    fn keep(&mut self, plan: &mut Plan, found: &Found) -> Result<()> {
        let of_inode = |inode: u64| {
            move |change: &NameChange| {
                [change.then, change.now].into_iter().flatten().any(|target| target.inode == inode)
            }
        };
        match &found.cause {
            Cause::Name(place) => self.leave_where(plan, |change| change.place == *place),
            Cause::Made(place) => self.leave_where(plan, of_inode(place.0)),
            &Cause::Inode(inode, _)
            | &Cause::Gone(inode, _)
            | &Cause::Links(inode)
            | &Cause::Cycle(inode) => {
                plan.touched.remove(&inode);
                plan.directories.remove(&inode);
                self.leave_where(plan, of_inode(inode));
            }
            Cause::Directory(directory) => drop(plan.directories.remove(directory)),
            Cause::NoDirectory(directory) => {
                plan.directories.remove(directory);
                self.leave_where(plan, |change| change.place.0 == *directory);
            }
            &Cause::Leaving(top, _) => self.leave_tree(plan, top)?,
            Cause::Key => drop(self.alone.kept_keys.insert(found.record.clone())),
        }
        Ok(())
    }

    fn leave_where(&mut self, plan: &mut Plan, is_meant: impl Fn(&NameChange) -> bool) {
        let seeds = plan.names.iter().enumerate().filter(|(_, change)| is_meant(change));
        let seeds = seeds.map(|(at, _)| at).collect();
        self.leave(plan, seeds);
    }

    /// Makes the plan overwrite what is in the way. False: that is not possible, or not for this user.
    fn force(&mut self, plan: &mut Plan, found: &Found) -> Result<bool> {
        match &found.cause {
            Cause::Name(place) => {
                if !self.may_replace(place)? {
                    return Ok(false);
                }
                self.turn(plan, place)?;
            }
            Cause::Made(place) => {
                if !self.may_replace(place)? {
                    return Ok(false);
                }
                // What goes with a directory above is in the plan already.
                if !place.1.is_empty() && plan.names.iter().all(|change| change.place != *place) {
                    let now = Target::at(self.view(), place)?;
                    plan.names.push(NameChange { place: place.clone(), then: None, now });
                    self.empty_too(plan, now)?;
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
                for place in &places {
                    self.bring(plan, place)?;
                }
            }
            &Cause::Directory(directory) => return self.may_have(self.view(), &(directory, Bytes::new())),
            // It comes back with the tree that it was removed with, or not at all.
            &Cause::NoDirectory(directory) if self.is_removed(directory)? => return Ok(false),
            &Cause::NoDirectory(directory) => {
                if !self.may_have(self.done.before, &(directory, Bytes::new()))? {
                    return Ok(false);
                }
                let has_new =
                    plan.names.iter().any(|change| change.place.0 == directory && change.then.is_some());
                plan.directories.remove(&directory);
                if has_new {
                    self.bring_directory(plan, directory)?;
                }
            }
            // It goes with its tree.
            Cause::Leaving(_, place) => return self.may_replace(place),
            Cause::Links(_) | Cause::Cycle(_) => return Ok(false),
            Cause::Key => return self.may_write_key(&found.what.place),
        }
        plan.rename();
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

    fn may_write_key(&self, place: &[u8]) -> Result<bool> {
        let Some(uid) = self.selection.uid else { return Ok(true) };
        let name = place.split(|&byte| byte == b'/').next().unwrap_or_default();
        let entry = self.view().keys().keyspace(&String::from_utf8_lossy(name))?;
        Ok(entry.is_some_and(|entry| entry.owner.uid == uid || entry.owner.mode & 0o002 != 0))
    }

    // --- changes of the plan ---

    /// Makes a name lead from where it leads now to where it led before.
    fn turn(&mut self, plan: &mut Plan, place: &Place) -> Result<()> {
        let now = Target::at(self.view(), place)?;
        let Some(change) = plan.names.iter_mut().find(|change| change.place == *place) else {
            return Ok(());
        };
        change.now = now;
        let then = change.then;
        if then == now {
            plan.names.retain(|change| change.place != *place);
            return Ok(());
        }
        self.empty_too(plan, now)?;
        let Some(Target { inode, kind }) = then else { return Ok(()) };
        self.bring_directory(plan, place.0)?;
        if kind == FileType::Directory {
            match place_of(self.view(), inode)? {
                // It was moved elsewhere since.
                Some(at) => {
                    if plan.names.iter().all(|change| change.place != at) {
                        plan.names.push(NameChange { place: at, then: None, now: then });
                    }
                }
                None => self.fill_too(plan, inode)?,
            }
        }
        Ok(())
    }

    /// What is below a directory that goes now goes, too.
    fn empty_too(&self, plan: &mut Plan, now: Option<Target>) -> Result<()> {
        let Some(Target { inode, kind: FileType::Directory }) = now else { return Ok(()) };
        plan.rename();
        if now.is_some_and(|now| plan.is_kept(now)) {
            return Ok(());
        }
        each_below(plan, self.view(), inode, |known, place, target| match known {
            Some(change) => change.now = Some(target),
            None => *known = Some(NameChange { place, then: None, now: Some(target) }),
        })
    }

    /// What was below a directory that comes back comes, too.
    fn fill_too(&self, plan: &mut Plan, directory: u64) -> Result<()> {
        each_below(plan, self.done.before, directory, |known, place, target| {
            if known.is_none() {
                *known = Some(NameChange { place, then: Some(target), now: None });
            }
        })
    }

    /// Brings back what was at `place`, which is not in the plan.
    fn bring(&mut self, plan: &mut Plan, place: &Place) -> Result<()> {
        if plan.names.iter().any(|change| change.place == *place) {
            return Ok(());
        }
        let (then, now) = (Target::at(self.done.before, place)?, Target::at(self.view(), place)?);
        plan.names.push(NameChange { place: place.clone(), then, now });
        self.empty_too(plan, now)?;
        self.bring_directory(plan, place.0)
    }

    /// Brings back a directory that has gone, if it does not come back anyway.
    fn bring_directory(&mut self, plan: &mut Plan, directory: u64) -> Result<()> {
        let is_there = directory == ROOT_INODE || self.view().rows().has_own(directory)?;
        if is_there || plan.names.iter().any(|change| change.then.is_some_and(|then| then.inode == directory))
        {
            return Ok(());
        }
        match place_of(self.done.before, directory)? {
            Some(place) => self.bring(plan, &place),
            None => Ok(()),
        }
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

/// Calls `each` with the plan's change of every name below a directory on one side, or the place for one.
fn each_below(
    plan: &mut Plan,
    side: &FileSystem,
    directory: u64,
    each: impl Fn(&mut Option<NameChange>, Place, Target),
) -> Result<()> {
    let names = std::mem::take(&mut plan.names);
    let mut known: BTreeMap<Place, NameChange> =
        names.into_iter().map(|change| (change.place.clone(), change)).collect();
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
            let mut change = known.remove(&place);
            each(&mut change, place.clone(), target);
            known.extend(change.map(|change| (place, change)));
        }
    }
    plan.names = known.into_values().collect();
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
