//! Access times: maxima that never conflict, written lazily in batches.
//!
//! Reading notes the time in the node and keeps the node in the table; a batch of merge records follows
//! within about a second ([`crate::FileSystem::housekeep`]), or when enough came together. With
//! [`crate::MountOptions::lazytime`] it follows with the next change of the inode, at an fsync, a sync of
//! everything, or after a day. A crash loses at most what waits. (Times of change travel in the batch that
//! changes the inode anyway: to keep those back would save nothing, and what compares snapshots finds changed
//! files by their rows.) So reading takes no names that another operation could wait for; only the writer of
//! the batch holds the times of the inodes in it, under increment, so that it can't undo a time that an
//! operation sets meanwhile.

use std::sync::Arc;
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::Batch;
use kvfs_store::clock::Clock;
use kvfs_txn::{Fields, LockName, Want};

use crate::node::{Node, Pin};
use crate::schema::{RowPatch, TimePatch};
use crate::view::{Locker, NodeWriter};
use crate::{AtimePolicy, Caller, FileSystem, MountOptions, Result, Timestamp};

/// Nodes whose access times are written together at the latest.
const PENDING_MAX: usize = 512;

/// With `lazytime`, for each so many bytes of the node table one more (bytes): nodes that wait can't leave
/// it.
const NODE_BYTES_EACH: u64 = 2048;

/// Most seconds that an access time waits, with `lazytime`.
const LAZY_AGE_MAX: Duration = Duration::from_hours(24);

/// Age of an access time after which `relatime` renews it (seconds).
const RELATIME_AGE_S: i64 = 24 * 3600;

/// The access times of one view. Which readings count is decided here, and which times wait: nodes with an
/// access time that is not written yet, and some of which it has been written, or is not needed any more: of
/// those that wait, each has a flag that holds a reference ([`crate::node::NodeState::is_atime_pending`]).
pub(crate) struct LazyTimes {
    policy: AtimePolicy,
    /// Those of directories stay.
    skips_directories: bool,
    is_lazytime: bool,
    /// Nodes that may wait at all, when their times can't be written: they can't leave the table.
    waiting_max: usize,
    clock: Arc<dyn Clock>,
    pending: Mutex<Pending, class::FsAttrAtimePending>,
}

#[derive(Default)]
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

impl LazyTimes {
    pub(crate) fn new(options: &MountOptions, is_main: bool, clock: Arc<dyn Clock>) -> Self {
        // Reading must never be a reason why a transaction conflicts.
        let policy = if is_main && !options.read_only { options.atime } else { AtimePolicy::Noatime };
        Self {
            policy,
            skips_directories: options.nodiratime,
            is_lazytime: options.lazytime,
            waiting_max: ((options.node_bytes_max / NODE_BYTES_EACH) as usize).max(PENDING_MAX),
            clock,
            pending: Mutex::default(),
        }
    }

    /// `caller` has read the file, directory or link. True: so many wait that they are to be written.
    fn note(&self, caller: &Caller, node: &Arc<Node>) -> bool {
        if self.policy == AtimePolicy::Noatime || caller.keeps_atime {
            return false;
        }
        if self.skips_directories && node.directory.is_some() {
            return false;
        }
        let now = Timestamp::from(self.clock.wall());
        {
            let mut state = node.state();
            let header = &mut state.header;
            let is_due = match self.policy {
                AtimePolicy::Relatime => {
                    header.atime <= header.mtime
                        || header.atime <= header.ctime
                        || now.seconds.saturating_sub(header.atime.seconds) >= RELATIME_AGE_S
                }
                AtimePolicy::Strict => true,
                AtimePolicy::Noatime => false,
            };
            if !is_due || header.atime >= now {
                return false;
            }
            header.atime = now;
            if state.is_orphan() || std::mem::replace(&mut state.is_atime_pending, true) {
                return false;
            }
            // Under the lock: whatever clears the flag gives it back.
            node.keep();
        }
        let mut pending = self.pending.lock();
        pending.add(Arc::clone(node), self.clock.monotonic());
        // Not at each node beyond: those that could not be written the last time would be tried each time.
        pending.nodes.len().is_multiple_of(if self.is_lazytime { self.waiting_max } else { PENDING_MAX })
    }

