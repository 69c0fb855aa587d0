//! What each user takes of the server, and how much it may.
//!
//! Thread safety: all methods are `&self`. Invariants: whatever is taken is given back by a
//! drop; one user never takes the last connection, byte or thread from the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use kvfs_locks::{Mutex, class};
use kvfs_socket::{Exempt, Share, Shares};
use tokio::sync::Semaphore;

use super::Limits;
use super::unread::Mark;

/// What users share.
#[derive(Debug)]
struct Pool {
    connections: Shares,
    bytes: Shares,
    scans: Shares,
}

impl Pool {
    fn new(limits: &Limits) -> Self {
        let shares = |all_max, user_max| Shares::new(all_max, user_max, Exempt::None);
        Self {
            connections: shares(limits.connections_max, limits.connections_per_user_max),
            bytes: shares(limits.bytes_max, limits.bytes_per_user_max),
            scans: shares(limits.scans_max, limits.scans_per_user_max),
        }
    }
}

/// All users with connections.
#[derive(Debug)]
pub(super) struct Users {
    /// Of root and the store's owner: what all others take is nothing of theirs.
    masters: Pool,
    others: Pool,
    /// Threads that work for one user at once.
    turns_max: usize,
    by_uid: Mutex<BTreeMap<u32, Weak<User>>, class::RpcServerUsersByUid>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct User {
    uid: u32,
    bytes: Shares,
    scans: Shares,
    /// Threads that work for the user at once.
    pub(super) turns: Arc<Semaphore>,
}

/// A connection of a user.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    user: Arc<User>,
    _share: Share,
}

impl ConnectionSlot {
    pub(super) fn user(&self) -> &Arc<User> {
        &self.user
    }
}

/// A scan of a user.
#[derive(Debug)]
pub(super) struct ScanSlot {
    user: Arc<User>,
    _share: Share,
}

impl ScanSlot {
    /// For another scan, if there are not too many.
    pub(super) fn try_take(user: &Arc<User>) -> Option<Self> {
        let share = user.scans.take(user.uid, 1)?;
        Some(Self { user: Arc::clone(user), _share: share })
    }
}

/// Bytes that a request or an answer keeps in memory.
pub(super) struct Hold {
    user: Arc<User>,
    /// `None`: nothing yet.
    share: Option<Share>,
    /// Of an answer: since when it waits.
    _mark: Option<Mark>,
    /// Of a scan.
    _slot: Option<ScanSlot>,
}

impl Hold {
    /// Nothing yet.
    pub(super) fn new(user: &Arc<User>) -> Self {
        Self { user: Arc::clone(user), share: None, _mark: None, _slot: None }
    }

    /// The same for an answer.
    pub(super) fn of_answer(user: &Arc<User>, mark: Mark) -> Self {
        Self { _mark: Some(mark), ..Self::new(user) }
    }

    /// The same for the pages of a scan.
    pub(super) fn of_scan(slot: ScanSlot) -> Self {
        let user = Arc::clone(&slot.user);
        Self { _slot: Some(slot), ..Self::new(&user) }
    }

    /// Takes more. False: there is no more.
    pub(super) fn try_grow(&mut self, bytes: usize) -> bool {
        if let Some(share) = &mut self.share {
            return share.grow(bytes);
        }
        self.share = self.user.bytes.take(self.user.uid, bytes);
        self.share.is_some()
    }
}

impl Users {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            masters: Pool::new(limits),
            others: Pool::new(limits),
            turns_max: limits.threads.saturating_sub(2).max(1),
            by_uid: Mutex::default(),
        }
    }

    /// A connection for a user, if neither the user nor all users together have too many.
    pub(super) fn try_connect(&self, uid: u32, is_master: bool) -> Option<ConnectionSlot> {
        let pool = if is_master { &self.masters } else { &self.others };
        let share = pool.connections.take(uid, 1)?;
        let mut users = self.by_uid.lock();
        let known = users.get(&uid).and_then(Weak::upgrade);
        let user = known.unwrap_or_else(|| {
            users.retain(|_, user| user.strong_count() > 0);
            let user = Arc::new(self.new_user(uid, pool));
            users.insert(uid, Arc::downgrade(&user));
            user
        });
        Some(ConnectionSlot { user, _share: share })
    }

    fn new_user(&self, uid: u32, pool: &Pool) -> User {
        User {
            uid,
            bytes: pool.bytes.clone(),
            scans: pool.scans.clone(),
            turns: Arc::new(Semaphore::new(self.turns_max)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users::new(&Limits {
            connections_max: 3,
            connections_per_user_max: 2,
            bytes_max: 100,
            bytes_per_user_max: 60,
            ..Limits::default()
        })
    }

    #[test]
    fn a_user_gets_a_share_of_the_connections() {
        let users = users();
        let first = users.try_connect(1, false).unwrap();
        let _second = users.try_connect(1, false).unwrap();
        assert!(users.try_connect(1, false).is_none(), "its own share");
        let _other = users.try_connect(2, false).unwrap();
        assert!(users.try_connect(3, false).is_none(), "there is none left");
        let root = users.try_connect(0, true).unwrap();
        assert!(Hold::new(root.user()).try_grow(60));
        drop(first);
        assert!(users.try_connect(3, false).is_some(), "given back");
    }

    #[test]
    fn a_user_gets_a_share_of_the_bytes() {
        let users = users();
        let (one, other) = (users.try_connect(1, false).unwrap(), users.try_connect(2, false).unwrap());
        let mut held = Hold::new(one.user());
        assert!(held.try_grow(60) && !held.try_grow(1));
        let mut others = Hold::new(other.user());
        assert!(others.try_grow(40) && !others.try_grow(1));
        drop(held);
        assert!(others.try_grow(20) && Hold::new(one.user()).try_grow(40));
    }
}
