//! Errors of the store seam. They say what happened, where, and what can be done.

use std::{io, sync::Arc};

use crate::{Changed, KeyspaceKind, TxnId};

/// Result of store calls.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The medium failed. Nothing is known about the data in question.
    #[error("I/O error while {what}: {source}")]
    Io {
        /// What the store was doing, with the place (device offset, run).
        what: String,
        /// The cause; shared, since a sticky failure is reported many times.
        #[source]
        source: Arc<io::Error>,
    },
    /// Data on the medium does not match its checksum or its format.
    #[error("corrupt data in {place}: {detail}; run `kvfs check` on the store")]
    Corrupt {
        /// Which structure, and where on the device.
        place: String,
        /// What did not match.
        detail: String,
    },
    /// No space for ordinary writes; deletes still work, from the reserve.
    #[error("no space left in the store; delete something or grow the store")]
    Full,
    /// A write or sync failed before: the store refuses writes and serves reads until reopened.
    #[error(
        "the store stopped accepting writes after a failure: {reason}; look after its device, then unmount it and mount it again"
    )]
    Failed {
        /// The first failure.
        reason: Arc<str>,
    },
    /// The store was opened read-only.
    #[error("the store is open read-only")]
    ReadOnly,
    /// A key is longer than [`crate::KEY_LEN_MAX`].
    #[error("key of {len} bytes exceeds the limit of {len_max}")]
    KeyTooLong {
        /// Length given (bytes).
        len: usize,
        /// Limit (bytes).
        len_max: usize,
    },
    /// Keys have at least one byte.
    #[error("the empty key is not allowed")]
    KeyEmpty,
    /// A value is longer than [`crate::VALUE_LEN_MAX`].
    #[error("value of {len} bytes exceeds the limit of {len_max}")]
    ValueTooLong {
        /// Length given (bytes).
        len: usize,
        /// Limit (bytes).
        len_max: usize,
    },
    /// A batch carries more than [`crate::BATCH_BYTES_MAX`].
    #[error("batch of {bytes} bytes exceeds the limit of {bytes_max}; split it")]
    BatchTooLarge {
        /// Payload given (bytes).
        bytes: usize,
        /// Limit (bytes).
        bytes_max: usize,
    },
    /// Block data that is not whole blocks, or runs past the last block number.
    #[error("{len} bytes from block {first} are not whole blocks within the keyspace")]
    BlockShape {
        /// First block number.
        first: u64,
        /// Length given (bytes).
        len: usize,
    },
    /// A patch that is empty, or reaches over the end of its block.
    #[error("{len} bytes at offset {offset} are no part of block {block}")]
    PatchShape {
        /// Block number.
        block: u64,
        /// Offset inside of the block (bytes).
        offset: u16,
        /// Length given (bytes).
        len: usize,
    },
    /// The operation does not fit the kind of the keyspace.
    #[error("{operation} does not work on keyspace \"{name}\", which holds {kind}")]
    WrongKind {
        /// What was asked.
        operation: &'static str,
        /// Keyspace name.
        name: String,
        /// "tuples" or "blocks".
        kind: &'static str,
    },
    /// No such keyspace in this store.
    #[error("no keyspace {0} in this store")]
    NoKeyspace(String),
    /// A merge record in a keyspace that was opened without a merge function.
    #[error("keyspace \"{0}\" was opened without a merge function")]
    NoMergeFunction(String),
    /// A name that no snapshot may have.
    #[error("a snapshot can't be called \"{}\": {problem}", .name.escape_debug())]
    SnapshotName {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The name is taken.
    #[error("there is a snapshot \"{0}\" already; delete it or take another name")]
    SnapshotExists(String),
    /// No such snapshot.
    #[error("there is no snapshot \"{0}\" in this store")]
    NoSnapshot(String),
    /// Another writer changed a record after the transaction's snapshot: the first updater wins.
    #[error("key {key} of keyspace #{keyspace} was changed by others after the transaction began; run it again", key = .changed.key.escape_ascii(), keyspace = .changed.keyspace.0)]
    Conflict {
        /// Which record, and when.
        changed: Changed,
    },
    /// Open transactions hold as much as their engine keeps for them, which is in memory.
    #[error(
        "open transactions hold more than {} MiB, which {engine} keeps in memory until they end; commit in smaller parts, or mount \
         the store with more --memory", .bytes_max >> 20
    )]
    TransactionsFull {
        /// As [`crate::Store::engine_name`].
        engine: &'static str,
        /// What they may hold (bytes).
        bytes_max: u64,
    },
    /// The transaction was committed or aborted before.
    #[error("transaction {0} has ended")]
    TxnEnded(TxnId),
    /// The states before and after the transaction are not kept (any more).
    #[error("what was there before transaction {0} is not kept any more")]
    NotKept(TxnId),
    /// No transaction of this name waits to be resumed.
    #[error("there is no checkpoint of transaction {0}")]
    NoCheckpoint(TxnId),
    /// A caller has it open.
    #[error("transaction {0} is open already")]
    CheckpointOpen(TxnId),
    /// It is not wanted any more ([`crate::progress::while_wanted`]).
    #[error("given up: the store is being closed, or the caller has gone")]
    GivenUp,
    /// The engine lacks an optional ability.
    #[error(
        "the store is kept by {engine}, which has no {what}; kvdb, the engine of `kvfs mkfs` unless told otherwise, has"
    )]
    Unsupported {
        /// As [`crate::Store::engine_name`].
        engine: &'static str,
        /// The ability.
        what: &'static str,
    },
}

impl StoreError {
    /// Wraps an I/O error with what was being done.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source) }
    }

    /// `operation` does not fit the keyspace `name`, which holds `kind`.
    pub fn wrong_kind(operation: &'static str, name: impl Into<String>, kind: KeyspaceKind) -> Self {
        let kind = match kind {
            KeyspaceKind::Tuple => "tuples",
            KeyspaceKind::Block => "blocks",
        };
        Self::WrongKind { operation, name: name.into(), kind }
    }

    /// Corruption of `place`.
    pub fn corrupt(place: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Corrupt { place: place.into(), detail: detail.into() }
    }
}
