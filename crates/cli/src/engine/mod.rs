//! The engine of a store and its device, for the operations of the service: kvdb here, others in [`plugged`].
//!
//! Thread safety: shared by all callers. Invariant: values are only passed on; no rule of the product is
//! here.

mod plugged;

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{Device, DeviceTraffic};
use kvfs_fs::repair::DamagedKeys;
use kvfs_kvdb::{
    BudgetInfo, ChargedMemory, Db, DefragLimit, DefragPolicy, DeviceHeat, DeviceInfo, DrainInfo,
    Fragmentation, HeatCell, MigrationInfo, Ownerless, Placement, Unreadable,
};
use kvfs_open::{DeviceHealth, NewDevice, OpenedEngine, StoreDevices};
use kvfs_service::lines::{
    BudgetLine, ChargeLine, ChargeLines, DefragPlanLine, DefragmentedLine, DeviceHeatLine, DeviceLine,
    DrainLine, FragmentationLine, HealthLine, HeatCellLine, HeatLines, NewDeviceLine, OwnerlessLine,
    PlacementLine, TrafficLine, ZoneLines,
};
use kvfs_service::{
    DefragOrder, DefragStep, Engine, EngineCheck, ErrorKind, Result, ServiceError, SpaceControl,
};
use kvfs_store::{Store, StoreError, Tier};

use crate::daemon::log::messages_lost;
use crate::mounts;
use crate::report::zones;
use plugged::OtherEngine;

/// The engine, for the service.
pub(crate) fn for_service(engine: OpenedEngine, is_read_only: bool) -> Box<dyn Engine> {
    match engine {
        OpenedEngine::Kvdb { db, devices } => Box::new(OpenEngine { db, devices, is_read_only }),
        OpenedEngine::Plugged(plugged) => Box::new(OtherEngine { plugged, is_read_only }),
    }
}

/// kvdb.
struct OpenEngine {
    db: Arc<Db>,
    devices: Arc<StoreDevices>,
    is_read_only: bool,
}

/// The daemon must never need its own mount: a device does not lie on it.
fn expect_apart(store: &Path, device: &Path) -> Result<()> {
    let on = device.canonicalize().ok().and_then(|target| mounts::on(&target).ok().flatten());
    let Some(mount) = on.filter(|mount| mount.store == store) else { return Ok(()) };
    let message = format!(
        "{} lies on {}, where this store is mounted; give a file or device elsewhere",
        device.display(),
        mount.dir.display()
    );
    Err(ServiceError::new(ErrorKind::MountPoint, message))
}

impl Engine for OpenEngine {
    fn name(&self) -> &'static str {
        self.db.engine_name()
    }

    fn space_control(&self) -> Option<&dyn SpaceControl> {
        Some(self)
    }

    fn check(&self) -> Result<EngineCheck, StoreError> {
        let checked = self.db.check()?;
        let damaged = checked.unreadable.into_iter().map(damaged_keys).collect();
        let missing = self.devices.missing().map(str::to_owned);
        let findings = missing.into_iter().chain(checked.findings).collect();
        Ok(EngineCheck { findings, counts: checked.counts, damaged })
    }

    fn health(&self) -> HealthLine {
        let devices = self.devices.health();
        HealthLine {
            failure: self.db.failure().map(|reason| reason.to_string()),
            device_failures: devices.failures,
            device_failure: devices.first_failure,
            ..HealthLine::default()
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let failures = self.devices.health().failures;
        let mut counters =
            vec![("device.failures".to_owned(), failures), ("log.messages_lost".to_owned(), messages_lost())];
        for device in self.devices() {
            let traffic = device.traffic;
            let own = [
                ("bytes_live", device.bytes_live),
                ("bytes_free", device.bytes_free),
                ("reads", traffic.reads),
                ("reads_in_row", traffic.reads_in_row),
                ("bytes_read", traffic.bytes_read),
                ("writes", traffic.writes),
                ("writes_in_row", traffic.writes_in_row),
                ("bytes_written", traffic.bytes_written),
                ("flushes", traffic.flushes),
            ];
            counters.extend(own.map(|(name, value)| (format!("device.{}.{name}", device.id), value)));
        }
        counters.extend(resident());
        counters
    }

    fn set_commit_interval(&self, interval: Duration) {
        self.db.set_commit_interval(interval);
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        self.db.close()
    }
}

impl SpaceControl for OpenEngine {
    fn room(&self) -> Result<u64> {
        let device = self.devices.first();
        let failed = |error: &io::Error| ServiceError::io("ask for space at", device.path(), error);
        if device.is_block_device() {
            return device.refresh_len().map_err(|error| failed(&error));
        }
        device.file_len_max().map_err(|error| failed(&error))
    }

