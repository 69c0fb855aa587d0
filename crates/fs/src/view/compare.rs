//! Two views side by side: what was touched between them, row by row.
//!
//! Purpose: comparing snapshots and restoring one read what was written in between, not the trees.
//!
//! Thread safety: as [`FileSystem`]. Both views are of one file system and pinned: snapshots, or a
//! transaction that reads its snapshot; or one is a branch that is not written to, and the other one its
//! snapshot, or the state in which they parted.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{Change, ChangedRanges, Differences, KeyDifference, KeyRange, Keyspace, Read};

use super::Origin;
use super::publish::each_change;
use crate::schema::{Header, NAMELESS_INODES, Placement, Row, inode_key};
use crate::{FileSystem, FileType, FsError, Result};

/// How often two rows that contradict each other are read before they count as damage; the other explanation
/// is that a directory was moved in between.
const MOVED_TRIES: u32 = 16;

/// Directory and name; with the empty name the inode itself, which has a row of its own.
pub(super) type Place = (u64, Bytes);

pub(super) fn key_of(place: &Place) -> Bytes {
    Placement::own_subtree(place.0).key(&place.1)
}

/// The state that one side shows and the state that the other one shows.
#[derive(Clone, Copy)]
pub(crate) struct Sides<'f> {
    pub(crate) before: &'f FileSystem,
    pub(crate) after: &'f FileSystem,
}

impl Origin {
    /// Where a branch has written since the state that it is compared with, within `range`; `None`: this is
    /// no branch. The write set is walked once.
    fn branch_ranges(&self, keyspace: Keyspace, range: &KeyRange) -> Result<Option<Written>> {
        let Some(view) = self.txn() else { return Ok(None) };
        if view.branch.get().is_none() {
            return Ok(None);
        }
        let mut known = view.written.lock();
        let all = match known.entry(keyspace) {
            Entry::Occupied(all) => Arc::clone(all.get()),
            Entry::Vacant(place) => {
                let mut all = Vec::new();
                each_change(view.changes_apart(keyspace)?, |change| {
                    all.push(range_of(&change));
                    Ok(())
                })?;
                Arc::clone(place.insert(Arc::new(disjoint(all))))
            }
        };
        let at = all.partition_point(|written| written.end.as_ref().is_some_and(|end| *end <= range.start));
        Ok(Some(Written { all, at, within: range.clone() }))
    }
}

/// The rows of a view, whatever nodes there are.
pub(crate) struct Rows<'v> {
    read: &'v dyn Read,
    meta: Keyspace,
}

impl FileSystem {
    /// The rows of this view.
    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows { read: self.origin.read(), meta: self.keyspaces.meta }
    }
}

impl Rows<'_> {
    /// The row under `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.read.get(self.meta, key)?)
    }

    /// Attributes and inline content of what is at `place`; `None`: nothing.
    pub(super) fn at(&self, place: &Place) -> Result<Option<(Header, Bytes)>> {
        let key = key_of(place);
        let Some(bytes) = self.get(&key)? else { return Ok(None) };
        let inode = match Row::decode(&key, &bytes)? {
            Row::Inode(header, content) => return Ok(Some((header, Bytes::copy_from_slice(content)))),
            Row::Directory { inode, .. } | Row::Link { inode, .. } => inode,
        };
        let own = self.referred_to(&key, inode)?;
        let (header, content) = Row::decode_own(inode, &own)?;
        Ok(Some((header, own.slice_ref(content))))
    }

    /// The own row of the inode that the row under `key` refers to.
    pub(crate) fn referred_to(&self, key: &[u8], inode: u64) -> Result<Bytes> {
        let own = self.get(&Placement::own_subtree(inode).own_key())?;
        own.ok_or_else(|| {
            FsError::corrupt(format!("row {}", key.escape_ascii()), "it refers to an inode without a row")
        })
    }

    /// Refuses, on a walk from the directory `top` down, one that does not say itself that it is in `above`,
    /// where the row under `key` leads to it. A row names one directory, and `top` is met once: so a walk
    /// that asks this of each directory ends, whatever the rows are. Moves may go on meanwhile. Returns its
    /// attributes.
    ///
    /// # Errors
    /// `NotFound`: it is not there any more; `Corrupt`.
    pub(crate) fn expect_in(&self, (above, key): (u64, &[u8]), inode: u64, top: u64) -> Result<Header> {
        for _ in 0..MOVED_TRIES {
            let own = self.get(&Placement::own_subtree(inode).own_key())?.ok_or(FsError::NotFound)?;
            let (header, _) = Row::decode_own(inode, &own)?;
            let is_below = inode != top && !NAMELESS_INODES.contains(&inode);
            if is_below && header.kind == FileType::Directory && header.parent == above {
                return Ok(header);
            }
            let row = self.get(key)?.ok_or(FsError::NotFound)?;
            if Row::decode(key, &row)?.inode() != inode {
                return Err(FsError::NotFound);
            }
        }
        Err(FsError::corrupt(
            format!("row {}", key.escape_ascii()),
            format!(
                "it leads to inode {inode}, which is no directory in this one; `kvfs check --repair` mends it"
            ),
        ))
    }

    /// Whether the inode has a row of its own: every directory, and files with several names.
    pub(crate) fn has_own(&self, inode: u64) -> Result<bool> {
        Ok(self.get(&Placement::own_subtree(inode).own_key())?.is_some())
    }
}

