//! Making a store larger.
//!
//! Thread safety: for threads that may block. Invariants: a store does not shrink, and does not outgrow a
//! block device; its owner takes no more of the disk below than the user gave that has mounted it.

use crate::authority::authorize_server;
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::served::ServedStore;
use crate::units::human_bytes;

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
    /// The caller may not; it would shrink; its block device is smaller, or not its last device.
    pub fn grow(&self, caller: &Caller, bytes: Option<u64>) -> Result<Grown> {
        authorize_server(caller, "make it larger")?;
        let before = self.fs.store().space().capacity_bytes;
        let control = self.engine.control_of("way to grow")?;
        let room = control.room()?;
        let wanted = bytes.unwrap_or_else(|| room.max(before));
        if wanted < before {
            let now = human_bytes(before);
            let message = format!("the store may take {now} already, and a store does not shrink");
            return Err(ServiceError::new(ErrorKind::Usage, message));
        }
        if wanted > before && control.devices().len() > 1 {
            let message = "the first device of the store can't grow, for others lie behind it; `kvfs tier add` gives the store another one";
            return Err(ServiceError::new(ErrorKind::Usage, message));
        }
        if let Some(device) = control.block_device().filter(|_| wanted > room) {
            let message = format!("the block device {device} has {}", human_bytes(room));
            return Err(ServiceError::new(ErrorKind::NoSpace, message));
        }
        let after = control.grow(wanted)?;
        tracing::info!(before, after, "the store has grown");
        Ok(Grown { before, after, behind: (after > room && after > before).then_some(room) })
    }
}

#[cfg(test)]
mod tests;