    fn block_device(&self) -> Option<String> {
        let device = self.devices.first();
        device.is_block_device().then(|| device.path().display().to_string())
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
        let limit = DefragLimit::new(order.bytes_per_second, Arc::clone(&order.goes_on));
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

    fn placement(&self) -> PlacementLine {
        let now = self.db.migration();
        let MigrationInfo { bytes_left, looked_ago, bytes_moved, is_moving, took, limit, trouble, hot_from } =
            now;
        let budget = self.db.endurance().map(|budget| {
            let BudgetInfo { bytes_per_day, bytes_last_day, spent_for } = budget;
            BudgetLine { bytes_per_day, bytes_last_day, spent_for }
        });
        let policy = self.db.placement().to_string();
        PlacementLine {
            policy,
            bytes_left,
            looked_ago,
            bytes_moved,
            is_moving,
            took,
            limit,
            trouble,
            hot_from,
            budget,
        }
    }

    fn set_placement(&self, policy: &str, keeps: bool) -> Result<(), StoreError> {
        let placement = policy.parse::<Placement>().map_err(|error| {
            StoreError::io("choosing a placement", io::Error::new(io::ErrorKind::InvalidInput, error))
        })?;
        if keeps {
            return self.db.keep_placement(placement);
        }
        self.db.set_placement(placement);
        Ok(())
    }

    fn devices(&self) -> Vec<DeviceLine> {
        self.db.devices().into_iter().map(|device| self.device_line(device)).collect()
    }

    fn limit_migration(&self, bytes_per_second: u64) {
        self.db.set_migration_limit(bytes_per_second);
    }

    fn heat(
        &self,
        cells_max: usize,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<HeatLines>, StoreError> {
        let Some(map) = self.db.heat_map(cells_max, goes_on)? else { return Ok(None) };
        let devices = map.devices.into_iter().map(|device| self.heat_line(device)).collect();
        Ok(Some(HeatLines { was_counted: map.was_counted, hot_from: map.hot_from, devices }))
    }

    fn add_device(&self, new: &NewDeviceLine) -> Result<u32> {
        let new = NewDevice {
            path: OsString::from_vec(new.path.clone()).into(),
            tier: if new.is_slow { Tier::Slow } else { Tier::Fast },
            size_bytes: new.size_bytes,
            force: new.force,
        };
        expect_apart(self.devices.dir(), &new.path)?;
        let added = self.devices.add(&self.db, &new);
        added.map_err(|error| ServiceError::new(error.kind(), error.to_string()))
    }

    fn begin_drain(&self, ids: &[u32]) -> Result<(), StoreError> {
        self.db.begin_drain(ids)
    }

    fn drain_device(&self, id: u32, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool, StoreError> {
        self.db.drain_device(id, goes_on)
    }

    fn refill_device(&self, id: u32) -> Result<(), StoreError> {
        self.db.refill_device(id)
    }

    fn remove_device(&self, id: u32) -> Result<(), StoreError> {
        self.devices.remove(&self.db, id)
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

    fn charges(&self) -> ChargeLines {
        let ChargedMemory { live, ownerless } = self.db.charged_memory();
        let places = live.into_iter().map(|live| ChargeLine {
            pool: live.pool.to_owned(),
            file: live.at.map_or("", Location::file).to_owned(),
            line: live.at.map_or(0, Location::line),
            count: live.count,
            bytes: live.bytes,
            peak_bytes: live.bytes_peak,
            age: live.age_max,
        });
        let ownerless = ownerless.into_iter().map(|Ownerless { pool, bytes, owners }| OwnerlessLine {
            pool: pool.to_owned(),
            bytes,
            owners: owners.to_owned(),
        });
        ChargeLines { places: places.collect(), ownerless: ownerless.collect() }
    }
}

impl OpenEngine {
    fn heat_line(&self, device: DeviceHeat) -> DeviceHeatLine {
        let DeviceHeat { id, tier, bytes_total, bytes_counted, bytes_hot, cell_bytes, cells } = device;
        let cell_line = |cell| match cell {
            HeatCell::Free => HeatCellLine::Free,
            HeatCell::Other => HeatCellLine::Other,
            HeatCell::Counted(count) => HeatCellLine::Counted(count),
        };
        DeviceHeatLine {
            id,
            path: self.devices.target(&self.db, id).map(|path| path.into_os_string().into_vec()),
            tier: tier.to_string(),
            bytes_total,
            bytes_counted,
            bytes_hot,
            cell_bytes,
            cells: cells.into_iter().map(cell_line).collect(),
        }
    }

    fn device_line(&self, device: DeviceInfo) -> DeviceLine {
        let DeviceInfo { id, tier, bytes_total, bytes_free, bytes_live, drain, is_missing } = device;
        let (DeviceHealth { failures, first_failure }, traffic) = self.devices.state_of(&self.db, id);
        let path = self.devices.target(&self.db, id).filter(|_| !is_missing);
        DeviceLine {
            id,
            path: path.map(|path| path.into_os_string().into_vec()),
            tier: tier.to_string(),
            bytes_total,
            bytes_free,
            bytes_live,
            drain: drain.map(drain_line),
            traffic: traffic_line(&traffic),
            failures,
            failure: first_failure,
        }
    }
}

/// Resident memory of this process, now and at most (bytes), as far as the kernel tells.
fn resident() -> Vec<(String, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let names = [("VmRSS:", "process.resident_bytes"), ("VmHWM:", "process.resident_peak_bytes")];
    let of_field = |(field, name): (&str, &str)| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim_end().parse().ok()?;
        Some((name.to_owned(), kib << 10))
    };
    names.into_iter().filter_map(of_field).collect()
}

fn traffic_line(traffic: &DeviceTraffic) -> TrafficLine {
    let DeviceTraffic { reads, writes, flushes } = *traffic;
    TrafficLine {
        reads: reads.count,
        reads_in_row: reads.count_in_row,
        bytes_read: reads.bytes,
        writes: writes.count,
        writes_in_row: writes.count_in_row,
        bytes_written: writes.bytes,
        flushes,
    }
}

fn drain_line(drain: DrainInfo) -> DrainLine {
    let DrainInfo { is_moving, bytes_moved, took, trouble } = drain;
    DrainLine { is_moving, bytes_moved, took, trouble }
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
