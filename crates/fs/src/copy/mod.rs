//! Everything of a store brought into an empty one, which may have another engine.
//!
//! Purpose: `kvfs copy`. A store is its keyspaces, and these hold resolved records that depend on no engine:
//! so they are copied as they are, with every row, block and key, and neither names nor permissions are
//! looked at. Named snapshots come along where both engines have them, oldest first: what differs between one
//! and the next leads there, too. Two stores are then *compared* record by record ([`compare`]). What the new
//! store can't have is told before ([`left_behind`]).
//!
//! Thread safety: functions; nothing may change the old store meanwhile, and nothing else may use the new
//! one.
//!
//! Invariants: memory is bounded but for the files whose content is to be stored packed (16 bytes each);
//! records about named snapshots are copied only where these are.

mod compare;

use std::fmt;
use std::sync::Arc;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{
    Batch, Compression, Durability, KeyRange, Keyspace, KeyspaceKind, Read, Snapshot, SnapshotInfo, Store,
    StoreError,
};

use crate::packing::{Packing, header_in, is_packed};
use crate::quota;
use crate::schema::{KEYSPACES, Keyspaces, Row, parse_private_key, parse_received_key, receiving_key};
use crate::tiers::TIER_KEYSPACE;
use crate::transfer::{Stage, with_keyspace};
use crate::{FileSystem, FsError};
pub use compare::compare;

/// Names that a message lists at most.
const NAMES_LISTED_MAX: usize = 8;

/// Why a copy came to nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The store that is copied can't be read.
    #[error("reading what is to be copied: {0}")]
    Source(FsError),
    /// The new store can't be written or read.
    #[error("the new store: {0}")]
    Target(StoreError),
    /// The two differ.
    #[error("the copy is not what was copied: {0}")]
    Differs(String),
    /// The caller has stopped it.
    #[error("stopped")]
    Stopped,
}

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// Keyspaces, those of the file system included.
    pub keyspaces: u64,
    /// Named snapshots.
    pub snapshots: u64,
    /// Records and stretches of blocks that were written.
    pub records: u64,
    /// Their keys and values (bytes).
    pub bytes: u64,
}

/// A keyspace in both stores.
struct Pair {
    name: String,
    kind: KeyspaceKind,
    from: Keyspace,
    to: Keyspace,
}

impl Pair {
    fn has_rows(&self) -> bool {
        self.name == KEYSPACES[0]
    }

    /// What messages call a key of it.
    fn place(&self, key: &[u8]) -> impl fmt::Display {
        format!("keyspace {}, key {}", self.name.escape_debug(), key.escape_ascii())
    }
}

/// Both stores, and what of the old one the new one gets.
struct Both<'s> {
    from: &'s dyn Store,
    to: &'s dyn Store,
    /// In the order in which they are copied.
    pairs: Vec<Pair>,
    /// Named snapshots that are copied, oldest first.
    snapshots: Vec<SnapshotInfo>,
    /// Whether records about named snapshots are copied.
    has_snapshots: bool,
    goes_on: &'s dyn Fn() -> bool,
}

impl<'s> Both<'s> {
    /// `open` gives the keyspace of the new store with that name and kind.
    fn new(
        (from, to): (&'s dyn Store, &'s dyn Store),
        goes_on: &'s dyn Fn() -> bool,
        mut open: impl FnMut(&str, KeyspaceKind) -> Result<Keyspace, CopyError>,
    ) -> Result<Self, CopyError> {
        let mut pairs = Vec::new();
        for info in from.keyspaces() {
            let to = open(&info.name, info.kind)?;
            pairs.push(Pair { name: info.name, kind: info.kind, from: info.keyspace, to });
        }
        // Rows say how blocks are to be packed, and wishes where they are to lie.
        let rank = |name: &str| match name {
            _ if name == KEYSPACES[0] => 0,
            TIER_KEYSPACE => 1,
            _ => 2,
        };
        pairs.sort_by(|a, b| (rank(&a.name), &a.name).cmp(&(rank(&b.name), &b.name)));
        let has_snapshots = keeps_snapshots(from, to);
        let snapshots = if has_snapshots { from.named_snapshots() } else { Vec::new() };
        Ok(Self { from, to, pairs, snapshots, has_snapshots, goes_on })
    }

