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
    fn add(&mut self, node: Arc<Node>, since: Duration) {
        self.since = if self.nodes.is_empty() { since } else { self.since.min(since) };
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
            // Not at each node beyond: those that could not be written the last time would be tried each time.
            pending.nodes.len().is_multiple_of(self.pending_max())
        };
        if full && let Err(error) = self.write_lazy_times() {
            tracing::warn!(%error, "access times were not written");
        }
    }

    fn pending_max(&self) -> usize {
        if self.options.lazytime { self.waiting_max() } else { PENDING_MAX }
    }

    /// Nodes that may wait at all, when their times can't be written: they can't leave the table.
    fn waiting_max(&self) -> usize {
        ((self.options.node_bytes_max / NODE_BYTES_EACH) as usize).max(PENDING_MAX)
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
        if node.is_rowless() {
            return Ok(());
        }
        self.apply_to_node(Batch::new(), node, &RowPatch::default()).map(drop)
    }

    /// Writes the access times that wait, save those of inodes whose times somebody is setting. What could not be
    /// written waits on.
    pub(crate) fn write_lazy_times(&self) -> Result<()> {
        let Pending { nodes, since } = std::mem::take(&mut *self.lazy_times.pending.lock());
        if nodes.is_empty() {
            return Ok(());
        }
        let caller = Caller::default();
        let (mut batch, mut guards) = (Batch::new(), Vec::with_capacity(nodes.len()));
        let (mut staged, mut kept, mut done) = (Vec::with_capacity(nodes.len()), Vec::new(), Vec::new());
        for node in nodes {
            if !node.state().is_atime_pending {
                // It has been written with something else.
                done.push(node);
                continue;
            }
            let name = LockName::Attributes { inode: node.inode, fields: Fields::TIMES };
            let Ok(guard) = self.latch(&caller, &[Want::increment(name)]) else {
                kept.push(node);
                continue;
            };
            if node.is_rowless() {
                // Nobody will read it: it waits for nothing.
                node.state().is_atime_pending = false;
                done.push(node);
                continue;
            }
            guards.push(guard);
            let atime = {
                let mut state = node.state();
                state.is_atime_pending = false;
                state.header.atime
            };
            let patch = RowPatch { atime: Some(TimePatch::Max(atime)), ..RowPatch::default() };
            let (keyspace, key) = node.row_address(&self.keyspaces);
            batch.merge(keyspace, key, patch.encode(node.inode));
            staged.push(node);
        }
        let result = if batch.is_empty() { Ok(()) } else { self.apply(batch).map(drop) };
        for node in staged {
            let is_queued_anew =
                result.is_ok() || std::mem::replace(&mut node.state().is_atime_pending, true);
            if is_queued_anew { done.push(node) } else { kept.push(node) }
        }
        drop(guards);
        // What the store refused is due at once.
        let since = if result.is_ok() { self.shared.clock.monotonic() } else { since };
        done.extend(self.keep_waiting(kept, since));
        for node in done {
            self.nodes.release(&node, 1);
        }
        result
    }

    /// Queues again what could not be written, as far as memory allows. Returns the rest, whose times are lost.
    fn keep_waiting(&self, mut kept: Vec<Arc<Node>>, since: Duration) -> Vec<Arc<Node>> {
        if kept.is_empty() {
            return kept;
        }
        let mut pending = self.lazy_times.pending.lock();
        let room = self.waiting_max().saturating_sub(pending.nodes.len()).min(kept.len());
        let lost = kept.split_off(room);
        for node in kept {
            pending.add(node, since);
        }
        drop(pending);
        for node in &lost {
            node.state().is_atime_pending = false;
        }
        lost
    }
}
