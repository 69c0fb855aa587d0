//! What users have of the control socket: connections, and bytes of answers that were not taken yet.
//!
//! Thread safety: as [`kvfs_socket::Shares`]. Invariants: what is taken is given back by a drop; no user
//! other than root takes all, and root is never refused for the sake of others.

use kvfs_socket::{Exempt, Share};

/// Connections of one user, and of all but root.
const CONNECTIONS_PER_USER_MAX: usize = 64;
const CONNECTIONS_MAX: usize = 256;

/// Bytes of answers of one user, and of all but root. A longer answer counts as [`BYTES_COUNTED_MAX`]: a user
/// has few of those at a time.
const BYTES_PER_USER_MAX: usize = 16 << 20;
const BYTES_COUNTED_MAX: usize = 8 << 20;
const BYTES_MAX: usize = 48 << 20;

const ROOT: Exempt = Exempt::Unbounded(0);

/// Of all users.
#[derive(Debug)]
pub(super) struct Shares {
    connections: kvfs_socket::Shares,
    bytes: kvfs_socket::Shares,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            connections: kvfs_socket::Shares::new(CONNECTIONS_MAX, CONNECTIONS_PER_USER_MAX, ROOT),
            bytes: kvfs_socket::Shares::new(BYTES_MAX, BYTES_PER_USER_MAX, ROOT),
        }
    }
}

impl Shares {
    /// A connection of user `uid`; `None`: there are too many.
    pub(super) fn connect(&self, uid: u32) -> Option<Share> {
        self.connections.take(uid, 1)
    }

    /// So many bytes of an answer; `None`: too many others were not taken.
    pub(super) fn answer(&self, uid: u32, bytes: usize) -> Option<Share> {
        self.bytes.take(uid, bytes.min(BYTES_COUNTED_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_gets_a_share_of_connections_and_root_always_one() {
        let shares = Shares::default();
        let mut held: Vec<Share> = (0..64).map(|_| shares.connect(1000).expect("the user's share")).collect();
        assert!(shares.connect(1000).is_none());
        for uid in 1001..1004 {
            held.extend((0..64).map(|_| shares.connect(uid).expect("their share")));
        }
        assert!(shares.connect(2000).is_none(), "there is none left");
        assert!(shares.connect(0).is_some());
        held.clear();
        assert!(shares.connect(1000).is_some() && shares.connections.is_whole());
    }

    #[test]
    fn answers_of_a_user_that_are_not_taken_are_bounded() {
        let shares = Shares::default();
        let held = [shares.answer(1000, 8 << 20), shares.answer(1000, 800 << 20)];
        assert!(held.iter().all(Option::is_some) && shares.answer(1000, 1).is_none());
        assert!(shares.answer(1001, 8 << 20).is_some() && shares.answer(0, 8 << 20).is_some());
    }
}
