//! Names: taking away what is in a wrong place, and putting back what the snapshot has.
//!
//! Thread safety: belongs to one restore. Invariants: a directory that is moved is never moved below itself,
//! since the staging directory lies outside of everything that is staged, and names are put back from the
//! root down, so that all that is above a name is in its place already.

use std::collections::HashMap;

use bytes::Bytes;
use kvfs_store::progress;

use super::super::compare::{Place, key_of};
use super::super::paths::Paths;
use super::Restore;
use super::plan::Target;
use crate::dir::Ascent;
use crate::schema::ROOT_INODE;
use crate::{FileSystem, FileType, FsError, NodeId, RenameMode, Result, settled};

/// Where kept things wait for their place.
pub(super) struct Staging {
    place: Place,
    directory: u64,
}

/// How deep directories lie on one side.
struct Depths<'f> {
    side: &'f FileSystem,
    known: HashMap<u64, u32>,
}

impl Depths<'_> {
    fn of(&mut self, directory: u64) -> Result<u32> {
        let (mut path, mut ascent) = (Vec::new(), Ascent::default());
        let mut at = directory;
        let base = loop {
            if at == ROOT_INODE {
                break 0;
            }
            if let Some(&depth) = self.known.get(&at) {
                break depth;
            }
            let row = self.side.rows().at(&(at, Bytes::new()))?;
            let (header, _) = row.ok_or_else(|| {
                FsError::corrupt(format!("directory inode {at}"), "it has entries and no row")
            })?;
            ascent.step(at)?;
            path.push(at);
            at = header.parent;
        };
        for (depth, directory) in (base + 1..).zip(path.into_iter().rev()) {
            self.known.insert(directory, depth);
        }
        Ok(self.known.get(&directory).copied().unwrap_or(0))
    }
}

fn depths(side: &FileSystem) -> Depths<'_> {
    Depths { side, known: HashMap::new() }
}

