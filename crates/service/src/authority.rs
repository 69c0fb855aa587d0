//! Which user may ask what: the one place where a right is looked at.
//!
//! What belongs to a user (transactions, undo, branches) is decided by [`may_act_for`](crate::may_act_for) where the owner
//! is known; here is decided what may be asked at all. An operation of the service asks here itself; a front end does for what
//! it answers without the service.
//!
//! Thread safety: pure functions.

use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::QuotaOwner;

/// The users that may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// Every user; what is of others is left out of the answer, or refused where its owner is known.
    Everyone,
    /// Root and the store's owner, and the user or group that is asked about: whether the caller is that.
    Subject(bool),
    /// Root and the store's owner: what they do.
    Master(&'static str),
}

/// Refuses what the caller may not ask.
///
/// # Errors
/// The caller may not.
pub fn authorize(caller: &Caller, right: Right) -> Result<()> {
    if caller.is_master() {
        return Ok(());
    }
    match right {
        Right::Everyone | Right::Subject(true) => Ok(()),
        Right::Subject(false) => Err(ServiceError::new(
            ErrorKind::Denied,
            "only root and the store's owner see other people's quotas",
        )),
        Right::Master(what) => {
            Err(ServiceError::new(ErrorKind::Denied, format!("only root and the store's owner {what}")))
        }
    }
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
