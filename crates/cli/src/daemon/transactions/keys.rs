//! The same transactions for those who come by the key-value socket.

use std::path::PathBuf;
use std::sync::Arc;

use kvfs_fs::{Durability, FileSystem, Position};
use kvfs_rpc::client::Code as GrpcCode;
use kvfs_rpc::server::{self, TxnError};

use super::{Refusal, Transactions};
use crate::control::{Begin, Peer};
use crate::error::{CliError, Code};

impl From<Refusal> for TxnError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown(id) => Self::Unknown(id),
            Refusal::NotYours { id, .. } => Self::NotYours(id),
            Refusal::Busy { id, what } => Self::Busy(format!("transaction {id} is {what}")),
        }
    }
}

impl From<CliError> for TxnError {
    fn from(error: CliError) -> Self {
        let code = match error.code {
            Code::NotMounted => return Self::Closing,
            Code::NoSpace => GrpcCode::ResourceExhausted,
            Code::Damaged => GrpcCode::DataLoss,
            Code::Denied => GrpcCode::PermissionDenied,
            Code::Usage | Code::InUse => GrpcCode::FailedPrecondition,
            _ => GrpcCode::Internal,
        };
        Self::Failed { code, message: error.message }
    }
}

impl Transactions {
    /// The socket for keys, by which they are begun, too.
    pub(crate) fn keys_socket(&self) -> PathBuf {
        self.store.keys_socket_path()
    }
}

impl server::Transactions for Transactions {
    fn begin(&self, peer: &server::Peer, begin: server::Begin) -> Result<u64, TxnError> {
        let server::Begin { serializable, nice, timeout, tied, label } = begin;
        Ok(self.begin_unseen(&Peer::of_keys(peer), Begin { serializable, timeout, nice, label, tied })?)
    }

    fn view(&self, peer: &server::Peer, txn: u64) -> Result<Arc<FileSystem>, TxnError> {
        let peer = Peer::of_keys(peer);
        let entered = Self::of(&self.state.lock(), &peer, txn).map(|entry| Arc::clone(&entry.view));
        match entered {
            Err(Refusal::Unknown(_)) => Ok(self.branches.view_of(&peer, txn).ok_or(Refusal::Unknown(txn))?),
            entered => Ok(entered?),
        }
    }

    fn path(&self, peer: &server::Peer, txn: u64) -> Result<PathBuf, TxnError> {
        // Without it the errors are the same, but less exact.
        drop(server::Transactions::view(self, peer, txn)?);
        Ok(Self::path(self, &Peer::of_keys(peer), txn)?)
    }

    fn commit(&self, peer: &server::Peer, txn: u64) -> Result<Position, TxnError> {
        let (view, done) = self.commit_view(&Peer::of_keys(peer), txn, Durability::Buffered, None)?;
        done.map_err(|error| TxnError::of(&view, &error))
    }

    fn abort(&self, peer: &server::Peer, txn: u64) -> Result<Option<String>, TxnError> {
        drop(server::Transactions::view(self, peer, txn)?);
        Ok(Self::abort(self, &Peer::of_keys(peer), txn)?)
    }

    fn list(&self, peer: &server::Peer) -> Vec<server::TxnLine> {
        let lines = Self::list(self, &Peer::of_keys(peer)).into_iter();
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
        self.line_gone(Peer::keys_line(connection));
    }
}
