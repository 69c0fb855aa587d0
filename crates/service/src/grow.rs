//! Making a store larger.
//!
//! Thread safety: for threads that may block. Invariant: a store does not shrink, and does not outgrow a block device.

use kvfs_store::StoreError;

use crate::authority::{Right, authorize};
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::served::ServedStore;
use crate::units::human_bytes;

/// The engine's side of a store that grows, and its device.
pub trait Growing {
    /// How much the store can come to (bytes): all of a block device, or what the file has and its file system can give.
    ///
    /// # Errors
    /// The device does not say.
    fn room(&self) -> Result<u64>;

    /// Where the device is, if it is a block device, which can't be larger than it is.
    fn block_device(&self) -> Option<String>;

    /// Grows the store to so many bytes, or about. Returns how much it may take now.
    ///
    /// # Errors
    /// Store errors.
    fn grow(&self, bytes: u64) -> Result<u64, StoreError>;
}

/// How a store has grown (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// What it could take before.
    pub before: u64,
    /// What it may take now.
    pub after: u64,
    /// The file system below has only so much.
    pub behind: Option<u64>,
}

impl ServedStore<'_> {
    /// Grows the store to `bytes`; `None`: as far as its device, or the file system below, has room.
    ///
    /// # Errors
    /// The caller may not; it would shrink; its block device is smaller.
    pub fn grow(&self, caller: &Caller, engine: &dyn Growing, bytes: Option<u64>) -> Result<Grown> {
        authorize(caller, Right::Master("make it larger"))?;
        let before = self.fs.store().space().capacity_bytes;
        let room = engine.room()?;
        let wanted = bytes.unwrap_or_else(|| room.max(before));
        if wanted < before {
            let now = human_bytes(before);
            let message = format!("the store may take {now} already, and a store does not shrink");
            return Err(ServiceError::new(ErrorKind::Usage, message));
        }
        if let Some(device) = engine.block_device().filter(|_| wanted > room) {
            let message = format!("the block device {device} has {}", human_bytes(room));
            return Err(ServiceError::new(ErrorKind::NoSpace, message));
        }
        let after = engine.grow(wanted)?;
        tracing::info!(before, after, "the store has grown");
        Ok(Grown { before, after, behind: (after > room && after > before).then_some(room) })
    }
}

#[cfg(test)]
mod tests;
