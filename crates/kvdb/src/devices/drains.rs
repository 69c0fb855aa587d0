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

/// See the module.
#[derive(Default)]
pub(super) struct Drains {
    known: Mutex<BTreeMap<u32, DrainInfo>, class::KvdbDevicesDrainsKnown>,
    /// Held while something is moved.
    moving: Mutex<(), class::KvdbDevicesDrainsMoving>,
    /// Notified when there is news of any of them.
    pub(super) news: Event,
}

impl Drains {
    /// What is known of the device.
    pub(super) fn of(&self, id: u32) -> DrainInfo {
        self.known.lock().get(&id).cloned().unwrap_or_default()
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
        let info = known.entry(id).or_default();
        info.is_moving = true;
        info.bytes_moved += bytes;
        info.took += took;
        drop(known);
        self.news.notify();
    }

    /// It has come to this.
    pub(super) fn end(&self, id: u32, outcome: &Result<Drained>) {
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
        let info = known.entry(id).or_default();
        (info.is_moving, info.trouble) = (false, trouble);
        drop(known);
        self.news.notify();
    }
}
