//! What users have of something that a server has not without end: connections, bytes of answers,
//! descriptors.
//!
//! Thread safety: one lock, held for moments.
//!
//! Invariants: what is taken is given back by a drop; no user takes more than one user may, nor all users
//! more than there is, but for the one that is exempt.

use std::collections::HashMap;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};

/// A user who is not bound as others are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exempt {
    /// There is none.
    None,
    /// This one may take all that the others leave.
    Whole(u32),
    /// This one is never refused, and takes nothing from the others.
    Unbounded(u32),
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    users: HashMap<u32, usize>,
}

#[derive(Debug)]
struct Whole {
    all_max: usize,
    user_max: usize,
    exempt: Exempt,
    taken: Mutex<Taken, class::SocketSharesTaken>,
}

/// All of it. Clones are of the same.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Whole>);

/// A part of one user's, until it is dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Whole>,
    uid: u32,
    amount: usize,
}

impl Shares {
    /// `all_max` of it, of which a user may take `user_max`.
    pub fn new(all_max: usize, user_max: usize, exempt: Exempt) -> Self {
        Self(Arc::new(Whole { all_max, user_max, exempt, taken: Mutex::default() }))
    }

    /// So much for a user; `None`: there is no more.
    pub fn take(&self, uid: u32, amount: usize) -> Option<Share> {
        let mut share = Share { of: Arc::clone(&self.0), uid, amount: 0 };
        share.grow(amount).then_some(share)
    }

    /// Whether nothing of it is taken.
    pub fn is_whole(&self) -> bool {
        let taken = self.0.taken.lock();
        taken.all == 0 && taken.users.is_empty()
    }
}

impl Share {
    /// Takes more. False: there is no more.
    pub fn grow(&mut self, amount: usize) -> bool {
        let Whole { all_max, user_max, exempt, taken } = &*self.of;
        if *exempt == Exempt::Unbounded(self.uid) || amount == 0 {
            return true;
        }
        let mut taken = taken.lock();
        let own_max = if *exempt == Exempt::Whole(self.uid) { all_max } else { user_max };
        let own = taken.users.get(&self.uid).copied().unwrap_or_default();
        let below = |now: usize, max: usize| now.checked_add(amount).filter(|sum| *sum <= max);
        let (Some(all), Some(own)) = (below(taken.all, *all_max), below(own, *own_max)) else { return false };
        taken.all = all;
        taken.users.insert(self.uid, own);
        self.amount += amount;
        true
    }

    /// Gives some back.
    pub fn shrink(&mut self, amount: usize) {
        let amount = amount.min(self.amount);
        if amount == 0 {
            return;
        }
        self.amount -= amount;
        let mut taken = self.of.taken.lock();
        taken.all -= amount;
        if let Some(own) = taken.users.get_mut(&self.uid) {
            *own -= amount;
            if *own == 0 {
                taken.users.remove(&self.uid);
            }
        }
    }

    /// Takes more or gives some back, until it is `amount`. False: there is no more, and it stays as it is.
    pub fn resize(&mut self, amount: usize) -> bool {
        self.shrink(self.amount.saturating_sub(amount));
        self.grow(amount - self.amount)
    }

    /// How much it is. Nothing is counted of a user who is not bound.
    pub fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_takes_a_share_and_all_users_what_there_is() {
        let shares = Shares::new(10, 6, Exempt::None);
        let mut first = shares.take(1, 4).expect("of its own");
        assert!(first.grow(2) && !first.grow(1) && !first.grow(usize::MAX));
        assert!(shares.take(1, 1).is_none() && shares.take(2, 5).is_none());
        let second = shares.take(2, 4).expect("the rest");
        assert!(shares.take(0, 1).is_none() && shares.take(0, 0).is_some());
        assert!(first.resize(3) && first.amount() == 3 && shares.take(1, 3).is_some());
        assert!(!first.resize(7) && first.amount() == 3 && first.resize(6));
        drop(first);
        assert!(shares.take(1, 6).is_some());
        drop(second);
        assert!(shares.is_whole());
    }

    #[test]
    fn exempt_user_takes_what_is_left_or_is_not_counted() {
        let whole = Shares::new(6, 3, Exempt::Whole(1000));
        let held = [whole.take(1001, 3), whole.take(1000, 2)];
        assert!(held.iter().all(Option::is_some));
        assert!(whole.take(1000, 2).is_none() && whole.take(1000, 1).is_some());
        drop(held);
        assert!(whole.take(1000, 6).is_some() && whole.is_whole());
        let unbounded = Shares::new(6, 3, Exempt::Unbounded(0));
        let held =
            [unbounded.take(0, 100), unbounded.take(1, 3), unbounded.take(2, 3), unbounded.take(0, 100)];
        assert!(held.iter().all(Option::is_some) && unbounded.take(3, 1).is_none());
        drop(held);
        assert!(unbounded.is_whole());
    }
}
