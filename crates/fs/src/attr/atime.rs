//! Access times: maxima that never conflict, written lazily in batches.
//!
//! Reading notes the time in the node and keeps the node in the table; a batch of merge records follows
//! within about a second ([`FileSystem::housekeep`]), or when enough came together. A crash loses at most
//! what waits. So reading takes no names that anybody else could wait for; only the writer of the batch
//! holds the times of the inodes in it, under increment, so that it can't undo a time that somebody sets
//! meanwhile.

use std::sync::Arc;

use kvfs_store::Batch;
use kvfs_txn::{Fields, LockName, Want};
use parking_lot::Mutex;

use crate::node::Node;
use crate::schema::{RowPatch, TimePatch};
use crate::view::Origin;
use crate::{AtimePolicy, Caller, FileSystem, Result};

/// Nodes whose access times are written together at the latest.
const PENDING_MAX: usize = 512;

/// Age of an access time after which `relatime` renews it (seconds).
const RELATIME_AGE_S: i64 = 24 * 3600;

/// Nodes with an access time that is not written yet. Each holds one reference.
#[derive(Debug, Default)]
pub(crate) struct LazyTimes {
    pending: Mutex<Vec<Arc<Node>>>,
}

impl FileSystem {
    /// Somebody read the file, directory or link.
    pub(crate) fn note_access(&self, node: &Arc<Node>) {
        // Reading must never be a reason why a transaction conflicts.
        let is_main = matches!(self.origin, Origin::Main);
        if !is_main || self.options.read_only || self.options.atime == AtimePolicy::Noatime {
            return;
        }
        let now = self.now();
        {
            let mut state = node.state();
            let header = &mut state.header;
            let is_due = match self.options.atime {
                AtimePolicy::Relatime => {
                    header.atime <= header.mtime
                        || header.atime <= header.ctime
                        || now.seconds.saturating_sub(header.atime.seconds) >= RELATIME_AGE_S
                }
                AtimePolicy::Strict => true,
                AtimePolicy::Noatime => false,
            };
            if !is_due || header.atime >= now {
                return;
            }
            header.atime = now;
            if std::mem::replace(&mut state.is_atime_pending, true) {
                return;
            }
        }
        node.keep();
        let full = {
            let mut pending = self.lazy_times.pending.lock();
            pending.push(Arc::clone(node));
            pending.len() >= PENDING_MAX
        };
        if full && let Err(error) = self.write_lazy_times() {
            tracing::warn!(%error, "access times were not written");
        }
    }

    /// Writes the access times that wait, save those of inodes whose times somebody is setting.
    pub(crate) fn write_lazy_times(&self) -> Result<()> {
        let nodes = std::mem::take(&mut *self.lazy_times.pending.lock());
        if nodes.is_empty() {
            return Ok(());
        }
        let caller = Caller::default();
        let (mut batch, mut guards) = (Batch::new(), Vec::with_capacity(nodes.len()));
        let (mut written, mut kept) = (Vec::with_capacity(nodes.len()), Vec::new());
        for node in nodes {
            let name = LockName::Attributes { inode: node.inode, fields: Fields::TIMES };
            let Ok(guard) = self.latch(&caller, &[Want::increment(name)]) else {
                kept.push(node);
                continue;
            };
            guards.push(guard);
            let atime = {
                let mut state = node.state();
                state.is_atime_pending = false;
                state.header.atime
            };
            let patch = RowPatch { atime: Some(TimePatch::Max(atime)), ..RowPatch::default() };
            let (keyspace, key) = node.row_address(&self.keyspaces);
            batch.merge(keyspace, key, patch.encode(node.inode));
            written.push(node);
        }
        let result = if batch.is_empty() { Ok(()) } else { self.apply(batch).map(drop) };
        drop(guards);
        if !kept.is_empty() {
            self.lazy_times.pending.lock().append(&mut kept);
        }
        for node in written {
            self.nodes.release(&node, 1);
        }
        result
    }
}