    fn expect_going_on(&self) -> Result<(), CopyError> {
        if (self.goes_on)() { Ok(()) } else { Err(CopyError::Stopped) }
    }

    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>, CopyError> {
        self.from.open_snapshot(name).map_err(of_source)
    }

    /// Whether the new store does not get a record of the old one: it is about named snapshots, and there are
    /// none.
    fn is_left(&self, pair: &Pair, key: &[u8]) -> bool {
        let is_about_snapshots = || {
            parse_received_key(key).is_some()
                || parse_private_key(key).is_some()
                || key == &receiving_key()[..]
        };
        !self.has_snapshots && pair.has_rows() && is_about_snapshots()
    }
}

/// Whether named snapshots of `from` can be made again in `to`.
fn keeps_snapshots(from: &dyn Store, to: &dyn Store) -> bool {
    let has_both = |store: &dyn Store| store.snapshots().is_some() && store.changes().is_some();
    has_both(from) && has_both(to)
}

fn of_source(error: impl Into<FsError>) -> CopyError {
    CopyError::Source(error.into())
}

/// What of the file system `from` the empty store `to` can't have, a sentence each.
///
/// # Errors
/// Store errors of `from`.
pub fn left_behind(from: &FileSystem, to: &dyn Store) -> Result<Vec<String>, FsError> {
    let store = &*from.store;
    let mut left = Vec::new();
    let snapshots = store.named_snapshots();
    if !snapshots.is_empty() && !keeps_snapshots(store, to) {
        let names = listed(snapshots.iter().map(|info| &*info.name));
        left.push(format!("named snapshots, which its engine has not: {names}"));
    }
    let branches = from.branches().all();
    if !branches.is_empty() {
        let names = listed(branches.iter().map(|branch| &*branch.name));
        left.push(format!("branches, with what was changed in them: {names}"));
    }
    match store.undo_points().len() {
        0 => {}
        count => left.push(format!("the undo of {count} transactions")),
    }
    if store.compress().is_some() && to.compress().is_none() && wants_compression(from)? {
        left.push("compression, which its engine has not: all content takes its full size".to_owned());
    }
    Ok(left)
}

fn listed<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = names.len().saturating_sub(NAMES_LISTED_MAX);
    let text = names.take(NAMES_LISTED_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

/// Whether anything is set to be stored packed. O(rows) where nothing is.
fn wants_compression(fs: &FileSystem) -> Result<bool, FsError> {
    let is_set = |keyspace| fs.store.compression(keyspace) != Compression::None;
    if fs.store.keyspaces().iter().any(|info| is_set(info.keyspace)) {
        return Ok(true);
    }
    let mut cursor = fs.store.cursor(fs.keyspaces.meta, KeyRange::all())?;
    cursor.next()?;
    while let Some((_, row)) = cursor.entry() {
        if matches!(Row::parse(row), Some(Row::Inode(header, _)) if is_packed(&header)) {
            return Ok(true);
        }
        cursor.next()?;
    }
    Ok(false)
}

/// Copies everything of the file system `from` into the store `to`, which holds nothing, durably. `goes_on`
/// is asked at every batch.
///
/// # Errors
/// What was copied so far is in `to`.
pub fn copy(from: &FileSystem, to: &dyn Store, goes_on: &dyn Fn() -> bool) -> Result<Copied, CopyError> {
    let store = &*from.store;
    let both = open_new(store, to, goes_on)?;
    progress::stage("copying", Unit::Bytes, store.space().used_bytes);
    let copied = Copied {
        keyspaces: both.pairs.len() as u64,
        snapshots: both.snapshots.len() as u64,
        ..Copied::default()
    };
    let mut copy = Copy { both, packing: Packing::new(to), copied };
    let mut before = None;
    for info in copy.both.snapshots.clone() {
        let state = copy.both.open_snapshot(&info.name)?;
        copy.bring_to(before.as_deref(), &*state)?;
        to.adopt_snapshot(&info.name, info.created).map_err(CopyError::Target)?;
        before = Some(state);
    }
    let now = store.snapshot().map_err(of_source)?;
    copy.bring_to(before.as_deref(), &*now)?;
    to.sync(to.position()).map_err(CopyError::Target)?;
    Ok(copy.copied)
}

/// Makes the keyspaces of `from` in `to`, and sets them alike.
fn open_new<'s>(
    from: &'s dyn Store,
    to: &'s dyn Store,
    goes_on: &'s dyn Fn() -> bool,
) -> Result<Both<'s>, CopyError> {
    let own = |error: FsError| match error {
        FsError::Store(cause) => CopyError::Target((*cause).clone()),
        FsError::NoSpace => CopyError::Target(StoreError::Full),
        error => CopyError::Source(error),
    };
    // With their merge functions.
    let keyspaces = Keyspaces::open(to).map_err(own)?;
    let both = Both::new((from, to), goes_on, |name, kind| {
        if name == quota::QUOTA_KEYSPACE {
            quota::open_keyspace(to).map_err(own)?;
        }
        to.open_keyspace(name, kind, None).map_err(CopyError::Target)
    })?;
    for pair in &both.pairs {
        let compression = from.compression(pair.from);
        if compression != Compression::None && to.compress().is_some() {
            to.set_compression(pair.to, compression).map_err(CopyError::Target)?;
        }
        if pair.name == TIER_KEYSPACE {
            to.place_by(keyspaces.data, pair.to).map_err(CopyError::Target)?;
        }
    }
    Ok(both)
}

