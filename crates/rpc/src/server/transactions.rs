//! What the server needs of the daemon's open transactions, and the calls about them.
//!
//! Thread safety: the registry is shared, and called on threads that may block.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvfs_fs::{FileSystem, Position};
use tonic::Status;

use super::Shared;
use super::call::Call;
use super::failure::TxnError;
use super::peer::Peer;
use crate::{ioctl, proto};

/// How to begin a transaction.
#[derive(Debug, Clone)]
pub struct Begin {
    /// As if transactions ran one after the other.
    pub serializable: bool,
    /// Of two in each other's way the one with the greater number gives way. Not looked at yet: below 0 is
    /// not for all.
    pub nice: i32,
    /// It is given up when it takes longer.
    pub timeout: Option<Duration>,
    /// It is given up when it goes without an operation for longer; `None`: as the mount says; the greatest
    /// time: never.
    pub idle_max: Option<Duration>,
    /// It ends with the connection.
    pub tied: bool,
    /// For people, as the client has sent it.
    pub label: String,
}

/// An open transaction, as listed.
#[derive(Debug, Clone)]
pub struct TxnLine {
    /// Its number.
    pub txn: u64,
    /// Its isolation.
    pub serializable: bool,
    /// User id of its owner.
    pub uid: u32,
    /// Process that began it.
    pub pid: u32,
    /// For people.
    pub label: String,
    /// Since its begin.
    pub age: Duration,
    /// `open`, `committing`, or why it can't be committed any more.
    pub state: String,
}

/// The open transactions of a mounted store: the same ones for files and keys, and for all clients.
pub trait Transactions: Send + Sync + 'static {
    /// Begins one for `peer`. Returns its number.
    ///
    /// # Errors
    /// Why there is none.
    fn begin(&self, peer: &Peer, begin: Begin) -> Result<u64, TxnError>;

    /// Its view, for operations of `peer` in it.
    ///
    /// # Errors
    /// Unknown, or another user's.
    fn view(&self, peer: &Peer, txn: u64) -> Result<Arc<FileSystem>, TxnError>;

    /// Where its files are seen; mounts them first when they are not.
    ///
    /// # Errors
    /// As [`Transactions::view`]; the mount fails.
    fn path(&self, peer: &Peer, txn: u64) -> Result<PathBuf, TxnError>;

    /// Commits it: visible to all readers when this returns, and durable when what it returns is synced.
    ///
    /// # Errors
    /// As [`Transactions::view`]; what keeps it from being committed.
    fn commit(&self, peer: &Peer, txn: u64) -> Result<Position, TxnError>;

    /// The same, unless its commit may wait for what others hold: for dirty pages of its view, which may wait
    /// for another transaction's lock. Then nothing happens (`None`), and the commit needs a thread of its
    /// own, since the end of that other one may need any of those that requests share.
    ///
    /// # Errors
    /// As [`Transactions::commit`].
    fn commit_without_wait(&self, peer: &Peer, txn: u64) -> Result<Option<Position>, TxnError>;

    /// Drops it. Returns why it could not have been committed any more, if so.
    ///
    /// # Errors
    /// As [`Transactions::view`].
    fn abort(&self, peer: &Peer, txn: u64) -> Result<Option<String>, TxnError>;

    /// Those of `peer`, oldest first; all of them for root.
    fn list(&self, peer: &Peer) -> Vec<TxnLine>;

    /// A connection has ended, and with it what is tied to it.
    fn gone(&self, connection: u64);
}

/// A registry that begins none and knows none: for a server of single operations.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTransactions;

impl Transactions for NoTransactions {
    fn begin(&self, _: &Peer, _: Begin) -> Result<u64, TxnError> {
        Err(TxnError::Closing)
    }

    fn view(&self, _: &Peer, txn: u64) -> Result<Arc<FileSystem>, TxnError> {
        Err(TxnError::Unknown(txn))
    }

    fn path(&self, _: &Peer, txn: u64) -> Result<PathBuf, TxnError> {
        Err(TxnError::Unknown(txn))
    }

    fn commit(&self, _: &Peer, txn: u64) -> Result<Position, TxnError> {
        Err(TxnError::Unknown(txn))
    }

    fn commit_without_wait(&self, _: &Peer, txn: u64) -> Result<Option<Position>, TxnError> {
        Err(TxnError::Unknown(txn))
    }

    fn abort(&self, _: &Peer, txn: u64) -> Result<Option<String>, TxnError> {
        Err(TxnError::Unknown(txn))
    }

    fn list(&self, _: &Peer) -> Vec<TxnLine> {
        Vec::new()
    }

    fn gone(&self, _: u64) {}
}

impl Shared {
    pub(super) async fn begin(
        self: &Arc<Self>,
        call: &Call,
        request: proto::BeginRequest,
    ) -> Result<proto::BeginResponse, Status> {
        let begin = Begin {
            serializable: request.isolation() == proto::Isolation::Serializable,
            nice: request.nice,
            timeout: Some(request.timeout_ms).filter(|&ms| ms != 0).map(Duration::from_millis),
            idle_max: ioctl::idle_from_ms(request.idle_ms_max),
            tied: request.tied,
            label: if request.label.is_empty() { "key-value client".to_owned() } else { request.label },
        };
        let is_over = Arc::clone(&call.is_over);
        let begun = self.run(call, move |shared, peer| {
            let begun = shared.transactions.begin(peer, begin);
            if is_over.load(Ordering::Acquire) {
                // The connection's end may have come before the begin.
                shared.transactions.gone(peer.connection);
            }
            begun
        });
        let txn = begun.await??;
        Ok(proto::BeginResponse { txn })
    }

    pub(super) async fn commit(
        self: &Arc<Self>,
        call: &Call,
        request: proto::CommitRequest,
    ) -> Result<(), Status> {
        let txn = request.txn;
        let without_wait =
            move |shared: &Self, peer: &Peer| shared.transactions.commit_without_wait(peer, txn);
        let position = match self.run(call, without_wait).await?? {
            Some(position) => position,
            None => self.run_apart(call, move |shared, peer| shared.transactions.commit(peer, txn)).await??,
        };
        let hardened = self.harden(position, request.durability).await;
        hardened.map_err(|status| {
            let message = format!("committed, but it may not survive a power cut: {}", status.message());
            Status::new(status.code(), message)
        })
    }

    pub(super) async fn abort(
        self: &Arc<Self>,
        call: &Call,
        txn: u64,
    ) -> Result<proto::AbortResponse, Status> {
        let doomed = self.run(call, move |shared, peer| shared.transactions.abort(peer, txn)).await??;
        Ok(proto::AbortResponse { doomed })
    }

    pub(super) async fn path_of(
        self: &Arc<Self>,
        call: &Call,
        txn: u64,
    ) -> Result<proto::ViewResponse, Status> {
        let path = self.run(call, move |shared, peer| shared.transactions.path(peer, txn)).await??;
        Ok(proto::ViewResponse { path: path.as_os_str().as_bytes().to_vec().into() })
    }

    pub(super) async fn list_transactions(
        self: &Arc<Self>,
        call: &Call,
    ) -> Result<proto::ListTransactionsResponse, Status> {
        let lines = self.run(call, |shared, peer| shared.transactions.list(peer)).await?;
        let info = |line: TxnLine| proto::TransactionInfo {
            txn: line.txn,
            isolation: i32::from(line.serializable),
            uid: line.uid,
            pid: line.pid,
            label: line.label,
            age_ms: line.age.as_millis() as u64,
            state: line.state,
        };
        Ok(proto::ListTransactionsResponse { transactions: lines.into_iter().map(info).collect() })
    }
}
