//! What a restore has to do with names, and with inodes that stay where they are.
//!
//! Thread safety: belongs to one restore.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvfs_store::KeyDifference;

use super::super::compare::{Place, Sides};
use crate::schema::{Placement, Row};
use crate::{FileType, Result};

/// What is under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) inode: u64,
    pub(super) kind: FileType,
}

/// A name that leads elsewhere than in the snapshot.
pub(super) struct NameChange {
    pub(super) place: Place,
    pub(super) then: Option<Target>,
    pub(super) now: Option<Target>,
}

/// All that is to be done, but for keys.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) names: Vec<NameChange>,
    /// Inodes that may differ inside, and a place where both sides have them (but for what is moved).
    pub(super) touched: BTreeMap<u64, Place>,
    /// Directories whose attributes may differ, by their inodes in the snapshot.
    pub(super) directories: BTreeSet<u64>,
    /// Inodes that `names` give a name in the snapshot.
    named_then: BTreeSet<u64>,
}

impl Plan {
    pub(super) fn new(sides: Sides<'_>) -> Result<Self> {
        let mut plan = Self::default();
        sides.each_touched_row(|touched| plan.take(touched))?;
        for change in &plan.names {
            plan.named_then.extend(change.then.map(|then| then.inode));
            plan.directories.insert(change.place.0);
        }
        Ok(plan)
    }

    fn take(&mut self, touched: KeyDifference) -> Result<()> {
        let KeyDifference { key, older: before, newer: after } = touched;
        let Some((directory, name)) = Placement::parse_key(&key) else { return Ok(()) };
        let target = |bytes: &Option<Bytes>| -> Result<Option<Target>> {
            let row = bytes.as_ref().map(|bytes| Row::decode(&key, bytes)).transpose()?;
            Ok(row.map(|row| Target { inode: row.inode(), kind: row.kind() }))
        };
        let (then, now) = (target(&before)?, target(&after)?);
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

    /// Whether something that has a wrong name now has another one in the snapshot. A file whose names are all
    /// in order elsewhere needs no place in between.
    pub(super) fn is_kept(&self, target: Target) -> bool {
        self.named_then.contains(&target.inode)
    }
}