/// The ranges that a branch has written to.
struct Written {
    all: Arc<Vec<KeyRange>>,
    at: usize,
    within: KeyRange,
}

impl ChangedRanges for Written {
    fn next(&mut self) -> kvfs_store::Result<Option<KeyRange>> {
        let next = self.all.get(self.at).map(|range| range.clone().within(&self.within));
        self.at += 1;
        Ok(next.filter(|range| !range.is_empty()))
    }
}

/// The keys that a change is about.
fn range_of(change: &Change) -> KeyRange {
    match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Merge { key, .. } => {
            KeyRange { start: key.clone(), end: Some([key, &b"\0"[..]].concat().into()) }
        }
        Change::DeleteRange { start, end } => KeyRange { start: start.clone(), end: Some(end.clone()) },
        Change::Blocks { prefix, first, count } => {
            let at = |block: u64| Bytes::from([prefix, &block.to_be_bytes()[..]].concat());
            KeyRange { start: at(*first), end: Some(at(first.saturating_add(*count))) }
        }
    }
}

/// Ascending ranges as disjoint ones.
fn disjoint(ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    let mut all: Vec<KeyRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.end.as_ref().is_none_or(|end| range.start < *end) => {
                if last.end.is_some() && (range.end.is_none() || range.end > last.end) {
                    last.end = range.end;
                }
            }
            _ => all.push(range),
        }
    }
    all
}

impl<'f> Sides<'f> {
    /// The keys of `range` whose values differ, or may have been written to.
    pub(crate) fn differences(&self, keyspace: Keyspace, range: KeyRange) -> Result<Differences<'f>> {
        for side in [self.before, self.after] {
            if let Some(ranges) = side.origin.branch_ranges(keyspace, &range)? {
                let (before, after) = (self.before.origin.read(), self.after.origin.read());
                return Ok(Differences::new(keyspace, before, after, Box::new(ranges)));
            }
        }
        let (before, after) = (self.before.origin.pinned()?, self.after.origin.pinned()?);
        let (older, newer) = (before.min(after), before.max(after));
        let ranges = self.after.store.changed_ranges(keyspace, range, older, newer)?;
        Ok(Differences::new(keyspace, self.before.origin.read(), self.after.origin.read(), ranges))
    }

    /// Calls `each` for every row that was written to, also where both sides have the same: what is stored
    /// elsewhere under the row's inode may differ then.
    pub(super) fn each_touched_row(&self, mut each: impl FnMut(KeyDifference) -> Result<()>) -> Result<()> {
        let mut rows = self.differences(self.after.keyspaces.meta, KeyRange::all())?;
        progress::stage("comparing", Unit::Items, 0);
        while let Some(row) = rows.next_touched()? {
            progress::advance(1);
            each(row)?;
        }
        Ok(())
    }

    /// Whether the content of a file differs, whose attributes and inline content are these on the two sides.
    /// What the time of change tells counts.
    pub(super) fn content_differs(
        &self,
        before: (&Header, &Bytes),
        after: (&Header, &Bytes),
    ) -> Result<bool> {
        let ((then, content_then), (now, content_now)) = (before, after);
        if (then.size, then.mtime) != (now.size, now.mtime) || then.is_inline() != now.is_inline() {
            return Ok(true);
        }
        Ok(content_then != content_now || self.differ_in(self.after.keyspaces.data, now.inode)?)
    }

    /// Whether anything that is stored under an inode's number in `keyspace` differs.
    pub(super) fn differ_in(&self, keyspace: Keyspace, inode: u64) -> Result<bool> {
        Ok(self.differences(keyspace, KeyRange::prefix(&inode_key(inode)))?.next()?.is_some())
    }
}

#[cfg(test)]
mod tests;
