//! Keyspaces by handle.
//!
//! Thread safety: immutable but for the merge function, which has a short lock. Invariant: the record of a
//! keyspace names its number and kind, and never changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use kvfs_locks::{RwLock, class};
use kvfs_store::{Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction, Result, StoreError};

use crate::segments::BlockRef;

/// Before the name, in the key of the record.
pub(crate) const RECORDS: &[u8] = b"keyspace/";

/// The last byte of the record.
const TUPLES: u8 = 0;
const BLOCKS: u8 = 1;

/// One keyspace.
pub(crate) struct Space {
    /// Before each of its keys; from one up.
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) kind: KeyspaceKind,
    merge: RwLock<Option<Arc<dyn MergeFunction>>, class::EngineSlatedbSpaceMerge>,
    /// The sequence number with which it was made; zero: before the opening.
    made_at: AtomicU64,
}

impl Space {
    pub(crate) fn new(number: u32, name: &str, kind: KeyspaceKind) -> Self {
        Self { number, name: name.to_owned(), kind, merge: RwLock::default(), made_at: AtomicU64::new(0) }
    }

    pub(crate) fn made_at(&self) -> u64 {
        self.made_at.load(Ordering::Relaxed)
    }

    pub(crate) fn set_made_at(&self, sequence: u64) {
        self.made_at.store(sequence, Ordering::Relaxed);
    }

    pub(crate) fn key(&self) -> Bytes {
        [RECORDS, self.name.as_bytes()].concat().into()
    }

    pub(crate) fn value(&self) -> Bytes {
        let mut value = BytesMut::new();
        value.put_u32(self.number);
        value.put_u8(match self.kind {
            KeyspaceKind::Tuple => TUPLES,
            KeyspaceKind::Block => BLOCKS,
        });
        value.freeze()
    }

    pub(crate) fn parse(key: &[u8], value: &[u8]) -> Result<Self> {
        let name = key.strip_prefix(RECORDS).and_then(|name| std::str::from_utf8(name).ok());
        let parsed = match (name, value) {
            (Some(name), &[a, b, c, d, kind @ (TUPLES | BLOCKS)]) => {
                let kind = if kind == TUPLES { KeyspaceKind::Tuple } else { KeyspaceKind::Block };
                Some(Self::new(u32::from_be_bytes([a, b, c, d]), name, kind))
            }
            _ => None,
        };
        parsed.ok_or_else(|| StoreError::corrupt("SlateDB", "the record of a keyspace is damaged"))
    }

    pub(crate) fn keyspace(&self) -> Keyspace {
        Keyspace(self.number)
    }

    pub(crate) fn info(&self) -> KeyspaceInfo {
        KeyspaceInfo { keyspace: self.keyspace(), name: self.name.clone(), kind: self.kind }
    }

    pub(crate) fn merge_by(&self, merge: Arc<dyn MergeFunction>) {
        *self.merge.write() = Some(merge);
    }

    pub(crate) fn merge_function(&self) -> Result<Arc<dyn MergeFunction>> {
        self.merge.read().clone().ok_or_else(|| StoreError::NoMergeFunction(self.name.clone()))
    }

    /// The segment that this value of the keyspace refers to.
    pub(crate) fn segment_of(&self, value: &[u8]) -> Option<u64> {
        self.reference(value).map(|reference| reference.segment)
    }

    /// What this value of the keyspace refers to; `None`: it is what it stands for.
    pub(crate) fn reference(&self, value: &[u8]) -> Option<BlockRef> {
        if self.kind == KeyspaceKind::Block { BlockRef::parse(value) } else { None }
    }

    /// Fails with `WrongKind` unless the keyspace holds `kind`.
    pub(crate) fn expect_kind(&self, kind: KeyspaceKind, operation: &'static str) -> Result<()> {
        if self.kind == kind { Ok(()) } else { Err(StoreError::wrong_kind(operation, &self.name, self.kind)) }
    }
}
