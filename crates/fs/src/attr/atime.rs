//! Access times: maxima that never conflict, written lazily in batches.
//!
//! Reading notes the time in the node and keeps the node in the table; a batch of merge records follows
//! within about a second ([`FileSystem::housekeep`]), or when enough came together. With
//! [`crate::MountOptions::lazytime`] it follows with the next change of the inode, at an fsync, a sync of everything,
//! or after a day. A crash loses at most what waits. (Times of change travel in the batch that changes the inode
//! anyway: to keep those back would save nothing, and what compares snapshots finds changed files by their rows.)
//! So reading takes no names that anybody else could wait for; only the writer of the batch holds the times of the
//! inodes in it, under increment, so that it can't undo a time that somebody sets meanwhile.

use std::sync::Arc;
use std::time::Duration;

use kvfs_store::Batch;
use kvfs_txn::{Fields, LockName, Want};
use parking_lot::Mutex;

use crate::node::{Node, Pin};
use crate::schema::{RowPatch, TimePatch};
use crate::{AtimePolicy, Caller, FileSystem, Result, Timestamp};

/// Nodes whose access times are written together at the latest.
const PENDING_MAX: usize = 512;

/// With `lazytime`, for each so many bytes of the node table one more (bytes): nodes that wait can't leave it.
const NODE_BYTES_EACH: u64 = 2048;

/// Most seconds that an access time waits, with `lazytime`.
const LAZY_AGE_MAX: Duration = Duration::from_hours(24);

/// Age of an access time after which `relatime` renews it (seconds).
const RELATIME_AGE_S: i64 = 24 * 3600;

/// Nodes with an access time that is not written yet. Each holds one reference.
#[derive(Debug, Default)]
pub(crate) struct LazyTimes {
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    nodes: Vec<Arc<Node>>,
    /// When the first of them came, by the monotonic clock.
    since: Duration,
}

impl Pending {
    fn add(&mut self, node: Arc<Node>, now: Duration) {
        if self.nodes.is_empty() {
            self.since = now;
        }
        self.nodes.push(node);
    }
}

impl FileSystem {
    /// Somebody read the file, directory or link.
    pub(crate) fn note_access(&self, node: &Arc<Node>) {
        // Reading must never be a reason why a transaction conflicts.
        let is_main = self.is_main();
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
            pending.add(Arc::clone(node), self.shared.clock.monotonic());
            pending.nodes.len() >= self.pending_max()
        };
        if full && let Err(error) = self.write_lazy_times() {
            tracing::warn!(%error, "access times were not written");
        }
    }

    fn pending_max(&self) -> usize {
        let lazy = (self.options.node_bytes_max / NODE_BYTES_EACH) as usize;
        if self.options.lazytime { lazy.max(PENDING_MAX) } else { PENDING_MAX }
    }

    /// Whether the access times that wait have waited long enough.
    pub(crate) fn lazy_times_are_due(&self) -> bool {
        let since = self.lazy_times.pending.lock().since;
        !self.options.lazytime || self.shared.clock.monotonic().saturating_sub(since) >= LAZY_AGE_MAX
    }

    /// The access time of the node that waits, to go with `patch` of its row. `None`: none waits, or the patch sets
    /// it.
    pub(crate) fn lazy_time_for(&self, node: &Node, patch: &RowPatch) -> Option<Timestamp> {
        if !self.options.lazytime || patch.atime.is_some() {
            return None;
        }
        let state = node.state();
        state.is_atime_pending.then_some(state.header.atime)
    }

    /// Writes the access time of one node, if it waits. The node stays queued, with nothing to be written. Not while
    /// somebody is setting its times: that is written, too.
    pub(crate) fn write_lazy_time_of(&self, node: &Pin<'_>) -> Result<()> {
        if !node.state().is_atime_pending {
            return Ok(());
        }
        let name = LockName::Attributes { inode: node.inode, fields: Fields::TIMES };
        let Ok(_guard) = self.latch(&Caller::default(), &[Want::increment(name)]) else { return Ok(()) };
        self.apply_to_node(Batch::new(), node, &RowPatch::default()).map(drop)
    }

    /// Writes the access times that wait, save those of inodes whose times somebody is setting.
    pub(crate) fn write_lazy_times(&self) -> Result<()> {
        let nodes = std::mem::take(&mut self.lazy_times.pending.lock().nodes);
        if nodes.is_empty() {
            return Ok(());
        }
        let caller = Caller::default();
        let (mut batch, mut guards) = (Batch::new(), Vec::with_capacity(nodes.len()));
        let (mut written, mut kept) = (Vec::with_capacity(nodes.len()), Vec::new());
        for node in nodes {
            if !node.state().is_atime_pending {
                // It has been written with something else.
                written.push(node);
                continue;
            }
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
            let now = self.shared.clock.monotonic();
            let mut pending = self.lazy_times.pending.lock();
            kept.drain(..).for_each(|node| pending.add(node, now));
        }
        for node in written {
            self.nodes.release(&node, 1);
        }
        result
    }
}
