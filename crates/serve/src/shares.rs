//! What users have of something that a server has not without end: connections, lanes, descriptors.
//!
//! Thread safety: one lock, held for moments.
//!
//! Invariants: what is taken is given back by a drop; a user takes half at most, so that there is some for others, but for the user
//! whose server it is.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// All of it.
#[derive(Debug)]
pub(crate) struct Shares {
    max: usize,
    /// The user whose server it is.
    own_uid: u32,
    taken: Mutex<HashMap<u32, usize>>,
}

/// One of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    uid: u32,
}

impl Shares {
    pub(crate) fn new(max: usize, own_uid: u32) -> Arc<Self> {
        Arc::new(Self { max, own_uid, taken: Mutex::default() })
    }

    /// One more for a user; `None`: there are too many. O(users).
    pub(crate) fn take(self: &Arc<Self>, uid: u32) -> Option<Share> {
        let mut taken = self.taken.lock();
        let all: usize = taken.values().sum();
        let own = taken.entry(uid).or_default();
        let own_max = if uid == self.own_uid { self.max } else { self.max / 2 };
        if all >= self.max || *own >= own_max {
            return None;
        }
        *own += 1;
        Some(Share { of: Arc::clone(self), uid })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        if let Some(own) = taken.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.uid);
            }
        }
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
        assert!(shares.taken.lock().is_empty());
    }
}
