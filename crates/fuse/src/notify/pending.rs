//! Notifications that a caller waits for, and for how long it does.
//!
//! Thread safety: a [`Pending`] is for the thread that waits and the ones that send; a [`WaitBudget`] is
//! plain data. Invariant: however many parts a caller's notifications are sent in, what holds up the kernel
//! costs it one budget.

use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};

use super::queue::Done;
use super::{LOOK_PERIOD, Notification, Outcome};

/// How long a caller waits for each that it has submitted, in any case.
pub(crate) const WAIT_EACH: Duration = Duration::from_micros(100);

/// What a message keeps until it has been carried out, or will not be.
pub(crate) trait Keep: Any + Send {
    /// An equal message, which kept `before`, is carried out together with this one. Must not wait.
    fn take_over(&mut self, before: Box<dyn Keep>);
}

/// See [`Message`].
pub(super) type Kept = Box<dyn Keep>;

/// A notification, and what is kept until it has been carried out, or will not be. Equal ones that wait are
/// carried out as one, which keeps what the last of them has made of all that they keep.
pub struct Message {
    pub(super) notification: Notification,
    pub(super) kept: Option<Kept>,
}

impl Message {
    pub(crate) fn keeping(notification: Notification, kept: impl Keep) -> Self {
        Self { notification, kept: Some(Box::new(kept)) }
    }
}

impl From<Notification> for Message {
    fn from(notification: Notification) -> Self {
        Self { notification, kept: None }
    }
}

/// Notifications that are on their way.
#[derive(Default)]
pub struct Pending(Arc<(Mutex<Progress, class::FuseNotifyPending>, Condvar)>);

#[derive(Default)]
struct Progress {
    left: u64,
    /// Whether there are others, for which no caller waits, or does any more.
    has_others: bool,
    /// Nodes of which the kernel had nothing.
    not_cached: Vec<u64>,
    /// Nodes of which it has not been told.
    late: HashSet<u64>,
}

/// What came of notifications that were to be carried out soon.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Nodes of which the kernel had nothing.
    pub not_cached: Vec<u64>,
    /// Nodes of which it has not been told yet.
    pub late: Vec<u64>,
}

impl Pending {
    /// Returns when all are carried out, or after `time_max`. Whether all are.
    pub fn wait_for(&self, time_max: Duration) -> bool {
        self.wait_at_most(time_max) && !self.0.0.lock().has_others
    }

    /// There is another one, for which no caller waits.
    pub(super) fn note_other(&self, notification: &Notification) {
        let mut progress = self.0.0.lock();
        progress.has_others = true;
        progress.late.extend(notification.inode());
    }

    /// Counts one more. Returns what is to be called when it was carried out.
    pub(super) fn count(&self, notification: &Notification) -> Done {
        let (counted, node) = (Arc::clone(&self.0), notification.inode());
        {
            let mut progress = self.0.0.lock();
            progress.left += 1;
            progress.late.extend(node);
        }
        Box::new(move |outcome| {
            let mut progress = counted.0.lock();
            progress.left -= 1;
            if outcome == Outcome::Late {
                progress.has_others = true;
            } else if let Some(node) = node {
                progress.late.remove(&node);
            }
            progress.not_cached.extend(node.filter(|_| outcome == Outcome::NotCached));
            counted.1.notify_one();
        })
    }

    /// The same for those that are waited for.
    pub(super) fn wait_at_most(&self, time_max: Duration) -> bool {
        let mut progress = self.0.0.lock();
        !self.0.1.wait_while_for(&mut progress, |progress| progress.left > 0, time_max).timed_out()
    }

    /// Whether some that are waited for are not carried out, and whether others are not waited for.
    pub(super) fn late_and_others(&self) -> (bool, bool) {
        let progress = self.0.0.lock();
        (progress.left > 0, progress.has_others)
    }

    /// What has come of them so far.
    pub(super) fn take_told(&self) -> Told {
        let mut progress = self.0.0.lock();
        let late = std::mem::take(&mut progress.late).into_iter().collect();
        Told { not_cached: std::mem::take(&mut progress.not_cached), late }
    }
}

/// How many notifications had been begun to be sent, as a thread sees it that looks again and again. From the
/// last look on that was as long ago as the thread asks about.
#[derive(Default)]
pub(super) struct Looks {
    waited: Duration,
    /// When the thread has looked, in time that it had waited.
    looks: VecDeque<(Duration, u64)>,
}

impl Looks {
    /// After another `period`: how many have been begun. Returns how many had been before the last `time`.
    pub(super) fn look(&mut self, period: Duration, begun: u64, time: Duration) -> u64 {
        self.waited += period;
        self.looks.push_back((self.waited, begun));
        let is_before = |(at, _): &(Duration, u64)| self.waited.saturating_sub(*at) >= time;
        while self.looks.get(1).is_some_and(is_before) {
            self.looks.pop_front();
        }
        self.looks.front().filter(|look| is_before(look)).map_or(0, |(_, begun)| *begun)
    }
}

/// How much longer a caller waits, in all, than its notifications may take.
pub(super) struct WaitBudget {
    max: Duration,
    left: Duration,
    looks: Looks,
}

impl WaitBudget {
    pub(super) fn new(max: Duration) -> Self {
        Self { max, left: max, looks: Looks::default() }
    }

    /// After it has waited for another `period`: how many have been begun. Returns how many had been before
    /// the caller began to wait for the last `max`.
    pub(super) fn look(&mut self, period: Duration, begun: u64) -> u64 {
        self.looks.look(period, begun, self.max)
    }

    /// What `count` notifications may take, whatever others have taken.
    fn own(count: u32) -> Duration {
        WAIT_EACH.saturating_mul(count).max(LOOK_PERIOD)
    }

    /// How long to wait for the next `count`.
    pub(super) fn for_part(&self, count: u32) -> Duration {
        Self::own(count).saturating_add(self.left)
    }

    /// The caller has waited for so many.
    pub(super) fn spend(&mut self, waited: Duration, count: u32) {
        self.left = self.left.saturating_sub(waited.saturating_sub(Self::own(count)));
    }
}
