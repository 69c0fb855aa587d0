//! Whether the directories that a stream brings are parts of one tree.
//!
//! Frames are sound one by one whatever they say, and a hostile stream may say that two directories are
//! inside of each other. What would come of it is checked in the transaction, before its commit: each entry
//! of a directory is where the directory says that it is, from each directory a way leads to the root, and no
//! second entry leads to one. The state before is a tree: exactly one entry leads to each of its directories,
//! so the entries that come and go tell how many there are.
//!
//! Thread safety: only reads, in a transaction of its own.

use std::collections::{HashMap, HashSet};

use kvfs_store::{Change, Keyspace, Read, Txn};

use super::ReceiveError;
use crate::dir::Ascent;
use crate::schema::{Header, NAMELESS_INODES, Placement, ROOT_INODE, Row};
use crate::view::each_change;
use crate::{FileType, FsError, Result};

/// Directories that are remembered as below the root.
const KNOWN_MAX: usize = 1 << 20;

/// Looks at all directories that `txn` has changed since the state that `before` shows. O(changes); memory
/// for [`KNOWN_MAX`] numbers, the subdirectories of one directory and all directories that were moved.
pub(super) fn expect_tree(before: &dyn Read, txn: &dyn Txn, meta: Keyspace) -> Result<(), ReceiveError> {
    let mut entries = Entries {
        before,
        now: txn,
        meta,
        rooted: Rooted { txn, meta, known: HashSet::from([ROOT_INODE]) },
        parent: 0,
        added: HashMap::new(),
        moved: HashSet::new(),
        left: HashSet::new(),
    };
    let mut wrong = None;
    each_change(txn.changes(meta)?, |change| {
        if let Change::Put { key, .. } | Change::Merge { key, .. } | Change::Delete { key } = change
            && wrong.is_none()
        {
            wrong = entries.look_at(&key)?;
        }
        Ok(())
    })?;
    if wrong.is_none() {
        wrong = entries.finish()?;
    }
    wrong.map_or(Ok(()), |inode| Err(ReceiveError::NoTree(inode)))
}

/// The walk over the changed rows, which come directory by directory. Each step returns a directory that is
/// no part of the tree, if it finds one.
struct Entries<'t> {
    before: &'t dyn Read,
    now: &'t dyn Read,
    meta: Keyspace,
    rooted: Rooted<'t>,
    /// The directory that the walk is in.
    parent: u64,
    /// How many more of its entries than before lead to a directory.
    added: HashMap<u64, i64>,
    /// Directories that say that they are in another one than before.
    moved: HashSet<u64>,
    /// Directories that have no entry any more where they were.
    left: HashSet<u64>,
}

impl Entries<'_> {
    fn look_at(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let Some((parent, name)) = Placement::parse_key(key) else { return Ok(None) };
        let (was, is) = (self.before.get(self.meta, key)?, self.now.get(self.meta, key)?);
        let (was, is) = (was.as_deref().and_then(Row::parse), is.as_deref().and_then(Row::parse));
        if parent != self.parent {
            let wrong = self.end_directory()?;
            if wrong.is_some() {
                return Ok(wrong);
            }
            self.parent = parent;
        }
        if name.is_empty() {
            let directory = |row: Option<Row<'_>>| match row {
                Some(Row::Inode(header, _)) => Some(header).filter(|it| it.kind == FileType::Directory),
                _ => None,
            };
            return self.own_row(directory(was), directory(is));
        }
        if let Some(Row::Directory { inode, .. }) = was {
            *self.added.entry(inode).or_default() -= 1;
        }
        let Some(Row::Directory { inode, placement }) = is else { return Ok(None) };
        *self.added.entry(inode).or_default() += 1;
        let is_there = placement == Placement::own_subtree(inode)
            && directory(self.now, self.meta, inode)?.is_some_and(|header| header.parent == parent);
        Ok((!is_there || NAMELESS_INODES.contains(&inode)).then_some(inode))
    }

    fn own_row(&mut self, was: Option<Header>, is: Option<Header>) -> Result<Option<u64>> {
        let Some(is) = is else { return Ok(None) };
        if was.is_some_and(|was| was.parent != is.parent) {
            self.moved.insert(is.inode);
        }
        let is_below = is.inode == self.parent && self.rooted.leads_up(is)?;
        Ok((!is_below).then_some(self.parent))
    }

    /// All changed entries of the directory were looked at.
    fn end_directory(&mut self) -> Result<Option<u64>> {
        for (inode, added) in self.added.drain() {
            if added < 0 && directory(self.now, self.meta, inode)?.is_some() {
                self.left.insert(inode);
            }
            let was_here = || -> Result<bool> {
                let before = directory(self.before, self.meta, inode)?;
                Ok(before.is_some_and(|header| header.parent == self.parent))
            };
            if added > 1 || added == 1 && was_here()? {
                return Ok(Some(inode));
            }
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<Option<u64>> {
        let wrong = self.end_directory()?;
        Ok(wrong.or_else(|| self.moved.difference(&self.left).next().copied()))
    }
}

/// What a directory says of itself, if it is there.
fn directory(read: &dyn Read, meta: Keyspace, inode: u64) -> Result<Option<Header>> {
    let row = read.get(meta, &Placement::own_subtree(inode).own_key())?;
    let header = row.map(|bytes| Row::decode_own(inode, &bytes).map(|(header, _)| header)).transpose()?;
    Ok(header.filter(|header| header.kind == FileType::Directory))
}

struct Rooted<'t> {
    txn: &'t dyn Txn,
    meta: Keyspace,
    known: HashSet<u64>,
}

