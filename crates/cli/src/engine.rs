//! The engine of a store and its device, for the operations of the service.
//!
//! Thread safety: shared by all callers. Invariant: values are only passed on; no rule of the product is here.

use std::sync::Arc;

use kvfs_device::{Device, FileDevice, WatchedDevice};
use kvfs_fs::repair::DamagedKeys;
use kvfs_kvdb::{Db, DefragLimit, DefragPolicy, Fragmentation, Unreadable};
use kvfs_service::lines::{DefragPlanLine, DefragmentedLine, FragmentationLine, HealthLine, ZoneLines};
use kvfs_service::{DefragOrder, DefragStep, Engine, EngineCheck, Result, ServiceError};
use kvfs_store::StoreError;

use crate::daemon::log::messages_lost;
use crate::report::zones;

/// See the module.
pub(crate) struct OpenEngine {
    pub(crate) db: Arc<Db>,
    pub(crate) device: Arc<FileDevice>,
    /// The same, as the engine uses it.
    pub(crate) watched: Arc<WatchedDevice<Arc<FileDevice>>>,
    pub(crate) is_read_only: bool,
}

impl Engine for OpenEngine {
    fn room(&self) -> Result<u64> {
        let device = &self.device;
        let failed = |error: &std::io::Error| ServiceError::io("ask for space at", device.path(), error);
        if device.is_block_device() {
            return device.refresh_len().map_err(|error| failed(&error));
        }
        device.file_len_max().map_err(|error| failed(&error))
    }

    fn block_device(&self) -> Option<String> {
        self.device.is_block_device().then(|| self.device.path().display().to_string())
    }

    fn grow(&self, bytes: u64) -> Result<u64, StoreError> {
        self.db.grow(bytes)
    }

    fn defrag_plan(&self, rewrite: bool) -> DefragPlanLine {
        let plan = self.db.defrag_plan(policy(rewrite));
        let (now, zones_freed) = (fragmentation(&plan.now), plan.zones_freed());
        DefragPlanLine { now, zones: plan.zones, zones_freed, bytes: plan.bytes }
    }

    fn defragment(
        &self,
        order: &DefragOrder,
        goes_on: &mut dyn FnMut(DefragStep) -> bool,
    ) -> Result<DefragmentedLine, StoreError> {
        let limit = DefragLimit::new(order.bytes_per_second, Arc::clone(&order.is_stopping));
        let done = self.db.defragment(policy(order.rewrite), &limit, &mut |now| {
            goes_on(DefragStep { bytes_done: now.bytes_done, bytes: now.bytes })
        })?;
        Ok(DefragmentedLine {
            before: fragmentation(&done.before),
            after: fragmentation(&done.after),
            bytes_moved: done.bytes_moved,
            is_complete: done.is_complete,
            ..DefragmentedLine::default()
        })
    }

    fn check(&self) -> Result<EngineCheck, StoreError> {
        let checked = self.db.check()?;
        let damaged = checked.unreadable.into_iter().map(damaged_keys).collect();
        Ok(EngineCheck { findings: checked.findings, counts: checked.counts, damaged })
    }

    fn zones(&self) -> ZoneLines {
        let map = self.db.zone_map();
        ZoneLines {
            zone_bytes: map.zone_bytes,
            codes: map.zones.iter().map(|zone| zones::code(zone, map.zone_bytes)).collect(),
            reserved: map.zones_reserved,
            figures: map.figures(),
        }
    }

    fn health(&self) -> HealthLine {
        HealthLine {
            failure: self.db.failure().map(|reason| reason.to_string()),
            device_failures: self.watched.failed(),
            device_failure: self.watched.first_failure().map(str::to_owned),
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counters = [("device.failures", self.watched.failed()), ("log.messages_lost", messages_lost())];
        counters.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        self.db.close()
    }
}

fn policy(rewrite: bool) -> DefragPolicy {
    if rewrite { DefragPolicy::Rewrite } else { DefragPolicy::Sparse }
}

fn fragmentation(now: &Fragmentation) -> FragmentationLine {
    FragmentationLine {
        zones_used: now.zones_used,
        zones_needed: now.zones_needed,
        zone_bytes: now.zone_bytes,
        bytes_live: now.bytes_live,
        stretch_bytes_mean: now.stretch_bytes_mean(),
    }
}

fn damaged_keys(unreadable: Unreadable) -> DamagedKeys {
    let Unreadable { keyspace, first, last, keys_max: gone_max, blocks } = unreadable;
    DamagedKeys { keyspace, first, last, gone_max, blocks, ..DamagedKeys::default() }
}
