//! Transactions over files and keys.
//!
//! Thread safety: any number of threads use a transaction at once; it is ended by one, behind all others.

use std::ffi::c_int;
use std::sync::Arc;

use kvfs_client::ServedTransaction;
use kvfs_fs::{BeginOptions, Isolation, Owner};
use kvfs_posix::Identity;
use libc::{gid_t, size_t, uid_t};

use crate::failure::{Result, call, end, refuse};
use crate::foreign::{Groups, Text, missing};
use crate::process::{Process, identity, is_own, own_identity};
use crate::store::{OpenVolume, Store};

/// For `kvfs_txn_begin`: what it reads must not be changed by others until it is committed, either.
pub const KVFS_SERIALIZABLE: c_int = 1;

/// An open transaction.
// The order of the fields is that in which they go.
pub struct Transaction {
    inner: Kind,
    store: Arc<OpenVolume>,
}

enum Kind {
    Embedded(kvfs_posix::Transaction),
    /// Of a daemon.
    Served(ServedTransaction),
}

impl Transaction {
    fn process(&self, identity: &Identity) -> Result<Process> {
        Ok(match &self.inner {
            Kind::Embedded(txn) => Process::new(txn.process(identity), &self.store),
            Kind::Served(txn) if is_own(identity)? => Process::new(txn.process()?, &self.store),
            Kind::Served(txn) => Process::new(txn.process_as(identity)?, &self.store),
        })
    }
}

/// Begins a transaction over files and keys: its processes see what others had committed by now, and their
/// own changes; others see these when it is committed. `flags`: 0 or `KVFS_SERIALIZABLE`; `name`, for the
/// list of transactions, may be NULL. End it with `kvfs_txn_commit` or `kvfs_txn_abort`.
///
/// EROFS: the store was opened for reading.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_txn_begin(
    store: Option<&Store>,
    flags: c_int,
    name: Text,
) -> Option<Box<Transaction>> {
    call(|| {
        let store = &store.ok_or_else(missing)?.inner;
        let isolation = match flags {
            0 => Isolation::Snapshot,
            KVFS_SERIALIZABLE => Isolation::Serializable,
            _ => return refuse(libc::EINVAL, "flags that mean nothing here"),
        };
        let name = String::from_utf8_lossy(name.optional()?.unwrap_or_default()).into_owned();
        let inner = match &**store {
            OpenVolume::Embedded(own) => {
                let owner = Owner { uid: rustix::process::geteuid().as_raw(), pid: std::process::id(), name };
                Kind::Embedded(own.volume.begin(&BeginOptions {
                    isolation,
                    owner,
                    ..BeginOptions::default()
                })?)
            }
            OpenVolume::Served(daemon) => {
                Kind::Served(daemon.begin(isolation == Isolation::Serializable, &name)?)
            }
        };
        Ok(Some(Box::new(Transaction { inner, store: Arc::clone(store) })))
    })
}

/// As `kvfs_process_new`, in the transaction. Its calls fail with ESTALE when the transaction has ended, with
/// ECANCELED when it can't be committed any more.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_txn_process(txn: Option<&Transaction>) -> Option<Box<Process>> {
    call(|| Ok(Some(Box::new(txn.ok_or_else(missing)?.process(&own_identity()?)?))))
}

/// As `kvfs_process_new_as`, in the transaction.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_txn_process_as(
    txn: Option<&Transaction>,
    uid: uid_t,
    gid: gid_t,
    groups: Groups,
    group_count: size_t,
) -> Option<Box<Process>> {
    call(|| {
        Ok(Some(Box::new(txn.ok_or_else(missing)?.process(&identity(uid, gid, &groups, group_count)?)?)))
    })
}

/// Commits everything at once, durably, and frees the transaction, whatever this returns. Its processes are
/// to be freed as well.
///
/// ECANCELED: others have changed what this transaction has changed, or, if it is serializable, read; nothing
/// has happened, and it can be tried again from its beginning. EIO: committed, but it may not survive a power
/// cut.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_txn_commit(txn: Option<Box<Transaction>>) -> c_int {
    call(|| {
        let Transaction { inner, store } = *txn.ok_or_else(missing)?;
        let committed = match inner {
            Kind::Embedded(txn) => txn.commit().map(drop),
            Kind::Served(txn) => txn.commit(),
        };
        drop(store);
        committed?;
        Ok(0)
    })
}

/// Ends a transaction of which nothing has happened, and frees it. NULL: nothing happens.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_txn_abort(txn: Option<Box<Transaction>>) {
    end(txn);
}