impl Restore<'_> {
    /// Empties every name that leads elsewhere than in the snapshot.
    pub(super) fn take_away(&mut self) -> Result<()> {
        let mut depths = depths(self.now());
        let mut gone = Vec::new();
        let wrong: Vec<(Place, Target)> =
            self.plan.names.iter().filter_map(|change| Some((change.place.clone(), change.now?))).collect();
        for (place, target) in &wrong {
            if !self.plan.is_kept(*target) && target.kind == FileType::Directory {
                gone.push((depths.of(place.0)?, place));
            }
        }
        for (place, target) in &wrong {
            progress::check_wanted()?;
            let directory = NodeId(self.know_own(place.0)?);
            let is_directory = target.kind == FileType::Directory;
            if self.plan.is_kept(*target) && self.staged.insert(target.inode) {
                let staging = NodeId(self.staging()?);
                let name = target.inode.to_string().into_bytes();
                let mode = RenameMode::NoReplace;
                settled(|caller| self.now().rename(caller, directory, &place.1, staging, &name, mode))?;
            } else if !is_directory {
                settled(|caller| self.now().unlink(caller, directory, &place.1))?;
            }
            self.done.names += 1;
            progress::advance(1);
        }
        // By now they are empty but for each other.
        gone.sort_by_key(|&(depth, _)| std::cmp::Reverse(depth));
        for (_, place) in gone {
            settled(|caller| self.now().rmdir(caller, NodeId(place.0), &place.1))?;
        }
        Ok(())
    }

    /// Fills every name as the snapshot has it.
    pub(super) fn put_back(&mut self) -> Result<()> {
        let mut depths = depths(self.then());
        let mut missing = Vec::new();
        for change in &self.plan.names {
            if let Some(target) = change.then {
                missing.push((depths.of(change.place.0)?, change.place.clone(), target));
            }
        }
        missing.sort_by_key(|&(depth, ..)| depth);
        for (_, place, target) in missing {
            progress::check_wanted()?;
            self.put(&place, target)?;
            self.done.names += 1;
            progress::advance(1);
        }
        Ok(())
    }

    fn put(&mut self, place: &Place, target: Target) -> Result<()> {
        let parent = self.counterpart(place.0);
        let parent = NodeId(self.know_own(parent)?);
        let name = &place.1;
        if self.staged.contains(&target.inode) && self.placed.insert(target.inode) {
            let from = NodeId(self.staging()?);
            let staged = target.inode.to_string().into_bytes();
            let mode = RenameMode::NoReplace;
            settled(|caller| self.now().rename(caller, from, &staged, parent, name, mode))?;
            if target.kind == FileType::Directory {
                self.plan.directories.insert(target.inode);
            } else {
                self.plan.touched.entry(target.inode).or_insert_with(|| place.clone());
            }
            return Ok(());
        }
        if target.kind != FileType::Directory {
            let other = self.counterpart(target.inode);
            if other != target.inode || self.now().rows().has_own(other)? {
                let file = NodeId(self.know_own(other)?);
                let entry = settled(|caller| self.now().link(caller, file, parent, name))?;
                self.adopt(entry)?;
                return Ok(());
            }
        }
        self.make_again(place, target, parent)
    }

    /// Makes what is gone anew.
    fn make_again(&mut self, place: &Place, target: Target, parent: NodeId) -> Result<()> {
        let name = &place.1;
        let Some((header, content)) = self.then().rows().at(place)? else {
            return Err(FsError::corrupt(format!("row {}", key_of(place).escape_ascii()), "it has gone"));
        };
        let now = self.now();
        let entry = match target.kind {
            FileType::Directory => settled(|caller| now.mkdir(caller, parent, name, header.mode))?,
            FileType::Symlink => settled(|caller| now.symlink(caller, parent, name, &content))?,
            kind => {
                let mode = kind.mode_bits() | header.mode;
                settled(|caller| now.mknod(caller, parent, name, mode, header.rdev))?
            }
        };
        let inode = self.adopt(entry)?;
        self.made.insert(target.inode, inode);
        if target.kind == FileType::Directory {
            self.plan.directories.insert(target.inode);
            self.set_xattrs(inode, &header)?;
            return Ok(());
        }
        self.set_inode(inode, &header, &content)?;
        if header.nlink <= 1 {
            self.made.remove(&target.inode);
            self.pins.remove(&inode);
        }
        Ok(())
    }

    /// The staging directory, made when it is first needed.
    fn staging(&mut self) -> Result<u64> {
        if let Some(staging) = &self.staging {
            return Ok(staging.directory);
        }
        // The highest directory in which something changes and that stays: nothing that is staged is above
        // it. Of a detached tree even the top may be staged.
        let (mut depths, mut paths) = (depths(self.now()), Paths::new(self.now()));
        let mut best = (u32::MAX, ROOT_INODE);
        for change in self.plan.names.iter().filter(|change| change.now.is_some()) {
            if self.then().rows().has_own(change.place.0)? && !paths.is_detached(&change.place)? {
                best = best.min((depths.of(change.place.0)?, change.place.0));
            }
        }
        let parent = NodeId(self.know_own(best.1)?);
        let mut number = 0_u32;
        let (name, entry) = loop {
            let name = Bytes::from(format!(".restoring-{number}"));
            match settled(|caller| self.now().mkdir(caller, parent, &name, 0o700)) {
                Err(FsError::Exists) => number += 1,
                made => break (name, made?),
            }
        };
        let directory = self.adopt(entry)?;
        self.staging = Some(Staging { place: (parent.0, name), directory });
        Ok(directory)
    }

    /// Takes the staging directory away; what is left in it has other names.
    pub(super) fn remove_staging(&mut self) -> Result<()> {
        let Some(Staging { place, directory }) = self.staging.take() else { return Ok(()) };
        for inode in self.staged.difference(&self.placed) {
            let name = inode.to_string().into_bytes();
            settled(|caller| self.now().unlink(caller, NodeId(directory), &name))?;
        }
        self.pins.remove(&directory);
        settled(|caller| self.now().rmdir(caller, NodeId(place.0), &place.1))
    }

    /// Attributes of all directories in which something was changed, when nothing is changed in them any
    /// more.
    pub(super) fn set_directories(&mut self) -> Result<()> {
        for then in std::mem::take(&mut self.plan.directories) {
            // It is not in the snapshot, and was removed.
            let Some((header, _)) = self.then().rows().at(&(then, Bytes::new()))? else { continue };
            if header.kind != FileType::Directory {
                continue;
            }
            let inode = self.counterpart(then);
            if !self.now().rows().has_own(inode)? {
                continue;
            }
            self.know_own(inode)?;
            if inode == then {
                self.set_directory(inode, &header)?;
            } else {
                self.set_attributes(inode, &header)?;
            }
            self.done.inodes += 1;
        }
        Ok(())
    }
}
