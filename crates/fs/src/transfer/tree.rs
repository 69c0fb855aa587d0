//! Whether the directories that a stream brings are parts of one tree.
//!
//! Frames are sound one by one whatever they say, and a hostile stream may say that two directories are
//! inside of each other. What would come of it is checked in the transaction, before its commit: each entry
//! of a directory is where the directory says that it is, and from each directory a way leads to the root.
//!
//! Thread safety: only reads, in a transaction of its own.

use std::collections::HashSet;

use kvfs_store::{Change, Keyspace, Txn};

use super::ReceiveError;
use crate::dir::Ascent;
use crate::schema::{Header, Placement, ROOT_INODE, Row};
use crate::view::each_change;
use crate::{FileType, FsError, Result};

/// Directories that are remembered as below the root.
const KNOWN_MAX: usize = 1 << 20;

/// Looks at all directories that `txn` has changed. O(changes); memory for [`KNOWN_MAX`] numbers.
pub(super) fn expect_tree(txn: &dyn Txn, meta: Keyspace) -> Result<(), ReceiveError> {
    let mut rooted = Rooted { txn, meta, known: HashSet::from([ROOT_INODE]) };
    let mut wrong = None;
    each_change(txn.changes(meta)?, |change| {
        let (Change::Put { key, .. } | Change::Merge { key, .. }) = change else { return Ok(()) };
        let Some((parent, name)) = Placement::parse_key(&key).filter(|_| wrong.is_none()) else {
            return Ok(());
        };
        let Some(bytes) = txn.get(meta, &key)? else { return Ok(()) };
        wrong = match Row::parse(&bytes) {
            Some(Row::Directory { inode, .. }) if !name.is_empty() => {
                let is_there = rooted.header(inode)?.is_some_and(|header| header.parent == parent);
                (!is_there || inode == ROOT_INODE).then_some(inode)
            }
            Some(Row::Inode(header, _)) if name.is_empty() && header.kind == FileType::Directory => {
                (!rooted.leads_up(header)?).then_some(header.inode)
            }
            _ => None,
        };
        Ok(())
    })?;
    wrong.map_or(Ok(()), |inode| Err(ReceiveError::NoTree(inode)))
}

struct Rooted<'t> {
    txn: &'t dyn Txn,
    meta: Keyspace,
    known: HashSet<u64>,
}

impl Rooted<'_> {
    fn header(&self, directory: u64) -> Result<Option<Header>> {
        let row = self.txn.get(self.meta, &Placement::own_subtree(directory).own_key())?;
        row.map(|bytes| Row::decode_own(directory, &bytes).map(|(header, _)| header)).transpose()
    }

    /// Whether a way leads from this directory to the root.
    fn leads_up(&mut self, header: Header) -> Result<bool> {
        let (mut path, mut ascent) = (Vec::new(), Ascent::default());
        let mut at = header;
        while !self.known.contains(&at.inode) {
            if matches!(ascent.step(at.inode), Err(FsError::Corrupt { .. })) || at.kind != FileType::Directory
            {
                return Ok(false);
            }
            if path.len() < KNOWN_MAX {
                path.push(at.inode);
            }
            let Some(above) = self.header(at.parent)? else { return Ok(false) };
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
    use kvfs_store::Transactions;
    use kvfs_store::model::ModelStore;
    use kvfs_store::{Batch, KeyspaceKind, Store, TxnOptions};

    use super::*;
    use crate::Timestamp;
    use crate::schema::encode_row;

    /// Own rows of directories, each with the number of the one above.
    fn checked(directories: &[(u64, u64)]) -> Result<(), ReceiveError> {
        let store = ModelStore::new();
        let meta = store.open_keyspace("meta", KeyspaceKind::Tuple, None).unwrap();
        let txn = store.begin(TxnOptions::default()).unwrap();
        let mut batch = Batch::new();
        for &(inode, parent) in directories {
            let header = Header::new(inode, FileType::Directory, Timestamp { seconds: 1, nanos: 0 });
            let row = encode_row(&Header { parent, ..header }, b"");
            batch.put(meta, Placement::own_subtree(inode).own_key(), row);
        }
        txn.apply(batch).unwrap();
        expect_tree(&*txn, meta)
    }

    #[test]
    fn directories_inside_of_each_other_are_no_tree() {
        assert!(checked(&[(1, 1), (20, 1), (21, 20)]).is_ok());
        for circle in [&[(20, 20)][..], &[(20, 21), (21, 20)], &[(20, 21), (21, 22), (22, 21)], &[(20, 99)]] {
            assert!(matches!(checked(circle), Err(ReceiveError::NoTree(_))), "{circle:?}");
        }
    }
}
