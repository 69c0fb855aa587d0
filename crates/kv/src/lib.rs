//! Keyspaces for users, in a store that may also hold a file system.
//!
//! Purpose: [`KeyspaceTable`] tells which keyspaces exist and to whom they belong; [`Keys`] reads and changes
//! keys in a [`View`]: the main line, a transaction, or a snapshot. Neither knows files. What a view locks,
//! and where its batches go, is the business of the implementation of [`View`], so keys and files have one
//! order, one set of locks, and transactions in common.
//!
//! A keyspace is made outside of transactions, and stays when one comes to nothing; what is in it belongs to
//! the transaction. The caller of [`Keys`] must have checked the rights: [`UserKeyspaces`] does, and is what
//! front ends get handles of keyspaces from.
//!
//! Thread safety: everything is `&self`, any number of threads.
//!
//! Invariants: the record of a keyspace's owner is durable before the keyspace exists, so none is left
//! without its owner. No call has more than [`OPERATIONS_MAX`] changes or keys, whatever front end it comes
//! from.

mod access;
mod change;
mod error;
mod keys;
mod owner;
mod table;

pub use access::{Access, AccessError, KEYSPACES_PER_USER_MAX, KeyspaceUser, OwnerChange, UserKeyspaces};
pub use change::{KeyChange, OPERATIONS_MAX, check_count};
pub use error::KvError;
pub use keys::Keys;
pub use owner::KeyspaceOwner;
pub use table::{KEYSPACE_NAME_LEN_MAX, KeyspaceEntry, KeyspaceTable, Records, check_name};

use kvfs_store::{Batch, Position, Read};
use kvfs_txn::Want;

/// Which state a view sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewKind {
    /// The newest committed state.
    Main,
    /// A transaction's private state.
    Txn,
    /// One position, read-only.
    Snapshot,
}

/// What keys need of the view that they are read and changed in.
pub trait View {
    /// Failures of operations of the view.
    type Error: From<KvError>;
    /// On whose behalf an operation runs.
    type Caller: ?Sized;

    /// The keyspaces of the store; all views of it have one table.
    fn keyspace_table(&self) -> &KeyspaceTable;

    /// Which state it sees.
    fn kind(&self) -> ViewKind;

    /// Reads of the view, without a lock.
    fn reads(&self) -> &dyn Read;

    /// Whether what is read is locked until the view's end.
    fn locks_reads(&self) -> bool;

    /// Fails unless the view takes changes.
    ///
    /// # Errors
    /// It is read-only.
    fn check_writable(&self) -> Result<(), Self::Error>;

    /// Runs `read` on [`Self::reads`]; under locks on `wants` in a view that locks what it reads. What it
    /// returns is returned only while the view is alive.
    ///
    /// # Errors
    /// A lock is held by another party; the view has ended; those of `read`.
    fn read_locked<T>(
        &self,
        caller: &Self::Caller,
        wants: &[Want<'_>],
        read: impl FnOnce(&dyn Read) -> Result<T, Self::Error>,
    ) -> Result<T, Self::Error>;

    /// Applies the batch that `stage` makes, under locks on `wants`. `stage` runs again after space was made
    /// for a batch that found none. Returns what to sync, and what `stage` returned.
    ///
    /// # Errors
    /// Nothing was changed: as [`Self::read_locked`], and those of applying.
    fn write_locked<T>(
        &self,
        caller: &Self::Caller,
        wants: &[Want<'_>],
        stage: impl Fn(&dyn Read, &mut Batch) -> Result<T, Self::Error>,
    ) -> Result<(Position, T), Self::Error>;
}
