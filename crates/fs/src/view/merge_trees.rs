//! What others have changed in the trees that a branch has removed as a whole: that has touched nothing below
//! their tops, so a merge looks there. O(names in those trees), where what is older than the branch's
//! snapshot is not read of the main line. What was looked at is locked, so that it stays so until the commit:
//! directories with the names in them, and each file.
//!
//! Thread safety: plain functions.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvfs_store::{Change, Changed, Records, Touch};
use kvfs_txn::{LockNameBuf, Mode};

use super::TxnView;
use super::merge::{Claims, all_attributes};
use super::publish::each_change;
use crate::schema::{DETACHED_INODE, Placement, Row};
use crate::{FileSystem, Result};

/// A walk through the trees.
struct Walk<'f> {
    fs: &'f FileSystem,
    view: &'f TxnView,
    claims: Claims<'f>,
    /// Directories to be looked at.
    todo: Vec<u64>,
    /// Files with several names: how many of them were met.
    linked: BTreeMap<u64, u32>,
}

/// Calls `found` with a change by others in each directory, and of each file with several names, that goes
/// with a tree of the branch.
///
/// # Errors
/// Those of `found`; store errors.
pub(super) fn each_change_by_others(
    (fs, view): (&FileSystem, &TxnView),
    claims: Claims<'_>,
    mut found: impl FnMut(&Changed) -> Result<()>,
) -> Result<()> {
    let mut walk = Walk { fs, view, claims, todo: Vec::new(), linked: BTreeMap::new() };
    each_change(view.changes(fs.keyspaces.meta)?, |change| {
        if let Change::Put { key, value } = &change
            && Placement::parse_key(key)
                .is_some_and(|(parent, name)| parent == DETACHED_INODE && !name.is_empty())
            && let Row::Directory { inode, .. } = Row::decode(key, value)?
        {
            fs.rows().expect_in((DETACHED_INODE, key), inode, DETACHED_INODE)?;
            walk.todo.push(inode);
        }
        Ok(())
    })?;
    while let Some(directory) = walk.todo.pop() {
        walk.enter(directory)?;
        let placement = Placement::own_subtree(directory);
        let own = Records::Key { key: placement.own_key(), touch: Touch::ALL };
        // The entries first: they say more.
        for records in [Records::Range(placement.entries_after(b"")), own] {
            if let Some(changed) = walk.changed(directory, records)? {
                found(&changed)?;
                break;
            }
        }
    }
    for (&inode, &count) in &walk.linked {
        let key = Placement::own_subtree(inode).own_key();
        let Some(row) = fs.rows().get(&key)? else { continue };
        // One that has a name elsewhere stays, and may be written to.
        if Row::decode_own(inode, &row)?.0.nlink > count {
            continue;
        }
        walk.claim(inode, &[all_attributes(inode)])?;
        if let Some(changed) = walk.changed(inode, Records::Key { key, touch: Touch::ALL })? {
            found(&changed)?;
        }
    }
    Ok(())
}

impl Walk<'_> {
    /// Keeps others from changing what these are, in a file or directory that there was before the branch.
    fn claim(&self, inode: u64, names: &[LockNameBuf]) -> Result<()> {
        if self.view.created.contains(inode) {
            return Ok(());
        }
        let wants: Vec<_> = names.iter().map(|name| (name.clone(), Mode::Shared)).collect();
        self.claims.claim(&wants)
    }

    /// Locks a directory and the files in it, and notes what is there in the branch.
    fn enter(&mut self, directory: u64) -> Result<()> {
        let counters = LockNameBuf::Counters { directory };
        self.claim(directory, &[LockNameBuf::Entries { directory }, counters, all_attributes(directory)])?;
        let range = Placement::own_subtree(directory).entries_after(b"");
        let mut cursor = self.fs.origin.read().cursor(self.fs.keyspaces.meta, range)?;
        loop {
            cursor.next()?;
            let Some((key, bytes)) = cursor.entry() else { return Ok(()) };
            match Row::decode(key, bytes)? {
                Row::Directory { inode, .. } => {
                    self.fs.rows().expect_in((directory, key), inode, DETACHED_INODE)?;
                    self.todo.push(inode);
                }
                Row::Link { inode, .. } => *self.linked.entry(inode).or_default() += 1,
                // Every write of content changes times.
                Row::Inode(header, _) => self.claim(header.inode, &[all_attributes(header.inode)])?,
            }
        }
    }

    /// A change by others. What the branch has made has a number that the main line may have given, too.
    fn changed(&self, inode: u64, records: Records) -> Result<Option<Changed>> {
        if self.view.created.contains(inode) {
            return Ok(None);
        }
        self.view.changed_by_others(self.fs.keyspaces.meta, &[records])
    }
}

/// The place of a row, for a path.
pub(super) fn place_of(changed: &Changed) -> Option<(u64, Bytes)> {
    let (directory, name) = Placement::parse_key(&changed.key)?;
    Some((directory, Bytes::copy_from_slice(name)))
}
