//! How much a user other than root may have of transactions and of their views.
//!
//! An open transaction pins a snapshot and takes about 20 KiB; a mounted view takes threads and tables
//! besides. Beginning is open to every user of the mount, so both are bounded per user and for all together.
//!
//! Thread safety: `&self` may be shared. Invariant: a slot is taken before what it stands for is made, in one
//! step with the look whether there is one, and given back when that is gone; so there are never more than
//! the limits say.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};

use crate::error::{ErrorKind, Result, ServiceError};

/// Most transactions that a user has open at a time.
const OPEN_PER_USER_MAX: usize = 1000;

/// Most transactions that users other than root have open at a time, all together.
const OPEN_MAX: usize = 4096;

/// Most views of transactions that a user has mounted at a time.
const VIEWS_PER_USER_MAX: usize = 64;

/// Longest label (bytes): it is for people.
const LABEL_LEN_MAX: usize = 80;

/// Slots for things of one kind.
pub(super) struct Slots {
    what: &'static str,
    own_max: usize,
    all_max: usize,
    /// By user; without root's, which are not counted.
    taken: Mutex<BTreeMap<u32, usize>, class::ServiceTransactionsLimitsTaken>,
}

/// One of them; given back on drop.
#[must_use]
pub(super) struct Slot {
    /// None for root.
    of: Option<(Arc<Slots>, u32)>,
}

impl Slots {
    /// Of open transactions.
    pub(super) fn of_transactions() -> Arc<Self> {
        Self::new("open transactions", OPEN_PER_USER_MAX, OPEN_MAX)
    }

    /// Of mounted views; `all_max`: of all users.
    pub(super) fn of_views(all_max: usize) -> Arc<Self> {
        Self::new("mounted views of transactions", VIEWS_PER_USER_MAX.min(all_max), all_max)
    }

    fn new(what: &'static str, own_max: usize, all_max: usize) -> Arc<Self> {
        Arc::new(Self { what, own_max, all_max, taken: Mutex::default() })
    }

    /// Takes one for user `uid`.
    ///
    /// # Errors
    /// The user, or all users together, have as many as there may be.
    pub(super) fn take(self: &Arc<Self>, uid: u32) -> Result<Slot> {
        if uid == 0 {
            return Ok(Slot { of: None });
        }
        let mut taken = self.taken.lock();
        let (own, all) = (taken.get(&uid).copied().unwrap_or(0), taken.values().sum::<usize>());
        let what = self.what;
        let message = if own >= self.own_max {
            format!(
                "user {uid} has {own} {what}, the most there may be; commit or abort some (`kvfs txn list`)"
            )
        } else if all >= self.all_max {
            format!("the users of this mount have {all} {what}, the most there may be; try again later")
        } else {
            *taken.entry(uid).or_default() += 1;
            return Ok(Slot { of: Some((Arc::clone(self), uid)) });
        };
        Err(ServiceError::new(ErrorKind::InUse, message))
    }
}

impl Slot {
    /// For what the daemon itself does.
    pub(super) fn uncounted() -> Self {
        Self { of: None }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some((slots, uid)) = &self.of else { return };
        let mut taken = slots.taken.lock();
        if let Some(own) = taken.get_mut(uid) {
            *own -= 1;
            if *own == 0 {
                taken.remove(uid);
            }
        }
    }
}

/// A label that fits lists and messages, and means nothing to the terminal that shows it.
pub(super) fn cut_label(mut label: String) -> String {
    label.truncate(label.floor_char_boundary(LABEL_LEN_MAX));
    label.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn user_over_a_limit_is_refused_and_root_is_not() {
        let slots = Slots::new("things", 2, 3);
        let held: Vec<_> = [1000, 0, 1000, 0, 0].map(|uid| slots.take(uid).expect("is free")).into();
        let error = slots.take(1000).err().expect("has two");
        assert!(error.to_string().contains("user 1000 has 2 things"), "{error}");
        let other = slots.take(2000).expect("is the third");
        let all = slots.take(3000).err().expect("three in all");
        assert!(all.to_string().contains("the users of this mount have 3 things"), "{all}");
        assert!(slots.take(0).is_ok());
        drop(other);
        assert!(slots.take(3000).is_ok());
        drop(held);
        assert!(slots.taken.lock().is_empty());
    }

    #[test]
    fn slots_taken_by_many_threads_at_once_stay_within_the_limits() {
        let slots = Slots::new("things", 3, 5);
        let (start, most) = (Barrier::new(16), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for at in 0..16 {
                let (slots, start, most) = (&slots, &start, &most);
                scope.spawn(move || {
                    let uid = 1000 + at % 4;
                    start.wait();
                    for _ in 0..2000 {
                        let Ok(slot) = slots.take(uid) else { continue };
                        let taken = slots.taken.lock().clone();
                        assert!(taken.values().all(|&own| own <= 3), "{taken:?}");
                        most.fetch_max(taken.values().sum(), Ordering::Relaxed);
                        drop(slot);
                    }
                });
            }
        });
        assert!((1..=5).contains(&most.into_inner()));
        assert!(slots.taken.lock().is_empty());
    }

    #[test]
    fn label_says_nothing_to_a_terminal() {
        assert_eq!(cut_label("a\x1b[2J\nb".into()), "a [2J b");
    }

    #[test]
    fn label_of_any_length_is_cut_at_a_character() {
        assert_eq!(cut_label("make".to_owned()), "make");
        assert_eq!(cut_label("ä".repeat(1 << 20)).len(), 80);
        assert_eq!(cut_label(format!("a{}", "ä".repeat(100))).len(), 79);
    }
}
