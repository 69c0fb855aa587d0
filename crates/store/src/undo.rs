//! Committed transactions that can still be taken back: the positions before and after each of them stay
//! readable for a while.
//!
//! Purpose: a commit's writes have consecutive seqnos, so the state before it and the state after it differ
//! by nothing but the transaction. A caller that has both can bring back what it changed, and see what was
//! built on it. How many are kept, and for how long, is decided when a store is opened.
//!
//! Thread safety: plain values.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Position, Result, Snapshot, TxnId};

/// Longest note that a transaction carries (bytes).
pub const NOTE_LEN_MAX: usize = 255;

/// A committed transaction whose pre-images are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndoPoint {
    /// The transaction.
    pub txn: TxnId,
    /// The newest position that it has no part in.
    pub before: Position,
    /// The position at which it is complete, and nothing else has come since.
    pub after: Position,
    /// When it was committed (since 1970-01-01 UTC).
    pub committed: Duration,
    /// What the caller that began it wanted to be remembered of it ([`crate::Txn::describe`]).
    pub note: Bytes,
}

/// Both states of an [`UndoPoint`]. A caller that holds them keeps them, also when the store lets the
/// transaction go.
pub struct UndoViews {
    /// Without the transaction.
    pub before: Arc<dyn Snapshot>,
    /// With it, and with nothing that came later.
    pub after: Arc<dyn Snapshot>,
}

/// Committed transactions that can still be taken back. An extension of a [`Store`](crate::Store), which an
/// engine may lack.
pub trait UndoHistory: Send + Sync {
    /// The committed transactions that can still be taken back, oldest first. None by an engine that keeps
    /// none.
    fn undo_points(&self) -> Vec<UndoPoint>;

    /// The states before and after a committed transaction.
    ///
    /// # Errors
    /// [`crate::StoreError::NotKept`]; the store was closed.
    fn open_undo(&self, id: TxnId) -> Result<UndoViews>;

    /// What the state before a committed transaction has where the transaction wrote (bytes): what keeping it
    /// costs at most. O(what was overwritten or deleted) the first time, then known.
    ///
    /// # Errors
    /// [`crate::StoreError::NotKept`]; I/O errors and corruption.
    fn undo_bytes(&self, id: TxnId) -> Result<u64>;
}
