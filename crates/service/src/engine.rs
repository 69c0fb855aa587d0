//! The engine's side of an open store, as the operations on it need it: what the traits of `kvfs_store` do
//! not say.
//!
//! Thread safety: shared by all callers, for threads that may block. Invariant: no rule of the product is
//! behind it; who may ask, and within which limits, is decided by the operations.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::repair::DamagedKeys;
use kvfs_store::StoreError;

use crate::error::Result;
use crate::lines::{
    ChargeLines, DefragPlanLine, DefragmentedLine, DeviceLine, HealthLine, HeatLines, NewDeviceLine,
    PlacementLine, ZoneLines,
};

/// See the module. What every engine has; the rest is [`SpaceControl`].
pub trait Engine: Send + Sync + 'static {
    /// As [`kvfs_store::Store::engine_name`].
    fn name(&self) -> &'static str;

    /// [`SpaceControl`], if the engine has it.
    fn space_control(&self) -> Option<&dyn SpaceControl> {
        None
    }

    /// Verifies the engine's own structures.
    ///
    /// # Errors
    /// Store errors.
    fn check(&self) -> Result<EngineCheck, StoreError>;

    /// Whether the engine and its device work.
    fn health(&self) -> HealthLine;

    /// Counters beside those of the store, by name.
    fn counters(&self) -> Vec<(String, u64)>;

    /// Longest time that a change stays only in memory, from now on.
    fn set_commit_interval(&self, interval: Duration);

    /// Whether it was opened for reading only.
    fn is_read_only(&self) -> bool;

    /// Writes everything out and gives the device back. The file system is gone already.
    ///
    /// # Errors
    /// Store errors.
    fn close(self: Box<Self>) -> Result<(), StoreError>;
}

impl dyn Engine {
    /// As [`Engine::space_control`].
    ///
    /// # Errors
    /// The engine has no such `what`.
    pub(crate) fn control_of(&self, what: &'static str) -> Result<&dyn SpaceControl, StoreError> {
        self.space_control().ok_or_else(|| StoreError::Unsupported { engine: self.name(), what })
    }
}

/// Devices, and what lies where on them: of an engine that divides them itself.
pub trait SpaceControl: Send + Sync {
    /// How much the store can come to (bytes): all of a block device, or what the file has and its file
    /// system can give.
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

    /// What [`SpaceControl::defragment`] would do now. `rewrite`: of all zones with data.
    fn defrag_plan(&self, rewrite: bool) -> DefragPlanLine;

    /// Defragments, until `goes_on` says no. It is called behind each piece.
    ///
    /// # Errors
    /// Store errors.
    fn defragment(
        &self,
        order: &DefragOrder,
        goes_on: &mut dyn FnMut(DefragStep) -> bool,
    ) -> Result<DefragmentedLine, StoreError>;

    /// All devices of the store, the first one first.
    fn devices(&self) -> Vec<DeviceLine>;

    /// Where content goes, and what moves to where it is wished to lie.
    fn placement(&self) -> PlacementLine;

    /// Where content goes from now on that is wished nowhere: by the name of a policy.
    ///
    /// # Errors
    /// There is none of that name.
    fn set_placement(&self, policy: &str, keeps: bool) -> Result<(), StoreError>;

    /// Moves at most so many bytes between tiers each second from now on; 0: any number.
    fn limit_migration(&self, bytes_per_second: u64);

    /// How often what lies where was lately read, in at most so many cells, or one a device; counted from now
    /// on, where it was not before. `None`: `goes_on` said no, or the store is being closed.
    ///
    /// # Errors
    /// Store errors.
    fn heat(
        &self,
        cells_max: usize,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<HeatLines>, StoreError>;

    /// Takes a file or block device into the store; its number.
    ///
    /// # Errors
    /// It can't be used; store errors.
    fn add_device(&self, new: &NewDeviceLine) -> Result<u32>;

    /// Nothing new goes to these devices, and in the background everything moves away from them.
    ///
    /// # Errors
    /// As [`SpaceControl::drain_device`], of any of them: then none is drained.
    fn begin_drain(&self, ids: &[u32]) -> Result<(), StoreError>;

    /// Moves everything away from a device, in the background, and waits for that, as long as it gets on, and
    /// `goes_on`, which is told how many bytes are left, says yes. True: it holds nothing.
    ///
    /// # Errors
    /// There is no such device, or it can't be drained; store errors.
    fn drain_device(&self, id: u32, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool, StoreError>;

    /// The device is filled again.
    ///
    /// # Errors
    /// As [`SpaceControl::drain_device`].
    fn refill_device(&self, id: u32) -> Result<(), StoreError>;

    /// Lets go of a device that holds nothing.
    ///
    /// # Errors
    /// It holds something; as [`SpaceControl::drain_device`].
    fn remove_device(&self, id: u32) -> Result<(), StoreError>;

    /// What the zones are used for.
    fn zones(&self) -> ZoneLines;

    /// What memory is charged, and where in the code it was.
    fn charges(&self) -> ChargeLines;
}

/// A defragmentation, as the engine is told of it.
#[derive(Clone)]
pub struct DefragOrder {
    /// All zones with data, not only those of which much is dead or that hold short stretches.
    pub rewrite: bool,
    /// Most bytes that are copied each second; 0: no limit.
    pub bytes_per_second: u64,
    /// Whether it goes on, which is asked often. There is no limit when it does not.
    pub goes_on: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for DefragOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rewrite, bytes_per_second, .. } = self;
        let mut order = f.debug_struct("DefragOrder");
        order.field("rewrite", rewrite).field("bytes_per_second", bytes_per_second).finish_non_exhaustive()
    }
}

/// How far a defragmentation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DefragStep {
    /// Of the plan (bytes).
    pub bytes_done: u64,
    /// The plan (bytes); it may change on the way.
    pub bytes: u64,
}

/// What the engine has found of itself.
#[derive(Debug, Clone, Default)]
pub struct EngineCheck {
    /// Damage, one line each; empty: clean.
    pub findings: Vec<String>,
    /// What was looked at, by name.
    pub counts: Vec<(String, u64)>,
    /// Which keys the damage is about.
    pub damaged: Vec<DamagedKeys>,
}

#[cfg(test)]
mod tests;
