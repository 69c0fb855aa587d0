//! The open transactions for clients of the key-value socket.
//!
//! Thread safety: shared by the threads of the socket that may block. Invariant: an error becomes a status of
//! gRPC here and nowhere else.

use std::path::PathBuf;
use std::sync::Arc;

use kvfs_fs::{Durability, FileSystem, Position};
use kvfs_rpc::client::Code as GrpcCode;
use kvfs_rpc::server::{self, TxnError};
use kvfs_service::{Begin, Caller, ErrorKind, ServiceError, Transactions};

/// See the module.
struct KeysHandler(Arc<Transactions>);

/// What the socket asks.
pub(super) fn handler(transactions: &Arc<Transactions>) -> Arc<dyn server::Transactions> {
    Arc::new(KeysHandler(Arc::clone(transactions)))
}

fn caller(peer: &server::Peer) -> Caller {
    Caller::of_keys(peer.connection, peer.uid, peer.pid)
}

fn txn_error(error: ServiceError) -> TxnError {
    let kind = error.kind();
    let code = match error {
        ServiceError::Unknown(id) => return TxnError::Unknown(id),
        ServiceError::NotYours { id, .. } => return TxnError::NotYours(id),
        ServiceError::Busy { .. } => return TxnError::Busy(error.to_string()),
        ServiceError::NotCommitted { view, error, .. } => return TxnError::of(&view, &error),
        ServiceError::Ended { id, .. } => return TxnError::Ended { txn: id, message: error.to_string() },
        _ => match kind {
            ErrorKind::NotMounted => return TxnError::Closing,
            ErrorKind::NoSpace => GrpcCode::ResourceExhausted,
            ErrorKind::Damaged => GrpcCode::DataLoss,
            ErrorKind::Denied => GrpcCode::PermissionDenied,
            ErrorKind::Usage | ErrorKind::InUse => GrpcCode::FailedPrecondition,
            _ => GrpcCode::Internal,
        },
    };
    TxnError::Failed { code, message: error.to_string() }
}

impl server::Transactions for KeysHandler {
    fn begin(&self, peer: &server::Peer, begin: server::Begin) -> Result<u64, TxnError> {
        let server::Begin { serializable, nice, timeout, idle_max, tied, label } = begin;
        let begin = Begin { serializable, timeout, idle_max, nice, label, tied, needs_files: false };
        self.0.begin(&caller(peer), begin).map_err(txn_error)
    }

    fn view(&self, peer: &server::Peer, txn: u64) -> Result<Arc<FileSystem>, TxnError> {
        self.0.view_or_branch(&caller(peer), txn).map_err(txn_error)
    }

    fn path(&self, peer: &server::Peer, txn: u64) -> Result<PathBuf, TxnError> {
        self.0.path(&caller(peer), txn).map_err(txn_error)
    }

    fn commit(&self, peer: &server::Peer, txn: u64) -> Result<Position, TxnError> {
        let committed = self.0.commit(&caller(peer), txn, Durability::Buffered, None);
        committed.map(|committed| committed.position).map_err(txn_error)
    }

    fn commit_without_wait(&self, peer: &server::Peer, txn: u64) -> Result<Option<Position>, TxnError> {
        let committed = self.0.commit_unmounted(&caller(peer), txn, Durability::Buffered);
        committed.map(|committed| committed.map(|committed| committed.position)).map_err(txn_error)
    }

    fn abort(&self, peer: &server::Peer, txn: u64) -> Result<Option<String>, TxnError> {
        self.0.abort(&caller(peer), txn).map_err(txn_error)
    }

    fn list(&self, peer: &server::Peer) -> Vec<server::TxnLine> {
        let lines = self.0.list(&caller(peer)).into_iter();
        let line = lines.map(|line| server::TxnLine {
            txn: line.id,
            serializable: line.serializable,
            uid: line.uid,
            pid: line.pid,
            label: line.label,
            age: line.age,
            state: line.state,
        });
        line.collect()
    }

    fn gone(&self, connection: u64) {
        self.0.line_gone(Caller::keys_line(connection));
    }
}

#[cfg(test)]
mod tests {
    use kvfs_rpc::client::Status;

    use super::*;

    #[test]
    fn transaction_that_the_daemon_has_ended_is_told_as_ended_with_the_reason() {
        let ended = ServiceError::Ended { id: 7, why: "the idle time-out".into() };
        let status = Status::from(txn_error(ended));
        assert_eq!(status.code(), GrpcCode::Aborted);
        assert!(status.message().contains("idle time-out"), "{status}");
        assert!(status.metadata().contains_key(kvfs_rpc::ENDED_TRAILER));
    }
}
