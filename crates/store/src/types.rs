//! Plain types of the store seam.

use bytes::Bytes;

use crate::{Compression, Result, Touch};

/// Commit number: every operation of every batch has its own, in one order over all keyspaces.
pub type Seqno = u64;

/// A place in the order; everything up to and including this seqno is at or below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub Seqno);

/// Handle of an open keyspace, valid for the store that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Keyspace(pub u32);

/// How the values of a keyspace are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyspaceKind {
    /// Any bytes under any key.
    Tuple,
    /// 4 KiB values under `prefix ‖ block number (u64, big-endian)`.
    Block,
}

/// Name and kind of an existing keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceInfo {
    /// Handle, when the keyspace is open.
    pub keyspace: Keyspace,
    /// Unique name.
    pub name: String,
    /// Layout.
    pub kind: KeyspaceKind,
}

/// When a batch must survive a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Within the commit interval, or at the next sync.
    Buffered,
    /// Before `apply` returns.
    Synced,
}

/// A half-open range of keys, `[start, end)`; `end = None` is unbounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct KeyRange {
    /// Inclusive lower end; empty = from the first key.
    pub start: Bytes,
    /// Exclusive upper end.
    pub end: Option<Bytes>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        Self::default()
    }

    /// `[start, end)`.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: Some(end.into()) }
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { start: Bytes::copy_from_slice(prefix), end: prefix_successor(prefix) }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.end.as_ref().is_none_or(|end| key < &end[..])
    }

    /// What lies in both ranges.
    #[must_use]
    pub fn within(self, other: &Self) -> Self {
        let end = match (self.end, &other.end) {
            (Some(own), Some(other)) => Some(own.min(other.clone())),
            (own, other) => own.or_else(|| other.clone()),
        };
        Self { start: self.start.max(other.start.clone()), end }
    }

    /// Whether no key can lie in the range.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end[..] <= self.start[..])
    }
}

/// The smallest key greater than every key that begins with `prefix`; `None` if there is none.
fn prefix_successor(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// What [`crate::Read::next_extent`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// Blocks that are present.
    Data,
    /// Blocks that are absent.
    Hole,
}

/// A stretch of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Block number of the first block.
    pub first: u64,
    /// Number of blocks, at least 1.
    pub count: u64,
}

/// Consecutive blocks under one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRange {
    /// What comes before the block number in the keys.
    pub prefix: Bytes,
    /// Number of the first block.
    pub first: u64,
    /// Number of blocks.
    pub count: u64,
}

/// Optional abilities of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Batches and syncs survive the process.
    pub durable: bool,
    /// `DeleteRange` costs the same for any number of keys.
    pub range_delete_constant: bool,
    /// A patch of a block reads nothing of it.
    pub blind_patches: bool,
}

/// Capacity and use of a store (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceStats {
    /// What the store can hold in all, its own needs taken off.
    pub capacity_bytes: u64,
    /// Taken by data, garbage included that nothing is known of yet or that can't be had back.
    pub used_bytes: u64,
    /// What an ordinary write may still take, the reserve taken off. Space may have to be made for it first.
    pub available_bytes: u64,
}

/// Resolves the merge records of a keyspace: blind updates that are folded at read.
pub trait MergeFunction: Send + Sync {
    /// Applies `operands` (oldest first) to `base` (`None`: no such key). Returns the new value, or
    /// `None` when the key is absent afterwards.
    ///
    /// # Errors
    /// An operand that can't be decoded: corruption.
    fn resolve(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>>;

    /// One operand with the effect of `older` and then `newer`, or `None` when they don't fold.
    fn fold(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes>;

    /// Which fields of the value `operand` touches, and how. Folding keeps at least what both touch. The
    /// default is the whole value, exclusively.
    fn touch(&self, key: &[u8], operand: &[u8]) -> Touch {
        let _ = (key, operand);
        Touch::ALL
    }

    /// How a value wants to be stored; an engine heeds the wish of one value for its neighbours, too. The
    /// default is no wish.
    fn compression(&self, value: &[u8]) -> Compression {
        let _ = value;
        Compression::None
    }
}
