//! What a restore has to do with names, and with inodes that stay where they are.
//!
//! Thread safety: belongs to one restore.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvfs_store::KeyDifference;

use super::super::compare::{Place, Sides, key_of};
use super::scope::Scope;
use crate::schema::{Placement, Row};
use crate::{FileSystem, FileType, Result};

/// What is under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) struct Target {
    pub(in crate::view) inode: u64,
    pub(in crate::view) kind: FileType,
}

impl Target {
    /// What the row under `key` leads to.
    pub(in crate::view) fn of(key: &[u8], row: Option<&Bytes>) -> Result<Option<Self>> {
        let row = row.map(|bytes| Row::decode(key, bytes)).transpose()?;
        Ok(row.map(|row| Self { inode: row.inode(), kind: row.kind() }))
    }

    /// What is at `place` on one side.
    pub(in crate::view) fn at(side: &FileSystem, place: &Place) -> Result<Option<Self>> {
        let key = key_of(place);
        Self::of(&key, side.rows().get(&key)?.as_ref())
    }
}

/// A name that leads elsewhere than in the snapshot.
pub(in crate::view) struct NameChange {
    pub(in crate::view) place: Place,
    pub(in crate::view) then: Option<Target>,
    pub(in crate::view) now: Option<Target>,
}

/// All that is to be done, but for keys.
#[derive(Default)]
pub(in crate::view) struct Plan {
    pub(in crate::view) names: Vec<NameChange>,
    /// Inodes that may differ inside, and a place where both sides have them (but for what is moved).
    pub(in crate::view) touched: BTreeMap<u64, Place>,
    /// Directories whose attributes may differ, by their inodes in the snapshot.
    pub(in crate::view) directories: BTreeSet<u64>,
    /// Inodes that `names` give a name in the snapshot.
    pub(in crate::view) named_then: BTreeSet<u64>,
}

impl Plan {
    pub(in crate::view) fn new(sides: Sides<'_>) -> Result<Self> {
        let mut plan = Self::of_rows(sides)?;
        plan.complete();
        Ok(plan)
    }

    /// Only what is inside of `scope`. The directories above stay as they are.
    pub(super) fn within(sides: Sides<'_>, scope: &Scope) -> Result<Self> {
        let mut plan = Self::of_rows(sides)?;
        plan.names = scope.pick(sides, std::mem::take(&mut plan.names))?;
        plan.touched.retain(|&inode, place| scope.has_inode(inode, place));
        plan.complete();
        plan.directories.retain(|&directory| scope.has_directory(directory));
        Ok(plan)
    }

    fn of_rows(sides: Sides<'_>) -> Result<Self> {
        let mut plan = Self::default();
        sides.each_touched_row(|touched| plan.take(touched))?;
        Ok(plan)
    }

    /// What follows from the names.
    fn complete(&mut self) {
        for change in &self.names {
            self.named_then.extend(change.then.map(|then| then.inode));
            self.directories.insert(change.place.0);
        }
    }

    /// Must be called after each change of `names`.
    pub(in crate::view) fn rename(&mut self) {
        self.named_then = self.names.iter().filter_map(|change| Some(change.then?.inode)).collect();
    }

    fn take(&mut self, touched: KeyDifference) -> Result<()> {
        let KeyDifference { key, older: before, newer: after } = touched;
        let Some((directory, name)) = Placement::parse_key(&key) else { return Ok(()) };
        let (then, now) = (Target::of(&key, before.as_ref())?, Target::of(&key, after.as_ref())?);
        let place = (directory, key.slice_ref(name));
        match (then, now) {
            (Some(then), Some(now)) if then.inode == now.inode => {
                if then.kind != FileType::Directory {
                    self.touched.insert(then.inode, place);
                } else if name.is_empty() {
                    self.directories.insert(then.inode);
                }
            }
            _ if name.is_empty() => {}
            (then, now) => self.names.push(NameChange { place, then, now }),
        }
        Ok(())
    }

    /// Whether something that has a wrong name now has another one in the snapshot. A file whose names are
    /// all in order elsewhere needs no place in between.
    pub(in crate::view) fn is_kept(&self, target: Target) -> bool {
        self.named_then.contains(&target.inode)
    }
}
