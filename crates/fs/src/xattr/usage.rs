//! How much of what a file may have in extended attributes it has.
//!
//! Two bounds: the list of names is what Linux can hand over in one piece, so that a file can always be
//! listed; names and values together are what one look over them may read. Access-control lists have room of
//! their own.
//!
//! Thread safety: as [`FileSystem`]. Invariants: the caller holds the attributes of the inode exclusively, by
//! a latch and in a transaction by a lock, so what a node keeps of its usage stays true until a commit
//! changes its row. What a snapshot does not show yet is no gap: an attribute that is set is a conflict with
//! whatever was set since. A file from before there were bounds may be over them: what it has can be read,
//! replaced by less, and removed.

use bytes::Bytes;
use kvfs_store::{KeyRange, Keyspace, Read};

use crate::acl::AclKind;
use crate::node::Pin;
use crate::schema::inode_key;
use crate::{FsError, Result, XATTR_BYTES_MAX, XATTR_LEN_MAX};

/// Names and values of the attributes of an inode, but for its access-control lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct XattrUsage {
    /// Names, each with the zero byte that ends it (bytes).
    list_bytes: u64,
    value_bytes: u64,
}

impl XattrUsage {
    /// The attributes of `node`, of which the caller holds the names exclusively. O(their number) when it is
    /// asked for the first time.
    pub(super) fn of(node: &Pin<'_>, read: &dyn Read, keyspace: Keyspace) -> Result<Self> {
        if let Some(known) = node.state().xattr_usage {
            return Ok(known);
        }
        let mut usage = Self::default();
        let prefix = inode_key(node.inode);
        let mut cursor = read.cursor(keyspace, KeyRange::prefix(&prefix))?;
        cursor.next()?;
        while let Some((key, value)) = cursor.entry() {
            let name = &key[prefix.len()..];
            if AclKind::by_name(name).is_none() {
                usage.add(name.len(), value.len());
            }
            cursor.next()?;
        }
        Ok(usage)
    }

    fn add(&mut self, name_len: usize, value_len: usize) {
        self.list_bytes += name_len as u64 + 1;
        self.value_bytes += value_len as u64;
    }

    /// The same with the value of one attribute replaced; `None`: it is not there.
    #[must_use]
    pub(super) fn replaced(mut self, name: &[u8], old: Option<&Bytes>, new: Option<&[u8]>) -> Self {
        if let Some(new) = new {
            self.add(name.len(), new.len());
        }
        if let Some(old) = old {
            self.list_bytes = self.list_bytes.saturating_sub(name.len() as u64 + 1);
            self.value_bytes = self.value_bytes.saturating_sub(old.len() as u64);
        }
        self
    }

    /// Whether a file with this may come to have `after`.
    pub(super) fn check(self, after: Self) -> Result<()> {
        let lists = AclKind::ALL.iter().map(|kind| kind.name().len() + 1).sum::<usize>();
        let total = |usage: Self| usage.list_bytes + usage.value_bytes;
        let bounds = [
            (self.list_bytes, after.list_bytes, (XATTR_LEN_MAX - lists) as u64),
            (total(self), total(after), XATTR_BYTES_MAX as u64),
        ];
        match bounds.into_iter().find(|(before, after, max)| after > before && after > max) {
            Some((_, bytes, bytes_max)) => Err(FsError::AttributesFull { bytes, bytes_max }),
            None => Ok(()),
        }
    }
}
