//! What users have of something that a server has not without end: connections, lanes, descriptors, memory.
//!
//! Thread safety: as [`Shares`].
//!
//! Invariants: what is taken is given back by a drop; a user takes half at most, so that there is some for
//! others, but for the user whose server it is.

use kvfs_socket::Exempt;
pub(crate) use kvfs_socket::{Share, Shares};

/// All `max` of it, on the server of user `own_uid`.
pub(crate) fn shares(max: usize, own_uid: u32) -> Shares {
    Shares::new(max, max / 2, Exempt::Whole(own_uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_takes_half_at_most_and_the_servers_own_what_is_left() {
        let shares = shares(6, 1000);
        let mut held: Vec<Share> = (0..3).map(|_| shares.take(1001, 1).expect("half")).collect();
        assert!(shares.take(1001, 1).is_none());
        held.extend((0..3).map(|_| shares.take(1000, 1).expect("the rest")));
        assert!(shares.take(1000, 1).is_none() && shares.take(1002, 1).is_none());
        held.remove(0);
        assert!(shares.take(1002, 1).is_some());
        drop(held);
        assert_eq!((0..6).filter_map(|_| shares.take(1000, 1)).collect::<Vec<_>>().len(), 6);
        assert!(shares.is_whole());
    }
}
