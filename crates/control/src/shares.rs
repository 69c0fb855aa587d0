//! What users have of the control socket: connections, and bytes of answers that were not taken yet.
//!
//! Thread safety: one lock, held for moments. Invariants: what is taken is given back by a drop; no user other than root
//! takes all, and root is never refused for the sake of others.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Connections of one user, and of all but root.
const CONNECTIONS_PER_USER_MAX: usize = 64;
const CONNECTIONS_MAX: usize = 256;

/// Bytes of answers of one user, and of all but root. The longest frame fits.
const BYTES_PER_USER_MAX: usize = 16 << 20;
const BYTES_MAX: usize = 48 << 20;

/// What is taken.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Taken {
    connections: usize,
    bytes: usize,
}

/// All users that have something.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<BTreeMap<u32, Taken>>);

/// A part of one user's, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    shares: Arc<Shares>,
    uid: u32,
    part: Taken,
}

impl Shares {
    /// A connection of user `uid`; `None`: there are too many.
    pub(super) fn connect(self: &Arc<Self>, uid: u32) -> Option<Share> {
        self.take(uid, Taken { connections: 1, bytes: 0 })
    }

    /// So many bytes of an answer; `None`: too many others were not taken.
    pub(super) fn answer(self: &Arc<Self>, uid: u32, bytes: usize) -> Option<Share> {
        self.take(uid, Taken { connections: 0, bytes })
    }

    fn take(self: &Arc<Self>, uid: u32, part: Taken) -> Option<Share> {
        let mut users = self.0.lock();
        let all = users.iter().filter(|(user, _)| **user != 0).fold(Taken::default(), |all, (_, taken)| {
            Taken { connections: all.connections + taken.connections, bytes: all.bytes + taken.bytes }
        });
        let own = users.get(&uid).copied().unwrap_or_default();
        let fits = own.connections + part.connections <= CONNECTIONS_PER_USER_MAX
            && own.bytes + part.bytes <= BYTES_PER_USER_MAX
            && all.connections + part.connections <= CONNECTIONS_MAX
            && all.bytes + part.bytes <= BYTES_MAX;
        if uid != 0 && !fits {
            return None;
        }
        let sum = Taken { connections: own.connections + part.connections, bytes: own.bytes + part.bytes };
        users.insert(uid, sum);
        Some(Share { shares: Arc::clone(self), uid, part })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut users = self.shares.0.lock();
        let Some(taken) = users.get_mut(&self.uid) else { return };
        taken.connections -= self.part.connections;
        taken.bytes -= self.part.bytes;
        if *taken == Taken::default() {
            users.remove(&self.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_gets_a_share_of_connections_and_root_always_one() {
        let shares = Arc::new(Shares::default());
        let mut held: Vec<Share> = (0..64).map(|_| shares.connect(1000).expect("the user's share")).collect();
        assert!(shares.connect(1000).is_none());
        for uid in 1001..1004 {
            held.extend((0..64).map(|_| shares.connect(uid).expect("their share")));
        }
        assert!(shares.connect(2000).is_none(), "there is none left");
        assert!(shares.connect(0).is_some());
        held.clear();
        assert!(shares.connect(1000).is_some() && shares.0.lock().is_empty());
    }

    #[test]
    fn answers_of_a_user_that_are_not_taken_are_bounded() {
        let shares = Arc::new(Shares::default());
        let held = [shares.answer(1000, 8 << 20), shares.answer(1000, 8 << 20)];
        assert!(held.iter().all(Option::is_some) && shares.answer(1000, 1).is_none());
        assert!(shares.answer(1001, 8 << 20).is_some() && shares.answer(0, 8 << 20).is_some());
    }
}
