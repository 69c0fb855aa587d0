//! Attributes in views that lock what they read.
//!
//! A node may have come into the table before the transaction had a lock on it: the root at the begin, a
//! directory on the way to another. Until then others may change its row. So the first time that a lock is
//! there, the row is read once more; from then on no other party changes what was locked.
//!
//! Thread safety: it runs under the latches of the names in question, which keep out the transaction's own
//! other operations: what is read is what the node holds from then on.

use kvfs_txn::{Fields, LockName, Mode, Want};

use super::locker::Locker;
use crate::node::Verified;
use crate::schema::{Header, Row};
use crate::{FileType, FsError, NodeId, Result};

impl Locker<'_> {
    /// Reads again what the names protect from now on. Nothing to do for views that don't lock what they
    /// read.
    pub(super) fn verify(&self, wants: &[Want<'_>]) -> Result<()> {
        if !self.origin.locks_reads() {
            return Ok(());
        }
        for want in wants.iter().filter(|want| want.mode != Mode::Increment) {
            match want.name {
                LockName::Attributes { inode, fields: Fields::ALL } => {
                    self.verify_node(inode, Verified::ATTRIBUTES)?;
                }
                LockName::Counters { directory } => self.verify_node(directory, Verified::COUNTERS)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the attributes of a node were read under a lock.
    pub(super) fn is_verified(&self, node: NodeId) -> bool {
        self.nodes.get(node.0).is_some_and(|node| node.state().verified.has(Verified::ATTRIBUTES))
    }

    fn verify_node(&self, inode: u64, part: Verified) -> Result<()> {
        let Some(view) = self.origin.txn() else { return Ok(()) };
        let Some(node) = self.nodes.get(inode) else { return Ok(()) };
        if view.created.contains(inode) || node.state().verified.has(part) {
            return Ok(());
        }
        let (keyspace, key) = node.row_address(&self.keyspaces);
        let bytes = self.origin.read().get(keyspace, &key)?.ok_or(FsError::Stale(inode))?;
        let (newest, _) = Row::decode_own(inode, &bytes)?;
        let mut state = node.state();
        state.header = join(&state.header, &newest, part);
        state.verified.insert(part);
        self.nodes.drop_content_locked(&mut state);
        Ok(())
    }
}

/// `old` with `part` of `newest`. What changes with a directory's entries is a part of its own.
fn join(old: &Header, newest: &Header, part: Verified) -> Header {
    let counts = |of: &Header, onto: &Header| Header {
        size: of.size,
        nlink: of.nlink,
        mtime: of.mtime,
        ctime: of.ctime,
        ..*onto
    };
    match part {
        Verified::COUNTERS => counts(newest, old),
        _ if newest.kind == FileType::Directory => counts(old, newest),
        _ => *newest,
    }
}
