//! Which user may ask what: the one place where a right is looked at.
//!
//! Two users beside root may ask for more than others, and often they are one. The *store's owner* (of its
//! directory) may do everything with what is stored ([`masters`]), also where a daemon of root's serves it.
//! The *user of this process*, who has mounted the store, may do what is about the process and its mounts
//! ([`authorize_server`]), which the owner of a store is not trusted with, and everything with what is
//! stored, too, since this process has the device open.
//!
//! What belongs to a user (transactions, undo, branches) is decided by [`may_act_for`](crate::may_act_for)
//! where the owner is known; here is decided what may be asked at all. Every operation of the service asks
//! here itself.
//!
//! Thread safety: pure functions.

use kvfs_fs::FileSystem;

use crate::caller::{Caller, may_act_for};
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::QuotaOwner;

/// The users that may do everything with what is stored: root, the store's owner, and the user of this
/// process.
pub fn masters(fs: &FileSystem) -> [u32; 3] {
    [0, fs.snapshots().owner_uid(), process_uid()]
}

/// Whether the user is one of the [`masters`].
pub fn is_master(fs: &FileSystem, uid: u32) -> bool {
    masters(fs).contains(&uid)
}

/// Whether the user is root or that of this process.
pub(crate) fn is_server(uid: u32) -> bool {
    may_act_for(uid, process_uid())
}

/// Refuses a caller that is none of the [`masters`]: `what` they do.
pub(crate) fn authorize(fs: &FileSystem, caller: &Caller, what: &str) -> Result<()> {
    authorize_user_of(&masters(fs), caller, what)
}

/// As [`authorize`], where the [`masters`] are known already.
pub(crate) fn authorize_user_of(masters: &[u32; 3], caller: &Caller, what: &str) -> Result<()> {
    if masters.contains(&caller.uid) {
        return Ok(());
    }
    Err(ServiceError::new(ErrorKind::Denied, format!("only root and the store's owner {what}")))
}

/// Refuses a caller other than root and the user of this process: `what` they do.
pub(crate) fn authorize_server(caller: &Caller, what: &str) -> Result<()> {
    if is_server(caller.uid) {
        return Ok(());
    }
    Err(ServiceError::new(
        ErrorKind::Denied,
        format!("only root and the user that has mounted the store {what}"),
    ))
}

fn process_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// As quotactl(2) has it: a user sees what is said of that user and of its groups.
pub(crate) fn is_said_of(caller: &Caller, owner: QuotaOwner) -> bool {
    match owner {
        QuotaOwner::User(id) => caller.uid == id,
        QuotaOwner::Group(id) => caller.is_of_group(id),
        QuotaOwner::Project(_) => false,
    }
}

#[cfg(test)]
mod tests;
