//! The devices that are being emptied: how far that has come, and why it does not get on.
//!
//! Thread safety: short locks. Invariants: what is moved is moved by one caller at a time; what is told of a
//! device is about the time since the store was opened, and goes with the order to drain it.

use std::collections::BTreeMap;
use std::time::Duration;

use kvfs_locks::{Mutex, MutexGuard, class};
use kvfs_store::{Result, StoreError};

use crate::merge::drain::Drained;
use crate::runtime::event::Event;

/// How far a device has been drained since the store was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainInfo {
    /// Whether something is being moved just now.
    pub is_moving: bool,
    /// What was moved away (bytes).
    pub bytes_moved: u64,
    /// How long that took.
    pub took: Duration,
    /// Why it did not get on when it was last tried; `None`: it does.
    pub trouble: Option<String>,
}

/// A drain that got nowhere is tried again in the background after a wait that doubles each time, between
/// these: what it copies before it fails was copied in vain.
const RETRY_WAIT_MIN: Duration = Duration::from_secs(1);
const RETRY_WAIT_MAX: Duration = Duration::from_mins(10);

/// When the background tries again.
#[derive(Debug, Clone, Copy)]
struct Retry {
    not_before: Duration,
    wait: Duration,
    /// What had been moved by then (bytes).
    bytes_moved: u64,
}

#[derive(Default)]
struct Known {
    info: DrainInfo,
    /// `None`: at once.
    retry: Option<Retry>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Drains {
    known: Mutex<BTreeMap<u32, Known>, class::KvdbDevicesDrainsKnown>,
    /// Held while something is moved.
    moving: Mutex<(), class::KvdbDevicesDrainsMoving>,
    /// Notified when there is news of any of them.
    pub(super) news: Event,
}

impl Drains {
    /// What is known of the device.
    pub(super) fn of(&self, id: u32) -> DrainInfo {
        self.known.lock().get(&id).map(|known| known.info.clone()).unwrap_or_default()
    }

    /// Whether the background tries it now.
    pub(super) fn is_due(&self, id: u32, now: Duration) -> bool {
        let known = self.known.lock();
        known.get(&id).and_then(|known| known.retry).is_none_or(|retry| retry.not_before <= now)
    }

    /// Something has changed: the background tries all of them at once.
    pub(super) fn retry(&self) {
        self.known.lock().values_mut().for_each(|known| known.retry = None);
    }

    /// It is no longer to be drained, or has not been tried yet.
    pub(super) fn forget(&self, id: u32) {
        self.known.lock().remove(&id);
        self.news.notify();
    }

    /// Waits until nothing else is being moved.
    #[track_caller]
    pub(super) fn begin(&self) -> MutexGuard<'_, (), class::KvdbDevicesDrainsMoving> {
        self.moving.lock()
    }

    /// So much was moved in this time, and it goes on.
    pub(super) fn advance(&self, id: u32, bytes: u64, took: Duration) {
        let mut known = self.known.lock();
        let info = &mut known.entry(id).or_default().info;
        info.is_moving = true;
        info.bytes_moved += bytes;
        info.took += took;
        drop(known);
        self.news.notify();
    }

    /// It has come to this now.
    pub(super) fn end(&self, id: u32, outcome: &Result<Drained>, now: Duration) {
        let trouble = match outcome {
            Ok(Drained::Empty | Drained::Ended) => None,
            Ok(Drained::Held) => {
                Some("open transactions, or readers of old states, hold what is left".to_owned())
            }
            Ok(Drained::Kept) => Some("branches hold some of what is left; merge or delete them".to_owned()),
            Ok(Drained::NoSpace) => Some("the other devices have no room for what is left".to_owned()),
            Err(StoreError::Full) => Some("the store is full".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        let mut known = self.known.lock();
        let Known { info, retry } = known.entry(id).or_default();
        *retry = trouble.is_some().then(|| {
            let in_vain = retry.filter(|last| last.bytes_moved == info.bytes_moved);
            let wait = in_vain.map_or(RETRY_WAIT_MIN, |last| (last.wait * 2).min(RETRY_WAIT_MAX));
            Retry { not_before: now.saturating_add(wait), wait, bytes_moved: info.bytes_moved }
        });
        (info.is_moving, info.trouble) = (false, trouble);
        drop(known);
        self.news.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_that_gets_nowhere_is_tried_ever_more_seldom_until_something_changes() {
        let drains = Drains::default();
        let fail = |now| drains.end(1, &Ok(Drained::Held), now);
        let mut now = Duration::from_hours(1);
        assert!(drains.is_due(1, now), "it was not tried yet");
        let mut tries = 0;
        for _ in 0..24 * 3600 {
            if drains.is_due(1, now) {
                fail(now);
                tries += 1;
            }
            now += Duration::from_secs(1);
        }
        assert!((150..200).contains(&tries), "{tries} tries in a day");
        assert!(!drains.is_due(1, now));
        drains.retry();
        assert!(drains.is_due(1, now));
        // What gets on is tried soon.
        drains.advance(1, 10, Duration::ZERO);
        fail(now);
        assert!(!drains.is_due(1, now) && drains.is_due(1, now + RETRY_WAIT_MIN));
        drains.forget(1);
        assert!(drains.is_due(1, now));
        drains.end(1, &Ok(Drained::Ended), now);
        assert!(drains.is_due(1, now));
    }
}
