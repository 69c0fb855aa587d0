//! The devices of a store: which there are, how they come and how they go.
//!
//! Thread safety: for threads that may block. Invariants: what is about the disks below is for the user that
//! has mounted the store; what has begun to leave goes on in the background, waited for or not; waiting ends
//! when the store is to be closed, the caller has gone, or the process is told to end.

use kvfs_store::progress::{self, Unit};

use crate::authority::{authorize, authorize_server};
use crate::caller::Caller;
use crate::engine::SpaceControl;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{DeviceLine, HeatLines, NewDeviceLine, PlacementLine};
use crate::served::ServedStore;
use crate::units::human_bytes;

/// Most cells of a picture of heat: of each some bytes are held for as long as it is made.
const HEAT_CELLS_MAX: u32 = 1 << 16;

/// The devices of an open store: those operations on it that are about them.
#[derive(Clone, Copy)]
pub struct Tiers<'s> {
    store: ServedStore<'s>,
}

impl<'s> Tiers<'s> {
    /// Those of `store`.
    pub fn of(store: &ServedStore<'s>) -> Self {
        Self { store: *store }
    }

    fn control(&self) -> Result<&'s dyn SpaceControl> {
        Ok(self.store.engine.control_of("devices and tiers")?)
    }

    /// All devices, the first one first.
    ///
    /// # Errors
    /// The caller may not.
    pub fn devices(&self, caller: &Caller) -> Result<Vec<DeviceLine>> {
        authorize(self.store.fs, caller, "see its devices")?;
        Ok(self.control()?.devices())
    }

    /// Where content goes that is wished nowhere, and what moves. `change`: by another policy from now on,
    /// and whether the store is to keep it.
    ///
    /// # Errors
    /// The caller may not; there is no such policy; the store has no choice; store errors.
    pub fn placement(&self, caller: &Caller, change: Option<(&str, bool)>) -> Result<PlacementLine> {
        if let Some((policy, keeps)) = change {
            authorize_server(caller, "change how it places content")?;
            self.control()?.set_placement(policy, keeps).map_err(ServiceError::of_order)?;
            tracing::info!(policy, keeps, "content is placed by another policy");
        }
        authorize(self.store.fs, caller, "see how it places content")?;
        Ok(self.control()?.placement())
    }

    /// Moves at most so many bytes between tiers each second until the unmount, 0: any number; and what
    /// moves.
    ///
    /// # Errors
    /// The caller may not.
    pub fn limit_migration(&self, caller: &Caller, bytes_per_second: u64) -> Result<PlacementLine> {
        authorize_server(caller, "limit what moves between its tiers")?;
        self.control()?.limit_migration(bytes_per_second);
        tracing::info!(bytes_per_second, "what moves between tiers is limited");
        self.placement(caller, None)
    }

    /// How often what lies where was lately read, in about so many cells, 65,536 at most. Counts from now on,
    /// until the unmount, where it did not before.
    ///
    /// # Errors
    /// The caller may not; the store is to be closed; store errors.
    pub fn heat(&self, caller: &Caller, cells_max: u32) -> Result<HeatLines> {
        authorize(self.store.fs, caller, "see what is hot on its devices")?;
        let mut goes_on = self.store.defrag.goes_on(caller);
        let heat = self.control()?.heat(cells_max.clamp(1, HEAT_CELLS_MAX) as usize, &mut goes_on)?;
        heat.ok_or_else(|| ServiceError::new(ErrorKind::NotMounted, "the store is being closed"))
    }

    /// Takes a file or block device into the store; its number.
    ///
    /// # Errors
    /// The caller may not; it holds something, is in use or too small; store errors.
    pub fn add_device(&self, caller: &Caller, new: &NewDeviceLine) -> Result<u32> {
        authorize_server(caller, "add devices to it")?;
        let id = self.control()?.add_device(new)?;
        tracing::info!(id, path = %String::from_utf8_lossy(&new.path), is_slow = new.is_slow, "a device was added");
        Ok(id)
    }

    /// Nothing new goes to these devices from now on, and what they hold is moved to others. `waits`: as long
    /// as that gets on. What has become of them, and of the others.
    ///
    /// # Errors
    /// The caller may not; there is no such device, or it is the first one, and none is drained; store
    /// errors.
    pub fn drain_devices(&self, caller: &Caller, ids: &[u32], waits: bool) -> Result<Vec<DeviceLine>> {
        authorize_server(caller, "drain its devices")?;
        self.control()?.begin_drain(ids).map_err(ServiceError::of_order)?;
        for &id in ids.iter().filter(|_| waits) {
            self.drain(caller, id)?;
        }
        Ok(self.control()?.devices())
    }

    /// The device is filled again, and no longer drained.
    ///
    /// # Errors
    /// As [`Tiers::drain_devices`].
    pub fn refill_device(&self, caller: &Caller, id: u32) -> Result<()> {
        authorize_server(caller, "fill its devices")?;
        self.control()?.refill_device(id).map_err(ServiceError::of_order)
    }

    /// Drains the device, and lets go of it.
    ///
    /// # Errors
    /// As [`Tiers::drain_devices`]; it could not be emptied, and stays.
    pub fn remove_device(&self, caller: &Caller, id: u32) -> Result<()> {
        authorize_server(caller, "remove its devices")?;
        if !self.drain(caller, id)? {
            let device =
                self.control()?.devices().into_iter().find(|device| device.id == id).unwrap_or_default();
            let trouble = device.drain.and_then(|drain| drain.trouble);
            let trouble = trouble.map_or_else(String::new, |why| format!(": {why}"));
            let left = human_bytes(device.bytes_live);
            let message =
                format!("device {id} stays, {left} are left on it{trouble}; it is drained in the background");
            return Err(ServiceError::new(ErrorKind::InUse, message));
        }
        self.control()?.remove_device(id).map_err(ServiceError::of_order)?;
        tracing::info!(id, "a device was removed");
        Ok(())
    }

    /// Whether it is empty.
    fn drain(&self, caller: &Caller, id: u32) -> Result<bool> {
        let goes_on = self.store.defrag.goes_on(caller);
        let mut left_before = None;
        let drained = self.control()?.drain_device(id, &mut |left| {
            let before = left_before.unwrap_or_else(|| {
                progress::stage("emptying the device", Unit::Bytes, left);
                left
            });
            progress::advance(before.saturating_sub(left));
            left_before = Some(left.min(before));
            goes_on()
        });
        drained.map_err(ServiceError::of_order)
    }
}

#[cfg(test)]
mod tests;
