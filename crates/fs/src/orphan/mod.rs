//! Orphans: inodes without a name, and the reaper that ends them.
//!
//! Losing the last name moves a row to `orphans`, whether or not the file is open: the node table knows (a
//! node leaves it when the kernel has forgotten it), and it queues orphans whose nodes have left it. What a
//! crash leaves in `orphans` is reaped when the file system is opened.
//!
//! An inode of which nothing but its row is stored would leave nothing behind, so it needs no row there: all
//! that is left of it is its node, which keeps its content. It gets a row when an operation changes it after
//! all.
//!
//! Thread safety: as [`FileSystem`]. Invariant: no change of a row is staged for a node without one: an
//! operation that stages it must hold latches on the inode's attributes and have called [`Orphans::give_row`]
//! under them.

mod removal;

use std::fmt;
use std::ops::Range;

use kvfs_store::{Batch, KeyRange};

use crate::attr::AccessTimes;
use crate::detached::DetachedTrees;
use crate::file::Contents;
use crate::namespace::removal_wants;
use crate::node::{Dead, Location, NodeTable, Pin};
use crate::quota::{Gate, Quotas};
use crate::schema::{Header, Keyspaces, Row, RowFlags, encode_row, inode_key, parse_inode_key};
use crate::tiers::TierWishes;
use crate::view::{Names, NodeWriter, Origin, TxnView};
use crate::{FileSystem, Result};

/// Orphans that are reaped by one batch.
const REAP_BATCH: usize = 128;

/// Inodes of a view that have no name.
pub struct Orphans<'v> {
    origin: &'v Origin,
    nodes: &'v NodeTable,
    keyspaces: Keyspaces,
    contents: Contents<'v>,
    quotas: &'v Quotas,
    tiers: &'v TierWishes,
    writer: NodeWriter<'v>,
    is_read_only: bool,
}

impl FileSystem {
    /// Background work: reaps queued orphans, writes lazily kept access times that are due, removes some of
    /// what is detached, and does what the opening had no space for. Call it about once a second from a
    /// thread that may block, and before unmounting.
    ///
    /// # Errors
    /// Store errors; what was not done stays queued.
    pub fn housekeep(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.nodes.sweep_names();
        // One failure keeps nothing else from being done: what is reaped makes room.
        let times = if self.lazy_times.are_due() { AccessTimes::new(self).write_all() } else { Ok(()) };
        let quota_times = if self.origin.txn().is_none() { self.quotas().write_times() } else { Ok(()) };
        // What found no space when the file system was opened.
        let note = self.snapshots().drop_note();
        let count = self.quotas().write_count().map(drop);
        let trees = if self.origin.is_main() { DetachedTrees::of(self).remove_slice() } else { Ok(0) };
        self.orphans().reap_all().and(times).and(quota_times).and(note).and(count).and(trees.map(drop))
    }

    /// The orphans of this view.
    pub fn orphans(&self) -> Orphans<'_> {
        Orphans {
            origin: &self.origin,
            nodes: &self.nodes,
            keyspaces: self.keyspaces,
            contents: Contents::new(self),
            quotas: self.quotas(),
            tiers: &self.shared.tiers,
            writer: self.writer(),
            is_read_only: self.options.read_only,
        }
    }
}

impl fmt::Debug for Orphans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orphans").field("queued", &self.nodes.dead().len()).finish_non_exhaustive()
    }
}

