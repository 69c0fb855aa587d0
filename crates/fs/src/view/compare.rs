//! Two views side by side: what was touched between them, row by row.
//!
//! Purpose: comparing snapshots and restoring one read what was written in between, not the trees.
//!
//! Thread safety: as [`FileSystem`]. Both views are of one file system and pinned: snapshots, or a transaction
//! that reads its snapshot.

use bytes::Bytes;
use kvfs_store::{ChangedRanges, Cursor, Differences, KeyRange, Keyspace, Read, Seqno};

use super::Origin;
use crate::schema::{Header, Placement, Row, inode_key};
use crate::{FileSystem, FsError, Result};

/// Directory and name; with the empty name the inode itself, which has a row of its own.
pub(super) type Place = (u64, Bytes);

pub(super) fn key_of(place: &Place) -> Bytes {
    Placement::own_subtree(place.0).key(&place.1)
}

/// A key that may have been written to, and what the sides have there.
pub(super) struct Touched {
    pub(super) key: Bytes,
    pub(super) before: Option<Bytes>,
    pub(super) after: Option<Bytes>,
}

/// The state that one side shows and the state that the other one shows.
#[derive(Clone, Copy)]
pub(super) struct Sides<'f> {
    pub(super) before: &'f FileSystem,
    pub(super) after: &'f FileSystem,
}

impl FileSystem {
    /// The position that the view reads, if it stays the same.
    fn pinned(&self) -> Result<Seqno> {
        match &self.origin {
            Origin::Snapshot(snapshot) => Ok(snapshot.seqno()),
            Origin::Txn(view) if !self.locks_reads() => Ok(view.txn.snapshot_seqno()),
            Origin::Txn(_) | Origin::Main => Err(FsError::Invalid("only snapshots are compared")),
        }
    }

    /// Attributes and inline content of what is at `place`; `None`: nothing.
    pub(super) fn row_at(&self, place: &Place) -> Result<Option<(Header, Bytes)>> {
        let key = key_of(place);
        let read = self.read_view();
        let Some(bytes) = read.get(self.keyspaces.meta, &key)? else { return Ok(None) };
        let inode = match Row::decode(&key, &bytes)? {
            Row::Inode(header, content) => return Ok(Some((header, Bytes::copy_from_slice(content)))),
            Row::Directory { inode, .. } | Row::Link { inode, .. } => inode,
        };
        let own = read.get(self.keyspaces.meta, &Placement::own_subtree(inode).own_key())?;
        let own = own.ok_or_else(|| {
            FsError::corrupt(format!("row {}", key.escape_ascii()), "it refers to an inode without a row")
        })?;
        let (header, content) = Row::decode_own(inode, &own)?;
        Ok(Some((header, own.slice_ref(content))))
    }

    /// Whether the inode has a row of its own: every directory, and files with several names.
    pub(super) fn has_own_row(&self, inode: u64) -> Result<bool> {
        let key = Placement::own_subtree(inode).own_key();
        Ok(self.read_view().get(self.keyspaces.meta, &key)?.is_some())
    }
}

impl<'f> Sides<'f> {
    fn ranges(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn ChangedRanges>> {
        let (before, after) = (self.before.pinned()?, self.after.pinned()?);
        let (older, newer) = (before.min(after), before.max(after));
        Ok(self.after.store.changed_ranges(keyspace, range, older, newer)?)
    }

    /// The keys of `range` whose values differ.
    pub(super) fn differences(&self, keyspace: Keyspace, range: KeyRange) -> Result<Differences<'f>> {
        let ranges = self.ranges(keyspace, range)?;
        Ok(Differences::new(keyspace, self.before.read_view(), self.after.read_view(), ranges))
    }

    /// Calls `each` for every row that was written to, also where both sides have the same: what is stored
    /// elsewhere under the row's inode may differ then.
    pub(super) fn each_touched_row(&self, mut each: impl FnMut(Touched) -> Result<()>) -> Result<()> {
        let meta = self.after.keyspaces.meta;
        let (before, after) = (self.before.read_view(), self.after.read_view());
        let mut ranges = self.ranges(meta, KeyRange::all())?;
        while let Some(range) = ranges.next()? {
            // Nearly always one key; a range where a merge put together what lies close.
            let mut sides = [start(before, meta, &range)?, start(after, meta, &range)?];
            while let Some(touched) = next_of_both(&mut sides)? {
                each(touched)?;
            }
        }
        Ok(())
    }

    /// Whether anything that is stored under an inode's number in `keyspace` differs.
    pub(super) fn differ_in(&self, keyspace: Keyspace, inode: u64) -> Result<bool> {
        Ok(self.differences(keyspace, KeyRange::prefix(&inode_key(inode)))?.next()?.is_some())
    }
}

fn start(side: &dyn Read, keyspace: Keyspace, range: &KeyRange) -> Result<Box<dyn Cursor>> {
    let mut cursor = side.cursor(keyspace, range.clone())?;
    cursor.first()?;
    Ok(cursor)
}

fn next_of_both(sides: &mut [Box<dyn Cursor>; 2]) -> Result<Option<Touched>> {
    let keys = sides.iter().filter_map(|side| side.entry().map(|(key, _)| Bytes::copy_from_slice(key)));
    let Some(key) = keys.min() else { return Ok(None) };
    let mut values = [None, None];
    for (side, value) in sides.iter_mut().zip(&mut values) {
        *value = side.entry().filter(|(found, _)| *found == &key[..]).map(|(_, value)| value.clone());
        if value.is_some() {
            side.next()?;
        }
    }
    let [before, after] = values;
    Ok(Some(Touched { key, before, after }))
}
