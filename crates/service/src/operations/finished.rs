//! An operation that has ended, with all that is told of it.
//!
//! Thread safety: values.

use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_fs::operations::{Operation, OperationKind, Target, path_in};

use crate::lines::TraceLine;

/// Longest name, path or key that is kept (bytes).
const NAME_LEN_MAX: usize = 1024;

/// What it was about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    None,
    Inode { inode: u64, name: Box<[u8]> },
    Path(Box<[u8]>),
    Key { keyspace: Box<str>, key: Box<[u8]> },
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) kind: OperationKind,
    /// By the clock that never goes back.
    pub(super) ended: Duration,
    pub(super) duration: Duration,
    pub(super) uid: u32,
    pub(super) pid: u32,
    pub(super) has_waited: bool,
    txn: u64,
    errno: i32,
    bytes: u64,
    command: Option<String>,
    subject: Subject,
}

impl Finished {
    pub(super) fn new(operation: &Operation<'_>, ended: Duration, duration: Duration) -> Self {
        let short = |bytes: &[u8]| bytes[..bytes.len().min(NAME_LEN_MAX)].into();
        let subject = match operation.target {
            Target::None => Subject::None,
            Target::Inode { inode, name } => Subject::Inode { inode, name: short(name) },
            Target::Path(path) => Subject::Path(short(path)),
            Target::Key { keyspace, key } => Subject::Key { keyspace: keyspace.into(), key: short(key) },
        };
        let &Operation { kind, uid, pid, txn, errno, bytes, has_waited, .. } = operation;
        Self { kind, ended, duration, uid, pid, has_waited, txn, errno, bytes, command: None, subject }
    }

    /// The same, with what its process is called.
    pub(super) fn of_command(&self, command: Option<String>) -> Self {
        Self { command, ..self.clone() }
    }

    /// What it was about, with a path where that is known. Takes locks of `fs`.
    fn target(&self, fs: Option<&FileSystem>) -> Vec<u8> {
        match &self.subject {
            Subject::None => Vec::new(),
            Subject::Path(path) => path.to_vec(),
            Subject::Key { keyspace, key } if key.is_empty() => keyspace.as_bytes().to_vec(),
            Subject::Key { keyspace, key } => [keyspace.as_bytes(), b"/", &**key].concat(),
            Subject::Inode { inode, name } => {
                let path = fs.and_then(|fs| path_in(fs, self.txn, *inode));
                let path = path.unwrap_or_else(|| format!("(inode {inode})"));
                if name.is_empty() {
                    return path.into_bytes();
                }
                [path.trim_end_matches('/').as_bytes(), b"/", &**name].concat()
            }
        }
    }

    /// As it is told; `epoch`: the time since 1970 at zero of the other clock.
    pub(super) fn line(&self, fs: Option<&FileSystem>, epoch: Duration) -> TraceLine {
        TraceLine {
            ended: epoch + self.ended,
            duration: self.duration,
            kind: self.kind.name().to_owned(),
            uid: self.uid,
            pid: self.pid,
            command: self.command.clone().unwrap_or_default(),
            txn: self.txn,
            target: self.target(fs),
            bytes: self.bytes,
            errno: self.errno,
        }
    }
}
