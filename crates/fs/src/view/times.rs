//! The times that a change gives a node: now.
//!
//! A time is raised to now, so that changes of one node commute: two writers of a file, or two that make
//! entries in one directory, hold its times under increment. Raising would leave alone a time that lies in
//! the future, as one may that was set, or that is left of a clock that was ahead. Such a time is set to now,
//! which goes together with no other change of it: so its names are taken exclusively first.
//!
//! Thread safety: as [`Names`]. Invariant: a time of a node goes back only while its names are held
//! exclusively. (Now is taken after the node was read: what others gave it before is no later, unless the
//! clock was set back.)

use kvfs_txn::{Fields, LockName, Want};

use super::Names;
use crate::node::Node;
use crate::schema::{NumberPatch, RowPatch};
use crate::{Result, Timestamp};

impl Names<'_> {
    /// Content or entries of the node change now. The caller holds its times, of a directory its counters, at
    /// least under increment.
    ///
    /// # Errors
    /// `Parked`, and what refuses locks.
    pub(crate) fn modified(&mut self, node: &Node) -> Result<RowPatch> {
        let header = node.header();
        self.dated(node, header.mtime.max(header.ctime), RowPatch::modified)
    }

    /// Attributes of the node change now. As [`Self::modified`].
    pub(crate) fn changed(&mut self, node: &Node) -> Result<RowPatch> {
        let header = node.header();
        self.dated(node, header.ctime, RowPatch::changed)
    }

    /// Entries of the directory come and go now. As [`Self::modified`].
    pub(crate) fn counted(
        &mut self,
        directory: &Node,
        entries: i64,
        subdirectories: i32,
    ) -> Result<RowPatch> {
        Ok(RowPatch {
            size: (entries != 0).then_some(NumberPatch::Add(entries)),
            nlink_add: (subdirectories != 0).then_some(subdirectories),
            ..self.modified(directory)?
        })
    }

    /// The patch of now, for a node the latest of whose times that change is this.
    fn dated(
        &mut self,
        node: &Node,
        latest: Timestamp,
        patch: fn(Timestamp) -> RowPatch,
    ) -> Result<RowPatch> {
        let now = Timestamp::from(self.locker.clock.wall());
        if latest <= now {
            return Ok(patch(now));
        }
        let inode = node.inode;
        let times = LockName::Attributes { inode, fields: Fields::TIMES };
        let counters = node.directory.is_some().then_some(LockName::Counters { directory: inode });
        let wants: Vec<_> = [times].into_iter().chain(counters).map(Want::exclusive).collect();
        self.try_extend(&wants)?;
        Ok(patch(now).setting_times())
    }
}
