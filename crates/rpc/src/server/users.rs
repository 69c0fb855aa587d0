//! What each user takes of the server, and how much it may.
//!
//! Thread safety: all methods are `&self`; counts are atomic. Invariants: whatever is taken is given back by a
//! drop; one user never takes the last connection, byte or thread from the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::Limits;
use super::unread::Mark;

/// All users with connections.
#[derive(Debug)]
pub(super) struct Users {
    limits: Limits,
    connections: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
    scans: Arc<AtomicUsize>,
    by_uid: Mutex<BTreeMap<u32, Weak<User>>>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct User {
    connections: Counter,
    bytes: Counter,
    scans: Counter,
    /// Threads that work for the user at once.
    pub(super) turns: Arc<Semaphore>,
}

/// A count of one user beside that of all.
#[derive(Debug)]
struct Counter {
    own: AtomicUsize,
    own_max: usize,
    all: Arc<AtomicUsize>,
    all_max: usize,
}

impl Counter {
    fn try_add(&self, count: usize) -> bool {
        if add_below(&self.all, count, self.all_max) {
            if add_below(&self.own, count, self.own_max) {
                return true;
            }
            self.all.fetch_sub(count, Ordering::AcqRel);
        }
        false
    }

    fn sub(&self, count: usize) {
        self.own.fetch_sub(count, Ordering::AcqRel);
        self.all.fetch_sub(count, Ordering::AcqRel);
    }
}

fn add_below(counter: &AtomicUsize, count: usize, max: usize) -> bool {
    let add = |now: usize| now.checked_add(count).filter(|&sum| sum <= max);
    counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
}

/// A connection of a user.
#[derive(Debug)]
pub(super) struct ConnectionSlot(Arc<User>);

impl ConnectionSlot {
    pub(super) fn user(&self) -> &Arc<User> {
        &self.0
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.connections.sub(1);
    }
}

/// A scan of a user.
#[derive(Debug)]
pub(super) struct ScanSlot(Arc<User>);

impl ScanSlot {
    /// For another scan, if there are not too many.
    pub(super) fn try_take(user: &Arc<User>) -> Option<Self> {
        user.scans.try_add(1).then(|| Self(Arc::clone(user)))
    }
}

impl Drop for ScanSlot {
    fn drop(&mut self) {
        self.0.scans.sub(1);
    }
}

/// Bytes that a request or an answer keeps in memory.
pub(super) struct Hold {
    user: Arc<User>,
    bytes: usize,
    /// Of an answer: since when it waits.
    _mark: Option<Mark>,
}

impl Hold {
    /// Nothing yet.
    pub(super) fn new(user: &Arc<User>) -> Self {
        Self { user: Arc::clone(user), bytes: 0, _mark: None }
    }

    /// The same for an answer.
    pub(super) fn of_answer(user: &Arc<User>, mark: Mark) -> Self {
        Self { user: Arc::clone(user), bytes: 0, _mark: Some(mark) }
    }

    /// Takes more. False: there is no more.
    pub(super) fn try_grow(&mut self, bytes: usize) -> bool {
        let taken = self.user.bytes.try_add(bytes);
        self.bytes += if taken { bytes } else { 0 };
        taken
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.user.bytes.sub(self.bytes);
    }
}

impl Users {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            connections: Arc::default(),
            bytes: Arc::default(),
            scans: Arc::default(),
            by_uid: Mutex::default(),
        }
    }

    /// A connection for a user, if neither the user nor all users together have too many.
    pub(super) fn try_connect(&self, uid: u32) -> Option<ConnectionSlot> {
        let mut users = self.by_uid.lock();
        let known = users.get(&uid).and_then(Weak::upgrade);
        let user = known.unwrap_or_else(|| {
            users.retain(|_, user| user.strong_count() > 0);
            let user = Arc::new(self.new_user());
            users.insert(uid, Arc::downgrade(&user));
            user
        });
        user.connections.try_add(1).then(|| ConnectionSlot(Arc::clone(&user)))
    }

    fn new_user(&self) -> User {
        let limits = &self.limits;
        let counter = |own_max, all: &Arc<AtomicUsize>, all_max| Counter {
            own: AtomicUsize::new(0),
            own_max,
            all: Arc::clone(all),
            all_max,
        };
        User {
            connections: counter(limits.connections_per_user_max, &self.connections, limits.connections_max),
            bytes: counter(limits.bytes_per_user_max, &self.bytes, limits.bytes_max),
            scans: counter(limits.scans_per_user_max, &self.scans, limits.scans_max),
            turns: Arc::new(Semaphore::new(limits.threads.saturating_sub(2).max(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users::new(Limits {
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
        let first = users.try_connect(1).unwrap();
        let _second = users.try_connect(1).unwrap();
        assert!(users.try_connect(1).is_none(), "its own share");
        let _other = users.try_connect(2).unwrap();
        assert!(users.try_connect(3).is_none(), "there is none left");
        drop(first);
        assert!(users.try_connect(3).is_some(), "given back");
    }

    #[test]
    fn a_user_gets_a_share_of_the_bytes() {
        let users = users();
        let (one, other) = (users.try_connect(1).unwrap(), users.try_connect(2).unwrap());
        let mut held = Hold::new(one.user());
        assert!(held.try_grow(60) && !held.try_grow(1));
        let mut others = Hold::new(other.user());
        assert!(others.try_grow(40) && !others.try_grow(1));
        drop(held);
        assert!(others.try_grow(20) && Hold::new(one.user()).try_grow(40));
    }
}
