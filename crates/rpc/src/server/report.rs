//! What is reported of a request when it is answered.
//!
//! Thread safety: shared by the tasks and threads of a request. Invariant: ends of transactions are reported
//! by their registry, not here.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use kvfs_fs::operations::{Operation, OperationKind, Recorder, Target};
use rustix::io::Errno;
use tonic::{Code, Status};

use super::peer::Peer;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Report {
    about: OnceLock<About>,
    bytes: AtomicU64,
    has_waited: AtomicBool,
}

#[derive(Debug)]
struct About {
    keyspace: String,
    key: Bytes,
    txn: u64,
}

impl Report {
    /// The request is about this key, or what is in the keyspace.
    pub(super) fn about(&self, keyspace: &str, key: &Bytes, txn: u64) {
        let _ = self.about.set(About { keyspace: keyspace.to_owned(), key: key.clone(), txn });
    }

    /// Values of so many bytes were moved.
    pub(super) fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// It waits for a lock.
    pub(super) fn wait(&self) {
        self.has_waited.store(true, Ordering::Relaxed);
    }

    /// It is answered now, with `answer`.
    pub(super) fn tell<B>(
        &self,
        recorder: &dyn Recorder,
        (kind, start): (OperationKind, Duration),
        peer: &Peer,
        answer: &Response<B>,
    ) {
        let (target, txn) = match self.about.get() {
            Some(About { keyspace, key, txn }) => (Target::Key { keyspace, key }, *txn),
            None => (Target::None, 0),
        };
        let (bytes, has_waited) =
            (self.bytes.load(Ordering::Relaxed), self.has_waited.load(Ordering::Relaxed));
        let &Peer { uid, pid, .. } = peer;
        let errno = errno_of(answer);
        recorder.record(&Operation { kind, start, uid, pid, txn, errno, bytes, has_waited, target });
    }
}

/// What a call does, by its path; `None`: it is not reported here.
pub(super) fn kind_of(path: &str) -> Option<OperationKind> {
    let (_, method) = path.rsplit_once('/')?;
    Some(match method {
        "Get" | "MultiGet" => OperationKind::KeyGet,
        "Put" | "Apply" => OperationKind::KeyWrite,
        "Delete" | "DeleteRange" => OperationKind::KeyDelete,
        "Scan" => OperationKind::KeyScan,
        "Lock" => OperationKind::KeyLock,
        "CreateKeyspace" | "ChangeKeyspace" | "DropKeyspace" | "ListKeyspaces" => OperationKind::Keyspace,
        _ => return None,
    })
}

/// The number of the error that an answer tells of; 0: none.
fn errno_of<B>(answer: &Response<B>) -> i32 {
    let Some(status) = Status::from_header_map(answer.headers()) else { return 0 };
    let errno = match status.code() {
        Code::Ok => return 0,
        Code::InvalidArgument | Code::OutOfRange => Errno::INVAL,
        Code::NotFound => Errno::NOENT,
        Code::AlreadyExists => Errno::EXIST,
        Code::PermissionDenied => Errno::PERM,
        Code::ResourceExhausted => Errno::NOSPC,
        Code::FailedPrecondition => Errno::BUSY,
        Code::Aborted => Errno::CANCELED,
        Code::DeadlineExceeded => Errno::TIMEDOUT,
        Code::Unimplemented => Errno::NOSYS,
        _ => Errno::IO,
    };
    errno.raw_os_error()
}