impl Rooted<'_> {
    /// Whether a way leads from this directory to the root.
    fn leads_up(&mut self, header: Header) -> Result<bool> {
        let (mut path, mut ascent) = (Vec::new(), Ascent::default());
        let mut at = header;
        while !self.known.contains(&at.inode) {
            if matches!(ascent.step(at.inode), Err(FsError::Corrupt { .. })) {
                return Ok(false);
            }
            if path.len() < KNOWN_MAX {
                path.push(at.inode);
            }
            let Some(above) = directory(self.txn, self.meta, at.parent)? else { return Ok(false) };
            at = above;
        }
        if self.known.len() + path.len() > 2 * KNOWN_MAX {
            self.known = HashSet::from([ROOT_INODE]);
        }
        self.known.extend(path);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kvfs_store::Transactions;
    use kvfs_store::model::ModelStore;
    use kvfs_store::{Batch, Durability, KeyspaceKind, Store, TxnOptions};

    use super::*;
    use crate::Timestamp;
    use crate::schema::{encode_directory_link, encode_row};

    type Rows<'r> = &'r [(u64, u64, &'r [(&'r str, u64)])];

    /// Directories, each with the number of the one above and its entries, in place of those before.
    fn checked(before: Rows<'_>, now: Rows<'_>) -> Result<(), ReceiveError> {
        let store = ModelStore::new();
        let meta = store.open_keyspace("meta", KeyspaceKind::Tuple, None).unwrap();
        let records = |rows: Rows<'_>| {
            let mut records = BTreeMap::new();
            for &(inode, parent, entries) in rows {
                let placement = Placement::own_subtree(inode);
                let header = Header::new(inode, FileType::Directory, Timestamp { seconds: 1, nanos: 0 });
                records.insert(placement.own_key(), encode_row(&Header { parent, ..header }, b""));
                records.extend(entries.iter().map(|&(name, to)| {
                    let link = encode_directory_link(to, &Placement::own_subtree(to));
                    (placement.key(name.as_bytes()), link)
                }));
            }
            records
        };
        let (before, now) = (records(before), records(now));
        let mut batch = Batch::new();
        for (key, row) in &before {
            batch.put(meta, key.clone(), row.clone());
        }
        store.apply(batch, Durability::Buffered).unwrap();
        let mut batch = Batch::new();
        before.keys().filter(|key| !now.contains_key(*key)).for_each(|key| batch.delete(meta, key.clone()));
        let changed = now.iter().filter(|(key, row)| before.get(*key) != Some(row));
        changed.for_each(|(key, row)| batch.put(meta, key.clone(), row.clone()));
        let txn = store.begin(TxnOptions::default()).unwrap();
        txn.apply(batch).unwrap();
        expect_tree(&store, &*txn, meta)
    }

    #[test]
    fn directories_inside_of_each_other_are_no_tree() {
        let rows = |directories: &[(u64, u64)]| {
            let rows: Vec<_> = directories.iter().map(|&(inode, parent)| (inode, parent, &[][..])).collect();
            checked(&[], &rows)
        };
        assert!(rows(&[(1, 1), (20, 1), (21, 20)]).is_ok());
        for circle in [&[(20, 20)][..], &[(20, 21), (21, 20)], &[(20, 21), (21, 22), (22, 21)], &[(20, 99)]] {
            assert!(matches!(rows(circle), Err(ReceiveError::NoTree(_))), "{circle:?}");
        }
    }

    #[test]
    fn moved_directories_are_a_tree_and_those_in_two_places_are_none() {
        let before: Rows<'_> = &[(1, 1, &[("a", 20)]), (20, 1, &[("b", 21)]), (21, 20, &[])];
        let sound: [Rows<'_>; 4] = [
            before,
            &[(1, 1, &[("b", 21)]), (20, 21, &[]), (21, 1, &[("a", 20)])],
            &[(1, 1, &[("c", 20), ("d", 21)]), (20, 1, &[]), (21, 1, &[])],
            &[(1, 1, &[("n", 22)]), (22, 1, &[("a", 20)]), (20, 22, &[("b", 21)]), (21, 20, &[])],
        ];
        for now in sound {
            assert!(checked(before, now).is_ok(), "{now:?}");
            assert!(checked(now, before).is_ok(), "{now:?}");
            assert!(checked(&[], now).is_ok(), "{now:?}");
        }
        let unsound: [Rows<'_>; 4] = [
            &[(1, 1, &[("a", 20), ("c", 20)]), (20, 1, &[("b", 21)]), (21, 20, &[])],
            &[(1, 1, &[("a", 20), ("c", 21)]), (20, 1, &[("b", 21)]), (21, 1, &[])],
            &[(1, 1, &[("b", 21)]), (20, 21, &[("b", 21)]), (21, 1, &[("a", 20)])],
            &[(1, 1, &[("a", 20), ("n", 2)]), (2, 1, &[]), (20, 1, &[("b", 21)]), (21, 20, &[])],
        ];
        for now in unsound {
            assert!(matches!(checked(before, now), Err(ReceiveError::NoTree(_))), "{now:?}");
            assert!(matches!(checked(&[], now), Err(ReceiveError::NoTree(_))), "{now:?}");
        }
    }
}
