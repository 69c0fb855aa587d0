//! Orphans: inodes without a name, and the reaper that ends them.
//!
//! Losing the last name moves a row to `orphans`, whether or not somebody holds the file open: the node
//! table knows (a node leaves it when the kernel forgot it), and it queues what nobody knows any more. What
//! a crash leaves in `orphans` is reaped when the file system is opened.

use kvfs_store::{Batch, KeyRange};

use crate::schema::{Row, RowFlags, inode_key};
use crate::{FileSystem, FsError, Result};

/// Orphans that are reaped by one batch.
const REAP_BATCH: usize = 128;

impl FileSystem {
    /// Background work: reaps queued orphans, writes lazily kept access times. Call it about once a second
    /// from a thread that may block, and before unmounting.
    ///
    /// # Errors
    /// Store errors; what was not done stays queued.
    pub fn housekeep(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.write_lazy_times()?;
        self.reap_all()
    }

    /// Reaps what is queued, because space is short. True: there was something, so an operation that failed
    /// with [`FsError::NoSpace`] may succeed now. May block, and works on a full store.
    pub fn reap_for_space(&self) -> bool {
        !self.options.read_only && self.nodes.dead_count() > 0 && self.reap_all().is_ok()
    }

    /// Reaps when enough came together for a batch.
    pub(crate) fn reap_when_many(&self) {
        if self.nodes.dead_count() < REAP_BATCH || self.options.read_only {
            return;
        }
        if let Err(error) = self.reap_all() {
            tracing::warn!(%error, "orphans were not removed; they stay queued");
        }
    }

    pub(crate) fn reap_all(&self) -> Result<()> {
        loop {
            let inodes = self.nodes.take_dead(REAP_BATCH);
            if inodes.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.reap(&inodes) {
                self.nodes.queue_dead(inodes);
                return Err(error);
            }
        }
    }

    fn reap(&self, inodes: &[u64]) -> Result<()> {
        let mut batch = Batch::new();
        for &inode in inodes {
            let key = inode_key(inode);
            let Some(bytes) = self.store.get(self.keyspaces.orphans, &key)? else { continue };
            let (header, _) = Row::decode_own(inode, &bytes)?;
            if header.flags.has(RowFlags::BLOCKS) {
                self.stage_block_deletion(&mut batch, inode, 0, u64::MAX);
            }
            if header.flags.has(RowFlags::XATTRS) {
                batch.delete_range(self.keyspaces.xattr, key.clone(), inode_key(inode + 1));
            }
            batch.delete(self.keyspaces.orphans, key);
        }
        if !batch.is_empty() {
            self.apply(batch)?;
        }
        Ok(())
    }

    /// Queues everything in `orphans`: right after opening, when nobody knows any node.
    pub(crate) fn queue_leftovers(&self) -> Result<()> {
        let mut cursor = self.store.cursor(self.keyspaces.orphans, KeyRange::all())?;
        let mut inodes = Vec::new();
        cursor.next()?;
        while let Some((key, _)) = cursor.entry() {
            let inode = <[u8; 8]>::try_from(key).map_err(|_| {
                FsError::corrupt(format!("orphan {}", key.escape_ascii()), "the key is no inode number")
            })?;
            inodes.push(u64::from_be_bytes(inode));
            cursor.next()?;
        }
        self.nodes.queue_dead(inodes);
        Ok(())
    }
}
