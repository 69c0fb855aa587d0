//! Transactions, and operations on trees, by calls on the mount itself, without a connection: an order of
//! magnitude faster to begin and to end.
//!
//! Thread safety: a [`Mount`] may be shared. Invariants: nothing is tied to it; what was begun here stays
//! open until a call ends it, or its time is over.
#![expect(unsafe_code, reason = "rustix has no safe form of an ioctl that others define")]

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fsetxattr, syncfs};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};

use super::{BeginOptions, ClientError, Result};
use crate::ioctl::{self as calls, Begin, Call, State, TreeCall, TreeOperation, idle_to_ms};
use crate::proto;

/// A mount of a store, or anything open on it.
#[derive(Debug)]
pub struct Mount {
    file: File,
}

impl Mount {
    /// Opens a file or directory on the mount: its root, or whatever the caller may read.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { file: File::open(path)? })
    }

    /// Begins a transaction. Returns its number. [`BeginOptions::tied`] can't be: there is no connection.
    ///
    /// # Errors
    /// [`ClientError::Io`]: ENOTTY where this is no kvfs mount, or a transaction's view; EPERM for a nice
    /// value below 0 of others than root and the store's owner; EOPNOTSUPP on a mount that has no
    /// transactions.
    pub fn begin(&self, options: &BeginOptions) -> Result<u64> {
        if options.tied {
            return Err(Errno::INVAL.into());
        }
        let begin = Begin {
            serializable: options.serializable,
            nice: options.nice,
            timeout_ms: options.timeout.map_or(0, |timeout| timeout.as_millis().max(1) as u64),
            idle_ms_max: idle_to_ms(options.idle_max),
            id: 0,
            label: options.label.clone(),
        };
        let mut bytes = begin.to_bytes();
        self.call::<{ calls::TXN_BEGIN }, _>(&mut bytes)?;
        Begin::from_bytes(&bytes).map(|begin| begin.id).ok_or_else(|| Errno::PROTO.into())
    }

    /// Commits a transaction: files and keys at once.
    ///
    /// # Errors
    /// [`ClientError::Conflict`]: nothing of it happened. [`ClientError::Io`]: ENOENT for an unknown one,
    /// EPERM for another user's, EBUSY while another call ends it.
    pub fn commit(&self, txn: u64, is_durable: bool) -> Result<()> {
        let call = Call { id: txn, asynchronous: !is_durable, ..Call::default() };
        self.ask::<{ calls::TXN_COMMIT }>(&call).map(drop)
    }

    /// Drops a transaction.
    ///
    /// # Errors
    /// As [`Self::commit`], without conflicts.
    pub fn abort(&self, txn: u64) -> Result<()> {
        self.ask::<{ calls::TXN_ABORT }>(&Call { id: txn, ..Call::default() }).map(drop)
    }

    /// How a transaction is, and why, if it is doomed.
    ///
    /// # Errors
    /// As [`Self::abort`].
    pub fn state(&self, txn: u64) -> Result<(State, String)> {
        let call = self.ask::<{ calls::TXN_STATE }>(&Call { id: txn, ..Call::default() })?;
        Ok((call.state, call.text))
    }

    /// Root of the files that the transaction sees; they are mounted there at the first call.
    ///
    /// # Errors
    /// As [`Self::abort`]; the mount fails.
    pub fn view(&self, txn: u64) -> Result<PathBuf> {
        let call = self.ask::<{ calls::TXN_VIEW }>(&Call { id: txn, ..Call::default() })?;
        Ok(call.text.into())
    }

    /// Removes what is at `path`, with all that is below, in constant time where the caller is root: in a
    /// transaction of its own, or as part of that whose view this is. The path begins at the directory that
    /// was opened here. Returns the number of the transaction of its own.
    ///
    /// # Errors
    /// [`ClientError::Tree`]: nothing was removed, and the text says why, and what was in the way.
    /// [`ClientError::Io`]: ENOTTY where this is no kvfs mount, or ENOTSUP; EROFS; ENAMETOOLONG, EINVAL for
    /// the path.
    pub fn remove_tree(&self, path: &[u8]) -> Result<Option<u64>> {
        self.change_tree(&TreeCall { path: path.to_vec(), ..TreeCall::default() })
    }

    /// Clones what is at `source`, with all that is below, to `target`, which must not exist; as
    /// [`Self::remove_tree`]. What is being written through descriptors or mappings must be synced before, or
    /// it may be missing.
    ///
    /// # Errors
    /// As there; nothing was made then.
    pub fn clone_tree(&self, source: &[u8], target: &[u8]) -> Result<Option<u64>> {
        let (path, other) = (source.to_vec(), target.to_vec());
        self.change_tree(&TreeCall { operation: TreeOperation::Clone, path, other, ..TreeCall::default() })
    }

    /// Has the kernel write out what it keeps of files of this mount, as syncfs(2).
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn sync_all(&self) -> Result<()> {
        Ok(syncfs(&self.file)?)
    }

    fn change_tree(&self, call: &TreeCall) -> Result<Option<u64>> {
        let has_zero = call.path.contains(&0) || call.other.contains(&0);
        let refused = if has_zero { Errno::INVAL } else { Errno::NAMETOOLONG };
        let mut bytes = call.to_bytes().ok_or(refused)?;
        fsetxattr(&self.file, calls::TREE_ANNOUNCEMENT, b"", XattrFlags::empty())?;
        let called = self.call::<{ calls::TREE }, _>(&mut bytes);
        let (id, text) = TreeCall::answer(&bytes);
        match called {
            Ok(()) => Ok(Some(id).filter(|&id| id != 0)),
            Err(errno) if text.as_bytes() == call.path => Err(errno.into()),
            Err(errno) => Err(ClientError::Tree { errno: errno.raw_os_error(), text }),
        }
    }

    fn ask<const OPCODE: Opcode>(&self, call: &Call) -> Result<Call> {
        let mut bytes = call.to_bytes();
        let called = self.call::<OPCODE, _>(&mut bytes);
        let answer = Call::from_bytes(&bytes).unwrap_or_default();
        match called {
            Ok(()) => Ok(answer),
            Err(Errno::CANCELED) => {
                let conflict = proto::Conflict { message: answer.text, ..proto::Conflict::default() };
                Err(ClientError::Conflict(Box::new(conflict)))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn call<const OPCODE: Opcode, const LEN: usize>(&self, bytes: &mut [u8; LEN]) -> Result<(), Errno> {
        const { assert!(OPCODE >> 16 & 0x3fff == LEN as Opcode, "the number says how long the argument is") };
        // SAFETY: the number says that LEN bytes are read and written, at most, where the argument points;
        // that is this array, and any bytes are valid in it.
        unsafe { ioctl(&self.file, Updater::<OPCODE, [u8; LEN]>::new(bytes)) }
    }
}

impl From<Errno> for ClientError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}