    /// Whether the access times that wait have waited long enough.
    pub(crate) fn are_due(&self) -> bool {
        let since = self.pending.lock().since;
        !self.is_lazytime || self.clock.monotonic().saturating_sub(since) >= LAZY_AGE_MAX
    }

    /// Queues again what could not be written, as far as memory allows. Returns the rest, whose times are
    /// lost.
    fn keep_waiting(&self, mut kept: Vec<Arc<Node>>, since: Duration) -> Vec<Arc<Node>> {
        if kept.is_empty() {
            return kept;
        }
        let mut pending = self.pending.lock();
        let room = self.waiting_max.saturating_sub(pending.nodes.len()).min(kept.len());
        let lost = kept.split_off(room);
        for node in kept {
            pending.add(node, since);
        }
        lost
    }
}

/// The access times of a view, together with how they are written.
pub(crate) struct AccessTimes<'v> {
    times: &'v LazyTimes,
    locker: Locker<'v>,
    writer: NodeWriter<'v>,
}

impl<'v> AccessTimes<'v> {
    /// Those of this view.
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self { times: &fs.lazy_times, locker: fs.locker(), writer: fs.writer() }
    }

    /// `caller` has read the file, directory or link.
    pub(crate) fn note(&self, caller: &Caller, node: &Arc<Node>) {
        if self.times.note(caller, node)
            && let Err(error) = self.write_all()
        {
            tracing::warn!(%error, "access times were not written");
        }
    }

    /// Writes the access time of one node, if it waits. The node stays queued, with nothing to be written.
    /// Not while another operation is setting its times: that is written, too.
    pub(crate) fn write_one(&self, node: &Pin<'_>) -> Result<()> {
        if !node.state().is_atime_pending {
            return Ok(());
        }
        let name = LockName::Attributes { inode: node.inode, fields: Fields::TIMES };
        let Ok(_guard) = self.locker.latch(&Caller::default(), &[Want::increment(name)]) else {
            return Ok(());
        };
        if !node.state().is_atime_pending {
            return Ok(());
        }
        self.writer.apply_to_node(Batch::new(), node, &RowPatch::default()).map(drop)
    }

    /// Writes the access times that wait, save those of inodes whose times an operation is setting. What
    /// could not be written waits on.
    pub(crate) fn write_all(&self) -> Result<()> {
        let Pending { nodes, since } = std::mem::take(&mut *self.times.pending.lock());
        if nodes.is_empty() {
            return Ok(());
        }
        let caller = Caller::default();
        let (mut batch, mut guards) = (Batch::new(), Vec::with_capacity(nodes.len()));
        let (mut staged, mut kept) = (Vec::with_capacity(nodes.len()), Vec::new());
        // Written with something else, or of a file that has gone: nothing waits.
        for node in nodes.into_iter().filter(|node| node.state().is_atime_pending) {
            let name = LockName::Attributes { inode: node.inode, fields: Fields::TIMES };
            let Ok(guard) = self.locker.latch(&caller, &[Want::increment(name)]) else {
                kept.push(node);
                continue;
            };
            let atime = {
                let mut state = node.state();
                if !std::mem::take(&mut state.is_atime_pending) {
                    continue;
                }
                state.header.atime
            };
            // The flag's reference is this function's now.
            guards.push(guard);
            let patch = RowPatch { atime: Some(TimePatch::Max(atime)), ..RowPatch::default() };
            self.writer.stage(&mut batch, &node, &patch);
            staged.push(node);
        }
        let result = if batch.is_empty() { Ok(()) } else { self.writer.origin().apply(batch).map(drop) };
        for node in staged {
            let is_queued_anew =
                result.is_ok() || std::mem::replace(&mut node.state().is_atime_pending, true);
            if is_queued_anew { self.writer.release(&node) } else { kept.push(node) }
        }
        drop(guards);
        // What the store refused is due at once.
        let since = if result.is_ok() { self.times.clock.monotonic() } else { since };
        for node in self.times.keep_waiting(kept, since) {
            if std::mem::take(&mut node.state().is_atime_pending) {
                self.writer.release(&node);
            }
        }
        result
    }
}
