//! What users have of something that a server has not without end: connections, lanes, descriptors.
//!
//! Thread safety: as [`kvfs_socket::Shares`].
//!
//! Invariants: what is taken is given back by a drop; a user takes half at most, so that there is some for others, but for the user
//! whose server it is.

use std::sync::Arc;

use kvfs_socket::Exempt;
pub(crate) use kvfs_socket::Share;

/// All of it.
#[derive(Debug)]
pub(crate) struct Shares(kvfs_socket::Shares);

impl Shares {
    pub(crate) fn new(max: usize, own_uid: u32) -> Arc<Self> {
        Arc::new(Self(kvfs_socket::Shares::new(max, max / 2, Exempt::Whole(own_uid))))
    }

    /// One more for a user; `None`: there are too many.
    pub(crate) fn take(&self, uid: u32) -> Option<Share> {
        self.0.take(uid, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_takes_half_at_most_and_the_servers_own_what_is_left() {
        let shares = Shares::new(6, 1000);
        let mut held: Vec<Share> = (0..3).map(|_| shares.take(1001).expect("half")).collect();
        assert!(shares.take(1001).is_none());
        held.extend((0..3).map(|_| shares.take(1000).expect("the rest")));
        assert!(shares.take(1000).is_none() && shares.take(1002).is_none());
        held.remove(0);
        assert!(shares.take(1002).is_some());
        drop(held);
        assert_eq!((0..6).filter_map(|_| shares.take(1000)).collect::<Vec<_>>().len(), 6);
        assert!(shares.0.is_whole());
    }
}