/// A copy under way.
struct Copy<'s> {
    both: Both<'s>,
    packing: Packing<'s>,
    copied: Copied,
}

impl Copy<'_> {
    /// The new store has what `before` shows (`None`: nothing), and then what `state` does.
    fn bring_to(&mut self, before: Option<&dyn Snapshot>, state: &dyn Snapshot) -> Result<(), CopyError> {
        for at in 0..self.both.pairs.len() {
            match before {
                None => self.copy_whole(at, state)?,
                Some(before) => self.copy_changes(at, before, state)?,
            }
        }
        Ok(())
    }

    fn copy_whole(&mut self, at: usize, state: &dyn Read) -> Result<(), CopyError> {
        let mut range = KeyRange::all();
        loop {
            let pair = &self.both.pairs[at];
            let mut stage = Stage::new(pair.from, pair.kind == KeyspaceKind::Block);
            let rest = stage.copy(state, &range, |key| self.both.is_left(pair, key)).map_err(of_source)?;
            self.apply(at, stage.finish())?;
            let Some(start) = rest else { return Ok(()) };
            range.start = start;
        }
    }

    fn copy_changes(
        &mut self,
        at: usize,
        before: &dyn Snapshot,
        state: &dyn Snapshot,
    ) -> Result<(), CopyError> {
        let Pair { from, kind, .. } = self.both.pairs[at];
        let is_blocks = kind == KeyspaceKind::Block;
        let (older, newer) = (before.seqno(), state.seqno());
        let ranges = self.both.from.changed_ranges(from, KeyRange::all(), older, newer).map_err(of_source)?;
        let mut differences = kvfs_store::Differences::new(from, before, state, ranges);
        let mut stage = Stage::new(from, is_blocks);
        while let Some(difference) = differences.next().map_err(of_source)? {
            stage.take(&difference.key, difference.newer).map_err(CopyError::Source)?;
            if stage.is_full() {
                let full = std::mem::replace(&mut stage, Stage::new(from, is_blocks));
                self.apply(at, full.finish())?;
            }
        }
        self.apply(at, stage.finish())
    }

    /// Writes a batch of the old store's keyspace to that of the new one.
    fn apply(&mut self, at: usize, batch: Batch) -> Result<(), CopyError> {
        self.both.expect_going_on()?;
        if batch.is_empty() {
            return Ok(());
        }
        let (to, has_rows) = (self.both.pairs[at].to, self.both.pairs[at].has_rows());
        let (records, bytes) = (batch.len() as u64, batch.payload_bytes() as u64);
        let mut mapped = Batch::new();
        for op in batch.into_ops() {
            if has_rows && let Some(header) = header_in(&op) {
                self.packing.note(&header).map_err(CopyError::Target)?;
            }
            mapped.push(self.packing.packed(with_keyspace(op, to)));
        }
        self.both.to.apply(mapped, Durability::Buffered).map_err(CopyError::Target)?;
        self.copied.records += records;
        self.copied.bytes += bytes;
        progress::advance(bytes);
        Ok(())
    }
}