impl Orphans<'_> {
    /// Reaps what is queued, because space is short. True: there was something, so an operation that failed
    /// with [`crate::FsError::NoSpace`] may succeed now. May block, and works on a full store.
    pub fn reap_for_space(&self) -> bool {
        !self.is_read_only && self.nodes.dead().len() > 0 && self.reap_all().is_ok()
    }

    /// Carries out `forgetting`, which may queue orphans, and reaps one batch when they make another one
    /// full. So a thread that must not be kept from its work pays for its own, and never for a backlog: that
    /// is reaped by [`FileSystem::housekeep`].
    pub(crate) fn reap_with(&self, forgetting: impl FnOnce()) {
        let before = self.nodes.dead().len();
        forgetting();
        if self.nodes.dead().len() / REAP_BATCH <= before / REAP_BATCH || self.is_read_only {
            return;
        }
        if let Err(error) = self.reap_batch() {
            tracing::warn!(%error, "orphans were not removed; they stay queued");
        }
    }

    /// Reaps what is queued. The caller must hold no gate. Nothing of a view that is being committed: the
    /// main line is told of what is left then.
    pub(crate) fn reap_all(&self) -> Result<()> {
        while self.nodes.dead().len() > 0 && self.reap_batch()? {}
        Ok(())
    }

    /// As many of them as one batch takes. False: the view is being committed.
    fn reap_batch(&self) -> Result<bool> {
        let gate = self.quotas.gate(self.writer);
        let open = self.origin.txn().map(TxnView::stay_open);
        if matches!(open, Some(None)) {
            return Ok(false);
        }
        let dead = self.nodes.dead().take(REAP_BATCH);
        let reaped = self.stage_deaths(&dead).and_then(|(batch, ends)| gate.apply_ends(batch, &ends));
        reaped.map(|_| true).inspect_err(|_| self.nodes.dead().push(&dead))
    }

    /// The end of these, and what they were.
    fn stage_deaths(&self, dead: &Dead) -> Result<(Batch, Vec<Header>)> {
        let mut ends = dead.orphans.clone();
        for range in dead.unread.ranges() {
            if let Err(error) = self.each_row(range.clone(), |header| ends.push(header)) {
                tracing::warn!(?range, %error, "orphans can't be read; they stay until the next mount");
            }
        }
        if let Some(view) = self.origin.txn() {
            // Others may know a file that was there before; its row in `orphans` goes to the main line.
            ends.retain(|orphan| view.created.contains(orphan.inode));
        }
        let mut batch = Batch::new();
        for header in &ends {
            self.stage_death(&mut batch, header)?;
        }
        Ok((batch, ends))
    }

    /// Whether an inode that loses its last name has to have a row among the orphans: so that a crash leaves
    /// nothing behind, what it takes is counted until its end, a commit can tell the main line's node of it,
    /// or because memory is short.
    fn needs_row(&self, gate: &Gate<'_>, header: &Header, content: &[u8]) -> bool {
        let is_in_memory = content.is_empty() || self.nodes.has_room(content.len());
        !self.origin.is_main() || gate.is_on() || header.has_more_than_its_row() || !is_in_memory
    }

    /// Gives the node a row if it is an orphan without one, so that it can be changed. `names` hold a latch
    /// on its attributes; where it has no row, they get all others, too.
    ///
    /// # Errors
    /// `Parked`; store errors.
    pub(crate) fn give_row(&self, gate: &Gate<'_>, names: &mut Names<'_>, node: &Pin<'_>) -> Result<()> {
        if !node.is_rowless() {
            return Ok(());
        }
        names.try_extend(&removal_wants(node))?;
        let (header, content) = (node.header(), self.contents.inline_content(node)?);
        let mut batch = Batch::new();
        batch.put(self.keyspaces.orphans, inode_key(node.inode), encode_row(&header, &content));
        let position = gate.apply_return(batch, &header)?;
        node.state().touched(position);
        node.relocate(Location::Orphan);
        Ok(())
    }

    /// Adds the end of an orphan to the batch, without reading anything.
    fn stage_death(&self, batch: &mut Batch, header: &Header) -> Result<()> {
        self.tiers.stage_end(batch, header)?;
        let &Header { inode, flags, .. } = header;
        if flags.has(RowFlags::BLOCKS) {
            self.contents.stage_block_deletion(batch, inode, 0, u64::MAX);
        }
        if flags.has(RowFlags::XATTRS) {
            batch.delete_range(self.keyspaces.xattr, inode_key(inode), inode_key(inode + 1));
        }
        batch.delete(self.keyspaces.orphans, inode_key(inode));
        Ok(())
    }

    /// Queues everything in `orphans`. Called right after opening, when the table has no node of an orphan.
    pub(crate) fn queue_leftovers(&self) -> Result<()> {
        let mut dead = Dead::default();
        self.each_row(0..u64::MAX, |header| dead.unread.insert(&(header.inode..header.inode + 1)))?;
        self.nodes.dead().push(&dead);
        Ok(())
    }

    /// Tells `each` what the orphans are that have rows with these numbers.
    fn each_row(&self, inodes: Range<u64>, mut each: impl FnMut(Header)) -> Result<()> {
        let keys = KeyRange::new(inode_key(inodes.start), inode_key(inodes.end));
        let mut cursor = self.origin.read().cursor(self.keyspaces.orphans, keys)?;
        cursor.next()?;
        while let Some((key, bytes)) = cursor.entry() {
            each(Row::decode_own(parse_inode_key(key)?, bytes)?.0);
            cursor.next()?;
        }
        Ok(())
    }
}
