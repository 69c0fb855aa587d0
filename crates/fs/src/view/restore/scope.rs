//! Restoring parts of a snapshot: what belongs to them.
//!
//! Purpose: a path stands for what it leads to and all that is below it, in the snapshot and now. Changes of
//! names are inside when their place is, on the side that has something there. What was moved or linked from
//! one part to the other since is refused: bringing back the one would need the other. What is in a detached
//! tree is nowhere as far as that goes: what is to be restored comes from there, without what was made, moved
//! or changed there since the snapshot.
//!
//! Thread safety: belongs to one restore. Memory: the directories below the paths.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::compare::{Place, Sides};
use super::super::paths::Paths;
use super::plan::{NameChange, Target};
use crate::schema::{Placement, ROOT_INODE, Row};
use crate::{FileSystem, FileType, FsError, Result};

/// What is at and below some places on one side.
#[derive(Default)]
struct Below {
    directories: BTreeSet<u64>,
    /// Files with several names, of which one is below.
    linked: BTreeSet<u64>,
}

/// What is to be restored.
#[derive(Default)]
pub(super) struct Scope {
    /// Where the paths lead. The directories above are the same on both sides, and stay as they are.
    roots: BTreeSet<Place>,
    then: Below,
    now: Below,
}

impl Scope {
    /// The parts that `paths` name, from the root on. O(names below them).
    pub(super) fn new(sides: Sides<'_>, paths: &[Bytes]) -> Result<Self> {
        let mut scope = Self::default();
        for path in paths {
            let place = find(sides, path)?;
            let then = Target::at(sides.before, &place)?;
            let then = then.ok_or_else(|| refused(path, "is not in the snapshot"))?;
            scope.then.add(sides.before, then)?;
            if let Some(now) = Target::at(sides.after, &place)? {
                scope.now.add(sides.after, now)?;
            }
            scope.roots.insert(place);
        }
        // What was detached since comes back with all that it has now.
        let mut paths = Paths::new(sides.after);
        for &directory in &scope.then.directories {
            if paths.detached_tree(directory)?.is_some() {
                scope.now.add_directory(sides.after, directory)?;
            }
        }
        Ok(scope)
    }

    fn is_then(&self, place: &Place) -> bool {
        self.roots.contains(place) || self.then.directories.contains(&place.0)
    }

    fn is_now(&self, place: &Place) -> bool {
        self.roots.contains(place) || self.now.directories.contains(&place.0)
    }

    /// Whether the attributes of a directory are to be brought back.
    pub(super) fn has_directory(&self, inode: u64) -> bool {
        self.then.directories.contains(&inode)
    }

    /// Whether what both sides have at `place` is inside.
    pub(super) fn has_inode(&self, inode: u64, place: &Place) -> bool {
        if place.1.is_empty() {
            self.then.linked.contains(&inode)
        } else {
            self.is_then(place) && self.is_now(place)
        }
    }

    /// Those of `changes` that are inside.
    pub(super) fn pick(&self, sides: Sides<'_>, changes: Vec<NameChange>) -> Result<Vec<NameChange>> {
        let mut paths = Paths::new(sides.after);
        let is_inside = |change: &NameChange| {
            (change.then.is_some() && self.is_then(&change.place))
                || (change.now.is_some() && self.is_now(&change.place))
        };
        let (mut then, mut now) = (BTreeSet::new(), BTreeSet::new());
        for change in changes.iter().filter(|change| is_inside(change)) {
            then.extend(change.then.map(|target| target.inode));
            if let Some(target) = change.now
                && !paths.is_detached(&change.place)?
            {
                now.insert(target.inode);
            }
        }
        let mut picked = Vec::with_capacity(changes.len());
        for change in changes {
            let NameChange { place, then: was, now: is } = &change;
            if is_inside(&change) {
                picked.push(change);
            } else if is.is_some_and(|target| then.contains(&target.inode)) {
                if !paths.is_detached(place)? {
                    let why = "was moved or linked here from what is to be restored; restore both";
                    return Err(refused(&place.1, why));
                }
                // It is brought back from there, and what was at that place does not return.
                picked.push(NameChange { then: None, ..change });
            } else if was.is_some_and(|target| now.contains(&target.inode)) {
                let why = "was moved or linked into what is to be restored; restore both";
                return Err(refused(&place.1, why));
            }
        }
        Ok(picked)
    }
}

impl Below {
    fn add(&mut self, side: &FileSystem, top: Target) -> Result<()> {
        if top.kind != FileType::Directory {
            if side.rows().has_own(top.inode)? {
                self.linked.insert(top.inode);
            }
            return Ok(());
        }
        self.add_directory(side, top.inode)
    }

    fn add_directory(&mut self, side: &FileSystem, top: u64) -> Result<()> {
        let mut todo = vec![top];
        while let Some(directory) = todo.pop() {
            if !self.directories.insert(directory) {
                continue;
            }
            let entries = Placement::own_subtree(directory).entries_after(b"");
            let mut cursor = side.origin.read().cursor(side.keyspaces.meta, entries)?;
            cursor.next()?;
            while let Some((key, value)) = cursor.entry() {
                match Row::decode(key, value)? {
                    Row::Directory { inode, .. } => todo.push(inode),
                    Row::Link { inode, .. } => drop(self.linked.insert(inode)),
                    Row::Inode(..) => {}
                }
                cursor.next()?;
            }
        }
        Ok(())
    }
}

/// Where `path` leads, by directories that both sides have.
fn find(sides: Sides<'_>, path: &Bytes) -> Result<Place> {
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let mut last = names.next().ok_or_else(|| refused(path, "is everything; name no path for that"))?;
    let mut directory = ROOT_INODE;
    for name in names {
        let place = (directory, path.slice_ref(last));
        let (then, now) = (Target::at(sides.before, &place)?, Target::at(sides.after, &place)?);
        let then = then.filter(|target| target.kind == FileType::Directory);
        let then = then.ok_or_else(|| refused(path, "is not in the snapshot"))?;
        if now != Some(then) {
            let above = String::from_utf8_lossy(last).into_owned();
            return Err(refused(
                path,
                &format!("lies in {above}, which is gone or another one now; restore that"),
            ));
        }
        (directory, last) = (then.inode, name);
    }
    if last == b".." {
        return Err(refused(path, "leads upwards"));
    }
    Ok((directory, path.slice_ref(last)))
}

fn refused(path: &[u8], why: &str) -> FsError {
    FsError::NotRestored(format!("{} {why}", String::from_utf8_lossy(path)))
}
